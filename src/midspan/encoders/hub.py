"""Encoder folders on the Hugging Face hub."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from midspan.errors import EncoderError, MissingDependency

# No code, no pickles: what is not fetched cannot be run.
PATTERNS = ["*.json", "*.safetensors"]


def pull_encoder(repo: str) -> Path:
    """Fetch "org/repo" or "org/repo@revision" into the hub's cache; the folder it is in."""
    name, _, revision = repo.partition("@")
    _check_name(name)
    hub = _import_hub()
    try:
        folder = hub.snapshot_download(
            repo_id=name, revision=revision or None, allow_patterns=PATTERNS
        )
    except Exception as error:  # not found, gated, no network …: the hub has many
        raise EncoderError(f"hf-hub:{repo} cannot be fetched ({error})") from error
    return Path(folder)


def push_encoder(folder: str | Path, repo: str, *, private: bool = True) -> str:
    """Put an encoder folder on the hub, as logged in by `hf auth login`; the commit's address."""
    from midspan.encoders.files import CARD, CONFIG, WEIGHTS, read_encoder

    _check_name(repo)
    hub = _import_hub()
    read_encoder(folder)  # never publish what cannot be loaded
    try:
        hub.create_repo(repo, private=private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repo, folder_path=str(folder), allow_patterns=[CONFIG, WEIGHTS, CARD]
        )
    except Exception as error:
        raise EncoderError(f"cannot push to hf-hub:{repo} ({error})") from error
    return str(commit)


def _check_name(repo: str) -> None:
    if repo.count("/") != 1 or repo.startswith("/") or repo.endswith("/"):
        raise EncoderError(f"hub repository: expected 'organisation/name', got {repo!r}")


def _import_hub() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "huggingface_hub", extra="hub", required_for="an encoder on the hub"
        ) from error
