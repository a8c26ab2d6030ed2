"""What one item costs: seconds and bytes, measured, as a small table that anybody can replace.

`unit_costs.csv` beside this file was measured by `python -m benchmarks.unit_costs`; each row names
the command, the number of items and the machine. The same command on another machine writes
another file, which `midspan upgrade plan --items … --costs FILE` takes instead.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import math
from collections.abc import Mapping
from pathlib import Path

from midspan.errors import ConfigError

SHIPPED = Path(__file__).with_name("unit_costs.csv")
COLUMNS = ("store", "name", "value", "unit", "items", "machine", "command")


@dataclasses.dataclass(frozen=True, slots=True)
class StoreCosts:
    """Of one item in a gallery of one kind, by one process on one core. None: not measured."""

    start_seconds: float | None = None  # to list it as work, in the one transaction of a start
    order_seconds: float | None = None  # to read its old vector and write its priority
    write_seconds: float | None = None  # to claim it and write its new vector
    index_seconds: float | None = None  # to bring its vector into the search index
    item_bytes: float | None = None  # on disk: id, uri, payload, without vectors
    vector_bytes: float | None = None  # on disk, beside the 4 · dim of its numbers
    index_bytes: float | None = None  # in memory, beside its numbers: graph or lists
    search_seconds: float | None = None  # of a query for ten items, at the size of the measure


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """decode: a JPEG on one core. embed: a decoded image on one core, by `encoder`."""

    decode_seconds_per_kb: float
    embed_seconds: float
    stores: Mapping[str, StoreCosts]


def read_costs(path: Path = SHIPPED) -> Costs:
    """A name that is not known, or a number that cannot be, is refused with its line."""
    common: dict[str, float] = {}
    stores: dict[str, dict[str, float]] = {}
    wanted = {
        "": {"decode_seconds_per_kb", "embed_seconds"},
        "store": {field.name for field in dataclasses.fields(StoreCosts)},
    }
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ConfigError(
            f"{path}: the table of costs cannot be read ({error.strerror})"
        ) from error
    for line, row in enumerate(rows, start=2):
        if not {"store", "name", "value"} <= row.keys():
            raise ConfigError(f"{path}: wanted the columns {', '.join(COLUMNS)}")
        known = wanted["store" if row["store"] else ""]
        if row["name"] not in known:
            close = difflib.get_close_matches(row["name"] or "", known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
            raise ConfigError(f"{path}:{line}: no cost is called {row['name']!r}{hint}")
        value = _number(row["value"], where=f"{path}:{line}: {row['name']}")
        target = stores.setdefault(row["store"], {}) if row["store"] else common
        target[row["name"]] = value
    if missing := wanted[""] - common.keys():
        raise ConfigError(f"{path}: wanted a value for {', '.join(sorted(missing))}")
    made = {store: StoreCosts(**values) for store, values in stores.items()}
    return Costs(**common, stores=made)


def _number(text: str, *, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"{where}: {text!r}; wanted a number, 0 or more")
    return value
