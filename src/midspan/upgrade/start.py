"""The start of an upgrade: what is refused, the one row that changes, the map, the priorities."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Protocol

from midspan.bridges import Bridge, load_bridge
from midspan.errors import ConfigError, GalleryError, SpaceMismatch
from midspan.gallery import Gallery, State
from midspan.spaces import Embeddings, Space
from midspan.upgrade.mapping import bridge_of, check_bridge, load_for, map_items, mapped_space
from midspan.upgrade.mixing import FEWEST, Mixing, choose_scores
from midspan.upgrade.orders import Float64, Hints, order_named
from midspan.upgrade.priorities import (
    buckets_for,
    order_hints,
    paired_sample,
    priorities_of,
    prioritise,
)
from midspan.upgrade.record import MODES, Mode, Record, change, open_record, score_map_json


class HasSpace(Protocol):
    """Embeddings, or an encoder."""

    @property
    def space(self) -> Space: ...


def start(
    gallery: Gallery,
    *,
    to: Space | HasSpace,
    mode: Mode,
    bridge: str | Path | None,
    order: str,
    calibrate: bool | None,
    sample: Embeddings | None,
    rollback: bool,
    seed: int,
    show: bool,
) -> None:
    """See Upgrade.start. All that can be refused is refused before anything is written."""
    new, sample = space_of(to), sample_of(to, sample)
    order_named(order)
    before = Record.of(gallery.state)
    if before is not None and before.phase == "mapping":
        if (before.mode, before.new) != (mode, new.fingerprint):
            raise _already_open(gallery, before)
    else:
        old = check_start(gallery, gallery.state, new, mode=mode, bridge=bridge)
        _check_scores(old, new, mode=mode, calibrate=calibrate, sample=sample)
        made = load_bridge(bridge) if bridge else None
        forward = made if mode == "map-gallery" else None
        hints = order_hints(
            gallery, order, old=old.fingerprint, sample=sample, seed=seed, by=forward
        )
        record = Record(
            mode=mode,
            old=old.fingerprint,
            new=new.fingerprint,
            phase="mapping" if mode == "map-gallery" else "running",
            started=time.time(),
            rollback=rollback,
        )
        if sample is not None:
            mine, theirs = paired_sample(gallery, record.old, sample)
            place = priorities_of(gallery, order, hints, mine)
            found = mixing_for(
                mine, theirs, mode=mode, bridge=made, calibrate=calibrate, priorities=place
            )
            record = record if found is None else _with_mixing(record, found)
        if mode != "direct":
            folder, digest = load_for(bridge, mode=mode, old=old, new=new)
            record = dataclasses.replace(record, bridge=folder, digest=digest)
        _open(gallery, record, old=old, new=new, bridge=bridge)
        _map(gallery, show=show)
        _write_order(gallery, order, hints, show=show)
        return
    _map(gallery, show=show)
    reorder(gallery, order, sample=sample, seed=seed, show=show)


def _map(gallery: Gallery, *, show: bool) -> None:
    """Map all, switch over, and map what came in between."""
    record = open_record(gallery)
    if record.mapped is None:
        return
    mapped = record.mapped
    map_items(gallery, record, show=show)

    def switch(state: State) -> State:
        now = Record.of(state)
        if now is None or now.phase != "mapping":
            return state
        return dataclasses.replace(
            state,
            live=(now.new, mapped, now.old),
            target=now.new,
            upgrade=dataclasses.replace(now, phase="running").to_json(),
        )

    change(gallery, switch, what="upgrade mapped", details={"to": record.new})
    map_items(gallery, record)


def reorder(
    gallery: Gallery,
    order: str,
    *,
    sample: Embeddings | None = None,
    seed: int = 0,
    show: bool = False,
) -> int:
    """Write the priorities of what is left; at any time, with any order."""
    record = open_record(gallery)
    forward = bridge_of(record) if record.mode == "map-gallery" else None
    hints = order_hints(gallery, order, old=record.old, sample=sample, seed=seed, by=forward)
    return _write_order(gallery, order, hints, show=show)


def _write_order(gallery: Gallery, order: str, hints: Hints | None, *, show: bool) -> int:
    record, looked, buckets = open_record(gallery), 0, None
    if hints is not None:
        buckets = buckets_for(gallery, order, hints, space=record.old)
        looked = prioritise(gallery, order, hints, space=record.old, buckets=buckets, show=show)

    def step(state: State) -> State:
        now = Record.of(state)
        if now is None:
            return state
        return dataclasses.replace(state, upgrade=dataclasses.replace(now, order=order).to_json())

    details = {
        "order": order,
        "items": looked,
        "buckets": None if buckets is None else len(buckets),
    }
    change(gallery, step, what="upgrade order", details=details)
    return looked


def space_of(to: Space | HasSpace) -> Space:
    return to if isinstance(to, Space) else to.space


def sample_of(to: Space | HasSpace, sample: Embeddings | None) -> Embeddings | None:
    if sample is None and isinstance(to, Embeddings):
        return to
    if sample is not None and not sample.space.same_as(space_of(to)):
        raise SpaceMismatch(f"the sample is in {sample.space}, the upgrade leads to {space_of(to)}")
    return sample


def _with_mixing(record: Record, found: Mixing) -> Record:
    return dataclasses.replace(
        record,
        scores=None if found.scores is None else score_map_json(found.scores),
        mixing=found.evidence(),
    )


def mixing_for(
    old: Embeddings,
    new: Embeddings,
    *,
    mode: str,
    bridge: Bridge | None,
    calibrate: bool | None,
    priorities: Float64 | None,
) -> Mixing | None:
    """How the scores of the two parts are brought together; None: as they are, untried.

    calibrate: None tries it out where there are labels, or where plain scores are no choice.
    """
    comparable = mode != "map-query" or old.space.metric == new.space.metric
    enough = len(old) >= FEWEST and new.labels is not None
    if calibrate is False or (calibrate is None and comparable and not enough):
        return None
    return choose_scores(
        old, new, bridge=bridge, labels=new.labels, priorities=priorities, plain=comparable
    )


def check_start(
    gallery: Gallery, state: State, new: Space, *, mode: str, bridge: str | Path | None
) -> Space:
    """The space that is left; refuses what cannot be started."""
    if mode not in MODES:
        raise ConfigError(f"mode {mode!r}; wanted one of {', '.join(MODES)}")
    if (record := Record.of(state)) is not None:
        raise _already_open(gallery, record)
    if len(state.live) > 1:
        raise GalleryError(
            f"{gallery.location} still holds mapped vectors of an earlier upgrade; embed the rest "
            "with midspan upgrade run first"
        )
    old = state.spaces[state.live[0]]
    if new.fingerprint == old.fingerprint:
        raise SpaceMismatch(f"{gallery.location} is in {old} already; there is nothing to upgrade")
    if mode == "direct":
        if bridge is not None:
            raise ConfigError("mode direct compares vectors as they are and takes no bridge")
        if not new.comparable_with(old):
            raise SpaceMismatch(
                f"{new} is not on record as compatible with {old}, so its queries cannot be "
                "compared with the stored vectors. Ways out: train the new encoder compatibly "
                "(method = 'bct'), or fit a bridge and start with --mode map-query or map-gallery"
            )
        return old
    if bridge is None:
        load_for(None, mode=mode, old=old, new=new)
    else:
        check_bridge(load_bridge(bridge), mode=mode, old=old, new=new)
    return old


def _check_scores(
    old: Space, new: Space, *, mode: str, calibrate: bool | None, sample: Embeddings | None
) -> None:
    if calibrate and sample is None:
        raise ConfigError(
            "calibrated scores are learnt from items that have both vectors: give a sample of new "
            "vectors (--to NEW.npz)"
        )
    learnt = calibrate is not False and sample is not None
    if mode == "map-query" and old.metric != new.metric and not learnt:
        raise SpaceMismatch(
            f"scores in {old} and {new} are of different kinds and cannot be merged as they are; "
            "give a sample of new vectors (--to NEW.npz) to calibrate them, or map the gallery "
            "(--mode map-gallery)"
        )


def _already_open(gallery: Gallery, record: Record) -> GalleryError:
    return GalleryError(
        f"{gallery.location}: an upgrade ({record.mode}, {record.phase}) to {record.new[:17]} is "
        "open; finish it or roll it back before the next one"
    )


def _open(
    gallery: Gallery, record: Record, *, old: Space, new: Space, bridge: str | Path | None
) -> None:
    """One transaction: the new space, what is live, what is to be made."""
    spaces = {new.fingerprint: new}
    live: tuple[str, ...] = (new.fingerprint, old.fingerprint)
    target = new.fingerprint
    if record.mode == "map-gallery":
        assert record.digest is not None
        mapped = mapped_space(record.digest, old=old, new=new)
        spaces[mapped.fingerprint] = mapped
        record = dataclasses.replace(record, mapped=mapped.fingerprint)
        live, target = (old.fingerprint,), mapped.fingerprint

    def step(state: State) -> State:
        check_start(gallery, state, new, mode=record.mode, bridge=bridge)
        return dataclasses.replace(
            state,
            spaces={**state.spaces, **spaces},
            live=live,
            target=target,
            upgrade=record.to_json(),
        )

    details = {"mode": record.mode, "from": old.fingerprint, "to": new.fingerprint}
    change(gallery, step, what="upgrade start", details=details)
