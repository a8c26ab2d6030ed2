"""Any vision model of transformers by hub name, local folder or config: `hf:facebook/dinov2-small`.

Code that comes with a checkpoint is never run (no trust_remote_code).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from midspan.encoders.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone, Size, sides
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import ConfigError, EncoderError, MissingDependency

Output = Literal["pooled", "mean", "cls", "map", "projected"]

# towers of images with a projection into the space that text is in: their class with it
_PROJECTING = {"clip_vision_model": "CLIPVisionModelWithProjection"}

_NOT_ARCHITECTURE = (
    *("transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype"),
    *("id2label", "label2id"),
)


class HuggingFace(Backbone):
    """AutoModel behind one forward; of an image-text model (CLIP, SigLIP) the image half.

    model: hub name or folder with weights; or config: a transformers config as a dict (with its
    "model_type"), random weights. revision: branch, tag or commit on the hub.
    output: "pooled" (the model's pooler), "mean" or "cls" of the tokens, "map" (feature map of a
    convolutional network), "projected" (CLIP's, into the space that it shares with text).
    Default: "pooled" where the checkpoint has trained the pooler, else "cls" for
    a network with a class token, else "mean".
    Departs: resizing is ours (bilinear, no margin round the crop), not the checkpoint's.
    """

    def __init__(
        self,
        *,
        model: str | None = None,
        config: dict[str, Any] | None = None,
        revision: str | None = None,
        output: Output | None = None,
    ) -> None:
        super().__init__()
        if (model is None) == (config is None):
            raise ConfigError("hf: expected either a model name or a config")
        transformers = _import_transformers()
        untrained: set[str] = set()
        self.source: tuple[str, str | None] | None = None  # model and revision …
        self.text_output: Output | None = None  # … of a text tower, in the space of this output
        self._preprocessor: Mapping[str, Any] = {}
        if model is not None:
            self.network, untrained, self.text_output = _pretrained(
                transformers, model, revision=revision, output=output
            )
            where = Path(model)
            self.source = (str(where.resolve()) if where.is_dir() else model, revision)
            self._preprocessor = _preprocessor_config(model, revision=revision)
            whole = json.loads(json.dumps(self.network.config.to_dict()))
            self._config = {k: v for k, v in whole.items() if k not in _NOT_ARCHITECTURE}
        else:
            assert config is not None
            self.network = _from_config(transformers, config, output=output)
            self._config = dict(config)  # as it came: a later transformers may add its own keys
        self.network.float()
        self._probe(output, untrained=untrained, title=model or str(self._config["model_type"]))

    def _probe(self, output: Output | None, *, untrained: set[str], title: str) -> None:
        """Run one black image: what comes out, and how wide is it?"""
        pooler_untrained = any("pool" in name for name in untrained)
        if any("pool" not in name for name in untrained):
            raise EncoderError(
                f"hf:{title}: the checkpoint has no weights for {sorted(untrained)[:3]} …; "
                "they would be random"
            )
        size = self.preprocessing(size=None)
        image = torch.zeros(1, size.channels, size.height, size.width)
        self.network.eval()
        try:
            with torch.no_grad():
                result = self.network(pixel_values=image)
            last = result.last_hidden_state  # (1, T, F) tokens or (1, F, h, w)
        except Exception as error:  # a text or audio model
            raise EncoderError(f"hf:{title} does not take images ({error})") from error
        self.channels_last = last.ndim == 4
        pooler = getattr(result, "pooler_output", None)
        able: list[Output] = []
        if pooler is not None and not pooler_untrained:
            able.append("pooled")
        if getattr(result, "image_embeds", None) is not None:
            able.append("projected")
        if last.ndim == 3:
            able += ["cls", "mean"] if self._has_class_token() else ["mean"]
        else:
            able.append("map")
        if output is not None and output not in able:
            raise ConfigError(f"hf:{title} cannot give output {output!r}; it can give {able}")
        output = output or able[0]
        self.output = output
        with torch.no_grad():
            self.features = int(self(image).shape[1])
        self.network.train()

    def _has_class_token(self) -> bool:
        names = [name for name, _ in self.network.named_parameters()]
        return any("cls_token" in name or "class_embedding" in name for name in names)

    def forward(self, x: Tensor) -> Tensor:
        result = self.network(pixel_values=x)
        features: Tensor = result.last_hidden_state
        if self.output == "pooled":
            features = result.pooler_output.flatten(1)  # (B, F, 1, 1) of a ResNet, (B, F) of a ViT
        elif self.output == "projected":
            features = result.image_embeds
        elif self.output == "cls":
            features = features[:, 0]
        elif self.output == "mean":
            features = features.mean(dim=1)
        return features

    def config(self) -> dict[str, Any]:
        return {"name": "hf", "config": self._config, "output": self.output}

    def preprocessing(self, *, size: Size | None) -> Preprocessing:
        given = self._preprocessor
        height, width = sides(size) if size else self._size()
        channels = int(self._config.get("num_channels", 3))
        mean = tuple(given.get("image_mean") or IMAGENET_MEAN)[:channels]
        std = tuple(given.get("image_std") or IMAGENET_STD)[:channels]
        if not given.get("do_normalize", True):
            mean, std = (0.0,) * channels, (1.0,) * channels
        return Preprocessing(
            height=height,
            width=width,
            channels=channels,  # type: ignore[arg-type]  # checked there
            fit="crop" if given.get("do_center_crop") or "crop_size" in given else "squash",
            mean=mean,
            std=std,
        )

    def _size(self) -> tuple[int, int]:
        """(height, width): crop size, resize size, or what the config says; 224 px otherwise."""
        for edge in (self._preprocessor.get("crop_size"), self._preprocessor.get("size")):
            if isinstance(edge, int):
                return edge, edge
            if isinstance(edge, dict) and "height" in edge:
                return int(edge["height"]), int(edge["width"])
            if isinstance(edge, dict) and "shortest_edge" in edge:
                return int(edge["shortest_edge"]), int(edge["shortest_edge"])
        side = self._config.get("image_size", 224)
        height, width = side if isinstance(side, list | tuple) else (side, side)
        return int(height), int(width)


def _pretrained(
    transformers: Any, model: str, *, revision: str | None, output: Output | None
) -> tuple[Any, set[str], Output | None]:
    """(the network, names of the parameters that the checkpoint does not have, text's output)."""
    try:
        with _quiet(transformers):
            whole = transformers.AutoConfig.from_pretrained(model, revision=revision)
            config = getattr(whole, "vision_config", whole)
            if output == "projected" and hasattr(whole, "projection_dim"):
                config.projection_dim = whole.projection_dim
            kind = _kind(transformers, config, output)
            network, report = kind.from_pretrained(
                model,
                config=config,
                revision=revision,
                output_loading_info=True,
                use_safetensors=True,
            )
    except Exception as error:  # not found, no network, no safetensors, a custom architecture
        raise EncoderError(f"hf:{model} cannot be loaded ({_first_line(error)})") from error
    untrained = set(report["missing_keys"]) | {str(k) for k in report["mismatched_keys"]}
    text: Output | None = None
    if config is not whole and getattr(whole, "text_config", None) is not None:
        projects = config.model_type in _PROJECTING
        text = "projected" if projects else "pooled" if "siglip" in whole.model_type else None
    return network, untrained, text


def _kind(transformers: Any, config: Any, output: Output | None) -> Any:
    """The class that gives this output; AutoModel leaves the projection out."""
    if output != "projected" or config.model_type not in _PROJECTING:
        return transformers.AutoModel
    return getattr(transformers, _PROJECTING[config.model_type])


def _from_config(transformers: Any, config: Mapping[str, Any], *, output: Output | None) -> Any:
    settings = dict(config)
    kind = settings.pop("model_type", None)
    try:
        model_config = transformers.AutoConfig.for_model(kind, **settings)
        kind_of_model = _kind(transformers, model_config, output)
        if kind_of_model is not transformers.AutoModel:
            return kind_of_model(model_config)
        return transformers.AutoModel.from_config(model_config)
    except Exception as error:
        raise ConfigError(
            f"transformers builds no model of type {kind!r} from this config ({_first_line(error)})"
        ) from error


def _preprocessor_config(model: str, *, revision: str | None) -> Mapping[str, Any]:
    """preprocessor_config.json, read as it is: the classes behind it may need torchvision."""
    path = _find_file(model, "preprocessor_config.json", revision=revision)
    if path is None:
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        rescale = float(config.get("rescale_factor", 1 / 255))
    except (ValueError, TypeError, AttributeError) as error:
        raise EncoderError(f"hf:{model}: preprocessor_config.json is broken ({error})") from error
    if abs(rescale - 1 / 255) > 1e-6:
        raise EncoderError(
            f"hf:{model}: preprocessor_config.json scales pixels by {rescale}, not 1/255; "
            "that is not supported"
        )
    return dict(config)


def _find_file(model: str, name: str, *, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, name, revision=revision))
    except LocalEntryNotFoundError as error:  # to guess its mean and std would be another space
        raise EncoderError(
            f"hf:{model}: {name} is not in the cache and the hub does not answer"
        ) from error
    except EntryNotFoundError:
        return None


def _import_transformers() -> Any:
    """transformers, even next to a torchvision that was built for another torch and cannot load.

    transformers checks only whether it is installed, and then fails on it; so report it missing.
    """
    blocked = False
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        pass
    except Exception:
        sys.modules["torchvision"] = None  # type: ignore[assignment]
        blocked = True
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "transformers", extra="hub", required_for="an hf: backbone"
        ) from error
    if blocked:  # it may have asked before
        transformers.utils.is_torchvision_available.cache_clear()
    return transformers


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bars and load reports from transformers: what matters becomes our own error."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
