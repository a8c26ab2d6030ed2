"""Exported graphs in the user's cache folder, by fingerprint; safe with any number of processes.

    graphs/<fingerprint>.onnx             the graph
    graphs/<fingerprint>.<runtime>.json   whether that version of the runtime agrees with torch
    graphs/<fingerprint>.bulk.json        which runtime was faster in a long job
    graphs/sources/<digest>.json          the space that these very files make: with it, an encoder
                                          whose graph is known is opened without torch

Every file is written whole and renamed into place, and everything may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from midspan.data.cache import cache_dir
from midspan.errors import MidspanError
from midspan.spaces import FloatArray, Space

FORMAT = "1"  # raise it when an export changes
TOLERANCE = 1e-5  # between torch and a graph, in any number of a vector of length 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison with torch on real images said."""

    agrees: bool
    apart: float  # the largest difference in any number of a vector


def graph_path(fingerprint: str) -> Path:
    return cache_dir() / "graphs" / f"{_plain(fingerprint)}-{FORMAT}.onnx"


def read_verdict(fingerprint: str, *, runtime: str, version: str) -> Verdict | None:
    """None: this version of the runtime was not compared yet."""
    document = _read(_verdict_path(fingerprint, runtime=runtime))
    try:
        if document["version"] != version:
            return None
        return Verdict(agrees=bool(document["agrees"]), apart=float(document["apart"]))
    except (KeyError, TypeError, ValueError):
        return None


def write_verdict(fingerprint: str, verdict: Verdict, *, runtime: str, version: str) -> None:
    entry = {"version": version, "agrees": verdict.agrees, "apart": verdict.apart}
    _write(_verdict_path(fingerprint, runtime=runtime), entry)


def read_bulk_runtime(fingerprint: str, *, here: Mapping[str, str]) -> str | None:
    """The runtime that was faster; None if it was not measured, or not `here`."""
    document = _read(_verdict_path(fingerprint, runtime="bulk"))
    runtime = document.get("runtime")
    return str(runtime) if runtime is not None and document.get("here") == dict(here) else None


def write_bulk_runtime(fingerprint: str, runtime: str, *, here: Mapping[str, str]) -> None:
    entry = {"runtime": runtime, "here": dict(here)}
    _write(_verdict_path(fingerprint, runtime="bulk"), entry)


def read_source(digest: str) -> Space | None:
    """The space that the files of this digest make, if an encoder was loaded from them before."""
    document = _read(_source_path(digest))
    try:
        return Space.from_json(json.dumps(document["space"]), source=str(_source_path(digest)))
    except (KeyError, TypeError, ValueError, MidspanError):
        return None


def write_source(digest: str, space: Space) -> None:
    _write(_source_path(digest), {"space": json.loads(space.to_json())})


def files_digest(files: list[Path], *, version: str) -> str:
    """Of the bytes of the files, and of the code that makes an encoder of them."""
    digest = hashlib.sha256(f"{FORMAT} {version}".encode())
    for file in files:
        with file.open("rb") as stream:
            digest.update(f"\0{file.name}\0".encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def largest_difference(torch_vectors: FloatArray, graph_vectors: FloatArray) -> float:
    """Between the two, both scaled by the length of torch's longest vector."""
    if torch_vectors.shape != graph_vectors.shape:
        return float("inf")
    expected: Any = torch_vectors.astype(np.float64)
    got: Any = graph_vectors.astype(np.float64)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True)
    unit = np.abs(np.linalg.norm(got, axis=1) - 1).max() < 1e-3
    if unit:
        expected = expected / np.maximum(lengths, 1e-12)
    else:
        expected, got = expected / lengths.max(), got / lengths.max()
    apart = float(np.abs(expected - got).max())
    return apart if np.isfinite(apart) else float("inf")


@contextmanager
def export_lock(fingerprint: str) -> Iterator[bool]:
    """True for one process at a time; the others are not made to wait."""
    try:
        import fcntl
    except ImportError:  # not on Windows: two may export, the last rename wins
        yield True
        return
    path = graph_path(fingerprint).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _verdict_path(fingerprint: str, *, runtime: str) -> Path:
    return graph_path(fingerprint).with_suffix(f".{runtime}.json")


def _source_path(digest: str) -> Path:
    return cache_dir() / "graphs" / "sources" / f"{digest}.json"


def _plain(fingerprint: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in fingerprint)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(values, file)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
