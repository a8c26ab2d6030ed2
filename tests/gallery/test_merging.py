"""Scores of two spaces on one scale: by definition, without labels, the same in any batch."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import FormatError, UnknownId
from midspan.gallery import Gallery
from midspan.gallery.engines.base import Candidates, pair_scores, prepare
from midspan.gallery.routing import (
    PairedSample,
    find_sample,
    moments,
    sample_scores,
    standardise,
    store_sample,
)
from midspan.gallery.search import _Plan, _ranked
from midspan.spaces import Embeddings, Metric, Space

OLD, NEW = Space("old", 8, fingerprint="f-old"), Space("new", 6, fingerprint="f-new")
RNG = np.random.default_rng(3)


def some(count: int, dim: int) -> np.ndarray:
    return RNG.standard_normal((count, dim)).astype(np.float32)


def test_standardise_uses_moments_without_the_nearest_item() -> None:
    scores = np.array([[0.1, 0.3, 0.9, 0.2], [0.5, 0.5, 0.5, 0.5]])
    found = moments(scores)
    assert found.mean == pytest.approx([0.2, 0.5])
    assert found.deviation == pytest.approx([0.1, 1.0])  # of 0.3 alone; all equal: no scale
    assert standardise(np.array([[0.2], [0.7]]), found)[:, 0] == pytest.approx([0.0, 0.2])


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_sample_scores_equal_those_of_the_gallery(metric: Metric) -> None:
    queries, items = some(3, 8), prepare(some(5, 8), metric=metric)
    found = sample_scores(queries, items, metric=metric)
    for row, query in enumerate(prepare(queries, metric=metric)):
        assert found[row] == pytest.approx(pair_scores(query, items, metric=metric), abs=1e-5)


def test_moments_of_a_query_are_equal_alone_and_in_a_batch() -> None:
    queries, items = some(40, 8), prepare(some(50, 8), metric="cosine")
    together = moments(sample_scores(queries, items, metric="cosine"))
    for row in range(40):
        alone = moments(sample_scores(queries[[row]], items, metric="cosine"))
        assert (alone.mean[0], alone.deviation[0]) == (together.mean[row], together.deviation[row])


def test_standardised_scores_are_independent_of_scale_and_shift() -> None:
    scores = RNG.random((4, 30))
    other = 0.2 + 0.1 * scores
    one, two = (standardise(part, moments(part)) for part in (scores, other))
    assert one == pytest.approx(two, abs=1e-4)


def part(
    rows: list[int], scores: list[float], *, complete: bool = True, scale: tuple[float, float]
) -> tuple[Candidates, _Plan]:
    spaces = np.ones(len(rows), dtype=np.int64)
    found = Candidates(np.array(rows), spaces, np.array(scores, np.float64), complete)
    return found, _Plan(some(1, 8), (1,), (1,), [scale])


def test_merge_ranks_by_standardised_score_and_prefers_later_parts() -> None:
    first = part([1, 2, 4], [0.9, 0.8, 0.1], scale=(0.0, 1.0))
    second = part([3, 5, 1], [0.5, 0.3, 0.1], scale=(0.1, 0.1), complete=False)
    entries, cut = _ranked([first[0], second[0]], [first[1], second[1]], 0, threshold=None)
    assert [one.row for one in entries] == [3, 5, 2, 4, 1]
    assert [one.score for one in entries] == [0.5, 0.3, 0.8, 0.1, 0.1]
    assert entries[0].rank == pytest.approx(4.0)
    assert cut == pytest.approx(0.0)  # what the second part left out may rank as high as its last


def test_merge_threshold_drops_lower_and_unscored_items() -> None:
    found, plan = part([1, 2], [0.9, 0.2], scale=(0.0, 1.0), complete=False)
    entries, cut = _ranked([found], [plan], 0, threshold=0.5)
    assert [one.row for one in entries] == [1]
    assert cut == -np.inf


def test_stored_sample_is_keyed_by_its_spaces_and_replaced() -> None:
    names = np.array([f"i{number}" for number in range(30)])
    old, new = Embeddings(names, some(30, 8), OLD), Embeddings(names[5:], some(25, 6), NEW)
    with Gallery.create("memory:", OLD) as gallery:
        assert find_sample(gallery.blobs, old="f-old", new="f-new") is None
        first = store_sample(gallery.blobs, PairedSample.of(old, new), old="f-old", new="f-new")
        found = find_sample(gallery.blobs, old="f-old", new="f-new")
        assert found is not None
        assert found[0] == first
        assert found[1].ids.tolist() == names[5:].tolist()
        assert np.array_equal(found[1].old, old.vectors[5:])
        assert np.array_equal(found[1].new, new.vectors)
        assert find_sample(gallery.blobs, old="f-old", new="f-other") is None
        smaller = PairedSample.of(old[:20], new)
        second = store_sample(gallery.blobs, smaller, old="f-old", new="f-new")
        found = find_sample(gallery.blobs, old="f-old", new="f-new")
        assert found is not None
        assert found[0] == second
        with pytest.raises(UnknownId):
            gallery.blobs.get(first)


def test_stored_sample_damaged_raises() -> None:
    with pytest.raises(FormatError, match="sample is not readable"):
        PairedSample.from_bytes(b"PK not an archive")
