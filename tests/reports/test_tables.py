from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from midspan.reports.tables import Cell, csv_text, html_table, rounded, write_csv
from tests.reports.html_walk import Walk


@dataclass(frozen=True)
class Pair:
    name: str
    value: float


def test_rounded_gives_plain_json() -> None:
    value = {
        "f": np.float32(0.1),
        "i": np.int64(3),
        "nan": float("nan"),
        "inf": np.float64("inf"),
        "array": np.array([[0.12345678, 2.0]]),
        "bool": np.bool_(True),
        "text": np.str_("é"),
        "tuple": (1, None, 2.00000049),
        "pair": Pair("x", 1 / 3),
        "path": Path("a/b"),
        7: "number key",
    }
    result = rounded(value)
    assert json.loads(json.dumps(result, allow_nan=False)) == {
        "f": 0.1,
        "i": 3,
        "nan": None,
        "inf": None,
        "array": [[0.123457, 2.0]],
        "bool": True,
        "text": "é",
        "tuple": [1, None, 2.0],
        "pair": {"name": "x", "value": 0.333333},
        "path": "a/b",
        "7": "number key",
    }


def test_csv_text_round_trip_is_equal() -> None:
    rows = [
        {"method": "bct", "cross": 0.5},
        {"method": 'a "quoted", name\nin two lines', "cross": float("nan"), "seed": 3},
    ]
    read = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert read == [
        {"method": "bct", "cross": "0.5", "seed": ""},
        {"method": 'a "quoted", name\nin two lines', "cross": "", "seed": "3"},
    ]


def test_csv_text_writes_the_chosen_columns() -> None:
    text = csv_text([{"a": 1, "b": 2.34567}], columns=["b", "c"], digits=2)
    assert text == "b,c\n2.35,\n"
    assert csv_text([], columns=["a"]) == "a\n"


def test_write_csv_writes_header_and_rows(tmp_path: Path) -> None:
    path = write_csv([{"klasse": "Ω"}], tmp_path / "deep" / "rows.csv")
    assert path.read_bytes() == "klasse\nΩ\n".encode()
    assert [each.name for each in path.parent.iterdir()] == ["rows.csv"]  # no part file left


def test_html_table_is_accessible_and_escaped() -> None:
    table = html_table(
        ["<b>encoder</b>", "self"],
        [["old & <script>", Cell("0.5", note="0.4 to 0.6", tone="good")]],
        footer=[["random", "0.1"]],
        caption='the "scores"',
    )
    walk = Walk(str(table))
    assert walk.errors == []
    assert not walk.all("script")
    assert not walk.all("b")
    assert [header["scope"] for header in walk.all("th")] == ["col", "col", "row", "row"]
    assert walk.by_tag["th"] == ["<b>encoder</b>", "self", "old & <script>", "random"]
    assert walk.by_tag["td"] == ["0.50.4 to 0.6", "0.1"]
    assert walk.by_tag["caption"] == ['the "scores"']
    assert walk.all("td")[0]["class"] == "good"


def test_html_table_incomplete_row_raises() -> None:
    with pytest.raises(ValueError, match="expected 2 cells in a row"):
        html_table(["a", "b"], [["only"]], caption="c")
