"""The encoder: backbone, head and preprocessing, and the space its vectors live in."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.encoders.backbones.base import Backbone
from midspan.encoders.confidence_range import CONFIDENCE_RANGE
from midspan.encoders.devices import device_named
from midspan.encoders.embedding import (
    Ids,
    OnFailure,
    Source,
    embed_source,
    image_source,
    step_size,
    vector_source,
)
from midspan.encoders.heads import Head, average
from midspan.encoders.inputs import Embeddable, Layout
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import EncoderError
from midspan.evidence import Evidence
from midspan.spaces import Embeddings, FloatArray, Space, fingerprint

if TYPE_CHECKING:
    from midspan.encoders.text import TextTower


@dataclass(frozen=True, slots=True)
class Encoded:
    """The output of an encoder for a batch."""

    vectors: Tensor  # (B, D), not normalised as a whole
    confidence: Tensor | None  # (B, K) > 0, one for each sub-embedding


class Encoder(nn.Module):
    """Image (or feature vector) → vector in its space.

    With `sub_embeddings` K > 1 the vector is K slices of D/K dims, each of length 1, so that all
    weigh the same. `confident`: a second linear branch gives K confidences, exp of its output
    (URL, CVPR 2020; the output is kept in [−4, 6] so that exp cannot run away, and starts at ln 64,
    the scale of CosFace).

    Everything is float32: a lower precision is slower on most CPUs (see midspan.encoders.layout)
    and makes a vector depend on the batch it came in.

    Args:
        name: Of its space.
        backbone: Image to features.
        head: Features to vectors.
        preprocessing: Of its images; None for a backbone that takes vectors.
        dim: Of its vectors.
        normalise: Vectors have length 1.
        sub_embeddings: K slices of the vector.
        confident: It gives confidences too.

    Example:
        >>> import numpy as np
        >>> from PIL import Image
        >>> from midspan.encoders import build_encoder
        >>> encoder = build_encoder(backbone="small-cnn", dim=8, name="tiny", seed=0).eval()
        >>> photos = [Image.new("RGB", (40, 30), colour) for colour in ("red", "blue")]
        >>> vectors = encoder.embed(photos, ids=["red", "blue"], progress=False)
        >>> vectors.space == encoder.space, vectors.vectors.shape
        (True, (2, 8))
    """

    def __init__(
        self,
        *,
        name: str,
        backbone: Backbone,
        head: Head,
        preprocessing: Preprocessing | None,
        dim: int,
        normalise: bool = True,
        sub_embeddings: int = 1,
        confident: bool = False,
    ) -> None:
        super().__init__()
        if sub_embeddings < 1 or dim % sub_embeddings:
            raise EncoderError(
                f"encoder {name!r}: {dim} dims cannot be cut into {sub_embeddings} equal "
                "sub-embeddings; choose a divisor of dim"
            )
        if (head.features, head.dim) != (backbone.features, dim):
            raise EncoderError(
                f"encoder {name!r}: expected a head from {backbone.features} features to {dim} "
                f"dims, got {head.features} to {head.dim}"
            )
        self.name = name
        self.backbone = backbone
        self.head = head
        self.dim = dim
        self.normalise = normalise
        self.sub_embeddings = sub_embeddings
        self.confidence: nn.Linear | None = None
        if confident:
            self.confidence = nn.Linear(backbone.features, sub_embeddings)
            nn.init.zeros_(self.confidence.weight)
            nn.init.constant_(self.confidence.bias, math.log(64.0))
        self.compatible_with: tuple[str, ...] = ()  # fingerprints; set by training …
        self.evidence: tuple[Evidence, ...] = ()  # … with what its test found
        self.compatible_dims: int | None = None  # so many of the first dims; None: all
        self._preprocessing = preprocessing
        self._inputs = preprocessing.channels if preprocessing else backbone.config()["inputs"]
        self._known: tuple[list[object], str] | None = None
        self._text: TextTower | None = None  # loaded with the first text
        if backbone.channels_last:
            # Here, not in embed(): a resumed run must compute in the same order as one that is not
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) or (B, F) → (B, D), not normalised: losses do that themselves."""
        return self.from_features(self.features(x))

    def encode(self, x: Tensor) -> Encoded:
        """As forward, with the confidences, if it has them."""
        features = self.features(x)
        return Encoded(self.from_features(features), self.confidence_of(features))

    def features(self, x: Tensor) -> Tensor:
        """Output of the backbone: a map (B, F, h, w), or (B, F)."""
        if x.ndim != (4 if self.takes_images else 2) or x.shape[1] != self._inputs:
            expected = f"(B, {self._inputs}, H, W)" if self.takes_images else f"(B, {self._inputs})"
            raise EncoderError(
                f"encoder {self.name!r} takes {expected}, got {tuple(x.shape)}; "
                "`preprocessing.tensor` makes it from images"
            )
        if self.backbone.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        elif x.ndim == 4:
            x = x.contiguous()
        features: Tensor = self.backbone(x)
        return features

    def from_features(self, features: Tensor) -> Tensor:
        """What `forward` does after the backbone."""
        z: Tensor = self.head(features)
        if self.sub_embeddings == 1:
            return z
        slices = z.view(len(z), self.sub_embeddings, -1)  # (B, K, D/K)
        return F.normalize(slices, dim=2).flatten(1)

    def confidence_of(self, features: Tensor) -> Tensor | None:
        """(B, K) > 0, if it has them."""
        if self.confidence is None:
            return None
        raw: Tensor = self.confidence(average(features))
        return raw.clamp(*CONFIDENCE_RANGE).exp()

    # ---- what it is ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """One line; `encoder.backbone` prints its layers."""
        metric = "cosine" if self.normalise else "l2"
        box = self._preprocessing
        takes = f"{self._inputs}-d vectors"
        if box is not None:
            takes = f"images {box.height}×{box.width}×{box.channels}"
        weights = sum(one.numel() for one in self.parameters()) / 1e6
        return (
            f"Encoder({self.name!r}: {self.backbone.config()['name']}, {weights:.2f} M weights, "
            f"{takes} → {self.dim}-d {metric}, on {self.device})"
        )

    @property
    def takes_images(self) -> bool:
        """False for an encoder over precomputed vectors."""
        return self._preprocessing is not None

    @property
    def takes_text(self) -> bool:
        """Whether `embed_text` has a text tower in this encoder's space."""
        from midspan.encoders.text import why_no_text

        return why_no_text(self) is None

    @property
    def preprocessing(self) -> Preprocessing:
        if self._preprocessing is None:
            raise EncoderError(
                f"encoder {self.name!r} takes precomputed vectors, so it has no preprocessing; "
                "give it Embeddings instead of images"
            )
        return self._preprocessing

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def space(self) -> Space:
        """Name, dim, metric and fingerprint as of now; see `fingerprint`."""
        return Space(
            name=self.name,
            dim=self.dim,
            metric="cosine" if self.normalise else "l2",
            fingerprint=self.fingerprint(),
            compatible_with=self.compatible_with,
            evidence=self.evidence,
            compatible_dims=self.compatible_dims,
        )

    def architecture(self) -> dict[str, Any]:
        """All but the weights and the names: what config.json holds and the fingerprint covers."""
        return {
            "backbone": self.backbone.config(),
            "head": self._head_config(),
            "dim": self.dim,
            "normalise": self.normalise,
            "preprocessing": self._preprocessing.to_dict() if self._preprocessing else None,
        }

    def _head_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"name": self.head.name}
        if (
            self.sub_embeddings > 1 or self.confidence is not None
        ):  # plain encoders keep their fingerprint
            config["sub_embeddings"] = self.sub_embeddings
            config["confident"] = self.confidence is not None
        return config

    def fingerprint(self) -> str:
        """Digest of weights and architecture, not of the name.

        Computed each time in training mode. In eval mode it is remembered until a tensor changes,
        judged by torch's version counters and, since fused optimizers and `.data` escape those,
        by a few numbers of each tensor.
        """
        state = self.state_dict(keep_vars=True)
        key = None if self.training else _quick_look(state)
        if key is not None and self._known is not None and self._known[0] == key:
            return self._known[1]
        parts = [json.dumps(self.architecture(), sort_keys=True)]
        for name in sorted(state):
            tensor = state[name].detach().cpu().contiguous()
            parts += [name, str(tensor.dtype), str(tuple(tensor.shape))]
            parts.append(hashlib.sha256(tensor.view(-1).view(torch.uint8).numpy()).hexdigest())
        result = fingerprint(*parts)
        self._known = None if key is None else (key, result)
        return result

    # ---- what it does ----------------------------------------------------------------------------

    def embed(
        self,
        images: Embeddable,
        *,
        batch_size: int | None = None,
        device: str | None = None,
        progress: bool = True,
        ids: Ids | None = None,
        layout: Layout | None = None,
        on_failure: OnFailure | None = None,
    ) -> Embeddings:
        """Vectors of images, or of Embeddings if the encoder takes vectors.

        In eval mode, whatever mode it is in; vectors do not depend on the batch size beyond 1e-5.

        Args:
            images: An image that Pillow has opened, a path, a list of either, a folder (also .csv,
                .npz, .tar), an ImageSet, or a uint8 array. Labels and columns of a set come along.
            batch_size: None is 64 images on a CPU (fewer if they are large), else 256 items.
            device: Moves the encoder there first; None: where it is.
            progress: A progress bar.
            ids: Of the items; default: the names of files, or the numbers of rows.
            layout: Of an array: "HW", "HWC", "NHW" or "NHWC", with 1, 3 or 4 channels. Without it,
                three axes are one image, with 1, 3 or 4 as the last.
            on_failure: Receives the id and the reason of each image that cannot be decoded, which
                is then left out; without it such an image is an ImageError.

        Returns:
            Embeddings in this encoder's space.

        Raises:
            EncoderError: What was given is none of these, or has another shape.
            ImageError: An image cannot be decoded.
        """
        if device is not None:
            self.to(device_named(device))
        here = self.device
        was_training = self.training
        self.eval()
        try:
            return embed_source(
                self.source(images, ids=ids, layout=layout),
                space=self.space,
                normalise=self.normalise,
                prepare=lambda read: self.tensor(read, device=here),
                run=self._run,
                batch_size=step_size(batch_size, device=here.type, box=self._preprocessing),
                show=progress,
                on_failure=on_failure,
            )
        finally:
            self.train(was_training)

    def embed_text(self, texts: Sequence[str]) -> Embeddings:
        """Vectors of texts in the space of the images, by the text tower of a CLIP or SigLIP.

        Args:
            texts: Such as "a red bird".

        Returns:
            Embeddings in this encoder's space; the ids are the texts.

        Raises:
            EncoderError: The encoder takes no text, its text tower cannot be loaded, or a text is
                empty or too long.
        """
        from midspan.encoders.text import load_tower

        space = self.space
        known = self._text
        if known is None or known.space != space or known.device != self.device:
            known = self._text = load_tower(self)
        return known.embed(texts)

    def source(
        self, images: Embeddable, *, ids: Ids | None, layout: Layout | None = None
    ) -> Source:
        """The items in the form that this encoder reads."""
        if self._preprocessing is not None:
            return image_source(
                images, preprocessing=self._preprocessing, ids=ids, name=self.name, layout=layout
            )
        config = self.backbone.config()
        return vector_source(
            images, inputs=config["inputs"], origin=config["source"], ids=ids, name=self.name
        )

    def tensor(self, read: np.ndarray[Any, Any], *, device: torch.device) -> Tensor:
        """What was read of them, as input of the network."""
        if self._preprocessing is not None:
            return self._preprocessing.tensor(read, device=device)
        return torch.from_numpy(read).to(device)

    @torch.inference_mode()
    def _run(self, x: Tensor) -> FloatArray:
        vectors: FloatArray = self(x).cpu().numpy()
        return vectors

    def save(self, folder: str | Path) -> Path:
        """config.json, model.safetensors and README.md, as the Hugging Face hub expects them."""
        from midspan.encoders.files import save_encoder

        return save_encoder(self, folder)


def _quick_look(state: Mapping[str, Tensor]) -> list[object]:
    """Version counters, and up to 8 numbers of each tensor, in the order of its memory."""
    samples = []
    for tensor in state.values():
        count = min(tensor.numel(), 8)
        strided = tensor.detach().as_strided((count,), (max(1, tensor.numel() // 8),))
        samples.append(strided.double())
    numbers = torch.cat(samples).tolist() if samples else []
    return [[(t.data_ptr(), t._version) for t in state.values()], numbers]
