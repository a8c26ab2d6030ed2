"""Made-up encoders with known relations, for the tests of this room."""

from __future__ import annotations

import numpy as np

from midspan.bridges.base import Float64
from midspan.spaces import Embeddings, FloatArray, Metric, Space


def rotation(dim: int, *, seed: int = 0) -> Float64:
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))
    return q * np.sign(np.diag(r))


def embeddings(
    vectors: Float64 | FloatArray,
    name: str,
    *,
    metric: Metric = "cosine",
    labels: object = None,
    prefix: str = "i",
) -> Embeddings:
    columns = {} if labels is None else {"labels": np.asarray(labels)}
    ids = np.array([f"{prefix}{row}" for row in range(len(vectors))])
    return Embeddings(
        ids, np.asarray(vectors, np.float32), Space(name, vectors.shape[1], metric), columns
    )


def encoders(
    count: int,
    *,
    source_dim: int = 12,
    target_dim: int = 12,
    classes: int = 40,
    noise: float = 0.05,
    metric: Metric = "cosine",
    labelled: bool = True,
    seed: int = 0,
) -> tuple[Embeddings, Embeddings]:
    """Two random one-layer networks that look at the same items."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    items = rng.standard_normal((classes, 8))[labels] + 0.4 * rng.standard_normal((count, 8))

    def encode(dim: int) -> Float64:
        hidden = np.maximum(items @ rng.standard_normal((8, 64)) / 3, 0)
        vectors = hidden @ rng.standard_normal((64, dim)) / 6
        return vectors + noise * rng.standard_normal(vectors.shape)

    given = labels if labelled else None
    return (
        embeddings(encode(source_dim), "old", metric=metric, labels=given),
        embeddings(encode(target_dim), "new", metric=metric, labels=given),
    )


def unit64(vectors: FloatArray | Float64) -> Float64:
    rows = np.array(vectors, np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def own_found_first(queries: Embeddings, gallery: Embeddings) -> float:
    """Share of queries whose own item is the nearest."""
    best = np.argmax(unit64(queries.vectors) @ unit64(gallery.vectors).T, axis=1)
    return float(np.mean(best == np.arange(len(queries))))
