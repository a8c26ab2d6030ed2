"""The page of learners and confidences: right numbers, pictures, and nothing but text from ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.errors import EvaluationError
from midspan.evaluation.learners import judge_learners
from midspan.reports.learners_page import learners_page
from midspan.reports.learners_plots import confidence_plot
from midspan.reports.numbers import fraction
from midspan.spaces import Column, Embeddings, Space
from tests.reports.html_walk import check_page

COUNT = 4


def items(*, noise: float, seed: int = 0, judged: bool = True) -> Embeddings:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(10), 6)
    centres = np.random.default_rng(9).normal(size=(10, 16))
    vectors = (centres[labels] + noise * rng.normal(size=(60, 16))).astype(np.float32)
    columns: dict[str, Column] = dict[str, Column](labels=labels)
    if judged:
        columns["confidence"] = rng.uniform(5, 9, size=(60, COUNT)) / (1 + noise)
        columns["variance"] = rng.uniform(0.1, 0.2, size=(60, COUNT)) * (1 + noise)
    ids = np.array([f"<i>{n}</i>" for n in range(60)])
    return Embeddings(ids, vectors, Space("new", 16), columns)


def test_learners_page_shows_numbers_images_and_panels(tmp_path: Path) -> None:
    clean = items(noise=0.7)
    path = learners_page(
        clean,
        tmp_path / "learners.html",
        count=COUNT,
        images=np.random.default_rng(0).integers(0, 256, size=(60, 8, 8, 1)).astype(np.uint8),
        baseline=items(noise=1.0, seed=3),
        degraded={
            "blur": [items(noise=0.9, seed=1), items(noise=1.5, seed=2)],
            "occlusion": [items(noise=1.2, seed=4)],
        },
        command="midspan …",
    )
    text = path.read_text(encoding="utf-8")
    walk = check_page(text)
    judged = judge_learners(clean, count=COUNT)
    for value in (*judged.alone, *judged.together, judged.correlation):
        assert fraction(float(value)) in walk.text
    assert len(walk.all("img")) > COUNT  # specialities
    titles = " ".join(walk.by_tag["h2"])
    for expected in (
        "Alone and together",
        "How sure it is of each sub-embedding",
        "Variance against damage",
        "Confidence against damage",
        "Clean and damaged: blur",
        "Clean and damaged: occlusion",
    ):
        assert expected in titles
    assert "<i>0" not in text  # ids are only text


def test_learners_page_without_confidences_shows_learners_only(tmp_path: Path) -> None:
    path = learners_page(items(noise=0.5, judged=False), tmp_path / "p.html", count=2)
    walk = check_page(path.read_text(encoding="utf-8"))
    assert "Learner 2" in walk.by_tag["h3"]
    assert not any("damage" in title for title in walk.by_tag["h2"])


def test_learners_page_single_slice_has_no_special_queries(tmp_path: Path) -> None:
    path = learners_page(items(noise=0.5, judged=False), tmp_path / "p.html", count=1)
    walk = check_page(path.read_text(encoding="utf-8"))
    assert "h3" not in walk.by_tag


def test_learners_page_degraded_of_other_items_raises(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="same order"):
        learners_page(
            items(noise=0.5),
            tmp_path / "p.html",
            count=2,
            degraded={"blur": [items(noise=0.9)[::-1]]},
        )


def test_confidence_plot_draws_quantiles() -> None:
    values = np.tile(np.arange(1.0, 12.0)[:, None], (1, 3))  # 10, 50, 90 % are 2, 6, 10
    svg = confidence_plot({"clean": values, "blur": values / 2}, title="t", name="c")
    assert svg.count("c-set-") == 2
    assert "blur" in svg
