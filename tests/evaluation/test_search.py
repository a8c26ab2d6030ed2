"""Exact search against a full sort in float64, with every way to ignore rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.errors import EvaluationError, FormatError, SpaceMismatch, VectorError
from midspan.evaluation import search, search_exact
from midspan.spaces import Embeddings, Metric
from tests.evaluation.sets import embeddings

Matrix = npt.NDArray[Any]


def reference_scores(query: Matrix, gallery: Matrix, metric: str) -> Matrix:
    q, g = query.astype(np.float64), gallery.astype(np.float64)
    if metric == "l2":
        distances: Matrix = np.square(q[:, None] - g[None]).sum(axis=2)
        return -distances
    if metric == "cosine":
        q = q / np.linalg.norm(q, axis=1, keepdims=True)
        g = g / np.linalg.norm(g, axis=1, keepdims=True)
    product: Matrix = q @ g.T
    return product


def reference_search(
    scores: Matrix, k: int, *, ignored: list[set[int]] | None = None, places: Matrix | None = None
) -> tuple[list[list[float]], list[list[int]]]:
    """Sort everything by (score, place), drop what is ignored, fill up."""
    found_scores, found_rows = [], []
    for q, line in enumerate(scores):
        place = np.arange(len(line)) if places is None else places
        order = sorted(range(len(line)), key=lambda g: (-line[g], place[g]))
        rows = [g for g in order if not ignored or g not in ignored[q]][:k]
        missing = min(k, len(line)) - len(rows)
        found_scores.append([float(line[g]) for g in rows] + [-np.inf] * missing)
        found_rows.append(rows + [-1] * missing)
    return found_scores, found_rows


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "GALLERY_BLOCK", 32)
    monkeypatch.setattr(search, "QUERY_BLOCK", 8)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("k", [1, 7, 100])
@pytest.mark.usefixtures("small_blocks")
def test_finds_what_a_full_sort_finds(metric: Metric, k: int) -> None:
    rng = np.random.default_rng(0)
    query, gallery = rng.standard_normal((21, 9)), rng.standard_normal((333, 9))
    scores, rows = search_exact(query, gallery, k=k, metric=metric)
    expected, expected_rows = reference_search(reference_scores(query, gallery, metric), k)
    assert rows.tolist() == expected_rows
    np.testing.assert_allclose(scores, expected, atol=2e-5)
    assert scores.dtype == np.float32
    assert rows.dtype == np.int64


small_vectors = st.lists(
    st.tuples(*[st.integers(-2, 2)] * 3).filter(any), min_size=1, max_size=30
).map(lambda rows: np.array(rows, dtype=np.float32))


@settings(deadline=None, max_examples=40)
@given(query=small_vectors, gallery=small_vectors, data=st.data())
def test_ties_ignored_rows_and_blocks(query: Matrix, gallery: Matrix, data: st.DataObject) -> None:
    """Whole numbers make the scores exact and ties common."""
    gallery_rows = st.integers(0, len(gallery) - 1)
    k = data.draw(st.integers(1, 12))
    exclude = data.draw(
        st.lists(gallery_rows | st.just(-1), min_size=len(query), max_size=len(query))
    )
    junk = data.draw(st.lists(st.sets(gallery_rows), min_size=len(query), max_size=len(query)))
    query_codes = data.draw(st.lists(st.integers(-1, 2), min_size=len(query), max_size=len(query)))
    gallery_codes = data.draw(
        st.lists(st.integers(-1, 2), min_size=len(gallery), max_size=len(gallery))
    )
    ids = data.draw(st.permutations([f"id-{i}" for i in range(len(gallery))]))
    searched: Matrix | Embeddings = gallery
    places = None
    if data.draw(st.booleans()):
        searched, places = embeddings(gallery, ids=ids, metric="dot"), np.argsort(np.argsort(ids))
    with (
        mock.patch.object(search, "GALLERY_BLOCK", data.draw(st.sampled_from([1, 3, 8192]))),
        mock.patch.object(search, "QUERY_BLOCK", data.draw(st.sampled_from([1, 2, 512]))),
        mock.patch.object(search, "STATE_BYTES", data.draw(st.sampled_from([1, 2**20]))),
    ):
        scores, rows = search_exact(
            query, searched, k=k, metric="dot", exclude=np.array(exclude),
            ignore=[np.array(sorted(some), dtype=int) for some in junk],
            ignore_codes=(np.array(query_codes), np.array(gallery_codes)),
        )  # fmt: skip
    ignored = [
        {exclude[q]}
        | junk[q]
        | {g for g, code in enumerate(gallery_codes) if code == query_codes[q] >= 0}
        for q in range(len(query))
    ]
    exact = query.astype(np.float64) @ gallery.astype(np.float64).T
    expected, expected_rows = reference_search(exact, k, ignored=ignored, places=places)
    assert rows.tolist() == expected_rows
    assert scores.tolist() == expected


def test_doubled_rows_tie_whatever_the_block_size() -> None:
    """A BLAS kernel may score the same vector differently by its place in a block."""
    rng = np.random.default_rng(1)
    gallery = rng.standard_normal((400, 67)).astype(np.float32)
    gallery[rng.choice(400, 250, replace=False)] = gallery[7]
    query = np.concatenate([gallery[7:8] + 0.1, rng.standard_normal((6, 67)).astype(np.float32)])
    same = np.flatnonzero((gallery == gallery[7]).all(axis=1))
    results = []
    for width in (16, 37, 100, 8192):
        with mock.patch.object(search, "GALLERY_BLOCK", width):
            results.append(search_exact(query, gallery, k=60))
    for scores, rows in results:
        assert rows[0].tolist() == same[:60].tolist()
        assert len(set(scores[0].tolist())) == 1
        assert rows.tolist() == results[0][1].tolist()


def test_doubled_rows_beside_an_ignored_one() -> None:
    gallery = np.array([[1, 0], [0, 1], [1, 0], [1, 0], [1, 1]], dtype=np.float32)
    query = np.array([[1, 0]], dtype=np.float32)
    _, rows = search_exact(query, gallery, k=3, ignore=[np.array([0, 3])])
    assert rows.tolist() == [[2, 4, 1]]
    _, rows = search_exact(query, gallery, k=1, exclude=np.array([0]))
    assert rows.tolist() == [[2]]


def test_ascending_scores_overflow_the_candidates_and_are_still_exact() -> None:
    """Every row is better than all before it: the worst order for a running threshold."""
    angle = np.linspace(np.pi / 2, 0, 5000)
    gallery = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    _, rows = search_exact(np.array([[1.0, 0.0]]), gallery, k=3)
    assert rows.tolist() == [[4999, 4998, 4997]]


def test_ids_decide_between_equal_scores() -> None:
    vectors = [[1, 0], [1, 0], [1, 0]]
    _, rows = search_exact(
        embeddings([[2, 0]], ids=["q"]), embeddings(vectors, ids=["c", "a", "b"]), k=3
    )
    assert rows.tolist() == [[1, 2, 0]]
    _, rows = search_exact(np.array([[2.0, 0.0]]), np.array(vectors), k=3)
    assert rows.tolist() == [[0, 1, 2]]


def write(path: Path, vectors: Matrix) -> Path:
    items = embeddings(vectors)
    if path.suffix == ".npy":
        np.save(path, items.vectors)
    elif path.stem == "compressed":
        np.savez_compressed(path, vectors=items.vectors)
    else:
        items.save(path)
    return path


@pytest.mark.parametrize("name", ["stored.npz", "compressed.npz", "plain.npy", "table.parquet"])
@pytest.mark.usefixtures("small_blocks")
def test_a_gallery_file_gives_the_same_as_the_array(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(2)
    query, gallery = rng.standard_normal((5, 6)), rng.standard_normal((150, 6)).astype(np.float32)
    gallery[140] = gallery[3]
    path = write(tmp_path / name, gallery)
    scores, rows = search_exact(query, path, k=9)
    expected_scores, expected_rows = search_exact(query, gallery, k=9)
    assert rows.tolist() == expected_rows.tolist()
    assert scores.tolist() == expected_scores.tolist()


def test_a_memory_map_is_searched_in_place(tmp_path: Path) -> None:
    gallery = np.random.default_rng(3).standard_normal((50, 4)).astype(np.float16)
    np.save(tmp_path / "half.npy", gallery)
    mapped = np.load(tmp_path / "half.npy", mmap_mode="r")
    _, rows = search_exact(gallery[:3], mapped, k=1)
    assert rows[:, 0].tolist() == [0, 1, 2]


def test_spaces_are_checked_unless_direct(tmp_path: Path) -> None:
    query, gallery = embeddings([[1, 0]], name="new"), embeddings([[1, 0]], name="old")
    with pytest.raises(SpaceMismatch, match="no compatibility"):
        search_exact(query, gallery, k=1)
    with pytest.raises(SpaceMismatch, match="no compatibility"):
        search_exact(query, gallery.save(tmp_path / "old.npz"), k=1)
    assert search_exact(query, gallery, k=1, direct=True)[1].tolist() == [[0]]


def test_the_metric_comes_from_the_space() -> None:
    gallery = embeddings([[9, 0], [1, 1]], metric="l2")
    assert search_exact(embeddings([[2, 0]], metric="l2"), gallery, k=1)[1].tolist() == [[1]]
    assert search_exact(np.array([[2.0, 0.0]]), gallery.vectors, k=1)[1].tolist() == [[0]]


def test_l2_scores_are_minus_squared_distances_even_far_from_the_origin() -> None:
    points = np.array([[1000.0, 1000.0], [1003.0, 1004.0]])
    scores, rows = search_exact(points[:1], points, k=2, metric="l2")
    assert rows.tolist() == [[0, 1]]
    np.testing.assert_allclose(scores, [[0.0, -25.0]], rtol=1e-6)


def test_k_beyond_the_gallery_gives_the_whole_gallery() -> None:
    scores, rows = search_exact(np.array([[1.0, 0]]), np.array([[1.0, 0], [0, 1.0]]), k=10)
    assert rows.tolist() == [[0, 1]]
    assert scores.tolist() == [[1.0, 0.0]]


def test_no_queries_and_no_gallery() -> None:
    some = np.ones((3, 2))
    assert search_exact(some[:0], some, k=2)[0].shape == (0, 2)
    assert search_exact(some[:0], some, k=2, metric="l2")[0].shape == (0, 2)
    assert search_exact(some, some[:0], k=2)[1].shape == (3, 0)


def test_tiny_vectors_have_a_direction() -> None:
    gallery = np.array([[0, 1.0], [1e-30, 0], [1e-22, 1e-22]], dtype=np.float32)
    scores, rows = search_exact(np.array([[1e-25, 0]], dtype=np.float32), gallery, k=3)
    assert rows.tolist() == [[1, 2, 0]]
    np.testing.assert_allclose(scores, [[1, np.sqrt(0.5), 0]], rtol=1e-6)


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "3"])
def test_k_must_be_a_number_of_items(k: Any) -> None:
    with pytest.raises(EvaluationError, match="at least 1"):
        search_exact(np.ones((1, 2)), np.ones((1, 2)), k=k)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "NaN or infinite"),
        (np.inf, "NaN or infinite"),
        (0.0, "length zero"),
        (1e30, "beyond 1e\\+18"),
        (1e300, "NaN or infinite"),
    ],
)
@pytest.mark.parametrize("side", ["query", "gallery"])
def test_bad_numbers_name_side_and_row(value: float, message: str, side: str) -> None:
    good, bad = np.ones((3, 2)), np.ones((3, 2))
    bad[1] = value
    query, gallery = (bad, good) if side == "query" else (good, bad)
    with pytest.raises(VectorError, match=f"{side} row 1 has .*{message}"):
        search_exact(query, gallery, k=1)


def test_zero_vectors_are_fine_where_direction_does_not_matter() -> None:
    gallery = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert search_exact(np.zeros((1, 2)), gallery, k=1, metric="l2")[1].tolist() == [[0]]
    assert search_exact(np.ones((1, 2)), gallery, k=1, metric="dot")[1].tolist() == [[1]]


def test_bad_shapes_and_arguments() -> None:
    ones = np.ones((2, 3))
    with pytest.raises(VectorError, match="query has 3 dimensions, gallery 2"):
        search_exact(ones, np.ones((2, 2)), k=1)
    with pytest.raises(VectorError, match=r"expected numbers of shape \(N, D\)"):
        search_exact(np.ones(3), ones, k=1)
    with pytest.raises(VectorError, match=r"expected numbers of shape \(N, D\)"):
        search_exact(np.array([["a", "b", "c"]]), ones, k=1)
    with pytest.raises(EvaluationError, match="'cosin' is not known"):
        search_exact(ones, ones, k=1, metric="cosin")  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match="rows 0 to 1, or -1"):
        search_exact(ones, ones, k=1, exclude=np.array([0, 2]))
    with pytest.raises(EvaluationError, match=r"expected \(2,\) integers"):
        search_exact(ones, ones, k=1, exclude=np.array([0.5, 1.0]))
    with pytest.raises(EvaluationError, match="1 lists for 2 queries"):
        search_exact(ones, ones, k=1, ignore=[np.array([0])])
    with pytest.raises(EvaluationError, match="ignore lists name gallery row 5"):
        search_exact(ones, ones, k=1, ignore=[np.array([5]), np.array([0])])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"", "is read from .npz, .npy, .parquet"),
        ("x.npz", b"no zip", "not a readable .npz"),
        ("x.npy", b"no npy", "not a readable .npy"),
        ("x.parquet", b"no parquet", "not a readable parquet"),
    ],
)
def test_unreadable_galleries(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=message):
        search_exact(np.ones((1, 2)), tmp_path / name, k=1)
    (tmp_path / name).unlink()
    if name != "x.txt":
        with pytest.raises(FormatError, match="no such file"):
            search_exact(np.ones((1, 2)), tmp_path / name, k=1)
