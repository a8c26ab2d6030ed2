"""Which part of the training images the old encoder saw, and which part the new one sees.

The four cases of the AdvBCT benchmark (arXiv:2305.02610), with its old share of 30 %:

| name           | the old encoder saw               | the new encoder sees |
|----------------|-----------------------------------|----------------------|
| extended-data  | 30 % of the images of each class  | all                  |
| extended-class | all images of 30 % of the classes | all                  |
| open-data      | 30 % of the images of each class  | the other 70 %       |
| open-class     | all images of 30 % of the classes | the other 70 %       |

Test classes are not part of this: give the labels of the training rows only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.config import look_up
from midspan.errors import ConfigError, DataError
from midspan.labels import ClassNames
from midspan.spaces import IntArray, StrArray

ALLOCATIONS = {
    "extended-data": "midspan.data.allocations:extended_data",
    "extended-class": "midspan.data.allocations:extended_class",
    "open-data": "midspan.data.allocations:open_data",
    "open-class": "midspan.data.allocations:open_class",
}

Mask = npt.NDArray[np.bool_]

# One stream of random numbers for each purpose, so that choices do not follow one another.
_IMAGES, _CLASSES, _HELD_OUT = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Allocation:
    """Rows of the training set, ascending.

    Example:
        >>> import midspan as ms
        >>> digits = ms.data.digits().train
        >>> parts = ms.data.allocate(digits.labels, kind="open-data")
        >>> set(parts.old) & set(parts.new)
        set()
    """

    name: str
    old: IntArray
    new: IntArray


def allocate(
    labels: IntArray | StrArray, *, kind: str, old_fraction: float = 0.3, seed: int = 0
) -> Allocation:
    """Divide training rows between the old and the new encoder.

    labels: numbers of classes, or names, which are numbered in sorted order. A run file numbers
    the classes of its whole image set: `ClassNames(images.class_names).encode(images.labels)`.

    The images chosen of a class depend only on the seed, its label and its own images. The two
    data cases share their old part, as do the two class cases, so one old encoder serves both. The
    old part has at least one image of a class (one class) and, where there are two, not all.

    Args:
        labels: (N,) labels of the training images.
        kind: "extended-data", "extended-class", "open-data" or "open-class".
        old_fraction: Share of the images or of the classes that the old encoder sees.
        seed: Of the draw.

    Returns:
        The rows of the old and of the new encoder.

    Raises:
        DataError: Too few classes or images to divide.
        ConfigError: There is no such kind, or the share is not between 0 and 1.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> parts = ms.data.allocate(np.arange(100) % 10, kind="extended-class")
        >>> len(parts.old), len(parts.new)
        (30, 100)
    """
    rule = look_up(ALLOCATIONS, kind, what="allocation")
    numbers = _checked(labels, fraction=old_fraction, seed=seed)
    old, new = rule(numbers, fraction=old_fraction, seed=seed)
    return Allocation(name=kind, old=np.flatnonzero(old), new=np.flatnonzero(new))


def hold_out_classes(
    labels: IntArray | StrArray, *, fraction: float = 0.2, seed: int = 0
) -> tuple[IntArray, IntArray]:
    """(training rows, validation rows) of disjoint classes: to find settings without test classes.

    The default is ours: a fifth, as in five-fold cross-validation.

    Args:
        labels: (N,) labels of the training images.
        fraction: Share of the classes that is held out.
        seed: Of the draw.

    Returns:
        The rows to train on and the rows to validate with.

    Raises:
        DataError: Fewer than two classes.
        ConfigError: The share is not between 0 and 1.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> training, validation = ms.data.hold_out_classes(np.arange(100) % 10)
        >>> len(training), len(validation)
        (80, 20)
    """
    numbers = _checked(labels, fraction=fraction, seed=seed)
    held_out = _some_classes(numbers, fraction=fraction, seed=seed, stream=_HELD_OUT)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


# ---- rules: (seen by the old encoder, seen by the new one), masks over the rows ------------------


def extended_data(labels: IntArray, *, fraction: float, seed: int) -> tuple[Mask, Mask]:
    return _some_images(labels, fraction=fraction, seed=seed), np.ones(len(labels), dtype=bool)


def extended_class(labels: IntArray, *, fraction: float, seed: int) -> tuple[Mask, Mask]:
    old = _some_classes(labels, fraction=fraction, seed=seed, stream=_CLASSES)
    return old, np.ones(len(labels), dtype=bool)


def open_data(labels: IntArray, *, fraction: float, seed: int) -> tuple[Mask, Mask]:
    old = _some_images(labels, fraction=fraction, seed=seed)
    if old.all():
        raise DataError(
            "open-data: expected classes of two images or more, got one image in each; the new "
            "encoder would see none"
        )
    return old, ~old


def open_class(labels: IntArray, *, fraction: float, seed: int) -> tuple[Mask, Mask]:
    old = _some_classes(labels, fraction=fraction, seed=seed, stream=_CLASSES)
    return old, ~old


def _some_images(labels: IntArray, *, fraction: float, seed: int) -> Mask:
    chosen = np.zeros(len(labels), dtype=bool)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    for label, rows in zip(classes, np.split(order, starts[1:]), strict=True):
        random = np.random.default_rng([seed, _IMAGES, int(label)])
        count = _share(len(rows), fraction)
        chosen[random.permutation(rows)[:count]] = True
    return chosen


def _some_classes(labels: IntArray, *, fraction: float, seed: int, stream: int) -> Mask:
    """Each class draws its own number; the lowest are chosen. A further class moves few others."""
    classes = np.unique(labels)
    if len(classes) < 2:
        raise DataError(f"expected two or more classes to divide, got {len(classes)}")
    draws = [np.random.default_rng([seed, stream, int(label)]).random() for label in classes]
    chosen = classes[np.argsort(draws, kind="stable")[: _share(len(classes), fraction)]]
    return np.isin(labels, chosen)


def _share(count: int, fraction: float) -> int:
    rounded = math.floor(fraction * count + 0.5)
    return max(1, min(rounded, count - 1))


def _checked(labels: npt.NDArray[Any], *, fraction: float, seed: int) -> IntArray:
    labels = np.asarray(labels)
    if labels.ndim == 1 and labels.dtype.kind == "U":
        labels = ClassNames.of(labels).encode(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (labels < 0).any():
        raise DataError(
            "expected labels (N,) as names or as whole numbers from 0, got "
            f"{labels.dtype}{labels.shape}"
        )
    if not len(labels):
        raise DataError("no labels: there are no training images to divide")
    if not 0 < fraction < 1:
        raise ConfigError(f"expected a share between 0 and 1, got {fraction}")
    if seed < 0:
        raise ConfigError(f"expected a seed of 0 or more, got {seed}")
    return labels.astype(np.int64, copy=False)
