"""Rests: by rate, by latency, and cut short."""

from __future__ import annotations

import time

import pytest

from midspan.errors import ConfigError
from midspan.upgrade.throttle import LONGEST, SHORTEST, SMALL, Latency, Throttle


def rested(throttle: Throttle) -> float:
    started = time.monotonic()
    throttle.wait(lambda: True)
    return time.monotonic() - started


def test_a_throttle_without_limits_never_rests() -> None:
    throttle = Throttle()
    throttle.done(10_000)
    assert rested(throttle) < 0.05
    assert throttle.batch(64) == 64


def test_a_rate_spreads_the_batches() -> None:
    throttle = Throttle(max_rate=50)
    assert rested(throttle) < 0.05
    throttle.done(5)
    assert 0.09 <= rested(throttle) < 0.3
    assert Throttle(max_rate=10).batch(64) == 10
    assert Throttle(max_rate=0.5).batch(64) == 1


def test_the_rest_doubles_while_searches_are_slow_and_halves_after() -> None:
    now = [0.2]
    throttle = Throttle(latency=Latency(p99=lambda: now[0], ceiling=0.1))
    rests = []
    for _ in range(4):
        throttle.wait(lambda: False)  # only count, do not sleep
        rests.append(throttle.rest)
    assert rests == pytest.approx([SHORTEST, 2 * SHORTEST, 4 * SHORTEST, 8 * SHORTEST])
    for _ in range(30):
        throttle.wait(lambda: False)
    assert throttle.rest == LONGEST
    now[0] = 0.05
    for _ in range(12):
        throttle.wait(lambda: False)
    assert throttle.rest == 0.0


def test_batches_are_small_while_searches_are_slow() -> None:
    now = [0.2]
    throttle = Throttle(latency=Latency(p99=lambda: now[0], ceiling=0.1))
    assert throttle.batch(512) == 512
    throttle.wait(lambda: False)
    assert throttle.batch(512) == SMALL
    assert throttle.batch(5) == 5
    now[0] = 0.05
    throttle.wait(lambda: False)
    assert throttle.batch(512) == 512


def test_a_throttle_without_searches_never_rests() -> None:
    throttle = Throttle(latency=Latency(p99=lambda: None, ceiling=0.1))
    throttle.wait(lambda: True)
    assert throttle.rest == 0.0


def test_a_long_rest_can_be_cut_short() -> None:
    throttle = Throttle(max_rate=0.1)
    throttle.done(10)
    started = time.monotonic()
    throttle.wait(lambda: time.monotonic() - started < 0.2)
    assert 0.2 <= time.monotonic() - started < 50  # of 100


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_bad_limits_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="above 0 items"):
        Throttle(max_rate=rate)
    with pytest.raises(ConfigError, match="above 0 seconds"):
        Throttle(latency=Latency(p99=lambda: 0.0, ceiling=rate))
