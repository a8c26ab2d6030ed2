"""Errors as answers: {"error": {"type", "message", "request_id"}}, each kind with its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic_core import to_json
from starlette.responses import Response

from midspan import errors as known
from midspan.wire import ErrorDetail


class ServiceError(Exception):
    """An answer that is no success; `kind` is what clients branch on."""

    status = 400
    kind = "BadRequest"

    def __init__(self, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.headers = dict(headers or {})


class InvalidRequest(ServiceError):
    status, kind = 422, "InvalidRequest"


class Unauthorized(ServiceError):
    status, kind = 401, "Unauthorized"

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"WWW-Authenticate": "Bearer"})


class Forbidden(ServiceError):
    status, kind = 403, "Forbidden"


class NotFound(ServiceError):
    status, kind = 404, "NotFound"


class NotPossible(ServiceError):
    """The request is fine, the service's present state or set-up does not allow it."""

    status, kind = 409, "NotPossible"


class Cancelled(ServiceError):
    """A job that somebody stopped."""

    status, kind = 409, "Cancelled"


class TooSlow(ServiceError):
    status, kind = 408, "TooSlow"


class TooLarge(ServiceError):
    status, kind = 413, "TooLarge"


class UnsupportedType(ServiceError):
    status, kind = 415, "UnsupportedType"


class Overloaded(ServiceError):
    status, kind = 503, "Overloaded"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message, headers={"Retry-After": str(retry_after)})


# Found by the error's class or the nearest parent. The caller can mend all of these.
STATUS: dict[type[known.MidspanError], int] = {
    known.MidspanError: 409,
    known.ConfigError: 409,
    known.DataError: 422,
    known.EncoderError: 409,
    known.EvaluationError: 409,
    known.FormatError: 422,
    known.GalleryError: 409,
    known.ItemError: 422,
    known.MissingDependency: 409,
    known.RunError: 409,
    known.SpaceMismatch: 409,
    known.StateChanged: 409,
    known.StoreError: 503,  # the engine below: busy, full or gone. Worth another try
    known.UnknownId: 404,
    known.VectorError: 422,
}


def status_of(error: known.MidspanError) -> int:
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    raise AssertionError("MidspanError itself is in the table")


@dataclass(frozen=True, slots=True)
class Described:
    """A known error as a client gets it, now or later."""

    status: int
    detail: ErrorDetail
    headers: Mapping[str, str]


def describe(error: BaseException, *, request_id: str, hide: Mapping[str, str]) -> Described | None:
    """None: it is a fault of ours. `hide`: text → what to show."""
    message = str(error)
    for secret, shown in hide.items():
        message = message.replace(secret, shown)
    if isinstance(error, ServiceError):
        status, kind, headers = error.status, error.kind, error.headers
    elif isinstance(error, known.MidspanError):
        status, kind = status_of(error), type(error).__name__
        headers = {"Retry-After": "2"} if status == 503 else {}
    else:
        return None
    detail = ErrorDetail(type=kind, message=message[:2000], request_id=request_id)
    return Described(status, detail, headers)


def error_answer(
    *,
    status: int,
    kind: str,
    message: str,
    request_id: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    detail = ErrorDetail(type=kind, message=message[:2000], request_id=request_id)
    return as_response(Described(status, detail, headers or {}))


def as_response(described: Described) -> Response:
    content = to_json({"error": asdict(described.detail)})
    return Response(
        content, status_code=described.status, headers=dict(described.headers), media_type=JSON
    )


def answer_to(error: Exception, *, request_id: str, hide: Mapping[str, str]) -> Response | None:
    """The answer to a known error; None: it is a fault of ours."""
    described = describe(error, request_id=request_id, hide=hide)
    return None if described is None else as_response(described)


JSON = "application/json"
