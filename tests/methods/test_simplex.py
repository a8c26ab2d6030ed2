"""Fixed simplex rows: their angles, who keeps which, and how they meet another encoder."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.losses.cosface import CosFace
from midspan.methods import Batch, OldArtifacts, OldClassifier
from midspan.methods.simplex import Simplex, simplex
from midspan.spaces import Space


def off_diagonal(rows: Tensor) -> Tensor:
    cos = F.normalize(rows) @ F.normalize(rows).T
    return cos[~torch.eye(len(rows), dtype=torch.bool)]


def old_side(
    *,
    classes: int,
    dim: int,
    rows: Tensor | None = None,
    label_map: Tensor | None = None,
    vectors: Tensor | None = None,
    labels: Tensor | None = None,
) -> OldArtifacts:
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(3 * classes) % classes if labels is None else labels
    if vectors is None:
        spots = torch.randn(classes, dim, generator=generator)
        vectors = spots[labels] + 0.2 * torch.randn(len(labels), dim, generator=generator)
    return OldArtifacts.measure(
        space=Space("old", dim),
        vectors=vectors,
        labels=labels,
        num_classes=classes,
        classifier=None
        if rows is None
        else OldClassifier(rows=rows, bias=None, scale=8.0, normalised=True),
        label_map=label_map,
    )


def prepared(method: Simplex, old: OldArtifacts | None, *, classes: int, dim: int) -> Simplex:
    method.prepare(old=old, num_classes=classes, dim=dim)
    return method


@pytest.mark.parametrize(("count", "dim"), [(2, 1), (3, 2), (5, 4), (5, 9), (64, 63), (64, 128)])
def test_all_pairs_have_the_same_angle(count: int, dim: int) -> None:
    rows = simplex(count, dim, seed=0)
    assert rows.shape == (count, dim)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(count, dtype=torch.float64))
    wanted = torch.full((count * (count - 1),), -1 / (count - 1), dtype=torch.float64)
    torch.testing.assert_close(off_diagonal(rows), wanted)
    torch.testing.assert_close(rows.sum(0), torch.zeros(dim, dtype=torch.float64))


def test_simplex_of_one_class_has_one_vertex() -> None:
    assert simplex(1, 3, seed=0).tolist() == [[1.0, 0.0, 0.0]]


def test_vertices_are_the_same_for_every_run() -> None:
    torch.manual_seed(1)
    first = simplex(40, 16, seed=0)
    torch.manual_seed(2)
    assert torch.equal(first, simplex(40, 16, seed=0))
    assert not torch.allclose(first, simplex(40, 16, seed=1))


def test_projected_rows_are_nearly_at_equal_angles() -> None:
    rows = simplex(1000, 128, seed=0)
    cos = off_diagonal(rows)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(1000, dtype=torch.float64))
    assert float(cos.mean()) == pytest.approx(-1 / 999, abs=1e-4)
    assert float(cos.std()) == pytest.approx(math.sqrt(1 / 128 - 1 / 1000), rel=0.05)


def test_too_few_dims_are_refused_unless_projected() -> None:
    with pytest.raises(ConfigError, match=r"10 vertices need 9 dims, the encoder has 8.*projected"):
        Simplex().prepare(old=None, num_classes=10, dim=8)
    with pytest.raises(ConfigError, match="1024 vertices need 1023 dims"):
        Simplex(classes=1024).prepare(old=None, num_classes=10, dim=8)
    method = prepared(Simplex(projected=True), None, classes=10, dim=8)
    assert method.fixed_rows().shape == (10, 8)
    with pytest.raises(ConfigError, match="expected classes of at least 5"):
        Simplex(classes=4).prepare(old=None, num_classes=5, dim=8)


def test_a_first_encoder_gets_the_first_vertices() -> None:
    method = prepared(Simplex(classes=12, follow_old=False), None, classes=7, dim=16)
    rows = method.fixed_rows()
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, simplex(12, 16, seed=0)[:7].float())
    torch.testing.assert_close(off_diagonal(rows), torch.full((42,), -1 / 11))
    assert not method.uses_old
    assert method.directions == ()


@pytest.mark.parametrize("projected", [False, True])
def test_known_classes_keep_their_row_by_name(projected: bool) -> None:
    dim = 6 if projected else 12

    def method(*, follow_old: bool = True) -> Simplex:
        return Simplex(classes=10, projected=projected, follow_old=follow_old)

    first = prepared(method(follow_old=False), None, classes=4, dim=dim)
    # the second encoder knows old classes 2, 0 and 3 under other ids; 1 has gone, two are new
    label_map = torch.tensor([2, -1, 0, 3, -1])
    old = old_side(classes=5, dim=dim, rows=first.rows, label_map=label_map)
    second = prepared(method(), old, classes=5, dim=dim)
    for new, place in enumerate(label_map.tolist()):
        if place >= 0:
            torch.testing.assert_close(second.rows[new], first.rows[place])
    # new classes have vertices that no old class has, not even the one that has gone
    vertices = simplex(10, dim, seed=0).float()
    for new in (1, 4):
        assert (first.rows @ second.rows[new]).max() < 0.9
        assert (vertices @ second.rows[new]).max() == pytest.approx(1.0, abs=1e-5)
    assert len(torch.unique(second.rows, dim=0)) == 5
    assert second.uses_old
    assert second.directions == ("direct",)

    # and a third one after it, with all the names turned around
    turn = torch.tensor([4, 2, 3, 0, 1])
    old = old_side(classes=5, dim=dim, rows=second.rows, label_map=turn)
    third = prepared(method(), old, classes=5, dim=dim)
    torch.testing.assert_close(third.rows, second.rows[turn])


def test_permuted_label_ids_give_permuted_rows() -> None:
    first = prepared(Simplex(classes=10, follow_old=False), None, classes=4, dim=12)
    label_map = torch.tensor([2, 1, 0, 3])
    turn = torch.tensor([3, 0, 2, 1])
    turned_map = torch.empty_like(label_map)
    turned_map[turn] = label_map
    old = old_side(classes=4, dim=12, rows=first.rows, label_map=label_map)
    turned = old_side(classes=4, dim=12, rows=first.rows, label_map=turned_map)
    one = prepared(Simplex(classes=10), old, classes=4, dim=12)
    other = prepared(Simplex(classes=10), turned, classes=4, dim=12)
    torch.testing.assert_close(other.rows[turn], one.rows)


def test_a_rotated_simplex_is_continued_too() -> None:
    """First any encoder, then one that turned the simplex onto it, then one that follows that."""
    start = old_side(classes=4, dim=12)
    first = prepared(Simplex(classes=10), start, classes=4, dim=12)
    assert not torch.allclose(first.rows, simplex(10, 12, seed=0)[:4].float(), atol=0.05)
    label_map = torch.tensor([-1, 3, 1, 0, 2, -1])
    old = old_side(classes=6, dim=12, rows=first.rows, label_map=label_map)
    second = prepared(Simplex(classes=10), old, classes=6, dim=12)
    torch.testing.assert_close(second.rows[1:5], first.rows[[3, 1, 0, 2]])
    torch.testing.assert_close(off_diagonal(second.rows), torch.full((30,), -1 / 9))


def test_vertices_can_run_out() -> None:
    first = prepared(Simplex(classes=5, follow_old=False), None, classes=4, dim=12)
    old = old_side(classes=4, dim=12, rows=first.rows, label_map=torch.tensor([0, -1, -1, 1]))
    with pytest.raises(ConfigError, match="2 classes are new, but only 1 of 5 vertices are free"):
        Simplex(classes=5).prepare(old=old, num_classes=4, dim=12)


@pytest.mark.parametrize("only_vectors", [False, True])
def test_simplex_follows_another_encoder_by_a_rotation(only_vectors: bool) -> None:
    classes, dim = 5, 6
    generator = torch.Generator().manual_seed(0)
    rows = None if only_vectors else torch.randn(3, dim, generator=generator)
    label_map = None if only_vectors else torch.tensor([0, 1, -1, 2, -1])
    old = old_side(classes=classes, dim=dim, rows=rows, label_map=label_map)
    method = prepared(Simplex(), old, classes=classes, dim=dim)
    torch.testing.assert_close(off_diagonal(method.rows), torch.full((20,), -1 / 4))
    centres = F.normalize(old.centres)
    agreement = (method.rows * centres).sum()
    assert agreement > (simplex(classes, dim, seed=0).float() * centres).sum()
    for seed in range(50):  # no rotation nearby is better
        generator.manual_seed(seed)
        skew = 0.1 * torch.randn(dim, dim, generator=generator)
        turned = method.rows @ torch.matrix_exp(skew - skew.T)
        assert (turned * centres).sum() <= agreement + 1e-6


def test_an_old_encoder_that_is_a_simplex_already_is_met_exactly() -> None:
    generator = torch.Generator().manual_seed(8)
    turn = torch.linalg.qr(torch.randn(7, 7, generator=generator)).Q
    spots = simplex(6, 7, seed=0).float() @ turn
    labels = torch.arange(12) % 6
    old = old_side(classes=6, dim=7, vectors=spots[labels], labels=labels)
    method = prepared(Simplex(), old, classes=6, dim=7)
    torch.testing.assert_close(method.rows, spots, rtol=0, atol=1e-5)


def test_simplex_relabelling_classes_rotates_the_same_way() -> None:
    labels = torch.arange(15) % 5
    turn = torch.tensor([3, 0, 4, 1, 2])  # new name of each class
    old = old_side(classes=5, dim=8, labels=labels)
    renamed = old_side(classes=5, dim=8, labels=turn[labels], vectors=old.vectors)
    before = prepared(Simplex(classes=7), old, classes=5, dim=8).rows
    after = prepared(Simplex(classes=7), renamed, classes=5, dim=8).rows
    torch.testing.assert_close(after[turn], before, rtol=0, atol=1e-5)


def test_classes_without_images_do_not_pull() -> None:
    labels = torch.tensor([0, 0, 1, 2, 2])  # class 1 has one image, class 3 none
    old = old_side(classes=4, dim=5, labels=labels)
    method = prepared(Simplex(), old, classes=4, dim=5)
    torch.testing.assert_close(off_diagonal(method.rows), torch.full((12,), -1 / 3))
    assert torch.isfinite(method.rows).all()
    centres = F.normalize(old.centres[:3])
    own = (method.rows[:3] * centres).sum()
    # Without the empty class the best rotation of the same three vertices agrees as much.
    best = torch.linalg.svdvals(simplex(4, 5, seed=0)[:3].T @ centres.double()).sum()
    assert float(own) == pytest.approx(float(best), abs=1e-5)


def test_the_loss_keeps_the_rows_and_the_method_adds_nothing() -> None:
    method = prepared(Simplex(), None, classes=5, dim=4)
    loss = CosFace(scale=8.0, margin=0.1)
    loss.prepare(num_classes=5, dim=4)
    loss.fix_rows(method.fixed_rows())
    vectors = torch.randn(6, 4, requires_grad=True)
    labels = torch.arange(6) % 5
    # cross-entropy over s·(cos − m at the label), by loops over the vertices
    rows = simplex(5, 4, seed=0).float()
    total = torch.zeros(())
    for vector, label in zip(vectors, labels.tolist(), strict=True):
        cos = torch.stack([torch.dot(vector, row) / vector.norm() for row in rows])
        logits = 8.0 * (cos - 0.1 * F.one_hot(torch.tensor(label), 5))
        total = total + logits.logsumexp(0) - logits[label]
    value = loss(vectors=vectors, logits=loss.logits(vectors), labels=labels)
    torch.testing.assert_close(value, total / 6)
    torch.testing.assert_close(
        torch.autograd.grad(value, vectors)[0], torch.autograd.grad(total / 6, vectors)[0]
    )
    assert [p for p in loss.parameters() if p.requires_grad] == []
    some = Batch(vectors=vectors, logits=None, labels=labels, rows=labels, old=None)
    assert method.terms(some) == {}
    assert list(method.parameters()) == []
    assert torch.equal(method.mix(vectors, old=None, labels=labels), vectors)


def test_simplex_other_dim_than_the_old_encoder_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"set \[encoder\] dim = 6"):
        Simplex().prepare(old=old_side(classes=4, dim=6), num_classes=4, dim=8)
