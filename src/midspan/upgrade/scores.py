"""Scores of a gallery that is half refreshed, all with all: for samples of some thousand items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.bridges import Bridge
from midspan.spaces import Column, Embeddings, FloatArray, Metric

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
ScoreFunction = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def gallery_scores(query: FloatArray, items: FloatArray, metric: Metric) -> FloatArray:
    """(Q, G) the scores that a gallery gives: cosine, inner product, minus squared distance."""
    if metric == "cosine":
        query = query / np.linalg.norm(query, axis=1, keepdims=True)
        items = items / np.linalg.norm(items, axis=1, keepdims=True)
    scores: FloatArray = query @ items.T
    if metric == "l2":
        lengths = np.einsum("nd,nd->n", query, query)[:, None] + np.einsum("nd,nd->n", items, items)
        scores = 2 * scores - lengths
    return scores


def part_scores(
    old: Embeddings, new: Embeddings, bridge: Bridge | None
) -> tuple[FloatArray, FloatArray]:
    """(N, N) each new vector as a query on the old part, and on the true new vectors.

    bridge: None in direct mode; new → old maps the queries, old → new maps the items.
    """
    query, items, metric = new.vectors, old.vectors, old.space.metric
    if bridge is not None and bridge.source.same_as(new.space):
        query = bridge.transform(new).vectors
    elif bridge is not None:
        items, metric = bridge.transform(old).vectors, new.space.metric
    fresh = gallery_scores(new.vectors, new.vectors, new.space.metric)
    return gallery_scores(query, items, metric), fresh


def mixed_ranking(
    stale: npt.NDArray[Any], fresh: npt.NDArray[Any], refreshed: Bools, *, own: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """(Q, G − 1) columns from the best on, where some have fresh scores and the others stale ones.

    own: (Q,) the column of each query's own item, which is left out. Equal scores stand in the
    order of the columns.
    """
    both = np.where(refreshed, fresh, stale)
    both[np.arange(len(both)), own] = -np.inf
    found: npt.NDArray[np.int64] = np.argsort(-both, axis=1, kind="stable")[:, :-1]
    return found


def average_precisions(ranked: npt.NDArray[np.int64], matches: Bools) -> Float64:
    """(Q,) mean of the precisions at the matches; NaN where there is none to find."""
    right = np.take_along_axis(matches, ranked, axis=1)
    total = right.sum(axis=1)
    precision = np.cumsum(right, axis=1) / np.arange(1, right.shape[1] + 1)
    found: Float64 = np.where(total > 0, (precision * right).sum(axis=1), np.nan)
    found /= np.maximum(total, 1)
    return found


@dataclass(frozen=True, slots=True)
class MixedCurve:
    """Along a backfill: mean average precision, and the queries that lost their first hit."""

    fractions: Float64
    values: Float64
    negative_flips: Float64  # share of the queries, against the old service

    @property
    def area(self) -> float:
        """Under the curve, over its width."""
        heights = (self.values[1:] + self.values[:-1]) / 2
        return float((np.diff(self.fractions) * heights).sum() / np.ptp(self.fractions))


def mixed_curve(
    old: Embeddings,
    new: Embeddings,
    *,
    bridge: Bridge | None,
    labels: Column,
    order: npt.NDArray[np.int64],
    fractions: Float64,
    scores: ScoreFunction | None = None,
) -> MixedCurve:
    """Every item asks all others, in any mode of an upgrade; as `evaluation.backfill_curve`.

    order: rows, those that are refreshed first before the others. scores: map of those of the
    part that is not refreshed yet.
    """
    stale, fresh = (part.astype(np.float64) for part in part_scores(old, new, bridge))
    if scores is not None:
        stale = scores(stale)
    by_id = np.argsort(new.ids, kind="stable")  # equal scores stand in the order of the ids
    own = np.argsort(by_id, kind="stable")
    matches = (labels[:, None] == labels[None, :])[:, by_id]
    matches[np.arange(len(own)), own] = False
    answered = matches.any(axis=1)
    stale, fresh = stale[:, by_id], fresh[:, by_id]
    before = gallery_scores(old.vectors, old.vectors, old.space.metric)[:, by_id]
    nothing = np.zeros(len(own), dtype=bool)
    was_right = _first_right(mixed_ranking(before, before, nothing, own=own), matches)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    values, flips = [], []
    for share in fractions:
        refreshed = place[by_id] < np.floor(share * len(order) + 1e-9)
        ranked = mixed_ranking(stale, fresh, refreshed, own=own)
        values.append(average_precisions(ranked, matches)[answered].mean())
        lost = was_right & ~_first_right(ranked, matches)
        flips.append(lost[answered].mean())
    return MixedCurve(fractions, np.array(values), np.array(flips))


def _first_right(ranked: npt.NDArray[np.int64], matches: Bools) -> Bools:
    return np.asarray(matches[np.arange(len(ranked)), ranked[:, 0]])
