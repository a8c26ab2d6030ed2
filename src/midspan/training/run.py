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
from midspan.data.sources import ArraySource
from midspan.encoders import Encoder, build_encoder, load_encoder
from midspan.errors import ConfigError, DataError, MissingDependency
from midspan.evaluation import evaluate
from midspan.losses import LOSSES, RecognitionLoss
from midspan.methods import METHODS, Method
from midspan.spaces import Embeddings
from midspan.training.folders import TENSORBOARD, RunFolder
from midspan.training.inputs import Inputs, Items, loader, read_inputs
from midspan.training.loop import Task, fit
from midspan.training.maps import load_maps, save_maps
from midspan.training.old import OldModel, artifacts, save_classifier
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
    folder = RunFolder.open(Path(out), config, restart=restart)
    if folder.finished:
        return RunResult(folder.path, _trained(folder), folder.metrics())
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))

    inputs = read_inputs(config)
    old = OldModel.load(config.old) if config.old is not None else None
    torch.manual_seed(config.seed)  # class rows and what a method learns
    encoder = _new_encoder(config, inputs)
    inputs = _decoded(inputs, encoder, show_progress=progress)
    loss, method, old_vectors = _prepared(config, inputs, old, show_progress=progress)

    seconds = fit(
        Task(
            encoder=encoder,
            loss=loss,
            method=method,
            load=loader(encoder, inputs.train),
            labels=inputs.labels,
            old_vectors=old_vectors,
            variations=_variations(config, inputs.train),
        ),
        settings=config.train,
        seed=config.seed,
        device=where,
        checkpoint=folder.checkpoint,
        on_epoch=_epoch_log(folder, tensorboard=config.train.tensorboard),
        show_progress=progress,
    )
    if old is not None and "direct" in method.directions:
        encoder.compatible_with = (old.space.fingerprint,)
    encoder.save(folder.encoder)
    save_classifier(folder.path, loss, inputs.class_names, sub_embeddings=encoder.sub_embeddings)
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
        **_scores(config, inputs.test, encoder, old, bridges, show_progress=progress),
    }
    folder.write_metrics(metrics)
    folder.checkpoint.unlink(missing_ok=True)  # the encoder is saved: nothing to resume
    return RunResult(folder.path, encoder, metrics)


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


def _decoded(inputs: Inputs, encoder: Encoder, *, show_progress: bool) -> Inputs:
    """Decode all images once. Those that cannot be decoded leave, the training ones with labels."""
    if not isinstance(inputs.train, ImageSet) or not encoder.takes_images:
        return inputs
    shape = encoder.preprocessing

    def decode(items: ImageSet) -> ImageSet:
        return items.cached(
            height=shape.height,
            width=shape.width,
            channels=shape.channels,
            fit=shape.fit,
            progress=show_progress,
        )

    train = decode(inputs.train)
    labels = inputs.labels
    if len(train) < len(labels):
        labels = labels[np.isin(inputs.train.ids, train.ids)]  # both in the same order
    test = decode(inputs.test) if isinstance(inputs.test, ImageSet) else inputs.test
    return Inputs(train, labels, inputs.class_names, test)


def _prepared(
    config: RunConfig, inputs: Inputs, old: OldModel | None, *, show_progress: bool
) -> tuple[RecognitionLoss, Method, torch.Tensor | None]:
    loss: RecognitionLoss = build(LOSSES, config.loss, what="loss")
    _check_confidence(config, loss)
    method: Method = build(METHODS, config.method, what="method")
    if method.uses_old and old is None:
        raise ConfigError(
            f"method {config.method['name']!r} needs the old encoder: add [old] with "
            "run = 'RUN FOLDER' or embeddings = 'VECTORS.npz'"
        )
    classes, dim = len(inputs.class_names), config.encoder.dim
    loss.prepare(num_classes=classes, dim=dim)
    known = None
    if method.uses_old and old is not None:
        known = artifacts(old, inputs, show_progress=show_progress)
    method.prepare(old=known, num_classes=classes, dim=dim)
    rows = method.fixed_rows()
    if rows is not None:
        loss.fix_rows(rows)
    return loss, method, None if known is None else known.vectors


def _variations(config: RunConfig, items: Items) -> Variations | None:
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


def _scores(
    config: RunConfig,
    test: Items | None,
    encoder: Encoder,
    old: OldModel | None,
    bridges: Mapping[str, Bridge],
    *,
    show_progress: bool,
) -> dict[str, Any]:
    """Self of the new encoder, cross and self of the old one, on classes none of them has seen."""
    if test is None:
        return {"scores": {}, "note": "no test split: nothing was evaluated"}
    wanted = config.evaluate
    if not wanted.metrics:
        return {"scores": {}, "note": "[evaluate] metrics = []: nothing was evaluated"}
    new = encoder.embed(test, progress=show_progress)

    def score(query: Embeddings, gallery: Embeddings | None) -> dict[str, float]:
        result = evaluate(
            query,
            gallery,
            metrics=wanted.metrics,
            exclude_column=wanted.exclude_column,
            direct=True,  # measuring an incompatible pair is the point of the cross test
        )
        return {metric: result.mean(metric) for metric in wanted.metrics}

    detail = {"self": score(new, None)}
    note = None
    if old is not None:
        try:
            stored = old.embed(test, show_progress=show_progress)
        except DataError as error:
            note = f"no cross test: {error}"
        else:
            detail["old_self"] = score(stored, None)
            if bridges:  # such an encoder is not meant to be compared as it is
                detail["cross_backward"] = score(bridges["backward"].transform(new), stored)
                detail["cross_forward"] = score(new, bridges["forward"].transform(stored))
            elif stored.space.dim == new.space.dim:
                detail["cross"] = score(new, stored)
            else:
                note = f"no direct cross test: old dim {stored.space.dim}, new {new.space.dim}"
    first = wanted.metrics[0]
    scores = {name: values[first] for name, values in detail.items()}
    cross = {name: value for name, value in scores.items() if name.startswith("cross")}
    best = max(cross, key=lambda name: cross[name]) if cross else None
    return {
        "test_items": len(new),
        "metric": first,
        "scores": {**scores, "cross_best": scores[best]} if best else scores,
        "detail": detail,
        **({"best_cross": best} if best else {}),
        **({"note": note} if note else {}),
    }


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
