"""`train`: a run file in, a run folder out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from midspan.bridges import Bridge
from midspan.encoders import Encoder, load_encoder
from midspan.encoders.allocator import keep_freed_memory
from midspan.errors import MissingDependency
from midspan.evidence import Evidence
from midspan.losses import RecognitionLoss
from midspan.methods import OldArtifacts
from midspan.training.assemble import (
    decoded,
    frozen_features,
    new_encoder,
    prepared,
    readable,
    start_at_old,
    variations,
)
from midspan.training.checks import check_columns, check_config
from midspan.training.class_weights import drop_class_weights, whole_classifier
from midspan.training.distributed import Processes, check_shared, join_processes
from midspan.training.folders import TENSORBOARD, RunFolder
from midspan.training.freeze import freeze, head_alone
from midspan.training.inputs import Inputs, loader, read_inputs
from midspan.training.loop import TrainingTask, fit
from midspan.training.maps import load_maps, save_maps
from midspan.training.old import OldModel, check_class_names, save_classifier
from midspan.training.old_views import OldViews, class_views, old_views
from midspan.training.scores import scores
from midspan.training.settings import RunConfig


@dataclass(frozen=True)
class RunResult:
    """A finished run. `scores` are fractions, by the first metric of [evaluate].

    self; with an old encoder also old_self, cross (vectors compared as they are), cross_backward
    and cross_forward (through the maps that the method learnt), and cross_best, the best of these.
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
    """Train one encoder. A finished run is not repeated, a stopped one continues where it was.

    Args:
        config: A run file (`.toml`), or a RunConfig.
        out: Folder of the run: config.toml, env.json, log.jsonl, metrics.json, encoder/.
        restart: Begin again, and discard what is there.
        device: "cpu", "cuda" …; default CUDA if there is one, else the CPU.
        progress: A progress bar.

    Returns:
        The encoder, its metrics and the folder.

    Raises:
        ConfigError: The run file has a setting that does not exist or does not fit.
        DataError: Images or labels that cannot be trained on.
        RunError: The folder holds another run.

    Example:
        >>> import pathlib, tempfile
        >>> import midspan as ms
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run_file = pathlib.Path(folder, "tiny.toml")
        ...     _ = run_file.write_text('''
        ... [data]
        ... name = "digits"
        ... [encoder]
        ... backbone = "small-cnn"
        ... dim = 16
        ... [train]
        ... epochs = 1
        ... ''')
        ...     result = ms.train(run_file, out=pathlib.Path(folder, "run"), progress=False)
        >>> result.encoder.dim
        16
    """
    if not isinstance(config, RunConfig):
        config = RunConfig.load(config, default_name=Path(out).name)
    with join_processes(device) as (processes, where):
        if where.type == "cpu":
            keep_freed_memory()
        return _train(
            config,
            Path(out),
            restart=restart,
            processes=processes,
            device=where,
            show=progress and processes.is_first,
        )


def _train(
    config: RunConfig,
    out: Path,
    *,
    restart: bool,
    processes: Processes,
    device: torch.device,
    show: bool,
) -> RunResult:
    """Runs in every process; only the first one writes and evaluates."""
    folder = RunFolder(out)
    if processes.once(lambda: folder.check(config, restart=restart)):
        check_shared(folder.path, processes)
        return RunResult(folder.path, _trained(folder), folder.metrics())
    check_config(config)  # before the folder is created: a typo leaves nothing
    if processes.world > 1 and config.data.get("name") == "webdataset":
        processes.once_per_machine(
            lambda: len(read_inputs(config).labels)
        )  # the others find the index
    inputs = read_inputs(config)
    # the other processes read a shared file instead of the old encoder, unless it is run on views
    old = (
        _old(config, inputs)
        if _shows(config)
        else processes.on_first_of_machine(lambda: _old(config, inputs))
    )
    torch.manual_seed(config.seed)  # class weights and what a method learns
    encoder = new_encoder(config, inputs)
    check_columns(config, inputs)
    with ExitStack() as held:
        begun: list[Callable[..., None]] = []  # in the first process, which writes
        processes.once(
            lambda: begun.append(held.enter_context(folder.claimed(config, restart=restart)))
        )
        check_shared(folder.path, processes)
        run = _Run(folder, config, old, encoder, processes, device, show)
        ready = _prepare(run, inputs)
        processes.once(lambda: begun[0](inputs.class_names))  # all parts accept their settings
        seconds = _fit(run, ready.task)
        whole = whole_classifier(ready.task.loss, group=processes.slow_group)
        metrics = processes.once(lambda: _finish(run, ready, whole, seconds=seconds))
        _record_compatibility(run, ready, metrics)  # in every process
        return RunResult(folder.path, encoder, metrics)


@dataclass(frozen=True, slots=True)
class _Run:
    """What stays the same from the first step of a run to its last."""

    folder: RunFolder
    config: RunConfig
    old: OldModel | None
    encoder: Encoder
    processes: Processes
    device: torch.device
    show: bool


@dataclass(frozen=True, slots=True)
class _Ready:
    """A run that can be trained."""

    inputs: Inputs
    task: TrainingTask
    known: OldArtifacts | None  # of the old encoder
    views: OldViews | None

    @property
    def is_direct(self) -> bool:
        """Whether vectors of both encoders are meant to be compared as they are."""
        return self.known is not None and "direct" in self.task.method.directions

    def prefix_dims(self, encoder: Encoder) -> int | None:
        """The dims to compare with old vectors; None: all."""
        if self.known is None or not self.is_direct or self.known.space.dim >= encoder.dim:
            return None
        return self.known.space.dim


def _prepare(run: _Run, inputs: Inputs) -> _Ready:
    config, encoder, old = run.config, run.encoder, run.old
    frozen = freeze(encoder, config.encoder.freeze)
    features = frozen_features(
        config, encoder, inputs, frozen=frozen, processes=run.processes, show_progress=run.show
    )
    if features is None:
        inputs = decoded(inputs, encoder, processes=run.processes, show_progress=run.show)
        learner, load = encoder, loader(encoder, inputs.train)
    else:  # only the head learns, from the features of the frozen backbone
        inputs = readable(inputs, features)
        learner, load = head_alone(encoder, space=features.space), features.loader(inputs.train.ids)
    views = seen = None
    if config.old is not None:
        views = old_views(
            config, old, inputs, encoder=encoder, features=features, show_progress=run.show
        )
        seen = class_views(config, views, load, inputs, device=run.device)
    loss, method, known = prepared(
        config, inputs, old, views=seen, processes=run.processes, show_progress=run.show
    )
    if config.encoder.start == "ridge":
        start_at_old(encoder, inputs, features, known, show_progress=run.show)
    task = TrainingTask(
        encoder=learner,
        loss=loss,
        method=method,
        load=load,
        labels=inputs.labels,
        old_vectors=None if known is None else known.vectors,
        old_view=None if views is None or known is None else views.view,
        variations=variations(config, inputs.train, processes=run.processes),
    )
    return _Ready(inputs, task, known, views)


def _fit(run: _Run, task: TrainingTask) -> float:
    on_epoch = None
    if run.processes.is_first:
        on_epoch = _epoch_log(run.folder, tensorboard=run.config.train.tensorboard)
    return fit(
        task,
        settings=run.config.train,
        seed=run.config.seed,
        device=run.device,
        processes=run.processes,
        checkpoint=run.folder.checkpoint,
        on_epoch=on_epoch,
        show_progress=run.show,
    )


def _finish(run: _Run, ready: _Ready, whole: RecognitionLoss, *, seconds: float) -> dict[str, Any]:
    """Save the encoder and what the method learnt, test it, and record the metrics."""
    folder, encoder, inputs = run.folder, run.encoder, ready.inputs
    encoder.save(folder.encoder)
    save_classifier(folder.path, whole, inputs.class_names, sub_embeddings=encoder.sub_embeddings)
    bridges: Mapping[str, Bridge] = {}
    if run.old is not None:
        bridges = save_maps(
            ready.task.method.maps(),
            run=folder.path,
            new=encoder.space,
            old=run.old.space,
            images=len(inputs.labels),
        )
    metrics = {
        "name": run.config.name,
        "method": run.config.method["name"],
        "train_images": len(inputs.labels),
        "train_classes": len(inputs.class_names),
        "skipped_images": [str(item) for item in getattr(inputs.train, "skipped", ())],
        "train_seconds": round(seconds, 3),
        **_views_metrics(ready),
        **scores(
            run.config,
            inputs.test,
            encoder,
            run.old,
            bridges,
            whole=inputs.whole,
            prefix_dims=ready.prefix_dims(encoder),
            show_progress=run.show,
        ),
    }
    if _record_compatibility(run, ready, metrics):
        encoder.save(folder.encoder)
    folder.write_metrics(metrics)
    folder.checkpoint.unlink(missing_ok=True)  # the encoder is saved: nothing to resume
    drop_class_weights(folder.checkpoint)
    return metrics


def _views_metrics(ready: _Ready) -> dict[str, str]:
    if ready.views is None:
        return {}
    kind = {} if ready.known is None else {"old_views": ready.views.kind}
    return kind | ({"old_views_note": ready.views.note} if ready.views.note else {})


def _record_compatibility(run: _Run, ready: _Ready, metrics: Mapping[str, Any]) -> bool:
    """Record the compatible space in the encoder, together with the result of the test."""
    if ready.known is None or not ready.is_direct:
        return False
    run.encoder.compatible_with = (ready.known.space.fingerprint,)
    run.encoder.compatible_dims = ready.prefix_dims(run.encoder)
    run.encoder.evidence = (Evidence.from_dict(metrics["criterion"], source=str(run.folder.path)),)
    return True


def _shows(config: RunConfig) -> bool:
    """Whether every process needs the old encoder itself."""
    return config.old is not None and config.old.run is not None and config.old.views != "cached"


def _old(config: RunConfig, inputs: Inputs) -> OldModel | None:
    if config.old is None:
        return None
    old = OldModel.load(config.old)
    if old.class_names:
        check_class_names(inputs, old.class_names)
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
                "tensorboard", extra="train", required_for="[train] tensorboard = true"
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
