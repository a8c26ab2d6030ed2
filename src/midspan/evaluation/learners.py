"""What the slices of an embedding do: each alone, the first few together, how alike they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from midspan.errors import EvaluationError
from midspan.evaluation.geometry import learner_correlation
from midspan.evaluation.retrieval import evaluate
from midspan.evaluation.scores import FloatArray64
from midspan.spaces import Embeddings, FloatArray, IntArray, Space

HIT = "recall@1"


@dataclass(frozen=True, slots=True)
class Learners:
    """Of K slices: first hits of each alone, of the first m together, and their correlation."""

    alone: FloatArray64  # (K,) recall@1
    together: FloatArray64  # (K,) recall@1 of the first m slices, m = 1 … K
    correlation: float  # mean |ρ| over pairs of entries in different slices; NaN for one slice
    hits: FloatArray64  # (K, N) first hits of each query by each slice alone


def judge_learners(embeddings: Embeddings, *, count: int) -> Learners:
    """Leave-one-out over labelled embeddings. Each slice is normalised, so all weigh the same."""
    if count < 1 or embeddings.space.dim % count:
        raise EvaluationError(
            f"{embeddings.space.dim} dims cannot be cut into {count} equal slices; "
            "give the number of sub-embeddings of the encoder"
        )
    slices = _slices(embeddings.vectors, count)  # (N, K, D/K)
    hits = [_hits(embeddings, slices[:, k : k + 1]) for k in range(count)]
    together = [float(np.nanmean(_hits(embeddings, slices[:, : m + 1]))) for m in range(count)]
    alike = learner_correlation(embeddings.vectors, n_learners=count) if count > 1 else float("nan")
    return Learners(
        alone=np.array([float(np.nanmean(one)) for one in hits]),
        together=np.array(together),
        correlation=alike,
        hits=np.stack(hits),
    )


def specialities(learners: Learners, *, learner: int, limit: int = 10) -> IntArray:
    """Queries that this learner gets right and most others get wrong, clearest first."""
    right = learners.hits[learner] == 1
    others = np.delete(learners.hits, learner, axis=0).sum(axis=0)
    rows = np.flatnonzero(right)
    order = np.argsort(others[rows], kind="stable")
    return rows[order][:limit]


def _slices(vectors: FloatArray, count: int) -> FloatArray:
    cut = vectors.reshape(len(vectors), count, -1)
    norms = np.linalg.norm(cut, axis=2, keepdims=True)
    sliced: FloatArray = cut / np.maximum(norms, 1e-12)
    return sliced


def _hits(embeddings: Embeddings, part: FloatArray) -> FloatArray64:
    flat = np.ascontiguousarray(part.reshape(len(part), -1))
    shown = Embeddings(
        embeddings.ids, flat, Space("slice", flat.shape[1]), dict(embeddings.columns)
    )
    hits: FloatArray64 = evaluate(shown, metrics=(HIT,)).per_query[HIT]
    return hits
