"""The classifier in parts against the whole one, in one process and in two."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import start_processes

from midspan.config import build
from midspan.errors import ConfigError
from midspan.losses import LOSSES, RecognitionLoss
from midspan.losses.arcface import ArcFace
from midspan.losses.cosface import CosFace
from midspan.losses.normalised_softmax import NormalisedSoftmax
from midspan.losses.partial_fc import PartialFC
from midspan.losses.softmax import Softmax

BATCH, CLASSES, DIM = 12, 37, 8
RTOL, ATOL = 1e-10, 1e-12  # of doubles: only the order of the sums differs

KINDS: dict[str, Callable[[], RecognitionLoss]] = {
    "softmax": Softmax,
    "normalised-softmax": NormalisedSoftmax,
    "cosface": CosFace,
    "arcface": lambda: ArcFace(scale=16.0, margin=0.4),
}


def check_close(got: Tensor | None, expected: Tensor | None) -> None:
    assert got is not None
    torch.testing.assert_close(got, expected, rtol=RTOL, atol=ATOL)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    vectors = torch.randn(BATCH, DIM, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    return vectors.requires_grad_(), labels


def whole(kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(value, gradient of the vectors, of the rows, of the bias) of the loss as it is."""
    torch.manual_seed(3)
    loss = KINDS[kind]()
    loss.prepare(num_classes=CLASSES, dim=DIM)
    loss.double()
    vectors, labels = batch()
    value = loss(vectors=vectors, logits=loss.logits(vectors), labels=labels)
    value.backward()
    assert vectors.grad is not None
    assert loss.rows is not None
    assert loss.rows.grad is not None
    bias = None if loss.bias is None else loss.bias.grad
    return value.detach(), vectors.grad, loss.rows.grad, bias


def in_parts(kind: str, *, rate: float = 1.0) -> tuple[PartialFC, Tensor, Tensor]:
    """(loss after one step, value, gradient of the vectors)."""
    torch.manual_seed(3)
    loss = PartialFC(KINDS[kind](), rate=rate)
    loss.prepare(num_classes=CLASSES, dim=DIM)
    loss.double()
    torch.manual_seed(5)
    vectors, labels = batch()
    value = loss(vectors=vectors, logits=None, labels=labels)
    value.backward()
    assert vectors.grad is not None
    return loss, value.detach(), vectors.grad


def check_equal(kind: str) -> None:
    """In every process: the own part of the rows, and everything else."""
    value, vectors, rows, bias = whole(kind)
    loss, own_value, own_vectors = in_parts(kind)
    own = slice(loss.held.first, loss.held.last)
    check_close(own_value, value)
    check_close(own_vectors, vectors)
    assert loss.drawn is not None
    check_close(loss.drawn.rows.grad, rows[own])
    if bias is not None:
        assert loss.drawn.bias is not None
        check_close(loss.drawn.bias.grad, bias[own])


@pytest.mark.parametrize("kind", KINDS)
def test_partial_fc_rate_1_equals_the_whole_softmax(kind: str) -> None:
    check_equal(kind)


def test_partial_fc_sample_equals_the_softmax_of_its_classes() -> None:
    loss, value, gradient = in_parts("cosface", rate=0.4)
    assert loss.drawn is not None
    index = loss.drawn.index
    assert index is not None
    assert 0 < len(index) < CLASSES
    _, labels = batch()
    assert set(labels.tolist()) <= set(index.tolist())

    small = CosFace()
    small.prepare(num_classes=len(index), dim=DIM)
    small.rows = torch.nn.Parameter(loss.held.rows[index])
    vectors, _ = batch()
    told = torch.tensor([index.tolist().index(label) for label in labels.tolist()])
    reference = small(vectors=vectors, logits=small.logits(vectors), labels=told)
    reference.backward()
    check_close(value, reference.detach())
    check_close(gradient, vectors.grad)
    check_close(loss.drawn.rows.grad, small.rows.grad)


def test_partial_fc_draws_as_many_classes_as_the_rate() -> None:
    classes, rate = 20_000, 0.1
    loss = PartialFC(NormalisedSoftmax(), rate=rate)
    loss.prepare(num_classes=classes, dim=2)
    labels = torch.arange(0, classes, 40)  # 500 classes of the 2,000
    torch.manual_seed(0)
    loss(vectors=torch.randn(len(labels), 2), logits=None, labels=labels)
    assert loss.drawn is not None
    index = loss.drawn.index
    assert index is not None
    spread = math.sqrt(classes * rate * (1 - rate))
    assert abs(len(index) - rate * classes) < 5 * spread
    first = set(index.tolist())
    loss(vectors=torch.randn(len(labels), 2), logits=None, labels=labels)
    assert set(loss.drawn.index.tolist()) != first  # type: ignore[union-attr]


def test_partial_fc_batch_with_more_classes_than_the_rate_draws_them_all() -> None:
    loss, value, _ = in_parts("arcface", rate=0.01)
    assert loss.drawn is not None
    assert loss.drawn.index is not None
    assert loss.drawn.index.tolist() == sorted(set(batch()[1].tolist()))
    assert value.isfinite()


def whole_and_partial() -> tuple[CosFace, PartialFC]:
    torch.manual_seed(3)
    plain = CosFace.for_classes(CLASSES, dim=DIM)
    torch.manual_seed(3)
    parts = PartialFC(CosFace())
    parts.prepare(num_classes=CLASSES, dim=DIM)
    return plain, parts


def test_partial_fc_slice_of_the_dims_equals_the_whole_softmax() -> None:
    plain, parts = whole_and_partial()
    vectors, labels = batch()
    vectors = vectors.detach().float()
    dims = slice(2, 6)
    torch.testing.assert_close(parts.part(vectors, labels, dims), plain.part(vectors, labels, dims))


def test_partial_fc_fixed_class_weights_are_not_trained() -> None:
    loss = PartialFC(CosFace())
    loss.prepare(num_classes=4, dim=4)
    loss.fix_rows(torch.eye(4))
    vectors = torch.randn(3, 4, requires_grad=True)
    loss(vectors=vectors, logits=None, labels=torch.tensor([0, 1, 3])).backward()
    assert loss.drawn is not None
    assert loss.drawn.rows.grad is None
    assert torch.equal(loss.held.rows, torch.eye(4))
    with pytest.raises(ConfigError, match=r"expected shape \(4, 4\), got \(5, 5\)"):
        loss.fix_rows(torch.eye(5))


def test_partial_fc_initial_class_weights_are_independent_of_the_chunk_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("midspan.losses.partial_fc.AT_ONCE", 5 * DIM)
    plain, parts = whole_and_partial()
    assert torch.equal(parts.held.rows, plain.class_rows())


@pytest.mark.parametrize("name", sorted(set(LOSSES) - set(KINDS) - {"metric-learning"}))
def test_partial_fc_loss_without_softmax_raises_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a softmax over class weights"):
        PartialFC(build(LOSSES, {"name": name}, what="loss"))


def test_partial_fc_rate_out_of_range_raises() -> None:
    for rate in (0.0, -1.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="sample_rate"):
            PartialFC(CosFace(), rate=rate)


def _two_processes(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    for kind in KINDS:
        check_equal(kind)
    loss, value, gradient = in_parts("cosface", rate=0.4)
    assert loss.drawn is not None
    assert loss.drawn.index is not None
    values = {
        "classes": loss.drawn.index + loss.held.first,
        "rows": loss.drawn.rows.grad,
        "value": value,
        "vectors": gradient,
    }
    torch.save(values, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_partial_fc_two_processes_equal_one(tmp_path: Path) -> None:
    """At rate 1 the whole softmax; below it the same sample as one process draws."""
    start_processes(  # type: ignore[no-untyped-call]
        _two_processes, args=(str(tmp_path),), nprocs=2, start_method="spawn"
    )
    loss, value, gradient = in_parts("cosface", rate=0.4)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert loss.drawn is not None
    check_close(torch.cat([part["classes"] for part in parts]), loss.drawn.index)
    rows = torch.cat([part["rows"] for part in parts])
    check_close(rows, loss.drawn.rows.grad)
    for part in parts:
        check_close(part["value"], value)
        check_close(part["vectors"], gradient)
