"""The loop: schedule, optimiser groups, learning, and going on after a stop."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from midspan.encoders import Encoder, build_encoder
from midspan.errors import FormatError, Interrupted, RunError
from midspan.losses.cosface import CosFace
from midspan.methods.independent import Independent
from midspan.spaces import IntArray
from midspan.training.loop import TrainingTask, check_finite, fit, learning_rate, step_seed
from midspan.training.optimisers import make_optimiser
from midspan.training.settings import TrainSettings

CLASSES, DIM, FEATURES = 4, 6, 5
CPU = torch.device("cpu")
SETTINGS = TrainSettings(epochs=3, batch_size=16, warmup_epochs=1.0, lr=0.05)


def task(*, stop_at: int | None = None) -> TrainingTask:
    """Four well separated clouds of feature vectors; `stop_at` presses Ctrl-C at that load."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % CLASSES
    centres = rng.normal(size=(CLASSES, FEATURES)) * 3
    features = torch.from_numpy((centres[labels] + rng.normal(size=(80, FEATURES))).astype("f4"))
    encoder = build_encoder(
        backbone="vectors", dim=DIM, seed=0, settings={"inputs": FEATURES, "hidden": 8}
    )
    torch.manual_seed(0)
    loss = CosFace(scale=8.0, margin=0.1)
    loss.prepare(num_classes=CLASSES, dim=DIM)
    loads = 0

    def load(rows: IntArray) -> Tensor:
        nonlocal loads
        loads += 1
        if loads == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return features[torch.from_numpy(rows)]

    return TrainingTask(
        encoder=encoder, loss=loss, method=Independent(), load=load, labels=labels, old_vectors=None
    )


def run(what: TrainingTask, **options: object) -> list[Mapping[str, float]]:
    lines: list[Mapping[str, float]] = []
    fit(
        what,
        settings=SETTINGS,
        seed=5,
        device=CPU,
        on_epoch=lines.append,
        show_progress=False,
        **options,  # type: ignore[arg-type]
    )
    return lines


def weights(encoder: Encoder) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in encoder.state_dict().items()}


def test_fit_reduces_the_loss() -> None:
    lines = run(task())
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["recognition"] < 0.5 * lines[0]["recognition"]
    assert lines[0]["images"] == 80


def test_fit_same_seed_gives_the_same_weights() -> None:
    first, second = task(), task()
    run(first)
    run(second)
    for name, value in weights(first.encoder).items():
        assert torch.equal(value, second.encoder.state_dict()[name])


@pytest.mark.parametrize("stop_at", [1, 4, 5, 13])
def test_interrupted_fit_continues_to_the_same_weights(tmp_path: Path, stop_at: int) -> None:
    whole = task()
    expected = run(whole)
    checkpoint = tmp_path / "checkpoint.safetensors"
    with pytest.raises(Interrupted, match="the same command continues"):
        run(task(stop_at=stop_at), checkpoint=checkpoint)
    resumed = task()
    lines = run(resumed, checkpoint=checkpoint)
    for name, value in weights(whole.encoder).items():
        assert torch.equal(value, resumed.encoder.state_dict()[name]), name
    assert lines[-1]["recognition"] == pytest.approx(expected[-1]["recognition"], rel=1e-6)
    assert lines == expected[-len(lines) :] or stop_at in (4, 13)  # sums pass through float32


def test_fit_finished_checkpoint_trains_no_further(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    done = task()
    run(done, checkpoint=checkpoint)
    again = task()
    assert run(again, checkpoint=checkpoint) == []
    for name, value in weights(done.encoder).items():
        assert torch.equal(value, again.encoder.state_dict()[name])


def test_fit_broken_or_foreign_checkpoint_raises(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.safetensors"
    run(task(), checkpoint=checkpoint)
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match="`restart`"):
        run(task(), checkpoint=checkpoint)
    checkpoint.write_bytes(whole)
    other = task()
    other.loss.prepare(num_classes=CLASSES + 1, dim=DIM)
    with pytest.raises(FormatError, match="another model"):
        run(other, checkpoint=checkpoint)


def test_learning_rate_warms_up_then_falls_to_zero() -> None:
    settings = TrainSettings(epochs=4, warmup_epochs=1.0, lr=2.0)
    rates = [learning_rate(settings, step=step, steps_per_epoch=5) for step in range(20)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    expected = [1.0 + math.cos(math.pi * (step - 5) / 15) for step in range(5, 20)]
    assert rates[5:] == pytest.approx(expected)


def test_optimiser_norms_and_biases_have_no_weight_decay() -> None:
    optimiser = make_optimiser(task().encoder, TrainSettings(weight_decay=0.1))
    decayed = {
        id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]
    }
    for parameter in task().encoder.parameters():
        assert parameter.ndim in (1, 2)
    for group in optimiser.param_groups:
        assert {p.ndim > 1 for p in group["params"]} == {group["weight_decay"] > 0}
    assert len(decayed) == len(list(task().encoder.parameters()))


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_optimiser_sgd_and_adamw_learn_and_resume(
    tmp_path: Path, optimiser: Literal["sgd", "adamw"]
) -> None:
    settings = TrainSettings(
        epochs=2,
        batch_size=16,
        lr=0.05,
        optimiser=optimiser,
        warmup_epochs=0.0,
    )
    whole = task()
    fit(whole, settings=settings, seed=0, device=CPU, show_progress=False)
    checkpoint = tmp_path / "c.safetensors"
    with pytest.raises(Interrupted):
        fit(
            task(stop_at=7),
            settings=settings,
            seed=0,
            device=CPU,
            checkpoint=checkpoint,
            show_progress=False,
        )
    resumed = task()
    fit(resumed, settings=settings, seed=0, device=CPU, checkpoint=checkpoint, show_progress=False)
    for name, value in weights(whole.encoder).items():
        assert torch.equal(value, resumed.encoder.state_dict()[name])


def test_fit_nan_loss_ends_the_run() -> None:
    with pytest.raises(RunError, match="influence became nan in epoch 3; lower"):
        check_finite({"recognition": 1.0, "influence": float("nan")}, epoch=2)
    broken = task()
    with torch.no_grad():
        next(broken.encoder.parameters()).fill_(float("nan"))
    with pytest.raises(RunError, match="recognition became nan"):
        run(broken)


def test_step_seed_is_unique_per_seed_and_step() -> None:
    seeds = {step_seed(seed, step) for seed in range(3) for step in range(100)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_optimiser_proxies_learn_at_proxy_lr() -> None:
    from midspan.losses.proxy_anchor import ProxyAnchor

    loss = ProxyAnchor(proxy_lr=50.0)
    loss.prepare(num_classes=3, dim=4)
    modules = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 4), "loss": loss})
    groups = make_optimiser(modules, TrainSettings()).param_groups
    factors = {id(p): group["factor"] for group in groups for p in group["params"]}
    assert factors[id(loss.rows)] == 50.0
    assert sorted(factors.values()) == [1.0, 1.0, 50.0]
