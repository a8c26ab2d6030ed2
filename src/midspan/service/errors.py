"""Errors as answers: {"error": {"type", "message", "request_id"}}, each kind with its status."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import to_json
from starlette.responses import Response

from midspan import errors as known


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


def error_answer(
    *,
    status: int,
    kind: str,
    message: str,
    request_id: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    content = {"error": {"type": kind, "message": message[:2000], "request_id": request_id}}
    return Response(
        to_json(content), status_code=status, headers=dict(headers or {}), media_type=JSON
    )


def answer_to(error: Exception, *, request_id: str, hide: Mapping[str, str]) -> Response | None:
    """The answer to a known error; None: it is a fault of ours. `hide`: text → what to show."""
    message = str(error)
    for secret, shown in hide.items():
        message = message.replace(secret, shown)
    if isinstance(error, ServiceError):
        return error_answer(
            status=error.status,
            kind=error.kind,
            message=message,
            request_id=request_id,
            headers=error.headers,
        )
    if isinstance(error, known.MidspanError):
        status = status_of(error)
        return error_answer(
            status=status,
            kind=type(error).__name__,
            message=message,
            request_id=request_id,
            headers={"Retry-After": "2"} if status == 503 else None,
        )
    return None


JSON = "application/json"
