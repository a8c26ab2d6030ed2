"""From a run file to the parts of a run: encoder, images, loss, method, variations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from midspan.data import ImageSet
from midspan.data.cache import CACHE_LIMIT
from midspan.data.sources import ArraySource
from midspan.encoders import Encoder, build_encoder
from midspan.errors import ConfigError
from midspan.losses import RecognitionLoss
from midspan.methods import Method, OldArtifacts
from midspan.spaces import Embeddings
from midspan.training.checks import built_parts
from midspan.training.distributed import Processes
from midspan.training.features import Features, cached_features
from midspan.training.freeze import ridge_start, warm_start
from midspan.training.inputs import Inputs, Items
from midspan.training.old import OldModel, Views, artifacts
from midspan.training.settings import RunConfig
from midspan.training.variations import Variations, make_variations

VECTORS = "vectors"  # the one backbone, and the one kind of data, without images


def new_encoder(config: RunConfig, inputs: Inputs) -> Encoder:
    chosen = config.encoder
    settings = dict(chosen.settings)
    size, channels = chosen.size, chosen.channels
    if (chosen.backbone == VECTORS) != isinstance(inputs.train, Embeddings):
        raise ConfigError(
            f"[encoder] backbone = {chosen.backbone!r} does not fit [data] name = "
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
        backbone=chosen.backbone,
        dim=chosen.dim,
        head=chosen.head,
        size=size,
        channels=channels,
        name=config.name,
        seed=config.seed,
        sub_embeddings=config.sub_embeddings,
        confident=chosen.confident,
        settings=settings,
    )
    if chosen.init_from is not None:
        warm_start(encoder, chosen.init_from)
    if encoder.confidence is not None:
        torch.nn.init.constant_(encoder.confidence.bias, math.log(chosen.first_confidence))
    return encoder


def decoded(
    inputs: Inputs, encoder: Encoder, *, processes: Processes, show_progress: bool
) -> Inputs:
    """Decode all images once, and drop those that cannot be decoded, with their labels.

    Streamed image sets are returned unchanged.

    Several processes of a machine map one shared file of pixels; only the first one, which
    evaluates, gets the test images.
    """
    if not isinstance(inputs.train, ImageSet) or not encoder.takes_images:
        return inputs
    if inputs.train.streamed:
        return inputs
    shape = encoder.preprocessing

    def decode(items: ImageSet) -> ImageSet:
        return items.cached(
            shape.image_size,
            limit=CACHE_LIMIT if processes.world == 1 else 0,
            progress=show_progress,
        )

    images = inputs.train
    if processes.world > 1:
        processes.once_per_machine(lambda: len(decode(images)))  # the others use its file
    train = decode(images)
    labels = inputs.labels
    if len(train) < len(labels):
        labels = labels[np.isin(inputs.train.ids, train.ids)]  # both in the same order
    test = inputs.test
    if isinstance(test, ImageSet):
        test = decode(test) if processes.is_first else None
    return replace(inputs, train=train, labels=labels, test=test)


def frozen_features(
    config: RunConfig,
    encoder: Encoder,
    inputs: Inputs,
    *,
    frozen: bool,
    processes: Processes,
    show_progress: bool,
) -> Features | None:
    """Cached features of the whole set, if the backbone is frozen and sees the same images."""
    if not frozen or not encoder.takes_images:
        return None
    if config.train.augment or config.variations is not None:
        return None  # every view differs, so the frozen backbone must see it
    whole = inputs.whole
    assert isinstance(whole, ImageSet)
    processes.once_per_machine(
        lambda: cached_features(encoder, whole, show_progress=show_progress) is not None
    )
    return cached_features(encoder, whole)


def readable(inputs: Inputs, features: Features) -> Inputs:
    """Without images that could not be decoded, and so have no features."""
    assert inputs.whole is not None
    return inputs.without({name for name in inputs.whole.ids.tolist() if name not in features})


def start_at_old(
    encoder: Encoder,
    inputs: Inputs,
    features: Features | None,
    known: OldArtifacts | None,
    *,
    show_progress: bool,
) -> None:
    """[encoder] start = "ridge": the head starts at the closed-form map to the old vectors."""
    if known is None:
        raise ConfigError(
            "[encoder] start = 'ridge' starts at the old vectors: it needs [old] and a method that "
            "uses them"
        )
    if isinstance(inputs.train, Embeddings):
        held = torch.from_numpy(inputs.train.vectors)
    else:
        assert isinstance(inputs.whole, ImageSet)
        cached = features or cached_features(encoder, inputs.whole, show_progress=show_progress)
        assert cached is not None
        held = torch.from_numpy(cached.take(inputs.train.ids))
    ridge_start(encoder, features=held, old=known.vectors)


def prepared(
    config: RunConfig,
    inputs: Inputs,
    old: OldModel | None,
    *,
    views: Views | None = None,
    processes: Processes,
    show_progress: bool,
) -> tuple[RecognitionLoss, Method, OldArtifacts | None]:
    loss, method = built_parts(config)
    if config.train.mixup and not method.uses_mixed:
        raise ConfigError(
            f"[train] mixup = {config.train.mixup}, but method {config.method['name']!r} has no "
            "term on mixtures; take method 'trusted-matching', or drop mixup"
        )
    classes, dim = len(inputs.class_names), config.encoder.dim
    loss.prepare(num_classes=classes, dim=dim)
    known = None
    if method.uses_old and config.old is not None:
        known = artifacts(
            old, config.old, inputs, processes=processes, views=views, show_progress=show_progress
        )
        if config.classifier.init == "old-centres":
            loss.start_rows(known.centres, known.counts > 0)
    method.prepare(old=known, num_classes=classes, dim=dim)
    rows = method.fixed_rows()
    if rows is not None:
        loss.fix_rows(rows)
    return loss, method, known


def variations(config: RunConfig, items: Items, *, processes: Processes) -> Variations | None:
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
        processes=processes,
    )
