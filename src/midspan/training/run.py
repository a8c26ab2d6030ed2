"""`train`: a run file in, a run folder out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from midspan.bridges import Bridge
from midspan.encoders import Encoder, load_encoder
from midspan.errors import MissingDependency
from midspan.training.assemble import decoded, new_encoder, prepared, variations
from midspan.training.distributed import Processes, check_shared, processes
from midspan.training.folders import TENSORBOARD, RunFolder
from midspan.training.inputs import Inputs, loader, read_inputs
from midspan.training.loop import Task, fit
from midspan.training.maps import load_maps, save_maps
from midspan.training.old import OldModel, save_classifier
from midspan.training.row_files import drop_rows, whole_classifier
from midspan.training.scores import check_old_labels, scores
from midspan.training.settings import RunConfig


@dataclass(frozen=True)
class RunResult:
    """A finished run. `scores` are fractions, by the first metric of [evaluate].

    self; with an old encoder also old_self, cross (vectors compared as they are), cross_backward
    and cross_forward (through the maps that the method learnt), and cross_best of those there are.
    """

    path: Path
    encoder: Encoder
    metrics: Mapping[str, Any]

    @property
    def scores(self) -> Mapping[str, float]:
        scores: Mapping[str, float] = self.metrics["scores"]
        return scores

    @property
    def bridges(self) -> Mapping[str, Bridge]:
        """Maps that the method learnt, by direction: backward (new → old) and forward."""
        return load_maps(self.path)


def train(
    config: RunConfig | str | Path,
    *,
    out: str | Path,
    restart: bool = False,
    device: str | None = None,
    progress: bool = True,
) -> RunResult:
    """Train one encoder. A finished run is not repeated, a stopped one goes on where it was."""
    if not isinstance(config, RunConfig):
        config = RunConfig.load(config)
    with processes(device) as (team, where):
        return _train(
            config,
            Path(out),
            restart=restart,
            team=team,
            device=where,
            show=progress and team.first,
        )


def _train(
    config: RunConfig,
    out: Path,
    *,
    restart: bool,
    team: Processes,
    device: torch.device,
    show: bool,
) -> RunResult:
    """The same in every process of the team, except that the first alone writes and judges."""
    finished = team.once(lambda: RunFolder.open(out, config, restart=restart).finished)
    folder = RunFolder(out)
    check_shared(folder.path, team)
    if finished:
        return RunResult(folder.path, _trained(folder), folder.metrics())

    if team.world > 1 and config.data.get("name") == "webdataset":
        team.once_a_machine(lambda: len(read_inputs(config).labels))  # the others find the index
    inputs = read_inputs(config)
    # of the others none needs the old encoder itself: what they know of it is in a shared file
    old = team.by_first_here(lambda: _old(config, inputs))
    torch.manual_seed(config.seed)  # class rows and what a method learns
    encoder = new_encoder(config, inputs)
    inputs = decoded(inputs, encoder, team=team, show_progress=show)
    loss, method, known = prepared(config, inputs, old, team=team, show_progress=show)

    seconds = fit(
        Task(
            encoder=encoder,
            loss=loss,
            method=method,
            load=loader(encoder, inputs.train),
            labels=inputs.labels,
            old_vectors=None if known is None else known.vectors,
            variations=variations(config, inputs.train, team=team),
        ),
        settings=config.train,
        seed=config.seed,
        device=device,
        team=team,
        checkpoint=folder.checkpoint,
        on_epoch=_epoch_log(folder, tensorboard=config.train.tensorboard) if team.first else None,
        show_progress=show,
    )
    if known is not None and "direct" in method.directions:
        encoder.compatible_with = (known.space.fingerprint,)

    whole = whole_classifier(loss, group=team.patient)

    def finish() -> dict[str, Any]:
        encoder.save(folder.encoder)
        save_classifier(
            folder.path, whole, inputs.class_names, sub_embeddings=encoder.sub_embeddings
        )
        bridges: Mapping[str, Bridge] = {}
        if old is not None:
            bridges = save_maps(
                method.maps(),
                run=folder.path,
                new=encoder.space,
                old=old.space,
                images=len(inputs.labels),
            )
        metrics = {
            "name": config.name,
            "method": config.method["name"],
            "train_images": len(inputs.labels),
            "train_classes": len(inputs.class_names),
            "skipped_images": [str(item) for item in getattr(inputs.train, "skipped", ())],
            "train_seconds": round(seconds, 3),
            **scores(config, inputs.test, encoder, old, bridges, show_progress=show),
        }
        folder.write_metrics(metrics)
        folder.checkpoint.unlink(missing_ok=True)  # the encoder is saved: nothing to resume
        drop_rows(folder.checkpoint)
        return metrics

    return RunResult(folder.path, encoder, team.once(finish))


def _old(config: RunConfig, inputs: Inputs) -> OldModel | None:
    old = None if config.old is None else OldModel.load(config.old)
    check_old_labels(config, inputs.test, old)
    return old


def _trained(folder: RunFolder) -> Encoder:
    encoder = load_encoder(folder.encoder)
    assert isinstance(encoder, Encoder)  # run folders hold nothing else
    return encoder


def _epoch_log(folder: RunFolder, *, tensorboard: bool) -> Callable[[Mapping[str, float]], None]:
    writer = None
    if tensorboard:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependency(
                "tensorboard", extra="train", wanted_for="[train] tensorboard = true"
            ) from error
        writer = SummaryWriter(str(folder.path / TENSORBOARD))
    started = time.perf_counter()

    def on_epoch(line: Mapping[str, float]) -> None:
        nonlocal started
        seconds, started = time.perf_counter() - started, time.perf_counter()
        folder.log({**line, "images_per_second": round(line["images"] / seconds, 1)})
        if writer is not None:
            for name, value in line.items():
                if name not in ("epoch", "images"):
                    writer.add_scalar(name, value, int(line["epoch"]))
            writer.flush()

    return on_epoch
