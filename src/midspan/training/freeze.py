"""Which parts of an encoder learn, and where they start."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from midspan.encoders import Encoder, load_encoder
from midspan.encoders.backbones.vectors import Vectors
from midspan.encoders.heads import Linear
from midspan.errors import ConfigError
from midspan.spaces import Space

Freeze = bool | Literal["backbone"] | int

RIDGE = 1e-2  # of the mean variance of a feature: own choice, for features of any scale


def freeze(encoder: Encoder, what: Freeze) -> bool:
    """Freeze parts of the backbone; True if all of it is frozen.

    True or "backbone": all of it. n: all but its last n blocks.
    """
    if what is False:
        return False
    if what is True or what == "backbone":
        encoder.backbone.requires_grad_(False)
        return True
    assert isinstance(what, int)
    blocks = encoder.backbone.trainable_blocks()
    if not 1 <= what < len(blocks):
        name = encoder.backbone.config()["name"]
        raise ConfigError(
            f"[encoder] freeze = {what}: expected a number of last blocks that train, 1 to "
            f"{len(blocks) - 1} of the {len(blocks)} blocks of {name!r}; or true for all of it"
            if blocks
            else f"[encoder] freeze = {what}: backbone {name!r} does not say what its blocks are; "
            "use freeze = true for all of it"
        )
    encoder.backbone.requires_grad_(False)
    for block in blocks[-what:]:
        block.requires_grad_(True)
    return False


def train_mode(modules: nn.Module) -> None:
    """Training mode for what learns. Frozen parts keep their batch statistics."""
    modules.train()
    for module in modules.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def head_alone(encoder: Encoder, *, space: Space) -> Encoder:
    """The head as an encoder of features; it shares its weights with the whole encoder."""
    features = encoder.backbone.features
    alone = Encoder(
        name=encoder.name,
        backbone=Vectors(inputs=features, source=space.fingerprint),
        head=encoder.head,
        preprocessing=None,
        dim=encoder.dim,
        normalise=encoder.normalise,
        sub_embeddings=encoder.sub_embeddings,
    )
    alone.confidence = encoder.confidence
    return alone


def warm_start(encoder: Encoder, where: str) -> tuple[str, ...]:
    """Load the weights of another encoder of the same backbone; returns what was not loaded.

    The head is included if it has the same shape; else it stays as it is.
    """
    source = load_encoder(where, device="cpu")
    if not isinstance(source, Encoder):
        raise ConfigError(f"[encoder] init_from = {where!r}: an ONNX file has no weights to train")
    ours, theirs = encoder.backbone.config(), source.backbone.config()
    if ours != theirs:
        raise ConfigError(
            f"[encoder] init_from = {where!r}: its backbone is {theirs}, this one {ours}; set "
            f"[encoder] backbone = {theirs['name']!r} with the same settings, or drop init_from"
        )
    weights, own = source.state_dict(), encoder.state_dict()
    fitting = {
        name: tensor
        for name, tensor in weights.items()
        if name in own and own[name].shape == tensor.shape
    }
    encoder.load_state_dict(fitting, strict=False)
    return tuple(name for name in own if name not in fitting)


def ridge_start(encoder: Encoder, *, features: Tensor, old: Tensor) -> None:
    """The first D_old dims of a linear head start as the ridge map from features to old vectors.

    features: (N, F). old: (N, D_old) unit. Weights keep the size they were drawn with, because
    directions alone count and the optimiser's steps are of a fixed size.
    """
    head = encoder.head
    if not isinstance(head, Linear) or encoder.sub_embeddings > 1:
        raise ConfigError(
            "[encoder] start = 'ridge' sets one linear layer over pooled features; set head = "
            f"'linear' without sub-embeddings (this head is {head.name!r}), or start = 'random'"
        )
    dims = old.shape[1]
    if dims > encoder.dim:
        raise ConfigError(
            f"[encoder] start = 'ridge': {dims} old dims do not fit into dim = {encoder.dim}"
        )
    x, y = features.double(), old.double()
    mean_x, mean_y = x.mean(0), y.mean(0)
    x = x - mean_x
    gram = x.T @ x  # (F, F)
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, x.T @ (y - mean_y)).T  # (D_old, F)
    bias = mean_y - weight @ mean_x
    with torch.no_grad():
        size = head.project.weight.square().mean().sqrt() / weight.square().mean().sqrt()
        head.project.weight[:dims] = (size * weight).to(head.project.weight.dtype)
        head.project.bias[:dims] = (size * bias).to(head.project.bias.dtype)
