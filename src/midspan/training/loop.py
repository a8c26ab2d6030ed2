"""The one training loop. Recognition loss + the method's terms, summed and logged by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from midspan import progress
from midspan.encoders import Encoder
from midspan.errors import Interrupted, RunError
from midspan.losses import RecognitionLoss
from midspan.methods import Method
from midspan.spaces import IntArray
from midspan.training.augment import chain
from midspan.training.batch_loader import BatchLoader
from midspan.training.batch_norm import synchronised
from midspan.training.checkpoint import Position, load_checkpoint, save_checkpoint
from midspan.training.distributed import SINGLE_PROCESS, Processes, StepConsensus
from midspan.training.divided import Phases, epoch_batches, recluster
from midspan.training.freeze import train_mode
from midspan.training.interrupt import interruptible
from midspan.training.optimisers import make_optimiser
from midspan.training.row_files import drop_rows, load_rows, save_rows
from midspan.training.rows import clip, row_optimiser
from midspan.training.samplers import Balanced, Sampler, Shuffled
from midspan.training.settings import TrainSettings
from midspan.training.step import Step
from midspan.training.variations import Variations
from midspan.training.views import OldView

OnEpoch = Callable[[Mapping[str, float]], None]

NOTHING, SAVE, STOP = 0, 1, 2  # what a process may wish after a step; the largest is done by all


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """What is learnt from what. Loss and method are prepared already."""

    encoder: Encoder
    loss: RecognitionLoss
    method: Method
    load: Callable[[IntArray], Tensor]  # rows → network input (B, …)
    labels: IntArray  # (N,)
    old_vectors: Tensor | None  # (N, D_old) unit
    old_view: OldView | None = None  # the old encoder on what is shown, in place of old_vectors
    variations: Variations | None = None  # what is done to images, recorded


def fit(
    task: TrainingTask,
    *,
    settings: TrainSettings,
    seed: int,
    device: torch.device,
    processes: Processes = SINGLE_PROCESS,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
    show_progress: bool = True,
) -> float:
    """Train to the end, or on from `checkpoint`. Returns the seconds of training.

    The first process writes, reports and shows progress; the state is the same in all.
    """
    modules = Step(
        encoder=task.encoder,
        loss=task.loss,
        method=task.method,
        decorrelation=task.variations.decorrelation if task.variations else None,
        recognition_weight=settings.recognition_weight,
        learners=settings.learners,
        images=len(task.labels),
        autocast=partial(autocast, device, settings),
    ).to(device)
    optimiser = make_optimiser(modules, settings)
    class_rows = row_optimiser(task.loss, settings)  # of a sharded classifier
    position = Position()
    if checkpoint is not None and checkpoint.exists():
        position = load_checkpoint(checkpoint, modules=modules, optimiser=optimiser)
        if class_rows is not None:
            load_rows(checkpoint, class_rows, name=position.rows)
    learning = processes.data_parallel(modules, device)
    sampler = make_sampler(settings)
    load_batch = BatchLoader(
        load=task.load,
        labels=task.labels,
        old_vectors=task.old_vectors,
        old_view=task.old_view,
        mixup=settings.mixup,
        augmentations=chain(settings.augment),
        variations=task.variations,
        processes=processes,
        device=device,
    )
    phases = Phases.of(settings)
    steps = len(sampler.batches(task.labels, seed=seed, epoch=0))  # the same in every epoch
    train_mode(modules)

    def save() -> None:
        if checkpoint is None:
            return
        if class_rows is not None:  # the one thing that is not the same in all
            position.rows = save_rows(
                checkpoint, class_rows, epoch=position.epoch, step=position.step
            )
            processes.all_gather(None)  # not before every part is on disk
        if processes.is_first:
            save_checkpoint(checkpoint, modules=modules, optimiser=optimiser, position=position)
            drop_rows(checkpoint, keep=position.rows)

    total = settings.epochs * len(task.labels)
    last_save = started = time.perf_counter()
    before = position.seconds
    sums = {name: torch.tensor(value, device=device) for name, value in position.sums.items()}
    consensus = StepConsensus(processes)
    with (
        progress.bar(
            "train", total=total, unit="images", show=show_progress and processes.is_first
        ) as done,
        interruptible() as interrupted,
        synchronised(task.encoder, world=processes.world),
    ):
        for epoch in range(position.epoch, settings.epochs):
            if position.step == 0 and phases.regroups(epoch, settings.recluster_epochs):
                recluster(
                    modules,
                    load=task.load,
                    settings=settings,
                    seed=seed,
                    again=epoch > phases.first,
                    processes=processes,
                )
            batches = epoch_batches(
                modules,
                task.labels,
                sampler,
                phases=phases,
                own_classes=settings.own_classes,
                steps=steps,
                seed=seed,
                epoch=epoch,
            )
            for step in range(position.step, steps):
                global_step = epoch * steps + step
                torch.manual_seed(step_seed(seed, global_step))  # augmentation, dropout
                rate = learning_rate(settings, step=global_step, steps_per_epoch=steps)
                for group in optimiser.param_groups:
                    group["lr"] = rate * group["factor"]

                plan = batches[step]
                rows = plan.rows
                inputs = load_batch(
                    rows,
                    learner=plan.learner,
                    classes=plan.classes,
                    epoch=epoch,
                    progress=global_step / (settings.epochs * steps),
                )
                terms = learning(inputs)
                loss = torch.stack(list(terms.values())).sum()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                if settings.clip:
                    clip(modules.parameters(), class_rows, limit=settings.clip)
                optimiser.step()
                if class_rows is not None:
                    class_rows.step(rate=rate)

                for name, value in terms.items():
                    sums[name] = sums[name] + value.detach() if name in sums else value.detach()
                position.step, position.seen = step + 1, position.seen + len(rows)
                done(len(rows))
                now = time.perf_counter()
                request = NOTHING
                if interrupted():
                    request = STOP
                elif processes.is_first and now - last_save >= settings.checkpoint_seconds:
                    request, last_save = SAVE, now
                agreed = consensus(request)
                if agreed:
                    position.seconds = before + now - started
                    position.sums = {name: float(value) for name, value in sums.items()}
                    save()
                    last_save = time.perf_counter()
                if agreed == STOP:
                    raise Interrupted(
                        f"stopped in epoch {epoch + 1} of {settings.epochs} at step {step + 1} of "
                        f"{steps}; the same command goes on from here"
                    )
            means = {name: float(value) / steps for name, value in sums.items()}
            check_finite(means, epoch=epoch)
            if on_epoch is not None and processes.is_first:
                last = learning_rate(settings, step=(epoch + 1) * steps - 1, steps_per_epoch=steps)
                on_epoch({"epoch": epoch + 1, "lr": last, "images": position.seen, **means})
            position = Position(epoch=epoch + 1, seconds=before + time.perf_counter() - started)
            sums = {}
        consensus.close()
    save()
    modules.eval()
    return position.seconds


def make_sampler(settings: TrainSettings) -> Sampler:
    if settings.sampler == "balanced":
        return Balanced(
            classes_per_batch=settings.classes_per_batch,
            images_per_class=settings.images_per_class,
        )
    return Shuffled(batch_size=settings.batch_size)


def learning_rate(settings: TrainSettings, *, step: int, steps_per_epoch: int) -> float:
    """Linear warm-up, then half a cosine to zero; `step` counts from 0."""
    total = settings.epochs * steps_per_epoch
    warmup = round(settings.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    part = (step - warmup) / max(1, total - warmup)
    return settings.lr * 0.5 * (1.0 + math.cos(math.pi * part))


def step_seed(seed: int, step: int) -> int:
    """A seed of its own for every step, the same after a restart."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def autocast(device: torch.device, settings: TrainSettings) -> AbstractContextManager[object]:
    """bf16 on GPUs that have it. CPUs stay in fp32: without AMX bf16 is many times slower."""
    if settings.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported():
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext()


def check_finite(means: Mapping[str, float], *, epoch: int) -> None:
    broken = [name for name, value in means.items() if not math.isfinite(value)]
    if broken:
        raise RunError(
            f"{' and '.join(broken)} became {means[broken[0]]} in epoch {epoch + 1}; lower [train] "
            "lr, set clip, or look for broken images, then start again with `restart`"
        )
