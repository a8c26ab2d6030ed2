"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from midspan.gallery.index import memory


def used() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_small_pieces_between_living_ones_are_given_back() -> None:
    """Pieces below the size that is mapped by itself stay in the heap when they are freed."""
    pieces = [np.ones(8000, dtype=np.float64) for _ in range(1000)]  # 64 MB
    kept = pieces[::50]
    del pieces
    before = used()
    memory.give_back()
    assert used() < before + 2**20
    assert all(piece.sum() == 8000 for piece in kept)


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)  # would fail
    memory.give_back()
