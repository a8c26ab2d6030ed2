from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from midspan.evaluation import Comparison, Curve, compare
from midspan.evaluation.verification import roc
from midspan.reports import Matrix, compare_page
from midspan.reports.compare_page import compare_verdict, difference_ci, negative_flips
from midspan.reports.images import ImageArray
from midspan.spaces import Embeddings, Space
from tests.reports.demo_results import embeddings, vectors
from tests.reports.html_walk import Walk, check_page

LABELS = np.repeat([f"class {number}" for number in range(8)], 6)


def items(name: str, *, noise: float, seed: int, labels: np.ndarray = LABELS) -> Embeddings:
    """The same space for every name, seen more or less sharply."""
    rng = np.random.default_rng(seed)
    matrix = vectors(labels) + noise * rng.normal(size=(len(labels), 16)).astype(np.float32)
    halves = np.where(np.arange(len(labels)) % 2, "odd", "even")
    return embeddings(name, matrix.astype(np.float32), labels).with_columns({"half": halves})


def comparison(*, worse: bool = False, upper: bool = True) -> Comparison:
    sharp, blurred = 0.3, 1.2
    return compare(
        old=items("v1", noise=sharp if worse else blurred, seed=1),
        new=items("v2", noise=blurred if worse else sharp, seed=2),
        upper=items("alone", noise=0.2, seed=3) if upper else None,
        groups="half",
        bootstrap=200,
    )


def pictures() -> ImageArray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, size=(len(LABELS), 10, 10, 3), dtype=np.uint8)


def curve() -> Curve:
    values = np.array([0.5, 0.7])
    flips = np.zeros(2)
    return Curve("map", np.array([0.0, 1.0]), values, values[:, None], flips, flips)


def page_of(result: Comparison, folder: Path, *, images: ImageArray | None = None) -> Walk:
    path = compare_page(result, folder / "page.html", images=images)
    return check_page(path.read_text(encoding="utf-8"))


def table_cells(walk: Walk) -> list[str]:
    return [cell.strip() for cell in walk.by_tag["td"]]


def test_compare_page_shows_every_number(tmp_path: Path) -> None:
    result = comparison()
    cells = table_cells(page_of(result, tmp_path))
    for name in ("old_self", "cross", "new_self", "upper_self", "perf_gain", "p_up", "p_1"):
        low, high = result.ci[name]
        place = cells.index(f"{low:.3f} to {high:.3f}".replace("-", "−"))
        assert cells[place - 1] == f"{getattr(result, name):.3f}".replace("-", "−"), name
    low, high = (100 * end for end in result.ci["negative_flips"])
    place = cells.index(f"{low:.1f} to {high:.1f} %")
    assert cells[place - 1] == f"{100 * result.negative_flips:.1f} %"


def test_compare_page_without_an_upper_bound_explains_missing_gains(tmp_path: Path) -> None:
    walk = page_of(comparison(upper=False), tmp_path)
    assert "update gain" not in walk.text
    assert "upper self" not in walk.text
    assert "--upper" in walk.text


def test_compare_page_undefined_gain_is_a_dash(tmp_path: Path) -> None:
    result = dataclasses.replace(comparison(), update_gain=float("nan"), ci={})
    assert "–" in table_cells(page_of(result, tmp_path))


def test_compare_verdict_states_whether_the_criterion_is_met(tmp_path: Path) -> None:
    good, bad = comparison(), comparison(worse=True)
    assert good.compatible
    assert not bad.compatible
    walk = page_of(good, tmp_path)
    assert "can search the old gallery: mAP" in walk.by_tag["h1"][0]
    assert f"{good.cross:.3f}" in walk.by_tag["h1"][0]
    verdict = compare_verdict(bad)
    assert f"falls short on the old gallery by {bad.old_self - bad.cross:.3f}" in verdict.headline
    assert f"{100 * bad.negative_flips:.1f} % of the queries lose" in verdict.sentence
    assert "includes 0" not in verdict.sentence


def test_compare_verdict_insignificant_difference_is_stated() -> None:
    result = comparison()
    swapped = result.per_query["old_self"].reshape(-1, 2)[:, ::-1].reshape(-1)
    same = dataclasses.replace(result, per_query={**result.per_query, "cross": swapped})
    low, high = difference_ci(same)
    assert low < 0 < high
    assert "includes 0" in compare_verdict(same).sentence


def test_compare_verdict_interval_is_paired() -> None:
    result = comparison()
    shifted = result.per_query["old_self"] + 0.01
    low, high = difference_ci(
        dataclasses.replace(result, per_query={**result.per_query, "cross": shifted})
    )
    assert low == pytest.approx(0.01)
    assert high == pytest.approx(0.01)


def test_negative_flips_are_queries_that_lost_their_first_hit() -> None:
    result = comparison(worse=True)
    rows = negative_flips(result)
    before, after = result.hits["old_self"], result.hits["cross"]
    assert sorted(rows.tolist()) == [
        row for row in range(len(LABELS)) if before[row] == 1 and after[row] == 0
    ]
    assert len(rows) > 4
    drops = [result.per_query["old_self"][r] - result.per_query["cross"][r] for r in rows]
    assert drops == sorted(drops, reverse=True)


def test_compare_page_shows_lost_queries_before_and_after(tmp_path: Path) -> None:
    result = comparison(worse=True)
    walk = page_of(result, tmp_path, images=pictures())
    shown = walk.having("class", "query-row")
    assert 0 < len(shown) <= 8
    assert len(walk.all("img")) == len(shown) * (1 + 5 + 5)
    strips: list[list[str]] = []
    for tag, attributes in walk.tags:
        kind = (attributes.get("class") or "").split()
        if kind[:1] == ["strip"]:
            strips.append([])
        elif tag == "li" and kind and kind[0] in ("right", "wrong"):
            strips[-1].append(kind[0])
    # First hit right before, wrong now: that is what a negative flip is.
    assert [strip[0] for strip in strips] == ["right", "wrong"] * len(shown)
    queries = [row["title"] for row in walk.having("class", "query")]
    labels = [LABELS[int((title or "").partition("-")[2])] for title in queries]
    assert max(labels.count(label) for label in labels) <= 2


def test_compare_page_excluded_items_are_not_shown(tmp_path: Path) -> None:
    old = items("v1", noise=0.3, seed=1)
    new = items("v2", noise=1.2, seed=2)
    result = compare(old=old, new=new, exclude_column="half", bootstrap=50)
    path = compare_page(result, tmp_path / "page.html", exclude_column="half")
    walk = check_page(path.read_text())
    half, shown = "", 0
    for tag, attributes in walk.tags:
        title = (attributes.get("title") or "").partition(",")[0].partition("-")[2]
        if attributes.get("class") == "query":
            half = old.columns["half"][int(title)]
        elif tag == "li" and title:
            shown += 1
            assert old.columns["half"][int(title)] != half
    assert shown


def test_compare_page_without_images_shows_the_ids(tmp_path: Path) -> None:
    result = comparison(worse=True)
    walk = page_of(result, tmp_path)
    assert not walk.all("img")
    boxes = walk.having("class", "no-image")
    assert len(boxes) == len(walk.having("class", "query-row")) * 11
    assert all(box["aria-label"] for box in boxes)
    assert f"item-{negative_flips(result)[0]}" in walk.by_tag["span"]


def test_compare_page_long_id_shows_its_end(tmp_path: Path) -> None:
    result = comparison(worse=True)
    long = np.array([f"very/long/folder/names/photo-{row:04d}.jpg" for row in range(len(LABELS))])
    walk = page_of(
        dataclasses.replace(result, old=dataclasses.replace(result.old, ids=long)), tmp_path
    )
    assert f"…ames/photo-{negative_flips(result)[0]:04d}.jpg" in walk.by_tag["span"]


def test_compare_page_without_flips_says_so(tmp_path: Path) -> None:
    old = items("v1", noise=0.1, seed=1)
    walk = page_of(compare(old=old, new=old, bootstrap=50), tmp_path)
    assert "None loses its first hit: there is no negative flip." in walk.text
    assert not walk.having("class", "query-row")
    assert "0 queries find more on the first day than today, 48 the same, 0 less" in walk.text


def test_compare_page_lists_groups_worst_first(tmp_path: Path) -> None:
    result = comparison(worse=True)
    walk = page_of(result, tmp_path)
    expected = [group.name for group in sorted(result.groups, key=lambda g: g.cross - g.old_self)]
    assert [name for name in walk.by_tag["th"] if name in ("odd", "even")] == expected
    cells = table_cells(walk)
    for group in result.groups:
        assert f"{group.cross:.3f}" in cells
        assert any(cell.startswith(f"−{group.old_self - group.cross:.3f} ✗") for cell in cells)


def test_compare_page_many_groups_are_cut_with_a_count(tmp_path: Path) -> None:
    result = comparison()
    (first, *_) = result.groups
    many = tuple(dataclasses.replace(first, name=f"g{number}") for number in range(50))
    walk = page_of(dataclasses.replace(result, groups=many), tmp_path)
    assert "(40 of 50 groups)" in walk.text
    assert sum(name.startswith("g") and name[1:].isdigit() for name in walk.by_tag["th"]) == 40


def test_compare_page_shows_optional_parts_when_given(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = compare_page(
        comparison(),
        tmp_path / "page.html",
        curves={"random": curve(), "<b>doubt</b>": curve()},
        rocs={"old": roc(rng.normal(1, 1, 50), rng.normal(0, 1, 50))},
        matrix=Matrix(np.array([[0.5, np.nan], [0.6, 0.7]]), ["v1", "v2"]),
        command="midspan compare --old a.npz --new b.npz",
    )
    walk = check_page(path.read_text(encoding="utf-8"))
    assert len(walk.all("svg")) == 4
    assert "<b>doubt</b>: mean 0.600, area 0.600." in walk.text
    assert "0.600 ✓" in walk.by_tag["text"]
    assert "Share of ✓ (AC) 1.000" in walk.text
    assert "midspan compare --old a.npz --new b.npz" in walk.by_tag["code"]


def test_compare_page_omits_optional_parts_when_missing(tmp_path: Path) -> None:
    walk = page_of(comparison(), tmp_path)
    assert len(walk.all("svg")) == 1
    for heading in ("While the gallery", "Same or not", "Every encoder"):
        assert heading not in walk.text


def test_compare_page_escapes_hostile_names(tmp_path: Path) -> None:
    evil = "</style><script>alert(1)</script>"
    labels = np.repeat([evil, "ф & $x", "漢字"], 6)
    old = items(evil, noise=0.2, seed=1, labels=labels)
    new = items("v2 <b>", noise=1.5, seed=2, labels=labels)
    result = compare(old=old, new=new, groups="labels", bootstrap=50)
    walk = page_of(result, tmp_path)
    assert evil in walk.text
    assert "漢字" in walk.by_tag["th"]


class Backward:
    """A bridge from the new space into the old one."""

    def __init__(self, source: Space, target: Space) -> None:
        self.source, self.target = source, target

    def transform(self, given: Embeddings, /) -> Embeddings:
        return Embeddings(given.ids, given.vectors[:, :16], self.target, given.columns)


def test_compare_page_names_the_bridge(tmp_path: Path) -> None:
    old = items("v1", noise=0.5, seed=1)
    wide = np.concatenate([old.vectors, old.vectors[:, :4]], axis=1)
    new = Embeddings(old.ids, wide, Space("wide", 20), old.columns)
    result = compare(old=old, new=new, bridge=Backward(new.space, old.space), bootstrap=50)
    walk = page_of(result, tmp_path)
    assert "New queries are mapped into the old space by a bridge." in walk.text


def test_compare_page_is_deterministic(tmp_path: Path) -> None:
    result = comparison(worse=True)
    first, second = (
        compare_page(result, tmp_path / name, images=pictures()).read_bytes() for name in "ab"
    )
    assert first == second
