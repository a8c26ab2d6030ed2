"""A fitted bridge as an ONNX file: for a query side that is not Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from midspan.bridges.base import TINY, Bridge
from midspan.errors import FormatError, MissingDependency
from midspan.spaces import Column

OPSET = 17


class Graph:
    """Collects ONNX nodes; every method takes and gives names of tensors."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Column | np.float32) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def matmul(self, rows: str, weight: Column) -> str:
        return self.op("MatMul", rows, self.constant(weight))

    def affine(self, rows: str, weight: Column, bias: Column) -> str:
        return self.op("Add", self.matmul(rows, weight), self.constant(bias))

    def row_sum(self, rows: str) -> str:
        return self.op("ReduceSum", rows, self.constant(np.array([-1])), keepdims=1)

    def unit(self, rows: str) -> str:
        norms = self.op("ReduceL2", rows, axes=[-1], keepdims=1)
        return self.op("Div", rows, self.op("Max", norms, self.constant(np.float32(TINY))))


def export_onnx(bridge: Bridge, path: str | Path) -> Path:
    """Write input `vectors` (N, Ds) → output `mapped` (N, Dt), and check it against `apply`.

    The check runs the file in onnxruntime on random vectors; a file that differs is not kept.

    Args:
        bridge: A fitted bridge.
        path: The file to write, `.onnx`.

    Returns:
        The path.

    Raises:
        FormatError: The file differs from the bridge; it is not written.
        MissingDependency: The extra `onnx` is not installed.

    Example:
        >>> import midspan as ms
        >>> bridge = ms.load_bridge("old-to-new")  # doctest: +SKIP
        >>> ms.bridges.export_onnx(bridge, "old-to-new.onnx")  # doctest: +SKIP
    """
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError as error:
        raise MissingDependency("onnx", extra="onnx", required_for="the ONNX export") from error

    graph = Graph()
    rows = "vectors"
    if bridge.source.metric == "cosine":
        rows = graph.unit(rows)
    mapped = bridge._graph(graph, rows)
    if bridge.target.metric == "cosine":
        mapped = graph.unit(mapped)
    graph.nodes.append(helper.make_node("Identity", [mapped], ["mapped"]))
    float32 = TensorProto.FLOAT
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            f"bridge_{bridge.name.replace('-', '_')}",
            [helper.make_tensor_value_info("vectors", float32, ["n", bridge.source.dim])],
            [helper.make_tensor_value_info("mapped", float32, ["n", bridge.target.dim])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=9,  # readable by onnxruntime 1.18 and later
        producer_name="midspan",
    )
    helper.set_model_props(
        model, {"source": bridge.source.to_json(), "target": bridge.target.to_json()}
    )
    onnx.checker.check_model(model)
    raw = model.SerializeToString()
    _check(raw, bridge)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(raw)
    part.replace(path)
    return path


def _check(raw: bytes, bridge: Bridge) -> None:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            "onnxruntime", extra="onnx", required_for="the ONNX check"
        ) from error

    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((16, bridge.source.dim)).astype(np.float32)
    session = onnxruntime.InferenceSession(raw, providers=["CPUExecutionProvider"])
    (actual,) = session.run(["mapped"], {"vectors": vectors})
    expected = bridge.apply(vectors)
    worst = float(np.abs(actual - expected).max() / max(float(np.abs(expected).max()), TINY))
    if not worst < 1e-3:  # float32 sums in another order
        raise FormatError(
            f"the ONNX file of this {bridge.name} bridge differs from it by {worst:.2g} relative; "
            "it was not written: use the bridge itself"
        )
