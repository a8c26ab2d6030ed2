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

from midspan.errors import MidspanError, RunError
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
def test_typo_does_not_claim_the_folder(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    with pytest.raises(MidspanError):
        train(RunConfig.from_dict(changed(*TYPOS[name])), out=out, progress=False)
    assert not out.exists()


def test_typo_with_restart_leaves_the_former_run_alone(tmp_path: Path) -> None:
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


def test_second_train_on_a_folder_is_refused_and_a_killed_one_frees_it(tmp_path: Path) -> None:
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
