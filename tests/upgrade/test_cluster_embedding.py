"""A list of items through the workers of a cluster, without a gallery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from midspan.errors import ClusterError, DataError, ImageError, SpaceMismatch
from midspan.gallery import Item
from midspan.spaces import Space
from midspan.upgrade import Embed, Embedded
from midspan.upgrade.cluster import Make, Workers, actor, connect, embed_on_cluster
from tests.upgrade.fake_ray import Die, FakeRay
from tests.upgrade.world import NEW, STRANGER, encoder, ids, picture, see

ITEMS = [Item(id, picture(id), {}, 1, 0.0, 0.0, ()) for id in ids(30)]


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(connect, "ray_module", lambda: fake)
    monkeypatch.setattr(actor, "_node", lambda: "node")
    return fake


def run(make: Make, **more: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Vectors by id."""
    space, parts = embed_on_cluster(ITEMS, make, workers=Workers("auto", count=2), batch=4, **more)
    assert space.same_as(NEW)
    pairs = [zip(part.ids.tolist(), part.vectors, strict=True) for part in parts]
    found = [pair for part in pairs for pair in part]
    assert len(dict(found)) == len(found), "no item twice"
    return dict(found)


def test_every_item_has_the_vector_of_its_own_picture_also_after_a_loss(ray: FakeRay) -> None:
    good, died = encoder(NEW), list[str]()

    def embed(items: Sequence[Item]) -> Embedded:
        if "i0009" in {item.id for item in items} and not died:
            died.append("i0009")
            raise Die
        return good(items)

    found = run(lambda: (NEW, embed))
    assert sorted(found) == ids(30)
    rows = np.stack([found[id] for id in ids(30)])
    assert np.array_equal(rows, see([picture(id) for id in ids(30)], NEW))
    assert died
    assert ray.most == 2, "two batches a worker at most"


def test_what_has_no_vector_is_told_or_is_an_error() -> None:
    good = encoder(NEW, missing=["i0003"], corrupt=["i0004"])

    def embed(items: Sequence[Item]) -> Embedded:
        if "i0007" in {item.id for item in items}:
            raise Die
        return good(items)

    told: dict[str, str] = {}
    found = run(lambda: (NEW, embed), on_failure=told.__setitem__)
    assert sorted(found) == [id for id in ids(30) if id not in ("i0003", "i0004", "i0007")]
    assert (told["i0003"], told["i0004"]) == ("no such file", "not an image")
    assert told["i0007"].startswith("every worker that embedded it died")
    with pytest.raises(ImageError, match=r"i000[34]: no"):
        run(lambda: (NEW, good))


def test_workers_that_disagree_or_see_nothing_are_refused() -> None:
    spaces = [NEW, STRANGER]

    def make() -> tuple[Space, Embed]:
        space = spaces.pop()
        return space, encoder(space)

    with pytest.raises(SpaceMismatch, match="different weights under one name"):
        run(make)
    blind = encoder(NEW, missing=ids(30))
    with pytest.raises(ClusterError, match="`pack`"):
        run(lambda: (NEW, blind), seen_here=lambda item: True, on_failure=lambda id, why: None)
    with pytest.raises(DataError, match="nothing to embed"):
        embed_on_cluster([], lambda: (NEW, blind), workers=Workers("auto"))
