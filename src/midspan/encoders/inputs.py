"""What `encoder.embed` takes: images by path, opened by Pillow, as arrays, or as an image set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from midspan.data import ImageSet, open_images
from midspan.data.decode import Pixels, fit_array, fit_image
from midspan.data.sources import FileSource
from midspan.errors import DataError, EncoderError
from midspan.image_size import ImageSize
from midspan.spaces import Embeddings, IntArray

Layout = Literal["HW", "HWC", "NHW", "NHWC"]
One = str | Path | Image.Image | npt.NDArray[Any]
Embeddable = ImageSet | Embeddings | One | Sequence[One]

CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class OpenedImages:
    """Images in memory, of any sizes."""

    images: Sequence[Image.Image | npt.NDArray[Any]]

    def load(self, rows: IntArray, size: ImageSize) -> Pixels:
        """(B, H, W, C) as the encoder takes them."""
        return np.stack([_fit(self.images[int(row)], size) for row in rows])


def images_of(
    items: Embeddable, *, layout: Layout | None, name: str
) -> ImageSet | Embeddings | OpenedImages | Pixels:
    """The items in one of four forms; an array is (N, H, W, C) afterwards.

    name: of the encoder, for messages.
    """
    if layout is not None and not isinstance(items, np.ndarray):
        raise EncoderError(f"layout = {layout!r} is for an array, got a {type(items).__name__}")
    if isinstance(items, np.ndarray):
        return stacked(items, layout=layout)
    if isinstance(items, str | Path):
        return _at(Path(items))
    if isinstance(items, Image.Image):
        return OpenedImages([items])
    if isinstance(items, ImageSet | Embeddings):
        return items
    if isinstance(items, list | tuple):
        if not items:
            raise EncoderError(
                f"encoder {name!r} got an empty {type(items).__name__}; expected at least one image"
            )
        if all(isinstance(one, str | Path) for one in items):
            return _files([Path(one) for one in items])
        if all(isinstance(one, Image.Image | np.ndarray) for one in items):
            return OpenedImages(list(items))
    kinds = type(items).__name__
    if isinstance(items, list | tuple):
        kinds += " of " + ", ".join(sorted({type(one).__name__ for one in items}))
    raise EncoderError(
        f"encoder {name!r} embeds an image of Pillow, a path, a list of either, a folder, an image "
        f"set or a uint8 array, not a {kinds}; see midspan.data"
    )


def stacked(images: npt.NDArray[Any], *, layout: Layout | None = None) -> Pixels:
    """(N, H, W, C) from any of the layouts: one image (H, W) or (H, W, C), or a stack of them.

    Without `layout`, three axes are one image, so the last must be its channels (1, 3 or 4).
    """
    given = images
    if layout is None:
        layout = {2: "HW", 3: "HWC"}.get(images.ndim, "NHWC")  # type: ignore[assignment]
        if images.ndim == 3 and images.dtype == np.uint8 and images.shape[2] not in CHANNELS:
            raise EncoderError(
                f"an array of {images.shape} may be one image or a stack of grey ones: expected "
                "1, 3 or 4 channels as the last axis of one image; give layout = 'NHW' for a stack"
            )
    elif layout not in get_args(Layout):
        raise EncoderError(f"layout = {layout!r}; expected one of {', '.join(get_args(Layout))}")
    assert layout is not None
    if images.ndim == len(layout):
        if "N" not in layout:
            images = images[None]
        if "C" not in layout:
            images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in CHANNELS:
        raise EncoderError(
            f"images are {given.dtype}{given.shape}; expected uint8, values 0 to 255: one image "
            "(H, W) or (H, W, C), or a stack (N, H, W) or (N, H, W, C), with C = 1, 3 or 4 channels"
        )
    return images


def _at(path: Path) -> ImageSet:
    """A folder, list or shards of images; else one image file."""
    if path.is_dir() or path.suffix.lower() in (".csv", ".npz", ".tar"):
        return open_images(path)
    return _files([path])


def _files(paths: Sequence[Path]) -> ImageSet:
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: no such file ({len(missing)} of {len(paths)} are missing)")
    names = np.array([str(path) for path in paths], dtype=np.str_)
    return ImageSet(ids=names, source=FileSource(root=Path(), names=names))


def _fit(image: Image.Image | npt.NDArray[Any], size: ImageSize) -> Pixels:
    if isinstance(image, Image.Image):
        return fit_image(image, size)
    return fit_array(image, size)
