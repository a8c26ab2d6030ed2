"""k-means on data whose clusters are known."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.gallery.engines.embedded.ivf import assign, k_means
from midspan.spaces import Metric


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_k_means_finds_separated_clusters(metric: Metric) -> None:
    rng = np.random.default_rng(0)
    truth = np.eye(6, dtype=np.float32)
    labels = rng.integers(0, 6, 600)
    sample = truth[labels] + 0.05 * rng.standard_normal((600, 6)).astype(np.float32)
    if metric == "cosine":
        sample /= np.linalg.norm(sample, axis=1, keepdims=True)
    centres = k_means(
        sample, 30, metric=metric, rounds=10, rng=rng, check=lambda: None
    )  # more centres than clusters: each must lie in one cluster
    nearest = assign(sample, centres, metric=metric)
    for centre in np.unique(nearest):
        assert len(np.unique(labels[nearest == centre])) == 1
    if metric == "cosine":
        np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_assign_gives_the_cluster_of_the_best_score(metric: Metric) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((5000, 5)).astype(np.float32)
    centres = rng.standard_normal((17, 5)).astype(np.float32)
    nearest = assign(vectors, centres, metric=metric)
    if metric == "l2":
        expected = ((vectors[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
    else:
        expected = (vectors @ centres.T).argmax(axis=1)
    assert (nearest == expected).mean() > 0.999


def test_k_means_exception_of_the_callback_stops_it() -> None:
    sample = np.ones((100, 3), dtype=np.float32)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        k_means(
            sample,
            4,
            metric="l2",
            rounds=3,
            rng=np.random.default_rng(0),
            check=stop,
        )
