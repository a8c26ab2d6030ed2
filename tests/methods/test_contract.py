"""One contract over the table of methods."""

from __future__ import annotations

import pytest
import torch

from midspan.config import build
from midspan.methods import METHODS, Batch, Method, OldArtifacts, OldClassifier
from midspan.spaces import Space

DIM, CLASSES, IMAGES = 4, 5, 30
LABELS = torch.arange(IMAGES) % CLASSES


def prepared(name: str) -> tuple[Method, OldArtifacts]:
    torch.manual_seed(0)
    old = OldArtifacts.measure(
        space=Space("old", DIM),
        vectors=torch.randn(IMAGES, DIM),
        labels=LABELS,
        num_classes=CLASSES,
        classifier=OldClassifier(torch.randn(3, DIM), bias=None, scale=8.0, normalised=True),
        label_map=torch.tensor([0, -1, 1, 2, -1]),
    )
    method: Method = build(METHODS, {"name": name}, what="method")
    method.prepare(old=old if method.uses_old else None, num_classes=CLASSES, dim=DIM)
    return method, old


def batch(index: torch.Tensor, old: OldArtifacts, vectors: torch.Tensor) -> Batch:
    rows = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(9))
    return Batch(
        vectors=vectors,
        logits=vectors @ rows.T,
        labels=LABELS[index],
        rows=index,
        old=old.vectors[index],
        class_rows=rows.requires_grad_(),
    )


@pytest.mark.parametrize("name", METHODS)
def test_terms_do_not_depend_on_the_order_of_the_batch(name: str) -> None:
    method, old = prepared(name)
    index = torch.arange(12)
    vectors = torch.randn(12, DIM)
    order = torch.randperm(12)
    first = method.terms(batch(index, old, vectors))
    second = method.terms(batch(index[order], old, vectors[order]))
    assert first.keys() == second.keys()
    for term, value in first.items():
        torch.testing.assert_close(value, second[term], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rows", [[0, 5, 10], [1], list(range(12))])
def test_terms_are_finite_scalars_with_finite_gradients(name: str, rows: list[int]) -> None:
    method, old = prepared(name)
    vectors = torch.randn(len(rows), DIM, requires_grad=True)
    some = batch(torch.tensor(rows), old, vectors)
    assert some.class_rows is not None
    terms = method.terms(some)
    for value in terms.values():
        assert value.shape == ()
        assert torch.isfinite(value)
        learnt = [vectors, some.class_rows]
        gradients = torch.autograd.grad(value, learnt, retain_graph=True, allow_unused=True)
        reached = [gradient for gradient in gradients if gradient is not None]
        assert reached
        assert all(torch.isfinite(gradient).all() for gradient in reached)


@pytest.mark.parametrize("name", METHODS)
def test_method_old_side_gets_no_gradient(name: str) -> None:
    method, old = prepared(name)
    old.vectors.requires_grad_()
    vectors = torch.randn(8, DIM, requires_grad=True)
    some = batch(torch.arange(8), old, vectors)
    mixed = method.mix(vectors, old=some.old, labels=some.labels)
    total = torch.stack([mixed.sum(), *method.terms(some).values()]).sum()
    (gradient,) = torch.autograd.grad(total, old.vectors, allow_unused=True)
    assert gradient is None


@pytest.mark.parametrize("name", METHODS)
def test_state_survives_a_round_trip(name: str) -> None:
    method, old = prepared(name)
    again, _ = prepared(name)
    again.load_state_dict(method.state_dict())
    vectors = torch.randn(8, DIM)
    some = batch(torch.arange(8), old, vectors)
    for term, value in method.terms(some).items():
        torch.testing.assert_close(again.terms(some)[term], value)


@pytest.mark.parametrize("name", METHODS)
def test_method_states_its_capabilities(name: str) -> None:
    method, _ = prepared(name)
    assert isinstance(method.uses_old, bool)
    assert set(method.directions) <= {"direct", "backward", "forward"}
    assert method.__doc__
