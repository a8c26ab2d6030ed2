"""Divide & Conquer: the data in K clusters, the embedding in K slices, one cluster for each slice.

Sanakoyeu et al., CVPR 2019. Where the released code and the paper differ we follow the paper:
clusters of the full embedding, matched by intersection over union. Departs: the number of steps an
epoch is that of plain training, so that both have the same budget.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from midspan.spaces import FloatArray, IntArray
from midspan.training.samplers import Balanced, Sampler

ITERATIONS, STARTS = 20, 5  # of k-means; the best start counts


def cluster(vectors: FloatArray, *, count: int, seed: int) -> IntArray:
    """The cluster (N,) of each unit vector, by faiss: as fast as scikit-learn, and in the core."""
    import faiss

    means = faiss.Kmeans(
        vectors.shape[1],
        count,
        niter=ITERATIONS,
        nredo=STARTS,
        seed=seed % 2**31,
        min_points_per_centroid=1,  # no warning for small sets
        max_points_per_centroid=len(vectors),  # all of them: the default draws a sample
    )
    means.train(vectors)
    centres = np.asarray(means.centroids)  # (K, D)
    scores = vectors @ centres.T - 0.5 * (centres**2).sum(axis=1)
    nearest: IntArray = scores.argmax(axis=1)
    return nearest


def match(new: IntArray, old: IntArray, *, count: int) -> IntArray:
    """The new clusters under the numbers of those old ones that they share most members with.

    Linear assignment over intersection over union. Rows are new clusters and columns old ones: so
    members of new cluster r get the number columns[r]. (The released code applies it inverted.)
    """
    from scipy.optimize import linear_sum_assignment

    both = np.bincount(new * count + old, minlength=count * count).reshape(count, count)
    union = both.sum(1, keepdims=True) + both.sum(0, keepdims=True) - both
    rows, columns = linear_sum_assignment(both / np.maximum(union, 1), maximize=True)
    number = np.empty(count, dtype=np.int64)
    number[rows] = columns
    return number[new]


def batches(
    clusters: IntArray,
    labels: IntArray,
    *,
    sampler: Sampler,
    count: int,
    steps: int,
    seed: int,
    epoch: int,
) -> list[tuple[int, IntArray]]:
    """(learner, rows) for each step: the learners take turns, each draws from its own cluster."""
    streams = [
        _stream(_usable(np.flatnonzero(clusters == k), labels), labels, sampler, (seed, k, epoch))
        for k in range(count)
    ]
    return [(step % count, next(streams[step % count])) for step in range(steps)]


def _usable(rows: IntArray, labels: IntArray) -> IntArray:
    """Without classes of a single image, which form no pair. All rows if too few are left.

    A cluster of fewer than two classes teaches nothing, so its learner sees all the data.
    """
    _, places, counts = np.unique(labels[rows], return_inverse=True, return_counts=True)
    kept = rows[counts[places] >= 2] if len(rows) else rows
    if len(np.unique(labels[kept])) >= 2:
        return kept
    return np.arange(len(labels))


def _stream(
    rows: IntArray, labels: IntArray, sampler: Sampler, key: tuple[int, int, int]
) -> Iterator[IntArray]:
    own = labels[rows]
    if isinstance(sampler, Balanced):  # a cluster may have fewer classes than a batch needs
        present = len(np.unique(own))
        sampler = Balanced(
            classes_per_batch=min(sampler.classes, present), images_per_class=sampler.images
        )
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    turn = 0
    while True:
        for chosen in sampler.batches(own, seed=seed, epoch=turn):
            yield rows[chosen]
        turn += 1
