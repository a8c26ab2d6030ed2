"""Settings chosen on classes that their training left out."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import ConfigError
from midspan.spaces import FloatArray, IntArray
from midspan.training.held_out import best_on_held_out, is_better

LABELS = np.repeat(np.arange(20), 6)


def vectors_of(noise: float, rows: IntArray) -> FloatArray:
    """Class directions with noise: less noise, better search."""
    draws = np.random.default_rng(0)
    centres = draws.normal(size=(20, 16))
    points = centres[LABELS] + noise * draws.normal(size=(len(LABELS), 16))
    unit: FloatArray = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    return unit[rows]


def test_best_on_held_out_takes_a_clearly_better_candidate() -> None:
    seen = []

    def trial(noise: float, kept: IntArray, held: IntArray) -> FloatArray:
        seen.append((kept, held))
        return vectors_of(noise, held)

    choice = best_on_held_out(LABELS, {"noisy": 5.0, "clean": 0.1}, trial=trial)
    assert choice.name == "clean"
    assert choice.scores["clean"] == pytest.approx(1.0)
    assert choice.scores["noisy"] < 0.6
    for kept, held in seen:
        assert not set(LABELS[kept]) & set(LABELS[held])
        assert len(kept) + len(held) == len(LABELS)
        assert len(set(LABELS[held])) == 4  # a fifth


def test_best_on_held_out_keeps_the_first_of_equal_candidates() -> None:
    choice = best_on_held_out(
        LABELS, {"b": 1.0, "a": 1.0}, trial=lambda noise, _, held: vectors_of(noise, held)
    )
    assert choice.name == "b"
    assert choice.scores["a"] == choice.scores["b"]


def test_best_on_held_out_without_candidates_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at least one candidate, got none"):
        best_on_held_out(
            LABELS, dict[str, float](), trial=lambda noise, _, held: vectors_of(noise, held)
        )


def test_best_on_held_out_keeps_the_default_where_the_lead_is_within_chance() -> None:
    def trial(noises: tuple[float, float], kept: IntArray, held: IntArray) -> FloatArray:
        """Half of the held-out classes are better, the other half a little less worse."""
        even = LABELS[held] % 2 == np.unique(LABELS[held])[0] % 2
        clear, noisy = (vectors_of(noise, held) for noise in noises)
        return np.where(even[:, None], clear, noisy)

    choice = best_on_held_out(LABELS, {"default": (1.1, 1.0), "other": (0.9, 1.1)}, trial=trial)
    assert choice.scores["other"] > choice.scores["default"]
    assert choice.name == "default"


@pytest.mark.parametrize(
    ("difference", "better"),
    [
        ([0.1, 0.11, 0.09, 0.1], True),
        ([0.1, -0.05, 0.1, -0.04], False),  # mean above 0, interval not
        ([-0.1, -0.11, -0.09, -0.1], False),
        ([0.0, 0.0, 0.0, 0.0], False),
    ],
)
def test_is_better_needs_the_interval_above_zero(difference: list[float], better: bool) -> None:
    reference = np.array([0.3, 0.5, 0.2, 0.4])
    assert is_better(reference + np.array(difference), reference) is better
