"""Bridges in an upgrade: which one it is, the space its vectors get, the pass over the gallery."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from midspan import progress
from midspan.bridges import Bridge, load_bridge
from midspan.bridges.files import JSON_NAME
from midspan.errors import ConfigError, FormatError, SpaceMismatch
from midspan.gallery import Gallery
from midspan.spaces import Embeddings, Space, fingerprint
from midspan.upgrade.record import Record

PAGE = 2000  # items mapped in one transaction


def bridge_digest(folder: str | Path) -> str:
    """bridge.json holds the digest of the arrays, so its own digest stands for all."""
    try:
        return hashlib.sha256((Path(folder) / JSON_NAME).read_bytes()).hexdigest()[:32]
    except OSError as error:
        raise FormatError(f"{folder}: no bridge can be read there ({error})") from error


@functools.lru_cache(maxsize=8)
def _loaded(folder: str, digest: str) -> Bridge:
    """Without a look at the disk for each query: the digest in the record never changes."""
    found = bridge_digest(folder)
    if found != digest:
        raise FormatError(
            f"{folder}: this is not the bridge that the upgrade was started with ({found[:12]} "
            f"instead of {digest[:12]}); put the old one back, or roll back and start again"
        )
    return load_bridge(folder)


def bridge_of(record: Record) -> Bridge:
    assert record.bridge is not None
    assert record.digest is not None
    return _loaded(record.bridge, record.digest)


def mapped_space(digest: str, *, old: Space, new: Space) -> Space:
    """The space of mapped vectors: never taken for true new ones, comparable with them.

    Its fingerprint is derived from the bridge and both ends, so another bridge makes another
    space, and the same one finds what it has mapped before.
    """
    return Space(
        name=f"{new.name} from {old.name}",
        dim=new.dim,
        metric=new.metric,
        fingerprint=f"mapped:{fingerprint(digest, old.fingerprint, new.fingerprint)}",
        compatible_with=(new.fingerprint,),
    )


def check_bridge(bridge: Bridge, *, mode: str, old: Space, new: Space) -> None:
    """map-query wants new → old, map-gallery old → new."""
    wanted = (new, old) if mode == "map-query" else (old, new)
    if bridge.source.same_as(wanted[0]) and bridge.target.same_as(wanted[1]):
        return
    if bridge.source.same_as(wanted[1]) and bridge.target.same_as(wanted[0]):
        other = "map-gallery" if mode == "map-query" else "map-query"
        raise SpaceMismatch(
            f"this bridge leads from {bridge.source} to {bridge.target}: that is the direction of "
            f"mode {other}. Start in that mode, or fit the other direction for {mode}: "
            "midspan bridge fit --source … --target …, with the two files exchanged"
        )
    raise SpaceMismatch(
        f"this bridge leads from {bridge.source} to {bridge.target}; mode {mode} wants one from "
        f"{wanted[0]} to {wanted[1]}"
    )


def load_for(folder: str | Path | None, *, mode: str, old: Space, new: Space) -> tuple[str, str]:
    """(absolute folder, digest) of a bridge that fits, for the record."""
    if folder is None:
        direction = "new to old" if mode == "map-query" else "old to new"
        raise ConfigError(
            f"mode {mode} wants a bridge from {direction} (--bridge FOLDER); fit one with "
            "midspan bridge fit"
        )
    digest = bridge_digest(folder)
    check_bridge(load_bridge(folder), mode=mode, old=old, new=new)
    return str(Path(folder).resolve()), digest


def map_items(gallery: Gallery, record: Record, *, show: bool = False) -> int:
    """Give a mapped vector to each item that has an old one and no true new one.

    May be repeated and stopped at any moment: an item that has its vector is passed over.
    """
    assert record.mapped is not None
    store, bridge = gallery.store, bridge_of(record)
    space = gallery.state.spaces[record.mapped]
    written, after = 0, ""
    with progress.bar("map", total=store.count().items, unit="items", show=show) as done:
        while page := store.scan(filter=None, missing=record.mapped, after=after, limit=PAGE):
            after = page[-1].id
            wanting = {item.id: item.revision for item in page if record.new not in item.spaces}
            old = store.vectors(list(wanting), space=record.old)
            if len(old):
                vectors = Embeddings(old.ids, bridge.transform(old).vectors, space)
                revisions = [wanting[id] for id in old.ids.tolist()]
                written += store.fill(vectors, revisions=revisions)
            done(len(page))
    return written
