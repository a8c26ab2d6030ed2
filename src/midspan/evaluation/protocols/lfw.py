"""LFW: 6,000 pairs of faces in 10 folds; accuracy with the threshold of the other nine.

    pairs.txt     '10 300', then for each fold 300 lines 'name n n' and 300 lines 'name n name n'

Ids are paths as in the data set: 'Name/Name_0001.jpg'. The first image of a pair is taken from the
query embeddings, the second from the gallery embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from midspan.errors import FormatError
from midspan.evaluation.protocols.listing import find, image_id, lines, whole
from midspan.evaluation.protocols.outcome import Outcome, sides, split_name
from midspan.evaluation.verification import (
    BoolArray,
    eer,
    kfold_accuracy,
    tar_at_far,
    threshold_at_far,
)
from midspan.spaces import Embeddings, StrArray

METRICS = ("accuracy", "accuracy_std", "eer", "tar@FAR")


@dataclass(frozen=True, slots=True)
class FacePairs:
    left: StrArray  # (P,) image ids
    right: StrArray  # (P,)
    same: BoolArray  # (P,)
    fold: npt.NDArray[np.int64]  # (P,) from 0


def load(root: Path) -> FacePairs:
    path = find(Path(root), "pairs.txt")
    rows = lines(path)
    number, first = next(rows, (1, ""))
    head = first.split()
    if len(head) != 2:
        raise FormatError(
            f"{path}:{number}: expected the numbers of folds and pairs, got {first!r}"
        )
    folds, per_fold = (whole(word, where=f"{path}:{number}") for word in head)
    left, right, same = [], [], []
    for number, line in rows:
        where, words = f"{path}:{number}", line.split()
        if len(words) == 3:
            words = [words[0], words[1], words[0], words[2]]
            same.append(True)
        elif len(words) == 4:
            same.append(False)
        else:
            raise FormatError(f"{where}: expected 'name n n' or 'name n name n', got {line[:80]!r}")
        left.append(_image(words[0], words[1], where=where))
        right.append(_image(words[2], words[3], where=where))
    expected = ([True] * per_fold + [False] * per_fold) * folds
    if same != expected or not expected:
        raise FormatError(
            f"{path}: announces {folds} folds of {per_fold} same and {per_fold} different pairs, "
            f"but the {len(same)} lines below are not that"
        )
    return FacePairs(
        left=np.array(left, dtype=np.str_),
        right=np.array(right, dtype=np.str_),
        same=np.array(same),
        fold=np.arange(len(same)) // (2 * per_fold),
    )


@dataclass(frozen=True, kw_only=True)
class LFW:
    """Mean accuracy over the folds, as published; also its std, EER and TAR over all pairs."""

    root: Path

    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "accuracy_std")

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        """`n_queries` counts the pairs, `n_gallery` the different second images.

        `per_query` has for 'accuracy' one value for each pair, for 'tar@…' one for each same pair.
        """
        requested = [(name, *split_name(name, known=METRICS, protocol="lfw")) for name in metrics]
        query, gallery = sides(query, gallery, direct=direct)
        pairs = load(self.root)
        left = query.vectors[query.rows_of(pairs.left)].astype(np.float64)
        right = gallery.vectors[gallery.rows_of(pairs.right)].astype(np.float64)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        scores = np.einsum("nd,nd->n", left, right) / lengths
        folds = kfold_accuracy(scores, pairs.same, pairs.fold)
        genuine, impostor = scores[pairs.same], scores[~pairs.same]
        values: dict[str, float] = {}
        per_query = {}
        for name, kind, far in requested:
            if kind == "accuracy":
                values[name] = folds.mean
                per_query[name] = folds.correct.astype(np.float64)
            elif kind == "accuracy_std":
                values[name] = folds.std
            elif kind == "eer":
                values[name] = eer(genuine, impostor)
            else:
                assert far is not None
                values[name] = tar_at_far(genuine, impostor, far=far)
                accepted = genuine > threshold_at_far(impostor, far=far)
                per_query[name] = accepted.astype(np.float64)
        return Outcome(
            metrics=values,
            per_query=per_query,
            n_queries=len(pairs.same),
            n_gallery=len(np.unique(pairs.right)),
        )


def _image(name: str, number: str, *, where: str) -> str:
    return image_id(f"{name}/{name}_{whole(number, where=where):04d}.jpg", where=where)
