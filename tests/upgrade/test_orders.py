"""Each order against a slow reference written from its equation, and its curve."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from midspan.errors import ConfigError
from midspan.evaluation import backfill_curve
from midspan.spaces import Embeddings
from midspan.upgrade.orders import ORDERS, TEMPERATURE, Hints, default_order, order_named
from midspan.upgrade.priorities import class_centres, hints_for
from tests.upgrade.world import NEW, OLD, WIDE, ids, vectors

ITEMS = vectors(ids(80), OLD)
COLUMNS = {
    "created": np.arange(80.0) * 3 % 80 + 1e9,
    "labels": np.array([str(label) for label in ITEMS.columns["labels"]]),
}
OLD_ITEMS = ITEMS.with_columns(COLUMNS)


def cosine(a: object, b: object) -> float:
    x = [float(value) for value in np.asarray(a)]
    y = [float(value) for value in np.asarray(b)]
    product = sum(p * q for p, q in zip(x, y, strict=True))
    return product / math.sqrt(sum(p * p for p in x) * sum(q * q for q in y))


def posterior(vector: object, centres: object) -> list[float]:
    """softmax(cos / temperature), most likely first."""
    powers = [math.exp(cosine(vector, centre) / TEMPERATURE) for centre in np.asarray(centres)]
    return sorted((power / sum(powers) for power in powers), reverse=True)


def test_uncertainty_is_the_entropy_of_the_old_vectors_posterior() -> None:
    hints = hints_for("uncertainty", OLD_ITEMS)
    assert hints.centres is not None
    found = order_named("uncertainty")(OLD_ITEMS, hints)
    spread = [posterior(v, hints.centres) for v in OLD_ITEMS.vectors]
    assert found == pytest.approx([-sum(q * math.log(q) for q in p) for p in spread], abs=1e-5)


def test_traffic_takes_what_was_returned_most_then_the_uncertain() -> None:
    hints = hints_for("traffic", OLD_ITEMS)
    counted = replace(hints, returned={"i0003": 2, "i0001": 1})
    found = order_named("traffic")(OLD_ITEMS, counted)
    names = [ITEMS.ids[row] for row in np.argsort(-found, kind="stable")]
    unsure = order_named("uncertainty")(OLD_ITEMS, hints)
    others = [ITEMS.ids[row] for row in np.argsort(-unsure, kind="stable")]
    first = ["i0003", "i0001"]
    assert names == first + [name for name in others if name not in first]


@pytest.mark.parametrize(
    ("mode", "sampled", "order"),
    [
        ("both", True, "uncertainty"),
        ("direct", True, "uncertainty"),
        ("map-gallery", True, "disagreement"),
        ("map-query", True, "disagreement"),
        ("map-gallery", False, "uncertainty"),
    ],
)
def test_the_default_order_is_that_of_the_mode(mode: str, sampled: bool, order: str) -> None:
    assert default_order(mode, sampled=sampled) == order


def test_class_centres_are_means_of_unit_vectors() -> None:
    loud = Embeddings(ITEMS.ids, ITEMS.vectors * 7, OLD, {"labels": COLUMNS["labels"]})
    names = np.unique(COLUMNS["labels"])
    for name, centre in zip(names.tolist(), class_centres(loud), strict=True):
        mine = [v for v, own in zip(ITEMS.vectors, COLUMNS["labels"], strict=True) if own == name]
        assert centre == pytest.approx(np.mean(mine, axis=0), abs=1e-5)


def test_clusters_stand_for_classes_where_there_are_no_labels() -> None:
    bare = Embeddings(np.array(ids(300)), vectors(ids(300), NEW).vectors, NEW)
    clusters = class_centres(bare, seed=1)
    assert clusters.shape == (12, 12)
    assert np.array_equal(clusters, class_centres(bare, seed=1))
    unit = clusters / np.linalg.norm(clusters, axis=1, keepdims=True)
    nearest = np.argmax(bare.vectors @ unit.T, axis=1)
    labels = vectors(ids(300), NEW).columns["labels"].astype(np.int64)
    pure = sum(np.bincount(labels[nearest == c]).max() for c in range(12) if (nearest == c).any())
    assert pure / 300 > 0.6, "a cluster is mostly of one class; one in six by chance"


def test_too_many_classes_for_the_sample_are_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = len(set(COLUMNS["labels"].tolist()))
    monkeypatch.setattr("midspan.upgrade.priorities.CLASSES", classes)
    whole = class_centres(OLD_ITEMS)
    monkeypatch.setattr("midspan.upgrade.priorities.CLASSES", classes - 1)
    assert len(class_centres(OLD_ITEMS)) == 6  # sqrt(80 / 2)
    assert not np.array_equal(class_centres(OLD_ITEMS), whole)


def test_newest_follows_its_column() -> None:
    now = 2e9
    newest = order_named("newest")(OLD_ITEMS, Hints(now=now))
    assert np.argmax(newest) == np.argmax(COLUMNS["created"])
    assert (newest <= 0).all(), "what is added later has priority 0 and comes first"


def test_random_depends_on_id_and_seed_only() -> None:
    order = order_named("random")
    whole = order(OLD_ITEMS, Hints(seed=3))
    assert np.array_equal(order(OLD_ITEMS[20:30], Hints(seed=3)), whole[20:30])
    assert not np.array_equal(order(OLD_ITEMS, Hints(seed=4)), whole)
    assert len(np.unique(whole)) == 80
    many = order(vectors(ids(2000), OLD), Hints())
    assert abs(many.mean() - 0.5) < 0.03
    assert ((many >= 0) & (many < 1)).all()


def test_disagreement_is_the_mean_squared_distance_of_the_maps() -> None:
    old, new = vectors(ids(200), OLD), vectors(ids(200), WIDE)
    hints = hints_for("disagreement", old, new=new)
    mapped = [bridge.transform(ITEMS).vectors for bridge in hints.bridges]
    assert len(mapped) == 4
    pairs = [(a, b) for a in range(4) for b in range(4) if a < b]
    wanted = np.mean([((mapped[a] - mapped[b]) ** 2).sum(axis=1) for a, b in pairs], axis=0)
    assert order_named("disagreement")(ITEMS, hints) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("uncertainty", "two class centres, got 0"),
        ("disagreement", "two bridges"),
        ("newest", "column 'created'"),
    ],
)
def test_an_order_says_what_it_lacks(name: str, words: str) -> None:
    bare = Embeddings(ITEMS.ids, ITEMS.vectors, OLD)
    with pytest.raises(ConfigError, match=words):
        order_named(name)(bare, Hints())


def test_unknown_orders_are_refused_with_a_proposal() -> None:
    with pytest.raises(ConfigError, match="newest"):
        order_named("newst")


@pytest.mark.parametrize("name", ORDERS)
def test_the_curve_of_each_order_ends_at_the_new_encoder(name: str) -> None:
    """It begins and ends where all others do; each order gives every item a finite priority."""
    new = vectors(ids(80), NEW)
    hints = hints_for(name, OLD_ITEMS, new=new)
    priorities = order_named(name)(OLD_ITEMS, hints)
    assert priorities.shape == (80,)
    assert np.isfinite(priorities).all()
    curves = [
        backfill_curve(query=new, gallery_old=ITEMS, gallery_new=new, order=order, points=5)
        for order in (np.argsort(-priorities, kind="stable"), np.arange(80))
    ]
    assert curves[0].values[[0, -1]] == pytest.approx(curves[1].values[[0, -1]])
    assert curves[0].values[-1] > curves[0].values[0]


def test_uncertain_items_first_is_better_than_last() -> None:
    old = vectors(ids(300), OLD)
    new = vectors(ids(300), NEW)
    order = np.argsort(-order_named("uncertainty")(old, hints_for("uncertainty", old)))
    areas = [
        backfill_curve(query=new, gallery_old=old, gallery_new=new, order=way).area_trapezoid
        for way in (order, order[::-1])
    ]
    assert areas[0] > areas[1]
