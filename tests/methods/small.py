"""A small old encoder and batches for the tests of methods, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from midspan.methods import Batch, Method, OldArtifacts, OldClassifier
from midspan.spaces import Space

M = TypeVar("M", bound=Method)

DIM, CLASSES, OLD_CLASSES, IMAGES = 4, 5, 3, 20
LABELS = torch.arange(IMAGES) % CLASSES
MAP = torch.tensor([2, -1, 0, -1, 1])  # new class → old class; 1 and 3 are new
TURN = torch.tensor([3, 0, 4, 1, 2])  # another name for each new class


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def old_classifier(*, normalised: bool = True) -> OldClassifier:
    return OldClassifier(
        rows=3 * drawn(OLD_CLASSES, DIM, seed=1),
        bias=None if normalised else drawn(OLD_CLASSES, seed=11),
        scale=10.0,
        normalised=normalised,
    )


def old_artifacts(
    *,
    classifier: OldClassifier | None = None,
    label_map: Tensor = MAP,
    labels: Tensor = LABELS,
    num_classes: int = CLASSES,
    vectors: Tensor | None = None,
) -> OldArtifacts:
    vectors = drawn(len(labels), DIM, seed=2) if vectors is None else vectors
    return OldArtifacts.measure(
        space=Space("old", vectors.shape[1], fingerprint="f-old"),
        vectors=vectors,
        labels=labels,
        num_classes=num_classes,
        classifier=classifier,
        label_map=label_map,
    )


def only_vectors() -> OldArtifacts:
    """An old encoder of which a file of vectors is left: no classifier, no names."""
    return old_artifacts(label_map=torch.full((CLASSES,), -1))


def renamed(old: OldArtifacts) -> OldArtifacts:
    """The same with other ids for the new classes."""
    label_map = torch.empty_like(old.label_map)
    label_map[TURN] = old.label_map
    return old_artifacts(
        classifier=old.classifier,
        label_map=label_map,
        labels=TURN[old.labels],
        vectors=old.vectors,
    )


def renamed_batch(batch: Batch) -> Batch:
    assert batch.class_rows is not None
    assert batch.logits is not None
    back = TURN.argsort()
    return replace(
        batch,
        labels=TURN[batch.labels],
        class_rows=batch.class_rows[back],
        logits=batch.logits[:, back],
    )


def a_batch(rows: list[int], old: OldArtifacts, *, dim: int = DIM, seed: int = 5) -> Batch:
    index = torch.tensor(rows)
    vectors = drawn(len(rows), dim, seed=seed).double().requires_grad_()
    class_rows = drawn(len(old.counts), dim, seed=seed + 1).double().requires_grad_()
    return Batch(
        vectors=vectors,
        logits=8.0 * vectors @ class_rows.T,
        labels=old.labels[index],
        rows=index,
        old=old.vectors[index].double(),
        class_rows=class_rows,
    )


def prepared(method: M, old: OldArtifacts, *, dim: int = DIM) -> M:
    method.prepare(old=old, num_classes=len(old.counts), dim=dim)
    method.double()
    return method


def same_as_reference(value: Tensor, reference: Tensor, *learnt: Tensor) -> None:
    """Equal in value and in the gradient of everything that learns."""
    torch.testing.assert_close(value, reference)
    fast = torch.autograd.grad(value, learnt, retain_graph=True, allow_unused=True)
    slow = torch.autograd.grad(reference, learnt, retain_graph=True, allow_unused=True)
    for mine, wanted, tensor in zip(fast, slow, learnt, strict=True):
        zeros = torch.zeros_like(tensor)
        torch.testing.assert_close(
            zeros if mine is None else mine, zeros if wanted is None else wanted
        )


def gradient_is_right(term: Callable[[Tensor], Tensor], at: Tensor) -> None:
    """The gradient against finite differences, in float64."""
    assert at.dtype == torch.float64
    assert torch.autograd.gradcheck(term, (at.detach().clone().requires_grad_(),), atol=1e-6)


def differentiable_zero(value: Tensor, vectors: Tensor) -> None:
    assert value.item() == 0.0
    (gradient,) = torch.autograd.grad(value, vectors)
    assert gradient.abs().sum() == 0
