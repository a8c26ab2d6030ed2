"""Is there enough in an image set to train or to evaluate on? Said before the work, in words."""

from __future__ import annotations

from midspan.data.images import ImageSet
from midspan.errors import DataError
from midspan.spaces import StrArray


def check_trainable(images: ImageSet) -> None:
    """Training tells classes apart, so it wants images of two classes or more.

    One image per class is allowed: a classifier can learn from it, pairs cannot.
    """
    labels = _labels(images, required_for="training")
    present = set(labels.tolist())
    if len(present) == 1:
        raise DataError(
            f"all {len(labels):,} images are of one class, {present.pop()!r}; training learns to "
            "tell classes apart and wants two or more: one folder (or label) for each class"
        )


def check_evaluable(images: ImageSet) -> None:
    """Each image searches the others, so some class wants two images or more."""
    labels = _labels(images, required_for="evaluation")
    if len(set(labels.tolist())) == len(labels):
        raise DataError(
            f"each of the {len(labels):,} classes has one image only; evaluation searches with one "
            "image for the others of its class, so give at least one class two images"
        )


def _labels(images: ImageSet, *, required_for: str) -> StrArray:
    if len(images) == 0:
        raise DataError(f"no images: {required_for} wants some{_why_empty(images)}")
    if images.labels is None:
        raise DataError(
            f"these images have no labels, and {required_for} wants to know the class of each: put "
            "them into class folders, or give a label column"
        )
    return images.labels


def _why_empty(images: ImageSet) -> str:
    if not images.skipped:
        return ""
    return f"; {len(images.skipped):,} could not be read, first {images.skipped[0]}"
