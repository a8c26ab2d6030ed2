"""Calibrated scores: the old part on the scale of the new one, and worth its second search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.bridges import load_bridge
from midspan.errors import EvaluationError
from midspan.upgrade import Record, Upgrade, fit_scores
from midspan.upgrade.mixing import gallery_scores
from tests.upgrade.world import NEW, OLD, WIDE, bridge, ids, make, vectors


def test_gallery_scores_are_those_of_the_definitions() -> None:
    rng = np.random.default_rng(0)
    query, items = rng.normal(size=(3, 5)).astype("f4"), rng.normal(size=(4, 5)).astype("f4")
    for row, q in enumerate(query.astype(float)):
        for place, x in enumerate(items.astype(float)):
            length = np.sqrt((q @ q) * (x @ x))
            wanted = {"dot": q @ x, "cosine": q @ x / length, "l2": -((q - x) ** 2).sum()}
            for metric, value in wanted.items():
                found = gallery_scores(query, items, metric)  # type: ignore[arg-type]
                assert found[row, place] == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("kind", ["direct", "map-query", "map-gallery"])
def test_scores_come_nearer_to_those_of_true_new_vectors(kind: str, tmp_path: Path) -> None:
    """On items that the map was not fitted on; and no order inside the part changes."""
    new_space = NEW if kind == "direct" else WIDE
    old, new = vectors(ids(300), OLD), vectors(ids(300), new_space)
    made, query, items = None, new.vectors, old.vectors
    if kind == "map-query":
        made = load_bridge(bridge(tmp_path, WIDE, OLD))
        query = made.apply(new.vectors)
    elif kind == "map-gallery":
        made = load_bridge(bridge(tmp_path, OLD, WIDE))
        items = made.apply(old.vectors)
    apart = ~np.eye(100, dtype=bool)
    before = gallery_scores(query[200:], items[200:], "cosine")[apart]
    after = gallery_scores(new.vectors[200:], new.vectors[200:], "cosine")[apart]
    isotonic = fit_scores(old[:200], new[:200], bridge=made)
    assert np.square(isotonic(before) - after).mean() < np.square(before - after).mean()
    quantile = fit_scores(old[:200], new[:200], bridge=made, method="quantile")
    shares = [0.5, 0.75, 0.9, 0.97]
    gaps = [
        np.abs(np.subtract(np.quantile(part, shares), np.quantile(after, shares))).max()
        for part in (before, quantile(before))
    ]
    assert gaps[1] < gaps[0]
    for scores in (isotonic, quantile):
        assert (np.diff(scores(np.unique(before))) > 0).all()


def test_too_few_items_are_refused() -> None:
    with pytest.raises(EvaluationError, match="5 items have both vectors"):
        fit_scores(vectors(ids(5), OLD), vectors(ids(9), NEW))


def test_the_map_is_kept_with_the_upgrade(tmp_path: Path) -> None:
    sample = vectors(ids(60), NEW)
    with make("sqlite", tmp_path) as gallery:
        Upgrade.start(gallery, to=sample, calibrate=True)
        record = Record.of(gallery.state)
        assert record is not None
        kept, wanted = record.score_map(), fit_scores(vectors(ids(60), OLD), sample)
        assert kept is not None
        values = np.linspace(-1, 1, 50)
        assert kept(values) == pytest.approx(wanted(values))
        assert Upgrade(gallery).status().calibrated


def test_calibrated_mixing_ranks_better_than_plain_half_way() -> None:
    """Mean average precision of new queries on a gallery of which every other item is new."""
    old, new = vectors(ids(400), OLD), vectors(ids(400), NEW)
    labels = new.columns["labels"]
    scores = fit_scores(old[:100], new[:100])
    stale = gallery_scores(new.vectors, old.vectors, "cosine")
    fresh = gallery_scores(new.vectors, new.vectors, "cosine")
    half = np.arange(400) % 2 == 0

    def quality(part: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        both = np.where(half, fresh, part)
        found = []
        for row in range(400):
            ranked = [place for place in np.argsort(-both[row], kind="stable") if place != row]
            right = labels[ranked] == labels[row]
            precision = np.cumsum(right) / np.arange(1, 400)
            found.append((precision * right).sum() / right.sum())
        return float(np.mean(found))

    assert quality(scores(stale)) > quality(stale.astype(np.float64))
