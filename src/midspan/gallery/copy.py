"""From one store to another: the same items, times and live vectors.

A copy compares both sides and writes what differs, so it can be stopped and started again at any
moment. It goes on until a whole pass saw no further write to the source.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from midspan import progress
from midspan.errors import GalleryError
from midspan.gallery.gallery import Gallery
from midspan.gallery.items import Draft, Item
from midspan.gallery.quantise import Quantised, set_quantise
from midspan.gallery.records import Entry
from midspan.gallery.stores.base import Store

PAGE = 1000
PASSES = 20  # a source that is written to without pause is never caught up with


@dataclasses.dataclass(frozen=True, slots=True)
class CopyReport:
    items: int  # in the target at the end
    written: int
    deleted: int
    without: int  # items of the source with no live vector: they are not copied
    passes: int


def copy(source: Gallery, location: str | Path, *, show: bool = False) -> CopyReport:
    """Make the gallery at `location` equal to the source; it is created if it is not there."""
    with open_copy(source, location) as target:
        return copy_into(source, target, show=show)


def open_copy(source: Gallery, location: str | Path) -> Gallery:
    """The target of a copy: a new gallery, or one that this source was copied to before."""
    state = source.state
    if state.upgrade is not None:
        raise GalleryError(
            f"{source.location} is in the middle of an upgrade; finish it or roll it back, then "
            "copy"
        )
    try:
        target = Gallery.open(location, who=source.who)
    except GalleryError:
        target = Gallery.create(location, source.space, who=source.who)
        if isinstance(source.store, Quantised) and isinstance(target.store, Quantised):
            set_quantise(target, source.store.quantise())
    entry = Entry(who=source.who, what="copy", details={"source": source.location})
    begun = any(
        (line.what, line.details) == (entry.what, entry.details)
        for line in target.trail(limit=1000)
    )
    if not begun and len(target):
        target.close()
        raise GalleryError(
            f"{location} holds another gallery; copy to a new place, or delete that one first"
        )
    live = {fingerprint: state.spaces[fingerprint] for fingerprint in state.live}
    theirs = target.state
    if not begun or theirs.live != state.live:
        target.store.change(
            dataclasses.replace(theirs, spaces={**theirs.spaces, **live}, live=state.live),
            entry=entry,
        )
    return target


def copy_into(source: Gallery, target: Gallery, *, show: bool = False) -> CopyReport:
    """Raises GalleryError if the source is written to faster than it can be copied."""
    written = deleted = 0
    for passes in range(1, PASSES + 1):
        sequence = source.store.sequence()
        total = source.store.count().items
        with progress.bar(f"copy, pass {passes}", total=total, unit="items", show=show) as done:
            now_written, without = _forward(source.store, target.store, done)
        written += now_written
        deleted += _backward(source.store, target.store)
        if source.store.sequence() == sequence:
            return CopyReport(
                items=len(target),
                written=written,
                deleted=deleted,
                without=without,
                passes=passes,
            )
    raise GalleryError(
        f"{source.location} was written to during each of {PASSES} passes; the copy is complete "
        "but for the last writes: stop writing and copy again"
    )


def _forward(source: Store, target: Store, done: progress.Done) -> tuple[int, int]:
    """Write what the target lacks or has otherwise: (written, items without a live vector)."""
    live = source.state().live
    after, written, without = "", 0, 0
    while page := source.scan(filter=None, missing=None, after=after, limit=PAGE):
        after = page[-1].id
        theirs = {item.id: item for item in target.get([item.id for item in page])}
        differ = [item for item in page if not _same(item, theirs.get(item.id), live)]
        parts = [
            part
            for space in live
            if len(part := source.vectors([item.id for item in differ], space=space))
        ]
        with_vector = {id for part in parts for id in part.ids.tolist()}
        drafts = [
            Draft(item.id, item.uri, item.payload, created=item.created, changed=item.changed)
            for item in differ
            if item.id in with_vector
        ]
        if drafts:
            target.upsert(drafts, parts, mode="put")
        written += len(drafts)
        without += len(differ) - len(drafts)
        done(len(page))
    return written, without


def _same(mine: Item, theirs: Item | None, live: tuple[str, ...]) -> bool:
    return theirs is not None and (
        mine.uri,
        mine.payload,
        mine.created,
        mine.changed,
        set(mine.spaces) & set(live),
    ) == (theirs.uri, theirs.payload, theirs.created, theirs.changed, set(theirs.spaces))


def _backward(source: Store, target: Store) -> int:
    """Delete what the source no longer has."""
    after, deleted = "", 0
    while page := target.scan(filter=None, missing=None, after=after, limit=PAGE):
        after = page[-1].id
        ids = [item.id for item in page]
        gone = set(ids) - {item.id for item in source.get(ids)}
        if gone:
            deleted += target.delete(sorted(gone))
    return deleted
