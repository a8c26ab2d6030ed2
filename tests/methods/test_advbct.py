"""AdvBCT: each term from its equation, both schedules, and what the paper and its code imply."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods import Batch, OldArtifacts, OldClassifier
from midspan.methods.advbct import AdvBCT, alpha, gamma, reverse_gradient
from midspan.spaces import Space

DIM, CLASSES = 4, 6
SPACE = Space("old", DIM, fingerprint="f-old")
# class 3 has one image, class 4 none, the others several
LABELS = torch.tensor([0] * 6 + [1] * 5 + [2] * 4 + [3] + [5] * 4)
MAP = torch.tensor([1, -1, 0, -1, 2, -1])


def artifacts(labels: Tensor = LABELS, label_map: Tensor | None = MAP) -> OldArtifacts:
    generator = torch.Generator().manual_seed(2)
    spots = torch.randn(CLASSES, DIM, generator=generator)[LABELS]
    known = None
    if label_map is not None:
        rows = torch.ones(3, DIM)
        known = OldClassifier(rows=rows, bias=None, scale=8.0, normalised=True)
    return OldArtifacts.measure(
        space=SPACE,
        vectors=spots + 0.3 * torch.randn(len(LABELS), DIM, generator=generator),
        labels=labels,
        num_classes=CLASSES,
        classifier=known,
        label_map=label_map,
    )


def prepared(method: AdvBCT, old: OldArtifacts) -> AdvBCT:
    torch.manual_seed(0)
    method.prepare(old=old, num_classes=CLASSES, dim=DIM)
    return method.double()


def batch(
    rows: list[int], old: OldArtifacts, *, progress: float = 0.3, spread: float = 1.0
) -> Batch:
    generator = torch.Generator().manual_seed(5)
    index = torch.tensor(rows)
    noise = torch.randn(len(rows), DIM, generator=generator, dtype=torch.float64)
    vectors = old.vectors[index].double() + spread * noise
    return Batch(
        vectors=(3.0 * vectors).requires_grad_(),
        logits=None,
        labels=old.labels[index],
        rows=index,
        old=old.vectors[index].double(),
        progress=progress,
    )


def slow_p2s(method: AdvBCT, old: OldArtifacts, some: Batch) -> Tensor:
    total, outside, bounded = torch.zeros((), dtype=torch.float64), 0, 0
    for vector, label in zip(some.vectors, some.labels.tolist(), strict=True):
        if int(old.counts[label]) < 2:
            continue
        bounded += 1
        radius = old.radii[label].double()
        if method.looseness is not None:
            w = 1 / (1 + torch.exp(-method.looseness[label]))
            radius = (1 - w) * radius + w * method.threshold
        excess = (vector / vector.norm() - old.centres[label].double()).norm() - radius
        if excess > 0:
            total, outside = total + excess, outside + 1
    return total / {"mean": max(outside, 1), "batch": max(bounded, 1), "sum": 1}[method.reduction]


def slow_adversarial(method: AdvBCT, some: Batch) -> Tensor:
    """Both sides through one batch norm, written out; no reversal, no weight."""
    assert method.discriminator is not None
    assert some.old is not None
    weights = dict(method.discriminator.named_parameters())
    inputs = [v / v.norm() for v in some.vectors] + list(some.old)
    hidden = torch.stack([weights["0.weight"] @ v + weights["0.bias"] for v in inputs])
    mean, variance = hidden.mean(0), hidden.var(0, unbiased=False)
    hidden = (hidden - mean) / torch.sqrt(variance + 1e-5)
    hidden = (hidden * weights["1.weight"] + weights["1.bias"]).clamp_min(0)
    total = torch.zeros((), dtype=torch.float64)
    size = len(some.vectors)
    for number, row in enumerate(hidden):
        scores = weights["3.weight"] @ row + weights["3.bias"]
        total = total + (scores.logsumexp(0) - scores[0 if number < size else 1]) / size
    return total


def numeric_gradient(value: Batch, term: str, method: AdvBCT, step: float = 1e-6) -> Tensor:
    gradient = torch.zeros_like(value.vectors)
    for place in range(gradient.numel()):
        ends = []
        for sign in (1, -1):
            moved = value.vectors.detach().clone()
            moved.view(-1)[place] += sign * step
            with torch.no_grad():
                ends.append(method.terms(replace(value, vectors=moved))[term])
        gradient.view(-1)[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient


EVERYTHING = list(range(len(LABELS)))


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "batch", "sum"])
def test_advbct_p2s_value_and_gradient_match_the_reference(
    elastic: bool, reduction: Literal["mean", "batch", "sum"]
) -> None:
    old = artifacts()
    method = prepared(
        AdvBCT(
            adversarial_weight=0.0,
            p2s_weight=2.0,
            elastic=elastic,
            reduction=reduction,
        ),
        old,
    )
    some = batch(EVERYTHING, old)
    fast = method.terms(some)["p2s"]
    reference = 2.0 * slow_p2s(method, old, some)
    assert float(reference.detach()) > 0
    torch.testing.assert_close(fast, reference)
    (gradient,) = torch.autograd.grad(fast, some.vectors, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(reference, some.vectors)[0])
    numeric = numeric_gradient(some, "p2s", method)
    torch.testing.assert_close(gradient, numeric, rtol=1e-5, atol=1e-7)


def test_p2s_gradient_of_the_boundary_only_loosens() -> None:
    old = artifacts()
    for threshold in (0.01, 0.4, 1.9):
        method = prepared(AdvBCT(threshold=threshold), old)
        some = batch(EVERYTHING, old)
        assert method.looseness is not None
        (gradient,) = torch.autograd.grad(method.terms(some)["p2s"], method.looseness)
        with torch.no_grad():
            before = method.boundaries()
            method.looseness.sub_(0.1 * gradient)
            after = method.boundaries()
        assert (after >= before - 1e-12).all()
        assert (after > before).any()


def test_advbct_tightening_shrinks_the_boundary_without_outside_samples() -> None:
    old = artifacts()
    method = prepared(AdvBCT(tightening=0.5), old)
    some = batch(EVERYTHING, old, spread=0.0)
    some = replace(some, vectors=old.centres[old.labels].double().requires_grad_())
    terms = method.terms(some)
    kept = old.counts[some.labels] >= 2
    mean = method.boundaries()[some.labels][kept].mean()
    torch.testing.assert_close(terms["tightening"], 0.5 * mean)
    assert method.looseness is not None
    (gradient,) = torch.autograd.grad(terms["tightening"], method.looseness)
    with torch.no_grad():
        before = method.boundaries()
        method.looseness.sub_(0.1 * gradient)
    seen = old.counts >= 2
    assert (method.boundaries()[seen] < before[seen]).all()
    torch.testing.assert_close(method.boundaries()[~seen], before[~seen])


@pytest.mark.parametrize("threshold", [0.0, 0.4, 1.0])
def test_the_boundary_lies_between_radius_and_threshold(threshold: float) -> None:
    old = artifacts()
    method = prepared(AdvBCT(threshold=threshold), old)
    assert method.looseness is not None
    radii = old.radii.double()
    with torch.no_grad():
        for value in (-50.0, -1.0, 0.0, 1.0, 50.0):
            method.looseness.fill_(value)
            boundary = method.boundaries()
            assert (boundary >= radii.clamp_max(threshold) - 1e-9).all()
            assert (boundary <= radii.clamp_min(threshold) + 1e-9).all()
        method.looseness.fill_(-50.0)
        torch.testing.assert_close(method.boundaries(), radii)
        method.looseness.fill_(50.0)
        torch.testing.assert_close(method.boundaries(), torch.full_like(radii, threshold))


def test_learnt_widths_start_between_minus_one_and_one() -> None:
    method = prepared(AdvBCT(), artifacts())
    assert method.looseness is not None
    assert method.looseness.abs().max() <= 1
    assert method.looseness.std() > 0


def test_p2s_is_zero_exactly_inside() -> None:
    old = artifacts()
    method = prepared(AdvBCT(elastic=False, p2s_weight=1.0), old)
    unit = old.vectors[:15]  # classes 0, 1 and 2
    centres, radii = old.centres[old.labels[:15]], old.radii[old.labels[:15]]
    for row in range(15):
        some = batch([row], old)
        for turn in torch.linspace(0.0, 2.0, 9).tolist():
            vector = F.normalize(unit[row] + turn * torch.eye(DIM)[row % DIM], dim=0)
            distance = float((vector - centres[row]).norm())
            value = method.terms(replace(some, vectors=vector[None].double()))["p2s"].item()
            assert (value > 0) == (distance > float(radii[row])) or value < 1e-6
            assert value == pytest.approx(max(0.0, distance - float(radii[row])), abs=1e-6)


def test_advbct_parameters_use_sgd_so_that_gamma_takes_effect() -> None:
    """One plain SGD step: −rate · gradient, so half the weight is half the step."""
    from midspan.encoders import build_encoder
    from midspan.losses import CosFace
    from midspan.training.optimisers import make_optimiser
    from midspan.training.settings import TrainSettings
    from midspan.training.step import Step

    moved = []
    for weight in (1.0, 0.5):
        torch.manual_seed(0)
        old = artifacts()
        method = AdvBCT(adversarial_weight=weight)
        method.prepare(old=old, num_classes=CLASSES, dim=DIM)
        encoder = build_encoder(backbone="vectors", dim=DIM, seed=0, settings={"inputs": 3})
        step = Step(encoder=encoder, loss=CosFace.for_classes(CLASSES, dim=DIM), method=method)
        optimiser = make_optimiser(step, TrainSettings(lr=1e-3))
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * group["factor"]
        before = method.discriminator[0].weight.detach().clone()  # type: ignore[index]
        terms = method(torch.randn(4, DIM), LABELS[:4], old=old.vectors[:4])
        terms["adversarial"].backward()
        gradient = method.discriminator[0].weight.grad  # type: ignore[index]
        optimiser.step()
        after = method.discriminator[0].weight.detach()  # type: ignore[index]
        torch.testing.assert_close(after, before - 0.1 * gradient)
        moved.append(after - before)
    torch.testing.assert_close(moved[1], 0.5 * moved[0])


def test_classes_without_a_radius_are_left_alone() -> None:
    old = artifacts()
    method = prepared(AdvBCT(), old)
    some = batch(EVERYTHING, old)
    (gradient,) = torch.autograd.grad(method.terms(some)["p2s"], some.vectors)
    assert gradient[15].abs().sum() == 0  # the only image of its class
    assert gradient[:15].abs().sum() > 0

    alone = batch([15], old)
    value = method.terms(alone)["p2s"]
    assert value.item() == 0.0
    (gradient,) = torch.autograd.grad(value, alone.vectors)
    assert gradient.abs().sum() == 0

    # a class without old images: as if an image came whose class the old side never had
    stranger = replace(batch([0], old), labels=torch.tensor([4]))
    assert method.terms(stranger)["p2s"].item() == 0.0


def test_advbct_bounds_known_classes_only_when_set() -> None:
    old = artifacts()
    method = prepared(AdvBCT(classes="known"), old)
    assert method.bounded.tolist() == [True, False, True, False, False, False]
    some = batch([6, 7, 8, 16], old)  # classes 1 and 5: unknown to the old encoder
    value = method.terms(some)["p2s"]
    assert value.item() == 0.0
    (gradient,) = torch.autograd.grad(value, some.vectors)
    assert gradient.abs().sum() == 0
    with pytest.raises(ConfigError, match="use classes = 'all'"):
        AdvBCT(classes="known").prepare(old=artifacts(label_map=None), num_classes=CLASSES, dim=DIM)


@pytest.mark.parametrize("progress", [0.0, 0.05, 0.3, 0.9])
def test_adversarial_value_and_reversed_gradient(progress: float) -> None:
    old = artifacts()
    method = prepared(AdvBCT(adversarial_weight=3.0), old)
    some = batch([0, 1, 6, 7, 11, 15], old, progress=progress)
    fast = method.terms(some)["adversarial"]
    reference = 3.0 * (1 - progress) * slow_adversarial(method, some)
    torch.testing.assert_close(fast, reference)

    (gradient,) = torch.autograd.grad(fast, some.vectors, retain_graph=True)
    strength = 2 / (1 + math.exp(-10 * progress)) - 1
    (plain,) = torch.autograd.grad(reference, some.vectors, retain_graph=True)
    torch.testing.assert_close(gradient, -strength * plain)
    numeric = numeric_gradient(some, "adversarial", method)
    torch.testing.assert_close(gradient, -strength * numeric, rtol=1e-4, atol=1e-7)

    # The discriminator itself gets the gradient as it is.
    assert method.discriminator is not None
    learnt = list(method.discriminator.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(fast, learnt), torch.autograd.grad(reference, learnt)
    )


def test_reversal_is_identity_forward_and_minus_alpha_backward() -> None:
    vectors = torch.randn(3, 2, requires_grad=True)
    out = reverse_gradient(vectors, 0.25)
    assert torch.equal(out, vectors)
    weights = torch.randn(3, 2)
    (gradient,) = torch.autograd.grad((out * weights).sum(), vectors)
    torch.testing.assert_close(gradient, -0.25 * weights)


def test_advbct_schedules_match_the_formulas() -> None:
    assert gamma(0.0, schedule="falling") == 1.0
    assert gamma(1.0, schedule="falling") == 0.0
    assert gamma(0.7, schedule="constant") == 1.0
    for epoch in range(30):  # the released code's value, less 1/E
        code = (30 - epoch + 1) / 30
        assert gamma(epoch / 30, schedule="falling") == pytest.approx(code - 1 / 30)
    assert alpha(0.0, schedule="rising") == 0.0
    assert alpha(1.0, schedule="rising") == pytest.approx(math.tanh(5.0))
    assert alpha(0.0, schedule="constant") == 1.0
    # The force on the encoder is zero at the start and largest after about a quarter.
    force = [
        gamma(p / 100, schedule="falling") * alpha(p / 100, schedule="rising") for p in range(101)
    ]
    assert force[0] == force[100] == 0.0
    assert 20 <= force.index(max(force)) <= 30


def test_constant_schedules_are_used() -> None:
    old = artifacts()
    method = prepared(AdvBCT(gamma="constant", reversal="constant"), old)
    some = batch([0, 1, 6, 7], old, progress=0.0)
    fast = method.terms(some)["adversarial"]
    reference = slow_adversarial(method, some)
    torch.testing.assert_close(fast, reference)
    torch.testing.assert_close(
        torch.autograd.grad(fast, some.vectors)[0], -torch.autograd.grad(reference, some.vectors)[0]
    )


def test_the_discriminator_sees_a_shift_between_new_and_old() -> None:
    """One pass for both sides. With batch statistics of each side for itself it would be blind."""
    torch.manual_seed(3)
    labels = torch.zeros(64, dtype=torch.int64)
    vectors = F.normalize(torch.randn(64, DIM) + torch.tensor([2.0, 0.0, 0.0, 0.0]))
    old = OldArtifacts.measure(space=SPACE, vectors=vectors, labels=labels, num_classes=1)
    method = AdvBCT(p2s_weight=0.0)
    method.prepare(old=old, num_classes=1, dim=DIM)
    optimiser = torch.optim.Adam(method.parameters(), lr=0.02)
    # The new vectors are the old ones with the first coordinate turned around: a pure shift
    # of the mean. Normalised by itself, each side would look the same.
    new = vectors * torch.tensor([-1.0, 1.0, 1.0, 1.0])
    some = Batch(vectors=new, logits=None, labels=labels, rows=torch.arange(64), old=vectors)
    for _ in range(40):
        optimiser.zero_grad()
        value = method.terms(some)["adversarial"]
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert float(value.detach()) < 0.2  # 2·log 2 = 1.39 if nothing can be told apart


def test_advbct_old_vectors_get_no_gradient() -> None:
    old = artifacts()
    method = prepared(AdvBCT(), old)
    some = batch([0, 1, 6], old)
    assert some.old is not None
    stored = some.old.clone().requires_grad_()
    total = torch.stack(list(method.terms(replace(some, old=stored)).values())).sum()
    (gradient,) = torch.autograd.grad(total, stored, allow_unused=True)
    assert gradient is None


def test_ablations_leave_only_the_other_term() -> None:
    old = artifacts()
    some = batch([0, 1, 6], old)
    both = prepared(AdvBCT(), old).terms(some)
    assert set(both) == {"p2s", "adversarial"}
    without = prepared(AdvBCT(adversarial_weight=0.0), old)
    assert set(without.terms(some)) == {"p2s"}
    assert [name for name, _ in without.named_parameters()] == ["looseness"]
    assert set(prepared(AdvBCT(p2s_weight=0.0), old).terms(some)) == {"adversarial"}
    assert prepared(AdvBCT(p2s_weight=0.0, adversarial_weight=0.0), old).terms(some) == {}
    fixed = prepared(AdvBCT(elastic=False, adversarial_weight=0.0), old)
    assert list(fixed.parameters()) == []
    torch.testing.assert_close(fixed.boundaries(), old.radii.double())


def test_a_batch_of_one_is_fine_in_training() -> None:
    old = artifacts()
    method = prepared(AdvBCT(), old)
    some = batch([0], old)
    total = torch.stack(list(method.terms(some).values())).sum()
    (gradient,) = torch.autograd.grad(total, some.vectors)
    assert torch.isfinite(gradient).all()


def test_vectors_alone_are_enough() -> None:
    some = batch(EVERYTHING, artifacts())
    with_rows = prepared(AdvBCT(), artifacts()).terms(some)
    without = prepared(AdvBCT(), artifacts(label_map=None)).terms(some)
    for name, value in with_rows.items():
        torch.testing.assert_close(without[name], value)


def test_advbct_relabelling_classes_keeps_the_terms() -> None:
    old = artifacts()
    some = batch(EVERYTHING, old)
    before = prepared(AdvBCT(classes="known", elastic=False), old).terms(some)
    turn = torch.tensor([3, 0, 4, 1, 2, 5])  # new name of each class
    label_map = torch.empty_like(MAP)
    label_map[turn] = MAP
    renamed = artifacts(turn[LABELS], label_map)
    method = prepared(AdvBCT(classes="known", elastic=False), renamed)
    after = method.terms(replace(some, labels=turn[some.labels]))
    for name, value in before.items():
        torch.testing.assert_close(after[name], value)


def test_rescaling_the_new_vectors_changes_nothing() -> None:
    old = artifacts()
    method = prepared(AdvBCT(), old)
    some = batch(EVERYTHING, old)
    for name, value in method.terms(some).items():
        again = method.terms(replace(some, vectors=7.0 * some.vectors))[name]
        torch.testing.assert_close(again, value)


def test_impossible_things_are_said() -> None:
    with pytest.raises(ConfigError, match="advbct needs the old encoder"):
        AdvBCT().prepare(old=None, num_classes=2, dim=2)
    with pytest.raises(ConfigError, match=r"set \[encoder\] dim = 4"):
        AdvBCT().prepare(old=artifacts(), num_classes=CLASSES, dim=DIM + 1)
    with pytest.raises(ConfigError, match="expected threshold >= 0"):
        AdvBCT(threshold=-0.1)
