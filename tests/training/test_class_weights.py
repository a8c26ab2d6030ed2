"""Single class weights against torch's own optimisers, with a parameter for every row."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.errors import FormatError
from midspan.losses import RecognitionLoss
from midspan.losses.cosface import CosFace
from midspan.losses.partial_fc import ClassPart, PartialFC
from midspan.losses.softmax import Softmax
from midspan.training.class_weights import (
    ClassWeightOptimiser,
    clip,
    drop_class_weights,
    load_class_weights,
    rows_folder,
    save_class_weights,
)
from midspan.training.settings import TrainSettings

CLASSES, DIM = 11, 4
Kind = Literal["adamw", "sgd"]


def settings(kind: Kind) -> TrainSettings:
    return TrainSettings(optimiser=kind, lr=0.1, weight_decay=0.05)


def prepared(base: RecognitionLoss, *, rate: float) -> PartialFC:
    torch.manual_seed(1)
    loss = PartialFC(base, rate=rate)
    loss.prepare(num_classes=CLASSES, dim=DIM)
    return loss.double()


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        (
            torch.randn(3, DIM, generator=generator, dtype=torch.float64),
            torch.randint(CLASSES, (3,), generator=generator),
        )
        for _ in range(count)
    ]


def own_optimiser(parameters: list[nn.Parameter], kind: Kind) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.numel() > 1], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.numel() == 1], "weight_decay": 0.0},
    ]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    return torch.optim.AdamW(groups, lr=0.1)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_class_weights_are_updated_as_separate_parameters(kind: Kind, rate: float) -> None:
    """Whose gradient is None when it is not drawn; twelve steps of a softmax with bias."""
    loss = prepared(Softmax(bias=True), rate=rate)
    held = loss.held
    assert held.bias is not None
    rows = [nn.Parameter(row.clone()) for row in held.rows]
    bias = [nn.Parameter(value.clone()) for value in held.bias]
    reference = own_optimiser([*rows, *bias], kind)
    optimiser = ClassWeightOptimiser(loss, settings(kind))
    counts = []
    for number, (vectors, labels) in enumerate(batches(12)):
        torch.manual_seed(number)
        loss(vectors=vectors, logits=None, labels=labels).backward()
        assert loss.drawn is not None
        index = range(CLASSES) if loss.drawn.index is None else loss.drawn.index.tolist()
        optimiser.step(rate=0.1)

        reference.zero_grad(set_to_none=True)
        logits = F.linear(vectors, torch.stack([rows[i] for i in index]), None)
        logits = logits + torch.stack([bias[i] for i in index])
        places = torch.tensor([list(index).index(label) for label in labels.tolist()])
        F.cross_entropy(logits, places).backward()  # type: ignore[no-untyped-call]
        reference.step()
        counts.append(len(index))
        torch.testing.assert_close(held.rows, torch.stack(list(rows)))
        torch.testing.assert_close(held.bias, torch.stack(list(bias)))
    assert (min(counts) < CLASSES) == (rate < 1)


def test_class_weights_not_drawn_keep_value_and_state() -> None:
    loss = prepared(CosFace(), rate=0.3)
    optimiser = ClassWeightOptimiser(loss, settings("adamw"))
    for number, (vectors, labels) in enumerate(batches(3)):
        before = {key: value.clone() for key, value in optimiser.tensors.items()}
        torch.manual_seed(number)
        loss(vectors=vectors, logits=None, labels=labels).backward()
        assert loss.drawn is not None
        assert loss.drawn.index is not None
        drawn = torch.zeros(CLASSES, dtype=torch.bool)
        drawn[loss.drawn.index] = True
        optimiser.step(rate=0.1)
        for key, value in optimiser.tensors.items():
            same = (value == before[key]).view(CLASSES, -1).all(1)
            assert same[~drawn].all(), key
            assert not same[drawn].any(), key


def test_class_weights_second_step_without_a_gradient_changes_nothing() -> None:
    loss = prepared(CosFace(), rate=1.0)
    optimiser = ClassWeightOptimiser(loss, settings("sgd"))
    vectors, labels = batches(1)[0]
    loss(vectors=vectors, logits=None, labels=labels).backward()
    optimiser.step(rate=0.1)
    before = loss.held.rows.clone()
    optimiser.step(rate=0.1)
    assert torch.equal(loss.held.rows, before)


def test_clip_gradients_includes_class_weights() -> None:
    """As torch does it when the rows are a parameter like all others."""
    other = nn.Parameter(torch.ones(5, dtype=torch.float64))
    loss = prepared(CosFace(), rate=1.0)
    optimiser = ClassWeightOptimiser(loss, settings("sgd"))
    vectors, labels = batches(1)[0]
    loss(vectors=vectors, logits=None, labels=labels).backward()
    other.grad = torch.full_like(other, 3.0)
    assert loss.drawn is not None
    rows = nn.Parameter(loss.held.rows.clone())
    assert loss.drawn.rows.grad is not None
    rows.grad = loss.drawn.rows.grad.clone()
    twin = nn.Parameter(other.detach().clone())
    twin.grad = other.grad.clone()
    for limit in (1e6, 0.5):  # the first changes nothing
        clip([other], optimiser, limit=limit)
        nn.utils.clip_grad_norm_([rows, twin], limit)
        torch.testing.assert_close(loss.drawn.rows.grad, rows.grad)
        torch.testing.assert_close(other.grad, twin.grad)


# ---- files --------------------------------------------------------------------------------------


def part_of(whole: ClassWeightOptimiser, first: int, last: int) -> ClassWeightOptimiser:
    """What a process would hold that has only these classes."""
    loss = PartialFC(CosFace())
    rows = whole.tensors["rows"]
    loss._held = ClassPart(first, last, CLASSES, rows[first:last].clone(), None)
    part = ClassWeightOptimiser(loss, whole.settings)
    for key, value in part.tensors.items():
        value.copy_(whole.tensors[key][first:last])
    return part


def trained() -> ClassWeightOptimiser:
    loss = prepared(CosFace(), rate=0.5)
    optimiser = ClassWeightOptimiser(loss, settings("adamw"))
    for vectors, labels in batches(4):
        loss(vectors=vectors, logits=None, labels=labels).backward()
        optimiser.step(rate=0.1)
    return optimiser


@pytest.mark.parametrize("cuts", [(0, 11), (0, 4, 11), (0, 2, 3, 9, 11)])
def test_class_weights_load_on_another_number_of_processes(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    whole, checkpoint = trained(), tmp_path / "checkpoint.safetensors"
    for first, last in ((0, 3), (3, 7), (7, 11)):
        name = save_class_weights(checkpoint, part_of(whole, first, last), epoch=2, step=5)
    for first, last in pairwise(cuts):
        part = part_of(whole, first, last)
        for value in part.tensors.values():
            value.fill_(-1.0)
        load_class_weights(checkpoint, part, name=name)
        for key, value in part.tensors.items():
            assert torch.equal(value, whole.tensors[key][first:last])


def test_class_weights_mismatched_files_raise_format_error(tmp_path: Path) -> None:
    whole, checkpoint = trained(), tmp_path / "checkpoint.safetensors"
    name = save_class_weights(checkpoint, part_of(whole, 0, 5), epoch=0, step=1)
    with pytest.raises(FormatError, match="of the classes 0 to 11 only 5 are there"):
        load_class_weights(checkpoint, whole, name=name)
    sgd = ClassWeightOptimiser(whole.loss, settings("sgd"))
    with pytest.raises(FormatError, match="another classifier"):
        load_class_weights(checkpoint, sgd, name=name)
    file = next(rows_folder(checkpoint).iterdir())
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(FormatError, match="not readable"):
        load_class_weights(checkpoint, whole, name=name)


def test_class_weights_of_older_checkpoints_are_removed(tmp_path: Path) -> None:
    whole, checkpoint = trained(), tmp_path / "checkpoint.safetensors"
    old = save_class_weights(checkpoint, whole, epoch=0, step=1)
    new = save_class_weights(checkpoint, whole, epoch=0, step=11)
    drop_class_weights(checkpoint, keep=new)
    load_class_weights(checkpoint, whole, name=new)
    with pytest.raises(FormatError):
        load_class_weights(checkpoint, whole, name=old)
    drop_class_weights(checkpoint)
    assert not rows_folder(checkpoint).exists()
