"""Threads and processes write and search during upgrades and rollbacks; nothing may go astray."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from midspan.errors import SpaceMismatch
from midspan.gallery import Gallery
from tests.gallery.conftest import Locate
from tests.gallery.samples import NEW, OLD, embed, event, start
from tests.gallery.traffic_worker import Expected, write

ROOT = Path(__file__).parents[2]
SECONDS = 2.0
SECONDS_SLOWLY = 6.0  # Milvus: a write takes some tenths of a second
PATIENCE = 200.0  # until everybody has done something, on a busy machine


def search(gallery: Gallery, stop: threading.Event, done: Counter[str]) -> None:
    """Items that nobody touches must be found by every search, once."""
    fixed = [f"fixed-{number}" for number in range(20)]
    old = embed(fixed)
    while not stop.is_set():
        for row, hits in enumerate(gallery.search(old, k=500)):
            ids = [hit.id for hit in hits]
            assert len(ids) == len(set(ids)), "an item twice in one result"
            assert fixed[row] in ids, "an item vanished"
            assert [hit.score for hit in hits] == sorted((h.score for h in hits), reverse=True)
            done["searches"] += 1


def backfill(gallery: Gallery, stop: threading.Event, done: Counter[str], worker: str) -> None:
    while not stop.is_set():
        state = gallery.state
        tasks = gallery.work.claim(worker=worker, limit=16, seconds=5)
        if not tasks or state.target is None:
            time.sleep(0.01)
            continue
        vectors = embed([task.item.id for task in tasks], state.spaces[state.target])
        with contextlib.suppress(SpaceMismatch):  # rolled back concurrently
            revisions = [task.item.revision for task in tasks]
            done["fills"] += gallery.add_missing_vectors(vectors, revisions=revisions)


def upgrade_and_back(
    gallery: Gallery, stop: threading.Event, done: Counter[str], seconds: float
) -> None:
    while not stop.is_set():
        start(gallery)
        stop.wait(seconds / 5)
        state = gallery.state
        back = dataclasses.replace(state, live=(OLD.fingerprint,), target=None, upgrade=None)
        gallery.change(back, event=event("upgrade rollback"))
        gallery.drop_vectors(NEW.fingerprint)
        done["rounds"] += 1
        stop.wait(0.1)


@pytest.mark.slow
def test_searches_during_upgrades_are_never_wrong(locate_shared: Locate) -> None:
    live_through(locate_shared())


def live_through(location: str, *, quantise: str = "none") -> None:
    gallery = Gallery.create(location, OLD, quantise=quantise)
    gallery.add(embed([f"fixed-{number}" for number in range(20)]))
    stop = threading.Event()
    seconds = SECONDS_SLOWLY if location.startswith("milvus:") else SECONDS
    until = time.time() + seconds
    with ThreadPoolExecutor(8) as pool:
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.gallery.traffic_worker",
                    location,
                    name,
                    str(seconds),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("p1", "p2")
        ]
        done = Counter[str]()
        others = [pool.submit(search, gallery, stop, done) for _ in range(2)]
        others += [pool.submit(backfill, gallery, stop, done, name) for name in ("w1", "w2")]
        others.append(pool.submit(upgrade_and_back, gallery, stop, done, seconds))
        writers = [pool.submit(write, gallery, name, until) for name in ("t1", "t2")]
        expected = Expected()
        try:
            for writer in writers:
                expected |= writer.result()
            for process in processes:
                expected |= json.loads(process.communicate()[0])
                assert process.returncode == 0
            deadline = time.monotonic() + PATIENCE
            while not all(done[what] for what in ("searches", "fills", "rounds")):
                assert not any(one.done() for one in others), "one of them failed: see below"
                assert time.monotonic() < deadline, f"all that was done: {done}"
                time.sleep(0.05)
        finally:
            stop.set()
            for one in others:
                one.result()
    items = gallery.scan(limit=10_000)
    left = {item.id: item.payload["n"] for item in items if not item.id.startswith("fixed")}
    assert left == expected
    counts = gallery.count()
    assert counts.items == len(expected) + 20
    assert counts.without == 0
    assert gallery.verify().problems == ()
    hits = gallery.search(embed(["q"]), k=1000)[0]
    assert {hit.id for hit in hits} == {item.id for item in items}
    gallery.close()
