"""The number of lists holds for the queries of each space, not for their mean."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from midspan.gallery.index import calibrate, upkeep
from midspan.gallery.index.mirror import Mirror
from midspan.gallery.index.search import search
from midspan.gallery.index.upkeep import Upkeep
from midspan.spaces import FloatArray, Space

DIM = 24
COUNT = 6000
OLD = Space(name="old", dim=DIM, fingerprint="old")
NEW = Space(name="new", dim=DIM, fingerprint="new", compatible_with=("old",))


def units(rows: npt.NDArray[np.float64]) -> FloatArray:
    scaled: FloatArray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def old(seed: int, count: int) -> FloatArray:
    """Narrow classes: a few lists hold the neighbours of any."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(5).standard_normal((100, DIM))
    return units(centres[rng.integers(0, 100, count)] + 0.1 * rng.standard_normal((count, DIM)))


def new(seed: int, count: int) -> FloatArray:
    """No classes at all: neighbours are spread over many lists."""
    return units(np.random.default_rng(seed).standard_normal((count, DIM)))


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Mirror:
    monkeypatch.setattr(upkeep, "FLAT_UP_TO", 500 * DIM)
    made = Mirror()
    made.track(1, OLD)
    made.preference = (1,)
    made.arrived(1, np.arange(1, COUNT + 1), old(0, COUNT))
    return made


def begin_upgrade(mirror: Mirror, refreshed: int) -> None:
    mirror.track(2, NEW)
    mirror.prefer((2, 1), keep={1, 2})
    mirror.arrived(2, np.arange(1, refreshed + 1), new(0, refreshed))


def recall(mirror: Mirror, queries: FloatArray) -> float:
    rough, true = (
        search(mirror, queries, k=10, live=(2, 1), among=(2, 1), allowed=None, exact=exact)
        for exact in (False, True)
    )
    pairs = zip(rough, true, strict=True)
    return float(np.mean([len({*m.items[:10]} & {*t.items[:10]}) / 10 for m, t in pairs]))


def test_the_space_with_the_harder_queries_decides(mirror: Mirror) -> None:
    keeper = Upkeep(mirror)
    keeper.run()
    ivf = mirror.families[0].ivf
    assert ivf is not None
    for_old = ivf.probes
    begin_upgrade(mirror, COUNT // 4)
    keeper.run()
    ivf = mirror.families[0].ivf
    assert ivf is not None
    assert recall(mirror, new(9, 200)) >= calibrate.RECALL - 0.02
    assert recall(mirror, old(9, 200)) >= calibrate.RECALL - 0.02
    ivf.probes = for_old  # what the old vectors alone would have asked for
    assert recall(mirror, new(9, 200)) < 0.9


def test_judges_come_from_every_space(mirror: Mirror) -> None:
    begin_upgrade(mirror, 400)
    family = mirror.families[0]
    chosen = calibrate.judges(family, np.random.default_rng(0).permutation(COUNT))
    spaces, counts = np.unique(family.shelf.spaces[chosen], return_counts=True)
    assert dict(zip(spaces.tolist(), counts.tolist(), strict=True)) == {
        1: calibrate.SAMPLE,
        2: 100,  # a quarter of them
    }


def test_a_new_space_is_judged_as_soon_as_it_has_enough(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "RECALIBRATE", 0.9)
    monkeypatch.setattr(upkeep, "RELEARN", 0.9)
    keeper = Upkeep(mirror)
    keeper.run()
    family = mirror.families[0]
    assert family.ivf is not None
    assert family.ivf.judged == {1}
    begin_upgrade(mirror, 4 * calibrate.SAMPLE - 1)
    keeper.run()
    assert family.ivf.judged == {1}
    begin_upgrade(mirror, 4 * calibrate.SAMPLE)
    keeper.run()
    assert family.ivf.judged == {1, 2}
    assert not calibrate.unjudged(family)


def test_with_few_of_every_space_all_are_judged_together() -> None:
    spaces = np.array([1, 1, 2, 2, 2])
    assert [group.tolist() for group in calibrate._groups(spaces)] == [[0, 1, 2, 3, 4]]
