"""A gallery as blocks of rows, wherever it lies: in memory, memory-mapped, .npy, .npz or parquet.

Only one block is in memory at a time, so a file may be larger than the machine.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from midspan.errors import FormatError
from midspan.evaluation.scores import as_matrix
from midspan.spaces import Embeddings, Space

Matrix = npt.NDArray[Any]


class Blocks(Protocol):
    rows: int
    dim: int
    space: Space | None

    def read(self, size: int) -> Iterator[Matrix]:
        """Blocks of `size` rows, in order; the last one may be shorter."""
        ...


def open_blocks(gallery: Embeddings | Matrix | str | Path) -> Blocks:
    if isinstance(gallery, Embeddings):
        return ArrayBlocks(gallery.vectors, space=gallery.space)
    if not isinstance(gallery, str | Path):
        return ArrayBlocks(as_matrix(gallery, what="gallery"))
    path = Path(gallery)
    opener = _OPENERS.get(path.suffix)
    if opener is None:
        raise FormatError(f"{path}: a gallery is read from {', '.join(_OPENERS)}")
    if not path.is_file():
        raise FormatError(f"{path}: no such file")
    return opener(path)


class ArrayBlocks:
    """An array or a memory map."""

    def __init__(self, vectors: Matrix, *, space: Space | None = None) -> None:
        self.vectors = vectors
        self.rows, self.dim = vectors.shape
        self.space = space

    def read(self, size: int) -> Iterator[Matrix]:
        for start in range(0, self.rows, size):
            yield self.vectors[start : start + size]


class CompressedBlocks:
    """The deflated `vectors` of an .npz file, unpacked as they are needed."""

    def __init__(self, path: Path, *, space: Space | None) -> None:
        self.path = path
        self.space = space
        with zipfile.ZipFile(path) as archive, archive.open("vectors.npy") as file:
            shape, _ = _npy_header(file, path)
        self.rows, self.dim = shape

    def read(self, size: int) -> Iterator[Matrix]:
        with zipfile.ZipFile(self.path) as archive, archive.open("vectors.npy") as file:
            _, dtype = _npy_header(file, self.path)
            for start in range(0, self.rows, size):
                rows = min(size, self.rows - start)
                raw = file.read(rows * self.dim * dtype.itemsize)
                if len(raw) != rows * self.dim * dtype.itemsize:
                    raise FormatError(f"{self.path}: 'vectors' ends at row {start}; truncated?")
                yield np.frombuffer(raw, dtype=dtype).reshape(rows, self.dim)


class ParquetBlocks:
    """Row group by row group; the groups need not be as large as the blocks."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            with pq.ParquetFile(path) as file:
                schema, self.rows = file.schema_arrow, file.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: not a readable parquet file ({error})") from error
        if "vectors" not in schema.names:
            raise FormatError(f"{path}: expected a column 'vectors', got {schema.names}")
        kind = schema.field("vectors").type
        if not pa.types.is_fixed_size_list(kind):
            raise FormatError(
                f"{path}: 'vectors': expected a fixed-size list of floats, got {kind}"
            )
        self.dim = kind.list_size
        raw = (schema.metadata or {}).get(b"midspan.space")
        self.space = Space.from_json(raw.decode(), source=str(path)) if raw else None

    def read(self, size: int) -> Iterator[Matrix]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self.path) as file:
            held: list[Matrix] = []
            for batch in file.iter_batches(batch_size=size, columns=["vectors"]):
                flat = batch.column(0).flatten().to_numpy(zero_copy_only=False)
                held.append(flat.reshape(-1, self.dim))
                while sum(map(len, held)) >= size:  # batches end where row groups do
                    rows = np.concatenate(held) if len(held) > 1 else held[0]
                    yield rows[:size]
                    held = [rows[size:]] if len(rows) > size else []
            if held:
                yield np.concatenate(held)


def _open_npy(path: Path) -> Blocks:
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise FormatError(f"{path}: not a readable .npy file ({error})") from error
    return ArrayBlocks(as_matrix(vectors, what=str(path)))


def _open_npz(path: Path) -> Blocks:
    """Stored arrays are memory-mapped inside the archive, compressed ones unpacked in blocks."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if "vectors.npy" not in names:
                raise FormatError(f"{path}: expected 'vectors' (N, D), got {sorted(names)}")
            space = None
            if "space.npy" in names:
                with np.load(path, allow_pickle=False) as file:
                    space = Space.from_json(str(file["space"]), source=str(path))
            member = archive.getinfo("vectors.npy")
            if member.compress_type != zipfile.ZIP_STORED:
                return CompressedBlocks(path, space=space)
            with path.open("rb") as raw:
                # Local header: 30 bytes, then name and extra field, whose lengths stand at 26.
                raw.seek(member.header_offset + 26)
                name_length, extra_length = np.frombuffer(raw.read(4), dtype="<u2").tolist()
                raw.seek(name_length + extra_length, 1)
                shape, dtype = _npy_header(raw, path)
                offset = raw.tell()
            if offset + int(np.prod(shape)) * dtype.itemsize > path.stat().st_size:
                raise FormatError(f"{path}: 'vectors' is longer than the file; truncated?")
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise FormatError(f"{path}: not a readable .npz file ({error})") from error
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    return ArrayBlocks(mapped, space=space)


def _npy_header(file: Any, path: Path) -> tuple[tuple[int, int], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    reader = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if reader is None:
        raise FormatError(f"{path}: 'vectors' has .npy version {version}; save it again")
    shape, fortran, dtype = reader(file)
    if len(shape) != 2 or dtype.kind not in "fiu" or fortran:
        raise FormatError(
            f"{path}: expected (N, D) numbers in C order, got "
            f"{dtype}{shape}{' in Fortran order' * fortran}"
        )
    return (shape[0], shape[1]), dtype


_OPENERS = {".npz": _open_npz, ".npy": _open_npy, ".parquet": ParquetBlocks}
