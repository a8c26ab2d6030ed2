"""Labels and spaces as people meet them: folders, files, galleries with other classes in each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from midspan import Embeddings, Space
from midspan.encoders import build_encoder
from tests.cli.conftest import Command


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    made = build_encoder(backbone="small-cnn", dim=16, seed=1, name="tiny", settings={"width": 8})
    return made.save(tmp_path / "encoder")


def photos(folder: Path, classes: dict[str, range]) -> Path:
    """Noisy pictures, a colour for each class."""
    for name, numbers in classes.items():
        colour = np.random.default_rng(int(name[:3])).integers(40, 215, 3)
        (folder / name).mkdir(parents=True)
        for number in numbers:
            noise = np.random.default_rng(number).integers(-40, 40, (32, 32, 3))
            pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{folder.name}{number}.png")
    return folder


def mean_ap(query: Embeddings, gallery: Embeddings) -> float:
    """By the definition, in plain loops, from names."""
    assert query.labels is not None
    assert gallery.labels is not None
    values = []
    for vector, label in zip(query.vectors, query.labels.tolist(), strict=True):
        scores = gallery.vectors @ vector
        hits, precisions = 0, []
        for place, row in enumerate(np.argsort(-scores, kind="stable"), start=1):
            if gallery.labels[row] == label:
                hits += 1
                precisions.append(hits / place)
        if precisions:
            values.append(sum(precisions) / len(precisions))
    return sum(values) / len(values)


A = {"001.Albatross": range(4), "002.Laysan": range(4), "003.Sooty": range(4)}
B = {"002.Laysan": range(10, 14), "003.Sooty": range(10, 14), "004.Groove": range(10, 14)}


def test_eval_folders_with_other_classes_match_by_name(
    midspan: Command, encoder: Path, tmp_path: Path
) -> None:
    for name, classes in {"a": A, "b": B}.items():
        photos(tmp_path / name, classes)
        file = tmp_path / f"{name}.npz"
        assert midspan("embed", encoder, tmp_path / name, "--out", file)[0] == 0
    a, b = Embeddings.load(tmp_path / "a.npz"), Embeddings.load(tmp_path / "b.npz")
    assert a.labels is not None
    assert sorted(set(a.labels.tolist())) == sorted(A)
    code, out, _ = midspan(
        *("eval", "--query", tmp_path / "a.npz", "--gallery", tmp_path / "b.npz", "--json")
    )
    assert code == 0
    assert json.loads(out)["metrics"]["map"] == pytest.approx(mean_ap(a, b), abs=1e-9)

    photos(tmp_path / "c", {"007.Parakeet": range(2), "008.Rhino": range(2)})
    assert midspan("embed", encoder, tmp_path / "c", "--out", tmp_path / "c.npz")[0] == 0
    code, _, err = midspan("eval", "--query", tmp_path / "c.npz", "--gallery", tmp_path / "b.npz")
    assert code != 0
    assert "the query has '007.Parakeet', '008.Rhino', the gallery '002.Laysan', '003.So" in err


def test_gallery_payload_has_the_class_name(
    midspan: Command, encoder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "shop.midspan"
    images = photos(tmp_path / "a", A), photos(tmp_path / "b", B)
    assert midspan("gallery", "create", place, "--images", images[0], "--encoder", encoder)[0] == 0
    assert midspan("gallery", "add", place, "--images", images[1], "--encoder", encoder)[0] == 0
    assert midspan("embed", encoder, images[1], "--out", tmp_path / "b.npz")[0] == 0
    expected = json.dumps({"labels": "002.Laysan"})
    code, out, _ = midspan(
        *("gallery", "search", place, "--vectors", tmp_path / "b.npz", "-k", 20),
        *("--filter", expected, "--json"),
    )
    assert code == 0
    hits = {hit["id"] for hit in json.loads(out)["results"][0]}
    assert hits == {f"002.Laysan/a{n}.png" for n in range(4)} | {
        f"002.Laysan/b{n}.png" for n in range(10, 14)
    }


def test_embed_csv_labels_are_kept_unchanged(
    midspan: Command, encoder: Path, tmp_path: Path
) -> None:
    """Junk of Market-1501 is -1, distractors are 0000."""
    photos(tmp_path / "a", {"001": range(3)})
    lines = [f"001/a{n}.png,{label}" for n, label in enumerate(["-1", "0000", "0002"])]
    (tmp_path / "a" / "list.csv").write_text("\n".join(["path,label", *lines]))
    out = tmp_path / "a.npz"
    assert midspan("embed", encoder, tmp_path / "a" / "list.csv", "--out", out)[0] == 0
    labels = Embeddings.load(out).labels
    assert labels is not None
    assert labels.tolist() == ["-1", "0000", "0002"]


# ---- spaces -------------------------------------------------------------------------------------


def bare(path: Path, *, seed: int = 0, rows: range = range(40), **columns: Any) -> Path:
    """A file of vectors as other tools write it: no space."""
    path.parent.mkdir(exist_ok=True)
    classes = np.array(rows) % 8
    centres = np.random.default_rng(99).normal(size=(8, 12))
    noise = np.random.default_rng(seed).normal(size=(len(rows), 12))
    np.savez(
        path,
        vectors=(centres[classes] + 0.8 * noise).astype(np.float32),
        ids=np.array([f"i{row}" for row in rows]),
        labels=classes,
        **columns,
    )
    return path


def test_file_without_a_space_requires_its_name(midspan: Command, tmp_path: Path) -> None:
    queries, gallery = bare(tmp_path / "queries.npz"), bare(tmp_path / "gallery.npz", seed=1)
    ask = ("eval", "--query", queries, "--gallery", gallery)
    code, _, err = midspan(*ask)
    assert code != 0
    assert "queries.npz: does not say which space its 12-d vectors are in" in err
    assert "(here: --space query=NAME)" in err
    assert midspan(*ask, "--space", "r50")[0] == 0
    assert midspan(*ask, "--space", "query=r50", "--space", "gallery=r50")[0] == 0
    code, _, err = midspan(*ask, "--space", "query=r50", "--space", "gallery=r18")
    assert code != 0
    assert "no compatibility" in err
    for wrong in (["old=r50"], ["r18", "r50"], ["query="]):
        words = [word for name in wrong for word in ("--space", name)]
        code, _, err = midspan(*ask, *words)
        assert code != 0
        assert "error: --space" in err


def test_space_option_for_a_file_of_another_space_exits_2(midspan: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    Embeddings.load(bare(path), space="r18").save(path)
    assert midspan("eval", "--query", path)[0] == 0
    code, _, err = midspan("eval", "--query", path, "--space", "r50")
    assert code != 0
    assert "its vectors are in 'r18'" in err


def test_space_option_is_recorded_in_the_file(midspan: Command, tmp_path: Path) -> None:
    old, new = bare(tmp_path / "v1" / "emb.npz"), bare(tmp_path / "v2" / "emb.npz", seed=1)
    names = ("--space", "source=r18", "--space", "target=r50")
    fit = ("bridge", "fit", "--source", old, "--target", new, "--out", tmp_path / "bridge")
    assert midspan(*fit, "--method", "ridge", *names)[0] == 0
    mapped = tmp_path / "mapped.npz"
    apply = ("bridge", "apply", tmp_path / "bridge", "--input", old, "--out", mapped)
    assert midspan(*apply, "--space", "r18")[0] == 0
    assert Embeddings.load(mapped).space.same_as(Space("r50", 12))
    compare = ("compare", "--old", old, "--new", new)
    assert midspan(*compare, "--space", "old=r18", "--space", "new=r50")[0] == 0
    gate = ("gate", "--before", old, "--after", new, "--max-negative-flips", "1")
    assert (
        midspan(*gate, "--min-retention", "0", "--space", "before=r18", "--space", "after=r50")[0]
        == 0
    )

    place = tmp_path / "shop.midspan"
    assert midspan("gallery", "create", place, "--embeddings", old, "--space", "r18")[0] == 0
    search = ("gallery", "search", place, "--vectors", old, "--json")
    code, _, err = midspan(*search)
    assert code != 0
    assert "(here: --space NAME)" in err
    assert midspan(*search, "--space", "r18")[0] == 0
    assert midspan(*search, "--space", "r50")[0] != 0
    more = bare(tmp_path / "more.npz", rows=range(40, 50))
    assert midspan("gallery", "add", place, "--embeddings", more, "--space", "r18")[0] == 0


def test_upgrade_with_files_without_a_space_works(midspan: Command, tmp_path: Path) -> None:
    old, new = bare(tmp_path / "v1" / "emb.npz"), bare(tmp_path / "v2" / "emb.npz", seed=1)
    place = tmp_path / "shop.midspan"
    assert midspan("gallery", "create", place, "--embeddings", old, "--space", "r18")[0] == 0
    fit = ("bridge", "fit", "--source", old, "--target", new, "--out", tmp_path / "bridge")
    names = ("--space", "source=r18", "--space", "target=r50")
    assert midspan(*fit, "--method", "ridge", *names)[0] == 0
    to = ("--to", new, "--mode", "map-gallery", "--bridge", tmp_path / "bridge")
    assert "--space NAME" in midspan("upgrade", "plan", place, *to)[2]
    assert midspan("upgrade", "plan", place, *to, "--space", "r50")[0] == 0
    assert midspan("upgrade", "start", place, *to, "--space", "r50")[0] == 0
    shadow = ("--shadow-old", old, "--shadow-new", new)
    spaces = ("--space", "shadow-old=r18", "--space", "shadow-new=r50")
    _, out, err = midspan(
        *("upgrade", "gate", place, *shadow, *spaces, "--json"),
        *("--max-negative-flips", 1, "--min-retention", 0),
    )
    assert json.loads(out)["labelled"], err
    fill = ("upgrade", "run", place, "--embeddings", new, "--space", "embeddings=r50")
    assert midspan(*fill)[0] == 0
    _, out, _ = midspan("gallery", "info", place, "--json")
    assert json.loads(out)["by_space"]["r50"] == 40


@pytest.mark.filterwarnings("default::midspan.labels.NumberedLabels")
def test_numeric_labels_of_an_earlier_version_warn_on_one_line(
    midspan: Command, tmp_path: Path
) -> None:
    space = Space("r50", 12, fingerprint="f-r50")
    files = [
        bare(tmp_path / name, rows=rows, space=np.array(space.to_json()))
        for name, rows in {"a.npz": range(40), "b.npz": range(40, 80)}.items()
    ]
    code, out, err = midspan("eval", "--query", files[0], "--gallery", files[1], "--json")
    assert code == 0
    assert json.loads(out)["n_queries"] == 40
    assert err.startswith("warning: the labels of the query and gallery are numbers")
    assert err.count("\n") == 1
    code, _, err = midspan("gallery", "create", tmp_path / "shop.midspan", "--embeddings", files[0])
    assert code == 0
    assert "warning: the labels of the file are numbers" in err
