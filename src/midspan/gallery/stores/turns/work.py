"""The work list: what lacks a vector in the target, who holds it, what failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from midspan.gallery import rules
from midspan.gallery.records import Failed, Failure, Task
from midspan.gallery.stores.turns.conditions import Condition, Is, Span
from midspan.gallery.stores.turns.keys import after_failed, hashed
from midspan.gallery.stores.turns.records import GIVEN_UP, Job
from midspan.gallery.stores.turns.turn import Turn
from midspan.gallery.stores.turns.view import View


def _rewrite(turn: Turn, pairs: Iterable[tuple[Job, Job]]) -> None:
    before, after = zip(*pairs, strict=True)
    turn.remove(key for job in before for key in job.keys)
    turn.put(job.record(turn.stamp(), epoch=turn.known.epoch) for job in after)


def _all(view: View, where: Sequence[Condition]) -> list[Job]:
    if view.known.state.target is None:
        return []
    return [Job.of(record) for page in view.pages(where) for record in page]


def prioritise(turn: Turn, ids: Sequence[str], priorities: Sequence[float]) -> None:
    wanted = dict(rules.check_priorities(ids, priorities))
    if turn.known.state.target is None:
        return
    items = turn.view.by_id(wanted)
    jobs = turn.view.jobs(item.row for item in items.values())
    if jobs:
        _rewrite(
            turn,
            [(job, replace(job, priority=wanted[job.id])) for job in jobs.values()],
        )


def claim(turn: Turn, worker: str, limit: int, seconds: float) -> list[Task]:
    if turn.known.state.target is None:
        return []
    now = turn.engine.clock()
    target = turn.known.numbers[turn.known.state.target]
    pages = turn.view.pages([*turn.view.open(), Span("due", high=now)], size=limit)
    found = (Job.of(record) for page in pages for record in page)
    while jobs := list(islice(found, limit)):
        items = turn.view.by_row(job.row for job in jobs)
        taken = {  # in the order of their keys: of two for one row, the last is newer
            job.row: job
            for job in jobs
            if job.row in items and target not in items[job.row].vectors
        }
        # Brought back by the server after it was done: see `newest_last`.
        turn.remove(key for job in jobs if taken.get(job.row) is not job for key in job.keys)
        if taken:
            held = ((job, replace(job, due=now + seconds, worker=worker)) for job in taken.values())
            _rewrite(turn, held)
            return [Task(turn.known.item(items[row]), job.attempts) for row, job in taken.items()]
    return []


def release(turn: Turn, worker: str) -> int:
    mine = [*turn.view.open(), Is("owner", hashed(worker))]
    held = [job for job in _all(turn.view, mine) if job.worker == worker]
    if held:
        _rewrite(turn, [(job, replace(job, due=0.0, worker=None)) for job in held])
    return len(held)


def fail(turn: Turn, reports: Sequence[Failed], retry_after: float | None) -> None:
    items = turn.view.by_id(report.id for report in reports)
    jobs = turn.view.jobs(item.row for item in items.values())
    now = turn.engine.clock()
    after: dict[int, Job] = {}
    for report in reports:
        item = items.get(report.id)
        if item is None or item.revision != report.revision or item.row not in jobs:
            continue
        job = after.get(item.row, jobs[item.row])
        after[item.row] = replace(
            job,
            due=GIVEN_UP if retry_after is None else now + retry_after,
            worker=None,
            reason=rules.reason(report),
            when=now,
            attempts=job.attempts + 1,
        )
    if after:
        _rewrite(turn, [(jobs[row], job) for row, job in after.items()])


def failures(view: View, after: str, limit: int) -> list[Failure]:
    if view.known.state.target is None:
        return []
    behind = after_failed(view.known.epoch, after) if after else ""
    pages = view.pages(view.given_up(), after=behind, size=limit)
    jobs = [Job.of(record) for record in islice((r for page in pages for r in page), limit)]
    items = view.by_row(job.row for job in jobs)
    return [Failure(job.id, items[job.row].uri, job.reason, job.attempts, job.when) for job in jobs]


def retry(turn: Turn) -> int:
    failed = _all(turn.view, turn.view.given_up())
    if failed:
        _rewrite(turn, [(job, replace(job, due=0.0, attempts=0)) for job in failed])
    return len(failed)
