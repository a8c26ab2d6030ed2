"""How good the service is while the backfill goes: the same queries asked before and now.

The queries are those of the set-up, or the sample of items that the start of the upgrade kept, or
else (an upgrade without one) some items that the new encoder embeds now. Each measurement is a line
in the audit log, so the curve and the flips survive a restart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from midspan.errors import EvaluationError, GalleryError
from midspan.gallery import AuditEvent, Gallery
from midspan.service import logs
from midspan.service.search_service import SearchService
from midspan.spaces import Embeddings
from midspan.upgrade import GateResult, Record, Shadow, judged_by
from midspan.upgrade.embed import embed_all
from midspan.upgrade.own_queries import GateSettings, own_queries, with_labels
from midspan.upgrade.priorities import sample_items
from midspan.upgrade.shadow import gate_of, measure
from midspan.upgrade.shadow_queries import Measured
from midspan.upgrade.steps import open_record

SAMPLE = 200  # queries from the gallery itself
SMALLEST = 2
SHOWN = 5  # results kept for a flip
KEPT = 16_000  # characters of ids, of the worst flips, that the audit log keeps of a measurement
AUDIT_LINES = 20_000  # lines of the audit log that are read for points
WHAT = "upgrade quality"


@dataclass(frozen=True, slots=True)
class Point:
    fraction: float
    metric: str
    value: float
    at: float


@dataclass(frozen=True, slots=True)
class Flipped:
    """A query that was right in the old service and is wrong now."""

    query_id: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    before_rank: int | None
    after_rank: int | None
    right: tuple[str, ...]  # of those shown


@dataclass(frozen=True, slots=True)
class Flips:
    """Of the last measurement, the worst first."""

    flips: tuple[Flipped, ...] = ()
    queries: int = 0
    labelled: bool = False


class _Curve:
    def __init__(self, *, started: float | None) -> None:
        self.started = started
        self.points: list[Point] = []
        self.baseline: Point | None = None
        self.flips = Flips()

    def add(self, entry: AuditEvent) -> None:
        line, at = entry.details, entry.when
        share, metric = line["fraction"], line["metric"]
        self.points.append(Point(share, metric, line["after"], at))
        self.points.append(Point(share, "negative_flips", line["negative_flips"], at))
        self.baseline = Point(share, metric, line["before"], at)
        self.flips = Flips(
            flips=tuple(_flipped(one) for one in line.get("flips", ())),
            queries=line.get("queries", 0),
            labelled=line.get("labelled", False),
        )


class Quality:
    """Asked by the worker as it goes and by the gate's route; safe to use from both."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._shadow: tuple[float, Shadow] | None = None  # by the start of the upgrade
        self._curve: _Curve | None = None

    def gate(self, gallery: Gallery) -> GateResult:
        """Measure, keep the point and the verdict; a FAIL pauses the upgrade."""
        result = self.judge(gallery)
        judged_by(gallery, result)
        return result

    def judge(self, gallery: Gallery) -> GateResult:
        with self._lock:
            measured = self._measure(gallery)
            return gate_of(gallery, self._queries(gallery), measured)

    def measure(self, gallery: Gallery) -> bool:
        """A point of the curve without a verdict; False if there are no queries to ask."""
        try:
            with self._lock:
                self._measure(gallery)
        except (EvaluationError, GalleryError) as error:
            logs.event("no measurement", level=30, reason=str(error))
            return False
        return True

    def _measure(self, gallery: Gallery) -> Measured:
        """The same queries of the old service and of today's; the point goes into the audit log."""
        measured = measure(gallery, self._queries(gallery))
        record, answers = open_record(gallery), measured.answers
        flips = [
            Flipped(
                query_id=measured.ids[row],
                before=tuple(hit.id for hit in measured.before[row][:SHOWN]),
                after=tuple(hit.id for hit in measured.after[row][:SHOWN]),
                before_rank=measured.rank(row, measured.before[row]),
                after_rank=measured.rank(row, measured.after[row]),
                right=_right(measured, row),
            )
            for row in measured.lost()
        ]
        counts = gallery.count()
        queries = int(np.isfinite(answers.quality_after).sum())
        details = {
            "fraction": counts.done / max(counts.items, 1),
            "metric": measured.metric,
            "before": float(np.nanmean(answers.quality_reference)),
            "after": float(np.nanmean(answers.quality_after)),
            "negative_flips": len(flips) / max(queries, 1),
            "flips": [asdict(one) for one in _worst(flips)],
            "queries": queries,
            "labelled": measured.labelled,
        }
        curve = self._known_curve(record)
        entry = AuditEvent(who=gallery.who, what=WHAT, details=details, when=time.time())
        gallery.record(entry)
        curve.add(entry)
        return measured

    def curve(self) -> tuple[list[Point], Point | None]:
        """(points of this upgrade, or of the last one; the old service's quality)."""
        curve = self._known_curve(Record.of(self._service.gallery.state))
        return list(curve.points), curve.baseline

    def last_flips(self) -> Flips:
        return self._known_curve(Record.of(self._service.gallery.state)).flips

    def _known_curve(self, record: Record | None) -> _Curve:
        """Read from the audit log once for each upgrade, then kept."""
        if self._curve is None or (record is not None and record.started != self._curve.started):
            curve = _Curve(started=None if record is None else record.started)
            lines = []
            for entry in self._service.gallery.audit_log(limit=AUDIT_LINES):  # newest first
                if entry.what == "upgrade start":
                    break
                if entry.what == WHAT:
                    lines.append(entry)
            for entry in reversed(lines):
                curve.add(entry)
            self._curve = curve
        return self._curve

    def _queries(self, gallery: Gallery) -> Shadow:
        record = open_record(gallery)
        if self._shadow is None or self._shadow[0] != record.started:
            self._shadow = (record.started, self._make_queries(gallery, record))
        return self._shadow[1]

    def _make_queries(self, gallery: Gallery, record: Record) -> Shadow:
        settings = self._service.settings
        if settings.shadow_old is not None and settings.shadow_new is not None:
            return Shadow(
                old=Embeddings.load(settings.shadow_old, space=settings.old_space),
                new=Embeddings.load(settings.shadow_new, space=settings.new_space),
                label_key=settings.label_key,
            )
        if record.sample is not None:
            with suppress(EvaluationError):  # too few of its items are left
                return own_queries(gallery, GateSettings(label_key=settings.label_key))
        embed = self._service.embed_into(record.new)
        if embed is None:
            raise EvaluationError(
                "no shadow queries: give shadow_old and shadow_new, or start the service with the "
                "new encoder or its vectors"
            )
        old = sample_items(gallery, space=record.old, count=SAMPLE)
        items = gallery.get_many(old.ids.tolist())
        space = gallery.state.spaces[record.new]
        new = embed_all(embed, items, space=space).vectors if items else old[:0]
        if len(new) < SMALLEST:
            raise EvaluationError(
                f"{len(new)} of {len(items)} sampled items could be embedded again; the gate needs "
                "queries: give shadow_old and shadow_new"
            )
        old, new = old.paired_with(new)
        old = with_labels(old, items, key=settings.label_key)
        return Shadow(old=old, new=new.take(old.ids), label_key=settings.label_key)


def _right(measured: Measured, row: int) -> tuple[str, ...]:
    """Ids of the right ones among the results that are kept."""
    shown = [*measured.before[row][:SHOWN], *measured.after[row][:SHOWN]]
    return tuple(dict.fromkeys(hit.id for hit in shown if hit.id in measured.relevant[row]))


def _worst(flips: Sequence[Flipped]) -> Iterator[Flipped]:
    """The first of them, as many as the audit log keeps."""
    size = 0
    for one in flips:
        size += sum(map(len, (one.query_id, *one.before, *one.after, *one.right)))
        if size > KEPT:
            return
        yield one


def _flipped(line: Mapping[str, Any]) -> Flipped:
    return Flipped(
        query_id=line["query_id"],
        before=tuple(line["before"]),
        after=tuple(line["after"]),
        before_rank=line["before_rank"],
        after_rank=line["after_rank"],
        right=tuple(line.get("right", ())),
    )


def points_as_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [asdict(point) for point in points]
