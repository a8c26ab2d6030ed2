"""Ids, uris and payloads of found items; those that were found lately are remembered.

Reading ten items from the file takes about 90 µs of a search. What is remembered is as old as the
mirror at most: the follower forgets what changed before it lets a search see the change.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from midspan.gallery.filters import Filter
from midspan.gallery.stores.sqlite.database import Database
from midspan.gallery.stores.sqlite.where import where

KEPT = 50_000  # items: some 30 MB with short payloads
LONGEST = 1000  # characters of a payload that is kept
FEW = 32  # items that are asked for by as many parameters; more come as one JSON list

Text = tuple[str, str | None, dict[str, Any] | str]  # id, uri, payload: flat, or still JSON

_COLUMNS = "SELECT item, id, uri, payload FROM items WHERE item IN"
_STATEMENTS = [f"{_COLUMNS} ({','.join('?' * count)})" for count in range(FEW + 1)]


class Texts:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, Text] = {}
        self._lock = threading.Lock()
        self._changes = 0  # how often something was forgotten

    def of(self, items: Sequence[int], *, filter: Filter | None = None) -> dict[int, Text]:
        """Of those that are there; of those that pass the filter, as they are in this moment.

        No item twice.
        """
        if filter is not None:
            return self._passing(items, filter)
        known = self._known
        texts = {item: text for item in items if (text := known.get(item)) is not None}
        if len(texts) < len(items):
            missing = [item for item in items if item not in texts]
            changes = self._changes
            read = self._read(missing)
            self._keep(read, changes)
            texts.update(read)
        return texts

    def forget(self, items: Collection[int] | None) -> None:
        """These have changed or are gone; None: any may have."""
        with self._lock:
            self._changes += 1
            if items is None:
                self._known = {}
            else:
                for item in items:
                    self._known.pop(item, None)

    def _keep(self, read: dict[int, Text], changes: int) -> None:
        with self._lock:
            if changes != self._changes:
                return  # it may have been read before what was forgotten meanwhile
            for item, text in read.items():
                if len(text[2]) <= LONGEST:
                    self._known[item] = text
            if len(self._known) > KEPT:
                for item in list(islice(self._known, KEPT // 2)):
                    del self._known[item]

    def _read(self, items: Sequence[int]) -> dict[int, Text]:
        if len(items) <= FEW:
            rows = self._database.ask(_STATEMENTS[len(items)], items)
        else:
            statement = f"{_COLUMNS} (SELECT value FROM json_each(?))"
            rows = self._database.ask(statement, (json.dumps(items),))
        payloads = json.loads(f"[{','.join([row[3] for row in rows])}]")  # one call
        return {
            item: (id, uri, payload if _flat(text) else text)
            for (item, id, uri, text), payload in zip(rows, payloads, strict=True)
        }

    def _passing(self, items: Sequence[int], filter: Filter) -> dict[int, Text]:
        condition, values = where(filter)
        statement = f"{_COLUMNS} (SELECT value FROM json_each(?)) AND {condition}"
        rows = self._database.ask(statement, (json.dumps(items), *values))
        return {item: (id, uri, text) for item, id, uri, text in rows}


def payload_of(text: Text) -> dict[str, Any]:
    """The caller's own: changing it changes no other hit."""
    payload = text[2]
    if isinstance(payload, dict):
        return payload.copy()
    parsed: dict[str, Any] = json.loads(payload)
    return parsed


def _flat(text: str) -> bool:
    """A copy of one level is a whole copy, for sure; and it is short."""
    return len(text) <= LONGEST and "[" not in text and text.rfind("{") == 0
