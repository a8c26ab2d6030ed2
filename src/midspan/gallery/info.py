"""What a gallery holds, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from midspan.gallery.quantise import Quantise, Quantised
from midspan.gallery.records import State
from midspan.gallery.stores.base import Store


@dataclass(frozen=True, slots=True)
class Info:
    location: str
    items: int
    by_space: Mapping[str, int]  # items by the name of the space that their live vector is in
    without: int  # items with no live vector
    done: int  # items with a vector in the target, or all if there is no target
    pending: int
    failed: int
    stored: Mapping[str, int]  # vectors by the name of their space, live or not
    spaces: tuple[Mapping[str, Any], ...]
    upgrade: Mapping[str, Any] | None
    quantise: Quantise | None  # how small an own index holds vectors; None: the engine's settings

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(store: Store) -> Info:
    state, counts = store.state(), store.count()
    names = space_names(state)
    return Info(
        location=store.location,
        items=counts.items,
        by_space={names.get(space, space): count for space, count in counts.live.items()},
        without=counts.without,
        done=counts.done,
        pending=counts.pending,
        failed=counts.failed,
        stored={names.get(space, space): count for space, count in counts.stored.items()},
        spaces=tuple(
            {
                "name": names[fingerprint],
                "fingerprint": fingerprint,
                "dim": space.dim,
                "metric": space.metric,
                "live": fingerprint in state.live,
                "target": fingerprint == state.target,
            }
            for fingerprint, space in state.spaces.items()
        ),
        upgrade=state.upgrade,
        quantise=store.quantise() if isinstance(store, Quantised) else None,
    )


def space_names(state: State) -> dict[str, str]:
    """A name for people by fingerprint; two spaces of one name get a part of the fingerprint."""
    names = [space.name for space in state.spaces.values()]
    return {
        fingerprint: space.name
        if names.count(space.name) == 1
        else f"{space.name} ({fingerprint[:17]})"
        for fingerprint, space in state.spaces.items()
    }
