"""`?read=postgresql://…`: searches are answered by a replica, everything else by the primary."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest

from midspan.errors import GalleryError
from midspan.gallery import Gallery, copy
from midspan.gallery.location import parse_location
from midspan.upgrade import Upgrade
from tests.gallery.postgres import Postgres
from tests.gallery.samples import NEW, OLD, embed, found
from tests.upgrade import world

pytestmark = [pytest.mark.server, pytest.mark.slow]
IDS = [f"i{number:02}" for number in range(40)]
READ_ONLY = quote("-c default_transaction_read_only=on", safe="")


@pytest.fixture
def table() -> str:
    return "g" + uuid.uuid4().hex[:12]


@pytest.fixture
def replica(postgres: Postgres) -> Iterator[str]:
    """Another database on the same server, which nobody keeps up: a replica that is behind."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE behind")
        yield "behind"
        connection.execute("DROP DATABASE behind WITH (FORCE)")


def with_read(place: str, read: str) -> str:
    return f"{place}&read={quote(read, safe='')}"


def test_read_replica_is_never_written(postgres: Postgres, table: str) -> None:
    """The server as its own replica, by connections that refuse every write: a whole life."""
    place = postgres.location(table)
    location = with_read(place, f"{place}&options={READ_ONLY}")
    Gallery.create(location, world.OLD).close()
    with Gallery.open(location) as gallery:
        world.add(gallery, world.ids(60))
        queries = world.vectors(world.ids(5, first=900), world.OLD)
        before = gallery.search(queries, k=10)
        upgrade = Upgrade.start(gallery, to=world.NEW)
        upgrade.run(world.encoder(world.NEW), limit=30, settings=world.QUICK)
        assert gallery.search(queries, k=10) == before
        upgrade.run(world.encoder(world.NEW), settings=world.QUICK)
        assert len(gallery.more_like("i0003", k=10)) == 10
        upgrade.finish(override="a small world")
        gallery.delete(["i0003"])
        hits = gallery.search(world.vectors(["i0003"], world.NEW), k=60)[0]
        assert len(hits) == 59
        gallery.optimise()


def test_read_replica_serves_searches_and_primary_serves_reads_by_id(
    postgres: Postgres, table: str, replica: str
) -> None:
    place = postgres.location(table)
    other = place.replace("/postgres?", f"/{replica}?")
    assert other != place
    with Gallery.create(place, OLD) as gallery:
        gallery.add(embed(IDS))
        copy(gallery, other)
    with Gallery.open(with_read(place, other)) as gallery:
        gallery.add(embed(["late"]))
        assert gallery.get("late").id == "late"
        assert len(gallery) == 41
        assert "late" not in found(gallery.search(embed(["late"]), k=50))[0]
        assert len(gallery.more_like("late", k=50)) == 40
        Upgrade.start(gallery, to=NEW)  # a space that the replica does not know yet
        assert found(gallery.search(embed(["late"], NEW), k=50))[0] != []
    with Gallery.open(other) as behind:
        assert len(behind) == 40
        assert behind.state.target is None


def test_read_replica_secrets_are_hidden_and_invalid_urls_raise(table: str) -> None:
    location = parse_location(
        f"postgresql://me@host/db?table={table}&read=postgresql%3A//me%3Asecret@replica/db"
    )
    assert "secret" not in location.shown + repr(location)
    assert location.settings == {}
    for read in ("shop.midspan", "postgresql%3A//host/db%3Fpartitions=3"):
        with pytest.raises(GalleryError, match="read"):
            parse_location(f"postgresql://me@host/db?table={table}&read={read}")
