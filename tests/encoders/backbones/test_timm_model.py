"""timm imports torchvision, whose wheel cannot load beside a CPU build of torch: in that case the
two operators that it misses are defined here, so that timm itself can be tried."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midspan.data.decode import Pixels
from midspan.encoders import build_encoder, load_encoder
from midspan.encoders.backbones.timm_model import Timm
from midspan.errors import ConfigError, EncoderError, MissingDependency

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@pytest.fixture(scope="module")
def timm() -> Iterator[types.ModuleType]:
    for library in ("timm", "torchvision"):
        if sys.modules.get(library, library) is None:  # left so by the hf: backbone
            del sys.modules[library]
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    missing: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in ("nms", "qnms"):
            missing.define(f"{name}{NMS}")
    yield importlib.import_module("timm")
    del missing  # as long as it lives, so do the operators


@pytest.mark.slow
def test_timm_convolutional_network_round_trip_keeps_the_vectors(
    timm: types.ModuleType, images: Pixels, tmp_path: Path
) -> None:
    settings = {"pretrained": False}
    encoder = build_encoder(backbone="timm:resnet10t", dim=8, size=64, seed=0, settings=settings)
    p = encoder.preprocessing
    assert (p.height, p.fit, p.mean) == (64, "crop", (0.485, 0.456, 0.406))
    assert encoder.backbone.features == 512
    assert encoder.backbone.channels_last
    expected = encoder.embed(images, progress=False)
    encoder.save(tmp_path / "e")
    again = load_encoder(tmp_path / "e")
    assert again.space == expected.space
    np.testing.assert_array_equal(again.embed(images, progress=False).vectors, expected.vectors)

    model = timm.create_model("resnet10t", num_classes=0).eval()
    state = encoder.backbone.network.state_dict()  # type: ignore[union-attr]
    model.load_state_dict(state)
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval().backbone(x), model(x), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_timm_gem_head_on_grey_images_has_the_dim(timm: types.ModuleType) -> None:
    encoder = build_encoder(
        backbone="timm:resnet10t",
        channels=1,
        head="gem",
        dim=4,
        settings={"pretrained": False, "pooled": False},
    )
    assert encoder.preprocessing.channels == 1
    assert encoder.preprocessing.mean == pytest.approx(((0.485 + 0.456 + 0.406) / 3,))
    assert encoder(torch.rand(2, 1, 64, 64)).shape == (2, 4)
    with pytest.raises(EncoderError, match="gem head pools a feature map"):
        build_encoder(backbone="timm:resnet10t", head="gem", settings={"pretrained": False})


@pytest.mark.slow
def test_timm_local_folder_is_loaded(
    timm: types.ModuleType, tmp_path: Path, images: Pixels
) -> None:
    where = tmp_path / "theirs"
    timm.models.save_for_hf(timm.create_model("resnet10t", num_classes=3), where)
    encoder = load_encoder(f"timm:local-dir:{where}")
    assert encoder.name == "theirs"
    encoder.save(tmp_path / "ours")  # type: ignore[union-attr]
    shutil.rmtree(where)
    assert str(tmp_path) not in (tmp_path / "ours" / "config.json").read_text()
    assert load_encoder(tmp_path / "ours").space == encoder.space


@pytest.mark.slow
def test_timm_unknown_model_or_wrong_output_raises(timm: types.ModuleType) -> None:
    with pytest.raises(EncoderError, match="timm has no model 'resnet5000'"):
        load_encoder("timm:resnet5000")
    with pytest.raises(ConfigError, match="not a map"):
        Timm(model="vit_tiny_patch16_224", pretrained=False, pooled=False)


def test_timm_missing_library_raises_missing_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependency, match=r"midspan\[timm\]"):
        load_encoder("timm:resnet50")


def test_timm_with_an_unloadable_torchvision_raises_encoder_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name == "timm" or name.startswith("timm.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(EncoderError, match=r"does not load .*torchvision that was built for torch"):
        load_encoder("timm:resnet50")
