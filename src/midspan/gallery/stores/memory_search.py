"""Exact search over a gallery in memory: every live vector is compared with every query."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from midspan.gallery.filters import matches
from midspan.gallery.items import Hit
from midspan.gallery.records import Query
from midspan.gallery.scores import pair_scores, prepare
from midspan.gallery.stores.memory_items import Items, live_space
from midspan.spaces import Space

BLOCK = 8192  # rows scored at once


def search(
    items: Items, query: Query, *, space: Space, spaces: Mapping[str, Space]
) -> list[list[Hit]]:
    """`space`: of the query. `spaces`: of the gallery, by fingerprint."""
    ids, lives = [], []
    for id in items.by_id():
        record = items[id]
        found = live_space(query.live, record.vectors)
        if found in query.among and (
            query.filter is None or matches(query.filter, json.loads(record.payload))
        ):
            ids.append(id)
            lives.append(found)
    if not ids:
        return [[] for _ in query.vectors]
    rows = np.stack([items[id].vectors[live] for id, live in zip(ids, lives, strict=True)])
    gallery = prepare(rows, metric=space.metric)  # (N, D) in the order of the ids

    def hit(row: int, score: float) -> Hit:
        record = items[ids[row]]
        return Hit(ids[row], score, spaces[lives[row]], record.uri, json.loads(record.payload))

    results = []
    for vector in prepare(query.vectors, metric=space.metric):
        scores = np.concatenate(
            [
                pair_scores(vector, gallery[start : start + BLOCK], metric=space.metric)
                for start in range(0, len(gallery), BLOCK)
            ]
        )
        best = np.argsort(-scores, kind="stable")[: query.k]
        results.append(
            [
                hit(row, float(scores[row]))
                for row in best
                if query.threshold is None or scores[row] >= query.threshold
            ]
        )
    return results
