"""From the settings of a benchmark to its runs: what is trained, on what, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from midspan.errors import ConfigError
from midspan.training.bench.settings import (
    LARGER,
    UPPER,
    BenchSettings,
    data_name,
    data_section,
    encoder_section,
)
from midspan.training.bench.variants import Variant, ablations, plain
from midspan.training.settings import RunConfig

CHAIN = (0.25, 0.5)  # shares of the first encoders of a chain; the last sees all (LCE's Table 3)
Kind = Literal["old", "new", "chain"]


@dataclass(frozen=True)
class Run:
    """One encoder to train and to measure. `key` is its path below the benchmark's folder."""

    key: str
    kind: Kind
    data: str
    allocation: str
    method: str
    seed: int
    group: str  # "old", "method", "ablation" or "chain"
    settings: Mapping[str, Any]  # a run file without [old]
    old: str | None = None  # key of the run to stay compatible with
    chain: tuple[str, ...] = ()  # keys of all encoders of a chain, on its last run

    @property
    def title(self) -> str:
        return f"{self.data} · {self.allocation} · {self.method} · seed {self.seed}"

    def config(self, out: Path) -> RunConfig:
        raw = dict(self.settings)
        if self.old is not None:
            raw["old"] = {"run": str(run_folder(out / "runs", self.old).resolve())}
        return RunConfig.from_dict(raw)


def run_folder(runs: Path, key: str) -> Path:
    """Earlier releases wrote names of methods with underscores, and their runs stay in use."""
    data, case, method, *rest = key.split("/")
    earlier = runs.joinpath(data, case, method.replace("-", "_"), *rest)
    return earlier if earlier.exists() else runs / key


def make_plan(settings: BenchSettings) -> list[Run]:
    """Every run once, each after the one it needs.

    The old encoder of a case depends on the data set, the seed, and on whether images or classes
    were left out: extended, open and extended-backbone cases share it.
    """
    runs: dict[str, Run] = {}
    for data in settings.data:
        for seed in range(settings.seeds):
            for allocation in settings.allocations:
                for run in _case(settings, data, allocation, seed):
                    runs.setdefault(run.key, run)
        if settings.chain:
            for seed in range(settings.seeds):
                for family in dict.fromkeys(map(_family, settings.allocations)):
                    for run in _chains(settings, data, family, seed):
                        runs.setdefault(run.key, run)
    for run in runs.values():  # mistakes raise before any training
        RunConfig.from_dict(run.settings)
    return list(runs.values())


def _case(settings: BenchSettings, data: str, allocation: str, seed: int) -> Iterator[Run]:
    kind = allocation.replace(LARGER, "extended-")
    name, family = data_name(data), _family(allocation)
    old = f"{name}/old-{family}/seed{seed}"
    yield Run(
        key=old,
        kind="old",
        data=name,
        allocation=allocation,
        method=UPPER,
        seed=seed,
        group="old",
        settings=_settings(settings, data, plain(UPPER), seed)
        | {"allocation": _part(settings, f"extended-{family}", "old")},
    )
    variants = [plain(UPPER)]
    other_dim = settings.new_dim not in (None, settings.dim)
    variants += [
        plain(method, settings.methods_of.get(method), new_dim=other_dim)
        for method in settings.methods
    ]
    if settings.ablation:
        variants += ablations(settings.methods_of.get("advbct", {}))
    backbone = _new_backbone(settings) if allocation.startswith(LARGER) else settings.backbone
    encoder = encoder_section(backbone, dim=settings.new_dim or settings.dim)
    for variant in variants:
        # Another seed than the old one: encoders with the same initial weights are not independent.
        own = _settings(settings, data, variant, seed + 1, encoder=encoder)
        yield Run(
            key=f"{name}/{allocation}/{variant.folder}/seed{seed}",
            kind="new",
            data=name,
            allocation=allocation,
            method=variant.name,
            seed=seed,
            group="ablation" if variant.ablation else "method",
            settings=own | {"allocation": _part(settings, kind, "new")},
            old=old,
        )


def _chains(settings: BenchSettings, data: str, family: str, seed: int) -> Iterator[Run]:
    """φ1 → φ2 → φ3 on growing shares; each is compatible with the one before, φ1 with none."""
    name, allocation = data_name(data), f"extended-{family}"
    place = f"{name}/chain-{family}"
    for method in settings.chain:
        before: tuple[str, ...] = ()
        for number in range(len(CHAIN) + 1):
            variant = plain(method, settings.methods_of.get(method)) if number else plain(UPPER)
            key = f"{place}/{variant.folder}/seed{seed}/phi{number + 1}"
            part = (
                _part(settings, allocation, "old", share=CHAIN[number])
                if number < len(CHAIN)
                else _part(settings, allocation, "new")
            )
            last = number == len(CHAIN)
            yield Run(
                key=key,
                kind="chain",
                data=name,
                allocation=allocation,
                method=variant.name,
                seed=seed,
                group="chain",
                settings=_settings(settings, data, variant, seed + number) | {"allocation": part},
                old=before[-1] if before else None,
                chain=(*before, key) if last else (),
            )
            before = (*before, key)


def _settings(
    settings: BenchSettings,
    data: str,
    variant: Variant,
    seed: int,
    *,
    encoder: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    base = settings.base
    own = encoder or encoder_section(settings.backbone, dim=settings.dim)
    evaluate = {"metrics": [], "validation": settings.validation}  # the benchmark measures itself
    return {
        "name": f"{data_name(data)}-{variant.folder}",
        "seed": seed,
        "data": data_section(data),
        "encoder": {**base.get("encoder", {}), **own},
        "loss": dict(base["loss"]),
        "method": dict(variant.method),
        "train": {**base["train"], "epochs": settings.epochs, **variant.train},
        "evaluate": {**base.get("evaluate", {}), **evaluate},
    }


def _part(
    settings: BenchSettings, kind: str, part: str, *, share: float | None = None
) -> dict[str, Any]:
    section = {**settings.base.get("allocation", {}), "kind": kind, "part": part}
    return section if share is None else {**section, "old_fraction": share}


def _family(allocation: str) -> str:
    return allocation.rpartition("-")[2]  # data or class


def _new_backbone(settings: BenchSettings) -> str:
    if settings.new_backbone is not None:
        return settings.new_backbone
    if settings.backbone in ("small-resnet", "small-cnn"):
        width = {"small-resnet": 24, "small-cnn": 48}[settings.backbone]
        return f"{settings.backbone},width={width}"  # half as wide again
    raise ConfigError(
        f"the {LARGER}… cases require another backbone for the new encoder than "
        f"{settings.backbone!r}: give `new_backbone`, e.g. small-resnet,width=24"
    )
