"""`--ray ADDRESS`: what workers of a cluster load, and the options that choose them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.gallery import Item
    from midspan.spaces import Space
    from midspan.upgrade import Embed
    from midspan.upgrade.cluster import Make, Pack, Workers

PANEL = "On a Ray cluster"
RAY = typer.Option(
    "--ray",
    metavar="ADDRESS",
    help="Embed on the workers of a Ray cluster: auto, ray://host:10001, host:6379; local starts "
    "one on this machine.",
    rich_help_panel=PANEL,
)
WORKERS = typer.Option(
    "--workers",
    min=1,
    help="So many workers; default one a GPU, or one a core without GPUs.",
    rich_help_panel=PANEL,
)
GPUS = typer.Option(
    "--gpus-per-worker",
    min=0,
    help="Also parts: 0.5 puts two workers on a GPU. Default 1 if the cluster has GPUs, else 0.",
    rich_help_panel=PANEL,
)
SHIP = typer.Option(
    "--ship-images",
    help="Send the images from this machine. Default: workers read them at the same paths.",
    rich_help_panel=PANEL,
)


def workers_from(
    ray: str | None, workers: int | None, gpus: float | None, *, ship_images: bool
) -> Workers | None:
    """None without --ray; the other options make no sense then."""
    from midspan.upgrade.cluster import Workers

    if ray is not None:
        return Workers(address=ray, count=workers, gpus=gpus)
    given = {"--workers": workers is not None, "--gpus-per-worker": gpus is not None}
    given["--ship-images"] = ship_images
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise ConfigError(f"{' and '.join(wrong)} without --ray ADDRESS: name the cluster")
    return None


def pack_from(*, ship_images: bool) -> Pack | None:
    from midspan.cli.ray_images import shipped

    return shipped if ship_images else None


def carried(encoder: str) -> Make:
    """An encoder in a folder or file here travels to the workers; others are loaded by name there.

    So all workers have the same weights. A worker says which space they make, and is refused if it
    is not the expected one.
    """
    path, files = Path(encoder), dict[str, bytes]()
    if path.suffix == ".onnx" and path.is_file():
        files = {path.name: path.read_bytes()}
    elif path.is_dir():
        from midspan.encoders.files import CONFIG, WEIGHTS, find_folder

        folder = find_folder(path)
        files = {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}
    return functools.partial(load_on_worker, encoder, files)


def load_on_worker(encoder: str, files: Mapping[str, bytes]) -> tuple[Space, Embed]:
    import ray

    from midspan.cli.upgrade_sources import embedder_of

    device = "cuda" if ray.get_gpu_ids() else "cpu"
    if not files:
        return embedder_of(encoder, device=device)
    with tempfile.TemporaryDirectory(prefix="midspan-") as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        (only,) = files if len(files) == 1 else ("",)
        return embedder_of(str(Path(folder, only)), device=device)


def seen_here(item: Item) -> bool:
    """Whether this machine has the image: a file, or the file that it is in."""
    from midspan.data.image_uri import ImageUri

    return item.uri is not None and Path(ImageUri.of(item.uri).file).is_file()
