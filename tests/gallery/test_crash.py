"""kill -9 at random moments: what was acknowledged is there, the rest is whole or not at all."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midspan.gallery import Gallery
from tests.gallery.conftest import Locate
from tests.gallery.samples import OLD
from tests.gallery.script import picture, same_search, step

ROOT = Path(__file__).parents[2]
KILLS = 7
KILLS_SLOWLY = 2  # Milvus: a write takes some tenths of a second


def live_and_die(location: str, *, seed: int, first: int, chance: random.Random, steps: int) -> int:
    """Number of the step after the last that was acknowledged."""
    command = [sys.executable, "-m", "tests.gallery.crash_worker", location, str(seed), str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "open\n"
        said = [worker.stdout.readline() for _ in range(chance.randint(0, steps))]
        time.sleep(chance.random() * 0.02)
        worker.send_signal(signal.SIGKILL)
        said += worker.stdout.readlines()
        worker.wait()
        assert worker.returncode == -signal.SIGKILL, "it ended by itself"
    whole = [line for line in said if line.endswith("\n")]
    return int(whole[-1]) + 1 if whole else first


@pytest.mark.slow
def test_acknowledged_writes_survive_sigkill(locate_shared: Locate) -> None:
    location = locate_shared()
    if location.startswith("milvus:"):
        survive(location, kills=KILLS_SLOWLY, steps=10)
    else:
        survive(location, kills=KILLS, steps=25)


def survive(location: str, *, kills: int, steps: int) -> None:
    number, seed = 0, 11
    chance = random.Random(seed)
    Gallery.create(location, OLD).close()
    model = Gallery.create("memory:", OLD)
    for _ in range(kills):
        after = live_and_die(location, seed=seed, first=number, chance=chance, steps=steps)
        gallery = Gallery.open(location)
        number = catch_up(model, picture(gallery), seed=seed, first=number, said=after)
        if not gallery._session.engine.colocated:
            # A vector that was put and not acknowledged may answer: done again, it counts.
            for one in (gallery, model):
                step(one, seed, number)
            number += 1
        same_search(gallery, model)
        assert gallery.check_storage() == []
        gallery.close()
    with Gallery.open(location) as gallery:
        report = gallery.verify()
        assert report.items == model.count().items
        assert report.without == model.count().without  # the script finishes without waiting
        assert not report.first_unusable
        assert report.missing == 0
        gallery.optimise()
        assert gallery.garbage() == 0
    model.close()
    assert number > kills * steps / 2, "it did too little to mean something"


def catch_up(model: Gallery, found: dict[str, object], *, seed: int, first: int, said: int) -> int:
    """Live the model up to what was said; the step that was under way may be there too."""
    for number in range(first, said):
        step(model, seed, number)
    if picture(model) == found:
        return said
    step(model, seed, said)
    assert picture(model) == found, "neither with nor without the step under way"
    return said + 1
