"""From files and encoders on the command line to what an upgrade takes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from midspan.errors import ConfigError, DataError, EncoderError, FormatError

if TYPE_CHECKING:
    from midspan.data import ImageSource
    from midspan.data.decode import Pixels
    from midspan.data.image_uri import ImageUri
    from midspan.data.sources import ArraySource
    from midspan.encoders import Encoder
    from midspan.encoders.onnx import OnnxEncoder
    from midspan.encoders.preprocessing import Preprocessing
    from midspan.gallery import Gallery, Item
    from midspan.spaces import Embeddings, Space
    from midspan.upgrade import Embed, Embedded, Latency, Shadow, Staged, Upgrade

LOOK = 0.5  # seconds: does anybody search?
GENTLE = 10  # niceness of a backfill beside live searches


@contextmanager
def opened(location: str) -> Iterator[Upgrade]:
    from midspan.gallery import Gallery
    from midspan.upgrade import Upgrade

    with Gallery.open(location) as gallery:
        yield Upgrade(gallery)


def target_from(to: Path | None, encoder: str | None) -> Space | Embeddings:
    from midspan.spaces import Embeddings

    if to is not None:
        return Embeddings.load(to)
    if encoder is None:
        raise ConfigError("where to? give --to NEW.npz or --encoder RUN")
    return encoder_named(encoder)[0]


def embed_from(embeddings: Path | None, encoder: str | None) -> Embed:
    from midspan.spaces import Embeddings
    from midspan.upgrade import from_embeddings

    if (embeddings is None) == (encoder is None):
        raise ConfigError("give either --embeddings NEW.npz or --encoder RUN")
    if embeddings is not None:
        return from_embeddings(Embeddings.load(embeddings), source=embeddings.name)
    assert encoder is not None
    return encoder_named(encoder)[1]


def sample_from(
    gallery: Gallery, to: Path | None, encoder: str | None, *, count: int
) -> Embeddings | None:
    """New vectors of some items; None where --to gives them, or where none can be embedded."""
    from midspan.upgrade.priorities import embed_sample

    if to is not None or encoder is None or not count:
        return None
    space, embed = encoder_named(encoder)
    return embed_sample(gallery, embed, space=space, count=count)


@functools.cache
def encoder_named(name: str) -> tuple[Space, Embed]:
    return embedder_of(name)


def embedder_of(name: str, *, device: str | None = None) -> tuple[Space, Embed]:
    from midspan.encoders import load_encoder

    loaded = load_encoder(name, device=device)
    if not loaded.takes_images:
        raise EncoderError(
            f"{name} embeds vectors, not images; embed them with midspan embed and give the file: "
            "--to and --embeddings"
        )
    return loaded.space, images_embedder(loaded)


@dataclass(frozen=True, slots=True)
class Read:
    """The images of some items, and why others have none."""

    ids: list[str]
    images: Pixels  # (N, H, W, C) uint8
    failed: dict[str, str]
    hopeless: dict[str, str]


def images_embedder(encoder: Encoder | OnnxEncoder) -> Staged[Read]:
    """For the backfill: the next images are read while the encoder works on these."""
    from midspan.upgrade import Staged

    return Staged(
        read=functools.partial(read_images, encoder.preprocessing),
        embed=functools.partial(embed_read, encoder),
    )


def read_images(wanted: Preprocessing, items: Sequence[Item]) -> Read:
    """What stands at the uri of each item: a file, or an image in a set (a.npz#3, a.tar#x.jpg)."""
    from midspan.data import ImageSet
    from midspan.data.image_uri import ImageUri

    hopeless = {item.id: "the item has no uri" for item in items if item.uri is None}
    uri_of = {item.id: ImageUri.of(item.uri) for item in items if item.uri is not None}
    by_set: dict[str, dict[str, ImageUri]] = {}
    for id, uri in uri_of.items():
        by_set.setdefault(uri.whole, {})[id] = uri
    ids, failed = list[str](), dict[str, str]()
    parts = [np.empty((0, wanted.height, wanted.width, wanted.channels), dtype=np.uint8)]
    for whole, uris in by_set.items():
        try:
            source = source_of(whole, list(uris.values()))
        except (DataError, FormatError) as error:  # the whole set, so all that is in it
            failed |= dict.fromkeys(uris, str(error))
            continue
        names = np.array(list(uris))
        got = ImageSet(ids=names, source=source).load_readable(
            np.arange(len(names)),
            height=wanted.height,
            width=wanted.width,
            channels=wanted.channels,
            fit=wanted.fit,
        )
        ids += names[got.rows].tolist()
        parts.append(got.images)
        failed |= {str(names[row]): why for row, why in got.failed}
    # A file that is not there may come back (a share that is not mounted); a broken one stays so.
    gone = {id: why for id, why in failed.items() if not Path(uri_of[id].file).exists()}
    hopeless |= {id: why for id, why in failed.items() if id not in gone}
    pixels = parts[1] if len(parts) == 2 else np.concatenate(parts)
    return Read(ids, pixels, failed=gone, hopeless=hopeless)


def embed_read(encoder: Encoder | OnnxEncoder, read: Read) -> Embedded:
    from midspan.upgrade import Embedded

    made = encoder.embed(read.images, ids=read.ids, progress=False)
    return Embedded(made, failed=read.failed, hopeless=read.hopeless)


def source_of(whole: str, uris: Sequence[ImageUri]) -> ImageSource:
    """Images of one set or shard (`whole`), or files of their own."""
    from midspan.data.shard_names import shard_images
    from midspan.data.sources import FileSource

    if not whole:
        return FileSource(root=Path(), names=np.array([uri.file for uri in uris]))
    members = [uri.member for uri in uris if uri.member is not None]
    if members:
        return shard_images(whole, members)
    rows = np.array([uri.row for uri in uris if uri.row is not None])
    return replace(image_set(whole), picks=rows)  # a row that is not there is found by its reader


@functools.lru_cache(maxsize=4)
def image_set(file: str) -> ArraySource:
    from midspan.data import npz
    from midspan.data.sources import ArraySource

    source = npz(file).source
    assert isinstance(source, ArraySource)
    return source


def shadow_from(
    old: Path | None, new: Path | None, *, max_negative_flips: float, min_retention: float
) -> Shadow | None:
    from midspan.spaces import Embeddings
    from midspan.upgrade import Shadow

    if old is None and new is None:
        return None
    if old is None or new is None:
        raise ConfigError("shadow queries come in pairs: --shadow-old and --shadow-new")
    return Shadow(
        old=Embeddings.load(old),
        new=Embeddings.load(new),
        max_negative_flips=max_negative_flips,
        min_retention=min_retention,
    )


@contextmanager
def watched(
    gallery: Gallery, milliseconds: float | None, *, full_speed: bool
) -> Iterator[Latency | None]:
    """What says when the backfill must rest: a limit, or the searches that go on elsewhere."""
    from midspan.upgrade import Latency
    from midspan.upgrade.probe import Probe
    from midspan.upgrade.throttle import live_latency

    if milliseconds is None:
        latency = None if full_speed else live_latency(gallery, watch=LOOK)
        if latency is not None:
            os.nice(GENTLE)  # the searches get the processor first
            limit = 1000 * latency.ceiling
            print(
                f"others search this gallery: resting while their p99 is above {limit:.1f} ms "
                "(--full-speed: no rest)",
                file=sys.stderr,
            )
        yield latency
        return
    with Probe(gallery) as probe:
        yield Latency(probe.p99, ceiling=milliseconds / 1000)
