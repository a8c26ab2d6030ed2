"""The end of an upgrade: finish, forget, or roll back."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from midspan.errors import GalleryError, StateChanged
from midspan.gallery import AuditEvent, Counts, Gallery, State
from midspan.gallery.records import Record
from midspan.gallery.routing import sample_kind
from midspan.upgrade.own_queries import ask_before_finish, is_current
from midspan.upgrade.steps import (
    change,
    check_override,
    open_record,
    overridden,
    record_of,
    why_failed,
    with_record,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """`left`: items that answer with a mapped vector still; they stay on the work list."""

    space: str
    kept: int  # old vectors, until `forget`
    keep_until: float | None  # seconds since 1970; None: until somebody asks
    left: int
    gate: str | None  # the verdict that let it pass; else `override` says why
    traffic: float  # share of the queries that the new way answered until now


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

    Requires a vector for every item, the index of the new vectors, and a gate that passed on the
    gallery as it is now: where the last verdict is older than the last vectors, or was never asked
    for, the gate is asked here, over the gallery's own items. force: finish with items that answer
    with a mapped vector, or without the index; never with items that would be left without a
    vector. override: the reason to finish without a PASS. keep_old: seconds after which the old
    vectors may be dropped.
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
        _check_complete(gallery, now, counts, force=force)
        if reason is None:
            _check_passed(gallery, now, counts)
        left = counts.pending + counts.failed
        after = dataclasses.replace(
            now,
            phase="finished",
            traffic=1.0,
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

    record = open_record(gallery)
    if record.phase not in ("running", "paused"):
        raise _not_finishable(gallery, record)
    _check_complete(gallery, record, gallery.count(), force=force)
    if reason is None:
        ask_before_finish(gallery)
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
        _check_complete(gallery, record, gallery.count(), force=force)
        raise StateChanged(f"{gallery.location}: items came concurrently; finish again")
    kept = counts.stored.get(record.old, 0)
    return Finished(
        space=record.new,
        kept=kept,
        keep_until=until,
        left=counts.pending + counts.failed,
        gate=record.gate,
        traffic=record.traffic,
    )


def forget(gallery: Gallery) -> Forgotten:
    """Drop the old vectors of a finished upgrade and return their disk. There is no way back.

    Stopped in between, it continues when repeated.
    """

    def begin(state: State) -> State:
        record = record_of(gallery, state)
        if record.phase == "forgetting":
            return state
        if record.phase != "finished":
            raise GalleryError(
                f"{gallery.location}: the upgrade is {record.phase}; only a finished upgrade can "
                "be forgotten; run midspan upgrade finish first"
            )
        return with_record(state, dataclasses.replace(record, phase="forgetting"))

    record = open_record(gallery)
    if record.phase != "forgetting":
        change(gallery, begin, what="upgrade forget", details={"space": record.old})
    dropped = drop_unused(gallery)
    _drop_blobs(gallery, record)

    def close(state: State) -> State:
        return dataclasses.replace(state, upgrade=None)

    change(gallery, close, what="upgrade forgotten", details={"dropped": dropped})
    gallery.optimise()
    return Forgotten(record.old, dropped)


def _drop_blobs(gallery: Gallery, record: Record) -> None:
    """Samples hold old vectors too, and nothing needs the bridge between the two any more."""
    for digest in gallery.blobs.of_kind(sample_kind(record.old)):
        gallery.blobs.delete(digest)
    if record.digest is not None:
        gallery.blobs.delete(record.digest)


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
    details: dict[str, Any] = {"from": record.new, "to": record.old, "gate": record.gate}
    if record.gate == "FAIL":  # which the next start with the same vectors is to know
        details["evidence"] = record.evidence
    change(gallery, step, what="upgrade rollback", details={**details, "drop": drop})
    without = gallery.count().without
    tidy(gallery)
    dropped = 0
    if drop:
        dropped = drop_unused(gallery)
        gallery.optimise()
    return RolledBack(record.old, without, dropped)


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


def _check_complete(gallery: Gallery, record: Record, counts: Counts, *, force: bool) -> None:
    """A vector for every item, and the index of the new ones."""
    left = counts.pending + counts.failed
    delete = "delete those that cannot be embedded with midspan upgrade failures `delete`"
    if left and not force:
        waiting = f"{counts.pending:,} of {counts.items:,} items have no new vector yet"
        failed = f"{counts.failed:,} of {counts.items:,} items failed"
        shown = [
            words for words, count in ((waiting, counts.pending), (failed, counts.failed)) if count
        ]
        ways = ["continue with midspan upgrade run"] * bool(counts.pending)
        ways += [f"try them again with midspan upgrade failures `retry`, or {delete}"] * bool(
            counts.failed
        )
        raise GalleryError(
            f"{gallery.location}: {' and '.join(shown)}; {'; '.join(ways)}"
            + ("; with `force` they keep their mapped vectors" if record.mapped else "")
        )
    without = left - (counts.live.get(record.mapped, 0) if record.mapped else 0)
    if without > 0:
        raise GalleryError(
            f"{gallery.location}: {without:,} of {counts.items:,} items would be left without a "
            "vector and could not be found any more; `force` does not change that. Continue with "
            f"midspan upgrade run, or {delete}"
        )
    if not force and record.new in gallery.indexes_due():
        raise GalleryError(
            f"{gallery.location}: the index of the new vectors is not built yet, and the old one "
            "would answer no more; wait for it, or build it now with midspan gallery optimise"
        )


def _check_passed(gallery: Gallery, record: Record, counts: Counts) -> None:
    if not counts.items or (record.gate == "PASS" and is_current(record, counts)):
        return
    if not is_current(record, counts):  # vectors came in the moment since it was asked
        raise StateChanged(f"{gallery.location}: items came concurrently; finish again")
    why = f" ({why_failed(record)})" if record.gate == "FAIL" and record.reason else ""
    raise GalleryError(
        f"{gallery.location}: the last verdict of the gate is {record.gate}; expected PASS{why}. "
        "Ask it again with more queries (midspan upgrade gate), roll back (midspan upgrade "
        'rollback), or finish with `override` "reason"'
    )
