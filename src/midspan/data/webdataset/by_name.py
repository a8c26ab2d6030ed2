"""Images of one shard by name: what `shard.tar#cat/1.jpg` refers to.

Only the headers of the tar file are read. No image is opened, so the caller can decode the bytes
where it is safe to do so.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from midspan.data.decode import SUFFIXES
from midspan.data.webdataset.index import ShardIndex, cached_index
from midspan.data.webdataset.source import NOT_THERE, Shard, ShardSource
from midspan.data.webdataset.tar_members import members
from midspan.errors import DataError, FormatError


def shard_images(path: str | Path, names: Sequence[str]) -> ShardSource:
    """These images, in this order. A missing name fails only when its row is read.

    Left out are also members that no image set has: links, sparse files, names that lead out of
    the archive, files that are not named like an image.
    """
    shard = Path(path)
    try:
        state = shard.stat()
        index = _index(shard, (state.st_size, state.st_mtime_ns))
    except OSError as error:
        raise DataError(f"{shard}: no such shard ({error.strerror})") from error
    except FormatError as error:  # for the caller it is an image that cannot be read
        raise DataError(str(error)) from error
    requested = np.array(names, dtype=np.str_)
    if not len(index.names):
        present, rows = (
            np.zeros(len(requested), dtype=bool),
            np.zeros(len(requested), dtype=np.int64),
        )
        offsets = sizes = np.zeros(1, dtype=np.int64)
    else:
        rows = np.searchsorted(index.names, requested).clip(max=len(index.names) - 1)
        present, offsets, sizes = index.names[rows] == requested, index.offsets, index.sizes
    return ShardSource(
        shards=(Shard(shard, index.size, index.changed),),
        shard=np.zeros(len(requested), dtype=np.int64),
        names=requested,
        offsets=np.where(present, offsets[rows], NOT_THERE),
        sizes=np.where(present, sizes[rows], 0),
    )


@functools.lru_cache(maxsize=128)
def _index(shard: Path, state: tuple[int, int]) -> ShardIndex:
    """`state` is for the cache alone."""
    return cached_index(shard, rules="names", make=functools.partial(_walk, shard))


def _walk(path: Path, size: int, changed: int) -> ShardIndex:
    """In the order of the names."""
    with path.open("rb") as file:
        images = [
            member
            for member in members(file, path=path)
            if not member.refused and member.name.lower().endswith(SUFFIXES)
        ]
    images.sort(key=lambda member: member.name)
    for one, next_one in itertools.pairwise(images):
        if one.name == next_one.name:
            raise FormatError(f"{path}: expected each name once, got {one.name!r} twice")
    names = np.array([member.name for member in images], dtype=np.str_)
    return ShardIndex(
        size=size,
        changed=changed,
        names=names,
        offsets=np.array([member.offset for member in images], dtype=np.int64),
        sizes=np.array([member.size for member in images], dtype=np.int64),
        labels=np.zeros(len(names), dtype="U1"),
    )
