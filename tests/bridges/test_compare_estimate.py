"""Retention falls with the size of the gallery, and is estimated for larger ones."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Ridge, compare_bridges
from midspan.bridges.base import Float64
from midspan.bridges.retrieval import average_precisions, reciprocal_ranks
from midspan.errors import EvaluationError
from midspan.evaluation import evaluate
from midspan.spaces import Embeddings, Space
from tests.bridges.worlds import encoders


def unit(rows: Float64) -> Float64:
    lengths: Float64 = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths


def two_encoders(classes: int, *, seed: int = 0) -> tuple[Embeddings, Embeddings]:
    """10 items a class; the old encoder does not see all that the new one sees."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 10)
    meaning = rng.normal(size=(classes, 24))[labels] + 0.8 * rng.normal(size=(len(labels), 24))
    lost = meaning.copy()
    lost[:, 14:] = rng.normal(size=(len(labels), 10))
    ids = np.array([f"i{n}" for n in range(len(labels))])

    def made(rows: Float64, name: str) -> Embeddings:
        return Embeddings(ids, rows.astype(np.float32), Space(name, 24), {"labels": labels})

    turn, _ = np.linalg.qr(np.random.default_rng(9).normal(size=(24, 24)))
    return made(lost @ turn, "old"), made(meaning, "new")


def test_items_that_count_twice_are_as_if_they_were_there_twice() -> None:
    rng = np.random.default_rng(0)
    rows, labels = unit(rng.normal(size=(40, 6))), np.arange(40) % 4
    got = average_precisions(rows, rows, labels, "cosine", times=3.0)
    turned = rows[::-1].copy()
    ranks = reciprocal_ranks(rows, turned, "cosine", times=3.0)
    for query in range(40):
        other = np.flatnonzero(labels != labels[query])
        own = np.flatnonzero((labels == labels[query]) & (np.arange(40) != query))
        gallery = np.concatenate([own, other, other, other])
        order = np.argsort(-(rows[gallery] @ rows[query]), kind="stable")
        right = labels[gallery][order] == labels[query]
        expected = (np.cumsum(right) / np.arange(1, len(right) + 1))[right].mean()
        assert got[query] == pytest.approx(expected)
        scores = turned @ rows[query]
        assert ranks[query] == pytest.approx(1 / (1 + 3 * (scores > scores[query]).sum()))
    assert np.allclose(
        average_precisions(rows, rows, labels, "cosine", times=1.0),
        average_precisions(rows, rows, labels, "cosine"),
    )


def test_estimate_for_a_gallery_no_larger_than_the_folds_is_what_was_measured() -> None:
    old, new = encoders(120, classes=12)
    row = compare_bridges(old, new, candidates=("ridge",), folds=3, gallery_size=10, draws=20).row(
        "ridge"
    )
    assert (row.estimate, row.estimate_low, row.estimate_high) == (row.retention, row.low, row.high)


def test_estimate_is_nearer_to_the_truth_than_the_small_gallery() -> None:
    old, new = two_encoders(300)
    assert old.labels is not None
    mine = old.labels.astype(int) < 60
    result = compare_bridges(
        old[mine], new[mine], candidates=("ridge",), gallery_size=2400, draws=200
    )
    row = result.row("ridge")
    mapped = Ridge().fit(old[mine], new[mine]).transform(old[~mine])
    true_new = new[~mine]
    kept = evaluate(true_new, mapped.with_columns(true_new.columns), metrics=["map"]).mean("map")
    truth = kept / evaluate(true_new, metrics=["map"]).mean("map")
    assert (result.held_out_by, result.gallery_size) == ("classes", 2400)
    assert result.measured_at == 120
    assert truth < row.low  # the small gallery flatters
    assert abs(row.estimate - truth) < 0.5 * abs(row.retention - truth)
    assert truth < row.estimate < row.low  # 20 times the size: still high, as documented


def test_few_classes_are_still_held_out_as_classes() -> None:
    old, new = encoders(120, classes=6)
    result = compare_bridges(old, new, candidates=("ridge",), folds=5, draws=20)
    assert (result.held_out_by, result.folds) == ("classes", 3)
    assert result.gallery_size == 120
    old, new = encoders(120, classes=3)
    result = compare_bridges(old, new, candidates=("ridge",), folds=5, draws=20)
    assert (result.held_out_by, result.folds) == ("pairs", 5)
    with pytest.raises(EvaluationError, match="expected 1 or more"):
        compare_bridges(old, new, candidates=("ridge",), gallery_size=0)
