"""Why items have no new vector, and when those that failed are tried again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from midspan.gallery import Failure, Gallery, State
from midspan.gallery.records import Record
from midspan.upgrade.steps import change, retry

PAGE = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Items that failed for the same reason; `example` is the id of one of them."""

    text: str
    items: int
    example: str


def reasons(gallery: Gallery) -> list[Reason]:
    """Why items failed permanently, the most frequent reason first.

    Args:
        gallery: A gallery with an open upgrade.

    Returns:
        Each reason with the number of its items and one of them.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import reasons
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> _ = upgrade.run(new)
        >>> reasons(gallery)
        [Reason(text='no vector for this id in the given vectors', items=1, example='c')]
    """
    by_text: dict[str, Reason] = {}
    for failure in _failures(gallery):
        text = _without_names(failure)
        known = by_text.get(text, Reason(text, 0, failure.id))
        by_text[text] = dataclasses.replace(known, items=known.items + 1)
    return sorted(by_text.values(), key=lambda one: -one.items)


def without_uris(gallery: Gallery) -> int:
    """How many items wait for a new vector, if none of them has a uri: no encoder can embed them.

    Args:
        gallery: An open gallery; where no upgrade is open, all of its items count.

    Returns:
        The number; 0 as soon as one item has a uri.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import without_uris
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> without_uris(gallery)
        3
    """
    state, after, seen = gallery.state, "", 0
    while page := gallery.scan(missing=state.target, after=after, limit=PAGE):
        if any(item.uri is not None for item in page):
            return 0
        after, seen = page[-1].id, seen + len(page)
    return seen


def use_source(gallery: Gallery, source: str) -> int:
    """Record where the vectors come from; with another source than before, retry what failed.

    Args:
        gallery: A gallery with an open upgrade.
        source: Names the encoder and the images, or the file of vectors, of this run.

    Returns:
        How many items are tried again.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import use_source
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> use_source(gallery, "first.npz")
        0
        >>> upgrade.run(new).failed
        1
        >>> use_source(gallery, "second.npz")
        1
    """
    record = Record.of(gallery.state)
    if record is not None and record.source == source:
        return 0
    retried = retry(gallery) if gallery.count().failed else 0
    if record is not None:

        def step(state: State) -> State:
            now = Record.of(state)
            if now is None:
                return state
            upgrade = dataclasses.replace(now, source=source).to_json()
            return dataclasses.replace(state, upgrade=upgrade)

        details = {"source": source, "before": record.source, "retried": retried}
        change(gallery, step, what="upgrade source", details=details)
    return retried


def _failures(gallery: Gallery) -> Iterator[Failure]:
    after = ""
    while page := gallery.work.failures(after=after, limit=PAGE):
        yield from page
        after = page[-1].id


def _without_names(failure: Failure) -> str:
    """The reason without the item's own uri and id, so that equal reasons are counted together."""
    text = failure.reason
    for name in (failure.uri, repr(failure.id)):  # an id may be a word of the reason
        if name:
            text = text.replace(name, "…")
    return text
