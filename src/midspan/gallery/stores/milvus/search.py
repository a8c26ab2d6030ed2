"""Search: Milvus finds candidates in each space, their scores are made here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from midspan.errors import StateChanged
from midspan.gallery.filters import Filter, matches
from midspan.gallery.items import Hit
from midspan.gallery.records import Query
from midspan.gallery.scores import pair_scores, prepare
from midspan.gallery.stores.milvus.records import ITEM, Stored
from midspan.gallery.stores.milvus.server import MOST, Row, listed
from midspan.gallery.stores.milvus.view import View, vectors
from midspan.gallery.stores.milvus.where import where
from midspan.spaces import FloatArray, Metric

EXTRA = 16  # candidates beyond k, for equal scores
TOLERANCE = 1e-5  # by which the server's float32 distances may be off, relatively
EF = 200  # candidates that HNSW keeps
FEW = 2000  # rows that are sooner compared here than found by an approximate index
AMONG = 10_000  # rows that one search is limited to
BYTES = 32_000_000  # of vectors in one answer


@dataclass(slots=True)
class _Asked:
    """One query vector: what was found for it so far."""

    vector: FloatArray  # as it was given
    prepared: FloatArray
    found: dict[tuple[str, int], Row] = field(default_factory=dict)  # by space and stamp
    cuts: list[float] = field(default_factory=list)  # distances beyond which things were left out
    floor: float = -np.inf  # k others are at least as good
    hits: list[tuple[float, str, str, Stored]] = field(default_factory=list)


def search(view: View, query: Query) -> list[list[Hit]]:
    state = view.known.state
    metric = state.spaces[query.among[0]].metric
    prepared = prepare(query.vectors, metric=metric) if len(query.vectors) else query.vectors
    asked = [_Asked(vector, unit) for vector, unit in zip(query.vectors, prepared, strict=True)]
    rows = {space: _rows(view, query, space) for space in query.among}
    fetch = query.k + EXTRA
    todo = asked
    while todo:
        if fetch > MOST:  # the best are of items that do not take part: name those that do
            fetch = MOST
            rows = {space: _rows(view, query, space, all=True) for space in query.among}
        for one in todo:
            one.cuts.clear()
        for space in query.among:
            _ask(view, query, space, todo, rows=rows[space], fetch=fetch)
        _score(view, query, todo, metric)
        todo = [one for one in todo if not _complete(one, k=query.k, metric=metric)]
        if fetch == MOST:
            break
        fetch *= 4
    if any(named is not None for named in rows.values()) and not view.undisturbed():
        raise StateChanged(f"{view.server.shown}: items were changed meanwhile; search again")
    return [
        [
            Hit(id, score, state.spaces[space], stored.uri, dict(stored.payload))
            for score, id, space, stored in one.hits[: query.k]
            if query.threshold is None or score >= query.threshold
        ]
        for one in asked
    ]


def _rows(view: View, query: Query, space: str, *, all: bool = False) -> list[int] | None:
    """Rows of the items that take part with their vector in this space, if they are to be named.

    That is so if they are few: else the best that Milvus finds are mostly of items that do not pass
    or whose live vector is elsewhere. If they are many, or it takes long to know, these are left
    out afterwards.
    """
    known = view.known
    better = tuple(known.numbers[other] for other in query.live[: query.live.index(space)])
    masks = known.masks(having=known.numbers[space], lacking=better)
    if not (all or (query.exact and space in known.indexed)):
        condition, sure = ("", True) if query.filter is None else where(query.filter)
        if not sure or (not better and query.filter is None):
            return None
        if view.count(f"{_taking_part(masks)}{condition and f' and ({condition})'}") > AMONG:
            return None
    return list(passing(view, query.filter, masks=masks))


def _taking_part(masks: Sequence[int]) -> str:
    return f"kind == {ITEM} and mask in {listed(masks)}"


def passing(view: View, filter: Filter | None, *, masks: Sequence[int]) -> Iterable[int]:
    """Rows of the items that have these masks and pass."""
    condition, sure = ("", True) if filter is None else where(filter)
    if sure:  # Milvus tells, but for long payloads
        short = f" and owner == 0 and ({condition})" if condition else ""
        for page in view.light(f"{_taking_part(masks)}{short}", ["row"]):
            yield from (row["row"] for row in page)
        condition = "owner == 1"
    if filter is not None:
        for items in view.items(masks=masks, also=condition):
            yield from (item.row for item in items if matches(filter, item.payload))


def _ask(
    view: View,
    query: Query,
    space: str,
    todo: Sequence[_Asked],
    *,
    rows: list[int] | None,
    fetch: int,
) -> None:
    known = view.known
    visible = view.counts_of("pk")
    conditions = [visible]
    if rows is not None:
        conditions = [
            f"{visible} and row in {listed(rows[start : start + AMONG])}"
            for start in range(0, len(rows), AMONG)
        ]
    if rows is not None and space in known.indexed and (query.exact or len(rows) <= FEW):
        return _look_at_all(view, space, todo, k=query.k, among=rows)
    at_once = max(1, BYTES // (4 * known.state.spaces[space].dim * fetch))
    params = {"ef": min(max(EF, 2 * fetch), 2 * MOST)} if space in known.indexed else {}
    for condition in conditions:
        for start in range(0, len(todo), at_once):
            part = todo[start : start + at_once]
            answers = view.server.search(
                known.collections[space],
                [one.vector for one in part],
                condition,
                limit=fetch,
                params=params,
                time=view.head.time,
            )
            for one, answer in zip(part, answers, strict=True):
                one.found |= {(space, row["pk"]): row for row in answer}
                if len(answer) >= fetch:
                    one.cuts.append(answer[-1]["distance"])
    return None


def _look_at_all(
    view: View, space: str, todo: Sequence[_Asked], *, k: int, among: Sequence[int]
) -> None:
    """An approximate index cannot be told to be exact: so every vector is fetched and compared."""
    metric, wanted = view.known.state.spaces[space].metric, set(among)
    named = f" and row in {listed(among)}" if len(among) <= AMONG else ""
    for page in vectors(view, space, among=named) if among else ():
        rows = [row for row in page if row["row"] in wanted]
        if not rows:
            continue
        gallery = prepare(np.array([row["vector"] for row in rows], np.float32), metric=metric)
        for one in todo:
            scores = pair_scores(one.prepared, gallery, metric=metric)
            if len(scores) >= k:
                one.floor = max(one.floor, float(np.partition(scores, -k)[-k]))
            for place in np.flatnonzero(scores >= one.floor).tolist():
                one.found[space, rows[place]["pk"]] = rows[place]


def _score(view: View, query: Query, todo: Sequence[_Asked], metric: Metric) -> None:
    """True scores of what takes part, best first, equal ones by id."""
    numbers = view.known.numbers
    items = view.by_row(row["row"] for one in todo for row in one.found.values())
    lost = any(row["row"] not in items for one in todo for row in one.found.values())
    if lost and not view.undisturbed():  # written anew: their records stand beyond this view
        raise StateChanged(f"{view.server.shown}: items were changed meanwhile; search again")
    for one in todo:
        taking = []
        for (space, stamp), row in one.found.items():
            stored = items.get(row["row"])
            if stored is None or stored.vectors.get(numbers[space]) != stamp:
                continue
            first = next(at for at in query.live if numbers[at] in stored.vectors)
            passes = query.filter is None or matches(query.filter, stored.payload)
            if first == space and passes:
                taking.append((space, stored, row["vector"]))
        if not taking:
            one.hits = []
            continue
        gallery = np.array([vector for _, _, vector in taking], dtype=np.float32)
        scores = pair_scores(one.prepared, prepare(gallery, metric=metric), metric=metric)
        one.hits = sorted(
            (
                (score, stored.id, space, stored)
                for (space, stored, _), score in zip(taking, scores.tolist(), strict=True)
            ),
            key=lambda hit: (-hit[0], hit[1]),
        )


def _complete(one: _Asked, *, k: int, metric: Metric) -> bool:
    """Nothing that was left out, being farther than the last, can be among the k best."""
    if not one.cuts:
        return True
    if len(one.hits) < k:
        return False
    worst = one.hits[k - 1][0]
    length = float(np.linalg.norm(one.vector))
    for cut in one.cuts:
        if metric == "l2":
            left = -cut < worst - TOLERANCE * (abs(worst) + cut)
        elif metric == "dot":
            left = cut < worst - TOLERANCE * max(abs(worst), abs(cut), length)
        else:
            left = cut < worst - TOLERANCE
        if not left:
            return False
    return True
