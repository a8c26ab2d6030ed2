"""A compatible encoder in a plain PyTorch loop: 25 lines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from midspan.losses import CosFace
from midspan.methods import TrustedMatching


def train(
    encoder: nn.Module, old_encoder: nn.Module, images: Tensor, labels: Tensor, *, epochs: int = 5
) -> list[float]:
    """Returns the loss of each epoch."""
    with torch.no_grad():
        old_vectors = old_encoder(images)
    dim = encoder(images[:2]).shape[1]
    recognition = CosFace.for_classes(int(labels.max()) + 1, dim=dim, scale=16.0, margin=0.1)
    compat = TrustedMatching.for_old(old_vectors, labels, dim=dim)
    modules = nn.ModuleList([encoder, recognition, compat])
    optimiser = torch.optim.AdamW(modules.parameters(), lr=3e-3)
    losses = []
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            view = images[rows] + 0.05 * torch.randn_like(images[rows])  # any augmentation
            with torch.no_grad():
                old = old_encoder(view)  # the old encoder sees the same view
            z, y = encoder(view), labels[rows]
            loss = recognition.value(z, y) + sum(compat(z, y, old=old, rows=rows).values())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    return losses
