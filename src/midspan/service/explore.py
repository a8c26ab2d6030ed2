"""Looks over many items: counts by payload field, text in ids and payloads, near-identical ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from midspan import progress
from midspan.gallery import Filter, Gallery, Item
from midspan.upgrade import Record
from midspan.wire import DuplicateGroup, Duplicates, FacetCount, Facets

PAGE = 1000
MOST_LOOKED_AT = 200_000  # items that one question may look at
MOST_CONTAINS = 20_000  # of a search for text, which is asked again for the rest
NEIGHBOURS = 8  # of each item that are looked at for duplicates
QUERIES = 256


def pages(gallery: Gallery, filter: Filter | None, *, after: str = "") -> Iterator[list[Item]]:
    while page := gallery.scan(filter=filter, missing=None, after=after, limit=PAGE):
        yield page
        after = page[-1].id
        if len(page) < PAGE:
            return


def facets(gallery: Gallery, fields: Sequence[str], filter: Filter | None, *, limit: int) -> Facets:
    """How many items match, and how many of them have which value; the most frequent first."""
    counts: dict[str, Counter[str]] = {field: Counter() for field in fields}
    values: dict[str, Any] = {}
    looked = 0
    complete = True
    if not fields and filter is None:
        return Facets(items=len(gallery), facets={}, complete=True)
    for page in pages(gallery, filter):
        looked += len(page)
        for item in page:
            for field in fields:
                for value in _values(item.payload.get(field)):
                    key = json.dumps(value, ensure_ascii=False)
                    counts[field][key] += 1
                    values.setdefault(key, value)
        if looked >= MOST_LOOKED_AT and len(page) == PAGE:
            complete = False
            break
    return Facets(
        items=looked,
        facets={
            field: tuple(
                FacetCount(value=values[key], count=count)
                for key, count in counter.most_common(limit)
            )
            for field, counter in counts.items()
        },
        complete=complete,
    )


def _values(value: Any) -> list[Any]:
    """Each of a list counts; an object does not."""
    if value is None or isinstance(value, dict):
        return []
    return (
        [one for one in value if not isinstance(one, dict | list)]
        if isinstance(value, list)
        else [value]
    )


def containing(
    gallery: Gallery, text: str, filter: Filter | None, *, after: str, limit: int
) -> tuple[list[Item], str | None]:
    """(items with this text in their id or payload, where to continue); case does not matter."""
    sought, matches, looked = text.casefold(), list[Item](), 0
    for page in pages(gallery, filter, after=after):
        for item in page:
            if _contains(item, sought):
                matches.append(item)
                if len(matches) == limit:
                    return matches, item.id
        looked += len(page)
        if looked >= MOST_CONTAINS and len(page) == PAGE:
            return matches, page[-1].id
    return matches, None


def _contains(item: Item, sought: str) -> bool:
    if sought in item.id.casefold():
        return True
    return any(sought in str(value).casefold() for value in item.payload.values())


def duplicates(
    gallery: Gallery, *, threshold: float, filter: Filter | None, limit: int
) -> Duplicates:
    """Groups of items whose vectors are nearly the same, the largest first.

    Two items are in one group if one of them is among the nearest of the other, with at least this
    score, or if a chain of such pairs connects them.
    """
    state = gallery.state
    record = Record.of(state)
    name = state.live[0] if record is None else record.old
    space = state.spaces[name]
    parent: dict[str, str] = {}
    best: dict[str, float] = {}
    looked = 0
    with progress.bar("compare", total=len(gallery), unit="items", show=False) as done:
        for page in pages(gallery, filter):
            for first in range(0, len(page), QUERIES):
                ids = [item.id for item in page[first : first + QUERIES]]
                asked = gallery.vectors(ids, space=name)
                if len(asked):
                    results = gallery.search(
                        asked.vectors, space=space, k=NEIGHBOURS, filter=filter, threshold=threshold
                    )
                    for id, hits in zip(asked.ids.tolist(), results, strict=True):
                        for hit in hits:
                            if hit.id != id:
                                _join(parent, id, hit.id)
                                for one in (id, hit.id):
                                    best[one] = max(best.get(one, hit.score), hit.score)
                looked += len(ids)
                done(len(ids))
            if looked >= MOST_LOOKED_AT:
                break
    groups: dict[str, list[str]] = {}
    for id in parent:
        groups.setdefault(_root(parent, id), []).append(id)
    ordered = sorted(groups.values(), key=lambda ids: (-len(ids), min(ids)))
    return Duplicates(
        groups=tuple(
            DuplicateGroup(ids=tuple(sorted(ids)), score=max(best[id] for id in ids))
            for ids in ordered[:limit]
        ),
        items=looked,
        threshold=threshold,
    )


def _root(parent: dict[str, str], id: str) -> str:
    while parent[id] != id:
        parent[id] = parent[parent[id]]
        id = parent[id]
    return id


def _join(parent: dict[str, str], one: str, other: str) -> None:
    parent.setdefault(one, one)
    parent.setdefault(other, other)
    parent[_root(parent, one)] = _root(parent, other)
