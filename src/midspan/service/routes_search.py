"""Search by vector, stored item, image or text; and the same query before and after an upgrade."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from midspan.gallery import Hit
from midspan.gallery.routing import Arm
from midspan.service.answers import (
    HitFormat,
    answer,
    flips,
    hits_as_json,
    is_admin,
    newest,
    request_id,
)
from midspan.service.bodies import from_fields, is_form, read_form, read_json
from midspan.service.context import prefix_of, restricted, service_of, stored_id
from midspan.service.errors import InvalidRequest, NotPossible, TooLarge, UnsupportedType
from midspan.service.requests import AnySearch, ItemSearch, SearchOptions, VectorSearch
from midspan.service.search_service import SearchParams, SearchResults, SearchService
from midspan.service.shadowing import Answered, compare_later
from midspan.spaces import FloatArray, Space
from midspan.upgrade import Record


async def search(request: Request) -> Response:
    """The nearest items of an image, a vector, a stored item or a text, whichever is given."""
    service = service_of(request)
    if is_form(request):
        return await by_image(request)
    body = await read_json(request, AnySearch, executor=service.reading)
    if body.image is not None and len(body.image) > service.limits.image_bytes:
        raise TooLarge(f"the image has more than {service.limits.image_bytes:,} bytes")
    if (query := body.image or body.text) is not None:
        return await _embed_and_search(request, query, body)
    if body.id is not None:
        return await _more_like(request, body.id, body)
    params = _params(request, body, spaces=(body.space,))
    results = await service.search.submit(params, (_as_array([body.vector or []]),))
    return await _answer(request, body, results)


async def by_vector(request: Request) -> Response:
    """The nearest items of one vector, or of several at once."""
    service = service_of(request)
    body = await read_json(request, VectorSearch, executor=service.reading)
    params = _params(request, body, spaces=(body.space, *(one.space for one in body.also)))
    rows = body.vectors or [body.vector or []]
    vectors = (_as_array(rows), *(_as_array(one.vectors) for one in body.also))
    results = await service.search.submit(params, vectors)
    return await _answer(request, body, results, many=body.vectors is not None)


async def by_item(request: Request) -> Response:
    """More like this: the items nearest to a stored one, without itself."""
    body = await read_json(request, ItemSearch, executor=service_of(request).reading)
    return await _more_like(request, body.id, body)


async def by_image(request: Request) -> Response:
    """The items nearest to an uploaded image."""
    if not is_form(request):
        raise UnsupportedType("expected multipart/form-data with the image in the field 'file'")
    form = await read_form(request, image_bytes=service_of(request).limits.image_bytes)
    options = from_fields(SearchOptions, form.fields)
    if form.image is None:
        raise InvalidRequest("no image: the form requires a file called 'file'")
    return await _embed_and_search(request, form.image, options)


async def _embed_and_search(
    request: Request, query: bytes | str, options: SearchOptions
) -> Response:
    """By an image or a text; during an upgrade the share of traffic decides who embeds it."""
    service = service_of(request)
    state = await service.reading.run(lambda: service.gallery.state)
    content = query.encode() if isinstance(query, str) else query
    key = request.headers.get("x-client-id", "").encode() or content
    encoders, arm = service.encoders.for_search(state, key=key)
    if isinstance(query, str):
        vectors = await service.reading.run(service.embed_text, query, *encoders)
    else:
        vectors = await service.embed_image(query, *encoders)
    spaces = tuple(one.space.fingerprint for one in encoders)
    params = _params(request, options, spaces=spaces, arm=arm)
    results = await service.search.submit(params, vectors)
    if state.upgrade is not None:
        service.arms.note(arm, time.perf_counter() - request.state.started)
        if isinstance(query, bytes):
            compare_later(service, state, Answered(query, vectors[-1], params, results.hits[0]))
    return await _answer(request, options, results)


async def _more_like(request: Request, id: str, options: SearchOptions) -> Response:
    service = service_of(request)
    params = _params(request, options)
    results = await service.reading.run(service.more_like, stored_id(request, id), params)
    return await _answer(request, options, results)


async def compare(request: Request) -> Response:
    """The same query asked of the old service and of today's: what left, entered or moved."""
    service = service_of(request)
    if is_form(request):
        form = await read_form(request, image_bytes=service.limits.image_bytes)
        options = from_fields(SearchOptions, {k: v for k, v in form.fields.items() if k != "id"})
        if form.image is None and "id" not in form.fields:
            raise InvalidRequest("no query: give a file called 'file', or an id")
        image, id = form.image, form.fields.get("id")
    else:
        body = await read_json(request, ItemSearch, executor=service.reading)
        options, image, id = body, None, body.id
    record = await service.reading.run(_open_record, service)
    params = _params(request, options)
    if image is not None:
        old, new = service.encoders.get(record.old), service.encoders.get(record.new)
        if old is None or new is None:
            missing = "`encoder` (the old one)" if old is None else "`new_encoder`"
            raise NotPossible(
                "comparing by an image requires both encoders; start the service with "
                f"{missing}, or compare a stored item"
            )
        queries = await service.embed_image(image, old, new)
        results = await service.reading.run(_both, service, record, params, *queries)
    else:
        assert id is not None
        results = await service.reading.run(_both_of_item, service, record, params, id)
    before, after = await _as_json(request, options, results)
    changes = flips(*results.hits)
    return _timed(request, {"before": before, "after": after, "flips": changes})


def _open_record(service: SearchService) -> Record:
    record = Record.of(service.gallery.state)
    if record is None or record.phase not in ("running", "paused"):
        raise NotPossible("no upgrade is open: before and after are the same; start one first")
    return record


def _both_of_item(
    service: SearchService, record: Record, params: SearchParams, id: str
) -> SearchResults:
    """Before: its old vector. After: its true new vector, made now if it has none yet."""
    item = service.gallery.get(id)
    old = service.gallery.vectors([id], space=record.old)
    if not len(old):
        raise NotPossible(f"{id!r:.80} has no old vector: it was added after the upgrade began")
    new = service.gallery.vectors([id], space=record.new)
    if not len(new) and (embed := service.embed_into(record.new)) is not None:
        new = embed([item]).vectors
    if not len(new):
        after = service.more_like(id, params)
        before = _search(service, params, [(old.space, old.vectors)], without=id)
        return SearchResults([before, *after.hits], after.new)
    return _both(service, record, params, old.vectors, new.vectors, without=id)


def _both(
    service: SearchService,
    record: Record,
    params: SearchParams,
    old: FloatArray,
    new: FloatArray,
    *,
    without: str | None = None,
) -> SearchResults:
    """Hits of the old service, then of today's."""
    state = service.gallery.state
    if record.new not in state.spaces:
        raise NotPossible("the upgrade was closed while this query was answered; ask again")
    by_old, by_new = (state.spaces[record.old], old), (state.spaces[record.new], new)
    today = [by_new, by_old] if record.mode == "both" else [by_new]
    before = _search(service, params, [by_old], without=without)
    after = _search(service, replace(params, arm="new"), today, without=without)
    return SearchResults([before, after], newest(state))


def _search(
    service: SearchService,
    params: SearchParams,
    queries: list[tuple[Space, FloatArray]],
    *,
    without: str | None,
) -> list[Hit]:
    k = params.k + (without is not None)
    hits = service.search_in(queries, replace(params, k=k))[0]
    return [hit for hit in hits if hit.id != without][: params.k]


def _params(
    request: Request,
    options: SearchOptions,
    *,
    spaces: tuple[str | None, ...] = (None,),
    arm: Arm | None = None,
) -> SearchParams:
    return SearchParams(
        k=options.most,
        filter=restricted(request, options.filter),
        threshold=options.least,
        exact=options.exact,
        spaces=spaces,
        arm=arm,
    )


def _as_array(rows: list[list[float]]) -> FloatArray:
    if len({len(row) for row in rows}) > 1:
        raise InvalidRequest("the vectors have different lengths")
    with np.errstate(over="ignore"):  # too long for float32: the gallery says so
        return np.asarray(rows, dtype=np.float32)


async def _answer(
    request: Request, options: SearchOptions, results: SearchResults, *, many: bool = False
) -> Response:
    lists = await _as_json(request, options, results)
    return _timed(request, {"results": lists if many else lists[0]})


async def _as_json(
    request: Request, options: SearchOptions, results: SearchResults
) -> list[list[dict[str, Any]]]:
    service = service_of(request)
    vectors = None
    if options.with_vectors:
        vectors = await service.reading.run(_vectors, service, results.hits)
    view = HitFormat(
        service.image_roots,
        is_admin(request),
        payload=options.with_payload,
        vectors=vectors,
        prefix=prefix_of(request),
    )
    return [hits_as_json(hits, new=results.new, view=view) for hits in results.hits]


def _vectors(
    service: SearchService, hits: Sequence[Sequence[Hit]]
) -> dict[tuple[str, str], list[float]]:
    """By space and id, of all that were found."""
    ids: dict[str, dict[str, None]] = {}
    for some in hits:
        for hit in some:
            ids.setdefault(hit.space.fingerprint, {})[hit.id] = None
    found = {}
    for space, those in ids.items():
        stored = service.gallery.vectors(list(those), space=space)
        for id, vector in zip(stored.ids.tolist(), stored.vectors, strict=True):
            found[space, id] = vector.tolist()
    return found


def _timed(request: Request, content: dict[str, object]) -> Response:
    took = 1000 * (time.perf_counter() - request.state.started)
    return answer({**content, "took_ms": round(took, 3), "request_id": request_id(request)})
