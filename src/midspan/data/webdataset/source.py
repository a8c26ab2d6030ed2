"""Images that stay in their tar shards and are read by offset."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from midspan.data.decode import MAX_BYTES, Pixels, decode_image
from midspan.data.sources import decode_each
from midspan.errors import ImageError
from midspan.image_size import ImageSize
from midspan.spaces import IntArray, StrArray

NOT_THERE = -1  # offset of a name that the shard does not have


@dataclass(frozen=True, slots=True)
class Shard:
    """A tar file as it was when its index was made."""

    path: Path
    size: int
    changed: int  # nanoseconds


@dataclass(frozen=True, eq=False)
class ShardSource:
    """One read per image: any order of rows, any part of them.

    A batch costs its own bytes and pixels, however large the shards are.
    """

    shards: tuple[Shard, ...]
    shard: IntArray  # (N,) which of them
    names: StrArray  # (N,) members
    offsets: IntArray  # (N,)
    sizes: IntArray  # (N,)

    def __len__(self) -> int:
        return len(self.names)

    def load(self, rows: IntArray, size: ImageSize) -> Pixels:
        def decode(row: int) -> Pixels:
            try:
                return decode_image(self.read(row), size)
            except ImageError as error:  # bytes have no name
                reason = str(error).removeprefix("image: ")
                raise ImageError(f"{self.uri(row)}: {reason}") from error

        return decode_each(decode, rows, shape=size.shape)

    def read(self, row: int, *, most: int = MAX_BYTES) -> bytes:
        """The image file as it is in the shard, if it has at most `most` bytes."""
        shard, size = self.shards[self.shard[row]], int(self.sizes[row])
        if self.offsets[row] == NOT_THERE:
            raise ImageError("no image of this name is in the shard")
        if size > most:
            raise ImageError(f"has {size:,} bytes; more than {most:,} are not read")
        try:
            with shard.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (shard.size, shard.changed):
                    raise ImageError("the shard was changed while it was in use; start again")
                file.seek(int(self.offsets[row]))
                data = file.read(size)
        except OSError as error:
            raise ImageError(f"cannot be read ({error.strerror})") from error
        if len(data) < size:
            raise ImageError(f"the shard ends after {len(data):,} of its {size:,} bytes")
        return bytes(data)

    def take(self, rows: IntArray) -> ShardSource:
        return ShardSource(
            shards=self.shards,
            shard=self.shard[rows],
            names=self.names[rows],
            offsets=self.offsets[rows],
            sizes=self.sizes[rows],
        )

    def uri(self, row: int) -> str:
        return f"{self.shards[self.shard[row]].path}#{self.names[row]}"

    def signature(self) -> str:
        digest = hashlib.sha256()
        for shard in self.shards:
            digest.update(f"{shard.path}\0{shard.size} {shard.changed}\0".encode())
        for column in (self.shard, self.offsets, self.sizes):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()
