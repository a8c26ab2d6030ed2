"""`client.upgrade`: the upgrade of the service's gallery, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from midspan.client.reading import read
from midspan.client.values import (
    Curve,
    Failure,
    FailuresPage,
    Flips,
    GateResult,
    UpgradePlan,
    UpgradeStatus,
)
from midspan.client.wire import Call, Wire, as_json

Mode = Literal["direct", "map-query", "map-gallery"]


class UpgradeVerbs:
    """Where to is fixed by the service: its new encoder or new vectors.

    A step that takes longer than a few seconds goes on in the service; the status says so.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def status(self) -> UpgradeStatus:
        return read(UpgradeStatus, self._get("/v1/upgrade"))

    def plan(
        self, *, mode: Mode = "direct", order: str = "uncertainty", calibrate: bool | None = None
    ) -> UpgradePlan:
        """What would happen, and what the gate says. Writes nothing."""
        body = {"mode": mode, "order": order, "calibrate": calibrate}
        return read(UpgradePlan, self._post("plan", body, slow=True))

    def start(
        self,
        *,
        mode: Mode = "direct",
        order: str = "uncertainty",
        calibrate: bool | None = None,
        run: bool = False,
    ) -> UpgradeStatus:
        """From the next query on the new encoder answers; `run` begins the backfill as well."""
        body = {"mode": mode, "order": order, "calibrate": calibrate, "run": run}
        return self._step("start", body)

    def run(self, *, max_rate: float | None = None) -> UpgradeStatus:
        """The backfill, in the service; `max_rate` in items a second."""
        return self._step("run", {"max_rate": max_rate})

    def pause(self, *, reason: str | None = None) -> UpgradeStatus:
        return self._step("pause", {"reason": reason})

    def resume(self) -> UpgradeStatus:
        return self._step("resume", {})

    def retry(self) -> UpgradeStatus:
        """Put items that were given up back on the work list."""
        return self._step("retry", {})

    def gate(self) -> GateResult:
        """Old service and today's on the same queries. A FAIL pauses the upgrade."""
        return read(GateResult, self._post("gate", {}, slow=True))

    def finish(self, *, force: bool = False) -> UpgradeStatus:
        """Drop the old vectors, for good."""
        return self._step("finish", {"force": force})

    def rollback(self, *, drop: bool = False) -> UpgradeStatus:
        """The old vectors answer again; `drop` deletes the new ones."""
        return self._step("rollback", {"drop": drop})

    def curve(self) -> Curve:
        """Quality along the backfill."""
        return read(Curve, self._get("/v1/upgrade/curve"))

    def flips(self, *, limit: int = 20) -> Flips:
        """The worst negative flips of the last measurement."""
        return read(Flips, self._get("/v1/upgrade/flips", {"limit": str(limit)}))

    def failures(self, *, page: int = 100) -> Iterator[Failure]:
        """Items that were given up, with reasons; asked for page by page."""
        after: str | None = ""
        while after is not None:
            params = {"after": after, "limit": str(page)}
            found = read(FailuresPage, self._get("/v1/upgrade/failures", params))
            yield from found.failures
            after = found.next

    def _step(self, name: str, body: Mapping[str, Any]) -> UpgradeStatus:
        return read(UpgradeStatus, self._post(name, body))

    def _post(self, name: str, body: Mapping[str, Any], *, slow: bool = False) -> Any:
        path = f"/v1/upgrade/{name}"
        call = Call(method="POST", path=path, body=as_json(body), write=True, slow=slow)
        return self._wire.json(call)

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return self._wire.json(Call(method="GET", path=path, params=params))
