"""Whether an image set is enough to train or to evaluate on, checked before the work."""

from __future__ import annotations

from midspan.data.images import ImageSet
from midspan.errors import DataError
from midspan.spaces import StrArray


def check_trainable(images: ImageSet) -> None:
    """Training separates classes, so it requires images of two or more.

    One image per class is allowed: a classifier can learn from it, pairs cannot.

    Args:
        images: The set.

    Raises:
        DataError: It cannot be used: fewer than two classes, or no labels.

    Example:
        >>> import midspan as ms
        >>> ms.data.check_trainable(ms.data.digits())
    """
    labels = _labels(images, required_for="training")
    present = set(labels.tolist())
    if len(present) == 1:
        raise DataError(
            f"training: expected two or more classes, got {len(labels):,} images of one, "
            f"{present.pop()!r}; give each class a folder (or a label)"
        )


def check_evaluable(images: ImageSet) -> None:
    """Each image searches for the others of its class, so some class needs two or more.

    Args:
        images: The set.

    Raises:
        DataError: It cannot be used: one image a class, or no labels.

    Example:
        >>> import midspan as ms
        >>> ms.data.check_evaluable(ms.data.digits())
    """
    labels = _labels(images, required_for="evaluation")
    if len(set(labels.tolist())) == len(labels):
        raise DataError(
            f"each of the {len(labels):,} classes has one image only; evaluation searches with one "
            "image for the others of its class, so give at least one class two images"
        )


def _labels(images: ImageSet, *, required_for: str) -> StrArray:
    if len(images) == 0:
        raise DataError(f"{required_for}: expected images, got none{_why_empty(images)}")
    if images.labels is None:
        raise DataError(
            f"{required_for}: expected a class for each image, got no labels; put the images into "
            "class folders, or add a label column"
        )
    return images.labels


def _why_empty(images: ImageSet) -> str:
    if not images.skipped:
        return ""
    return f"; {len(images.skipped):,} could not be read, first {images.skipped[0]}"
