"""A small world: every picture has a hidden meaning, each encoder sees it through its own matrix.

The uri of an item says which picture it shows, so a replaced item has another vector.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from midspan.bridges import Ridge
from midspan.gallery import Gallery, Item
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Embed, Embedded, Settings

OLD = Space("old", 12, fingerprint="f-old")
NEW = Space("new", 12, fingerprint="f-new", compatible_with=("f-old",))  # direct
WIDE = Space("wide", 16, fingerprint="f-wide")  # bridged
STRANGER = Space("stranger", 12, fingerprint="f-stranger")
CLASSES = 6
QUICK = Settings(batch=8, growth=1, lease=0.6, retries=2, back_off=0.02)
STORES = ("memory", "sqlite")

_rng = np.random.default_rng(7)
_CENTRES = _rng.standard_normal((CLASSES, 10))
_SHARED = _rng.standard_normal((10, 12))
_WIDE = _rng.standard_normal((10, 16))
_VIEWS = {
    "f-old": (_SHARED, 2.0),
    "f-new": (_SHARED, 0.1),
    "f-wide": (_WIDE, 0.1),
    "f-stranger": (_rng.standard_normal((10, 12)), 0.1),
}


def label(uri: str) -> int:
    return sum(uri.encode()) % CLASSES


def see(uris: Sequence[str], space: Space) -> FloatArray:
    """(N, D) unit vectors; more noise in the old encoder."""
    matrix, noise = _VIEWS[space.fingerprint]
    rows = np.empty((len(uris), space.dim))
    for row, uri in enumerate(uris):
        meaning = np.random.default_rng([1, *uri.encode()])
        z = _CENTRES[label(uri)] + 0.7 * meaning.standard_normal(10)
        own = np.random.default_rng([2, *space.fingerprint.encode(), *uri.encode()])
        rows[row] = z @ matrix + noise * own.standard_normal(space.dim)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def picture(id: str, version: int = 1) -> str:
    return f"img/{id}-{version}"


def vectors(ids: Iterable[str], space: Space, *, version: int = 1) -> Embeddings:
    names = list(ids)
    uris = [picture(id, version) for id in names]
    return Embeddings(
        ids=np.array(names, dtype=np.str_),
        vectors=see(uris, space),
        space=space,
        columns={"labels": np.array([label(uri) for uri in uris])},
    )


def ids(count: int, *, first: int = 0) -> list[str]:
    return [f"i{number:04d}" for number in range(first, first + count)]


def add(
    gallery: Gallery, names: Sequence[str], *spaces: Space, version: int = 1, replace: bool = False
) -> None:
    parts = [vectors(names, space, version=version) for space in spaces or (OLD,)]
    uris = [picture(id, version) for id in names]
    write = gallery.replace if replace else gallery.add
    write(parts[0], also=parts[1:], uris=uris, payloads=[{"labels": label(uri)} for uri in uris])


def make(kind: str, folder: Path, count: int = 60) -> Gallery:
    place = f"memory:{uuid.uuid4().hex}" if kind == "memory" else folder / "shop.midspan"
    gallery = Gallery.create(str(place), OLD)
    if count:
        add(gallery, ids(count))
    return gallery


def encoder(space: Space, *, missing: Iterable[str] = (), corrupt: Iterable[str] = ()) -> Embed:
    """Sees the picture at the uri; some files are not there, some are no images."""
    gone, broken = set(missing), set(corrupt)

    def embed(items: Sequence[Item]) -> Embedded:
        fine = [item for item in items if item.id not in gone | broken]
        return Embedded(
            vectors=Embeddings(
                ids=np.array([item.id for item in fine], dtype=np.str_),
                vectors=see([str(item.uri) for item in fine], space),
                space=space,
            ),
            failed={item.id: "no such file" for item in items if item.id in gone},
            hopeless={item.id: "not an image" for item in items if item.id in broken},
        )

    return embed


def bridge(folder: Path, source: Space, target: Space) -> Path:
    """Fitted on pictures that no gallery holds."""
    pairs = ids(200, first=5000)
    fitted = Ridge(alpha=0.1).fit(vectors(pairs, source), vectors(pairs, target))
    return fitted.save(folder / f"{source.name}-{target.name}")


def settings_for(mode: str, folder: Path) -> tuple[Space, Path | None]:
    """(new space, bridge) of a mode."""
    if mode in ("direct", "both"):
        return (NEW if mode == "direct" else WIDE), None
    if mode == "map-query":
        return WIDE, bridge(folder, WIDE, OLD)
    return WIDE, bridge(folder, OLD, WIDE)


def asked_in(mode: str, names: list[str], new: Space) -> Embeddings | list[Embeddings]:
    """Queries as this mode takes them."""
    return [vectors(names, OLD), vectors(names, new)] if mode == "both" else vectors(names, new)


def accounted(gallery: Gallery) -> tuple[int, int, int]:
    """(old, new, failed), which are all items, always."""
    counts = gallery.count()
    assert counts.pending + counts.done + counts.failed == counts.items
    assert sum(counts.live.values()) + counts.without == counts.items
    return counts.pending, counts.done, counts.failed


def answers(gallery: Gallery, query: Embeddings, k: int = 10) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score) for hit in hits] for hits in gallery.search(query, k=k)]


def all_hold(gallery: Gallery, space: Space, model: dict[str, str]) -> None:
    """The gallery has exactly the model's items, each with the vector of its own picture."""
    items = gallery.scan(limit=10_000)
    assert {item.id: item.uri for item in items} == model
    found = gallery.vectors(sorted(model), space=space.fingerprint)
    assert found.ids.tolist() == sorted(model)
    assert np.array_equal(found.vectors, see([model[id] for id in sorted(model)], space))
