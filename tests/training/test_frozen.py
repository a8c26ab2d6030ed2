"""A head over a frozen backbone from images: features once, one encoder in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midspan.data import digits
from midspan.encoders import Encoder, build_encoder, load_encoder
from midspan.encoders.onnx import OnnxEncoder
from midspan.encoders.onnx_export import export_onnx
from midspan.errors import ConfigError
from midspan.training import RunConfig, train
from midspan.training.features import cached_features, embed_features
from midspan.training.freeze import freeze, ridge_start, train_mode

BASE: dict[str, Any] = {
    "data": {"name": "digits"},
    "encoder": {"backbone": "small-resnet", "dim": 16, "settings": {"width": 8}},
    "loss": {"name": "cosface", "scale": 16.0, "margin": 0.1},
    "train": {"epochs": 2, "batch_size": 64, "lr": 3e-3},
}
OLD = {**BASE, "allocation": {"kind": "extended-data", "part": "old"}}


def config(base: dict[str, Any], *, encoder: dict[str, Any], **more: Any) -> RunConfig:
    return RunConfig.from_dict({**base, "encoder": {**base["encoder"], **encoder}, **more})


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("MIDSPAN_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "old"
    train(RunConfig.from_dict(OLD), out=out, progress=False)
    return out


@pytest.fixture(scope="module")
def frozen_run(old_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head over the old encoder's backbone."""
    out = tmp_path_factory.mktemp("runs") / "frozen"
    settings = config(BASE, encoder={"freeze": True, "init_from": str(old_run)}, name="frozen")
    train(settings, out=out, progress=False)
    return out


def weights(run: Path) -> dict[str, torch.Tensor]:
    encoder = load_encoder(run)
    assert isinstance(encoder, Encoder)
    return encoder.state_dict()


def test_frozen_encoder_trains_the_head_only(old_run: Path, frozen_run: Path) -> None:
    before, after = weights(old_run), weights(frozen_run)
    for name, tensor in before.items():
        same = torch.equal(tensor, after[name])
        assert same == name.startswith("backbone."), name


def test_frozen_features_are_computed_once_per_backbone(
    old_run: Path,
    frozen_run: Path,
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = sorted((own_cache / "features").iterdir())

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("an image went through the network again")

    monkeypatch.setattr(Encoder, "embed", refuse)
    settings = config(
        BASE,
        encoder={"freeze": "backbone", "init_from": str(old_run)},
        seed=5,
        method={"name": "bct"},
        old={"run": str(frozen_run)},
    )
    result = train(settings, out=tmp_path / "next", progress=False)
    assert sorted((own_cache / "features").iterdir()) == entries
    assert set(result.scores) >= {"self", "cross", "old_self"}


@pytest.mark.slow  # an ONNX export
def test_frozen_run_saves_an_encoder_that_embeds_and_exports(
    frozen_run: Path, tmp_path: Path
) -> None:
    encoder = load_encoder(frozen_run)
    assert isinstance(encoder, Encoder)
    images = digits()[:40]
    embedded = encoder.embed(images, progress=False)
    features = cached_features(encoder, digits(), make=False)
    assert features is not None
    through = embed_features(encoder, images, features)
    np.testing.assert_allclose(embedded.vectors, through.vectors, atol=1e-5)
    assert through.space.same_as(embedded.space)
    assert set(through.columns) == set(embedded.columns)
    path = export_onnx(encoder, tmp_path / "encoder.onnx")
    exported = OnnxEncoder(path).embed(images, progress=False)
    np.testing.assert_allclose(exported.vectors, embedded.vectors, atol=1e-4)


def test_frozen_backbone_keeps_its_batch_statistics() -> None:
    encoder = build_encoder(backbone="small-resnet", dim=8, size=16, channels=1, seed=0)
    assert freeze(encoder, True)
    train_mode(encoder)
    assert not encoder.backbone.training
    assert encoder.head.training
    before = {name: value.clone() for name, value in encoder.backbone.state_dict().items()}
    encoder(torch.randn(4, 1, 16, 16))
    for name, value in encoder.backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_frozen_except_last_blocks_trains_those_only() -> None:
    encoder = build_encoder(backbone="small-resnet", dim=8, size=16, channels=1, seed=0)
    assert not freeze(encoder, 1)
    blocks = encoder.backbone.trainable_blocks()
    assert all(p.requires_grad for p in blocks[-1].parameters())
    assert not any(p.requires_grad for block in blocks[:-1] for p in block.parameters())
    with pytest.raises(ConfigError, match="expected a number of last blocks"):
        freeze(encoder, len(blocks))


def test_warm_start_from_another_backbone_raises_with_the_remedy(
    old_run: Path, tmp_path: Path
) -> None:
    wrong = config(BASE, encoder={"backbone": "small-cnn", "init_from": str(old_run)})
    with pytest.raises(ConfigError, match="set \\[encoder\\] backbone = 'small-resnet'"):
        train(wrong, out=tmp_path / "wrong", progress=False)


def test_ridge_start_equals_the_closed_form_map() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(500, 16, generator=generator)
    old = torch.nn.functional.normalize(features @ torch.randn(16, 4, generator=generator) + 0.3)
    encoder = build_encoder(backbone="vectors", dim=6, seed=0, settings={"inputs": 16}).eval()
    drawn = encoder.head.project.weight.detach().clone()  # type: ignore[union-attr, operator]
    ridge_start(encoder, features=features, old=old)
    new = torch.nn.functional.normalize(encoder(features).detach()[:, :4])
    x = torch.cat([features - features.mean(0), torch.ones(500, 1)], dim=1).double()
    plain = torch.linalg.lstsq(x, old.double()).solution  # ridge is small against the data
    expected = torch.nn.functional.normalize(x @ plain)
    assert (new.double() * expected).sum(1).min() > 0.999
    weight = encoder.head.project.weight.detach()  # type: ignore[union-attr, operator]
    assert torch.equal(weight[4:], drawn[4:])  # dims that the old encoder does not have
    torch.testing.assert_close(weight[:4].square().mean(), drawn.square().mean())


def test_train_rectangular_input_is_trained_and_saved(tmp_path: Path) -> None:
    settings = config(BASE, encoder={"size": [16, 8]})
    result = train(settings, out=tmp_path / "tall", progress=False)
    shape = load_encoder(result.path).preprocessing
    assert (shape.height, shape.width) == (16, 8)


def test_backbone_lr_applies_to_the_backbone_only() -> None:
    from midspan.losses import CosFace
    from midspan.methods import Independent
    from midspan.training.optimisers import make_optimiser
    from midspan.training.settings import TrainSettings
    from midspan.training.step import Step

    encoder = build_encoder(backbone="small-resnet", dim=8, size=16, channels=1, seed=0)
    step = Step(encoder=encoder, loss=CosFace.for_classes(3, dim=8), method=Independent())
    optimiser = make_optimiser(step, TrainSettings(lr=1e-2, backbone_lr=1e-3))
    rates = {
        id(parameter): group["factor"]
        for group in optimiser.param_groups
        for parameter in group["params"]
    }
    assert all(rates[id(p)] == pytest.approx(0.1) for p in encoder.backbone.parameters())
    assert all(rates[id(p)] == 1.0 for p in encoder.head.parameters())
