"""From a run file to the parts of a run: encoder, images, loss, method, variations."""

from __future__ import annotations

import math

import numpy as np
import torch

from midspan.config import build
from midspan.data import ImageSet
from midspan.data.cache import CACHE_LIMIT
from midspan.data.sources import ArraySource
from midspan.encoders import Encoder, build_encoder
from midspan.errors import ConfigError
from midspan.losses import LOSSES, RecognitionLoss
from midspan.losses.partial_fc import PartialFC
from midspan.methods import METHODS, Method, OldArtifacts
from midspan.spaces import Embeddings
from midspan.training.distributed import Processes
from midspan.training.inputs import Inputs, Items
from midspan.training.old import OldModel, artifacts
from midspan.training.settings import RunConfig
from midspan.training.variations import Variations, make_variations

VECTORS = "vectors"  # the one backbone, and the one kind of data, without images


def new_encoder(config: RunConfig, inputs: Inputs) -> Encoder:
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


def decoded(inputs: Inputs, encoder: Encoder, *, team: Processes, show_progress: bool) -> Inputs:
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


def prepared(
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


def variations(config: RunConfig, items: Items, *, team: Processes) -> Variations | None:
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
