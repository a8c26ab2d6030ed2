"""Checks of a whole run file before the run folder is created, so that a typo leaves nothing."""

from __future__ import annotations

from importlib.util import find_spec

from midspan.config import build, check_settings, look_up
from midspan.data import ALLOCATIONS
from midspan.encoders.backbones import BACKBONES, parse_backbone
from midspan.encoders.heads import HEADS
from midspan.errors import ConfigError, EvaluationError, MissingDependency
from midspan.evaluation.ranking import parse_metric
from midspan.losses import LOSSES, RecognitionLoss
from midspan.losses.partial_fc import PartialFC
from midspan.methods import METHODS, Method
from midspan.training.augment import chain
from midspan.training.inputs import SOURCES, Inputs
from midspan.training.settings import RunConfig
from midspan.training.variations import VARIATIONS

NO_RANKING = "nmi"  # a metric of all vectors together


def check_config(config: RunConfig) -> None:
    """Names, constructor arguments and their types of every section; reads no data."""
    _check_data(config)
    _check_encoder(config)
    chain(config.train.augment)
    for name in () if config.variations is None else config.variations.names:
        look_up(VARIATIONS, name, what="variation")
    if config.allocation is not None:
        look_up(ALLOCATIONS, config.allocation.kind, what="allocation")
    for metric in config.evaluate.metrics:
        if metric.strip().lower() != NO_RANKING:
            try:
                parse_metric(metric)
            except EvaluationError as error:
                raise ConfigError(f"[evaluate] metrics: {error}") from error
    if not 0 < config.evaluate.validation_fraction < 1:
        raise ConfigError(
            "[evaluate] validation_fraction: expected a share between 0 and 1, got "
            f"{config.evaluate.validation_fraction}"
        )
    if config.train.tensorboard and find_spec("tensorboard") is None:
        raise MissingDependency(
            "tensorboard", extra="train", required_for="[train] tensorboard = true"
        )
    built_parts(config)


def check_columns(config: RunConfig, inputs: Inputs) -> None:
    """Columns that the test at the end of the run needs: known before it is trained."""
    column = config.evaluate.exclude_column
    if column is None or inputs.test is None or not config.evaluate.metrics:
        return
    there = sorted(inputs.test.columns)
    if column not in there:
        raise ConfigError(
            f"[evaluate] exclude_column = {column!r}: expected a column of the data, got none of "
            f"that name (columns: {', '.join(there) or 'none'}); correct it, or drop it"
        )


def built_parts(config: RunConfig) -> tuple[RecognitionLoss, Method]:
    """The loss and the method as the run file has them, not prepared for any data yet."""
    loss: RecognitionLoss = build(LOSSES, config.loss, what="loss")
    _check_confidence(config, loss)
    method: Method = build(METHODS, config.method, what="method")
    if method.uses_old and config.old is None:
        raise ConfigError(
            f"method {config.method['name']!r} needs the old encoder: add [old] with "
            "run = 'RUN FOLDER' or embeddings = 'VECTORS.npz'"
        )
    if config.classifier.sharded and method.uses_classifier:
        raise ConfigError(
            f"[classifier] sharded = true cannot be used with [method] name = "
            f"{config.method['name']!r} as it is set: it needs the logits or the rows of all "
            "classes in every step, and no process has them; take another method or setting "
            "(docs/training.md, Millions of classes)"
        )
    if config.classifier.sharded:
        return PartialFC(loss, rate=config.classifier.sample_rate), method
    return loss, method


def _check_data(config: RunConfig) -> None:
    settings = dict(config.data)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"[data] name: expected one of {', '.join(sorted(SOURCES))}, got {name!r}"
        )
    target = look_up(SOURCES, name, what="data")
    check_settings(target, settings, where=f"[data] name = {name!r}")


def _check_encoder(config: RunConfig) -> None:
    chosen = config.encoder
    section = {**parse_backbone(chosen.backbone), **chosen.settings}
    target = look_up(BACKBONES, section.pop("name"), what="backbone")
    # What is missing may still come from the data: the dim of its vectors, the channels of images.
    check_settings(
        target, section, where=f"[encoder] backbone = {chosen.backbone!r}", complete=False
    )
    look_up(HEADS, chosen.head, what="head")


def _check_confidence(config: RunConfig, loss: RecognitionLoss) -> None:
    name, confident = config.loss["name"], config.encoder.confident
    if loss.uses_confidence and not confident:
        raise ConfigError(
            f"[loss] name = {name!r} weighs sub-embeddings by their confidence, but the encoder "
            "gives none: add confident = true to [encoder], or take name = 'cosface'"
        )
    if confident and not loss.uses_confidence:
        raise ConfigError(
            f"[encoder] confident = true, but nothing teaches the confidences: [loss] name = "
            f"{name!r} does not use them; take name = 'universal', or drop confident"
        )
