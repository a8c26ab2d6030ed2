"""Embeddings in `.npz` and `.parquet` files; a bare array in `.npy` is read too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from midspan.errors import FormatError, SpaceMismatch, SpaceMissing
from midspan.spaces import Column, Embeddings, FloatArray, Space, StrArray

# Written into every file, under "midspan": labels are "names", or the "numbers" of a file that was
# read from an earlier version, which had no such mark.
FORMAT = 2


def save_embeddings(embeddings: Embeddings, path: str | Path) -> Path:
    path = Path(path)
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        raise FormatError(f"{path}: embeddings are written as {' or '.join(_WRITERS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        writer(embeddings, part)
        part.replace(path)  # atomic on one file system
    finally:
        part.unlink(missing_ok=True)
    return path


def load_embeddings(path: str | Path, *, space: Space | str | None = None) -> Embeddings:
    """Read `.npz`, `.parquet` or `.npy`; a file without a space needs `space`, or its name.

    An `.npy` file holds the vectors alone: the ids are the row numbers, "0", "1" and so on.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise FormatError(f"{path}: embeddings are read from {' or '.join(_READERS)}")
    if not path.is_file():
        raise FormatError(f"{path}: no such file")
    return reader(path, space)


def _write_npz(embeddings: Embeddings, path: Path) -> None:
    with path.open("wb") as file:
        np.savez(
            file,
            vectors=embeddings.vectors,
            ids=embeddings.ids,
            space=np.array(embeddings.space.to_json()),
            midspan=np.array(_mark(embeddings)),
            **embeddings.columns,  # type: ignore[arg-type]
        )


def _read_npz(path: Path, given: Space | str | None) -> Embeddings:
    try:
        with path.open("rb") as raw_file, np.load(raw_file, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib, numpy and OS each have their own
        raise FormatError(f"{path}: not a readable .npz file ({error})") from error
    if "vectors" not in arrays:
        raise FormatError(
            f"{path}: expected 'vectors' (N, D), got {sorted(arrays)}; is it an image set?"
        )
    vectors = arrays.pop("vectors")
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise FormatError(
            f"{path}: expected vectors (N, D) of floats, got {vectors.dtype} {vectors.shape}"
        )
    raw, mark = (
        None if value is None else str(value)
        for value in (arrays.pop("space", None), arrays.pop("midspan", None))
    )
    return _embeddings(path, arrays, vectors, raw=raw, mark=mark, given=given)


def _read_npy(path: Path, given: Space | str | None) -> Embeddings:
    try:
        vectors = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy and OS each have their own
        raise FormatError(f"{path}: not a readable .npy file ({error})") from error
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f":
        kind = getattr(vectors, "dtype", type(vectors).__name__)
        raise FormatError(
            f"{path}: expected an array of floats (N, D), got {kind} "
            f"{getattr(vectors, 'shape', '')}"
        )
    return _embeddings(path, {}, vectors, raw=None, mark=None, given=given)


def _write_parquet(embeddings: Embeddings, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = pa.array(embeddings.vectors.reshape(-1), type=pa.float32())
    columns: dict[str, Any] = {
        "ids": pa.array(embeddings.ids.tolist(), type=pa.string()),
        "vectors": pa.FixedSizeListArray.from_arrays(flat, embeddings.space.dim),
    }
    for name, column in embeddings.columns.items():
        if column.ndim != 1:
            raise FormatError(
                f"column {name!r} has shape {column.shape}; parquet requires one value"
            )
        columns[name] = pa.array(column.tolist() if column.dtype.kind == "U" else column)
    table = pa.table(columns)
    table = table.replace_schema_metadata(
        {"midspan.space": embeddings.space.to_json(), "midspan": _mark(embeddings)}
    )
    pq.write_table(table, path)


def _read_parquet(path: Path, given: Space | str | None) -> Embeddings:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: not a readable parquet file ({error})") from error
    if "vectors" not in table.column_names:
        raise FormatError(f"{path}: expected the column 'vectors', got {table.column_names}")
    lists = table.column("vectors").combine_chunks()
    if not pa.types.is_fixed_size_list(lists.type):
        raise FormatError(f"{path}: expected 'vectors' in lists of one size, got {lists.type}")
    dim = lists.type.list_size
    vectors = lists.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    metadata = table.schema.metadata or {}
    raw, mark = (
        None if value is None else value.decode()
        for value in (metadata.get(b"midspan.space"), metadata.get(b"midspan"))
    )
    columns = {
        name: _numpy_column(path, table, name) for name in table.column_names if name != "vectors"
    }
    return _embeddings(path, columns, vectors, raw=raw, mark=mark, given=given)


def _numpy_column(path: Path, table: Any, name: str) -> Column:
    values = table.column(name).combine_chunks()
    if name in ("ids", "labels") and values.null_count:
        raise FormatError(
            f"{path}: {values.null_count} of {len(values)} {name} are null; drop those rows first"
        )
    if str(values.type) in ("string", "large_string"):
        return np.asarray(values.to_pylist(), dtype=np.str_)
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _embeddings(
    path: Path,
    columns: dict[str, Column],
    vectors: FloatArray,
    *,
    raw: str | None,
    mark: str | None,
    given: Space | str | None,
) -> Embeddings:
    ids: StrArray = columns.pop("ids", np.arange(len(vectors)).astype(np.str_))
    stored = None if raw is None else Space.from_json(raw, source=str(path))
    labels = columns.get("labels")
    return Embeddings(
        ids=ids,
        vectors=vectors,
        space=_space(path, stored, given, dim=vectors.shape[1]),
        columns=columns,
        numbered=labels is not None and _numbered(path, labels, stored, mark),
    )


def _space(path: Path, stored: Space | None, given: Space | str | None, *, dim: int) -> Space:
    if stored is None:
        if given is None:
            raise SpaceMissing(
                f"{path}: does not say which space its {dim}-d vectors are in; pass space=NAME, "
                "one name for all files of one encoder"
            )
        return Space(name=given, dim=dim) if isinstance(given, str) else given
    if given is None or (given == stored.name if isinstance(given, str) else given.same_as(stored)):
        return stored
    raise SpaceMismatch(
        f"{path}: its vectors are in {stored}, but space={given!s} was passed; a file that holds "
        "its space needs none"
    )


def _mark(embeddings: Embeddings) -> str:
    labels = "numbers" if embeddings.numbered else "names"
    return json.dumps({"format": FORMAT, "labels": labels}, sort_keys=True)


def _numbered(path: Path, labels: Column, stored: Space | None, mark: str | None) -> bool:
    """True for numbers that an earlier version gave to classes of which it kept no names.

    It wrote them as integers, with the space of an encoder. Integers in anybody's own file, or
    of a space that was only declared, are what its maker calls the classes.
    """
    if mark is not None:
        try:
            return bool(json.loads(mark)["labels"] == "numbers")
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{path}: its format mark is not readable ({error})") from error
    by_encoder = stored is not None and not stored.fingerprint.startswith("declared:")
    return by_encoder and labels.dtype.kind in "iu"


_WRITERS = {".npz": _write_npz, ".parquet": _write_parquet}
_READERS = {".npz": _read_npz, ".parquet": _read_parquet, ".npy": _read_npy}
