"""An upgrade of a billion items on paper: time, money, memory, disk and network of a cluster.

Pure arithmetic on measured unit costs. All of them grow with the number of items (that they do is
what benchmarks/scaling.py shows up to a million), so a plan is: cost of one item × items ÷ what
works at it side by side. What cannot work side by side is what breaks first; `limits` says where.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from midspan.errors import ConfigError
from midspan.upgrade.scale_limits import FACTS, PRECISIONS, Limit, limits_of
from midspan.upgrade.unit_costs import Costs, StoreCosts


@dataclass(frozen=True, slots=True)
class Cluster:
    """images_per_second: of one worker, or of one GPU if there are some; None: one core, as
    measured. server_cores: that a store writes and builds its index with; 1 is what was measured.
    machine_gb, gbit: memory of a store's machine, network of a worker; own choices, of a size that
    every cloud lets.
    """

    workers: int
    gpus: int = 0
    images_per_second: float | None = None
    price_per_worker_hour: float | None = None
    server_cores: int = 1
    machine_gb: float = 256.0
    gbit: float = 10.0


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Steps in seconds, in their order; None: a cost that nobody has measured."""

    store: str
    start_seconds: float | None
    order_seconds: float | None
    write_seconds: float | None
    backfill_seconds: float  # reading, decoding, embedding and writing go on at the same time
    index_seconds: float | None
    seconds: float
    bottleneck: str
    useful_workers: int  # more of them would wait
    money: float | None
    disk_bytes: float | None  # with the old and the new vectors, before `finish`
    memory_bytes: Mapping[str, float | None]  # of the search, by precision; None: not to be had
    machines: Mapping[str, int | None]
    limits: tuple[Limit, ...]  # the nearest first

    @property
    def complete(self) -> bool:
        """Every step is known; otherwise `seconds` is too little."""
        steps = (self.start_seconds, self.order_seconds, self.write_seconds, self.index_seconds)
        return None not in steps


@dataclass(frozen=True, slots=True)
class ScalePlan:
    items: int
    dim: int
    image_kb: float
    cluster: Cluster
    read_seconds: float
    decode_seconds: float
    embed_seconds: float
    image_bytes: float  # over the network, once
    vector_bytes: float  # new vectors, over the network
    gbit_needed: float  # of one worker, to keep it busy
    stores: tuple[StorePlan, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def scale_plan(
    *, items: int, dim: int, image_kb: float, cluster: Cluster, costs: Costs
) -> ScalePlan:
    """`dim` of the old and of the new vectors alike."""
    _check(items=items, dim=dim, image_kb=image_kb, cluster=cluster)
    decode_each = costs.decode_seconds_per_kb * image_kb
    stages = {"read images": items * image_kb * 8e3 / (cluster.workers * cluster.gbit * 1e9)}
    if cluster.gpus:
        assert cluster.images_per_second is not None
        stages["decode"] = items * decode_each / cluster.workers
        stages["embed"] = items / (cluster.gpus * cluster.images_per_second)
    elif cluster.images_per_second is not None:  # of a worker that does all of it
        stages["decode"] = 0.0
        stages["embed"] = items / (cluster.workers * cluster.images_per_second)
    else:  # one core does both, one after the other
        stages["decode"] = 0.0
        stages["embed"] = items * (decode_each + costs.embed_seconds) / cluster.workers
    rate = items / max(stages.values())  # that all workers together could do
    return ScalePlan(
        items=items,
        dim=dim,
        image_kb=image_kb,
        cluster=cluster,
        read_seconds=stages["read images"],
        decode_seconds=stages["decode"],
        embed_seconds=stages["embed"],
        image_bytes=items * image_kb * 1e3,
        vector_bytes=items * dim * 4.0,
        gbit_needed=rate * image_kb * 8e3 / 1e9 / cluster.workers,
        stores=tuple(
            _store(store, stages, items=items, dim=dim, cluster=cluster, costs=costs)
            for store in FACTS
        ),
    )


def _store(
    store: str,
    stages: Mapping[str, float],
    *,
    items: int,
    dim: int,
    cluster: Cluster,
    costs: Costs,
) -> StorePlan:
    facts, cost = FACTS[store], costs.stores.get(store, StoreCosts())
    writers = 1 if facts.one_writer else min(cluster.server_cores, cluster.workers)
    write = _times(items, cost.write_seconds, 1 / writers)
    index = _times(items, cost.index_seconds, 1 / cluster.server_cores)
    start, order = _times(items, cost.start_seconds), _times(items, cost.order_seconds)
    own = max(stages.values())
    backfill = max(own, write or 0.0)
    steps = {**stages, "write": write, "list the work": start, "order": order, "index": index}
    known = {name: seconds for name, seconds in steps.items() if seconds is not None}
    price = cluster.price_per_worker_hour
    memory: dict[str, float | None] = dict.fromkeys(PRECISIONS)
    if cost.index_bytes is not None:
        for name, number in facts.number_bytes.items():
            memory[name] = items * (number * dim + cost.index_bytes)
    disk = None
    if cost.item_bytes is not None and cost.vector_bytes is not None:
        disk = items * (cost.item_bytes + 2 * (4 * dim + cost.vector_bytes))
    return StorePlan(
        store=store,
        start_seconds=start,
        order_seconds=order,
        write_seconds=write,
        backfill_seconds=backfill,
        index_seconds=index,
        seconds=(start or 0.0) + (order or 0.0) + backfill + (index or 0.0),
        bottleneck=max(known, key=lambda name: known[name]),
        useful_workers=max(1, math.ceil(cluster.workers * own / backfill)),
        money=None if price is None else cluster.workers * backfill / 3600 * price,
        disk_bytes=disk,
        memory_bytes=memory,
        machines={
            name: None if size is None else math.ceil(size / (cluster.machine_gb * 1e9))
            for name, size in memory.items()
        },
        limits=limits_of(
            store, cost, dim=dim, machine_gb=cluster.machine_gb, server_cores=cluster.server_cores
        ),
    )


def _times(items: int, each: float | None, share: float = 1.0) -> float | None:
    return None if each is None else items * each * share


def _check(*, items: int, dim: int, image_kb: float, cluster: Cluster) -> None:
    for name, value in (
        ("items", items),
        ("dim", dim),
        ("image-kb", image_kb),
        ("workers", cluster.workers),
        ("server-cores", cluster.server_cores),
        ("machine-gb", cluster.machine_gb),
        ("gbit", cluster.gbit),
    ):
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} = {value:g}; wanted more than 0")
    if cluster.gpus < 0:
        raise ConfigError(f"gpus = {cluster.gpus}; wanted 0 or more")
    rate, price = cluster.images_per_second, cluster.price_per_worker_hour
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"images-per-second = {rate:g}; wanted more than 0")
    if price is not None and not 0 <= price < math.inf:
        raise ConfigError(f"price-per-worker-hour = {price:g}; wanted 0 or more")
    if cluster.gpus and rate is None:
        raise ConfigError(
            f"{cluster.gpus} GPUs, but how fast is one? The measured costs are of one CPU core: "
            "give --images-per-second of one GPU with your encoder"
        )
