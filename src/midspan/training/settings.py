"""The settings of a training run, section by section, as in its TOML file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from midspan.config import check_settings, construct, read_toml
from midspan.encoders.confidence_range import CONFIDENCE_RANGE
from midspan.encoders.runtimes import Runtime
from midspan.errors import ConfigError
from midspan.training.run_file import apply_change, to_toml, with_current_names, with_paths

__all__ = [  # `apply_change` and `to_toml` live in run_file.py
    "AllocationSettings",
    "ClassifierSettings",
    "EncoderSettings",
    "EvaluateSettings",
    "OldSettings",
    "RunConfig",
    "TrainSettings",
    "VariationSettings",
    "apply_change",
    "to_toml",
]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """[train]: the schedule of the training loop.

    Defaults fit small encoders on a CPU: AdamW 1e-3 with weight decay 0.05 and a cosine to zero
    after one warm-up epoch. The demo's values: benchmarks/tune_demo.py, on validation classes.
    """

    epochs: int = 10
    sampler: Literal["shuffled", "balanced"] = "shuffled"
    batch_size: int = 256
    classes_per_batch: int = 16
    images_per_class: int = 4
    optimiser: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    backbone_lr: float | None = None  # of the backbone; None: lr, as for all else
    weight_decay: float = 0.05
    momentum: float = 0.9  # sgd only
    warmup_epochs: float = 1.0
    recognition_weight: float = 1.0  # 0: only the method's terms, as in AdvBCT's ablation
    learners: int = 1  # Divide & Conquer: slices of the embedding, each with its own cluster
    recluster_epochs: int = 2  # its released code
    conquer: float = 0.05  # share of the epochs, at the end, for the whole embedding; its code
    warm_up_learners: float = 0.0  # share at the start for the whole, so that clusters mean much
    all_dims_from: float = 0.4  # share from which a cluster's batch teaches all dims; its code
    own_classes: bool = False  # a cluster's batch is compared with the classes in it only
    clip: float = 5.0  # largest gradient norm; 0 = no clipping
    augment: tuple[str, ...] = ()
    mixup: float = 0.0  # share of each batch that becomes mixtures, for methods that use them
    precision: Literal["auto", "fp32"] = "auto"
    checkpoint_seconds: float = 60.0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        positive = self.backbone_lr is None or self.backbone_lr > 0
        limits = {
            "epochs": (self.epochs >= 1, "1 or more"),
            "batch_size": (self.batch_size >= 1, "1 or more"),
            "lr": (self.lr > 0, "more than 0"),
            "backbone_lr": (positive, "more than 0"),
            "mixup": (0 <= self.mixup < 1, "0 or more and less than 1"),
            "weight_decay": (self.weight_decay >= 0, "0 or more"),
            "warmup_epochs": (0 <= self.warmup_epochs <= self.epochs, "0 to epochs"),
            "recognition_weight": (self.recognition_weight >= 0, "0 or more"),
            "learners": (self.learners >= 1, "1 or more"),
            "recluster_epochs": (self.recluster_epochs >= 1, "1 or more"),
            "conquer": (0 <= self.conquer <= 1, "0 to 1"),
            "warm_up_learners": (0 <= self.warm_up_learners < 1, "0 or more and less than 1"),
            "all_dims_from": (0 <= self.all_dims_from <= 1, "0 to 1"),
            "clip": (self.clip >= 0, "0 or more"),
        }
        _check_limits("[train]", self, limits)


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """[encoder]: what is trained."""

    backbone: str = "small-resnet"
    dim: int = 128
    head: str = "linear"
    size: int | tuple[int, int] | None = None  # side of a square, or [height, width]
    channels: Literal[1, 3] | None = None
    sub_embeddings: int | None = None  # slices of length 1 each; None: one for each learner
    confident: bool = False  # a confidence for each sub-embedding, for the loss 'universal'
    first_confidence: float = 64.0  # where they start: the scale of CosFace
    freeze: bool | Literal["backbone"] | int = False  # true: whole backbone; n: all but n blocks
    init_from: str | None = None  # encoder or run folder whose weights are the start
    start: Literal["random", "ridge"] = "random"  # ridge: closed-form map to the old vectors
    runtime: Runtime = "auto"  # of what only embeds: `bench` when it measures
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.sub_embeddings is not None and self.sub_embeddings < 1:
            raise ConfigError(
                f"[encoder] sub_embeddings: expected 1 or more, got {self.sub_embeddings}"
            )
        low, high = (math.exp(value) for value in CONFIDENCE_RANGE)
        if not low < self.first_confidence < high:
            raise ConfigError(
                f"[encoder] first_confidence: expected more than {low:.2g} and less than "
                f"{high:.3g}, got {self.first_confidence}"
            )


@dataclass(frozen=True, kw_only=True)
class ClassifierSettings:
    """[classifier]: where the class weights of the loss are, if they are too many for one place.

    Partial FC (arXiv:2010.05222). Default: a sample rate of 1, which leaves nothing out.
    """

    init: Literal["random", "old-centres"] = "random"  # where class weights start
    sharded: bool = False  # each process holds a part of them
    sample_rate: float = 1.0  # share of the classes that count in a step

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(
                f"[classifier] sample_rate: expected 0 < sample_rate <= 1, got {self.sample_rate}"
            )
        if self.sharded and self.init != "random":
            raise ConfigError(
                f"[classifier] init = {self.init!r} and sharded = true cannot be combined yet; "
                "drop one of them"
            )
        if self.sample_rate < 1 and not self.sharded:
            raise ConfigError(
                f"[classifier] sample_rate = {self.sample_rate} requires sharded = true, also for "
                "one process"
            )


@dataclass(frozen=True, kw_only=True)
class VariationSettings:
    """[variations]: random changes of the images, and what the encoder learns from them.

    Defaults: URL (CVPR 2020), from memory. Both weights 0: augmentation alone.
    """

    names: tuple[str, ...] = ("blur", "occlusion", "perspective")
    probability: float = 0.3  # of each, independently
    variation_weight: float = 2.0  # own half of the sub-embeddings predicts the variation
    confusion_weight: float = 2.0  # and none of the others
    attributes: str | None = None  # file of an attribute network that mines further ones
    threshold: float = 0.5  # of its probabilities

    def __post_init__(self) -> None:
        limits = {
            "probability": (0 <= self.probability <= 1, "0 to 1"),
            "variation_weight": (self.variation_weight >= 0, "0 or more"),
            "confusion_weight": (self.confusion_weight >= 0, "0 or more"),
            "threshold": (0 < self.threshold < 1, "more than 0 and less than 1"),
        }
        _check_limits("[variations]", self, limits)
        if len(set(self.names)) < len(self.names):
            raise ConfigError(f"[variations] names: expected each once, got {list(self.names)}")
        if not self.names and self.attributes is None:
            raise ConfigError(
                "[variations]: expected names or attributes, got neither; or drop the section"
            )


@dataclass(frozen=True, kw_only=True)
class AllocationSettings:
    """[allocation]: which part of the training images this encoder sees."""

    kind: str
    part: Literal["old", "new"]
    old_fraction: float = 0.3  # AdvBCT's benchmark
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class OldSettings:
    """[old]: the encoder to stay comparable with: a run folder, or a file of its vectors."""

    run: str | None = None
    embeddings: str | None = None
    space: str | None = None  # name of the space of `embeddings`, for a file that does not hold it
    views: Literal["shown", "cached"] | None = None  # None: shown, where the old encoder can embed
    view_passes: int = 2  # augmented passes over the images for class centres and radii

    def __post_init__(self) -> None:
        if (self.run is None) == (self.embeddings is None):
            raise ConfigError("[old]: expected either run = '…' or embeddings = '….npz'")
        if self.space is not None and self.embeddings is None:
            raise ConfigError("[old] space is for embeddings; a run has its own space")


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """[evaluate]: the test at the end of the run, on the test classes."""

    metrics: tuple[str, ...] = ("map", "recall@1", "map@r")
    exclude_column: str | None = None  # e.g. "track": such items are not counted as found
    validation: bool = False  # judge by classes cut from the training classes instead
    validation_fraction: float = 0.2


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run file, checked.

    Example:
        >>> from midspan.training import RunConfig
        >>> config = RunConfig.from_dict({"data": {"name": "digits"}, "train": {"epochs": 3}})
        >>> config.train.epochs, config.method["name"]
        (3, 'independent')
        >>> RunConfig.from_dict({"data": {"name": "digits"}, "train": {"epoch": 3}})
        Traceback (most recent call last):
        midspan.errors.ConfigError: [train]: TrainSettings has no setting 'epoch'; did
            you mean 'epochs'?
    """

    name: str
    seed: int
    data: Mapping[str, Any]
    encoder: EncoderSettings
    loss: Mapping[str, Any]
    classifier: ClassifierSettings
    method: Mapping[str, Any]
    train: TrainSettings
    evaluate: EvaluateSettings
    allocation: AllocationSettings | None
    old: OldSettings | None
    variations: VariationSettings | None
    raw: Mapping[str, Any]  # as written, for the run folder

    SECTIONS: ClassVar[Mapping[str, type]] = {
        "encoder": EncoderSettings,
        "classifier": ClassifierSettings,
        "train": TrainSettings,
        "evaluate": EvaluateSettings,
        "allocation": AllocationSettings,
        "old": OldSettings,
        "variations": VariationSettings,
    }

    @classmethod
    def load(
        cls, path: str | Path, *, changes: Sequence[str] = (), default_name: str | None = None
    ) -> RunConfig:
        """Read a run file; `changes` are 'section.key=value' in TOML's own notation.

        Paths in the file are relative to its folder, paths in `changes` to the working folder. A
        file without `name` gets `default_name`, or its own.
        """
        raw = with_paths(read_toml(path), Path(path).resolve().parent)
        for change in changes:
            apply_change(raw, change)
        return cls.from_dict(raw, default_name=default_name or Path(path).stem)

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], *, default_name: str = "run", saved: bool = False
    ) -> RunConfig:
        """Check each section, then the sections against each other.

        saved: from a run folder, in which old names cause no warning.
        """
        config = cls._from_sections(
            with_current_names(raw, warn=not saved), default_name=default_name
        )
        _check_slices(config.encoder.dim, config.sub_embeddings, config.train.learners)
        return config

    @property
    def sub_embeddings(self) -> int:
        """As in [encoder], or one for each learner."""
        said = self.encoder.sub_embeddings
        return self.train.learners if said is None else said

    @classmethod
    def _from_sections(cls, raw: Mapping[str, Any], *, default_name: str) -> RunConfig:
        known = {"name", "seed", *cls.SECTIONS, "data", "loss", "method"}
        for key in raw:
            if key not in known:
                raise ConfigError(
                    f"no section or setting {key!r}; known: {', '.join(sorted(known))}"
                )
        if "data" not in raw:
            raise ConfigError("[data] is missing: add [data] with the name and path of the images")
        sections = {
            section: construct(target, raw[section], where=f"[{section}]")
            for section, target in cls.SECTIONS.items()
            if section in raw
        }
        own = {key: raw[key] for key in ("name", "seed") if key in raw}
        checked = check_settings(_own_settings, own, where="run file")
        return cls(
            name=checked.get("name", default_name),
            seed=checked.get("seed", 0),
            data=raw["data"],
            loss=raw.get("loss", {"name": "cosface", "scale": 24.0, "margin": 0.2}),
            method=raw.get("method", {"name": "independent"}),
            encoder=sections.get("encoder", EncoderSettings()),
            classifier=sections.get("classifier", ClassifierSettings()),
            train=sections.get("train", TrainSettings()),
            evaluate=sections.get("evaluate", EvaluateSettings()),
            allocation=sections.get("allocation"),
            old=sections.get("old"),
            variations=sections.get("variations"),
            raw=raw,
        )


def _check_limits(section: str, settings: object, limits: Mapping[str, tuple[bool, str]]) -> None:
    for name, (holds, expected) in limits.items():
        if not holds:
            value = getattr(settings, name)
            raise ConfigError(f"{section} {name}: expected {expected}, got {value}")


def _check_slices(dim: int, sub_embeddings: int, learners: int) -> None:
    for what, count in (
        ("[train] learners", learners),
        ("[encoder] sub_embeddings", sub_embeddings),
    ):
        if dim % count:
            raise ConfigError(
                f"{what} = {count} does not divide [encoder] dim = {dim}: all slices are of one "
                "size; choose a divisor"
            )
    if sub_embeddings > 1 and sub_embeddings % learners:
        raise ConfigError(
            f"[encoder] sub_embeddings = {sub_embeddings} with [train] learners = {learners}: a "
            "learner would end inside a sub-embedding; give each learner a whole number of them, "
            "or leave sub_embeddings out"
        )


def _own_settings(*, name: str = "", seed: int = 0) -> None:
    """The settings of a run file that are outside of any section."""
