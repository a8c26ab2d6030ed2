"""Galleries: items, their vectors by space, and search. `Gallery` is the front door."""

from midspan.gallery.copy import CopyReport, copy
from midspan.gallery.filters import And, Eq, Exists, Filter, In, Not, Or, Range, parse_filter
from midspan.gallery.gallery import Gallery
from midspan.gallery.info import Info
from midspan.gallery.items import Draft, Hit, Item
from midspan.gallery.quantise import QUANTISE, set_quantise
from midspan.gallery.records import (
    Counts,
    Entry,
    Failed,
    Failure,
    Query,
    State,
    Task,
)
from midspan.gallery.stores import STORES, Store, create_store, open_store
from midspan.gallery.verify import Verification

__all__ = [
    "QUANTISE",
    "STORES",
    "And",
    "CopyReport",
    "Counts",
    "Draft",
    "Entry",
    "Eq",
    "Exists",
    "Failed",
    "Failure",
    "Filter",
    "Gallery",
    "Hit",
    "In",
    "Info",
    "Item",
    "Not",
    "Or",
    "Query",
    "Range",
    "State",
    "Store",
    "Task",
    "Verification",
    "copy",
    "create_store",
    "open_store",
    "parse_filter",
    "set_quantise",
]
