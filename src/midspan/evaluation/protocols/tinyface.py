"""TinyFace: low-resolution faces against a gallery with 153,428 distractors.

    Testing_Set/Probe/, Gallery_Match/, Gallery_Distractor/
    Testing_Set/probe_img_ID_pairs.mat            probe_set, probe_ids
    Testing_Set/gallery_match_img_ID_pairs.mat    gallery_set, gallery_ids

Ids are paths below Testing_Set, as 'Probe/1_2.jpg'; labels are the subjects, −100 for distractors.
A subject has several gallery images; the best of them counts. Without `root`: probe and gallery
embeddings with labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from midspan.errors import EvaluationError, FormatError
from midspan.evaluation import retrieval
from midspan.evaluation.protocols.listing import Items, find, image_id, items
from midspan.evaluation.protocols.outcome import Outcome, of_retrieval
from midspan.spaces import Embeddings

DISTRACTOR = -100  # the label of the authors' own code
IMAGES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True, slots=True)
class TinyFaces:
    """Column: labels."""

    probe: Items
    gallery: Items  # mates and distractors


def load(root: Path) -> TinyFaces:
    pairs = find(
        Path(root),
        "Testing_Set/probe_img_ID_pairs.mat",
        "tinyface/Testing_Set/probe_img_ID_pairs.mat",
        "probe_img_ID_pairs.mat",
    )
    folder = pairs.parent
    mates_list = find(folder, "gallery_match_img_ID_pairs.mat")
    mates = _pairs(mates_list, "gallery_set", "gallery_ids", folder="Gallery_Match")
    extra = folder / "Gallery_Distractor"
    if not extra.is_dir():
        raise FormatError(f"{folder}: has no folder Gallery_Distractor")
    distractors = [
        (file.relative_to(folder).as_posix(), DISTRACTOR)
        for file in sorted(extra.rglob("*"))
        if file.suffix.lower() in IMAGES
    ]
    probes = _pairs(pairs, "probe_set", "probe_ids", folder="Probe")
    return TinyFaces(
        probe=items(probes, columns=["labels"], source=pairs),
        gallery=items(mates + distractors, columns=["labels"], source=mates_list),
    )


@dataclass(frozen=True, kw_only=True)
class TinyFace:
    """Rank 1, 5 and 20 (recall@k over a gallery with distractors) and mAP.

    The authors' own AP is the trapezoid one.
    """

    root: Path | None = None

    default_metrics: ClassVar[tuple[str, ...]] = (
        "recall@1",
        "recall@5",
        "recall@20",
        "map_trapezoid",
    )

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        if self.root is not None:
            listed = load(self.root)
            gallery = listed.gallery.of(query if gallery is None else gallery)
            query = listed.probe.of(query)
        if gallery is None:
            raise EvaluationError(
                "tinyface: expected probes and a gallery, got no gallery; give both, or the data "
                "set's folder as root, which says which is which"
            )
        if (retrieval.labels_of(query, "query") == str(DISTRACTOR)).any():
            raise EvaluationError(f"a probe has the label {DISTRACTOR}, which marks distractors")
        result = retrieval.evaluate(
            query, gallery, metrics=metrics, exclude_same_id=False, direct=direct
        )
        return of_retrieval(result)


def _pairs(path: Path, names: str, numbers: str, *, folder: str) -> list[tuple[str, int]]:
    from scipy.io import loadmat

    try:
        raw = loadmat(path, variable_names=[names, numbers])
    except Exception as error:  # scipy raises whatever its parser met
        raise FormatError(f"{path}: not a readable .mat file ({error})") from error
    if names not in raw or numbers not in raw:
        raise FormatError(f"{path}: expected the variables {names} and {numbers}")
    images = [_text(cell, path) for cell in np.ravel(raw[names])]
    labels = np.ravel(raw[numbers])
    if len(images) != len(labels) or labels.dtype.kind not in "iuf":
        raise FormatError(f"{path}: {len(images)} names but {len(labels)} numbers of subjects")
    return [
        (image_id(f"{folder}/{image}", where=str(path)), int(label))
        for image, label in zip(images, labels, strict=True)
    ]


def _text(cell: Any, path: Path) -> str:
    """A MATLAB cell of text comes as arrays inside arrays."""
    while isinstance(cell, np.ndarray):
        if cell.size != 1:
            raise FormatError(f"{path}: expected one image name in a cell, got {cell.size} values")
        cell = cell.reshape(-1)[0]
    if not isinstance(cell, str):
        raise FormatError(f"{path}: expected an image name in a cell, got {cell!r}")
    return str(cell)
