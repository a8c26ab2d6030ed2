"""The size, channels and fit that images are decoded to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from midspan.errors import DataError

Fit = Literal["squash", "crop"]
Channels = Literal[1, 3]


@dataclass(frozen=True, slots=True)
class ImageSize:
    """`squash` resizes to the exact box; `crop` keeps the aspect and cuts the longer side.

    Example:
        >>> import midspan as ms
        >>> ms.data.digits().load([0, 1], ms.data.ImageSize(16, 16, 1)).shape
        (2, 16, 16, 1)
    """

    height: int
    width: int
    channels: Channels
    fit: Fit = "squash"

    def __post_init__(self) -> None:
        if self.height < 1 or self.width < 1 or self.channels not in get_args(Channels):
            raise DataError(
                "expected a positive height and width and 1 or 3 channels, got images of "
                f"{self.height} x {self.width} x {self.channels}"
            )
        if self.fit not in get_args(Fit):
            known = ", ".join(map(repr, get_args(Fit)))
            raise DataError(f"fit: expected one of {known}, got {self.fit!r}")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    def turned(self) -> ImageSize:
        """For an image that is stored on its side."""
        return ImageSize(self.width, self.height, self.channels, self.fit)
