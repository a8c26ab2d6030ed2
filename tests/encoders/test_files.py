from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from midspan.data.decode import Pixels
from midspan.encoders import Encoder, build_encoder, load_encoder
from midspan.encoders.files import read_encoder
from midspan.errors import EncoderError, FormatError, MidspanError


@pytest.fixture
def saved(encoder: Encoder, tmp_path: Path) -> Path:
    return encoder.save(tmp_path / "run" / "encoder")


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    change(weights)
    safetensors.torch.save_file(weights, path)


# ---- the good way --------------------------------------------------------------------------------


def test_saved_encoder_loads_with_the_same_vectors(
    encoder: Encoder, images: Pixels, tmp_path: Path
) -> None:
    encoder.compatible_with = ("0123", "4567")
    encoder.train()
    for _ in range(3):  # move the batch norm statistics too
        encoder(encoder.preprocessing.tensor(images))
    expected = encoder.embed(images, progress=False)
    encoder.save(tmp_path / "e")
    again = read_encoder(tmp_path / "e")
    assert not again.training
    assert again.space == expected.space
    assert again.space.compatible_with == ("0123", "4567")
    assert again.preprocessing == encoder.preprocessing
    assert (again.embed(images, progress=False).vectors == expected.vectors).all()
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
        assert tensor.stride() == again.state_dict()[name].stride()


def test_save_writes_the_files_that_the_hub_expects(saved: Path, encoder: Encoder) -> None:
    assert sorted(path.name for path in saved.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    card = (saved / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: midspan\n")
    assert encoder.fingerprint() in card
    assert "32 x 32 px" in card
    assert [path.name for path in saved.parent.iterdir()] == ["encoder"]


def test_save_model_card_names_input_and_compatible_spaces(tmp_path: Path) -> None:
    encoder = build_encoder(backbone="vectors", normalise=False, settings={"inputs": 4})
    encoder.compatible_with = ("feed",)
    card = (encoder.save(tmp_path / "e") / "README.md").read_text()
    assert "precomputed vectors" in card
    assert "not normalised, compared by l2" in card
    assert "`feed`" in card


def test_load_run_folder_gives_its_encoder(saved: Path, encoder: Encoder) -> None:
    assert load_encoder(saved.parent).space == encoder.space


def test_load_leaves_the_random_generator_unchanged(saved: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    read_encoder(saved)
    assert torch.equal(torch.rand(3), expected)


def test_save_again_replaces_and_keeps_other_files(saved: Path, encoder: Encoder) -> None:
    (saved / "notes.txt").write_text("mine")
    with torch.no_grad():
        next(encoder.parameters()).mul_(2)
    encoder.save(saved)
    assert read_encoder(saved).fingerprint() == encoder.fingerprint()
    assert (saved / "notes.txt").read_text() == "mine"
    assert [path.name for path in saved.parent.iterdir()] == ["encoder"]


def test_save_that_fails_leaves_no_files(
    saved: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_encoder(saved).fingerprint()
    with torch.no_grad():
        next(encoder.parameters()).mul_(2)

    def full(file: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for where in (saved, saved.parent / "new"):
        with pytest.raises(OSError, match="No space left"):
            encoder.save(where)
    assert read_encoder(saved).fingerprint() == before
    assert [path.name for path in saved.parent.iterdir()] == ["encoder"]


# ---- bad folders ---------------------------------------------------------------------------------


def test_save_and_load_nan_weights_raise(saved: Path, encoder: Encoder) -> None:
    edit_weights(saved, lambda w: w["head.project.weight"].__setitem__((2, 3), torch.nan))
    with pytest.raises(EncoderError, match=r"'head.project.weight' holds NaN"):
        read_encoder(saved)
    with torch.no_grad():
        next(encoder.parameters()).fill_(torch.inf)
    with pytest.raises(EncoderError, match=r"encoder 'tiny': tensor .* holds NaN or infinite"):
        encoder.save(saved)


def test_load_weights_of_another_seed_raises_encoder_error(saved: Path, tmp_path: Path) -> None:
    """Same architecture, another seed: nothing but the fingerprint can tell."""
    sister = build_encoder(backbone="small-cnn", dim=16, seed=9, settings={"width": 8})
    other = sister.save(tmp_path / "sister")
    shutil.copy(other / "model.safetensors", saved / "model.safetensors")
    with pytest.raises(EncoderError, match="changed or replaced"):
        read_encoder(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["preprocessing"].update(mean=[0.1, 0.1, 0.1]),
        lambda c: c["preprocessing"].update(height=48),
        lambda c: c.update(normalise=False),
        lambda c: c.update(fingerprint="0" * 32),
    ],
)
def test_load_edited_settings_raises_encoder_error(saved: Path, change: Any) -> None:
    edit_config(saved, change)
    with pytest.raises(EncoderError, match="changed or replaced"):
        read_encoder(saved)


def test_load_edited_name_keeps_the_fingerprint(saved: Path, encoder: Encoder) -> None:
    edit_config(saved, lambda c: c.update(name="renamed"))
    again = read_encoder(saved)
    assert again.name == "renamed"
    assert again.fingerprint() == encoder.fingerprint()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("head.project.bias"), r"1 tensors missing \(head.project.bias\), 0 unk"),
        (lambda w: w.update(extra=torch.zeros(1)), r"0 tensors missing, 1 unknown \(extra\)"),
        (
            lambda w: w.update({"head.project.bias": torch.zeros(3)}),
            r"'head.project.bias': expected torch.float32\(16,\) .*, got torch.float32\(3,\)",
        ),
        (
            lambda w: w.update({"head.project.bias": torch.zeros(16).half()}),
            r"got torch.float16\(16,\)",
        ),
    ],
)
def test_load_mismatched_tensors_raises_format_error(
    saved: Path, change: Any, message: str
) -> None:
    edit_weights(saved, change)
    with pytest.raises(FormatError, match=message):
        read_encoder(saved)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_load_truncated_weights_raises_format_error(saved: Path, keep: int) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FormatError, match=r"truncated or not a safetensors file"):
        read_encoder(saved)


def test_load_pickle_named_safetensors_raises(saved: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    with (saved / "model.safetensors").open("wb") as file:
        pickle.dump(Bomb(), file)
    with pytest.raises(FormatError, match="looks like a pickle"):
        read_encoder(saved)
    torch.save({"x": Bomb()}, saved / "model.safetensors")
    with pytest.raises(FormatError, match="looks like a pickle"):
        read_encoder(saved)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("dim"), "missing or unknown keys: dim"),
        (lambda c: c.update(colour="red"), "missing or unknown keys: colour"),
        (lambda c: c.update(version=2), "version 2 of the format.*upgrade midspan"),
        (lambda c: c.update(dim="wide"), "'dim' may not be 'wide'"),
        (lambda c: c.update(dim=True), "'dim' may not be True"),
        (lambda c: c.update(dim=0), "dim 0"),
        (lambda c: c.update(compatible_with=[3]), "list of fingerprints"),
        (lambda c: c.update(head={"name": "linear", "p": 3}), "makes no encoder"),
        (lambda c: c.update(head={"name": "conv"}), "no head is called 'conv'"),
        (lambda c: c["backbone"].update(name="huge-cnn"), "no backbone is called 'huge-cnn'"),
        (lambda c: c["backbone"].update(depth=3), "no setting 'depth'"),
        (lambda c: c["backbone"].update(width=-1), "config.json: .*negative"),
        (lambda c: c["preprocessing"].update(fit="stretch"), "fit"),
        (lambda c: c.update(preprocessing=None), "do not fit together"),
        (lambda c: c.update(dim=8), "expected torch.float32"),
    ],
)
def test_load_broken_settings_raise_format_error(saved: Path, change: Any, message: str) -> None:
    edit_config(saved, change)
    with pytest.raises(FormatError, match=message):
        read_encoder(saved)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\ufeff{}", "[" * 100_000])
def test_load_corrupt_json_raises_format_error(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text)
    with pytest.raises(FormatError, match=r"config\.json"):
        read_encoder(saved)


def test_load_binary_config_raises_format_error(saved: Path) -> None:
    (saved / "config.json").write_bytes(np.random.default_rng(0).bytes(300))
    with pytest.raises(FormatError, match="not readable JSON"):
        read_encoder(saved)


def test_load_foreign_folder_raises_format_error(tmp_path: Path, saved: Path) -> None:
    cases = {
        '{"model_type": "vit"}': rf"load it as 'hf:{tmp_path}'",
        '{"pretrained_cfg": {}}': rf"load it as 'timm:local-dir:{tmp_path}'",
        '{"hello": 1}': "not written by midspan",
    }
    for text, message in cases.items():
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(FormatError, match=message):
            read_encoder(tmp_path)


def test_load_incomplete_or_missing_folder_raises(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FormatError, match=r"config.json and model.safetensors missing \(it holds no"
    ):
        read_encoder(tmp_path / "empty")
    (saved / "model.safetensors").unlink()
    with pytest.raises(
        FormatError, match=r"model.safetensors missing \(it holds README.md, config"
    ):
        read_encoder(saved)
    with pytest.raises(EncoderError, match="no such folder"):
        read_encoder(tmp_path / "nowhere")
    with pytest.raises(EncoderError, match="is a file; give the folder"):
        read_encoder(saved / "config.json")


def test_load_any_flipped_byte_raises(saved: Path) -> None:
    """Anywhere in the weights: as an error of ours, never as other vectors."""
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 40):
        broken = bytearray(whole)
        broken[place] ^= 0x41
        path.write_bytes(broken)
        with pytest.raises(MidspanError):
            read_encoder(saved)
