"""Galleries in files, block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from midspan.errors import FormatError
from midspan.evaluation.blocks import ArrayBlocks, CompressedBlocks, ParquetBlocks, open_blocks
from tests.evaluation.sets import embeddings

VECTORS = np.arange(44, dtype=np.float32).reshape(11, 4) + 1


def test_parquet_row_groups_need_not_fit_the_blocks(tmp_path: Path) -> None:
    flat = pa.array(VECTORS.reshape(-1), type=pa.float32())
    table = pa.table({"vectors": pa.FixedSizeListArray.from_arrays(flat, 4)})
    pq.write_table(table, tmp_path / "g.parquet", row_group_size=3)
    blocks = open_blocks(tmp_path / "g.parquet")
    assert isinstance(blocks, ParquetBlocks)
    assert (blocks.rows, blocks.dim, blocks.space) == (11, 4, None)
    for size in (1, 2, 3, 5, 100):
        parts = list(blocks.read(size))
        assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
        np.testing.assert_array_equal(np.concatenate(parts), VECTORS)


def test_npz_is_mapped_if_stored_and_unpacked_if_compressed(tmp_path: Path) -> None:
    items = embeddings(VECTORS, name="shop")
    stored = open_blocks(items.save(tmp_path / "stored.npz"))
    assert isinstance(stored, ArrayBlocks)
    assert isinstance(stored.vectors, np.memmap)
    assert stored.space is not None
    assert stored.space.name == "shop"
    np.savez_compressed(tmp_path / "packed.npz", vectors=VECTORS)
    packed = open_blocks(tmp_path / "packed.npz")
    assert isinstance(packed, CompressedBlocks)
    for blocks in (stored, packed):
        np.testing.assert_array_equal(np.concatenate(list(blocks.read(4))), VECTORS)
        np.testing.assert_array_equal(np.concatenate(list(blocks.read(4))), VECTORS)  # again


def test_files_of_another_kind(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", images=np.zeros((2, 3)))
    with pytest.raises(FormatError, match=r"expected (a column )?'vectors'"):
        open_blocks(tmp_path / "images.npz")
    np.savez(tmp_path / "flat.npz", vectors=np.zeros(3))
    with pytest.raises(FormatError, match="in C order"):
        open_blocks(tmp_path / "flat.npz")
    np.savez(tmp_path / "fortran.npz", vectors=np.asfortranarray(VECTORS))
    with pytest.raises(FormatError, match="in Fortran order"):
        open_blocks(tmp_path / "fortran.npz")
    pq.write_table(pa.table({"ids": ["a"]}), tmp_path / "ids.parquet")
    with pytest.raises(FormatError, match=r"expected (a column )?'vectors'"):
        open_blocks(tmp_path / "ids.parquet")
    pq.write_table(pa.table({"vectors": [[1.0], [1.0, 2.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(FormatError, match="fixed-size list"):
        open_blocks(tmp_path / "ragged.parquet")


def test_a_truncated_npz_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", vectors=np.random.default_rng(0).standard_normal((500, 8)))
    whole = (tmp_path / "g.npz").read_bytes()
    (tmp_path / "g.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"g\.npz"):
        open_blocks(tmp_path / "g.npz")
