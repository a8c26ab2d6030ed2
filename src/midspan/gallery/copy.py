"""From one gallery to another: the same items, times and live vectors.

A copy compares both sides and writes what differs, so it can be stopped and started again at any
moment. It continues until a whole pass saw no further write to the source.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from midspan import progress
from midspan.errors import FormatError, GalleryError
from midspan.gallery.gallery import Gallery
from midspan.gallery.location import FILE, parse_location
from midspan.gallery.records import AuditEvent, Draft, Item, Record
from midspan.gallery.rules import quantise_of, set_quantise

PAGE = 1000
PASSES = 20  # a source that is written to without pause is never caught up with


@dataclasses.dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy wrote."""

    items: int  # in the target at the end
    written: int
    deleted: int
    without: int  # items of the source with no live vector: they are not copied
    passes: int


def copy(source: Gallery, location: str | Path, *, show: bool = False) -> CopyReport:
    """Make the gallery at `location` equal to the source; it is created if it is not there.

    Args:
        source: An open gallery, not in the middle of an upgrade. It may be written to meanwhile.
        location: Where the copy is: a file, a server, or "memory:".
        show: A progress bar.

    Returns:
        What was written and deleted, and in how many passes.

    Raises:
        GalleryError: Another gallery is there, an upgrade is open, or the source is written to
            faster than it can be copied.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.gallery import copy
        >>> shop = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("tiny", 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ms.Gallery.create("memory:", shop.space) as gallery:
        ...         _ = gallery.add(shop)
        ...         report = copy(gallery, pathlib.Path(folder, "shop.midspan"))
        >>> report.items, report.written
        (2, 2)
    """
    with open_copy(source, location) as target:
        return copy_into(source, target, show=show)


def open_copy(source: Gallery, location: str | Path) -> Gallery:
    """The target of a copy: a new gallery, or one that this source was copied to before."""
    state = source.state
    record = Record.of(state)
    if record is not None and record.phase != "finished":
        raise GalleryError(
            f"{source.location} is in the middle of an upgrade; finish it or roll it back, then "
            "copy"
        )
    try:
        target = Gallery.open(location, who=source.who)
    except GalleryError:
        target = Gallery.create(location, source.space, who=source.who)
        chosen = quantise_of(source)
        if chosen is not None and quantise_of(target) not in (None, chosen):
            set_quantise(target, chosen)
    event = AuditEvent(who=source.who, what="copy", details={"source": source.location})
    begun = target.audit_contains(event)
    if not begun and len(target):
        target.close()
        raise GalleryError(
            f"{location} holds another gallery; copy to a new place, or delete that one first"
        )
    live = {fingerprint: state.spaces[fingerprint] for fingerprint in state.live}
    theirs = target.state
    if not begun or theirs.live != state.live:
        target.change(
            dataclasses.replace(theirs, spaces={**theirs.spaces, **live}, live=state.live),
            event=event,
        )
    return target


def copy_into(source: Gallery, target: Gallery, *, show: bool = False) -> CopyReport:
    """Raises GalleryError if the source is written to faster than it can be copied."""
    written = deleted = 0
    for passes in range(1, PASSES + 1):
        sequence = source.sequence(settled=True)
        total = source.count().items
        with progress.bar(f"copy, pass {passes}", total=total, unit="items", show=show) as done:
            now_written, without = _forward(source, target, done)
        written += now_written
        deleted += _backward(source, target)
        if source.sequence(settled=True) == sequence:
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


def _forward(source: Gallery, target: Gallery, done: progress.Done) -> tuple[int, int]:
    """Write what the target lacks or has otherwise: (written, items without a live vector)."""
    live = source.state.live
    after, written, without = "", 0, 0
    while page := source.scan(after=after, limit=PAGE):
        after = page[-1].id
        theirs = {item.id: item for item in target.get_many([item.id for item in page])}
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
            target.put_drafts(drafts, parts)
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


def _backward(source: Gallery, target: Gallery) -> int:
    """Delete what the source no longer has."""
    after, deleted = "", 0
    while page := target.scan(after=after, limit=PAGE):
        after = page[-1].id
        ids = [item.id for item in page]
        gone = set(ids) - {item.id for item in source.get_many(ids)}
        if gone:
            deleted += target.delete(sorted(gone))
    return deleted


# ---- backup and restore of a gallery that is one file, also while it is in use -------------------
# SQLite copies its pages in one transaction, so the copy is the gallery of one moment. Indexes are
# not in the file: they are built again when the restored gallery is opened.

PAGES = 4096  # copied between two looks at who else needs the file
WAIT = 30.0  # seconds that the file may be locked


@dataclass(frozen=True, slots=True)
class Backup:
    path: str
    items: int
    bytes: int


def backup(location: str, target: str | Path) -> Backup:
    """Write a copy of the gallery to a file that must not be there yet."""
    return _copy(_file_of(location), Path(target), verb="backup")


def restore(source: str | Path, location: str) -> Backup:
    """Make a gallery of a backup, at a place where none is yet."""
    return _copy(Path(source), _file_of(location), verb="restore")


def _file_of(location: str) -> Path:
    place = parse_location(location)
    if place.scheme != FILE or place.catalogue.path is None:
        raise GalleryError(
            f"{place.shown}: expected a gallery file; for PostgreSQL use pg_dump or its archive of "
            "changes, for others `midspan gallery copy`: see docs/backup.md"
        )
    return place.catalogue.path


def _copy(source: Path, target: Path, *, verb: str) -> Backup:
    if not source.is_file():
        raise GalleryError(f"{verb}: expected a gallery file at {source}, got none")
    if target.exists():
        raise GalleryError(f"{verb}: {target} exists already; choose another name or remove it")
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        try:
            with (
                closing(
                    sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=WAIT)
                ) as here,
                closing(sqlite3.connect(part)) as there,
            ):
                here.backup(there, pages=PAGES)
                [(state,)] = there.execute("PRAGMA integrity_check(1)").fetchall()
                there.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.DatabaseError as error:
            raise FormatError(f"{source} cannot be read as a gallery ({error})") from error
        if state != "ok":
            raise FormatError(f"{source} is damaged: {state}; restore an earlier backup")
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    with Gallery.open(str(target)) as gallery:
        items = len(gallery)
    return Backup(str(target), items, target.stat().st_size)
