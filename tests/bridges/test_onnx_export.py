from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from midspan.bridges import FCT, RBT, Ridge, export_onnx
from midspan.errors import DataError, FormatError, MissingDependency
from tests.bridges.worlds import encoders

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_the_file_names_both_spaces(tmp_path: Path) -> None:
    old, new = encoders(60)
    path = export_onnx(Ridge().fit(old, new), tmp_path / "deep" / "bridge.onnx")
    properties = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert json.loads(properties["source"])["name"] == "old"
    assert json.loads(properties["target"])["fingerprint"] == new.space.fingerprint


def test_a_file_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = encoders(60)
    bridge = Ridge().fit(old, new)
    monkeypatch.setattr(
        Ridge, "_graph", lambda self, graph, rows: graph.affine(rows, -self.weight_, self.bias_)
    )
    with pytest.raises(FormatError, match="differs from it by"):
        export_onnx(bridge, tmp_path / "bridge.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_query_side_of_a_unified_bridge(tmp_path: Path) -> None:
    old, new = encoders(120)
    both = RBT(mode="unified", epochs=1, depth=1, paths=1).fit(old, new)
    assert export_onnx(both.other, tmp_path / "query.onnx").exists()


def test_side_information_has_no_query_side(tmp_path: Path) -> None:
    old, new = encoders(60)
    old = old.with_columns({"extra": np.ones((60, 2), np.float32)})
    bridge = FCT(side="extra", width=8, epochs=1).fit(old, new)
    with pytest.raises(DataError, match="no query side"):
        export_onnx(bridge, tmp_path / "bridge.onnx")


def test_says_which_extra_brings_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = encoders(60)
    bridge = Ridge().fit(old, new)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependency, match=r"midspan\[onnx\]"):
        export_onnx(bridge, tmp_path / "bridge.onnx")
