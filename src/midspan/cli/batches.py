"""Embedding in batches, each saved as soon as it is finished: a stop loses at most one."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from midspan import progress

if TYPE_CHECKING:
    from midspan.data import ImageSet
    from midspan.spaces import Embeddings, Space

FIRST, MOST = 256, 8192  # images in a batch; own choices
QUICK = 5.0  # seconds: a batch that took less is followed by one of twice the size

Failures = list[tuple[str, str]]  # id, reason


def batches(count: int, *, start: int = 0, step: int) -> Iterator[slice]:
    """Rows from `start` on, in multiples of `step`, so that an encoder sees the same steps."""
    size = step * max(1, FIRST // step)
    while start < count:
        began = time.perf_counter()
        yield slice(start, min(start + size, count))
        start += size
        if time.perf_counter() - began < QUICK:
            size = max(size, min(2 * size, MOST))


@dataclass(frozen=True)
class Journal:
    """A folder `OUT.batches` with the finished batches of one encoder over one list of images."""

    folder: Path
    space: Space

    @classmethod
    def open(cls, out: Path, *, space: Space, images: ImageSet) -> Journal:
        """The journal of an earlier try with the same encoder and images, or an empty one."""
        from midspan.errors import ConfigError
        from midspan.spaces import fingerprint

        ids = "\n".join(images.ids.tolist())
        key = fingerprint(space.fingerprint, ids, images.source.signature())
        folder = out.with_name(out.name + ".batches")
        written = folder / "key"
        if folder.exists() and not written.is_file() and any(folder.iterdir()):
            raise ConfigError(
                f"{folder}: expected the batches of an earlier try, got something else; finished "
                "batches are kept there, so move it away or choose another name"
            )
        if folder.is_dir() and not (written.is_file() and written.read_text() == key):
            shutil.rmtree(folder)  # of another encoder, or of other images
        folder.mkdir(parents=True, exist_ok=True)
        written.write_text(key)
        return cls(folder, space)

    def finished(self) -> tuple[int, list[Embeddings], Failures]:
        """(rows that are done, their vectors, what could not be read of them)."""
        from midspan.errors import FormatError
        from midspan.spaces import Embeddings

        done, parts, failures = 0, list[Embeddings](), Failures()
        for path in sorted(self.folder.glob("batch-*.npz")):
            start, stop = map(int, path.stem.split("-")[1:])
            if start != done:
                break
            try:
                parts.append(Embeddings.load(path))
                notes = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            except (FormatError, OSError, ValueError):
                break  # truncated by a crash: embedded again
            failures += [(id, why) for id, why in notes]
            done = stop
        return done, parts, failures

    def add(self, rows: slice, made: Embeddings, failures: Failures) -> None:
        path = self.folder / f"batch-{rows.start:09d}-{rows.stop:09d}.npz"
        path.with_suffix(".json").write_text(json.dumps(failures), encoding="utf-8")
        made.save(path)  # last, and whole: with it the batch is done

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def remove_if_empty(self) -> None:
        """An error before the first batch leaves nothing behind."""
        if not list(self.folder.glob("batch-*.npz")):
            self.remove()


def embed_with_journal(
    images: ImageSet,
    embed: Callable[[ImageSet, Callable[[str, str], None]], Embeddings],
    *,
    space: Space,
    out: Path,
    step: int,
    say: Callable[[str], None],
) -> tuple[Embeddings, Failures]:
    """All vectors, in the order of the images; the journal stays until `out` is written."""
    journal = Journal.open(out, space=space, images=images)
    try:
        return _embed(images, embed, journal, step=step, say=say)
    finally:
        journal.remove_if_empty()


def _embed(
    images: ImageSet,
    embed: Callable[[ImageSet, Callable[[str, str], None]], Embeddings],
    journal: Journal,
    *,
    step: int,
    say: Callable[[str], None],
) -> tuple[Embeddings, Failures]:
    from midspan.errors import Interrupted

    space = journal.space
    start, parts, failures = journal.finished()
    if start:
        say(f"{start:,} of {len(images):,} images were embedded before: continuing after them")
    label, finished = f"embed with {space.name}", start
    try:
        with progress.bar(label, total=len(images) - start, unit="items", show=True) as done:
            for rows in batches(len(images), start=start, step=step):
                failed = Failures()
                made = embed(images[rows], lambda id, why, failed=failed: failed.append((id, why)))  # type: ignore[misc]
                journal.add(rows, made, failed)
                parts.append(made)
                failures += failed
                done(rows.stop - rows.start)
                finished = rows.stop
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped: {finished:,} of {len(images):,} images are embedded and kept; run the same "
            "command to continue"
        ) from None
    return _joined(parts, space), failures


def _joined(parts: list[Embeddings], space: Space) -> Embeddings:
    from midspan.spaces import Embeddings

    filled = [part for part in parts if len(part)]
    if not filled:
        empty = np.empty((0, space.dim), dtype=np.float32)
        return Embeddings(np.array([], dtype=np.str_), empty, space)
    return Embeddings(
        ids=np.concatenate([part.ids for part in filled]),
        vectors=np.concatenate([part.vectors for part in filled]),
        space=space,
        columns={
            name: np.concatenate([part.columns[name] for part in filled])
            for name in filled[0].columns
        },
    )
