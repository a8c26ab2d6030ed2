"""Threads: order, laziness and errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from midspan.evaluation.threads import Threads, workers


@pytest.mark.parametrize("count", ["1", "3"])
def test_map_keeps_the_order_and_takes_few_items_ahead(
    monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", count)
    monkeypatch.setattr("midspan.evaluation.threads.os.sched_getaffinity", lambda _: range(8))
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for i in range(100):
            taken += 1
            yield i

    with Threads() as threads:
        assert threads.size == int(count)
        results = threads.map(lambda i: i * i, items())
        assert next(results) == 0
        assert taken <= 4 * threads.size
        assert list(results) == [i * i for i in range(1, 100)]


@pytest.mark.parametrize("count", ["1", "2"])
def test_spread_covers_the_range_and_passes_errors_on(
    monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", count)
    seen = [0] * 25

    def work(start: int, stop: int) -> None:
        for i in range(start, stop):
            seen[i] += 1

    def fail(start: int, stop: int) -> None:
        raise ValueError(f"at {start}")

    with Threads() as threads:
        threads.spread(work, 25, step=4)
        assert seen == [1] * 25
        with pytest.raises(ValueError, match="at 0"):
            threads.spread(fail, 25, step=4)


def test_workers_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midspan.evaluation.threads.os.sched_getaffinity", lambda _: range(64))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert workers() == 16
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert workers() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert workers() == 16


def test_threads_inside_each_other_hold_blas_to_one_thread_and_restore_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("midspan.evaluation.threads.os.sched_getaffinity", lambda _: range(2))
    with threadpool_limits(limits=2, user_api="blas"):
        before = blas_threads()
        with Threads(multiplications=1) as small:
            assert (small.size, blas_threads()) == (1, before)
        with Threads():
            with Threads():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == before


def blas_threads() -> set[int]:
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }
