"""Evidence without labels: what both encoders agree on must still be found.

The old ranking is no truth for a better encoder, and the new one is none for the old service. But
items that both encoders, each in its own space, rank among the first k of a query are safe to call
right. The old service finds all of them, and so does the new one when every item is refreshed; so
an upgrade does not fail at its end by construction. In between, what is lost is lost by the mix of
old and new vectors, by a bridge, or by vectors of the wrong items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from midspan.evaluation import bootstrap_ci, search_exact
from midspan.spaces import Embeddings, IntArray
from midspan.upgrade.verdicts import Answers, Check, Float64, judged

POOL_PER_NEIGHBOUR = 20  # items for each neighbour that is looked at: 5 % by chance
TIMES_CHANCE = 2.0  # that two working encoders agree more often than two random ones


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of (Q, k) rankings of the same items by two encoders."""

    relevant: tuple[frozenset[int], ...]  # rows that both have among their first k
    share: Float64  # (Q,) of the first k that they agree on
    chance: float  # what two random rankings would share
    k: int


def neighbours_for(items: int, k: int) -> int:
    """So few of the items that agreement by chance is rare."""
    return max(1, min(k, (items - 1) // POOL_PER_NEIGHBOUR))


def ranked(query: Embeddings, gallery: Embeddings, *, k: int) -> IntArray:
    """(Q, k) rows of the gallery, the query's own item left out."""
    _, rows = search_exact(query, gallery, k=k, exclude=np.arange(len(gallery)))
    return rows


def agreement(old: Embeddings, new: Embeddings, *, k: int) -> Agreement:
    """`old` and `new` are vectors of the same items, row by row."""
    k = neighbours_for(len(old), k)
    first, second = ranked(old, old, k=k), ranked(new, new, k=k)
    relevant = tuple(
        frozenset(a) & frozenset(b) for a, b in zip(first.tolist(), second.tolist(), strict=True)
    )
    share = np.array([len(one) / k for one in relevant])
    return Agreement(relevant, share, chance=k / max(1, len(old) - 1), k=k)


def agreed_answers(agreed: Agreement, before: list[list[int]], after: list[list[int]]) -> Answers:
    """`before`, `after`: the rows that each service answers with, best first.

    A query on which the encoders agree on nothing has no answer.
    """
    values = np.full((4, len(before)), np.nan)
    for row, relevant in enumerate(agreed.relevant):
        if relevant:
            served = (before[row][: agreed.k], after[row][: agreed.k])
            for place, rows in enumerate(served):
                values[place, row] = bool(rows) and rows[0] in relevant
                values[2 + place, row] = len(relevant.intersection(rows)) / len(relevant)
    return Answers(*values)


def agreement_check(agreed: Agreement, *, seed: int, exhaustive: bool = False) -> Check:
    """Encoders that agree no more than by chance: one of them is broken, or its vectors are."""
    low, high = bootstrap_ci(agreed.share, seed=seed)
    value = float(agreed.share.mean())
    limit = TIMES_CHANCE * agreed.chance
    return judged(
        "agreement",
        value,
        low,
        high,
        queries=len(agreed.share),
        least=limit,
        exhaustive=exhaustive,
    )


def agreement_notes(agreed: Agreement) -> tuple[str, ...]:
    return (
        f"no labels: judged on the neighbours that both encoders agree on "
        f"({100 * agreed.share.mean():.0f} % of each other's first {agreed.k}; by chance "
        f"{100 * agreed.chance:.0f} %)",
        "this can tell whether the mix of old and new vectors, a bridge or wrong vectors lose what "
        "is found today; it cannot tell whether the new encoder is better or worse where the two "
        "disagree: give labels or clicks for that",
    )
