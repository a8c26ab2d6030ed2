"""Progress goes to stderr and knows its numbers."""

from __future__ import annotations

import sys

import pytest

from midspan import progress


def test_progress_without_a_terminal_prints_plain_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with progress.bar("embed", total=10, unit="images") as done:
        done(4)
        done(6)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith("embed: 4/10 images, ")
    assert lines[0].endswith("s left")
    assert lines[-1].startswith("embed: 10 images in ")


def test_progress_on_a_terminal_draws_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.bar("train", total=3, unit="images") as done:
        done(3)
    out, err = capsys.readouterr()
    assert out == ""
    assert "train" in err
    assert "3/3" in err


def test_progress_hidden_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar("x", total=1, unit="y", show=False) as done:
        done(1)
    assert capsys.readouterr() == ("", "")
