"""`midspan doctor`: what is installed, which devices are available, and what is missing."""

from __future__ import annotations

import importlib
import os
import platform
import socket
from importlib import metadata
from typing import Any

from midspan.cli.output import JSON_OPTION, print_json, print_table

# (distribution, module, extra that brings it, what it is for)
LIBRARIES = (
    ("numpy", "numpy", "", "everything"),
    ("pillow", "PIL", "", "reading images"),
    ("pyarrow", "pyarrow", "", "parquet files"),
    ("matplotlib", "matplotlib", "", "plots in reports"),
    ("torch", "torch", "train", "training and running encoders"),
    ("pytorch-metric-learning", "pytorch_metric_learning", "train", "its losses"),
    ("tensorboard", "tensorboard", "train", "TensorBoard logs"),
    ("transformers", "transformers", "hub", "hf: encoders"),
    ("huggingface-hub", "huggingface_hub", "hub", "encoders from the hub"),
    ("timm", "timm", "timm", "timm: encoders"),
    ("efficientnet-lite-pytorch", "efficientnet_lite_pytorch", "efficientnet", "efficientnet-lite"),
    ("onnxruntime", "onnxruntime", "onnx", "running ONNX encoders"),
    ("onnxscript", "onnxscript", "onnx", "exporting to ONNX"),
    ("openvino", "openvino", "openvino", "running encoders with OpenVINO"),
    ("webdataset", "webdataset", "shards", "images in tar shards"),
    ("pillow-heif", "pillow_heif", "heif", "HEIC images"),
    ("pandas", "pandas", "pandas", "Comparison.to_frame"),
    ("fastapi", "fastapi", "serve", "midspan serve"),
    ("uvicorn", "uvicorn", "serve", "midspan serve"),
    ("httpx", "httpx", "serve", "ms.Client"),
    ("psycopg", "psycopg", "postgres", "postgresql:// galleries"),
    ("pgvector", "pgvector", "postgres", "postgresql:// galleries"),
    ("qdrant-client", "qdrant_client", "qdrant", "qdrant:// galleries"),
    ("pymilvus", "pymilvus", "milvus", "milvus:// galleries"),
    ("ray", "ray", "ray", "--ray: embedding on a cluster"),
    ("pylance", "lance", "lance", "Lance tables"),
    ("opentelemetry-sdk", "opentelemetry.sdk", "otel", "traces of midspan serve"),
    ("trdg", "", "", "the demo's fonts: pip install --no-deps trdg==1.8.0"),
)
SERVERS = {"postgresql": 5432, "qdrant": 6333, "milvus": 19530, "ray": 10001}
# These load native libraries, so that installed does not mean working.
TRY_IMPORT = {"torch", "timm"}


def doctor(as_json: bool = JSON_OPTION) -> None:
    """Show what is installed, which devices are available, and what is missing."""
    libraries = [_library(*entry) for entry in LIBRARIES]
    devices = _devices()
    from midspan.data import cache_dir

    if as_json:
        for library in libraries:
            library["wanted_for"] = library["required_for"]  # the old key, for one more release
        document = {"libraries": libraries, "devices": devices, "servers": _servers()}
        print_json({**document, "cache": str(cache_dir())})
        return
    for name, answer in _servers().items():
        devices[f"{name} server"] = answer
    rows = [
        [x["name"], x["version"] or "–", x["extra"] or "–", x["state"], x["required_for"]]
        for x in libraries
    ]
    print_table("libraries", ["library", "version", "extra", "state", "required for"], rows)
    print_table("this machine", ["", ""], [[key, str(value)] for key, value in devices.items()])
    print(f"cache: {cache_dir()}")


def _library(name: str, module: str, extra: str, required_for: str) -> dict[str, Any]:
    try:
        version: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        how = f'pip install "midspan[{extra}]"' if extra else "not installed"
        return {
            "name": name,
            "version": None,
            "extra": extra,
            "state": f"missing: {how}",
            "required_for": required_for,
        }
    state = "ok"
    if name in TRY_IMPORT:
        try:
            importlib.import_module(module)
        except Exception as error:  # a foreign library may raise anything while it loads
            state = f"installed, does not load: {error}".splitlines()[0]
    return {
        "name": name,
        "version": version,
        "extra": extra,
        "state": state,
        "required_for": required_for,
    }


def _servers() -> dict[str, str]:
    """Which servers answer on their default port of this machine."""
    servers = {}
    for name, port in SERVERS.items():
        with socket.socket() as tried:
            tried.settimeout(0.2)
            there = tried.connect_ex(("127.0.0.1", port)) == 0
        servers[name] = (
            f"answers on port {port}" if there else f"none on port {port} of this machine"
        )
    return servers


def _devices() -> dict[str, Any]:
    devices: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
    }
    try:
        import torch
    except ImportError:
        return {**devices, "torch": "not installed"}
    devices["torch threads"] = torch.get_num_threads()
    devices["cpu"] = torch.backends.cpu.get_cpu_capability()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    devices["cuda"] = ", ".join(names) or "none"
    return devices
