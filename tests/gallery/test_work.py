"""The work list beyond the contract: leases that are renewed, and questions without counting."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event as listen
from sqlalchemy import select, update

from midspan.errors import StateChanged
from midspan.gallery import Failed, Gallery
from midspan.gallery.catalogue import work as work_module
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.location import parse_location
from tests.gallery.conftest import PLACES, Locate
from tests.gallery.postgres import Postgres
from tests.gallery.samples import NEW, OLD, add, embed, event, start


def claimed(gallery: Gallery, worker: str, *, seconds: float = 60.0) -> list[str]:
    return [task.item.id for task in gallery.work.claim(worker=worker, limit=10, seconds=seconds)]


def expire(gallery: Gallery) -> None:
    """All leases end now."""
    catalogue = gallery._session.catalogue
    with catalogue.writing() as connection:
        connection.execute(update(catalogue.tables.work).values(due=time.time() - 1))


def test_renewed_lease_is_not_claimed_by_another_worker(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start(gallery)
    assert claimed(gallery, "one", seconds=1000) == ["a", "b"]
    assert gallery.work.renew("one", seconds=5000) == 2
    catalogue = gallery._session.catalogue
    with catalogue.reading() as connection:
        due = connection.execute(select(catalogue.tables.work.c.due)).scalars().all()
    assert all(moment > time.time() + 4000 for moment in due)
    assert claimed(gallery, "two") == []


def test_ended_lease_cannot_be_renewed(gallery: Gallery) -> None:
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


def test_pending_exists_runs_no_count(gallery: Gallery) -> None:
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


def test_claims_of_two_workers_are_disjoint(locate_catalogue: Locate) -> None:
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
def test_settled_sequence_waits_for_uncommitted_writers(postgres: Postgres) -> None:
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


def test_claim_query_uses_the_index_order(gallery: Gallery) -> None:
    add(gallery, [f"i{number:04}" for number in range(2000)])
    start(gallery)
    if gallery._session.catalogue.dialect == "postgresql":
        with gallery._session.catalogue.database.autocommit() as connection:  # type: ignore[attr-defined]
            connection.exec_driver_sql(f'ANALYZE "{gallery._session.catalogue.tables.work.name}"')
    plan = claim_plan(gallery)
    assert "work_next" in plan
    assert "Sort" not in plan
    assert "B-TREE" not in plan


# ---- a long list is made in portions, between which others write


def listed(gallery: Gallery) -> list[str]:
    """Ids on the list; each once."""
    catalogue = gallery._session.catalogue
    work, items = catalogue.tables.work, catalogue.tables.items
    with catalogue.reading() as connection:
        rows = connection.execute(select(work.c.row)).scalars().all()
        ids = connection.execute(select(items.c.id).join(work, work.c.row == items.c.row)).scalars()
        names = sorted(ids)
    assert len(rows) == len(set(rows)) == len(names), "rows of no item are on the list"
    return names


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Portions of 10; before each one the next of these is called."""
    between: list[Callable[[], None]] = []
    portion = work_module.list_portion

    def watched(*given: Any) -> Any:
        if between:
            between.pop(0)()
        return portion(*given)

    monkeypatch.setattr(work_module, "PORTION", 10)
    monkeypatch.setattr(work_module, "list_portion", watched)
    return between


IDS = [f"i{number:03}" for number in range(95)]


def test_listing_work_allows_writes_between_chunks(
    locate_catalogue: Locate, portions: list[Callable[[], None]]
) -> None:
    with Gallery.create(locate_catalogue(), OLD) as gallery:
        add(gallery, IDS)
        write = gallery._session.catalogue.write
        took: list[Any] = []

        def between(*given: Any, **more: Any) -> Any:
            """Others have their turn before each transaction of the start."""
            if turns and more.get("exclusive"):
                turns.pop(0)()
            took.append(more)
            return write(*given, **more)

        turns: list[Callable[[], Any]] = [
            lambda: None,
            lambda: add(gallery, ["new0"]),
            lambda: gallery.delete([IDS[3], IDS[90]]),
            lambda: gallery.put(embed([IDS[4], IDS[94]], OLD, seed=5)),
        ]
        gallery._session.catalogue.write = between  # type: ignore[method-assign]
        start(gallery)
        assert turns == []
        assert sum(bool(one.get("exclusive")) for one in took) >= 9
        expected = sorted({*IDS, "new0"} - {IDS[3], IDS[90]})
        assert listed(gallery) == expected
        assert gallery.count().pending == len(expected)


def test_listing_work_includes_a_write_begun_before(
    request: pytest.FixtureRequest, portions: list[Callable[[], None]]
) -> None:
    """Its rows are lower than others that are listed already when its items appear."""
    place, _ = PLACES["elsewhere"]
    with Gallery.create(place(request, "late"), OLD) as gallery:
        add(gallery, IDS[:45])
        engine: Any = gallery._session.engine
        put, taken, go = engine.put, threading.Event(), threading.Event()

        def waiting(*given: Any, **more: Any) -> None:
            put(*given, **more)
            if threading.current_thread() is late:
                taken.set()
                assert go.wait(30)

        engine.put = waiting
        late = threading.Thread(target=add, args=(gallery, ["late"]))
        late.start()
        assert taken.wait(30)
        add(gallery, IDS[45:])  # rows above
        portions += [lambda: None] * 5

        def finish() -> None:
            go.set()
            late.join()

        write, turns = gallery._session.catalogue.write, [0]

        def between(*given: Any, **more: Any) -> Any:
            turns[0] += bool(more.get("exclusive"))
            if turns[0] == 6 and more.get("exclusive"):
                finish()
            return write(*given, **more)

        gallery._session.catalogue.write = between  # type: ignore[method-assign]
        start(gallery)
        finish()
        assert listed(gallery) == sorted([*IDS, "late"])


def test_start_interrupted_while_listing_is_repeatable(
    locate_catalogue: Locate, portions: list[Callable[[], None]]
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    with Gallery.create(locate_catalogue(), OLD) as gallery:
        add(gallery, IDS)
        portions += [lambda: None, lambda: None, die]
        with pytest.raises(KeyboardInterrupt):
            start(gallery)
        assert gallery.state.target is None
        assert (gallery.count().pending, claimed(gallery, "w")) == (0, [])
        gallery.delete(IDS[:5])
        gallery.put(embed(IDS[5:7], OLD, seed=9))
        start(gallery)
        assert listed(gallery) == IDS[5:]


def test_concurrent_start_leaves_the_other_list_unchanged(
    locate_catalogue: Locate, portions: list[Callable[[], None]]
) -> None:
    place = locate_catalogue()
    with Gallery.create(place, OLD) as gallery:
        add(gallery, IDS)

        def other() -> None:
            start(gallery)
            claimed(gallery, "w", seconds=1000)

        write = gallery._session.catalogue.write
        turns: list[Callable[[], None]] = [lambda: None, lambda: None, other]

        def between(*given: Any, **more: Any) -> Any:
            if turns and more.get("exclusive"):
                turns.pop(0)()
            return write(*given, **more)

        gallery._session.catalogue.write = between  # type: ignore[method-assign]
        with pytest.raises(StateChanged):
            start(gallery)
        gallery._session.catalogue.write = write  # type: ignore[method-assign]
        assert listed(gallery) == IDS
        assert len(claimed(gallery, "two")) == 10
        assert gallery.work.release("w") == 10
