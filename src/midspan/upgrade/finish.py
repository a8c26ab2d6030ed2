"""The end of an upgrade: finish, forget, or roll back."""

from __future__ import annotations

import dataclasses
import time

from midspan.errors import GalleryError, StateChanged
from midspan.gallery import AuditEvent, Counts, Gallery, State
from midspan.gallery.records import Record
from midspan.upgrade.steps import (
    change,
    check_override,
    in_phase,
    open_record,
    overridden,
    record_of,
    with_record,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """`left`: items that answer with a mapped vector still; they stay on the work list."""

    space: str
    kept: int  # old vectors, until `forget`
    keep_until: float | None  # seconds since 1970; None: until somebody asks
    left: int


@dataclasses.dataclass(frozen=True, slots=True)
class Forgotten:
    """The space whose vectors were dropped, and how many."""

    space: str
    dropped: int


@dataclasses.dataclass(frozen=True, slots=True)
class RolledBack:
    """`without`: items that came without an old vector. They wait on the work list for one."""

    space: str
    without: int
    dropped: int


def finish(
    gallery: Gallery,
    *,
    force: bool = False,
    override: str | None = None,
    keep_old: float | None = None,
) -> Finished:
    """The new vectors alone answer. Until `forget` the old ones are kept, and a way back with them.

    Requires a vector for every item, the index of the new vectors, and a gate that passed or was
    never asked. force: finish with items that answer with a mapped vector, or without the index;
    never with items that would be left without a vector. override: the reason to finish although
    the gate did not pass. keep_old: seconds after which the old vectors may be dropped.
    """
    reason = check_override(override)
    if keep_old is not None and not keep_old >= 0:
        raise GalleryError(f"keep_old = {keep_old}; expected 0 or more seconds, or None")
    until = None if keep_old is None else time.time() + keep_old

    def step(state: State) -> State:
        now = record_of(gallery, state)
        if now.phase not in ("running", "paused"):
            raise _not_finishable(gallery, now)
        counts = gallery.count()
        _check_finished(gallery, now, counts, force=force, overridden=reason is not None)
        left = counts.pending + counts.failed
        after = dataclasses.replace(
            now,
            phase="finished",
            reason=None,
            override=overridden(gallery, now, reason),
            keep_until=until,
        )
        return dataclasses.replace(
            state,
            live=(now.new, now.mapped) if left and now.mapped else (now.new,),
            target=now.new if left or gallery.awaits_vectors(now.new) else None,
            upgrade=after.to_json(),
        )

    record, before = open_record(gallery), gallery.state
    details = {"to": record.new, "force": force, "override": reason, "keep_until": until}
    change(gallery, step, what="upgrade finish", details=details)
    counts = gallery.count()
    if counts.without:  # an item with an old vector only came between the count and the change

        def back(state: State) -> State:
            return dataclasses.replace(
                state, live=before.live, target=before.target, upgrade=record.to_json()
            )

        change(gallery, back, what="upgrade finish undone", details={"without": counts.without})
        _check_finished(gallery, record, gallery.count(), force=force, overridden=True)
        raise StateChanged(f"{gallery.location}: items came concurrently; finish again")
    kept = counts.stored.get(record.old, 0)
    return Finished(record.new, kept, until, counts.pending + counts.failed)


def forget(gallery: Gallery) -> Forgotten:
    """Drop the old vectors of a finished upgrade and return their disk. There is no way back.

    Stopped in between, it continues when repeated.
    """

    def begin(state: State) -> State:
        record = record_of(gallery, state)
        if record.phase == "forgetting":
            return state
        return with_record(
            state,
            dataclasses.replace(
                in_phase(gallery, state, "finished", to="forget"), phase="forgetting"
            ),
        )

    record = open_record(gallery)
    if record.phase != "forgetting":
        change(gallery, begin, what="upgrade forget", details={"space": record.old})
    dropped = drop_unused(gallery)

    def close(state: State) -> State:
        return dataclasses.replace(state, upgrade=None)

    change(gallery, close, what="upgrade forgotten", details={"dropped": dropped})
    gallery.optimise()
    return Forgotten(record.old, dropped)


def forget_if_due(gallery: Gallery) -> Forgotten | None:
    """If the time that the old vectors were to be kept for is over."""
    record = Record.of(gallery.state)
    if record is None or record.phase not in ("finished", "forgetting"):
        return None
    due = record.keep_until is not None and record.keep_until <= time.time()
    return forget(gallery) if due or record.phase == "forgetting" else None


def rollback(gallery: Gallery, *, drop: bool = False) -> RolledBack:
    """The old vectors answer again from the next query on: one row changes, nothing is embedded.

    In the same transaction the work list becomes that of the old space: it is empty, or holds what
    came without an old vector. A crash right after it leaves nothing to repair. The new vectors
    stay, so that starting again finds them; `drop` removes them, unless an item has no other.
    """

    def step(state: State) -> State:
        record = record_of(gallery, state)
        if record.phase == "forgetting":
            raise GalleryError(
                f"{gallery.location}: the old vectors are being dropped; there is no way back: "
                "midspan upgrade forget completes it"
            )
        counts = gallery.count()
        lost = counts.items - counts.stored.get(record.old, 0)
        if drop and lost:
            raise GalleryError(
                f"{gallery.location}: {lost:,} of {counts.items:,} items have no old vector and "
                "would be left without any; roll back without `drop`, and embed them with the old "
                "encoder"
            )
        return dataclasses.replace(state, live=(record.old,), target=record.old, upgrade=None)

    record = open_record(gallery)
    if gallery.owner is not None:
        from midspan.gallery.adoption.postgres_handover import handed_over, take_back_table

        if handed_over(gallery):
            take_back_table(gallery)
    change(gallery, step, what="upgrade rollback", details={"from": record.new, "to": record.old})
    without = gallery.count().without
    tidy(gallery)
    return RolledBack(record.old, without, drop_unused(gallery) if drop else 0)


def drop_unused(gallery: Gallery) -> int:
    """Remove the vectors of spaces that are neither live nor the target, and forget the spaces."""
    dropped = 0
    for fingerprint in gallery.state.spaces:
        if fingerprint not in gallery.state.writable():
            event = AuditEvent(gallery.who, "upgrade drop", {"space": fingerprint})
            dropped += gallery.drop_vectors(fingerprint, event=event)
    return dropped


def tidy(gallery: Gallery) -> None:
    """When the last items of a rollback or of a forced finish are embedded, no work is left."""

    def step(state: State) -> State:
        if not _over(state):
            return state
        counts = gallery.count()
        if counts.pending + counts.failed:
            return state
        return dataclasses.replace(state, target=None, live=state.live[:1])

    state = gallery.state
    if _over(state) and state.target is not None and not gallery.awaits_vectors(state.target):
        counts = gallery.count()
        if not counts.pending + counts.failed:
            change(gallery, step, what="upgrade work done")


def _over(state: State) -> bool:
    record = Record.of(state)
    return record is None or record.phase == "finished"


def _not_finishable(gallery: Gallery, record: Record) -> GalleryError:
    if record.phase == "mapping":
        return GalleryError(
            f"{gallery.location} is not mapped to the end yet; repeat midspan upgrade start, "
            "or roll back"
        )
    return GalleryError(
        f"{gallery.location}: this upgrade is finished; its old vectors are kept until "
        "midspan upgrade forget"
    )


def _check_finished(
    gallery: Gallery, record: Record, counts: Counts, *, force: bool, overridden: bool
) -> None:
    left = counts.pending + counts.failed
    if left and not force:
        raise GalleryError(
            f"{gallery.location}: {counts.pending:,} of {counts.items:,} items have no new vector "
            f"yet and {counts.failed:,} failed; continue with midspan upgrade run, or delete those "
            "that cannot be embedded with midspan upgrade failures"
            + ("; with `force` they keep their mapped vectors" if record.mapped else "")
        )
    without = left - (counts.live.get(record.mapped, 0) if record.mapped else 0)
    if without > 0:
        raise GalleryError(
            f"{gallery.location}: {without:,} of {counts.items:,} items would be left without a "
            "vector and could not be found any more; `force` does not change that. Continue with "
            "midspan upgrade run, or delete those that cannot be embedded "
            "with midspan upgrade failures"
        )
    if not force and record.new in gallery.indexes_due():
        raise GalleryError(
            f"{gallery.location}: the index of the new vectors is not built yet, and the old one "
            "would answer no more; wait for it, or build it now with midspan gallery optimise"
        )
    if record.gate not in (None, "PASS") and not overridden:
        raise GalleryError(
            f"{gallery.location}: the last verdict of the gate is {record.gate}; expected PASS. "
            "Ask it again with more queries, roll back, or finish with an override that says why"
        )
