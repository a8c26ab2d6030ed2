"""One cell of the heads tier: an old encoder, new encoders by every method, and what they score.

Both encoders get the same number of steps. Features of frozen backbones have one view, so old
vectors are always those of the view that is shown; mixtures are of features, seen by both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from heads_data import BACKBONES, HeadsData
from torch import Tensor
from torch.nn import functional as F

from midspan.bridges import Bridge
from midspan.bridges.kernel import Kernel
from midspan.bridges.ridge import Ridge
from midspan.config import build
from midspan.data import allocate
from midspan.encoders import Encoder, build_encoder
from midspan.evaluation import gains, p_scores
from midspan.labels import ClassNames
from midspan.losses import LOSSES
from midspan.methods import METHODS, OldArtifacts, OldClassifier
from midspan.spaces import Embeddings, FloatArray, IntArray, Space
from midspan.training.freeze import ridge_start
from midspan.training.loop import TrainingTask, fit
from midspan.training.settings import TrainSettings
from midspan.training.views import FeatureView

CPU = torch.device("cpu")
OLD_FRACTION = 0.3  # AdvBCT's benchmark


@dataclass(frozen=True)
class Protocol:
    """What is equal for all encoders of the benchmark."""

    dim: int = 128
    steps: int = 200
    batch_size: int = 256
    lr: float = 1e-3
    weight_decay: float = 0.05
    loss: Mapping[str, Any] = field(
        default_factory=lambda: {"name": "cosface", "scale": 12.0, "margin": 0.0}
    )
    head: str = "linear"

    def train(self, labels: IntArray, *, mixup: float = 0.0) -> TrainSettings:
        per_epoch = max(1, round(len(labels) / self.batch_size))
        return TrainSettings(
            epochs=max(2, round(self.steps / per_epoch)),
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            checkpoint_seconds=1e9,
            mixup=mixup,
        )


@dataclass(frozen=True)
class Old:
    """A trained old encoder over features, with what the next one may know of it."""

    encoder: Encoder
    backbone: str
    classifier: OldClassifier | None
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Trained:
    encoder: Encoder
    seconds: float


def allocation_rows(data: HeadsData, *, family: str, split: int) -> IntArray:
    """Rows that the old encoder learns from: 30 % of the images or of the classes."""
    codes = np.unique(data.labels[data.train], return_inverse=True)[1].astype(np.int64)
    found = allocate(codes, kind=f"extended-{family}", old_fraction=OLD_FRACTION, seed=split)
    return data.train[found.old]


def train_old(data: HeadsData, rows: IntArray, *, protocol: Protocol, seed: int) -> Old:
    backbone = BACKBONES[0]
    names, labels = np.unique(data.labels[rows], return_inverse=True)
    torch.manual_seed(seed)
    encoder = _encoder(data, backbone, protocol.dim, protocol.head, seed)
    loss = build(LOSSES, protocol.loss, what="loss")
    loss.prepare(num_classes=len(names), dim=protocol.dim)
    task = TrainingTask(
        encoder=encoder,
        loss=loss,
        method=build(METHODS, {"name": "independent"}, what="method"),
        load=_loader(data, backbone, rows),
        labels=labels.astype(np.int64),
        old_vectors=None,
    )
    fit(task, settings=protocol.train(task.labels), seed=seed, device=CPU, show_progress=False)
    classifier = OldClassifier(
        rows=loss.class_rows().detach(),
        bias=None if loss.bias is None else loss.bias.detach(),
        scale=loss.scale,
        normalised=loss.normalised,
    )
    return Old(encoder, backbone, classifier, tuple(names.tolist()))


def train_new(
    data: HeadsData,
    old: Old,
    *,
    backbone: str,
    method: Mapping[str, Any],
    protocol: Protocol,
    seed: int,
    mixup: float = 0.0,
    start: str = "random",
    dim: int | None = None,
    class_rows: str = "old-centres",
) -> Trained:
    """method: [method] of a run file. class_rows: where the classifier starts (not independent)."""
    rows, dim = data.train, dim or protocol.dim
    names, labels = np.unique(data.labels[rows], return_inverse=True)
    labels = labels.astype(np.int64)
    torch.manual_seed(seed)
    encoder = _encoder(data, backbone, dim, protocol.head, seed)
    loss = build(LOSSES, protocol.loss, what="loss")
    loss.prepare(num_classes=len(names), dim=dim)
    compatible = build(METHODS, method, what="method")
    known = None
    if compatible.uses_old:
        vectors = embed(old.encoder, data.features[old.backbone][rows])
        known = OldArtifacts.measure(
            space=Space("old", vectors.shape[1]),
            vectors=torch.from_numpy(vectors),
            labels=torch.from_numpy(labels),
            num_classes=len(names),
            classifier=old.classifier,
            label_map=torch.from_numpy(
                ClassNames(tuple(names.tolist())).places_in(old.class_names)
            ),
        )
        if class_rows == "old-centres":
            loss.start_rows(known.centres, known.counts > 0)
        if start == "ridge":
            ridge_start(
                encoder,
                features=torch.from_numpy(data.features[backbone][rows]),
                old=known.vectors,
            )
    compatible.prepare(old=known, num_classes=len(names), dim=dim)
    view = None
    if known is not None and mixup:
        view = FeatureView(old.encoder, load=_loader(data, old.backbone, rows))
    started = time.perf_counter()
    fit(
        TrainingTask(
            encoder=encoder,
            loss=loss,
            method=compatible,
            load=_loader(data, backbone, rows),
            labels=labels,
            old_vectors=None if known is None else known.vectors,
            old_view=view,
        ),
        settings=protocol.train(labels, mixup=mixup if view is not None else 0.0),
        seed=seed,
        device=CPU,
        show_progress=False,
    )
    return Trained(encoder, time.perf_counter() - started)


@torch.inference_mode()
def embed(encoder: Encoder, features: FloatArray) -> FloatArray:
    encoder.eval()
    vectors: FloatArray = F.normalize(encoder(torch.from_numpy(features))).numpy()
    return vectors


def prefix(vectors: FloatArray, dim: int) -> FloatArray:
    """The first dims as unit vectors: what is compared with the old ones."""
    cut = vectors[:, :dim]
    return cut / np.linalg.norm(cut, axis=1, keepdims=True)


def fitted_bridge(kind: str, source: FloatArray, target: FloatArray) -> Bridge:
    bridge = Ridge() if kind == "ridge" else Kernel()
    ids = np.arange(len(source)).astype(np.str_)
    return bridge.fit(
        Embeddings(ids, source, Space("source", source.shape[1])),
        Embeddings(ids, target, Space("target", target.shape[1])),
    )


def mapped(bridge: Bridge, vectors: FloatArray) -> FloatArray:
    ids = np.arange(len(vectors)).astype(np.str_)
    result: FloatArray = bridge.transform(
        Embeddings(ids, vectors, Space("source", vectors.shape[1]))
    ).vectors
    return result


def scored(
    *,
    own: Mapping[str, FloatArray],
    cross: Mapping[str, FloatArray],
    old: Mapping[str, FloatArray],
    upper: float,
) -> dict[str, float]:
    """Self, cross, P, gains and flips from per-query values."""

    def mean(values: Mapping[str, FloatArray], metric: str = "map") -> float:
        return float(np.nanmean(values[metric]))

    new_self, cross_map, old_self = mean(own), mean(cross), mean(old)
    p = p_scores(old=old_self, new=new_self, upper=upper, cross=cross_map)
    gain = gains(old=old_self, new=new_self, upper=upper, cross=cross_map)
    before, after = old["recall@1"], cross["recall@1"]
    return {
        "old_self": old_self,
        "upper_self": upper,
        "self": new_self,
        "cross": cross_map,
        "old_recall1": mean(old, "recall@1"),
        "self_recall1": mean(own, "recall@1"),
        "cross_recall1": mean(cross, "recall@1"),
        "p_up": p.up,
        "p_comp": p.comp,
        "p_1": p.score,
        "update_gain": gain.update,
        "negative_flips": float(((before == 1) & (after == 0)).mean()),
        "positive_flips": float(((before == 0) & (after == 1)).mean()),
    }


def _encoder(data: HeadsData, backbone: str, dim: int, head: str, seed: int) -> Encoder:
    inputs = data.features[backbone].shape[1]
    return build_encoder(
        backbone="vectors", dim=dim, head=head, seed=seed, settings={"inputs": inputs}
    )


def _loader(data: HeadsData, backbone: str, rows: IntArray) -> Any:
    features = torch.from_numpy(data.features[backbone][rows])

    def load(places: IntArray) -> Tensor:
        return features[torch.from_numpy(places)]

    return load
