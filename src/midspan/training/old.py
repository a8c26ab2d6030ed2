"""The old side of a run: its encoder or its vectors, its classifier, and the cached artifacts.

Artifacts are one file of the cache. It is mapped, not read: a machine holds it once. Old vectors
are the one part that grows with the images, N·D numbers; every process maps the same pages of the
file and touches only the rows of its batches.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.atomic_write import atomic_write
from midspan.data.cache import cache_dir
from midspan.encoders import Encoder, OnnxEncoder, load_encoder
from midspan.errors import DataError, FormatError, LabelMismatch, UnknownId
from midspan.labels import ClassNames, are_numbers, some_names, warn_numbered
from midspan.losses import RecognitionLoss
from midspan.methods import OldArtifacts, OldClassifier
from midspan.spaces import Embeddings, Space, fingerprint
from midspan.training.distributed import Processes
from midspan.training.features import embed_items
from midspan.training.folders import CLASSIFIER
from midspan.training.inputs import Inputs, Items
from midspan.training.settings import OldSettings

FORMAT = "2"  # raise it when the measures change
TENSORS = ("vectors", "counts", "centres", "radii", "angles")


@dataclass(frozen=True)
class OldModel:
    """An old encoder that can embed, or one that exists only as vectors."""

    space: Space
    encoder: Encoder | OnnxEncoder | None
    stored: Embeddings | None
    class_names: tuple[str, ...]

    @classmethod
    def load(cls, settings: OldSettings) -> OldModel:
        if settings.embeddings is not None:
            stored = Embeddings.load(settings.embeddings, space=settings.space)
            return cls(stored.space, encoder=None, stored=stored, class_names=())
        assert settings.run is not None
        encoder = load_encoder(settings.run)
        _, names = read_classifier(Path(settings.run))
        return cls(encoder.space, encoder, stored=None, class_names=names)

    def embed(self, items: Items, *, whole: Items | None = None, show_progress: bool) -> Embeddings:
        """Old vectors of these items, in their order; from the cache if they were computed before.

        whole: the set that they are part of, of which features may be cached.
        They have the items' own labels: a file's may be missing, or numbered by another version.
        """
        if self.stored is not None:
            try:
                return _relabelled(self.stored.take(items.ids), items)
            except UnknownId as error:
                raise DataError(f"old vectors are missing for some images: {error}") from error
        assert self.encoder is not None
        key = fingerprint(self.space.fingerprint, content_key(items))
        path = cache_dir() / "old" / f"{key}.npz"
        if path.exists():
            try:
                return _relabelled(Embeddings.load(path).take(items.ids), items, check=False)
            except (FormatError, UnknownId):
                path.unlink()  # a damaged cache entry is computed again
        embeddings = embed_items(self.encoder, items, whole=whole, show_progress=show_progress)
        embeddings.save(path)
        return embeddings


def _relabelled(old: Embeddings, items: Items, *, check: bool = True) -> Embeddings:
    if items.labels is None:
        return old
    if check and old.labels is not None and not old.numbered:
        differ = np.flatnonzero(old.labels != items.labels)
        if len(differ):
            row = differ[0]
            raise LabelMismatch(
                f"{len(differ)} of {len(old)} items have another label in the file of old vectors, "
                f"first {str(items.ids[row])!r}: there {str(old.labels[row])!r}, in the data "
                f"{str(items.labels[row])!r}; are these the vectors of the same images?"
            )
    return old.with_columns({"labels": items.labels})


def content_key(items: Items) -> str:
    """What the cached vectors depend on besides the encoder: which items, and what is in them."""
    ids = "\n".join(items.ids.tolist())
    if isinstance(items, Embeddings):
        return fingerprint(ids, items.space.fingerprint, items.vectors.tobytes())
    return fingerprint(ids, items.source.signature())


def artifacts(
    old: OldModel | None,
    settings: OldSettings,
    inputs: Inputs,
    *,
    processes: Processes,
    show_progress: bool,
    views: Views | None = None,
) -> OldArtifacts:
    """From a file of the cache that the first process of each machine writes and all map.

    `old` is expected in that process alone. views: augmented views of the images, from which
    class centres and radii are then measured.
    """

    def make() -> Path:
        assert old is not None
        return _cached_artifacts(old, inputs, views=views, show_progress=show_progress)

    path = processes.once_per_machine(make)
    classifier, names = (None, ()) if settings.run is None else read_classifier(Path(settings.run))
    return read_artifacts(
        path,
        labels=torch.from_numpy(inputs.labels),
        classifier=classifier,
        label_map=torch.from_numpy(ClassNames(inputs.class_names).places_in(names)),
    )


@dataclass(frozen=True)
class Views:
    """Old vectors of augmented views, computed when needed."""

    key: str  # what they depend on besides the encoder and the images
    vectors: Callable[[], Tensor]  # (K, N, D_old)


def _cached_artifacts(
    old: OldModel, inputs: Inputs, *, views: Views | None, show_progress: bool
) -> Path:
    labels, classes = inputs.labels, len(inputs.class_names)
    # nothing identifies the content of a file of vectors: the vectors themselves are the key
    stored = old.embed(inputs.train, show_progress=False) if old.encoder is None else None
    content = content_key(inputs.train) if stored is None else stored.vectors.tobytes()
    seen = "" if views is None else views.key
    path = artifacts_path(old.space.fingerprint, content, labels.tobytes(), str(classes), seen)
    if not is_whole(path):
        if stored is None:
            assert old.encoder is not None
            stored = embed_items(
                old.encoder, inputs.train, whole=inputs.whole, show_progress=show_progress
            )
        write_artifacts(
            path,
            OldArtifacts.measure(
                space=old.space,
                vectors=torch.from_numpy(stored.vectors),
                labels=torch.from_numpy(labels),
                num_classes=classes,
                views=None if views is None else views.vectors(),
            ),
        )
    return path


def artifacts_path(*key: bytes | str) -> Path:
    return cache_dir() / "old" / f"{fingerprint(FORMAT, *key)}.safetensors"


def is_whole(path: Path) -> bool:
    """False for a damaged file, which is then written again."""
    try:
        with safe_open(path, framework="pt") as file:
            return set(TENSORS) == set(file.keys()) and "space" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def write_artifacts(path: Path, known: OldArtifacts) -> None:
    with atomic_write(path, sync=False) as temporary:
        save_file(
            {name: getattr(known, name).contiguous() for name in TENSORS},
            temporary,
            metadata={"space": known.space.to_json()},
        )


def read_artifacts(
    path: Path, *, labels: Tensor, classifier: OldClassifier | None, label_map: Tensor
) -> OldArtifacts:
    with safe_open(path, framework="pt") as file:
        space = Space.from_json((file.metadata() or {})["space"], source=str(path))
        tensors = {name: file.get_tensor(name) for name in TENSORS}
    return OldArtifacts(
        space=space, labels=labels, classifier=classifier, label_map=label_map, **tensors
    )


def check_class_names(inputs: Inputs, old: Sequence[str]) -> None:
    """Old class weights are matched by class name; warn where that cannot work.

    Disjoint classes are a separate case (open-class), but names on one side and numbers on the
    other are the same classes called differently.
    """
    if isinstance(inputs.train, Embeddings) and inputs.train.numbered:
        warn_numbered(what="training vectors")
    if set(old).isdisjoint(inputs.class_names) and are_numbers(old) != are_numbers(
        inputs.class_names
    ):
        warnings.warn(
            f"no class of the old run has the name of a training class: the old run has "
            f"{some_names(old)}, the data {some_names(inputs.class_names)}; the old class weights "
            "are not used for them. Train the old encoder on data with the same class names",
            stacklevel=2,
        )


def save_classifier(
    folder: Path, loss: RecognitionLoss, class_names: Sequence[str], *, sub_embeddings: int = 1
) -> None:
    """Save the class weights of the recognition loss for the next compatible encoder.

    A loss with confidences compares slice by slice: its weights are saved with slices of length
    one, so that the cosine of the whole is the mean of theirs; its scale is the mean confidence.
    """
    rows = loss.rows
    if loss.uses_confidence and rows is not None:
        slices = rows.detach().view(len(rows), sub_embeddings, -1)
        rows = nn.Parameter(F.normalize(slices, dim=2).flatten(1))
    facts = {
        "class_names": list(class_names),
        "scale": loss.typical_scale(),
        "normalised": loss.normalised,
        "has_classifier": loss.has_classifier,
    }
    tensors = {"rows": rows, "bias": loss.bias}
    save_file(
        {
            n: t.detach().cpu().contiguous()
            for n, t in tensors.items()
            if isinstance(t, nn.Parameter)
        },
        folder / CLASSIFIER,
        metadata={"facts": json.dumps(facts)},
    )


def read_classifier(run: Path) -> tuple[OldClassifier | None, tuple[str, ...]]:
    """(classifier, class names); (None, ()) for an encoder folder that came without a run."""
    path = run / CLASSIFIER
    if not path.exists():
        return None, ()
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        names = tuple(facts["class_names"])
        if not facts["has_classifier"]:
            return None, names
        classifier = OldClassifier(
            rows=tensors["rows"],
            bias=tensors.get("bias"),
            scale=float(facts["scale"]),
            normalised=bool(facts["normalised"]),
        )
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"{path}: not a readable classifier ({error})") from error
    return classifier, names
