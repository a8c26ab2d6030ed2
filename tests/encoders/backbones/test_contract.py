"""What every backbone must do, whatever it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midspan.config import build
from midspan.encoders import BACKBONES, Encoder, build_encoder, load_encoder
from midspan.encoders.backbones import parse_backbone

VIT = {
    "model_type": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
}
MOBILENET = {"model_type": "mobilenet_v2", "depth_multiplier": 0.25, "image_size": 32}

MADE: dict[str, dict[str, Any]] = {
    "cnn": {"backbone": "small-cnn", "settings": {"width": 4}},
    "cnn-grey": {"backbone": "small-cnn", "channels": 1, "settings": {"width": 4}},
    "resnet": {"backbone": "small-resnet", "size": 28, "settings": {"width": 4, "blocks": 2}},
    "vectors": {"backbone": "vectors", "settings": {"inputs": 12}},
    "vectors-mlp": {"backbone": "vectors", "settings": {"inputs": 12, "hidden": 6}},
    "hf-vit": {"backbone": "hf", "settings": {"config": VIT}},
    "hf-vit-mean": {"backbone": "hf", "settings": {"config": VIT, "output": "mean"}},
    "hf-resnet": {"backbone": "hf", "size": 32, "settings": {"config": RESNET}},
    "hf-resnet-map": {
        "backbone": "hf",
        "size": 32,
        "head": "gem",
        "settings": {"config": RESNET, "output": "map"},
    },
    "hf-mobilenet": {"backbone": "hf", "settings": {"config": MOBILENET}},
    "lite0": {"backbone": "efficientnet-lite0", "size": 64, "settings": {"pretrained": False}},
}


def make(name: str, *, seed: int = 0) -> Encoder:
    return build_encoder(**{"dim": 8, "seed": seed, **MADE[name]})


def some_input(encoder: Encoder, *, count: int = 4) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(0)
    if encoder.takes_images:
        p = encoder.preprocessing
        return generator.integers(0, 256, (count, p.height, p.width, p.channels), dtype=np.uint8)
    return generator.standard_normal((count, 12)).astype(np.float32)


@pytest.mark.parametrize("name", MADE)
def test_backbone_features_have_the_stated_width(name: str) -> None:
    encoder = make(name).eval()
    x = encoder.tensor(some_input(encoder), device=torch.device("cpu"))
    with torch.no_grad():
        features = encoder.backbone(x)
    assert features.shape[:2] == (4, encoder.backbone.features)
    assert features.ndim in (2, 4)


@pytest.mark.parametrize("name", MADE)
def test_backbone_config_round_trip_rebuilds_the_shapes(name: str) -> None:
    backbone = make(name).backbone
    config = backbone.config()
    again = build(BACKBONES, json.loads(json.dumps(config)), what="backbone")
    assert again.config() == config
    expected = {key: value.shape for key, value in backbone.state_dict().items()}
    assert {key: value.shape for key, value in again.state_dict().items()} == expected


@pytest.mark.parametrize("name", MADE)
def test_backbone_save_and_load_gives_identical_vectors(name: str, tmp_path: Path) -> None:
    encoder = make(name)
    items = some_input(encoder)
    expected = encoder.embed(items, progress=False)
    encoder.save(tmp_path / "e")
    again = load_encoder(tmp_path / "e", device="cpu")
    assert again.space == expected.space
    assert (again.embed(items, progress=False).vectors == expected.vectors).all()


@pytest.mark.parametrize("name", MADE)
def test_backbone_batches_give_the_vectors_of_single_images(name: str) -> None:
    encoder = make(name)
    items = some_input(encoder)
    together = encoder.embed(items, progress=False).vectors
    alone = encoder.embed(items, batch_size=1, progress=False).vectors
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("name", MADE)
def test_backbone_training_step_reduces_the_loss(name: str) -> None:
    """A gradient reaches every parameter that the output depends on, and moves the vectors."""
    encoder = make(name).train()
    x = encoder.tensor(some_input(encoder), device=torch.device("cpu"))
    loss = encoder(x).square().sum()
    loss.backward()
    reached = [p.grad is not None and bool(p.grad.abs().sum() > 0) for p in encoder.parameters()]
    assert sum(reached) >= 0.5 * len(reached)
    assert next(p for p in encoder.head.parameters() if p.ndim == 2).grad is not None


def test_parse_backbone_name_with_a_model_is_split() -> None:
    assert parse_backbone("timm:resnet50") == {"name": "timm", "model": "resnet50"}
    assert parse_backbone("hf:org/model") == {"name": "hf", "model": "org/model"}
    assert parse_backbone("timm:local-dir:/x") == {"name": "timm", "model": "local-dir:/x"}
    assert parse_backbone("small-cnn") == {"name": "small-cnn"}
