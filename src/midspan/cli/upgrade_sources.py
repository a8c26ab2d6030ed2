"""From files and encoders on the command line to what an upgrade takes."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from midspan.errors import ConfigError, DataError, EncoderError, FormatError

if TYPE_CHECKING:
    from midspan.cli.runtime import RuntimeName
    from midspan.cli.spaces import SpaceNames
    from midspan.gallery import Gallery
    from midspan.spaces import Embeddings, Space
    from midspan.upgrade import Embed, Latency, Shadow, Upgrade

LOOK = 0.5  # seconds: does anybody search?
GENTLE = 10  # niceness of a backfill alongside live searches


@contextmanager
def opened(location: str) -> Iterator[Upgrade]:
    from midspan.gallery import Gallery
    from midspan.upgrade import Upgrade

    with Gallery.open(location) as gallery:
        yield Upgrade(gallery)


def target_from(to: Path | None, encoder: str | None, spaces: SpaceNames) -> Space | Embeddings:
    if to is not None:
        return spaces.load(to, "to")
    if encoder is None:
        raise ConfigError("where to? give --to NEW.npz or --encoder RUN")
    return encoder_named(encoder)[0]


def embed_from(
    embeddings: Path | None,
    encoder: str | None,
    spaces: SpaceNames,
    *,
    runtime: RuntimeName = "auto",
) -> Embed:
    from midspan.upgrade import from_embeddings

    if (embeddings is None) == (encoder is None):
        raise ConfigError("give either --vectors NEW.npz or --encoder RUN")
    if embeddings is not None:
        return from_embeddings(spaces.load(embeddings, "vectors"), source=embeddings.name)
    assert encoder is not None
    return encoder_named(encoder, runtime)[1]


def source_named(embeddings: Path | None, encoder: str | None, spaces: SpaceNames) -> str:
    """Names what the vectors of a run come from: another name may embed what failed before.

    Of a file its ids count; of an encoder also the folder that relative uris are meant from.
    """
    from midspan.spaces import fingerprint

    if embeddings is not None:
        ids = fingerprint("\n".join(spaces.load(embeddings, "vectors").ids.tolist()))
        return f"embeddings {embeddings.name} ({ids[:12]})"
    return f"encoder {encoder} in {Path.cwd()}"


def check_uris(gallery: Gallery) -> None:
    """An encoder reads images at the items' uris: with none of them it has nothing to do."""
    from midspan.errors import GalleryError
    from midspan.upgrade import without_uris

    if count := without_uris(gallery):
        shop = gallery.location
        raise GalleryError(
            f"{shop}: none of the {count:,} items that need a new vector has a uri, so --encoder "
            "finds no image to read. Two ways out: embed the images elsewhere and give the vectors "
            f"(--to NEW.npz of plan and start, midspan upgrade run {shop} --vectors NEW.npz), or "
            f"say where the images are (midspan gallery add {shop} --vectors OLD.npz --images "
            "PHOTOS/ --replace)"
        )


def check_request(gallery: Gallery, *, mode: str, bridge: Path | None, order: str | None) -> None:
    """What can be refused before an encoder is loaded: that alone takes seconds."""
    from midspan.gallery.records import Record
    from midspan.upgrade.priorities import check_order
    from midspan.upgrade.start import check_bridge_given, check_closed, check_end

    check_order(gallery, order)
    record = Record.of(gallery.state)
    if record is None or record.phase != "mapping":  # which the same start continues
        check_closed(gallery, gallery.state)
    check_bridge_given(mode, bridge)
    if bridge is not None:
        check_end(bridge, mode=mode, old=gallery.state.spaces[gallery.state.live[-1]])


@functools.cache
def encoder_named(name: str, runtime: RuntimeName = "auto") -> tuple[Space, Embed]:
    return embedder_of(name, runtime=runtime)


def embedder_of(
    name: str, *, device: str | None = None, runtime: RuntimeName = "auto"
) -> tuple[Space, Embed]:
    from midspan.encoders import load_embedder
    from midspan.upgrade.images import images_embedder

    loaded = load_embedder(name, device=device, runtime=runtime)
    if not loaded.takes_images:
        raise EncoderError(
            f"{name} embeds vectors, not images; embed them with midspan embed and give the file: "
            "--to and --vectors"
        )
    return loaded.space, images_embedder(loaded)


def shadow_from(
    old: Path | None,
    new: Path | None,
    spaces: SpaceNames,
    *,
    max_negative_flips: float | None,
    min_retention: float,
    queries: Path | None = None,
    group: str | None = None,
) -> Shadow | None:
    from midspan.upgrade import Shadow

    if old is None and new is None:
        if queries is not None:
            raise ConfigError("--queries needs --shadow-old and --shadow-new")
        return None
    if old is None or new is None:
        raise ConfigError("shadow queries come in pairs: --shadow-old and --shadow-new")
    return Shadow(
        old=spaces.load(old, "shadow-old"),
        new=spaces.load(new, "shadow-new"),
        max_negative_flips=max_negative_flips,
        min_retention=min_retention,
        group_key=group,
        clicks=None if queries is None else read_clicks(queries),
    )


def read_clicks(path: Path) -> dict[str, list[str]]:
    """Ids of clicked items by the id of the query; a query may have several lines."""
    clicks: dict[str, list[str]] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            id, clicked = entry["id"], entry["clicked"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(_click_words(path, number, line)) from error
        if not isinstance(clicked, list) or not all(isinstance(one, str) for one in (id, *clicked)):
            raise FormatError(_click_words(path, number, line))
        clicks.setdefault(id, []).extend(clicked)
    return clicks


def _click_words(path: Path, number: int, line: str) -> str:
    return (
        f'{path}, line {number}: {line!r:.80}; expected {{"id": "query", "clicked": ["item", …]}}'
    )


@contextmanager
def watched(
    gallery: Gallery, milliseconds: float | None, *, full_speed: bool
) -> Iterator[Latency | None]:
    """What says when the backfill must rest: a limit, or the searches that run elsewhere."""
    from midspan.upgrade import Latency
    from midspan.upgrade.throttle import Probe, watch_searches

    if milliseconds is None:
        if full_speed:
            yield None
            return
        with watch_searches(gallery, watch=LOOK) as latency:
            if latency is not None:
                os.nice(GENTLE)  # the searches get the processor first
                limit = 1000 * latency.ceiling
                print(
                    f"resting while the p99 of searches is above {limit:.1f} ms "
                    "(--full-speed: no rest)",
                    file=sys.stderr,
                )
            yield latency
        return
    probe = Probe(gallery)
    with probe.running():
        yield Latency(probe.p99, ceiling=milliseconds / 1000)
