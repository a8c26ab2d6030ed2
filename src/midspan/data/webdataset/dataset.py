"""Image sets in WebDataset shards: tar files in which the entries of a sample follow each other."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from midspan.data.images import TEST, TRAIN, ImageSet
from midspan.data.sources import in_threads
from midspan.data.webdataset.index import ShardIndex
from midspan.data.webdataset.samples import SampleSpec, read_index
from midspan.data.webdataset.source import Shard, ShardSource
from midspan.errors import DataError, ImageError, MissingDependency
from midspan.spaces import StrArray

MAX_SHARDS = 100_000
_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.-?\d+)?\}")
_ELSEWHERE = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+:/|pipe:)")


def webdataset(
    path: str | Path,
    *,
    test: str | None = None,
    image: str | None = None,
    label: str = "label",
    columns: tuple[str, ...] = (),
    check: Literal["header", "decode"] = "header",
    decode_once: bool = False,
    strict: bool = False,
) -> ImageSet:
    """Read `shards/train-{000..003}.tar`; `test` are shards of the same kind, for the evaluation.

    A sample is `cat/1.jpg` with its label in `cat/1.cls` (any text) or under the key `label` of
    `cat/1.json`, whose keys `columns` are kept as text. Of several images in a sample, `image`
    says which entry is used. An id is the image's name in the tar file and must be unique.

    Each shard is walked once; where its images are is kept in midspan's cache folder. A stream
    with a shuffle buffer would need no index, but its order would depend on the number of
    processes and on the buffer, and a stopped run could not continue at the same image. With an
    index any row is one read: the order depends on the seed alone, and each process reads only
    its own rows.

    Images with a broken header are skipped and listed, or an ImageError if `strict`; `check` =
    "decode" decodes each one when the index is built and so finds those that are broken further
    on. A damaged or truncated shard is an error. Training decodes an image each time it is used;
    `decode_once` = true keeps the pixels of all of them, as for a folder.

    Only local files are read; nothing is fetched and nothing is unpacked.

    Args:
        path: The shards of training images.
        test: Shards of the evaluation's images.
        image: Which entry of a sample is its image, if there are several.
        label: The key of the JSON entries that holds the label.
        columns: Further keys to keep.
        check: "header", or "decode" to decode each image when the index is built.
        decode_once: Whether pixels are kept after the first decoding.
        strict: Whether a broken image is an error.

    Returns:
        The images, in the order of the shards.

    Raises:
        DataError: There are no such shards, or some samples have no label.
        FormatError: A damaged shard.
        ImageError: A broken image, if `strict`.

    Example:
        >>> import midspan as ms
        >>> images = ms.data.webdataset("shards/train-{000..003}.tar")  # doctest: +SKIP
    """
    spec = SampleSpec(image=image, label=label, columns=columns, check=check)
    paths = _expand(str(path))
    count = len(paths)
    if test is not None:
        paths += _expand(test)
    _refuse_doubled(paths)
    indexes = in_threads(lambda number: read_index(paths[number], spec=spec), range(len(paths)))
    skipped = tuple(item for index in indexes for item in index.skipped)
    if strict and skipped:
        raise ImageError(str(skipped[0]))
    source = _source(paths, indexes)
    if not len(source):
        first = f", first {skipped[0]}" if skipped else ""
        raise DataError(f"{path}: no images in {len(paths)} shards, {len(skipped)} skipped{first}")
    _refuse_doubled_names(source)
    images = ImageSet(
        ids=source.names,
        source=source,
        split=None if test is None else np.where(source.shard < count, TRAIN, TEST).astype("u1"),
        columns={
            title: np.concatenate([index.columns[title] for index in indexes]) for title in columns
        },
        skipped=skipped,
        strict=strict,
        streamed=not decode_once,
    )
    for title, column in images.columns.items():
        _refuse_empty(source, column, what=f"value for {title!r} in its JSON")
    labels = np.concatenate([index.labels for index in indexes])
    if not labels.astype(bool).any():
        return images
    _refuse_empty(source, labels, what=f"label (an entry cls, or {label!r} in its JSON)")
    return replace(images, labels=labels)


def _expand(pattern: str) -> list[Path]:
    if _ELSEWHERE.match(pattern):
        raise DataError(
            f"{pattern}: shards are read from local paths, nothing is fetched; copy them here, or "
            "mount where they are"
        )
    size = math.prod(abs(int(last) - int(first)) + 1 for first, last in _RANGE.findall(pattern))
    if size > MAX_SHARDS:  # checked first: the library builds the whole list
        raise DataError(f"{pattern}: expected at most {MAX_SHARDS:,} shards, got {size:,}")
    try:
        from braceexpand import braceexpand
    except ImportError as error:
        raise MissingDependency("webdataset", extra="shards", required_for="tar shards") from error
    try:
        expanded = [Path(name) for name in braceexpand(pattern)]
    except ValueError as error:
        raise DataError(
            f"{pattern}: expected a pattern such as train-{{000..003}}.tar ({error})"
        ) from error
    missing = [name for name in expanded if not name.exists()]
    if missing:
        raise DataError(
            f"{pattern}: {len(missing)} of {len(expanded)} shards are not there, first {missing[0]}"
        )
    return expanded


def _source(paths: Sequence[Path], indexes: Sequence[ShardIndex]) -> ShardSource:
    return ShardSource(
        shards=tuple(
            Shard(path, index.size, index.changed)
            for path, index in zip(paths, indexes, strict=True)
        ),
        shard=np.repeat(np.arange(len(indexes)), [len(index.names) for index in indexes]),
        names=np.concatenate([index.names for index in indexes]),
        offsets=np.concatenate([index.offsets for index in indexes]),
        sizes=np.concatenate([index.sizes for index in indexes]),
    )


def _refuse_doubled(paths: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in paths:
        real = path.resolve()
        if real in seen:
            raise DataError(f"{path}: this shard is listed twice; list each once")
        seen.add(real)


def _refuse_doubled_names(source: ShardSource) -> None:
    first: dict[str, int] = {}
    for row, name in enumerate(source.names.tolist()):
        if name in first:
            raise DataError(
                f"{source.uri(row)}: this name is also in {source.uri(first[name])}; a name is the "
                "id of its image, so write the shards with keys that are different in all of them"
            )
        first[name] = row


def _refuse_empty(source: ShardSource, values: StrArray, *, what: str) -> None:
    empty = np.flatnonzero(values == "")
    if len(empty):
        raise DataError(
            f"{len(empty)} of {len(values)} images have no {what}, first {source.uri(empty[0])}; "
            "give all of them one, and let the entries of a sample follow each other in the tar "
            "file (tar --sort=name)"
        )
