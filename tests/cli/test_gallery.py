"""`midspan gallery`: fill it, search it, look at it, move it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from midspan import Embeddings, Space
from tests.cli.conftest import Command

OLD = Space("old", 8, fingerprint="f-old")
NEW = Space("new", 8, fingerprint="f-new", compatible_with=("f-old",))
OTHER = Space("other", 8, fingerprint="f-other")


def vectors(path: Path, space: Space, ids: range) -> Path:
    rng = np.random.default_rng(3)
    return Embeddings(
        ids=np.array([f"i{n}" for n in ids]),
        vectors=rng.normal(size=(50, 8)).astype(np.float32)[list(ids)],
        space=space,
        columns={"labels": np.array([n % 5 for n in ids])},
    ).save(path)


def test_gallery_create_add_search_info_verify_copy_work(midspan: Command, tmp_path: Path) -> None:
    place = tmp_path / "shop.midspan"
    first = vectors(tmp_path / "a.npz", OLD, range(30))
    more = vectors(tmp_path / "b.npz", OLD, range(30, 50))
    assert midspan("gallery", "create", place, "--embeddings", first)[0] == 0
    code, out, _ = midspan("gallery", "add", place, "--embeddings", more, "--json")
    assert code == 0
    document = json.loads(out)
    assert (document["items"], document["by_space"], document["failed"]) == (50, {"old": 50}, 0)
    assert document["upgrade"] is None

    query = vectors(tmp_path / "q.npz", NEW, range(10))  # a compatible encoder's queries
    code, out, _ = midspan("gallery", "search", place, "--vectors", query, "-k", 3, "--json")
    assert code == 0
    results = json.loads(out)["results"]
    assert [len(hits) for hits in results] == [3] * 10
    assert [hits[0]["id"] for hits in results] == [f"i{n}" for n in range(10)]
    assert set(results[0][0]) == {"id", "score", "rank_score", "space"}
    code, out, _ = midspan(
        "gallery", "search", place, "--vectors", query, "--filter", '{"labels": 2}', "--json"
    )
    assert all(int(hit["id"][1:]) % 5 == 2 for hits in json.loads(out)["results"] for hit in hits)

    assert midspan("gallery", "verify", place)[0] == 0
    code, out, _ = midspan("gallery", "copy", place, tmp_path / "twin.midspan", "--json")
    assert code == 0
    assert (
        json.loads(midspan("gallery", "info", tmp_path / "twin.midspan", "--json")[1])["items"]
        == 50
    )


def test_gallery_refused_command_changes_nothing(midspan: Command, tmp_path: Path) -> None:
    place = tmp_path / "shop.midspan"
    first = vectors(tmp_path / "a.npz", OLD, range(30))
    other = vectors(tmp_path / "o.npz", OTHER, range(30, 50))
    assert midspan("gallery", "create", place, "--embeddings", first)[0] == 0
    for words in (
        ["add", place, "--embeddings", other],  # a space it does not know
        ["add", place, "--embeddings", first],  # ids that are there
        ["create", place, "--embeddings", first],  # a gallery that is there
        ["add", place],
        ["add", place, "--images", tmp_path],
        ["search", place, "--vectors", other],
        ["search", place, "--vectors", first, "--filter", "{nonsense"],
        ["search", place, "--vectors", first, "--filter", "[1]"],
        ["info", tmp_path / "none.midspan"],
    ):
        code, out, err = midspan("gallery", *words)
        assert code == 2, words
        assert out == ""
        assert err.splitlines()[-1].startswith("error: "), words
    assert json.loads(midspan("gallery", "info", place, "--json")[1])["items"] == 30
    assert midspan("gallery", "add", place, "--embeddings", first, "--replace")[0] == 0


def test_gallery_quantise_is_set_and_changed(midspan: Command, tmp_path: Path) -> None:
    place = tmp_path / "shop.midspan"
    first = vectors(tmp_path / "a.npz", OLD, range(30))
    code, _, err = midspan("gallery", "create", place, "--embeddings", first, "--quantise", "int4")
    assert code == 2
    assert "expected one of none, int8, binary" in err
    assert not place.exists()
    code, out, _ = midspan(
        "gallery", "create", place, "--embeddings", first, "--quantise", "int8", "--json"
    )
    assert (code, json.loads(out)["quantise"], json.loads(out)["items"]) == (0, "int8", 30)
    code, out, _ = midspan("gallery", "quantise", place, "binary", "--json")
    assert (code, json.loads(out)["quantise"]) == (0, "binary")
    code, out, _ = midspan("gallery", "info", place)
    assert code == 0
    assert "too few for an index; with one: 1 bit per dimension" in " ".join(out.split())
    code, _, err = midspan("gallery", "quantise", place, "half")
    assert code == 2
    assert "expected one of" in err
    code, _, err = midspan(
        "gallery", "create", "memory:", "--embeddings", first, "--quantise", "binary"
    )
    assert code == 2
    assert "exact" in err
