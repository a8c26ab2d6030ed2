"""Outputs are checked before the work, and nothing is replaced without --force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan import Embeddings, Space
from midspan.bridges import Ridge
from tests.cli.conftest import Command

VECTORS, PAGE, ONNX, FOLDER = "x.npz", "p.html", "m.onnx", "folder"


def vectors(path: Path, name: str) -> Path:
    rows = np.random.default_rng(len(name)).normal(size=(60, 8)).astype(np.float32)
    ids = np.array([f"i{n}" for n in range(60)])
    columns = {"labels": np.arange(60) % 12}
    return Embeddings(ids, rows, Space(name, 8), columns).save(path)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    old, new = vectors(tmp_path / "old.npz", "old"), vectors(tmp_path / "new.npz", "new")
    bridge = Ridge(alpha=1.0).fit(Embeddings.load(old), Embeddings.load(new))
    run = tmp_path / "run.toml"
    run.write_text('[data]\nname = "digits"\n')
    (tmp_path / "afile").write_text("a file, not a folder")
    return {
        "OLD": str(old),
        "NEW": str(new),
        "BRIDGE": str(bridge.save(tmp_path / "old-new")),
        "RUN": str(run),
        "TMP": str(tmp_path),
    }


COMMANDS = {
    "embed": (["embed", "no-such-encoder", "TMP", "--out"], VECTORS),
    "export": (["export", "no-such-encoder", "--out"], ONNX),
    "compare": (["compare", "--old", "OLD", "--new", "NEW", "--page"], PAGE),
    "gate": (["gate", "--before", "OLD", "--after", "NEW", "--page"], PAGE),
    "bridge fit": (["bridge", "fit", "--source", "OLD", "--target", "NEW", "--out"], FOLDER),
    "bridge apply": (["bridge", "apply", "BRIDGE", "--input", "OLD", "--out"], VECTORS),
    "bridge export": (["bridge", "export", "BRIDGE", "--out"], ONNX),
    "bench report": (["bench", "--report", "TMP", "--out"], PAGE),
    "bench": (["bench", "--data", "digits", "--out"], FOLDER),
    "demo": (["demo", "--out"], FOLDER),
    "train": (["train", "RUN", "--out"], FOLDER),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_output_below_a_file_exits_before_the_work(
    midspan: Command, places: dict[str, str], tmp_path: Path, name: str
) -> None:
    words, kind = COMMANDS[name]
    words = [places.get(word, word) for word in words]
    code, out, err = midspan(*words, tmp_path / "afile" / kind)
    assert (code, out) == (2, "")
    assert "afile is a file" in err
    assert "Traceback" not in err
    assert (tmp_path / "afile").read_text() == "a file, not a folder"


@pytest.mark.parametrize("name", [n for n, (_, kind) in COMMANDS.items() if kind != FOLDER])
def test_output_existing_or_unknown_ending_exits_before_the_work(
    midspan: Command, places: dict[str, str], tmp_path: Path, name: str
) -> None:
    words, kind = COMMANDS[name]
    words = [places.get(word, word) for word in words]
    there = tmp_path / kind
    there.write_text("keep me")
    code, _, err = midspan(*words, there)
    assert code == 2
    assert "exists already; choose another name, or add --force" in err
    assert there.read_text() == "keep me"
    if name == "bench report":  # any other name is a folder for the page
        return
    code, _, err = midspan(*words, tmp_path / "x.zip")
    assert code == 2
    assert "expected a name that ends in" in err


@pytest.mark.parametrize("name", [n for n, (_, kind) in COMMANDS.items() if kind == FOLDER])
def test_output_folder_that_is_a_file_exits_2(
    midspan: Command, places: dict[str, str], tmp_path: Path, name: str
) -> None:
    words = [places.get(word, word) for word in COMMANDS[name][0]]
    code, _, err = midspan(*words, tmp_path / "afile")
    assert code == 2
    assert "is a file; give the name of a folder" in err


def test_force_replaces_a_file_and_a_bridge(
    midspan: Command, places: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "x.npz"
    out.write_text("old")
    words = ["bridge", "apply", places["BRIDGE"], "--input", places["OLD"], "--out", out]
    assert midspan(*words, "--force")[0] == 0
    assert len(Embeddings.load(out)) == 60
    fit = ["bridge", "fit", "--source", places["OLD"], "--target", places["NEW"]]
    fit += ["--method", "procrustes", "--out", places["BRIDGE"]]
    code, _, err = midspan(*fit)
    assert code == 2
    assert "is not empty; choose another folder, or add --force" in err
    assert midspan(*fit, "--force")[0] == 0
