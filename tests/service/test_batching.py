from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from midspan.gallery import parse_filter
from midspan.service.batching import Batcher
from midspan.service.bounded_executor import BoundedExecutor
from midspan.service.errors import Overloaded
from midspan.service.search_service import SearchParams


class Work:
    """Doubles numbers; remembers the batches, and waits until it may go on."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()

    def __call__(self, key: str, values: list[int]) -> Sequence[int]:
        self.begun.set()
        self.go.wait(60)
        self.batches.append((key, values))
        if any(value < 0 for value in values):
            raise ValueError("negative")
        return [2 * value for value in values]


def test_concurrent_requests_share_a_batch_and_get_their_own_result() -> None:
    work = Work()
    batcher = Batcher[int, int]("test", work, size=8, wait=60.0, waiting=100)

    async def ask() -> list[int]:
        return list(await asyncio.gather(*(batcher.submit("a", n) for n in range(24))))

    assert asyncio.run(ask()) == [2 * n for n in range(24)]
    batcher.close()
    assert sorted(n for _, values in work.batches for n in values) == list(range(24))
    assert [len(values) for _, values in work.batches] == [8, 8, 8]


def test_requests_of_different_keys_do_not_share_a_batch() -> None:
    work = Work()
    batcher = Batcher[int, int]("test", work, size=8, wait=0.05, waiting=100)

    async def ask() -> None:
        await asyncio.gather(*(batcher.submit("ab"[n % 2], n) for n in range(10)))

    asyncio.run(ask())
    batcher.close()
    assert {key: {n % 2 for n in values} for key, values in work.batches} == {"a": {0}, "b": {1}}


def test_bad_piece_of_a_batch_fails_alone() -> None:
    batcher = Batcher[int, int]("test", Work(), size=8, wait=0.1, waiting=100)

    async def ask() -> list[int | BaseException]:
        asked = (batcher.submit("a", n) for n in (1, -1, 3))
        return list(await asyncio.gather(*asked, return_exceptions=True))

    first, bad, third = asyncio.run(ask())
    batcher.close()
    assert (first, third) == (2, 6)
    assert isinstance(bad, ValueError)


def test_full_queue_raises_overloaded_immediately() -> None:
    work = Work()
    work.go.clear()
    batcher = Batcher[int, int]("test", work, size=1, wait=0.0, waiting=2)

    async def ask() -> None:
        running = asyncio.ensure_future(batcher.submit("a", 0))
        await asyncio.to_thread(work.begun.wait, 60)
        waiting = [asyncio.ensure_future(batcher.submit("a", n)) for n in (1, 2)]
        await asyncio.sleep(0)
        started = time.monotonic()
        with pytest.raises(Overloaded) as refused:
            await batcher.submit("a", 3)
        assert time.monotonic() - started < 30
        assert refused.value.headers["Retry-After"] == "1"
        work.go.set()
        assert await asyncio.gather(running, *waiting) == [0, 2, 4]

    asyncio.run(ask())
    batcher.close()


def test_closing_finishes_queued_requests() -> None:
    work = Work()
    work.go.clear()
    batcher = Batcher[int, int]("test", work, size=1, wait=0.0, waiting=10)

    async def ask() -> None:
        asked = [asyncio.ensure_future(batcher.submit("a", n)) for n in range(3)]
        await asyncio.sleep(0.01)
        closing = asyncio.get_running_loop().run_in_executor(None, batcher.close)
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await batcher.submit("a", 9)
        work.go.set()
        await closing
        assert await asyncio.gather(*asked) == [0, 2, 4]

    asyncio.run(ask())


def test_bounded_executor_refuses_beyond_its_queue_and_counts_running_work() -> None:
    executor = BoundedExecutor("test", threads=1, waiting=1)
    go = threading.Event()

    async def ask() -> None:
        first = asyncio.ensure_future(executor.run(go.wait, 10))
        second = asyncio.ensure_future(executor.run(lambda: 2))
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded):
            await executor.run(lambda: 3)
        second.cancel()  # the client left; the work is still in the queue
        await asyncio.sleep(0.01)
        assert executor.depth == 2
        go.set()
        assert await first is True
        while executor.depth:
            await asyncio.sleep(0.01)
        assert await executor.run(lambda: 4) == 4

    asyncio.run(ask())
    executor.close()


def test_search_params_of_one_and_true_are_not_answered_together() -> None:
    def params(value: object) -> SearchParams:
        return SearchParams(k=1, filter=parse_filter({"sold": value}))

    assert params(1) == params(1)
    assert hash(params(1)) == hash(params(1))
    assert params(1) != params(True)
    assert params(1) != SearchParams(k=1)
