"""A benchmark measures in the runtime of its run file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from midspan.data import digits
from midspan.encoders import build_encoder, load_encoder
from midspan.encoders.runtimes import Runtime
from midspan.errors import ConfigError
from midspan.training import RunConfig
from midspan.training.bench import measure


def config(runtime: str) -> RunConfig:
    return RunConfig.from_dict({"data": {"name": "digits"}, "encoder": {"runtime": runtime}})


def test_run_file_runtime_takes_known_runtimes_only() -> None:
    for runtime in get_args(Runtime):
        assert config(runtime).encoder.runtime == runtime
    with pytest.raises(ConfigError, match="runtime"):
        config("tensorflow")


@pytest.mark.parametrize("runtime", ["auto", "onnx", "torch"])
def test_bench_embeds_in_the_configured_runtime(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_encoder(backbone="small-cnn", size=8, channels=1, dim=16, seed=0).save(tmp_path)
    asked: list[str] = []

    def load_embedder(where: Path, *, runtime: str) -> Any:
        asked.append(runtime)
        return load_encoder(where)

    monkeypatch.setattr(measure, "load_embedder", load_embedder)
    items = digits()[:8]
    got = measure._embedded(folder, items, None, runtime=runtime)
    expected = load_encoder(folder).embed(items, progress=False)
    np.testing.assert_allclose(got.vectors, expected.vectors, atol=1e-6)
    assert asked == ([] if runtime == "torch" else [runtime])
