"""Spaces and embeddings: no vectors travel without the space they live in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from midspan.errors import FormatError, SpaceMismatch, UnknownId, VectorError

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
StrArray = npt.NDArray[np.str_]
Column = npt.NDArray[Any]
Metric = Literal["cosine", "l2", "dot"]

RESERVED = ("vectors", "ids", "space")  # names in the file that are not columns


def fingerprint(*parts: bytes | str) -> str:
    """Digest of everything that makes a vector what it is; order matters.

    Each part is length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Space:
    """The coordinate system of one encoder's vectors.

    `fingerprint` identifies it (weights + preprocessing + dim + normalisation); the name is for
    people. `compatible_with` holds the fingerprints of older spaces whose vectors may be compared
    with these as they are, because the encoder was trained for it.
    """

    name: str
    dim: int
    metric: Metric = "cosine"
    fingerprint: str = ""
    compatible_with: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise VectorError(f"a space wants a name, got {self.name!r}")
        if not isinstance(self.dim, int) or isinstance(self.dim, bool) or self.dim < 1:
            raise VectorError(f"space {self.name!r} wants a positive dim, got {self.dim!r}")
        if self.metric not in get_args(Metric):
            raise VectorError(
                f"space {self.name!r} has metric {self.metric!r}; use one of {get_args(Metric)}"
            )
        if not self.fingerprint:
            # Nobody vouches for the weights: say so in the fingerprint itself.
            declared = fingerprint(self.name, str(self.dim), self.metric)
            object.__setattr__(self, "fingerprint", f"declared:{declared}")
        object.__setattr__(self, "compatible_with", tuple(self.compatible_with))

    def __str__(self) -> str:
        return f"'{self.name}' ({self.dim}-d {self.metric}, {self.fingerprint[:17]})"

    def same_as(self, other: Space) -> bool:
        return (self.fingerprint, self.dim, self.metric) == (
            other.fingerprint,
            other.dim,
            other.metric,
        )

    def comparable_with(self, other: Space) -> bool:
        """True if vectors of the two may be compared as they are: same space, or on record."""
        if self.same_as(other):
            return True
        if (self.dim, self.metric) != (other.dim, other.metric):
            return False
        return (
            other.fingerprint in self.compatible_with or self.fingerprint in other.compatible_with
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, *, source: str = "space") -> Space:
        try:
            raw = json.loads(text)
            known = {name: raw[name] for name in cls.__dataclass_fields__ if name in raw}
            if "compatible_with" in known:
                known["compatible_with"] = tuple(known["compatible_with"])
            return cls(**known)
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{source}: the space is not readable JSON ({error})") from error


def check_comparable(query: Space, gallery: Space) -> None:
    """Refuse to compare vectors of two spaces that nothing connects."""
    if query.comparable_with(gallery):
        return
    raise SpaceMismatch(
        f"query vectors are in {query}, gallery vectors in {gallery}, and no compatibility "
        "between the two is on record; train the new encoder compatibly (method = 'bct'), "
        "map one side with a bridge, or say so explicitly if you know better (--direct)"
    )


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Ids, vectors (N, D) float32 and their space; further columns (labels, cameras …) by name."""

    ids: StrArray
    vectors: FloatArray
    space: Space
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids)
        if ids.dtype.kind != "U":
            ids = ids.astype(np.str_)
        vectors = np.ascontiguousarray(self.vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.space.dim:
            raise VectorError(
                f"vectors have shape {vectors.shape}; space {self.space} wants "
                f"(N, {self.space.dim})"
            )
        if ids.ndim != 1 or len(ids) != len(vectors):
            raise VectorError(f"{ids.shape} ids for {len(vectors)} vectors; give one id a vector")
        _check_unique(ids)
        _check_numbers(ids, vectors, cosine=self.space.metric == "cosine")
        columns = {}
        for name, column in self.columns.items():
            values = np.asarray(column)
            if name in RESERVED:
                raise VectorError(f"a column may not be called {name!r}; rename it")
            if values.ndim == 0 or len(values) != len(vectors):
                raise VectorError(
                    f"column {name!r} has shape {values.shape} for {len(vectors)} vectors"
                )
            columns[name] = values
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | npt.NDArray[Any] | Sequence[int]) -> Embeddings:
        """A part of the rows: slice, mask or indices."""
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if len(rows) == 0:  # an empty list would come as float64
                rows = rows.astype(np.int64)
        return Embeddings(
            ids=self.ids[rows],
            vectors=self.vectors[rows],
            space=self.space,
            columns={name: column[rows] for name, column in self.columns.items()},
        )

    @property
    def labels(self) -> Column | None:
        return self.columns.get("labels")

    def rows_of(self, ids: Sequence[str] | StrArray) -> IntArray:
        """Row of each id; unknown ids are an error."""
        wanted = np.asarray(ids, dtype=np.str_)
        order = np.argsort(self.ids, kind="stable")
        place = np.searchsorted(self.ids, wanted, sorter=order)
        rows = order[np.minimum(place, len(order) - 1)] if len(order) else place
        missing = wanted != self.ids[rows] if len(order) else np.ones(len(wanted), dtype=bool)
        if missing.any():
            raise UnknownId(
                f"{int(missing.sum())} of {len(wanted)} ids are not among these {len(self)} "
                f"embeddings, first {str(wanted[missing][0])!r}"
            )
        return rows.astype(np.int64)

    def take(self, ids: Sequence[str] | StrArray) -> Embeddings:
        """These ids, in this order."""
        return self[self.rows_of(ids)]

    def paired_with(self, other: Embeddings) -> tuple[Embeddings, Embeddings]:
        """The items that both have, in this one's order: (mine, theirs), row by row the same id."""
        _, mine, theirs = np.intersect1d(
            self.ids, other.ids, assume_unique=True, return_indices=True
        )
        if len(mine) == 0:
            raise UnknownId(
                f"the two sets share no id (first here {_first(self.ids)}, "
                f"first there {_first(other.ids)}); pairs are found by id"
            )
        order = np.argsort(mine, kind="stable")
        return self[mine[order]], other[theirs[order]]

    def joined_with(self, other: Embeddings) -> Embeddings:
        """One set after the other; both must be in the same space and share no id."""
        if not self.space.same_as(other.space):
            raise SpaceMismatch(
                f"cannot join embeddings in {self.space} with embeddings in {other.space}: one set "
                "holds one space; keep two sets, or map one of them into the other's space"
            )
        shared = self.columns.keys() & other.columns.keys()
        return Embeddings(
            ids=np.concatenate([self.ids, other.ids]),
            vectors=np.concatenate([self.vectors, other.vectors]),
            space=self.space,
            columns={
                name: np.concatenate([self.columns[name], other.columns[name]])
                for name in sorted(shared)
            },
        )

    def with_columns(self, columns: Mapping[str, Column]) -> Embeddings:
        return replace(self, columns={**self.columns, **columns})

    def normalised(self) -> Embeddings:
        """Unit vectors; only cosine spaces have the same meaning afterwards."""
        if self.space.metric != "cosine":
            raise VectorError(f"{self.space} is not a cosine space: normalising would change it")
        norms = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return replace(self, vectors=self.vectors / norms)

    def save(self, path: str | Path) -> Path:
        """Write `.npz` (no pickle) or `.parquet`, by the ending; the file appears whole or not."""
        return save_embeddings(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Embeddings:
        return load_embeddings(path)


def _first(ids: StrArray) -> str:
    return repr(str(ids[0])) if len(ids) else "none"


def _check_unique(ids: StrArray) -> None:
    sorted_ids = np.sort(ids)
    doubled = sorted_ids[1:][sorted_ids[1:] == sorted_ids[:-1]]
    if len(doubled):
        raise VectorError(
            f"{len(doubled)} ids stand more than once, first {str(doubled[0])!r}; "
            "ids must be unique"
        )


def _check_numbers(ids: StrArray, vectors: FloatArray, *, cosine: bool) -> None:
    """Blocks keep the temporary arrays small beside a large gallery."""
    for start in range(0, len(vectors), 65536):
        block = vectors[start : start + 65536]
        squared = np.einsum("nd,nd->n", block, block, dtype=np.float64)
        bad = ~np.isfinite(squared)
        what = "NaN or infinite values"
        if cosine and not bad.any():
            bad, what = squared == 0, "length zero, which has no direction"
        if bad.any():
            row = start + int(np.flatnonzero(bad)[0])
            raise VectorError(
                f"vector of {str(ids[row])!r} (row {row}) has {what}; "
                f"{int(bad.sum())} such rows in this block: remove them before going on"
            )


# ---- files --------------------------------------------------------------------------------------


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


def load_embeddings(path: str | Path) -> Embeddings:
    """Read `.npz` or `.parquet`. Files without a space get one by their own name, 'declared'."""
    path = Path(path)
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise FormatError(f"{path}: embeddings are read from {' or '.join(_READERS)}")
    if not path.is_file():
        raise FormatError(f"{path}: no such file")
    return reader(path)


def _write_npz(embeddings: Embeddings, path: Path) -> None:
    with path.open("wb") as file:
        np.savez(
            file,
            vectors=embeddings.vectors,
            ids=embeddings.ids,
            space=np.array(embeddings.space.to_json()),
            **embeddings.columns,  # type: ignore[arg-type]
        )


def _read_npz(path: Path) -> Embeddings:
    try:
        with path.open("rb") as raw_file, np.load(raw_file, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib, numpy and OS each have their own
        raise FormatError(f"{path}: not a readable .npz file ({error})") from error
    if "vectors" not in arrays:
        raise FormatError(
            f"{path}: holds {sorted(arrays)}, wanted 'vectors' (N, D); is it an image set?"
        )
    vectors = arrays.pop("vectors")
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise FormatError(
            f"{path}: vectors are {vectors.dtype} {vectors.shape}, wanted floats (N, D)"
        )
    ids = arrays.pop("ids", None)
    if ids is None:
        ids = np.arange(len(vectors)).astype(np.str_)
    raw = arrays.pop("space", None)
    space = (
        Space(name=path.stem, dim=vectors.shape[1])
        if raw is None
        else Space.from_json(str(raw), source=str(path))
    )
    return Embeddings(ids=ids, vectors=vectors, space=space, columns=arrays)


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
            raise FormatError(f"column {name!r} has shape {column.shape}; parquet wants one value")
        columns[name] = pa.array(column.tolist() if column.dtype.kind == "U" else column)
    table = pa.table(columns)
    table = table.replace_schema_metadata({"midspan.space": embeddings.space.to_json()})
    pq.write_table(table, path)


def _read_parquet(path: Path) -> Embeddings:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: not a readable parquet file ({error})") from error
    if "vectors" not in table.column_names:
        raise FormatError(f"{path}: has the columns {table.column_names}, wanted 'vectors'")
    lists = table.column("vectors").combine_chunks()
    if not pa.types.is_fixed_size_list(lists.type):
        raise FormatError(f"{path}: 'vectors' is {lists.type}, wanted a fixed-size list of floats")
    dim = lists.type.list_size
    vectors = lists.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    metadata = table.schema.metadata or {}
    raw = metadata.get(b"midspan.space")
    space = (
        Space(name=path.stem, dim=dim)
        if raw is None
        else Space.from_json(raw.decode(), source=str(path))
    )
    columns = {name: _numpy_column(table, name) for name in table.column_names if name != "vectors"}
    ids = columns.pop("ids", np.arange(len(vectors)).astype(np.str_))
    return Embeddings(ids=ids, vectors=vectors, space=space, columns=columns)


def _numpy_column(table: Any, name: str) -> Column:
    values = table.column(name).combine_chunks()
    if str(values.type) in ("string", "large_string"):
        return np.asarray(values.to_pylist(), dtype=np.str_)
    return np.asarray(values.to_numpy(zero_copy_only=False))


_WRITERS = {".npz": _write_npz, ".parquet": _write_parquet}
_READERS = {".npz": _read_npz, ".parquet": _read_parquet}
