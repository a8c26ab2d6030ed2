"""Small spaces, vectors and items that the gallery's tests share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from midspan.gallery.items import Draft
from midspan.gallery.records import Entry, Query, State
from midspan.gallery.stores.base import Store
from midspan.spaces import Embeddings, FloatArray, Space

DIM = 8
OLD = Space(name="old", dim=DIM, fingerprint="f-old")
NEW = Space(name="new", dim=DIM, fingerprint="f-new", compatible_with=("f-old",))
WIDE = Space(name="wide", dim=12, fingerprint="f-wide")  # bridged: another dim
STRANGER = Space(name="stranger", dim=DIM, fingerprint="f-stranger")


def entry(what: str) -> Entry:
    return Entry(who="tester", what=what)


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
    store: Store,
    ids: Sequence[str],
    *spaces: Space,
    payloads: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> None:
    parts = [embed(ids, space, seed=seed) for space in spaces or (OLD,)]
    store.upsert(drafts(ids, payloads), parts, mode="add")


def start(store: Store, *, to: Space = NEW, live: tuple[str, ...] | None = None) -> State:
    """What an upgrade's start does to the state."""
    state = store.state()
    after = dataclasses.replace(
        state,
        spaces={**state.spaces, to.fingerprint: to},
        live=live or (to.fingerprint, *state.live),
        target=to.fingerprint,
        upgrade={"mode": "direct"},
    )
    return store.change(after, entry=entry("upgrade start"))


def near(store: Store, vectors: FloatArray, k: int = 10, **settings: Any) -> Query:
    live = settings.pop("live", store.state().live)
    return Query(
        vectors=np.atleast_2d(vectors),
        k=k,
        live=live,
        among=settings.pop("among", live),
        **settings,
    )


def found(store: Store, query: Query) -> list[list[str]]:
    return [[hit.id for hit in hits] for hits in store.search(query)]
