"""Files appear whole or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from midspan.atomic_write import atomic_write, write_text


def test_atomic_write_creates_the_folder_and_leaves_one_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.npz"
    with atomic_write(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffix == ".npz"
        temporary.write_bytes(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    assert list(path.parent.iterdir()) == [path]


def test_atomic_write_error_in_the_block_keeps_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "before")

    def interrupted() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text(encoding="utf-8") == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_permissions_follow_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("a", encoding="utf-8")
    write_text(tmp_path / "ours", "a")
    assert os.stat(tmp_path / "ours").st_mode == os.stat(tmp_path / "plain").st_mode


@pytest.mark.parametrize("sync", [True, False])
def test_atomic_write_many_writers_leave_one_whole_file(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "a.bin"

    def write(number: int) -> None:
        with atomic_write(path, sync=sync) as temporary:
            temporary.write_bytes(bytes([number]) * 10_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(32)))
    assert len(set(path.read_bytes())) == 1
    assert len(path.read_bytes()) == 10_000
    assert list(tmp_path.iterdir()) == [path]
