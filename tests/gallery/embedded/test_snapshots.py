"""Snapshots: built, shared, damaged, interrupted, out of memory and out of disk."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import StoreError
from midspan.gallery import Gallery, set_quantise
from midspan.gallery.engines.base import SearchRequest
from midspan.gallery.engines.embedded import build, snapshot
from midspan.gallery.engines.embedded.engine import EmbeddedEngine
from midspan.spaces import FloatArray
from tests.gallery.embedded.samples import Model, Opened, ask, clustered, snapshots
from tests.gallery.samples import NEW, OLD

ROOT = Path(__file__).parents[3]
COUNT = 2000


def filled(path: Path, model: Model | None = None) -> None:
    vectors = clustered(np.random.default_rng(0), COUNT)
    with Opened(path) as engine:
        engine.put(1, np.arange(COUNT), vectors)
        engine.build_index(1)
    if model is not None:
        model.put(1, np.arange(COUNT), vectors)


def recall(engine: EmbeddedEngine, queries: FloatArray, live: tuple[int, ...] = (1,)) -> float:
    rough, exact = (
        engine.search(SearchRequest(queries, 10, live, live, exact=exact))
        for exact in (False, True)
    )
    shares = [
        len(set(one.rows[:10].tolist()) & set(other.rows[:10].tolist())) / 10
        for one, other in zip(rough, exact, strict=True)
    ]
    return float(np.mean(shares))


def test_small_space_builds_no_index_and_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "shop.midspan"
    with Opened(path) as engine:
        engine.put(1, np.arange(50), clustered(np.random.default_rng(0), 50))
        assert not engine.needs_index(1)
        status = engine.index_status(1)
        assert (status.kind, status.state, status.rows, status.unindexed) == (
            "flat",
            "none",
            50,
            50,
        )
        engine.vacuum()
    assert [one.name for one in tmp_path.iterdir()] == ["shop.midspan"]


def test_index_status_after_a_build_has_rows_and_recall(tmp_path: Path) -> None:
    path = tmp_path / "shop.midspan"
    filled(path)
    with Opened(path) as engine:
        assert not engine.needs_index(1)
        status = engine.index_status(1)
        assert (status.kind, status.state) == ("ivf", "ready")
        assert (status.rows, status.unindexed) == (COUNT, 0)
        assert status.recall is not None
        assert status.recall >= 0.98
        assert recall(engine, clustered(np.random.default_rng(1), 200)) >= 0.97
        engine.put(1, np.arange(COUNT, COUNT + 100), clustered(np.random.default_rng(2), 100))
        assert engine.index_status(1).unindexed == 100
        assert not engine.needs_index(1)
        engine.put(1, np.arange(COUNT + 100, 2 * COUNT), clustered(np.random.default_rng(3), 1900))
        assert engine.needs_index(1)
        before = snapshots(path)
        engine.build_index(1)
        assert engine.index_status(1).unindexed == 0
        after = snapshots(path)
        assert len(after) == 1
        assert after != before
        assert recall(engine, clustered(np.random.default_rng(1), 200)) >= 0.97


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_index_rebuilt_with_smaller_codes_keeps_the_scores(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "shop.midspan"
    filled(path)
    with Gallery.open(path) as gallery:
        set_quantise(gallery, kind)
    with Opened(path) as engine:
        assert engine.needs_index(1)
        engine.build_index(1)
        queries = clustered(np.random.default_rng(1), 100)
        assert recall(engine, queries) >= 0.97
        segment = engine._replica.known.segments[1]
        assert segment.snapshot is not None
        assert segment.snapshot.record.quantise == kind
        exact = {row: score for score, row, _ in ask(engine, queries[0], k=100, exact=True)}
        assert all(exact[row] == score for score, row, _ in ask(engine, queries[0]))


@pytest.mark.parametrize("name", [snapshot.VECTORS, snapshot.ROWS, snapshot.LISTS, snapshot.META])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_snapshot_damaged_is_built_again(tmp_path: Path, name: str, damage: str) -> None:
    path, model = tmp_path / "shop.midspan", Model()
    filled(path, model)
    (place,) = snapshots(path)
    file = place / name
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        os.truncate(file, file.stat().st_size // 2)
    else:
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 0xFF
        file.write_bytes(bytes(data))
    query = clustered(np.random.default_rng(1), 1)[0]
    with Opened(path) as engine:
        assert engine.needs_index(1)
        assert ask(engine, query) == model.search(query, k=10, live=(1,))
        engine.build_index(1)
        assert not engine.needs_index(1)
        assert engine.index_status(1).state == "ready"
        assert ask(engine, query, exact=True) == model.search(query, k=10, live=(1,))
    assert place not in snapshots(path)


def test_snapshot_missing_folder_is_created_again(tmp_path: Path) -> None:
    path, model = tmp_path / "shop.midspan", Model()
    filled(path, model)
    shutil.rmtree(f"{path}-index")
    query = clustered(np.random.default_rng(1), 1)[0]
    with Opened(path) as engine:
        assert ask(engine, query) == model.search(query, k=10, live=(1,))
        assert engine.needs_index(1)
        engine.build_index(1)
    assert len(snapshots(path)) == 1


def test_snapshot_newer_than_a_restored_backup_is_ignored(tmp_path: Path) -> None:
    path, model = tmp_path / "shop.midspan", Model()
    filled(path, model)
    shutil.copy(path, tmp_path / "backup")
    with Opened(path) as engine:
        engine.put(1, np.arange(COUNT, 2 * COUNT), clustered(np.random.default_rng(5), COUNT))
        engine.build_index(1)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup", path)
    query = clustered(np.random.default_rng(1), 1)[0]
    with Opened(path) as engine:
        assert ask(engine, query) == model.search(query, k=10, live=(1,))
        assert engine.needs_index(1)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "No space left on device")])
def test_index_failed_build_is_reported_and_succeeds_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path, model = tmp_path / "shop.midspan", Model()
    vectors = clustered(np.random.default_rng(0), COUNT)
    model.put(1, np.arange(COUNT), vectors)

    def fail(*_: object, **__: object) -> None:
        raise error

    with Opened(path) as engine:
        engine.put(1, np.arange(COUNT), vectors)
        with monkeypatch.context() as patch:
            if isinstance(error, MemoryError):
                patch.setattr(build, "k_means", fail)
            else:
                patch.setattr(snapshot, "_claim", fail)
            with pytest.raises(StoreError, match="the index was not built"):
                engine.build_index(1)
            assert ask(engine, vectors[3]) == model.search(vectors[3], k=10, live=(1,))
        status = engine.index_status(1)
        assert status.state == "failed"
        assert status.failure is not None
        assert status.failed_at is not None
        assert snapshots(path) == []
        assert engine.needs_index(1)
        engine.build_index(1)
        assert engine.index_status(1).state == "ready"


def test_index_build_stops_when_the_engine_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begun, go_on = tmp_path / "shop.midspan", threading.Event(), threading.Event()
    learn, errors = build._learn, list[BaseException]()

    def slowly(*args: object, **settings: object) -> object:
        begun.set()
        assert go_on.wait(30)
        return learn(*args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "_learn", slowly)
    with Opened(path) as engine:
        engine.put(1, np.arange(COUNT), clustered(np.random.default_rng(0), COUNT))

        def run() -> None:
            try:
                engine.build_index(1)
            except StoreError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(30)
        engine.close()
        go_on.set()
        thread.join()
    assert "closed" in str(errors[0])
    assert snapshots(path) == []


BUILDER = """
import os, signal, sys
from pathlib import Path
from midspan.gallery.engines.embedded import snapshot
from tests.gallery.embedded.samples import Opened
before = getattr(snapshot.SnapshotWriter, "finish")
def die(self, ivf):
    if sys.argv[2] == "whole":
        before(self, ivf)
    else:
        ivf.save(self._part / snapshot.LISTS)
    os.kill(os.getpid(), signal.SIGKILL)
snapshot.SnapshotWriter.finish = die
with Opened(Path(sys.argv[1])) as engine:
    engine.build_index(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["part", "whole"])
def test_snapshot_killed_while_writing_leaves_the_gallery_usable(
    tmp_path: Path, moment: str
) -> None:
    path, model = tmp_path / "shop.midspan", Model()
    vectors = clustered(np.random.default_rng(0), COUNT)
    model.put(1, np.arange(COUNT), vectors)
    with Opened(path) as engine:
        engine.put(1, np.arange(COUNT), vectors)
    command = [sys.executable, "-c", BUILDER, str(path), moment]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(snapshots(path)) == 1  # what it left
    with Opened(path) as engine:
        assert ask(engine, vectors[3]) == model.search(vectors[3], k=10, live=(1,))
        assert engine.needs_index(1)
        engine.build_index(1)
        assert len(snapshots(path)) == 1
        assert engine.index_status(1).state == "ready"


def test_index_two_concurrent_builders_write_one_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "shop.midspan"
    with Opened(path) as engine, Opened(path) as other:
        engine.put(1, np.arange(COUNT), clustered(np.random.default_rng(0), COUNT))
        threads = [threading.Thread(target=one.build_index, args=(1,)) for one in (engine, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(snapshots(path)) == 1
        assert engine.index_status(1).state == other.index_status(1).state == "ready"


def test_index_is_calibrated_for_queries_of_a_compatible_space(tmp_path: Path) -> None:
    path = tmp_path / "shop.midspan"
    with Opened(path) as engine:
        rng = np.random.default_rng(0)
        old = clustered(rng, COUNT)
        engine.put(1, np.arange(COUNT), old)
        engine.build_index(1)
        engine.create_space(2, NEW)
        new = (old + 0.2 * rng.standard_normal(old.shape)).astype(np.float32)
        engine.put(2, np.arange(COUNT), new)
        assert engine.needs_index(1)  # not judged with queries of the new space
        (before,) = snapshots(path)
        engine.build_index(1)
        assert snapshots(path) == [before]  # the files stay
        assert not engine.needs_index(1)
        for share in (0, COUNT // 2):
            engine.delete(np.empty(0, dtype=np.int64))
            assert recall(engine, new[share : share + 200], live=(1,)) >= 0.97


def test_snapshot_of_an_emptied_space_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "shop.midspan"
    filled(path)
    with Opened(path) as engine:
        engine.delete(np.arange(COUNT - 1))
        assert engine.needs_index(1)
        engine.build_index(1)
        assert snapshots(path) == []
        assert engine.index_status(1).kind == "flat"
        assert len(ask(engine, clustered(np.random.default_rng(1), 1)[0])) == 1
        assert OLD.dim == engine.fetch(1, np.array([COUNT - 1]))[1].shape[1]
