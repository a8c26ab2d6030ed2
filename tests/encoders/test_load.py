from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import midspan.encoders
from midspan.encoders import Encoder, load_encoder
from midspan.encoders.hub import pull_encoder, push_encoder
from midspan.errors import EncoderError, MidspanError, MissingDependency

hub: Any = pytest.importorskip("huggingface_hub")


def test_load_encoder_unknown_name_raises_encoder_error() -> None:
    with pytest.raises(
        EncoderError, match=r"no encoder at 'runs/new'.*hf:<model>.*efficientnet-li"
    ):
        load_encoder("runs/new")
    with pytest.raises(EncoderError, match="no encoder at 'small-cnn'"):
        load_encoder("small-cnn")  # has no weights of its own


def test_load_encoder_folder_takes_precedence_over_a_name(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.save(tmp_path / "efficientnet-lite0")
    monkeypatch.chdir(tmp_path)
    assert load_encoder("efficientnet-lite0").dim == 16


def test_load_encoder_is_ready_to_embed(encoder: Encoder, tmp_path: Path) -> None:
    loaded = load_encoder(encoder.save(tmp_path / "e"), device="cpu")
    assert isinstance(loaded, Encoder)
    assert not loaded.training
    loaded.embed(np.zeros((1, 32, 32, 3), dtype=np.uint8), device="cpu", progress=False)
    assert loaded.device.type == "cpu"


def test_pull_encoder_downloads_no_code(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.save(tmp_path / "e")
    asked: list[dict[str, Any]] = []

    def download(**arguments: Any) -> str:
        asked.append(arguments)
        return str(tmp_path / "e")

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert load_encoder("hf-hub:shop/encoder@v2").space == encoder.space
    assert load_encoder("hf-hub:shop/encoder").space == encoder.space
    patterns = ["*.json", "*.safetensors"]
    assert asked == [
        {"repo_id": "shop/encoder", "revision": "v2", "allow_patterns": patterns},
        {"repo_id": "shop/encoder", "revision": None, "allow_patterns": patterns},
    ]


def test_pull_encoder_failure_or_bad_name_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(**arguments: Any) -> str:
        raise ConnectionError("no network")

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(EncoderError, match=r"hf-hub:shop/encoder@v2 cannot be fetched \(no netw"):
        load_encoder("hf-hub:shop/encoder@v2")
    for name in ("encoder", "a/b/c", "/x", "x/", "../.."):
        with pytest.raises(MidspanError):
            pull_encoder(name)


def test_push_encoder_uploads_only_encoder_files(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = encoder.save(tmp_path / "e")
    (folder / "secrets.txt").write_text("not for the hub")
    calls: list[Any] = []
    monkeypatch.setattr(hub, "create_repo", lambda *a, **k: calls.append((a, k)))

    def upload(**arguments: Any) -> str:
        calls.append(arguments)
        return "https://hub/commit/1"

    monkeypatch.setattr(hub, "upload_folder", upload)
    assert push_encoder(folder, "shop/encoder") == "https://hub/commit/1"
    assert calls[0] == (("shop/encoder",), {"private": True, "exist_ok": True})
    assert calls[1]["allow_patterns"] == ["config.json", "model.safetensors", "README.md"]
    (folder / "model.safetensors").write_bytes(b"broken")
    calls.clear()
    with pytest.raises(MidspanError):
        push_encoder(folder, "shop/encoder")
    assert calls == []


def test_push_encoder_failure_raises_encoder_error(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*a: Any, **k: Any) -> None:
        raise PermissionError("log in first")

    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(EncoderError, match="log in first"):
        push_encoder(encoder.save(tmp_path / "e"), "shop/encoder")


def test_load_encoder_without_the_hub_library_raises_missing_dependency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependency, match=r"midspan\[hub\]"):
        load_encoder("hf-hub:shop/encoder")


# ---- the room ------------------------------------------------------------------------------------


def run_without_torch(code: str) -> str:
    blocked = "import sys; sys.modules['torch'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_encoders_works_without_torch() -> None:
    out = run_without_torch(
        """
import midspan.encoders as e
from midspan.errors import MissingDependency
print(e.OnnxEncoder.__name__, e.Preprocessing.__name__, len(e.BACKBONES))
load = lambda: e.load_encoder("efficientnet-lite0")
for attempt in (lambda: e.Encoder, lambda: e.build_encoder, load):
    try:
        attempt()
    except MissingDependency as error:
        print(error.library, error.extra)
"""
    )
    assert out.split() == ["OnnxEncoder", "Preprocessing", "8", *["torch", "train"] * 3]


def test_encoders_public_names_are_importable() -> None:
    for name in midspan.encoders.__all__:
        assert getattr(midspan.encoders, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Encodder'"):
        _ = midspan.encoders.Encodder
