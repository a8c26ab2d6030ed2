"""Where the images of a shard are: indexed once from the tar file, then read from the cache."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from midspan.atomic_write import atomic_write
from midspan.data.cache import cache_dir
from midspan.data.images import Skipped
from midspan.errors import DataError
from midspan.spaces import IntArray, StrArray, fingerprint

_FORMAT = "1"  # raise it when the index or its rules change


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Where each image is. A missing label is empty."""

    size: int  # of the tar file, and its time: a changed file needs a new index
    changed: int
    names: StrArray  # (N,) of the members
    offsets: IntArray  # (N,)
    sizes: IntArray  # (N,)
    labels: StrArray  # (N,)
    columns: Mapping[str, StrArray] = field(default_factory=dict)  # each (N,)
    skipped: tuple[Skipped, ...] = ()


def cached_index(path: Path, *, rules: str, make: Callable[[int, int], ShardIndex]) -> ShardIndex:
    """From the cache, if this file was indexed by these rules before.

    `make` is given size and time of the file.
    """
    try:
        status = path.stat()
        if not path.is_file():
            raise DataError(f"{path}: expected a tar shard, got something that is not a file")
    except OSError as error:
        raise DataError(f"{path}: no such shard ({error.strerror})") from error
    state = (str(path.resolve()), str(status.st_size), str(status.st_mtime_ns))
    place = cache_dir() / "shards" / f"{fingerprint(_FORMAT, *state, rules)}.npz"
    index = _load(place)
    if index is None:
        index = make(status.st_size, status.st_mtime_ns)
        _save(index, place)
    return index


def _save(index: ShardIndex, place: Path) -> None:
    """A cache that cannot be written is a warning: the index is built again next time."""
    facts = {
        "size": index.size,
        "changed": index.changed,
        "columns": list(index.columns),
        "skipped": [[item.path, item.reason] for item in index.skipped],
    }
    arrays: dict[str, Any] = {
        "facts": np.array(json.dumps(facts)),
        "names": index.names,
        "offsets": index.offsets,
        "sizes": index.sizes,
        "labels": index.labels,
        **{f"column{number}": column for number, column in enumerate(index.columns.values())},
    }
    try:
        with atomic_write(place, sync=False) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        warnings.warn(f"{place}: the index could not be saved ({error.strerror})", stacklevel=2)


def _load(place: Path) -> ShardIndex | None:
    """None if it is missing or incomplete."""
    try:
        with np.load(place, allow_pickle=False) as kept:
            facts = json.loads(str(kept["facts"]))
            return ShardIndex(
                size=int(facts["size"]),
                changed=int(facts["changed"]),
                names=kept["names"],
                offsets=kept["offsets"],
                sizes=kept["sizes"],
                labels=kept["labels"],
                columns={
                    title: kept[f"column{number}"] for number, title in enumerate(facts["columns"])
                },
                skipped=tuple(Skipped(path=path, reason=why) for path, why in facts["skipped"]),
            )
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
