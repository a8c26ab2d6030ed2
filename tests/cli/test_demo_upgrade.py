"""The demo's live upgrade on a small set: the numbers are those of the gallery itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.cli.demo import print_upgrade
from midspan.cli.demo_upgrade import RESULTS, Traffic, live_upgrade
from midspan.cli.output import text_bar
from midspan.data import ImageSet
from midspan.data.sources import ArraySource
from midspan.evaluation import evaluate
from midspan.gallery import Gallery, Hit
from midspan.image_size import ImageSize
from midspan.spaces import Embeddings, Space

CLASSES, EACH, DIM = 10, 14, 16
CLASS_NAMES = tuple("abcdefghij")
OLD = Space("old", DIM, fingerprint="d-old")
NEW = Space("new", DIM, fingerprint="d-new", compatible_with=("d-old",))


class Pixels:
    """Stands for an encoder: the pixels themselves are the vector."""

    def embed(self, images: ImageSet, *, progress: bool) -> Embeddings:
        rows = images.load(np.arange(len(images)), ImageSize(4, 4, 1))
        vectors = rows.reshape(len(images), DIM).astype(np.float32) - 127.5
        assert images.labels is not None
        return Embeddings(images.ids, vectors, NEW, {"labels": images.labels})


@pytest.fixture
def images() -> ImageSet:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), EACH)
    centres = rng.normal(0, 50, size=(CLASSES, DIM))
    pixels = np.clip(centres[labels] + rng.normal(0, 25, size=(len(labels), DIM)) + 127, 0, 255)
    ids = np.array([f"p{row:03d}" for row in range(len(labels))])
    shaped = pixels.astype(np.uint8).reshape(-1, 4, 4, 1)
    return ImageSet(
        ids=ids,
        source=ArraySource.of(shaped, name="made up"),
        labels=np.array(CLASS_NAMES)[labels],
    )


def test_demo_upgrade_runs_and_rolls_back(
    images: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = Pixels().embed(images, progress=False)
    noise = np.random.default_rng(1).normal(0, 60, size=new.vectors.shape).astype(np.float32)
    old = Embeddings(new.ids, new.vectors + noise, OLD, new.columns)
    encoder: Any = Pixels()
    for _ in range(2):  # a demo that is run again begins with a new gallery
        result = live_upgrade(tmp_path, old=old, new=new, encoder=encoder, images=images, seed=0)
    assert (result.items, result.queries) == (CLASSES * EACH, CLASSES)
    assert result.fractions == pytest.approx(np.linspace(0, 1, 11), abs=0.01)
    # The ends of the curve, from the vectors alone: 139 others are fewer than its depth.
    asked = evaluate(new, old, metrics=["map"], direct=True), evaluate(new, metrics=["map"])
    order = np.random.default_rng(2).permutation(len(new))
    labels = new.columns["labels"][order]
    rows = [order[labels == label][0] for label in CLASS_NAMES]
    expected = [result.per_query["map"][rows].mean() for result in asked]
    assert [result.values[0], result.values[-1]] == pytest.approx(expected, abs=1e-6)
    assert (result.failed, result.same) == (0, result.asked)
    assert result.searches > 0
    assert 0 < result.p50 <= result.p99
    with Gallery.open(result.location) as gallery:
        assert gallery.info().by_space == {"old": CLASSES * EACH}
        assert gallery.verify().ok
        assert gallery.state.upgrade is None
    print_upgrade(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"live upgrade of {CLASSES * EACH} items" in printed
    assert "100 %" in printed
    assert "0 failed" in printed


def test_demo_search_failed_or_short_is_counted() -> None:
    query = Embeddings(np.array(["q"]), np.ones((1, DIM), np.float32), OLD)
    answers: Iterator[Exception | list[list[Hit]]] = iter(
        [RuntimeError("gone"), [[]], [[Hit("a", 1.0, OLD, None, {}, 1.0)] * RESULTS]]
    )

    def search(asked: Embeddings) -> list[list[Hit]]:
        answer = next(answers, RuntimeError("no more"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    traffic = Traffic(search, query)
    with traffic.running():
        while len(traffic.failures) < 4:
            pass
    assert traffic.failures[:4] == [
        "gone",
        "0 results, expected 10 different ones",
        "10 results, expected 10 different ones",
        "no more",
    ]


@pytest.mark.parametrize(
    ("value", "bar"), [(0.0, ""), (1.0, "████"), (0.5, "██"), (0.53, "██▏"), (float("nan"), "")]
)
def test_text_bar_draws_the_share(value: float, bar: str) -> None:
    assert text_bar(value, width=4) == bar
