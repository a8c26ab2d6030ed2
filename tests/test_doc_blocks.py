"""The pages beside the tutorials are true too: their Python runs, their commands exist.

A page explains one thing and takes for granted that there is a gallery, a run or two files of
vectors. `WORLDS` makes what it takes for granted; then its blocks run as they are printed. Blocks
that need a server are only read, with the reason.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import midspan as ms
from midspan.cli import app
from midspan.encoders import Encoder, build_encoder

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
World = Callable[[Path], dict[str, Any]]
SHORTER = {"steps=3000": "steps=3"}  # long fits, in short
ONLY_READ = {"service.md": "its blocks talk to a service at https://search.example"}


def pair() -> tuple[ms.Embeddings, ms.Embeddings]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 10)
    points = np.eye(20)[labels] + 0.2 * rng.normal(size=(200, 20))
    ids = np.arange(200).astype(np.str_)
    columns = {"labels": labels, "price": np.arange(200)}
    old = ms.Embeddings(ids, points.astype(np.float32), ms.Space("old", 20), columns)
    turned = points @ rng.normal(size=(20, 32))
    new = ms.Embeddings(ids, turned.astype(np.float32), ms.Space("new", 32), columns)
    return old, new


def photos(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / kind / f"{number}.png")


def bridges(folder: Path) -> dict[str, Any]:
    old, new = pair()
    return {"old": old, "new": new, "old_gallery": old}


def gallery(folder: Path) -> dict[str, Any]:
    old, _ = pair()
    with ms.Gallery.create("shop.midspan", old.space) as made:
        made.add(old[:150])
    return {
        "ms": ms,
        "queries": old[:3],
        "embeddings": old[150:],
        "payloads": [{"price": 1}] * 50,
        "gallery": ms.Gallery.open("shop.midspan"),
    }


def labels(folder: Path) -> dict[str, Any]:
    photos(folder)
    return {"ms": ms}


def own_loop(folder: Path) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    return {
        "old_vectors": torch.randn(40, 128),
        "labels": torch.arange(40) % 5,
        "num_classes": 5,
        "z": torch.randn(16, 128),
        "y": torch.arange(16) % 5,
        "old_z": torch.randn(16, 128),
    }


def better_encoders(folder: Path) -> dict[str, Any]:
    photos(folder)
    lines = ["path,label,smiling,glasses"]
    paths = sorted((folder / "photos").rglob("*.png"))
    lines += [f"{path},{path.parent.name},{n % 2},{n % 3 % 2}" for n, path in enumerate(paths)]
    for name in ("labelled.csv", "train.csv"):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = build_encoder(
        backbone="small-cnn", dim=16, name="v2", sub_embeddings=4, confident=True
    )
    assert isinstance(encoder, Encoder)
    encoder.save("runs/new")
    judged, _ = pair()
    variance = np.full((200, 4), 0.1, dtype=np.float32)
    judged = judged.with_columns({"variance": variance})
    images = ms.data.digits().test[:80]
    plain = encoder.embed(images, progress=False)
    return {
        "query": judged[:5],
        "gallery": judged,
        "test_embeddings": plain,
        "test_images": images,
        "plain": plain,
        "slight": plain,
        "heavy": plain,
    }


WORLDS: dict[str, World] = {
    "better_encoders.md": better_encoders,
    "bridges.md": bridges,
    "gallery.md": gallery,
    "labels_ids_and_spaces.md": labels,
    "own_loop.md": own_loop,
}
RUN_ELSEWHERE = {"first_upgrade.md"}  # and the tutorials


def python_blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_every_page_with_python_is_run_or_has_a_reason() -> None:
    found = {page.name for page in DOCS.glob("*.md") if python_blocks(page.name)}
    assert found == WORLDS.keys() | ONLY_READ.keys() | RUN_ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("page", WORLDS)
def test_python_of_a_page_runs_in_its_prepared_world(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = WORLDS[page](tmp_path)
    names: dict[str, Any] = {}
    for printed in python_blocks(page):
        block = printed
        for long, short in SHORTER.items():
            block = block.replace(long, short)
        names = {**names, **world}  # each block begins with what the page takes for granted
        exec(compile(block, page, "exec"), names)
    for value in world.values():
        if isinstance(value, ms.Gallery):
            value.close()


@pytest.mark.parametrize("page", ONLY_READ)
def test_python_that_needs_a_server_compiles(page: str) -> None:
    for block in python_blocks(page):
        compile(block, page, "exec")


@pytest.mark.slow
def test_commands_of_the_photo_tutorial_run_on_made_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small encoders in place of the pretrained ones, whose weights are a download."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for kind in "ab":
        Path("photos", kind).mkdir(parents=True)
        for number in range(8):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"photos/{kind}/{number}.jpg")
    for dim, name in ((8, "efficientnet-lite0"), (12, "efficientnet-lite2")):
        build_encoder(backbone="small-cnn", dim=dim, seed=dim, name=name).save(f"encoders/{name}")
    text = (DOCS / "tutorials" / "photos.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\$ midspan (.*)$", text, flags=re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        words = line.replace("--encoder ", "--encoder encoders/").split()
        if words[:2] == ["upgrade", "finish"]:
            words += ["--override", "made images decide nothing"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code in (0, 1, 3), (line, done.output, done.exception)
    with ms.Gallery.open("birds.midspan") as gallery:
        assert gallery.space.name == "efficientnet-lite0"


def documented_commands() -> Iterator[tuple[str, list[str]]]:
    """Every `midspan …` of a shell block, README included; comments and pipes cut off."""
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", text, flags=re.DOTALL):
            joined = block.replace("\\\n", " ")
            for line in re.findall(r"^(?:\$ )?midspan (.*)$", joined, flags=re.MULTILINE):
                yield page.name, shlex.split(line.split(" | ")[0], comments=True)


def test_every_documented_command_has_its_verb_and_its_options() -> None:
    wrong, count = [], 0
    for page, words in documented_commands():
        command: Any = typer.main.get_command(app)
        rest = list(words)
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        count += 1
        known = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
        given = {word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        if hasattr(command, "commands") and not given <= {"--help", "--version"}:
            wrong.append(f"{page}: midspan {' '.join(words)}: no such verb")
        elif unknown := given - known - {"--help"}:
            wrong.append(f"{page}: midspan {' '.join(words)}: no option {', '.join(unknown)}")
    assert wrong == []
    assert count > 60
