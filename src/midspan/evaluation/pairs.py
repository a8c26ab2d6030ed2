"""Verification over more pairs than fit into memory: scored in blocks, TAR at a FAR exact.

blocks = ((scores, same[part]) for part, scores in score_pairs(templates, left, right))
result = verify(blocks, far=[1e-4, 1e-5], n_impostor=int((~same).sum()))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation.verification import BoolArray, FloatArray64, Scores, allowed, checked
from midspan.labels import codes

IntArray = npt.NDArray[np.integer[Any]]
ScoreBlock = tuple[Scores, BoolArray]  # scores of some pairs, and which of them are genuine


@dataclass(frozen=True, slots=True)
class Verification:
    """Verification of pairs: true accept rates at false accept rates."""

    far: FloatArray64  # (F,) as asked
    tar: FloatArray64  # (F,)
    thresholds: FloatArray64  # (F,)
    genuine: Scores  # (n_genuine,) in the order of the stream
    n_impostor: int

    @property
    def n_genuine(self) -> int:
        return len(self.genuine)


def verify(blocks: Iterable[ScoreBlock], *, far: Sequence[float], n_impostor: int) -> Verification:
    """TAR at each FAR over a stream of scored pairs; equal to `tar_at_far`, to the last bit.

    Kept are the genuine scores and the ⌊max FAR·n_impostor⌋+1 largest impostor scores; hence the
    number of impostor pairs must be known before (it follows from the labels).

    Args:
        blocks: (scores, same) of some pairs at a time; `same` is True for genuine pairs.
        far: The false accept rates.
        n_impostor: Impostor pairs of the whole stream.

    Returns:
        True accept rates and thresholds, and all genuine scores.

    Raises:
        EvaluationError: Another number of impostor pairs came, or a score is NaN.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> block = np.array([0.9, 0.3, 0.6, 0.1]), np.array([True, True, False, False])
        >>> ms.evaluation.verify([block], far=[0.5], n_impostor=2).tar.tolist()
        [1.0]
    """
    if n_impostor < 1:
        raise EvaluationError("no impostor pairs: a false accept rate is not defined")
    ks = [allowed(rate, n_impostor) for rate in far]
    tail = Largest(min(max(ks, default=0) + 1, n_impostor))
    genuine: list[Scores] = []
    seen = 0
    for scores, same in blocks:
        if np.isnan(scores).any():
            raise EvaluationError(f"{int(np.isnan(scores).sum())} pairs have the score NaN")
        genuine.append(scores[same])
        impostor = scores[~same]
        seen += len(impostor)
        tail.add(impostor)
    if seen != n_impostor:
        raise EvaluationError(f"{seen} impostor pairs came, {n_impostor} were announced")
    kept = checked(np.concatenate(genuine), "genuine")
    largest = tail.values()
    thresholds = np.array([largest[k] if k < n_impostor else -np.inf for k in ks], dtype=np.float64)
    return Verification(
        far=np.array(far, dtype=np.float64),
        tar=np.array([np.mean(kept > threshold) for threshold in thresholds]),
        thresholds=thresholds,
        genuine=kept,
        n_impostor=n_impostor,
    )


class Largest:
    """The `count` largest numbers of a stream, exactly, in memory for about twice as many."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._parts: list[Scores] = []
        self._held = 0
        self._floor = -np.inf  # once `count` are held, smaller ones cannot matter

    def add(self, values: Scores) -> None:
        if self._floor > -np.inf:
            values = values[values > self._floor]
        self._parts.append(values)
        self._held += len(values)
        if self._held >= 2 * self.count + 65536:
            self._shrink()

    def values(self) -> Scores:
        """Falling."""
        self._shrink()
        return np.sort(self._parts[0])[::-1]

    def _shrink(self) -> None:
        held = np.concatenate(self._parts) if self._parts else np.empty(0)
        if len(held) > self.count:
            held = np.partition(held, len(held) - self.count)[len(held) - self.count :].copy()
            self._floor = held.min()
        self._parts, self._held = [held], len(held)


def score_pairs(
    templates: npt.NDArray[np.float32],
    left: IntArray,
    right: IntArray,
    *,
    present: BoolArray | None = None,
    block: int = 1 << 20,
) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
    """Dot products of listed pairs of rows, block after block in the order of the list.

    `present` marks the templates that have a face; pairs with one that has none score −∞.
    Where a block of the list covers a dense part of the matrix of all pairs (a list sorted by
    template does), that part is multiplied whole: far cheaper than fetching two rows per pair.

    Args:
        templates: (T, D) unit vectors.
        left: (P,) rows of one side of each pair.
        right: (P,) rows of the other side.
        present: (T,) True for templates that have a face; None: all have.
        block: Pairs at a time.

    Returns:
        An iterator of (which pairs, their scores).

    Raises:
        EvaluationError: A row number is not that of a template.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> left, right = np.array([0, 1]), np.array([0, 2])
        >>> [scores.tolist() for _, scores in ms.evaluation.score_pairs(vectors, left, right)]
        [[1.0, 0.0]]
    """
    present = _check_templates(templates, present)
    for name, rows in (("left", left), ("right", right)):
        if len(rows) != len(left) or (
            len(rows) and not (rows.min() >= 0 and rows.max() < len(templates))
        ):
            raise EvaluationError(
                f"{name}: expected one row number below {len(templates)} for each of {len(left)} "
                f"pairs, got {len(rows)} rows"
            )
    for start in range(0, len(left), block):
        part = slice(start, min(start + block, len(left)))
        lefts, at_left = _distinct(left[part], len(templates))
        rights, at_right = _distinct(right[part], len(templates))
        scores: npt.NDArray[np.float32]
        if len(lefts) * len(rights) <= DENSE * len(at_left):
            scores = (templates[lefts] @ templates[rights].T)[at_left, at_right]
        else:
            scores = _row_products(templates, left[part], right[part])
        scores[~(present[left[part]] & present[right[part]])] = -np.inf
        yield part, scores


DENSE = 16  # matrix entries per requested pair up to which the whole matrix is cheaper; measured


def all_pairs(
    query: npt.NDArray[np.float32],
    gallery: npt.NDArray[np.float32],
    *,
    query_labels: npt.NDArray[Any],
    gallery_labels: npt.NDArray[Any],
    query_present: BoolArray | None = None,
    gallery_present: BoolArray | None = None,
    block: int = 1 << 22,
) -> Iterator[ScoreBlock]:
    """Scores and sameness of every query with every gallery template, in blocks for `verify`."""
    query_present = _check_templates(query, query_present)
    gallery_present = _check_templates(gallery, gallery_present)
    if query_labels.dtype.kind == gallery_labels.dtype.kind == "U":  # text once, not in each block
        query_labels, gallery_labels = codes(query_labels, gallery_labels)
    rows = max(1, min(len(query), math.isqrt(block)))
    columns = max(1, block // rows)
    for top in range(0, len(query), rows):
        for first in range(0, len(gallery), columns):
            ours, theirs = slice(top, top + rows), slice(first, first + columns)
            scores = query[ours] @ gallery[theirs].T  # (rows, columns)
            scores[~query_present[ours]] = -np.inf
            scores[:, ~gallery_present[theirs]] = -np.inf
            same = query_labels[ours, None] == gallery_labels[None, theirs]
            yield scores.ravel(), same.ravel()


def count_impostors(query_labels: npt.NDArray[Any], gallery_labels: npt.NDArray[Any]) -> int:
    """How many pairs of `all_pairs` are of different labels, without forming them."""
    labels, counts = np.unique(gallery_labels, return_counts=True)
    place = np.minimum(np.searchsorted(labels, query_labels), len(labels) - 1)
    genuine = np.where(labels[place] == query_labels, counts[place], 0).sum()
    return len(query_labels) * len(gallery_labels) - int(genuine)


# ---- parts ---------------------------------------------------------------------------------------


def _distinct(rows: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """np.unique with inverse, without its sort: row numbers are small."""
    seen = np.zeros(count, dtype=bool)
    seen[rows] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[rows]


def _row_products(
    templates: npt.NDArray[np.float32],
    left: IntArray,
    right: IntArray,
) -> npt.NDArray[np.float32]:
    """Small steps, so that the fetched rows stay in the cache."""
    scores = np.empty(len(left), dtype=np.float32)
    for start in range(0, len(left), 4096):
        step = slice(start, start + 4096)
        np.einsum("nd,nd->n", templates[left[step]], templates[right[step]], out=scores[step])
    return scores


def _check_templates(templates: npt.NDArray[np.float32], present: BoolArray | None) -> BoolArray:
    if templates.ndim != 2 or len(templates) == 0:
        raise EvaluationError(f"expected templates (T, D) with T > 0, got {templates.shape}")
    if present is None:
        return np.ones(len(templates), dtype=bool)
    if present.shape != (len(templates),):
        raise EvaluationError(f"'present' has shape {present.shape} for {len(templates)} templates")
    return present
