"""Items: list, get, put (by image or by vector), patch, delete; and their thumbnails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from midspan.errors import ImageError, SpaceMismatch
from midspan.gallery import AuditEvent, Gallery, parse_filter
from midspan.gallery.records import check_id
from midspan.service.answers import answer, is_admin, item_as_json
from midspan.service.bodies import from_fields, is_form, read_form, read_json
from midspan.service.context import gallery_of, prefix_of, restricted, service_of, stored_id
from midspan.service.encoding import Loaded
from midspan.service.errors import InvalidRequest, NotFound
from midspan.service.explore import containing
from midspan.service.image_loader import content_type
from midspan.service.requests import (
    LARGEST_PAGE,
    Body,
    ItemsWrite,
    ItemWrite,
    PayloadWrite,
)
from midspan.service.search_service import SearchService
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Upgrade

STATE_CHANGES = 5  # that a put lives through

Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE)]
After = Annotated[str, Query(max_length=512)]
Where = Annotated[str | None, Query(max_length=65536, description="A payload filter as JSON.")]
Text = Annotated[str | None, Query(max_length=200, description="Text in the id or payload.")]
Size = Annotated[int, Query(ge=16, le=4096)]


class _PutFields(Body):
    payload: dict[str, Any] = Field(default_factory=dict)


async def list_items(
    request: Request,
    after: After = "",
    limit: Limit = 100,
    filter: Where = None,
    contains: Text = None,
) -> Response:
    """A page of items by id; `next` is the `after` of the following page.

    contains: text in the id or in a value of the payload. A page may then hold fewer than `limit`.
    """
    service, admin = service_of(request), is_admin(request)
    condition = restricted(request, None if filter is None else parse_filter(_json(filter)))
    prefix = prefix_of(request)
    after = f"{prefix}{after}"

    def page() -> dict[str, Any]:
        state = service.gallery.state
        if contains:
            items, following = containing(
                service.gallery, contains, condition, after=after, limit=limit
            )
        else:
            items = service.gallery.scan(filter=condition, missing=None, after=after, limit=limit)
            following = items[-1].id if len(items) == limit else None
        shown = [
            item_as_json(
                item, state=state, image_roots=service.image_roots, admin=admin, prefix=prefix
            )
            for item in items
        ]
        return {"items": shown, "next": following and following.removeprefix(prefix)}

    return answer(await service.reading.run(page))


async def get_item(request: Request, id: str) -> Response:
    service, admin, prefix = service_of(request), is_admin(request), prefix_of(request)

    def look() -> dict[str, Any]:
        return item_as_json(
            service.gallery.get(prefix + id),
            state=service.gallery.state,
            image_roots=service.image_roots,
            admin=admin,
            prefix=prefix,
        )

    return answer(await service.reading.run(look))


async def put_item(request: Request, id: str) -> Response:
    """Add or replace: an image, which is embedded now, or a vector that was made elsewhere."""
    service = service_of(request)
    check_id(id)
    if not is_form(request):
        body = await read_json(request, ItemWrite, executor=service.writing)
        return answer(
            await service.writing.run(_put_vector, service, gallery_of(request), id, body)
        )
    form = await read_form(request, image_bytes=service.limits.image_bytes)
    fields = from_fields(_PutFields, form.fields)
    if form.image is None:
        raise InvalidRequest("no image: the form wants a file called 'file'")
    for last in (False,) * (STATE_CHANGES - 1) + (True,):
        version, encoders = await service.reading.run(_encoders_for_new_items, service)
        vectors = [
            (loaded.space, (await service.embed_image(form.image, loaded))[0])
            for loaded in encoders
        ]
        try:
            written = await service.writing.run(
                _put_image,
                service,
                gallery_of(request),
                id,
                image=form.image,
                vectors=vectors,
                payload=fields.payload,
            )
        except SpaceMismatch:  # an upgrade began or ended meanwhile: embed for what is live now
            if last or await service.reading.run(lambda: service.gallery.state.version) == version:
                raise
        else:
            return answer(written)
    raise AssertionError("the last round returns or raises")


async def write_items(request: Request) -> Response:
    """Up to 2,000 items with vectors in one transaction: all of them or none."""
    service = service_of(request)
    body = await read_json(request, ItemsWrite, executor=service.writing)
    return answer(await service.writing.run(_write_many, service, gallery_of(request), body))


async def patch_item(request: Request, id: str) -> Response:
    """Fields of the payload are set, those that are null removed; the rest stays."""
    service = service_of(request)
    body = await read_json(request, PayloadWrite, executor=service.writing)
    gallery = gallery_of(request)

    def write() -> dict[str, Any]:
        with service.item_lock(id):
            merged = {**gallery.get(id).payload, **body.payload}
            kept = {name: value for name, value in merged.items() if value is not None}
            gallery.set_payload({id: kept})
        _told(gallery, "items annotate", count=1, first=id)
        return item_as_json(
            gallery.get(id),
            state=gallery.state,
            image_roots=service.image_roots,
            admin=is_admin(request),
        )

    return answer(await service.writing.run(write))


async def delete_item(request: Request, id: str) -> Response:
    service = service_of(request)
    gallery = gallery_of(request)

    def remove() -> dict[str, int]:
        with service.item_lock(id):
            before = gallery.get_many([id])
            count = gallery.delete([id])
            if count:
                _told(gallery, "items delete", count=count, first=id)
                service.image_roots.discard(id, before[0].uri if before else None)
        return {"deleted": count}

    return answer(await service.writing.run(remove))


async def thumbnail(request: Request, id: str, size: Size = 160) -> Response:
    """A small picture of an item whose image is in a folder that this service may show."""
    service = service_of(request)

    def make() -> tuple[bytes, str]:
        return service.image_loader.thumbnail(
            service.gallery.get(stored_id(request, id)), size=size
        )

    try:
        image, tag = await service.decoding.run(make)
    except ImageError as error:
        raise NotFound(str(error)) from error
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == f'"{tag}"':
        return Response(status_code=304, headers=headers)
    return Response(image, media_type=content_type(image), headers=headers)


# ---- in threads


def _encoders_for_new_items(service: SearchService) -> tuple[int, list[Loaded]]:
    """(version of the state, those encoders of the spaces spaces that this service has)."""
    state = service.gallery.state
    spaces = Upgrade(service.gallery).wanted_spaces()
    known = [service.encoders.get(space.fingerprint) for space in spaces]
    available = [loaded for loaded in known if loaded is not None]
    return state.version, available or [service.encoders.for_query(state)]


def _put_vector(
    service: SearchService, gallery: Gallery, id: str, body: ItemWrite
) -> dict[str, Any]:
    if body.vector is None:
        return _put_payload(service, gallery, id, body)
    space = service.space_called(body.space, gallery.state)
    part = _embeddings([id], np.array([body.vector], dtype=np.float64), space)
    parts = [part, *_also(service, gallery, [id], [body.also])]
    return _put(service, gallery, id, parts, payload=body.payload, uri=body.uri)


def _put_payload(
    service: SearchService, gallery: Gallery, id: str, body: ItemWrite
) -> dict[str, Any]:
    """Replace the payload of an item that is there; image and vectors stay."""
    if body.uri is not None or body.also or body.space is not None:
        raise InvalidRequest("uri, also and space come with a vector; expected payload alone")
    with service.item_lock(id):
        gallery.set_payload({id: body.payload})
    _told(gallery, "items annotate", count=1, first=id)
    return {"written": 1, "spaces": []}


def _put_image(
    service: SearchService,
    gallery: Gallery,
    id: str,
    *,
    image: bytes,
    vectors: Sequence[tuple[Space, FloatArray]],
    payload: dict[str, Any],
) -> dict[str, Any]:
    parts = [_embeddings([id], vector, space) for space, vector in vectors]
    with service.item_lock(id):
        uri = service.image_roots.store(id, image)
        return _put(service, gallery, id, parts, payload=payload, uri=uri)


def _put(
    service: SearchService,
    gallery: Gallery,
    id: str,
    parts: Sequence[Embeddings],
    *,
    payload: dict[str, Any],
    uri: str | None,
) -> dict[str, Any]:
    before = gallery.get_many([id])
    gallery.put(parts[0], also=parts[1:], uris=[uri], payloads=[payload])
    _told(gallery, "items put", count=1, first=id)
    if before and before[0].uri != uri:
        service.image_roots.discard(id, before[0].uri)
    return {"written": 1, "spaces": [part.space.fingerprint for part in parts]}


def _write_many(service: SearchService, gallery: Gallery, body: ItemsWrite) -> dict[str, Any]:
    space = service.space_called(body.space, gallery.state)
    ids = [check_id(item.id) for item in body.items]
    if len({len(item.vector) for item in body.items}) > 1:
        raise InvalidRequest("the vectors have different lengths")
    vectors = np.array([item.vector for item in body.items], dtype=np.float64)
    write = {"add": gallery.add, "replace": gallery.replace, "put": gallery.put}[body.mode]
    also = _also(service, gallery, ids, [item.also for item in body.items])
    write(
        _embeddings(ids, vectors, space),
        also=also,
        uris=[item.uri for item in body.items],
        payloads=[item.payload for item in body.items],
    )
    _told(gallery, f"items {body.mode}", count=len(ids), first=ids[0])
    spaces = [space.fingerprint, *(part.space.fingerprint for part in also)]
    return {"written": len(ids), "spaces": spaces}


def _also(
    service: SearchService,
    gallery: Gallery,
    ids: Sequence[str],
    given: Sequence[dict[str, list[float]]],
) -> list[Embeddings]:
    """The items' vectors in further spaces, a set for each space."""
    parts = []
    for name in dict.fromkeys(name for one in given for name in one):
        rows = [(id, one[name]) for id, one in zip(ids, given, strict=True) if name in one]
        if len({len(vector) for _, vector in rows}) > 1:
            raise InvalidRequest(f"the vectors in {name!r:.80} have different lengths")
        space = service.space_called(name, gallery.state)
        vectors = np.array([vector for _, vector in rows], dtype=np.float64)
        parts.append(_embeddings([id for id, _ in rows], vectors, space))
    return parts


def _embeddings(ids: list[str], vectors: Any, space: Space) -> Embeddings:
    with np.errstate(over="ignore"):  # beyond float32 is infinite, which Embeddings refuse
        rows = np.asarray(vectors).astype(np.float32)
    return Embeddings(ids=np.array(ids, dtype=np.str_), vectors=rows, space=space)


def _told(gallery: Gallery, what: str, *, count: int, first: str) -> None:
    details = {"count": count, "first": first}
    gallery.record(AuditEvent(who=gallery.who, what=what, details=details))


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("filter is not JSON") from error
