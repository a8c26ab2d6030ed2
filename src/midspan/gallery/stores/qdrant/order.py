"""The next keys in their order, from an engine that sorts by one number at a time.

Keys are rows of numbers. Rows are read by their first number; the last value of an answer may be
cut in two, so its rows are read again, by the second number; and so on. Behind a key, those that
share the most with it come first. Nothing is read but the rows that are wanted, a few more, and for
each number that all keys share one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from midspan.gallery.stores.qdrant.keys import numbers

EXTRA = 64  # rows more than wanted: mostly the last value then need not be looked at again

Read = Callable[[Sequence[int], int, int], list[str]]
"""(fixed, above, limit) → keys whose first numbers are `fixed` and whose next one is greater than
`above`, the first `limit` of them by that one."""


def next_keys(read: Read, *, after: str, limit: int, shared: Sequence[int] = ()) -> list[str]:
    """`shared`: numbers that all keys which are asked for begin with."""
    start, found = numbers(after), list[str]()
    if after == "":
        return _keys(read, shared, -1, limit)
    for level in reversed(range(len(shared), len(start))):
        if len(found) < limit:
            found += _keys(read, start[:level], start[level], limit - len(found))
    return found


def _keys(read: Read, fixed: Sequence[int], above: int, limit: int) -> list[str]:
    answer = read(fixed, above, limit + EXTRA)
    level = len(fixed)
    if len(answer) < limit + EXTRA:  # all there are
        return sorted(answer)[:limit]
    last = numbers(answer[-1])[level]
    whole = sorted(key for key in answer if numbers(key)[level] < last)
    if len(whole) < limit:
        whole += _keys(read, [*fixed, last], -1, limit - len(whole))
    return whole[:limit]
