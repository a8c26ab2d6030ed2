"""URL's loss: the corrected formulas of its gradients, and what it becomes in simple cases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from midspan.errors import ConfigError
from midspan.losses import LOSSES, RecognitionLoss
from midspan.losses.cosface import CosFace
from midspan.losses.universal import Universal

BATCH, CLASSES, SLICES, WIDTH = 5, 4, 3, 2
MARGIN = 1.5


def drawn(*, slices: int = SLICES) -> tuple[Universal, Tensor, Tensor, Tensor]:
    """Loss, vectors and confidences in float64, labels. Slices and rows have length 1 already."""
    generator = torch.Generator().manual_seed(4)

    def unit(count: int) -> Tensor:
        raw = torch.randn(count, slices, WIDTH, generator=generator, dtype=torch.float64)
        units: Tensor = raw / raw.norm(dim=2, keepdim=True)
        return units.flatten(1)

    loss = Universal(margin=MARGIN, regulariser=0.01)
    loss.prepare(num_classes=CLASSES, dim=slices * WIDTH)
    loss.double()
    assert loss.rows is not None
    with torch.no_grad():
        loss.rows.copy_(unit(CLASSES))
    vectors = unit(BATCH).requires_grad_()
    confidence = torch.rand(BATCH, slices, generator=generator, dtype=torch.float64) * 5 + 1
    return loss, vectors, confidence.requires_grad_(), torch.tensor([0, 1, 2, 3, 1])


def value(loss: Universal, vectors: Tensor, confidence: Tensor, labels: Tensor) -> Tensor:
    logits = loss.confident_logits(vectors, confidence)
    result: Tensor = loss(vectors=vectors, logits=logits, labels=labels)
    return result


def probabilities(f: Tensor, w: Tensor, s: Tensor, labels: Tensor) -> Tensor:
    """p (B, C) of the softmax with the margin in it, by loops."""
    p = torch.empty(BATCH, CLASSES, dtype=torch.float64)
    for i in range(BATCH):
        a = torch.zeros(CLASSES, dtype=torch.float64)
        for j in range(CLASSES):
            for k in range(f.shape[1]):
                a[j] += s[i, k] * torch.dot(f[i, k], w[j, k]) / f.shape[1]
        a[labels[i]] -= MARGIN
        p[i] = torch.softmax(a, 0)
    return p


def test_universal_value_equals_the_equation() -> None:
    loss, vectors, confidence, labels = drawn()
    f = vectors.detach().view(BATCH, SLICES, WIDTH)
    w = loss.class_rows().detach().view(CLASSES, SLICES, WIDTH)
    p = probabilities(f, w, confidence.detach(), labels)
    expected = -sum(torch.log(p[i, labels[i]]) for i in range(BATCH)) / BATCH
    torch.testing.assert_close(value(loss, vectors, confidence, labels).detach(), expected)


def test_universal_gradients_equal_the_corrected_formulas() -> None:
    loss, vectors, confidence, labels = drawn()
    total = value(loss, vectors, confidence, labels) * BATCH  # the formulas are of one image
    rows = loss.class_rows()
    by_vector, by_row, by_s = torch.autograd.grad(total, [vectors, rows, confidence])
    f = vectors.detach().view(BATCH, SLICES, WIDTH)
    w, s = rows.detach().view(CLASSES, SLICES, WIDTH), confidence.detach()
    p = probabilities(f, w, s, labels)
    for i in range(BATCH):
        y = int(labels[i])
        for k in range(SLICES):
            # ∂L/∂f_ik = (1/K) s_ik [(p_iy − 1) w_yk + Σ_{j≠y} p_ij w_jk], through the unit length
            raw = (p[i, y] - 1) * w[y, k]
            for j in range(CLASSES):
                if j != y:
                    raw = raw + p[i, j] * w[j, k]
            raw = s[i, k] * raw / SLICES
            expected = raw - f[i, k] * torch.dot(f[i, k], raw)
            torch.testing.assert_close(by_vector.view_as(f)[i, k], expected)
            # ∂L/∂s_ik = (1/K) [Σ_j p_ij c_ijk − c_iyk]
            c = torch.stack([torch.dot(f[i, k], w[j, k]) for j in range(CLASSES)])
            torch.testing.assert_close(by_s[i, k], (torch.dot(p[i], c) - c[y]) / SLICES)
    for j in range(CLASSES):
        for k in range(SLICES):
            # ∂L/∂w_jk = (1/K) Σ_i s_ik (p_ij − [j = y_i]) f_ik
            raw = torch.zeros(WIDTH, dtype=torch.float64)
            for i in range(BATCH):
                raw = raw + s[i, k] * (p[i, j] - float(labels[i] == j)) * f[i, k] / SLICES
            expected = raw - w[j, k] * torch.dot(w[j, k], raw)
            torch.testing.assert_close(by_row.view_as(w)[j, k], expected)


def test_universal_gradients_equal_central_differences() -> None:
    loss, vectors, confidence, labels = drawn()

    def total(x: Tensor, s: Tensor) -> Tensor:
        return value(loss, x, s, labels)

    assert torch.autograd.gradcheck(total, (vectors, confidence), eps=1e-6, atol=1e-8)


def test_universal_one_slice_with_constant_confidence_equals_cosface() -> None:
    loss, _, _, labels = drawn(slices=1)
    vectors = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    scale = 6.0
    face = CosFace(scale=scale, margin=MARGIN / scale)
    face.prepare(num_classes=CLASSES, dim=WIDTH)
    face.rows = loss.rows
    constant = torch.full((BATCH, 1), scale, dtype=torch.float64)
    expected = face(vectors=vectors, logits=face.logits(vectors), labels=labels)
    torch.testing.assert_close(value(loss, vectors, constant, labels), expected)


def test_universal_scaled_confidences_scale_the_gradient_at_fixed_p() -> None:
    loss, vectors, confidence, labels = drawn()
    rows = loss.class_rows()
    logits = loss.confident_logits(vectors, confidence)
    fixed = torch.softmax(logits, 1).detach() - torch.eye(CLASSES, dtype=torch.float64)[labels]
    [once] = torch.autograd.grad(logits, [rows], fixed)
    [thrice] = torch.autograd.grad(loss.confident_logits(vectors, 3 * confidence), [rows], fixed)
    torch.testing.assert_close(thrice, 3 * once)


def test_universal_regulariser_equals_the_mean_square() -> None:
    loss, _, confidence, _ = drawn()
    s = confidence.detach()
    expected = 0.01 * sum(sum(x**2 for x in row) / SLICES for row in s.tolist()) / BATCH
    assert float(loss.regulariser(confidence).detach()) == pytest.approx(expected)


def test_universal_part_equals_the_loss_of_its_sub_embeddings_only() -> None:
    loss, vectors, confidence, labels = drawn()
    part = loss.part(vectors, labels, slice(2, 6), confidence=confidence)
    alone = Universal(margin=MARGIN)
    alone.rows = torch.nn.Parameter(loss.class_rows().detach()[:, 2:])
    torch.testing.assert_close(
        part, value(alone, vectors[:, 2:], confidence[:, 1:], labels), check_dtype=False
    )
    for gradient, inside in zip(
        torch.autograd.grad(part, [vectors, confidence, loss.class_rows()]),
        (slice(2, 6), slice(1, 3), slice(2, 6)),
        strict=True,
    ):
        assert torch.count_nonzero(gradient[:, inside]) > 0
        assert torch.count_nonzero(gradient[:, : inside.start]) == 0
    with pytest.raises(ConfigError, match="multiple of"):
        loss.part(vectors, labels, slice(1, 4), confidence=confidence)


def test_universal_typical_scale_is_the_mean_confidence() -> None:
    loss, vectors, confidence, _ = drawn()
    loss.confident_logits(vectors, confidence)
    assert loss.typical_scale() == pytest.approx(float(confidence.detach().mean()))
    loss.eval()
    loss.confident_logits(vectors, 2 * confidence)
    assert loss.typical_scale() == pytest.approx(float(confidence.detach().mean()))


def test_universal_wrong_use_raises_config_error() -> None:
    loss, vectors, _, _ = drawn()
    with pytest.raises(ConfigError, match="confident = true"):
        loss.confident_logits(vectors, None)
    with pytest.raises(ConfigError, match="expected margin and regulariser of 0 or more"):
        Universal(margin=-1.0)


def test_losses_without_confidence_ignore_it() -> None:
    face = CosFace()
    face.prepare(num_classes=3, dim=4)
    vectors = torch.randn(2, 4)
    plain = face.logits(vectors)
    assert plain is not None
    given = face.confident_logits(vectors, torch.rand(2, 2))
    assert given is not None
    assert torch.equal(plain, given)
    assert face.regulariser(torch.rand(2, 2)) is None
    assert isinstance(face, RecognitionLoss)
    assert "universal" in LOSSES
