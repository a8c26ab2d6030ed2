"""Calibrated scores: the old part on the scale of the new one, and worth its second search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from midspan.bridges import load_bridge
from midspan.errors import EvaluationError
from midspan.evaluation import backfill_curve, evaluate
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Hints, Record, Upgrade, choose_scores, fit_scores, order_named
from midspan.upgrade.mixing import match_odds
from midspan.upgrade.scores import gallery_scores, mixed_curve
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


def test_odds_are_those_that_made_the_matches() -> None:
    """Log odds a + b·score, drawn and found again; and no worse a likelihood than the truth."""
    rng = np.random.default_rng(0)
    scores = rng.normal(0.3, 0.2, size=200_000)
    true = -4.0 + 7.0 * scores
    matches = rng.random(len(scores)) < 1 / (1 + np.exp(-true))
    a, b = match_odds(scores, matches)
    assert (a, b) == pytest.approx((-4.0, 7.0), abs=0.15)
    signs = np.where(matches, 1, -1)
    losses = [np.logaddexp(0, -signs * logits).mean() for logits in (a + b * scores, true)]
    assert losses[0] <= losses[1] + 1e-6


def test_odds_stay_finite_where_scores_part_the_matches_cleanly() -> None:
    scores = np.linspace(0, 1, 100)
    a, b = match_odds(scores, scores > 0.5)
    assert 0 < b < 1e4
    assert -a / b == pytest.approx(0.5, abs=0.02)
    with pytest.raises(EvaluationError, match="0 of 100 pairs match"):
        match_odds(scores, np.zeros(100, dtype=bool))


@pytest.mark.parametrize("kind", ["direct", "map-query", "map-gallery"])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_mapped_score_has_the_odds_of_a_new_one(
    kind: str, labelled: bool, tmp_path: Path
) -> None:
    """By labels, on items that the map was not fitted on; no order inside the part changes."""
    new_space = NEW if kind == "direct" else WIDE
    old, new = vectors(ids(500), OLD), vectors(ids(500), new_space)
    made, query, items = None, new.vectors, old.vectors
    if kind == "map-query":
        made = load_bridge(bridge(tmp_path, WIDE, OLD))
        query = made.apply(new.vectors)
    elif kind == "map-gallery":
        made = load_bridge(bridge(tmp_path, OLD, WIDE))
        items = made.apply(old.vectors)
    labels = new.columns["labels"]
    scores = fit_scores(
        old[:300], new[:300], bridge=made, labels=labels[:300] if labelled else None
    )
    apart = ~np.eye(200, dtype=bool)
    before = gallery_scores(query[300:], items[300:], "cosine")[apart].astype(float)
    assert (np.diff(scores(np.unique(before))) > 0).all()
    if labelled:
        after = gallery_scores(new.vectors[300:], new.vectors[300:], "cosine")[apart].astype(float)
        matches = (labels[300:, None] == labels[None, 300:])[apart]
        wanted, plain, mapped = (match_odds(s, matches) for s in (after, before, scores(before)))
        assert mapped == pytest.approx(wanted, rel=0.15)
        assert plain != pytest.approx(wanted, rel=0.15)


def test_too_few_items_are_refused() -> None:
    with pytest.raises(EvaluationError, match="5 items have both vectors"):
        fit_scores(vectors(ids(5), OLD), vectors(ids(9), NEW))


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("calibrate", [None, True, False])
def test_the_choice_is_kept_with_the_upgrade(
    tmp_path: Path, labelled: bool, calibrate: bool | None
) -> None:
    sample = vectors(ids(60), NEW)
    with make("sqlite", tmp_path) as gallery:
        if not labelled:
            sample = Embeddings(sample.ids, sample.vectors, NEW)
            gallery.annotate({id: {} for id in ids(60)})
        Upgrade.start(gallery, to=sample, calibrate=calibrate, order="random")
        record = Record.of(gallery.state)
        assert record is not None
        status, kept = Upgrade(gallery).status(), record.score_map()
        assert status.calibrated == (kept is not None)
        if calibrate is False or (calibrate is None and not labelled):
            assert (status.mixing, kept) == (None, None)  # nothing was tried
            return
        old = vectors(ids(60), OLD)
        place = order_named("random")(old, Hints(seed=0))
        wanted = choose_scores(old, sample, labels=sample.labels, priorities=place)
        values = np.linspace(-1, 1, 50)
        assert (kept is None) == (wanted.scores is None)
        if kept is not None and wanted.scores is not None:
            assert kept(values) == pytest.approx(wanted.scores(values))
        assert status.mixing is not None
        assert status.mixing["chosen"] == wanted.chosen
        assert status.mixing["quality"] == pytest.approx(wanted.quality)


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
    drawn = np.random.default_rng(0).permutation(120)
    old, new = old[drawn], new[drawn]
    stale = gallery_scores(new.vectors, old.vectors, "cosine")
    fresh = gallery_scores(new.vectors, new.vectors, "cosine")
    order = np.argsort(-np.random.default_rng(2).random(120)[drawn])
    place = np.argsort(order) / 120
    wanted = [
        average_precision(np.where(place < share, fresh, stale), new.columns["labels"])
        for share in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]
    assert found.quality["plain"] == pytest.approx(np.mean(wanted), abs=1e-6)
    assert (found.scores is None) == (found.chosen == "plain")


def halved(meaning: Embeddings) -> tuple[Embeddings, Embeddings]:
    """Old vectors with a constant part beside the meaning: all scores are halved, no more."""
    before = Space("old", 13, fingerprint="f-13")
    after = Space("new", 13, fingerprint="f-13n", compatible_with=("f-13",))
    rows = np.concatenate([meaning.vectors, np.zeros((len(meaning), 1), np.float32)], axis=1)
    constant = np.zeros(13, np.float32)
    constant[-1] = np.sqrt(0.75)
    old = Embeddings(meaning.ids, (0.5 * rows + constant).astype(np.float32), before)
    return old, Embeddings(meaning.ids, rows, after)


def test_the_order_of_the_upgrade_is_what_is_tried_out() -> None:
    """At each share those of the highest priority are refreshed."""
    old, new = vectors(ids(120), OLD), vectors(ids(120), NEW)
    first = np.random.default_rng(5).random(120)
    found = choose_scores(old, new, labels=new.labels, priorities=first)
    stale = gallery_scores(new.vectors, old.vectors, "cosine")
    fresh = gallery_scores(new.vectors, new.vectors, "cosine")
    best_first = np.argsort(-first)
    wanted = []
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        refreshed = np.isin(np.arange(120), best_first[: int(120 * share)])
        mixed = np.where(refreshed, fresh, stale)
        wanted.append(average_precision(mixed, new.columns["labels"]))
    assert found.quality["plain"] == pytest.approx(np.mean(wanted), abs=1e-6)


def test_scores_on_another_scale_are_brought_back() -> None:
    meaning = vectors(ids(200), NEW)
    old, new = halved(meaning)
    found = choose_scores(old, new, labels=meaning.labels)
    fresh = gallery_scores(new.vectors, new.vectors, "cosine")
    best = average_precision(fresh, meaning.columns["labels"])
    assert found.chosen == "odds"
    assert found.quality["plain"] < best - 0.05
    assert found.quality["odds"] == pytest.approx(best, abs=0.005)
    assert found.scores is not None
    # A query of length one meets half of every score: the map doubles it again.
    assert found.scores(np.array([0.1, 0.4])) == pytest.approx([0.2, 0.8], abs=0.02)


def test_neighbours_stand_for_labels_where_there_are_none() -> None:
    old, new = halved(vectors(ids(200), NEW))
    found = choose_scores(old, new)
    assert (found.chosen, found.quality) == ("neighbours", {})
    assert found.scores is not None
    assert found.scores(np.array([0.1, 0.4])) == pytest.approx([0.2, 0.8], abs=0.02)


def test_plain_is_no_choice_between_scores_of_two_kinds() -> None:
    old, new = vectors(ids(60), OLD), vectors(ids(60), NEW)
    found = choose_scores(old, new, labels=new.labels, plain=False)
    assert found.chosen == "odds"
    assert found.scores is not None


def test_a_gain_that_may_be_chance_is_none() -> None:
    """Old vectors that are as good as the new ones leave nothing to map."""
    new = vectors(ids(120), NEW)
    jitter = np.random.default_rng(0).standard_normal(new.vectors.shape) * 0.01
    old = Embeddings(new.ids, (new.vectors + jitter).astype(np.float32), OLD)
    found = choose_scores(old, new, labels=new.labels)
    assert (found.chosen, found.scores) == ("plain", None)
    assert found.quality["odds"] == pytest.approx(found.quality["plain"], abs=0.01)


def test_a_sample_in_which_no_class_has_two_items_leaves_plain_scores() -> None:
    old, new = vectors(ids(40), OLD), vectors(ids(40), NEW)
    found = choose_scores(old, new, labels=np.arange(40))
    assert found.chosen == "plain"


def test_old_vectors_that_mean_nothing_leave_plain_scores() -> None:
    new = vectors(ids(100), NEW)
    noise = np.random.default_rng(0).standard_normal(new.vectors.shape).astype(np.float32)
    found = choose_scores(Embeddings(new.ids, noise, OLD), new, labels=new.labels)
    assert (found.scores is None) == (found.chosen == "plain")
    if found.chosen != "plain":
        assert found.quality["odds"] > found.quality["plain"]


@pytest.mark.parametrize("mapped", [False, True])
def test_the_mixed_curve_is_the_backfill_curve(mapped: bool, tmp_path: Path) -> None:
    new_space = WIDE if mapped else NEW
    old, new = vectors(ids(90), OLD), vectors(ids(90), new_space)
    made = load_bridge(bridge(tmp_path, OLD, WIDE)) if mapped else None
    order = np.random.default_rng(3).permutation(90)
    found = mixed_curve(
        old,
        new,
        bridge=made,
        labels=new.columns["labels"],
        order=order,
        fractions=np.linspace(0, 1, 7),
    )
    wanted = backfill_curve(
        query=new,
        gallery_old=old if made is None else made.transform(old),
        gallery_new=new,
        order=order,
        points=7,
        before=evaluate(old, metrics=["recall@1"]).per_query["recall@1"],
    )
    assert found.values == pytest.approx(wanted.values, abs=1e-6)
    assert found.negative_flips == pytest.approx(wanted.negative_flips)
    assert found.area == pytest.approx(wanted.area_trapezoid)
