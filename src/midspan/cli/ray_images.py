"""`--ship-images`: the images are sent to the workers with the items, as files.

For a cluster that cannot see the storage of this machine. Files are sent unchanged, and the worker
decodes them; rows of an image set (set.npz#3) are sent as a small set, images in a shard
(shard.tar#cat/1.jpg) as files.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from midspan.data.image_uri import ImageUri
from midspan.data.webdataset.by_name import shard_images
from midspan.data.webdataset.source import ShardSource
from midspan.errors import DataError, FormatError, ImageError

if TYPE_CHECKING:
    from midspan.gallery import Item, Task
    from midspan.upgrade.cluster import Batch

READERS = 8  # files read at once, as many as are decoded at once (data/sources.py)


@dataclass(frozen=True, slots=True)
class Shipment:
    """What is sent. Items that are not in `places` keep their uri."""

    files: Mapping[str, bytes]
    places: Mapping[str, str]  # id of an item → its file, or file.npz#row

    @contextmanager
    def __call__(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The files are there as long as the worker needs them."""
        with tempfile.TemporaryDirectory(prefix="midspan-") as folder:
            for name, data in self.files.items():
                Path(folder, name).write_bytes(data)
            yield [
                replace(item, uri=str(Path(folder, self.places[item.id])))
                if item.id in self.places
                else item
                for item in items
            ]


def shipped(tasks: Sequence[Task]) -> Batch:
    """An unreadable image keeps its uri: the worker reports why it has no image."""
    from midspan.upgrade.cluster import Batch

    items = tuple(task.item for task in tasks)
    files, places = dict[str, bytes](), dict[str, str]()
    for number, (whole, uris) in enumerate(_by_file(items).items()):
        if next(iter(uris.values())).row is not None:
            files[f"{number}.npz"], there = _part(whole, uris)
            places |= {id: f"{number}.npz#{row}" for row, id in enumerate(there)}
            continue
        read = _read(whole, list(uris.values()))
        for row, (id, data) in enumerate(zip(uris, read, strict=True)):
            if data is not None:
                suffix = Path(uris[id].member or uris[id].file).suffix
                places[id] = f"{number}-{row}{suffix}"
                files[places[id]] = data
    return Batch(items, opened=Shipment(files, places))


def _by_file(items: Sequence[Item]) -> dict[str, dict[str, ImageUri]]:
    """Uris by the set or shard that their images are in; "" for files of their own."""
    files: dict[str, dict[str, ImageUri]] = {}
    for item in items:
        if item.uri is not None:
            uri = ImageUri.of(item.uri)
            files.setdefault(uri.whole, {})[item.id] = uri
    return files


def _read(shard: str, uris: Sequence[ImageUri]) -> list[bytes | None]:
    if not shard:
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(_bytes, uris))
    try:
        source = shard_images(shard, [uri.member for uri in uris if uri.member is not None])
    except DataError:
        return [None] * len(uris)
    return [_member(source, row) for row in range(len(uris))]


def _bytes(uri: ImageUri) -> bytes | None:
    try:
        return Path(uri.file).read_bytes()
    except OSError:
        return None


def _member(source: ShardSource, row: int) -> bytes | None:
    try:
        return source.read(row)
    except ImageError:
        return None


def _part(file: str, uris: Mapping[str, ImageUri]) -> tuple[bytes, list[str]]:
    """A small set of the rows that are there, and whose they are."""
    from midspan.upgrade.images import stored_images

    try:
        images = stored_images(file).images
    except (DataError, FormatError):
        return b"", []
    rows = {id: uri.row for id, uri in uris.items() if uri.row is not None}
    there = [id for id, row in rows.items() if row < len(images)]
    packed = io.BytesIO()
    np.savez(packed, images=images[[rows[id] for id in there]])
    return packed.getvalue(), there
