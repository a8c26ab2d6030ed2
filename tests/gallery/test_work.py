"""The work list beyond the contract: leases that are renewed, and questions without counting."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from sqlalchemy import event as listen
from sqlalchemy import select, update

from midspan.gallery import Failed, Gallery
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.location import parse_location
from tests.gallery.conftest import Locate
from tests.gallery.postgres import Postgres
from tests.gallery.samples import NEW, OLD, add, embed, event, start


def claimed(gallery: Gallery, worker: str, *, seconds: float = 60.0) -> list[str]:
    return [task.item.id for task in gallery.work.claim(worker=worker, limit=10, seconds=seconds)]


def expire(gallery: Gallery) -> None:
    """All leases end now."""
    catalogue = gallery._session.catalogue
    with catalogue.writing() as connection:
        connection.execute(update(catalogue.tables.work).values(due=time.time() - 1))


def test_a_renewed_lease_is_not_claimed_by_another_worker(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start(gallery)
    assert claimed(gallery, "one", seconds=1000) == ["a", "b"]
    assert gallery.work.renew("one", seconds=5000) == 2
    catalogue = gallery._session.catalogue
    with catalogue.reading() as connection:
        due = connection.execute(select(catalogue.tables.work.c.due)).scalars().all()
    assert all(moment > time.time() + 4000 for moment in due)
    assert claimed(gallery, "two") == []


def test_a_lease_that_ended_cannot_be_renewed(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start(gallery)
    claimed(gallery, "one")
    expire(gallery)
    assert gallery.work.renew("one", seconds=60) == 0
    assert claimed(gallery, "two") == ["a", "b"]
    assert gallery.work.renew("two", seconds=60) == 2


def test_pending_exists_until_the_last_item_is_done_or_failed(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    assert not gallery.work.pending_exists()
    start(gallery)
    assert gallery.work.pending_exists()
    gallery.add_missing_vectors(embed(["a"], NEW), revisions=[1])
    assert gallery.work.pending_exists()
    claimed(gallery, "w")
    assert gallery.work.pending_exists()  # claimed is not done
    gallery.work.fail([Failed("b", 1, "x")], retry_after=None)
    assert not gallery.work.pending_exists()


def test_pending_exists_counts_nothing(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start(gallery)
    statements: list[str] = []
    database = gallery._session.catalogue.database
    sql = getattr(database, "_reader", None) or database._sql  # type: ignore[attr-defined]
    listen.listen(sql, "before_cursor_execute", lambda *one: statements.append(one[2]))
    gallery.work.pending_exists()
    asked = [one for one in statements if "work" in one]
    assert len(asked) == 1
    assert "LIMIT" in asked[0]
    assert "count" not in asked[0].lower()


def test_two_workers_never_claim_the_same_item(locate_catalogue: Locate) -> None:
    location = locate_catalogue()
    ids = [f"i{number:03}" for number in range(120)]
    with Gallery.create(location, OLD) as gallery, Gallery.open(location) as other:
        add(gallery, ids)
        start(gallery)
        taken: dict[str, list[str]] = {"one": [], "two": []}

        def work(handle: Gallery, worker: str) -> None:
            while tasks := handle.work.claim(worker=worker, limit=7, seconds=600):
                taken[worker] += [task.item.id for task in tasks]

        threads = [
            threading.Thread(target=work, args=(handle, name))
            for handle, name in ((gallery, "one"), (other, "two"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken["one"] + taken["two"]) == ids


@pytest.mark.server
@pytest.mark.slow
def test_a_settled_sequence_waits_for_writers_that_have_not_committed(postgres: Postgres) -> None:
    """Else a copy that reads meanwhile misses their write and takes itself for complete."""
    place = parse_location(postgres.location("settled")).catalogue
    with Catalogue.creating(place, OLD, shown="shop") as made:
        made.first_write(OLD, event=event("create"), settings={})
    with contextlib.closing(Catalogue.open(place, shown="shop")) as catalogue:
        before = catalogue.sequence(settled=True)
        found = list[int]()
        reader = threading.Thread(target=lambda: found.append(catalogue.sequence(settled=True)))
        with catalogue.writing() as connection:
            catalogue.audit.write(connection, event("slow"))
            mine = catalogue.advance(connection)
            assert catalogue.sequence() == mine > before  # taken, and not committed
            reader.start()
            reader.join(timeout=0.3)
            assert reader.is_alive()  # it waits
        reader.join(timeout=30)
        assert found == [mine]


def claim_plan(gallery: Gallery) -> str:
    """How the database finds the next tasks."""
    catalogue = gallery._session.catalogue
    table = f'"{catalogue.tables.work.name}"'
    explain, no = (
        ("EXPLAIN", "false") if catalogue.dialect == "postgresql" else ("EXPLAIN QUERY PLAN", "0")
    )
    lines = catalogue.ask(
        f'{explain} SELECT "row", attempts FROM {table} WHERE failed = {no} AND due <= 1e9 '
        'ORDER BY priority DESC, "row" LIMIT 64'
    )
    return "\n".join(str(line) for line in lines)


def test_a_claim_reads_the_index_in_its_order(gallery: Gallery) -> None:
    add(gallery, [f"i{number:04}" for number in range(2000)])
    start(gallery)
    if gallery._session.catalogue.dialect == "postgresql":
        with gallery._session.catalogue.database.autocommit() as connection:  # type: ignore[attr-defined]
            connection.exec_driver_sql(f'ANALYZE "{gallery._session.catalogue.tables.work.name}"')
    plan = claim_plan(gallery)
    assert "work_next" in plan
    assert "Sort" not in plan
    assert "B-TREE" not in plan
