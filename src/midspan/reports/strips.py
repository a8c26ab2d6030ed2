"""Rows of images: a query, and the results of each encoder for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation import search_exact
from midspan.reports.images import ImageArray, ThumbnailSource, data_uri, image_reader
from midspan.spaces import Embeddings, FloatArray, IntArray, Metric


@dataclass(frozen=True, slots=True)
class Picture:
    """One item on the page; `image` is a data URI, or None where no image is at hand."""

    id: str
    label: str
    image: str | None


@dataclass(frozen=True, slots=True)
class StripHit:
    picture: Picture
    rank: int
    right: bool  # of the query's class


@dataclass(frozen=True, slots=True)
class Strip:
    """The first results of one search, best first."""

    title: str
    tone: Literal["old", "new", "other"]
    hits: tuple[StripHit, ...]

    @property
    def right(self) -> int:
        return sum(hit.right for hit in self.hits)


@dataclass(frozen=True, slots=True)
class QueryRow:
    query: Picture
    strips: tuple[Strip, ...]
    note: str = ""

    @property
    def few(self) -> bool:
        """Short enough to show side by side."""
        return max((len(strip.hits) for strip in self.strips), default=0) <= 5


class Album:
    """Thumbnails of the items by row, each computed once."""

    def __init__(self, items: Embeddings, images: ImageArray | ThumbnailSource | None) -> None:
        self.items = items
        self.labels = labels_of(items)
        self._read = image_reader(items, images)
        self._thumbnails: dict[int, str | None] = {}

    def picture(self, row: int) -> Picture:
        if row not in self._thumbnails:
            image = self._read(row)
            self._thumbnails[row] = None if image is None else data_uri(image)
        return Picture(
            id=str(self.items.ids[row]), label=str(self.labels[row]), image=self._thumbnails[row]
        )

    def results(
        self,
        title: str,
        *,
        tone: Literal["old", "new", "other"],
        query: int,
        ranked: Sequence[int] | IntArray,
    ) -> Strip:
        hits = (
            StripHit(
                picture=self.picture(int(row)),
                rank=rank,
                right=bool(self.labels[row] == self.labels[query]),
            )
            for rank, row in enumerate(ranked, start=1)
        )
        return Strip(title=title, tone=tone, hits=tuple(hits))


def labels_of(items: Embeddings) -> npt.NDArray[Any]:
    labels = items.labels
    if labels is None:
        raise EvaluationError(
            "the embeddings have no labels, so no result can be called right or wrong; add a "
            "'labels' column"
        )
    return labels


def first_results(
    queries: FloatArray,
    gallery: FloatArray,
    *,
    own: IntArray,
    top: int,
    metric: Metric,
    leave_out: npt.NDArray[Any] | None = None,
) -> list[IntArray]:
    """Rows of the `top` nearest gallery items of each query, its own row `own` left out.

    leave_out: a column (G,); items that share the value of the query's own row do not count.
    """
    codes = None
    if leave_out is not None:
        _, numbers = np.unique(leave_out, return_inverse=True)
        codes = (numbers[own].astype(np.int64), numbers.astype(np.int64))
    _, nearest = search_exact(
        queries, gallery, k=top, metric=metric, exclude=own, ignore_codes=codes
    )  # (Q, top)
    return [row[row >= 0] for row in nearest]  # -1: no further item


def pick_queries(labels: npt.NDArray[Any], *, count: int, seed: int) -> IntArray:
    """Rows drawn by the seed, each of another class while classes last; none without a partner."""
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    rng = np.random.default_rng(seed)
    candidates = rng.permutation(np.flatnonzero(sizes[inverse] > 1))
    _, first = np.unique(inverse[candidates], return_index=True)
    is_first = np.zeros(len(candidates), dtype=bool)
    is_first[first] = True
    ordered = np.concatenate([candidates[is_first], candidates[~is_first]])
    return ordered[:count].astype(np.int64)
