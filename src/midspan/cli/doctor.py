"""`midspan doctor`: what is installed, which devices are there, what is missing for what."""

from __future__ import annotations

import importlib
import os
import platform
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
    ("webdataset", "webdataset", "shards", "images in tar shards"),
    ("trdg", "", "", "the demo's fonts: pip install --no-deps trdg==1.8.0"),
)
# Installed is not the same as working for these: they load libraries of their own.
TRY_IMPORT = {"torch", "timm"}


def doctor(as_json: bool = JSON_OPTION) -> None:
    """Say what is installed, which devices are there, and what is missing for what."""
    libraries = [_library(*entry) for entry in LIBRARIES]
    devices = _devices()
    from midspan.data import cache_dir

    if as_json:
        print_json({"libraries": libraries, "devices": devices, "cache": str(cache_dir())})
        return
    rows = [[x["name"], x["version"] or "–", x["state"], x["wanted_for"]] for x in libraries]
    print_table("libraries", ["library", "version", "state", "wanted for"], rows)
    print_table("this machine", ["", ""], [[key, str(value)] for key, value in devices.items()])
    print(f"cache: {cache_dir()}")


def _library(name: str, module: str, extra: str, wanted_for: str) -> dict[str, Any]:
    try:
        version: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        how = f'pip install "midspan[{extra}]"' if extra else "not installed"
        return {"name": name, "version": None, "state": f"missing: {how}", "wanted_for": wanted_for}
    state = "ok"
    if name in TRY_IMPORT:
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever a foreign library raises while loading
            state = f"installed, does not load: {error}".splitlines()[0]
    return {"name": name, "version": version, "state": state, "wanted_for": wanted_for}


def _devices() -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
    }
    try:
        import torch
    except ImportError:
        return {**found, "torch": "not installed"}
    found["torch threads"] = torch.get_num_threads()
    found["cpu"] = torch.backends.cpu.get_cpu_capability()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found["cuda"] = ", ".join(names) or "none"
    return found
