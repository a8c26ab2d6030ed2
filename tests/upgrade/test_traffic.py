"""A whole upgrade, back and again, under traffic of threads and processes: nothing goes astray."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from midspan.errors import GalleryError
from midspan.gallery import Gallery
from midspan.upgrade import Upgrade
from tests.upgrade.traffic_worker import PAUSE, Model, live
from tests.upgrade.world import NEW, QUICK, accounted, all_hold, encoder, ids, picture, vectors

ROOT = Path(__file__).parents[2]
FIXED = ids(60)
PATIENCE = 200.0  # seconds; the machine may be busy


def search(gallery: Gallery, stop: threading.Event) -> int:
    """Items that nobody touches are in every result, once, and results are in order."""
    query, count = vectors(["q1", "q2"], NEW), 0
    while not stop.wait(PAUSE):
        for hits in Upgrade(gallery).search(query, k=1000):
            found = [hit.id for hit in hits]
            assert len(found) == len(set(found)), "an item twice in one result"
            assert set(FIXED) <= set(found), "an item vanished"
            scores = [hit.rank_score for hit in hits]
            assert scores == sorted(scores, reverse=True)
            count += 1
    return count


def change_over(gallery: Gallery) -> None:
    """Half of the way, back, and then to the end; the counts add up at each step."""
    sample = vectors(FIXED[:40], NEW)
    upgrade = Upgrade.start(gallery, to=sample, order="random")
    for _ in range(3):
        upgrade.run(encoder(NEW), limit=20, max_rate=80, settings=QUICK)
        accounted(gallery)
    upgrade.pause(reason="tea")
    assert upgrade.run(encoder(NEW), settings=QUICK).stopped == "paused"
    upgrade.resume()
    upgrade.rollback()
    upgrade = Upgrade.start(gallery, to=NEW, order="uncertainty")
    if gallery.location.startswith("memory:"):
        upgrade.run(encoder(NEW), max_rate=200, settings=QUICK)
    else:
        with worker("tests.upgrade.worker", gallery.location) as helper:
            upgrade.run(encoder(NEW), max_rate=200, settings=QUICK)
            helper.communicate(timeout=PATIENCE)
        assert helper.returncode == 0
    accounted(gallery)
    deadline = time.time() + PATIENCE
    while gallery.state.upgrade is not None and time.time() < deadline:
        with contextlib.suppress(GalleryError):  # an item came with an old vector only
            upgrade.finish()
            upgrade.forget()
        if gallery.state.target is not None:
            upgrade.run(encoder(NEW), settings=QUICK)
    assert gallery.state.upgrade is None


def worker(module: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_searches_and_writes_during_a_whole_upgrade_lose_no_item(gallery: Gallery) -> None:
    stop = threading.Event()
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        processes, threads = [], 2
        if not gallery.location.startswith("memory:"):
            threads = 1  # beside them: one searches, one writes
            names = ("p1", "p2")
            module = "tests.upgrade.traffic_worker"
            processes = [
                stack.enter_context(worker(module, gallery.location, name)) for name in names
            ]
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
        searches = [pool.submit(search, gallery, stop) for _ in range(threads)]
        clients = [
            pool.submit(live, gallery, name, lambda: not stop.is_set())
            for name in ("t1", "t2")[:threads]
        ]
        model = Model({id: picture(id) for id in FIXED})
        try:
            change_over(gallery)
            time.sleep(0.2)
        finally:
            stop.set()
            said = [process.communicate("stop\n", timeout=PATIENCE)[0] for process in processes]
        results = [client.result() for client in clients]
        results += [json.loads(line) for line in said]
        for rounds, left in results:
            assert rounds > 3
            model |= left
        assert all(one.result() > 0 for one in searches)
    all_hold(gallery, NEW, model)
    assert gallery.info().by_space == {"new": len(model)}
    assert gallery.verify().problems == ()
    (hits,) = gallery.search(vectors(["q"], NEW), k=2000)
    assert sorted(hit.id for hit in hits) == sorted(model)
