"""Search: the engine finds candidates in each space, their scores are made here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from midspan.errors import StateChanged
from midspan.gallery.filters import Filter, matches
from midspan.gallery.items import Hit
from midspan.gallery.records import Query
from midspan.gallery.scores import pair_scores, prepare
from midspan.gallery.stores.turns.conditions import Among, Condition, Is, Passing
from midspan.gallery.stores.turns.engine import MOST, Row, Sought
from midspan.gallery.stores.turns.records import ITEM, Stored
from midspan.gallery.stores.turns.view import View, vectors
from midspan.spaces import FloatArray, Metric

EXTRA = 16  # candidates beyond k, for equal scores
TOLERANCE = 1e-5  # by which the server's float32 distances may be off, relatively
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
    more = max(view.engine.oversampling(view.known.indexed.get(space)) for space in query.among)
    fetch = min(max(query.k + EXTRA, math.ceil(more * query.k)), MOST)
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
        raise StateChanged(f"{view.engine.shown}: items were changed meanwhile; search again")
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

    That is so if they are few: else the best that the engine finds are mostly of items that do not
    pass or whose live vector is elsewhere. If they are many, or it takes long to know, these are
    left out afterwards.
    """
    known = view.known
    better = tuple(known.numbers[other] for other in query.live[: query.live.index(space)])
    masks = known.masks(having=known.numbers[space], lacking=better)
    if not (all or (query.exact and space in known.indexed)):
        if not (query.filter or better) or (query.filter and not _sure(view, query.filter)):
            return None
        condition = [] if query.filter is None else [Passing(query.filter)]
        if view.count([*_taking_part(masks), *condition]) > AMONG:
            return None
    return list(passing(view, query.filter, masks=masks))


def _taking_part(masks: Sequence[int]) -> list[Condition]:
    return [Is("kind", ITEM), Among("mask", masks)]


def _sure(view: View, filter: Filter) -> bool:
    return view.engine.condition(filter)[1]


def passing(view: View, filter: Filter | None, *, masks: Sequence[int]) -> Iterable[int]:
    """Rows of the items that have these masks and pass."""
    if filter is None:
        condition: list[Condition] = []
    elif _sure(view, filter):  # the engine tells, but for payloads that it cannot judge
        condition = [Passing(filter, judged=True)]
    else:
        yield from _matching(view, filter, masks, Passing(filter))
        return
    for page in view.light([*_taking_part(masks), *condition], ["row"]):
        yield from (row["row"] for row in page)
    if filter is not None:
        yield from _matching(view, filter, masks, Is("owner", 1))


def _matching(view: View, filter: Filter, masks: Sequence[int], among: Condition) -> Iterable[int]:
    for items in view.items(masks=masks, also=[among]):
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
            [*visible, Among("row", rows[start : start + AMONG])]
            for start in range(0, len(rows), AMONG)
        ]
    if rows is not None and space in known.indexed and (query.exact or len(rows) <= FEW):
        return _look_at_all(view, space, todo, k=query.k, among=rows)
    at_once = max(1, BYTES // (4 * known.state.spaces[space].dim * fetch))
    for condition in conditions:
        for start in range(0, len(todo), at_once):
            part = todo[start : start + at_once]
            sought = Sought(
                vectors=[one.vector for one in part],
                where=condition,
                metric=known.state.spaces[space].metric,
                limit=fetch,
                index=known.indexed.get(space),
                exact=query.exact,
                time=view.head.time,
            )
            answers = view.engine.search(known.collections[space], sought)
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
    named = [Among("row", among)] if len(among) <= AMONG else []
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
        raise StateChanged(f"{view.engine.shown}: items were changed meanwhile; search again")
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
