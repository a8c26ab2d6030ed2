"""Mixed ranking: one scale for the scores of refreshed and not yet refreshed items.

Two new vectors of one class are often nearer than a new and an old one, so an item that is not yet
refreshed sinks below worse ones that are. A monotone map of the scores of the old part, fitted on
a sample of items that have both vectors, lifts it. Some bridges (ridge) give old items high scores
already, and a map does harm; so `choose_scores` tries it out and keeps what ranks best. That wants
labels: agreement with the true new ranking, which needs none, pointed the wrong way on the demo's
encoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from midspan.bridges import Bridge, ScoreMap
from midspan.errors import EvaluationError
from midspan.spaces import Column, Embeddings, FloatArray, Metric

SAMPLE = 2000  # items whose scores are compared, all with all
PAIRS = 200_000  # scores that the map is fitted on
FEWEST = 20  # items in common
DOUBT = 2.0  # standard errors by which a map must rank better than plain scores
SHARES = (0.25, 0.5, 0.75)  # of the items that are refreshed while maps are tried out

Method = Literal["isotonic", "quantile"]
Scores = npt.NDArray[np.floating]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mixing:
    """What was tried, how well it ranked, and the map that is left: None for plain scores."""

    chosen: str
    quality: Mapping[str, float]
    scores: ScoreMap | None


def choose_scores(
    old: Embeddings,
    new: Embeddings,
    *,
    bridge: Bridge | None = None,
    labels: Column | None = None,
    plain: bool = True,
    seed: int = 0,
) -> Mixing:
    """Plain scores, or a map of those of the old part: what ranks best on items held out.

    One half of the items fits the maps; on the other, mixed galleries are ranked, and quality is
    the mean average precision by `labels` (one for each row of `new`). Plain scores stay unless a
    map is better beyond doubt: they cost one search instead of two. Without labels nothing is
    tried and the map is `quantile`, the better one in most cases with labels.
    plain: False if the scores of the two parts are of different kinds.
    """
    if labels is None:
        scores = fit_scores(old, new, bridge=bridge, method="quantile", seed=seed)
        return Mixing("quantile", {}, scores)
    new = new.with_columns({"labels": labels})
    old, new = _drawn(old, new, seed=seed)
    half = len(old) // 2
    before, after = part_scores(old[half:], new[half:], bridge)
    maps = {
        method: fit_scores(old[:half], new[:half], bridge=bridge, method=method, seed=seed)
        for method in get_args(Method)
    }
    tried = {"plain": before} if plain else {}
    tried |= {method: scores(before) for method, scores in maps.items()}
    place = np.random.default_rng(seed).permutation(len(before)) / len(before)
    known = new.columns["labels"][half:]
    per_query = {
        name: np.mean([_precisions(part, after, place < s, known) for s in SHARES], axis=0)
        for name, part in tried.items()
    }
    quality = {name: _mean(values) for name, values in per_query.items()}
    chosen = max(quality, key=lambda name: quality[name])
    if plain and not _surely_better(per_query[chosen], per_query["plain"]):
        chosen = "plain"
    if chosen == "plain":
        return Mixing(chosen, quality, None)
    method: Method = "isotonic" if chosen == "isotonic" else "quantile"
    return Mixing(chosen, quality, fit_scores(old, new, bridge=bridge, method=method, seed=seed))


def fit_scores(
    old: Embeddings,
    new: Embeddings,
    *,
    bridge: Bridge | None = None,
    method: Method = "isotonic",
    seed: int = 0,
) -> ScoreMap:
    """Scores of new queries with the old part → scores with true new vectors of the same items.

    bridge: None in direct mode; new → old maps the queries, old → new maps the items. A quarter of
    the pairs are the nearest of the old part, where first results come from. `isotonic` gives the
    expected new score, so an old vector that says little stays below a new one that says the same;
    `quantile` makes the distributions agree, which lifts uncertain items too.
    """
    old, new = _drawn(old, new, seed=seed)
    apart = ~np.eye(len(old), dtype=bool)
    before, after = (scores[apart] for scores in part_scores(old, new, bridge))
    near = np.argsort(-before, kind="stable")[: min(PAIRS, len(before)) // 4]
    some = np.random.default_rng(seed + 1).permutation(len(before))[: PAIRS - len(near)]
    chosen = np.unique(np.concatenate([near, some]))
    return ScoreMap(method=method).fit(before[chosen], after[chosen])


def part_scores(
    old: Embeddings, new: Embeddings, bridge: Bridge | None
) -> tuple[FloatArray, FloatArray]:
    """(N, N) each new vector as a query on the old part, and on the true new vectors."""
    query, items, metric = new.vectors, old.vectors, old.space.metric
    if bridge is not None and bridge.source.same_as(new.space):
        query = bridge.transform(new).vectors
    elif bridge is not None:
        items, metric = bridge.transform(old).vectors, new.space.metric
    fresh = gallery_scores(new.vectors, new.vectors, new.space.metric)
    return gallery_scores(query, items, metric), fresh


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


def _drawn(old: Embeddings, new: Embeddings, *, seed: int) -> tuple[Embeddings, Embeddings]:
    """Up to SAMPLE items that have both vectors, in a random order."""
    old, new = old.paired_with(new)
    if len(old) < FEWEST:
        raise EvaluationError(
            f"{len(old)} items have both vectors; a calibration wants {FEWEST} or more: give a "
            "larger sample of new vectors"
        )
    rows = np.random.default_rng(seed).permutation(len(old))[:SAMPLE]
    return old[rows], new[rows]


def _precisions(
    stale: Scores, fresh: Scores, refreshed: npt.NDArray[np.bool_], labels: Column
) -> Float64:
    """(N,) average precision where some columns have fresh scores and the others stale ones."""
    both = np.where(refreshed, fresh, stale).astype(np.float64)
    np.fill_diagonal(both, -np.inf)  # the query's own item comes last and is cut off
    ranked = np.argsort(-both, axis=1, kind="stable")[:, :-1]
    right = labels[ranked] == labels[:, None]
    total = right.sum(axis=1)
    precision = np.cumsum(right, axis=1) / np.arange(1, right.shape[1] + 1)
    found: Float64 = np.where(total > 0, (precision * right).sum(axis=1), np.nan)
    found /= np.maximum(total, 1)
    return found


def _mean(values: Float64) -> float:
    """Of the queries that have something to find; 0 if none has."""
    answered = values[np.isfinite(values)]
    return float(answered.mean()) if len(answered) else 0.0


def _surely_better(values: Float64, plain: Float64) -> bool:
    """By more than chance would have it: two standard errors of the mean difference."""
    gains = (values - plain)[np.isfinite(values)]
    if len(gains) < 2:
        return False
    return bool(gains.mean() > DOUBT * gains.std(ddof=1) / np.sqrt(len(gains)))
