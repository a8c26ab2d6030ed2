"""Files that are no galleries, damaged ones, full disks, read-only places, writers in the way."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import FormatError, GalleryError, StoreError
from midspan.gallery import Gallery
from midspan.gallery.catalogue import sqlite
from midspan.gallery.engines.embedded import tables
from midspan.spaces import Embeddings
from tests.gallery.samples import DIM, OLD, add, drafts, embed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.midspan"


@pytest.fixture
def gallery(path: Path) -> Iterator[Gallery]:
    made = Gallery.create(path, OLD)
    yield made
    made.close()


def database(gallery: Gallery) -> sqlite.Sqlite:
    found = gallery._session.catalogue.database
    assert isinstance(found, sqlite.Sqlite)
    return found


def test_gallery_is_one_file_with_its_application_id(gallery: Gallery, path: Path) -> None:
    add(gallery, ["a"])
    gallery.close()
    assert [file.name for file in path.parent.iterdir()] == ["shop.midspan"]
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (sqlite.APPLICATION,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_open_file_that_is_no_gallery_raises_and_keeps_it(path: Path) -> None:
    with pytest.raises(GalleryError, match=r"there is no gallery at .* midspan gallery create"):
        Gallery.open(path)
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="does not begin like a SQLite file"):
        Gallery.open(path)
    path.write_bytes(b"PK\x03\x04 something else" * 100)
    with pytest.raises(FormatError, match="does not begin like a SQLite file"):
        Gallery.open(path)
    with pytest.raises(GalleryError, match=r"something at .* already"):
        Gallery.create(path, OLD)
    assert path.read_bytes().startswith(b"PK")
    with pytest.raises(FormatError, match="is a folder"):
        Gallery.open(path.parent)
    with pytest.raises(StoreError, match="cannot be made"):
        Gallery.create(path.parent / "no" / "such" / "folder.midspan", OLD)


def test_open_foreign_sqlite_file_raises(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE items (x)")
    connection.close()
    with pytest.raises(FormatError, match="is a SQLite file but not a gallery"):
        Gallery.open(path)


def test_open_later_format_raises(gallery: Gallery, path: Path) -> None:
    gallery.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(FormatError, match="is a gallery of format 99, this midspan reads up to 2"):
        Gallery.open(path)


def test_damaged_file_raises(gallery: Gallery, path: Path) -> None:
    ids = [f"i{number}" for number in range(300)]
    add(gallery, ids)
    gallery.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises((FormatError, StoreError), match=r"shop\.midspan"), Gallery.open(path) as g:
        g.search(embed(["q"]))
    path.write_bytes(whole[:8192] + b"\xaa" * 8192 + whole[16384:])
    assert damage_seen(path)


def damage_seen(path: Path) -> bool:
    try:
        with Gallery.open(path) as gallery:
            return not gallery.verify().ok
    except FormatError:
        return True


def test_verify_finds_incomparable_vectors(gallery: Gallery, path: Path) -> None:
    add(gallery, ["a", "b", "c"])
    gallery.close()
    connection = sqlite3.connect(path)
    nan = np.full(DIM, np.nan, dtype="<f4").tobytes()
    connection.execute('UPDATE vectors_1 SET vector = ? WHERE "row" = 2', (nan,))
    connection.commit()
    connection.close()
    with Gallery.open(path) as again:
        report = again.verify()
    assert report.spaces[0].unusable == 1
    assert report.first_unusable == ("b",)
    assert "first of 'b': replace these items" in report.problems[0]


def test_disk_full_simulated_loses_no_acknowledged_write(gallery: Gallery) -> None:
    add(gallery, ["a"])
    with database(gallery).writing() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 5}")
    big = [f"big{number}" for number in range(2000)]
    with pytest.raises(StoreError, match=r"the disk is full; nothing of this step was written"):
        add(gallery, big)
    assert [item.id for item in gallery.get_many(["a", *big])] == ["a"]
    assert [hit.id for hit in gallery.search(embed(["a"]))[0]] == ["a"]
    with database(gallery).writing() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    add(gallery, big)
    assert gallery.count().items == 2001
    assert gallery.check_storage() == []


def fill_up(gallery: Gallery, kept: list[str]) -> None:
    for number in range(10_000):
        ids = [f"i{number}-{place}" for place in range(200)]
        gallery.add(embed(ids))
        kept += ids


def test_disk_full_real_loses_no_acknowledged_write(small_disk: Path) -> None:
    with Gallery.create(small_disk / "shop.midspan", OLD) as gallery:
        kept: list[str] = []
        with pytest.raises(StoreError, match=r"disk (is )?full"):
            fill_up(gallery, kept)
        assert len(gallery) == len(kept) > 0
        assert gallery.search(embed([kept[3]]), k=1)[0][0].id == kept[3]
    with Gallery.open(small_disk / "shop.midspan") as gallery:
        assert gallery.verify().ok
        subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
        gallery.add(embed(["more"]))
        assert len(gallery) == len(kept) + 1


def test_open_read_only_file_raises(small_disk: Path) -> None:
    path = small_disk / "shop.midspan"
    with Gallery.create(path, OLD) as gallery:
        gallery.add(embed(["a"]))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match=r"cannot be written.*needs that even for searching"):
        Gallery.open(path)
    with pytest.raises(StoreError, match="cannot be made"):
        Gallery.create(small_disk / "other.midspan", OLD)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_open_in_a_read_only_folder_raises(gallery: Gallery, path: Path) -> None:
    gallery.close()
    path.parent.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="cannot be"):
            Gallery.create(path.parent / "other.midspan", OLD)
    finally:
        path.parent.chmod(0o700)


def test_write_lock_timeout_raises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    with Gallery.create(path, OLD) as one, Gallery.open(path) as other:
        one.add(embed(["a"]))
        with database(one).writing():
            with pytest.raises(StoreError, match="another process has been writing"):
                other.add(embed(["b"]))
            assert other.get("a").id == "a"  # reading goes on
            assert other.search(embed(["a"]), k=1)[0][0].id == "a"
        other.add(embed(["b"]))
        assert len(one) == 2


def test_two_writers_wait_for_each_other(path: Path) -> None:
    with Gallery.create(path, OLD) as one, Gallery.open(path) as other:

        def write(gallery: Gallery, name: str) -> None:
            for number in range(40):
                gallery.add(embed([f"{name}{number}"]))

        threads = [
            threading.Thread(target=write, args=(gallery, name))
            for gallery, name in ((one, "a"), (other, "b"), (one, "c"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(one) == len(other) == 120
        assert len(one.search(embed(["q"]), k=500)[0]) == 120


def test_two_concurrent_creators_one_raises(path: Path) -> None:
    outcomes: list[str] = []

    def create() -> None:
        try:
            Gallery.create(path, OLD).close()
            outcomes.append("made")
        except GalleryError:
            outcomes.append("refused")

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["refused"] * 5
    assert [file.name for file in path.parent.iterdir()] == ["shop.midspan"]


def test_gallery_handle_after_a_fork_raises(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: here + 1)
        with pytest.raises(StoreError, match="open it again after a fork"):
            gallery.get_many(["a"])
    assert gallery.get_many(["a"]) == []


def test_stale_reader_reloads_all_rows(
    gallery: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "DELETIONS_KEPT", 5)
    add(gallery, [f"i{number}" for number in range(30)])
    with Gallery.open(path) as other:
        assert len(other.search(embed(["q"]), k=50)[0]) == 30
        for number in range(20):
            gallery.delete([f"i{number}"])
        gallery.put_drafts(drafts(["i25"]), [embed(["i25"], seed=7)], mode="replace")
        hits = other.search(embed(["i25"], seed=7), k=50)[0]
        assert {hit.id for hit in hits} == {f"i{number}" for number in range(20, 30)}
        assert hits[0].id == "i25"


def test_pages_are_well_filled_at_any_dimension() -> None:
    for dim in (8, 64, 128, 256, 512, 768, 1024):
        size = sqlite.page_size(dim)
        row = 4 * dim + 16
        assert (size // row) * row / size >= 0.74, dim


def test_vector_blob_of_another_length_is_rejected_by_the_schema(
    gallery: Gallery, path: Path
) -> None:
    add(gallery, ["a"])
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE vectors_1 SET vector = x'00'")
    connection.close()


def test_add_missing_vectors_twice_writes_none(gallery: Gallery) -> None:
    given = Embeddings(ids=np.array(["a"]), vectors=embed(["a"]).vectors, space=OLD)
    gallery.put_drafts(drafts(["a"]), [given], mode="add")
    assert gallery.add_missing_vectors(given, revisions=[1]) == 0


def test_wal_checkpoint_happens_when_the_log_is_long(
    gallery: Gallery, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.stat().st_size
    page_each = [{"text": "x" * 4096}] * 1100
    add(gallery, [f"i{number}" for number in range(1100)], payloads=page_each)
    assert Path(f"{path}-wal").stat().st_size > 1000 * 4096, "SQLite's own limit"
    assert path.stat().st_size == before
    gallery.close()
    whole = path.stat().st_size
    monkeypatch.setattr(sqlite, "LOG_BYTES", 16 * 4096)
    reopened = Gallery.open(path)
    add(reopened, [f"more{number}" for number in range(20)], payloads=page_each[:20])
    assert path.stat().st_size > whole
    reopened.close()


def test_lease_is_written_without_fsync_and_data_with(gallery: Gallery) -> None:
    level, opened = "PRAGMA synchronous", database(gallery)
    with opened.writing(durable=False) as connection:
        assert connection.exec_driver_sql(level).scalar_one() == 1  # NORMAL
    with opened.writing() as connection:
        assert connection.exec_driver_sql(level).scalar_one() == 2  # FULL
    with pytest.raises(ZeroDivisionError), opened.writing(durable=False):
        raise ZeroDivisionError
    with opened.writing() as connection:
        assert connection.exec_driver_sql(level).scalar_one() == 2
