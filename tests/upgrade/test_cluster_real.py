"""A real Ray cluster of several nodes on this machine, made by Ray's own utility."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.gallery import Gallery
from midspan.upgrade import Settings, Upgrade
from midspan.upgrade.cluster import ClusterReport, Workers, run_on_cluster
from tests.gallery.postgres import Postgres
from tests.upgrade.cluster_world import Loader, batches
from tests.upgrade.ray_cluster import node_settings, started
from tests.upgrade.world import NEW, OLD, accounted, add, all_hold, ids, make, picture, see

pytestmark = [pytest.mark.slow, pytest.mark.ray]
ROOT = Path(__file__).parents[2]
SETTINGS = Settings(batch=8, growth=1, lease=1000, retries=2, back_off=0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with started(nodes=2) as made:
        yield made


@pytest.fixture
def gallery(tmp_path: Path) -> Iterator[Gallery]:
    with make("sqlite", tmp_path, count=400) as made:
        Upgrade.start(made, to=NEW, order="random")
        yield made


class Running:
    """A run in a thread, while the test kills and pauses."""

    def __init__(self, run: Callable[[], ClusterReport]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._coming = self._pool.submit(run)
        self._pool.shutdown(wait=False)

    def until(self, true: Callable[[], bool]) -> None:
        while not true():
            assert not self._coming.done(), f"it ended before: {self._coming.result()}"
            time.sleep(0.02)

    def report(self) -> ClusterReport:
        return self._coming.result(timeout=200)


def check_once(gallery: Gallery, report: ClusterReport, *, count: int = 400) -> None:
    """Nothing lost, nothing written twice, every item with the vector of its own picture."""
    assert (report.report.stopped, report.report.written) == ("done", count)
    assert accounted(gallery) == (0, count, 0)
    all_hold(gallery, NEW, {id: picture(id) for id in ids(count)})
    told = [line.details["written"] for line in gallery.audit_log() if line.what == "upgrade run"]
    assert sum(told) == count


@pytest.mark.server
def test_a_gallery_on_a_server(cluster: Any, postgres: Postgres, tmp_path: Path) -> None:
    """Two runs at once, each with a worker of its own: every item is embedded by one of them."""
    place = postgres.location("r" + uuid.uuid4().hex[:12])
    load = Loader(tmp_path, seconds=0.05, corrupt=("i0007",))
    workers = Workers(cluster.address, count=1)
    with Gallery.create(place, OLD) as first, Gallery.open(place) as second:
        add(first, ids(400))
        Upgrade.start(first, to=NEW, order="random")
        both = [
            Running(partial(run_on_cluster, one, load, workers=workers, settings=SETTINGS))
            for one in (first, second)
        ]
        reports = [one.report().report for one in both]
        assert [report.stopped for report in reports] == ["done", "done"]
        assert sum(report.written for report in reports) == 399
        assert sum(report.given_up for report in reports) == 1
        assert accounted(first) == (0, 399, 1)
        embedded = [id for lines in batches(tmp_path).values() for line in lines for id in line]
        assert sorted(embedded) == ids(400), "each of them once"
        told = [line.details["written"] for line in first.audit_log() if line.what == "upgrade run"]
        assert sum(told) == 399
        good = [id for id in ids(400) if id != "i0007"]
        found = first.vectors(good, space=NEW.fingerprint)
        assert np.array_equal(found.vectors, see([picture(id) for id in good], NEW))


def test_a_node_is_killed_in_the_middle(cluster: Any, gallery: Gallery, tmp_path: Path) -> None:
    node = cluster.add_node(**node_settings())
    load = Loader(tmp_path, seconds=0.4)  # the rest must outlast the end of a node
    workers = Workers(cluster.address, count=3)
    running = Running(lambda: run_on_cluster(gallery, load, workers=workers, settings=SETTINGS))
    running.until(lambda: len(batches(tmp_path)) == 3)
    cluster.remove_node(node, allow_graceful=False)
    report = running.report()  # a lease of 1000 s would not be over
    check_once(gallery, report)
    assert (report.workers, report.nodes) == (3, 3)
    assert report.lost >= 1  # more if the place is given to the dead node again
    assert 8 <= report.sent_again <= 16 * report.lost, "a worker holds two batches at most"
    told = [line for line in gallery.audit_log() if line.what == "upgrade worker lost"]
    assert sum(line.details["sent_again"] for line in told) == report.sent_again
    worked = [id for lines in batches(tmp_path).values() for line in lines for id in line]
    assert set(worked) == set(ids(400))
    assert len(worked) <= 400 + report.sent_again


def test_a_worker_is_killed(cluster: Any, gallery: Gallery, tmp_path: Path) -> None:
    load = Loader(tmp_path, seconds=0.15, corrupt=("i0007",), missing=("i0011",))
    workers = Workers("auto", count=2)
    running = Running(lambda: run_on_cluster(gallery, load, workers=workers, settings=SETTINGS))
    running.until(lambda: len(batches(tmp_path)) >= 1)  # a busy machine may start one late
    os.kill(next(iter(batches(tmp_path))), signal.SIGKILL)
    report = running.report()
    assert (report.report.written, report.report.given_up, report.lost) == (398, 2, 1)
    assert accounted(gallery) == (0, 398, 2)
    assert {one.id: one.reason for one in gallery.work.failures(after="", limit=9)} == {
        "i0007": "not an image",
        "i0011": "no such file",
    }


def test_a_pause_keeps_what_workers_had(cluster: Any, gallery: Gallery, tmp_path: Path) -> None:
    upgrade = Upgrade(gallery)
    load = Loader(tmp_path, seconds=0.1)
    workers = Workers("auto", count=2)
    running = Running(lambda: run_on_cluster(gallery, load, workers=workers, settings=SETTINGS))
    running.until(lambda: accounted(gallery)[1] >= 40)
    upgrade.pause(reason="lunch")
    report = running.report().report
    assert report.stopped == "paused"
    assert 40 <= report.written < 400
    embedded = {id for lines in batches(tmp_path).values() for line in lines for id in line}
    assert report.written == accounted(gallery)[1] == len(embedded)
    upgrade.resume()
    rest = run_on_cluster(gallery, load, workers=workers, settings=SETTINGS)
    assert rest.report.written == 400 - report.written  # no lease was left behind
    all_hold(gallery, NEW, {id: picture(id) for id in ids(400)})


def test_the_driver_is_killed_and_the_same_command_continues(
    cluster: Any, gallery: Gallery, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.upgrade.worker", gallery.location, cluster.address]
    driver = subprocess.Popen([*command, str(tmp_path)], cwd=ROOT)
    while accounted(gallery)[1] < 40:
        assert driver.poll() is None, "it ended by itself"
        time.sleep(0.02)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    old, new, failed = accounted(gallery)
    assert 0 < old < 400
    again = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    assert int(again.stdout.split()[-1]) == old
    assert accounted(gallery) == (0, new + old, failed)
    all_hold(gallery, NEW, {id: picture(id) for id in ids(400)})
