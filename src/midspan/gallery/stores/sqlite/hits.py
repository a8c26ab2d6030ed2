"""From found item numbers to hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from midspan.gallery.index.found import Found
from midspan.gallery.items import Hit
from midspan.gallery.records import Query
from midspan.gallery.stores.sqlite.texts import Text, Texts, payload_of
from midspan.spaces import Space

Candidates = list[tuple[int, int, float]]  # item, space, score

_by_score_and_id = itemgetter(0, 1)


def read_hits(
    texts: Texts, found: Sequence[Found], spaces: Mapping[int, Space], query: Query
) -> list[list[Hit]]:
    """Items that were deleted since, or no longer pass the filter, make room for the next ones."""
    hits = _read(texts, [_best(one, query.k) for one in found], spaces, query)
    if any(len(got) < min(query.k, len(one.items)) for got, one in zip(hits, found, strict=True)):
        hits = _read(texts, [_best(one, len(one.items)) for one in found], spaces, query)
    if query.threshold is None:
        return hits
    return [[hit for hit in got if hit.score >= query.threshold] for got in hits]


def _best(one: Found, k: int) -> Candidates:
    """The k best and those that equal the last of them."""
    count, scores = len(one.scores), one.scores
    end = min(k, count)
    while 0 < end < count and scores[end] == scores[end - 1]:
        end += 1
    items, known = one.items[:end].tolist(), one.spaces[:end].tolist()
    return list(zip(items, known, scores[:end].tolist(), strict=True))


def _read(
    texts: Texts, best: Sequence[Candidates], spaces: Mapping[int, Space], query: Query
) -> list[list[Hit]]:
    items = dict.fromkeys([item for one in best for item, _, _ in one])
    known = texts.of(items, filter=query.filter)
    return [_hits(one, known, spaces, query.k) for one in best]


def _hits(
    one: Candidates, known: Mapping[int, Text], spaces: Mapping[int, Space], k: int
) -> list[Hit]:
    ranked = [
        (-score, text[0], text, space)
        for item, space, score in one
        if (text := known.get(item)) is not None
    ]
    ranked.sort(key=_by_score_and_id)
    return [
        Hit(id, -score, spaces[space], text[1], payload_of(text))
        for score, id, text, space in ranked[:k]
    ]
