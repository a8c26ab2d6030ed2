"""The common search: what it does when rows have died, and that scores are the true ones."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.gallery.index import upkeep
from midspan.gallery.index.found import by_lists, count_for
from midspan.gallery.index.mirror import Mirror
from midspan.gallery.index.upkeep import Upkeep
from midspan.gallery.scores import pair_scores
from midspan.spaces import FloatArray, Space

DIM, COUNT = 16, 3000
SPACE = Space(name="s", dim=DIM, fingerprint="s")


@pytest.fixture
def vectors() -> FloatArray:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((30, DIM))[np.arange(COUNT) % 30]
    rows = rows + 0.2 * rng.standard_normal((COUNT, DIM))
    units: FloatArray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return units


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch, vectors: FloatArray) -> Mirror:
    monkeypatch.setattr(upkeep, "FLAT_UP_TO", 1000)
    made = Mirror()
    made.track(1, SPACE)
    made.preference = (1,)
    made.arrived(1, np.arange(1, COUNT + 1), vectors)
    Upkeep(made).run()
    return made


def test_scores_are_the_true_ones_best_first(mirror: Mirror, vectors: FloatArray) -> None:
    found = by_lists(mirror.families[0], vectors[:5], k=10, metric="cosine")
    assert found is not None
    for query, one in zip(vectors[:5], found, strict=True):
        assert 10 <= len(one.items) <= count_for(10)
        assert one.scores.tolist() == sorted(one.scores.tolist(), reverse=True)
        wanted = pair_scores(query, vectors[one.items - 1], metric="cosine")
        assert one.scores.tolist() == wanted.tolist()
        assert set(one.spaces.tolist()) == {1}


def test_a_dead_cluster_does_not_hide_the_living(mirror: Mirror, vectors: FloatArray) -> None:
    """A class is deleted and still stands in the lists: all first candidates are dead."""
    family = mirror.families[0]
    dead = np.arange(1, COUNT + 1)[np.arange(COUNT) % 30 == 7]
    mirror.gone(dead[:60], spaces=[1])
    found = by_lists(family, vectors[dead[:1] - 1], k=50, metric="cosine")
    assert found is not None
    assert len(found[0].items) >= 50
    assert not set(found[0].items.tolist()) & set(dead[:60].tolist())
    assert set(dead[60:].tolist()) <= set(found[0].items.tolist())  # its living neighbours


def test_too_little_is_said(mirror: Mirror, vectors: FloatArray) -> None:
    """Nearly everything has died: the lists that are looked into hold fewer than k."""
    mirror.gone(np.arange(1, COUNT - 20), spaces=[1])
    family = mirror.families[0]
    assert family.ivf is not None
    family.ivf.probes = 1
    assert by_lists(family, vectors[:1], k=20, metric="cosine") is None
