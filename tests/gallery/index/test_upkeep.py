"""The IVF index: good enough when it is made, and after everything has changed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from midspan.gallery.index import upkeep
from midspan.gallery.index.mirror import Mirror
from midspan.gallery.index.search import search
from midspan.gallery.index.upkeep import Upkeep, fold
from midspan.spaces import FloatArray, Metric, Space

DIM = 24
COUNT = 4000
OLD = Space(name="old", dim=DIM, fingerprint="old")
NEW = Space(name="new", dim=DIM, fingerprint="new", compatible_with=("old",))


def clustered(rng: np.random.Generator, count: int) -> FloatArray:
    centres = np.random.default_rng(5).standard_normal((60, DIM))
    rows = centres[rng.integers(0, 60, count)] + 0.6 * rng.standard_normal((count, DIM))
    units: FloatArray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


@pytest.fixture(autouse=True)
def _index_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "FLAT_UP_TO", 1000 * DIM)


@pytest.fixture
def mirror() -> Mirror:
    made = Mirror()
    made.track(1, OLD)
    made.preference = (1,)
    made.arrived(1, np.arange(1, COUNT + 1), clustered(np.random.default_rng(0), COUNT))
    return made


def recall(mirror: Mirror, *, allowed: np.ndarray | None = None) -> float:
    queries = clustered(np.random.default_rng(99), 200)
    answers = [
        search(
            mirror,
            queries,
            k=10,
            live=mirror.preference,
            among=mirror.preference,
            allowed=allowed,
            exact=exact,
        )
        for exact in (False, True)
    ]
    shares = [
        len(set(rough.items[:10].tolist()) & set(true.items[:10].tolist()))
        / max(1, len(true.items[:10]))
        for rough, true in zip(*answers, strict=True)
    ]
    for rough in answers[0]:
        assert len(rough.items) == len(set(rough.items.tolist()))
    return float(np.mean(shares))


def test_small_galleries_have_no_index_and_are_exact(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "FLAT_UP_TO", COUNT * DIM)
    Upkeep(mirror).run()
    assert mirror.families[0].ivf is None
    assert recall(mirror) == 1.0


def test_the_number_of_lists_is_calibrated(mirror: Mirror) -> None:
    Upkeep(mirror).run()
    ivf = mirror.families[0].ivf
    assert ivf is not None
    assert len(ivf) == COUNT
    assert 1 <= ivf.probes < ivf.lists  # it is worth it
    assert recall(mirror) >= 0.95


@pytest.mark.parametrize("metric", ["l2", "dot"])
def test_other_metrics(metric: Metric) -> None:
    space = Space(name="s", dim=DIM, metric=metric)
    mirror = Mirror()
    mirror.track(1, space)
    mirror.preference = (1,)
    rows = clustered(np.random.default_rng(0), COUNT)
    rows *= np.random.default_rng(1).uniform(0.9, 1.1, (COUNT, 1)).astype(np.float32)
    mirror.arrived(1, np.arange(1, COUNT + 1), rows)
    Upkeep(mirror).run()
    assert recall(mirror) >= 0.95


def test_filters_of_every_width(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midspan.gallery.index.search.GATHER", 100)
    Upkeep(mirror).run()
    rng = np.random.default_rng(3)
    for share in (0.95, 0.5, 0.1, 0.01, 0.001):
        allowed = rng.random(COUNT + 1) < share
        assert recall(mirror, allowed=allowed) >= 0.95, share
    nothing = np.zeros(0, dtype=bool)
    queries = clustered(rng, 3)
    found = search(mirror, queries, k=5, live=(1,), among=(1,), allowed=nothing, exact=False)
    assert [len(one.items) for one in found] == [0, 0, 0]


def test_fresh_rows_are_found_before_and_after_they_are_folded_in(mirror: Mirror) -> None:
    keeper = Upkeep(mirror)
    keeper.run()
    family = mirror.families[0]
    mirror.arrived(1, np.arange(9001, 9301), clustered(np.random.default_rng(7), 300))
    assert family.fresh.count == 300
    assert recall(mirror) >= 0.95
    mirror.gone(np.arange(1, 801), spaces=[1])
    assert recall(mirror) >= 0.95
    keeper.run()
    assert family.fresh.count == 0
    assert family.ivf is not None
    assert len(family.ivf) == len(family.shelf) == COUNT + 300 - 800
    assert recall(mirror) >= 0.95


def test_recall_holds_before_during_and_after_a_whole_upgrade_and_back(mirror: Mirror) -> None:
    keeper = Upkeep(mirror)
    keeper.run()
    mirror.track(2, NEW)
    mirror.prefer((2, 1), keep={1, 2})
    noise = np.random.default_rng(4).standard_normal((COUNT, DIM)).astype(np.float32)
    new = clustered(np.random.default_rng(0), COUNT) + 0.1 * noise  # trained to be compatible
    new /= np.linalg.norm(new, axis=1, keepdims=True)
    order = np.random.default_rng(8).permutation(COUNT)
    for start in range(0, COUNT, 500):
        part = order[start : start + 500]
        mirror.arrived(2, part + 1, new[part])
        assert recall(mirror) >= 0.95, start
        keeper.run()
        assert recall(mirror) >= 0.95, start
    assert set(mirror.families[0].shelf.spaces.tolist()) == {2}
    assert len(mirror.reserves[1]) == COUNT
    before = time.thread_time()  # others may have the machine meanwhile
    mirror.prefer((1,), keep={1})  # rollback
    assert time.thread_time() - before < 1
    assert set(mirror.families[0].shelf.spaces.tolist()) == {1}
    assert recall(mirror) == 1.0  # every row is compared until there is an index again
    keeper.run()
    assert recall(mirror) >= 0.95
    assert mirror.families[0].ivf is not None
    assert 2 not in mirror.tracked


def test_searches_go_on_while_the_index_is_made_and_rows_change(mirror: Mirror) -> None:
    keeper = Upkeep(mirror)
    stop, failures = threading.Event(), list[str]()

    def ask() -> None:
        queries = clustered(np.random.default_rng(1), 20)
        while not stop.is_set():
            for one in search(
                mirror, queries, k=10, live=(1,), among=(1,), allowed=None, exact=False
            ):
                if len(one.items) < 10 or len(set(one.items.tolist())) < len(one.items):
                    failures.append(str(one.items))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(2)
    for start in range(0, 2000, 100):
        with mirror.lock.exclusive:
            items = np.arange(start + 1, start + 101)
            mirror.gone(items, spaces=[1])
            mirror.arrived(1, items, clustered(rng, 100))
        keeper.wake()
    deadline = time.time() + 20
    while mirror.families[0].fresh.count or mirror.families[0].ivf is None:
        assert time.time() < deadline, "the background did not finish"
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    keeper.stop()
    assert keeper.failure is None
    assert failures == []
    assert recall(mirror) >= 0.95


def test_an_index_that_was_overtaken_is_thrown_away(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = upkeep._learn

    def overtaken(*arguments: object) -> object:
        made = learn(*arguments)  # type: ignore[arg-type]
        with mirror.lock.exclusive:
            mirror.families[0].drop_index()
        return made

    monkeypatch.setattr(upkeep, "_learn", overtaken)
    upkeep.build(mirror, mirror.families[0], breathe=lambda: None)
    assert mirror.families[0].ivf is None
    assert mirror.families[0].missed is None


def test_rows_written_again_stand_in_two_lists_until_there_are_many(mirror: Mirror) -> None:
    keeper = Upkeep(mirror)
    keeper.run()
    family = mirror.families[0]
    assert family.ivf is not None
    mirror.track(2, NEW)
    mirror.prefer((2, 1), keep={1, 2})
    new = clustered(np.random.default_rng(8), COUNT)
    few = int(0.01 * COUNT)
    mirror.arrived(2, np.arange(1, few + 1), new[:few])
    fold(mirror, family)
    assert (family.fresh.count, len(family.ivf)) == (0, COUNT + few)
    assert recall(mirror) >= 0.95  # and nothing twice
    more = int(0.05 * COUNT)
    mirror.arrived(2, np.arange(few + 1, more + 1), new[few:more])
    mirror.gone(np.arange(COUNT - 9, COUNT + 1), spaces=[1, 2])
    fold(mirror, family)
    assert (family.fresh.count, len(family.ivf)) == (0, COUNT - 10)
    assert not family.behind
    assert recall(mirror) >= 0.95
