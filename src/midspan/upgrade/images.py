"""From an encoder of images to what a backfill asks for: read the images of items, then embed them.

The command line and the service use the same embedder. Only the way to the pixels differs: here
files are opened as they are; the service opens those of its image roots, in a worker process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from midspan.data import ImageSet, ImageSource, npz
from midspan.data.decode import Channels, Fit, Pixels
from midspan.data.image_uri import ImageUri
from midspan.data.sources import ArraySource, FileSource
from midspan.data.webdataset.by_name import shard_images
from midspan.errors import ConfigError, DataError, EncoderError, FormatError
from midspan.gallery import Item
from midspan.image_size import ImageSize
from midspan.spaces import Embeddings, Space
from midspan.upgrade.embed import Embed, Embedded, Staged, from_embeddings


class Box(Protocol):
    """The pixels that an encoder takes; `midspan.encoders.Preprocessing` is one."""

    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def channels(self) -> Channels: ...
    @property
    def fit(self) -> Fit: ...


@runtime_checkable
class ImageEncoder(Protocol):
    """What `ms.load_encoder` returns, or anything that embeds a stack of images likewise."""

    @property
    def space(self) -> Space: ...
    @property
    def takes_images(self) -> bool: ...
    @property
    def preprocessing(self) -> Box: ...
    def embed(self, images: Any, *, ids: Sequence[str], progress: bool) -> Embeddings: ...


Embedder = Embed | ImageEncoder | Embeddings


@dataclass(frozen=True, slots=True)
class ReadImages:
    """The images of some items, and why others have none."""

    ids: list[str]
    images: Pixels  # (N, H, W, C) uint8
    failed: dict[str, str]
    hopeless: dict[str, str]

    @classmethod
    def sort(
        cls, ids: list[str], images: Pixels, *, errors: dict[str, str], uris: dict[str, str | None]
    ) -> ReadImages:
        """An item without a uri, or with a broken file, never gets a vector.

        A file that is missing may come back (a share that is not mounted): it is tried again.
        """
        hopeless = {id: "the item has no uri" for id, uri in uris.items() if uri is None}
        failed = dict[str, str]()
        for id, why in errors.items():
            uri = uris[id]
            if uri is not None:
                gone = not Path(ImageUri.of(uri).file).exists()
                (failed if gone else hopeless)[id] = why
        return cls(ids, images, failed=failed, hopeless=hopeless)


def as_embed(source: Embedder, *, name: str = "the given vectors") -> Embed:
    """Whatever `Upgrade.run` takes, as the function that the backfill calls.

    Args:
        source: An encoder of images, Embeddings that exist already, or an `Embed` function.
        name: What messages call the Embeddings.

    Raises:
        ConfigError: It is none of these.
        EncoderError: The encoder takes vectors, not images.

    Returns:
        The function from items to `Embedded`.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import as_embed
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> as_embed(new)(gallery.scan(limit=2)).vectors.ids.tolist()
        ['a', 'b']
    """
    if isinstance(source, Embeddings):
        return from_embeddings(source, source=name)
    if isinstance(source, ImageEncoder):
        return images_embedder(source)
    if not callable(source):
        raise ConfigError(
            f"expected an encoder, Embeddings or a function from items to Embedded, got a "
            f"{type(source).__name__}; ms.load_encoder(…) returns an encoder"
        )
    return source


def images_embedder(
    encoder: ImageEncoder, *, read: Callable[[Sequence[Item]], ReadImages] | None = None
) -> Staged[ReadImages]:
    """For the backfill: the next images are read while the encoder works on these.

    Args:
        encoder: Embeds the images.
        read: How to get the images of items; None opens the files that their uris name.

    Raises:
        EncoderError: The encoder takes vectors, not images.

    Returns:
        The two steps, for `Upgrade.run`.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from PIL import Image
        >>> import midspan as ms
        >>> from midspan.encoders import build_encoder
        >>> from midspan.upgrade import images_embedder
        >>> encoder = build_encoder(backbone="small-cnn", dim=8, name="new", seed=0).eval()
        >>> old = ms.Embeddings(np.array(["red", "lost"]), np.eye(2), ms.Space("old", 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = str(pathlib.Path(folder, "red.png"))
        ...     Image.new("RGB", (32, 32), "red").save(path)
        ...     with ms.Gallery.create("memory:", old.space) as gallery:
        ...         _ = gallery.add(old, uris=[path, None])
        ...         embedded = images_embedder(encoder)(gallery.scan(limit=2))
        >>> embedded.vectors.ids.tolist()  # an item without a uri gets no vector
        ['red']
    """
    if not encoder.takes_images:
        raise EncoderError(
            f"the encoder of {encoder.space} embeds vectors, not images; embed them with it and "
            "pass the Embeddings"
        )
    return Staged(
        read=read or functools.partial(read_images, encoder.preprocessing),
        embed=functools.partial(_embed_read, encoder),
    )


def read_images(box: Box, items: Sequence[Item]) -> ReadImages:
    """What is at the uri of each item: a file, or an image in a set (a.npz#3, a.tar#x.jpg)."""
    uri_of = {item.id: ImageUri.of(item.uri) for item in items if item.uri is not None}
    by_set: dict[str, dict[str, ImageUri]] = {}
    for id, uri in uri_of.items():
        by_set.setdefault(uri.whole, {})[id] = uri
    ids, errors = list[str](), dict[str, str]()
    parts = [np.empty((0, box.height, box.width, box.channels), dtype=np.uint8)]
    for whole, uris in by_set.items():
        try:
            source = _source_of(whole, list(uris.values()))
        except (DataError, FormatError) as error:  # the whole set, so all that is in it
            errors |= dict.fromkeys(uris, str(error))
            continue
        names = np.array(list(uris))
        got = ImageSet(ids=names, source=source).load_readable(
            np.arange(len(names)), ImageSize(box.height, box.width, box.channels, box.fit)
        )
        ids += names[got.rows].tolist()
        parts.append(got.images)
        errors |= {str(names[row]): why for row, why in got.failed}
    pixels = parts[1] if len(parts) == 2 else np.concatenate(parts)
    return ReadImages.sort(ids, pixels, errors=errors, uris={item.id: item.uri for item in items})


def _embed_read(encoder: ImageEncoder, read: ReadImages) -> Embedded:
    vectors = encoder.embed(read.images, ids=read.ids, progress=False)
    return Embedded(vectors, failed=read.failed, hopeless=read.hopeless)


def _source_of(whole: str, uris: Sequence[ImageUri]) -> ImageSource:
    """Images of one set or shard (`whole`), or single files."""
    if not whole:
        return FileSource(root=Path(), names=np.array([uri.file for uri in uris]))
    members = [uri.member for uri in uris if uri.member is not None]
    if members:
        return shard_images(whole, members)
    rows = np.array([uri.row for uri in uris if uri.row is not None])
    return replace(stored_images(whole), picks=rows)  # its reader reports a row that is missing


@functools.lru_cache(maxsize=4)
def stored_images(file: str) -> ArraySource:
    """The pixels of an `.npz` image set, kept for the next batch."""
    source = npz(file).source
    assert isinstance(source, ArraySource)
    return source
