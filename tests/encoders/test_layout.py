from __future__ import annotations

import pytest
import torch

from midspan.encoders import Encoder
from midspan.encoders.layout import LAYOUTS, main, measure


def test_measure_layouts_restores_the_memory_format(encoder: Encoder) -> None:
    before = encoder.fingerprint()
    rates = measure(encoder, batch=2, repeats=1)
    assert tuple(rates) == LAYOUTS
    assert all(rate > 0 for rate in rates.values())
    stem = next(p for p in encoder.parameters() if p.ndim == 4)
    assert stem.is_contiguous(memory_format=torch.channels_last)
    assert encoder.fingerprint() == before


def test_layout_main_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["small-cnn"])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["backbone", *LAYOUTS]
    assert row.startswith("small-cnn")
