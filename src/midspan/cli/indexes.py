"""Indexes at the end of a verb that wrote, and what is said of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midspan.gallery import Gallery


def build_indexes(gallery: Gallery) -> None:
    """Build what is due before the process ends; a service does it in the background."""
    state = gallery.state
    if due := gallery.indexes_due():
        names = ", ".join(state.spaces[space].name for space in due if space in state.spaces)
        print(f"building the index of {names} …", file=sys.stderr)
        gallery.build_due_indexes()


def index_words(index: Mapping[str, Any] | None) -> str:
    """Rows, kind and state of a space's index, for people."""
    if index is None:
        return "–"
    words = f"{index['kind']}, {index['rows']:,} rows"
    if index["state"] != "none":
        words += f", {index['state']}"
    if index["state"] == "ready" and index["unindexed"]:
        words += f", {index['unindexed']:,} not in it yet"
    if index["recall"] is not None:
        words += f", recall@10 {index['recall']:.3f}"
    return words + (f" ({index['failure']})" if index["failure"] else "")
