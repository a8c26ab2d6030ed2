"""A compatible encoder as a LightningModule (`pip install lightning`)."""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn

from midspan.losses import CosFace
from midspan.methods import AdvBCT


class Compatible(lightning.LightningModule):
    def __init__(
        self, encoder: nn.Module, old_encoder: nn.Module, old_vectors: Tensor, labels: Tensor
    ) -> None:
        super().__init__()
        dim = old_vectors.shape[1]
        self.encoder, self.old_encoder = encoder, old_encoder.requires_grad_(False)
        self.recognition = CosFace.for_classes(int(labels.max()) + 1, dim=dim, scale=16.0)
        self.compat = AdvBCT.for_old(old_vectors, labels, dim=dim)
        self.steps_done, self.automatic_optimization = 0, False

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        images, y = batch
        z, progress = (
            self.encoder(images),
            self.steps_done / self.trainer.estimated_stepping_batches,
        )
        terms = self.compat(z, y, old=self.old_encoder(images), progress=min(progress, 1.0))
        terms["recognition"] = self.recognition.value(z, y)
        self.log_dict({name: value.item() for name, value in terms.items()})
        for optimiser in self.optimizers():
            optimiser.zero_grad()
        self.manual_backward(sum(terms.values()))
        for optimiser in self.optimizers():
            optimiser.step()
        self.steps_done += 1

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        learnt = nn.ModuleList([self.encoder, self.recognition]).parameters()
        return [
            torch.optim.AdamW(learnt, lr=3e-3),
            torch.optim.SGD(self.compat.parameters(), lr=0.1, momentum=0.9),
        ]
