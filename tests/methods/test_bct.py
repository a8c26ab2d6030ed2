"""BCT: value and gradient from the equation, and the properties the paper implies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods import Batch, OldArtifacts, OldClassifier
from midspan.methods.bct import BCT
from midspan.spaces import Space

DIM, CLASSES, OLD_CLASSES, IMAGES = 4, 5, 3, 20
SPACE = Space("old", DIM, fingerprint="f-old")
LABELS = torch.arange(IMAGES) % CLASSES
MAP = torch.tensor([2, -1, 0, -1, 1])  # new class → old class


def classifier(*, normalised: bool = True) -> OldClassifier:
    generator = torch.Generator().manual_seed(1)
    return OldClassifier(
        rows=3 * torch.randn(OLD_CLASSES, DIM, generator=generator),
        bias=None if normalised else torch.randn(OLD_CLASSES, generator=generator),
        scale=10.0,
        normalised=normalised,
    )


def artifacts(known: OldClassifier | None, label_map: Tensor = MAP) -> OldArtifacts:
    generator = torch.Generator().manual_seed(2)
    return OldArtifacts.measure(
        space=SPACE,
        vectors=torch.randn(IMAGES, DIM, generator=generator),
        labels=LABELS,
        num_classes=CLASSES,
        classifier=known,
        label_map=label_map,
    )


def prepared(method: BCT, old: OldArtifacts) -> BCT:
    method.prepare(old=old, num_classes=CLASSES, dim=DIM)
    return method


def batch(rows: list[int], old: OldArtifacts, seed: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    index = torch.tensor(rows)
    return Batch(
        vectors=torch.randn(len(rows), DIM, generator=generator).requires_grad_(),
        logits=None,
        labels=LABELS[index],
        rows=index,
        old=old.vectors[index],
    )


def slow_cross_entropy(vector: Tensor, rows: list[Tensor], target: int, scale: float) -> Tensor:
    logits = torch.stack([scale * torch.dot(vector, r) / (vector.norm() * r.norm()) for r in rows])
    return logits.logsumexp(0) - logits[target]


def test_synthesised_rows_value_and_gradient() -> None:
    known = classifier()
    old = artifacts(known)
    method = prepared(BCT(weight=2.0), old)
    some = batch([0, 1, 2, 3, 4, 6], old)
    fast = method.terms(some)["influence"]

    # rows: the three known classes, then the centres of classes 1 and 3
    rows = [*known.rows, old.centres[1], old.centres[3]]
    place = {0: 2, 1: 3, 2: 0, 3: 4, 4: 1}
    losses = [
        slow_cross_entropy(vector, rows, place[int(label)], 10.0)
        for vector, label in zip(some.vectors, some.labels, strict=True)
    ]
    reference = 2.0 * torch.stack(losses).mean()
    torch.testing.assert_close(fast, reference)
    torch.testing.assert_close(
        torch.autograd.grad(fast, some.vectors), torch.autograd.grad(reference, some.vectors)
    )


def test_old_rows_only_count_known_classes() -> None:
    known = classifier()
    old = artifacts(known)
    some = batch([0, 1, 2, 3], old)  # classes 0 and 2 are known
    fast = prepared(BCT(weight=1.0, classifier="old"), old).terms(some)["influence"]
    losses = [
        slow_cross_entropy(some.vectors[i], list(known.rows), t, 10.0) for i, t in ((0, 2), (2, 0))
    ]
    torch.testing.assert_close(fast, torch.stack(losses).mean())
    (gradient,) = torch.autograd.grad(fast, some.vectors)
    assert gradient[1].abs().sum() == gradient[3].abs().sum() == 0


def test_a_batch_without_known_classes_gives_a_differentiable_zero() -> None:
    old = artifacts(classifier())
    some = batch([1, 3, 6], old)
    influence = prepared(BCT(weight=1.0, classifier="old"), old).terms(some)["influence"]
    assert influence.item() == 0.0
    (gradient,) = torch.autograd.grad(influence, some.vectors)
    assert gradient.abs().sum() == 0


def test_distilled_uses_the_old_probabilities() -> None:
    known = classifier()
    old = artifacts(known)
    some = batch([0, 1, 2], old)
    fast = prepared(BCT(weight=1.0, classifier="distilled", temperature=2.0), old).terms(some)[
        "influence"
    ]
    assert some.old is not None
    total = torch.zeros(())
    for new_vector, old_vector in zip(some.vectors, some.old, strict=True):
        soft = (known.logits(old_vector[None])[0] / 2.0).softmax(0)
        logs = (known.logits(new_vector[None])[0] / 2.0).log_softmax(0)
        total = total - (soft * logs).sum()
    torch.testing.assert_close(fast, total / 3)


@pytest.mark.parametrize("normalised", [True, False])
def test_if_new_is_old_the_loss_is_the_old_models_own(normalised: bool) -> None:
    known = classifier(normalised=normalised)
    everything = torch.tensor([0, 1, 2, 0, 1])  # every class is known
    old = artifacts(known, everything)
    index = torch.arange(6)
    some = Batch(
        vectors=old.vectors[index], logits=None, labels=LABELS[index], rows=index, old=None
    )
    own = F.cross_entropy(known.logits(old.vectors[index]), everything[LABELS[index]])
    for kind in ("old", "synthesised"):
        method = prepared(BCT(weight=1.0, classifier=kind), old)
        torch.testing.assert_close(method.terms(some)["influence"], own)


def test_vectors_alone_are_enough() -> None:
    old = artifacts(None, torch.full((CLASSES,), -1))
    method = prepared(BCT(weight=1.0, scale=7.0), old)
    some = batch([0, 1, 4], old)
    losses = [
        slow_cross_entropy(vector, list(old.centres), int(label), 7.0)
        for vector, label in zip(some.vectors, some.labels, strict=True)
    ]
    torch.testing.assert_close(method.terms(some)["influence"], torch.stack(losses).mean())


def test_bct_centres_replace_the_weights_of_every_class() -> None:
    old = artifacts(classifier())
    some = batch([0, 1, 2, 3, 4], old)
    with_rows = prepared(BCT(weight=1.0, classifier="centres", scale=7.0), old).terms(some)[
        "influence"
    ]
    without = prepared(
        BCT(weight=1.0, scale=7.0), artifacts(None, torch.full((CLASSES,), -1))
    ).terms(some)
    torch.testing.assert_close(with_rows, without["influence"])


def test_synthesised_row_of_a_single_image_is_its_vector() -> None:
    labels = torch.tensor([0, 0, 1])
    vectors = F.normalize(torch.randn(3, DIM, generator=torch.Generator().manual_seed(0)))
    old = OldArtifacts.measure(space=SPACE, vectors=vectors, labels=labels, num_classes=2)
    method = BCT(weight=1.0)
    method.prepare(old=old, num_classes=2, dim=DIM)
    torch.testing.assert_close(method.rows[1], vectors[2])


def test_synthesised_rows_have_the_norm_of_trained_ones() -> None:
    known = classifier(normalised=False)
    method = prepared(BCT(weight=1.0), artifacts(known))
    norms = method.rows.norm(dim=1)
    torch.testing.assert_close(norms[OLD_CLASSES:], norms[:OLD_CLASSES].median().expand(2))
    assert known.bias is not None
    torch.testing.assert_close(method.bias[OLD_CLASSES:], known.bias.median().expand(2))


def test_bct_relabelling_classes_keeps_the_terms() -> None:
    known = classifier()
    old = artifacts(known)
    some = batch([0, 1, 2, 3, 4], old)
    before = prepared(BCT(weight=1.0), old).terms(some)["influence"]

    turn = torch.tensor([3, 0, 4, 1, 2])  # new name of each class
    label_map = torch.empty_like(MAP)
    label_map[turn] = MAP
    renamed = OldArtifacts.measure(
        space=SPACE,
        vectors=old.vectors,
        labels=turn[LABELS],
        num_classes=CLASSES,
        classifier=known,
        label_map=label_map,
    )
    after = prepared(BCT(weight=1.0), renamed).terms(
        Batch(vectors=some.vectors, logits=None, labels=turn[some.labels], rows=some.rows, old=None)
    )["influence"]
    torch.testing.assert_close(before, after)


def test_bct_relabelling_old_classes_keeps_the_terms() -> None:
    known, turn = classifier(), torch.tensor([1, 2, 0])
    some = batch([0, 1, 2, 3, 4], artifacts(known))
    label_map = torch.where(MAP >= 0, turn[MAP.clamp_min(0)], MAP)
    turned = OldClassifier(known.rows[turn.argsort()], bias=None, scale=10.0, normalised=True)
    for kind in ("old", "synthesised", "centres", "distilled"):
        before = prepared(BCT(weight=1.0, classifier=kind), artifacts(known)).terms(some)[
            "influence"
        ]
        after = prepared(BCT(weight=1.0, classifier=kind), artifacts(turned, label_map)).terms(
            some
        )["influence"]
        torch.testing.assert_close(before, after)


@pytest.mark.parametrize("kind", ["old", "synthesised", "centres", "distilled"])
@pytest.mark.parametrize("rows", [[0], [1], [0, 1, 2, 3, 4, 6]])
def test_gradients_against_finite_differences(kind: str, rows: list[int]) -> None:
    old = artifacts(classifier())
    method = prepared(BCT(weight=1.0, classifier=kind, temperature=1.5), old).double()  # type: ignore[arg-type]
    some = batch(rows, old)
    assert some.old is not None
    exact = replace(some, old=some.old.double())
    start = some.vectors.detach().double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: method.terms(replace(exact, vectors=z))["influence"], (start,), atol=1e-6
    )


def test_a_raw_classifier_keeps_its_bias_and_lengths() -> None:
    known = classifier(normalised=False)
    old = artifacts(known)
    some = batch([0, 2, 4], old)
    fast = prepared(BCT(weight=1.0, classifier="old"), old).terms(some)["influence"]
    assert known.bias is not None
    losses = []
    for vector, target in zip(some.vectors, (2, 0, 1), strict=True):
        logits = torch.stack(
            [
                torch.dot(vector, row) + bias
                for row, bias in zip(known.rows, known.bias, strict=True)
            ]
        )
        losses.append(logits.logsumexp(0) - logits[target])
    torch.testing.assert_close(fast, torch.stack(losses).mean())


def test_old_classes_that_are_gone_still_compete() -> None:
    """The old classifier knew a class that the new training set has no image of."""
    known = classifier()
    gone = torch.tensor([0, -1, 1, -1, -1])  # nothing maps to old class 2
    old = artifacts(known, gone)
    some = batch([0, 2], old)
    fast = prepared(BCT(weight=1.0, classifier="old"), old).terms(some)["influence"]
    losses = [slow_cross_entropy(some.vectors[i], list(known.rows), i, 10.0) for i in (0, 1)]
    torch.testing.assert_close(fast, torch.stack(losses).mean())


def test_bct_distilled_needs_no_shared_class_and_is_least_at_the_old_vectors() -> None:
    old = artifacts(classifier(), torch.full((CLASSES,), -1))
    method = prepared(BCT(weight=1.0, classifier="distilled"), old)
    some = batch([0, 1, 2, 3], old)
    assert some.old is not None
    at_old = method.terms(replace(some, vectors=some.old.clone().requires_grad_()))
    assert at_old["influence"] < method.terms(some)["influence"]
    vectors = some.old.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        method.terms(replace(some, vectors=vectors))["influence"], vectors
    )
    assert gradient.abs().max() < 1e-5


def test_names_without_a_classifier_are_as_good_as_vectors_alone() -> None:
    """An old run with a pair loss knows class names, but has no rows for them."""
    some = batch([0, 1, 4], artifacts(None))
    named = prepared(BCT(weight=1.0, scale=7.0), artifacts(None, MAP)).terms(some)["influence"]
    alone = prepared(BCT(weight=1.0, scale=7.0), artifacts(None, torch.full((CLASSES,), -1))).terms(
        some
    )
    torch.testing.assert_close(named, alone["influence"])


def test_classes_without_images_get_no_row() -> None:
    labels = torch.tensor([0, 0, 3])
    vectors = torch.randn(3, DIM, generator=torch.Generator().manual_seed(0))
    old = OldArtifacts.measure(space=SPACE, vectors=vectors, labels=labels, num_classes=CLASSES)
    method = prepared(BCT(weight=1.0), old)
    assert method.rows.shape == (2, DIM)
    assert method.target_of.tolist() == [0, -1, -1, 1, -1]


def test_bct_old_classifier_has_no_trainable_parameters() -> None:
    old = artifacts(classifier())
    method = prepared(BCT(weight=1.0), old)
    assert list(method.parameters()) == []
    assert not any(buffer.requires_grad for buffer in method.buffers())


@pytest.mark.parametrize(
    ("method", "known", "dim", "message"),
    [
        (BCT(weight=1.0), True, DIM + 1, r"new dim must be the old one.*set \[encoder\] dim = 4"),
        (BCT(weight=1.0, classifier="old"), False, DIM, "needs the old class weights"),
        (BCT(weight=1.0, classifier="distilled"), False, DIM, "use classifier = 'synthesised'"),
    ],
)
def test_bct_without_an_old_classifier_raises_config_error(
    method: BCT, known: bool, dim: int, message: str
) -> None:
    old = artifacts(classifier() if known else None)
    with pytest.raises(ConfigError, match=message):
        method.prepare(old=old, num_classes=CLASSES, dim=dim)


def test_bct_wrong_settings_raise_config_error() -> None:
    with pytest.raises(ConfigError, match="needs the old encoder"):
        BCT(weight=1.0).prepare(old=None, num_classes=2, dim=2)
    with pytest.raises(ConfigError, match="raw vectors"):
        prepared(BCT(weight=1.0, classifier="distilled"), artifacts(classifier(normalised=False)))
