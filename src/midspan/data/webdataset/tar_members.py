"""The files in a tar shard, one after another, with where their bytes are. Nothing is unpacked.

Python's tarfile stops silently at a damaged header, and at the end of a file that was truncated
between two members; here both are errors. Memory does not grow with the archive.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from midspan.errors import FormatError

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_REMEDY = "fetch the shard again, or leave it out"


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    offset: int  # of its bytes in the tar file
    size: int
    refused: str  # why it is not to be used, or empty


def members(file: IO[bytes], *, path: Path) -> Iterator[Member]:
    """All that are not folders. `path` is for messages."""
    head = file.read(6)
    for start, packer in _PACKED.items():
        if head.startswith(start):
            raise FormatError(
                f"{path}: is packed with {packer}; images are read from their place in a plain tar "
                "file, so unpack the archive itself (not what is in it) first"
            )
    file.seek(0)
    last, end = "", -1
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                if member.offset_data <= end or member.size < 0:
                    raise FormatError(f"{path}: {_after(last)} comes a header that points back")
                last, end = member.name, member.offset_data
                if not member.isdir():
                    yield Member(member.name, member.offset_data, member.size, _refused(member))
            stopped = tar.offset
    except (tarfile.TarError, OSError, EOFError, RecursionError, OverflowError) as error:
        raise FormatError(
            f"{path}: {_after(last)} it cannot be read ({error}); {_REMEDY}"
        ) from error
    file.seek(stopped)
    closing = file.read(tarfile.BLOCKSIZE)
    if len(closing) < tarfile.BLOCKSIZE:
        raise FormatError(f"{path}: is cut off {_after(last)}; {_REMEDY}")
    if closing.strip(b"\0"):
        raise FormatError(
            f"{path}: {_after(last)} comes a damaged header, at byte {stopped:,}; {_REMEDY}"
        )


def _after(name: str) -> str:
    return f"after {name!r}" if name else "at its beginning"


def _refused(member: tarfile.TarInfo) -> str:
    name = member.name
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    if CONTROL.search(name):
        return "its name holds control characters"
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        return "its name leads out of the archive"
    if member.issparse():
        return "is a sparse file; write it as a whole one"
    if not member.isreg():
        return "is a link or a device, not a file"
    return ""
