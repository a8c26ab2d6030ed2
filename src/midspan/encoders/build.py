"""Make a new encoder from the name of a backbone and a few settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from midspan.config import build, look_up
from midspan.data.decode import Channels
from midspan.encoders.backbones import BACKBONES, parse_backbone
from midspan.encoders.backbones.base import Backbone, Size
from midspan.encoders.encoder import Encoder
from midspan.encoders.heads import HEADS, Head
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import ConfigError, EncoderError

DIM = 128  # own default: the dim of our small benchmarks


def build_encoder(
    *,
    backbone: str,
    dim: int | None = None,
    head: str = "linear",
    size: Size | None = None,
    channels: Channels | None = None,
    name: str | None = None,
    seed: int | None = None,
    normalise: bool = True,
    sub_embeddings: int = 1,
    confident: bool = False,
    preprocessing: Preprocessing | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Encoder:
    """A new encoder, on the CPU, in training mode.

    Args:
        backbone: A name in BACKBONES, "hf:<model>" or "timm:<model>".
        dim: Of its vectors; None: 128, or the backbone's features for the head "none".
        head: A name in HEADS, from features to vectors.
        size: Of the input images (side, or (height, width)); None: the backbone's own.
        channels: 1 or 3; None: the backbone's own.
        name: Of its space; None: the backbone's, without the folder it was loaded from.
        seed: Of the weights; without one they come from torch's global generator.
        normalise: Vectors have length 1.
        sub_embeddings: See Encoder.
        confident: See Encoder.
        preprocessing: All of the input by hand, in place of `size`.
        settings: The backbone's own.

    Returns:
        The encoder.

    Raises:
        ConfigError: A name or setting does not exist, or the parts do not fit together.

    Example:
        >>> from midspan.encoders import build_encoder
        >>> encoder = build_encoder(backbone="small-cnn", dim=16, size=32, name="mine", seed=0)
        >>> encoder.dim, encoder.preprocessing.height, encoder.training
        (16, 32, True)
    """
    section = {**parse_backbone(backbone), **(settings or {})}
    if channels is not None:
        section["channels"] = channels
    with _seeded(seed):
        network: Backbone = build(BACKBONES, section, what="backbone")
        own = network.preprocessing(size=size)
        if preprocessing is not None:
            _check_preprocessing(preprocessing, own=own, size=size, backbone=backbone)
            own = preprocessing
        if dim is None:
            dim = network.features if head == "none" else DIM
        top: Head = look_up(HEADS, head, what="head")(features=network.features, dim=dim)
    try:
        encoder = Encoder(
            name=name or _plain_name(backbone),
            backbone=network,
            head=top,
            preprocessing=own,
            dim=dim,
            normalise=normalise,
            sub_embeddings=sub_embeddings,
            confident=confident,
        )
    except EncoderError as error:
        raise ConfigError(str(error)) from error
    check_forward(encoder)
    return encoder


def check_forward(encoder: Encoder) -> None:
    """One blank image through it, so that parts that do not fit together raise now."""
    if not encoder.takes_images:
        return
    preprocessing = encoder.preprocessing
    blank = torch.zeros(
        1, preprocessing.channels, preprocessing.height, preprocessing.width, device=encoder.device
    )
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            encoder(blank)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"backbone {encoder.backbone.config()['name']!r} does not take images of "
            f"{preprocessing.height} x {preprocessing.width} x {preprocessing.channels} ({error})"
        ) from error
    finally:
        encoder.train(was_training)


def _check_preprocessing(
    given: Preprocessing, *, own: Preprocessing | None, size: Size | None, backbone: str
) -> None:
    if own is None:
        raise ConfigError(f"backbone {backbone!r} takes vectors, not images: no preprocessing")
    if size is not None:
        raise ConfigError("give a size or a preprocessing, not both")
    if given.channels != own.channels:
        raise ConfigError(
            f"the preprocessing makes {given.channels} channels, backbone {backbone!r} takes "
            f"{own.channels}"
        )


def _plain_name(backbone: str) -> str:
    """Names travel with vectors; the paths of this machine should not."""
    where = Path(str(parse_backbone(backbone).get("model", "")).rpartition(":")[2])
    return where.name if where.name and where.is_dir() else backbone


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):  # new modules are made on the CPU
        torch.manual_seed(seed)
        yield
