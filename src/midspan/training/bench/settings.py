"""What a benchmark compares: data sets, allocations, methods, seeds, one schedule for all."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midspan.config import current_name, look_up, read_toml
from midspan.data import ALLOCATIONS, DATASETS
from midspan.errors import ConfigError
from midspan.evaluation import parse_metric
from midspan.methods import METHODS
from midspan.training.bench.variants import ACROSS_DIMS
from midspan.training.run_file import apply_change
from midspan.training.settings import RunConfig

UPPER = "independent"  # the upper bound of self: always run
LARGER = "extended-backbone-"  # + data or class: the new encoder has another backbone
CASES = {
    **ALLOCATIONS,
    **{f"{LARGER}{kind}": ALLOCATIONS[f"extended-{kind}"] for kind in ("data", "class")},
}

# The demo's, found on validation classes: benchmarks/results/tune_demo.csv.
BASE: dict[str, Any] = {
    "loss": {"name": "cosface", "scale": 24.0, "margin": 0.2},
    "train": {"batch_size": 256, "lr": 2e-3, "augment": ["affine"]},
}


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """The settings of a benchmark.

    data: files, folders, or names of data sets. allocations: names of CASES. methods: names of
    METHODS; "independent" is added. new_backbone: of the new encoders in the extended-backbone
    cases, larger or smaller than the old one. exclude_column: used where a data set has it.
    chain: methods that also train three encoders one after another.
    base: sections of a run file for every run. methods_of: settings of methods, by name.
    Defaults: 30 % for the old encoder and fractions of the backfill as in AdvBCT's benchmark.
    """

    data: tuple[str, ...]
    allocations: tuple[str, ...] = ("extended-class", "extended-data")
    methods: tuple[str, ...] = tuple(name for name in METHODS if name != UPPER)
    backbone: str = "small-resnet"
    new_backbone: str | None = None
    dim: int = 128
    new_dim: int | None = None
    epochs: int = 10
    seeds: int = 3
    metric: str = "map"
    exclude_column: str | None = None
    validation: bool = False
    ablation: bool = False
    chain: tuple[str, ...] = ()
    base: Mapping[str, Any] = field(default_factory=lambda: BASE)
    methods_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse_metric(self.metric)
        if not self.data:
            raise ConfigError("`data` is missing: give the images that the encoders learn from")
        for name in self.allocations:
            look_up(CASES, name, what="allocation")
        for field_name in ("methods", "chain"):
            current = tuple(_method(name) for name in getattr(self, field_name))
            object.__setattr__(self, field_name, current)
        own = {_method(name): values for name, values in self.methods_of.items()}
        object.__setattr__(self, "methods_of", own)
        if self.seeds < 1 or self.epochs < 1:
            raise ConfigError(
                f"expected seeds and epochs of 1 or more, got {self.seeds} and {self.epochs}"
            )
        if self.new_dim not in (None, self.dim):
            unable = [name for name in self.methods if name not in ACROSS_DIMS]
            if unable:
                raise ConfigError(
                    f"`new_dim` {self.new_dim} with old dim {self.dim}: {', '.join(unable)} "
                    f"compare vectors as they are; give `methods` {','.join(ACROSS_DIMS)}"
                )
        names = [data_name(one) for one in self.data]
        if len(set(names)) < len(names):
            raise ConfigError(f"two data sets have one name: {', '.join(names)}; rename a file")

    def to_dict(self) -> dict[str, Any]:
        """For the report: names of data sets instead of paths of a machine."""
        return {
            "data": [data_name(one) for one in self.data],
            "allocations": list(self.allocations),
            "methods": list(self.methods),
            "backbone": self.backbone,
            "new_backbone": self.new_backbone,
            "dim": self.dim,
            "new_dim": self.new_dim,
            "epochs": self.epochs,
            "seeds": self.seeds,
            "metric": self.metric,
            "exclude_column": self.exclude_column,
            "validation": self.validation,
            **{name: dict(section) for name, section in self.base.items()},
            **{f"method {name}": dict(values) for name, values in self.methods_of.items()},
        }


def _method(name: str) -> str:
    look_up(METHODS, name, what="method")
    return current_name(name, what="method", warn=False)


def read_settings(
    path: str | Path | None, changes: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """(sections for every run, settings of methods) from a TOML file and 'section.key=value'.

    The file has sections of a run file (train, loss, encoder, allocation …) and [methods.NAME].
    """
    given = {} if path is None else read_toml(path)
    methods = given.pop("methods", {})
    base = {name: dict(section) for name, section in BASE.items()}
    for change in changes:
        place = change.partition("=")[0].strip().split(".")
        if place[0] == "methods" and len(place) == 3:
            apply_change(methods, change.partition(".")[2])
        else:
            apply_change(given, change)
    allowed = set(RunConfig.SECTIONS) | {"loss"}
    for name, section in given.items():
        if name not in allowed - {"old"} or not isinstance(section, dict):
            raise ConfigError(
                f"a benchmark has no section {name!r} for all its runs; known: "
                f"{', '.join(sorted(allowed - {'old'}))}, methods.NAME"
            )
        base[name] = {**({} if "name" in section else base.get(name, {})), **section}
    return base, methods


def data_name(text: str) -> str:
    return text if text in DATASETS else Path(text).stem


def data_section(text: str) -> dict[str, Any]:
    """[data] of a run file: a file or folder by its kind, or the name of a data set."""
    if text in DATASETS:
        return {"name": text}
    path = Path(text)
    if not path.exists():
        raise ConfigError(
            f"{text}: no such file or folder, and no data set of that name; known names: "
            f"{', '.join(sorted(set(DATASETS) - {'npz', 'folder', 'csv'}))}"
        )
    kind = "folder" if path.is_dir() else path.suffix.lower().removeprefix(".")
    if kind not in ("folder", "csv", "npz"):
        raise ConfigError(f"{text}: images are read from a folder, a .csv list or an .npz file")
    return {"name": kind, "path": str(path.resolve())}


def encoder_section(text: str, *, dim: int) -> dict[str, Any]:
    """[encoder] from "small-resnet" or "small-resnet,width=24,blocks=2"."""
    backbone, *settings = text.split(",")
    section: dict[str, Any] = {"backbone": backbone.strip(), "dim": dim}
    values: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ConfigError(
                f"backbone: expected NAME,key=value, e.g. small-resnet,width=24, got {text!r}"
            )
        try:
            values[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = value.strip()
    if values:
        section["settings"] = values
    return section
