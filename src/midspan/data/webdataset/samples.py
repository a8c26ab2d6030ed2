"""The samples of a shard as WebDataset groups them: an image, its label, its JSON.

Headers, labels and the first bytes of every image are read; the images stay where they are.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from midspan.data.decode import MAX_BYTES, SUFFIXES, decode_image, open_checked
from midspan.data.images import Skipped
from midspan.data.webdataset.index import ShardIndex, cached_index
from midspan.data.webdataset.tar_members import CONTROL, Member, members
from midspan.errors import DataError, FormatError, ImageError, MissingDependency
from midspan.image_size import ImageSize

MAX_TEXT = 2**20  # bytes of a label or of a JSON entry
_NOTES = re.compile(r"__[^/]*__($|/)")  # WebDataset's own notes
_HEAD = 2**16  # bytes of an image that are read to see what it is


@dataclass(frozen=True, kw_only=True)
class SampleSpec:
    """What is read of each sample."""

    image: str | None = None  # entry with the image, such as "jpg"; None: the only one there is
    label: str = "label"  # key of the JSON entry, for samples without an entry "cls"
    columns: tuple[str, ...] = ()  # further keys of the JSON entry
    check: Literal["header", "decode"] = "header"


def read_index(path: Path, *, spec: SampleSpec) -> ShardIndex:
    """Indexed once, then read from the cache."""
    make = functools.partial(_walk, path, spec)
    return cached_index(path, rules=json.dumps(asdict(spec)), make=make)


@dataclass(frozen=True, slots=True)
class _Row:
    member: Member
    label: str
    columns: tuple[str, ...]


def _walk(path: Path, spec: SampleSpec, size: int, changed: int) -> ShardIndex:
    rows: list[_Row] = []
    skipped: list[Skipped] = []
    try:
        with path.open("rb") as file:
            for sample in _samples(file, path=path):
                try:
                    rows.append(_row(sample, file, spec=spec))
                except ImageError as error:
                    reason = str(error).removeprefix("image: ")
                    name = _printable_key(sample)
                    skipped.append(Skipped(path=f"{path.name}#{name}", reason=reason))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return ShardIndex(
        size=size,
        changed=changed,
        names=np.array([row.member.name for row in rows], dtype=np.str_),
        offsets=np.array([row.member.offset for row in rows], dtype=np.int64),
        sizes=np.array([row.member.size for row in rows], dtype=np.int64),
        labels=np.array([row.label for row in rows], dtype=np.str_),
        columns={
            title: np.array([row.columns[place] for row in rows], dtype=np.str_)
            for place, title in enumerate(spec.columns)
        },
        skipped=tuple(skipped),
    )


def _samples(file: IO[bytes], *, path: Path) -> Iterator[dict[str, Any]]:
    """{"__key__": …, "jpg": Member, "cls": Member …}: grouped as WebDataset itself does it."""
    try:
        from webdataset.tariterators import group_by_keys
    except ImportError as error:
        raise MissingDependency("webdataset", extra="shards", required_for="tar shards") from error
    entries = (
        {"fname": member.name, "data": member, "__url__": str(path)}
        for member in members(file, path=path)
        if not _NOTES.match(member.name)
    )
    try:
        yield from group_by_keys(entries)
    except ValueError as error:
        raise FormatError(f"{path}: {error.args[0]}; expected each entry once") from error


def _row(sample: Mapping[str, Any], file: IO[bytes], *, spec: SampleSpec) -> _Row:
    member = _image(sample, spec=spec)
    if member.refused:
        raise ImageError(member.refused)
    _check_image(file, member, decode=spec.check == "decode")
    facts = _json(sample, file)
    label = _text(sample, file, "cls").strip()
    said = _scalar(facts, spec.label)
    if label and said and label != said:
        raise ImageError(f"its entry cls says {label!r}, its JSON {spec.label} = {said!r}")
    return _Row(member, label or said, tuple(_scalar(facts, title) for title in spec.columns))


def _printable_key(sample: Mapping[str, Any]) -> str:
    """The sample's key, safe to print."""
    return CONTROL.sub("?", str(sample["__key__"]).encode(errors="replace").decode())


def _image(sample: Mapping[str, Any], *, spec: SampleSpec) -> Member:
    images = {
        entry: member
        for entry, member in sample.items()
        if isinstance(member, Member) and f".{entry}".endswith(SUFFIXES)
    }
    if spec.image is not None:
        images = {entry: m for entry, m in images.items() if entry == spec.image}
    if len(images) > 1:
        raise DataError(
            f"{sample['__url__']}: sample {sample['__key__']!r} has {len(images)} images "
            f"({', '.join(images)}); choose one: [data] image = {next(iter(images))!r}"
        )
    if not images:
        raise ImageError(f"has no image ({spec.image or 'jpg, png, webp …'})")
    return next(iter(images.values()))


def _check_image(file: IO[bytes], member: Member, *, decode: bool) -> None:
    """By the rules of decode.py: the header, or the whole image."""
    if member.size > MAX_BYTES:
        raise ImageError(f"has {member.size:,} bytes; more than {MAX_BYTES:,} are not read")
    file.seek(member.offset)
    if decode:
        decode_image(file.read(member.size), ImageSize(8, 8, 3))
        return
    head = file.read(min(member.size, _HEAD))
    try:
        with open_checked(head):
            return
    except ImageError:
        if member.size <= _HEAD:
            raise
    with open_checked(head + file.read(member.size - _HEAD)):  # a TIFF's header may be at its end
        return


def _json(sample: Mapping[str, Any], file: IO[bytes]) -> Mapping[str, Any]:
    text = _text(sample, file, "json")
    try:
        facts = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ImageError(f"its JSON is not readable ({error})") from error
    if not isinstance(facts, dict):
        raise ImageError(f"its JSON: expected an object, got a {type(facts).__name__}")
    return facts


def _text(sample: Mapping[str, Any], file: IO[bytes], entry: str) -> str:
    member = sample.get(entry)
    if not isinstance(member, Member):
        return ""
    if member.size > MAX_TEXT:
        raise ImageError(f"its entry {entry} has {member.size:,} bytes; at most {MAX_TEXT:,}")
    file.seek(member.offset)
    try:
        text = file.read(member.size).decode()
    except UnicodeDecodeError as error:
        raise ImageError(f"its entry {entry} is not text in UTF-8") from error
    if entry == "cls" and CONTROL.search(text.strip()):
        raise ImageError("its class: expected one line of text, got control characters")
    return text


def _scalar(facts: Mapping[str, Any], title: str) -> str:
    """Empty where there is none."""
    value = facts.get(title)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ImageError(f"its JSON: expected a text or a number for {title}, got {value!r:.60}")
    return str(value)
