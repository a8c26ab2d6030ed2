"""Pair and proxy losses against loops written from the equations, and against a library."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.losses import RecognitionLoss
from midspan.losses.margin import Margin
from midspan.losses.negatives import distance_weighted, distances, log_weights
from midspan.losses.proxy_anchor import ProxyAnchor
from midspan.losses.proxy_nca import ProxyNCA
from midspan.losses.supcon import SupCon
from midspan.losses.triplet import Triplet

CLASSES, DIM = 5, 6
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0, 1])  # class 4 is absent, class 3 alone


def prepared(loss: RecognitionLoss) -> RecognitionLoss:
    torch.manual_seed(3)
    loss.prepare(num_classes=CLASSES, dim=DIM)
    return loss.double()


def vectors() -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(len(LABELS), DIM, generator=generator, dtype=torch.float64).requires_grad_()


def value(loss: RecognitionLoss, x: Tensor, labels: Tensor = LABELS) -> Tensor:
    result: Tensor = loss(vectors=x, logits=loss.logits(x), labels=labels)
    return result


def cos(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a, b).div(a.norm() * b.norm())


def slow_nca(x: Tensor, rows: Tensor, scale: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for vector, label in zip(x, LABELS.tolist(), strict=True):
        squared = [(vector / vector.norm() - row / row.norm()).square().sum() for row in rows]
        others = sum(torch.exp(-scale * d) for j, d in enumerate(squared) if j != label)
        total = total - torch.log(torch.exp(-scale * squared[label]) / others)
    return total / len(x)


def slow_anchor(x: Tensor, rows: Tensor, alpha: float, delta: float) -> Tensor:
    pull, push, present = torch.zeros(()).double(), torch.zeros(()).double(), 0
    for label, row in enumerate(rows):
        own = [cos(v, row) for v, y in zip(x, LABELS.tolist(), strict=True) if y == label]
        rest = [cos(v, row) for v, y in zip(x, LABELS.tolist(), strict=True) if y != label]
        if own:
            present += 1
            pull = pull + torch.stack([-alpha * (c - delta) for c in own]).exp().sum().log1p()
        push = push + torch.stack([alpha * (c + delta) for c in rest]).exp().sum().log1p()
    return pull / present + push / len(rows)


def slow_supcon(x: Tensor, temperature: float) -> Tensor:
    total, anchors = torch.zeros(()).double(), 0
    for i, label in enumerate(LABELS.tolist()):
        positives = [p for p, y in enumerate(LABELS.tolist()) if y == label and p != i]
        if not positives:
            continue
        anchors += 1
        below = sum(torch.exp(cos(x[i], x[a]) / temperature) for a in range(len(x)) if a != i)
        terms = [torch.log(torch.exp(cos(x[i], x[p]) / temperature) / below) for p in positives]
        total = total - sum(terms, torch.zeros(())) / len(positives)
    return total / anchors


@pytest.mark.parametrize(
    ("loss", "slow"),
    [
        (ProxyNCA(scale=3.0), lambda x, rows: slow_nca(x, rows, 3.0)),
        (
            ProxyAnchor(scale=8.0, margin=0.2),
            lambda x, rows: slow_anchor(x, rows, 8.0, 0.2),
        ),
    ],
)
def test_proxy_losses_equal_the_equation(loss: RecognitionLoss, slow) -> None:  # type: ignore[no-untyped-def]
    prepared(loss)
    x = vectors()
    fast, reference = value(loss, x), slow(x, loss.class_rows())
    torch.testing.assert_close(fast, reference)
    inputs = [x, loss.class_rows()]
    for mine, theirs in zip(
        torch.autograd.grad(fast, inputs), torch.autograd.grad(reference, inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs)
    assert loss.proxy_lr > 1


def test_proxy_anchor_agrees_with_a_library() -> None:
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    loss = prepared(ProxyAnchor())
    theirs = ProxyAnchorLoss(num_classes=CLASSES, embedding_size=DIM, margin=0.1, alpha=32).double()
    with torch.no_grad():
        theirs.proxies.copy_(loss.class_rows())
    torch.testing.assert_close(value(loss, vectors()), theirs(vectors(), LABELS))


def test_supcon_equals_the_equation() -> None:
    loss = prepared(SupCon(temperature=0.3))
    x = vectors()
    fast, reference = value(loss, x), slow_supcon(x, 0.3)
    torch.testing.assert_close(fast, reference)
    (mine,), (theirs,) = torch.autograd.grad(fast, x), torch.autograd.grad(reference, x)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("loss", [SupCon(), Margin(), Triplet()])
def test_pair_loss_batch_without_pairs_gives_zero_with_a_gradient(loss: RecognitionLoss) -> None:
    prepared(loss)
    x = vectors()
    total = value(loss, x[:4], LABELS[:4])
    assert float(total.detach()) == 0.0
    (gradient,) = torch.autograd.grad(total, x)
    assert torch.isfinite(gradient).all()


def test_log_weights_equal_the_inverse_density_of_distances() -> None:
    generator = torch.Generator().manual_seed(0)
    points = F.normalize(torch.randn(4000, DIM, generator=generator, dtype=torch.float64))
    d = distances(points)[torch.triu_indices(4000, 4000, 1).unbind()]
    inside = d[(d > 0.6) & (d < 1.3)]
    counts, edges = torch.histogram(inside, bins=7)
    middle = (edges[1:] + edges[:-1]) / 2
    flat = counts * log_weights(middle, dim=DIM).exp()  # density times its inverse: constant
    assert float(flat.std() / flat.mean()) < 0.05


def test_log_weights_are_capped_below_one_half_and_zero_beyond_the_cutoff() -> None:
    weights = log_weights(torch.tensor([0.1, 0.5, 1.39, 1.4, 1.9]), dim=DIM)
    assert weights[0] == weights[1]
    assert torch.isfinite(weights[2])
    assert weights[3] == weights[4] == -math.inf


def test_negatives_are_of_another_class_and_drawn_by_weight() -> None:
    # One anchor pair; three negatives at known distances.
    angles = torch.tensor([0.0, 0.2, 0.8, 1.1, 1.4, 3.1])
    x = torch.stack([angles.cos(), angles.sin(), torch.zeros(6)], dim=1)
    labels = torch.tensor([0, 0, 1, 2, 3, 4])
    torch.manual_seed(0)
    seen = torch.zeros(6)
    for _ in range(3000):
        anchors, positives, negatives = distance_weighted(x, labels)
        assert (labels[anchors] == labels[positives]).all()
        assert (labels[anchors] != labels[negatives]).all()
        seen[negatives[anchors == 0]] += 1
    d = 2 * torch.sin(angles / 2)
    expected = log_weights(d, dim=3)[2:].exp()
    assert seen[5] == 0  # beyond the cut
    torch.testing.assert_close(seen[2:5] / 3000, (expected / expected.sum())[:3], atol=0.04, rtol=0)


def test_margin_and_triplet_equal_the_equation_on_the_drawn_triplets() -> None:
    x = vectors().detach()
    for seed in range(3):
        torch.manual_seed(seed)
        triplets = list(zip(*(t.tolist() for t in distance_weighted(x, LABELS)), strict=True))
        assert triplets
        margin = prepared(Margin(margin=0.3, boundary=1.0))
        torch.manual_seed(seed)
        fast = value(margin, x)
        total, active, hinge, hinges = 0.0, 0, 0.0, 0
        for a, p, n in triplets:
            near = math.sqrt(2 - 2 * float(cos(x[a], x[p])))
            far = math.sqrt(2 - 2 * float(cos(x[a], x[n])))
            for term in (near - 1.0 + 0.3, 1.0 - far + 0.3):
                total, active = total + max(term, 0), active + (term > 0)
            hinge, hinges = hinge + max(near - far + 0.3, 0), hinges + (near - far + 0.3 > 0)
        assert float(fast.detach()) == pytest.approx(total / max(active, 1), abs=1e-9)
        triplet = prepared(Triplet(margin=0.3))
        torch.manual_seed(seed)
        assert float(value(triplet, x).detach()) == pytest.approx(hinge / max(hinges, 1), abs=1e-9)


def test_margin_per_class_boundary_gets_a_gradient() -> None:
    loss = prepared(Margin(per_class=True, boundary=0.5))  # pairs pull, negatives are far enough
    torch.manual_seed(0)
    total = value(loss, vectors())
    (gradient,) = torch.autograd.grad(total, list(loss.parameters()))
    assert gradient.shape == (CLASSES,)
    assert (gradient[[0, 1]] < 0).all()
    assert float(gradient[4]) == 0.0  # no images, no opinion
