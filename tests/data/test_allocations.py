from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.data import ALLOCATIONS, allocate, hold_out_classes
from midspan.errors import ConfigError, DataError

LABELS = np.random.default_rng(3).permutation(np.repeat(np.arange(20), 10))
label_lists = st.lists(st.integers(0, 12), min_size=4, max_size=80).filter(
    lambda labels: len(set(labels)) > 1 and len(labels) > len(set(labels))
)


def test_extended_data_old_sees_a_share_of_each_class_and_new_sees_all() -> None:
    got = allocate(LABELS, kind="extended-data")
    assert got.name == "extended-data"
    assert np.bincount(LABELS[got.old]).tolist() == [3] * 20
    assert got.new.tolist() == list(range(200))


def test_extended_class_old_sees_a_share_of_classes_and_new_sees_all() -> None:
    got = allocate(LABELS, kind="extended-class")
    classes = np.unique(LABELS[got.old])
    assert len(classes) == 6
    assert got.old.tolist() == np.flatnonzero(np.isin(LABELS, classes)).tolist()
    assert got.new.tolist() == list(range(200))


def test_open_data_old_and_new_see_disjoint_images() -> None:
    got = allocate(LABELS, kind="open-data")
    assert np.bincount(LABELS[got.old]).tolist() == [3] * 20
    assert np.bincount(LABELS[got.new]).tolist() == [7] * 20
    assert sorted([*got.old, *got.new]) == list(range(200))


def test_open_class_old_and_new_see_disjoint_classes() -> None:
    got = allocate(LABELS, kind="open-class")
    assert len(np.unique(LABELS[got.old])) == 6
    assert len(np.unique(LABELS[got.new])) == 14
    assert sorted([*got.old, *got.new]) == list(range(200))
    assert not set(LABELS[got.old]) & set(LABELS[got.new])


@pytest.mark.parametrize("kind", ["data", "class"])
def test_extended_and_open_allocation_share_the_old_part(kind: str) -> None:
    extended = allocate(LABELS, kind=f"extended-{kind}", seed=5)
    opened = allocate(LABELS, kind=f"open-{kind}", seed=5)
    assert extended.old.tolist() == opened.old.tolist()


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_allocate_seed_decides_the_split(kind: str) -> None:
    first = allocate(LABELS, kind=kind, seed=1)
    again = allocate(LABELS, kind=kind, seed=1)
    other = allocate(LABELS, kind=kind, seed=2)
    assert first.old.tolist() == again.old.tolist()
    assert first.old.tolist() != other.old.tolist()


def test_allocation_of_a_class_other_classes_moved_or_removed_is_unchanged() -> None:
    def chosen(labels: np.ndarray, label: int) -> list[int]:
        """Which of the class's own images, in their order."""
        old = allocate(labels, kind="extended-data").old
        return np.flatnonzero(np.isin(np.flatnonzero(labels == label), old)).tolist()

    grouped = np.sort(LABELS)
    without_five = LABELS[LABELS != 5]
    for label in (0, 4, 19):
        assert chosen(LABELS, label) == chosen(grouped, label) == chosen(without_five, label)


def test_allocation_images_of_each_class_are_drawn_independently() -> None:
    """Not the same places in every class: rows are often ordered by camera or drawer."""
    grouped = np.sort(LABELS)
    places = allocate(grouped, kind="extended-data").old % 10
    assert len({tuple(choice) for choice in places.reshape(20, 3).tolist()}) > 10


def test_allocation_added_class_moves_at_most_two_others() -> None:
    before = set(LABELS[allocate(LABELS, kind="extended-class").old])
    more = np.concatenate([LABELS, np.full(10, 20)])
    after = set(more[allocate(more, kind="extended-class").old])
    assert len(before ^ after) <= 2


def test_allocation_each_image_is_drawn_at_the_fraction_over_seeds() -> None:
    """Each image is chosen 30 % of the time: 200 seeds, within 5 standard deviations."""
    counts = np.zeros(len(LABELS))
    for seed in range(200):
        counts[allocate(LABELS, kind="extended-data", seed=seed).old] += 1
    spread = 5 * np.sqrt(0.3 * 0.7 / 200)
    assert np.abs(counts / 200 - 0.3).max() < spread


@given(
    labels=label_lists,
    kind=st.sampled_from(sorted(ALLOCATIONS)),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
@settings(max_examples=100, deadline=None)
def test_allocation_any_labels_and_kind_keeps_the_invariants(
    labels: list[int], kind: str, fraction: float, seed: int
) -> None:
    given_labels = np.array(labels)
    got = allocate(given_labels, kind=kind, old_fraction=fraction, seed=seed)
    rows = set(range(len(labels)))
    old, new = set(got.old.tolist()), set(got.new.tolist())
    assert old
    assert new
    assert got.old.tolist() == sorted(old)
    assert (old | new) == rows
    if kind.startswith("extended"):
        assert new == rows
    else:
        assert not old & new
    if kind.endswith("data"):
        assert set(given_labels[got.old]) == set(labels)  # at least one of each class
    else:
        chosen = set(given_labels[got.old])
        assert old == {row for row, label in enumerate(labels) if label in chosen}


def test_allocation_open_data_class_of_one_image_is_old_only() -> None:
    labels = np.array([0, 1, 1, 1, 2])
    got = allocate(labels, kind="open-data")
    assert {0, 4} <= set(got.old.tolist())
    assert labels[got.new].tolist() == [1, 1]
    with pytest.raises(
        DataError, match="expected classes of two images or more, got one image in each"
    ):
        allocate(np.arange(5), kind="open-data")


def test_hold_out_classes_splits_disjoint_and_repeatable() -> None:
    train, validation = hold_out_classes(LABELS)
    assert sorted([*train, *validation]) == list(range(200))
    assert len(np.unique(LABELS[validation])) == 4
    assert not set(LABELS[train]) & set(LABELS[validation])
    assert hold_out_classes(LABELS)[1].tolist() == validation.tolist()
    assert hold_out_classes(LABELS, seed=1)[1].tolist() != validation.tolist()


def test_hold_out_classes_same_seed_is_independent_of_the_allocation() -> None:
    """With one stream for both, held-out classes would always be among the old ones."""
    inside = 0
    for seed in range(30):
        old = set(LABELS[allocate(LABELS, kind="extended-class", seed=seed).old])
        held_out = set(LABELS[hold_out_classes(LABELS, seed=seed)[1]])
        inside += len(old & held_out)
    assert 15 < inside < 60  # 30 x 4 x 0.3 = 36 by chance


@pytest.mark.parametrize("kind", ["extended-class", "open-class"])
def test_allocate_single_class_raises_data_error(kind: str) -> None:
    with pytest.raises(DataError, match="expected two or more classes to divide, got 1"):
        allocate(np.zeros(5, dtype=np.int64), kind=kind)
    with pytest.raises(DataError, match="two or more classes to divide, got 1"):
        hold_out_classes(np.zeros(5, dtype=np.int64))


def test_allocate_wrong_settings_raise_config_error() -> None:
    with pytest.raises(ConfigError, match="no allocation is called 'open-clas'; did you mean"):
        allocate(LABELS, kind="open-clas")
    for fraction in (0.0, 1.0, -0.3, float("nan")):
        with pytest.raises(ConfigError, match="a share between 0 and 1"):
            allocate(LABELS, kind="open-data", old_fraction=fraction)
    with pytest.raises(ConfigError, match="seed of 0 or more, got -1"):
        allocate(LABELS, kind="open-data", seed=-1)


@pytest.mark.parametrize("labels", [np.array([[0, 1]]), np.array([0.5, 1.0]), np.array([0, -1])])
def test_allocate_wrong_labels_raise_data_error(labels: np.ndarray) -> None:
    with pytest.raises(DataError, match="whole numbers from 0, got"):
        allocate(labels, kind="extended-data")


def test_allocate_without_labels_raises_data_error() -> None:
    with pytest.raises(DataError, match="no training images to divide"):
        allocate(np.array([], dtype=np.int64), kind="extended-data")


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_allocation_class_names_are_numbered_in_sorted_order(kind: str) -> None:
    names = np.array([f"class {label:03d}" for label in LABELS])
    by_name, by_number = allocate(names, kind=kind), allocate(LABELS, kind=kind)
    assert by_name.old.tolist() == by_number.old.tolist()
    assert by_name.new.tolist() == by_number.new.tolist()
