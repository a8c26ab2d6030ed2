"""An encoder in a .onnx file. Embedding with it needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from midspan.encoders.embedding import (
    Ids,
    OnFailure,
    Source,
    embed_source,
    image_source,
    step_size,
    vector_source,
)
from midspan.encoders.inputs import Embeddable, Layout
from midspan.encoders.preprocessing import Preprocessing
from midspan.encoders.runtimes.parallel import ParallelRun, fastest_run, worker_count
from midspan.encoders.runtimes.session import import_extra, open_session
from midspan.errors import EncoderError, FormatError
from midspan.spaces import Embeddings, FloatArray, Space, fingerprint

if TYPE_CHECKING:
    from midspan.encoders.encoder import Encoder

NOTE = "midspan"  # our key in the file's metadata


class OnnxEncoder:
    """An encoder in a .onnx file: of our export, or any other with images in and vectors out.

    Args:
        path: The file.
        preprocessing: Only for files that were not exported by midspan; their space then has a
            fingerprint of the file's bytes and these settings.
        normalise: For such files: vectors get length 1.
        name: For such files: of the space.
        device: "cpu" or "cuda"; default CUDA if ONNX Runtime has it.
        runtime: "onnx" or "openvino".

    Raises:
        EncoderError: The file is no such graph.
        MissingDependency: The runtime is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> import onnx
        >>> from onnx import helper
        >>> from PIL import Image
        >>> from midspan.encoders import OnnxEncoder, Preprocessing
        >>> ends = [
        ...     helper.make_tensor_value_info("images", 1, ["N", 3, 4, 4]),
        ...     helper.make_tensor_value_info("vectors", 1, ["N", 3]),
        ... ]
        >>> nodes = [
        ...     helper.make_node("GlobalAveragePool", ["images"], ["mean"]),
        ...     helper.make_node("Flatten", ["mean"], ["vectors"]),
        ... ]
        >>> graph = helper.make_graph(nodes, "colour", ends[:1], ends[1:])
        >>> model = helper.make_model(
        ...     graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
        ... )
        >>> box = Preprocessing(height=4, width=4, channels=3, mean=(0, 0, 0), std=(1, 1, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "colour.onnx")
        ...     onnx.save(model, path)
        ...     encoder = OnnxEncoder(path, preprocessing=box, name="colour", device="cpu")
        ...     red = encoder.embed([Image.new("RGB", (9, 9), "red")], progress=False)
        >>> red.vectors.tolist()
        [[1.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        path: str | Path,
        *,
        preprocessing: Preprocessing | None = None,
        normalise: bool = True,
        name: str | None = None,
        device: str | None = None,
        runtime: str = "onnx",
    ) -> None:
        self._path = path = Path(path)
        self._workers: ParallelRun | None = None
        self.any_runtime = False  # a long job may use whichever runtime is faster
        self.load_whole: Callable[[], Encoder] | None = None  # its model: text needs all of it
        self._whole: Encoder | None = None
        self.session = open_session(path, device=device, runtime=runtime)
        self.device = self.session.device
        note = self.session.metadata.get(NOTE)
        self._preprocessing = preprocessing
        self._origin = ""
        self.normalise = normalise
        if note is not None and preprocessing is None:
            self._read_note(note, path=path)
        else:
            self._trust_caller(path, name=name)

    def __repr__(self) -> str:
        return f"OnnxEncoder({str(self._path)!r}: {self.space}, on {self.device})"

    @property
    def takes_images(self) -> bool:
        return self._preprocessing is not None

    @property
    def takes_text(self) -> bool:
        """A graph has only the image tower; text uses the model it was exported from."""
        whole = self._with_text()
        return whole is not None and whole.takes_text

    def embed_text(self, texts: Sequence[str]) -> Embeddings:
        """As Encoder.embed_text, with torch."""
        whole = self._with_text()
        if whole is None:
            raise EncoderError(
                f"encoder {self.name!r} takes images, no text; a graph has the image tower alone: "
                "give the model of transformers itself, hf:<model>"
            )
        return whole.embed_text(texts)

    def _with_text(self) -> Encoder | None:
        if self._whole is None and self.load_whole is not None:
            whole = self.load_whole()
            if whole.space.fingerprint != self.space.fingerprint:
                raise EncoderError(f"the model of encoder {self.name!r} was replaced meanwhile")
            self._whole = whole
        return self._whole

    @property
    def preprocessing(self) -> Preprocessing:
        if self._preprocessing is None:
            raise EncoderError(f"encoder {self.name!r} takes vectors: it has no preprocessing")
        return self._preprocessing

    @property
    def name(self) -> str:
        return self.space.name

    @property
    def dim(self) -> int:
        return self.space.dim

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
        """As Encoder.embed; the device was chosen when the file was opened."""
        if device is not None and device != self.device:
            raise EncoderError(
                f"encoder {self.name!r} was opened on {self.device!r}, not {device!r}; "
                "open it again with that device"
            )
        fixed = self.session.shape[0]  # a name where the batch is free
        size = step_size(batch_size, device=self.device, box=self._preprocessing)
        return embed_source(
            self._source(images, ids=ids, layout=layout),
            space=self.space,
            normalise=self.normalise,
            prepare=self._preprocessing.array if self._preprocessing else np.asarray,
            run=self.run,
            batch_size=fixed if isinstance(fixed, int) else size,
            show=progress,
            on_failure=on_failure,
            workers=self.workers,
        )

    def workers(self, batches: int) -> ParallelRun | None:
        """A second session for so many batches to come, if they are worth it."""
        if self.device != "cpu" or not self.takes_images:
            return None
        if self._workers is None and (count := worker_count(batches)) > 1:
            if self.any_runtime:
                run = fastest_run(self._path, self.space.fingerprint, count=count, batches=batches)
            else:
                runtime = self.session.runtime
                run = open_session(self._path, device="cpu", runtime=runtime, workers=count).run
            self._workers = ParallelRun(count, partial(self._filled, run))
        return self._workers if batches > 1 else None

    # ---- inside ----------------------------------------------------------------------------------

    def _read_note(self, note: str, *, path: Path) -> None:
        try:
            metadata = json.loads(note)
            self.space = Space.from_json(json.dumps(metadata["space"]), source=str(path))
            self.normalise = bool(metadata["normalise"])
            self._origin = str(metadata.get("source", ""))
            raw, digest = metadata["preprocessing"], metadata.pop("digest")
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(
                f"{path}: midspan's metadata in the file is broken ({error!r})"
            ) from error
        if raw is not None:
            self._preprocessing = Preprocessing.from_dict(raw, source=str(path))
        self._check_input(path)
        onnx = import_extra("onnx", required_for="an encoder in an ONNX file")
        if file_digest(onnx.load(path), metadata) != digest:
            raise EncoderError(
                f"{path}: the file was changed after its export (quantised, optimised?), so "
                f"its vectors are no longer those of {self.space}; open it with preprocessing=… "
                "and it gets a space of its own"
            )

    def _trust_caller(self, path: Path, *, name: str | None) -> None:
        if self._preprocessing is None:
            raise EncoderError(
                f"{path}: was not exported by midspan, so the file does not say how its images "
                "are prepared; open it as OnnxEncoder(path, preprocessing=Preprocessing(…))"
            )
        self._check_input(path)
        p = self._preprocessing
        blank = np.zeros((1, p.height, p.width, p.channels), dtype=np.uint8)
        output = self.run(p.array(blank))
        if output.ndim != 2:
            raise EncoderError(
                f"{path}: expected one vector (1, D) for one image, got {output.shape}"
            )
        parts = (path.read_bytes(), p.to_json(), str(self.normalise))
        self.space = Space(
            name=name or path.stem,
            dim=int(output.shape[1]),
            metric="cosine" if self.normalise else "l2",
            fingerprint=fingerprint(*parts),
        )

    def _check_input(self, path: Path) -> None:
        shape, p = self.session.shape, self._preprocessing
        expected = [p.channels, p.height, p.width] if p else [shape[-1]]
        fits = len(shape) == len(expected) + 1 and all(
            not isinstance(axis, int) or axis == size
            for axis, size in zip(shape[1:], expected, strict=True)
        )
        if not fits or self.session.type != "tensor(float)":
            raise EncoderError(
                f"{path}: takes {self.session.type} of shape {list(shape)}, but its images come as "
                f"tensor(float) ['batch', {', '.join(map(str, expected))}]"
            )

    def _source(self, images: Embeddable, *, ids: Ids | None, layout: Layout | None) -> Source:
        if self._preprocessing is not None:
            return image_source(
                images, preprocessing=self._preprocessing, ids=ids, name=self.name, layout=layout
            )
        inputs = int(self.session.shape[1])
        return vector_source(images, inputs=inputs, origin=self._origin, ids=ids, name=self.name)

    def run(self, batch: npt.NDArray[Any]) -> FloatArray:
        return self._filled(self.session.run, batch)

    def _filled(self, run: Callable[[Any], Any], batch: npt.NDArray[Any]) -> FloatArray:
        fixed, count = self.session.shape[0], len(batch)
        if isinstance(fixed, int) and count < fixed:  # fill up, then cut off
            batch = np.concatenate([batch, np.repeat(batch[-1:], fixed - count, axis=0)])
        return np.asarray(run(batch)[:count], dtype=np.float32)


def file_digest(model: Any, note: Mapping[str, Any]) -> str:
    """Of the network and its metadata: a change of either makes another space."""
    digest = hashlib.sha256(model.graph.SerializeToString(deterministic=True))
    digest.update(json.dumps(note, sort_keys=True).encode())
    return digest.hexdigest()
