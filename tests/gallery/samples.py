"""Small spaces, vectors and items that the gallery's tests share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from midspan.gallery import AuditEvent, Draft, Filter, Gallery, Hit, State
from midspan.gallery.records import Record
from midspan.gallery.routing import SearchPart
from midspan.spaces import Embeddings, FloatArray, Space

DIM = 8
OLD = Space(name="old", dim=DIM, fingerprint="f-old")
NEW = Space(name="new", dim=DIM, fingerprint="f-new", compatible_with=("f-old",))
WIDE = Space(name="wide", dim=12, fingerprint="f-wide")  # bridged: another dim
STRANGER = Space(name="stranger", dim=DIM, fingerprint="f-stranger")


def event(what: str) -> AuditEvent:
    return AuditEvent(who="tester", what=what)


def unit(rng: np.random.Generator, count: int, dim: int = DIM) -> FloatArray:
    vectors = rng.standard_normal((count, dim))
    rows: FloatArray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return rows


def embed(ids: Sequence[str], space: Space = OLD, *, seed: int = 0) -> Embeddings:
    """A vector for each id that depends on the id, the space and the seed only."""
    rows = [
        unit(np.random.default_rng([seed, *space.fingerprint.encode(), *id.encode()]), 1, space.dim)
        for id in ids
    ]
    matrix = np.concatenate(rows) if rows else np.empty((0, space.dim), dtype=np.float32)
    return Embeddings(ids=np.array(ids, dtype=np.str_), vectors=matrix, space=space)


def drafts(ids: Sequence[str], payloads: Sequence[Mapping[str, Any]] | None = None) -> list[Draft]:
    return [
        Draft(id=id, uri=f"images/{id}.jpg", payload=payloads[row] if payloads else {})
        for row, id in enumerate(ids)
    ]


def add(
    gallery: Gallery,
    ids: Sequence[str],
    *spaces: Space,
    payloads: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> None:
    parts = [embed(ids, space, seed=seed) for space in spaces or (OLD,)]
    gallery.put_drafts(drafts(ids, payloads), parts, mode="add")


def start(gallery: Gallery, *, to: Space = NEW, live: tuple[str, ...] | None = None) -> State:
    """What a direct upgrade's start does to the state."""
    state = gallery.state
    record = Record(
        mode="direct",
        old=state.live[-1],
        new=to.fingerprint,
        phase="running",
        started=0.0,
        rollback=False,
    )
    after = dataclasses.replace(
        state,
        spaces={**state.spaces, to.fingerprint: to},
        live=live or (to.fingerprint, *state.live),
        target=to.fingerprint,
        upgrade=record.to_json(),
    )
    return gallery.change(after, event=event("upgrade start"))


def view(
    gallery: Gallery,
    vectors: FloatArray,
    *,
    k: int = 10,
    live: tuple[str, ...] | None = None,
    among: tuple[str, ...] | None = None,
    filter: Filter | None = None,
    exact: bool = False,
) -> list[list[Hit]]:
    """A search by any preference list, which only routing may choose in the product."""
    session = gallery._session
    snapshot = session.catalogue.snapshot()
    chosen = live or snapshot.state.live
    return session.searcher.search_parts(
        snapshot,
        [(SearchPart(live=chosen, among=among or chosen), np.atleast_2d(vectors))],
        k=k,
        filter=filter,
        exact=exact,
    )


def found(hits: list[list[Hit]]) -> list[list[str]]:
    return [[hit.id for hit in one] for one in hits]
