"""From a file or an array to pixels of a given size, for training and serving alike.

What an encoder sees must not depend on where an image comes from, so every image set and the
service decode and resize here: Pillow, bilinear with antialiasing, EXIF orientation applied,
transparency on white. Limits are checked from the header, before a pixel is decoded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from midspan.data.phone_formats import SUFFIXES as PHONE_SUFFIXES
from midspan.data.phone_formats import phone_plugin
from midspan.errors import ImageError
from midspan.image_size import Channels, Fit, ImageSize

__all__ = [
    "MAX_BYTES",
    "MAX_PIXELS",
    "SUFFIXES",
    "Channels",
    "Fit",
    "Pixels",
    "decode_image",
    "fit_array",
    "fit_image",
    "open_checked",
]

Pixels = npt.NDArray[np.uint8]

# From Pillow's own warning level for decompression bombs: a quarter GiB of RGB.
MAX_PIXELS = 89_478_485
MAX_BYTES = 128 * 2**20
_SHRINK = f"more than {MAX_PIXELS:,} pixels are not decoded, shrink the image first"

# Plugins are called by name instead of Image.open: no other format can slip in, an MPO is read as
# the JPEG it begins with, and the size limit is ours (Image.open only warns up to twice its own).
_PLUGINS: tuple[tuple[tuple[bytes, ...], type[ImageFile.ImageFile]], ...] = (
    ((b"\xff\xd8\xff",), JpegImagePlugin.JpegImageFile),
    ((b"\x89PNG\r\n\x1a\n",), PngImagePlugin.PngImageFile),
    ((b"GIF87a", b"GIF89a"), GifImagePlugin.GifImageFile),
    ((b"BM",), BmpImagePlugin.BmpImageFile),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), TiffImagePlugin.TiffImageFile),
)
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *PHONE_SUFFIXES,
)

# EXIF tag 274: how the stored image must be turned to be upright.
_ORIENTATION = 274
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = [_UPRIGHT[orientation] for orientation in (5, 6, 7, 8)]


def decode_image(image: str | Path | bytes, size: ImageSize) -> Pixels:
    """One image, decoded and fitted: (height, width, channels) uint8.

    `squash` resizes to the exact box; `crop` keeps the aspect: it takes the largest centred part
    of the box's proportions (the shorter side fills the box) and resizes that.
    """
    with open_checked(image) as opened:
        # JPEG may be decoded at 1/2, 1/4 or 1/8; twice the box keeps the result near full decoding.
        side = 2 * max(size.height, size.width)
        try:
            reduced = opened.draft(None, (side, side))
            opened.load()
            # A reduced size is rounded up; its box says where the image really ends.
            extent = reduced[1][2:] if reduced else opened.size
            turn = _turn(opened)
            plain = _plain(opened, channels=size.channels)
        except Exception as error:  # each Pillow plugin has its own
            raise ImageError(f"{_name(image)}: cannot be decoded ({_words(error)})") from error
    small = _resized(plain, extent=extent, size=size.turned() if turn in _SIDEWAYS else size)
    return _pixels(small if turn is None else small.transpose(turn), channels=size.channels)


@contextmanager
def open_checked(image: str | Path | bytes) -> Iterator[ImageFile.ImageFile]:
    """The image with its header read and its limits checked, nothing decoded yet."""
    name = _name(image)
    with _stream(image, name=name) as stream:
        size = stream.seek(0, os.SEEK_END)
        if size > MAX_BYTES:
            raise ImageError(f"{name}: has {size:,} bytes; more than {MAX_BYTES:,} are not read")
        stream.seek(0)
        head = stream.read(30)
        stream.seek(0)
        plugin = next((p for starts, p in _PLUGINS if head.startswith(starts)), None)
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            plugin = WebPImagePlugin.WebPImageFile
        if plugin is None:
            plugin = phone_plugin(head, name=name)
        if plugin is None:
            what = (
                "is empty"
                if not head
                else "is not a JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF or HEIC image"
            )
            raise ImageError(f"{name}: {what}")
        try:
            opened = plugin(stream)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ImageError(f"{name}: is too large ({error}); {_SHRINK}") from error
        except Exception as error:  # each Pillow plugin has its own
            raise ImageError(f"{name}: has a broken header ({_words(error)})") from error
        width, height = opened.size
        if width * height > MAX_PIXELS:
            raise ImageError(f"{name}: says it is {width:,} x {height:,} pixels; {_SHRINK}")
        yield opened


def fit_array(image: npt.NDArray[np.uint8], size: ImageSize) -> Pixels:
    """The same for pixels in memory: (H, W) or (H, W, C) uint8 of 1, 3 or 4 (RGBA) channels."""
    if image.shape == size.shape and image.dtype == np.uint8:
        return image
    depth = 1 if image.ndim == 2 else image.shape[-1]
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or depth not in (1, 3, 4):
        raise ImageError(
            f"an image in memory: expected (H, W, C) uint8 with 1, 3 or 4 channels, "
            f"got {image.dtype}{image.shape}"
        )
    if 0 in image.shape:
        raise ImageError(f"an image in memory has no pixels: shape {image.shape}")
    squeezed = image.reshape(image.shape[:2]) if depth == 1 else image
    plain = _plain(Image.fromarray(np.ascontiguousarray(squeezed)), channels=size.channels)
    return _pixels(_resized(plain, extent=plain.size, size=size), channels=size.channels)


def fit_image(image: Image.Image, size: ImageSize) -> Pixels:
    """The same for an image that Pillow has opened; its EXIF orientation is applied."""
    if image.width * image.height > MAX_PIXELS:
        raise ImageError(
            f"an image has {image.width} x {image.height} pixels; more than {MAX_PIXELS:,} are "
            "not decoded"
        )
    try:
        image.load()
        plain = _plain(ImageOps.exif_transpose(image), channels=size.channels)
    except Exception as error:  # each Pillow plugin has its own
        raise ImageError(f"an image cannot be decoded ({_words(error)})") from error
    return _pixels(_resized(plain, extent=plain.size, size=size), channels=size.channels)


# ---- steps --------------------------------------------------------------------------------------


def _turn(image: Image.Image) -> Image.Transpose | None:
    """Called after load(): by then a TIFF is already rotated and has no tag."""
    try:
        return _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a broken EXIF block is no reason to lose the pixels
        return None


def _plain(image: Image.Image, *, channels: Channels) -> Image.Image:
    """Any mode to L, or to RGB where three channels are requested and the image has colour."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        deep = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((deep + 128) // 257).astype(np.uint8))  # 65535 → 255, rounded
    elif image.mode in ("I", "F"):
        raise ValueError("32-bit values of unknown range; convert it to 8 or 16 bits")
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        paper = Image.new("RGBA", seen.size, "white")
        paper.alpha_composite(seen)
        image = paper.convert("RGB")
    if image.mode in ("1", "L"):
        return image.convert("L")
    colour = image.convert("RGB")  # CMYK and YCbCr too
    return colour if channels == 3 else colour.convert("L")


def _resized(image: Image.Image, *, extent: tuple[float, float], size: ImageSize) -> Image.Image:
    right, bottom = extent
    left, top = 0.0, 0.0
    if size.fit == "crop":
        scale = min(right / size.width, bottom / size.height)
        left, right = _middle(size.width * scale, of=right)
        top, bottom = _middle(size.height * scale, of=bottom)
    box = (left, top, right, bottom)
    return image.resize((size.width, size.height), Image.Resampling.BILINEAR, box=box)


def _middle(length: float, *, of: float) -> tuple[float, float]:
    """Rounding may step over the edge by 1e-13, which Pillow refuses: hence max and min."""
    return max((of - length) / 2, 0.0), min((of + length) / 2, of)


def _pixels(image: Image.Image, *, channels: Channels) -> Pixels:
    pixels = np.asarray(image, dtype=np.uint8)
    return np.repeat(pixels[:, :, None], channels, axis=2) if pixels.ndim == 2 else pixels


def _stream(image: str | Path | bytes, *, name: str) -> IO[bytes]:
    if isinstance(image, bytes):
        return BytesIO(image)
    try:
        if not stat.S_ISREG(os.stat(image).st_mode):  # opening a pipe would block
            raise ImageError(f"{name}: is not a file")
        return open(image, "rb")
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: cannot be read ({_words(error)})") from error


def _name(image: object) -> str:
    return str(image) if isinstance(image, str | Path) else "image"


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
