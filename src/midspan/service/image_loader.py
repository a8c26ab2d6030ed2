"""Pixels of stored items: for thumbnails, for the backfill, for a comparison."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from midspan.data.decode import Pixels, fit_array
from midspan.errors import DataError, FormatError, ImageError, MidspanError
from midspan.gallery import Item
from midspan.image_size import ImageSize
from midspan.service.decode_worker import encode_thumbnail
from midspan.service.decoding import Box, DecodePool
from midspan.service.encoding import Loaded
from midspan.service.image_roots import ImageRoots
from midspan.service.settings import Limits
from midspan.upgrade import Staged
from midspan.upgrade.images import ReadImages, images_embedder

if TYPE_CHECKING:
    from midspan.data import ImageSet

PNG = b"\x89PNG"


class ImageLoader:
    def __init__(self, image_roots: ImageRoots, decoder: DecodePool, limits: Limits) -> None:
        self.image_roots = image_roots
        self._decoder, self._limits = decoder, limits
        self._cache = _Cache(limits.thumbnail_cache)

    def pixels(self, uri: str | None, box: Box) -> Pixels:
        """(H, W, C) as an encoder wants them, or ImageError."""
        file, place = self.image_roots.find(uri)
        if place.row is not None:
            return fit_array(
                _row_of(file, place.row), ImageSize(box.height, box.width, box.channels, box.fit)
            )
        data = self.image_roots.read(file, place.member, most=self._limits.image_bytes)
        return self._decoder.fit(data, box)

    def thumbnail(self, item: Item, *, size: int) -> tuple[bytes, str]:
        """(PNG or JPEG, tag that changes with the picture)."""
        key = (item.id, item.revision, item.changed, size)
        if (known := self._cache.get(key)) is None:
            file, place = self.image_roots.find(item.uri)
            if place.row is None:
                data = self.image_roots.read(file, place.member, most=self._limits.image_bytes)
                known = self._decoder.thumbnail(data, size=size)
            else:
                known = _array_thumbnail(_row_of(file, place.row), size)
            self._cache.put(key, known)
        return known, hashlib.blake2b(known, digest_size=12).hexdigest()

    def embed_with(self, loaded: Loaded) -> Staged[ReadImages]:
        """For the backfill: the next pictures are decoded while the encoder works on these."""
        return images_embedder(loaded.encoder, read=functools.partial(self.read, loaded.box))

    def read(self, box: Box, items: Sequence[Item]) -> ReadImages:
        """A broken picture is the item's fault and never the service's."""
        decoded, errors = dict[str, Pixels](), dict[str, str]()
        for item in items:
            try:
                decoded[item.id] = self.pixels(item.uri, box)
            except MidspanError as error:
                errors[item.id] = str(error)
        pixels = np.empty((len(decoded), box.height, box.width, box.channels), dtype=np.uint8)
        for row, image in enumerate(decoded.values()):
            pixels[row] = image
        elsewhere = {
            item.id: errors.pop(item.id)  # whether there is a file is not looked at
            for item in items
            if item.uri is not None and not self.image_roots.may_show(item.uri)
        }
        uris = {item.id: item.uri for item in items if item.id not in elsewhere}
        read = ReadImages.sort(list(decoded), pixels, errors=errors, uris=uris)
        return dataclasses.replace(read, hopeless={**read.hopeless, **elsewhere})


def content_type(thumbnail: bytes) -> str:
    return "image/png" if thumbnail.startswith(PNG) else "image/jpeg"


def _array_thumbnail(image: Pixels, size: int) -> bytes:
    height, width = image.shape[:2]
    scale = min(1.0, size / max(height, width))
    small = fit_array(
        image,
        ImageSize(max(1, round(height * scale)), max(1, round(width * scale)), 3),
    )
    return encode_thumbnail(np.repeat(small, 3, axis=2) if small.shape[2] == 1 else small)


@functools.lru_cache(maxsize=4)
def _image_set(file: Path, changed: int) -> ImageSet:
    from midspan.data import npz

    return npz(file)


def _row_of(file: Path, row: int) -> Pixels:
    try:
        images = _image_set(file, file.stat().st_mtime_ns).source
    except (OSError, DataError, FormatError) as error:  # it says where the file is
        raise ImageError("the item's image is in a set that cannot be read") from error
    stored: Pixels = getattr(images, "images", np.empty((0, 1, 1, 1), np.uint8))
    if row >= len(stored):
        raise ImageError(f"the image set has {len(stored)} rows, not {row + 1}")
    image: Pixels = stored[row]
    return image


class _Cache:
    """The last used, up to so many bytes."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[object, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object) -> bytes | None:
        with self._lock:
            if (cached := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
            return cached

    def put(self, key: object, value: bytes) -> None:
        with self._lock:
            if key in self._kept or len(value) > self._most:
                return
            self._kept[key] = value
            self._size += len(value)
            while self._size > self._most:
                self._size -= len(self._kept.popitem(last=False)[1])
