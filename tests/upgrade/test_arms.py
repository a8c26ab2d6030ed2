"""Times of live searches by the way that answered, and the gate's evidence, in the status."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from midspan.cli.upgrade_tables import print_status
from midspan.gallery import Gallery
from midspan.upgrade import Shadow, Upgrade, judged_by, shadow_gate
from midspan.upgrade.arms import ArmLog, ArmTimes, arm_times
from tests.upgrade.world import NEW, OLD, ids, make, vectors


def test_times_of_two_processes_are_added_and_begin_again_with_an_upgrade(tmp_path: Path) -> None:
    with make("sqlite", tmp_path) as gallery, Gallery.open(gallery.location) as other:
        assert arm_times(gallery) == {}
        upgrade = Upgrade.start(gallery, to=NEW, order="random", traffic=0.5)
        mine, theirs = ArmLog(gallery), ArmLog(other)
        for milliseconds in range(1, 101):
            mine.note("new", milliseconds / 1000)
        theirs.note("old", 0.02)
        theirs.note("new", 3.0)
        mine.flush()
        theirs.flush()
        found = upgrade.status().arms
        assert found["new"].searches == 101
        assert found["new"].p50_ms == pytest.approx(50, rel=0.06)
        assert found["new"].p99_ms == pytest.approx(100, rel=0.06)
        assert found["old"] == ArmTimes(1, found["old"].p50_ms, found["old"].p50_ms)
        mine.note("old", 0.02)
        assert mine.times()["old"].searches == 2, "what is not written yet counts"
        upgrade.rollback()
        assert arm_times(gallery) == {}
        mine.flush()
        Upgrade.start(gallery, to=NEW, order="random")
        assert arm_times(gallery) == {}


def test_status_shows_both_ways_and_what_the_verdict_rests_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make("sqlite", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="random", traffic=0.05)
        log = ArmLog(gallery)
        log.note("old", 0.004)
        log.note("new", 0.008)
        log.flush()
        result = shadow_gate(gallery, Shadow(vectors(ids(60), OLD), vectors(ids(60), NEW)))
        judged_by(gallery, result)
        status = upgrade.status()
        print_status(status, as_json=False)
    assert status.evidence is not None
    assert (status.evidence["queries"], status.evidence["metric"]) == (60, "precision@10")
    retention = next(check for check in result.checks if check.name == "retention")
    assert np.isclose(status.evidence["after"] / status.evidence["before"], retention.value)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert re.search(r"searches as before 1, p50 [34]\.", shown)
    assert re.search(r"searches the new way 1, p50 [78]\.", shown)
    assert f"the new way {100 * status.evidence['after']:.2f} 60 queries at 0.00 % new" in shown


def test_what_both_ways_answer_is_compared_and_begins_again_with_an_upgrade(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make("sqlite", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="random", traffic=0.0)
        log = ArmLog(gallery)
        log.compare(["a", "b", "c", "d"], ["b", "a", "x", "y"], 0.01)
        log.compare(["a", "b"], ["a", "b"], 0.01)
        log.drop()
        assert upgrade.status().compared is None
        told = log.compared()
        log.flush()
        assert upgrade.status().compared == told
        print_status(upgrade.status(), as_json=False)
        assert "old" not in upgrade.status().arms, "they are no answered searches"
        upgrade.rollback()
        assert Upgrade.start(gallery, to=NEW, order="random").status().compared is None
    assert told is not None
    assert (told.queries, told.overlap, told.first_changed, told.dropped) == (2, 0.75, 0.5, 1)
    assert told.p50_ms == pytest.approx(10, rel=0.06)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "2: 75.00 % of the hits, another first hit for 50.00 %" in shown
