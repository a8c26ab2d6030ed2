"""The fixed order in which catalogue and engine are written. Every step may be repeated.

An engine in the catalogue's database writes in the catalogue's transaction. For one elsewhere:
(1) a short transaction takes rows and notes the intent; (2) the engine stores the vectors; (3) one
transaction makes the items, removes the intents and notes what is to be deleted; (4) the engine
deletes it. Whatever stops in between is repaired by draining the outbox; until then the catalogue's
word keeps half-done writes out of every answer.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection, delete, select

from midspan.errors import GalleryError, MidspanError, StoreError, UnknownId
from midspan.gallery import rules
from midspan.gallery.catalogue import items, outbox, work
from midspan.gallery.catalogue.catalogue import Catalogue, StateSnapshot
from midspan.gallery.catalogue.items import ItemRow, one_of
from midspan.gallery.catalogue.outbox import EngineQueue, rows_array
from midspan.gallery.engines.base import Adopts, Engine
from midspan.gallery.filters import Filter
from midspan.gallery.records import AuditEvent, Draft, Payload, State, WriteMode, payload_json
from midspan.spaces import Embeddings

log = logging.getLogger("midspan.gallery")

_Superseded = tuple[int, dict[int, list[int]]]  # the better space; rows by worse space


class ItemWriter:
    def __init__(self, catalogue: Catalogue, engine: Engine, queue: EngineQueue) -> None:
        self.catalogue, self.engine, self.queue = catalogue, engine, queue
        self.tables = catalogue.tables

    def upsert(
        self, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: WriteMode
    ) -> None:
        """Write items with all of their vectors; a replaced item loses its former vectors."""
        self._check_owner()
        if self.engine.colocated:
            self.catalogue.write(
                lambda connection: self._upsert_here(connection, drafts, vectors, mode)
            )
            return
        snapshot, rows = self.catalogue.write(
            lambda connection: self._reserve(connection, drafts, vectors, mode)
        )
        try:
            gone = self._upsert_there(snapshot, drafts, vectors, mode, rows)
        except BaseException:
            self._abandon(rows.values())
            raise
        self.queue.then("delete", gone, lambda: self.engine.delete(rows_array(gone)))

    def _check_owner(self) -> None:
        """Items of an adopted gallery are its application's."""
        if isinstance(self.engine, Adopts) and self.engine.owner is not None:
            raise GalleryError(
                f"{self.catalogue.shown}: the items of this gallery are those of "
                f"{self.engine.owner}; add, change and delete them there"
            )

    def _upsert_there(
        self,
        snapshot: StateSnapshot,
        drafts: Sequence[Draft],
        vectors: Sequence[Embeddings],
        mode: WriteMode,
        rows: Mapping[str, int],
    ) -> list[int]:
        """Returns the rows that were replaced."""
        texts = {draft.id: draft.json for draft in drafts}
        for part in vectors:
            ids = part.ids.tolist()
            self.engine.put(
                snapshot.numbers[part.space.fingerprint],
                rows_array(rows[id] for id in ids),
                part.vectors,
                payloads=[texts[id] for id in ids],
            )

        def commit(connection: Connection) -> list[int]:
            if outbox.remove(connection, self.tables, "intent", rows.values()) < len(rows):
                raise StoreError(f"{self.catalogue.shown}: this write took too long; repeat it")
            gone = self._items(connection, drafts, vectors, mode, rows)
            outbox.add(connection, self.tables, "delete", gone)
            return gone

        return self.catalogue.write(commit)

    def _abandon(self, rows: Collection[int]) -> None:
        """Of a write that failed: its intents are over, the next `drain` removes the vectors."""
        with contextlib.suppress(MidspanError):
            self.catalogue.write(lambda connection: outbox.abandon(connection, self.tables, rows))

    def _upsert_here(
        self,
        connection: Connection,
        drafts: Sequence[Draft],
        vectors: Sequence[Embeddings],
        mode: WriteMode,
    ) -> None:
        taken = self.catalogue.take_rows(connection, len(drafts))
        rows = {draft.id: row for draft, row in zip(drafts, taken, strict=True)}
        gone = self._items(connection, drafts, vectors, mode, rows)
        if gone:
            self.engine.delete(rows_array(gone), connection=connection)
        numbers = self.catalogue.read(connection).numbers
        for part in vectors:
            self.engine.put(
                numbers[part.space.fingerprint],
                rows_array(rows[id] for id in part.ids.tolist()),
                part.vectors,
                connection=connection,
            )

    def _reserve(
        self,
        connection: Connection,
        drafts: Sequence[Draft],
        vectors: Sequence[Embeddings],
        mode: WriteMode,
    ) -> tuple[StateSnapshot, dict[str, int]]:
        """What will be refused is refused before the engine has work with it."""
        snapshot = self.catalogue.read(connection)
        self._checked(connection, snapshot.state, drafts, vectors, mode, lock=False)
        taken = self.catalogue.take_rows(connection, len(drafts))
        outbox.add(connection, self.tables, "intent", taken, after=outbox.INTENT_SECONDS)
        return snapshot, {draft.id: row for draft, row in zip(drafts, taken, strict=True)}

    def _checked(
        self,
        connection: Connection,
        state: State,
        drafts: Sequence[Draft],
        vectors: Sequence[Embeddings],
        mode: WriteMode,
        *,
        lock: bool,
    ) -> dict[str, ItemRow]:
        rules.check_write(state, drafts, vectors)
        present = items.find(connection, self.tables, [d.id for d in drafts], lock=lock)
        rules.check_presence(present, drafts, mode=mode)
        return present

    def _items(
        self,
        connection: Connection,
        drafts: Sequence[Draft],
        vectors: Sequence[Embeddings],
        mode: WriteMode,
        rows: Mapping[str, int],
    ) -> list[int]:
        """The catalogue's side; returns the rows that were replaced."""
        snapshot = self.catalogue.read(connection)
        state = snapshot.state
        before = self._checked(connection, state, drafts, vectors, mode, lock=True)
        items.insert_items(
            connection,
            self.tables,
            drafts,
            rows=rows,
            before=before,
            now=time.time(),
            sequence=self.catalogue.advance(connection),
        )
        lacking = set(rows.values())
        for part in vectors:
            own = [rows[id] for id in part.ids.tolist()]
            number = snapshot.numbers[part.space.fingerprint]
            items.insert_stored(connection, self.tables, number, own)
            if part.space.fingerprint == state.target:
                lacking -= set(own)
        if state.target is not None:
            work.add(connection, self.tables, lacking)
        return [known.row for known in before.values()]

    def add_missing_vectors(self, vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        """Give these vectors to items that have none in the space and are still at the revision."""
        if self.engine.colocated:
            return self.catalogue.write(
                lambda connection: self._missing_here(connection, vectors, revisions)
            )
        with self.catalogue.reading() as connection:
            snapshot = self.catalogue.read(connection)
            lacking = self._lacking(connection, snapshot, vectors, revisions)
            texts = items.payload_texts(connection, self.tables, list(lacking))
        if not lacking:
            return 0
        rows, places = list(lacking), list(lacking.values())
        number = snapshot.numbers[vectors.space.fingerprint]
        self.engine.put(
            number,
            rows_array(rows),
            vectors.vectors[places],
            payloads=[texts[row][0] for row in rows],
        )
        done, gone, changed, superseded = self.catalogue.write(
            lambda connection: self._missing_there(connection, vectors, revisions, lacking, texts)
        )
        self._supersede(superseded)
        self.queue.then("payload", changed, lambda: self.queue.send_payloads(changed))
        self.queue.then("delete", gone, lambda: self.engine.delete(rows_array(gone)))
        return len(done)

    def _missing_here(
        self, connection: Connection, vectors: Embeddings, revisions: Sequence[int]
    ) -> int:
        snapshot = self.catalogue.read(connection)
        lacking = self._lacking(connection, snapshot, vectors, revisions, lock=True)
        rows, places = sorted(lacking), [lacking[row] for row in sorted(lacking)]
        if rows:
            number = snapshot.numbers[vectors.space.fingerprint]
            chosen = vectors.vectors[places]
            self.engine.put(number, rows_array(rows), chosen, connection=connection)
            self._note_stored(connection, snapshot, vectors, rows)
        return len(rows)

    def _missing_there(
        self,
        connection: Connection,
        vectors: Embeddings,
        revisions: Sequence[int],
        put: Mapping[int, int],
        texts: Mapping[int, tuple[str, int]],
    ) -> tuple[list[int], list[int], list[int], _Superseded]:
        """(written, rows that are no item any more, rows whose payload changed meanwhile)."""
        snapshot = self.catalogue.read(connection)
        lacking = self._lacking(connection, snapshot, vectors, revisions, lock=True)
        done = sorted(row for row in put if row in lacking)
        there = items.payload_texts(connection, self.tables, list(put))
        gone = [row for row in put if row not in there]
        changed = [row for row in done if there[row][1] != texts[row][1]]
        superseded: _Superseded = (0, {})
        if done:
            self._note_stored(connection, snapshot, vectors, done)
            superseded = self._superseded(connection, snapshot, vectors, done)
        outbox.add(connection, self.tables, "delete", gone)
        outbox.add(connection, self.tables, "payload", changed)
        return done, gone, changed, superseded

    def _lacking(
        self,
        connection: Connection,
        snapshot: StateSnapshot,
        vectors: Embeddings,
        revisions: Sequence[int],
        *,
        lock: bool = False,
    ) -> dict[int, int]:
        """Row of each item that is at its revision and has no such vector → place in `vectors`."""
        rules.check_missing_vectors(snapshot.state, vectors, revisions)
        ids = vectors.ids.tolist()
        number = snapshot.numbers[vectors.space.fingerprint]
        known = items.lacking(connection, self.tables, ids, number, lock=lock)
        return {
            known[id][0]: place
            for place, id in enumerate(ids)
            if id in known and known[id][1] == revisions[place]
        }

    def _note_stored(
        self, connection: Connection, snapshot: StateSnapshot, vectors: Embeddings, rows: list[int]
    ) -> None:
        name = vectors.space.fingerprint
        items.insert_stored(connection, self.tables, snapshot.numbers[name], rows)
        if name == snapshot.state.target:
            done = 'DELETE FROM "{p}work" WHERE "row" {among}'
            items.ask(connection, self.tables, done, rows)
        self.catalogue.advance(connection)

    def _superseded(
        self, connection: Connection, snapshot: StateSnapshot, vectors: Embeddings, rows: list[int]
    ) -> _Superseded:
        """The worse live spaces in which these rows are superseded now."""
        name, live = vectors.space.fingerprint, snapshot.state.live
        if name not in live:
            return 0, {}
        worse = [snapshot.numbers[other] for other in live[live.index(name) + 1 :]]
        having = items.presence(connection, self.tables, worse, rows)
        by_space: dict[int, list[int]] = {}
        for space, row in having:
            by_space.setdefault(space, []).append(row)
        return snapshot.numbers[name], by_space

    def _supersede(self, superseded: _Superseded) -> None:
        by, spaces = superseded
        for number, rows in spaces.items():
            try:
                self.engine.supersede(number, rows_array(sorted(rows)), by=by)
            except MidspanError as error:  # a hint; searches ask the catalogue
                log.warning("%s: marking superseded rows failed: %s", self.catalogue.shown, error)

    def set_payload(self, payloads: Mapping[str, Payload]) -> None:
        """Change payloads and nothing else; unknown ids are an error."""
        self._check_owner()
        texts = {id: payload_json(payload, of=id) for id, payload in payloads.items()}

        def write(connection: Connection) -> list[int]:
            known = items.find(connection, self.tables, list(texts), lock=True)
            if missing := texts.keys() - known.keys():
                raise UnknownId(
                    f"{len(missing)} ids are not in the gallery, first {min(missing)!r}"
                )
            if not texts:
                return []
            rows = {known[id].row: text for id, text in texts.items()}
            sequence = self.catalogue.advance(connection)
            items.set_payloads(connection, self.tables, rows, now=time.time(), sequence=sequence)
            if not self.engine.colocated:
                outbox.add(connection, self.tables, "payload", rows)
            return list(rows)

        rows = self.catalogue.write(write)
        if not self.engine.colocated:
            self.queue.then("payload", rows, lambda: self.queue.send_payloads(rows))

    def delete(self, ids: Sequence[str]) -> int:
        """Returns how many there were."""
        self._check_owner()

        def find(connection: Connection) -> list[int]:
            known = items.find(connection, self.tables, ids, lock=True)
            return [one.row for one in known.values()]

        return self._delete(find)

    def delete_matching(self, filter: Filter, *, limit: int) -> int:
        """Some of those that pass at this moment; returns how many."""
        self._check_owner()

        def find(connection: Connection) -> list[int]:
            table = self.tables.items
            statement = select(table.c.row).where(self.catalogue.where(filter)).limit(limit)
            return list(connection.execute(statement.with_for_update()).scalars())

        return self._delete(find)

    def _delete(self, find: Callable[[Connection], list[int]]) -> int:
        def write(connection: Connection) -> list[int]:
            rows = find(connection)
            if not rows:
                return []
            items.remove_rows(connection, self.tables, rows)
            self.catalogue.advance(connection)
            if self.engine.colocated:
                self.engine.delete(rows_array(rows), connection=connection)
            else:
                outbox.add(connection, self.tables, "delete", rows)
            return rows

        rows = self.catalogue.write(write)
        if not self.engine.colocated:
            self.queue.then("delete", rows, lambda: self.engine.delete(rows_array(rows)))
        return len(rows)


# ---- changes of a gallery's state, and of the spaces that its engine holds -----------------------

CHUNK = 50_000  # notes of presence removed in one transaction


class StateWriter:
    def __init__(self, catalogue: Catalogue, engine: Engine, queue: EngineQueue) -> None:
        self.catalogue, self.engine, self.queue = catalogue, engine, queue
        self.tables = catalogue.tables

    def change(self, state: State, *, event: AuditEvent) -> State:
        """Put this state in place of the version it was made from, with a line in the log."""
        listed = self._list_ahead(state)
        if self.engine.colocated:
            return self.catalogue.write(
                lambda connection: self._change_here(connection, state, event, listed),
                exclusive=True,
            )
        reserved = self._make_spaces(state)

        def write(connection: Connection) -> tuple[State, list[int]]:
            after, _, gone = self.catalogue.change(
                connection, state, event=event, reserved=reserved, listed=listed
            )
            outbox.add(connection, self.tables, "drop", gone)
            return after.state, gone

        after, gone = self.catalogue.write(write, exclusive=True)
        for number in gone:
            self.queue.then("drop", [number], partial(self.engine.drop_space, number))
        return after

    def _change_here(
        self, connection: Connection, state: State, event: AuditEvent, listed: int
    ) -> State:
        after, created, gone = self.catalogue.change(connection, state, event=event, listed=listed)
        for number, space in created.items():
            self.engine.create_space(number, space, connection=connection)
        for number in gone:
            self.engine.drop_space(number, connection=connection)
        return after.state

    def _list_ahead(self, state: State) -> int:
        """Most of a long work list, in portions between which others write; the rest, and what
        they wrote, comes with the change itself. Stopped in between, it is nobody's list.

        Returns the last row on it, or -1.
        """
        if state.target is None or self.catalogue.snapshot().state.target is not None:
            return -1
        with self.catalogue.reading() as connection:
            if not work.is_long(connection, self.tables):
                return -1

        def portion(connection: Connection) -> int | None:
            before = self.catalogue.read(connection)
            rules.check_change(before.state, state)
            number = before.numbers.get(state.target or "")
            return work.list_portion(connection, self.tables, number, after)

        after = -1
        while (last := self.catalogue.write(portion, exclusive=True)) is not None:
            after = last
        return after

    def _make_spaces(self, state: State) -> dict[str, int]:
        """New spaces are made in the engine before the gallery knows them."""

        def reserve(connection: Connection) -> dict[str, int]:
            before = self.catalogue.read(connection)
            rules.check_change(before.state, state)
            new = [name for name in state.spaces if name not in before.numbers]
            numbers = {name: self.catalogue.next_space(connection) for name in new}
            outbox.add(
                connection, self.tables, "space", numbers.values(), after=outbox.INTENT_SECONDS
            )
            return numbers

        reserved = self.catalogue.write(reserve, exclusive=True)
        for name, number in reserved.items():
            self.engine.create_space(number, state.spaces[name])
        return reserved

    def drop_vectors(self, fingerprint: str, *, event: AuditEvent) -> int:
        """Forget a space with all its vectors, at once. Returns how many there were."""

        def write(connection: Connection) -> tuple[int, int]:
            snapshot = self.catalogue.read(connection)
            rules.check_droppable(snapshot.state, fingerprint)
            number = snapshot.numbers[fingerprint]
            count = self.catalogue.stored(connection, number)
            self.catalogue.forget_space(connection, number)
            self.catalogue.new_version(connection)
            self.catalogue.audit.write(connection, event)
            self.catalogue.advance(connection)
            if self.engine.colocated:
                self.engine.drop_space(number, connection=connection)
            else:
                outbox.add(connection, self.tables, "drop", [number])
            return number, count

        number, count = self.catalogue.write(write, exclusive=True)
        if not self.engine.colocated:
            self.queue.then("drop", [number], lambda: self.engine.drop_space(number))
        self.forget_presence(number)
        return count

    def forget_presence(self, number: int) -> None:
        """The notes of which rows had a vector in a dropped space; nobody reads them."""
        stored = self.tables.stored

        def part(connection: Connection) -> int:
            rows = connection.execute(
                select(stored.c.row).where(stored.c.space == number).limit(CHUNK)
            ).scalars()
            statement = delete(stored).where(
                stored.c.space == number, one_of(self.tables, stored.c.row, list(rows))
            )
            return int(connection.execute(statement).rowcount)

        while self.catalogue.write(part):
            pass
