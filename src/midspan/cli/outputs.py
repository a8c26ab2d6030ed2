"""Outputs are checked before the work: an hour of embedding must not fail at a wrong path."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from midspan.errors import ConfigError

FORCE = typer.Option("--force", help="Replace an existing file or folder.")

EMBEDDINGS = (".npz", ".parquet")
PAGE = (".html", ".htm")
ONNX = (".onnx",)


def check_file(path: Path | None, *, option: str, suffixes: tuple[str, ...], force: bool) -> None:
    """Refuse a file that cannot be written, or that would replace one; None is no output."""
    if path is None:
        return
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{option} {path}: expected a name that ends in {' or '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; give the name of a file")
    if path.exists() and not force:
        raise ConfigError(f"{option} {path} exists already; choose another name, or add --force")
    _check_parent(path, option=option)


def check_folder(path: Path, *, option: str, force: bool = True) -> None:
    """Refuse a folder that cannot be made, or, without `force`, one that holds something."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{option} {path} is a file; give the name of a folder")
    if path.is_dir() and any(path.iterdir()) and not force:
        raise ConfigError(f"{option} {path} is not empty; choose another folder, or add --force")
    _check_parent(path, option=option)


def _check_parent(path: Path, *, option: str) -> None:
    """The nearest parent that exists is a folder in which something can be made."""
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise ConfigError(
            f"{option} {path}: {parent} is a file, so nothing can be written below it"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {path}: no permission to write in {parent}")
