"""The same thing has the same name on every verb, and older names keep working."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from midspan import Embeddings, Space
from midspan.cli import app, doctor
from midspan.cli.verbs import OLD_NAMES
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]


def test_no_verb_shows_a_name_of_earlier_versions() -> None:
    def flags(command: object) -> set[str]:
        inner = getattr(command, "commands", {})
        if inner:
            return set().union(*(flags(one) for one in inner.values()))
        return {flag for one in command.params for flag in one.opts}  # type: ignore[attr-defined]

    assert not flags(typer.main.get_command(app)) & set(OLD_NAMES)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    ids = np.array([f"a-very-long-id-{'x' * 120}-{number}" for number in range(4)])
    labels = np.array(["cat", "cat", "dog", "dog"])
    vectors = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], dtype=np.float32)
    made = Embeddings(ids, vectors, Space("tiny", 2), {"labels": labels})
    return made.save(tmp_path / "old.npz")


def test_older_names_still_work(midspan: Command, old: Path, tmp_path: Path) -> None:
    shop = tmp_path / "shop.midspan"
    code, _, err = midspan("gallery", "create", shop, "--embeddings", old)
    assert code == 0, err
    code, out, err = midspan("eval", "--query", old, "--metrics=map", "--json")
    assert (code, json.loads(out)["metrics"]["map"]) == (0, 1.0), err


def test_table_in_a_pipe_shows_whole_ids(
    midspan: Command, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = tmp_path / "shop.midspan"
    midspan("gallery", "create", shop, "--vectors", old)
    monkeypatch.setenv("COLUMNS", "60")
    code, out, err = midspan("gallery", "search", shop, "--vectors", old, "-k", 1)
    assert code == 0, err
    assert all(id in out for id in Embeddings.load(old).ids.tolist())


def test_search_by_image_embeds_it(
    midspan: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from midspan.encoders import build_encoder

    folder = build_encoder(backbone="small-cnn", dim=8, name="tiny").save(tmp_path / "encoder")
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, colour in {"red": (200, 0, 0), "blue": (0, 0, 200)}.items():
        Image.new("RGB", (40, 30), colour).save(photos / f"{name}.png")
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    shop = tmp_path / "shop.midspan"
    made = midspan("gallery", "create", shop, "--images", photos, "--encoder", folder)
    assert made[0] == 0, made
    words = ["--image", photos / "blue.png", "--encoder", folder, "-k", 1, "--json"]
    code, out, err = midspan("gallery", "search", shop, *words)
    assert code == 0, err
    assert json.loads(out)["results"][0][0]["id"] == "blue.png"
    code, _, err = midspan("gallery", "search", shop, "--image", photos / "blue.png")
    assert (code, "--image needs --encoder" in err) == (2, True)


def test_data_split_lists_classes_by_place(midspan: Command, tmp_path: Path) -> None:
    for kind in ("ant", "bee", "cat"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "photos" / kind / "1.png")
    lists = [tmp_path / "train.csv", tmp_path / "test.csv"]
    words = ["--classes", "1-2", "--out", lists[0], "--rest", lists[1], "--json"]
    code, out, err = midspan("data", "split", tmp_path / "photos", *words)
    assert code == 0, err
    assert json.loads(out) == {str(lists[0]): 2, str(lists[1]): 1}
    assert lists[1].read_text().split() == ["path,label", "photos/cat/1.png,cat"]
    words[1], words[-1] = "1-4", "--force"
    code, _, err = midspan("data", "split", tmp_path / "photos", *words)
    assert (code, "expected places from 1 to 3" in err) == (2, True)


def test_doctor_knows_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    known = {extra for _, _, extra, _ in doctor.LIBRARIES if extra}
    development = {"all", "dev", "docs", "demo", "test"}
    assert known == set(extras) - development
