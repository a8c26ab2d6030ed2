"""Pause, resume, traffic, rollback: each is one transaction with a line in the audit log.

start ─▶ mapping ─▶ running ◀─▶ paused
                       └─▶ finished ─▶ forgetting ─▶ (closed)
rollback leads back from all of them but forgetting.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from midspan.errors import ConfigError, GalleryError, StateChanged
from midspan.gallery import AuditEvent, Gallery, State
from midspan.gallery.records import Record


def retry(gallery: Gallery) -> int:
    """All that failed is tried again, from the first try on; the audit log says who asked."""
    count = gallery.work.retry()
    gallery.record(AuditEvent(who=gallery.who, what="upgrade retry", details={"items": count}))
    return count


def pause(gallery: Gallery, *, reason: str | None = None) -> None:
    """The backfill stops within a batch, in every process; searches continue as they are."""

    def step(state: State) -> State:
        record = in_phase(gallery, state, "running", to="paused")
        return with_record(state, dataclasses.replace(record, phase="paused", reason=reason))

    if open_record(gallery).phase != "paused":
        change(gallery, step, what="upgrade pause", details={"reason": reason})


def resume(gallery: Gallery, *, override: str | None = None) -> None:
    """The next `run` continues. After a gate that failed only with a reason, which is recorded."""
    reason = check_override(override)

    def step(state: State) -> State:
        record = in_phase(gallery, state, "paused", to="resumed")
        if record.gate == "FAIL" and reason is None:
            why = why_failed(record) or "see the audit log"
            raise GalleryError(
                f"{gallery.location}: the gate failed ({why}); "
                'roll back (midspan upgrade rollback), or resume with `override` "reason"'
            )
        return with_record(
            state,
            dataclasses.replace(
                record, phase="running", reason=None, override=overridden(gallery, record, reason)
            ),
        )

    if open_record(gallery).phase != "running":
        change(gallery, step, what="upgrade resume", details={"override": reason})


def check_traffic(share: float) -> float:
    if not 0 <= share <= 1:
        raise ConfigError(f"traffic is {share}; expected a share between 0 (shadow) and 1 (all)")
    return float(share)


def set_traffic(gallery: Gallery, share: float) -> None:
    """From the next query on; the audit log says who changed it. Nothing is embedded or moved."""
    chosen, before = check_traffic(share), open_record(gallery).traffic

    def step(state: State) -> State:
        record = record_of(gallery, state)
        if record.phase not in ("mapping", "running", "paused"):
            raise GalleryError(
                f"{gallery.location}: the upgrade is {record.phase}, and the new vectors answer "
                "all queries; a share of traffic can be set before midspan upgrade finish"
            )
        return with_record(state, dataclasses.replace(record, traffic=chosen))

    change(gallery, step, what="upgrade traffic", details={"from": before, "to": chosen})


# ---- changing the record in the gallery's state, one transaction each ----------------------------

CHANGES = 20  # tries to change the state before somebody else does


def open_record(gallery: Gallery) -> Record:
    record = Record.of(gallery.state)
    if record is None:
        raise GalleryError(
            f"{gallery.location}: no upgrade is open; the gallery is in {gallery.space}"
        )
    return record


def change(
    gallery: Gallery,
    step: Callable[[State], State],
    *,
    what: str,
    details: Mapping[str, Any] | None = None,
) -> State:
    """One transaction with its line in the audit log; `step` looks again if somebody was faster."""
    event = AuditEvent(who=gallery.who, what=what, details=details or {})
    for _ in range(CHANGES):
        try:
            return gallery.change(step(gallery.state), event=event)
        except StateChanged:
            continue
    raise StateChanged(f"{gallery.location}: the state changed {CHANGES} times; try again")


def check_override(reason: str | None) -> str | None:
    """An override without a reason is none."""
    if reason is None:
        return None
    if not reason.strip():
        raise GalleryError("an override needs a reason, for those who read the audit log")
    return reason.strip()


def record_of(gallery: Gallery, state: State) -> Record:
    record = Record.of(state)
    if record is None:
        raise GalleryError(f"{gallery.location}: the upgrade has ended in the meantime")
    return record


def in_phase(gallery: Gallery, state: State, phase: str, *, to: str) -> Record:
    record = record_of(gallery, state)
    if record.phase != phase:
        raise GalleryError(
            f"{gallery.location}: the upgrade is {record.phase}; only one that is {phase} can be "
            f"{to}"
        )
    return record


def with_record(state: State, record: Record) -> State:
    return dataclasses.replace(state, upgrade=record.to_json())


GATE = "gate: "  # what the reason of a pause by the gate begins with


def why_failed(record: Record) -> str:
    """What the gate found, without the word that says that it was the gate."""
    return (record.reason or "").removeprefix(GATE)


def overridden(gallery: Gallery, record: Record, reason: str | None) -> Mapping[str, Any] | None:
    if reason is None:
        return record.override
    seen = record.evidence or {}
    return {
        "who": gallery.who,
        "reason": reason,
        "gate": record.gate,
        "kept": kept_quality(seen.get("before"), seen.get("after")),
        "at": time.time(),
    }


def kept_quality(before: float | None, after: float | None) -> float | None:
    """The new way's quality as a share of the old way's."""
    return after / before if before and after is not None else None
