"""One door to every kind of encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from midspan.encoders.backbones import BACKBONES
from midspan.errors import EncoderError, MissingDependency

if TYPE_CHECKING:
    from midspan.encoders.encoder import Encoder
    from midspan.encoders.onnx import OnnxEncoder

# backbones that come with trained weights, as they are written here
_PRETRAINED = tuple(name for name in BACKBONES if name.startswith("efficientnet-"))


def load_encoder(where: str | Path, *, device: str | None = None) -> Encoder | OnnxEncoder:
    """Load an encoder, ready to embed.

    where: an encoder or run folder, a `.onnx` file, "hf-hub:org/repo[@revision]" (an encoder of
    ours on the hub), "hf:org/model" (any vision model of transformers), "timm:resnet50",
    "efficientnet-lite0". device: default CUDA if there is one, else the CPU.
    """
    text, path = str(where), Path(where)
    if path.suffix == ".onnx" and not path.is_dir():
        from midspan.encoders.onnx import OnnxEncoder

        return OnnxEncoder(path, device=device)
    try:
        encoder = _load_torch(text, path)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependency("torch", extra="train", wanted_for=f"encoder {text!r}") from error
    import torch

    encoder.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    encoder.eval()
    return encoder


def _load_torch(text: str, path: Path) -> Encoder:
    scheme = text.partition(":")[0]
    if path.exists():
        from midspan.encoders.files import read_encoder

        return read_encoder(path)
    if scheme == "hf-hub":
        from midspan.encoders.files import read_encoder
        from midspan.encoders.hub import pull_encoder

        return read_encoder(pull_encoder(text.removeprefix("hf-hub:")))
    if scheme in ("hf", "timm") or text in _PRETRAINED:
        from midspan.encoders.build import build_encoder

        return build_encoder(backbone=text, head="none")
    raise EncoderError(
        f"no encoder at {text!r}: there is no such folder or file, and it is none of "
        f"hf-hub:<org/repo>, hf:<model>, timm:<model>, {', '.join(_PRETRAINED)}"
    )
