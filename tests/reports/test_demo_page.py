from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import DataError, EvaluationError
from midspan.reports import DemoResult, demo_page
from midspan.reports.demo_page import demo_verdict
from tests.reports.demo_results import SCORES, demo_result, embeddings, vectors
from tests.reports.html_walk import Walk, check_page


def page_of(result: DemoResult, folder: Path, *, rows: int = 4, top: int = 5) -> Walk:
    path = demo_page(result, folder / "page.html", rows=rows, top=top)
    assert path == folder / "page.html"
    return check_page(path.read_text(encoding="utf-8"))


def test_demo_page_shows_the_given_numbers(tmp_path: Path) -> None:
    walk = page_of(demo_result(), tmp_path)
    cells = [cell.strip() for cell in walk.by_tag["td"]]
    assert cells == [
        *("0.6120.601 to 0.623", "–", "–", "–"),
        *("0.7230.712 to 0.735", "0.6460.634 to 0.657", "+0.033 ✓", "14×"),
        *("0.7350.724 to 0.746", "0.0570.046 to 0.068", "−0.556 ✗", "1.2×"),
        *("–", "0.0480.037 to 0.059", "–", "1.0×"),
    ]
    for value in SCORES.values():
        assert f"{value:.3f}" in walk.by_tag["text"]  # of the plot
    assert "midspan demo --seed 0 > log.txt && true" in walk.by_tag["code"]
    assert "60 shapes of 10 classes." in walk.text
    assert "1 min 27 s" in walk.text  # 12 s + 75 s


def test_demo_verdict_above_old_self_holds(tmp_path: Path) -> None:
    walk = page_of(demo_result(), tmp_path)
    (headline,) = walk.by_tag["h1"]
    assert headline == (
        "The new encoder can search the old gallery: mAP 0.646, where the old encoder itself "
        "had 0.612."
    )
    assert walk.all("h1")[0]["class"] == "pass"
    assert "its vectors are noise" in walk.text


def test_demo_verdict_at_equality_holds() -> None:
    assert demo_verdict(demo_result(scores={**SCORES, "new_cross": SCORES["old_self"]})).holds


def test_demo_verdict_below_old_self_states_the_difference(tmp_path: Path) -> None:
    walk = page_of(demo_result(scores={**SCORES, "new_cross": 0.59}), tmp_path)
    assert "falls short on the old gallery by 0.022: mAP 0.590" in walk.by_tag["h1"][0]
    assert walk.all("h1")[0]["class"] == "fail"
    assert "−0.022 ✗" in [cell.strip() for cell in walk.by_tag["td"]]


def test_demo_verdict_tiny_shortfall_does_not_hold() -> None:
    verdict = demo_verdict(demo_result(scores={**SCORES, "new_cross": 0.6122999}))
    assert not verdict.holds
    assert "by less than 0.001" in verdict.headline


def test_demo_page_working_independent_encoder_is_not_called_noise() -> None:
    verdict = demo_verdict(demo_result(scores={**SCORES, "independent_cross": 0.3}))
    assert "0.300" in verdict.sentence
    assert "noise" not in verdict.sentence


def test_demo_page_marks_results_as_right_or_wrong(tmp_path: Path) -> None:
    result = demo_result()
    walk = page_of(result, tmp_path, rows=4, top=5)
    assert len(walk.having("class", "query-row")) == 4
    right, wrong = walk.having("class", "right"), walk.having("class", "wrong")
    assert len(right) + len(wrong) == 4 * 2 * 5
    # Six items a class, the query's own left out: the compatible encoder finds the five others.
    assert "the compatible encoder has 20 of 20 right" in walk.text
    marks = [mark.split()[0] for mark in walk.by_tag["span"] if mark[:1] in "✓✗" and mark]
    assert marks.count("✓") == len(right)
    assert marks.count("✗") == len(wrong)
    query = ""
    for tag, attributes in walk.tags:
        title = (attributes.get("title") or "").partition(",")[0]
        if attributes.get("class") == "query":
            query = title
        elif tag == "li" and title:
            assert title != query


def test_demo_page_panels_show_every_item(tmp_path: Path) -> None:
    walk = page_of(demo_result(), tmp_path)
    text = walk.text
    assert "48 of 48 crosses lie nearest to the middle of their own colour" in text
    assert "8 of 10 test classes" in text
    uses = [a for tag, a in walk.tags if tag == "use"]
    assert len(uses) >= 2 * 2 * 48  # circles and crosses of both panels


def test_demo_page_escapes_hostile_names(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"
    labels = np.repeat([evil, "漢字 & Ωμέγα", "{{ 7 * 7 }}", "$\\frac{$"], 5)
    ids = [f"{evil}{row}" for row in range(20)]
    walk = page_of(demo_result(labels=labels, ids=ids, data_name=evil), tmp_path)
    assert evil in walk.text
    assert "漢字 & Ωμέγα" in walk.text
    assert "{{ 7 * 7 }}" in walk.text
    assert "49" not in walk.by_tag["b"]
    assert all((image["src"] or "").startswith("data:image/png") for image in walk.all("img"))


def test_demo_page_is_deterministic(tmp_path: Path) -> None:
    pages = [demo_page(demo_result(), tmp_path / f"{n}.html").read_bytes() for n in (0, 1)]
    assert pages[0] == pages[1]


def test_demo_page_other_seed_shows_other_queries(tmp_path: Path) -> None:
    drawn = [
        [
            row["title"]
            for row in check_page(
                demo_page(demo_result(), tmp_path / f"{seed}.html", seed=seed).read_text()
            ).having("class", "query")
        ]
        for seed in (0, 1)
    ]
    assert drawn[0] != drawn[1]


def test_demo_page_with_photographs_stays_under_two_megabytes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)  # noise: nothing is harder to compress
    images = rng.integers(0, 256, size=(60, 128, 128, 3), dtype=np.uint8)
    path = demo_page(demo_result(images=images), tmp_path / "page.html")
    assert path.stat().st_size < 2_000_000


def test_demo_page_of_a_single_class_is_written(tmp_path: Path) -> None:
    walk = page_of(demo_result(labels=np.repeat("only", 6)), tmp_path)
    assert "1 of 1 test classes" in walk.text
    assert not walk.having("class", "wrong")


def test_demo_page_of_one_image_per_class_is_written(tmp_path: Path) -> None:
    walk = page_of(demo_result(labels=np.arange(6)), tmp_path)
    assert "there is nothing to find" in walk.text


def test_demo_page_without_intervals_mentions_none(tmp_path: Path) -> None:
    walk = page_of(demo_result(intervals={}), tmp_path)
    assert "95 %" not in walk.text
    assert not walk.by_tag.get("small")


def test_demo_page_nan_score_is_not_printed(tmp_path: Path) -> None:
    walk = page_of(demo_result(scores={**SCORES, "independent_cross": float("nan")}), tmp_path)
    assert "nan" not in re.sub(r"[a-z]{4,}", "", walk.text.lower()).split()


def test_demo_result_incomplete_raises() -> None:
    with pytest.raises(EvaluationError, match="requires the scores random_cross"):
        demo_result(scores={k: v for k, v in SCORES.items() if k != "random_cross"})


def test_demo_result_items_in_another_order_raise() -> None:
    result = demo_result()
    with pytest.raises(EvaluationError, match="old and new embeddings are not of the same items"):
        dataclasses.replace(result, new=result.new[::-1])


def test_demo_result_other_dim_raises_evaluation_error() -> None:
    result = demo_result()
    labels = result.old.columns["labels"]
    wide = embeddings("wide", vectors(labels, dim=20), labels)
    with pytest.raises(EvaluationError, match="independent vectors are 20-d, old ones 16-d"):
        dataclasses.replace(result, independent=wide)


def test_demo_result_mismatched_images_raise() -> None:
    with pytest.raises(DataError, match="59 images for 60 items"):
        demo_result(images=np.zeros((59, 4, 4, 1), dtype=np.uint8))
