"""Rows in a file without a name: kept, given back, and an error when there is no room."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import StoreError
from midspan.gallery.index.side_file import STEP, SideFile


def test_rows_are_kept_and_the_folder_stays_empty(tmp_path: Path) -> None:
    file = SideFile(tmp_path, rows=1000, dim=7)
    file.claim(1000)
    rows = np.random.default_rng(0).standard_normal((1000, 7)).astype(np.float32)
    file.vectors[:] = rows
    file.soon(500, 300)
    np.testing.assert_array_equal(file.vectors, rows)
    assert list(tmp_path.iterdir()) == []


def test_room_is_claimed_as_it_is_needed(tmp_path: Path) -> None:
    file = SideFile(tmp_path, rows=2**20, dim=128)  # 512 MiB
    used = [0]
    for rows in (1, 2, STEP // 512, STEP // 512 + 1):
        file.claim(rows)
        used.append(os.fstat(file._file).st_blocks * 512)
    assert used[1] == used[2] == used[3] < used[4]
    assert used[4] <= 4 * STEP


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_goes_with_its_last_reader() -> None:
    here = Path(__file__).parent
    before = len(os.listdir("/proc/self/fd"))
    file = SideFile(here, rows=100, dim=4)
    file.claim(100)
    vectors = file.vectors
    vectors[:] = 3
    del file
    gc.collect()
    assert (vectors == 3).all()  # the mapping holds it
    del vectors
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = SideFile(tmp_path, rows=100, dim=4)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreError, match=r"No space left on device.*make room"):
        file.claim(1)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        SideFile(tmp_path / "nowhere", rows=100, dim=4)


def test_file_systems_that_know_no_nameless_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    monkeypatch.delattr(os, "posix_fallocate")
    file = SideFile(tmp_path, rows=100, dim=4)
    file.claim(100)
    file.vectors[:] = 2
    assert (file.vectors == 2).all()
    assert list(tmp_path.iterdir()) == []
