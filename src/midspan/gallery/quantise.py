"""How small an embedded gallery holds its vectors in memory.

The record keeps every vector as it came. This is about the copy that a process searches: smaller
codes find the candidates, the true vectors, which then lie in a file, give the scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from midspan.errors import GalleryError
from midspan.gallery.records import Entry

if TYPE_CHECKING:
    from midspan.gallery.gallery import Gallery

Quantise = Literal["none", "int8", "binary"]

QUANTISE: dict[Quantise, str] = {
    "none": "float32 in memory, 8-bit codes in front of it",
    "int8": "8-bit codes in memory, float32 in a file",
    "binary": "1 bit per dimension in memory, float32 in a file",
}


@runtime_checkable
class Quantised(Protocol):
    """A store whose index is our own and can be held smaller. Servers have settings of theirs."""

    def quantise(self) -> Quantise: ...

    def set_quantise(self, value: Quantise, *, entry: Entry) -> None: ...


def check_quantise(value: str) -> Quantise:
    if value not in QUANTISE:
        raise GalleryError(f"quantise = {value!r:.80}; wanted one of {', '.join(QUANTISE)}")
    return value


def refusal(scheme: str, value: str) -> GalleryError:
    """For an engine that holds vectors in its own way: nothing is ignored silently."""
    if scheme == "memory":
        return GalleryError(
            f"a gallery in memory is exact and holds float32; quantise={value!r} is for a file: "
            "shop.midspan"
        )
    return GalleryError(
        f"quantise={value!r} is for a file (shop.midspan); {scheme} has settings of its own that "
        "say how it holds vectors"
    )


def set_quantise(gallery: Gallery, value: str) -> None:
    """From now on, in every process; an index that must be made anew is made in the background."""
    from midspan.gallery.stores import scheme_of

    checked = check_quantise(value)
    store = gallery.store
    if not isinstance(store, Quantised):
        raise refusal(scheme_of(gallery.location), value)
    entry = Entry(who=gallery.who, what="quantise", details={"from": store.quantise(), "to": value})
    store.set_quantise(checked, entry=entry)
