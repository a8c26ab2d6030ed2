"""The training loop: recognition loss and terms of the method, summed and logged by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
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
from midspan.training.class_weights import (
    class_weight_optimiser,
    clip,
    drop_class_weights,
    load_class_weights,
    save_class_weights,
)
from midspan.training.distributed import SINGLE_PROCESS, Processes, StepConsensus
from midspan.training.divided import Phases, StepPlan, epoch_batches, recluster
from midspan.training.freeze import train_mode
from midspan.training.interrupt import interruptible
from midspan.training.optimisers import make_optimiser
from midspan.training.samplers import Balanced, Sampler, Shuffled
from midspan.training.settings import TrainSettings
from midspan.training.step import Step
from midspan.training.variations import Variations
from midspan.training.views import OldView

OnEpoch = Callable[[Mapping[str, float]], None]

NOTHING, SAVE, STOP = 0, 1, 2  # requests of a process after a step; all follow the largest


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """What is trained, and on what. Loss and method are already prepared."""

    encoder: Encoder
    loss: RecognitionLoss
    method: Method
    load: Callable[[IntArray], Tensor]  # rows → network input (B, …)
    labels: IntArray  # (N,)
    old_vectors: Tensor | None  # (N, D_old) unit
    old_view: OldView | None = None  # the old encoder on the same views, instead of old_vectors
    variations: Variations | None = None  # of the images, recorded


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
    """Train to the end, or continue from `checkpoint`. Returns the seconds of training.

    The first process writes, reports and shows progress; the state is the same in all.
    """
    trainer = _Trainer(
        task,
        settings=settings,
        seed=seed,
        device=device,
        processes=processes,
        checkpoint=checkpoint,
    )
    steps, epochs = trainer.steps, settings.epochs
    consensus = StepConsensus(processes)
    with (
        progress.bar(
            "train",
            total=epochs * len(task.labels),
            unit="images",
            show=show_progress and processes.is_first,
        ) as done,
        interruptible() as interrupted,
        synchronised(task.encoder, world=processes.world),
    ):
        for epoch in range(trainer.position.epoch, epochs):
            batches = trainer.plan_epoch(epoch)
            for step in range(trainer.position.step, steps):
                done(trainer.step(batches[step], epoch=epoch, step=step))
                request = NOTHING
                if interrupted():
                    request = STOP
                elif processes.is_first and trainer.is_save_due():
                    request = SAVE
                agreed = consensus(request)
                if agreed:
                    trainer.save_progress()
                if agreed == STOP:
                    raise Interrupted(
                        f"stopped in epoch {epoch + 1} of {epochs} at step {step + 1} of {steps}; "
                        "the same command continues from here"
                    )
            line = trainer.finish_epoch(epoch)
            if on_epoch is not None and processes.is_first:
                on_epoch(line)
        consensus.close()
    trainer.save()
    trainer.modules.eval()
    return trainer.position.seconds


class _Trainer:
    """The state of a training run, and what each step, epoch and save does to it."""

    def __init__(
        self,
        task: TrainingTask,
        *,
        settings: TrainSettings,
        seed: int,
        device: torch.device,
        processes: Processes,
        checkpoint: Path | None,
    ) -> None:
        self.task, self.settings, self.seed = task, settings, seed
        self.processes, self.checkpoint = processes, checkpoint
        self.modules = Step(
            encoder=task.encoder,
            loss=task.loss,
            method=task.method,
            decorrelation=task.variations.decorrelation if task.variations else None,
            recognition_weight=settings.recognition_weight,
            learners=settings.learners,
            images=len(task.labels),
            autocast=partial(autocast, device, settings),
        ).to(device)
        self.optimiser = make_optimiser(self.modules, settings)
        self.class_weights = class_weight_optimiser(task.loss, settings)  # if they are sharded
        self.position = self._resume()
        self.forward = processes.data_parallel(self.modules, device)
        self.sampler = make_sampler(settings)
        self.load_batch = BatchLoader(
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
        self.phases = Phases.of(settings)
        # the same number in every epoch
        self.steps = len(self.sampler.batches(task.labels, seed=seed, epoch=0))
        train_mode(self.modules)
        self.sums = {
            name: torch.tensor(value, device=device) for name, value in self.position.sums.items()
        }
        self._seconds_before = self.position.seconds
        self._started = self._last_save = time.perf_counter()

    def _resume(self) -> Position:
        if self.checkpoint is None or not self.checkpoint.exists():
            return Position()
        position = load_checkpoint(self.checkpoint, modules=self.modules, optimiser=self.optimiser)
        if self.class_weights is not None:
            load_class_weights(self.checkpoint, self.class_weights, name=position.rows)
        return position

    def plan_epoch(self, epoch: int) -> Sequence[StepPlan]:
        """The batches of this epoch; learners are assigned to clusters first where that is due."""
        if self.position.step == 0 and self.phases.regroups(epoch, self.settings.recluster_epochs):
            recluster(
                self.modules,
                load=self.task.load,
                settings=self.settings,
                seed=self.seed,
                again=epoch > self.phases.first,
                processes=self.processes,
            )
        return epoch_batches(
            self.modules,
            self.task.labels,
            self.sampler,
            phases=self.phases,
            own_classes=self.settings.own_classes,
            steps=self.steps,
            seed=self.seed,
            epoch=epoch,
        )

    def step(self, plan: StepPlan, *, epoch: int, step: int) -> int:
        """One batch forward and backward. Returns its number of images."""
        settings = self.settings
        global_step = epoch * self.steps + step
        torch.manual_seed(step_seed(self.seed, global_step))  # augmentation, dropout
        rate = learning_rate(settings, step=global_step, steps_per_epoch=self.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        inputs = self.load_batch(
            plan.rows,
            learner=plan.learner,
            classes=plan.classes,
            epoch=epoch,
            progress=global_step / (settings.epochs * self.steps),
        )
        terms: Mapping[str, Tensor] = self.forward(inputs)
        loss = torch.stack(list(terms.values())).sum()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if settings.clip:
            clip(self.modules.parameters(), self.class_weights, limit=settings.clip)
        self.optimiser.step()
        if self.class_weights is not None:
            self.class_weights.step(rate=rate)
        for name, value in terms.items():
            before = self.sums.get(name)
            self.sums[name] = value.detach() if before is None else before + value.detach()
        self.position.step = step + 1
        self.position.seen += len(plan.rows)
        return len(plan.rows)

    def finish_epoch(self, epoch: int) -> dict[str, float]:
        """The line of the log for this epoch; the position moves to the next one."""
        means = {name: float(value) / self.steps for name, value in self.sums.items()}
        check_finite(means, epoch=epoch)
        last_step = (epoch + 1) * self.steps - 1
        rate = learning_rate(self.settings, step=last_step, steps_per_epoch=self.steps)
        line = {"epoch": epoch + 1, "lr": rate, "images": self.position.seen, **means}
        self.position = Position(epoch=epoch + 1, seconds=self._seconds())
        self.sums = {}
        return line

    def is_save_due(self) -> bool:
        now = time.perf_counter()
        due = now - self._last_save >= self.settings.checkpoint_seconds
        if due:
            self._last_save = now  # requested once, even if the processes agree a step later
        return due

    def save_progress(self) -> None:
        """In the middle of an epoch."""
        self.position.seconds = self._seconds()
        self.position.sums = {name: float(value) for name, value in self.sums.items()}
        self.save()
        self._last_save = time.perf_counter()

    def save(self) -> None:
        if self.checkpoint is None:
            return
        position = self.position
        if self.class_weights is not None:  # the one thing that differs between processes
            position.rows = save_class_weights(
                self.checkpoint, self.class_weights, epoch=position.epoch, step=position.step
            )
            self.processes.all_gather(None)  # not before every part is on disk
        if self.processes.is_first:
            save_checkpoint(
                self.checkpoint,
                modules=self.modules,
                optimiser=self.optimiser,
                position=position,
            )
            drop_class_weights(self.checkpoint, keep=position.rows)

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._started


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
    """The seed of a step, the same after a restart."""
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
