"""The one way from items to Embeddings, for every kind of encoder (torch or ONNX)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from midspan import progress
from midspan.data import ImageSet
from midspan.data.decode import Pixels, fit_array
from midspan.data.sources import ArraySource, CachedSource, Readable
from midspan.encoders.inputs import Embeddable, Layout, OpenedImages, images_of
from midspan.encoders.preprocessing import Preprocessing
from midspan.encoders.runtimes.parallel import ParallelRun
from midspan.errors import EncoderError, SpaceMismatch
from midspan.image_size import ImageSize
from midspan.spaces import URI, Column, Embeddings, FloatArray, IntArray, Space, StrArray

Batch = TypeVar("Batch")
Read = TypeVar("Read")
Failed = tuple[tuple[int, str], ...]  # row, reason
_Got = tuple[IntArray, Failed, Batch | None]
_Computed = tuple[IntArray, Failed, FloatArray | None]


# Items in one step of the network, our own choices. Images on a CPU go in fewer: a backfill with a
# small ResNet at 32 px was faster so on two cores (`benchmarks/embed_steps.py`); large images in
# fewer still, because activations that fit the caches are computed faster and cost less memory.
CPU_IMAGES, CPU_PIXELS, STEP = 64, 16 * 224 * 224, 256

Ids = Sequence[str] | StrArray
OnFailure = Callable[[str, str], None]  # id, reason


@dataclass(frozen=True)
class Source:
    """Items to embed; `read(rows)` gives images (B, H, W, C) uint8 or vectors (B, F) float32."""

    ids: StrArray
    columns: Mapping[str, Column]
    read: Callable[[IntArray], npt.NDArray[Any]]
    read_readable: Callable[[IntArray], Readable] | None = None  # what can be decoded of them
    numbered: bool = False  # see Embeddings
    instant: bool = True  # reading is plain indexing: a thread for it would only cost time


def image_source(
    items: Embeddable,
    *,
    preprocessing: Preprocessing,
    ids: Ids | None,
    name: str,
    layout: Layout | None = None,
) -> Source:
    source_images = images_of(items, layout=layout, name=name)
    size = preprocessing.image_size
    if isinstance(source_images, Embeddings):
        raise EncoderError(
            f"encoder {name!r} embeds images, but got vectors in {source_images.space}; "
            "vectors go through an encoder with the 'vectors' backbone, or a bridge"
        )
    if isinstance(source_images, np.ndarray):
        images = source_images
        return Source(
            ids=_ids(ids, count=len(images)),
            columns={},
            read=lambda rows: _fit(images[rows], preprocessing, size),
            instant=_fits(images, preprocessing),
        )
    if isinstance(source_images, OpenedImages):
        opened = source_images
        return Source(
            ids=_ids(ids, count=len(opened.images)),
            columns={},
            read=lambda rows: opened.load(rows, size),
            instant=False,
        )
    return Source(
        ids=source_images.ids if ids is None else _ids(ids, count=len(source_images.ids)),
        columns=columns_of(source_images),
        read=lambda rows: source_images.load(rows, size),
        read_readable=lambda rows: source_images.load_readable(rows, size),
        instant=isinstance(source_images.source, ArraySource | CachedSource)
        and _fits(source_images.source.images, preprocessing),
    )


def columns_of(images: ImageSet) -> dict[str, Column]:
    """What embeddings keep of an image set: its columns, labels, split, and where each image is.

    Images that are only in memory have no uri, and a column of this name of the set's own stays.
    """
    columns = dict(images.columns)
    if images.labels is not None:
        columns["labels"] = images.labels
    if images.split is not None:
        columns["split"] = images.split
    if URI not in columns and _on_disk(images):
        columns[URI] = np.array([images.uri(row) for row in range(len(images))], dtype=np.str_)
    return columns


def _on_disk(images: ImageSet) -> bool:
    source = images.source
    while isinstance(source, CachedSource):
        source = source.original
    return not isinstance(source, ArraySource) or Path(source.name).is_file()


def vector_source(
    items: Embeddable, *, inputs: int, origin: str, ids: Ids | None, name: str
) -> Source:
    """`origin`: fingerprint of the space the vectors must come from; empty: any of that dim."""
    if isinstance(items, Embeddings):
        if origin and items.space.fingerprint != origin:
            raise SpaceMismatch(
                f"encoder {name!r} was made for vectors of the space {origin[:17]}, "
                f"but got vectors in {items.space}; embed the images with that space's encoder"
            )
        vectors, columns, own_ids = items.vectors, items.columns, items.ids
        numbered = items.numbered
    elif isinstance(items, np.ndarray):
        vectors, columns, own_ids, numbered = items, {}, None, False
    else:
        raise EncoderError(
            f"encoder {name!r} takes precomputed {inputs}-d vectors, not a "
            f"{type(items).__name__}; embed images with the encoder below it first, and give "
            "the Embeddings"
        )
    if vectors.ndim != 2 or vectors.shape[1] != inputs or vectors.dtype.kind != "f":
        raise EncoderError(
            f"encoder {name!r} takes float vectors (N, {inputs}), "
            f"got {vectors.dtype}{vectors.shape}"
        )
    if ids is not None or own_ids is None:
        own_ids = _ids(ids, count=len(vectors))
    return Source(
        ids=own_ids,
        columns=columns,
        read=lambda rows: vectors[rows].astype(np.float32, copy=False),
        numbered=numbered,
    )


def step_size(batch_size: int | None, *, device: str, box: Preprocessing | None) -> int:
    """`batch_size`, or what suits the device; box: of the images, None for vectors."""
    if batch_size is not None:
        return batch_size
    if box is None or device != "cpu":
        return STEP
    return max(1, min(CPU_IMAGES, CPU_PIXELS // (box.height * box.width)))


def embed_source(
    source: Source,
    *,
    space: Space,
    normalise: bool,
    prepare: Callable[[npt.NDArray[Any]], Batch],
    run: Callable[[Batch], FloatArray],
    batch_size: int,
    show: bool,
    on_failure: OnFailure | None,
    workers: Callable[[int], ParallelRun | None] | None = None,
) -> Embeddings:
    """Where reading takes time, the next batch is read in a thread while `run` works on this one.

    workers: called with the number of remaining batches; once it returns a ParallelRun, these are
    read and run in parallel.
    on_failure: called with each image that cannot be decoded, which is then left out; without it
    such an image is an ImageError.
    """
    if batch_size < 1:
        raise EncoderError(f"batch_size: expected 1 or more, got {batch_size}")
    vectors = np.empty((len(source.ids), space.dim), dtype=np.float32)
    done_rows: list[IntArray] = []
    lenient = on_failure is not None

    def read(rows: IntArray) -> tuple[IntArray, Failed, Batch | None]:
        if lenient and source.read_readable is not None:
            got = source.read_readable(rows)
            return got.rows, got.failed, prepare(got.images) if len(got.rows) else None
        return rows, (), prepare(source.read(rows))

    def compute(run: Callable[[Any], FloatArray], got: _Got[Batch]) -> _Computed:
        rows, failed, batch = got
        return rows, failed, None if batch is None else run(batch)

    def computed(blocks: list[IntArray]) -> Iterator[_Computed]:
        waiting, wide = deque(blocks), None

        def one_by_one() -> Iterator[IntArray]:
            nonlocal wide
            while waiting:
                wide = workers(len(waiting)) if workers is not None else None
                if wide is not None:
                    return
                yield waiting.popleft()

        alone = one_by_one()
        coming = map(read, alone) if source.instant else _one_ahead(read, alone)
        for got in coming:
            yield compute(run, got)
        if wide is not None:
            many: ParallelRun = wide
            side_by_side = _in_parallel(
                lambda rows: compute(many.run, read(rows)), waiting, many.count
            )
            yield from side_by_side

    label = f"embed with {space.name}"
    show = show and len(vectors) > 1  # one query needs no bar
    with progress.bar(label, total=len(vectors), unit="items", show=show) as done:
        for rows, failed, out in computed(_blocks(len(vectors), batch_size)):
            for row, reason in failed:
                assert on_failure is not None
                on_failure(str(source.ids[row]), reason)
            if out is not None:  # (B, D)
                vectors[rows] = _checked(out, ids=source.ids[rows], space=space, unit=normalise)
                done_rows.append(rows)
            done(len(rows) + len(failed))
    kept = np.concatenate(done_rows) if done_rows else np.arange(0)
    if len(kept) == len(vectors):
        return Embeddings(source.ids, vectors, space, source.columns, numbered=source.numbered)
    return Embeddings(
        ids=source.ids[kept],
        vectors=vectors[kept],
        space=space,
        columns={name: column[kept] for name, column in source.columns.items()},
        numbered=source.numbered,
    )


def _blocks(count: int, size: int) -> list[IntArray]:
    return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]


def _one_ahead(read: Callable[[IntArray], Read], blocks: Iterable[IntArray]) -> Iterator[Read]:
    left = iter(blocks)
    first, second = next(left, None), next(left, None)
    if first is None:
        return
    if second is None:  # a single query must not wait for a thread
        yield read(first)
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="embed") as pool:
        coming = pool.submit(read, first)
        for following in itertools.chain([second], left):
            batch = coming.result()
            coming = pool.submit(read, following)
            yield batch
        yield coming.result()


def _in_parallel(
    compute: Callable[[IntArray], Read], blocks: Iterable[IntArray], count: int
) -> Iterator[Read]:
    """In the order of the blocks; few are under way at a time."""
    coming: deque[Future[Read]] = deque()
    with ThreadPoolExecutor(max_workers=count, thread_name_prefix="embed") as pool:
        try:
            for rows in blocks:
                coming.append(pool.submit(compute, rows))
                if len(coming) > 2 * count:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for one in coming:
                one.cancel()


def _checked(out: FloatArray, *, ids: StrArray, space: Space, unit: bool) -> FloatArray:
    """The vectors as they are stored: (B, D), finite, and of length 1 if `unit`."""
    if out.shape != (len(ids), space.dim):
        raise EncoderError(
            f"encoder {space.name!r}: expected vectors ({len(ids)}, {space.dim}) "
            f"for {len(ids)} items, got {out.shape}"
        )
    norms = np.sqrt(np.einsum("nd,nd->n", out, out, dtype=np.float64))
    broken = ~np.isfinite(norms)
    if broken.any():
        first = str(ids[np.flatnonzero(broken)[0]])
        raise EncoderError(
            f"encoder {space.name!r} gave NaN or infinite values for {first!r} "
            f"({broken.sum()} of its batch of {len(ids)}): its weights are broken; load an "
            "earlier checkpoint"
        )
    if not unit:
        return out
    if (norms == 0).any():
        first = str(ids[np.flatnonzero(norms == 0)[0]])
        raise EncoderError(
            f"encoder {space.name!r} gave a vector of length zero for {first!r}, which has no "
            "direction: the item is blank to it, or its weights are broken"
        )
    units: FloatArray = out / norms[:, None].astype(np.float32)
    return units


def _ids(ids: Ids | None, *, count: int) -> StrArray:
    if ids is None:
        return np.arange(count).astype(np.str_)
    if len(ids) != count:
        raise EncoderError(f"{len(ids)} ids for {count} items; give one id an item")
    return np.asarray(ids, dtype=np.str_)


def _fits(images: Pixels, preprocessing: Preprocessing) -> bool:
    expected = (preprocessing.height, preprocessing.width, preprocessing.channels)
    return images.shape[1:] == expected


def _fit(images: Pixels, preprocessing: Preprocessing, size: ImageSize) -> Pixels:
    if _fits(images, preprocessing):
        return images
    return np.stack([fit_array(image, size) for image in images])
