"""compare(): every number from its parts, both directions of a bridge, and refusals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import midspan as ms
from midspan.errors import EvaluationError, SpaceMismatch, UnknownId
from midspan.evaluation import compare, evaluate, flips, gains, p_scores
from midspan.spaces import Embeddings, FloatArray, Space
from tests.evaluation.sets import clustered, embeddings

KEYS = [
    "old_self", "new_self", "cross", "upper_self", "update_gain", "perf_gain", "upgrade_gain",
    "p_up", "p_comp", "p_1", "negative_flips", "positive_flips", "compatible", "ci",
]  # fmt: skip


@pytest.fixture
def old() -> Embeddings:
    items = clustered(120, classes=12, noise=2.5, seed=1, name="old")
    return items.with_columns({"country": np.where(np.arange(120) // 12 % 3, "north", "south")})


@pytest.fixture
def new() -> Embeddings:
    return clustered(120, classes=12, noise=1.5, seed=2, name="new")


@pytest.fixture
def upper() -> Embeddings:
    return clustered(120, classes=12, noise=1.0, seed=3, name="alone")


def test_every_number_comes_from_its_parts(
    old: Embeddings, new: Embeddings, upper: Embeddings
) -> None:
    result = compare(old=old, new=new[::-1], upper=upper, bootstrap=100)
    four = {
        "old": evaluate(old, metrics=["map"]).mean("map"),
        "new": evaluate(new, metrics=["map"]).mean("map"),
        "cross": evaluate(new, old, metrics=["map"], direct=True).mean("map"),
        "upper": evaluate(upper, metrics=["map"]).mean("map"),
    }
    measured = (result.old_self, result.new_self, result.cross, result.upper_self)
    assert measured == pytest.approx(tuple(four.values()))
    gain, p = gains(**four), p_scores(**four)
    assert (result.update_gain, result.perf_gain, result.upgrade_gain) == pytest.approx(
        (gain.update, gain.performance, gain.upgrade)
    )
    assert (result.p_up, result.p_comp, result.p_1) == pytest.approx((p.up, p.comp, p.score))
    hits = [
        evaluate(query, gallery, metrics=["recall@1"], direct=True).per_query["recall@1"]
        for query, gallery in ((old, None), (new, old))
    ]
    expected = flips(*hits)
    assert result.negative_flips == pytest.approx(expected.negative)
    assert result.positive_flips == pytest.approx(expected.positive)
    assert result.compatible == (four["cross"] > four["old"])
    assert result.direction == "direct"


def test_the_document_has_the_agreed_keys(
    old: Embeddings, new: Embeddings, upper: Embeddings
) -> None:
    document = ms.compare(old=old, new=new, upper=upper, bootstrap=50).to_dict()
    assert list(document) == KEYS
    assert set(document["ci"]) == set(KEYS) - {"compatible", "ci"}
    for name, (low, high) in document["ci"].items():
        assert low <= document[name] <= high, name
    without = compare(old=old, new=new, bootstrap=50).to_dict()
    assert list(without) == KEYS
    for name in KEYS[3:10]:
        assert without[name] is None
        assert name not in without["ci"]


def test_intervals_shrink_with_more_queries() -> None:
    widths = []
    for n in (60, 960):
        old, new = clustered(n, classes=6, seed=1), clustered(n, classes=6, seed=2)
        low, high = compare(old=old, new=new).ci["cross"]
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_another_metric_and_an_excluded_column(old: Embeddings, new: Embeddings) -> None:
    result = compare(old=old, new=new, metric="recall@1", exclude_column="country", bootstrap=20)
    with_column = new.with_columns({"country": old.columns["country"]})
    expected = evaluate(
        with_column, old, metrics=["recall@1"], exclude_column="country", direct=True
    )
    assert result.cross == pytest.approx(expected.mean("recall@1"))
    np.testing.assert_array_equal(result.hits["cross"], result.per_query["cross"])


def test_groups_add_up(old: Embeddings, new: Embeddings) -> None:
    result = compare(old=old, new=new, groups="country", bootstrap=50)
    assert [group.name for group in result.groups] == ["north", "south"]
    total = sum(group.n_queries for group in result.groups)
    assert total == 120
    for name in ("old_self", "new_self", "cross", "negative_flips", "positive_flips"):
        mean = sum(getattr(g, name) * g.n_queries for g in result.groups) / total
        assert mean == pytest.approx(getattr(result, name))
    for group in result.groups:
        low, high = group.cross_minus_old_ci
        assert low <= group.cross - group.old_self <= high


def test_worst_queries_come_first(old: Embeddings, new: Embeddings) -> None:
    result = compare(old=old, new=new, bootstrap=10)
    drop = result.per_query["old_self"] - result.per_query["cross"]
    worst = result.worst(5)
    assert drop[worst].tolist() == np.sort(drop)[::-1][:5].tolist()
    assert (drop[result.worst(1000)] > 0).all()


@dataclass(frozen=True)
class Matrix:
    """A linear bridge, as the bridges room makes them."""

    source: Space
    target: Space
    weights: FloatArray

    def transform(self, e: Embeddings) -> Embeddings:
        assert e.space.same_as(self.source)
        return Embeddings(ids=e.ids, vectors=e.vectors @ self.weights, space=self.target)


def test_a_bridge_maps_the_gallery_forward_or_the_queries_backward(old: Embeddings) -> None:
    rotation = np.linalg.qr(np.random.default_rng(0).standard_normal((16, 16)))[0]
    turn = rotation.astype(np.float32)
    new = embeddings(old.vectors @ turn, old.labels, ids=old.ids, name="new")
    direct = compare(old=old, new=new, bootstrap=10)
    assert direct.cross < direct.old_self  # the same geometry, turned away
    forward = compare(old=old, new=new, bridge=Matrix(old.space, new.space, turn), bootstrap=10)
    backward = compare(old=old, new=new, bridge=Matrix(new.space, old.space, turn.T), bootstrap=10)
    assert (forward.direction, backward.direction) == ("forward", "backward")
    assert forward.cross == pytest.approx(forward.old_self)
    assert backward.cross == pytest.approx(backward.old_self)
    assert forward.gallery.space.same_as(new.space)
    assert backward.query.space.same_as(old.space)


def test_a_bridge_across_dimensions(old: Embeddings) -> None:
    wider = np.hstack([old.vectors, np.zeros((120, 4), np.float32)])
    new = embeddings(wider, old.labels, ids=old.ids, name="wide")
    with pytest.raises(SpaceMismatch, match=r"different dimensions .* pass a bridge"):
        compare(old=old, new=new)
    bridge = Matrix(old.space, new.space, np.eye(16, 20, dtype=np.float32))
    assert compare(old=old, new=new, bridge=bridge, bootstrap=10).cross == pytest.approx(
        compare(old=old, new=new, bridge=bridge, bootstrap=10).old_self
    )
    narrow = Matrix(old.space, Space("narrow", 3), np.eye(16, 3, dtype=np.float32))
    with pytest.raises(SpaceMismatch, match="expected a map between"):
        compare(old=old, new=new, bridge=narrow)


def test_refusals(old: Embeddings, new: Embeddings) -> None:
    with pytest.raises(SpaceMismatch, match="no compatibility"):
        compare(old=old, new=new, direct=False)
    with pytest.raises(UnknownId, match="need the same items: 20 ids are only in the first"):
        compare(old=old, new=new[:100])
    with pytest.raises(EvaluationError, match="the old set has no labels"):
        compare(old=embeddings(old.vectors), new=new)
    swapped = new.with_columns({"labels": np.roll(new.columns["labels"], 1)})
    with pytest.raises(EvaluationError, match="disagree on 120 labels, first 'item-00000'"):
        compare(old=old, new=swapped)
    with pytest.raises(EvaluationError, match="no column 'region' to group by; it has: labels"):
        compare(old=old, new=new, groups="region", bootstrap=10)
    with pytest.raises(EvaluationError, match="did you mean 'map'"):
        compare(old=old, new=new, metric="mapp")


def test_labels_may_be_missing_from_the_new_set(old: Embeddings, new: Embeddings) -> None:
    bare = embeddings(new.vectors, ids=new.ids, name="new")
    expected = compare(old=old, new=new, bootstrap=10)
    assert compare(old=old, new=bare, bootstrap=10).to_dict() == expected.to_dict()


def test_undefined_gain_has_no_interval() -> None:
    """An upper bound equal to the old encoder leaves nothing to gain: the ratio is undefined."""
    labels = np.arange(40) % 8
    rows = np.eye(8, 12)[labels] + 0.3 * np.random.default_rng(0).normal(size=(40, 12))
    ids = np.array([f"i{n}" for n in range(40)])

    def made(noise: float, name: str) -> Embeddings:
        more = noise * np.random.default_rng(1).normal(size=(40, 12))
        return Embeddings(
            ids, (rows + more).astype(np.float32), Space(name, 12), {"labels": labels}
        )

    old = made(0.0, "old")
    upper = Embeddings(ids, old.vectors, Space("upper", 12), {"labels": labels})
    result = compare(old=old, new=made(0.2, "new"), upper=upper, bootstrap=50)
    document = result.to_dict()
    undefined = [
        name
        for name in ("update_gain", "perf_gain", "upgrade_gain", "p_up", "p_comp")
        if document[name] is None
    ]
    assert undefined
    assert not set(undefined) & set(document["ci"])
    assert "old_self" in document["ci"]
