"""Decode a whole set once: into memory, or into a file that is mapped when it is larger.

The next run reuses a file (its key covers the images' names, sizes and times, the
size to decode to and this format), so a large folder is decoded once and not once a run. Everything
under `cache_dir()` can be deleted at any time.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from midspan import progress
from midspan.data.decode import Pixels
from midspan.data.sources import ImageSource, Readable, load_readable
from midspan.errors import DataError, ImageError
from midspan.image_size import ImageSize
from midspan.spaces import fingerprint

CACHE_LIMIT = 4 * 2**30  # bytes; above it the pixels go to a file
BLOCK = 256  # images between two steps of the progress bar

_FORMAT = "1"  # raise it when decoded pixels change
_PIXELS, _MANIFEST = "pixels.bin", "manifest.json"


Failed = tuple[int, str]  # row, reason
Blocks = Iterator[tuple[Pixels, tuple[Failed, ...]]]


def cache_dir() -> Path:
    """$MIDSPAN_CACHE, else midspan/ under $XDG_CACHE_HOME, else under ~/.cache.

    Returns:
        The folder; it need not exist yet.

    Example:
        >>> import midspan as ms
        >>> ms.data.cache_dir().is_absolute()
        True
    """
    if own := os.environ.get("MIDSPAN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "midspan"


def decode_all(
    source: ImageSource,
    size: ImageSize,
    *,
    strict: bool,
    limit: int = CACHE_LIMIT,
    folder: str | Path | None = None,
    show: bool = False,
) -> Readable:
    """All images of the source at one size. `strict`: the first unreadable one is an error."""

    def blocks() -> Blocks:
        with progress.bar("decode", total=len(source), unit="images", show=show) as done:
            for start in range(0, len(source), BLOCK):
                rows = np.arange(start, min(start + BLOCK, len(source)))
                got = load_readable(source, rows, size)
                if got.failed and strict:
                    row, reason = got.failed[0]
                    raise ImageError(f"{source.uri(row)}: {reason}")
                yield got.images, got.failed
                done(len(rows))

    if len(source) * math.prod(size.shape) <= limit:
        return _in_memory(blocks(), shape=size.shape, count=len(source))
    place = Path(folder) if folder is not None else cache_dir() / "decoded"
    key = fingerprint(_FORMAT, source.signature(), str(size.shape), size.fit, str(strict))
    return _on_disk(blocks, shape=size.shape, count=len(source), place=place / key)


def _in_memory(blocks: Blocks, *, shape: tuple[int, int, int], count: int) -> Readable:
    images = np.empty((count, *shape), dtype=np.uint8)
    filled = 0
    failed: list[Failed] = []
    for block, bad in blocks:
        images[filled : filled + len(block)] = block
        filled += len(block)
        failed.extend(bad)
    return _decoded(images[:filled], failed, count=count)


def _on_disk(
    blocks: Callable[[], Blocks], *, shape: tuple[int, int, int], count: int, place: Path
) -> Readable:
    cached = _open(place, shape=shape, count=count)
    if cached is not None:
        return cached
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=place.parent))
        try:
            failed: list[Failed] = []
            # Written, not mapped: a full disk is then an error and not a killed process.
            with (part / _PIXELS).open("wb") as file:
                for block, bad in blocks():
                    file.write(block.data)
                    failed.extend(bad)
            manifest = {"count": count, "size": shape, "failed": failed}
            (part / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
            try:
                part.rename(place)
            except OSError:  # another process was first, or a broken folder is there
                if _open(place, shape=shape, count=count) is None:
                    shutil.rmtree(place)
                    part.rename(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        need = count * math.prod(shape) / 2**30
        raise DataError(
            f"{place}: cannot hold the decoded images, {need:.1f} GiB "
            f"({error.strerror or error}); set MIDSPAN_CACHE to a folder with enough space"
        ) from error
    cached = _open(place, shape=shape, count=count)
    if cached is None:
        raise DataError(f"{place}: another process removed the decoded images; start again")
    return cached


def _open(place: Path, *, shape: tuple[int, int, int], count: int) -> Readable | None:
    """None if it is missing or incomplete."""
    try:
        manifest = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
        failed = [(int(row), str(reason)) for row, reason in manifest["failed"]]
        whole = (count - len(failed), *shape)
        if (place / _PIXELS).stat().st_size != math.prod(whole):
            return None
        if whole[0] == 0:  # an empty file cannot be mapped
            return _decoded(np.empty(whole, dtype=np.uint8), failed, count=count)
        images = np.memmap(place / _PIXELS, dtype=np.uint8, mode="r", shape=whole)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return _decoded(images, failed, count=count)


def _decoded(images: Pixels, failed: list[Failed], *, count: int) -> Readable:
    rows = np.delete(np.arange(count), [row for row, _ in failed])
    return Readable(images=images, rows=rows, failed=tuple(failed))
