"""Search by vector, stored item, image or text; and the same query before and after an upgrade."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from midspan.gallery import Hit
from midspan.gallery.routing import Arm
from midspan.gallery.tenants import FIELD
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
from midspan.service.context import core_of, prefix_of, stored_id, tenant_of
from midspan.service.core import Asked, Core, Found
from midspan.service.errors import InvalidRequest, NotPossible, TooLarge, UnsupportedType
from midspan.service.requests import AnySearch, ItemSearch, SearchOptions, VectorSearch
from midspan.service.shadowing import Answered, compare_later
from midspan.spaces import FloatArray
from midspan.upgrade import Record


async def search(request: Request) -> Response:
    """The nearest items of an image, a vector, a stored item or a text, whichever is given."""
    core = core_of(request)
    if is_form(request):
        return await by_image(request)
    body = await read_json(request, AnySearch, executor=core.reading)
    if body.image is not None:
        limit = core.limits.image_bytes
        if len(body.image) > limit:
            raise TooLarge(f"the image has more than {limit:,} bytes")
        return await _image(request, body.image, body)
    if body.text is not None:
        return await _text(request, body.text, body)
    if body.id is not None:
        found = await core.reading.run(
            core.more_like, stored_id(request, body.id), _asked(request, body)
        )
    else:
        asked = _asked(request, body, spaces=(body.space,))
        found = await core.search.submit(asked, (_as_array([body.vector or []]),))
    return await _found(request, body, found)


async def by_vector(request: Request) -> Response:
    """The nearest items of one vector, or of several at once."""
    core = core_of(request)
    body = await read_json(request, VectorSearch, executor=core.reading)
    rows = body.vectors or [body.vector or []]
    spaces = (body.space, *(one.space for one in body.also))
    vectors = (_as_array(rows), *(_as_array(one.vectors) for one in body.also))
    found = await core.search.submit(_asked(request, body, spaces=spaces), vectors)
    view = await _view(request, body, found.hits)
    shown = [hits_as_json(hits, new=found.new, view=view) for hits in found.hits]
    return _answer(request, {"results": shown if body.vectors is not None else shown[0]})


async def by_item(request: Request) -> Response:
    """More like this: the items nearest to a stored one, without itself."""
    core = core_of(request)
    body = await read_json(request, ItemSearch, executor=core.reading)
    found = await core.reading.run(
        core.more_like, stored_id(request, body.id), _asked(request, body)
    )
    return await _found(request, body, found)


async def by_image(request: Request) -> Response:
    """The items nearest to an uploaded image."""
    core = core_of(request)
    if not is_form(request):
        raise UnsupportedType("an image comes as multipart/form-data, in the field 'file'")
    form = await read_form(request, image_bytes=core.limits.image_bytes)
    options = from_fields(SearchOptions, form.fields)
    if form.image is None:
        raise InvalidRequest("no image: the form requires a file called 'file'")
    return await _image(request, form.image, options)


async def _image(request: Request, image: bytes, options: SearchOptions) -> Response:
    core = core_of(request)
    state = await core.reading.run(lambda: core.gallery.state)
    key = request.headers.get("x-client-id", "").encode() or image
    encoders, arm = core.encoders.for_search(state, key=key)
    query = await core.embed_image(image, *encoders)
    spaces = tuple(one.space.fingerprint for one in encoders)
    asked = _asked(request, options, spaces=spaces, arm=arm)
    found = await core.search.submit(asked, query)
    if state.upgrade is not None:
        core.arms.note(arm, time.perf_counter() - request.state.started)
        compare_later(core, state, Answered(image, query[-1], asked, found.hits[0], arm))
    return await _found(request, options, found)


async def _text(request: Request, text: str, options: SearchOptions) -> Response:
    core = core_of(request)
    state = await core.reading.run(lambda: core.gallery.state)
    key = request.headers.get("x-client-id", "").encode() or text.encode()
    encoders, arm = core.encoders.for_search(state, key=key)
    query = await core.reading.run(core.embed_text, text, *encoders)
    spaces = tuple(one.space.fingerprint for one in encoders)
    found = await core.search.submit(_asked(request, options, spaces=spaces, arm=arm), query)
    if state.upgrade is not None:
        core.arms.note(arm, time.perf_counter() - request.state.started)
    return await _found(request, options, found)


async def compare(request: Request) -> Response:
    """The same query asked of the old service and of today's: what left, entered or moved."""
    core = core_of(request)
    if is_form(request):
        form = await read_form(request, image_bytes=core.limits.image_bytes)
        options = from_fields(SearchOptions, {k: v for k, v in form.fields.items() if k != "id"})
        if form.image is None and "id" not in form.fields:
            raise InvalidRequest("no query: give a file called 'file', or an id")
        image, id = form.image, form.fields.get("id")
    else:
        body = await read_json(request, ItemSearch, executor=core.reading)
        options, image, id = body, None, body.id
    record = await core.reading.run(_open_record, core)
    asked = _asked(request, options)
    if image is not None:
        old, new = core.encoders.get(record.old), core.encoders.get(record.new)
        if old is None or new is None:
            missing = "`encoder` (the old one)" if old is None else "`new_encoder`"
            raise NotPossible(
                f"an image can be compared where both encoders are at hand; start the service with "
                f"{missing}, or compare a stored item"
            )
        queries = await core.embed_image(image, old, new)
        found = await core.reading.run(_both, core, record, asked, *queries, without=None)
    else:
        assert id is not None
        found = await core.reading.run(_both_of_item, core, record, asked, id)
    before, after, new_space = found
    view = await _view(request, options, [before, after])
    return _answer(
        request,
        {
            "before": hits_as_json(before, new=new_space, view=view),
            "after": hits_as_json(after, new=new_space, view=view),
            "flips": flips(before, after),
        },
    )


def _open_record(core: Core) -> Record:
    record = Record.of(core.gallery.state)
    if record is None or record.phase not in ("running", "paused"):
        raise NotPossible(
            "no upgrade is going on, so there is nothing to compare: before and after are the same"
        )
    return record


def _both_of_item(
    core: Core, record: Record, asked: Asked, id: str
) -> tuple[list[Hit], list[Hit], str | None]:
    """Before: its old vector. After: its true new vector, made now if it has none yet."""
    item = core.gallery.get(id)
    old = core.gallery.vectors([id], space=record.old)
    if not len(old):
        raise NotPossible(f"{id!r:.80} has no old vector: it came after the upgrade began")
    new = core.gallery.vectors([id], space=record.new)
    if not len(new) and (embed := core.embed_into(record.new)) is not None:
        new = embed([item]).vectors
    if not len(new):
        found = core.more_like(id, asked)
        before = _before(core, record, asked, old.vectors, without=id)
        return before, found.hits[0], found.new
    return _both(core, record, asked, old.vectors, new.vectors, without=id)


def _both(
    core: Core,
    record: Record,
    asked: Asked,
    old: FloatArray,
    new: FloatArray,
    *,
    without: str | None,
) -> tuple[list[Hit], list[Hit], str | None]:
    before = _before(core, record, asked, old, without=without)
    state = core.gallery.state
    if record.new not in state.spaces:
        raise NotPossible("the upgrade ended in this moment")
    came = [(state.spaces[record.new], new), (state.spaces[record.old], old)]
    after = core.gallery.search_in(
        came if record.mode == "both" else came[:1],
        arm="new",
        k=asked.k + (without is not None),
        filter=asked.parsed(),
        exact=asked.exact,
        threshold=asked.threshold,
    )[0]
    return before, [hit for hit in after if hit.id != without][: asked.k], newest(state)


def _before(
    core: Core, record: Record, asked: Asked, old: FloatArray, *, without: str | None
) -> list[Hit]:
    hits = core.gallery.search(
        old,
        space=core.gallery.state.spaces[record.old],
        k=asked.k + (without is not None),
        filter=asked.parsed(),
        exact=asked.exact,
        threshold=asked.threshold,
    )[0]
    return [hit for hit in hits if hit.id != without][: asked.k]


def _asked(
    request: Request,
    options: SearchOptions,
    *,
    spaces: tuple[str | None, ...] = (None,),
    arm: Arm | None = None,
) -> Asked:
    filter, tenant = options.filter or None, tenant_of(request)
    if tenant is not None:
        bound = {FIELD: tenant}
        filter = bound if filter is None else {"$and": [bound, filter]}
    return Asked(
        k=options.most,
        filter=None if filter is None else to_json(filter).decode(),
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


async def _found(request: Request, options: SearchOptions, found: Found) -> Response:
    view = await _view(request, options, found.hits)
    return _answer(request, {"results": hits_as_json(found.hits[0], new=found.new, view=view)})


async def _view(
    request: Request, options: SearchOptions, hits: Sequence[Sequence[Hit]]
) -> HitFormat:
    core = core_of(request)
    vectors = None
    if options.with_vectors:
        vectors = await core.reading.run(_vectors, core, hits)
    prefix = prefix_of(request)
    return HitFormat(core.image_roots, is_admin(request), options.with_payload, vectors, prefix)


def _vectors(core: Core, hits: Sequence[Sequence[Hit]]) -> dict[tuple[str, str], list[float]]:
    """By space and id, of all that were found."""
    ids: dict[str, dict[str, None]] = {}
    for some in hits:
        for hit in some:
            ids.setdefault(hit.space.fingerprint, {})[hit.id] = None
    found = {}
    for space, those in ids.items():
        stored = core.gallery.vectors(list(those), space=space)
        for id, vector in zip(stored.ids.tolist(), stored.vectors, strict=True):
            found[space, id] = vector.tolist()
    return found


def _answer(request: Request, content: dict[str, object]) -> Response:
    took = 1000 * (time.perf_counter() - request.state.started)
    return answer({**content, "took_ms": round(took, 3), "request_id": request_id(request)})
