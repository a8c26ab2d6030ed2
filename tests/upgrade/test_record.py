"""The record in the state row: read back as written, refused if it is of another kind."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from midspan.errors import FormatError, GalleryError, StateChanged
from midspan.gallery import AuditEvent, State
from midspan.gallery.records import Record
from midspan.upgrade.status import work_rate
from midspan.upgrade.steps import CHANGES, change, open_record
from tests.upgrade.world import make

RECORD = Record(mode="direct", old="a", new="b", phase="running", started=1.5, order="newest")


def state(upgrade: object) -> State:
    return State(version=1, spaces={}, live=("a",), upgrade=upgrade)  # type: ignore[arg-type]


def test_a_record_as_json_and_back_is_the_same() -> None:
    written = json.loads(json.dumps(RECORD.to_json()))
    assert Record.of(state(written)) == RECORD
    assert Record.of(state({**written, "later": 1})) == RECORD, "a newer version may add names"
    assert Record.of(state(None)) is None


@pytest.mark.parametrize("damage", [{"mode": "sideways"}, {"phase": "asleep"}])
def test_unknown_modes_and_phases_are_refused(damage: dict[str, str]) -> None:
    with pytest.raises(FormatError, match=next(iter(damage.values()))):
        Record.of(state({**RECORD.to_json(), **damage}))


def test_missing_names_are_refused() -> None:
    with pytest.raises(FormatError, match="not readable"):
        Record.of(state({"mode": "direct"}))


def test_a_change_looks_again_when_somebody_was_faster(tmp_path: Path) -> None:
    with make("memory", tmp_path, count=2) as gallery:
        other = AuditEvent(who="other", what="interferes")
        seen = []

        def step(before: State) -> State:
            seen.append(before.version)
            if len(seen) < 3:  # in between the other one writes
                gallery.change(gallery.state, event=other)
            return dataclasses.replace(before, upgrade=RECORD.to_json())

        change(gallery, step, what="test")
        assert seen == [1, 2, 3]
        assert open_record(gallery) == RECORD

        def never(before: State) -> State:
            gallery.change(gallery.state, event=other)
            return before

        with pytest.raises(StateChanged, match=f"{CHANGES} times"):
            change(gallery, never, what="test")


def test_without_an_upgrade_there_is_no_record(tmp_path: Path) -> None:
    none = "no upgrade is open; the gallery is in 'old'"
    with make("memory", tmp_path, count=2) as gallery, pytest.raises(GalleryError, match=none):
        open_record(gallery)


def test_the_rate_is_the_sum_over_workers_that_reported_lately() -> None:
    def line(worker: str, written: int, *, ago: float) -> AuditEvent:
        details = {"worker": worker, "written": written, "seconds": 10.0}
        return AuditEvent(who="w", what="upgrade run", details=details, when=1000.0 - ago)

    trail = [line("a", 50, ago=1), line("b", 20, ago=5), line("a", 500, ago=11)]
    assert work_rate(trail, now=1000.0) == pytest.approx(7.0)
    assert work_rate([line("a", 50, ago=300)], now=1000.0) is None
    assert work_rate([AuditEvent(who="w", what="add", when=1000.0)], now=1000.0) is None
