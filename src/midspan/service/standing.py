"""How the gallery and its upgrade stand, as the routes, the events and the metrics tell it."""

from __future__ import annotations

import time
from typing import Any

from midspan.gallery import Gallery, State
from midspan.gallery.stores import scheme_of
from midspan.service.core import Core
from midspan.service.encoding import query_spaces
from midspan.service.jobs import Job
from midspan.upgrade import ORDERS, Record
from midspan.upgrade.status import status

GATES = 500  # lines of the trail that are looked through for verdicts
USUAL = "uncertainty"  # as in UpgradeSettings
KEYS_FROM = 200  # items whose payload keys are offered as filters
KEYS_FOR = 30.0  # seconds that they are remembered


class Standing:
    """Blocking: for threads."""

    def __init__(self, core: Core, job: Job) -> None:
        self._core, self._job = core, job
        self._keys: tuple[float, list[str]] = (-KEYS_FOR, [])

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """For the event stream."""
        return {"gallery": self.gallery(), "upgrade": self.upgrade()}

    def gallery(self) -> dict[str, Any]:
        core, gallery = self._core, self._core.gallery
        state, counts = gallery.state, gallery.store.count()
        image_search = any(space in core.encoders for space in query_spaces(state))
        return {
            "location_kind": scheme_of(core.settings.gallery),
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
                    "encoder": fingerprint in core.encoders,
                }
                for fingerprint, space in state.spaces.items()
            },
            "upgrade": self.upgrade()
            if state.upgrade is not None or state.target is not None
            else None,
            "payload_keys": self._payload_keys(gallery),
            "image_search": image_search,
            "uploads": core.places.uploads is not None and image_search,
            "can_upgrade": state.upgrade is None and core.destination() is not None,
            "orders": [USUAL, *(name for name in ORDERS if name != USUAL)],
        }

    def upgrade(self) -> dict[str, Any]:
        gallery, job = self._core.gallery, self._job
        found = status(gallery).to_dict()
        del found["location"], found["mixing"]
        if (rate := job.rate) is not None:
            found["rate"] = rate
            found["seconds_left"] = found["old"] / rate if rate else None
        if not found["old"] or found["phase"] == "paused":
            found["rate"] = found["seconds_left"] = None
        found["gates"] = [
            {
                "at": entry.when,
                "verdict": str(entry.details.get("verdict")),
                "text": str(entry.details.get("checks", "")),
            }
            for entry in gallery.trail(limit=GATES)
            if entry.what == "upgrade gate"
        ][:20]
        found["job"] = {
            "wanted": found["phase"] != "none" and job.wish() is not None,
            "running": job.doing is not None,
            "doing": job.doing,
            "error": job.error,
        }
        return found

    def tell_metrics(self) -> None:
        core, found = self._core, self.upgrade()
        core.metrics.set_gallery(
            by_space=found["by_space"],
            pending=found["old"],
            failed=found["failed"],
            rate=found["rate"],
            gate=found["gate"],
            phase=found["phase"],
        )
        for lane in core.lanes:
            core.metrics.queue.labels(lane.name).set(lane.depth)
        for batcher in (core.encode, core.search):
            core.metrics.queue.labels(batcher.name).set(batcher.depth)
            core.metrics.batches.labels(batcher.name).set(batcher.batches)
            core.metrics.pieces.labels(batcher.name).set(batcher.pieces)
        core.metrics.decoders.set(core.decoder.replaced)

    def _payload_keys(self, gallery: Gallery) -> list[str]:
        at, keys = self._keys
        if time.monotonic() - at >= KEYS_FOR:
            items = gallery.store.scan(filter=None, missing=None, after="", limit=KEYS_FROM)
            keys = sorted({key for item in items for key in item.payload})[:100]
            self._keys = (time.monotonic(), keys)
        return keys


def _role(fingerprint: str, state: State) -> str:
    record = Record.of(state)
    if record is not None and fingerprint in (record.mapped, record.old):
        return "mapped" if fingerprint == record.mapped else "old"
    if fingerprint == state.target:
        return "target"
    return "live" if fingerprint in state.live else "left"
