"""After training: a head learns the uncertainty of the vectors of a fixed encoder."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan import progress
from midspan.data import ImageSet
from midspan.encoders import Encoder
from midspan.encoders.uncertainty import UncertaintyHead
from midspan.errors import DataError
from midspan.labels import ClassNames
from midspan.spaces import Embeddings, IntArray
from midspan.training.batch_loader import BatchRandom
from midspan.training.inputs import loader
from midspan.training.samplers import Balanced
from midspan.training.variations import Variations


def fit_uncertainty(
    encoder: Encoder,
    items: ImageSet | Embeddings,
    *,
    steps: int = 3000,
    classes_per_batch: int = 64,
    images_per_class: int = 4,
    lr: float = 1e-3,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    variations: Variations | None = None,
    seed: int = 0,
    show_progress: bool = True,
) -> UncertaintyHead:
    """Minimise the mean negative mutual likelihood score of all pairs of one class in a batch.

    Defaults: the released code of PFE (arXiv:1904.09658), with lr × 0.1 after two thirds of the
    steps. variations: PFE has none, since its images differ in quality; where all
    are clean, add some, or the head never sees bad images. The encoder is not
    changed.
    """
    labels = _labels(items)
    sampler = Balanced(
        classes_per_batch=min(classes_per_batch, len(np.unique(labels))),
        images_per_class=images_per_class,
    )
    load, device = loader(encoder, items), encoder.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = UncertaintyHead.for_encoder(encoder).to(device).train()
    optimiser = torch.optim.SGD(
        head.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay
    )
    drop = torch.optim.lr_scheduler.MultiStepLR(optimiser, [max(1, 2 * steps // 3)])
    generator = torch.Generator().manual_seed(seed)
    was_training = encoder.training
    encoder.eval()
    step, epoch = 0, 0
    with progress.bar("uncertainty", total=steps, unit="steps", show=show_progress) as done:
        while step < steps:
            for rows in sampler.batches(labels, seed=seed, epoch=epoch)[: steps - step]:
                images = load(rows).to(device)
                if variations is not None:
                    images, _ = variations(images, rows, BatchRandom.whole(len(rows), generator))
                with torch.no_grad():
                    features = encoder.features(images)
                    vectors = F.normalize(encoder.from_features(features).float())
                target = torch.from_numpy(labels[rows]).to(device)
                loss = genuine_score(vectors, head(features), target).neg()
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                drop.step()
                step += 1
                done(1)
            epoch += 1
    encoder.train(was_training)
    return head.eval()


def genuine_score(vectors: Tensor, log_variance: Tensor, labels: Tensor) -> Tensor:
    """Mean mutual likelihood score of the pairs (i < j) of one class.

    −½ Σ_k ‖f_1k − f_2k‖² / (σ²_1k + σ²_2k) − (D/2K) Σ_k log(σ²_1k + σ²_2k), without constants.
    """
    first, second = torch.triu_indices(len(labels), len(labels), offset=1, device=labels.device)
    same = labels[first] == labels[second]
    first, second = first[same], second[same]
    count = log_variance.shape[1]
    slices = vectors.view(len(vectors), count, -1)  # (B, K, D/K)
    apart = (slices[first] - slices[second]).square().sum(2)  # (P, K)
    spread = torch.logaddexp(log_variance[first], log_variance[second])  # log of the sum
    width = slices.shape[2]
    return (-0.5 * apart * torch.exp(-spread) - 0.5 * width * spread).sum(1).mean()


def _labels(items: ImageSet | Embeddings) -> IntArray:
    if items.labels is None:
        raise DataError("these items have no labels; uncertainty is learnt from pairs of one class")
    dense = ClassNames.of(items.labels).encode(items.labels)
    if np.bincount(dense).max(initial=0) < 2:
        raise DataError("no class has two images; uncertainty is learnt from pairs of one class")
    return dense
