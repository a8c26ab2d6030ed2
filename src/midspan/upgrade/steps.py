"""The steps between the phases of an upgrade. Each is one transaction with a line in the trail."""

from __future__ import annotations

import dataclasses
from typing import Any

from midspan.errors import GalleryError
from midspan.gallery import Counts, Entry, Gallery, State
from midspan.upgrade.gate import GateResult
from midspan.upgrade.record import Record, change, open_record

DROP = 20_000  # vectors removed in one transaction


@dataclasses.dataclass(frozen=True, slots=True)
class RolledBack:
    """`without`: items that came without an old vector. They wait on the work list for one."""

    space: str
    without: int
    dropped: int


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """`left`: items without a true new vector; they stay on the work list."""

    space: str
    dropped: int
    left: int


def retry(gallery: Gallery) -> int:
    """All that was given up is tried again, from the first try on; the trail says who asked."""
    count = gallery.store.retry()
    entry = Entry(who=gallery.who, what="upgrade retry", details={"items": count})
    gallery.store.record(entry)
    return count


def pause(gallery: Gallery, *, reason: str | None = None) -> None:
    """The backfill stops within a batch, in every process; searches go on as they are."""

    def step(state: State) -> State:
        record = _in_phase(gallery, state, "running", to="pause")
        return _with(state, dataclasses.replace(record, phase="paused", reason=reason))

    if open_record(gallery).phase != "paused":
        change(gallery, step, what="upgrade pause", details={"reason": reason})


def resume(gallery: Gallery) -> None:
    """The next `run` goes on. A gate that failed is forgotten: whoever resumes has judged."""

    def step(state: State) -> State:
        record = _in_phase(gallery, state, "paused", to="resume")
        return _with(state, dataclasses.replace(record, phase="running", reason=None, gate=None))

    if open_record(gallery).phase != "running":
        change(gallery, step, what="upgrade resume")


def judged_by(gallery: Gallery, result: GateResult) -> None:
    """Keep the gate's verdict with the upgrade; a FAIL pauses it."""

    def step(state: State) -> State:
        record = Record.of(state)
        if record is None:
            return state
        record = dataclasses.replace(record, gate=result.verdict)
        if result.verdict == "FAIL" and record.phase == "running":
            record = dataclasses.replace(record, phase="paused", reason=_words(result))
        return _with(state, record)

    details = {"verdict": result.verdict, "checks": _words(result)}
    if Record.of(gallery.state) is not None:
        change(gallery, step, what="upgrade gate", details=details)


def rollback(gallery: Gallery, *, drop: bool = False) -> RolledBack:
    """The old vectors answer again from the next query on: one row changes, nothing is embedded.

    In the same transaction the work list becomes that of the old space: it is empty, or holds what
    came without an old vector. A crash right after it leaves nothing to repair. The new vectors
    stay, so that starting again finds them; `drop` removes them.
    """

    def step(state: State) -> State:
        record = _record(gallery, state)
        if record.phase == "finishing":
            raise GalleryError(
                f"{gallery.location}: this upgrade is being finished and its old vectors are "
                "being dropped; there is no way back: midspan upgrade finish goes on"
            )
        return dataclasses.replace(state, live=(record.old,), target=record.old, upgrade=None)

    record = open_record(gallery)
    change(gallery, step, what="upgrade rollback", details={"from": record.new, "to": record.old})
    without = gallery.store.count().without
    tidy(gallery)
    return RolledBack(record.old, without, drop_unused(gallery) if drop else 0)


def finish(gallery: Gallery, *, force: bool = False) -> Finished:
    """Drop the old vectors, for good. Stopped in between, it goes on when repeated.

    Only when every item has its true new vector and the gate has not failed; with `force` in any
    case. Items that are left then keep their mapped vector, or have none until they are embedded.
    """
    record = open_record(gallery)
    if record.phase != "finishing":
        _leave_old(gallery, record, force=force)
    dropped = drop_unused(gallery)

    def close(state: State) -> State:
        return dataclasses.replace(state, upgrade=None)

    change(gallery, close, what="upgrade finished", details={"dropped": dropped})
    counts = gallery.store.count()
    return Finished(record.new, dropped, counts.pending + counts.failed)


def _leave_old(gallery: Gallery, record: Record, *, force: bool) -> None:
    """The old vectors answer no more. Nothing is dropped yet."""

    def step(state: State) -> State:
        now = _record(gallery, state)
        if now.phase == "mapping":
            raise GalleryError(
                f"{gallery.location} is not mapped to the end yet; repeat midspan upgrade start, "
                "or roll back"
            )
        counts = gallery.store.count()
        if not force:
            _check_finished(gallery, now, counts)
        left = counts.pending + counts.failed
        return dataclasses.replace(
            state,
            live=(now.new, now.mapped) if left and now.mapped else (now.new,),
            target=now.new if left else None,
            upgrade=dataclasses.replace(now, phase="finishing").to_json(),
        )

    before = gallery.state
    change(gallery, step, what="upgrade finish", details={"to": record.new, "force": force})
    if force or not gallery.store.count().without:
        return
    # An item with an old vector only was added between the count and the change. From here on
    # none can be: so this look is the last word.

    def back(state: State) -> State:
        return dataclasses.replace(
            state, live=before.live, target=before.target, upgrade=record.to_json()
        )

    change(gallery, back, what="upgrade finish put off")
    _check_finished(gallery, record, gallery.store.count())


def drop_unused(gallery: Gallery) -> int:
    """Remove the vectors of spaces that are neither live nor wanted, and forget the spaces."""
    dropped = 0
    for fingerprint in gallery.state.spaces:
        if fingerprint in gallery.state.writable():
            continue
        while count := gallery.store.drop(fingerprint, limit=DROP):
            dropped += count

    def forget(state: State) -> State:
        kept = {name: space for name, space in state.spaces.items() if name in state.writable()}
        return dataclasses.replace(state, spaces=kept)

    if set(gallery.state.spaces) != set(gallery.state.writable()):
        change(gallery, forget, what="upgrade drop", details={"vectors": dropped})
    return dropped


def tidy(gallery: Gallery) -> None:
    """After a rollback's or a forced finish's last items are embedded there is no work left."""

    def step(state: State) -> State:
        counts = gallery.store.count()
        over = state.upgrade is None and not counts.pending + counts.failed
        return dataclasses.replace(state, target=None) if over else state

    state = gallery.state
    if state.upgrade is None and state.target is not None:
        counts = gallery.store.count()
        if not counts.pending + counts.failed:
            change(gallery, step, what="upgrade work done")


def _check_finished(gallery: Gallery, record: Record, counts: Counts) -> None:
    if counts.pending or counts.failed:
        raise GalleryError(
            f"{gallery.location}: {counts.pending:,} of {counts.items:,} items have no new vector "
            f"yet and {counts.failed:,} were given up; go on with midspan upgrade run, or say "
            "--force: then those items keep nothing but what is mapped"
        )
    if record.gate == "FAIL":
        raise GalleryError(
            f"{gallery.location}: the gate failed ({record.reason or 'see the audit trail'}); "
            "roll back, resume to judge it otherwise, or say --force"
        )


def _record(gallery: Gallery, state: State) -> Record:
    record = Record.of(state)
    if record is None:
        raise GalleryError(f"{gallery.location}: the upgrade has ended in the meantime")
    return record


def _in_phase(gallery: Gallery, state: State, phase: str, *, to: str) -> Record:
    record = _record(gallery, state)
    if record.phase != phase:
        raise GalleryError(
            f"{gallery.location}: the upgrade is {record.phase}; only one that is {phase} can {to}"
        )
    return record


def _with(state: State, record: Record) -> State:
    return dataclasses.replace(state, upgrade=record.to_json())


def _words(result: GateResult) -> str:
    checks: list[Any] = [check for check in result.checks if check.verdict == "FAIL"]
    return "gate: " + "; ".join(
        f"{check.name} {check.value:.4f}, limit {check.limit:g}"
        for check in checks or result.checks
    )
