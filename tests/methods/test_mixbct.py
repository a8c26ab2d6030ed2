"""MixBCT: which vectors are replaced, by what, and what learns from them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.losses.cosface import CosFace
from midspan.losses.softmax import Softmax
from midspan.methods import Batch, OldArtifacts, OldClassifier
from midspan.methods.mixbct import MixBCT
from midspan.spaces import Space

DIM, CLASSES = 4, 5
SPACE = Space("old", DIM, fingerprint="f-old")
LABELS = torch.tensor([0] * 20 + [1] * 10 + [2] * 2 + [3])  # class 4 has no images


def artifacts(labels: Tensor = LABELS, *, known: bool = True) -> OldArtifacts:
    generator = torch.Generator().manual_seed(2)
    spots = torch.randn(CLASSES, DIM, generator=generator)[LABELS]
    classifier = OldClassifier(rows=torch.ones(1, DIM), bias=None, scale=8.0, normalised=True)
    return OldArtifacts.measure(
        space=SPACE,
        vectors=spots + 0.5 * torch.randn(len(LABELS), DIM, generator=generator),
        labels=labels,
        num_classes=CLASSES,
        classifier=classifier if known else None,
        label_map=torch.tensor([0, -1, -1, -1, -1]) if known else None,
    )


def prepared(method: MixBCT, old: OldArtifacts) -> MixBCT:
    method.prepare(old=old, num_classes=CLASSES, dim=DIM)
    return method


def mixed(
    method: MixBCT, old: OldArtifacts, rows: list[int], *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """(new vectors, what the loss sees, which of them are old ones)."""
    generator = torch.Generator().manual_seed(7)
    vectors = 5 * torch.randn(len(rows), DIM, generator=generator)
    vectors.requires_grad_()
    torch.manual_seed(seed)
    seen = method.mix(vectors, old=old.vectors[rows], labels=old.labels[rows])
    return vectors, seen, (seen != vectors).any(1)


EVERYTHING = list(range(len(LABELS)))


def slow_credible(old: OldArtifacts, label: int, part: float) -> set[int]:
    rows = (old.labels == label).nonzero()[:, 0].tolist()
    centre = old.vectors[rows].mean(0)
    ranked = sorted(rows, key=lambda row: float((old.vectors[row] - centre).norm()))
    return set(ranked[: math.ceil(part * len(rows) - 1e-9)])


@pytest.mark.parametrize("part", [0.9, 0.5, 0.05, 1.0])
def test_mixbct_replaces_the_closest_images_of_each_class_only(part: float) -> None:
    old = artifacts()
    method = prepared(MixBCT(share=0.999, credible=part), old)
    credible = set().union(*(slow_credible(old, label, part) for label in range(4)))
    _, _, replaced = mixed(method, old, EVERYTHING)
    found = set(replaced.nonzero()[:, 0].tolist())
    if len(credible) < len(EVERYTHING):
        assert found == credible
    else:
        assert len(found) == len(EVERYTHING) - 1  # one stays the encoder's own


def test_single_images_and_pairs_are_credible() -> None:
    old = artifacts()
    method = prepared(MixBCT(share=0.999), old)
    assert torch.isinf(method.reach[[2, 3, 4]]).all()
    _, _, replaced = mixed(method, old, [30, 31, 32, 0])
    assert int(replaced.sum()) == 3


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_mixbct_keeps_the_share_and_draws_it_again_each_step(share: float) -> None:
    old = artifacts()
    method = prepared(MixBCT(share=share), old)
    counts = torch.zeros(len(EVERYTHING))
    for seed in range(200):
        _, _, replaced = mixed(method, old, EVERYTHING, seed=seed)
        assert int(replaced.sum()) == int(share * len(EVERYTHING))
        counts += replaced
    credible = sorted(set().union(*(slow_credible(old, label, 0.9) for label in range(4))))
    rate = share * len(EVERYTHING) / len(credible)
    if share:
        # each credible image has the same chance: within five deviations
        deviation = math.sqrt(rate * (1 - rate) / 200)
        assert (
            (counts[credible] / 200 - int(share * 33) / len(credible)).abs() < 5 * deviation
        ).all()
    assert counts.sum() == counts[credible].sum()


def test_the_draw_follows_the_global_seed() -> None:
    old = artifacts()
    method = prepared(MixBCT(), old)
    first, second, third = (mixed(method, old, EVERYTHING, seed=s)[2] for s in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_replaced_vectors_are_old_directions_of_the_batchs_mean_norm() -> None:
    old = artifacts()
    vectors, seen, replaced = mixed(prepared(MixBCT(), old), old, EVERYTHING)
    mean = sum(float(vector.detach().norm()) for vector in vectors) / len(vectors)
    for row in EVERYTHING:
        wanted = old.vectors[row] * mean if replaced[row] else vectors[row]
        torch.testing.assert_close(seen[row], wanted)


@pytest.mark.parametrize("loss", [CosFace(scale=8.0, margin=0.1), Softmax()])
def test_new_vectors_learn_and_old_ones_do_not(loss: CosFace | Softmax) -> None:
    """The loss on the mixed batch, written as two sums; the gradient of the replaced is zero."""
    old = artifacts()
    method = prepared(MixBCT(), old)
    torch.manual_seed(1)
    loss.prepare(num_classes=CLASSES, dim=DIM)
    stored = old.vectors.clone().requires_grad_()
    vectors = (3 * torch.randn(len(EVERYTHING), DIM)).requires_grad_()
    seen = method.mix(vectors, old=stored, labels=old.labels)
    replaced = (seen != vectors).any(1)
    value = loss(vectors=seen, logits=loss.logits(seen), labels=old.labels)
    total = torch.zeros(())
    for row in EVERYTHING:
        vector = stored.detach()[row] * vectors.detach().norm(dim=1).mean()
        one = (vector if replaced[row] else vectors[row]).unsqueeze(0)
        label = old.labels[row : row + 1]
        total = total + loss(vectors=one, logits=loss.logits(one), labels=label)
    torch.testing.assert_close(value, total / len(EVERYTHING))

    value.backward()
    assert stored.grad is None
    gradient = vectors.grad
    assert gradient is not None
    assert gradient[replaced].abs().sum() == 0
    assert (gradient[~replaced].abs().sum(1) > 0).all()


def test_gradient_of_the_mixed_loss_by_differences() -> None:
    old = artifacts()
    method = prepared(MixBCT(), old).double()
    torch.manual_seed(1)
    loss = CosFace(scale=4.0, margin=0.1)
    loss.prepare(num_classes=CLASSES, dim=DIM)
    loss.double()
    rows = [0, 3, 20, 22, 30, 32]
    start = torch.randn(len(rows), DIM, dtype=torch.float64)
    start = F.normalize(start) * 2.0

    def value(vectors: Tensor) -> Tensor:
        torch.manual_seed(4)
        # Cosines do not see the norm, so the constant that old vectors are scaled by is no matter.
        seen = method.mix(vectors, old=old.vectors[rows], labels=old.labels[rows])
        return torch.as_tensor(
            loss(vectors=seen, logits=loss.logits(seen), labels=old.labels[rows])
        )

    assert torch.autograd.gradcheck(value, (start.requires_grad_(),))


def test_there_is_no_term() -> None:
    old = artifacts()
    some = Batch(
        vectors=torch.randn(3, DIM),
        logits=None,
        labels=old.labels[:3],
        rows=torch.arange(3),
        old=old.vectors[:3],
    )
    method = prepared(MixBCT(), old)
    assert method.terms(some) == {}
    assert list(method.parameters()) == []
    assert method.maps() == {}
    assert method.fixed_rows() is None


def test_mixbct_batch_of_one_or_without_credible_images_is_unchanged() -> None:
    old = artifacts()
    method = prepared(MixBCT(share=0.9, credible=0.05), old)
    vectors, seen, _ = mixed(method, old, [5])
    assert torch.equal(seen, vectors)
    far = [row for row in range(20) if row not in slow_credible(old, 0, 0.05)]
    vectors, seen, _ = mixed(method, old, far)
    assert torch.equal(seen, vectors)


def test_vectors_alone_are_enough() -> None:
    with_rows = mixed(prepared(MixBCT(), artifacts()), artifacts(), EVERYTHING)[1]
    old = artifacts(known=False)
    torch.testing.assert_close(mixed(prepared(MixBCT(), old), old, EVERYTHING)[1], with_rows)


def test_mixbct_relabelling_classes_keeps_the_mixture() -> None:
    turn = torch.tensor([3, 0, 4, 1, 2])  # new name of each class
    old, renamed = artifacts(), artifacts(turn[LABELS])
    before = mixed(prepared(MixBCT(), old), old, EVERYTHING)[1]
    torch.testing.assert_close(mixed(prepared(MixBCT(), renamed), renamed, EVERYTHING)[1], before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.0}, "0 ≤ share < 1"),
        ({"share": -0.1}, "0 ≤ share < 1"),
        ({"credible": 0.0}, "0 < credible ≤ 1"),
    ],
)
def test_impossible_settings_are_said(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixBCT(**settings)


def test_impossible_things_are_said() -> None:
    with pytest.raises(ConfigError, match="mixbct needs the old encoder"):
        MixBCT().prepare(old=None, num_classes=2, dim=2)
    with pytest.raises(ConfigError, match=r"set \[encoder\] dim = 4"):
        MixBCT().prepare(old=artifacts(), num_classes=CLASSES, dim=DIM + 1)
