"""From files and encoders on the command line to what an upgrade takes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from midspan.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    from midspan.data import ImageSet, ImageSource
    from midspan.encoders import Encoder
    from midspan.encoders.onnx import OnnxEncoder
    from midspan.gallery import Gallery, Item
    from midspan.spaces import Embeddings, Space
    from midspan.upgrade import Embed, Embedded, Latency, Shadow, Upgrade

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
    from midspan.encoders import load_encoder

    loaded = load_encoder(name)
    if not loaded.takes_images:
        raise EncoderError(
            f"{name} embeds vectors, not images; embed them with midspan embed and give the file: "
            "--to and --embeddings"
        )
    return loaded.space, functools.partial(embed_images, loaded)


def embed_images(encoder: Encoder | OnnxEncoder, items: Sequence[Item]) -> Embedded:
    """What stands at the uri of each item: an image file, or a row of an image set (set.npz#3)."""
    from midspan.data import ImageSet
    from midspan.upgrade import Embedded

    hopeless = {item.id: "the item has no uri" for item in items if item.uri is None}
    by_set: dict[str, dict[str, str]] = {}
    for item in items:
        if item.uri is not None:
            file = item.uri.rpartition("#")[0]
            by_set.setdefault(file if file.endswith(".npz") else "", {})[item.id] = item.uri
    made = encoder.embed(np.empty((0, 1, 1, 1), np.uint8), ids=[], progress=False)
    failed: dict[str, str] = {}
    for file, uris in by_set.items():
        images = ImageSet(ids=np.array(list(uris)), source=_source(file, list(uris.values())))
        part = encoder.embed(images, progress=False, on_failure=failed.__setitem__)
        made = part if not len(made) else made.joined_with(part)
    # A file that is not there may come back (a share that is not mounted); a broken one stays so.
    uri_of = {item.id: item.uri or "" for item in items}
    gone = {id: why for id, why in failed.items() if not Path(uri_of[id]).exists()}
    hopeless |= {id: why for id, why in failed.items() if id not in gone}
    return Embedded(made, failed=gone, hopeless=hopeless)


def _source(file: str, uris: list[str]) -> ImageSource:
    from midspan.data.sources import FileSource

    if not file:
        return FileSource(root=Path(), names=np.array(uris))
    rows = np.array([int(uri.rpartition("#")[2]) for uri in uris])
    return _image_set(file).source.take(rows)


@functools.lru_cache(maxsize=4)
def _image_set(file: str) -> ImageSet:
    from midspan.data import npz

    return npz(file)


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
