"""What the benchmarks of scale conclude from numbers, on numbers whose answer is known."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks import same_result, scaling
from benchmarks.upgrade_world import NEW, OLD, World

from midspan.gallery import Gallery, Hit

SIZES = (10_000, 100_000, 1_000_000)


def judged(what: str, unit: str, costs: list[float]) -> tuple[str, float]:
    row = scaling.row(what, unit, dict(zip(SIZES, costs, strict=True)))
    return str(row["verdict"]), float(str(row["exponent"]))


def test_exponents_are_those_of_the_costs() -> None:
    assert judged("add", "s", [1, 10, 100]) == ("ok", 1.0)
    assert judged("add", "cpu s", [1, 100, 10_000]) == ("WORSE", 2.0)
    assert judged("search", "s", [1e-3, 2e-3, 4e-3]) == ("ok", 0.3)
    assert judged("search", "s", [1e-3, 1e-2, 1e-1]) == ("WORSE", 1.0)
    assert judged("backfill", "MiB", [100, 110, 120])[0] == "ok"
    assert judged("backfill", "MiB", [100, 300, 900])[0] == "WORSE"


def test_a_step_that_turns_worse_at_the_end_is_seen() -> None:
    assert judged("add", "s", [10, 11, 300])[0] == "WORSE", "1.4 in the last decade"


def test_start_up_is_no_growth() -> None:
    assert judged("rollback", "s", [0.001, 0.002, 0.015]) == ("ok", 0.0)


def test_memory_of_a_backfill_after_its_first_tenth() -> None:
    growth = "MiB, after 1/10"
    assert scaling.row("backfill", growth, {SIZES[0]: 3.0, SIZES[2]: 8.0})["verdict"] == "flat"
    assert scaling.row("backfill", growth, {SIZES[2]: 300.0})["verdict"] == "WORSE"


def test_results_of_other_sizes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "scaling.csv"
    scaling.save([scaling.row("add", "s", {SIZES[0]: 1.0, SIZES[2]: 100.0})], path)
    assert scaling.read(path) == {("add", "s"): {SIZES[0]: 1.0, SIZES[2]: 100.0}}


# ---- the same result in every engine


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> same_result.Run:
    monkeypatch.setattr(same_result, "QUERIES", 5)
    world = World(120, tmp_path)
    old = np.concatenate([world.vectors(OLD, *block) for block in world.blocks()])
    return same_result.Run("memory", world, old, world.all(NEW))


def test_every_moment_agrees_with_numpy(run: same_result.Run) -> None:
    run.whole(f"memory:{uuid.uuid4().hex}")
    assert [row["moment"] for row in run.rows] == list(same_result.MOMENTS)
    assert [row["exact_same"] for row in run.rows] == [5] * 6
    assert [row["refreshed"] for row in run.rows] == [0, 0, 60, 120, 0, 120]


def test_another_answer_is_seen(run: same_result.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Callable[..., list[list[Hit]]] = Gallery.search

    def late(*arguments: object, **settings: object) -> list[list[Hit]]:
        """As an engine would that loses the best item."""
        settings["k"] = same_result.K + 1
        return [hits[1:] for hits in asked(*arguments, **settings)]

    monkeypatch.setattr(Gallery, "search", late)
    run.whole(f"memory:{uuid.uuid4().hex}")
    assert all(row["exact_same"] == 0 for row in run.rows)
