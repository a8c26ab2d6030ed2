"""One process works in a run folder at a time; the system frees the lock when the process ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from midspan.errors import RunError

LOCK = "run.lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # of some network file systems


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock inside; RunError if another process has it."""
    path = folder / LOCK
    handle = _acquire(path)
    try:
        yield
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)  # while it is ours; see _acquire
            os.close(handle)


def _acquire(path: Path) -> int | None:
    """The locked file; None where the file system has no locks."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(handle, 4096).decode(errors="replace")
            os.close(handle)
            if error.errno in NO_LOCKS:
                warnings.warn(
                    f"{path.parent}: this file system has no locks; do not start the same run "
                    "twice at the same time",
                    stacklevel=2,
                )
                return None
            raise RunError(
                f"{path.parent} is in use: {_words(holder)}; wait for its end, stop it, or choose "
                "another `out`"
            ) from error
        if _is_current(handle, path):
            who = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(who).encode(), 0)
            return handle
        os.close(handle)  # its last owner removed it between our two calls: take the new one


def _is_current(handle: int, path: Path) -> bool:
    try:
        return os.fstat(handle).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _words(holder: str) -> str:
    try:
        who = json.loads(holder)
        return f"process {who['pid']} on {who['host']} trains there since {who['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process trains there"  # it has not written its name yet
