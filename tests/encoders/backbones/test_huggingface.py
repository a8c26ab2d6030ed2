"""Models that are made here from tiny configs: nothing is downloaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midspan.data.decode import Pixels
from midspan.encoders import build_encoder, load_encoder
from midspan.encoders.backbones.huggingface import (
    HuggingFace,
    _import_transformers,
    _preprocessor_config,
)
from midspan.errors import ConfigError, EncoderError, MissingDependency
from tests.encoders.backbones.test_contract import MOBILENET, RESNET, VIT

pytest.importorskip("transformers")
transformers = _import_transformers()


def tiny(config: dict[str, Any], **more: Any) -> Any:
    settings = {key: value for key, value in {**config, **more}.items() if key != "model_type"}
    return transformers.AutoConfig.for_model(config["model_type"], **settings)


def save(model: Any, folder: Path, preprocessor: dict[str, Any] | None = None) -> str:
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return str(folder)


@pytest.fixture
def vit_folder(tmp_path: Path) -> str:
    torch.manual_seed(0)
    preprocessor = {
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.25, 0.3],
        "size": {"height": 32, "width": 32},
        "rescale_factor": 1 / 255,
    }
    model = transformers.AutoModel.from_config(tiny(VIT))
    return save(model, tmp_path / "vit", preprocessor)


def test_hf_folder_loads_with_its_own_preprocessing(vit_folder: str, images: Pixels) -> None:
    encoder = load_encoder(f"hf:{vit_folder}")
    assert encoder.dim == 16
    p = encoder.preprocessing
    assert (p.height, p.width, p.fit) == (32, 32, "squash")
    assert (p.mean, p.std) == ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    result = encoder.embed(images, progress=False)
    model = transformers.AutoModel.from_pretrained(vit_folder).eval()
    with torch.no_grad():
        raw = model(pixel_values=p.tensor(images).contiguous()).pooler_output.numpy()
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(result.vectors, expected, atol=1e-5)


def test_hf_encoder_with_a_head_loads_after_its_folder_is_removed(
    vit_folder: str, images: Pixels, tmp_path: Path
) -> None:
    encoder = build_encoder(backbone=f"hf:{vit_folder}", dim=8, seed=0)
    assert encoder.name == "vit"
    expected = encoder.embed(images, progress=False)
    encoder.save(tmp_path / "mine")
    for path in Path(vit_folder).iterdir():
        path.unlink()
    Path(vit_folder).rmdir()
    text = (tmp_path / "mine" / "config.json").read_text()
    assert str(tmp_path) not in text
    again = load_encoder(tmp_path / "mine")
    assert again.space == expected.space
    assert (again.embed(images, progress=False).vectors == expected.vectors).all()


def test_hf_untrained_pooler_is_not_used(tmp_path: Path, images: Pixels) -> None:
    """A classifier's checkpoint has no pooler: its random weights would differ on each load."""
    model = transformers.ViTForImageClassification(tiny(VIT))
    where = save(model, tmp_path / "classifier")
    first, second = load_encoder(f"hf:{where}"), load_encoder(f"hf:{where}")
    backbone = first.backbone  # type: ignore[union-attr]
    assert backbone.config()["output"] == "cls"
    np.testing.assert_array_equal(
        first.embed(images, progress=False).vectors, second.embed(images, progress=False).vectors
    )
    with pytest.raises(ConfigError, match=r"cannot give output 'pooled'; it can give \['cls'"):
        build_encoder(backbone=f"hf:{where}", settings={"output": "pooled"})


@pytest.mark.parametrize(
    ("config", "output", "features"),
    [
        (VIT, None, 16),
        (VIT, "cls", 16),
        (VIT, "mean", 16),
        (RESNET, None, 16),
        (RESNET, "map", 16),
        (MOBILENET, None, 1280),
    ],
)
def test_hf_output_choices_give_their_features(
    config: dict[str, Any], output: Any, features: int
) -> None:
    backbone = HuggingFace(config=config, output=output).eval()
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        raw = backbone.network(pixel_values=x)
        result = backbone(x)
    last = raw.last_hidden_state
    expected: dict[str | None, Any] = {
        None: lambda: raw.pooler_output.flatten(1),
        "cls": lambda: last[:, 0],
        "mean": lambda: sum(last[:, t] for t in range(last.shape[1])) / last.shape[1],
        "map": lambda: last,
    }
    torch.testing.assert_close(result, expected[output]())
    assert backbone.features == features
    assert backbone.channels_last == (config is not VIT)


def test_hf_unavailable_output_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot give output 'map'; it can give \['pooled'"):
        HuggingFace(config=VIT, output="map")
    with pytest.raises(
        ConfigError, match=r"cannot give output 'cls'; it can give \['pooled', 'map"
    ):
        HuggingFace(config=RESNET, output="cls")


def test_hf_image_text_model_uses_the_image_half(tmp_path: Path, images: Pixels) -> None:
    part = {key: value for key, value in VIT.items() if key not in ("model_type",)}
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    ends = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = transformers.CLIPConfig(vision_config=part, text_config={**text, **ends})
    where = save(transformers.CLIPModel(config), tmp_path / "clip")
    encoder = load_encoder(f"hf:{where}")
    assert encoder.embed(images, progress=False).vectors.shape == (30, 16)
    names = [name for name, _ in encoder.named_parameters()]  # type: ignore[union-attr]
    assert not any("text" in name for name in names)


@pytest.mark.parametrize(
    ("preprocessor", "size", "fit"),
    [
        ({"size": 48}, (48, 48), "squash"),
        (
            {"size": {"shortest_edge": 40}, "crop_size": {"height": 36, "width": 28}},
            (36, 28),
            "crop",
        ),
        ({"size": {"shortest_edge": 40}, "do_center_crop": True}, (40, 40), "crop"),
        ({}, (224, 224), "squash"),
        (None, (224, 224), "squash"),
    ],
)
def test_hf_preprocessor_size_in_any_form_is_read(
    preprocessor: dict[str, Any] | None, size: tuple[int, int], fit: str, tmp_path: Path
) -> None:
    model = transformers.AutoModel.from_config(tiny(RESNET))
    where = save(model, tmp_path / "resnet", preprocessor)
    p = build_encoder(backbone=f"hf:{where}").preprocessing
    assert ((p.height, p.width), p.fit) == (size, fit)


def test_hf_without_normalisation_keeps_zero_to_one(tmp_path: Path) -> None:
    model = transformers.AutoModel.from_config(tiny(RESNET))
    where = save(model, tmp_path / "resnet", {"size": 32, "do_normalize": False})
    p = build_encoder(backbone=f"hf:{where}").preprocessing
    assert (p.mean, p.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is broken"), ("[]", "is broken"), ('{"rescale_factor": 0.5}', "scales pixels by 0.5")],
)
def test_hf_broken_preprocessor_file_raises_encoder_error(
    text: str, message: str, vit_folder: str
) -> None:
    (Path(vit_folder) / "preprocessor_config.json").write_text(text)
    with pytest.raises(EncoderError, match=message):
        load_encoder(f"hf:{vit_folder}")


def test_hf_checkpoint_missing_weights_raises(vit_folder: str) -> None:
    path = Path(vit_folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 2}))
    with pytest.raises(EncoderError, match=r"no weights for .*they would be random"):
        load_encoder(f"hf:{vit_folder}")


def test_hf_preprocessing_is_read_from_the_hub(
    vit_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    there = Path(vit_folder) / "preprocessor_config.json"
    answers: list[Exception | str] = [
        str(there),
        EntryNotFoundError("no such file"),
        LocalEntryNotFoundError("no network"),
    ]
    asked = []

    def download(repo: str, name: str, *, revision: str | None) -> str:
        asked.append((repo, name, revision))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert _preprocessor_config("org/model", revision="v1")["image_mean"] == [0.5, 0.4, 0.3]
    assert _preprocessor_config("org/model", revision=None) == {}
    with pytest.raises(EncoderError, match="the hub does not answer"):
        _preprocessor_config("org/model", revision=None)
    assert asked[0] == ("org/model", "preprocessor_config.json", "v1")


def test_hf_unloadable_model_raises(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="cannot be loaded"):
        load_encoder(f"hf:{tmp_path}")
    with pytest.raises(ConfigError, match="no model of type 'vlt'"):
        HuggingFace(config={"model_type": "vlt"})
    with pytest.raises(ConfigError, match="no model of type None"):
        HuggingFace(config={})
    with pytest.raises(ConfigError, match="expected either a model name or a config"):
        HuggingFace(config=VIT, model="org/model")


def test_hf_text_model_raises(tmp_path: Path) -> None:
    text = {
        "model_type": "bert",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 16,
    }
    with pytest.raises(EncoderError, match="hf:bert does not take images"):
        HuggingFace(config=text)


def test_hf_pickled_weights_are_not_read(tmp_path: Path) -> None:
    model = transformers.AutoModel.from_config(tiny(VIT))
    where = save(model, tmp_path / "vit")
    torch.save(model.state_dict(), tmp_path / "vit" / "pytorch_model.bin")
    (tmp_path / "vit" / "model.safetensors").unlink()
    with pytest.raises(EncoderError, match="cannot be loaded"):
        load_encoder(f"hf:{where}")


def test_hf_unfit_image_size_raises_when_built() -> None:
    with pytest.raises(ConfigError, match="does not take images of 40 x 40 x 3"):
        build_encoder(backbone="hf", size=40, settings={"config": VIT})


def test_hf_without_transformers_raises_missing_dependency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match=r"midspan\[hub\]"):
        HuggingFace(config=VIT)


@pytest.mark.slow
def test_hf_with_an_unloadable_torchvision_still_works(tmp_path: Path) -> None:
    """One that was built for another torch raises RuntimeError when it is imported."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator nms does not exist')")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from midspan.encoders.backbones.huggingface import HuggingFace
print(HuggingFace(config={VIT!r}).features)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "16", done.stderr
