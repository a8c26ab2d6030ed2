from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.errors import UnknownId, VectorError
from midspan.evaluation import templates
from midspan.evaluation.templates import (
    fuse_templates,
    inverse_variance_fusion,
    pool_templates,
)

Floats = npt.NDArray[np.floating]


def slow_pool(vectors: Floats, template_ids: Floats, media_ids: Floats, template: int) -> Floats:
    """Mean inside each medium, sum over media, normalise: by loops."""
    means = []
    for medium in sorted(
        {m for t, m in zip(template_ids, media_ids, strict=True) if t == template}
    ):
        own = [
            v
            for v, t, m in zip(vectors, template_ids, media_ids, strict=True)
            if (t, m) == (template, medium)
        ]
        means.append(sum(own) / len(own))
    total = sum(means)
    return np.asarray(total / np.linalg.norm(total))


def test_a_long_video_counts_as_much_as_a_photo() -> None:
    vectors = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], dtype=np.float32)
    pooled = pool_templates(vectors, np.array([7, 7, 7, 7]), np.array([1, 2, 2, 2]))
    np.testing.assert_allclose(pooled.vectors, [[0.5**0.5, 0.5**0.5]], rtol=1e-6)
    apart = pool_templates(vectors, np.array([7, 7, 7, 7]), np.array([1, 2, 3, 4]))
    np.testing.assert_allclose(apart.vectors, [[0.1**0.5, 3 * 0.1**0.5]], rtol=1e-6)


@settings(max_examples=40)
@given(
    members=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=40),
    chunk=st.sampled_from([1, 3, 1000]),
    weighted=st.booleans(),
)
def test_pooling_equals_loops(members: list[tuple[int, int]], chunk: int, weighted: bool) -> None:
    rng = np.random.default_rng(len(members))
    vectors = rng.normal(size=(len(members), 5)).astype(np.float32)
    template_ids = np.array([t for t, _ in members]) * 10
    media_ids = np.array([m for _, m in members])
    weights = rng.uniform(0.1, 1, len(members)) if weighted else None
    before = templates.CHUNK
    try:
        templates.CHUNK = chunk
        pooled = pool_templates(vectors, template_ids, media_ids, weights=weights)
    finally:
        templates.CHUNK = before
    assert pooled.ids.tolist() == sorted(set(template_ids.tolist()))
    assert pooled.present.all()
    scaled = vectors.astype(np.float64) * (1 if weights is None else weights[:, None])
    for row, template in enumerate(pooled.ids):
        expected = slow_pool(scaled, template_ids, media_ids, template)
        np.testing.assert_allclose(pooled.vectors[row], expected, atol=1e-6)


def test_templates_without_a_face_are_not_present() -> None:
    vectors = np.eye(3, dtype=np.float32)
    pooled = pool_templates(
        vectors,
        np.array(["b", "b", "c"]),
        np.array([1, 2, 1]),
        weights=np.array([0.5, 0.0, 0.0]),
        requested=np.array(["c", "a", "b"]),
    )
    assert pooled.ids.tolist() == ["a", "b", "c"]
    assert pooled.present.tolist() == [False, True, False]
    assert pooled.vectors.tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert pooled.rows_of(np.array(["c", "b", "b"])).tolist() == [2, 1, 1]
    with pytest.raises(UnknownId, match=r"1 of 2 template ids .* first z"):
        pooled.rows_of(np.array(["a", "z"]))


def test_only_the_wanted_templates_come_back() -> None:
    vectors = np.eye(3, dtype=np.float32)
    pooled = pool_templates(
        vectors, np.array([1, 2, 3]), np.array([1, 1, 1]), requested=np.array([2])
    )
    assert pooled.ids.tolist() == [2]
    assert pooled.vectors.tolist() == [[0, 1, 0]]


def test_an_image_may_be_in_several_templates_or_in_none() -> None:
    vectors = np.eye(3, dtype=np.float32)
    rows, template_ids = np.array([2, 0, 0]), np.array([5, 5, 9])
    pooled = pool_templates(vectors, template_ids, np.array([1, 2, 1]), rows=rows)
    np.testing.assert_allclose(pooled.vectors, [[0.5**0.5, 0, 0.5**0.5], [1, 0, 0]], rtol=1e-6)
    fused = fuse_templates(
        vectors, np.ones((3, 1)), template_ids, rows=rows, fusion=inverse_variance_fusion
    )
    np.testing.assert_allclose(fused.vectors, pooled.vectors, rtol=1e-6)
    with pytest.raises(VectorError, match="rows reach from 0 to 3 of 3 vectors"):
        pool_templates(vectors, template_ids, template_ids, rows=np.array([0, 1, 3]))


def test_pooling_many_vectors_takes_little_memory() -> None:
    vectors = np.random.default_rng(0).normal(size=(60_000, 64)).astype(np.float32)
    template_ids = np.arange(60_000) // 20
    tracemalloc.start()
    pooled = pool_templates(vectors, template_ids, np.arange(60_000) % 7)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(pooled) == 3_000
    assert peak < 30e6 < vectors.nbytes * 2  # whole in float64 it would be twice the vectors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vectors": np.zeros((0, 2))}, "expected vectors \\(N, D\\)"),
        ({"template_ids": np.array([1])}, "template_ids have shape \\(1,\\) for 2 members"),
        ({"media_ids": np.array([1, 2, 3])}, "media_ids have shape \\(3,\\)"),
        ({"weights": np.array([1.0, -1.0])}, "0 or more"),
        ({"weights": np.array([1.0, np.nan])}, "one finite weight"),
        ({"weights": np.array([1.0])}, "finite weight.*got shape \\(1,\\)"),
        ({"vectors": np.array([[1.0, 0.0], [-1.0, 0.0]])}, "template 4 sum to a vector without"),
        ({"vectors": np.array([[1.0, np.nan], [1.0, 0.0]])}, "template 4 sum to a vector without"),
    ],
)
def test_bad_members_are_refused(change: dict[str, Floats], message: str) -> None:
    good = {"vectors": np.eye(2), "template_ids": np.array([4, 4]), "media_ids": np.array([1, 2])}
    with pytest.raises(VectorError, match=message):
        pool_templates(**{**good, **change})


# ---- fusion -------------------------------------------------------------------------------------


def slow_fusion(vectors: Floats, variances: Floats) -> Floats:
    """Per dimension: Σ v/σ² over Σ 1/σ², with σ² repeated inside each slice; not normalised."""
    repeated = np.repeat(variances, vectors.shape[1] // variances.shape[1], axis=1)
    return np.array(
        [
            sum(v / s for v, s in zip(vectors[:, d], repeated[:, d], strict=True))
            / sum(1 / s for s in repeated[:, d])
            for d in range(vectors.shape[1])
        ]
    )


@pytest.mark.parametrize("slices", [1, 3, 12])
def test_fusion_equals_the_formula(slices: int) -> None:
    rng = np.random.default_rng(slices)
    vectors = rng.normal(size=(5, 12))
    variances = rng.uniform(0.1, 2, size=(5, slices))
    fused, spread = inverse_variance_fusion(vectors, variances)
    expected = slow_fusion(vectors, variances)
    if slices == 3:  # each slice the same length, the whole of length 1
        parts = expected.reshape(3, 4)
        expected = (parts / np.linalg.norm(parts, axis=1, keepdims=True) / 3**0.5).ravel()
    else:
        expected = expected / np.linalg.norm(expected)
    np.testing.assert_allclose(fused, expected, rtol=1e-12)
    assert spread.tolist() == variances.min(axis=0).tolist()
    assert np.linalg.norm(fused) == pytest.approx(1)


def test_equal_uncertainty_is_the_plain_mean() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 6))
    fused, _ = inverse_variance_fusion(vectors, np.full((4, 6), 0.3))
    mean = vectors.mean(axis=0)
    np.testing.assert_allclose(fused, mean / np.linalg.norm(mean), rtol=1e-12)


def test_a_member_of_endless_uncertainty_is_left_out() -> None:
    vectors = np.array([[1.0, 0.0], [0.0, 1.0]])
    for endless in (np.inf, 1e30):
        fused, spread = inverse_variance_fusion(vectors, np.array([[0.2], [endless]]))
        np.testing.assert_allclose(fused, [1, 0], atol=1e-12)
        assert spread.tolist() == [0.2]


def test_tiny_variances_do_not_overflow() -> None:
    fused, _ = inverse_variance_fusion(np.eye(2), np.array([[1e-310], [1e-310]]))
    np.testing.assert_allclose(fused, [0.5**0.5] * 2)


@pytest.mark.parametrize(
    ("variances", "message"),
    [
        (np.ones((2, 3)), "K a divisor of 4"),
        (np.ones((3, 4)), "expected variances \\(2, K\\)"),
        (np.zeros((2, 4)), "above 0"),
        (np.full((2, 4), np.nan), "above 0"),
        (np.full((2, 4), np.inf), "no member has a finite variance"),
    ],
)
def test_bad_variances_are_refused(variances: Floats, message: str) -> None:
    with pytest.raises(VectorError, match=message):
        inverse_variance_fusion(np.ones((2, 4)), variances)


def test_members_that_cancel_out_are_refused() -> None:
    with pytest.raises(VectorError, match="cancel out"):
        inverse_variance_fusion(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.ones((2, 1)))


def test_templates_are_fused_one_by_one() -> None:
    rng = np.random.default_rng(5)
    vectors, variances = rng.normal(size=(9, 4)), rng.uniform(0.5, 1, size=(9, 2))
    template_ids = np.array([3, 1, 3, 1, 1, 3, 8, 3, 1])
    fused = fuse_templates(
        vectors,
        variances,
        template_ids,
        fusion=inverse_variance_fusion,
        requested=np.array([1, 2, 3, 8]),
    )
    assert fused.present.tolist() == [True, False, True, True]
    assert fused.variances is not None
    for row, template in ((0, 1), (2, 3), (3, 8)):
        own = template_ids == template
        vector, spread = inverse_variance_fusion(vectors[own], variances[own])
        np.testing.assert_allclose(fused.vectors[row], vector, atol=1e-6)
        np.testing.assert_allclose(fused.variances[row], spread, rtol=1e-6)
    assert np.isinf(fused.variances[1]).all()


def test_any_fusion_can_be_plugged_in() -> None:
    def most_certain(vectors: Floats, variances: Floats) -> tuple[Floats, Floats]:
        best = variances.sum(axis=1).argmin()
        return vectors[best], variances[best]

    vectors, variances = np.eye(3), np.array([[0.3], [0.1], [0.2]])
    fused = fuse_templates(vectors, variances, np.array([0, 0, 0]), fusion=most_certain)
    assert fused.vectors.tolist() == [[0, 1, 0]]
    with pytest.raises(VectorError, match=r"expected variances \(3, K\), got \(2, 1\)"):
        fuse_templates(vectors, variances[:2], np.array([0, 0, 0]), fusion=most_certain)
