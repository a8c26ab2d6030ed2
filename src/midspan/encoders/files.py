"""Encoder folders: config.json + model.safetensors + README.md. Loading is strict.

A run folder holds one under `encoder/`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from midspan.config import build, look_up
from midspan.encoders.backbones import BACKBONES
from midspan.encoders.backbones.base import Backbone
from midspan.encoders.card import model_card
from midspan.encoders.encoder import Encoder
from midspan.encoders.heads import HEADS
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import ConfigError, EncoderError, FormatError
from midspan.evidence import Evidence

FORMAT = "midspan-encoder"
VERSION = 1
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"

_KEYS: dict[str, type | tuple[type, ...]] = {
    "format": str,
    "version": int,
    "name": str,
    "fingerprint": str,
    "compatible_with": list,
    "evidence": list,
    "compatible_dims": (int, type(None)),
    "backbone": dict,
    "head": dict,
    "dim": int,
    "normalise": bool,
    "preprocessing": (dict, type(None)),
}


def save_encoder(encoder: Encoder, folder: str | Path) -> Path:
    """A new folder appears complete or not at all; in an existing one each file is replaced.

    If the machine dies between two files, loading finds it by the fingerprint in config.json.
    """
    folder = Path(folder)
    weights = {
        name: tensor.detach().cpu().contiguous().clone()  # the file may not hold shared memory
        for name, tensor in encoder.state_dict().items()
    }
    _check_finite(weights, source=f"encoder {encoder.name!r}")
    space = encoder.space
    config = {
        "format": FORMAT,
        "version": VERSION,
        "name": encoder.name,
        "fingerprint": space.fingerprint,
        "compatible_with": list(encoder.compatible_with),
        "evidence": [asdict(one) for one in encoder.evidence],
        **({} if encoder.compatible_dims is None else {"compatible_dims": encoder.compatible_dims}),
        **encoder.architecture(),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        safetensors.torch.save_file(weights, part / WEIGHTS, metadata={"format": "pt"})
        (part / CARD).write_text(model_card(encoder, space), encoding="utf-8")
        (part / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name in (WEIGHTS, CARD, CONFIG):
            _sync(part / name)
        if folder.is_dir():
            for name in (WEIGHTS, CARD, CONFIG):
                (part / name).replace(folder / name)
        else:
            part.chmod(0o755)  # mkdtemp's is for the owner alone
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def read_encoder(where: str | Path) -> Encoder:
    """The encoder of an encoder folder or a run folder, on the CPU, in eval mode."""
    folder = find_folder(where)
    config = _read_config(folder / CONFIG)
    encoder = _construct(config, source=folder / CONFIG)
    weights = _read_weights(folder / WEIGHTS)
    _check_tensors(weights, expected=encoder.state_dict(), source=folder / WEIGHTS)
    _check_finite(weights, source=str(folder / WEIGHTS))
    encoder.load_state_dict(weights)
    encoder.eval()
    if encoder.fingerprint() != config["fingerprint"]:
        raise EncoderError(
            f"{folder}: the weights and settings make the space {encoder.fingerprint()}, but "
            f"{CONFIG} says {config['fingerprint']}: one of the two files was changed or replaced "
            "after saving; take both from one place, or save the encoder again"
        )
    return encoder


def find_folder(where: str | Path) -> Path:
    """The folder itself, or `encoder/` in a run folder."""
    folder = Path(where)
    if not folder.is_dir():
        what = "is a file; give the folder it is in" if folder.exists() else "no such folder"
        raise EncoderError(f"{folder}: {what}")
    if not (folder / CONFIG).is_file() and (folder / "encoder").is_dir():
        folder = folder / "encoder"
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if CONFIG in missing or (missing and not _foreign(folder / CONFIG)):
        inside = sorted(path.name for path in folder.iterdir())[:8]
        raise FormatError(
            f"{folder}: not an encoder folder, {' and '.join(missing)} missing "
            f"(it holds {', '.join(inside) or 'nothing'})"
        )
    return folder


# ---- the parts ----------------------------------------------------------------------------------


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise FormatError(f"{path}: not readable JSON ({error})") from error
    if not isinstance(values, dict):
        raise FormatError(
            f"{path}: expected the settings of an encoder, got a {type(values).__name__}"
        )
    return values


def _foreign(path: Path) -> bool:
    return _read_json(path).get("format") != FORMAT


def _read_config(path: Path) -> dict[str, Any]:
    config = _read_json(path)
    if config.get("format") != FORMAT:
        hint = "it was not written by midspan"
        if "model_type" in config:
            hint = f"it is a transformers model: load it as 'hf:{path.parent}'"
        elif "pretrained_cfg" in config:
            hint = f"it is a timm model: load it as 'timm:local-dir:{path.parent}'"
        raise FormatError(f"{path}: not an encoder of midspan; {hint}")
    if config.get("version") != VERSION:
        raise FormatError(
            f"{path}: written in version {config.get('version')!r} of the format, this midspan "
            f"reads {VERSION}; upgrade midspan"
        )
    config.setdefault("evidence", [])  # folders of earlier versions have none
    config.setdefault("compatible_dims", None)
    if config.keys() != _KEYS.keys():
        wrong = sorted(config.keys() ^ _KEYS.keys())
        raise FormatError(f"{path}: missing or unknown keys: {', '.join(wrong)}")
    for key, kind in _KEYS.items():
        if not isinstance(config[key], kind) or (kind is int and isinstance(config[key], bool)):
            raise FormatError(f"{path}: {key!r} may not be {config[key]!r}")
    if not all(isinstance(item, str) for item in config["compatible_with"]):
        raise FormatError(f"{path}: 'compatible_with': expected a list of fingerprints")
    return config


def _construct(config: Mapping[str, Any], *, source: Path) -> Encoder:
    raw = config["preprocessing"]
    preprocessing = None if raw is None else Preprocessing.from_dict(raw, source=str(source))
    dim, top = config["dim"], dict(config["head"])
    slices, confident = top.pop("sub_embeddings", 1), top.pop("confident", False)
    plain = type(slices) is int and type(confident) is bool and top.keys() == {"name"}
    if dim < 1 or not plain:
        raise FormatError(f"{source}: dim {dim} with head {config['head']} makes no encoder")
    try:
        with torch.random.fork_rng(devices=[]):  # random weights that are overwritten right away
            network: Backbone = build(BACKBONES, config["backbone"], what="backbone")
            kind = look_up(HEADS, str(config["head"]["name"]), what="head")
            head = kind(features=network.features, dim=dim)
        own = network.preprocessing(size=None)
        if (own and own.channels) != (preprocessing and preprocessing.channels):
            raise ConfigError("the backbone and the preprocessing do not fit together")
        encoder = Encoder(
            name=config["name"],
            backbone=network,
            head=head,
            preprocessing=preprocessing,
            dim=dim,
            normalise=config["normalise"],
            sub_embeddings=slices,
            confident=confident,
        )
    except (ConfigError, EncoderError, ValueError, RuntimeError) as error:
        raise FormatError(f"{source}: {error}") from error
    encoder.compatible_with = tuple(config["compatible_with"])
    encoder.evidence = Evidence.each_of(config["evidence"], source=str(source))
    encoder.compatible_dims = config["compatible_dims"]
    return encoder


def _read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        with path.open("rb") as file:
            head = file.read(4)
        if head == b"PK\x03\x04" or head[:1] == b"\x80":
            raise FormatError(
                f"{path}: looks like a pickle (.pth, .bin), which may run code when it is read; "
                "refused. Save the encoder as safetensors"
            ) from error
        raise FormatError(
            f"{path}: truncated or not a safetensors file ({error}); copy it again"
        ) from error


def _check_tensors(
    weights: Mapping[str, Tensor], *, expected: Mapping[str, Tensor], source: Path
) -> None:
    missing, extra = (
        sorted(expected.keys() - weights.keys()),
        sorted(weights.keys() - expected.keys()),
    )
    if missing or extra:
        raise FormatError(
            f"{source}: {len(missing)} tensors missing{_some(missing)}, "
            f"{len(extra)} unknown{_some(extra)}; it belongs to another network than {CONFIG}"
        )
    for name, tensor in expected.items():
        came = weights[name]
        if (came.shape, came.dtype) != (tensor.shape, tensor.dtype):
            raise FormatError(
                f"{source}: tensor {name!r}: expected {tensor.dtype}{tuple(tensor.shape)} as in "
                f"{CONFIG}, got {came.dtype}{tuple(came.shape)}"
            )


def _some(names: list[str]) -> str:
    return f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""


def _check_finite(weights: Mapping[str, Tensor], *, source: str) -> None:
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise EncoderError(
                f"{source}: tensor {name!r} holds NaN or infinite weights, so every vector would "
                "be broken; go back to an earlier checkpoint"
            )


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
