"""Spaces and embeddings: what is refused, what survives a file, what joins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from midspan import Embeddings, Space
from midspan.errors import FormatError, SpaceMismatch, SpaceMissing, UnknownId, VectorError
from midspan.spaces import check_comparable, fingerprint

OLD = Space("old", 3, fingerprint="f-old")
NEW = Space("new", 3, fingerprint="f-new", compatible_with=("f-old",))
OTHER = Space("other", 3, fingerprint="f-other")


def some(space: Space = OLD, ids: tuple[str, ...] = ("a", "b", "c")) -> Embeddings:
    rng = np.random.default_rng(0)
    return Embeddings(
        ids=np.array(ids),
        vectors=rng.normal(size=(len(ids), space.dim)).astype(np.float32),
        space=space,
        columns={"labels": np.arange(len(ids)), "cameras": np.array([f"c{i}" for i in ids])},
    )


def test_fingerprint_differs_for_other_parts() -> None:
    assert fingerprint("ab", "c") != fingerprint("a", "bc")
    assert fingerprint("ab", "c") == fingerprint(b"ab", "c")


def test_spaces_of_one_name_and_other_fingerprints_differ() -> None:
    assert not Space("same", 3, fingerprint="x").same_as(Space("same", 3, fingerprint="y"))
    assert Space("here", 3, fingerprint="x").same_as(Space("there", 3, fingerprint="x"))


def test_space_without_a_fingerprint_is_declared() -> None:
    space = Space("plain", 4)
    assert space.fingerprint.startswith("declared:")
    assert space.same_as(Space("plain", 4))
    assert not space.same_as(Space("plain", 5))


def test_compatible_spaces_are_comparable_both_ways() -> None:
    assert NEW.comparable_with(OLD)
    assert OLD.comparable_with(NEW)
    assert not NEW.comparable_with(OTHER)
    check_comparable(NEW, OLD)
    with pytest.raises(SpaceMismatch, match=r"no compatibility .* bridge"):
        check_comparable(NEW, OTHER)


def test_other_dims_are_never_comparable() -> None:
    wide = Space("wide", 4, fingerprint="w", compatible_with=("f-old",))
    assert not wide.comparable_with(OLD)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "", "dim": 3}, "name"),
        ({"name": "x", "dim": 0}, "dim of at least 1"),
        ({"name": "x", "dim": True}, "dim of at least 1"),
        ({"name": "x", "dim": 3, "metric": "hamming"}, "cosine"),
    ],
)
def test_space_invalid_arguments_raise(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(VectorError, match=message):
        Space(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_embeddings_file_round_trip_keeps_everything(tmp_path: Path, ending: str) -> None:
    before = some(NEW, ("ä", "b/c", "漢字"))
    path = before.save(tmp_path / "deep" / f"e{ending}")
    after = Embeddings.load(path)
    assert after.ids.tolist() == before.ids.tolist()
    np.testing.assert_array_equal(after.vectors, before.vectors)
    assert after.space == before.space
    assert set(after.columns) == {"labels", "cameras"}
    np.testing.assert_array_equal(after.columns["cameras"], before.columns["cameras"])
    assert list(path.parent.iterdir()) == [path]  # nothing half-written is left


def test_load_file_without_a_space_requires_a_name(tmp_path: Path) -> None:
    for folder in ("v1", "v2"):  # of two encoders, under one file name
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "emb.npz", vectors=np.eye(2, dtype=np.float16))
        with pytest.raises(SpaceMissing, match=r"emb.npz: does not say which space its 2-d vect"):
            Embeddings.load(tmp_path / folder / "emb.npz")
    first = Embeddings.load(tmp_path / "v1" / "emb.npz", space="r18")
    second = Embeddings.load(tmp_path / "v2" / "emb.npz", space="r50")
    assert first.space == Space("r18", 2)
    assert first.space.fingerprint.startswith("declared:")
    assert not first.space.comparable_with(second.space)
    assert first.vectors.dtype == np.float32
    assert first.ids.tolist() == ["0", "1"]


def test_load_files_given_one_name_are_in_one_space(tmp_path: Path) -> None:
    for name in ("queries", "gallery"):
        np.savez(tmp_path / f"{name}.npz", vectors=np.eye(2))
    queries, gallery = (
        Embeddings.load(tmp_path / f"{name}.npz", space="r50") for name in ("queries", "gallery")
    )
    assert queries.space.same_as(gallery.space)
    again = Embeddings.load(queries.save(tmp_path / "again.npz"))  # it is recorded
    assert again.space.same_as(queries.space)
    given = Space("mine", 2, metric="l2")
    assert Embeddings.load(tmp_path / "queries.npz", space=given).space == given


def test_load_name_other_than_that_of_the_file_raises(tmp_path: Path) -> None:
    path = some(Space("r18", 2)).save(tmp_path / "a.npz")
    assert Embeddings.load(path, space="r18").space == Space("r18", 2)
    with pytest.raises(SpaceMismatch, match=r"'r18' .* but space=r50 was passed"):
        Embeddings.load(path, space="r50")


def test_load_parquet_without_a_space_requires_a_name(tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2.0], type=pa.float32()), 2)
    pq.write_table(pa.table({"vectors": vectors, "labels": pa.array([7])}), tmp_path / "a.parquet")
    with pytest.raises(SpaceMissing, match="pass space=NAME"):
        Embeddings.load(tmp_path / "a.parquet")
    loaded = Embeddings.load(tmp_path / "a.parquet", space="r18")
    assert loaded.space == Space("r18", 2)
    assert loaded.labels is not None
    assert loaded.labels.tolist() == ["7"]


def test_load_unreadable_file_raises_format_error(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not really")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    np.savez(tmp_path / "images.npz", images=np.zeros((1, 2, 2, 1), dtype=np.uint8))
    np.savez(tmp_path / "objects.npz", vectors=np.array([object()], dtype=object))
    np.savez(tmp_path / "space.npz", vectors=np.eye(2), space=np.array("{nonsense"))
    for name, message in {
        "broken.npz": "not a readable",
        "broken.parquet": "not a readable",
        "images.npz": "image set",
        "objects.npz": "not a readable",  # objects would have to be unpickled
        "space.npz": "not readable JSON",
        "none.npz": "no such file",
        "none.txt": r"\.npz or \.parquet",
    }.items():
        with pytest.raises(FormatError, match=message):
            Embeddings.load(tmp_path / name)
    with pytest.raises(FormatError, match="written as"):
        some().save(tmp_path / "x.csv")


def test_load_truncated_file_raises_format_error(tmp_path: Path) -> None:
    path = some().save(tmp_path / "e.npz")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FormatError):
        Embeddings.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vectors": np.full((3, 3), np.nan)}, "'a'.*NaN"),
        ({"vectors": np.array([[1.0, 0, 0], [np.inf, 0, 0], [0, 1, 0]])}, r"'b' \(row 1\)"),
        ({"vectors": np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 0]])}, "'c'.*length zero"),
        ({"vectors": np.ones((3, 4))}, r"shape \(N, 3\)"),
        ({"vectors": np.ones((2, 3))}, "each of 2 vectors"),
        ({"ids": np.array(["a", "b", "a"])}, "more than once, first 'a'"),
        ({"columns": {"labels": np.arange(2)}}, "column 'labels'"),
        ({"columns": {"vectors": np.arange(3)}}, "column name other than"),
    ],
)
def test_embeddings_invalid_arrays_raise(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"ids": np.array(["a", "b", "c"]), "vectors": np.eye(3), "space": OLD}
    with pytest.raises(VectorError, match=message):
        Embeddings(**(good | change))  # type: ignore[arg-type]


def test_embeddings_zero_vector_outside_cosine_is_accepted() -> None:
    Embeddings(
        ids=np.array(["z"]), vectors=np.zeros((1, 2), np.float32), space=Space("l2", 2, metric="l2")
    )


def test_take_keeps_the_given_order() -> None:
    e = some()
    assert e.take(["c", "a"]).ids.tolist() == ["c", "a"]
    np.testing.assert_array_equal(e.take(["c", "a"]).vectors, e.vectors[[2, 0]])
    assert len(e.take([])) == 0
    with pytest.raises(UnknownId, match=r"1 of 2 ids .* first 'x'"):
        e.take(["a", "x"])


def test_embeddings_index_by_slice_mask_or_list() -> None:
    e = some()
    assert e[1:].ids.tolist() == ["b", "c"]
    assert e[np.array([True, False, True])].columns["cameras"].tolist() == ["ca", "cc"]
    assert e[[2]].ids.tolist() == ["c"]


def test_pairs_match_by_id() -> None:
    left, right = some(OLD, ("a", "b", "c")), some(NEW, ("c", "x", "a"))
    mine, theirs = left.paired_with(right)
    assert mine.ids.tolist() == theirs.ids.tolist() == ["a", "c"]
    np.testing.assert_array_equal(theirs.vectors, right.vectors[[2, 0]])
    with pytest.raises(UnknownId, match="share no id"):
        left.paired_with(some(NEW, ("x", "y")))


def test_concatenate_comparable_spaces_raises() -> None:
    joined = some(OLD, ("a", "b")).joined_with(some(OLD, ("c",)))
    assert joined.ids.tolist() == ["a", "b", "c"]
    with pytest.raises(SpaceMismatch, match="map one of them"):
        some(OLD, ("a",)).joined_with(some(NEW, ("b",)))
    with pytest.raises(VectorError, match="more than once"):
        some(OLD, ("a",)).joined_with(some(OLD, ("a",)))


def test_normalised_gives_unit_vectors_in_a_cosine_space_only() -> None:
    np.testing.assert_allclose(np.linalg.norm(some().normalised().vectors, axis=1), 1, rtol=1e-6)
    with pytest.raises(VectorError, match="expected a cosine space"):
        some(Space("d", 3, metric="dot")).normalised()
