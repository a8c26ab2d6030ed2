"""Mixed ranking: one scale for the scores of refreshed and not yet refreshed items.

Two new vectors of one class are nearer than a new and an old one (or a mapped one), so an item
that is not yet refreshed sinks below worse ones that are. A monotone map of the scores of the old
part, fitted on a sample of items that have both vectors, lifts it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from midspan.bridges import Bridge, ScoreMap
from midspan.errors import EvaluationError
from midspan.spaces import Embeddings, FloatArray, Metric

SAMPLE = 2000  # items whose scores are compared, all with all
PAIRS = 200_000  # scores that the map is fitted on
FEWEST = 20  # items in common


def fit_scores(
    old: Embeddings,
    new: Embeddings,
    *,
    bridge: Bridge | None = None,
    method: Literal["isotonic", "quantile"] = "isotonic",
    seed: int = 0,
) -> ScoreMap:
    """Scores of new queries with the old part → scores with true new vectors of the same items.

    bridge: None in direct mode; new → old maps the queries, old → new maps the items. A quarter of
    the pairs are the nearest of the old part, where first results come from. `isotonic` gives the
    expected new score, so an old vector that says little stays below a new one that says the same;
    `quantile` makes the distributions agree, which lifts uncertain items too.
    """
    old, new = old.paired_with(new)
    if len(old) < FEWEST:
        raise EvaluationError(
            f"{len(old)} items have both vectors; a calibration wants {FEWEST} or more: give a "
            "larger sample of new vectors"
        )
    rows = np.random.default_rng(seed).permutation(len(old))[:SAMPLE]
    old, new = old[rows], new[rows]
    query, items, metric = new.vectors, old.vectors, old.space.metric
    if bridge is not None and bridge.source.same_as(new.space):
        query = bridge.transform(new).vectors
    elif bridge is not None:
        items, metric = bridge.transform(old).vectors, new.space.metric
    apart = ~np.eye(len(old), dtype=bool)
    before = gallery_scores(query, items, metric)[apart]
    after = gallery_scores(new.vectors, new.vectors, new.space.metric)[apart]
    near = np.argsort(-before, kind="stable")[: min(PAIRS, len(before)) // 4]
    some = np.random.default_rng(seed + 1).permutation(len(before))[: PAIRS - len(near)]
    chosen = np.unique(np.concatenate([near, some]))
    return ScoreMap(method=method).fit(before[chosen], after[chosen])


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
