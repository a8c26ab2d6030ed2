"""Text queries: the text tower of a model like CLIP, next to the encoder of its image tower.

Text and images share a space only where the encoder gives the same features that the model
compares with text. The tower is loaded when the first text comes, and tried on an image first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

from midspan.encoders.backbones.huggingface import (
    HuggingFace,
    _find_file,
    _first_line,
    _import_transformers,
    _quiet,
)
from midspan.errors import EncoderError
from midspan.spaces import Embeddings, Space

if TYPE_CHECKING:
    from midspan.encoders.encoder import Encoder

# one of them holds the vocabulary; without it transformers makes an empty tokenizer in silence
_VOCABULARY = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")
APART = 1e-5  # 1 - cosine of the encoder's and the model's own features of an image, at most


class TextTower:
    """Texts → vectors in the space of the encoder that it was loaded for."""

    def __init__(
        self, model: Any, tokenizer: Any, *, space: Space, normalise: bool, device: torch.device
    ) -> None:
        self.space = space
        self.device = device
        self._normalise = normalise
        self._model, self._tokenizer = model, tokenizer
        self._longest = int(model.config.text_config.max_position_embeddings)
        # SigLIP is trained on texts padded to one length
        self._padded = str(model.config.model_type).startswith("siglip")

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> Embeddings:
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise EncoderError("expected texts such as 'a red bird', got none, or an empty one")
        counts = [len(row) for row in self._tokenizer(texts)["input_ids"]]
        if max(counts) > self._longest:
            raise EncoderError(
                f"encoder {self.space.name!r} reads texts of {self._longest} tokens at most, got "
                f"one of {max(counts)}; shorten it"
            )
        padding: dict[str, Any] = {"padding": True}
        if self._padded:
            padding = {"padding": "max_length", "max_length": self._longest}
        tokens = self._tokenizer(texts, return_tensors="pt", **padding)
        given = {"input_ids": tokens["input_ids"].to(self.device)}
        if not self._padded and "attention_mask" in tokens:
            given["attention_mask"] = tokens["attention_mask"].to(self.device)
        vectors = _features(self._model.get_text_features(**given))
        if self._normalise:
            vectors = F.normalize(vectors, dim=1)
        names = texts if len(set(texts)) == len(texts) else [str(n) for n in range(len(texts))]
        return Embeddings(np.array(names), vectors.cpu().numpy(), self.space)


def why_no_text(encoder: Encoder) -> str | None:
    """Why this encoder takes no text; None if its model has a text tower in the same space."""
    takes = f"encoder {encoder.name!r} takes {'images' if encoder.takes_images else 'vectors'}"
    takes += ", no text"
    backbone = encoder.backbone
    if not isinstance(backbone, HuggingFace):
        return f"{takes}; a model of transformers with a text tower does: hf:<CLIP or SigLIP>"
    if backbone.text_output is None:
        return (
            f"{takes}; its model has no text tower, or the encoder was saved, which keeps the "
            "image tower alone: give the model of transformers itself, hf:<model>"
        )
    if encoder.head.name != "none" or encoder.sub_embeddings != 1:
        return (
            f"{takes}: its head {encoder.head.name!r} leads out of the space that the model's text "
            "is in; take the head 'none'"
        )
    if backbone.output != backbone.text_output:
        return (
            f"{takes}: its vectors are the model's {backbone.output!r} features, and text is in "
            f"the space of the {backbone.text_output!r} ones; embed the images with "
            f"hf:<model>?output={backbone.text_output}"
        )
    assert backbone.source is not None
    if Path(backbone.source[0]).is_dir() and not _has_tokenizer(*backbone.source):
        return _no_tokenizer(encoder)
    return None


def _has_tokenizer(where: str, revision: str | None) -> bool:
    return any(_find_file(where, name, revision=revision) for name in _VOCABULARY)


def _no_tokenizer(encoder: Encoder) -> str:
    files = ", ".join(_VOCABULARY)
    return (
        f"encoder {encoder.name!r} takes images, no text: no tokenizer next to its model ({files})"
    )


def load_tower(encoder: Encoder) -> TextTower:
    """From the folder, or the name on the hub, that the encoder came from; nothing is unpickled."""
    if (why := why_no_text(encoder)) is not None:
        raise EncoderError(why)
    backbone = encoder.backbone
    assert isinstance(backbone, HuggingFace)
    assert backbone.source is not None
    where, revision = backbone.source
    if Path(where).is_absolute() and not Path(where).is_dir():  # no name on the hub
        raise EncoderError(
            f"encoder {encoder.name!r}: the folder of its model, where the text tower is, is gone"
        )
    settings: dict[str, Any] = {"revision": revision, "local_files_only": Path(where).is_dir()}
    if not _has_tokenizer(where, revision):
        raise EncoderError(_no_tokenizer(encoder))
    transformers = _import_transformers()
    try:
        with _quiet(transformers):
            model, report = transformers.AutoModel.from_pretrained(
                where, use_safetensors=True, output_loading_info=True, **settings
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, **settings)
    except Exception as error:  # gone, no tokenizer, a library that it needs
        reason = _first_line(error).replace(where, encoder.name)
        raise EncoderError(
            f"encoder {encoder.name!r}: its text tower or tokenizer cannot be loaded ({reason}); "
            "both must be in the folder of the model"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise EncoderError(
            f"encoder {encoder.name!r}: the checkpoint has no weights for {missing[:3]} …; "
            "they would be random"
        )
    model = model.float().eval().to(encoder.device)
    _check_same_space(encoder, model)
    del model.vision_model  # the encoder has it
    return TextTower(
        model,
        tokenizer,
        space=encoder.space,
        normalise=encoder.normalise,
        device=encoder.device,
    )


def _check_same_space(encoder: Encoder, model: Any) -> None:
    """The encoder's features of an image must be those that the model compares with text."""
    box = encoder.preprocessing
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, box.channels, box.height, box.width, generator=generator)
    image = image.to(encoder.device)
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode():
            ours, theirs = encoder(image), _features(model.get_image_features(pixel_values=image))
            apart = 1 - float(F.cosine_similarity(ours.double(), theirs.double()))
    finally:
        encoder.train(was_training)
    if not apart <= APART:
        raise EncoderError(
            f"encoder {encoder.name!r} takes images, no text: it was trained further, or its model "
            f"was replaced: its features are {apart:.1e} from those that the text belongs to"
        )


def _features(result: Any) -> torch.Tensor:
    """A tensor of transformers 4, an output with a pooled one of transformers 5."""
    features: torch.Tensor = result if isinstance(result, torch.Tensor) else result.pooler_output
    return features
