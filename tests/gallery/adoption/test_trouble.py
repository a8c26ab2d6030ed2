"""Rights that are taken away and disks that are full while a gallery is over somebody's data."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import GalleryError, MidspanError
from midspan.gallery import Gallery
from midspan.gallery.adoption.collection import reconcile_collection
from midspan.gallery.adoption.files import open_file
from midspan.gallery.adoption.load import import_file
from midspan.gallery.adoption.postgres_adopt import adopt_table, reconcile_table
from tests.gallery.adoption.shop import COLUMNS, Shop, backfill
from tests.gallery.adoption.test_collections import Application
from tests.gallery.postgres import Postgres
from tests.gallery.samples import NEW, OLD, embed, found, start


@pytest.fixture
def shop(postgres: Postgres) -> Iterator[Shop]:
    made = Shop(postgres)
    made.insert(*range(1, 21))
    yield made
    made.close()


@pytest.fixture
def role(shop: Shop) -> Iterator[str]:
    """One that may adopt the table."""
    name = f"r{shop.name}"
    shop.run(f"CREATE ROLE {name} LOGIN")
    shop.run(f"GRANT CREATE, USAGE ON SCHEMA public TO {name}")
    shop.run(f"GRANT SELECT, TRIGGER ON {shop.name} TO {name}")
    yield name
    shop.run(f"DROP OWNED BY {name} CASCADE")
    shop.run(f"DROP ROLE {name}")


@pytest.mark.server
@pytest.mark.slow
def test_upgrade_rights_lost_midway_raises_and_recovers(shop: Shop, role: str) -> None:
    """A clear error; the application works on; with the rights back, nothing is lost."""
    location = shop.location.replace("midspan@", f"{role}@")
    with adopt_table(location, shop.name, COLUMNS, space_name="old", space=OLD) as gallery:
        start(gallery)
        shop.run(f"REVOKE SELECT ON {shop.name} FROM {role}")
        with pytest.raises(MidspanError, match="permission denied"):
            gallery.search(embed(["3"], OLD), k=5)
        with pytest.raises(MidspanError, match="permission denied"):
            reconcile_table(gallery)
        shop.insert(100)
        shop.change(5, seed=3)
        shop.delete(6)
        assert len(shop.dump()) == 20, "the application's own writes never fail"
        shop.run(f"GRANT SELECT ON {shop.name} TO {role}")
        reconcile_table(gallery)
        backfill(gallery)
        assert {item.id for item in gallery.scan(limit=99)} == {str(row[0]) for row in shop.dump()}
        assert found(gallery.search(embed(["100"], NEW, seed=7), k=1)) == [["100"]]
        assert gallery.verify().ok


@pytest.mark.server
@pytest.mark.slow
def test_adopt_rights_lost_midway_leaves_nothing(shop: Shop, role: str) -> None:
    before = shop.dump()
    shop.run(f"REVOKE TRIGGER ON {shop.name} FROM {role}")
    location = shop.location.replace("midspan@", f"{role}@")
    with pytest.raises(MidspanError, match=r"(?i)trigger|permission"):
        adopt_table(location, shop.name, COLUMNS, space_name="old", space=OLD)
    assert shop.dump() == before
    assert shop.leftovers() == []


def test_adopt_collection_disk_full_raises_and_continues_later(
    tmp_path: Path,
    small_disk: Path,
) -> None:
    application = Application(tmp_path)
    application.location = application.location.replace(str(tmp_path), str(small_disk))
    application.put(*range(1, 3001))
    before = application.points()
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_600_000)
    with pytest.raises(GalleryError, match=r"disk (is )?full|cannot be made"):
        application.adopt().close()
    assert application.points() == before
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    with contextlib.ExitStack() as opened:
        try:
            gallery = opened.enter_context(Gallery.open(application.location))
        except GalleryError:  # it did not come that far
            gallery = opened.enter_context(application.adopt())
        reconcile_collection(gallery)
        assert len(gallery) == 3000
        assert gallery.verify().ok
    assert application.points() == before


def test_import_file_disk_full_raises_and_continues_later(
    tmp_path: Path,
    small_disk: Path,
) -> None:
    vectors = np.random.default_rng(0).standard_normal((8000, 64)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    file, place = open_file(tmp_path / "vectors.npy"), small_disk / "shop.midspan"
    with pytest.raises(GalleryError, match=r"disk (is )?full"):
        import_file(place, file, space_name="x")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    gallery, skipped = import_file(place, file, space_name="x")
    with gallery:
        assert (len(gallery), skipped) == (8000, 0)
        assert gallery.verify().ok
