"""Trusted matching: each term from its equation, trust, repair, mixtures and the prefix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from midspan.errors import ConfigError
from midspan.methods import Mixed, OldArtifacts, TrustedMatching
from midspan.methods.trusted_matching import whitener
from tests.methods.small import (
    CLASSES,
    DIM,
    a_batch,
    drawn,
    gradient_is_right,
    old_artifacts,
    prepared,
    same_as_reference,
)

ROWS = [0, 1, 2, 3, 4, 5, 6, 10]  # 0, 5 and 10 share a class, 1 and 6 another


def method(old: OldArtifacts, *, dim: int = DIM, **settings: Any) -> TrustedMatching:
    return prepared(TrustedMatching(**settings), old, dim=dim)


def unit(vector: Tensor) -> Tensor:
    scaled: Tensor = vector / vector.norm()
    return scaled


def slow_trust(old: OldArtifacts, row: int, *, width: float) -> float:
    """σ(lead / width), the image left out of its own centre."""
    own, label = old.vectors[row], int(old.labels[row])
    cosines = []
    for k in range(CLASSES):
        members = [v for i, v in enumerate(old.vectors) if int(old.labels[i]) == k and i != row]
        cosines.append(float(own @ unit(torch.stack(members).mean(0))))
    lead = cosines[label] - max(c for k, c in enumerate(cosines) if k != label)
    return float(torch.sigmoid(torch.tensor(lead / width)))


def test_class_term_is_cross_entropy_over_the_old_centres() -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    value = method(old, class_weight=2.0, scale=7.0).terms(some)["class"]
    losses = []
    for vector, label in zip(some.vectors, some.labels, strict=True):
        logits = torch.stack([7.0 * unit(vector) @ unit(c).double() for c in old.centres])
        losses.append(logits.logsumexp(0) - logits[label])
    same_as_reference(value, 2.0 * torch.stack(losses).mean(), some.vectors)


@pytest.mark.parametrize("hardest", [0, 2, 100])
def test_contrast_term_sets_the_old_vector_against_old_and_new_negatives(hardest: int) -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    assert some.old is not None
    value = method(old, temperature=0.5, hardest=hardest).terms(some)["contrast"]
    new = [unit(z) for z in some.vectors]
    losses = []
    for i, anchor in enumerate(new):
        others = [k for k in range(len(new)) if some.labels[k] != some.labels[i]]
        counted: list[Tensor] = []
        for family in (list(some.old), new):
            cosines = sorted((anchor @ family[k] for k in others), key=lambda c: -c.item())
            counted += cosines[:hardest] if hardest else cosines
        positive = (anchor @ some.old[i] / 0.5).exp()
        losses.append(-(positive / (positive + sum((c / 0.5).exp() for c in counted))).log())
    same_as_reference(value, torch.stack(losses).mean(), some.vectors)


def test_pull_term_weighs_each_image_by_its_trust() -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    assert some.old is not None
    value = method(old, pull_weight=3.0, trust_width=0.3).terms(some)["pull"]
    losses = [
        slow_trust(old, row, width=0.3) * (unit(z) - o).square().sum()
        for row, z, o in zip(ROWS, some.vectors, some.old, strict=True)
    ]
    same_as_reference(value, 3.0 * torch.stack(losses).mean(), some.vectors)


def test_mixtures_are_pulled_by_the_mean_trust_of_their_two_images() -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    mixed = Mixed(
        vectors=drawn(3, DIM, seed=8).double(),
        old=torch.nn.functional.normalize(drawn(3, DIM, seed=9)).double(),
        rows=torch.tensor([7, 8, 9]),
        others=torch.tensor([1, 2, 3]),
        share=torch.tensor([0.2, 0.5, 0.9]),
    )
    trained = method(old, pull_weight=1.0, trust_width=0.3)
    value = trained.terms(replace(some, mixed=mixed))["pull"]
    losses = []
    for j in range(3):
        first = slow_trust(old, 7 + j, width=0.3)
        second = slow_trust(old, 1 + j, width=0.3)
        trust = float(mixed.share[j]) * first + (1 - float(mixed.share[j])) * second
        losses.append(trust * (unit(mixed.vectors[j]) - mixed.old[j]).square().sum())
    plain = trained.terms(some)["pull"] * len(ROWS)
    torch.testing.assert_close(value, (plain + torch.stack(losses).sum()) / (len(ROWS) + 3))


def test_without_a_width_every_image_is_trusted_as_in_l2() -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    assert some.old is not None
    value = method(old, pull_weight=1.0, trust_width=0.0).terms(some)["pull"]
    squares = [(unit(z) - o).square().sum() for z, o in zip(some.vectors, some.old, strict=True)]
    torch.testing.assert_close(value, torch.stack(squares).mean())


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_whitened_pull_compares_units_of_whitened_vectors(power: float) -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    assert some.old is not None
    value = method(old, pull_weight=2.0, trust_width=0.0, whitening=power).terms(some)["pull"]
    covariance = torch.cov(old.vectors.double().T, correction=0)
    variances, axes = torch.linalg.eigh(covariance)
    assert variances.min() > 1e-2 * variances.max()  # none is so small that it is raised
    turned = torch.diag(variances ** (-power / 2)) @ axes.T
    squares = [
        (unit(turned @ z) - unit(turned @ o)).square().sum()
        for z, o in zip(some.vectors, some.old, strict=True)
    ]
    same_as_reference(value, 2.0 * torch.stack(squares).mean(), some.vectors)


def test_whitener_raises_no_direction_without_variance_beyond_a_limit() -> None:
    flat = torch.cat([drawn(30, 2, seed=3), torch.zeros(30, 2)], dim=1)
    found = whitener(flat, 1.0)
    assert torch.linalg.matrix_norm(found, 2) == pytest.approx(10.0, rel=1e-4)  # (1e-2)^(-1/2)


def test_trusted_matching_prefix_term_uses_the_first_dims_of_the_weights() -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old, dim=DIM + 3)
    assert some.class_rows is not None
    value = method(old, dim=DIM + 3, prefix_weight=2.0, scale=7.0).terms(some)["prefix"]
    losses = []
    for vector, label in zip(some.vectors, some.labels, strict=True):
        logits = torch.stack([7 * unit(vector[:DIM]) @ unit(r[:DIM]) for r in some.class_rows])
        losses.append(logits.logsumexp(0) - logits[label])
    same_as_reference(value, 2.0 * torch.stack(losses).mean(), some.vectors)
    assert "prefix" not in method(old).terms(a_batch(ROWS, old))  # equal dims: nothing to add
    with pytest.raises(ConfigError, match="pass class_rows"):
        method(old, dim=DIM + 3).terms(replace(some, class_rows=None))


def test_trusted_matching_repair_moves_a_wrong_vector_least() -> None:
    old = old_artifacts()
    trained = method(old, repair=1.0, repair_margin=0.05)
    vectors, labels = old.vectors.double(), old.labels
    repaired = trained.repaired(vectors, labels)
    centres = torch.nn.functional.normalize(old.centres.double())

    def lead(t: Tensor, label: int) -> float:
        cosines = centres @ t
        others = torch.cat([cosines[:label], cosines[label + 1 :]])
        return float(cosines[label] - others.max())

    moved = 0
    for before, after, label in zip(vectors, repaired, labels.tolist(), strict=True):
        if lead(before, label) >= 0.05:
            torch.testing.assert_close(after, before)
            continue
        moved += 1
        steps = torch.linspace(0, 1, 2001, dtype=torch.float64)
        path = [unit(torch.lerp(before, centres[label], beta)) for beta in steps]
        first = next(t for t in path if lead(t, label) >= 0.05)
        assert lead(after, label) >= 0.05 - 1e-5
        assert (after - first).norm() < 2e-3
    assert moved


def test_trusted_matching_more_dims_are_compared_by_a_prefix() -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old, dim=DIM + 3)
    terms = method(old, dim=DIM + 3).terms(some)
    (gradient,) = torch.autograd.grad(sum(terms.values()), some.vectors)  # type: ignore[arg-type]
    assert gradient[:, :DIM].abs().sum() > 0
    assert gradient[:, DIM:].abs().sum() == 0
    short = replace(some, vectors=some.vectors[:, :DIM])
    short_terms = method(old).terms(short)
    assert set(terms) == {*short_terms, "prefix"}
    for name, value in short_terms.items():
        torch.testing.assert_close(terms[name], value)


def test_gradient_is_right() -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    trained = method(old, temperature=0.5, repair=0.3, whitening=1.5)
    gradient_is_right(
        lambda z: torch.stack([*trained.terms(replace(some, vectors=z)).values()]).sum(),
        some.vectors,
    )


@pytest.mark.parametrize(
    ("settings", "dim", "message"),
    [
        ({"temperature": 0.0}, DIM, "temperature > 0"),
        ({"repair": 2.0}, DIM, "0 <= repair <= 1"),
        ({}, DIM - 1, "at least the old one"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    settings: dict[str, float], dim: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        method(old_artifacts(), dim=dim, **settings)
