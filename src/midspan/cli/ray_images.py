"""`--ship-images`: the images travel to the workers with the items, as files in a parcel.

For a cluster that cannot see the storage of this machine. Files travel as they are, and the worker
decodes them; rows of an image set (set.npz#3) travel as a small set, images in a shard
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

from midspan.errors import MidspanError

if TYPE_CHECKING:
    from midspan.gallery import Item, Task
    from midspan.upgrade.cluster import Parcel

READERS = 8  # files read at once, as many as are decoded at once (data/sources.py)


@dataclass(frozen=True, slots=True)
class Shipment:
    """What travels. Items that are not in `places` keep their uri."""

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


def shipped(tasks: Sequence[Task]) -> Parcel:
    """What cannot be read here goes as it is: the worker will say why it has no image."""
    from midspan.upgrade.cluster import Parcel

    items = tuple(task.item for task in tasks)
    files, places = dict[str, bytes](), dict[str, str]()
    for number, (whole, some) in enumerate(_by_file(items).items()):
        uris = [str(item.uri) for item in some]
        if whole.endswith(".npz"):
            files[f"{number}.npz"] = _part(whole, uris)
            places |= {item.id: f"{number}.npz#{row}" for row, item in enumerate(some)}
            continue
        for row, (item, data) in enumerate(zip(some, _read(whole, uris), strict=True)):
            if data is not None:
                places[item.id] = f"{number}-{row}{Path(str(item.uri)).suffix}"
                files[places[item.id]] = data
    return Parcel(items, opened=Shipment(files, places))


def _by_file(items: Sequence[Item]) -> dict[str, list[Item]]:
    """Items by the set or shard that their images are in; "" for files of their own."""
    found: dict[str, list[Item]] = {}
    for item in items:
        if item.uri is not None:
            whole = item.uri.rpartition("#")[0]
            found.setdefault(whole if whole.endswith((".npz", ".tar")) else "", []).append(item)
    return found


def _read(shard: str, uris: Sequence[str]) -> list[bytes | None]:
    if not shard:
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(_bytes, uris))
    from midspan.data.from_webdataset import shard_images

    try:
        source = shard_images(shard, [uri.rpartition("#")[2] for uri in uris])
        return [source.read(row) for row in range(len(uris))]
    except MidspanError:
        return [None] * len(uris)


def _bytes(uri: str) -> bytes | None:
    try:
        return Path(uri).read_bytes()
    except OSError:
        return None


def _part(file: str, uris: Sequence[str]) -> bytes:
    from midspan.cli.upgrade_sources import image_set
    from midspan.data.sources import ArraySource

    source = image_set(file).source
    assert isinstance(source, ArraySource)
    rows = [int(uri.rpartition("#")[2]) for uri in uris]
    made = io.BytesIO()
    np.savez(made, images=source.images[source.picks[rows]])
    return made.getvalue()
