"""A new encoder whose first dims speak the old language: its upgrade is a direct one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan import Embeddings, Gallery, Space, Upgrade
from midspan.errors import SpaceMismatch
from midspan.spaces import FloatArray

OLD = Space("old", 8, fingerprint="old-8")
NEW = Space("new", 12, fingerprint="new-12", compatible_with=("old-8",), compatible_dims=8)
ITEMS = 60


@pytest.fixture
def pair() -> tuple[Embeddings, Embeddings]:
    """The first 8 dims of a new vector are the old one with some noise, the rest is its own."""
    rng = np.random.default_rng(0)
    centres, own = rng.normal(size=(12, 8)), rng.normal(size=(12, 4))
    kinds = np.arange(ITEMS) % 12
    old = centres[kinds] + 0.5 * rng.normal(size=(ITEMS, 8))
    new = np.concatenate([old + 0.05 * rng.normal(size=old.shape), own[kinds]], axis=1)
    ids, labels = np.array([f"i{n:02d}" for n in range(ITEMS)]), {"labels": kinds}
    return (
        Embeddings(ids, old.astype(np.float32), OLD, labels),
        Embeddings(ids, new.astype(np.float32), NEW, labels),
    )


def nearest(query: FloatArray, items: FloatArray) -> str:
    unit = items / np.linalg.norm(items, axis=1, keepdims=True)
    return f"i{int(np.argmax(unit @ query)):02d}"


@pytest.mark.parametrize("sample", [300, 0])
def test_direct_upgrade_by_prefix_answers_old_and_new_clients_at_every_share(
    tmp_path: Path, pair: tuple[Embeddings, Embeddings], sample: int
) -> None:
    old, new = pair
    gallery = Gallery.create(tmp_path / "g.midspan", OLD)
    gallery.add(old)
    upgrade = Upgrade.start(gallery, to=new, mode="direct", sample_size=sample, order="random")
    for limit in (0, ITEMS // 2, ITEMS // 2):
        if limit:
            upgrade.run(new, limit=limit)
        hits = gallery.search(new[:5], k=3)
        assert [int(one[0].id[1:]) % 12 for one in hits] == [0, 1, 2, 3, 4]  # of the same class
        for query, found in zip(new.vectors[:5], hits, strict=True):
            for hit in found:
                row = int(hit.id[1:])
                refreshed = hit.space.fingerprint == NEW.fingerprint
                vector = new.vectors[row] if refreshed else old.vectors[row]
                asked = query if refreshed else query[:8]
                cosine = asked @ vector / np.linalg.norm(asked) / np.linalg.norm(vector)
                assert hit.score == pytest.approx(cosine, abs=1e-5)
        before = [nearest(query, old.vectors) for query in old.vectors[:5]]
        assert [one[0].id for one in gallery.search(old[:5], k=1)] == before
    upgrade.rollback()
    assert [one[0].id for one in gallery.search(old[:5], k=1)] == before


def test_plan_of_a_prefix_compatible_encoder_has_gate_and_curve(
    tmp_path: Path, pair: tuple[Embeddings, Embeddings]
) -> None:
    old, new = pair
    gallery = Gallery.create(tmp_path / "g.midspan", OLD)
    gallery.add(old, payloads=[{"labels": str(name)} for name in old.columns["labels"]])
    plan = Upgrade.plan(gallery, to=new, mode="direct")
    assert plan.gate is not None
    assert plan.curve is not None
    assert plan.curve["values"][0] > 0.3  # new queries by their prefix, not by chance
    assert plan.searches_per_query == 2


def test_direct_upgrade_without_a_recorded_prefix_is_refused(
    tmp_path: Path, pair: tuple[Embeddings, Embeddings]
) -> None:
    old, _ = pair
    gallery = Gallery.create(tmp_path / "g.midspan", OLD)
    gallery.add(old)
    stranger = Space("new", 12, fingerprint="new-12", compatible_with=("old-8",))
    with pytest.raises(SpaceMismatch, match="not on record as compatible"):
        Upgrade.start(gallery, to=stranger, mode="direct")
