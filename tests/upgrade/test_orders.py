"""Each order against a slow reference written from its equation, and its curve."""

from __future__ import annotations

import math

import numpy as np
import pytest

from midspan.bridges import Confidence, Ridge
from midspan.errors import ConfigError
from midspan.evaluation import backfill_curve
from midspan.spaces import Embeddings
from midspan.upgrade.orders import ORDERS, TEMPERATURE, Hints, order_named
from midspan.upgrade.priorities import class_centres, hints_for
from tests.upgrade.world import NEW, OLD, WIDE, ids, vectors

ITEMS = vectors(ids(80), OLD)
COLUMNS = {
    "created": np.arange(80.0) * 3 % 80 + 1e9,
    "seen": np.arange(80.0) * 7 % 80,
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


REFERENCES = {
    "least_confidence": lambda p: 1 - p[0],
    "uncertainty": lambda p: 1 - p[0],
    "margin": lambda p: 1 - (p[0] - p[1]),
    "entropy": lambda p: -sum(q * math.log(q) for q in p),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_uncertainty_of_the_old_vector(name: str) -> None:
    hints = hints_for(name, OLD_ITEMS)
    assert hints.centres is not None
    found = order_named(name)(OLD_ITEMS, hints)
    wanted = [REFERENCES[name](posterior(v, hints.centres)) for v in OLD_ITEMS.vectors]
    assert found == pytest.approx(wanted, abs=1e-5)


def test_class_centres_are_means_of_unit_vectors() -> None:
    loud = Embeddings(ITEMS.ids, ITEMS.vectors * 7, OLD, {"labels": COLUMNS["labels"]})
    centres, names = class_centres(loud)
    assert names is not None
    for name, centre in zip(names.tolist(), centres, strict=True):
        mine = [v for v, own in zip(ITEMS.vectors, COLUMNS["labels"], strict=True) if own == name]
        assert centre == pytest.approx(np.mean(mine, axis=0), abs=1e-5)


def test_clusters_stand_for_classes_where_there_are_no_labels() -> None:
    bare = Embeddings(np.array(ids(300)), vectors(ids(300), NEW).vectors, NEW)
    clusters, none = class_centres(bare, seed=1)
    assert none is None
    assert clusters.shape == (12, 12)
    assert np.array_equal(clusters, class_centres(bare, seed=1)[0])
    unit = clusters / np.linalg.norm(clusters, axis=1, keepdims=True)
    nearest = np.argmax(bare.vectors @ unit.T, axis=1)
    labels = vectors(ids(300), NEW).columns["labels"]
    pure = sum(np.bincount(labels[nearest == c]).max() for c in range(12) if (nearest == c).any())
    assert pure / 300 > 0.6, "a cluster is mostly of one class; one in six by chance"


def test_too_many_classes_for_the_sample_are_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = len(set(COLUMNS["labels"].tolist()))
    monkeypatch.setattr("midspan.upgrade.priorities.CLASSES", classes)
    assert class_centres(OLD_ITEMS)[1] is not None
    monkeypatch.setattr("midspan.upgrade.priorities.CLASSES", classes - 1)
    centres, names = class_centres(OLD_ITEMS)
    assert names is None
    assert len(centres) == 6  # sqrt(80 / 2)


def test_class_distance_is_that_to_the_own_class() -> None:
    hints = hints_for("class_distance", OLD_ITEMS)
    assert hints.centres is not None
    assert hints.centre_labels is not None
    places = {name: place for place, name in enumerate(hints.centre_labels.tolist())}
    found = order_named("class_distance")(OLD_ITEMS, hints)
    wanted = [
        1 - cosine(vector, hints.centres[places[name]])
        for vector, name in zip(OLD_ITEMS.vectors, COLUMNS["labels"].tolist(), strict=True)
    ]
    assert found == pytest.approx(wanted, abs=1e-5)
    bare = Embeddings(ITEMS.ids, ITEMS.vectors, OLD)
    nearest = [1 - max(cosine(v, c) for c in hints.centres) for v in ITEMS.vectors]
    assert order_named("class_distance")(bare, hints) == pytest.approx(nearest, abs=1e-5)


def test_newest_and_most_seen_follow_their_columns() -> None:
    now = 2e9
    newest = order_named("newest")(OLD_ITEMS, Hints(now=now))
    assert np.argmax(newest) == np.argmax(COLUMNS["created"])
    assert (newest <= 0).all(), "what is added later has priority 0 and comes first"
    assert np.array_equal(order_named("most_seen")(OLD_ITEMS, Hints()), COLUMNS["seen"])


def test_random_depends_on_id_and_seed_only() -> None:
    order = order_named("random")
    whole = order(OLD_ITEMS, Hints(seed=3))
    assert np.array_equal(order(OLD_ITEMS[20:30], Hints(seed=3)), whole[20:30])
    assert not np.array_equal(order(OLD_ITEMS, Hints(seed=4)), whole)
    assert len(np.unique(whole)) == 80
    many = order(vectors(ids(2000), OLD), Hints())
    assert abs(many.mean() - 0.5) < 0.03
    assert ((many >= 0) & (many < 1)).all()


def test_bridge_error_is_the_confidence_of_the_bridge() -> None:
    old, new = vectors(ids(200), OLD), vectors(ids(200), WIDE)
    bridge = Ridge().fit(old, new)
    hints = hints_for("bridge_error", old, new=new, bridge=bridge)
    wanted = Confidence(seed=0).fit(bridge, old, new).predict(ITEMS)
    assert order_named("bridge_error")(ITEMS, hints) == pytest.approx(wanted)


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
        ("entropy", "class centres and got 0"),
        ("bridge_error", "error of a bridge"),
        ("disagreement", "two bridges"),
        ("newest", "column 'created'"),
        ("most_seen", "column 'seen'"),
    ],
)
def test_an_order_says_what_it_lacks(name: str, words: str) -> None:
    bare = Embeddings(ITEMS.ids, ITEMS.vectors, OLD)
    with pytest.raises(ConfigError, match=words):
        order_named(name)(bare, Hints())


def test_unknown_orders_are_refused_with_a_proposal() -> None:
    with pytest.raises(ConfigError, match="entropy"):
        order_named("entropie")


@pytest.mark.parametrize("name", ORDERS)
def test_the_curve_of_each_order(name: str) -> None:
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
