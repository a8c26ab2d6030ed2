from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.bridges import GalleryEnsemble, Ridge
from midspan.bridges.ensemble import disagreement
from midspan.errors import FormatError, RunError, SpaceMismatch, VectorError
from midspan.spaces import Embeddings
from tests.bridges.worlds import embeddings, unit64


def views(count: int = 200, encoders: int = 3, noise: float = 0.3) -> list[Embeddings]:
    """A query encoder (first) and gallery encoders of other dims, each with noise of its own."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((count, 6))
    labels = np.arange(count) % 10
    made = []
    for place in range(encoders + 1):
        seen = items + (noise if place else 0.0) * rng.standard_normal(items.shape)
        vectors = seen @ rng.standard_normal((6, 8 + place))
        made.append(embeddings(vectors, f"e{place}", labels=labels))
    return made


def test_disagreement_is_the_mean_squared_distance_over_pairs() -> None:
    rng = np.random.default_rng(0)
    for count in (2, 3, 5):
        vectors = unit64(rng.standard_normal((count, 7)))
        pairs = [
            float(np.sum((vectors[i] - vectors[j]) ** 2))
            for i in range(count)
            for j in range(count)
            if i != j
        ]
        result = disagreement(vectors.mean(axis=0)[None], np.array([float(count)]))
        assert result[0] == pytest.approx(np.mean(pairs), rel=1e-5)


def test_agreement_is_zero_and_one_view_has_none() -> None:
    same = unit64(np.ones((1, 4)))
    assert disagreement(same, np.array([3.0]))[0] == pytest.approx(0.0, abs=1e-6)
    assert np.isnan(disagreement(same, np.array([1.0]))[0])


def test_is_the_mean_of_independent_bridges() -> None:
    query, *galleries = views()
    made = GalleryEnsemble(bridge={"name": "ridge", "alpha": 0.1}).fit(galleries, query)
    parts = [Ridge(alpha=0.1).fit(g, query).transform(g) for g in galleries]
    expected = unit64(np.mean([part.take(query.ids).vectors for part in parts], axis=0))
    result = made.transform(galleries).take(query.ids)
    np.testing.assert_allclose(result.vectors, expected, atol=1e-5)
    assert result.labels is not None
    assert result.labels.tolist() == query.columns["labels"].tolist()


def test_the_order_of_the_encoders_does_not_matter() -> None:
    query, *galleries = views()
    made = GalleryEnsemble().fit(galleries, query)
    forward, backward = made.transform(galleries), made.transform(galleries[::-1])
    assert forward.ids.tolist() == backward.ids.tolist()
    np.testing.assert_allclose(forward.vectors, backward.vectors, atol=1e-6)
    np.testing.assert_allclose(
        forward.columns["uncertainty"], backward.columns["uncertainty"], atol=1e-5
    )


def test_nearer_to_the_truth_with_every_encoder() -> None:
    query, *galleries = views(encoders=4, noise=0.6)
    train, test = slice(0, 120), slice(120, 200)
    near = []
    for size in (1, 2, 4):
        made = GalleryEnsemble().fit([g[train] for g in galleries[:size]], query[train])
        mapped = made.transform([g[test] for g in galleries[:size]]).take(query.ids[test])
        near.append(float(np.mean(np.sum(mapped.vectors * unit64(query.vectors[test]), axis=1))))
    assert near[0] < near[1] < near[2]


def test_the_query_side_is_bit_identical_whatever_the_gallery_holds() -> None:
    query, *galleries = views()
    made = GalleryEnsemble().fit(galleries[:1], query)
    before = made.queries(query).vectors.tobytes()
    first = made.bridges_[0]
    made.add(galleries[1], query)
    assert made.queries(query).vectors.tobytes() == before == query.vectors.tobytes()
    assert made.bridges_[0] is first
    assert made.query_space == query.space


def test_items_may_be_missing_from_some_encoders() -> None:
    query, *galleries = views()
    made = GalleryEnsemble().fit(galleries, query)
    mapped = made.transform([galleries[0], galleries[1][:50]])
    doubt = mapped.take(query.ids).columns["uncertainty"]
    assert np.isfinite(doubt[:50]).all()
    assert np.isnan(doubt[50:]).all()
    alone = made.bridges_[0].transform(galleries[0])[50:]
    np.testing.assert_allclose(mapped.take(alone.ids).vectors, alone.vectors, atol=1e-6)


def test_a_new_query_encoder_needs_pairs_but_no_images() -> None:
    query, *galleries = views()
    made = GalleryEnsemble().fit(galleries, query)
    rng = np.random.default_rng(9)
    better = embeddings(query.vectors @ rng.standard_normal((8, 8)), "next")
    moved = made.refit(galleries, better[:120])  # new vectors for 120 items only
    assert moved.query_space.same_as(better.space)
    assert made.query_space.same_as(query.space)
    mapped = moved.transform(galleries).take(better.ids[120:])
    near = np.sum(mapped.vectors * unit64(better.vectors[120:]), axis=1)
    assert near.mean() > 0.9


def test_round_trip(tmp_path: Path) -> None:
    query, *galleries = views()
    made = GalleryEnsemble().fit(galleries, query)
    again = GalleryEnsemble.load(made.save(tmp_path / "ensemble"))
    assert again.query_space == made.query_space
    before, after = made.transform(galleries), again.transform(galleries)
    assert np.array_equal(before.vectors, after.vectors)
    with pytest.raises(FormatError, match="not an ensemble"):
        GalleryEnsemble.load(tmp_path)
    other = embeddings(query.vectors, "other")
    Ridge().fit(galleries[1], other).save(tmp_path / "ensemble" / "gallery-1")
    with pytest.raises(FormatError, match=r"lead to 'e0' .* and to 'other'"):
        GalleryEnsemble.load(tmp_path / "ensemble")


def test_what_it_refuses() -> None:
    query, *galleries = views()
    made = GalleryEnsemble().fit(galleries[:2], query)
    with pytest.raises(SpaceMismatch, match=r"'e1' .* is in this ensemble already"):
        made.add(galleries[0], query)
    with pytest.raises(SpaceMismatch, match=r"'e3' .* is not in this ensemble; it holds 'e1'"):
        made.transform([galleries[2]])
    with pytest.raises(SpaceMismatch, match=r"use refit\(stored, query\)"):
        made.add(galleries[2], embeddings(query.vectors, "other"))
    with pytest.raises(SpaceMismatch, match="these queries are in 'e1'"):
        made.queries(galleries[0])
    with pytest.raises(VectorError, match="at least one gallery encoder"):
        GalleryEnsemble().fit([], query)
    with pytest.raises(RunError, match="not fitted"):
        _ = GalleryEnsemble().query_space
    flat = embeddings(query.vectors, "flat", metric="l2")
    with pytest.raises(SpaceMismatch, match="averages directions"):
        GalleryEnsemble().fit(galleries, flat)
