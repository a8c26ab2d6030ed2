"""A run folder is claimed only by settings that hold, and by one process at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from midspan.errors import ConfigError, MidspanError, RunError
from midspan.training import RunConfig, train
from midspan.training.lock import LOCK, locked

SETTINGS: dict[str, Any] = {
    "data": {"name": "digits"},
    "encoder": {"backbone": "small-cnn", "dim": 16},
    "loss": {"name": "cosface", "scale": 24.0},
    "train": {"epochs": 1, "batch_size": 256},
    "evaluate": {"metrics": []},
}
TYPOS: dict[str, tuple[str, str, Any]] = {
    "loss": ("loss", "name", "cosfac"),
    "setting of a loss": ("loss", "sclae", 3.0),
    "type of a setting": ("loss", "scale", "large"),
    "method": ("method", "name", "bcd"),
    "method without an old encoder": ("method", "name", "bct"),
    "backbone": ("encoder", "backbone", "small-cn"),
    "setting of a backbone": ("encoder", "settings", {"wdith": 3}),
    "type of a setting of a backbone": ("encoder", "settings", {"width": "big"}),
    "head": ("encoder", "head", "liner"),
    "data": ("data", "name", "digit"),
    "setting of data": ("data", "pth", "x"),
    "path of data": ("data", "path", "no-such-folder"),
    "augmentation": ("train", "augment", ["affin"]),
    "metric": ("evaluate", "metrics", ["mpa"]),
    "allocation": ("allocation", "kind", "extended"),
    "variation": ("variations", "names", ["blurr"]),
    "old run": ("old", "run", "no-such-run"),
}


def changed(section: str, key: str, value: Any) -> dict[str, Any]:
    settings = {name: dict(values) for name, values in SETTINGS.items()}
    if section == "allocation":
        settings["allocation"] = {"part": "old"}
    if key == "path":
        settings["data"] = {"name": "folder"}
    if value == "bcd":
        settings["method"] = {}
    if section == "old":
        settings["method"] = {"name": "bct"}
    settings.setdefault(section, {})[key] = value
    return settings


@pytest.mark.parametrize("name", TYPOS)
def test_train_typo_does_not_claim_the_folder(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    with pytest.raises(MidspanError):
        train(RunConfig.from_dict(changed(*TYPOS[name])), out=out, progress=False)
    assert not out.exists()


LATE: dict[str, dict[str, dict[str, Any]]] = {  # found only when the parts of the run meet
    "dim below the old one": {"encoder": {"dim": 8}},
    "more blocks than there are": {"encoder": {"freeze": 99}},
    "ridge start into fewer dims": {"encoder": {"start": "ridge", "dim": 8}},
    "mixup without a term for it": {"train": {"mixup": 0.5}},
    "old centres of another dim": {"classifier": {"init": "old-centres"}, "encoder": {"dim": 8}},
    "column that the data lacks": {
        "evaluate": {"metrics": ["map"], "exclude_column": "nocol"},
        "data": {"name": "digits"},
    },
}


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("old") / "run"
    train(RunConfig.from_dict(SETTINGS), out=out, progress=False)
    return out


@pytest.mark.parametrize("name", LATE)
def test_train_setting_invalid_for_the_data_claims_no_folder(
    tmp_path: Path, old_run: Path, name: str
) -> None:
    settings = {section: dict(values) for section, values in SETTINGS.items()}
    settings |= {"method": {"name": "bct"}, "old": {"run": str(old_run)}}
    good = json.loads(json.dumps(settings))
    for section, values in LATE[name].items():
        settings.setdefault(section, {}).update(values)
    out = tmp_path / "run"
    with pytest.raises(MidspanError):
        train(RunConfig.from_dict(settings), out=out, progress=False)
    assert not out.exists()
    train(RunConfig.from_dict(good), out=out, progress=False)  # the corrected command
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(MidspanError):
        train(RunConfig.from_dict(settings), out=out, restart=True, progress=False)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept


@pytest.mark.parametrize("device", ["cuda:9x", "bla", "cuda"])
def test_train_unknown_device_creates_no_folder(tmp_path: Path, device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError, match=f"device '?{device}"):
        train(RunConfig.from_dict(SETTINGS), out=tmp_path / "run", device=device, progress=False)
    assert not (tmp_path / "run").exists()


def test_train_restart_with_a_typo_keeps_the_former_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(RunConfig.from_dict(SETTINGS), out=out, progress=False)
    before = (out / "metrics.json").read_bytes()
    with pytest.raises(MidspanError):
        train(RunConfig.from_dict(changed("loss", "name", "cosfac")), out=out, restart=True)
    assert (out / "metrics.json").read_bytes() == before
    assert not (out / LOCK).exists()


def test_folder_in_use_names_the_process(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with (
        locked(out),
        pytest.raises(RunError, match=rf"in use: process {os.getpid()} on .* since 20"),
    ):
        train(RunConfig.from_dict(SETTINGS), out=out, progress=False)
    assert not (out / "config.toml").exists()
    train(RunConfig.from_dict(SETTINGS), out=out, progress=False)  # free again
    assert (out / "metrics.json").exists()


def test_train_second_on_a_folder_raises_until_the_first_is_killed(tmp_path: Path) -> None:
    hold = (
        "import sys, time; from pathlib import Path; from midspan.training.lock import locked\n"
        f"with locked(Path({str(tmp_path)!r})):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=f"process {process.pid} on"), locked(tmp_path):
        pass
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == process.pid
    process.send_signal(signal.SIGKILL)
    process.communicate()
    began = time.monotonic()
    with locked(tmp_path):  # the file is still there, its lock is not
        assert time.monotonic() - began < 5
    assert not (tmp_path / LOCK).exists()
