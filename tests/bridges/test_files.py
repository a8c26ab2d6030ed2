"""Folders that are no bridges, or no longer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.bridges import Blend, Ridge, load_bridge
from midspan.bridges.files import ARRAYS_NAME, JSON_NAME
from midspan.errors import FormatError
from tests.bridges.worlds import encoders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    old, new = encoders(60)
    return Ridge(alpha=0.5).fit(old, new).save(tmp_path / "saved")


def change(folder: Path, edit: Any) -> None:
    document = json.loads((folder / JSON_NAME).read_text())
    edit(document)
    (folder / JSON_NAME).write_text(json.dumps(document))


def replace_arrays(folder: Path, arrays: dict[str, Any]) -> None:
    """Arrays that do not fit, with a digest that does."""
    from safetensors.numpy import save

    raw = save(arrays)
    (folder / ARRAYS_NAME).write_bytes(raw)
    change(folder, lambda d: d.update(arrays_sha256=hashlib.sha256(raw).hexdigest()))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no bridge\.json there; is it a bridge folder"):
        load_bridge(tmp_path)


def test_truncated_arrays(folder: Path) -> None:
    raw = (folder / ARRAYS_NAME).read_bytes()
    (folder / ARRAYS_NAME).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(FormatError, match="truncated, changed or of another bridge"):
        load_bridge(folder)


def test_arrays_of_another_bridge(folder: Path, tmp_path: Path) -> None:
    old, new = encoders(60, seed=3)
    other = Ridge(alpha=0.5).fit(old, new).save(tmp_path / "other")
    (folder / ARRAYS_NAME).write_bytes((other / ARRAYS_NAME).read_bytes())
    with pytest.raises(FormatError, match="of another bridge"):
        load_bridge(folder)


def test_missing_arrays_file(folder: Path) -> None:
    (folder / ARRAYS_NAME).unlink()
    with pytest.raises(FormatError, match=r"bridge\.safetensors cannot be read"):
        load_bridge(folder)


def test_broken_json(folder: Path) -> None:
    (folder / JSON_NAME).write_text("{")
    with pytest.raises(FormatError, match="not readable JSON"):
        load_bridge(folder)


def test_json_of_something_else(folder: Path) -> None:
    (folder / JSON_NAME).write_text('{"format": "other"}')
    with pytest.raises(FormatError, match="not a bridge; wanted"):
        load_bridge(folder)


def test_a_later_version(folder: Path) -> None:
    change(folder, lambda d: d.update(version=99))
    with pytest.raises(FormatError, match=r"version 99.*upgrade midspan"):
        load_bridge(folder)


def test_an_unknown_kind(folder: Path) -> None:
    change(folder, lambda d: d["bridge"].update(name="rigde"))
    with pytest.raises(FormatError, match=r"'rigde'; did you mean 'ridge'"):
        load_bridge(folder)


def test_an_unknown_setting(folder: Path) -> None:
    change(folder, lambda d: d["bridge"]["settings"].update(alhpa=1.0))
    with pytest.raises(FormatError, match=r"no setting 'alhpa'; did you mean 'alpha'"):
        load_bridge(folder)


@pytest.mark.parametrize("name", ["_map", "apply", "__class__", "_source", "a b_"])
def test_a_file_may_not_replace_methods(folder: Path, name: str) -> None:
    change(folder, lambda d: d["bridge"]["values"].update({name: 1}))
    with pytest.raises(FormatError, match="not something that a bridge learns"):
        load_bridge(folder)


def test_arrays_that_do_not_fit(folder: Path) -> None:
    replace_arrays(folder, {"weight_": np.ones((12, 5), "f"), "bias_": np.ones(12, "f")})
    with pytest.raises(FormatError, match="do not fit each other"):
        load_bridge(folder)


def test_arrays_of_another_dim(folder: Path) -> None:
    replace_arrays(folder, {"weight_": np.ones((12, 5), "f"), "bias_": np.ones(5, "f")})
    with pytest.raises(FormatError, match=r"maps to \(5,\) instead of finite \(12,\)"):
        load_bridge(folder)


def test_nan_in_the_arrays(folder: Path) -> None:
    replace_arrays(folder, {"weight_": np.full((12, 12), np.nan, "f"), "bias_": np.ones(12, "f")})
    with pytest.raises(FormatError, match="instead of finite"):
        load_bridge(folder)


def test_missing_array(folder: Path) -> None:
    replace_arrays(folder, {"bias_": np.ones(12, "f")})
    with pytest.raises(FormatError, match="arrays are missing"):
        load_bridge(folder)


def test_saving_over_a_bridge_replaces_it(folder: Path) -> None:
    old, new = encoders(60, seed=4)
    bridge = Ridge(alpha=2.0).fit(old, new)
    bridge.save(folder)
    assert np.array_equal(load_bridge(folder).apply(old.vectors), bridge.apply(old.vectors))
    assert sorted(path.name for path in folder.iterdir()) == [JSON_NAME, ARRAYS_NAME]


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    old, new = encoders(60)
    with pytest.raises(FormatError, match="holds other files and no bridge"):
        Ridge(alpha=1.0).fit(old, new).save(tmp_path)
    with pytest.raises(FormatError, match="is a file"):
        Ridge(alpha=1.0).fit(old, new).save(tmp_path / "notes.txt")


def test_members_are_saved_with_their_own_settings(tmp_path: Path) -> None:
    old, new = encoders(60)
    blend = Blend(members=({"name": "ridge", "alpha": 2.0}, {"name": "low_rank", "rank": 3}))
    again = load_bridge(blend.fit(old, new).save(tmp_path / "blend"))
    assert isinstance(again, Blend)
    assert [member.name for member in again.members_] == ["ridge", "low_rank"]
    assert again.members_[1].settings()["rank"] == 3
    assert (tmp_path / "blend" / ARRAYS_NAME).read_bytes()[:1] != b"\x80"  # no pickle
