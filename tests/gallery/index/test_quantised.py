"""Searches by small codes: true scores, the promised recall, whatever happens to the gallery."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.gallery.index import upkeep
from midspan.gallery.index.calibrate import RECALL, calibrate
from midspan.gallery.index.codes import OneBit
from midspan.gallery.index.layout import Layout
from midspan.gallery.index.mirror import Mirror
from midspan.gallery.index.search import search
from midspan.gallery.index.upkeep import Upkeep
from midspan.gallery.quantise import Quantise
from midspan.gallery.scores import pair_scores, prepare
from midspan.spaces import FloatArray, Metric, Space

DIM = 27  # bits that do not fill their bytes
COUNT = 2000
PROMISED = 0.97
OLD = Space(name="old", dim=DIM, fingerprint="old")
NEW = Space(name="new", dim=DIM, fingerprint="new", compatible_with=("old",))
KINDS: list[Quantise] = ["int8", "binary"]


def world(seed: int, count: int, *, new: bool = False) -> FloatArray:
    """Pictures of 60 classes. The new encoder sees less of each one's own look and leans aside."""
    fixed, rng = np.random.default_rng(5), np.random.default_rng(seed)
    spectrum = np.arange(1, DIM + 1) ** -0.5
    centres, lean = fixed.standard_normal((60, DIM)), fixed.standard_normal(DIM)
    rows = centres[rng.integers(0, 60, count)]
    look = rng.standard_normal((count, DIM))
    rows = (rows + (0.4 * look + 0.7 * lean if new else 0.8 * look)) * spectrum
    units: FloatArray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


@pytest.fixture(autouse=True)
def _index_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "FLAT_UP_TO", 500 * DIM)


@pytest.fixture(params=KINDS)
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> Mirror:
    made = Mirror(Layout(request.param, tmp_path))
    made.track(1, OLD)
    made.preference = (1,)
    made.arrived(1, np.arange(1, COUNT + 1), world(0, COUNT))
    return made


def recall(mirror: Mirror, queries: FloatArray, *, allowed: np.ndarray | None = None) -> float:
    live = mirror.preference
    rough, true = (
        search(mirror, queries, k=10, live=live, among=live, allowed=allowed, exact=exact)
        for exact in (False, True)
    )
    shares = []
    for mine, theirs in zip(rough, true, strict=True):
        best = theirs.items[:10].tolist()
        scores = dict(zip(theirs.items.tolist(), theirs.scores.tolist(), strict=True))
        for item, score in zip(mine.items.tolist(), mine.scores.tolist(), strict=True):
            assert scores.get(item, score) == score  # the true one, to the last bit
        assert len(set(mine.items.tolist())) == len(mine.items)
        shares.append(len(set(best) & set(mine.items[:10].tolist())) / max(1, len(best)))
    return float(np.mean(shares))


QUERIES = world(99, 100)
NEW_QUERIES = world(99, 100, new=True)


def test_codes_in_memory_vectors_in_a_file(mirror: Mirror, tmp_path: Path) -> None:
    Upkeep(mirror).run()
    family = mirror.families[0]
    assert family.ivf is not None
    assert family.shelf.folder == tmp_path
    assert isinstance(family.ivf.codes, OneBit) == (mirror.layout.quantise == "binary")
    assert family.ivf.probes < family.ivf.lists
    assert recall(mirror, QUERIES) >= PROMISED


def test_one_bit_compares_more_candidates_than_eight(tmp_path: Path) -> None:
    needed = {}
    for kind in KINDS:
        made = Mirror(Layout(kind, tmp_path))
        made.track(1, OLD)
        made.preference = (1,)
        made.arrived(1, np.arange(1, COUNT + 1), world(0, COUNT))
        Upkeep(made).run()
        assert made.families[0].ivf is not None
        needed[kind] = made.families[0].ivf.candidates(10)
    assert needed["int8"] < needed["binary"] < COUNT / 2


def test_a_small_gallery_is_compared_whole(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "FLAT_UP_TO", COUNT * DIM)
    Upkeep(mirror).run()
    assert mirror.families[0].ivf is None
    assert recall(mirror, QUERIES) == 1.0


def test_filters_of_every_width(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midspan.gallery.index.search.GATHER", 100)
    Upkeep(mirror).run()
    for share in (0.95, 0.5, 0.1, 0.01):
        allowed = np.random.default_rng(3).random(COUNT + 1) < share
        assert recall(mirror, QUERIES, allowed=allowed) >= 0.95, share


@pytest.mark.slow
def test_recall_before_during_and_after_an_upgrade_and_back(mirror: Mirror) -> None:
    keeper = Upkeep(mirror)
    keeper.run()
    assert recall(mirror, QUERIES) >= PROMISED
    mirror.track(2, NEW)
    mirror.prefer((2, 1), keep={1, 2})
    new = world(0, COUNT, new=True)  # the same pictures
    order = np.random.default_rng(8).permutation(COUNT)
    for start in range(0, COUNT, 400):
        part = order[start : start + 400]
        mirror.arrived(2, part + 1, new[part])
        assert recall(mirror, NEW_QUERIES) >= 0.95, start  # before the background has seen them
        keeper.run()
        assert recall(mirror, NEW_QUERIES) >= PROMISED - 0.01, start
    assert recall(mirror, NEW_QUERIES) >= PROMISED
    assert mirror.reserves[1].folder == mirror.layout.folder
    mirror.prefer((1,), keep={1})  # rollback
    assert recall(mirror, QUERIES) == 1.0  # every row is compared until there is an index again
    keeper.run()
    assert recall(mirror, QUERIES) >= PROMISED


def test_another_choice_moves_vectors_and_codes(tmp_path: Path) -> None:
    mirror = Mirror()
    mirror.track(1, OLD)
    mirror.preference = (1,)
    mirror.arrived(1, np.arange(1, COUNT + 1), world(0, COUNT))
    keeper = Upkeep(mirror)
    keeper.run()
    for kind in ("binary", "int8", "none"):
        layout = Layout(kind, tmp_path)
        mirror.lay_out(layout)
        assert recall(mirror, QUERIES) >= PROMISED  # meanwhile the former index answers
        keeper.run()
        family = mirror.families[0]
        assert family.ivf is not None
        assert isinstance(family.ivf.codes, OneBit) == (kind == "binary")
        assert family.shelf.folder == (None if kind == "none" else tmp_path)
        assert not mirror.misplaced()
        assert recall(mirror, QUERIES) >= PROMISED


def test_many_equal_vectors_do_not_spoil_the_calibration(mirror: Mirror) -> None:
    """Fifty of each: which ten of them are found says nothing about the index."""
    same = np.repeat(world(7, 40), 50, axis=0)
    mirror.arrived(1, np.arange(COUNT + 1, COUNT + 2001), same)
    Upkeep(mirror).run()
    ivf = mirror.families[0].ivf
    assert ivf is not None
    assert ivf.probes < ivf.lists
    assert ivf.oversampling < 50


def test_codes_that_say_nothing_are_made_up_for_by_candidates(tmp_path: Path) -> None:
    """Calibrated after the distribution turned around: more is compared, the promise is kept."""
    mirror = Mirror(Layout("binary", tmp_path))
    mirror.track(1, OLD)
    mirror.preference = (1,)
    mirror.arrived(1, np.arange(1, COUNT + 1), world(0, COUNT))
    keeper = Upkeep(mirror)
    keeper.run()
    family = mirror.families[0]
    ivf = family.ivf
    assert ivf is not None
    narrow = 0.1 * world(1, COUNT) + world(2, 1)  # all in one corner
    units = (narrow / np.linalg.norm(narrow, axis=1, keepdims=True)).astype(np.float32)
    ivf.remove(np.arange(COUNT))
    family.shelf.write(np.arange(COUNT), np.arange(1, COUNT + 1), units, space=1)
    ivf.add(np.arange(COUNT), units, ivf.nearest(units))
    before = ivf.oversampling
    calibrate(ivf, mirror, family, np.arange(0, COUNT, 10))
    assert ivf.oversampling > before
    noise = 0.02 * world(4, 100)
    assert recall(mirror, prepare(units[5::20] + noise, metric="cosine")) >= RECALL - 0.03


def test_rows_written_while_an_index_is_made_do_not_spoil_its_calibration(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: object) -> None:
        mirror.track(2, NEW)
        mirror.prefer((2, 1), keep={1, 2})
        part = np.arange(0, COUNT, 5)  # of which the new index lists the former vectors
        mirror.arrived(2, part + 1, world(0, COUNT, new=True)[part])
        calibrate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(upkeep, "calibrate", late)
    upkeep.build(mirror, mirror.families[0], breathe=lambda: None)
    ivf = mirror.families[0].ivf
    assert ivf is not None
    assert ivf.probes < ivf.lists
    assert ivf.oversampling < 50
    assert recall(mirror, NEW_QUERIES) >= 0.95


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    metric=st.sampled_from(["cosine", "dot", "l2"]),
    dim=st.integers(2, 33),
    count=st.integers(40, 120),
    k=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_when_all_are_candidates_the_answer_is_the_exact_one(
    *, kind: Quantise, metric: Metric, dim: int, count: int, k: int, seed: int
) -> None:
    """Quantise, shortlist, compare again; with ties, and to the last bit."""
    rng = np.random.default_rng(seed)
    rows = np.round(rng.standard_normal((count, dim)), 1).astype(np.float32) + np.float32(0.01)
    rows[count // 2 :] = rows[: count - count // 2]  # every vector twice
    rows = prepare(rows, metric=metric)
    query = prepare(rng.standard_normal((2, dim)).astype(np.float32), metric=metric)
    mirror = Mirror(Layout(kind, Path(__file__).parent))
    mirror.track(1, Space(name="s", dim=dim, metric=metric))
    mirror.preference = (1,)
    mirror.arrived(1, np.arange(1, count + 1), rows)
    upkeep.build(mirror, mirror.families[0], breathe=lambda: None)
    ivf = mirror.families[0].ivf
    assert ivf is not None
    ivf.probes, ivf.oversampling = ivf.lists, count
    found = search(mirror, query, k=k, live=(1,), among=(1,), allowed=None, exact=False)
    for one, vector in zip(found, query, strict=True):
        scores = pair_scores(vector, rows, metric=metric)
        assert one.scores.tolist() == np.sort(scores)[::-1].tolist()
        assert sorted(one.items.tolist()) == list(range(1, count + 1))
        np.testing.assert_array_equal(scores[one.items - 1], one.scores)
