"""What one process and several must do alike. Run as a script, it is one of several processes.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… \\
        python -m tests.training.process_cases DIR

Each case is a function (processes, folder) → named tensors; `folder` holds what the test
has prepared.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from midspan.config import build
from midspan.encoders import Encoder, build_encoder
from midspan.errors import Interrupted
from midspan.image_size import ImageSize
from midspan.losses import LOSSES, RecognitionLoss
from midspan.losses.gather import gather_rows
from midspan.losses.partial_fc import PartialFC
from midspan.methods import METHODS, Method, OldArtifacts
from midspan.spaces import IntArray, Space
from midspan.training.batch_norm import synchronised
from midspan.training.class_weights import whole_classifier
from midspan.training.distributed import Processes, join_processes
from midspan.training.loop import TrainingTask, fit
from midspan.training.settings import TrainSettings, VariationSettings
from midspan.training.variations import Variations, make_variations
from tests.training.test_attributes import striped

Case = Callable[[Processes, Path], Mapping[str, Tensor]]

CPU = torch.device("cpu")
CLASSES, DIM, FEATURES, IMAGES = 5, 8, 6, 71
# 71 = 4 · 15 + 11: shares of 7 and 8, at the end of 5 and 6
SETTINGS = TrainSettings(
    epochs=2, batch_size=15, warmup_epochs=0.0, lr=0.05, optimiser="sgd", checkpoint_seconds=1e9
)
PAIRS = replace(SETTINGS, sampler="balanced", classes_per_batch=5, images_per_class=3)


def labels() -> IntArray:
    return np.arange(IMAGES, dtype=np.int64) % CLASSES


def features() -> Tensor:
    """Clouds that overlap, so that every loss has something to do to the end."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, FEATURES))
    return torch.from_numpy(
        (centres[labels()] + rng.normal(size=(IMAGES, FEATURES))).astype(np.float32)
    )


def old_artifacts() -> OldArtifacts:
    generator = torch.Generator().manual_seed(1)
    return OldArtifacts.measure(
        space=Space("old", DIM),
        vectors=features() @ torch.randn(FEATURES, DIM, generator=generator),
        labels=torch.from_numpy(labels()),
        num_classes=CLASSES,
    )


def on_vectors(
    loss: Mapping[str, object],
    method: str,
    *,
    load: Callable[[IntArray], Tensor] | None = None,
    sample_rate: float | None = None,  # of a sharded classifier
) -> TrainingTask:
    inputs = features()
    encoder = build_encoder(
        backbone="vectors", dim=DIM, seed=0, settings={"inputs": FEATURES, "hidden": 12}
    )
    torch.manual_seed(0)
    recognition: RecognitionLoss = build(LOSSES, loss, what="loss")
    if sample_rate is not None:
        recognition = PartialFC(recognition, rate=sample_rate)
    recognition.prepare(num_classes=CLASSES, dim=DIM)
    way: Method = build(METHODS, {"name": method}, what="method")
    old = old_artifacts() if way.uses_old else None
    way.prepare(old=old, num_classes=CLASSES, dim=DIM)
    return TrainingTask(
        encoder=encoder,
        loss=recognition,
        method=way,
        load=load or (lambda rows: inputs[torch.from_numpy(rows)]),
        labels=labels(),
        old_vectors=None if old is None else old.vectors,
    )


def on_images() -> TrainingTask:
    """URL's loss on varied images: confidences, variations and batch norm over pixels."""
    pictures = striped(IMAGES)
    pixels = torch.from_numpy(pictures.load(np.arange(IMAGES), ImageSize(12, 12, 1))).float()
    encoder: Encoder = build_encoder(
        backbone="small-cnn",
        dim=DIM,
        size=12,
        channels=1,
        seed=0,
        sub_embeddings=4,
        confident=True,
    )
    torch.manual_seed(0)
    loss: RecognitionLoss = build(LOSSES, {"name": "universal", "margin": 2.0}, what="loss")
    loss.prepare(num_classes=CLASSES, dim=DIM)
    variations: Variations = make_variations(
        VariationSettings(), images=pictures, dim=DIM, sub_embeddings=4, seed=0
    )
    way: Method = build(METHODS, {"name": "independent"}, what="method")
    return TrainingTask(
        encoder=encoder,
        loss=loss,
        method=way,
        load=lambda rows: pixels[torch.from_numpy(rows)].permute(0, 3, 1, 2) / 127.5 - 1,
        labels=labels(),
        old_vectors=None,
        variations=variations,
    )


def convolutional(dtype: torch.dtype) -> Case:
    """A small CNN for two epochs, at the rate of five with most drift in float32."""

    def case(processes: Processes, folder: Path) -> Mapping[str, Tensor]:
        pictures = striped(IMAGES).load(np.arange(IMAGES), ImageSize(12, 12, 1))
        pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).to(dtype) / 127.5 - 1
        encoder: Encoder = build_encoder(
            backbone="small-cnn", dim=DIM, size=12, channels=1, seed=0
        ).to(dtype)
        torch.manual_seed(0)
        loss: RecognitionLoss = build(LOSSES, COSFACE, what="loss")
        loss.prepare(num_classes=CLASSES, dim=DIM)
        way: Method = build(METHODS, {"name": "independent"}, what="method")
        task = TrainingTask(
            encoder=encoder,
            loss=loss.to(dtype),
            method=way,
            load=lambda rows: pixels[torch.from_numpy(rows)],
            labels=labels(),
            old_vectors=None,
        )
        return trained(task, replace(SETTINGS, lr=1.0), processes)

    return case


def trained(
    task: TrainingTask,
    settings: TrainSettings,
    processes: Processes,
    *,
    checkpoint: Path | None = None,
) -> dict[str, Tensor]:
    """Every term of every epoch, and all that was learnt or is kept."""
    lines: list[Mapping[str, float]] = []
    fit(
        task,
        settings=settings,
        seed=3,
        device=CPU,
        processes=processes,
        checkpoint=checkpoint,
        on_epoch=lines.append,
        show_progress=False,
    )
    modules = {"encoder": task.encoder, "loss": task.loss, "method": task.method}
    state = {
        f"{kind}.{name}": value.clone()
        for kind, module in modules.items()
        for name, value in module.state_dict().items()
    }
    if isinstance(task.loss, PartialFC):
        state["loss.rows"] = torch.cat(processes.all_gather(task.loss.held.rows))
        whole = whole_classifier(task.loss, group=processes.slow_group)
        assert not processes.is_first or torch.equal(whole.class_rows(), state["loss.rows"])
    if processes.is_first:
        state |= {
            f"epoch {line['epoch']:.0f} {name}": torch.tensor(value, dtype=torch.float64)
            for line in lines
            for name, value in line.items()
        }
    return state


COSFACE = {"name": "cosface", "scale": 8.0, "margin": 0.1}


def by_method(name: str, *, optimiser: str = "sgd") -> Case:
    settings = SETTINGS
    if optimiser == "adamw":
        settings = replace(SETTINGS, optimiser="adamw", lr=1e-3)
    return lambda processes, folder: trained(on_vectors(COSFACE, name), settings, processes)


def by_loss(name: str) -> Case:
    return lambda processes, folder: trained(
        on_vectors({"name": name}, "independent"), PAIRS, processes
    )


def divided(processes: Processes, folder: Path) -> Mapping[str, Tensor]:
    settings = replace(SETTINGS, epochs=3, learners=2, recluster_epochs=1, conquer=0.3)
    return trained(on_vectors(COSFACE, "independent"), settings, processes)


def varied(processes: Processes, folder: Path) -> Mapping[str, Tensor]:
    settings = replace(SETTINGS, epochs=1, lr=0.01, augment=("affine", "light", "erase", "flip"))
    return trained(on_images(), settings, processes)


STOP_AT, STEPS = 3, 5


def stopped(checkpoint: Path, processes: Processes, *, sample_rate: float | None = None) -> None:
    """The last process alone is told to stop; all of them save and end, at the same step."""
    loads = 0
    inputs = features()

    def load(rows: IntArray) -> Tensor:
        nonlocal loads
        loads += 1
        if loads == STOP_AT and processes.rank == processes.world - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return inputs[torch.from_numpy(rows)]

    try:
        task = on_vectors(COSFACE, "unibct", load=load, sample_rate=sample_rate)
        trained(task, SETTINGS, processes, checkpoint=checkpoint)
    except Interrupted:
        return
    raise AssertionError("nobody heard the signal")


def resumed(processes: Processes, folder: Path) -> Mapping[str, Tensor]:
    """On from what one process has left, while another checkpoint is left for one process."""
    if processes.world > 1:
        stopped(folder / "by-many.safetensors", processes)
    checkpoint = folder / "by-one.safetensors"
    return trained(on_vectors(COSFACE, "unibct"), SETTINGS, processes, checkpoint=checkpoint)


def sharded(rate: float, *, optimiser: str = "sgd") -> Case:
    """A classifier in parts; at rate 1 it is compared with the whole one of a single process."""

    def case(processes: Processes, folder: Path) -> Mapping[str, Tensor]:
        settings = replace(SETTINGS, lr=0.3)  # the norm is clipped
        if optimiser == "adamw":
            settings = replace(SETTINGS, optimiser="adamw", lr=1e-3)
        parts = None if processes.world == 1 and rate == 1 else rate
        return trained(on_vectors(COSFACE, "bct", sample_rate=parts), settings, processes)

    return case


def parts_left(processes: Processes, folder: Path) -> Mapping[str, Tensor]:
    """On from the parts of one process, while those of many are left for one."""
    if processes.world > 1:
        stopped(folder / "parts-by-many.safetensors", processes, sample_rate=0.5)
    task = on_vectors(COSFACE, "unibct", sample_rate=0.5)
    return trained(task, SETTINGS, processes, checkpoint=folder / "parts-by-one.safetensors")


def norms(processes: Processes, folder: Path) -> Mapping[str, Tensor]:
    """Batch norm of a batch in unequal shares: values, gradients, running statistics."""
    state: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for name, layer, shape in (
        ("1d", nn.BatchNorm1d(3), (7, 3)),
        ("2d", nn.BatchNorm2d(3, momentum=None), (5, 3, 2, 2)),
        ("plain", nn.BatchNorm1d(3, affine=False), (7, 3, 4)),
    ):
        x = (4 * torch.randn(*shape, generator=generator) + 9).double().requires_grad_()
        target = torch.randn(*shape, generator=generator).double()
        layer.double()
        own = processes.share(len(x))
        with synchronised(layer, world=processes.world):
            for _ in range(2):
                out = gather_rows(layer(x[own]), processes.shares(len(x)))
        (out * target).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        mine = torch.zeros_like(x.grad)
        mine[own] = x.grad[own] / processes.world  # what DDP's mean is for
        parts = torch.stack(processes.all_gather(mine)).sum(0)
        state |= {f"{name} out": out.detach(), f"{name} gradient": parts}
        state |= {f"{name} {key}": value for key, value in layer.state_dict().items()}
        state[f"{name} eval"] = layer.eval()(x).detach()
    return state


CASES: dict[str, Case] = {
    **{
        name: by_method(name)
        for name in ("independent", "bct", "hot-refresh", "unibct", "advbct", "mixbct", "lce")
    },
    "adamw": by_method("independent", optimiser="adamw"),
    **{name: by_loss(name) for name in ("triplet", "supcon", "margin", "proxy-anchor")},
    "divided": divided,
    "varied": varied,
    "resumed": resumed,
    "sharded": sharded(1.0),
    "sharded adamw": sharded(1.0, optimiser="adamw"),
    "sampled": sharded(0.5),
    "parts left": parts_left,
    "norms": norms,
    "images": convolutional(torch.float32),
    "images float64": convolutional(torch.float64),
}


def main() -> None:
    folder = Path(sys.argv[1])
    with join_processes("cpu") as (processes, _):
        for name, case in CASES.items():
            state = {key: value.contiguous() for key, value in case(processes, folder).items()}
            save_file(state, folder / f"{name}.{processes.rank}.safetensors")


if __name__ == "__main__":
    main()
