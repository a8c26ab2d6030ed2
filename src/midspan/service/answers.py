"""From what the gallery gives to what goes over the wire; plain dicts, since they are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from midspan.gallery import Hit, Item, State
from midspan.service.errors import JSON
from midspan.service.image_roots import ImageRoots
from midspan.upgrade import Record


def answer(content: object, *, status: int = 200) -> Response:
    """JSON has no NaN: it is sent as null."""
    return Response(to_json(content, inf_nan_mode="null"), status_code=status, media_type=JSON)


def is_admin(request: Request) -> bool:
    """Admins see uris as they are; readers only from the allowed folders on."""
    return bool(request.state.caller.admin)


def request_id(request: Request) -> str:
    return str(request.state.request_id)


def newest(state: State) -> str | None:
    """The space whose vectors are called new; None: no upgrade is open."""
    record = Record.of(state)
    return None if record is None else record.new


def role_of(space: str, new: str | None) -> str:
    """Of the vector that answers."""
    if new is None:
        return "live"
    return "new" if space == new else "old"


@dataclass(frozen=True, slots=True)
class HitFormat:
    """How hits are shown: what is asked for, and what this caller may see."""

    image_roots: ImageRoots
    admin: bool
    payload: bool = True
    vectors: Mapping[tuple[str, str], list[float]] | None = None  # by space and id
    prefix: str = ""  # of a tenant's ids, which it does not see


def hits_as_json(hits: Sequence[Hit], *, new: str | None, view: HitFormat) -> list[dict[str, Any]]:
    roots, admin, vectors, start = view.image_roots, view.admin, view.vectors, len(view.prefix)
    return [
        {
            "id": id[start:],
            "score": score,
            "rank_score": rank_score,
            "space": space.fingerprint,
            "space_role": role_of(space.fingerprint, new),
            "payload": payload if view.payload else {},
            "uri": uri if admin else roots.shown(uri),
            "thumbnail": roots.thumbnail(id[start:], uri),
            "vector": None if vectors is None else vectors.get((space.fingerprint, id)),
        }
        for id, score, space, uri, payload, rank_score in hits
    ]


def item_as_json(
    item: Item, *, state: State, image_roots: ImageRoots, admin: bool, prefix: str = ""
) -> dict[str, Any]:
    """prefix: of a tenant's ids, which it does not see."""
    live = next((space for space in state.live if space in item.spaces), None)
    role = None if live is None else role_of(live, newest(state))
    return {
        "id": item.id.removeprefix(prefix),
        "uri": item.uri if admin else image_roots.shown(item.uri),
        "payload": item.payload,
        "revision": item.revision,
        "created": item.created,
        "changed": item.changed,
        "spaces": list(item.spaces),
        "space_role": role,
        "thumbnail": image_roots.thumbnail(item.id.removeprefix(prefix), item.uri),
    }


def flips(before: Sequence[Hit], after: Sequence[Hit]) -> list[dict[str, Any]]:
    """What differs between two rankings, by the rank in the first, then in the second."""
    was = {hit.id: rank for rank, hit in enumerate(before, start=1)}
    now = {hit.id: rank for rank, hit in enumerate(after, start=1)}
    changes = []
    for id in [*was, *(id for id in now if id not in was)]:
        old, new = was.get(id), now.get(id)
        if old == new:
            continue
        change = "left" if new is None else "entered" if old is None else "moved"
        changes.append({"id": id, "change": change, "from": old, "to": new})
    return changes
