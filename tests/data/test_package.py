"""What other rooms rely on: names, the table of data sets, a light import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from midspan import data
from midspan.config import build
from midspan.data import DATASETS, ImageSet
from midspan.errors import ConfigError


@pytest.mark.parametrize("name", ["npz", "folder", "csv", "glyphs", "digits"])
def test_data_names_after_module_import_are_still_functions(name: str) -> None:
    import importlib

    importlib.import_module(DATASETS[name].partition(":")[0])
    assert callable(getattr(data, name))
    assert getattr(data, name).__name__ == name


def test_data_public_names_exist() -> None:
    for name in data.__all__:
        assert hasattr(data, name)


def test_data_set_of_a_run_file_is_found_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", images=np.zeros((2, 4, 4), dtype=np.uint8))
    images = build(DATASETS, {"name": "npz", "path": str(tmp_path / "two.npz")}, what="data")
    assert isinstance(images, ImageSet)
    assert len(images) == 2
    with pytest.raises(ConfigError, match="folder has no setting 'strickt'; did you mean 'strict'"):
        build(DATASETS, {"name": "folder", "path": "x", "strickt": True}, what="data")


def test_import_data_loads_no_heavy_library() -> None:
    code = (
        "import sys, midspan.data; "
        "print([m for m in ('torch', 'sklearn', 'pandas', 'pyarrow', 'trdg') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
