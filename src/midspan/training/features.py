"""Features of a frozen backbone, computed once per image set and kept in the cache.

While the backbone is frozen, its pooled features of an image do not change: a head over them
trains in seconds. The key of an entry is the fingerprint of backbone and preprocessing together
with the images, so another head, seed or method uses the same entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from midspan.atomic_write import atomic_write
from midspan.data import ImageSet
from midspan.data.cache import cache_dir
from midspan.encoders import Encoder, OnnxEncoder
from midspan.encoders.heads import Pooled
from midspan.encoders.onnx_export import export_onnx
from midspan.errors import ConfigError, EncoderError, MissingDependency
from midspan.spaces import Embeddings, FloatArray, IntArray, Space, StrArray, fingerprint

_FORMAT = "1"  # raise it when cached features change
ONNX_FROM = 2000  # images; below, torch is done before the export is


class Features:
    """Pooled features (N, F) of the readable images of a set, mapped from the cache."""

    def __init__(self, vectors: FloatArray, ids: StrArray, *, space: Space) -> None:
        self.vectors = vectors  # (N, F), a read-only map of the file
        self.ids = ids
        self.space = space
        self._place = {name: row for row, name in enumerate(ids.tolist())}

    def __contains__(self, name: object) -> bool:
        return name in self._place

    def rows(self, ids: StrArray) -> IntArray:
        """Rows of these images; all of them must be present."""
        return np.array([self._place[name] for name in ids.tolist()], dtype=np.int64)

    def loader(self, ids: StrArray) -> Callable[[IntArray], Tensor]:
        """rows of these images → their features (b, F)."""
        held = torch.from_numpy(self.take(ids))
        return lambda rows: held[torch.from_numpy(rows)]

    def take(self, ids: StrArray) -> FloatArray:
        """(len(ids), F) in that order, in memory."""
        taken: FloatArray = self.vectors[self.rows(ids)]
        return taken


def trunk(encoder: Encoder) -> Encoder:
    """The encoder without its head: pooled features as they are. Shares the weights."""
    if not encoder.takes_images:
        raise ConfigError(
            f"encoder {encoder.name!r} takes vectors: its input is the features already"
        )
    if encoder.head.name == "gem":
        raise ConfigError(
            "a 'gem' head learns how the feature map is pooled, so pooled features cannot be "
            "cached for it; take head = 'linear' or 'linear-bn', or drop [encoder] freeze"
        )
    features = encoder.backbone.features
    cut = Encoder(
        name=f"{encoder.backbone.config()['name']} features",
        backbone=encoder.backbone,
        head=Pooled(features=features, dim=features),
        preprocessing=encoder.preprocessing,
        dim=features,
        normalise=False,
    )
    return cut.eval()


def cached_features(
    encoder: Encoder, images: ImageSet, *, make: bool = True, show_progress: bool = False
) -> Features | None:
    """From the cache; computed first if they are not there and `make` is true, else None.

    Images that cannot be decoded are left out, as in `ImageSet.cached`.
    """
    if not make and (not encoder.takes_images or encoder.head.name == "gem"):
        return None
    was_training = encoder.training
    cut = trunk(encoder)
    try:
        space = cut.space
        path = features_path(space, images)
        if not path.exists():
            if not make:
                return None
            _write(path, cut, images, show_progress=show_progress)
    finally:
        encoder.train(was_training)
    ids = np.load(_ids_path(path))
    return Features(np.load(path, mmap_mode="r"), ids, space=space)


def features_path(space: Space, images: ImageSet) -> Path:
    key = fingerprint(
        _FORMAT, space.fingerprint, "\n".join(images.ids.tolist()), images.source.signature()
    )
    return cache_dir() / "features" / f"{key}.npy"


def embed_features(encoder: Encoder, images: ImageSet, features: Features) -> Embeddings:
    """What `encoder.embed(images)` gives, from the features instead of the pixels."""
    kept = np.array([name in features for name in images.ids.tolist()], dtype=bool)
    images = images if kept.all() else images[kept]
    was_training = encoder.training
    encoder.eval()
    with torch.inference_mode():
        vectors = encoder.from_features(
            torch.from_numpy(features.take(images.ids)).to(encoder.device)
        )
        if encoder.normalise:
            vectors = torch.nn.functional.normalize(vectors)
    encoder.train(was_training)
    source = encoder.source(images, ids=None)
    return Embeddings(
        ids=images.ids, vectors=vectors.cpu().numpy(), space=encoder.space, columns=source.columns
    )


def embed_items(
    encoder: Encoder | OnnxEncoder,
    items: ImageSet | Embeddings,
    *,
    whole: ImageSet | Embeddings | None,
    show_progress: bool,
) -> Embeddings:
    """`encoder.embed`, from cached features of `whole`, which holds the items, if possible."""
    if isinstance(encoder, Encoder) and isinstance(items, ImageSet) and isinstance(whole, ImageSet):
        features = cached_features(encoder, whole, make=False)
        if features is not None and all(name in features for name in items.ids.tolist()):
            return embed_features(encoder, items, features)
    return encoder.embed(items, progress=show_progress)


def _write(path: Path, cut: Encoder, images: ImageSet, *, show_progress: bool) -> None:
    """Several runs may write the same file at once."""
    with _fastest(cut, count=len(images)) as runtime:
        embedded = runtime.embed(images, progress=show_progress, on_failure=_leave_out)
    with atomic_write(_ids_path(path), sync=False) as temporary, temporary.open("wb") as file:
        np.save(file, embedded.ids)
    with atomic_write(path, sync=False) as temporary:
        stored = open_memmap(temporary, mode="w+", dtype=np.float32, shape=embedded.vectors.shape)
        stored[:] = embedded.vectors
        stored.flush()
        del stored


@contextmanager
def _fastest(cut: Encoder, *, count: int) -> Iterator[Encoder | OnnxEncoder]:
    """ONNX Runtime where it is installed: 4 times as fast as torch on one core (lite0, 128 px).

    The export takes seconds, so only for many images; its vectors are checked against torch.
    """
    if cut.device.type != "cpu" or count < ONNX_FROM:
        yield cut
        return
    with TemporaryDirectory(prefix="midspan-features-") as folder:
        try:
            path = export_onnx(cut, Path(folder) / "trunk.onnx")
            runtime: Encoder | OnnxEncoder = OnnxEncoder(path, device="cpu")
        except (MissingDependency, EncoderError):
            runtime = cut
        yield runtime


def _leave_out(_id: str, _reason: str) -> None:
    """Images that cannot be decoded have no features."""


def _ids_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.ids.npy")
