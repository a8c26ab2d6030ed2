"""One request and its answer: time-outs, tries with back-off, and the service's errors as ours.

What is worth another try: no connection, a broken one, a time-out, and the answers 502, 503 and
504. A write carries an Idempotency-Key, the same in every try, so that it is done once.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import sleep, time
from typing import TYPE_CHECKING, Any

from midspan import errors as known
from midspan.client.address import checked_token, checked_url, item_path
from midspan.errors import (
    FormatError,
    ItemError,
    MidspanError,
    MissingDependency,
    RequestError,
    Unreachable,
)

if TYPE_CHECKING:
    import httpx

RETRY_STATUSES = frozenset({502, 503, 504})
GALLERIES = "/v1/galleries"  # of the service, not of a gallery
FIRST_WAIT = 0.1  # seconds; doubled from try to try
LONGEST_BACK_OFF = 5.0
# Errors that a service sends by the name of their class; the rest come as RequestError.
ERROR_TYPES: dict[str, type[MidspanError]] = {
    kind.__name__: kind
    for kind in (
        *(known.ConfigError, known.FormatError, known.DataError, known.ImageError),
        *(known.VectorError, known.SpaceMismatch, known.UnknownId, known.EncoderError),
        *(known.EvaluationError, known.GalleryError, known.ItemError, known.StateChanged),
        *(known.StoreError, known.RunError, known.MidspanError),
        *(known.SpaceMissing, known.LabelMismatch, known.EvidenceFailed),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Seconds; defaults are our own choices."""

    timeout: float = 30.0  # of one try
    long_timeout: float = 600.0  # of one try of what looks at many items: verify, plan, gate
    retries: int = 4
    longest_wait: float = 30.0  # a service that asks to wait longer is not asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    path: str
    params: Mapping[str, str] | None = None
    body: bytes | None = None  # JSON
    image: bytes | None = None  # a form: this file, and the fields
    fields: Mapping[str, str] | None = None
    write: bool = False
    slow: bool = False
    once: bool = False  # not tried again
    prefer: str | None = None  # respond-async: answer with the job at once


class Transport:
    """The connections of one client; threads may share it."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        policy: RetryPolicy,
        allow_http: bool,
        gallery: str | None = None,
    ) -> None:
        """gallery: paths that are of one gallery are of this; None: of the service's default."""
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "httpx", extra="serve", required_for="midspan.Client"
            ) from error
        self.url = checked_url(url, with_token=token is not None, allow_http=allow_http)
        self.policy = policy
        self.gallery = gallery
        self._prefix = "/v1" if gallery is None else item_path("/v1/galleries", gallery)
        self._token = checked_token(token)
        self._closed = False
        self._streams: set[Any] = set()  # connections that a stream is read from
        self._http = httpx.Client(
            timeout=policy.timeout,
            follow_redirects=False,  # a token goes where it was meant to go
            trust_env=self.url.startswith("https:"),  # no proxy between this machine and itself
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
        )

    def closed(self) -> bool:
        """By any thread, at any moment."""
        return self._closed

    def close(self) -> None:
        """Streams that other threads read end now."""
        self._closed = True
        for stream in list(self._streams):
            _shut(stream)
        self._http.close()

    # ---- one call

    def json(self, call: Call) -> Any:
        """The answer to it, after as many tries as it takes."""
        response = self.send(call)
        try:
            return response.json()
        except ValueError as error:
            raise FormatError(
                f"{self.url}{call.path} answered no JSON; is this the address of a midspan service?"
            ) from error

    def send(self, call: Call) -> httpx.Response:
        """A successful answer; anything else is an error."""
        import httpx

        headers = {"Idempotency-Key": uuid.uuid4().hex} if call.write else {}
        if call.prefer is not None:
            headers["Prefer"] = call.prefer
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        most = 1 + (0 if call.once else self.policy.retries)
        for tries in itertools.count(1):
            try:
                response = self._http.request(
                    call.method,
                    self._address(call),
                    params=call.params,
                    content=call.body,
                    files=None if call.image is None else {"file": ("image", call.image)},
                    data=call.fields,
                    headers=headers,
                    timeout=self.policy.long_timeout if call.slow else self.policy.timeout,
                )
            except httpx.RequestError as error:
                if tries >= most or not isinstance(error, httpx.TransportError):
                    raise self._unreachable(call, error, tries=tries) from None
                sleep(back_off(tries))
                continue
            if response.is_success:
                return response
            if tries >= most or (wait := self._wait(response, tries=tries)) is None:
                raise self._error(response)
            sleep(wait)
        raise AssertionError("the count has no end")

    @contextmanager
    def stream(self, call: Call, *, timeout: float) -> Iterator[Iterator[str]]:
        """The lines of an endless answer; tried once."""
        import httpx

        connection: Any = None
        try:
            with self._http.stream(call.method, self._address(call), timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise self._error(response)
                connection = response.extensions.get("network_stream")
                self._streams.add(connection)
                if self.closed():  # `close` did not see this one
                    _shut(connection)
                yield response.iter_lines()
        except httpx.RequestError as error:
            raise self._unreachable(call, error, tries=1) from None
        finally:
            self._streams.discard(connection)

    def _wait(self, response: httpx.Response, *, tries: int) -> float | None:
        """Seconds until the next try; None: it is not worth one, or not so soon."""
        if response.status_code not in RETRY_STATUSES:
            return None
        told = retry_after(response.headers.get("Retry-After"))
        if told is None:
            return back_off(tries)
        if told > self.policy.longest_wait:
            return None
        return told + back_off(tries)  # not all clients at once

    def _address(self, call: Call) -> str:
        if not call.path.startswith("/v1/") or call.path == GALLERIES:
            return self.url + call.path
        return self.url + self._prefix + call.path.removeprefix("/v1")

    # ---- errors

    def _unreachable(self, call: Call, error: Exception, *, tries: int) -> Unreachable:
        """Without the library's error as its cause: that one holds the token."""
        return Unreachable(
            f"{self.url} did not answer {call.method} {call.path} "
            f"({type(error).__name__}: {self._clean(str(error))}); tries: {tries}"
        )

    def _error(self, response: httpx.Response) -> MidspanError:
        status = response.status_code
        if response.is_redirect:
            return RequestError(
                f"{self.url} answered with a redirect ({status}), which is not followed; give the "
                "address of the service itself",
                status=status,
            )
        try:
            told = response.json()["error"]
            kind, message, id = (str(told[name]) for name in ("type", "message", "request_id"))
        except (ValueError, KeyError, TypeError):
            text = f"{self.url} answered {status} {response.reason_phrase}, not as midspan does"
            return RequestError(self._clean(text), status=status)
        message = self._clean(message)
        return self.told_error(kind, message, request_id=id, status=status)

    def told_error(
        self, kind: str, message: str, *, request_id: str, status: int | None = None
    ) -> MidspanError:
        """An error that the service sent, in an answer or as the end of a job."""
        if kind not in ERROR_TYPES:
            return RequestError(message, status=status, kind=kind, request_id=request_id)
        error = ERROR_TYPES[kind](message)
        how = "as the end of a job" if status is None else f"with status {status}"
        error.add_note(f"answered by {self.url} {how}, request {self._clean(request_id)}")
        return error

    def _clean(self, text: str) -> str:
        """Whatever a server or a library says, the token is not shown."""
        return text if self._token is None else text.replace(self._token, "[token]")


def _shut(stream: Any) -> None:
    """End a read that another thread waits in; to close the socket would leave it waiting."""
    sock = None if stream is None else stream.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):  # it ended by itself
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of TLS: only what is below it


def back_off(tries: int) -> float:
    """Seconds before the next try, spread at random."""
    return random.uniform(0.5, 1.0) * min(LONGEST_BACK_OFF, FIRST_WAIT * 2.0 ** (tries - 1))


def retry_after(header: str | None) -> float | None:
    """Seconds; the header holds them, or a date."""
    if header is None:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time())
    except (ValueError, TypeError):
        return None


def as_json(content: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ItemError(f"this cannot be sent as JSON: {error}") from error
