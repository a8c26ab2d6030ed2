"""Search in the mirror: candidates from shelves and lists, then one true score for each.

Small galleries, narrow filters and `exact` compare every row. The answer is then complete to the
last bit: rows are fetched until none that was left out could reach the k-th true score.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from midspan.errors import StateChanged
from midspan.gallery.index.exact import Best, Part, scan
from midspan.gallery.index.family import Family
from midspan.gallery.index.found import Found, by_lists, count_for, fresh_rows, score
from midspan.gallery.index.mirror import NO_SPACE, NOWHERE, Mirror
from midspan.gallery.index.shelf import HOLE, BoolArray, Shelf
from midspan.gallery.scores import prepare
from midspan.spaces import FloatArray, IntArray, Metric

EXTRA = 16  # rows beyond k that comparing everything fetches at first
HOLES = 0.02
GATHER = 20_000  # rows that a filter leaves, up to which they are taken out and compared

EPSILON = float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """A shelf to look at, which of its rows count (None: all), and its index if it is live."""

    shelf: Shelf
    rows: BoolArray | None
    family: Family | None


def search(
    mirror: Mirror,
    vectors: FloatArray,
    *,
    k: int,
    live: Sequence[int],
    among: Sequence[int],
    allowed: BoolArray | None,
    exact: bool,
    version: int | None = None,
) -> list[Found]:
    """`allowed` says by item number which items count; None means all.

    version: of the state that the caller knows. A mirror that is ahead of it says so: after a
    rollback, an old view would miss what the rollback took away.
    """
    with mirror.lock.shared:
        _check_version(mirror, version)
        if not set(live) <= mirror.tracked.keys():
            raise StateChanged("the gallery left one of these spaces during the search; repeat it")
        metric = mirror.tracked[among[0]].metric
        queries = prepare(vectors, metric=metric)
        if not exact and allowed is None:
            family = _whole(mirror, live, among)
            found = None if family is None else by_lists(family, queries, k=k, metric=metric)
            if found is not None:
                return found
        if tuple(live) == mirror.preference:
            sources = _present_view(mirror, among, allowed)
        else:
            sources = _other_view(mirror, live, among, allowed)
        if not exact and all(_indexed(source) for source in sources):
            found = _by_index(sources, queries, k=k, among=among, metric=metric)
            if found is not None:
                return found
    found = _by_scan(mirror, sources, queries, k=k, among=among, metric=metric)
    _check_version(mirror, version)  # a scan lets changes in between its parts
    return found


def _check_version(mirror: Mirror, version: int | None) -> None:
    if version is not None and version != mirror.version:
        raise StateChanged("the gallery's state changed during the search; repeat it")


# ---- what to look at


def _whole(mirror: Mirror, live: Sequence[int], among: Sequence[int]) -> Family | None:
    """The indexed family whose every live vector is to be compared, if that is all."""
    if tuple(live) != mirror.preference:
        return None
    mine = [family for family in mirror.families if not family.members.keys().isdisjoint(among)]
    if len(mine) != 1 or mine[0].ivf is None:
        return None
    others = (space for space in mirror.preference if space not in among)
    return None if any(space in mine[0].members for space in others) else mine[0]


def _present_view(mirror: Mirror, among: Sequence[int], allowed: BoolArray | None) -> list[_Source]:
    sources = []
    for family in mirror.families:
        members = set(family.members) & set(mirror.preference)
        if not members & set(among):
            continue
        rows: BoolArray | None = None
        if not members <= set(among):
            rows = np.isin(family.shelf.spaces, list(among))
        if allowed is not None:
            mine = _pick(allowed, family.shelf.items)
            rows = mine if rows is None else rows & mine
        if family.shelf.holes > HOLES * family.shelf.size:  # a few are left out afterwards
            there = family.shelf.items != HOLE
            rows = there if rows is None else rows & there
        sources.append(_Source(family.shelf, rows, family))
    return sources


def _other_view(
    mirror: Mirror, live: Sequence[int], among: Sequence[int], allowed: BoolArray | None
) -> list[_Source]:
    """A preference list that is not the present one: what is live there may be in reserve here."""
    best = np.zeros_like(mirror.live_space)
    for space in live:
        has = (mirror.live_space == space) | (mirror.reserve_row[space] != NOWHERE)
        best[(best == NO_SPACE) & has] = space
    sources = []
    for space in among:
        items = np.flatnonzero(best == space)
        if allowed is not None:
            items = items[_pick(allowed, items)]
        on_shelf = mirror.live_space[items] == space
        places = (
            (mirror.family_of(space).shelf, mirror.live_row[items[on_shelf]]),
            (mirror.reserves[space], mirror.reserve_row[space][items[~on_shelf]]),
        )
        for shelf, chosen in places:
            rows = np.zeros(shelf.size, dtype=bool)
            rows[chosen] = True
            if len(chosen):
                sources.append(_Source(shelf, rows, None))
    return sources


def _pick(allowed: BoolArray, items: IntArray) -> BoolArray:
    """allowed[items], where items beyond its end (added since) and holes are not allowed."""
    inside = (items >= 0) & (items < len(allowed))
    picked: BoolArray = np.zeros(len(items), dtype=bool)
    picked[inside] = allowed[items[inside]]
    return picked


def _indexed(source: _Source) -> bool:
    family = source.family
    return family is not None and family.ivf is not None


# ---- by the index


def _by_index(
    sources: Sequence[_Source],
    queries: FloatArray,
    *,
    k: int,
    among: Sequence[int],
    metric: Metric,
) -> list[Found] | None:
    """None if it found too little, which only comparing everything can mend."""
    wanted = 0
    candidates: list[list[tuple[Shelf, IntArray]]] = [[] for _ in queries]
    for source in sources:
        assert source.family is not None
        count = len(source.shelf) if source.rows is None else int(source.rows.sum())
        wanted += min(k, count)
        if count == 0:
            continue
        if count <= GATHER and source.rows is not None and count < len(source.shelf) // 2:
            best = Best(len(queries), min(count_for(k), count))
            scan(best, queries, [_gathered(source)], metric=metric)
            parts = [best.sorted()[1]]
        else:
            parts = _list_candidates(source, queries, k=k, count=count, metric=metric)
        for query, lists in enumerate(candidates):
            lists.append((source.shelf, _valid(source, [part[query] for part in parts])))
    found = [
        score(lists, query, among=among, metric=metric)
        for lists, query in zip(candidates, queries, strict=True)
    ]
    if any(len(one.items) < min(k, wanted) for one in found):
        return None
    return found


def _list_candidates(
    source: _Source, queries: FloatArray, *, k: int, count: int, metric: Metric
) -> list[IntArray]:
    family = source.family
    assert family is not None
    assert family.ivf is not None
    share = count / max(1, len(source.shelf))
    mostly = share > 0.9  # then leaving out afterwards is cheaper than asking for every row
    _, rows = family.ivf.search(
        queries,
        family.ivf.candidates(k) + (k if mostly and share < 1 else 0),
        probes=int(np.ceil(family.ivf.probes / share)),
        allowed=None if mostly else source.rows,
    )
    fresh = fresh_rows(family, queries, k=k, metric=metric)
    return [rows] if fresh is None else [rows, fresh]


def _valid(source: _Source, parts: Sequence[IntArray]) -> IntArray:
    """Each row once, and only those that count now."""
    rows = np.unique(np.concatenate(parts))
    rows = rows[(rows >= 0) & (rows < source.shelf.size)]
    counts = source.shelf.items[rows] != HOLE
    if source.rows is not None:
        counts &= source.rows[rows]
    valid: IntArray = rows[counts]
    return valid


# ---- by comparing every row


def _by_scan(
    mirror: Mirror,
    sources: Sequence[_Source],
    queries: FloatArray,
    *,
    k: int,
    among: Sequence[int],
    metric: Metric,
) -> list[Found]:
    found: dict[int, Found] = {}
    fetch, left = k + EXTRA, np.arange(len(queries))
    while len(left):
        parts = []
        for source in sources:
            best = Best(len(left), fetch)
            scan(best, queries[left], _locked_parts(mirror, source), metric=metric)
            parts.append(best.sorted())
        again = []
        with mirror.lock.shared:
            for place, query in enumerate(left.tolist()):
                lists = [
                    (source.shelf, _valid(source, [rows[place]]))
                    for source, (_, rows) in zip(sources, parts, strict=True)
                ]
                one = score(lists, queries[query], among=among, metric=metric)
                cut = max((scores[place, -1] for scores, _ in parts), default=-np.inf)
                if _complete(one, float(cut), queries[query], k=k, metric=metric):
                    found[query] = one
                else:
                    again.append(query)
        left, fetch = np.array(again, dtype=np.int64), fetch * 4
    return [found[query] for query in range(len(queries))]


def _complete(one: Found, cut: float, query: FloatArray, *, k: int, metric: Metric) -> bool:
    """No row that was left out, whose rough score is at most `cut`, can be among the k best."""
    if cut == -np.inf:
        return True  # nothing was left out
    if len(one.items) < k:
        return False
    worst = float(one.scores[k - 1])
    length = float(np.linalg.norm(query))
    scale = 1.0
    if metric == "l2":
        worst = (worst + length**2) / 2  # in the units of the rough score
        scale = (length + np.sqrt(-float(one.scores[k - 1]))) ** 2
    elif metric == "dot":
        scale = max(abs(worst), abs(cut), length)
    return bool(cut < worst - 4 * EPSILON * np.sqrt(len(query)) * scale)


def _locked_parts(mirror: Mirror, source: _Source) -> Iterator[Part]:
    """Block by block, so that a long scan does not hold up those who write."""
    if source.rows is not None and int(source.rows.sum()) <= GATHER:
        with mirror.lock.shared:
            part = _gathered(source)
        yield part
        return
    for first, vectors in source.shelf.parts():
        rows = np.arange(first, first + len(vectors))
        if source.rows is None:
            with mirror.lock.shared:
                yield rows, vectors, None
            continue
        counts = source.rows[first : first + len(vectors)]  # the shelf may have grown since
        if counts.any():
            with mirror.lock.shared:
                yield rows[: len(counts)], vectors[: len(counts)], counts


def _gathered(source: _Source) -> Part:
    assert source.rows is not None
    rows = np.flatnonzero(source.rows)
    return rows, source.shelf.take(rows), None
