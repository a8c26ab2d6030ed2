"""Recognition losses against loops written from the equations, in value and gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from midspan.config import build
from midspan.errors import ConfigError
from midspan.losses import LOSSES, RecognitionLoss
from midspan.losses.arcface import ArcFace
from midspan.losses.cosface import CosFace
from midspan.losses.metric_learning import MetricLearning
from midspan.losses.normalised_softmax import NormalisedSoftmax
from midspan.losses.softmax import Softmax

BATCH, CLASSES, DIM = 6, 5, 4


def prepared(loss: RecognitionLoss) -> RecognitionLoss:
    torch.manual_seed(3)
    loss.prepare(num_classes=CLASSES, dim=DIM)
    return loss.double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    vectors = torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
    return vectors.requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 0])


def value(loss: RecognitionLoss, vectors: Tensor, labels: Tensor) -> Tensor:
    result: Tensor = loss(vectors=vectors, logits=loss.logits(vectors), labels=labels)
    return result


def slow(vectors: Tensor, rows: Tensor, labels: Tensor, target, scale: float) -> Tensor:  # type: ignore[no-untyped-def]
    """Mean over i of −log e^{s·t(θ_iy)} / (e^{s·t(θ_iy)} + Σ_{j≠y} e^{s·cos θ_ij}), by loops."""
    total = torch.zeros((), dtype=torch.float64)
    for vector, label in zip(vectors, labels.tolist(), strict=True):
        cosines = [torch.dot(vector, row) / (vector.norm() * row.norm()) for row in rows]
        logits = [scale * (target(c) if j == label else c) for j, c in enumerate(cosines)]
        total = total - logits[label] + torch.logsumexp(torch.stack(logits), 0)
    return total / len(vectors)


CASES = {
    "cosface": (CosFace(scale=10.0, margin=0.3), lambda c: c - 0.3, 10.0),
    "arcface": (ArcFace(scale=8.0, margin=0.4), lambda c: torch.cos(torch.acos(c) + 0.4), 8.0),
    "normalised": (NormalisedSoftmax(temperature=0.1), lambda c: c, 10.0),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_value_and_gradient_equal_the_equation(name: str) -> None:
    loss, target, scale = CASES[name]
    prepared(loss)
    vectors, labels = batch()
    fast = value(loss, vectors, labels)
    reference = slow(vectors, loss.class_rows(), labels, target, scale)
    torch.testing.assert_close(fast, reference)
    inputs = [vectors, loss.class_rows()]
    for mine, theirs in zip(
        torch.autograd.grad(fast, inputs), torch.autograd.grad(reference, inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_softmax_with_bias_equals_cross_entropy() -> None:
    loss = prepared(Softmax(bias=True))
    assert loss.bias is not None
    with torch.no_grad():
        loss.bias.copy_(torch.arange(CLASSES))
    vectors, labels = batch()
    logits = vectors @ loss.class_rows().T + loss.bias
    reference = -(logits.log_softmax(1)[torch.arange(BATCH), labels]).mean()
    torch.testing.assert_close(value(loss, vectors, labels), reference)


def test_softmax_default_has_no_bias() -> None:
    loss = prepared(Softmax())
    assert loss.bias is None
    vectors, labels = batch()
    logits = torch.stack([vectors @ row for row in loss.class_rows()], dim=1)
    reference = (logits.logsumexp(1) - logits[torch.arange(BATCH), labels]).mean()
    torch.testing.assert_close(value(loss, vectors, labels), reference)


def test_start_rows_sets_directions_and_keeps_lengths() -> None:
    loss = prepared(CosFace())
    drawn = loss.class_rows().detach().clone()
    centres = torch.randn_like(drawn)
    known = torch.arange(len(drawn)) % 2 == 0
    loss.start_rows(centres, known)
    rows = loss.class_rows().detach()
    assert torch.equal(rows[~known], drawn[~known])
    torch.testing.assert_close(rows.norm(dim=1), drawn.norm(dim=1))
    cosines = torch.nn.functional.cosine_similarity(rows, centres)
    torch.testing.assert_close(cosines[known], torch.ones_like(cosines[known]))
    with pytest.raises(ConfigError, match="old centres"):
        loss.start_rows(centres[:-1], known[:-1])


def test_start_rows_of_more_dims_sets_the_first_dims() -> None:
    loss = prepared(CosFace())
    drawn = loss.class_rows().detach().clone()
    centres = torch.randn_like(drawn[:, :2])
    loss.start_rows(centres, torch.ones(len(drawn), dtype=torch.bool))
    rows = loss.class_rows().detach()
    assert torch.equal(rows[:, 2:], drawn[:, 2:])
    cosines = torch.nn.functional.cosine_similarity(rows[:, :2], centres)
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_cosine_losses_without_margin_agree() -> None:
    vectors, labels = batch()
    values = [
        value(prepared(loss), vectors, labels)
        for loss in (
            CosFace(scale=20.0, margin=0.0),
            ArcFace(scale=20.0, margin=0.0),
            NormalisedSoftmax(temperature=0.05),
        )
    ]
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])


@pytest.mark.parametrize("kind", [CosFace, ArcFace])
def test_margin_smaller_margin_gives_smaller_loss(kind: type[CosFace] | type[ArcFace]) -> None:
    vectors, labels = batch()
    values = [
        value(prepared(kind(scale=10.0, margin=margin)), vectors, labels).item()
        for margin in (0.5, 0.3, 0.1, 0.0)
    ]
    assert values == sorted(values, reverse=True)


def test_arcface_beyond_pi_minus_margin_keeps_pushing() -> None:
    loss = ArcFace(scale=4.0, margin=0.5)
    loss.prepare(num_classes=2, dim=2)
    loss.double()
    assert loss.rows is not None
    with torch.no_grad():
        loss.rows.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    angle = math.pi - 0.1  # beyond π − m
    vectors = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    vectors.requires_grad_()
    total = value(loss, vectors, torch.tensor([0]))
    target = math.cos(angle) - 0.5 * math.sin(0.5)
    logits = torch.tensor([4 * target, -4 * math.sin(angle)], dtype=torch.float64)
    torch.testing.assert_close(total.detach(), logits.logsumexp(0) - logits[0])
    (gradient,) = torch.autograd.grad(total, vectors)
    tangent = torch.tensor([math.sin(angle), -math.cos(angle)])  # towards the true class
    assert float(gradient[0] @ tangent.double()) < 0


@pytest.mark.parametrize("margin", [0.3, 0.5])
def test_arcface_gradient_matches_finite_differences(margin: float) -> None:
    loss = prepared(ArcFace(scale=3.0, margin=margin))
    vectors, labels = batch()
    assert torch.autograd.gradcheck(lambda x: value(loss, x, labels), (vectors,))


def test_cosine_losses_rescaled_vectors_are_unchanged() -> None:
    vectors, labels = batch()
    for loss in (CosFace(), ArcFace(), NormalisedSoftmax()):
        prepared(loss)
        torch.testing.assert_close(value(loss, vectors, labels), value(loss, 5 * vectors, labels))


def test_metric_learning_loss_by_name_equals_the_library() -> None:
    from pytorch_metric_learning.losses import TripletMarginLoss

    loss = MetricLearning(loss="TripletMarginLoss", settings={"margin": 0.2})
    loss.prepare(num_classes=CLASSES, dim=DIM)
    vectors, labels = batch()
    assert not loss.has_classifier
    torch.testing.assert_close(
        value(loss, vectors, labels), TripletMarginLoss(margin=0.2)(vectors, labels)
    )


def test_metric_learning_classifier_gets_classes_and_dim() -> None:
    loss = MetricLearning(loss="ProxyAnchorLoss", settings={"margin": 0.1})
    loss.prepare(num_classes=CLASSES, dim=DIM)
    assert [p.shape for p in loss.parameters()] == [(CLASSES, DIM)]


def test_metric_learning_with_a_miner_is_finite() -> None:
    loss = MetricLearning(loss="TripletMarginLoss", miner="BatchHardMiner")
    loss.prepare(num_classes=CLASSES, dim=DIM)
    vectors, labels = batch()
    assert torch.isfinite(value(loss, vectors, labels))


def test_metric_learning_wrong_name_or_setting_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="no losses 'Tripplet'"):
        MetricLearning(loss="Tripplet")
    with pytest.raises(ConfigError, match="no miner"):
        MetricLearning(loss="TripletMarginLoss", miner_settings={"x": 1})
    loss = MetricLearning(loss="TripletMarginLoss", settings={"margni": 0.1})
    with pytest.raises(ConfigError, match="no setting 'margni'"):
        loss.prepare(num_classes=2, dim=2)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_built_from_the_table_gives_finite_gradients(name: str) -> None:
    section = {"name": name}
    if name == "metric-learning":
        section["loss"] = "TripletMarginLoss"
    loss = build(LOSSES, section, what="loss")
    torch.manual_seed(0)
    loss.prepare(num_classes=CLASSES, dim=DIM)
    vectors = torch.randn(BATCH, DIM, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    torch.manual_seed(1)  # some draw their negatives
    total = value(loss, vectors, labels)
    total.backward()  # type: ignore[no-untyped-call]
    assert vectors.grad is not None
    assert torch.isfinite(vectors.grad).all()
    if name not in ("margin", "triplet"):  # other order, other draws
        order = torch.randperm(BATCH)
        torch.testing.assert_close(
            value(loss, vectors[order], labels[order]), total, rtol=1e-5, atol=1e-5
        )
    copy = build(LOSSES, section, what="loss")
    copy.prepare(num_classes=CLASSES, dim=DIM)
    copy.load_state_dict(loss.state_dict())
    torch.manual_seed(1)
    torch.testing.assert_close(value(copy, vectors, labels), total)


def test_loss_without_prepare_raises_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="prepare was not called"):
        CosFace().logits(torch.ones(1, 2))
