from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import FormatError, GalleryError
from midspan.gallery import Gallery
from midspan.gallery.copy import backup, restore
from midspan.spaces import Embeddings, Space

SPACE = Space("v1", 4)


def vectors(first: int, count: int) -> Embeddings:
    rng = np.random.default_rng(first)
    ids = np.array([f"i{number:05d}" for number in range(first, first + count)])
    return Embeddings(ids, rng.standard_normal((count, 4)).astype(np.float32), SPACE)


def test_backup_under_writes_is_consistent_and_restorable(tmp_path: Path) -> None:
    place, stop = tmp_path / "shop.midspan", threading.Event()
    with Gallery.create(str(place), SPACE) as gallery:
        gallery.add(vectors(0, 200), payloads=[{"n": n} for n in range(200)])

        def write() -> None:
            for number in range(200, 10_000, 5):
                if stop.is_set():
                    return
                gallery.add(vectors(number, 5))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            made = backup(str(place), tmp_path / "kept.backup")
        finally:
            stop.set()
            writer.join(60)
        assert made.items >= 200
        assert made.items % 5 == 0, "no half of a batch"
        gallery.delete([f"i{number:05d}" for number in range(200)])
    back = restore(tmp_path / "kept.backup", str(tmp_path / "again.midspan"))
    assert back.items == made.items
    with Gallery.open(back.path) as gallery:
        assert gallery.get("i00007").payload == {"n": 7}
        query = vectors(0, 200)
        assert gallery.search(query[7:8], k=1)[0][0].id == "i00007"
        assert gallery.verify().ok


def test_backup_unsupported_location_or_target_raises(tmp_path: Path) -> None:
    place = tmp_path / "shop.midspan"
    Gallery.create(str(place), SPACE).close()
    (tmp_path / "there").write_text("x")
    with pytest.raises(GalleryError, match="exists already"):
        backup(str(place), tmp_path / "there")
    with pytest.raises(GalleryError, match="got none"):
        backup(str(tmp_path / "nothing.midspan"), tmp_path / "a")
    with pytest.raises(GalleryError, match="pg_dump"):
        backup("postgresql://h/db?table=t", tmp_path / "a")
    (tmp_path / "broken").write_bytes(b"no database at all" * 100)
    with pytest.raises(FormatError, match="cannot be read"):
        restore(tmp_path / "broken", str(tmp_path / "new.midspan"))
    assert not (tmp_path / "new.midspan").exists()
