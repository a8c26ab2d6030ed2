"""An encoder that computes with torch until a graph of it is ready and gives the same vectors.

An export takes seconds, so it is made when torch has worked, or is sure to work, longer than that.
The batch that torch has just embedded is the evidence: the graph must give the same vectors of
the same images, or torch continues. The verdict and the graph are kept for the next process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midspan.encoders.embedding import (
    Ids,
    OnFailure,
    embed_source,
    image_source,
    step_size,
)
from midspan.encoders.onnx import OnnxEncoder
from midspan.encoders.runtimes.graph_cache import (
    TOLERANCE,
    Verdict,
    export_lock,
    graph_path,
    largest_difference,
    read_verdict,
    write_verdict,
)
from midspan.encoders.runtimes.parallel import ParallelRun
from midspan.errors import EncoderError, MidspanError, MissingDependency
from midspan.spaces import Embeddings, FloatArray, Space

if TYPE_CHECKING:
    from midspan.encoders.encoder import Encoder
    from midspan.encoders.inputs import Embeddable, Layout
from midspan.encoders.preprocessing import Preprocessing

EXPORT_AFTER = 10.0  # seconds of torch that an export is worth; it takes 5 to 10
EVIDENCE = 8  # images that must agree at least, in one or more batches


@dataclass(slots=True)
class _Progress:
    """What torch has done so far."""

    seconds: float = 0.0
    images: int = 0


class AutoEncoder:
    """Embeds as `encoder` does, with the faster runtime as soon as it may be used.

    runtime: of the graph. fallback: why the graph cannot be used is printed on stderr, and torch
    continues; else it is an EncoderError.
    """

    def __init__(self, encoder: Encoder, *, runtime: str, fallback: bool) -> None:
        if encoder.device.type != "cpu":
            raise EncoderError(f"a graph runs on the CPU, the encoder is on {encoder.device}")
        self.encoder = encoder.eval()
        self.space: Space = encoder.space
        self.runtime = runtime
        self._fallback = fallback
        self._spent = _Progress()
        self._graph: OnnxEncoder | None = None  # opened, not yet verified
        self._agreed = 0  # images
        self._apart = 0.0
        self._closed = False  # torch it is
        self._ready = False

    def __repr__(self) -> str:
        return f"AutoEncoder({self.encoder!r}, torch or {self.runtime})"

    @property
    def name(self) -> str:
        return self.space.name

    @property
    def dim(self) -> int:
        return self.space.dim

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def takes_images(self) -> bool:
        return True

    @property
    def takes_text(self) -> bool:
        return self.encoder.takes_text

    def embed_text(self, texts: Sequence[str]) -> Embeddings:
        """As Encoder.embed_text, with torch."""
        return self.encoder.embed_text(texts)

    @property
    def preprocessing(self) -> Preprocessing:
        return self.encoder.preprocessing

    @property
    def computed_by(self) -> str:
        """The runtime of the next batch."""
        return self.runtime if self._ready else "torch"

    def export(self) -> None:
        """Make the graph now, before the first image, whatever it costs."""
        try:
            self._graph = self._opened()
        except (MidspanError, OSError) as error:
            self._stay(str(error))

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
        """As Encoder.embed; on the CPU."""
        if device not in (None, "cpu"):
            raise EncoderError(f"encoder {self.name!r} was opened on 'cpu', not {device!r}")
        box = self.preprocessing
        source = image_source(images, preprocessing=box, ids=ids, name=self.name, layout=layout)
        left = len(source.ids)

        def run(batch: FloatArray) -> FloatArray:
            nonlocal left
            left -= len(batch)
            return self._run(batch, left=left)

        return embed_source(
            source,
            space=self.space,
            normalise=self.encoder.normalise,
            prepare=box.array,
            run=run,
            batch_size=step_size(batch_size, device="cpu", box=box),
            show=progress,
            on_failure=on_failure,
            workers=self._workers,
        )

    # ---- inside ----------------------------------------------------------------------------------

    def _workers(self, batches: int) -> ParallelRun | None:
        return self._graph.workers(batches) if self._ready and self._graph is not None else None

    def _run(self, batch: FloatArray, *, left: int) -> FloatArray:
        """The vectors of a batch, of which `left` images follow."""
        import torch

        if self._ready:
            assert self._graph is not None
            return self._graph.run(batch)
        started = time.perf_counter()
        with torch.inference_mode():
            vectors: FloatArray = self.encoder(torch.from_numpy(batch)).numpy()
        self._spent.seconds += time.perf_counter() - started
        self._spent.images += len(batch)
        if not self._closed:
            self._consider(batch, vectors, left=left)
        return vectors

    def _consider(self, batch: FloatArray, vectors: FloatArray, *, left: int) -> None:
        if self._graph is None:
            sure = self._spent.seconds * (1 + left / max(1, self._spent.images))
            path = graph_path(self.space.fingerprint)
            if not path.is_file() and sure < EXPORT_AFTER:
                return
            self.export()
        if self._graph is not None:
            self._compare(self._graph, batch, vectors)

    def _opened(self) -> OnnxEncoder | None:
        """The graph, exported if there is none yet; None while another process exports it."""
        from midspan.encoders.onnx_export import export_onnx

        path = graph_path(self.space.fingerprint)
        if not path.is_file():
            with export_lock(self.space.fingerprint) as mine:
                if not mine:
                    return None
                if not path.is_file():
                    _say(f"{self.name}: exporting to ONNX, once for all later runs")
                    export_onnx(self.encoder, path, check=False)
        graph = OnnxEncoder(path, device="cpu", runtime=self.runtime)
        graph.any_runtime = self._fallback
        session = graph.session
        verdict = read_verdict(
            self.space.fingerprint, runtime=session.runtime, version=session.version
        )
        if verdict is not None and not verdict.agrees:
            raise EncoderError(f"they are {verdict.apart:.1e} apart, more than {TOLERANCE:.0e}")
        return graph

    def _compare(self, graph: OnnxEncoder, batch: FloatArray, vectors: FloatArray) -> None:
        try:
            self._apart = max(self._apart, largest_difference(vectors, graph.run(batch)))
        except Exception as error:  # each runtime has its own kinds
            self._stay(f"it does not run ({error})")
            return
        self._agreed += len(batch)
        agrees = self._apart <= TOLERANCE
        if agrees and self._agreed < EVIDENCE:
            return
        session = graph.session
        write_verdict(
            self.space.fingerprint,
            Verdict(agrees=agrees, apart=self._apart),
            runtime=session.runtime,
            version=session.version,
        )
        if agrees:
            self._ready = True
        else:
            self._stay(f"they are {self._apart:.1e} apart, more than {TOLERANCE:.0e}")

    def _stay(self, why: str) -> None:
        self._closed = True
        self._graph = None
        if not self._fallback:
            raise EncoderError(
                f"encoder {self.name!r} does not run in {self.runtime}: {why}; use `runtime` torch"
            )
        _say(f"{self.name}: stays with torch, not {self.runtime}: {why}")


def known_graph(space: Space, *, runtime: str) -> OnnxEncoder | None:
    """The graph of this space, if there is one that agreed with torch; it needs no torch."""
    path = graph_path(space.fingerprint)
    if not path.is_file():
        return None
    try:
        graph = OnnxEncoder(path, device="cpu", runtime=runtime)
    except MissingDependency:
        return None
    except MidspanError:  # damaged: it is exported again
        path.unlink(missing_ok=True)
        return None
    verdict = read_verdict(space.fingerprint, runtime=runtime, version=graph.session.version)
    if verdict is None or not verdict.agrees or graph.space.fingerprint != space.fingerprint:
        return None
    graph.space = space  # its own name and record of compatibility
    return graph


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
