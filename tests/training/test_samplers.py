"""Batches: complete, seeded, balanced."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import ConfigError
from midspan.training.samplers import Balanced, Shuffled

LABELS = np.repeat(np.arange(6), [10, 10, 10, 10, 10, 1])


def test_shuffled_epoch_has_every_row_once() -> None:
    batches = Shuffled(batch_size=10).batches(np.zeros(30, dtype=np.int64), seed=1, epoch=0)
    assert [len(batch) for batch in batches] == [10, 10, 10]
    assert sorted(np.concatenate(batches).tolist()) == list(range(30))


def test_shuffled_last_batch_is_kept_from_half_size() -> None:
    labels = np.zeros(24, dtype=np.int64)
    assert [len(b) for b in Shuffled(batch_size=10).batches(labels, seed=0, epoch=0)] == [10, 10]
    labels = np.zeros(25, dtype=np.int64)
    assert [len(b) for b in Shuffled(batch_size=10).batches(labels, seed=0, epoch=0)] == [10, 10, 5]
    assert [len(b) for b in Shuffled(batch_size=99).batches(labels, seed=0, epoch=0)] == [25]


@pytest.mark.parametrize(
    "sampler", [Shuffled(batch_size=8), Balanced(classes_per_batch=2, images_per_class=4)]
)
def test_sampler_batches_depend_on_seed_and_epoch_only(sampler: Shuffled | Balanced) -> None:
    def flat(seed: int, epoch: int) -> list[int]:
        return [int(row) for row in np.concatenate(sampler.batches(LABELS, seed=seed, epoch=epoch))]

    assert flat(1, 2) == flat(1, 2)
    assert flat(1, 2) != flat(1, 3)
    assert flat(1, 2) != flat(2, 2)
    assert len(sampler.batches(LABELS, seed=1, epoch=0)) == len(
        sampler.batches(LABELS, seed=1, epoch=7)
    )


def test_balanced_batches_have_p_classes_of_k_images() -> None:
    batches = Balanced(classes_per_batch=3, images_per_class=4).batches(LABELS, seed=0, epoch=0)
    assert len(batches) == len(LABELS) // 12
    for batch in batches:
        classes, counts = np.unique(LABELS[batch], return_counts=True)
        assert len(classes) == 3
        assert set(counts.tolist()) == {4}
    seen = np.unique(LABELS[np.concatenate(batches)])
    assert seen.tolist() == [0, 1, 2, 3, 4, 5]  # classes take turns
    lonely = [batch for batch in batches if (LABELS[batch] == 5).any()]
    assert (lonely[0] == 50).sum() == 4  # its one image stands four times


def test_sampler_impossible_batch_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="expected classes_per_batch of at most 6"):
        Balanced(classes_per_batch=7).batches(LABELS, seed=0, epoch=0)
    with pytest.raises(ConfigError, match="expected batch_size of at least 1, got 0"):
        Shuffled(batch_size=0)
