"""UniBCT: its term and its refinement from the equations, and what a refinement must and must
not change."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods import Batch, OldArtifacts, OldClassifier, unibct
from midspan.methods.unibct import UniBCT, image_weights
from midspan.spaces import Space

DIM, CLASSES = 4, 6
SPACE = Space("old", DIM, fingerprint="f-old")
# class 3 has one image, class 4 none, class 1 two; in an order that is not the classes'
LABELS = torch.tensor([0, 2, 5, 1, 0, 2, 3, 0, 5, 2, 0, 1, 5, 2, 0, 0, 5])


def artifacts(labels: Tensor = LABELS, known: bool = True) -> OldArtifacts:
    generator = torch.Generator().manual_seed(2)
    spots = torch.randn(CLASSES, DIM, generator=generator)[LABELS]
    classifier = OldClassifier(rows=torch.ones(2, DIM), bias=None, scale=8.0, normalised=True)
    return OldArtifacts.measure(
        space=SPACE,
        vectors=spots + 0.5 * torch.randn(len(LABELS), DIM, generator=generator),
        labels=labels,
        num_classes=CLASSES,
        classifier=classifier if known else None,
        label_map=torch.tensor([0, -1, 1, -1, -1, -1]) if known else None,
    )


def prepared(method: UniBCT, old: OldArtifacts) -> UniBCT:
    method.prepare(old=old, num_classes=CLASSES, dim=DIM)
    return method.double()


def batch(rows: list[int], old: OldArtifacts, *, progress: float = 0.0, seed: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    index = torch.tensor(rows)
    vectors = torch.randn(len(rows), DIM, generator=generator, dtype=torch.float64)
    return Batch(
        vectors=vectors.requires_grad_(),
        logits=None,
        labels=old.labels[index],
        rows=index,
        old=old.vectors[index],
        progress=progress,
    )


EVERYTHING = list(range(len(LABELS)))


def slow_term(vectors: Tensor, targets: list[int], rows: Tensor, s: float, m: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for vector, target in zip(vectors, targets, strict=True):
        logits = []
        for number, row in enumerate(rows):
            cos = torch.dot(vector, row) / (vector.norm() * row.norm())
            angle = torch.acos(cos)
            if number == target and angle.item() < math.pi - m:
                cos = torch.cos(angle + m)
            elif number == target:
                cos = cos - m * math.sin(m)
            logits.append(s * cos)
        stacked = torch.stack(logits)
        total = total + stacked.logsumexp(0) - stacked[target]
    return total / len(vectors)


def slow_refined(
    new: Tensor, old: Tensor, spread: float, tau: float, *, rows: bool = True
) -> Tensor:
    """mean of (1 − λ)(I − λE)⁻¹V for one class; `rows`: which way E sums to one."""
    m = len(new)
    if m == 1:
        return old[0]
    unit = new / new.norm(dim=1, keepdim=True)
    e = torch.zeros(m, m, dtype=new.dtype)
    for i in range(m):
        for j in range(m):
            if i != j:
                e[i, j] = torch.exp(torch.dot(unit[i], unit[j]) / tau)
    e = e / e.sum(1 if rows else 0, keepdim=True)
    spread_out = (1 - spread) * torch.linalg.inv(torch.eye(m, dtype=new.dtype) - spread * e) @ old
    mean: Tensor = spread_out.mean(0)
    return mean


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_unibct_value_and_gradient_match_the_reference(margin: float) -> None:
    old = artifacts()
    method = prepared(UniBCT(weight=2.0, scale=6.0, margin=margin), old)
    some = batch([0, 1, 2, 3, 6, 4], old)
    fast = method.terms(some)["prototype"]
    place = {0: 0, 1: 1, 2: 2, 3: 3, 5: 4}  # class 4 has no images and no prototype
    rows = old.centres[[0, 1, 2, 3, 5]].double()
    targets = [place[label] for label in some.labels.tolist()]
    reference = 2.0 * slow_term(some.vectors, targets, rows, 6.0, margin)
    torch.testing.assert_close(fast, reference)
    (gradient,) = torch.autograd.grad(fast, some.vectors)
    torch.testing.assert_close(gradient, torch.autograd.grad(reference, some.vectors)[0])

    def value(vectors: Tensor) -> Tensor:
        return torch.as_tensor(method.terms(replace(some, vectors=vectors))["prototype"])

    assert torch.autograd.gradcheck(value, (some.vectors.detach().requires_grad_(),))


def test_refined_prototypes_by_loops() -> None:
    old = artifacts()
    method = prepared(UniBCT(refine_at=(0.5,)), old)
    some = batch(EVERYTHING, old)
    method.terms(some)  # every image is seen once
    method.terms(batch([0], old, progress=0.5, seed=6))
    assert int(method.refinements) == 1
    for place, label in enumerate([0, 1, 2, 3, 5]):
        own = old.labels == label
        wanted = slow_refined(some.vectors.detach()[own], old.vectors[own].double(), 0.9, 0.05)
        torch.testing.assert_close(method.prototypes[place], wanted)
    assert not torch.allclose(method.prototypes[0], old.centres[0].double(), atol=1e-3)


@pytest.mark.parametrize("steps", [1, 3, 400])
def test_large_classes_are_propagated_step_by_step(steps: int) -> None:
    old = artifacts()
    method = prepared(UniBCT(refine_at=(0.5,), closed_form_up_to=3, steps=steps), old)
    some = batch(EVERYTHING, old)
    method.terms(some)
    method.refine()
    for place, label in enumerate([0, 1, 2, 3, 5]):
        own = old.labels == label
        unit = F.normalize(some.vectors.detach()[own])
        values = first = old.vectors[own].double()
        if len(unit) > 3:
            cos = (unit @ unit.T / 0.05).fill_diagonal_(-math.inf)
            for _ in range(steps):
                values = 0.9 * cos.softmax(1) @ values + 0.1 * first
            wanted = values.mean(0)
        else:
            wanted = slow_refined(unit, first, 0.9, 0.05)
        torch.testing.assert_close(method.prototypes[place], wanted)
    if steps == 400:  # by then both ways agree
        exact = prepared(UniBCT(refine_at=(0.5,)), old)
        exact.terms(some)
        exact.refine()
        torch.testing.assert_close(method.prototypes, exact.prototypes)


def test_groups_of_classes_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    old = artifacts()
    some = batch(EVERYTHING, old)
    found = []
    for padded in (2**23, 40, 1):
        monkeypatch.setattr(unibct, "PADDED", padded)
        method = prepared(UniBCT(), old)
        method.terms(some)
        method.refine()
        found.append(method.prototypes)
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_without_spread_the_mean_stays() -> None:
    old = artifacts()
    method = prepared(UniBCT(spread=0.0), old)
    method.terms(batch(EVERYTHING, old))
    method.refine()
    torch.testing.assert_close(method.prototypes, old.centres[[0, 1, 2, 3, 5]].double())


def test_equal_old_vectors_stay() -> None:
    vectors = torch.ones(7, DIM)
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    old = OldArtifacts.measure(space=SPACE, vectors=vectors, labels=labels, num_classes=2)
    method = UniBCT()
    method.prepare(old=old, num_classes=2, dim=DIM)
    method.double().terms(batch(list(range(7)), old))
    method.refine()
    torch.testing.assert_close(method.prototypes, old.centres.double())


def test_a_single_image_stays() -> None:
    old = artifacts()
    method = prepared(UniBCT(), old)
    method.terms(batch(EVERYTHING, old))
    method.refine()
    torch.testing.assert_close(method.prototypes[3], old.vectors[6].double())


def test_an_outlier_is_suppressed_by_rows_and_not_by_columns() -> None:
    """The defect of a released port: with columns summing to one, the mean never changes."""
    generator = torch.Generator().manual_seed(1)
    new = torch.zeros(10, DIM, dtype=torch.float64)
    new[:, 0] = 1.0
    new += 0.2 * torch.randn(10, DIM, generator=generator, dtype=torch.float64)
    new[9] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # the new encoder sees it apart
    old = torch.zeros(10, DIM, dtype=torch.float64)
    old[:9, 0] = old[9, 1] = 1.0
    plain = old.mean(0)
    columns = slow_refined(new, old, 0.9, 0.05, rows=False)
    torch.testing.assert_close(columns, plain)

    artefacts = OldArtifacts.measure(
        space=SPACE, vectors=old, labels=torch.zeros(10, dtype=torch.int64), num_classes=1
    )
    method = UniBCT()
    method.prepare(old=artefacts, num_classes=1, dim=DIM)
    method.double()
    method.terms(
        Batch(
            vectors=new,
            logits=None,
            labels=torch.zeros(10, dtype=torch.int64),
            rows=torch.arange(10),
            old=None,
        )
    )
    method.refine()
    refined = method.prototypes[0]
    torch.testing.assert_close(refined, slow_refined(new, old, 0.9, 0.05))
    assert refined[1] < 0.3 * plain[1]  # 0.1 of the plain mean was the outlier
    assert refined[0] > plain[0]


def test_weights_sum_to_one_and_leave_padding_out() -> None:
    generator = torch.Generator().manual_seed(4)
    vectors = F.normalize(torch.randn(3, 5, DIM, generator=generator, dtype=torch.float64), dim=2)
    present = torch.arange(5) < torch.tensor([[5], [3], [1]])
    for steps in (None, 30):
        weights = image_weights(
            vectors, present=present, seen=present, spread=0.9, temperature=0.05, steps=steps
        )
        torch.testing.assert_close(weights.sum(1), torch.ones(3, dtype=torch.float64))
        assert (weights[~present] == 0).all()
        assert (weights[present] > 0).all()


def test_images_that_were_not_seen_keep_their_share() -> None:
    old = artifacts()
    unseen = [row for row in EVERYTHING if row not in (0, 4)]
    method = prepared(UniBCT(), old)
    method.refine()  # nothing seen at all: plain means
    centres = old.centres[[0, 1, 2, 3, 5]].double()
    torch.testing.assert_close(method.prototypes, centres)

    some = batch(unseen, old)
    method.terms(some)
    method.refine()
    own = [i for i, row in enumerate(unseen) if old.labels[row] == 0]
    graph = slow_refined(
        some.vectors.detach()[own], old.vectors[[unseen[i] for i in own]].double(), 0.9, 0.05
    )
    # four of six in the graph, two for themselves
    assert len(own) == 4
    wanted = (4 * graph + old.vectors[0].double() + old.vectors[4].double()) / 6
    torch.testing.assert_close(method.prototypes[0], wanted)


def test_refinements_come_at_their_time_and_once() -> None:
    old = artifacts()
    method = prepared(UniBCT(refine_at=(0.6, 0.3)), old)
    states = []
    for step in range(10):
        method.terms(batch(EVERYTHING, old, progress=step / 10, seed=step))
        states.append((int(method.refinements), method.prototypes.clone()))
    assert [count for count, _ in states] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    for step in range(1, 10):
        assert torch.equal(states[step][1], states[step - 1][1]) == (step not in (3, 6))


def test_unibct_state_dict_restores_bank_and_prototypes() -> None:
    old = artifacts()
    whole = prepared(UniBCT(refine_at=(0.3, 0.6)), old)
    for step in range(5):
        whole.terms(batch(EVERYTHING, old, progress=step / 10, seed=step))
    again = prepared(UniBCT(refine_at=(0.3, 0.6)), old)
    again.load_state_dict(whole.state_dict())
    torch.testing.assert_close(again.prototypes, whole.prototypes)
    for step in range(5, 8):
        some = batch(EVERYTHING[:9], old, progress=step / 10, seed=step)
        first, second = whole.terms(some)["prototype"], again.terms(some)["prototype"]
        assert torch.equal(first, second)
    assert int(again.refinements) == 2


def test_the_term_starts_when_it_should() -> None:
    old = artifacts()
    method = prepared(UniBCT(starts_at=0.25), old)
    some = batch([0, 1, 2], old, progress=0.2)
    value = method.terms(some)["prototype"]
    assert value.item() == 0.0
    (gradient,) = torch.autograd.grad(value, some.vectors)
    assert gradient.abs().sum() == 0
    assert method.seen[:3].all()  # the bank fills all the same
    assert method.terms(replace(some, progress=0.25))["prototype"].item() > 0


def test_a_class_without_images_gives_a_differentiable_zero() -> None:
    old = artifacts()
    method = prepared(UniBCT(), old)
    assert len(method.prototypes) == CLASSES - 1
    some = replace(batch([0], old), labels=torch.tensor([4]))
    value = method.terms(some)["prototype"]
    assert value.item() == 0.0
    (gradient,) = torch.autograd.grad(value, some.vectors)
    assert gradient.abs().sum() == 0
    # beside others it does not count
    mixed = batch([1, 0], old)
    both = method.terms(replace(mixed, labels=torch.tensor([2, 4])))["prototype"]
    alone = method.terms(
        replace(mixed, vectors=mixed.vectors[:1], labels=torch.tensor([2]), rows=torch.tensor([1]))
    )["prototype"]
    torch.testing.assert_close(both, alone)


def test_old_rows_and_label_map_are_not_needed() -> None:
    some = batch(EVERYTHING, artifacts())
    with_rows = prepared(UniBCT(), artifacts()).terms(some)["prototype"]
    torch.testing.assert_close(
        prepared(UniBCT(), artifacts(known=False)).terms(some)["prototype"], with_rows
    )


def test_unibct_relabelling_classes_keeps_the_terms() -> None:
    turn = torch.tensor([3, 0, 4, 1, 2, 5])  # new name of each class
    old, renamed = artifacts(), artifacts(turn[LABELS])
    first, second = prepared(UniBCT(), old), prepared(UniBCT(), renamed)
    for step, progress in enumerate((0.0, 0.3, 0.6)):
        some = batch(EVERYTHING, old, progress=progress, seed=step)
        before = first.terms(some)["prototype"]
        after = second.terms(replace(some, labels=turn[some.labels]))["prototype"]
        torch.testing.assert_close(after, before)


def test_unibct_without_refinement_has_no_bank() -> None:
    method = prepared(UniBCT(refine_at=()), artifacts())
    assert list(method.parameters()) == []
    assert method.bank.numel() == method.seen.numel() == 0
    assert method.terms(batch([0, 1], artifacts(), progress=0.9))["prototype"].item() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spread": 1.0}, "0 ≤ spread < 1"),
        ({"temperature": 0.0}, "expected temperature > 0"),
        ({"starts_at": 1.5}, "shares of training"),
        ({"refine_at": (0.5, -0.1)}, "shares of training"),
    ],
)
def test_impossible_settings_are_said(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UniBCT(**settings)  # type: ignore[arg-type]


def test_impossible_things_are_said() -> None:
    with pytest.raises(ConfigError, match="unibct needs the old encoder"):
        UniBCT().prepare(old=None, num_classes=2, dim=2)
    with pytest.raises(ConfigError, match=r"set \[encoder\] dim = 4"):
        UniBCT().prepare(old=artifacts(), num_classes=CLASSES, dim=DIM + 1)
