"""Galleries of an earlier layout are migrated at opening, whole or not at all."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection, select, text

from midspan.errors import FormatError
from midspan.gallery.catalogue import database
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.catalogue.items import count_all, read_items
from midspan.gallery.filters import Eq
from midspan.gallery.location import CatalogueLocation, parse_location
from tests.gallery.old_layout import IDS, old_file, old_tables
from tests.gallery.postgres import Postgres
from tests.gallery.samples import NEW, OLD, embed, event


def check(catalogue: Catalogue) -> None:
    """All that the former gallery held, in the new tables."""
    state = catalogue.snapshot().state
    assert (state.version, state.live) == (2, (NEW.fingerprint, OLD.fingerprint))
    assert (state.target, state.spaces) == (
        NEW.fingerprint,
        {OLD.fingerprint: OLD, NEW.fingerprint: NEW},
    )
    assert state.upgrade is not None
    assert state.upgrade["phase"] == "running"
    tables = catalogue.tables
    with catalogue.reading() as connection:
        snapshot = catalogue.read(connection)
        assert snapshot.numbers == {OLD.fingerprint: 1, NEW.fingerprint: 2}
        items = read_items(connection, tables, snapshot.numbers, tables.items.c.row > 0)
        counts = count_all(connection, tables, state, snapshot.numbers)
    assert [(row, item.id) for row, item in sorted(items.items())] == [
        (1, "i0"),
        (2, "i1"),
        (3, "i2"),
        (5, "i3"),
        (6, "i4"),
        (7, "i5"),
    ]
    assert (items[6].revision, items[6].payload, items[6].uri) == (2, {"n": 6}, "i4.jpg")
    assert items[1].spaces == (OLD.fingerprint, NEW.fingerprint)
    assert (counts.items, counts.pending, counts.failed) == (6, 3, 1)
    assert counts.live == {NEW.fingerprint: 2, OLD.fingerprint: 4}
    (failure,) = catalogue.work.failures(limit=10)
    assert (failure.id, failure.reason, failure.attempts) == ("i2", "no such file", 3)
    tasks = catalogue.work.claim(worker="v", limit=10, seconds=60)
    assert [(task.item.id, task.attempts) for task in tasks] == [("i5", 0), ("i4", 1)]
    assert catalogue.work.release("w") == 1
    with catalogue.reading() as connection:
        lines = connection.execute(
            text(f'SELECT who, what, details FROM "{tables.audit.name}" ORDER BY line')
        ).fetchall()
    assert [line[1] for line in lines] == ["create", "upgrade start"]
    with catalogue.reading() as connection:
        passing = select(catalogue.tables.items.c.row).where(catalogue.where(Eq("n", 6)))
        assert connection.execute(passing).scalars().all() == [6]
    before = catalogue.sequence()

    def take(connection: Connection) -> tuple[list[int], int]:
        catalogue.advance(connection)
        return catalogue.take_rows(connection, 2), catalogue.next_space(connection)

    rows, space = catalogue.write(take)
    assert rows[0] > 7  # never one that was given before
    assert space == 3
    assert catalogue.sequence() > before


def test_migration_file_of_format_1_is_migrated_when_opened(tmp_path: Path) -> None:
    path = tmp_path / "shop.midspan"
    old_file(path)
    catalogue = Catalogue.open(CatalogueLocation(path=path), shown="shop")
    check(catalogue)
    assert catalogue.settings() == {"engine": "embedded", "quantise": "int8"}
    found = dict(
        catalogue.ask('SELECT i.id, v.vector FROM items AS i JOIN vectors_1 AS v USING ("row")')
    )
    vectors = np.frombuffer(b"".join(found[id] for id in IDS), dtype="<f4").reshape(6, OLD.dim)
    np.testing.assert_array_equal(vectors, embed(IDS).vectors)
    assert catalogue.database.check() == []
    catalogue.close()
    Catalogue.open(CatalogueLocation(path=path), shown="shop").close()  # and it stays so


def test_migration_new_file_has_the_tables_of_a_migrated_one(tmp_path: Path) -> None:
    """Columns alike: statements that work on one work on the other."""
    old, new = tmp_path / "old.midspan", tmp_path / "new.midspan"
    old_file(old)
    Catalogue.open(CatalogueLocation(path=old), shown="old").close()
    with Catalogue.creating(CatalogueLocation(path=new), OLD, shown="new") as made:
        made.first_write(OLD, event=event("create"), settings={})
    columns = []
    for path in (old, new):
        connection = sqlite3.connect(path)
        names = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith(("sqlite_", "vectors_"))
        }
        columns.append(
            {
                name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
                for name in names
            }
        )
        connection.close()
    assert columns[0] == columns[1]


FAILS_AT_THE_END = """
whole = upgrade

def upgrade():
    whole()
    raise MemoryError
"""


def test_migration_that_fails_leaves_the_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = tmp_path / "shop.midspan", tmp_path / "kept.midspan"
    old_file(path)
    shutil.copy(path, kept)

    folder = tmp_path / "migrations"
    shutil.copytree(database.MIGRATIONS, folder)
    with (folder / "versions" / "0001_initial.py").open("a") as script:
        script.write(FAILS_AT_THE_END)
    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", folder)
        with pytest.raises(MemoryError):
            Catalogue.open(CatalogueLocation(path=path), shown="shop")
    one, other = (list(sqlite3.connect(file).iterdump()) for file in (path, kept))
    assert one == other
    catalogue = Catalogue.open(CatalogueLocation(path=path), shown="shop")
    check(catalogue)
    catalogue.close()


@pytest.mark.server
@pytest.mark.slow
def test_migration_former_postgresql_tables_are_migrated(postgres: Postgres) -> None:
    old_tables(postgres.url(), "before")
    place = parse_location(postgres.location("before")).catalogue
    catalogue = Catalogue.open(place, shown="shop")
    check(catalogue)
    assert catalogue.settings() == {"engine": "postgresql", "partitions": "2"}
    found = catalogue.ask(
        "SELECT i.id, v.vector::text FROM before_items AS i "
        'JOIN before_vectors_1 AS v USING ("row")'
        " ORDER BY i.id"
    )
    vectors = np.array([text[1:-1].split(",") for _, text in found], dtype=np.float32)
    np.testing.assert_allclose(vectors, embed(IDS).vectors, rtol=1e-6)
    catalogue.close()
    Catalogue.open(place, shown="shop").close()


REVISION = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "0002", "0001"

def upgrade():
    tables = op.get_context().config.attributes["tables"]
    op.add_column(tables.blobs.name, sa.Column("size", sa.Integer))
"""


def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a version of midspan that knows one more revision."""
    folder = tmp_path / "migrations"
    shutil.copytree(database.MIGRATIONS, folder)
    (folder / "versions" / "0002_size.py").write_text(REVISION)
    monkeypatch.setattr(database, "MIGRATIONS", folder)
    monkeypatch.setattr(database, "HEAD", "0002")


def test_migration_to_a_later_revision_uses_alembic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = tmp_path / "new.midspan", tmp_path / "before.midspan"
    with Catalogue.creating(CatalogueLocation(path=path), OLD, shown="new") as made:
        made.first_write(OLD, event=event("create"), settings={})
    old_file(before)
    with monkeypatch.context() as patch:
        later(tmp_path, patch)
        for file in (path, before):
            catalogue = Catalogue.open(CatalogueLocation(path=file), shown="new")
            assert "size" in {row[1] for row in catalogue.ask("PRAGMA table_info(blobs)")}
            assert catalogue.ask("SELECT version_num FROM alembic_version") == [("0002",)]
            catalogue.close()
    with pytest.raises(FormatError, match="written by a newer midspan"):
        Catalogue.open(CatalogueLocation(path=path), shown="new")


@pytest.mark.server
@pytest.mark.slow
def test_migration_to_a_later_revision_works_in_postgresql(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = parse_location(postgres.location("revised")).catalogue
    with Catalogue.creating(place, OLD, shown="new") as made:
        made.first_write(OLD, event=event("create"), settings={})
    later(tmp_path, monkeypatch)
    catalogue = Catalogue.open(place, shown="new")
    assert catalogue.ask("SELECT count(size) FROM revised_blobs") == [(0,)]
    assert catalogue.ask("SELECT version_num FROM revised_alembic_version") == [("0002",)]
    catalogue.close()


def test_migration_current_catalogue_opens_without_alembic(tmp_path: Path) -> None:
    path = tmp_path / "new.midspan"
    with Catalogue.creating(CatalogueLocation(path=path), OLD, shown="new") as made:
        made.first_write(OLD, event=event("create"), settings={})
    code = (
        "import sys; from pathlib import Path; "
        "from midspan.gallery.catalogue.catalogue import Catalogue; "
        "from midspan.gallery.location import CatalogueLocation; "
        f"Catalogue.open(CatalogueLocation(path=Path({str(path)!r})), shown='x').close(); "
        "print('alembic' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
