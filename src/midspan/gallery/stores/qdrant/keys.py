"""Texts as rows of numbers in the same order: Qdrant sorts by numbers only.

Keys are made of 24 signs, so ten of them fit into a number that a float still keeps apart from the
next. The first number orders the keys; where it is equal, the second does; and so on.
"""

from __future__ import annotations

import hashlib
import uuid

SIGNS = "./0123456789abcdefilpstw"  # in the order of their code points
GROUP = 10  # signs of five bits: less than 2⁵³
_CODES = {sign: code for code, sign in enumerate(SIGNS, start=1)}  # 0 ends a key


def numbers(key: str) -> list[int]:
    """With an end, so that a key stands before all that begin with it."""
    return [_number(key[at : at + GROUP]) for at in range(0, len(key) + 1, GROUP)]


def _number(signs: str) -> int:
    value = 0
    for place in range(GROUP):
        value = value * 32 + (_CODES[signs[place]] if place < len(signs) else 0)
    return value


def span(prefix: str) -> tuple[list[int], tuple[int, int] | None]:
    """What keys with this prefix share: whole numbers, and (low, high) of the next one."""
    whole, rest = divmod(len(prefix), GROUP)
    first = numbers(prefix)
    if rest == 0:
        return first[:whole], None
    return first[:whole], (first[whole], first[whole] + 32 ** (GROUP - rest))


def field(level: int) -> str:
    return f"d{level}"


def point_id(key: str | int) -> str | int:
    """Of a record: 128 bits of its key; of a vector: its stamp."""
    if isinstance(key, int):
        return key
    return str(uuid.UUID(bytes=hashlib.blake2b(key.encode(), digest_size=16).digest()))
