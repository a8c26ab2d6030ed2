"""Variation decorrelation: masks, both sides of the game, and who gets which gradient."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from midspan.errors import ConfigError
from midspan.losses.decorrelation import (
    Decorrelation,
    confusion_loss,
    draw_masks,
    variation_loss,
)

BATCH, M, K, WIDTH = 6, 3, 4, 2


def made(**options: float) -> tuple[Decorrelation, Tensor, Tensor]:
    torch.manual_seed(2)
    loss = Decorrelation(
        variations=M,
        sub_embeddings=K,
        dim=K * WIDTH,
        hidden=5,
        **options,  # type: ignore[arg-type]
    ).double()
    slices = torch.randn(BATCH, K, WIDTH, dtype=torch.float64)
    vectors = (slices / slices.norm(dim=2, keepdim=True)).flatten(1).requires_grad_()
    applied = torch.tensor([[0, 1, 0], [1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]])
    return loss, vectors, applied.double()


@pytest.mark.parametrize(("count", "k"), [(6, 4), (3, 8), (5, 16), (9, 40)])
def test_draw_masks_gives_distinct_halves_by_seed(count: int, k: int) -> None:
    masks = draw_masks(count, sub_embeddings=k, seed=3)
    assert masks.shape == (count, k)
    assert masks.sum(1).tolist() == [k / 2] * count
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(masks, 2))
    assert torch.equal(masks, draw_masks(count, sub_embeddings=k, seed=3))
    assert not torch.equal(masks, draw_masks(count, sub_embeddings=k, seed=4))


@pytest.mark.parametrize(("count", "k"), [(3, 2), (1, 1), (2, 3), (7, 4), (0, 4)])
def test_draw_masks_without_enough_distinct_halves_raises(count: int, k: int) -> None:
    with pytest.raises(ConfigError, match="even number such as 8"):
        draw_masks(count, sub_embeddings=k, seed=0)


def test_decorrelation_terms_equal_the_equations() -> None:
    loss, vectors, applied = made(variation_weight=1.5, confusion_weight=0.5)
    terms = loss(vectors, applied)
    told = own = observed = 0.0
    for i in range(BATCH):
        for t in range(M):
            masked = vectors.detach()[i].clone()
            for k in range(K):
                if loss.masks[t, k] == 0:
                    masked[k * WIDTH : (k + 1) * WIDTH] = 0.0
            p = torch.sigmoid(loss.classifier(masked)).tolist()
            for other in range(M):
                u = float(applied[i, other])
                right = p[other] if u == 1.0 else 1 - p[other]
                observed -= math.log(right)
                if other == t:
                    own -= math.log(right)
                else:
                    told -= 0.5 * (math.log(p[other]) + math.log(1 - p[other]))
    values = {name: float(value.detach()) for name, value in terms.items()}
    assert values["variation"] == pytest.approx(1.5 * own / BATCH)
    assert values["confusion"] == pytest.approx(0.5 * told / BATCH)
    assert values["observer"] == pytest.approx(observed / (BATCH * M * M))


def test_decorrelation_confusion_is_minimal_at_probability_one_half() -> None:
    floor = M * (M - 1) * math.log(2)
    torch.manual_seed(0)
    for _ in range(20):
        assert float(confusion_loss(torch.randn(BATCH, M, M) * 3)) >= floor
    assert float(confusion_loss(torch.zeros(BATCH, M, M))) == pytest.approx(floor)
    sure = torch.diag_embed(torch.full((BATCH, M), 9.0))  # sure of the own variation alone
    assert float(confusion_loss(sure)) == pytest.approx(floor)
    assert float(variation_loss(sure, torch.ones(BATCH, M))) < 1e-3


def test_decorrelation_gradients_of_classifier_and_vectors_are_separate() -> None:
    loss, vectors, applied = made()
    terms = loss(vectors, applied)
    weights = list(loss.classifier.parameters())
    for name in ("variation", "confusion"):
        [by_vector] = torch.autograd.grad(terms[name], [vectors], retain_graph=True)
        assert torch.count_nonzero(by_vector) > 0
        nothing = torch.autograd.grad(terms[name], weights, retain_graph=True, allow_unused=True)
        assert all(gradient is None for gradient in nothing)
    nothing = torch.autograd.grad(
        terms["observer"], [vectors], retain_graph=True, allow_unused=True
    )
    assert all(gradient is None for gradient in nothing)
    for gradient in torch.autograd.grad(terms["observer"], weights):
        assert torch.count_nonzero(gradient) > 0


def test_decorrelation_trained_vectors_keep_their_variation_only() -> None:
    torch.manual_seed(0)
    loss = Decorrelation(variations=2, sub_embeddings=4, dim=16, hidden=16, seed=1)
    applied = torch.randint(0, 2, (64, 2)).float()
    free = torch.randn(64, 16).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=0.05)  # the classifier rests
    history = []
    for _ in range(60):
        unit = torch.nn.functional.normalize(free.view(64, 4, 4), dim=2).flatten(1)
        terms = loss(unit, applied)
        optimiser.zero_grad()
        (terms["variation"] + terms["confusion"]).backward()
        optimiser.step()
        history.append({name: float(value.detach()) for name, value in terms.items()})
    floor = 2.0 * 2 * math.log(2)  # of the weighted term
    assert history[-1]["variation"] < history[0]["variation"]
    assert floor <= history[-1]["confusion"] < history[0]["confusion"]
    assert history[-1]["confusion"] < 1.01 * floor
