"""A flat view of two spaces, in the coordinates of the old one.

The plane is computed from the old vectors alone: classes that the old gallery separates are apart.
New vectors are projected onto the same plane as they are, so a compatible encoder's points fall on
those of its predecessor and an independent encoder's do not. Nothing is fitted to the new vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.spaces import FloatArray, IntArray

Points = npt.NDArray[np.float64]  # (P, 2)


@dataclass(frozen=True, slots=True)
class Projection:
    """Where the shown items lie: in the old space, and by name in each new one."""

    labels: tuple[str, ...]  # (C,) the shown classes
    rows: IntArray  # (P,) rows of the items in the embeddings
    classes: IntArray  # (P,) 0 … C-1
    old: Points
    new: Mapping[str, Points]

    def at_home(self, name: str) -> int:
        """How many new points lie, in the plane, nearest to the old centre of their own class."""
        centres = _centres(self.old, self.classes, len(self.labels))  # (C, 2)
        gaps = np.linalg.norm(self.new[name][:, None] - centres[None], axis=2)  # (P, C)
        return int((gaps.argmin(axis=1) == self.classes).sum())


def project(
    old: FloatArray,
    new: Mapping[str, FloatArray],
    labels: npt.NDArray[Any],
    *,
    classes: int = 8,
    per_class: int = 20,
    seed: int = 0,
) -> Projection:
    """Project items of some classes on the plane along which their centres spread most.

    The classes are those, of at least median size, that are furthest apart in the first two
    principal components of all class centres.
    """
    for name, vectors in new.items():
        if vectors.shape != old.shape:
            raise EvaluationError(
                f"{name} vectors have shape {vectors.shape}, old ones {old.shape}; one plane "
                "shows vectors of the same items and dim only"
            )
    unit = _unit(old)
    names, inverse = np.unique(labels, return_inverse=True)
    sizes = np.bincount(inverse)
    large = np.flatnonzero(sizes >= np.median(sizes))
    centres = _centres(unit, inverse, len(names))[large]  # (C, D)
    flat = (centres - centres.mean(axis=0)) @ _axes(centres)
    chosen = large[_spread_out(flat, classes)]
    members = [np.flatnonzero(inverse == c) for c in chosen]
    shown_centres = np.stack([unit[rows].mean(axis=0) for rows in members])
    origin = shown_centres.mean(axis=0)
    # Two centres span no plane: then the items themselves do.
    axes = _axes(shown_centres if len(chosen) > 2 else unit[np.concatenate(members)])
    rng = np.random.default_rng(seed)
    shown = [np.sort(rng.permutation(rows)[:per_class]) for rows in members]
    rows = np.concatenate(shown).astype(np.int64)
    return Projection(
        labels=tuple(str(names[c]) for c in chosen),
        rows=rows,
        classes=np.repeat(np.arange(len(chosen)), [len(part) for part in shown]),
        old=(unit[rows] - origin) @ axes,
        new={name: (_unit(vectors[rows]) - origin) @ axes for name, vectors in new.items()},
    )


def _unit(vectors: FloatArray) -> Points:
    as_double = vectors.astype(np.float64)
    norms = np.linalg.norm(as_double, axis=1, keepdims=True)
    as_double /= np.maximum(norms, np.finfo(np.float64).tiny)
    return as_double


def _centres(unit: Points, inverse: IntArray, count: int) -> Points:
    sums = np.zeros((count, unit.shape[1]))
    np.add.at(sums, inverse, unit)
    sums /= np.bincount(inverse, minlength=count)[:, None]
    return sums


def _spread_out(points: Points, count: int) -> list[int]:
    """Greedy: first the point furthest from the middle, then always the one furthest from all."""
    chosen = [int(np.linalg.norm(points - points.mean(axis=0), axis=1).argmax())]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < min(count, len(points)):
        nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=1))
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
    return sorted(chosen)


def _axes(points: Points) -> Points:
    """(D, 2) first two principal axes; one that does not exist is zero."""
    centred = points - points.mean(axis=0)
    _, sizes, rows = np.linalg.svd(centred, full_matrices=False)
    axes = np.zeros((points.shape[1], 2))
    kept = rows[:2][sizes[:2] > 1e-9]
    axes[:, : len(kept)] = kept.T
    # The sign of a principal axis is arbitrary: make its largest entry positive.
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    return axes * np.where(signs == 0, 1, signs)
