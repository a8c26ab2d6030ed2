"""AVIF and HEIC, the formats of phones, if a library that reads them is installed.

AVIF comes with Pillow (from 11.3, unless it was built without); HEIC with pillow-heif (extra
`heif`).
"""

from __future__ import annotations

import importlib
from typing import Any

from midspan.errors import ImageError

AVIF = (b"avif", b"avis")
HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
SUFFIXES = (".avif", ".heic", ".heif")


def phone_plugin(head: bytes, *, name: str) -> Any:
    """The class that reads an image with this beginning; None if it is of no such format."""
    if head[4:8] != b"ftyp":
        return None
    brand = head[8:12]
    if brand in AVIF or (brand in (b"mif1", b"msf1") and b"avif" in head):
        from PIL import features

        if not features.check("avif"):
            raise ImageError(f"{name}: is an AVIF image, which this Pillow cannot read; upgrade it")
        return importlib.import_module("PIL.AvifImagePlugin").AvifImageFile
    if brand in HEIC:
        try:
            return importlib.import_module("pillow_heif").HeifImageFile
        except ModuleNotFoundError as error:
            raise ImageError(
                f"{name}: is a HEIC image; install pillow-heif to read it (midspan[heif])"
            ) from error
    return None
