"""Galleries: items, their vectors by space, and search. `Gallery` is the public API."""

from midspan.gallery.copy import CopyReport, copy
from midspan.gallery.engines import ENGINES
from midspan.gallery.engines.base import IndexStatus
from midspan.gallery.filters import And, Eq, Exists, Filter, In, Not, Or, Range, parse_filter
from midspan.gallery.gallery import Gallery
from midspan.gallery.info import Info, Verification
from midspan.gallery.records import (
    AuditEvent,
    Counts,
    Draft,
    Failed,
    Failure,
    Hit,
    Item,
    State,
    Task,
)
from midspan.gallery.rules import QUANTISE, set_quantise

__all__ = [
    "ENGINES",
    "QUANTISE",
    "And",
    "AuditEvent",
    "CopyReport",
    "Counts",
    "Draft",
    "Eq",
    "Exists",
    "Failed",
    "Failure",
    "Filter",
    "Gallery",
    "Hit",
    "In",
    "IndexStatus",
    "Info",
    "Item",
    "Not",
    "Or",
    "Range",
    "State",
    "Task",
    "Verification",
    "copy",
    "parse_filter",
    "set_quantise",
]
