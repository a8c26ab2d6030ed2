"""Class weights for classes that the old classifier does not know: the old class centres."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.methods.old import OldArtifacts, OldClassifier


def with_synthesised_rows(old: OldArtifacts, *, scale: float) -> tuple[OldClassifier, Tensor]:
    """(old classifier with a row for every class that has images, new class → row or -1).

    Its own rows for the classes it knew, the old class centre for every other one. Centres get the
    median norm and bias of the trained rows, so that they compete on equal terms; `scale` is used
    if nothing but vectors is known.
    """
    unseen = (old.label_map < 0) & (old.counts > 0)
    known = old.classifier
    if known is None:
        return centre_rows(old, old.counts > 0, scale=scale)
    centres = F.normalize(old.centres[unseen])  # (C_unseen, D_old)
    target_of = old.label_map.clone()
    target_of[unseen] = len(known.rows) + torch.arange(len(centres))
    norm = known.rows.norm(dim=1).median()
    bias = known.bias
    if bias is not None:
        bias = torch.cat([bias, bias.median().expand(len(centres))])
    rows = torch.cat([known.rows, centres * norm])
    return (
        OldClassifier(rows=rows, bias=bias, scale=known.scale, normalised=known.normalised),
        target_of,
    )


def centre_rows(
    old: OldArtifacts, classes: Tensor, *, scale: float
) -> tuple[OldClassifier, Tensor]:
    """(classifier whose rows are the centres of these `classes` (C,), new class → row)."""
    rows = F.normalize(old.centres[classes])
    target_of = torch.full_like(old.label_map, -1)
    target_of[classes] = torch.arange(len(rows))
    return OldClassifier(rows=rows, bias=None, scale=scale, normalised=True), target_of
