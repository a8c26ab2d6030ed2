"""Keys of records: their order is the order of the answers."""

from __future__ import annotations

import hashlib
import struct

SHIFT = 24  # rows of one write: 16 million


def first_stamp(number: int) -> int:
    return number << SHIFT


def hashed(text: str) -> int:
    """63 bits, for a look-up; what is found is compared with the text itself."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def item_key(id: str, stamp: int) -> str:
    """By id: hex keeps the order of the code points, and a dot stands before all digits."""
    return f"{after_item(id)[:-1]}.{stamp:016x}"


def after_item(id: str) -> str:
    """Greater than the keys of this id, less than those of the next."""
    return f"i/{id.encode().hex()}/"


def work_keys(epoch: int) -> str:
    return f"w/{epoch:012x}/"


def open_keys(epoch: int) -> str:
    return f"{work_keys(epoch)}a/"


def failed_keys(epoch: int) -> str:
    return f"{work_keys(epoch)}f/"


def failed_key(epoch: int, id: str, stamp: int) -> str:
    """What was given up stands by id, out of the way of those who look for work."""
    return f"{after_failed(epoch, id)[:-1]}.{stamp:016x}"


def after_failed(epoch: int, id: str) -> str:
    return f"{failed_keys(epoch)}{id.encode().hex()}/"


def work_key(epoch: int, priority: float, number: int, stamp: int) -> str:
    """By falling priority, then in the order of adding."""
    bits = int.from_bytes(struct.pack(">d", priority + 0.0), "big")
    rising = bits ^ (2**64 - 1 if bits >> 63 else 2**63)
    return f"{open_keys(epoch)}{2**64 - 1 - rising:016x}{number:016x}.{stamp:016x}"


def trail_key(stamp: int) -> str:
    """Newest first."""
    return f"t/{2**63 - stamp:016x}"


def state_key(number: int) -> str:
    return f"s/{number:012x}"


def list_key(number: int) -> str:
    return f"l/{number:012x}"


def text_keys(stamp: int, parts: int) -> list[str]:
    return [f"p/{stamp:016x}/{part:04x}" for part in range(parts)]
