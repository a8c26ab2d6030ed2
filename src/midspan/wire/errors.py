"""The one shape of an error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    type: str  # UnknownId, SpaceMismatch, Unauthorized, Overloaded …
    message: str
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    error: ErrorDetail
