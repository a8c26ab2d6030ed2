"""Run folders: config.toml, env.json, classes.json, log.jsonl, metrics.json, encoder …"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from midspan.atomic_write import write_text
from midspan.config import read_toml
from midspan.errors import FormatError, MidspanError, RunError
from midspan.labels import some_names
from midspan.training.lock import LOCK, locked
from midspan.training.run_file import comparable, to_toml
from midspan.training.settings import RunConfig

CONFIG, ENV, LOG, METRICS = "config.toml", "env.json", "log.jsonl", "metrics.json"
CHECKPOINT, CLASSIFIER = "checkpoint.safetensors", "classifier.safetensors"
ENCODER, TENSORBOARD, BRIDGES = "encoder", "tensorboard", "bridges"
CLASSES = "classes.json"  # the names of the training classes: the place of a name is its number
CHECKPOINT_ROWS = "checkpoint.rows"  # of a sharded classifier, see class_weights.py


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run: its settings, log and metrics, its encoder.

    Example:
        >>> import pathlib, tempfile
        >>> from midspan.training import RunFolder
        >>> with tempfile.TemporaryDirectory() as path:
        ...     run = RunFolder(pathlib.Path(path))
        ...     print(run.finished, run.encoder.name)
        ...     run.write_metrics({"scores": {"self": 0.8}})  # as the end of a training does
        ...     print(run.finished, run.metrics()["scores"]["self"])
        False encoder
        True 0.8
    """

    path: Path

    def check(self, config: RunConfig, *, restart: bool = False) -> bool:
        """Whether the run is finished there; RunError if the folder is for something else.

        Nothing is written. With `restart` an existing run counts as not started.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; choose another `out`")
        written = self.path / CONFIG
        if written.exists():
            if restart:
                return False
            before = comparable(written.read_text(encoding="utf-8"))
            settings = comparable(to_toml(config.raw))
            if before != settings:
                raise RunError(
                    f"{self.path} holds a run with other settings "
                    f"({_difference(before, settings)}); choose another `out`, or start again "
                    "there with `restart`"
                )
        elif self.path.exists() and any(path.name != LOCK for path in self.path.iterdir()):
            raise RunError(f"{self.path} is not empty and not a run folder; choose another `out`")
        return self.finished

    @contextmanager
    def claimed(self, config: RunConfig, *, restart: bool = False) -> Iterator[Callable[..., None]]:
        """Hold the folder as the only process that works there.

        Nothing is written or removed before the yielded function is called with the names of
        the classes: settings that do not fit leave the folder unchanged.
        """
        made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.path):
                self.check(config, restart=restart)

                def begin(class_names: Sequence[str]) -> None:
                    if restart:
                        self._clear()
                    write_text(self.path / CONFIG, to_toml(config.raw))
                    if not (self.path / ENV).exists():
                        write_text(self.path / ENV, json.dumps(environment(), indent=2) + "\n")
                    self.keep_classes(class_names)

                yield begin
        finally:
            if made:
                with suppress(OSError):  # not empty: the run has begun
                    self.path.rmdir()

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def encoder(self) -> Path:
        return self.path / ENCODER

    @property
    def finished(self) -> bool:
        return (self.path / METRICS).exists()

    def keep_classes(self, names: Sequence[str]) -> None:
        """Record the classes in their order; a run that continues must find the same ones."""
        path = self.path / CLASSES
        if not path.exists():
            write_text(path, json.dumps(list(names), indent=0, ensure_ascii=False) + "\n")
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        if before != list(names):
            changed = set(before) ^ set(names)
            what = f"{some_names(changed)} on one side only" if changed else "in another order"
            raise RunError(
                f"{self.path}: this run was started with {len(before):,} classes, the data has "
                f"{len(names):,} now ({what}); choose another run folder, or start again there "
                "with `restart`"
            )

    def metrics(self) -> dict[str, Any]:
        path = self.path / METRICS
        try:
            loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FormatError(f"{path}: not readable ({error})") from error
        return loaded

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        write_text(self.path / METRICS, json.dumps(metrics, indent=2) + "\n")

    def log(self, line: Mapping[str, float]) -> None:
        """One line an epoch; a resumed run replaces the lines of the epochs that it repeats."""
        path = self.path / LOG
        kept = [old for old in self.log_lines() if old["epoch"] < line["epoch"]]
        write_text(path, "".join(json.dumps(entry) + "\n" for entry in [*kept, line]))

    def log_lines(self) -> list[dict[str, Any]]:
        path = self.path / LOG
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def _clear(self) -> None:
        """Remove only what a run has written; other folders are left alone."""
        if not (self.path / CONFIG).exists():
            return
        for name in (CHECKPOINT, LOG, METRICS, ENV, CLASSIFIER, CLASSES, CONFIG):
            (self.path / name).unlink(missing_ok=True)
        for name in (ENCODER, TENSORBOARD, BRIDGES, CHECKPOINT_ROWS):
            shutil.rmtree(self.path / name, ignore_errors=True)


@dataclass(frozen=True)
class RunSummary:
    """One run, as `midspan runs` lists it."""

    path: Path
    name: str
    state: str  # "finished", "unfinished" or "unreadable"
    method: str
    epochs: str
    scores: Mapping[str, float]
    changed: str


def list_runs(root: Path) -> list[RunSummary]:
    """All runs in and below a folder, newest first.

    Args:
        root: The folder.

    Returns:
        A summary of each run; one that cannot be read says why in `method`.

    Raises:
        RunError: There is no such folder.

    Example:
        >>> import pathlib, tempfile
        >>> from midspan.training import list_runs
        >>> with tempfile.TemporaryDirectory() as root:
        ...     run = pathlib.Path(root, "bct-64")
        ...     run.mkdir()
        ...     _ = run.joinpath("config.toml").write_text('data.name = "digits"')
        ...     runs = list_runs(pathlib.Path(root))
        >>> [(one.name, one.state, one.method) for one in runs]
        [('bct-64', 'unfinished', 'independent')]
    """
    if not root.is_dir():
        raise RunError(f"{root}: no such folder; runs are created by midspan train")
    paths = [path.parent for path in root.rglob(CONFIG)]
    return sorted((_summary(path) for path in paths), key=lambda run: run.changed, reverse=True)


def _summary(path: Path) -> RunSummary:
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    try:
        config = RunConfig.from_dict(read_toml(path / CONFIG), default_name=path.name, saved=True)
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
    """What the numbers may depend on; nothing that identifies the machine."""
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


def _difference(before: str, now: str) -> str:
    old, new = set(before.splitlines()), set(now.splitlines())
    return "; ".join(f"there {line!r}" for line in sorted(old - new)[:3]) or "; ".join(
        f"here {line!r}" for line in sorted(new - old)[:3]
    )
