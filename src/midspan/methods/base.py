"""The contract of methods: named, weighted terms that are added to the recognition loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from midspan.errors import ConfigError
from midspan.methods.old import OldArtifacts, OldClassifier
from midspan.spaces import Space


@dataclass(frozen=True, slots=True)
class Mixed:
    """Images that are a mixture of two: they have no label, but an old and a new vector.

    Example:
        >>> import torch
        >>> from torch.nn import functional as F
        >>> from midspan.methods import Mixed, TrustedMatching
        >>> old, labels, rows = torch.eye(8).repeat(5, 1), torch.arange(40) % 8, torch.arange(40)
        >>> compat = TrustedMatching.for_old(old, labels, dim=8)
        >>> first, second, half = rows[:8], rows[8:16].flip(0), torch.full((8,), 0.5)
        >>> both = F.normalize(old[first] + old[second])  # as if their pixels were mixed
        >>> mixed = Mixed(vectors=both, old=both, rows=first, others=second, share=half)
        >>> terms = compat(old, labels, old=old, rows=rows, mixed=mixed)
        >>> round(float(terms["pull"]), 3)  # the new vectors are where the old ones are
        0.0
    """

    vectors: Tensor  # (M, D) new, not normalised
    old: Tensor  # (M, D_old) unit old vectors of the same mixtures
    rows: Tensor  # (M,) row of the first image in the training set
    others: Tensor  # (M,) row of the second
    share: Tensor  # (M,) of the first


@dataclass(frozen=True, slots=True)
class Batch:
    """What a method may look at in one step.

    Example:
        >>> import torch
        >>> from midspan.methods import L2, Batch
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = L2.for_old(old, labels, dim=8)
        >>> unit = torch.nn.functional.normalize(old)
        >>> batch = Batch(vectors=old, logits=None, labels=labels, rows=None, old=unit)
        >>> [round(float(term), 3) for term in compat.terms(batch).values()]
        [0.0]
    """

    vectors: Tensor  # (B, D) new, as the encoder gives them: not normalised
    logits: Tensor | None  # (B, C) of the new classifier, without margin; None if it is sharded
    labels: Tensor  # (B,) classes of the new training set
    rows: Tensor | None  # (B,) rows of the new training set
    old: Tensor | None  # (B, D_old) unit old vectors of the same images, cached or of this view
    class_rows: Tensor | None = None  # (C, D) of the new classifier, not normalised
    epoch: int = 0  # from 0
    progress: float = 0.0  # share of all steps that are done, 0 ≤ p < 1
    mixed: Mixed | None = None


class Method(nn.Module):
    """Hyper-parameters in `__init__`, keyword-only; what it learns is saved with the run.

    Usable in any PyTorch loop:

        compat = AdvBCT.for_old(old_vectors, labels, dim=128)
        loss = recognition(z, y) + sum(compat(z, y, old=old_z).values())

    Example:
        >>> import torch
        >>> from torch.nn import functional as F
        >>> from midspan.methods import Batch, Method
        >>> class Cosine(Method):
        ...     uses_old = True
        ...     directions = ("direct",)
        ...
        ...     def terms(self, batch: Batch) -> dict[str, torch.Tensor]:
        ...         return {"apart": 1 - F.cosine_similarity(batch.vectors, batch.old).mean()}
        >>> old, labels = torch.eye(4), torch.arange(4)
        >>> compat = Cosine.for_old(old, labels, dim=4)
        >>> float(compat(-old, labels, old=old)["apart"])
        2.0
    """

    uses_old: ClassVar[bool]
    uses_classifier: bool = False  # needs logits or class weights; may depend on the settings
    uses_mixed: bool = False  # has a term on mixed images; may depend on the settings
    sgd_lr: float | None = None  # what it learns has its own SGD with this rate
    directions: tuple[str, ...]  # "direct", "backward", "forward"; may follow from the settings

    @classmethod
    def for_old(
        cls,
        old_vectors: Tensor,
        labels: Tensor,
        *,
        dim: int,
        classifier: OldClassifier | None = None,
        label_map: Tensor | None = None,
        **settings: Any,
    ) -> Self:
        """Ready to train with: measured on the old vectors of all training images.

        old_vectors: (N, D_old), by the old encoder. labels: (N,) classes 0 … C−1 as the loss has
        them. dim: of the new vectors. classifier, label_map: the old class weights and the old
        class of each new one (−1: none), if the method can use them. settings: the method's own.
        """
        if labels.ndim != 1 or labels.is_floating_point() or len(labels) != len(old_vectors):
            raise ConfigError(
                f"expected old vectors (N, D) and labels (N,) of whole numbers 0 … C-1, got "
                f"{tuple(old_vectors.shape)} and {labels.dtype}{tuple(labels.shape)}"
            )
        method = cls(**settings)
        classes = int(labels.max()) + 1
        old = OldArtifacts.measure(
            space=Space("old", old_vectors.shape[1]),
            vectors=old_vectors.detach().cpu(),
            labels=labels.long().cpu(),
            num_classes=classes,
            classifier=classifier,
            label_map=label_map,
        )
        method.prepare(old=old, num_classes=classes, dim=dim)
        return method.to(old_vectors.device)

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        """Called once, before the first step."""

    def forward(
        self,
        vectors: Tensor,
        labels: Tensor,
        *,
        old: Tensor | None = None,
        rows: Tensor | None = None,
        logits: Tensor | None = None,
        class_rows: Tensor | None = None,
        progress: float = 0.0,
        mixed: Mixed | None = None,
    ) -> dict[str, Tensor]:
        """The weighted terms by name; their sum is added to the recognition loss.

        vectors: (B, D) new. labels: (B,). old: (B, D_old) old vectors of the same images, best of
        the same view. rows: which training images these are, where the method keeps a bank or a
        number for each. logits, class_rows: of the new classifier. progress: share of training
        that is done, for schedules.
        """
        if old is not None:
            old = torch.nn.functional.normalize(old.detach())
        return self.terms(
            Batch(
                vectors=vectors,
                logits=logits,
                labels=labels,
                rows=rows,
                old=old,
                class_rows=class_rows,
                progress=progress,
                mixed=mixed,
            )
        )

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Terms by name, already weighted; the loop adds them to the recognition loss."""
        raise NotImplementedError

    def mix(self, vectors: Tensor, *, old: Tensor | None, labels: Tensor) -> Tensor:
        """The vectors (B, D) that the recognition loss sees in place of the encoder's own."""
        return vectors

    def fixed_rows(self) -> Tensor | None:
        """Class rows (C, D) that the recognition loss must keep; None: it learns its own."""
        return None

    def maps(self) -> Mapping[str, nn.Module]:
        """Learnt maps by direction, "backward" (new → old) and "forward" (old → new)."""
        return {}
