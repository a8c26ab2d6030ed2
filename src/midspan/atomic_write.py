"""Files that appear whole or not at all: written to a temporary file, synced, then renamed.

with atomic_write(path) as temporary:
    temporary.write_bytes(data)

A crash or an error in the block leaves the previous file as it was. Several processes may write
the same file at once: each has a temporary file of its own, and the last rename wins.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the same folder; at the end of the block it becomes `path`.

    The folder is created if it is missing. The temporary file keeps the suffix of `path`, for
    writers that look at it. sync: False for files that can be computed again, such as a cache.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(
        prefix=f".{path.name}.", suffix=f".part{path.suffix}", dir=path.parent
    )
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes it private
        if sync:
            _sync(temporary)
        temporary.replace(path)
        if sync:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """So that the rename survives a power cut; not every system can open a folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _umask() -> int:
    """Read from Linux without changing it, which would not be safe between threads."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o022
