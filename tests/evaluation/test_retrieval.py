"""evaluate(): who searches whom, what is left out, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import DataError, EvaluationError, SpaceMismatch
from midspan.evaluation import evaluate, ranks
from midspan.spaces import Embeddings
from tests.evaluation.sets import clustered, embeddings


def slow_leave_one_out(items: Embeddings) -> float:
    """Mean average precision of each item among the others, by loops."""
    assert items.labels is not None
    unit = items.vectors / np.linalg.norm(items.vectors, axis=1, keepdims=True)
    values = []
    for i, vector in enumerate(unit):
        others = [j for j in range(len(unit)) if j != i]
        others.sort(key=lambda j: -float(vector @ unit[j]))
        hits = [items.labels[j] == items.labels[i] for j in others]
        precisions = [sum(hits[: r + 1]) / (r + 1) for r, hit in enumerate(hits) if hit]
        if precisions:
            values.append(sum(precisions) / len(precisions))
    return float(np.mean(values))


def test_leave_one_out() -> None:
    items = clustered(60, classes=7)
    result = evaluate(items, metrics=["map", "recall@1"])
    assert result.mean("map") == pytest.approx(slow_leave_one_out(items), abs=1e-9)
    assert (result.n_queries, result.n_gallery, result.answerable) == (60, 60, 60)
    assert set(result.to_dict()) == {"map", "recall@1"}
    assert result.ids.tolist() == items.ids.tolist()


def test_queries_in_small_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    items = clustered(101, classes=9)
    whole = evaluate(items, metrics=["map"]).per_query["map"]
    monkeypatch.setattr(ranks, "SCORE_BYTES", 1)
    monkeypatch.setattr(ranks, "MOST_SCORE_BYTES", 4 * 101 * 7)
    monkeypatch.setattr(ranks, "LINES", 3)
    np.testing.assert_array_equal(evaluate(items, metrics=["map"]).per_query["map"], whole)


def test_the_same_item_seen_by_another_encoder_is_left_out() -> None:
    new = clustered(30, classes=5, seed=1, name="new")
    old = clustered(30, classes=5, seed=2, name="old")
    shuffled = old[np.random.default_rng(0).permutation(30)]
    straight = evaluate(new, old, direct=True)
    assert straight.mean("map") == pytest.approx(evaluate(new, shuffled, direct=True).mean("map"))
    own = np.array([int(np.flatnonzero(shuffled.ids == i)[0]) for i in new.ids])
    ranks_, n = ranks.relevant_ranks(
        new,
        shuffled,
        direct=True,
        exclude=own,
        relevant=[np.flatnonzero(shuffled.labels == label) for label in new.labels],  # type: ignore[union-attr]
    )
    assert straight.per_query["recall@1"].tolist() == (ranks_[:, 0] == 0).tolist()
    assert n.tolist() == [5] * 30


def test_same_ids_may_be_kept() -> None:
    items = embeddings([[1, 0], [0, 1]], [0, 1])
    kept = evaluate(items, items[[0, 1]], metrics=["recall@1"], exclude_same_id=False)
    assert kept.mean("recall@1") == 1.0
    with pytest.raises(EvaluationError, match="none of the 2 queries has a relevant item"):
        evaluate(items, items[[0, 1]])


def test_shared_ids_with_other_labels_are_not_the_same_items() -> None:
    query = embeddings([[1, 0], [0, 1]], [0, 1])
    gallery = embeddings([[1, 0], [0, 1], [1, 1]], [0, 2, 1])
    with pytest.raises(EvaluationError, match=r"1 ids are in both sets .* 'item-00001'"):
        evaluate(query, gallery)
    assert evaluate(query, gallery, exclude_same_id=False).n_gallery == 3


def test_excluded_column_and_junk_column() -> None:
    """One query, camera 1. Ranking: wrong cam 1, right cam 1, wrong cam 2, right cam 2."""
    angles = np.array([0.1, 0.2, 0.3, 0.4])
    gallery = embeddings(
        np.stack([np.cos(angles), np.sin(angles)], axis=1), [9, 5, 9, 5], cameras=[1, 1, 2, 2]
    )
    query = embeddings([[1, 0]], [5], ids=["q"], cameras=[1])
    plain = evaluate(query, gallery, metrics=["map"]).mean("map")
    assert plain == pytest.approx((1 / 2 + 2 / 4) / 2)
    same_camera_gone = evaluate(query, gallery, metrics=["map"], exclude_column="cameras")
    assert same_camera_gone.mean("map") == pytest.approx(1 / 2)
    market = evaluate(query, gallery, metrics=["map"], junk_column="cameras")
    assert market.mean("map") == pytest.approx(1 / 3)


def test_queries_without_partners_are_left_out_of_the_mean() -> None:
    items = embeddings([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], ["a", "a", "lonely"])
    result = evaluate(items, metrics=["map", "recall@1"])
    assert result.answerable == 2
    assert np.isnan(result.per_query["map"][2])
    assert result.mean("map") == 1.0


def test_one_query() -> None:
    query = embeddings([[1, 0]], [1], ids=["q"])
    gallery = embeddings([[1, 0], [0, 1]], [0, 1])
    assert evaluate(query, gallery, metrics=["map"]).mean("map") == 0.5


def test_l2_spaces_are_searched_by_distance() -> None:
    query = embeddings([[2, 0]], [1], ids=["q"], metric="l2")
    gallery = embeddings([[9, 0], [1, 1]], [0, 1], metric="l2")
    assert evaluate(query, gallery, metrics=["recall@1"]).mean("recall@1") == 1.0


def test_nmi_beside_ranking_metrics() -> None:
    items = clustered(40, classes=4, noise=0.01)
    result = evaluate(items, metrics=["map", "nmi"])
    assert result.mean("nmi") == pytest.approx(1.0)
    assert set(result.per_query) == {"map"}
    assert evaluate(items, metrics=["nmi"]).to_dict() == {"nmi": pytest.approx(1.0)}


def test_refusals() -> None:
    items = clustered(10, classes=2)
    with pytest.raises(EvaluationError, match="the query has no labels"):
        evaluate(embeddings([[1, 0]]))
    with pytest.raises(EvaluationError, match=r"the gallery has no labels \(no columns\)"):
        evaluate(items, embeddings(items.vectors, ids=[f"g{i}" for i in range(10)]))
    with pytest.raises(EvaluationError, match="did you mean 'map'"):
        evaluate(items, metrics=["mapp"])
    with pytest.raises(EvaluationError, match="no metric was asked for"):
        evaluate(items, metrics=[])
    with pytest.raises(EvaluationError, match="the query has no column 'camera'; it has: labels"):
        evaluate(items, exclude_column="camera")
    with pytest.raises(EvaluationError, match="not both"):
        evaluate(items, exclude_column="labels", junk_column="labels")
    with pytest.raises(EvaluationError, match="0 queries and 0 gallery items"):
        evaluate(items[:0])
    with pytest.raises(EvaluationError, match="query has '0', '1', the gallery '77'"):
        evaluate(items, embeddings([[1] * 16], [77], ids=["g"]))
    with pytest.raises(SpaceMismatch, match="no compatibility"):
        evaluate(items, clustered(10, classes=2, name="other"))
    with pytest.raises(DataError, match="2 of 3 labels are NaN"):
        evaluate(embeddings([[1, 0], [0, 1], [1, 1]], [1.0, np.nan, np.nan]))
    with pytest.raises(EvaluationError, match="was not measured here; measured: map"):
        evaluate(items, metrics=["map"]).mean("recall@1")
