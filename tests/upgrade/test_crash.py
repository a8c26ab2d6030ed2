"""kill -9 at random moments of start, backfill, rollback and finish."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midspan.gallery import Gallery
from midspan.upgrade import Record, Upgrade
from tests.upgrade.crash_worker import BOTH, begin
from tests.upgrade.world import (
    OLD,
    QUICK,
    WIDE,
    accounted,
    all_hold,
    bridge,
    encoder,
    ids,
    make,
    picture,
    vectors,
)

ROOT = Path(__file__).parents[2]
KILLS = 6


def live_and_die(location: str, *, seed: int, chance: random.Random) -> list[str]:
    """Names of the items that were acknowledged."""
    command = [sys.executable, "-m", "tests.upgrade.crash_worker", location, str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        said = [worker.stdout.readline() for _ in range(chance.randint(1, 25))]
        time.sleep(chance.random() * 0.05)
        worker.send_signal(signal.SIGKILL)
        said += worker.stdout.readlines()
        worker.wait()
        assert worker.returncode == -signal.SIGKILL, "it ended by itself"
    return [line.strip() for line in said if line.startswith("w") and line.endswith("\n")]


def check(gallery: Gallery, known: set[str]) -> None:
    accounted(gallery)
    items = gallery.scan(limit=10_000)
    assert known <= {item.id for item in items}, "an acknowledged item is lost"
    assert gallery.count().without == 0
    assert gallery.check_storage() == []
    record = Record.of(gallery.state)
    serving = gallery.state.live[0] if record is None else record.new
    if record is not None and record.phase == "mapping":
        serving = record.old
    for hits in gallery.search(vectors(ids(3, first=900), BOTH[serving]), k=30):
        assert len({hit.id for hit in hits}) == len(hits) == 30


@pytest.mark.slow
def test_kill_9_at_any_moment_of_an_upgrade(tmp_path: Path) -> None:
    bridge(tmp_path, OLD, WIDE)
    bridge(tmp_path, WIDE, OLD)
    chance = random.Random(5)
    with make("sqlite", tmp_path) as gallery:
        location = gallery.location
    known = set(ids(60))
    for seed in range(KILLS):
        known |= set(live_and_die(location, seed=seed, chance=chance))
        with Gallery.open(location) as gallery:
            check(gallery, known)
    assert len(known) > 65, "it did too little to mean something"
    with Gallery.open(location) as gallery:  # and it goes on
        upgrade, record = Upgrade(gallery), Record.of(gallery.state)
        if record is None:
            begin(gallery, "map-gallery")
        elif record.phase == "mapping":
            begin(gallery, record.mode)
        elif record.phase in ("finished", "forgetting"):
            upgrade.forget()
            begin(gallery, "map-query")
        record = Record.of(gallery.state)
        assert record is not None
        assert upgrade.run(encoder(BOTH[record.new]), settings=QUICK).stopped == "done"
        upgrade.finish(override="a test")
        upgrade.forget()
        items = gallery.scan(limit=10_000)
        model = {item.id: picture(item.id) for item in items}
        all_hold(gallery, BOTH[record.new], model)
        assert known <= model.keys()
        assert gallery.verify().ok
