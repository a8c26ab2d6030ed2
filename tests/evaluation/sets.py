"""Small labelled sets of embeddings for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.spaces import Embeddings, Metric, Space


def embeddings(
    vectors: npt.ArrayLike,
    labels: npt.ArrayLike | None = None,
    *,
    ids: npt.ArrayLike | None = None,
    name: str = "test",
    metric: Metric = "cosine",
    **columns: Any,
) -> Embeddings:
    matrix = np.asarray(vectors, dtype=np.float32)
    if ids is None:
        ids = [f"item-{i:05d}" for i in range(len(matrix))]
    if labels is not None:
        columns["labels"] = np.asarray(labels)
    return Embeddings(
        ids=np.asarray(ids, dtype=np.str_),
        vectors=matrix,
        space=Space(name, matrix.shape[1], metric),
        columns={key: np.asarray(column) for key, column in columns.items()},
    )


def clustered(
    n: int, *, classes: int, dim: int = 16, noise: float = 1.0, seed: int = 0, name: str = "test"
) -> Embeddings:
    """n items around `classes` centres; the centres depend on nothing but their number."""
    centres = np.random.default_rng(99).standard_normal((classes, dim))
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    vectors = centres[labels] + noise * rng.standard_normal((n, dim))
    return embeddings(vectors, labels, name=name)
