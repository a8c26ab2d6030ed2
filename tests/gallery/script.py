"""A life that can be replayed: step n of a seed is the same on every store, whenever it is done."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np

from midspan.gallery.records import State
from midspan.gallery.stores.base import Store
from tests.gallery.samples import NEW, OLD, drafts, embed, entry

NAMES = [f"i{number:02}" for number in range(30)]


def step(store: Store, seed: int, number: int) -> None:
    """Write, delete, fill, begin an upgrade, roll it back or finish it."""
    chance = random.Random(seed * 1_000_003 + number)
    kind = chance.random()
    state = store.state()
    ids = chance.sample(NAMES, chance.randint(1, 12))
    if kind < 0.5:
        spaces = [state.spaces[space] for space in state.writable()]
        payloads = [{"at": number} for _ in ids]
        parts = [embed(ids, space, seed=number) for space in spaces]
        store.upsert(drafts(ids, payloads), parts, mode="put")
    elif kind < 0.65:
        store.delete(ids)
    elif kind < 0.85:
        tasks = store.claim(worker="w", limit=8, seconds=0)
        if tasks and state.target is not None:
            vectors = embed(
                [task.item.id for task in tasks], state.spaces[state.target], seed=number
            )
            store.fill(vectors, revisions=[task.item.revision for task in tasks])
    else:
        _change(store, state, chance)


def _change(store: Store, state: State, chance: random.Random) -> None:
    here = state.spaces[state.live[-1]]
    there = OLD if here.fingerprint == NEW.fingerprint else NEW
    if len(state.live) == 1:
        after = dataclasses.replace(
            state,
            spaces={**state.spaces, there.fingerprint: there},
            live=(there.fingerprint, here.fingerprint),
            target=there.fingerprint,
            upgrade={"to": there.name},
        )
    else:
        keep = state.live[1] if chance.random() < 0.7 else state.live[0]  # roll back, or finish
        after = dataclasses.replace(state, live=(keep,), target=None, upgrade=None)
    store.change(after, entry=entry("change"))


def picture(store: Store) -> dict[str, Any]:
    """All that must be the same on two stores that lived the same life."""
    state, counts = store.state(), store.count()
    items = store.scan(filter=None, missing=None, after="", limit=1000)
    ids = [item.id for item in items]
    vectors = {}
    for space in state.spaces:
        part = store.vectors(ids, space=space)
        vectors[space] = dict(
            zip(part.ids.tolist(), [row.tobytes() for row in part.vectors], strict=True)
        )
    return {
        "state": dataclasses.asdict(state),
        "counts": dataclasses.asdict(counts),
        "items": [(item.id, item.uri, item.payload, item.revision, item.spaces) for item in items],
        "vectors": vectors,
    }


def same_search(one: Store, other: Store) -> None:
    from midspan.gallery.records import Query

    state = one.state()
    query = Query(
        vectors=np.concatenate([embed(["q1"]).vectors, embed(["q2"], NEW).vectors]),
        k=8,
        live=state.live,
        among=state.live,
    )
    assert one.search(query) == other.search(query)
