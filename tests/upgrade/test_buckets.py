"""Buckets of priority against the exact order: who is put behind whom, and by how much."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import ConfigError
from midspan.upgrade.buckets import BUCKETS, Buckets

RNG = np.random.default_rng(0)


def test_each_priority_goes_down_to_the_floor_of_its_bucket() -> None:
    buckets = Buckets.fit(np.arange(100.0), count=4)
    assert buckets.floors.tolist() == [0.0, 24.0, 49.0, 74.0]
    found = buckets(np.array([-5.0, 0.0, 23.9, 24.0, 60.0, 74.0, 1e9]))
    assert found.tolist() == [0.0, 0.0, 0.0, 24.0, 49.0, 74.0, 74.0]


def test_priorities_that_are_often_the_same_keep_a_bucket_of_their_own() -> None:
    seen = np.array([0.0] * 900 + [1.0] * 90 + [2.0] * 9 + [50.0])
    assert Buckets.fit(seen).floors.tolist() == [0.0, 1.0, 2.0, 50.0]
    assert np.array_equal(Buckets.fit(seen)(seen), seen), "then nothing is lost"
    assert len(Buckets.fit(np.full(7, 3.0))) == 1


def test_nobody_is_put_behind_a_lower_one() -> None:
    exact = RNG.gamma(0.3, size=50_000)
    buckets = Buckets.fit(RNG.gamma(0.3, size=20_000))
    rough = buckets(exact)[np.argsort(exact)]
    assert (np.diff(rough) >= 0).all()


@pytest.mark.parametrize("count", [64, BUCKETS])
def test_no_place_is_lost_by_more_than_a_few_buckets(count: int) -> None:
    """The sample is another draw than the list, as in a gallery."""
    exact = RNG.lognormal(size=200_000)
    rough = Buckets.fit(RNG.lognormal(size=20_000), count=count)(exact)
    place = np.empty(len(exact))
    place[np.argsort(-exact, kind="stable")] = np.arange(len(exact))
    now = np.empty(len(exact))
    now[np.argsort(-rough, kind="stable")] = np.arange(len(exact))
    moved = np.abs(now - place) / len(exact)
    assert moved.mean() < 0.5 / count
    # A bucket's size is 1/count by the sample's quantiles, which err by about sqrt(1/(4 n)).
    assert moved.max() < 1 / count + 4 * np.sqrt(1 / (4 * 20_000))


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 priorities; wanted 1"):
        Buckets.fit(np.array([]))
