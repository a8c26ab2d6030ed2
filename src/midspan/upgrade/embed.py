"""What the backfill asks of an encoder: items in, vectors out, and why some could not be made.

The upgrade knows no images and no torch. An encoder comes as a function, or as two of them (read,
then embed) so that the next images can be read while these are embedded; for those whose encoder
runs elsewhere, a file of vectors does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from midspan.errors import DataError, VectorError
from midspan.gallery import Item
from midspan.spaces import Embeddings, Space

ITEM_ERRORS = (DataError, VectorError, OSError)  # what one bad image may cause


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors by item id; id → reason of what is retried later, and of permanent failures.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import Embedded, Settings
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> def embed(items):
        ...     made = new.take([item.id for item in items if item.id != "c"])
        ...     return Embedded(made, failed={"c": "the share is not mounted"})
        >>> report = upgrade.run(embed, settings=Settings(retries=0))
        >>> report.new, report.failed
        (2, 1)
    """

    vectors: Embeddings
    failed: Mapping[str, str] = field(default_factory=dict)
    hopeless: Mapping[str, str] = field(default_factory=dict)


Embed = Callable[[Sequence[Item]], Embedded]
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Staged(Generic[Read]):
    """An `Embed` in two steps, so that the next items are read while these are embedded.

    Args:
        read: From items to what `embed` takes; called from another thread than `embed`.
        embed: From that to their vectors.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import Embedded, Staged
        >>> space = ms.Space("new", 2)
        >>> def read(items):  # from disk or network, while `embed` works on the items before
        ...     return [(item.id, len(item.payload)) for item in items]
        >>> def embed(pairs):
        ...     ids, sizes = zip(*pairs, strict=True)
        ...     vectors = [[size, 1.0] for size in sizes]
        ...     return Embedded(ms.Embeddings(np.array(ids), vectors, space))
        >>> shop = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("old", 2))
        >>> with ms.Gallery.create("memory:", shop.space) as gallery:
        ...     _ = gallery.add(shop, payloads=[{"brand": "acme"}, {}])
        ...     upgrade = ms.Upgrade.start(gallery, to=space, mode="both")
        ...     print(upgrade.run(Staged(read, embed)).new)
        2
    """

    read: Callable[[Sequence[Item]], Read]
    embed: Callable[[Read], Embedded]

    def __call__(self, items: Sequence[Item]) -> Embedded:
        return self.embed(self.read(items))


def read_all(embed: Embed, items: Sequence[Item]) -> Any | None:
    """What `embed_all` needs; None where there is nothing to read, or one item breaks the rest."""
    if not isinstance(embed, Staged):
        return None
    try:
        return embed.read(items)
    except ITEM_ERRORS:
        return None  # embed_all finds out whose fault it is


def from_embeddings(embeddings: Embeddings, *, source: str = "the given vectors") -> Embed:
    """Vectors that exist already, found by id; an item that is not among them fails for good.

    Args:
        embeddings: Vectors of the new encoder.
        source: What the reason of a failure calls them.

    Returns:
        The function that a backfill calls.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import from_embeddings
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> embed = from_embeddings(new, source="new.npz")
        >>> embed(gallery.scan(limit=3)).vectors.ids.tolist()
        ['a', 'b']
    """
    rows = {id: row for row, id in enumerate(embeddings.ids.tolist())}

    def embed(items: Sequence[Item]) -> Embedded:
        known = [rows[item.id] for item in items if item.id in rows]
        missing = {
            item.id: f"no vector for this id in {source}" for item in items if item.id not in rows
        }
        return Embedded(embeddings[known], hopeless=missing)

    return embed


def embed_all(
    embed: Embed, items: Sequence[Item], *, space: Space, read: Any | None = None
) -> Embedded:
    """Every item is accounted for: one that breaks the batch is found by embedding each alone.

    read: of these items, from `read_all`; read here if there is none.

    Only errors that an image can cause count as the item's; others say that the encoder is
    broken, and reach the caller.
    """
    try:
        if read is not None and isinstance(embed, Staged):
            return _complete(embed.embed(read), items)
        return _complete(embed(items), items)
    except ITEM_ERRORS as error:
        if len(items) == 1:
            return Embedded(_nothing(space), failed={items[0].id: str(error)})
    vectors, failed, hopeless = _nothing(space), dict[str, str](), dict[str, str]()
    for item in items:
        one = embed_all(embed, [item], space=space)
        if len(one.vectors):
            vectors = one.vectors if not len(vectors) else vectors.joined_with(one.vectors)
        failed.update(one.failed)
        hopeless.update(one.hopeless)
    return Embedded(vectors, failed=failed, hopeless=hopeless)


def _nothing(space: Space) -> Embeddings:
    return Embeddings(
        ids=np.array([], dtype=np.str_),
        vectors=np.empty((0, space.dim), dtype=np.float32),
        space=space,
    )


def _complete(embedded: Embedded, items: Sequence[Item]) -> Embedded:
    """What is neither made nor failed failed; what was not asked for is left out."""
    expected = {item.id for item in items}
    ids = embedded.vectors.ids.tolist()
    rows = [row for row, id in enumerate(ids) if id in expected]
    reported = {*ids, *embedded.failed, *embedded.hopeless}
    silent = {item.id: "the encoder gave no vector" for item in items if item.id not in reported}
    got = {ids[row] for row in rows}
    failed = {id: why for id, why in {**embedded.failed, **silent}.items() if id in expected - got}
    hopeless = {id: why for id, why in embedded.hopeless.items() if id in expected - got}
    return Embedded(embedded.vectors[rows], failed=failed, hopeless=hopeless)
