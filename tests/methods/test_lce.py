"""LCE: both terms from the equations, in all three directions, and what the paper implies."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods import Batch, OldArtifacts
from midspan.methods.lce import LCE
from midspan.methods.old import angle
from tests.methods.small import (
    CLASSES,
    DIM,
    LABELS,
    a_batch,
    differentiable_zero,
    drawn,
    gradient_is_right,
    old_artifacts,
    only_vectors,
    prepared,
    renamed,
    renamed_batch,
    same_as_reference,
)

ROWS = [0, 1, 2, 3, 4, 7, 9, 12]


def cosine(one: Tensor, other: Tensor) -> Tensor:
    value: Tensor = torch.dot(one, other) / (one.norm() * other.norm())
    return value


def tight(spread: float = 0.3) -> OldArtifacts:
    """Old classes so narrow that random new vectors lie outside."""
    means = drawn(CLASSES, DIM, seed=30)[LABELS]
    return old_artifacts(vectors=means + spread * drawn(len(LABELS), DIM, seed=31))


def slow_limit(old: OldArtifacts, label: int) -> float:
    """The largest angle between an old vector of the class and the class centre."""
    own = [v.double() for v, k in zip(old.vectors, old.labels, strict=True) if int(k) == label]
    centre = torch.stack(own).mean(0)
    return max(math.acos(min(1.0, cosine(v, centre).item())) for v in own)


def slow_terms(method: LCE, some: Batch, old: OldArtifacts) -> tuple[Tensor, Tensor]:
    assert some.class_rows is not None

    def there(vectors: Tensor) -> Tensor:
        mapped: Tensor = vectors if method.learnt is None else method.learnt.to_old(vectors)
        return mapped

    def here(vectors: Tensor) -> Tensor:
        mapped: Tensor = vectors if method.learnt is None else method.learnt.to_new(vectors)
        return mapped

    align = []
    for label in range(CLASSES):
        centre = old.centres[label].double()
        row = some.class_rows[label]
        back = 1 - cosine(there(row[None])[0], centre)
        forth = 1 - cosine(row, here((centre / centre.norm())[None])[0])
        align.append((back + forth) / 2)
    boundary = []
    for vector, label in zip(some.vectors, some.labels.tolist(), strict=True):
        limit = slow_limit(old, label) + method.slack
        cos = cosine(there(vector[None])[0], old.centres[label].double())
        if method.boundary_form == "cosine":
            boundary.append(torch.relu(math.cos(limit) - cos))
        else:
            boundary.append(torch.relu(torch.acos(cos) - limit))
    return torch.stack(align).mean(), torch.stack(boundary).mean()


@pytest.mark.parametrize("form", ["angle", "cosine"])
@pytest.mark.parametrize("slack", [0.0, 0.4])
def test_lce_direct_value_and_gradient_match_the_reference(form: str, slack: float) -> None:
    old = tight()
    method = LCE(align=2.0, boundary=3.0, boundary_form=form, slack=slack)  # type: ignore[arg-type]
    method = prepared(method, old)
    some = a_batch(ROWS, old)
    assert some.class_rows is not None
    align, boundary = slow_terms(method, some, old)
    assert boundary.item() > 0
    fast = method.terms(some)
    learnt = (some.vectors, some.class_rows)
    same_as_reference(fast["align"], 2.0 * align, *learnt)
    # the limit is made from float32 vectors and widened by their rounding
    torch.testing.assert_close(fast["boundary"], 3.0 * boundary, rtol=0, atol=1e-5)
    gradient_is_right(lambda z: method.terms(replace(some, vectors=z))["boundary"], some.vectors)
    gradient_is_right(lambda w: method.terms(replace(some, class_rows=w))["align"], some.class_rows)


@pytest.mark.parametrize("dim", [DIM, DIM - 1, DIM + 3])
@pytest.mark.parametrize("depth", [0, 2])
def test_through_maps_value_and_gradient(dim: int, depth: int) -> None:
    old = tight()
    torch.manual_seed(0)
    method = prepared(LCE(align=1.0, boundary=1.0, transformation="rbt", depth=depth), old, dim=dim)
    for place, parameter in enumerate(method.parameters()):  # away from the start
        parameter.data += 0.2 * drawn(*parameter.shape, seed=40 + place)
    some = a_batch(ROWS, old, dim=dim)
    assert some.class_rows is not None
    align, boundary = slow_terms(method, some, old)
    fast = method.terms(some)
    learnt = (some.vectors, some.class_rows, *method.parameters())
    same_as_reference(fast["align"], align, *learnt)
    torch.testing.assert_close(fast["boundary"], boundary, rtol=0, atol=1e-5)
    gradient_is_right(lambda z: method.terms(replace(some, vectors=z))["boundary"], some.vectors)
    gradient_is_right(lambda w: method.terms(replace(some, class_rows=w))["align"], some.class_rows)
    assert method.directions == ("backward", "forward")
    assert set(method.maps()) == {"backward", "forward"}


def test_the_boundary_reaches_the_backward_map_only() -> None:
    old = tight()
    method = prepared(LCE(transformation="rbt", depth=1), old, dim=DIM + 2)
    assert method.learnt is not None
    value = method.terms(a_batch(ROWS, old, dim=DIM + 2))["boundary"]
    weights = [method.learnt.to_old.weight, method.learnt.to_new.weight]
    back, forth = torch.autograd.grad(value, weights, allow_unused=True)
    assert back is not None
    assert back.abs().sum() > 0
    assert forth is None


@pytest.mark.parametrize("form", ["angle", "cosine"])
def test_the_old_vectors_themselves_are_inside(form: str) -> None:
    for old in (old_artifacts(), tight(), old_artifacts(labels=torch.tensor([0, 0, 1, 2, 3, 4]))):
        method = LCE(boundary_form=form)  # type: ignore[arg-type]
        method.prepare(old=old, num_classes=CLASSES, dim=DIM)
        vectors = (5 * old.vectors).requires_grad_()  # float32; length does not count
        everything = torch.arange(len(old.labels))
        some = Batch(
            vectors=vectors,
            logits=None,
            labels=old.labels,
            rows=everything,
            old=old.vectors,
            class_rows=old.centres,
        )
        differentiable_zero(method.terms(some)["boundary"], vectors)


def test_align_is_zero_exactly_where_rows_are_centres() -> None:
    old = tight()
    method = prepared(LCE(align=1.0), old)
    some = a_batch(ROWS, old)
    on_centres = replace(some, class_rows=7 * old.centres.double())
    assert method.terms(on_centres)["align"].item() == pytest.approx(0.0, abs=1e-6)
    moved = old.centres.double().clone()
    moved[3] = -moved[3]
    opposite = method.terms(replace(some, class_rows=moved))["align"].item()
    assert opposite == pytest.approx(2.0 / CLASSES, abs=1e-6)  # 1 - cos π = 2 in one class


def test_lengths_do_not_count() -> None:
    old = tight()
    method = prepared(LCE(), old)
    some = a_batch(ROWS, old)
    assert some.class_rows is not None
    longer = replace(some, vectors=9 * some.vectors, class_rows=0.1 * some.class_rows)
    for name, value in method.terms(some).items():
        torch.testing.assert_close(method.terms(longer)[name], value)


def test_the_weight_of_the_released_code_converts() -> None:
    """100 times the mean over classes and coordinates of (row - centre)² is 100 · 2/d · align."""
    old = tight()
    some = a_batch(ROWS, old)
    assert some.class_rows is not None
    released = 100 * F.mse_loss(
        F.normalize(some.class_rows), F.normalize(old.centres.double()), reduction="mean"
    )
    ours = prepared(LCE(align=100 * 2 / DIM), old).terms(some)["align"]
    torch.testing.assert_close(ours, released, rtol=1e-6, atol=0)


def test_lce_more_slack_gives_a_smaller_term() -> None:
    old = tight()
    some = a_batch(ROWS, old)
    costs = [
        prepared(LCE(slack=slack), old).terms(some)["boundary"].item()
        for slack in (0.0, 0.3, 0.6, 4.0)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[1] > 0
    assert costs[-1] == 0.0  # everything is within π


def test_classes_without_images_take_no_part() -> None:
    labels = torch.tensor([0, 0, 2, 2, 2, 4])
    old = old_artifacts(labels=labels)
    some = a_batch([0, 2, 5], old)
    assert some.class_rows is not None
    value = prepared(LCE(align=1.0), old).terms(some)["align"]
    losses = [
        1 - cosine(some.class_rows[label], old.centres[label].double()) for label in (0, 2, 4)
    ]
    torch.testing.assert_close(value, torch.stack(losses).mean())
    (gradient,) = torch.autograd.grad(value, some.class_rows)
    assert gradient[[1, 3]].abs().sum() == 0


def test_classes_whose_old_vectors_cancel_out_have_no_centre() -> None:
    one = drawn(1, DIM, seed=3)
    old = old_artifacts(
        vectors=torch.cat([one, -one]),
        labels=torch.tensor([0, 0]),
        num_classes=1,
        label_map=torch.tensor([-1]),
    )
    method = prepared(LCE(), old)
    some = a_batch([0, 1], old)
    assert some.class_rows is not None
    terms = method.terms(some)
    differentiable_zero(terms["boundary"], some.vectors)
    differentiable_zero(terms["align"], some.class_rows)


def test_a_class_of_one_image_is_bound_to_its_vector() -> None:
    old = old_artifacts(
        labels=torch.tensor([0, 1, 1]), num_classes=2, label_map=torch.tensor([0, -1])
    )
    method = prepared(LCE(boundary=1.0), old)
    some = a_batch([0], old)
    wanted = math.acos(cosine(some.vectors[0], old.vectors[0].double()).item())
    assert method.terms(some)["boundary"].item() == pytest.approx(wanted, abs=1e-5)


def test_lce_relabelling_or_missing_classifier_keeps_the_terms() -> None:
    old = tight()
    some = a_batch(ROWS, old)
    before = prepared(LCE(), old).terms(some)
    after = prepared(LCE(), renamed(old)).terms(renamed_batch(some))
    lost = replace(old, classifier=None, label_map=only_vectors().label_map)
    alone = prepared(LCE(), lost).terms(some)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value)
        torch.testing.assert_close(alone[name], value)


@pytest.mark.parametrize("theta", [0.0, 1e-5, 0.3, 1.5, 3.0, math.pi])
def test_angles_are_exact_and_their_gradient_is_finite(theta: float) -> None:
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([[math.cos(theta), math.sin(theta)]], dtype=torch.float64)
    value = angle(one, other)
    assert value.item() == pytest.approx(theta, abs=1e-12)
    (gradient,) = torch.autograd.grad(value, one)
    assert torch.isfinite(gradient).all()


def test_lce_impossible_settings_raise_config_error() -> None:
    old = old_artifacts()
    with pytest.raises(ConfigError, match="lce needs the old encoder"):
        LCE().prepare(old=None, num_classes=CLASSES, dim=DIM)
    with pytest.raises(ConfigError, match=r"transformation = 'rbt', or \[encoder\] dim = 4"):
        LCE().prepare(old=old, num_classes=CLASSES, dim=DIM + 1)
    with pytest.raises(ConfigError, match=r"slack >= 0 \(radians\), got -1"):
        LCE(slack=-1.0)
    with pytest.raises(ConfigError, match=r"aligns the class weights.*name = 'cosface'"):
        prepared(LCE(), old).terms(replace(a_batch(ROWS, old), class_rows=None))
