"""BCT: the frozen old classifier must also recognise the new vectors."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.base import Batch, Method
from midspan.methods.direct import same_dim
from midspan.methods.old import OldArtifacts, OldClassifier
from midspan.methods.old_rows import centre_rows, with_synthesised_rows


class BCT(Method):
    """Influence loss: weight · cross-entropy of the new vectors under the old classifier.

    Paper: arXiv:2003.11942. `classifier` says what is used as the old classifier:

    - "old": its own rows; only images of classes that it knew count;
    - "synthesised": its own rows for the classes it knew, the old class centre for every other
      class (for all classes if the old encoder exists only as vectors);
    - "centres": the old class centre for every class, known or not, as the released script does;
    - "distilled": its own rows, with the old vector's class probabilities as soft targets instead
      of the label; no class needs to be shared.

    Defaults: weight 3, ours (benchmarks/tune_methods.py; the released code of BCT and of AdvBCT's
    benchmark have 1, which leaves cross nearer to old self); scale 24, the logit scale
    of centres without an old classifier (that of the recognition loss in
    benchmarks/configs); temperature 1.
    Departs: where the old classifier is normalised, centres and rows are both unit vectors, so
    that synthesised classes compete on equal terms; otherwise centres get the median row norm.

    Args:
        weight: Of the term.
        classifier: What is used as the old classifier, see above.
        scale: Logit scale of centres without an old classifier.
        temperature: Of the soft targets of "distilled".

    Example:
        >>> import torch
        >>> from midspan.methods import BCT
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = BCT.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        ['influence']
    """

    uses_old: ClassVar[bool] = True
    directions: tuple[str, ...] = ("direct",)

    rows: Tensor
    bias: Tensor
    target_of: Tensor

    def __init__(
        self,
        *,
        weight: float = 3.0,
        classifier: Literal["old", "synthesised", "centres", "distilled"] = "synthesised",
        scale: float = 24.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.classifier = classifier
        self.scale = scale
        self.temperature = temperature

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        old = same_dim(old, dim=dim, method="bct")
        if self.classifier == "synthesised":
            frozen, target_of = with_synthesised_rows(old, scale=self.scale)
        elif self.classifier == "centres":
            frozen, target_of = centre_rows(old, old.counts > 0, scale=self.scale)
        elif old.classifier is None:
            raise ConfigError(
                f"bct with classifier = {self.classifier!r} needs the old class weights, but "
                "only old vectors are known; use classifier = 'synthesised'"
            )
        else:
            frozen, target_of = old.classifier, old.label_map
            if self.classifier == "old" and not (target_of >= 0).any():
                raise ConfigError(
                    "bct with classifier = 'old' needs classes that the old classifier knows, and "
                    "none of the training classes has the name of one of them; use classifier = "
                    "'synthesised', or data with the class names of the old run"
                )
        if self.classifier == "distilled" and not frozen.normalised:
            raise ConfigError(
                "bct with classifier = 'distilled' needs the old logits, and a plain softmax "
                "classifier needs raw vectors where only unit vectors are kept; use "
                "classifier = 'synthesised'"
            )
        self.scale, self._normalised = frozen.scale, frozen.normalised
        # Buffers: saved with the run and moved with the device, out of the optimiser's reach.
        self.register_buffer("rows", frozen.rows.detach().clone())
        zeros = torch.zeros(len(frozen.rows))
        self.register_buffer("bias", zeros if frozen.bias is None else frozen.bias.detach().clone())
        self.register_buffer("target_of", target_of.clone())  # (C,) new class → row, or -1

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        logits = self._old_logits(batch.vectors)  # (B, C_old)
        if self.classifier == "distilled":
            assert batch.old is not None
            with torch.no_grad():
                soft = (self._old_logits(batch.old) / self.temperature).softmax(1)
            losses = F.cross_entropy(logits / self.temperature, soft, reduction="none")
            return {"influence": self.weight * losses.mean()}
        targets = self.target_of[batch.labels]
        known = targets >= 0
        losses = F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")
        # A batch without any known class gives 0 that still has a gradient.
        return {"influence": self.weight * losses.sum() / known.sum().clamp_min(1)}

    def _old_logits(self, vectors: Tensor) -> Tensor:
        return OldClassifier(
            rows=self.rows, bias=self.bias, scale=self.scale, normalised=self._normalised
        ).logits(vectors)
