"""Data sets of the heads tier: cached features of two frozen backbones, labels, and a protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.data import csv, hold_out_classes
from midspan.encoders import build_encoder
from midspan.evaluation import evaluate
from midspan.spaces import Embeddings, FloatArray, IntArray, Space
from midspan.training.features import cached_features

BACKBONES = ("efficientnet-lite0", "efficientnet-lite2")  # of the old encoder, and a larger one
SIZES = {"cub": (128, 128), "market": (128, 64)}  # height, width: as the files are


@dataclass(frozen=True)
class HeadsData:
    """Features (N, F) by backbone; `train`, `query` and `gallery` are rows.

    query is gallery: leave-one-out. cameras: Market-1501's rule, the same person in the same
    camera is no hit.
    """

    name: str
    features: Mapping[str, FloatArray]
    labels: npt.NDArray[np.str_]
    train: IntArray
    query: IntArray
    gallery: IntArray
    cameras: npt.NDArray[np.str_] | None = None

    def validation(self) -> HeadsData:
        """The same with a fifth of the training classes as test classes, each image a query."""
        codes = np.unique(self.labels[self.train], return_inverse=True)[1].astype(np.int64)
        kept, held = hold_out_classes(codes)
        rows = self.train[held]
        return HeadsData(
            f"{self.name}-validation",
            self.features,
            self.labels,
            self.train[kept],
            rows,
            rows,
            self.cameras,
        )

    def judge(self, query: FloatArray, gallery: FloatArray) -> dict[str, FloatArray]:
        """{map, recall@1} per query; vectors of the rows `query` and `gallery`."""
        asked = self._embeddings(self.query, query)
        alone = self.query is self.gallery
        searched = self._embeddings(self.gallery, gallery)
        result = evaluate(
            asked,
            searched,
            metrics=("map", "recall@1"),
            junk_column=None if self.cameras is None else "cameras",
            exclude_same_id=alone,
            direct=True,
        )
        return {name: values.astype(np.float32) for name, values in result.per_query.items()}

    def _embeddings(self, rows: IntArray, vectors: FloatArray) -> Embeddings:
        columns: dict[str, npt.NDArray[Any]] = {"labels": self.labels[rows]}
        if self.cameras is not None:
            columns["cameras"] = self.cameras[rows]
        return Embeddings(
            rows.astype(np.str_), vectors, Space("benchmark", vectors.shape[1]), columns
        )


def load(name: str, *, lists: Path, flowers: Path | None) -> HeadsData:
    """cub and market from their lists (benchmarks/image_lists.py), flowers from its vectors."""
    if name == "flowers":
        assert flowers is not None, "--flowers FOLDER: where flowers-efficientnet-lite0.npz is"
        return _flowers(flowers)
    images = csv(lists / f"{name}.csv")
    features = {}
    for backbone in BACKBONES:
        encoder = build_encoder(backbone=backbone, head="none", size=SIZES[name])
        found = cached_features(encoder, images, show_progress=True)
        assert found is not None
        assert len(found.ids) == len(images), "every image of a benchmark is readable"
        features[backbone] = _scaled(found.vectors)
    labels = _names(images)
    assert images.split is not None
    test = np.flatnonzero(images.split == 1)
    train = np.flatnonzero(images.split == 0)
    if name == "market":
        part = images.columns["part"]
        junk = labels == "-1"
        return HeadsData(
            name=name,
            features=features,
            labels=labels,
            train=train,
            query=np.flatnonzero(part == "query"),
            gallery=np.flatnonzero((part == "bounding_box_test") & ~junk),
            cameras=images.columns["cameras"],
        )
    return HeadsData(name, features, labels, train, test, test)


def _flowers(folder: Path) -> HeadsData:
    """The class split of flowers32.npz: 70 classes train, 32 test."""
    stored = np.load(folder / "flowers32.npz")
    test_classes = np.unique(stored["labels"][stored["split"] == 1])
    features, labels = {}, np.empty(0)
    for backbone in BACKBONES:
        file = np.load(folder / f"flowers-{backbone}.npz")
        features[backbone] = _scaled(file["vectors"])
        labels = file["labels"]
    is_test = np.isin(labels, test_classes)
    test = np.flatnonzero(is_test)
    return HeadsData(
        "flowers", features, labels.astype(np.str_), np.flatnonzero(~is_test), test, test
    )


def _scaled(vectors: npt.NDArray[Any]) -> FloatArray:
    """Divided by the root mean square of all of them: one learning rate for every set."""
    wide: FloatArray = np.array(vectors, dtype=np.float32)
    return wide / np.sqrt(np.mean(np.square(wide)))


def _names(images: Any) -> npt.NDArray[np.str_]:
    """Class names, whether labels are names or rows of class_names."""
    labels = np.asarray(images.labels)
    if labels.dtype.kind in "iu":
        return np.array(images.class_names)[labels]
    return labels.astype(np.str_)
