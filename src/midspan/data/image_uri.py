"""Where one image is: its own file, or inside another (`set.npz#3`, `shard.tar#cat/1.jpg`)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

# The name in a shard may hold any sign, so the first .tar# counts; a row is a number that fits.
_MEMBER = re.compile(r"(?P<file>.*?\.tar)#(?P<member>.+)", re.IGNORECASE | re.DOTALL)
_ROW = re.compile(r"(?P<file>.+\.npz)#(?P<row>[0-9]{1,18})", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ImageUri:
    """The parts of what `ImageSet.uri` returns. Only the text is parsed; the disk is not read."""

    file: str
    row: int | None = None  # of an image set
    member: str | None = None  # of a shard

    @classmethod
    def of(cls, uri: str) -> ImageUri:
        if match := _MEMBER.fullmatch(uri):
            return cls(match["file"], member=match["member"])
        if match := _ROW.fullmatch(uri):
            return cls(match["file"], row=int(match["row"]))
        return cls(uri)

    @property
    def whole(self) -> str:
        """The file that holds other images as well; empty for an image in its own file."""
        return "" if self.row is None and self.member is None else self.file

    def absolute(self) -> ImageUri:
        """Means the same in a process with another working folder."""
        return replace(self, file=os.path.abspath(self.file))

    def __str__(self) -> str:
        inside = self.row if self.member is None else self.member
        return self.file if inside is None else f"{self.file}#{inside}"
