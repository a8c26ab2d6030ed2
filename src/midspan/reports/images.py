"""Thumbnails inside the page: arrays → PNG data URIs."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from midspan.errors import DataError, ImageError
from midspan.image_size import ImageSize
from midspan.spaces import Embeddings, IntArray, StrArray

ImageArray = npt.NDArray[np.uint8]

LOSSLESS_SIDE = 32  # images up to this size are kept as they are
COLOURS = 64  # palette of larger colour thumbnails: a page of 200 stays under 2 MB
SIDE = 64  # longest side of a thumbnail


class ThumbnailSource(Protocol):
    """What a page needs of an image set: images by row, and the id of each."""

    @property
    def ids(self) -> StrArray: ...

    def load(self, rows: IntArray | Sequence[int], size: ImageSize) -> ImageArray: ...


def image_reader(
    items: Embeddings, images: ImageArray | ThumbnailSource | None
) -> Callable[[int], ImageArray | None]:
    """The image (H, W, C) of an item by its row; None where there is none, or it is unreadable.

    An array holds the images row by row; in an image set they are matched by id.
    """
    if images is None:
        return lambda row: None
    if isinstance(images, np.ndarray):
        checked = check_images(images, count=len(items))
        return lambda row: checked[row]
    pictures = images
    rows = {str(name): row for row, name in enumerate(pictures.ids)}

    def read(row: int) -> ImageArray | None:
        place = rows.get(str(items.ids[row]))
        if place is None:
            return None
        try:
            loaded = pictures.load([place], ImageSize(SIDE, SIDE, 3, "crop"))
        except ImageError:
            return None
        image: ImageArray = loaded[0]
        return image

    return read


def check_images(images: npt.NDArray[Any], *, count: int) -> ImageArray:
    """(N, H, W) or (N, H, W, C) uint8, one image an item."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(
            f"expected images uint8 (N, H, W, C), C 1, 3 or 4, got {images.dtype}{images.shape}"
        )
    if images.ndim == 3:
        images = images[..., None]
    if images.shape[3] not in (1, 3, 4) or 0 in images.shape[1:3]:
        raise DataError(f"expected images (N, H, W, C), C 1, 3 or 4, got shape {images.shape}")
    if len(images) != count:
        raise DataError(f"{len(images)} images for {count} items; give one image an item, by row")
    return images


def data_uri(image: ImageArray, *, side: int = SIDE) -> str:
    """One image (H, W, C) as a PNG data URI, no side longer than `side`."""
    from PIL import Image

    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    if max(picture.size) > side:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    if picture.mode == "RGB" and max(picture.size) > LOSSLESS_SIDE:
        picture = picture.quantize(COLOURS)
    out = io.BytesIO()
    picture.save(out, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode("ascii")
