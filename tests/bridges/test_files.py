"""Folders that are no bridges, or no longer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.bridges import Blend, LowRank, Ridge, load_bridge
from midspan.bridges.files import JSON_NAME
from midspan.errors import FormatError
from tests.bridges.worlds import encoders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    old, new = encoders(60)
    return Ridge(alpha=0.5).fit(old, new).save(tmp_path / "saved")


def arrays_of(folder: Path) -> Path:
    (path,) = folder.glob("bridge-*.safetensors")
    return path


def change(folder: Path, edit: Any) -> None:
    document = json.loads((folder / JSON_NAME).read_text())
    edit(document)
    (folder / JSON_NAME).write_text(json.dumps(document))


def replace_arrays(folder: Path, arrays: dict[str, Any]) -> None:
    """Arrays that do not fit, with a digest that does."""
    from safetensors.numpy import save

    raw = save(arrays)
    digest = hashlib.sha256(raw).hexdigest()
    arrays_of(folder).rename(folder / f"bridge-{digest[:16]}.safetensors").write_bytes(raw)
    change(folder, lambda d: d.update(arrays_sha256=digest))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no bridge\.json there; is it a bridge folder"):
        load_bridge(tmp_path)


def test_truncated_arrays(folder: Path) -> None:
    raw = arrays_of(folder).read_bytes()
    arrays_of(folder).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(FormatError, match="truncated, changed or of another bridge"):
        load_bridge(folder)


def test_arrays_of_another_bridge(folder: Path, tmp_path: Path) -> None:
    old, new = encoders(60, seed=3)
    other = Ridge(alpha=0.5).fit(old, new).save(tmp_path / "other")
    arrays_of(folder).write_bytes(arrays_of(other).read_bytes())
    with pytest.raises(FormatError, match="of another bridge"):
        load_bridge(folder)


def test_missing_arrays_file(folder: Path) -> None:
    arrays_of(folder).unlink()
    with pytest.raises(FormatError, match=r"bridge-[0-9a-f]{16}\.safetensors cannot be read"):
        load_bridge(folder)


def test_broken_json(folder: Path) -> None:
    (folder / JSON_NAME).write_text("{")
    with pytest.raises(FormatError, match="not readable JSON"):
        load_bridge(folder)


def test_json_of_something_else(folder: Path) -> None:
    (folder / JSON_NAME).write_text('{"format": "other"}')
    with pytest.raises(FormatError, match="not a bridge; expected"):
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
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [JSON_NAME, arrays_of(folder).name]
    )


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    old, new = encoders(60)
    with pytest.raises(FormatError, match="holds other files and no bridge"):
        Ridge(alpha=1.0).fit(old, new).save(tmp_path)
    with pytest.raises(FormatError, match="is a file"):
        Ridge(alpha=1.0).fit(old, new).save(tmp_path / "notes.txt")


def test_members_are_saved_with_their_own_settings(tmp_path: Path) -> None:
    old, new = encoders(60)
    blend = Blend(members=({"name": "ridge", "alpha": 2.0}, {"name": "low-rank", "rank": 3}))
    again = load_bridge(blend.fit(old, new).save(tmp_path / "blend"))
    assert isinstance(again, Blend)
    assert [member.name for member in again.members_] == ["ridge", "low-rank"]
    assert again.members_[1].settings()["rank"] == 3
    assert arrays_of(tmp_path / "blend").read_bytes()[:1] != b"\x80"  # no pickle


def test_load_bridge_name_of_an_earlier_release_loads_without_a_warning(tmp_path: Path) -> None:
    old, new = encoders(60)
    saved = LowRank(rank=3).fit(old, new).save(tmp_path / "bridge")
    path = Path(saved) / JSON_NAME
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"low-rank"', '"low_rank"'), encoding="utf-8")
    assert isinstance(load_bridge(saved), LowRank)


def test_saving_again_replaces_the_former_bridge_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = load_bridge(folder)
    old, new = encoders(60, seed=3)
    other = Ridge(alpha=0.5).fit(old, new)
    real = Path.replace

    def dies_before_json(self: Path, target: Path) -> Path:
        if target.name == JSON_NAME:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", dies_before_json)
        with pytest.raises(KeyboardInterrupt):
            other.save(folder)
    kept = load_bridge(folder)  # as before
    np.testing.assert_array_equal(kept.apply(old.vectors), former.apply(old.vectors))
    other.save(folder)
    np.testing.assert_array_equal(load_bridge(folder).apply(old.vectors), other.apply(old.vectors))
    assert len(list(folder.iterdir())) == 2


def test_a_digest_that_is_none_is_refused(folder: Path) -> None:
    change(folder, lambda d: d.update(arrays_sha256="../../elsewhere"))
    with pytest.raises(FormatError, match="has no arrays_sha256"):
        load_bridge(folder)
