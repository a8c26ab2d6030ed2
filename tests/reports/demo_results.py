"""Small made-up results for the tests of the pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.reports.demo_page import DemoResult
from midspan.reports.live_upgrade import LiveUpgrade
from midspan.spaces import Embeddings, FloatArray, Space

SCORES = {
    "old_self": 0.6123,
    "new_self": 0.7234,
    "independent_self": 0.7346,
    "new_cross": 0.6456,
    "independent_cross": 0.0567,
    "random_cross": 0.0478,
}
INTERVALS = {name: (value - 0.0111, value + 0.0111) for name, value in SCORES.items()}


def vectors(labels: npt.NDArray[Any], *, dim: int = 16, seed: int = 0) -> FloatArray:
    """One direction a class, and a little noise."""
    rng = np.random.default_rng(seed)
    _, inverse = np.unique(labels, return_inverse=True)
    centres = rng.normal(size=(int(inverse.max()) + 1, dim))
    noisy = centres[inverse] + 0.2 * rng.normal(size=(len(labels), dim))
    made: FloatArray = noisy.astype(np.float32)
    return made


def embeddings(
    name: str, matrix: FloatArray, labels: npt.NDArray[Any], ids: Sequence[str] | None = None
) -> Embeddings:
    return Embeddings(
        ids=np.array([f"item-{row}" for row in range(len(matrix))] if ids is None else ids),
        vectors=matrix,
        space=Space(name, matrix.shape[1]),
        columns={"labels": labels},
    )


def demo_result(
    *,
    labels: npt.NDArray[Any] | None = None,
    ids: Sequence[str] | None = None,
    scores: dict[str, float] | None = None,
    intervals: dict[str, tuple[float, float]] | None = None,
    images: npt.NDArray[np.uint8] | None = None,
    data_name: str = "made-up shapes",
    upgrade: LiveUpgrade | None = None,
) -> DemoResult:
    if labels is None:
        labels = np.repeat([f"class {number}" for number in range(10)], 6)
    old = vectors(labels)
    if images is None:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, size=(len(labels), 12, 12, 1), dtype=np.uint8)
    return DemoResult(
        data_name=data_name,
        data_note="60 shapes of 10 classes.",
        metric="map",
        old=embeddings("old", old, labels, ids),
        new=embeddings("new", old + np.float32(0.01), labels, ids),
        independent=embeddings("independent", vectors(labels, seed=1), labels, ids),
        images=images,
        scores=SCORES if scores is None else scores,
        intervals=INTERVALS if intervals is None else intervals,
        method="bct",
        seconds={"train the old encoder": 12.0, "train the new encoder": 75.0},
        command="midspan demo --seed 0 > log.txt && true",
        upgrade=upgrade,
    )


def live_upgrade(**changes: Any) -> LiveUpgrade:
    made = LiveUpgrade(
        items=1234,
        metric="map@300",
        queries=121,
        order="uncertainty",
        mixing="standardised",
        fractions=(0.0, 0.5, 1.0),
        values=(0.7123, 0.7654, 0.8345),
        old_value=0.7012,
        seconds=2.0,
        searches=4321,
        failed=0,
        p50=0.0042,
        p99=0.0567,
        rollback_seconds=0.0123,
        asked=200,
        same=200,
        location="demo/gallery.midspan",
        vectors="demo/compatible/test.npz",
    )
    return dataclasses.replace(made, **changes)
