"""Backfill curves against one evaluation per point."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.errors import EvaluationError, SpaceMismatch, UnknownId
from midspan.evaluation import Curve, backfill_curve, counting, evaluate, mixed
from midspan.spaces import Embeddings, FloatArray, IntArray
from tests.evaluation.sets import clustered, embeddings


def slow_curve(
    old: Embeddings, new: Embeddings, *, order: IntArray, cuts: IntArray, metric: str
) -> FloatArray:
    """A mixed gallery for every point, searched by the new vectors from the start."""
    lines = []
    for cut in cuts:
        vectors = old.vectors.copy()
        vectors[order[:cut]] = new.vectors[order[:cut]]
        gallery = replace(old, vectors=vectors)
        lines.append(evaluate(new, gallery, metrics=[metric]).per_query[metric])
    return np.array(lines)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), n=st.integers(2, 40), seed=st.integers(0, 10**6))
def test_equals_one_evaluation_per_point(data: st.DataObject, n: int, seed: int) -> None:
    """Whole numbers, so that old and new scores tie among and with each other."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, data.draw(st.integers(1, 4)), n)
    labels[1] = labels[0]  # something to find
    ids = rng.permutation([f"id-{i}" for i in range(n)])
    old, new = (rng.integers(-1, 2, (n, 3)) for _ in range(2))
    new[: n // 3] = old[: n // 3]  # unchanged items
    old[~old.any(axis=1)], new[~new.any(axis=1)] = 1, 1
    old_set, new_set = (embeddings(vectors, labels, ids=ids) for vectors in (old, new))
    order = rng.permutation(n)
    points = data.draw(st.integers(2, 8))
    metric = data.draw(st.sampled_from(["map", "recall@1", "map@r"]))
    with (
        mock.patch.object(counting, "BLOCK", 16),
        mock.patch.object(mixed, "BLOCK", data.draw(st.sampled_from([8, 16, 8192]))),
        mock.patch.object(mixed, "COMPARE_UP_TO", data.draw(st.sampled_from([0, 3, 40]))),
    ):
        curve = backfill_curve(
            query=new_set, gallery_old=old_set, gallery_new=new_set[::-1], order=order,
            metric=metric, points=points,
        )  # fmt: skip
    cuts = np.array([i * n // (points - 1) for i in range(points)])
    expected = slow_curve(old_set, new_set, order=order, cuts=cuts, metric=metric)
    np.testing.assert_array_equal(curve.per_query, expected)
    np.testing.assert_allclose(curve.values, np.nanmean(expected, axis=1))
    np.testing.assert_allclose(curve.fractions, cuts / n)


def real_sets(n: int = 300) -> tuple[Embeddings, Embeddings]:
    new = clustered(n, classes=30, noise=1.0, seed=1)
    noise = np.random.default_rng(5).standard_normal(new.vectors.shape).astype(np.float32)
    return embeddings(new.vectors + noise, new.labels, ids=new.ids), new


def test_real_vectors_with_cameras_and_a_separate_query_set() -> None:
    old, new = real_sets()
    cameras = np.arange(300) % 4
    old, new = (items.with_columns({"cameras": cameras}) for items in (old, new))
    query = clustered(40, classes=30, seed=9).with_columns({"cameras": np.arange(40) % 4})
    query = embeddings(query.vectors, query.labels, ids=[f"q{i}" for i in range(40)],
                       cameras=query.columns["cameras"])  # fmt: skip
    order = np.random.default_rng(0).permutation(300)
    curve = backfill_curve(
        query=query, gallery_old=old, gallery_new=new, order=old.ids[order],
        fractions=[0, 0.13, 0.5, 0.5, 0.9], exclude_column="cameras",
    )  # fmt: skip
    cuts = [0, 39, 150, 150, 270]
    for cut, values in zip(cuts, curve.per_query, strict=True):
        vectors = old.vectors.copy()
        vectors[order[:cut]] = new.vectors[order[:cut]]
        gallery = replace(old, vectors=vectors)
        result = evaluate(query, gallery, metrics=["map"], exclude_column="cameras")
        np.testing.assert_allclose(values, result.per_query["map"], atol=1e-12)
    np.testing.assert_allclose(curve.fractions, np.array(cuts) / 300)


def test_ends_are_cross_and_self_for_every_order() -> None:
    old, new = real_sets()
    rng = np.random.default_rng(0)
    curves = [
        backfill_curve(query=new, gallery_old=old, gallery_new=new, order=rng.permutation(300))
        for _ in range(2)
    ]
    for curve in curves:
        assert len(curve.values) == 21
        assert curve.values[0] == pytest.approx(evaluate(new, old, metrics=["map"]).mean("map"))
        assert curve.values[-1] == pytest.approx(evaluate(new, metrics=["map"]).mean("map"))
        assert curve.values.min() <= curve.area_mean <= curve.values.max()
    assert curves[0].values[10] != curves[1].values[10]


def test_nothing_changes_if_old_is_new() -> None:
    _, new = real_sets()
    order = np.arange(300)
    curve = backfill_curve(query=new, gallery_old=new, gallery_new=new, order=order)
    assert np.ptp(curve.values) == 0
    assert curve.area_mean == pytest.approx(curve.area_trapezoid)
    assert curve.negative_flips.tolist() == curve.positive_flips.tolist() == [0.0] * 21


def test_flips_along_the_curve() -> None:
    old, new = real_sets()
    before = evaluate(old, metrics=["recall@1"]).per_query["recall@1"]
    order = np.random.default_rng(1).permutation(300)
    curve = backfill_curve(
        query=new, gallery_old=old, gallery_new=new, order=order, metric="recall@1", before=before
    )
    change = curve.values - before.mean()
    np.testing.assert_allclose(curve.positive_flips - curve.negative_flips, change, atol=1e-12)
    from_start = backfill_curve(
        query=new, gallery_old=old, gallery_new=new, order=order, metric="recall@1"
    )
    assert from_start.negative_flips[0] == from_start.positive_flips[0] == 0


def test_areas_by_hand() -> None:
    curve = Curve(
        metric="map",
        fractions=np.array([0.0, 0.5, 1.0]),
        values=np.array([0.2, 0.4, 0.8]),
        per_query=np.empty((3, 0)),
        negative_flips=np.zeros(3),
        positive_flips=np.zeros(3),
    )
    assert curve.area_mean == pytest.approx(1.4 / 3)  # ends with full weight
    assert curve.area_trapezoid == pytest.approx((0.3 + 0.6) / 2)


def test_refusals() -> None:
    old, new = real_sets()
    good = partial(backfill_curve, query=new, gallery_old=old, gallery_new=new)
    order = np.arange(300)
    with pytest.raises(EvaluationError, match="gallery items exactly once"):
        good(order=order[:-1])
    with pytest.raises(EvaluationError, match="gallery items exactly once"):
        good(order=np.zeros(300, dtype=int))
    with pytest.raises(UnknownId, match="'nobody'"):
        good(order=np.where(old.ids == old.ids[3], "nobody", old.ids))
    with pytest.raises(EvaluationError, match="at least its two ends"):
        good(order=order, points=1)
    for fractions in ([0.5, 0.2], [0, 1.5], [], [[0.1]], [np.nan]):
        with pytest.raises(EvaluationError, match="ascending and between 0 and 1"):
            good(order=order, fractions=fractions)
    with pytest.raises(EvaluationError, match="did you mean 'map'"):
        good(order=order, metric="mapp")
    with pytest.raises(EvaluationError, match=r"before has shape \(3,\)"):
        good(order=order, before=np.ones(3))
    with pytest.raises(UnknownId, match="old and new gallery need the same items"):
        backfill_curve(query=new, gallery_old=old, gallery_new=new[:100], order=order)
    alien = embeddings(new.vectors, new.labels, ids=new.ids, name="alien")
    with pytest.raises(SpaceMismatch, match="no compatibility"):
        backfill_curve(query=alien, gallery_old=old, gallery_new=alien, order=order)
    lonely = embeddings(new.vectors[:1], [999], ids=["lonely"])
    with pytest.raises(EvaluationError, match="query has '999', the gallery '0', '1', '2' … "):
        backfill_curve(query=lonely, gallery_old=old, gallery_new=new, order=order)
