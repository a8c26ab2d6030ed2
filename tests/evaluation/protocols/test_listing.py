from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.errors import FormatError, UnknownId
from midspan.evaluation.protocols.listing import (
    fields,
    find,
    image_id,
    items,
    known_rows,
    lines,
    table,
    whole,
    whole_numbers,
)
from midspan.spaces import Embeddings, Space


def embeddings(*ids: str) -> Embeddings:
    vectors = np.arange(1, 1 + 2 * len(ids), dtype=np.float32).reshape(len(ids), 2)
    return Embeddings(ids=np.array(ids, dtype=np.str_), vectors=vectors, space=Space("a", 2))


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../up.jpg", "a/../../b.jpg", "", "C:\\x.jpg", "a\\..\\b.jpg", "a\0.jpg", ".."],
)
def test_paths_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(FormatError, match=r"list.txt:3: the image .* below the data set's folder"):
        image_id(name, where="list.txt:3")


@pytest.mark.parametrize("name", ["a.jpg", "a/b c.jpg", "a..b/c.jpg", "ä/ö.jpg"])
def test_paths_below_the_folder_are_ids(name: str) -> None:
    assert image_id(name, where="x") == name


def test_fields_are_counted_and_lines_numbered(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("header\n\n1 a.jpg\r\n 2   b.jpg \n")
    rows = list(fields(path, expected="number image", skip=1))
    assert rows == [(f"{path}:3", ["1", "a.jpg"]), (f"{path}:4", ["2", "b.jpg"])]
    path.write_text("1 a.jpg\n2\n")
    with pytest.raises(FormatError, match=r"list.txt:2: expected 'number image', got '2'"):
        list(fields(path, expected="number image"))


def test_files_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(FormatError, match="not readable as text"):
        list(lines(path))
    with pytest.raises(FormatError, match="cannot be read"):
        list(lines(tmp_path / "none.txt"))


def test_a_byte_order_mark_is_no_part_of_the_first_field(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes("\ufeffid,images\n1,a b\n".encode())
    assert list(table(path, columns=("id",))) == [(f"{path}:2", ["1"])]


def test_tables_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('B,other,A\n1,"x, y",2\n\n3,z,4\n')
    assert list(table(path, columns=("a", "b"))) == [
        (f"{path}:2", ["2", "1"]),
        (f"{path}:4", ["4", "3"]),
    ]
    with pytest.raises(
        FormatError, match="expected the columns a, c in the first line, got b, other, a"
    ):
        list(table(path, columns=("a", "c")))
    path.write_text("a,b\n1\n")
    with pytest.raises(FormatError, match=r"t.csv:2: 1 fields, the first line has 2"):
        list(table(path, columns=("a",)))
    path.write_text("")
    with pytest.raises(FormatError, match="expected the columns a in the first line, got none"):
        list(table(path, columns=("a",)))


def test_whole_numbers_only(tmp_path: Path) -> None:
    path = tmp_path / "n.txt"
    path.write_text("1 2\n3 4\n")
    assert whole_numbers(path, expected="a b").tolist() == [[1, 2], [3, 4]]
    for text in ("1 2\n3\n", "1 x\n", "1 2.5\n", "1 2 3\n", "1 3000000000\n"):
        path.write_text(text)
        with pytest.raises(FormatError, match="expected lines of 'a b'"):
            whole_numbers(path, expected="a b")
    with pytest.raises(FormatError, match="expected lines of 'a b'"):
        whole_numbers(tmp_path / "none", expected="a b")
    path.write_text("")
    with pytest.raises(FormatError, match="expected lines of 'a b'"):
        whole_numbers(path, expected="a b")
    assert whole("-7", where="x") == -7
    with pytest.raises(FormatError, match=r"x: expected a whole number, got '7.5'"):
        whole("7.5", where="x")


def test_the_first_of_several_names_is_found(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "b").write_text("")
    assert find(tmp_path, "b", "meta/b") == tmp_path / "meta" / "b"
    with pytest.raises(FormatError, match=r"has no file x or meta/x; is it the data set's"):
        find(tmp_path, "x", "meta/x")


def test_items_pick_their_vectors_and_bring_their_columns() -> None:
    listed = items([("b", 7), ("a", 8)], columns=["labels"], source=Path("l"))
    chosen = listed.of(embeddings("a", "x", "b"))
    assert chosen.ids.tolist() == ["b", "a"]
    assert chosen.vectors.tolist() == [[5, 6], [1, 2]]
    assert chosen.columns["labels"].tolist() == ["7", "8"]
    assert len(listed) == 2
    with pytest.raises(UnknownId, match="first 'b'"):
        listed.of(embeddings("a"))
    with pytest.raises(FormatError, match="l: lists 'a' more than once"):
        items([("a", 1), ("a", 2)], columns=["labels"], source=Path("l"))
    with pytest.raises(FormatError, match="l: lists nothing"):
        items([], columns=["labels"], source=Path("l"))


def test_ids_without_a_vector_must_be_expected() -> None:
    ids = np.array(["a", "q", "b"])
    rows, known = known_rows(embeddings("b", "a"), ids, skip_missing=True, meaning="leave")
    assert rows.tolist() == [1, -1, 0]
    assert known.tolist() == [True, False, True]
    with pytest.raises(UnknownId, match=r"1 of 3 ids .* first 'q'; .* skip_missing=True to leave"):
        known_rows(embeddings("b", "a"), ids, skip_missing=False, meaning="leave")
    for nothing in (embeddings("z"), embeddings()):
        with pytest.raises(UnknownId, match="none of the protocol's 3 ids has a vector"):
            known_rows(nothing, ids, skip_missing=True, meaning="leave")
