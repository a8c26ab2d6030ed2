"""A compatible encoder with a loss and a miner of pytorch-metric-learning."""

from __future__ import annotations

import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn

from midspan.methods import HotRefresh


def train(
    encoder: nn.Module, old_encoder: nn.Module, images: Tensor, labels: Tensor, *, epochs: int = 5
) -> list[float]:
    """Returns the loss of each epoch."""
    with torch.no_grad():
        old_vectors = old_encoder(images)
    recognition, miner = losses.MultiSimilarityLoss(), miners.MultiSimilarityMiner()
    compat = HotRefresh.for_old(old_vectors, labels, dim=old_vectors.shape[1])
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
    found = []
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            z, y = encoder(images[rows]), labels[rows]
            loss = recognition(z, y, miner(z, y))
            loss = loss + sum(compat(z, y, old=old_vectors[rows]).values())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        found.append(loss.item())
    return found
