"""Old artifacts against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from midspan.errors import DataError
from midspan.methods import OldArtifacts
from midspan.spaces import Space

SPACE = Space("old", 3)


def measured(labels: list[int], num_classes: int, seed: int = 0) -> OldArtifacts:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(labels), 3, generator=generator) * 4
    return OldArtifacts.measure(
        space=SPACE, vectors=vectors, labels=torch.tensor(labels), num_classes=num_classes
    )


def test_centres_radii_and_angles_by_loops() -> None:
    labels = [0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2]
    old = measured(labels, 4)
    vectors = old.vectors.numpy()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    for label in range(3):
        own = vectors[np.array(labels) == label]
        centre = own.mean(0)
        np.testing.assert_allclose(old.centres[label], centre, atol=1e-6)
        distances = np.linalg.norm(own - centre, axis=1)
        if len(own) >= 4:
            q1, q3 = np.quantile(distances, [0.25, 0.75])
            distances = distances[
                (distances >= q1 - 1.5 * (q3 - q1)) & (distances <= q3 + 1.5 * (q3 - q1))
            ]
        assert float(old.radii[label]) == pytest.approx(float(distances.max()), abs=1e-6)
        cosines = own @ centre / np.linalg.norm(centre)
        angle = max(math.acos(min(1.0, max(-1.0, c))) for c in cosines)
        assert float(old.angles[label]) == pytest.approx(angle, abs=1e-3)
    assert old.counts.tolist() == [3, 1, 8, 0]


def test_a_class_of_one_image_is_its_own_centre() -> None:
    old = measured([0, 1, 1], 2)
    torch.testing.assert_close(old.centres[0], old.vectors[0])
    assert float(old.radii[0]) == 0.0


def test_an_outlier_does_not_widen_the_radius() -> None:
    near = torch.tensor([[1.0, x, 0.0] for x in np.linspace(-0.05, 0.05, 11)])
    far = torch.tensor([[0.0, 0.0, 1.0]])
    labels = torch.zeros(12, dtype=torch.int64)
    old = OldArtifacts.measure(
        space=SPACE, vectors=torch.cat([near, far]), labels=labels, num_classes=1
    )
    distances = (old.vectors - old.centres[0]).norm(dim=1)
    assert float(old.radii[0]) < float(distances[-1]) / 2


def test_classes_without_images_are_defined() -> None:
    old = measured([1, 1], 3)
    assert old.centres[0].tolist() == [0.0, 0.0, 0.0]
    assert old.radii[2] == old.angles[2] == 0.0
    assert old.label_map.tolist() == [-1, -1, -1]


def test_lengths_must_agree() -> None:
    with pytest.raises(DataError, match="expected one label for each old vector, got 3 for 2"):
        OldArtifacts.measure(
            space=SPACE, vectors=torch.ones(2, 3), labels=torch.zeros(3).long(), num_classes=1
        )


@pytest.mark.parametrize("part", [1, 3, 12, 100])
def test_a_number_for_each_image_does_not_depend_on_how_many_go_together(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midspan.methods.old.PART", part)
    old = measured([0, 1, 2] * 4, 3)
    got = old.each(lambda vectors, labels: vectors[:, 0] + labels)
    torch.testing.assert_close(got, old.vectors[:, 0] + old.labels)
