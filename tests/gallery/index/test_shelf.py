"""Rows of vectors that grow without moving, with holes that are used again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.gallery.index import shelf as shelf_module
from midspan.gallery.index.locks import SharedLock
from midspan.gallery.index.shelf import HOLE, Shelf


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "BLOCK_BYTES", 64 * 4 * 3)  # 64 rows a block


@pytest.mark.parametrize("in_file", [False, True])
def test_a_shelf_against_a_dict(tmp_path: Path, in_file: bool) -> None:
    rng = np.random.default_rng(0)
    shelf = Shelf(3, folder=tmp_path if in_file else None)
    model = dict[int, tuple[int, np.ndarray]]()
    assert shelf.block == 64
    next_item = 0
    for _ in range(200):
        if rng.random() < 0.6:
            count = int(rng.integers(1, 20))
            items = np.arange(next_item, next_item + count)
            next_item += count
            vectors = rng.standard_normal((count, 3)).astype(np.float32)
            rows = shelf.add(items, vectors, space=int(items[0] % 5))
            assert not set(rows.tolist()) & model.keys(), "a row that is in use"
            model |= {
                int(row): (int(item), vector)
                for row, item, vector in zip(rows, items, vectors, strict=True)
            }
        elif model:
            gone = rng.choice(sorted(model), size=min(len(model), 10), replace=False)
            shelf.remove(gone)
            for row in gone.tolist():
                del model[row]
    rows = np.array(sorted(model))
    assert len(shelf) == len(model)
    assert shelf.items[rows].tolist() == [model[row][0] for row in rows.tolist()]
    np.testing.assert_array_equal(shelf.take(rows), [model[row][1] for row in rows.tolist()])
    assert (np.delete(shelf.items, rows) == HOLE).all()
    assert shelf.holes == shelf.size - len(model)


def test_parts_cover_every_row_once() -> None:
    shelf = Shelf(3)
    vectors = np.arange(450, dtype=np.float32).reshape(150, 3)
    shelf.add(np.arange(150), vectors, space=1)
    parts = list(shelf.parts())
    assert [first for first, _ in parts] == [0, 64, 128]
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), vectors)
    assert all(np.shares_memory(part, shelf.blocks[i]) for i, (_, part) in enumerate(parts))


def test_growing_does_not_move_what_is_there() -> None:
    shelf = Shelf(3)
    shelf.add(np.arange(10), np.ones((10, 3), np.float32), space=1)
    first = shelf.blocks[0]
    shelf.add(np.arange(5000), np.zeros((5000, 3), np.float32), space=2)
    assert shelf.blocks[0] is first
    assert (shelf.take(np.arange(10)) == 1).all()
    assert (shelf.spaces[:10] == 1).all()
    assert (shelf.spaces[10:] == 2).all()


def test_blocks_move_to_a_file_and_back(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((150, 3)).astype(np.float32)
    shelf = Shelf(3)
    shelf.add(np.arange(150), vectors, space=1)
    for folder in (tmp_path, None):
        before = list(shelf.blocks)
        shelf.move(folder, lock=SharedLock())
        assert shelf.folder == folder
        assert not any(np.shares_memory(a, b) for a, b in zip(before, shelf.blocks, strict=True))
        np.testing.assert_array_equal(shelf.take(np.arange(150)), vectors)
        assert list(tmp_path.iterdir()) == []  # the file has no name
        rows = shelf.add(np.arange(100), vectors[:100], space=1)  # into the rest, and a new block
        np.testing.assert_array_equal(shelf.take(rows), vectors[:100])
        shelf.remove(rows)
