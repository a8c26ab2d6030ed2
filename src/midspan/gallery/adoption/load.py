"""Fill a gallery from files of vectors in large parts; and write one out as parquet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from midspan import progress
from midspan.errors import GalleryError, ItemError
from midspan.gallery.adoption.files import VectorBatch, VectorFile
from midspan.gallery.adoption.survey import GRAPH_BYTES, ROW_BYTES, UNIT, Survey, condition_of
from midspan.gallery.gallery import Gallery
from midspan.gallery.records import Draft, check_id
from midspan.spaces import Embeddings, IntArray, Metric, Space

PART = 20_000  # rows in one transaction: fewer commits
PAGE = 5_000  # rows read at once for an export
LOAD_RATE = 20_000.0  # rows a second: benchmarks/adoption.py on two busy cores


def survey_file(file: VectorFile, *, metric: Metric | None = None) -> Survey:
    """One pass over the file; writes nothing."""
    started = time.perf_counter()
    kind: Metric = metric or file.metric or "cosine"
    where = "named" if metric else ("of the file" if file.metric else "default")
    without = zero = unusable = lengths = bad = 0
    digests, ids, doubled = list[IntArray](), set[str](), 0
    weights = np.random.default_rng(0).integers(1, 2**63, file.dim, dtype=np.uint64) | np.uint64(1)
    for part in file.parts(PART):
        missing, usable, norms = condition_of(part.vectors, "l2")  # zero is counted apart
        without += int(missing.sum())
        unusable += int((~usable & ~missing).sum())
        zero += int((norms[usable] == 0).sum())
        lengths += int((np.abs(norms[usable] - 1) > UNIT).sum())
        bits = part.vectors[usable].view(np.uint32).astype(np.uint64)
        digests.append((bits * weights).sum(axis=1))
        doubled += len(part.ids) - len(set(part.ids) - ids)
        ids.update(part.ids)
        bad += sum(not _good(id) for id in part.ids)
    every = np.concatenate(digests) if digests else np.empty(0, np.uint64)
    problems = []
    if doubled:
        problems.append(f"{doubled:,} ids are there more than once; expected unique ids")
    if bad:
        problems.append(f"{bad:,} ids are empty, too long or hold control characters")
    if left_out := unusable + (zero if kind == "cosine" else 0):
        problems.append(f"{left_out:,} vectors are zero, NaN or infinite: not imported")
    return Survey(
        source=file.shown,
        rows=file.rows,
        dim=file.dim,
        metric=kind,
        metric_from=where,
        without=without,
        zero=zero,
        unusable=unusable,
        duplicates=len(every) - len(np.unique(every)),
        not_normalised=lengths,
        bad_ids=bad + doubled,
        index=None,
        in_place=False,
        own_bytes=file.rows * (ROW_BYTES + 4 * file.dim),
        new_space_bytes=file.rows * (2 * 4 * file.dim + GRAPH_BYTES),
        seconds=file.rows / LOAD_RATE,
        looked_seconds=time.perf_counter() - started,
        problems=tuple(problems),
    )


def import_file(
    location: str | Path,
    file: VectorFile,
    *,
    space_name: str | None = None,
    metric: Metric | None = None,
    who: str | None = None,
    show: bool = False,
) -> tuple[Gallery, int]:
    """(a new gallery with what the file holds, rows that have no usable vector and are left out).

    Stopped, the same call continues: rows that are there already are written again.
    """
    space = file.space
    if space is None:
        if not space_name:
            raise GalleryError(f"{file.shown} names no space; say which model made its vectors")
        kind: Metric = metric or file.metric or "cosine"
        space = Space(name=space_name, dim=file.dim, metric=kind)
    gallery = _opened(location, space, who=who)
    skipped = 0
    try:
        with progress.bar("import", total=file.rows, unit="rows", show=show) as done:
            for part in file.parts(PART):
                skipped += _store(gallery, part, space)
                done(len(part.ids))
    except BaseException:
        gallery.close()
        raise
    return gallery, skipped


def _opened(location: str | Path, space: Space, *, who: str | None) -> Gallery:
    try:
        return Gallery.create(location, space, who=who)
    except GalleryError:
        gallery = Gallery.open(location, who=who)
        if not gallery.space.same_as(space):
            held = gallery.space
            gallery.close()
            raise GalleryError(f"{location} holds vectors of {held}, the file of {space}") from None
        return gallery


def _store(gallery: Gallery, part: VectorBatch, space: Space) -> int:
    _, usable, _ = condition_of(part.vectors, space.metric)
    places = np.flatnonzero(usable).tolist()
    if len(set(part.ids)) < len(part.ids):
        raise ItemError("the file holds an id more than once; expected unique ids")
    drafts = [
        Draft(
            id=part.ids[place],
            uri=None if part.uris is None else part.uris[place],
            payload={} if part.payloads is None else part.payloads[place],
        )
        for place in places
    ]
    if drafts:
        ids = np.array([draft.id for draft in drafts], dtype=np.str_)
        vectors = part.vectors if len(places) == len(usable) else part.vectors[places]
        gallery.put_drafts(drafts, [Embeddings(ids=ids, vectors=vectors, space=space)])
    return len(part.ids) - len(places)


def _good(id: str) -> bool:
    try:
        return bool(check_id(id))
    except ItemError:
        return False


def export_parquet(
    gallery: Gallery, path: str | Path, *, space: str | None = None, show: bool = False
) -> int:
    """Every item that has a vector in this space (default: the live one), with uri and payload.

    `Embeddings.load`, `gallery create --embeddings` and `adopt` read the file; so does Arrow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = gallery.state.spaces[space] if space is not None else gallery.space
    target = Path(path)
    fields = [
        ("ids", pa.string()),
        ("vectors", pa.list_(pa.float32(), known.dim)),
        ("uri", pa.string()),
        ("payload", pa.string()),  # JSON
    ]
    if _all_labelled(gallery):
        fields.append(("labels", pa.string()))
    schema = pa.schema(fields, metadata={"midspan.space": known.to_json()})
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished, count, after = target.with_name(target.name + ".part"), 0, ""
    try:
        with (
            pq.ParquetWriter(unfinished, schema) as writer,
            progress.bar("export", total=len(gallery), unit="items", show=show) as done,
        ):
            while page := gallery.scan(after=after, limit=PAGE):
                after = page[-1].id
                writer.write_table(table := _table(gallery, page, known, schema))
                count += len(table)
                done(len(page))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _all_labelled(gallery: Gallery) -> bool:
    """A column of labels has one for every item, or is not there."""
    after = ""
    while page := gallery.scan(after=after, limit=PAGE):
        if any(item.payload.get("labels") is None for item in page):
            return False
        after = page[-1].id
    return True


def _table(gallery: Gallery, page: list[Any], space: Space, schema: Any) -> Any:
    import json

    import pyarrow as pa

    items = {item.id: item for item in page if space.fingerprint in item.spaces}
    vectors = gallery.vectors(list(items), space=space.fingerprint)
    ids = vectors.ids.tolist()
    flat = pa.array(vectors.vectors.reshape(-1), type=pa.float32())
    columns = {
        "ids": pa.array(ids, type=pa.string()),
        "vectors": pa.FixedSizeListArray.from_arrays(flat, space.dim),
        "uri": pa.array([items[id].uri for id in ids], type=pa.string()),
        "payload": pa.array(
            [json.dumps(items[id].payload, ensure_ascii=False) for id in ids], type=pa.string()
        ),
    }
    if "labels" in schema.names:
        labels = [str(items[id].payload["labels"]) for id in ids]
        columns["labels"] = pa.array(labels, type=pa.string())
    return pa.table(columns, schema=schema)
