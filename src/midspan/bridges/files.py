"""A bridge on disk: a folder with `bridge.json` (what it is) and `bridge-DIGEST.safetensors`."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from midspan.bridges import BRIDGES
from midspan.bridges.base import Bridge
from midspan.config import check_settings, look_up
from midspan.errors import ConfigError, FormatError, MidspanError
from midspan.spaces import Column, Space

FORMAT = "midspan-bridge"
VERSION = 1
JSON_NAME = "bridge.json"

Arrays = dict[str, Column]
Record = dict[str, Any]


def save_bridge(bridge: Bridge, folder: str | Path) -> Path:
    from safetensors.numpy import save

    folder = Path(folder)
    if folder.is_file():
        raise FormatError(f"{folder} is a file; a bridge is saved as a folder")
    foreign = folder.is_dir() and any(folder.iterdir()) and not (folder / JSON_NAME).exists()
    if foreign:
        raise FormatError(f"{folder} holds other files and no bridge; give a new folder")
    arrays: Arrays = {}
    record = _pack(bridge, arrays, prefix="")
    raw = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    digest = hashlib.sha256(raw).hexdigest()
    document = {"format": FORMAT, "version": VERSION, "arrays_sha256": digest, "bridge": record}
    folder.mkdir(parents=True, exist_ok=True)
    # The arrays are named by their digest, so the JSON is the one moment of change: after a crash
    # the folder holds the former bridge or the new one, whole.
    _write(folder / _arrays_name(digest), raw)
    _write(folder / JSON_NAME, (json.dumps(document, indent=2, sort_keys=True) + "\n").encode())
    for other in folder.glob("bridge-*.safetensors"):
        if other.name != _arrays_name(digest):
            other.unlink(missing_ok=True)
    return folder


def _arrays_name(digest: str) -> str:
    return f"bridge-{digest[:16]}.safetensors"


def load_bridge(folder: str | Path) -> Bridge:
    """Read a bridge that `save` wrote. Nothing in the folder is executed or unpickled.

    Args:
        folder: What `bridge.save(folder)` or `midspan bridge fit --out` wrote.

    Returns:
        The fitted bridge.

    Raises:
        FormatError: It is no bridge, or one of its files is damaged.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import midspan as ms
        >>> ids, vectors = np.arange(50).astype(str), np.random.default_rng(0).normal(size=(50, 4))
        >>> old = ms.Embeddings(ids, vectors, ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, -vectors, ms.Space("new", 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = ms.fit_bridge(old, new).save(folder)
        ...     bridge = ms.load_bridge(path)
        >>> bridge.source.name, bridge.target.name
        ('old', 'new')
    """
    from safetensors.numpy import load

    folder = Path(folder)
    document = _read_json(folder)
    digest = document.get("arrays_sha256")
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise FormatError(f"{folder}: {JSON_NAME} has no arrays_sha256; save the bridge again")
    name = _arrays_name(digest)
    try:
        raw = (folder / name).read_bytes()
    except OSError as error:
        raise FormatError(f"{folder}: {name} cannot be read ({error})") from error
    if hashlib.sha256(raw).hexdigest() != digest:
        raise FormatError(
            f"{folder}: {name} is not the file that {JSON_NAME} describes (truncated, "
            "changed or of another bridge); save the bridge again"
        )
    try:
        arrays = load(raw)
        bridge = _unpack(document["bridge"], arrays, prefix="", where=str(folder))
        _try_out(bridge)
    except FormatError:
        raise
    except Exception as error:  # a damaged record can fail anywhere
        raise FormatError(f"{folder}: not a readable bridge ({error})") from error
    return bridge


def _write(path: Path, raw: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _read_json(folder: Path) -> Record:
    path = folder / JSON_NAME
    if not path.is_file():
        raise FormatError(f"{folder}: no {JSON_NAME} there; is it a bridge folder?")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise FormatError(f"{path}: not readable JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f'{path}: not a bridge; expected "format": "{FORMAT}"')
    if document.get("version") != VERSION:
        raise FormatError(
            f"{path}: written as version {document.get('version')!r}, this midspan reads "
            f"{VERSION}; upgrade midspan or fit the bridge again"
        )
    return document


def _pack(bridge: Bridge, arrays: Arrays, *, prefix: str) -> Record:
    """The JSON side of a bridge; arrays go into `arrays` under dotted names."""
    values: Record = {}
    parts: Record = {}
    for name, value in bridge.fitted().items():
        key = f"{prefix}{name}"
        if isinstance(value, np.ndarray):
            arrays[key] = value
        elif isinstance(value, Bridge):
            parts[name] = _pack(value, arrays, prefix=f"{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], Bridge):
            parts[name] = [
                _pack(part, arrays, prefix=f"{key}.{place}.") for place, part in enumerate(value)
            ]
        else:
            values[name] = value
    return {
        "name": bridge.name,
        "settings": bridge.settings(),
        "source": asdict(bridge.source),
        "target": asdict(bridge.target),
        "values": values,
        "parts": parts,
    }


def _unpack(record: Record, arrays: Arrays, *, prefix: str, where: str) -> Bridge:
    try:
        kind = look_up(BRIDGES, record["name"], what="bridge", warn=False)
        settings = check_settings(kind, record["settings"], where=where)
    except ConfigError as error:
        raise FormatError(f"{where}: {error}") from error
    bridge: Bridge = kind(**settings)
    bridge._source = Space.from_json(json.dumps(record["source"]), source=where)
    bridge._target = Space.from_json(json.dumps(record["target"]), source=where)
    for name, value in record["values"].items():
        setattr(bridge, _learnt(name, where), value)
    for name, part in record["parts"].items():
        if isinstance(part, list):
            members = [
                _unpack(one, arrays, prefix=f"{prefix}{name}.{place}.", where=where)
                for place, one in enumerate(part)
            ]
            setattr(bridge, _learnt(name, where), members)
        else:
            setattr(
                bridge,
                _learnt(name, where),
                _unpack(part, arrays, prefix=f"{prefix}{name}.", where=where),
            )
    for key, array in arrays.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and "." not in name:
            setattr(bridge, _learnt(name, where), array)
    return bridge


def _learnt(name: str, where: str) -> str:
    """Only what a fit sets may come from a file, never a method or a private name."""
    if not name.isidentifier() or name.startswith("_") or not name.endswith("_"):
        raise FormatError(f"{where}: {name!r} is not something that a bridge learns")
    return name


def _try_out(bridge: Bridge) -> None:
    """One vector through it shows missing arrays and shapes that do not fit."""
    try:
        mapped = bridge.probe()
    except (MidspanError, AttributeError, ValueError, IndexError, TypeError) as error:
        raise FormatError(f"arrays are missing or do not fit each other ({error})") from error
    if mapped.shape != (1, bridge.target.dim) or not np.isfinite(mapped).all():
        raise FormatError(
            f"maps to {mapped.shape[1:]} instead of finite ({bridge.target.dim},) vectors"
        )
