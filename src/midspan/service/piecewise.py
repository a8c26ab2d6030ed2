"""An encoder that works a few items at a time: so there is progress, and a place to stop."""

from __future__ import annotations

from collections.abc import Sequence

from midspan import progress
from midspan.gallery import Item
from midspan.upgrade import Embed, Embedded

PIECE = 16  # items between two looks at the job


def piecewise(embed: Embed) -> Embed:
    def in_pieces(items: Sequence[Item]) -> Embedded:
        if len(items) <= PIECE:
            return embed(items)
        with progress.bar("embed", total=len(items), unit="items", show=False) as done:
            made = []
            for first in range(0, len(items), PIECE):
                piece = items[first : first + PIECE]
                made.append(embed(piece))
                done(len(piece))
        return _joined(made)

    return in_pieces


def _joined(made: Sequence[Embedded]) -> Embedded:
    vectors = made[0].vectors
    for one in made[1:]:
        vectors = vectors.joined_with(one.vectors) if len(vectors) else one.vectors
    return Embedded(
        vectors,
        failed={id: why for one in made for id, why in one.failed.items()},
        hopeless={id: why for one in made for id, why in one.hopeless.items()},
    )
