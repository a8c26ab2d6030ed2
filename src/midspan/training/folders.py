"""Run folders: config.toml, env.json, log.jsonl, metrics.json, encoder, classifier, bridges."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from midspan.config import read_toml
from midspan.errors import FormatError, MidspanError, RunError
from midspan.training.run_file import to_toml
from midspan.training.settings import RunConfig

CONFIG, ENV, LOG, METRICS = "config.toml", "env.json", "log.jsonl", "metrics.json"
CHECKPOINT, CLASSIFIER = "checkpoint.safetensors", "classifier.safetensors"
ENCODER, TENSORBOARD, BRIDGES = "encoder", "tensorboard", "bridges"
CHECKPOINT_ROWS = "checkpoint.rows"  # of a sharded classifier, see row_files.py


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @classmethod
    def open(cls, path: Path, config: RunConfig, *, restart: bool = False) -> RunFolder:
        """Make the folder, or go on in it if it was made by the same run file."""
        folder = cls(path)
        settings = to_toml(config.raw)
        written = path / CONFIG
        if restart:
            folder._clear()
        if written.exists():
            before = written.read_text(encoding="utf-8")
            if before != settings:
                raise RunError(
                    f"{path} holds a run with other settings ({_difference(before, settings)}); "
                    "choose another --out, or begin anew there with --restart"
                )
        elif path.exists() and any(path.iterdir()):
            raise RunError(f"{path} is not empty and not a run folder; choose another --out")
        path.mkdir(parents=True, exist_ok=True)
        write_whole(written, settings)
        if not (path / ENV).exists():
            write_whole(path / ENV, json.dumps(environment(), indent=2) + "\n")
        return folder

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def encoder(self) -> Path:
        return self.path / ENCODER

    @property
    def finished(self) -> bool:
        return (self.path / METRICS).exists()

    def metrics(self) -> dict[str, Any]:
        path = self.path / METRICS
        try:
            loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: not readable ({error})") from error
        return loaded

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        write_whole(self.path / METRICS, json.dumps(metrics, indent=2) + "\n")

    def log(self, line: Mapping[str, float]) -> None:
        """One line an epoch; a resumed run replaces the lines of the epochs it does again."""
        path = self.path / LOG
        kept = [old for old in self.log_lines() if old["epoch"] < line["epoch"]]
        write_whole(path, "".join(json.dumps(entry) + "\n" for entry in [*kept, line]))

    def log_lines(self) -> list[dict[str, Any]]:
        path = self.path / LOG
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def _clear(self) -> None:
        """Only what a run has written; a folder that is none of ours is left alone."""
        if not (self.path / CONFIG).exists():
            return
        for name in (CHECKPOINT, LOG, METRICS, ENV, CLASSIFIER, CONFIG):
            (self.path / name).unlink(missing_ok=True)
        for name in (ENCODER, TENSORBOARD, BRIDGES, CHECKPOINT_ROWS):
            shutil.rmtree(self.path / name, ignore_errors=True)


@dataclass(frozen=True)
class RunSummary:
    path: Path
    name: str
    state: str  # "finished", "unfinished" or "unreadable"
    method: str
    epochs: str
    scores: Mapping[str, float]
    changed: str


def list_runs(root: Path) -> list[RunSummary]:
    """All runs in and below `root`, newest first."""
    if not root.is_dir():
        raise RunError(
            f"{root}: no such folder; runs are made by `midspan train FILE --out FOLDER`"
        )
    found = [path.parent for path in root.rglob(CONFIG)]
    return sorted((_summary(path) for path in found), key=lambda run: run.changed, reverse=True)


def _summary(path: Path) -> RunSummary:
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    try:
        config = RunConfig.from_dict(read_toml(path / CONFIG), default_name=path.name)
        folder = RunFolder(path)
        done = folder.log_lines()[-1]["epoch"] if folder.log_lines() else 0
        scores = folder.metrics().get("scores", {}) if folder.finished else {}
    except (MidspanError, ValueError, KeyError) as error:
        return RunSummary(path, path.name, "unreadable", str(error), "", {}, changed)
    return RunSummary(
        path=path,
        name=config.name,
        state="finished" if folder.finished else "unfinished",
        method=str(config.method.get("name")),
        epochs=f"{done}/{config.train.epochs}",
        scores=scores,
        changed=changed,
    )


def environment() -> dict[str, Any]:
    """What the numbers may depend on; nothing about whose machine it is."""
    import torch

    return {
        "midspan": metadata.version("midspan"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "system": platform.system(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def write_whole(path: Path, text: str) -> None:
    """The file appears whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _difference(before: str, now: str) -> str:
    old, new = set(before.splitlines()), set(now.splitlines())
    return "; ".join(f"there {line!r}" for line in sorted(old - new)[:3]) or "; ".join(
        f"here {line!r}" for line in sorted(new - old)[:3]
    )
