"""`client.upgrade`: the upgrade of the service's gallery, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from midspan.client.address import item_path
from midspan.client.jobs import JobVerbs
from midspan.client.reading import read
from midspan.client.transport import Call, Transport, as_json
from midspan.errors import FormatError
from midspan.wire import (
    Curve,
    Failure,
    FailuresPage,
    Flips,
    GateResult,
    Job,
    UpgradePlan,
    UpgradeStatus,
)

Mode = Literal["direct", "map-query", "map-gallery", "both"]


class UpgradeVerbs:
    """Where to is fixed by the service: its new encoder or new vectors.

    A step that takes long is a job of the service. It is waited for, and raises the error that it
    failed with; `begin` gives the job at once, for `client.jobs`.

    Example:
        >>> import midspan as ms
        >>> with ms.Client("http://127.0.0.1:8080") as client:  # doctest: +SKIP
        ...     _ = client.upgrade.start(mode="both", traffic=0.05, run=True)
        ...     if client.upgrade.gate().verdict == "PASS":
        ...         _ = client.upgrade.traffic(1.0)
    """

    def __init__(self, transport: Transport, jobs: JobVerbs) -> None:
        self._transport, self._jobs = transport, jobs

    def begin(self, step: str, body: Mapping[str, Any] | None = None) -> Job:
        """A step by its name (plan, start, gate, finish …) and its settings, without waiting."""
        call = Call(
            method="POST",
            path=item_path("/v1/upgrade", step),
            body=as_json(body or {}),
            write=True,
            prefer="respond-async",
        )
        answered = self._transport.json(call)
        if "job_id" not in answered:
            raise FormatError("the service answered no job; is it an older version?")
        return read(Job, answered)

    def status(self) -> UpgradeStatus:
        return read(UpgradeStatus, self._get("/v1/upgrade"))

    def plan(
        self, *, mode: Mode = "direct", order: str | None = None, sample: int = 300
    ) -> UpgradePlan:
        """What would happen, and what the gate says; `sample` items are embedded and kept."""
        body = {"mode": mode, "order": order, "sample": sample}
        return read(UpgradePlan, self._post("plan", body, slow=True))

    def start(
        self,
        *,
        mode: Mode = "direct",
        order: str | None = None,
        sample: int = 300,
        traffic: float = 1.0,
        run: bool = False,
        override: str | None = None,
    ) -> UpgradeStatus:
        """From the next query on the new way answers this share; `run` begins the backfill.

        override: why, although the test of the new encoder's training failed; it is recorded.
        """
        body = {"mode": mode, "order": order, "sample": sample, "traffic": traffic, "run": run}
        return self._step("start", {**body, "override": override})

    def traffic(self, share: float) -> UpgradeStatus:
        """Canary: the share of the queries that the new way answers; 0 is shadow."""
        return self._step("traffic", {"traffic": share})

    def run(self, *, max_rate: float | None = None) -> UpgradeStatus:
        """The backfill, in the service; `max_rate` in items a second."""
        return self._step("run", {"max_rate": max_rate})

    def pause(self, *, reason: str | None = None) -> UpgradeStatus:
        return self._step("pause", {"reason": reason})

    def resume(self, *, override: str | None = None) -> UpgradeStatus:
        """override: why, although the gate failed; it is recorded."""
        return self._step("resume", {"override": override})

    def retry(self) -> UpgradeStatus:
        """Put items that failed back on the work list."""
        return self._step("retry", {})

    def gate(self) -> GateResult:
        """Old service and today's on the same queries. A FAIL pauses the upgrade."""
        return read(GateResult, self._post("gate", {}, slow=True))

    def finish(
        self, *, force: bool = False, override: str | None = None, keep_old: float | None = None
    ) -> UpgradeStatus:
        """The new vectors alone answer; the old ones are kept for `keep_old` seconds, or until
        `forget`. override: why, although the gate did not pass."""
        body = {"force": force, "override": override, "keep_old": keep_old}
        return self._step("finish", body)

    def forget(self) -> UpgradeStatus:
        """Drop the old vectors of a finished upgrade, for good."""
        return self._step("forget", {})

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
        """Items that failed, with reasons; asked for page by page."""
        after: str | None = ""
        while after is not None:
            params = {"after": after, "limit": str(page)}
            answer = read(FailuresPage, self._get("/v1/upgrade/failures", params))
            yield from answer.failures
            after = answer.next

    def _step(self, name: str, body: Mapping[str, Any]) -> UpgradeStatus:
        return read(UpgradeStatus, self._post(name, body))

    def _post(self, name: str, body: Mapping[str, Any], *, slow: bool = False) -> Any:
        path = f"/v1/upgrade/{name}"
        call = Call(method="POST", path=path, body=as_json(body), write=True, slow=slow)
        return self._jobs.result(self._transport.json(call))

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return self._transport.json(Call(method="GET", path=path, params=params))
