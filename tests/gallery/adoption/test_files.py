"""Galleries from files of vectors, and parquet out of galleries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from midspan.errors import FormatError, GalleryError, ItemError, MidspanError
from midspan.gallery import Gallery
from midspan.gallery.adoption.files import FileColumns, open_file
from midspan.gallery.adoption.load import export_parquet, import_file, survey_file
from midspan.spaces import Embeddings
from tests.cli.conftest import Command, midspan  # noqa: F401
from tests.gallery.samples import NEW, OLD, add, embed, found, start, unit

IDS = ["a", "日本", "c d", "e"]
VECTORS = unit(np.random.default_rng(0), 4)


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    file = tmp_path / "ids.txt"
    file.write_text("\n".join(IDS) + "\n", encoding="utf-8")
    return file


def numpy_file(folder: Path, ids: Path) -> Any:
    np.save(folder / "vectors.npy", VECTORS.astype(np.float64))
    return open_file(folder / "vectors.npy", ids=ids)


def parquet_file(folder: Path, ids: Path) -> Any:
    table = pa.table(
        {"key": IDS, "emb": [row.tolist() for row in VECTORS], "brand": ["x", None, "y", "x"]}
    )
    pq.write_table(table, folder / "t.parquet")
    names = FileColumns(id="key", vector="emb", payload=("brand",))
    return open_file(folder / "t.parquet", names=names)


def faiss_file(folder: Path, ids: Path) -> Any:
    index = faiss.IndexFlatIP(VECTORS.shape[1])
    index.add(VECTORS)
    faiss.write_index(index, str(folder / "x.faiss"))
    return open_file(folder / "x.faiss", ids=ids)


def lance_table(folder: Path, ids: Path) -> Any:
    lance = pytest.importorskip("lance")
    flat = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.reshape(-1)), VECTORS.shape[1])
    lance.write_dataset(pa.table({"ids": IDS, "vectors": flat}), str(folder / "x.lance"))
    return open_file(f"lance://{folder}/x.lance")


def test_faiss_file_is_read_as_numpy_after_torch_utils_swapped_faiss(
    tmp_path: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`faiss.contrib.torch_utils` makes `reconstruct_n` return tensors, for the whole process."""
    for kind in (faiss.IndexFlat, faiss.IndexFlatIP):
        monkeypatch.setattr(kind, "reconstruct_n", lambda *_: pytest.fail("swapped"), raising=False)
    [part] = faiss_file(tmp_path, ids).parts(10)
    assert np.array_equal(part.vectors, VECTORS)


@pytest.mark.parametrize("make", [numpy_file, parquet_file, faiss_file, lance_table])
def test_adopt_files_of_vectors_become_a_gallery(make: Any, tmp_path: Path, ids: Path) -> None:
    file = make(tmp_path, ids)
    survey = survey_file(file)
    gallery, skipped = import_file(tmp_path / "g.midspan", file, space_name="old", metric="cosine")
    with gallery:
        assert (survey.rows, survey.dim, survey.normalised, skipped) == (4, 8, True, 0)
        assert sorted(item.id for item in gallery.scan(limit=9)) == sorted(IDS)
        assert found(gallery.search(VECTORS, k=1, space=gallery.space)) == [[id] for id in IDS]
        held = gallery.vectors(IDS, space=gallery.space.fingerprint)
        assert np.allclose(held.vectors, VECTORS)
        if make is parquet_file:
            assert gallery.get("a").payload == {"brand": "x"}
            assert gallery.get("日本").payload == {}


def test_adopt_rows_without_a_usable_vector_are_counted_and_left_out(tmp_path: Path) -> None:
    rows = [VECTORS[0].tolist(), None, [0.0] * 8, [float("nan")] + [1.0] * 7, VECTORS[0].tolist()]
    pq.write_table(pa.table({"ids": list("abcde"), "vectors": rows}), tmp_path / "t.parquet")
    file = open_file(tmp_path / "t.parquet")

    survey = survey_file(file)
    gallery, skipped = import_file(tmp_path / "g.midspan", file, space_name="old")

    with gallery:
        assert (survey.without, survey.zero, survey.unusable, survey.duplicates) == (1, 1, 1, 1)
        assert skipped == 3
        assert sorted(item.id for item in gallery.scan(limit=9)) == ["a", "e"]


def test_adopt_interrupted_import_continues(tmp_path: Path, ids: Path) -> None:
    file = numpy_file(tmp_path, ids)
    import_file(tmp_path / "g.midspan", file, space_name="old")[0].close()
    gallery, _ = import_file(tmp_path / "g.midspan", file, space_name="old")
    with gallery:
        assert len(gallery) == 4
    with pytest.raises(GalleryError, match="holds vectors of"):
        import_file(tmp_path / "g.midspan", file, space_name="another")


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("x.npy", b"no array", "not a readable .npy"),
        ("x.parquet", b"no table", "not a readable parquet"),
        ("x.faiss", b"no index at all", "not a faiss index"),
        ("x.csv", b"", "expected .npy, .parquet"),
    ],
)
def test_adopt_unreadable_file_raises(
    tmp_path: Path, name: str, content: bytes, match: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=match):
        open_file(tmp_path / name)


def test_adopt_mismatched_ids_columns_or_dims_raise(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", VECTORS)
    (tmp_path / "two.txt").write_text("a\nb\n")
    with pytest.raises(FormatError, match="has 2 ids"):
        open_file(tmp_path / "v.npy", ids=tmp_path / "two.txt")
    (tmp_path / "same.txt").write_text("a\na\nb\nc\n")
    with pytest.raises(ItemError, match="more than once"):
        import_file(
            tmp_path / "g.midspan",
            open_file(tmp_path / "v.npy", ids=tmp_path / "same.txt"),
            space_name="x",
        )
    pq.write_table(
        pa.table({"ids": ["a", "b"], "vectors": [[1.0], [1.0, 2.0]]}), tmp_path / "m.parquet"
    )
    with pytest.raises(FormatError, match="expected one dim"):
        list(open_file(tmp_path / "m.parquet").parts(10))
    with pytest.raises(FormatError, match="has no column 'emb'"):
        open_file(tmp_path / "m.parquet", names=FileColumns(vector="emb"))


def test_adopt_quantised_faiss_index_raises(tmp_path: Path) -> None:
    index = faiss.IndexScalarQuantizer(8, faiss.ScalarQuantizer.QT_8bit)
    index.train(VECTORS)
    index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "x.faiss"))
    with pytest.raises(FormatError, match="keeps codes"):
        open_file(tmp_path / "x.faiss")


def test_export_is_read_back_by_embeddings_and_by_adopt(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g.midspan", OLD) as gallery:
        add(gallery, ["a", "b"], payloads=[{"n": 1}, {"n": 2}])
        assert export_parquet(gallery, tmp_path / "out.parquet") == 2
    loaded = Embeddings.load(tmp_path / "out.parquet")
    assert loaded.space == OLD
    assert np.array_equal(loaded.vectors, embed(["a", "b"]).vectors)
    copy, _ = import_file(tmp_path / "h.midspan", open_file(tmp_path / "out.parquet"))
    with copy:
        assert len(copy) == 2


def test_cli_adopts_files(
    tmp_path: Path,
    ids: Path,
    midspan: Command,  # noqa: F811
) -> None:
    np.save(tmp_path / "v.npy", VECTORS)
    place = tmp_path / "shop.midspan"
    given = ("gallery", "adopt", place, "--from", tmp_path / "v.npy", "--ids", ids)
    code, out, _ = midspan(*given, "--space-name", "clip", "--dry-run", "--json")
    assert (code, json.loads(out)["rows"], place.exists()) == (0, 4, False)
    code, out, _ = midspan(*given, "--space-name", "clip", "--json")
    assert (code, json.loads(out)["items"]) == (0, 4)
    code, out, _ = midspan("gallery", "export", place, tmp_path / "out.parquet", "--json")
    assert (code, json.loads(out)["items"]) == (0, 4)
    code, _, err = midspan("gallery", "adopt", place, "--space-name", "clip")
    assert code == 2
    assert "--table NAME" in err


def test_adopt_into_an_invalid_location_leaves_no_gallery(tmp_path: Path, ids: Path) -> None:
    with pytest.raises(MidspanError):
        import_file(tmp_path / "no" / "g.midspan", numpy_file(tmp_path, ids), space_name="x")


def test_export_keeps_an_existing_file_and_counts_items_without_a_vector(
    tmp_path: Path,
    midspan: Command,  # noqa: F811
) -> None:
    place, out = str(tmp_path / "g.midspan"), tmp_path / "folder" / "out.parquet"
    with Gallery.create(place, OLD) as gallery:
        labelled = embed(["a", "b", "c"], OLD)
        gallery.add(labelled, payloads=[{"labels": "ant"}, {"labels": "bee"}, {"labels": "ant"}])
    assert midspan("gallery", "export", place, out, "--space", OLD.name)[0] == 0
    assert Embeddings.load(out).columns["labels"].tolist() == ["ant", "bee", "ant"]
    code, _, err = midspan("gallery", "export", place, out)
    assert code == 2
    assert "exists already; choose another name, or add --force" in err
    assert midspan("gallery", "export", place, out, "--force")[0] == 0
    code, _, err = midspan("gallery", "export", place, out, "--force", "--space", "nobody")
    assert code == 2
    assert f"expected one of {OLD.name}" in err
    with Gallery.open(place) as gallery:
        start(gallery)
        add(gallery, ["d"], NEW)
    code, text, _ = midspan("gallery", "export", place, out, "--force", "--json")
    assert code == 1
    assert json.loads(text)["without_vector"] == 3
