"""`train`: a run file in, a run folder out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from midspan.bridges import Bridge
from midspan.config import build
from midspan.data import ImageSet
from midspan.data.cache import CACHE_LIMIT
from midspan.data.sources import ArraySource
from midspan.encoders import Encoder, build_encoder, load_encoder
from midspan.errors import ConfigError, MissingDependency
from midspan.losses import LOSSES, RecognitionLoss
from midspan.losses.partial_fc import PartialFC
from midspan.methods import METHODS, Method, OldArtifacts
from midspan.spaces import Embeddings
from midspan.training.distributed import Processes, check_shared, processes
from midspan.training.folders import TENSORBOARD, RunFolder
from midspan.training.inputs import Inputs, Items, loader, read_inputs
from midspan.training.loop import Task, fit
from midspan.training.maps import load_maps, save_maps
from midspan.training.old import OldModel, artifacts, save_classifier
from midspan.training.row_files import drop_rows, whole_classifier
from midspan.training.scores import check_old_labels, scores
from midspan.training.settings import RunConfig
from midspan.training.variations import Variations, make_variations

VECTORS = "vectors"  # the one backbone, and the one kind of data, without images


@dataclass(frozen=True)
class RunResult:
    """A finished run. `scores` are fractions, by the first metric of [evaluate].

    self; with an old encoder also old_self, cross (vectors compared as they are), cross_backward
    and cross_forward (through the maps that the method learnt), and cross_best of those there are.
    """

    path: Path
    encoder: Encoder
    metrics: Mapping[str, Any]

    @property
    def scores(self) -> Mapping[str, float]:
        scores: Mapping[str, float] = self.metrics["scores"]
        return scores

    @property
    def bridges(self) -> Mapping[str, Bridge]:
        """Maps that the method learnt, by direction: backward (new → old) and forward."""
        return load_maps(self.path)


def train(
    config: RunConfig | str | Path,
    *,
    out: str | Path,
    restart: bool = False,
    device: str | None = None,
    progress: bool = True,
) -> RunResult:
    """Train one encoder. A finished run is not repeated, a stopped one goes on where it was."""
    if not isinstance(config, RunConfig):
        config = RunConfig.load(config)
    with processes(device) as (team, where):
        return _train(
            config,
            Path(out),
            restart=restart,
            team=team,
            device=where,
            show=progress and team.first,
        )


def _train(
    config: RunConfig,
    out: Path,
    *,
    restart: bool,
    team: Processes,
    device: torch.device,
    show: bool,
) -> RunResult:
    """The same in every process of the team, except that the first alone writes and judges."""
    finished = team.once(lambda: RunFolder.open(out, config, restart=restart).finished)
    folder = RunFolder(out)
    check_shared(folder.path, team)
    if finished:
        return RunResult(folder.path, _trained(folder), folder.metrics())

    if team.world > 1 and config.data.get("name") == "webdataset":
        team.once_a_machine(lambda: len(read_inputs(config).labels))  # the others find the index
    inputs = read_inputs(config)
    # of the others none needs the old encoder itself: what they know of it is in a shared file
    old = OldModel.load(config.old) if config.old is not None and team.first_here else None
    check_old_labels(config, inputs.test, old)
    torch.manual_seed(config.seed)  # class rows and what a method learns
    encoder = _new_encoder(config, inputs)
    inputs = _decoded(inputs, encoder, team=team, show_progress=show)
    loss, method, known = _prepared(config, inputs, old, team=team, show_progress=show)

    seconds = fit(
        Task(
            encoder=encoder,
            loss=loss,
            method=method,
            load=loader(encoder, inputs.train),
            labels=inputs.labels,
            old_vectors=None if known is None else known.vectors,
            variations=_variations(config, inputs.train, team=team),
        ),
        settings=config.train,
        seed=config.seed,
        device=device,
        team=team,
        checkpoint=folder.checkpoint,
        on_epoch=_epoch_log(folder, tensorboard=config.train.tensorboard) if team.first else None,
        show_progress=show,
    )
    if known is not None and "direct" in method.directions:
        encoder.compatible_with = (known.space.fingerprint,)

    whole = whole_classifier(loss, group=team.patient)

    def finish() -> dict[str, Any]:
        encoder.save(folder.encoder)
        save_classifier(
            folder.path, whole, inputs.class_names, sub_embeddings=encoder.sub_embeddings
        )
        bridges: Mapping[str, Bridge] = {}
        if old is not None:
            bridges = save_maps(
                method.maps(),
                run=folder.path,
                new=encoder.space,
                old=old.space,
                images=len(inputs.labels),
            )
        metrics = {
            "name": config.name,
            "method": config.method["name"],
            "train_images": len(inputs.labels),
            "train_classes": len(inputs.class_names),
            "skipped_images": [str(item) for item in getattr(inputs.train, "skipped", ())],
            "train_seconds": round(seconds, 3),
            **scores(config, inputs.test, encoder, old, bridges, show_progress=show),
        }
        folder.write_metrics(metrics)
        folder.checkpoint.unlink(missing_ok=True)  # the encoder is saved: nothing to resume
        drop_rows(folder.checkpoint)
        return metrics

    return RunResult(folder.path, encoder, team.once(finish))


def _trained(folder: RunFolder) -> Encoder:
    encoder = load_encoder(folder.encoder)
    assert isinstance(encoder, Encoder)  # run folders hold nothing else
    return encoder


def _new_encoder(config: RunConfig, inputs: Inputs) -> Encoder:
    wanted = config.encoder
    settings = dict(wanted.settings)
    size, channels = wanted.size, wanted.channels
    if (wanted.backbone == VECTORS) != isinstance(inputs.train, Embeddings):
        raise ConfigError(
            f"[encoder] backbone = {wanted.backbone!r} does not fit [data] name = "
            f"{config.data['name']!r}: the backbone 'vectors' takes the data 'vectors', every "
            "other one takes images"
        )
    if isinstance(inputs.train, Embeddings):
        settings.setdefault("inputs", inputs.train.space.dim)
        settings.setdefault("source", inputs.train.space.fingerprint)
    elif isinstance(inputs.train.source, ArraySource):  # all of one shape: take it as it is
        _, height, width, depth = inputs.train.source.images.shape
        size = size or max(height, width)
        channels = channels or (1 if depth == 1 else 3)
    encoder = build_encoder(
        backbone=wanted.backbone,
        dim=wanted.dim,
        head=wanted.head,
        size=size,
        channels=channels,
        name=config.name,
        seed=config.seed,
        sub_embeddings=config.sub_embeddings,
        confident=wanted.confident,
        settings=settings,
    )
    if encoder.confidence is not None:
        torch.nn.init.constant_(encoder.confidence.bias, math.log(wanted.first_confidence))
    return encoder


def _decoded(inputs: Inputs, encoder: Encoder, *, team: Processes, show_progress: bool) -> Inputs:
    """Decode all images once. Those that cannot be decoded leave, the training ones with labels.

    Streamed ones stay as they are.

    Several processes of a machine share one file of pixels, which is mapped; the test images are
    for the first one, which judges.
    """
    if not isinstance(inputs.train, ImageSet) or not encoder.takes_images:
        return inputs
    if inputs.train.streamed:
        return inputs
    shape = encoder.preprocessing

    def decode(items: ImageSet) -> ImageSet:
        return items.cached(
            height=shape.height,
            width=shape.width,
            channels=shape.channels,
            fit=shape.fit,
            limit=CACHE_LIMIT if team.world == 1 else 0,
            progress=show_progress,
        )

    images = inputs.train
    if team.world > 1:
        team.once_a_machine(lambda: len(decode(images)))  # the others find the file
    train = decode(images)
    labels = inputs.labels
    if len(train) < len(labels):
        labels = labels[np.isin(inputs.train.ids, train.ids)]  # both in the same order
    test = inputs.test
    if isinstance(test, ImageSet):
        test = decode(test) if team.first else None
    return Inputs(train, labels, inputs.class_names, test)


def _prepared(
    config: RunConfig,
    inputs: Inputs,
    old: OldModel | None,
    *,
    team: Processes,
    show_progress: bool,
) -> tuple[RecognitionLoss, Method, OldArtifacts | None]:
    loss: RecognitionLoss = build(LOSSES, config.loss, what="loss")
    _check_confidence(config, loss)
    method: Method = build(METHODS, config.method, what="method")
    if method.uses_old and config.old is None:
        raise ConfigError(
            f"method {config.method['name']!r} needs the old encoder: add [old] with "
            "run = 'RUN FOLDER' or embeddings = 'VECTORS.npz'"
        )
    if config.classifier.sharded:
        loss = _sharded(config, loss, method)
    classes, dim = len(inputs.class_names), config.encoder.dim
    loss.prepare(num_classes=classes, dim=dim)
    known = None
    if method.uses_old and config.old is not None:
        known = artifacts(old, config.old, inputs, team=team, show_progress=show_progress)
    method.prepare(old=known, num_classes=classes, dim=dim)
    rows = method.fixed_rows()
    if rows is not None:
        loss.fix_rows(rows)
    return loss, method, known


def _sharded(config: RunConfig, loss: RecognitionLoss, method: Method) -> PartialFC:
    if method.uses_classifier:
        raise ConfigError(
            f"[classifier] sharded = true does not go with [method] name = "
            f"{config.method['name']!r} as it is set: it wants the logits or the rows of all "
            "classes in every step, and no process has them; take another method or setting "
            "(docs/training.md, Millions of classes)"
        )
    return PartialFC(loss, rate=config.classifier.sample_rate)


def _variations(config: RunConfig, items: Items, *, team: Processes) -> Variations | None:
    if config.variations is None:
        return None
    if isinstance(items, Embeddings):
        raise ConfigError("[variations] change images, but [data] holds vectors; drop the section")
    return make_variations(
        config.variations,
        images=items,
        dim=config.encoder.dim,
        sub_embeddings=config.sub_embeddings,
        seed=config.seed,
        team=team,
    )


def _check_confidence(config: RunConfig, loss: RecognitionLoss) -> None:
    name, confident = config.loss["name"], config.encoder.confident
    if loss.uses_confidence and not confident:
        raise ConfigError(
            f"[loss] name = {name!r} weighs sub-embeddings by their confidence, but the encoder "
            "gives none: add confident = true to [encoder], or take name = 'cosface'"
        )
    if confident and not loss.uses_confidence:
        raise ConfigError(
            f"[encoder] confident = true, but nothing teaches the confidences: [loss] name = "
            f"{name!r} does not use them; take name = 'url', or drop confident"
        )


def _epoch_log(folder: RunFolder, *, tensorboard: bool) -> Callable[[Mapping[str, float]], None]:
    writer = None
    if tensorboard:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependency(
                "tensorboard", extra="train", wanted_for="[train] tensorboard = true"
            ) from error
        writer = SummaryWriter(str(folder.path / TENSORBOARD))
    started = time.perf_counter()

    def on_epoch(line: Mapping[str, float]) -> None:
        nonlocal started
        seconds, started = time.perf_counter() - started, time.perf_counter()
        folder.log({**line, "images_per_second": round(line["images"] / seconds, 1)})
        if writer is not None:
            for name, value in line.items():
                if name not in ("epoch", "images"):
                    writer.add_scalar(name, value, int(line["epoch"]))
            writer.flush()

    return on_epoch
