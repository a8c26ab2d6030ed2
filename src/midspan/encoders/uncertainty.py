"""The uncertainty of an encoder's vectors: one variance for each sub-embedding, learnt afterwards.

`midspan.training.uncertainty` fits the head; here it is saved next to the encoder and used.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.atomic_write import atomic_write
from midspan.encoders.embedding import Ids, OnFailure, embed_source, step_size
from midspan.encoders.encoder import Encoder
from midspan.encoders.files import find_folder
from midspan.encoders.inputs import Embeddable
from midspan.encoders.load import UNCERTAINTY
from midspan.errors import EncoderError, FormatError
from midspan.spaces import Column, Embeddings, FloatArray

VARIANCE, CONFIDENCE = "variance", "confidence"  # columns of embeddings, (N, K)


class UncertaintyHead(nn.Module):
    """Last feature map → FC(D), BN, ReLU → FC(K), BN without affine → one gain and shift → log σ².

    PFE (arXiv:1904.09658), with K values in place of D as in URL. Its gain starts at 1e-4
    and its shift at −7, which is ln(1/2D) for its 512 dims of a unit vector: that is where ours
    starts for other dims. log σ² = log(1e-6 + exp(·)) as in its code, so σ² stays above 1e-6.
    """

    def __init__(self, *, inputs: int, dim: int, sub_embeddings: int) -> None:
        super().__init__()
        self.inputs, self.dim, self.sub_embeddings = inputs, dim, sub_embeddings
        self.hidden = nn.Linear(inputs, dim, bias=False)
        self.hidden_bn = nn.BatchNorm1d(dim)
        self.out = nn.Linear(dim, sub_embeddings, bias=False)
        self.out_bn = nn.BatchNorm1d(sub_embeddings, affine=False)
        self.gain = nn.Parameter(torch.tensor(1e-4))
        self.shift = nn.Parameter(torch.tensor(-math.log(2.0 * dim)))

    @classmethod
    def for_encoder(cls, encoder: Encoder) -> UncertaintyHead:
        preprocessing = encoder.preprocessing if encoder.takes_images else None
        if preprocessing is None:
            inputs = encoder.backbone.features
        else:
            blank = torch.zeros(
                1,
                preprocessing.channels,
                preprocessing.height,
                preprocessing.width,
                device=encoder.device,
            )
            was_training = encoder.training
            encoder.eval()
            with torch.no_grad():
                inputs = encoder.features(blank).numel()
            encoder.train(was_training)
        return cls(inputs=inputs, dim=encoder.dim, sub_embeddings=encoder.sub_embeddings)

    def forward(self, features: Tensor) -> Tensor:
        """(B, F, h, w) or (B, F) → log σ² (B, K)."""
        hidden = F.relu(self.hidden_bn(self.hidden(features.flatten(1))))
        raw: Tensor = self.gain * self.out_bn(self.out(hidden)) + self.shift
        return torch.log(1e-6 + raw.exp())

    def save(self, encoder: Encoder, folder: str | Path) -> Path:
        """Next to the encoder that it was fitted for, with its fingerprint."""
        path = find_folder(folder) / UNCERTAINTY
        facts = {"inputs": self.inputs, "dim": self.dim, "sub_embeddings": self.sub_embeddings}
        weights = {n: t.detach().cpu().contiguous() for n, t in self.state_dict().items()}
        with atomic_write(path) as temporary:
            save_file(
                weights,
                temporary,
                metadata={"facts": json.dumps(facts), "encoder": encoder.fingerprint()},
            )
        return path


def find_uncertainty(encoder: Encoder, folder: str | Path) -> UncertaintyHead | None:
    """As `load_uncertainty`; None if no head was ever fitted for it."""
    if not (find_folder(folder) / UNCERTAINTY).is_file():
        return None
    return load_uncertainty(encoder, folder)


def load_uncertainty(encoder: Encoder, folder: str | Path) -> UncertaintyHead:
    """The head of this encoder, from its folder or its run folder."""
    path = find_folder(folder) / UNCERTAINTY
    if not path.is_file():
        raise EncoderError(
            f"{path}: no such file, so the variances of this encoder are not known; fit them with "
            "midspan.training.uncertainty.fit_uncertainty"
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            facts, origin = json.loads(metadata["facts"]), metadata["encoder"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head = UncertaintyHead(**facts)
        head.load_state_dict(tensors)
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"{path}: not a readable uncertainty head ({error})") from error
    except RuntimeError as error:
        raise FormatError(f"{path}: its tensors do not fit its settings ({error})") from error
    if origin != encoder.fingerprint():
        raise EncoderError(
            f"{path} was fitted for the space {origin[:17]}, but the encoder makes "
            f"{encoder.fingerprint()[:17]}; fit it again for this one"
        )
    return head.eval()


def embed_judged(
    encoder: Encoder,
    images: Embeddable,
    *,
    uncertainty: UncertaintyHead | None = None,
    batch_size: int | None = None,
    progress: bool = True,
    ids: Ids | None = None,
    on_failure: OnFailure | None = None,
) -> Embeddings:
    """As `encoder.embed`, with the uncertainty of each vector as columns.

    confidence (N, K) of a confident encoder, variance (N, K) = σ² if a head is given. The variance
    is on the scale of the stored vectors, which have length 1 as a whole.
    """
    if encoder.confidence is None and uncertainty is None:
        raise EncoderError(
            f"encoder {encoder.name!r} has no confidences, and no uncertainty head is given: "
            "there is no uncertainty to add; use encoder.embed"
        )
    judged: dict[str, list[FloatArray]] = {}

    @torch.inference_mode()
    def run(x: Tensor) -> FloatArray:
        features = encoder.features(x)
        vectors: FloatArray = encoder.from_features(features).cpu().numpy()
        confidence = encoder.confidence_of(features)
        if confidence is not None:
            judged.setdefault(CONFIDENCE, []).append(confidence.cpu().numpy())
        if uncertainty is not None:
            judged.setdefault(VARIANCE, []).append(uncertainty(features).exp().cpu().numpy())
        return vectors

    was_training = encoder.training
    encoder.eval()
    if uncertainty is not None:
        uncertainty.eval()
    try:
        device = encoder.device
        embeddings = embed_source(
            encoder.source(images, ids=ids),
            space=encoder.space,
            normalise=encoder.normalise,
            prepare=lambda read: encoder.tensor(read, device=device),
            run=run,
            batch_size=step_size(
                batch_size,
                device=device.type,
                box=encoder.preprocessing if encoder.takes_images else None,
            ),
            show=progress,
            on_failure=on_failure,
        )
    finally:
        encoder.train(was_training)
    columns: dict[str, Column] = {name: np.concatenate(parts) for name, parts in judged.items()}
    return embeddings.with_columns(columns)
