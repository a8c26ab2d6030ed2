"""Vectors in files, read in parts and never as a whole: .npy with ids, parquet, lance, faiss.

They are copied into a gallery of any engine; the files stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from midspan.errors import FormatError, MissingDependency
from midspan.spaces import FloatArray, Metric, Space

EXACT_FAISS = ("IndexFlat", "IndexFlatIP", "IndexFlatL2", "IndexIVFFlat", "IndexHNSWFlat")


class VectorBatch(NamedTuple):
    """Some rows. A vector of a row that has none is all NaN."""

    ids: list[str]
    vectors: FloatArray  # (N, D)
    uris: list[str | None] | None
    payloads: list[dict[str, Any]] | None
    mark: float | None = None  # the highest watermark among them


@dataclass(frozen=True, slots=True)
class FileColumns:
    """What the columns of a table in a file are called."""

    id: str = "ids"
    vector: str = "vectors"
    uri: str | None = None
    payload: tuple[str, ...] = ()


class VectorFile(Protocol):
    shown: str
    rows: int
    dim: int
    metric: Metric | None  # that the file says
    space: Space | None  # that the file says

    def parts(self, size: int) -> Iterator[VectorBatch]: ...


def open_file(
    path: str | Path, *, ids: Path | None = None, names: FileColumns | None = None
) -> VectorFile:
    """By its ending: .npy, .parquet, .lance (or lance://…), else a faiss index."""
    text = str(path)
    if text.startswith("lance://") or text.rstrip("/").endswith(".lance"):
        return LanceTable(text.removeprefix("lance://"), names or FileColumns())
    file = Path(path)
    if not file.is_file():
        raise FormatError(f"{file}: no such file")
    if file.suffix == ".npy":
        return NumpyFile(file, ids)
    if file.suffix == ".parquet":
        return ParquetFile(file, names or FileColumns())
    if file.suffix in (".faiss", ".index", ".ivf", ".bin"):
        return FaissFile(file, ids)
    raise FormatError(f"{file}: expected .npy, .parquet, .lance, .faiss or .index")


def read_ids(path: Path | None, rows: int, *, of: Path) -> list[str]:
    """One in each line; without a file the row numbers."""
    if path is None:
        return [str(row) for row in range(rows)]
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not a readable text of ids ({error})") from error
    if lines and not lines[-1]:
        lines.pop()
    ids = [line.removesuffix("\r") for line in lines]
    if len(ids) != rows:
        raise FormatError(f"{path} has {len(ids):,} ids, {of} {rows:,} vectors; give one a line")
    return ids


class NumpyFile:
    metric: Metric | None = None
    space: Space | None = None

    def __init__(self, path: Path, ids: Path | None) -> None:
        try:
            self._vectors = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise FormatError(f"{path}: not a readable .npy file ({error})") from error
        if self._vectors.ndim != 2 or self._vectors.dtype.kind != "f":
            raise FormatError(
                f"{path}: expected floats (N, D), got {self._vectors.dtype} {self._vectors.shape}"
            )
        self.shown = str(path)
        self.rows, self.dim = self._vectors.shape
        self._ids = read_ids(ids, self.rows, of=path)

    def parts(self, size: int) -> Iterator[VectorBatch]:
        for start in range(0, self.rows, size):
            some = np.array(self._vectors[start : start + size], dtype=np.float32)
            yield VectorBatch(self._ids[start : start + size], some, None, None)


class FaissFile:
    """Mapped, not read: an index larger than the memory is fine."""

    space: Space | None = None

    def __init__(self, path: Path, ids: Path | None) -> None:
        import faiss

        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise FormatError(f"{path}: not a faiss index ({_first(error)})") from error
        self._swig: Any = faiss.swig_ptr
        self._whole = index  # which owns what the following refer to
        self._index: Any = faiss.downcast_index(index)
        self.shown, self.rows, self.dim = str(path), int(index.ntotal), int(index.d)
        numbers: list[str] | None = None
        if isinstance(self._index, faiss.IndexIDMap):
            numbers = list(map(str, faiss.vector_to_array(self._index.id_map).tolist()))
            self._index = faiss.downcast_index(self._index.index)
        kind = type(self._index).__name__
        if kind not in EXACT_FAISS:
            raise FormatError(
                f"{path}: a {kind} keeps codes, not the vectors themselves; expected one of "
                f"{', '.join(EXACT_FAISS)}. Import the vectors that it was made of"
            )
        if hasattr(self._index, "make_direct_map"):
            self._index.make_direct_map()
        inner = self._index.metric_type == faiss.METRIC_INNER_PRODUCT
        self.metric: Metric | None = "dot" if inner else "l2"
        given = ids is not None or numbers is None
        self._ids = read_ids(ids, self.rows, of=path) if given else numbers or []

    def parts(self, size: int) -> Iterator[VectorBatch]:
        for start in range(0, self.rows, size):
            count = min(size, self.rows - start)
            vectors = np.empty((count, self.dim), dtype=np.float32)
            # `reconstruct_n` itself is swapped by faiss.contrib.torch_utils, which
            # pytorch-metric-learning loads, for one that returns tensors.
            self._index.reconstruct_n_c(start, count, self._swig(vectors))
            yield VectorBatch(self._ids[start : start + count], vectors, None, None)


class ParquetFile:
    def __init__(self, path: Path, names: FileColumns) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self._file = pq.ParquetFile(path, memory_map=True)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: not a readable parquet file ({error})") from error
        self.shown, self._names = str(path), names
        schema = self._file.schema_arrow
        self.rows, self.dim = self._file.metadata.num_rows, 0
        _check_columns(self.shown, schema.names, names)
        raw = (schema.metadata or {}).get(b"midspan.space")
        self.space = None if raw is None else Space.from_json(raw.decode(), source=self.shown)
        self.metric = None if self.space is None else self.space.metric
        first = next(self._file.iter_batches(batch_size=1, columns=[names.vector]), None)
        if first is not None:
            self.dim = vectors_of(first.column(0), shown=self.shown, dim=None).shape[1]

    def parts(self, size: int) -> Iterator[VectorBatch]:
        columns = _columns(self._names)
        for batch in self._file.iter_batches(batch_size=size, columns=columns):
            yield arrow_part(batch, self._names, shown=self.shown, dim=self.dim)


class LanceTable:
    metric: Metric | None = None
    space: Space | None = None

    def __init__(self, path: str, names: FileColumns) -> None:
        try:
            import lance
        except ImportError as error:
            raise MissingDependency(
                "pylance", extra="lance", required_for="a Lance table"
            ) from error
        try:
            table: Any = lance.dataset(path)
        except (ValueError, OSError) as error:
            raise FormatError(f"{path}: not a Lance table ({_first(error)})") from error
        self.shown, self._names, self._table = path, names, table
        _check_columns(path, self._table.schema.names, names)
        self.rows, self.dim = self._table.count_rows(), 0
        first = self._table.head(1, columns=[names.vector])
        if len(first):
            column = first.column(0).combine_chunks()
            self.dim = vectors_of(column, shown=path, dim=None).shape[1]

    def parts(self, size: int) -> Iterator[VectorBatch]:
        for batch in self._table.to_batches(columns=_columns(self._names), batch_size=size):
            yield arrow_part(batch, self._names, shown=self.shown, dim=self.dim)


# ---- columns of Arrow ----------------------------------------------------------------------------


def arrow_part(batch: Any, names: FileColumns, *, shown: str, dim: int) -> VectorBatch:
    ids = batch.column(names.id).to_pylist()
    if None in ids:
        raise FormatError(f"{shown}: {names.id} has rows that are null; drop them first")
    uris = None if names.uri is None else _texts(batch.column(names.uri).to_pylist())
    columns = [batch.column(name).to_pylist() for name in names.payload]
    payloads = [
        {name: value for name, value in zip(names.payload, row, strict=True) if value is not None}
        for row in zip(*columns, strict=True)
    ]
    vectors = vectors_of(batch.column(names.vector), shown=shown, dim=dim)
    return VectorBatch(list(map(str, ids)), vectors, uris, payloads if names.payload else None)


def vectors_of(column: Any, *, shown: str, dim: int | None) -> FloatArray:
    """(N, D) of a column of lists; NaN where a row has none."""
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or
            pa.types.is_fixed_size_list(kind)):  # fmt: skip
        raise FormatError(f"{shown}: the vectors are of type {kind}; expected lists of floats")
    there = np.asarray(column.is_valid())
    kept = column.drop_null()
    if pa.types.is_fixed_size_list(kind):
        width = kind.list_size
    else:
        sizes = set(column.value_lengths().drop_null().to_pylist())
        if len(sizes) > 1 or (dim and sizes and sizes != {dim}):
            raise FormatError(
                f"{shown}: the vectors have {sorted(sizes)} numbers; expected one dim"
            )
        width = sizes.pop() if sizes else (dim or 0)
    flat = np.asarray(kept.flatten().to_numpy(zero_copy_only=False), dtype=np.float32)
    vectors = np.full((len(there), width), np.nan, dtype=np.float32)
    vectors[there] = flat.reshape(-1, width) if width else flat.reshape(0, 0)
    return vectors


def _columns(names: FileColumns) -> list[str]:
    uri = [] if names.uri is None else [names.uri]
    return list(dict.fromkeys([names.id, names.vector, *uri, *names.payload]))


def _check_columns(shown: str, there: Sequence[str], names: FileColumns) -> None:
    for name in _columns(names):
        if name not in there:
            raise FormatError(f"{shown} has no column {name!r}; it has {', '.join(there)}")


def _texts(values: list[Any]) -> list[str | None]:
    return [None if value is None else str(value) for value in values]


def _first(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
