"""Public API: plan → start → run → finish, or roll back.

Upgrade.plan(gallery, to=encoder, sample=new_vectors)      # writes nothing
upgrade = Upgrade.start(gallery, to=encoder, mode="both", embed=embed, traffic=0.05)
upgrade.run(embed)                                         # any number of processes
upgrade.finish()                                           # or upgrade.rollback()
upgrade.forget()                                           # drops the old vectors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from midspan.bridges import load_bridge
from midspan.gallery import Filter, Gallery, Hit
from midspan.gallery.records import Mode, Record
from midspan.gallery.routing import SAMPLE
from midspan.spaces import Embeddings, Space
from midspan.upgrade import backfill, steps
from midspan.upgrade import finish as ending
from midspan.upgrade import start as begin
from midspan.upgrade.embed import Embed
from midspan.upgrade.finish import Finished, Forgotten, RolledBack
from midspan.upgrade.images import Embedder, ImageEncoder, as_embed
from midspan.upgrade.plan import Plan, make_plan
from midspan.upgrade.priorities import check_order
from midspan.upgrade.start import HasSpace, check_start, sample_of, space_of
from midspan.upgrade.status import Status, status
from midspan.upgrade.throttle import Latency
from midspan.upgrade.verdicts import GateResult
from midspan.upgrade.worker import Report, Settings


class Upgrade:
    """The open upgrade of a gallery. It keeps nothing itself: the gallery knows all.

    Args:
        gallery: A gallery in which an upgrade was started; `Upgrade.start` starts one.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(100).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(100, 8)), ms.Space("old", 8))
        >>> new = ms.Embeddings(ids, rng.normal(size=(100, 16)), ms.Space("new", 16))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> gallery.add(old)
        100
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> upgrade.run(new, limit=40).new
        40
        >>> _ = upgrade.rollback()
        >>> gallery.space.name
        'old'
    """

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery

    def __repr__(self) -> str:
        return f"Upgrade({self.gallery.location!r})"

    @classmethod
    def plan(
        cls,
        gallery: Gallery,
        *,
        to: Space | HasSpace,
        mode: Mode = "direct",
        bridge: str | Path | None = None,
        order: str | None = None,
        sample: Embeddings | None = None,
        embed: Embedder | None = None,
        sample_size: int = SAMPLE,
    ) -> Plan:
        """A dry run: refuses what `start` would refuse, and changes nothing.

        Args:
            gallery: The gallery to upgrade.
            to: The new encoder, its Embeddings, or its space.
            mode: "direct" (trained compatible), "map-query", "map-gallery" or "both".
            bridge: Folder of the bridge of a mode that maps.
            order: A name from `midspan.upgrade.ORDERS`; None: what ranks best in this mode.
            sample: New vectors of some of the gallery's items, for the evidence; `to` itself if it
                is Embeddings.
            embed: The encoder, to measure how long it takes; default `to`, if it is one. Without
                vectors it embeds a sample, which is kept with the gallery for `start`.
            sample_size: Items of that sample.

        Returns:
            A Plan: items, time, disk, what the gate says, the expected curve.

        Raises:
            SpaceMismatch: The mode cannot connect the two spaces.
            GalleryError: Another upgrade is open.
        """
        new, sample = space_of(to), sample_of(to, sample)
        check_order(gallery, order)
        old = check_start(gallery, gallery.state, new, mode=mode, bridge=bridge)
        return make_plan(
            gallery,
            old=old,
            new=new,
            mode=mode,
            order=order,
            bridge=None if bridge is None else load_bridge(bridge),
            sample=sample,
            embed=_embed_of(to, embed),
            sample_size=sample_size,
        )

    @classmethod
    def start(
        cls,
        gallery: Gallery,
        *,
        to: Space | HasSpace,
        mode: Mode = "direct",
        bridge: str | Path | None = None,
        order: str | None = None,
        sample: Embeddings | None = None,
        embed: Embedder | None = None,
        sample_size: int = SAMPLE,
        traffic: float = 1.0,
        rollback: bool = True,
        override: str | None = None,
        seed: int = 0,
        show: bool = False,
    ) -> Upgrade:
        """From the next query on the new encoder answers. One row changes; no vector is touched.

        In the mode map-gallery the stored vectors are mapped first, while the old service
        continues; stopped in between, the same call continues. Priorities are written last.

        Args:
            gallery: The gallery to upgrade.
            to: The new encoder, its Embeddings, or its space.
            mode: "direct" (trained compatible), "map-query", "map-gallery" or "both".
            bridge: Folder of the bridge of a mode that maps.
            order: A name from `midspan.upgrade.ORDERS`; None: what ranks best in this mode.
            sample: New vectors of some items (`to` as Embeddings counts); without them `embed`
                makes those of `sample_size` items, or an earlier plan or start has. Over it the
                scores of old and new vectors are standardised, which costs a second search.
                Without any, or with sample_size = 0, scores are merged as they are.
            embed: The encoder that embeds the sample; default `to`, if it is one.
            sample_size: Items of the sample.
            traffic: Share of the queries in both spaces that the new way answers; 0: shadow.
            rollback: Promise it: items then come with an old vector (see `wanted_spaces`), or are
                refused; a rollback loses nothing.
            override: In mode direct, the reason to start although the test at the end of the new
                encoder's training failed (EvidenceFailed without one); it is recorded.
            seed: Of the sample and of random orders.
            show: A progress bar.

        Returns:
            The open upgrade.

        Raises:
            SpaceMismatch: The mode cannot connect the two spaces.
            GalleryError: Another upgrade is open.
            ConfigError: A mode, order or share that does not exist, or no sample where the mode
                needs one.
        """
        begin.start(
            gallery,
            to=to,
            mode=mode,
            bridge=bridge,
            order=order,
            sample=sample,
            embed=_embed_of(to, embed),
            sample_size=sample_size,
            traffic=traffic,
            rollback=rollback,
            override=override,
            seed=seed,
            show=show,
        )
        return cls(gallery)

    def reorder(
        self, order: str, *, sample: Embeddings | None = None, seed: int = 0, show: bool = False
    ) -> int:
        """Write the priorities of what is left; at any time, with any order.

        Args:
            order: A name from `midspan.upgrade.ORDERS`.
            sample: New vectors of some items, for orders that look at them.
            seed: Of random orders.
            show: A progress bar.

        Returns:
            How many items have a new place.

        Raises:
            ConfigError: No such order, or it needs a sample.
        """
        return begin.reorder(self.gallery, order, sample=sample, seed=seed, show=show)

    def run(
        self,
        embed: Embedder,
        *,
        limit: int | None = None,
        max_rate: float | None = None,
        latency: Latency | None = None,
        check: Callable[[], GateResult] | None = None,
        check_every: int | None = None,
        settings: Settings | None = None,
        show: bool = False,
    ) -> Report:
        """The backfill: every item gets its new vector, in the order of the upgrade.

        Args:
            embed: The new encoder, which reads the images of the items' uris; Embeddings that exist
                already; or a function from items to `Embedded`.
            limit: Stop after so many items; None: when nothing is left.
            max_rate: Items a second.
            latency: Rest while live searches are slower than a ceiling.
            check: The gate, asked along the way; a FAIL pauses the upgrade.
            check_every: Items between two checks; None: 20 checks on the whole way.
            settings: Batch size, leases and retries.
            show: A progress bar.

        Returns:
            What was written and what failed; old + new + failed = all.
        """
        return backfill.run(
            self.gallery,
            as_embed(embed),
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
        query: Embeddings | Sequence[Embeddings] | npt.NDArray[Any],
        *,
        k: int = 10,
        space: Space | None = None,
        filter: Filter | Mapping[str, Any] | None = None,
        exact: bool = False,
        threshold: float | None = None,
    ) -> list[list[Hit]]:
        """`Gallery.search`: the one way to an answer.

        Args:
            query: Embeddings; (Q, D) numbers with their `space`; or queries in both spaces.
            k: Results for each query.
            space: Of plain numbers.
            filter: Which items may answer: a Filter, or its JSON form, such as {"brand": "acme"}.
            exact: Compare with every vector instead of an index.
            threshold: The lowest `score` (cosine …) that counts.

        Returns:
            For each query its hits, best first.
        """
        return self.gallery.search(
            query, k=k, space=space, filter=filter, exact=exact, threshold=threshold
        )

    def wanted_spaces(self) -> tuple[Space, ...]:
        """The spaces that a new item should come in.

        Returns:
            The new one, and the old one while a rollback is promised.
        """
        state = self.gallery.state
        record = Record.of(state)
        if record is None or record.phase not in ("running", "paused") or not record.rollback:
            return (state.spaces[state.live[0]],)
        return (state.spaces[record.new], state.spaces[record.old])

    def set_traffic(self, share: float) -> None:
        """Canary: change the share of the queries that the new way answers.

        Args:
            share: 0: shadow, 1: all.

        Raises:
            ConfigError: It is not between 0 and 1.
        """
        steps.set_traffic(self.gallery, share)

    def status(self) -> Status:
        """How the upgrade stands.

        Returns:
            Phase, counts (old + new + failed = all), the gate's last verdict, and what a rollback
            would lose.
        """
        return status(self.gallery)

    def retry(self) -> int:
        """Put failed items back on the work list.

        Returns:
            How many items.
        """
        return steps.retry(self.gallery)

    def pause(self, *, reason: str | None = None) -> None:
        """Stop the backfill within a batch, in every process. Searches continue.

        Args:
            reason: Why; `status` shows it.
        """
        steps.pause(self.gallery, reason=reason)

    def resume(self, *, override: str | None = None) -> None:
        """Let the backfill continue.

        Args:
            override: The reason to continue although the gate failed; it is recorded.

        Raises:
            GalleryError: The gate failed, and no reason was given.
        """
        steps.resume(self.gallery, override=override)

    def finish(
        self,
        *,
        force: bool = False,
        override: str | None = None,
        keep_old: float | None = None,
    ) -> Finished:
        """The new vectors alone answer; the old ones are kept until `forget`.

        Requires a vector for every item, the index of the new vectors, and a PASS of the gate on
        the gallery as it is now, which is asked with the gallery's own items if there is none.

        Args:
            force: Finish with items that answer with a mapped vector, or without the index; never
                with items that would be left without a vector.
            override: The reason to finish without a PASS; it is recorded.
            keep_old: Seconds after which the old vectors may be dropped; None: when asked.

        Returns:
            What answers now, and how many old vectors are kept.

        Raises:
            GalleryError: Items have no new vector, or the gate did not pass.
        """
        return ending.finish(self.gallery, force=force, override=override, keep_old=keep_old)

    def forget(self) -> Forgotten:
        """Drop the old vectors of a finished upgrade and return their disk, for good.

        Stopped in between, it continues when repeated.

        Returns:
            How many vectors went.

        Raises:
            GalleryError: The upgrade is not finished.
        """
        return ending.forget(self.gallery)

    def rollback(self, *, drop: bool = False) -> RolledBack:
        """The old vectors answer again from the next query on; nothing is embedded.

        Args:
            drop: Delete the new vectors too; by default they stay, and a new start finds them.

        Returns:
            What answers now, and which items have no old vector.

        Raises:
            GalleryError: No upgrade is open, or its old vectors are gone.
        """
        return ending.rollback(self.gallery, drop=drop)


def _embed_of(to: Space | HasSpace, embed: Embedder | None) -> Embed | None:
    """`embed`, or the encoder that the upgrade leads to, which can embed a sample itself."""
    if embed is None and isinstance(to, ImageEncoder) and to.takes_images:
        embed = to
    return None if embed is None else as_embed(embed)
