"""How the gallery and its upgrade stand, as the routes, the events and the metrics tell it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from midspan.gallery import Gallery, State
from midspan.gallery.engines.base import IndexStatus
from midspan.service.encoding import query_spaces
from midspan.service.search_service import SearchService
from midspan.service.upgrade_worker import UpgradeWorker
from midspan.upgrade import ORDERS, Record
from midspan.upgrade.status import status

GATES = 20  # verdicts that are shown
WORK = "upgrade run"  # a worker's report of what it has written
LOST, LOSSES = "upgrade worker lost", 1000  # lines of the audit log that are counted
USUAL = "uncertainty"  # as in UpgradeSettings
KEYS_FROM = 200  # items whose payload keys are offered as filters
KEYS_FOR = 30.0  # seconds that they are remembered


class StatusReporter:
    """Blocking: for threads."""

    def __init__(self, service: SearchService, worker: UpgradeWorker) -> None:
        self._service, self._worker = service, worker
        self._keys: tuple[float, list[str]] = (-KEYS_FOR, [])
        self._unindexed_since: dict[str, float] = {}  # by space

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """For the event stream."""
        return {"gallery": self.gallery(), "upgrade": self.upgrade()}

    def gallery(self) -> dict[str, Any]:
        service, gallery = self._service, self._service.gallery
        state, counts = gallery.state, gallery.count()
        destination = service.destination()
        encoder = next(filter(None, map(service.encoders.get, query_spaces(state))), None)
        can_upgrade = state.upgrade is None and destination is not None
        modes: list[str] = []
        if can_upgrade and destination is not None:
            modes = service.modes(state.spaces[state.live[0]], destination)
        return {
            "name": service.name,
            "location_kind": gallery.engine,
            "items": counts.items,
            "failed": counts.failed,
            "without": counts.without,
            "by_space": dict(counts.live),
            "spaces": {
                fingerprint: {
                    "name": space.name,
                    "dim": space.dim,
                    "metric": space.metric,
                    "role": _role(fingerprint, state),
                    "encoder": fingerprint in service.encoders,
                }
                for fingerprint, space in state.spaces.items()
            },
            "upgrade": self.upgrade()
            if state.upgrade is not None or state.target is not None
            else None,
            "payload_keys": self._payload_keys(gallery),
            "image_search": encoder is not None,
            "text_search": encoder is not None and encoder.takes_text,
            "uploads": service.image_roots.uploads is not None and encoder is not None,
            "can_upgrade": can_upgrade,
            "destination": None if destination is None else destination.name,
            "modes": modes,
            "orders": [USUAL, *(name for name in ORDERS if name != USUAL)],
        }

    def glance(self) -> dict[str, Any]:
        """For the list of galleries."""
        service = self._service
        state = service.gallery.state
        record = Record.of(state)
        return {
            "items": service.gallery.count().items,
            "image_search": _can_embed(service, state),
            "phase": "none" if record is None else record.phase,
        }

    def upgrade(self) -> dict[str, Any]:
        gallery, worker = self._service.gallery, self._worker
        report = status(gallery).to_dict()
        del report["location"], report["indexes"]
        report["arms"] = {arm: asdict(one) for arm, one in self._service.arms.times().items()}
        told = self._service.arms.compared()
        report["compared"] = None if told is None else asdict(told)
        if (rate := worker.rate) is not None:
            report["rate"] = rate
            report["seconds_left"] = report["old"] / rate if rate else None
        if not report["old"] or report["phase"] == "paused":
            report["rate"] = report["seconds_left"] = None
        report["gates"] = [
            {
                "at": entry.when,
                "verdict": str(entry.details.get("verdict")),
                "text": str(entry.details.get("checks", "")),
            }
            for entry in gallery.audit_log(limit=GATES, what="upgrade gate")
        ]
        report["job"] = {
            "wanted": report["phase"] != "none" and worker.run_request() is not None,
            "running": worker.doing is not None,
            "doing": worker.doing,
            "error": worker.error,
        }
        return report

    def tell_metrics(self) -> None:
        service, report = self._service, self.upgrade()
        service.metrics.set_gallery(
            service.name,
            by_space=report["by_space"],
            pending=report["old"],
            failed=report["failed"],
            rate=report["rate"],
            gate=report["gate"],
            phase=report["phase"],
        )
        state = service.gallery.state
        indexes = service.gallery.index_status()
        names = {space: one.name for space, one in state.spaces.items() if space in indexes}
        service.metrics.set_indexes(
            service.name, {name: indexes[space] for space, name in names.items()}
        )
        ages = self.observe_indexes(indexes)
        service.metrics.set_ages(
            service.name,
            indexes={name: ages[space] for space, name in names.items()},
            lag=self._lag(report),
            lease_losses=len(service.gallery.audit_log(limit=LOSSES, what=LOST)),
        )

    def observe_indexes(self, indexes: Mapping[str, IndexStatus] | None = None) -> dict[str, float]:
        """Seconds for which the index of each space has lacked vectors, as this service has seen.

        Called regularly, so that an age does not begin when somebody asks for it.
        """
        now = time.monotonic()
        indexes = self._service.gallery.index_status() if indexes is None else indexes
        since = self._unindexed_since
        self._unindexed_since = {
            space: since.get(space, now)
            for space, index in indexes.items()
            if index.unindexed and index.kind != "flat"  # which has no index to be behind
        }
        return {space: now - self._unindexed_since.get(space, now) for space in indexes}

    def _lag(self, report: Mapping[str, Any]) -> float:
        """Since any worker last reported new vectors, or the upgrade began; 0: no item waits."""
        if not report["old"] or report["started"] is None:
            return 0.0
        last = [entry.when for entry in self._service.gallery.audit_log(limit=1, what=WORK)]
        began: float = report["started"]
        return max(0.0, time.time() - max([began, *last]))

    def _payload_keys(self, gallery: Gallery) -> list[str]:
        at, keys = self._keys
        if time.monotonic() - at >= KEYS_FOR:
            items = gallery.scan(limit=KEYS_FROM)
            keys = sorted({key for item in items for key in item.payload})[:100]
            self._keys = (time.monotonic(), keys)
        return keys


def _can_embed(service: SearchService, state: State) -> bool:
    return any(space in service.encoders for space in query_spaces(state))


def _role(fingerprint: str, state: State) -> str:
    record = Record.of(state)
    if record is not None and fingerprint in (record.mapped, record.old):
        return "mapped" if fingerprint == record.mapped else "old"
    if fingerprint == state.target:
        return "target"
    return "live" if fingerprint in state.live else "left"
