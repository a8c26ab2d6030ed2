"""Old artifacts as one file of the cache. It is mapped, not read: a machine holds it once.

Old vectors are the one part that grows with the images: N·D numbers. Every process maps the same
pages of the file and touches the rows of its batches only.
"""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from midspan.data.cache import cache_dir
from midspan.methods import OldArtifacts, OldClassifier
from midspan.spaces import Space, fingerprint

FORMAT = "2"  # raise it when the measures change
TENSORS = ("vectors", "counts", "centres", "radii", "angles")


def artifacts_path(*key: bytes | str) -> Path:
    return cache_dir() / "old" / f"{fingerprint(FORMAT, *key)}.safetensors"


def is_whole(path: Path) -> bool:
    """A damaged entry of the cache is only a loss of time."""
    try:
        with safe_open(path, framework="pt") as file:
            return set(TENSORS) == set(file.keys()) and "space" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def write_artifacts(path: Path, known: OldArtifacts) -> None:
    """Written beside and moved into place: several runs may do it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        save_file(
            {name: getattr(known, name).contiguous() for name in TENSORS},
            part,
            metadata={"space": known.space.to_json()},
        )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_artifacts(
    path: Path, *, labels: Tensor, classifier: OldClassifier | None, label_map: Tensor
) -> OldArtifacts:
    with safe_open(path, framework="pt") as file:
        space = Space.from_json((file.metadata() or {})["space"], source=str(path))
        tensors = {name: file.get_tensor(name) for name in TENSORS}
    return OldArtifacts(
        space=space, labels=labels, classifier=classifier, label_map=label_map, **tensors
    )
