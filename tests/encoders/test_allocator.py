"""Freed memory stays in the process: a large block is not faulted in again."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
if sys.argv[1] == "keep":
    from midspan.encoders.allocator import keep_freed_memory
    assert keep_freed_memory()
import torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(16 * 2**20)  # 64 MiB, above the threshold that glibc allows
before = faults()
for _ in range(10):
    torch.ones(16 * 2**20)
print(faults() - before)
"""


def _faults(mode: str) -> int:
    command = [sys.executable, "-c", PROGRAM, mode]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_keep_freed_memory_large_blocks_are_not_faulted_in_again() -> None:
    pages = 16 * 2**20 * 4 // 4096
    assert _faults("plain") > 5 * pages
    assert _faults("keep") < pages


def test_keep_freed_memory_with_a_user_setting_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from midspan.encoders.allocator import keep_freed_memory

    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert keep_freed_memory.__wrapped__() is False
