"""The same thing has the same name on every verb, and older names keep working."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from rich.text import Text

import midspan as ms
from midspan import Embeddings, Space
from midspan.cli import app, doctor
from midspan.cli.verbs import OLD_NAMES
from midspan.evaluation.protocols import PROTOCOLS
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]


def test_help_shows_no_former_names() -> None:
    def flags(command: object) -> set[str]:
        inner = getattr(command, "commands", {})
        if inner:
            return set().union(*(flags(one) for one in inner.values()))
        return {flag for one in command.params for flag in one.opts}  # type: ignore[attr-defined]

    assert not flags(typer.main.get_command(app)) & set(OLD_NAMES)


def verbs() -> dict[str, Any]:
    """Every command by its words."""
    by_words: dict[str, Any] = {}

    def walk(command: Any, words: str) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{words} {name}".strip())
        if not hasattr(command, "commands"):
            by_words[words] = command

    walk(typer.main.get_command(app), "")
    return by_words


def flags_of(command: Any) -> set[str]:
    return {flag for one in command.params for flag in one.opts}


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("--exclude-column", ["eval", "compare", "gate", "bench"]),
        ("--metric", ["eval", "compare", "gate", "bench", "bridge compare"]),
        ("--batch-size", ["embed", "gallery create", "gallery add", "upgrade run"]),
        ("--vectors", ["gallery create", "gallery add", "gallery search", "bridge apply"]),
        ("--runtime", ["embed", "gallery create", "gallery add", "gallery search"]),
        ("--device", ["train", "embed", "gallery create", "gallery add", "gallery search"]),
        ("--out", ["train", "embed", "export", "bridge fit", "bridge apply", "data split"]),
    ],
)
def test_option_names_agree_across_verbs(flag: str, names: list[str]) -> None:
    by_name = verbs()
    assert [name for name in names if flag not in flags_of(by_name[name])] == []


def test_distance_option_former_metric_option_still_works(midspan: Command, tmp_path: Path) -> None:
    adopt = flags_of(verbs()["gallery adopt"])
    assert "--distance" in adopt
    assert "--metric" not in adopt
    np.save(tmp_path / "v.npy", np.eye(3, dtype=np.float32))
    (tmp_path / "ids.txt").write_text("a\nb\nc\n")
    words = ["--from", tmp_path / "v.npy", "--ids", tmp_path / "ids.txt", "--space-name", "s"]
    for flag in ("--distance", "--metric"):  # the former name keeps working
        place = tmp_path / f"{flag[2:]}.midspan"
        code, _, err = midspan("gallery", "adopt", place, *words, flag, "l2")
        assert code == 0, err
        with ms.Gallery.open(place) as gallery:
            assert gallery.space.metric == "l2"


def test_help_text_loses_no_characters() -> None:
    """Square brackets are markup to rich: what is not escaped is not shown."""
    for name, command in verbs().items():
        texts = [command.help or "", *(getattr(one, "help", "") or "" for one in command.params)]
        for text in texts:
            assert Text.from_markup(text).plain == text.replace("\\[", "["), (name, text)


def test_help_lists_verbs_in_order_and_every_protocol(midspan: Command) -> None:
    _, out, _ = midspan("--help")
    assert out.index("Bridge encoders") < out.index("Store, search")
    shown = next(one.help for one in verbs()["eval"].params if one.name == "protocol")
    assert [name for name in PROTOCOLS if name not in shown] == []


def test_exclude_column_of_eval_and_gate_leaves_same_values_out(
    midspan: Command, tmp_path: Path
) -> None:
    """Each item's nearest one of its class is of its own shop; the other shop's is wrong."""
    points = [[1, 0], [1, 0.01], [-1, 0.5], [0, 1], [0.01, 1], [-0.5, -1]]
    vectors = np.array(points, dtype=np.float32)
    columns = {"labels": np.array(list("aaabbb")), "shop": np.array([1, 1, 2, 1, 1, 2])}
    made = Embeddings(np.arange(6).astype(np.str_), vectors, Space("tiny", 2), columns)
    file = made.save(tmp_path / "a.npz")
    values = []
    for words in ([], ["--exclude-column", "shop"]):
        code, out, err = midspan("eval", "--query", file, "--metric", "recall@1", "--json", *words)
        assert code == 0, err
        values.append(json.loads(out)["metrics"]["recall@1"])
    assert values[0] > 0.6 > values[1]
    moved = Embeddings(made.ids, -vectors[:, ::-1], Space("moved", 2))
    plain, excluded = (
        ms.gate(before=made, after=moved, exclude_column=one).checks[0] for one in (None, "shop")
    )
    assert plain.value == excluded.value == 1.0  # a rotation changes nothing
    asked = ["--before", str(file), "--after", str(file), "--json", "--exclude-column", "shop"]
    code, out, err = midspan("gate", *asked)
    assert code in (0, 1, 3), err
    assert midspan("gate", *words[:-2], "nothing")[0] == 2
    code, _, err = midspan("eval", "--query", file, "--protocol", "sop", "--exclude-column", "shop")
    assert (code, "says itself what does not count" in err) == (2, True)


def test_bridge_compare_uses_the_given_metric(midspan: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 8)
    points = np.eye(10)[labels] + 0.3 * rng.normal(size=(80, 10))
    ids = np.arange(80).astype(np.str_)
    for name, turned in (("a", points), ("b", points @ rng.normal(size=(10, 10)))):
        made = Embeddings(ids, turned.astype(np.float32), Space(name, 10), {"labels": labels})
        made.save(tmp_path / f"{name}.npz")
    words = ["--source", str(tmp_path / "a.npz"), "--target", str(tmp_path / "b.npz"), "--json"]
    words += ["--methods", "procrustes"]
    for metric, shown in (("map", "mAP"), ("mrr", "MRR")):
        code, out, err = midspan("bridge", "compare", *words, "--metric", metric)
        assert code in (0, 1, 3), err
        assert shown in json.loads(out)["metric"]
    assert midspan("bridge", "compare", *words, "--metric", "ndcg")[0] == 2


def test_batch_size_of_gallery_create_reaches_the_encoder(
    midspan: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from midspan.encoders import build_encoder, embedding

    folder = build_encoder(backbone="small-cnn", dim=8, name="tiny").save(tmp_path / "encoder")
    (tmp_path / "photos").mkdir()
    for number in range(5):
        Image.new("RGB", (9, 9), (50 * number, 9, 9)).save(tmp_path / "photos" / f"{number}.png")
    sizes: list[int] = []
    blocks = embedding._blocks

    def noted(count: int, size: int) -> Any:
        sizes.append(size)
        return blocks(count, size)

    monkeypatch.setattr(embedding, "_blocks", noted)
    images = ["--images", tmp_path / "photos", "--encoder", folder, "--runtime", "torch"]
    code, _, err = midspan("gallery", "create", tmp_path / "a.midspan", *images, "--batch-size", 2)
    assert (code, set(sizes)) == (0, {2}), err


def test_data_split_unknown_class_error_lists_some(midspan: Command, tmp_path: Path) -> None:
    for kind in ("ant", "bee", "cat", "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "photos" / kind / "1.png")
    words = ["--classes", "zebra", "--out", tmp_path / "a.csv"]
    code, _, err = midspan("data", "split", tmp_path / "photos", *words)
    assert code == 2
    assert "'ant', 'bee', 'cat' … (4 names)" in err


@pytest.fixture
def old(tmp_path: Path) -> Path:
    ids = np.array([f"a-very-long-id-{'x' * 120}-{number}" for number in range(4)])
    labels = np.array(["cat", "cat", "dog", "dog"])
    vectors = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], dtype=np.float32)
    made = Embeddings(ids, vectors, Space("tiny", 2), {"labels": labels})
    return made.save(tmp_path / "old.npz")


def test_former_option_names_still_work(midspan: Command, old: Path, tmp_path: Path) -> None:
    shop = tmp_path / "shop.midspan"
    code, _, err = midspan("gallery", "create", shop, "--embeddings", old)
    assert code == 0, err
    code, out, err = midspan("eval", "--query", old, "--metrics=map", "--json")
    assert (code, json.loads(out)["metrics"]["map"]) == (0, 1.0), err


def test_table_in_a_pipe_shows_full_ids(
    midspan: Command, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = tmp_path / "shop.midspan"
    midspan("gallery", "create", shop, "--vectors", old)
    monkeypatch.setenv("COLUMNS", "60")
    code, out, err = midspan("gallery", "search", shop, "--vectors", old, "-k", 1)
    assert code == 0, err
    assert all(id in out for id in Embeddings.load(old).ids.tolist())


def test_gallery_search_image_embeds_it(
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


def test_doctor_lists_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    known = {extra for _, _, extra, _ in doctor.LIBRARIES if extra}
    development = {"all", "dev", "docs", "demo", "test"}
    assert known == set(extras) - development
    assert all(doctor._library(*entry)["extra"] == entry[2] for entry in doctor.LIBRARIES)
