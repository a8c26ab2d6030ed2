"""Labels are names: what becomes one, how a loop numbers them, what old files are read as."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from midspan import Embeddings, Space
from midspan.errors import DataError, EvaluationError, FormatError, LabelMismatch
from midspan.evaluation import compare, evaluate
from midspan.labels import ClassNames, NumberedLabels, as_names, check_overlap, codes

ENCODER = Space("r18", 4, fingerprint="f-r18")  # of an encoder, not only declared


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (np.array(["cat", "002"]), ["cat", "002"]),
        (np.array([7, -1, 0]), ["7", "-1", "0"]),
        (np.array([7, 3], dtype=np.uint8), ["7", "3"]),
        (np.array([7.0, 3.0]), ["7", "3"]),
        (np.array([b"caf\xc3\xa9"]), ["café"]),
        (np.array(["a", 5], dtype=object), ["a", "5"]),
        (np.array([], dtype=np.int64), []),
    ],
)
def test_as_names_accepts_text_and_whole_numbers(given: Any, names: list[str]) -> None:
    assert as_names(given).tolist() == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.array([1.0, np.nan]), r"1 of 2 labels are NaN \(missing\)"),
        (np.array([0.5]), "expected names"),
        (np.array(["a", None], dtype=object), "expected names"),
        (np.array(["a", ""]), "1 of 2 labels are empty, first row 1"),
        (np.zeros((2, 2), dtype=int), r"labels have shape \(2, 2\)"),
    ],
)
def test_as_names_other_types_raise(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_names(given)


def test_class_names_all_numeric_are_sorted_as_numbers() -> None:
    assert ClassNames.of(np.array(["10", "9", "-1", "9"])).names == ("-1", "9", "10")
    assert ClassNames.of(np.array(["10", "9", "x"])).names == ("10", "9", "x")


def test_class_names_encode_and_decode() -> None:
    classes = ClassNames(("dog", "cat"))
    labels = np.array(["cat", "cat", "dog"])
    assert classes.encode(labels).tolist() == [1, 1, 0]
    assert classes.decode(classes.encode(labels)).tolist() == labels.tolist()
    with pytest.raises(DataError, match="the label 'emu' is not among the 2 class names"):
        classes.encode(np.array(["emu"]))


def test_codes_equal_names_have_equal_codes() -> None:
    first, second = codes(np.array(["b", "a", "b"]), np.array(["a", "c"]))
    assert first.tolist() == [0, 1, 0]
    assert second.tolist() == [1, 2]


def test_label_sets_without_a_common_name_raise_with_both() -> None:
    query, gallery = np.array(["002.Laysan", "003.Sooty"]), np.arange(5).astype(str)
    with pytest.raises(
        LabelMismatch,
        match=r"the query has '002.Laysan', '003.Sooty', the gallery '0', '1', '2' … \(5 names\)",
    ):
        check_overlap(query, gallery)
    check_overlap(np.array(["1", "x"]), gallery)


# ---- embeddings ---------------------------------------------------------------------------------


def some(labels: Any, *, space: Space = ENCODER, first: int = 0) -> Embeddings:
    vectors = np.random.default_rng(first).normal(size=(len(labels), space.dim))
    ids = np.array([f"i{first + row}" for row in range(len(labels))])
    return Embeddings(ids, vectors.astype(np.float32), space, {"labels": np.asarray(labels)})


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_label_names_file_round_trip_is_equal(tmp_path: Path, ending: str) -> None:
    path = some(["ant", "bee", "-1", "0007"]).save(tmp_path / f"a{ending}")
    loaded = Embeddings.load(path)
    assert loaded.labels is not None
    assert loaded.labels.tolist() == ["ant", "bee", "-1", "0007"]
    assert set(loaded.columns) == {"labels"}
    assert not loaded.numbered


def test_evaluate_matches_labels_by_name() -> None:
    """Classes 001 and 002 in one file, 002 and 003 in the other: as numbers 002 is 1 and 0."""
    query = some(["001", "001", "002", "002"])
    gallery = some(["002", "002", "003", "003"], first=10)
    found = evaluate(query, gallery, metrics=["map"]).per_query["map"]
    assert np.isnan(found[:2]).all()  # nothing of 001 is there
    similarity = query.normalised().vectors[2:] @ gallery.normalised().vectors.T
    for row, scores in enumerate(similarity):  # the definition, by hand
        right = np.array(["002", "002", "003", "003"])[np.argsort(-scores)] == "002"
        places = np.flatnonzero(right) + 1
        assert found[2 + row] == pytest.approx(np.mean(np.arange(1, 3) / places))


def test_evaluate_without_a_common_class_raises() -> None:
    with pytest.raises(LabelMismatch, match="the query has '001', '002', the gallery '7', '8'"):
        evaluate(some(["001", "002"]), some([7, 8], first=10))


def write_earlier(path: Path, labels: list[int], *, space: Space, first: int = 0) -> Path:
    """As an earlier version wrote it: whole numbers, and no mark of the format."""
    made = some(labels, space=space, first=first)
    if path.suffix == ".npz":
        np.savez(
            path,
            vectors=made.vectors,
            ids=made.ids,
            space=np.array(space.to_json()),
            labels=np.array(labels),
        )
        return path
    import pyarrow.parquet as pq

    lists = pa.FixedSizeListArray.from_arrays(pa.array(made.vectors.ravel()), space.dim)
    columns = {"ids": made.ids.tolist(), "vectors": lists, "labels": labels}
    table = pa.table(columns).replace_schema_metadata({"midspan.space": space.to_json()})
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_load_numeric_labels_of_an_earlier_version_warns_in_a_comparison(
    tmp_path: Path, ending: str
) -> None:
    first = Embeddings.load(write_earlier(tmp_path / f"a{ending}", [0, 0, 1, 1], space=ENCODER))
    other = write_earlier(tmp_path / f"b{ending}", [0, 0, 0, 1], space=ENCODER, first=10)
    second = Embeddings.load(other)
    assert first.labels is not None
    assert first.labels.tolist() == ["0", "0", "1", "1"]
    assert first.numbered
    evaluate(first)  # alone it is what it was
    with pytest.warns(
        NumberedLabels, match="labels of the query and gallery are numbers that an e"
    ):
        evaluate(first, second)
    again = Embeddings.load(first[:3].save(tmp_path / f"again{ending}"))
    assert again.numbered, "writing it again makes them no names"
    assert not first.with_columns({"labels": np.array(list("abcd"))}).numbered


def test_load_numeric_labels_of_a_foreign_file_are_names(tmp_path: Path) -> None:
    declared = write_earlier(tmp_path / "a.npz", [0, 1], space=Space("mine", 4))
    assert not Embeddings.load(declared).numbered
    np.savez(tmp_path / "b.npz", vectors=np.eye(4), labels=np.arange(4))
    bare = Embeddings.load(tmp_path / "b.npz", space="mine")
    assert not bare.numbered
    assert evaluate(Embeddings.load(declared), bare, metrics=["recall@1"]).answerable == 2


def test_compare_named_labels_of_one_side_are_used_for_both(tmp_path: Path) -> None:
    earlier = write_earlier(tmp_path / "a.npz", [0, 0, 1, 1, 2, 2], space=ENCODER)
    old = Embeddings.load(earlier)
    new = some(["ant", "ant", "bee", "bee", "cat", "cat"], space=Space("new", 4))
    named = compare(old=old.with_labels_of(new), new=new, bootstrap=10).to_dict()
    assert compare(old=old, new=new, bootstrap=10).to_dict() == named
    with pytest.warns(NumberedLabels, match="labels of the new set are numbers"):
        assert compare(old=some(["ant", "ant", "bee", "bee", "cat", "cat"]), new=old, bootstrap=10)


def test_load_unreadable_label_mark_raises(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        vectors=np.eye(4),
        labels=np.arange(4),
        space=np.array(ENCODER.to_json()),
        midspan=np.array(json.dumps({"format": 2})),
    )
    with pytest.raises(FormatError, match="its format mark is not readable"):
        Embeddings.load(tmp_path / "a.npz")


def test_market1501_persons_match_by_number() -> None:
    from midspan.evaluation.protocols.market1501 import Market1501

    def seen(labels: list[str], first: int) -> Embeddings:
        made = some(labels, first=first)
        return made.with_columns({"cameras": np.arange(len(labels)) + first})

    query, gallery = seen(["0002", "0007"], 0), seen(["2", "-1", "0000", "7"], 10)
    result = Market1501().evaluate(query, gallery)
    assert result.n_gallery == 3  # junk is dropped, the distractor stays
    assert result.metrics["recall@10"] == 1.0
    with pytest.raises(EvaluationError, match="query 'i11' is of person -1 or 0"):
        Market1501().evaluate(gallery[[1]], query)
    with pytest.raises(EvaluationError, match="not the data set's own persons; pass root"):
        Market1501().evaluate(replace(query, numbered=True), gallery)


def test_as_names_large_floats_raise() -> None:
    with pytest.raises(DataError, match="expected names"):
        as_names(1e19 * np.arange(1, 21))
    assert as_names(np.array([1.0, 2.0**53])).tolist() == ["1", str(2**53)]


def test_as_names_bytes_not_in_utf8_raise() -> None:
    with pytest.raises(DataError, match="bytes that are not UTF-8"):
        as_names(np.array([b"caf\xe9"]))
    assert as_names(np.array(["café".encode()])).tolist() == ["café"]
