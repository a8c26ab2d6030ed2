"""Where an upgrade stops being reasonable, by store: at how many items, why, what to do then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from midspan.upgrade.unit_costs import StoreCosts

PRECISIONS = ("float32", "int8", "binary")
WAIT = 60.0  # seconds that a writer of a gallery file waits for another before it gives up
DAY, WEEK = 86_400.0, 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Facts:
    """one_writer: writes take turns, whoever makes them. one_machine: the index cannot be spread.
    number_bytes: of a number of a vector in memory, for the precisions that there are.
    """

    one_writer: bool
    one_machine: bool
    number_bytes: Mapping[str, float]


_EACH = {"float32": 4.0, "int8": 1.0, "binary": 1 / 8}
FACTS = {
    # The file's index compares int8 codes first and keeps the float32 vectors beside them.
    "embedded": Facts(True, True, {**_EACH, "float32": 5.0}),
    "pgvector": Facts(False, True, {"float32": 4.0, "binary": 1 / 8}),
    "milvus": Facts(True, False, _EACH),
    "qdrant": Facts(True, False, _EACH),
}


@dataclass(frozen=True, slots=True)
class Limit:
    items: int
    what: str
    then: str


def limits_of(
    store: str, cost: StoreCosts, *, dim: int, machine_gb: float, server_cores: int
) -> tuple[Limit, ...]:
    """Those that can be computed, the nearest first."""
    facts = FACTS[store]
    found = []
    if cost.start_seconds:
        found.append(
            Limit(
                int(WAIT / cost.start_seconds),
                f"other writers wait more than {WAIT:.0f} s while a start lists the work",
                "start when nothing is added, or split the gallery; searches go on",
            )
        )
    if cost.index_bytes is not None and facts.one_machine:
        each = facts.number_bytes["float32"] * dim + cost.index_bytes
        found.append(
            Limit(
                int(machine_gb * 1e9 / each),
                f"float32 vectors and their index fill the {machine_gb:g} GB of one machine",
                "quantise (int8, binary), or take an engine with shards: gallery copy",
            )
        )
    if cost.order_seconds:
        found.append(
            Limit(
                int(DAY / cost.order_seconds),
                "one process needs more than a day to write the order",
                "let the backfill begin meanwhile: it takes what is first so far; or split",
            )
        )
    if cost.write_seconds:
        cores = 1 if facts.one_writer else server_cores
        found.append(
            Limit(
                int(WEEK * cores / cost.write_seconds),
                "writing the vectors takes more than a week"
                + (", one writer at a time" if facts.one_writer else ""),
                "split the gallery: each part has a writer of its own"
                if facts.one_writer
                else "a server with more cores, or split the gallery over several",
            )
        )
    if cost.index_seconds:
        found.append(
            Limit(
                int(DAY * server_cores / cost.index_seconds),
                "the index takes more than a day to build",
                "more cores for the build; the old index answers meanwhile",
            )
        )
    return tuple(sorted(found, key=lambda limit: limit.items))
