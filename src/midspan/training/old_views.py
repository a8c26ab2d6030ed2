"""Which old vectors a run learns from: of the views that are shown, or of plain images."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from midspan.data import ImageSet
from midspan.encoders import Encoder
from midspan.errors import ConfigError
from midspan.spaces import IntArray
from midspan.training.augment import chain
from midspan.training.batch_loader import BatchRandom
from midspan.training.features import Features, cached_features
from midspan.training.inputs import Inputs
from midspan.training.old import OldModel, Views
from midspan.training.settings import RunConfig
from midspan.training.views import FeatureView, OldView, ShownView

log = logging.getLogger(__name__)
BATCH = 256  # images of one augmented pass at a time


@dataclass(frozen=True)
class OldViews:
    """`kind` as it is reported; `view` only where shown and cached vectors differ."""

    kind: str  # "shown" or "cached"
    view: OldView | None = None
    note: str = ""


def old_views(
    config: RunConfig,
    old: OldModel | None,
    inputs: Inputs,
    *,
    encoder: Encoder,
    features: Features | None,
    show_progress: bool,
) -> OldViews:
    """By [old] views; by default shown wherever the old encoder can embed images."""
    assert config.old is not None
    requested = config.old.views
    unable = _unable(old)
    if requested == "shown" and unable:
        raise ConfigError(f"[old] views = 'shown': {unable}; set views = 'cached'")
    if requested == "cached" or unable:
        if config.train.mixup:
            raise ConfigError(
                "[train] mixup needs old vectors of the mixtures, but they are cached"
                + (f": {unable}" if unable else "; set [old] views = 'shown'")
            )
        if not config.train.augment and config.variations is None:
            return OldViews("cached")  # no augmentation: plain images are shown
        why = unable or "[old] views = 'cached' asks for it"
        note = f"old vectors are of images without augmentation: {why}"
        log.warning(note)
        return OldViews("cached", note=note)
    if not (config.train.augment or config.train.mixup or config.variations is not None):
        return OldViews("shown")  # there is one view, and its vectors are cached
    assert old is not None
    assert isinstance(old.encoder, Encoder)
    if features is None:
        return OldViews("shown", ShownView(old.encoder, shown=encoder.preprocessing))
    assert isinstance(inputs.train, ImageSet)
    assert isinstance(inputs.whole, ImageSet)
    theirs = cached_features(old.encoder, inputs.whole, show_progress=show_progress)
    assert theirs is not None
    held = torch.from_numpy(theirs.take(inputs.train.ids))  # (N, F_old)
    return OldViews(
        "shown", FeatureView(old.encoder, load=lambda rows: held[torch.from_numpy(rows)])
    )


def class_views(
    config: RunConfig,
    views: OldViews,
    load: Callable[[IntArray], Tensor],
    inputs: Inputs,
    *,
    device: torch.device,
) -> Views | None:
    """What class centres and radii are measured on; None: the images as they are."""
    assert config.old is not None
    passes, augment = config.old.view_passes, config.train.augment
    if not isinstance(views.view, ShownView) or not augment:
        return None
    view, count = views.view, len(inputs.labels)

    def vectors() -> Tensor:
        view.to(device)
        return augmented_passes(
            view,
            load=load,
            count=count,
            augment=augment,
            passes=passes,
            seed=config.seed,
            device=device,
        )

    key = f"{passes} views of {', '.join(augment)} at {view.shown}, seed {config.seed}"
    return Views(key, vectors)


def augmented_passes(
    view: OldView,
    *,
    load: Callable[[IntArray], Tensor],
    count: int,
    augment: tuple[str, ...],
    passes: int,
    seed: int,
    device: torch.device,
) -> Tensor:
    """(passes, N, D_old): old vectors of augmented views, for class centres and radii."""
    generator = torch.Generator().manual_seed(seed)
    augmentations = chain(augment)
    parts = []
    for _ in range(passes):
        for start in range(0, count, BATCH):
            rows = np.arange(start, min(start + BATCH, count))
            images = load(rows).to(device)
            rng = BatchRandom.whole(len(rows), generator)
            for augmentation in augmentations:
                images = augmentation(images, rng)
            parts.append(view(images, rows, None).cpu())
    return torch.cat(parts).view(passes, count, -1)


def _unable(old: OldModel | None) -> str:
    """Why the old encoder cannot be run on what is shown; empty if it can."""
    if old is None or old.encoder is None:
        return "of the old encoder only vectors are left"
    if not isinstance(old.encoder, Encoder):
        return "the old encoder is an ONNX file, which takes no part in a training step"
    if not old.encoder.takes_images:
        return "the old encoder takes vectors, not images"
    return ""
