"""The one training loop. Recognition loss + the method's terms, summed and logged by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from midspan import progress
from midspan.encoders import Encoder
from midspan.errors import Interrupted, RunError
from midspan.losses import RecognitionLoss
from midspan.methods import Method
from midspan.spaces import FloatArray, IntArray
from midspan.training import learners
from midspan.training.augment import chain
from midspan.training.checkpoint import Position, load_checkpoint, save_checkpoint
from midspan.training.interrupt import interruptible
from midspan.training.samplers import Balanced, Sampler, Shuffled
from midspan.training.settings import TrainSettings
from midspan.training.step import Shown, Step
from midspan.training.variations import Variations

OnEpoch = Callable[[Mapping[str, float]], None]


@dataclass(frozen=True, slots=True)
class Task:
    """What is learnt from what. Loss and method are prepared already."""

    encoder: Encoder
    loss: RecognitionLoss
    method: Method
    load: Callable[[IntArray], Tensor]  # rows → network input (B, …)
    labels: IntArray  # (N,)
    old_vectors: Tensor | None  # (N, D_old) unit
    variations: Variations | None = None  # what is done to images, recorded


def fit(
    task: Task,
    *,
    settings: TrainSettings,
    seed: int,
    device: torch.device,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
    show_progress: bool = True,
) -> float:
    """Train to the end, or on from `checkpoint`. Returns the seconds of training."""
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
    position = Position()
    if checkpoint is not None and checkpoint.exists():
        position = load_checkpoint(checkpoint, modules=modules, optimiser=optimiser)
    sampler = make_sampler(settings)
    labels = torch.from_numpy(task.labels)
    augmentations = chain(settings.augment)
    steps = len(sampler.batches(task.labels, seed=seed, epoch=0))  # the same in every epoch
    modules.train()

    def save() -> None:
        if checkpoint is not None:
            save_checkpoint(checkpoint, modules=modules, optimiser=optimiser, position=position)

    total = settings.epochs * len(task.labels)
    last_save = started = time.perf_counter()
    before = position.seconds
    sums = {name: torch.tensor(value, device=device) for name, value in position.sums.items()}
    with (
        progress.bar("train", total=total, unit="images", show=show_progress) as done,
        interruptible() as interrupted,
    ):
        for epoch in range(position.epoch, settings.epochs):
            divided = epoch < divided_epochs(settings)
            if divided and position.step == 0 and epoch % settings.recluster_epochs == 0:
                recluster(modules, task, settings=settings, seed=seed, first=epoch == 0)
            batches = epoch_batches(
                modules, task, sampler, divided=divided, steps=steps, seed=seed, epoch=epoch
            )
            for step in range(position.step, steps):
                global_step = epoch * steps + step
                torch.manual_seed(step_seed(seed, global_step))  # augmentation, dropout
                rate = learning_rate(settings, step=global_step, steps_per_epoch=steps)
                for group in optimiser.param_groups:
                    group["lr"] = rate * group["factor"]

                learner, rows = batches[step]
                images = task.load(rows).to(device, non_blocking=True)
                for augmentation in augmentations:
                    images = augmentation(images, torch.default_generator)
                varied = None
                if task.variations is not None:
                    images, varied = task.variations(images, rows, torch.default_generator)
                index = torch.from_numpy(rows)
                target = labels[index].to(device, non_blocking=True)
                old = None if task.old_vectors is None else task.old_vectors[index].to(device)
                shown = Shown(
                    images=images,
                    labels=target,
                    rows=index,
                    old=old,
                    epoch=epoch,
                    progress=global_step / (settings.epochs * steps),
                    learner=learner,
                    variations=varied,
                )
                terms = modules(shown)
                loss = torch.stack(list(terms.values())).sum()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                if settings.clip:
                    nn.utils.clip_grad_norm_(modules.parameters(), settings.clip)
                optimiser.step()

                for name, value in terms.items():
                    sums[name] = sums[name] + value.detach() if name in sums else value.detach()
                position.step, position.seen = step + 1, position.seen + len(rows)
                done(len(rows))
                now = time.perf_counter()
                stop = interrupted()
                if stop or now - last_save >= settings.checkpoint_seconds:
                    position.seconds = before + now - started
                    position.sums = {name: float(value) for name, value in sums.items()}
                    save()
                    last_save = time.perf_counter()
                if stop:
                    raise Interrupted(
                        f"stopped in epoch {epoch + 1} of {settings.epochs} at step {step + 1} of "
                        f"{steps}; the same command goes on from here"
                    )
            means = {name: float(value) / steps for name, value in sums.items()}
            check_finite(means, epoch=epoch)
            if on_epoch is not None:
                last = learning_rate(settings, step=(epoch + 1) * steps - 1, steps_per_epoch=steps)
                on_epoch({"epoch": epoch + 1, "lr": last, "images": position.seen, **means})
            position = Position(epoch=epoch + 1, seconds=before + time.perf_counter() - started)
            sums = {}
    save()
    modules.eval()
    return position.seconds


def divided_epochs(settings: TrainSettings) -> int:
    """Epochs in which learners have clusters of their own; the rest is for the whole embedding."""
    if settings.learners == 1:
        return 0
    return settings.epochs - math.ceil(settings.conquer * settings.epochs)


def recluster(step: Step, task: Task, *, settings: TrainSettings, seed: int, first: bool) -> None:
    """Group the training images anew by their present vectors; learners keep their clusters."""
    vectors = embed_rows(step.encoder, task, batch_size=settings.batch_size)
    found = learners.cluster(vectors, count=settings.learners, seed=seed)
    if not first:
        before = step.clusters.cpu().numpy()
        found = learners.match(found, before, count=settings.learners)
    step.clusters.copy_(torch.from_numpy(found))


@torch.inference_mode()
def embed_rows(encoder: Encoder, task: Task, *, batch_size: int) -> FloatArray:
    """Unit vectors (N, D) of all training images as they are now, without augmentation."""
    device = encoder.device
    encoder.eval()
    parts = []
    for start in range(0, len(task.labels), batch_size):
        rows = np.arange(start, min(start + batch_size, len(task.labels)))
        parts.append(F.normalize(encoder(task.load(rows).to(device)).float()).cpu().numpy())
    encoder.train()
    return np.concatenate(parts)


def epoch_batches(
    step: Step,
    task: Task,
    sampler: Sampler,
    *,
    divided: bool,
    steps: int,
    seed: int,
    epoch: int,
) -> list[tuple[int | None, IntArray]]:
    """(learner, rows) of each step of the epoch; no learner: the whole embedding learns."""
    if not divided:
        return [(None, rows) for rows in sampler.batches(task.labels, seed=seed, epoch=epoch)]
    return [
        *learners.batches(
            step.clusters.cpu().numpy(),
            task.labels,
            sampler=sampler,
            count=step.learners,
            steps=steps,
            seed=seed,
            epoch=epoch,
        )
    ]


def make_optimiser(modules: nn.Module, settings: TrainSettings) -> Optimizer:
    """Weight decay for matrices and kernels only: norms and biases have nothing to forget."""
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    factors = {
        id(module.rows): module.rows_lr
        for module in modules.modules()
        if isinstance(module, RecognitionLoss)
    }
    for parameter in modules.parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            key = (decay, factors.get(id(parameter), 1.0))
            group = groups.setdefault(key, {"params": [], "weight_decay": decay, "factor": key[1]})
            group["params"].append(parameter)
    if settings.optimiser == "sgd":
        return SGD(list(groups.values()), lr=settings.lr, momentum=settings.momentum)
    return AdamW(list(groups.values()), lr=settings.lr)


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
            "lr, set clip, or look for broken images, then start again with --restart"
        )
