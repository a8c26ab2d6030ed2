"""An engine that is not in the catalogue's database: whatever stops in between does no harm."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import numpy as np
import pytest
from sqlalchemy import func, select, update

from midspan.errors import ItemError, StoreError
from midspan.gallery import Eq, Gallery
from midspan.gallery.catalogue import outbox
from midspan.gallery.engines.base import Candidates, SearchRequest
from tests.gallery.conftest import PLACES, Locate, locator
from tests.gallery.elsewhere import Elsewhere
from tests.gallery.samples import NEW, OLD, add, drafts, embed, event, found, start, view


@pytest.fixture(
    params=[
        pytest.param(name, marks=marks)
        for name, (_, marks) in PLACES.items()
        if name.startswith("elsewhere")
    ]
)
def place(request: pytest.FixtureRequest) -> Locate:
    return locator(request)


@pytest.fixture
def gallery(place: Locate) -> Iterator[Gallery]:
    with Gallery.create(place(), OLD, who="tester") as made:
        yield made


def engine_of(gallery: Gallery) -> Elsewhere:
    engine = gallery._session.engine
    assert isinstance(engine, Elsewhere)
    return engine


def left(gallery: Gallery) -> int:
    """Entries of the outbox."""
    catalogue = gallery._session.catalogue
    with catalogue.reading() as connection:
        statement = select(func.count()).select_from(catalogue.tables.outbox)
        return int(connection.execute(statement).scalar_one())


def let_time_pass(gallery: Gallery) -> None:
    """Everything in the outbox is an hour older."""
    catalogue = gallery._session.catalogue
    with catalogue.writing() as connection:
        connection.execute(update(catalogue.tables.outbox).values(due=time.time() - 1))


def test_outbox_after_successful_writes_is_empty(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    gallery.put_drafts(drafts(["a"]), [embed(["a"], seed=1)], mode="replace")
    gallery.set_payload({"b": {"n": 1}})
    start(gallery)
    gallery.add_missing_vectors(embed(["a"], NEW), revisions=[2])
    gallery.delete(["b"])
    assert left(gallery) == 0
    assert engine_of(gallery).count(1) == 1


@pytest.mark.slow
def test_aborted_writes_never_appear(gallery: Gallery) -> None:
    """However many there were: no answer, no count and no page has them; verify says so."""
    add(gallery, ["a"])
    engine = engine_of(gallery)
    for number in range(150):
        engine.fail_at = "put"
        with pytest.raises(StoreError, match="fails at put"):
            add(gallery, [f"ghost{number}"])
    engine.fail_at = None
    assert engine.count(1) == 151
    assert found(gallery.search(embed(["ghost7"]), k=100)) == [["a"]]
    assert gallery.count().stored == {OLD.fingerprint: 1}
    assert [item.id for item in gallery.scan(limit=10)] == ["a"]
    report = gallery.verify()
    assert (report.garbage, report.ok) == (150, True)
    assert "150 rows in the engine belong to no item" in report.notes[0]
    gallery.optimise()
    assert engine.count(1) == 1
    assert gallery.verify().garbage == 0
    assert left(gallery) == 0


def test_intent_of_a_dead_writer_is_removed_after_an_hour(
    gallery: Gallery,
) -> None:
    class Died(BaseException): ...

    session, engine = gallery._session, engine_of(gallery)
    write = session.catalogue.write

    def die(*arguments: object, **settings: object) -> None:
        raise Died

    def die_next() -> None:
        session.catalogue.write = die  # type: ignore[method-assign,assignment]

    engine.before_put = die_next
    with pytest.raises(Died):
        add(gallery, ["a", "b"])
    session.catalogue.write = write  # type: ignore[method-assign]
    assert (engine.count(1), left(gallery)) == (2, 2)
    assert session.queue.drain() == 0  # the writer may still be at it
    assert gallery.garbage() == 0
    gallery.optimise()
    assert engine.count(1) == 2
    let_time_pass(gallery)
    assert session.queue.drain() == 2
    assert (engine.count(1), left(gallery), gallery.count().items) == (0, 0, 0)


def test_writer_whose_intent_was_removed_is_refused(
    gallery: Gallery,
) -> None:
    def another_process_cleans_up() -> None:
        let_time_pass(gallery)
        gallery._session.queue.drain()

    engine_of(gallery).before_put = another_process_cleans_up
    with pytest.raises(StoreError, match="took too long; repeat it"):
        add(gallery, ["a"])
    assert gallery.count().items == 0
    add(gallery, ["a"])
    assert found(gallery.search(embed(["a"]))) == [["a"]]


@pytest.mark.parametrize("step", ["delete", "set_payload", "drop_space"])
def test_outbox_failed_engine_step_is_repeated_later(gallery: Gallery, step: str) -> None:
    ids = ["a", "b", "c"]
    add(gallery, ids, payloads=[{"n": 0}] * 3)
    state = start(gallery)
    gallery.add_missing_vectors(embed(ids, NEW), revisions=[1, 1, 1])
    engine = engine_of(gallery)
    engine.fail_at = step
    gallery.delete(["a"])
    gallery.put_drafts(drafts(["b"], [{"n": 1}]), [embed(["b"], NEW)], mode="replace")
    gallery.set_payload({"c": {"n": 2}})
    hits = gallery.search(embed(["q"], NEW), k=10)[0]
    assert {(hit.id, hit.payload["n"]) for hit in hits} == {("b", 1), ("c", 2)}
    assert found(gallery.search(embed(["q"], NEW), filter=Eq("n", 0))) == [[]]
    gallery.change(
        dataclasses.replace(state, live=(NEW.fingerprint,), target=None, upgrade=None),
        event=event("finish"),
    )
    assert gallery.drop_vectors(OLD.fingerprint) == 1
    assert left(gallery) > 0
    engine.fail_at = None
    assert gallery._session.queue.drain() > 0
    assert left(gallery) == 0
    assert engine.count(2) == 2
    assert found(gallery.search(embed(["q"], NEW), filter=Eq("n", 2))) == [["c"]]
    with pytest.raises(Exception, match="was dropped"):
        engine.count(1)


def test_search_engine_with_stale_superseded_rows_is_corrected(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the old vectors of items that have new ones by now."""
    ids = [f"i{number}" for number in range(12)]
    add(gallery, ids)
    start(gallery)
    gallery.add_missing_vectors(embed(ids[:6], NEW), revisions=[1] * 6)
    query = embed(["i2"], OLD).vectors
    true = view(gallery, query, k=4)
    true_part = view(gallery, query, k=4, among=(OLD.fingerprint,))
    engine = engine_of(gallery)
    search = engine.search

    def forgetful(request: SearchRequest) -> list[Candidates]:
        return search(dataclasses.replace(request, live=tuple(reversed(request.live))))

    monkeypatch.setattr(engine, "search", forgetful)
    assert view(gallery, query, k=4) == true
    assert view(gallery, query, k=4, among=(OLD.fingerprint,)) == true_part


def test_payload_changed_during_a_backfill_reaches_the_new_space(gallery: Gallery) -> None:
    add(gallery, ["a"], payloads=[{"n": 0}])
    start(gallery)
    engine_of(gallery).before_put = lambda: gallery.set_payload({"a": {"n": 1}})
    gallery.add_missing_vectors(embed(["a"], NEW), revisions=[1])
    assert found(gallery.search(embed(["q"], NEW), filter=Eq("n", 1))) == [["a"]]
    assert found(gallery.search(embed(["q"], NEW), filter=Eq("n", 0))) == [[]]


def test_item_deleted_during_a_backfill_leaves_no_vector(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start(gallery)
    engine_of(gallery).before_put = lambda: gallery.delete(["a"])
    assert gallery.add_missing_vectors(embed(["a", "b"], NEW), revisions=[1, 1]) == 1
    assert engine_of(gallery).count(2) == 1
    assert gallery.garbage() == 0


def test_add_id_taken_concurrently_raises_and_leaves_no_row(gallery: Gallery) -> None:
    engine_of(gallery).before_put = lambda: add(gallery, ["a"], seed=1)
    with pytest.raises(ItemError, match="already"):
        add(gallery, ["a"])
    gallery._session.queue.drain()
    assert engine_of(gallery).count(1) == 1
    np.testing.assert_array_equal(
        gallery.vectors(["a"], space=OLD.fingerprint).vectors, embed(["a"], seed=1).vectors
    )


def test_verify_finds_a_lost_vector(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    engine = engine_of(gallery)
    engine.delete(engine.rows(1, after=-1, limit=1))
    report = gallery.verify()
    assert (report.missing, report.ok) == (1, False)
    assert "1 vectors are in the catalogue but not in the engine" in report.problems[0]


def test_outbox_late_removal_keeps_a_newer_entry(gallery: Gallery) -> None:
    """Two processes drain the outbox at once; in between an entry is written."""
    catalogue = gallery._session.catalogue

    def write(row: int) -> list[int]:
        with catalogue.writing() as connection:
            outbox.add(connection, catalogue.tables, "payload", [row])
            return [entry.sequence for entry in outbox.due(connection, catalogue.tables)]

    def remove(sequences: list[int]) -> None:
        with catalogue.writing() as connection:
            outbox.remove_entries(connection, catalogue.tables, sequences)

    first = write(1)
    remove(first)
    write(2)
    remove(first)  # by the one that is late
    assert left(gallery) == 1
