"""The front door: plan → start → run → finish, or roll back.

Upgrade.plan(gallery, to=encoder, sample=new_vectors)      # writes nothing
upgrade = Upgrade.start(gallery, to=encoder, mode="direct", order="uncertainty")
upgrade.run(embed)                                         # any number of processes
upgrade.finish()                                           # or upgrade.rollback()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from midspan.bridges import load_bridge
from midspan.gallery import Filter, Gallery, Hit
from midspan.spaces import Embeddings, Space
from midspan.upgrade import backfill, routing, steps
from midspan.upgrade import start as begin
from midspan.upgrade.embed import Embed
from midspan.upgrade.gate import GateResult
from midspan.upgrade.orders import order_named
from midspan.upgrade.plan import Plan, make_plan
from midspan.upgrade.record import Mode, Record
from midspan.upgrade.start import HasSpace, check_start, sample_of, space_of
from midspan.upgrade.status import Status, status
from midspan.upgrade.steps import Finished, RolledBack
from midspan.upgrade.throttle import Latency


class Upgrade:
    """The open upgrade of a gallery. It keeps nothing itself: the gallery knows all."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery

    @classmethod
    def plan(
        cls,
        gallery: Gallery,
        *,
        to: Space | HasSpace,
        mode: Mode = "direct",
        bridge: str | Path | None = None,
        order: str = "uncertainty",
        calibrate: bool | None = None,
        sample: Embeddings | None = None,
        embed: Embed | None = None,
    ) -> Plan:
        """A dry run: writes nothing, and refuses what `start` would refuse.

        sample: new vectors of some of the gallery's items, for the evidence; `to` itself if it is
        Embeddings. embed: the encoder, to measure how long it takes.
        """
        new, sample = space_of(to), sample_of(to, sample)
        old = check_start(gallery, gallery.state, new, mode=mode, bridge=bridge)
        order_named(order)
        return make_plan(
            gallery,
            old=old,
            new=new,
            mode=mode,
            order=order,
            bridge=None if bridge is None else load_bridge(bridge),
            calibrate=calibrate,
            sample=sample,
            embed=embed,
        )

    @classmethod
    def start(
        cls,
        gallery: Gallery,
        *,
        to: Space | HasSpace,
        mode: Mode = "direct",
        bridge: str | Path | None = None,
        order: str = "uncertainty",
        calibrate: bool | None = None,
        sample: Embeddings | None = None,
        rollback: bool = True,
        seed: int = 0,
        show: bool = False,
    ) -> Upgrade:
        """From the next query on the new encoder answers. One row changes; no vector is touched.

        In the mode map-gallery the stored vectors are mapped first, while the old service goes
        on; stopped in between, the same call goes on. Priorities are written last.

        calibrate: scores of the part that is not refreshed are brought to the scale of the new
        ones, which costs a second search. By default where that ranks better beyond doubt on a
        labelled sample (`to` as Embeddings, or `sample`); False: never; True: also without labels.
        rollback: promise it: `wanted_spaces` then asks for an old vector of new items too.
        """
        begin.start(
            gallery,
            to=to,
            mode=mode,
            bridge=bridge,
            order=order,
            calibrate=calibrate,
            sample=sample,
            rollback=rollback,
            seed=seed,
            show=show,
        )
        return cls(gallery)

    def reorder(
        self, order: str, *, sample: Embeddings | None = None, seed: int = 0, show: bool = False
    ) -> int:
        """Write the priorities of what is left; at any time, with any order."""
        return begin.reorder(self.gallery, order, sample=sample, seed=seed, show=show)

    def run(
        self,
        embed: Embed,
        *,
        limit: int | None = None,
        max_rate: float | None = None,
        latency: Latency | None = None,
        check: Callable[[], GateResult] | None = None,
        check_every: int = 1000,
        settings: backfill.Settings | None = None,
        show: bool = False,
    ) -> backfill.Report:
        """The backfill: see `backfill.run`."""
        return backfill.run(
            self.gallery,
            embed,
            limit=limit,
            max_rate=max_rate,
            latency=latency,
            check=check,
            check_every=check_every,
            settings=settings,
            show=show,
        )

    def search(
        self,
        query: Embeddings | npt.NDArray[Any],
        *,
        k: int = 10,
        space: Space | None = None,
        filter: Filter | Mapping[str, Any] | None = None,
        exact: bool = False,
        threshold: float | None = None,
    ) -> list[list[Hit]]:
        return routing.search(
            self.gallery,
            query,
            k=k,
            space=space,
            filter=filter,
            exact=exact,
            threshold=threshold,
        )

    def wanted_spaces(self) -> tuple[Space, ...]:
        """The spaces that a new item should come in: new, and old while a rollback is promised."""
        state = self.gallery.state
        record = Record.of(state)
        if record is None or record.phase not in ("running", "paused") or not record.rollback:
            return (state.spaces[state.live[0]],)
        return (state.spaces[record.new], state.spaces[record.old])

    def status(self) -> Status:
        return status(self.gallery)

    def retry(self) -> int:
        """Put what was given up back on the work list; returns how many."""
        return steps.retry(self.gallery)

    def pause(self, *, reason: str | None = None) -> None:
        steps.pause(self.gallery, reason=reason)

    def resume(self) -> None:
        steps.resume(self.gallery)

    def finish(self, *, force: bool = False) -> Finished:
        return steps.finish(self.gallery, force=force)

    def rollback(self, *, drop: bool = False) -> RolledBack:
        return steps.rollback(self.gallery, drop=drop)
