"""`client.jobs`: steps that take long, and how they end."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

from midspan.client.address import item_path
from midspan.client.reading import read
from midspan.client.transport import Call, Transport, as_json
from midspan.errors import RequestError, Unreachable
from midspan.wire import Job, Jobs

FIRST_LOOK, SLOWEST_LOOK = 0.1, 2.0  # seconds between two looks at a job


class JobVerbs:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> tuple[Job, ...]:
        """The newest first."""
        return read(Jobs, self._transport.json(Call(method="GET", path="/v1/jobs"))).jobs

    def get(self, job_id: str) -> Job:
        path = item_path("/v1/jobs", job_id)
        return read(Job, self._transport.json(Call(method="GET", path=path)))

    def cancel(self, job_id: str) -> Job:
        """Ask it to stop at its next safe point."""
        path = item_path("/v1/jobs", job_id) + "/cancel"
        call = Call(method="POST", path=path, body=as_json({}), write=True)
        return read(Job, self._transport.json(call))

    def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """Until it is done; raises the error that it failed with.

        timeout: seconds; Unreachable when they are over, while the job continues.
        """
        until = None if timeout is None else monotonic() + timeout
        pause = FIRST_LOOK
        while True:
            job = self.get(job_id)
            if job.state == "done":
                return job
            if job.error is not None:
                raise self._transport.told_error(
                    job.error.type, job.error.message, request_id=job.error.request_id
                )
            if job.state in ("failed", "cancelled"):
                raise RequestError(f"the job {job.kind!r} ended without a result: {job.state}")
            if until is not None and monotonic() + pause > until:
                raise Unreachable(
                    f"the job {job.kind!r} is {job.state} after {timeout:g} s; it continues: "
                    f"client.jobs.wait({job_id!r})"
                )
            sleep(pause)
            pause = min(1.5 * pause, SLOWEST_LOOK)

    def result(self, answered: Any) -> Any:
        """What a step gives, whether it was answered at once or is a job still."""
        if not isinstance(answered, dict) or "job_id" not in answered:
            return answered
        job = self.wait(read(Job, answered).job_id)
        if job.result is None:
            raise RequestError(
                f"the job {job.kind!r} is done, but its result is no longer kept; "
                "ask for the status"
            )
        return job.result
