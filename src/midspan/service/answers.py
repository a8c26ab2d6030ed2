"""From what the gallery gives to what goes over the wire; plain dicts, since they are many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from midspan.gallery import Hit, Item, State
from midspan.service.errors import JSON
from midspan.service.places import Places
from midspan.upgrade import Record


def answer(content: object, *, status: int = 200) -> Response:
    """JSON has no NaN: it is sent as null."""
    return Response(to_json(content, inf_nan_mode="null"), status_code=status, media_type=JSON)


def request_id(request: Request) -> str:
    return str(request.state.request_id)


def newest(state: State) -> str:
    """The space whose vectors are called new."""
    record = Record.of(state)
    return state.live[0] if record is None else record.new


def hits_as_json(hits: Sequence[Hit], *, new: str, places: Places) -> list[dict[str, Any]]:
    return [
        {
            "id": id,
            "score": score,
            "space": space.fingerprint,
            "space_role": "new" if space.fingerprint == new else "old",
            "payload": payload,
            "uri": uri,
            "thumbnail": thumbnail_path(id) if uri and places.may_show(uri) else None,
        }
        for id, score, space, uri, payload in hits
    ]


def item_as_json(item: Item, *, state: State, places: Places) -> dict[str, Any]:
    live = next((space for space in state.live if space in item.spaces), None)
    role = None if live is None else "new" if live == newest(state) else "old"
    return {
        "id": item.id,
        "uri": item.uri,
        "payload": item.payload,
        "revision": item.revision,
        "created": item.created,
        "changed": item.changed,
        "spaces": list(item.spaces),
        "space_role": role,
        "thumbnail": thumbnail_path(item.id) if places.may_show(item.uri) else None,
    }


def thumbnail_path(id: str) -> str:
    return f"/v1/thumbnails/{quote(id, safe='')}"


def flips(before: Sequence[Hit], after: Sequence[Hit]) -> list[dict[str, Any]]:
    """What differs between two rankings, by the rank in the first, then in the second."""
    was = {hit.id: rank for rank, hit in enumerate(before, start=1)}
    now = {hit.id: rank for rank, hit in enumerate(after, start=1)}
    found = []
    for id in [*was, *(id for id in now if id not in was)]:
        old, new = was.get(id), now.get(id)
        if old == new:
            continue
        change = "left" if new is None else "entered" if old is None else "moved"
        found.append({"id": id, "change": change, "from": old, "to": new})
    return found
