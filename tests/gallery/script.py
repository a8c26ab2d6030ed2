"""A life that can be replayed: step n of a seed is the same on every engine, at any time."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np

from midspan.gallery import Gallery, State
from tests.gallery.samples import NEW, OLD, drafts, embed, event, view

NAMES = [f"i{number:02}" for number in range(30)]


def step(gallery: Gallery, seed: int, number: int) -> None:
    """Write, delete, fill, begin an upgrade, roll it back or finish it."""
    chance = random.Random(seed * 1_000_003 + number)
    kind = chance.random()
    state = gallery.state
    ids = chance.sample(NAMES, chance.randint(1, 12))
    if kind < 0.5:
        spaces = [state.spaces[space] for space in state.writable()]
        payloads = [{"at": number} for _ in ids]
        parts = [embed(ids, space, seed=number) for space in spaces]
        gallery.put_drafts(drafts(ids, payloads), parts, mode="put")
    elif kind < 0.65:
        gallery.delete(ids)
    elif kind < 0.85:
        tasks = gallery.work.claim(worker="w", limit=8, seconds=0)
        if tasks and state.target is not None:
            vectors = embed(
                [task.item.id for task in tasks], state.spaces[state.target], seed=number
            )
            gallery.add_missing_vectors(vectors, revisions=[task.item.revision for task in tasks])
    else:
        _change(gallery, state, chance)


def _change(gallery: Gallery, state: State, chance: random.Random) -> None:
    here = state.spaces[state.live[-1]]
    there = OLD if here.fingerprint == NEW.fingerprint else NEW
    if len(state.live) == 1:
        after = dataclasses.replace(
            state,
            spaces={**state.spaces, there.fingerprint: there},
            live=(there.fingerprint, here.fingerprint),
            target=there.fingerprint,
            upgrade=None,
        )
    else:
        keep = state.live[1] if chance.random() < 0.7 else state.live[0]  # roll back, or finish
        after = dataclasses.replace(state, live=(keep,), target=None, upgrade=None)
    gallery.change(after, event=event("change"))


def picture(gallery: Gallery) -> dict[str, Any]:
    """All that must be the same on two galleries that lived the same life."""
    state, counts = gallery.state, gallery.count()
    items = gallery.scan(limit=1000)
    ids = [item.id for item in items]
    vectors = {}
    for space in state.spaces:
        part = gallery.vectors(ids, space=space)
        vectors[space] = dict(
            zip(part.ids.tolist(), [row.tobytes() for row in part.vectors], strict=True)
        )
    return {
        "state": dataclasses.asdict(state),
        "counts": dataclasses.asdict(counts),
        "items": [(item.id, item.uri, item.payload, item.revision, item.spaces) for item in items],
        "vectors": vectors,
    }


def same_search(one: Gallery, other: Gallery) -> None:
    vectors = np.concatenate([embed(["q1"]).vectors, embed(["q2"], NEW).vectors])
    assert view(one, vectors, k=8) == view(other, vectors, k=8)
