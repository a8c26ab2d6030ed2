"""Calibrated scores: the old part on the scale of the new one, and worth its second search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from midspan.bridges import load_bridge
from midspan.errors import EvaluationError
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Record, Upgrade, choose_scores, fit_scores
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


@pytest.mark.parametrize("labelled", [True, False])
def test_the_choice_is_kept_with_the_upgrade(tmp_path: Path, labelled: bool) -> None:
    sample = vectors(ids(60), NEW)
    with make("sqlite", tmp_path) as gallery:
        if not labelled:
            sample = Embeddings(sample.ids, sample.vectors, NEW)
            gallery.annotate({id: {} for id in ids(60)})
        Upgrade.start(gallery, to=sample, calibrate=True)
        record = Record.of(gallery.state)
        assert record is not None
        wanted = choose_scores(vectors(ids(60), OLD), sample, labels=sample.labels)
        kept, values = record.score_map(), np.linspace(-1, 1, 50)
        assert (kept is None) == (wanted.scores is None)
        if kept is not None and wanted.scores is not None:
            assert kept(values) == pytest.approx(wanted.scores(values))
        status = Upgrade(gallery).status()
        assert status.calibrated == (kept is not None)
        assert status.mixing is not None
        assert status.mixing["chosen"] == wanted.chosen
        assert set(status.mixing["quality"]) == set(wanted.quality)


def average_precision(scores: FloatArray, labels: npt.NDArray[Any]) -> float:
    """Mean over queries, the own item left out; by the definition."""
    found = []
    for row in range(len(labels)):
        ranked = [place for place in np.argsort(-scores[row], kind="stable") if place != row]
        hits = [place for place, item in enumerate(ranked) if labels[item] == labels[row]]
        found.append(np.mean([(n + 1) / (place + 1) for n, place in enumerate(hits)]))
    return float(np.mean(found))


def test_the_quality_of_a_choice_is_that_of_the_mixed_ranking() -> None:
    old, new = vectors(ids(120), OLD), vectors(ids(120), NEW)
    found = choose_scores(old, new, labels=new.labels)
    drawn = np.random.default_rng(0).permutation(120)[60:]
    old, new = old[drawn], new[drawn]
    stale = gallery_scores(new.vectors, old.vectors, "cosine")
    fresh = gallery_scores(new.vectors, new.vectors, "cosine")
    place = np.random.default_rng(0).permutation(60) / 60
    wanted = [
        average_precision(np.where(place < share, fresh, stale), new.columns["labels"])
        for share in (0.25, 0.5, 0.75)
    ]
    assert found.quality["plain"] == pytest.approx(np.mean(wanted), abs=1e-6)
    assert (found.scores is None) == (found.chosen == "plain")


def test_scores_on_another_scale_are_brought_back() -> None:
    """Old vectors with a constant part beside the meaning: all scores are halved, no more."""
    meaning = vectors(ids(200), NEW)
    before = Space("old", 13, fingerprint="f-13")
    after = Space("new", 13, fingerprint="f-13n", compatible_with=("f-13",))
    rows = np.concatenate([meaning.vectors, np.zeros((200, 1), np.float32)], axis=1)
    constant = np.zeros(13, np.float32)
    constant[-1] = np.sqrt(0.75)
    old = Embeddings(meaning.ids, (0.5 * rows + constant).astype(np.float32), before)
    new = Embeddings(meaning.ids, rows, after)
    found = choose_scores(old, new, labels=meaning.labels)
    drawn = np.random.default_rng(0).permutation(200)[100:]
    fresh = gallery_scores(rows[drawn], rows[drawn], "cosine")
    best = average_precision(fresh, meaning.columns["labels"][drawn])
    assert found.chosen != "plain"
    assert found.quality["plain"] < best - 0.05
    assert found.quality[found.chosen] == pytest.approx(best, abs=0.005)


def test_plain_is_no_choice_between_scores_of_two_kinds() -> None:
    old, new = vectors(ids(60), OLD), vectors(ids(60), NEW)
    found = choose_scores(old, new, labels=new.labels, plain=False)
    assert set(found.quality) == {"isotonic", "quantile"}
    assert found.scores is not None


def test_a_gain_that_may_be_chance_is_none() -> None:
    """Old vectors that are as good as the new ones leave nothing to map."""
    new = vectors(ids(120), NEW)
    jitter = np.random.default_rng(0).standard_normal(new.vectors.shape) * 0.01
    old = Embeddings(new.ids, (new.vectors + jitter).astype(np.float32), OLD)
    found = choose_scores(old, new, labels=new.labels)
    assert (found.chosen, found.scores) == ("plain", None)
    assert found.quality["quantile"] == pytest.approx(found.quality["plain"], abs=0.01)


def test_a_sample_in_which_no_class_has_two_items_leaves_plain_scores() -> None:
    old, new = vectors(ids(40), OLD), vectors(ids(40), NEW)
    found = choose_scores(old, new, labels=np.arange(40))
    assert found.chosen == "plain"
