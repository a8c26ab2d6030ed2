"""Hot-refresh: three variants from the equations, the negatives that may count, and the edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from midspan.errors import ConfigError
from midspan.methods import Batch, OldArtifacts
from midspan.methods.hot_refresh import HotRefresh
from tests.methods.small import (
    CLASSES,
    DIM,
    MAP,
    a_batch,
    differentiable_zero,
    gradient_is_right,
    old_artifacts,
    old_classifier,
    only_vectors,
    prepared,
    renamed,
    renamed_batch,
    same_as_reference,
)

ROWS = [0, 1, 2, 3, 4, 5, 6, 10]  # 0, 5 and 10 share a class, 1 and 6 another


def hot(**settings: Any) -> HotRefresh:
    return HotRefresh(**{"temperature": 0.5, **settings})


def units(some: Batch) -> tuple[list[Tensor], list[Tensor]]:
    assert some.old is not None
    return [z / z.norm() for z in some.vectors], [z / z.norm() for z in some.old]


def nearest(distances: list[Tensor], hardest: int) -> list[Tensor]:
    ordered = sorted(distances, key=lambda distance: distance.item())
    return ordered[:hardest] if hardest else ordered


def slow_contrastive(some: Batch, *, negatives: str, hardest: int, temperature: float) -> Tensor:
    new, old = units(some)
    losses = []
    for i, anchor in enumerate(new):
        others = [k for k in range(len(new)) if some.labels[k] != some.labels[i]]
        from_old = nearest([-anchor @ old[k] for k in others], hardest)
        from_new = nearest([-anchor @ new[k] for k in others], hardest)
        counted = from_old + (from_new if negatives == "both" else [])
        positive = (anchor @ old[i] / temperature).exp()
        total = positive + sum((-n / temperature).exp() for n in counted)
        losses.append(-(positive / total).log())
    return torch.stack(losses).mean()


def slow_triplet(some: Batch, *, negatives: str, hardest: int, margin: float) -> Tensor:
    new, old = units(some)
    total = torch.zeros(())
    for family in [old, new] if negatives == "both" else [old]:
        losses = []
        for i, anchor in enumerate(new):
            others = [k for k in range(len(new)) if some.labels[k] != some.labels[i]]
            for distance in nearest([(anchor - family[k]).norm() for k in others], hardest):
                losses.append(torch.relu((anchor - old[i]).norm() - distance + margin))
        total = total + torch.stack(losses).mean()
    return total


def slow_classifier(some: Batch, rows: list[Tensor], place: dict[int, int], scale: float) -> Tensor:
    assert some.logits is not None
    losses = []
    for i, vector in enumerate(some.vectors):
        label = int(some.labels[i])
        old_logits = [scale * vector @ r / (vector.norm() * r.norm()) for r in rows]
        new_logits = [some.logits[i, k] for k in range(some.logits.shape[1]) if k != label]
        everything = torch.stack([*old_logits, *new_logits])
        losses.append(everything.logsumexp(0) - old_logits[place[label]])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("negatives", ["both", "old"])
@pytest.mark.parametrize("hardest", [0, 1, 3, 100])
def test_hot_refresh_contrastive_value_and_gradient_match_the_reference(
    negatives: str, hardest: int
) -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    method = prepared(hot(weight=2.0, negatives=negatives, hardest=hardest), old)
    reference = slow_contrastive(some, negatives=negatives, hardest=hardest, temperature=0.5)
    same_as_reference(method.terms(some)["contrastive"], 2.0 * reference, some.vectors)
    gradient_is_right(lambda z: method.terms(replace(some, vectors=z))["contrastive"], some.vectors)


@pytest.mark.parametrize("negatives", ["both", "old"])
@pytest.mark.parametrize("hardest", [0, 3])
@pytest.mark.parametrize("margin", [0.1, 0.8])
def test_hot_refresh_triplet_value_and_gradient_match_the_reference(
    negatives: str, hardest: int, margin: float
) -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    method = prepared(
        hot(variant="triplet", negatives=negatives, hardest=hardest, margin=margin), old
    )
    reference = slow_triplet(some, negatives=negatives, hardest=hardest, margin=margin)
    same_as_reference(method.terms(some)["triplet"], reference.double(), some.vectors)
    gradient_is_right(lambda z: method.terms(replace(some, vectors=z))["triplet"], some.vectors)


@pytest.mark.parametrize("known", [True, False])
def test_hot_refresh_classifier_value_and_gradient_match_the_reference(known: bool) -> None:
    frozen = old_classifier() if known else None
    old = old_artifacts(classifier=frozen) if known else only_vectors()
    some = a_batch(ROWS, old)
    method = prepared(hot(variant="classifier", scale=6.0), old)
    if frozen is not None:  # the three known classes, then the centres of classes 1 and 3
        rows = [*frozen.rows.double(), old.centres[1].double(), old.centres[3].double()]
        place, scale = {0: 2, 1: 3, 2: 0, 3: 4, 4: 1}, 10.0
    else:
        rows, place, scale = list(old.centres.double()), {k: k for k in range(CLASSES)}, 6.0
    reference = slow_classifier(some, rows, place, scale)
    assert some.class_rows is not None
    same_as_reference(method.terms(some)["classifier"], reference, some.vectors, some.class_rows)

    def term(vectors: Tensor) -> Tensor:
        assert some.class_rows is not None
        logits = 8.0 * vectors @ some.class_rows.detach().T
        value: Tensor = method.terms(replace(some, vectors=vectors, logits=logits))["classifier"]
        return value

    gradient_is_right(term, some.vectors)


def test_classifier_without_new_negatives_is_bct() -> None:
    from midspan.methods.bct import BCT

    old = old_artifacts(classifier=old_classifier())
    some = a_batch(ROWS, old)
    ours = prepared(hot(variant="classifier", negatives="old"), old).terms(some)["classifier"]
    torch.testing.assert_close(ours, prepared(BCT(weight=1.0), old).terms(some)["influence"])


@pytest.mark.parametrize("variant", ["contrastive", "triplet", "classifier"])
@pytest.mark.parametrize("hardest", [0, 2])
def test_new_negatives_can_only_add(variant: str, hardest: int) -> None:
    old = old_artifacts(classifier=old_classifier())
    for seed in range(5):
        some = a_batch(ROWS, old, seed=seed)
        both, plain = (
            prepared(hot(variant=variant, negatives=n, hardest=hardest), old).terms(some)[variant]
            for n in ("both", "old")
        )
        assert both >= plain


def test_wide_gaps_cost_nothing() -> None:
    corners = torch.cat([torch.eye(DIM), torch.eye(DIM)])  # two images a class, one axis a class
    old = old_artifacts(
        vectors=corners,
        labels=torch.arange(2 * DIM) % DIM,
        num_classes=DIM,
        label_map=torch.full((DIM,), -1),
    )
    some = a_batch(list(range(2 * DIM)), old)
    some.vectors.data = corners.double()
    assert prepared(hot(temperature=0.01), old).terms(some)["contrastive"].item() < 1e-12
    assert prepared(hot(variant="triplet"), old).terms(some)["triplet"].item() == 0.0


def test_others_of_the_class_are_in_neither_sum() -> None:
    """Where another image of the class was in the old space is nothing to an image."""
    old = old_artifacts()
    some = a_batch([0, 5, 1], old)  # 0 and 5 share a class
    assert some.old is not None
    moved = some.old.clone()
    moved[1] = -moved[1]
    for variant in ("contrastive", "triplet"):
        method = prepared(hot(variant=variant, negatives="old", hardest=0), old)
        gradients = []
        for stored in (some.old, moved):
            value = method.terms(replace(some, old=stored))[variant]
            (gradient,) = torch.autograd.grad(value, some.vectors, retain_graph=True)
            gradients.append(gradient[0])  # of image 0
        torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("variant", ["contrastive", "triplet"])
@pytest.mark.parametrize("rows", [[0], [0, 5, 10]])
def test_without_any_negative_the_loss_is_a_differentiable_zero(
    variant: str, rows: list[int]
) -> None:
    old = old_artifacts()
    some = a_batch(rows, old)
    differentiable_zero(prepared(hot(variant=variant), old).terms(some)[variant], some.vectors)


def test_the_old_vector_itself_has_a_finite_gradient() -> None:
    old = old_artifacts()
    for variant in ("contrastive", "triplet"):
        some = a_batch(ROWS, old)
        assert some.old is not None
        some.vectors.data = some.old.clone()
        value = prepared(hot(variant=variant, temperature=0.01), old).terms(some)[variant]
        (gradient,) = torch.autograd.grad(value, some.vectors)
        assert torch.isfinite(gradient).all()


def test_images_of_classes_without_a_row_do_not_count_for_the_classifier() -> None:
    labels = torch.tensor([0, 0, 2, 2, 2])
    old = old_artifacts(labels=labels)
    method = prepared(hot(variant="classifier"), old)
    some = a_batch([0, 2], old)
    strange = replace(some, labels=torch.tensor([1, 3]))  # no images were there to make rows from
    differentiable_zero(method.terms(strange)["classifier"], some.vectors)


def check_same(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    for name, value in before.items():
        torch.testing.assert_close(after[name], value)


@pytest.mark.parametrize("variant", ["contrastive", "triplet", "classifier"])
def test_hot_refresh_relabelling_classes_keeps_the_terms(variant: str) -> None:
    old = old_artifacts(classifier=old_classifier())
    some = a_batch(ROWS, old)
    before = prepared(hot(variant=variant), old).terms(some)
    check_same(before, prepared(hot(variant=variant), renamed(old)).terms(renamed_batch(some)))

    # other ids for the old classes
    frozen, turn = old_classifier(), torch.tensor([1, 2, 0])
    label_map = torch.where(MAP >= 0, turn[MAP.clamp_min(0)], MAP)
    turned = replace(frozen, rows=frozen.rows[turn.argsort()])
    other = old_artifacts(classifier=turned, label_map=label_map)
    check_same(before, prepared(hot(variant=variant), other).terms(some))


@pytest.mark.parametrize("variant", ["contrastive", "triplet"])
def test_vectors_alone_are_enough(variant: str) -> None:
    whole, alone = old_artifacts(classifier=old_classifier()), only_vectors()
    assert isinstance(whole, OldArtifacts)
    some = a_batch(ROWS, whole)
    check_same(
        prepared(hot(variant=variant), whole).terms(some),
        prepared(hot(variant=variant), alone).terms(some),
    )


def test_hot_refresh_impossible_settings_raise_config_error() -> None:
    old = old_artifacts()
    with pytest.raises(ConfigError, match="hot-refresh needs the old encoder"):
        HotRefresh().prepare(old=None, num_classes=CLASSES, dim=DIM)
    with pytest.raises(ConfigError, match=r"new dim must be the old one.*dim = 4"):
        HotRefresh().prepare(old=old, num_classes=CLASSES, dim=DIM + 1)
    with pytest.raises(ConfigError, match=r"temperature > 0.*got temperature 0"):
        HotRefresh(temperature=0.0)
    with pytest.raises(ConfigError, match=r"needs the logits.*negatives = 'old'"):
        prepared(hot(variant="classifier"), old).terms(replace(a_batch(ROWS, old), logits=None))
