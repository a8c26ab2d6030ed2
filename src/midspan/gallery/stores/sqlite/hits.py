"""From found item numbers to hits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter

from midspan.gallery.index.found import Found
from midspan.gallery.items import Hit
from midspan.gallery.records import Query
from midspan.gallery.stores.sqlite.texts import Text, Texts, payload_of
from midspan.spaces import Space

Candidates = list[tuple[int, int, float]]  # item, space, score

_by_id, _by_score = itemgetter(0), itemgetter(1)
_new_hit = tuple.__new__  # Hit(…) for less: a search makes ten, a batch of them a thousand


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
    if len(best) == 1:
        items = [item for item, _, _ in best[0]]
    else:
        items = list(dict.fromkeys([item for one in best for item, _, _ in one]))
    known = texts.of(items, filter=query.filter)
    return [_hits(one, known, spaces, query.k) for one in best]


def _hits(
    one: Candidates, known: Mapping[int, Text], spaces: Mapping[int, Space], k: int
) -> list[Hit]:
    """They come by falling score; only equal ones are still to be put in the order of their ids."""
    hits, last, equal = list[Hit](), math.inf, False
    for item, space, score in one:
        if (text := known.get(item)) is not None:
            payload = text[2]
            copy = payload.copy() if type(payload) is dict else payload_of(text)
            hits.append(_new_hit(Hit, (text[0], score, spaces[space], text[1], copy)))
            equal |= score == last
            last = score
    if equal:
        hits.sort(key=_by_id)
        hits.sort(key=_by_score, reverse=True)  # which leaves equal ones as they are
    return hits if len(hits) <= k else hits[:k]
