from __future__ import annotations

import json
import os
import tarfile
import tracemalloc
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from midspan.data import folder, open_images, webdataset
from midspan.errors import DataError, FormatError, ImageError
from midspan.image_size import ImageSize
from tests.data.shards import picture, write_shard


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


def four_shards(tmp_path: Path) -> str:
    """Twelve images of three classes, the value of each is 20 times its number."""
    for shard in range(4):
        entries: dict[str, bytes | str] = {}
        for number in range(3 * shard, 3 * shard + 3):
            entries[f"c{number % 3}/{number:02}.png"] = picture(20 * number)
            entries[f"c{number % 3}/{number:02}.cls"] = f"c{number % 3}\n"
        write_shard(tmp_path / "shards" / f"train-{shard:03}.tar", entries)
    return str(tmp_path / "shards" / "train-{000..003}.tar")


def test_webdataset_equals_the_folder_of_the_same_images(tmp_path: Path) -> None:
    shards = webdataset(four_shards(tmp_path))
    for number in range(12):
        path = tmp_path / "set" / f"c{number % 3}" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(20 * number))
    files = folder(tmp_path / "set")
    order = np.argsort(shards.ids)
    assert shards.ids[order].tolist() == files.ids.tolist()
    assert shards.class_names == files.class_names
    assert shards.labels is not None
    assert files.labels is not None
    assert shards.labels[order].tolist() == files.labels.tolist()
    for rows in ([11, 0, 5, 5], [3], list(range(12))):
        np.testing.assert_array_equal(
            shards[order].load(rows, ImageSize(7, 9, 3, "crop")),
            files.load(rows, ImageSize(7, 9, 3, "crop")),
        )


def test_open_images_takes_a_pattern_and_one_shard(tmp_path: Path) -> None:
    pattern = four_shards(tmp_path)
    assert len(open_images(pattern)) == 12
    one = open_images(tmp_path / "shards" / "train-002.tar")
    assert one.ids.tolist() == ["c0/06.png", "c1/07.png", "c2/08.png"]
    assert one.streamed
    assert not webdataset(pattern, decode_once=True).streamed


def test_webdataset_json_gives_labels_and_columns(tmp_path: Path) -> None:
    facts = [{"label": 11, "track": "x", "w": 3}, {"label": 7, "track": "y", "deep": {"a": [1]}}]
    entries: dict[str, bytes | str] = {}
    for number, fact in enumerate(facts):
        entries |= {f"{number}.jpg": picture(9, kind="JPEG"), f"{number}.json": json.dumps(fact)}
    images = webdataset(write_shard(tmp_path / "a.tar", entries), columns=("track",))
    assert images.class_names == ("7", "11")  # as numbers, not as text
    assert images.labels is not None
    assert images.labels.tolist() == ["11", "7"]
    assert images.columns["track"].tolist() == ["x", "y"]
    other = webdataset(tmp_path / "a.tar", label="track")
    assert other.class_names == ("x", "y")
    with pytest.raises(DataError, match=r"1 of 2 images have no value for 'w' .* first .*#1\.jpg"):
        webdataset(tmp_path / "a.tar", columns=("w",))
    # a list under the key is no label: both samples that are read say so
    with pytest.raises(ImageError, match="expected a text or a number"):
        webdataset(tmp_path / "a.tar", label="deep", strict=True)


def test_webdataset_test_shards_become_the_test_split(tmp_path: Path) -> None:
    write_shard(tmp_path / "test.tar", {"t.png": picture(1), "t.cls": "new"})
    images = webdataset(four_shards(tmp_path), test=str(tmp_path / "test.tar"))
    assert len(images.train) == 12
    assert images.test.ids.tolist() == ["t.png"]


def test_webdataset_without_labels_has_none(tmp_path: Path) -> None:
    images = webdataset(write_shard(tmp_path / "a.tar", {"1.png": picture(1), "1.txt": "a cat"}))
    assert images.labels is None
    assert images.uri(0) == f"{tmp_path / 'a.tar'}#1.png"


def test_webdataset_metadata_entries_are_left_out(tmp_path: Path) -> None:
    entries = {"__meta__/a.png": picture(1), "__index__": b"", "__mine.png": picture(2)}
    images = webdataset(write_shard(tmp_path / "a.tar", entries))
    assert images.ids.tolist() == ["__mine.png"]
    assert images.skipped == ()


def test_webdataset_missing_label_raises(tmp_path: Path) -> None:
    entries = {"1.png": picture(1), "2.png": picture(2), "2.cls": b"b", "1.cls": b"a"}
    with pytest.raises(DataError, match=r"1 of 2 images have no label .*follow each other"):
        webdataset(write_shard(tmp_path / "a.tar", entries))  # 1.cls does not follow 1.png


def test_webdataset_two_images_in_a_sample_requires_a_choice(tmp_path: Path) -> None:
    entries = {"1.jpg": picture(1, kind="JPEG"), "1.seg.png": picture(200)}
    path = write_shard(tmp_path / "a.tar", entries)
    with pytest.raises(DataError, match=r"2 images \(jpg, seg\.png\).*image = 'jpg'"):
        webdataset(path)
    assert webdataset(path, image="seg.png").ids.tolist() == ["1.seg.png"]
    with pytest.raises(DataError, match=r"no images in 1 shards, 1 skipped, first .*no image"):
        webdataset(path, image="webp")


def test_webdataset_cls_and_json_that_differ_raise(tmp_path: Path) -> None:
    good = {"0.png": picture(1), "0.cls": b"a", "0.json": b'{"label": "a"}'}
    bad = {"1.png": picture(1), "1.cls": b"a", "1.json": b'{"label": "b"}'}
    images = webdataset(write_shard(tmp_path / "a.tar", {**good, **bad}))
    assert images.ids.tolist() == ["0.png"]
    assert "says 'a'" in images.skipped[0].reason


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"x.png": b"no picture"}, "is not a JPEG"),
        ({"x.png": b""}, "is empty"),
        ({"x.png": picture(1)[:20]}, "broken header"),
        ({"x.png": picture(1), "x.json": "{"}, "JSON is not readable"),
        ({"x.png": picture(1), "x.json": "[" * 100_000}, "JSON is not readable"),
        ({"x.png": picture(1), "x.json": "[1]"}, "expected an object, got a list"),
        ({"x.png": picture(1), "x.cls": b"\xff"}, "not text in UTF-8"),
        ({"x.png": picture(1), "x.cls": "a\nb"}, "control characters"),
        ({"x.png": picture(1), "x.cls": "a" * (2**20 + 1)}, "at most"),
        ({"x.json": "{}"}, "has no image"),
        ({"../x.png": picture(1)}, "leads out"),
        ({"/etc/x.png": picture(1)}, "leads out"),
        ({"a/../../x.png": picture(1)}, "leads out"),
        ({"x\x1b[2J.png": picture(1)}, "control characters"),
        ({"x\udcff.png": picture(1)}, "not valid UTF-8"),
    ],
)
def test_webdataset_broken_samples_are_skipped_with_a_reason(
    tmp_path: Path, entries: dict[str, bytes | str], reason: str
) -> None:
    path = write_shard(tmp_path / "a.tar", {"good.png": picture(3), **entries})
    images = webdataset(path)
    assert images.ids.tolist() == ["good.png"]
    assert len(images.skipped) == 1
    assert reason in images.skipped[0].reason
    assert images.skipped[0].path.startswith("a.tar#")
    assert images.skipped[0].path.isprintable()
    with pytest.raises(ImageError, match=reason):
        webdataset(path, strict=True)


def test_webdataset_links_and_folders_are_not_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        directory = tarfile.TarInfo("cat")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        link = tarfile.TarInfo("cat/passwd.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        member = tarfile.TarInfo("cat/good.png")
        member.size = len(picture(3))
        tar.addfile(member, BytesIO(picture(3)))
    images = webdataset(tmp_path / "a.tar")
    assert images.ids.tolist() == ["cat/good.png"]
    assert [str(item) for item in images.skipped] == [
        "a.tar#cat/passwd: is a link or a device, not a file"
    ]


def test_webdataset_truncated_image_is_noticed_when_decoded(
    tmp_path: Path, truncated_jpeg: bytes
) -> None:
    path = write_shard(tmp_path / "a.tar", {"1.png": picture(1), "2.jpg": truncated_jpeg})
    images = webdataset(path)
    assert len(images) == 2
    with pytest.raises(ImageError, match=r"a\.tar#2\.jpg: cannot be decoded"):
        images.load([0, 1], ImageSize(8, 8, 3))
    got = images.load_readable([0, 1], ImageSize(8, 8, 3))
    assert got.rows.tolist() == [0]
    assert "cannot be decoded" in got.failed[0][1]
    assert webdataset(path, check="decode").ids.tolist() == ["1.png"]


@pytest.mark.parametrize("cut", ["between", "inside", "no end", "damaged", "empty"])
def test_webdataset_damaged_shard_raises(tmp_path: Path, cut: str) -> None:
    path = write_shard(tmp_path / "a.tar", {f"{n}.png": picture(n) for n in range(5)})
    whole = path.read_bytes()
    with tarfile.open(path) as tar:
        third = tar.getmember("3.png")
    broken = {
        "between": whole[: third.offset],
        "inside": whole[: third.offset_data + 10],
        "no end": whole[: third.offset + 700],
        "damaged": whole[: third.offset] + b"\xff" * 512 + whole[third.offset + 512 :],
        "empty": b"",
    }[cut]
    path.write_bytes(broken)
    expected = {"damaged": "damaged header, at byte", "empty": "at its beginning"}
    with pytest.raises(FormatError, match=expected.get(cut, r"after '\d\.png'|cut off")):
        webdataset(path)


def test_webdataset_compressed_shard_raises(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    with pytest.raises(FormatError, match="packed with gzip"):
        webdataset(tmp_path / "a.tar")


def test_webdataset_duplicate_names_raise_data_error(tmp_path: Path) -> None:
    for number in range(2):
        write_shard(tmp_path / f"{number}.tar", {"1.png": picture(1)})
    with pytest.raises(DataError, match=r"1\.tar#1\.png: this name is also in .*0\.tar#1\.png"):
        webdataset(str(tmp_path / "{0,1}.tar"))
    with pytest.raises(DataError, match="listed twice"):
        webdataset(str(tmp_path / "{0,0}.tar"))
    with tarfile.open(tmp_path / "2.tar", "w") as tar:
        for _ in range(2):
            member = tarfile.TarInfo("1.png")
            member.size = len(picture(1))
            tar.addfile(member, BytesIO(picture(1)))
    with pytest.raises(FormatError, match="duplicate file name"):
        webdataset(tmp_path / "2.tar")


def test_webdataset_missing_or_remote_shards_raise_data_error(tmp_path: Path) -> None:
    write_shard(tmp_path / "0.tar", {"1.png": picture(1)})
    with pytest.raises(DataError, match=r"2 of 3 shards are not there, first .*1\.tar"):
        webdataset(str(tmp_path / "{0..2}.tar"))
    (tmp_path / "d.tar").mkdir()
    with pytest.raises(DataError, match="is not a file"):
        webdataset(tmp_path / "d.tar")
    for place in ("https://example.org/a.tar", "s3://bucket/a.tar", "pipe:cat a.tar"):
        with pytest.raises(DataError, match="nothing is fetched"):
            webdataset(place)
    with pytest.raises(DataError, match="nothing is fetched"):
        open_images("https://example.org/a.tar")
    with pytest.raises(DataError, match="at most 100,000"):
        webdataset(str(tmp_path / "{0..99999999}-{a,b}.tar"))


def test_webdataset_index_is_cached_until_the_file_changes(tmp_path: Path, own_cache: Path) -> None:
    pattern = four_shards(tmp_path)
    first = webdataset(pattern)
    kept = {path: path.stat().st_mtime_ns for path in own_cache.iterdir()}
    assert len(kept) == 4
    again = webdataset(pattern)
    assert {path: path.stat().st_mtime_ns for path in own_cache.iterdir()} == kept
    assert again.ids.tolist() == first.ids.tolist()
    assert again.source.signature() == first.source.signature()
    next(iter(kept)).write_bytes(b"damaged")
    assert webdataset(pattern).ids.tolist() == first.ids.tolist()
    changed = write_shard(
        tmp_path / "shards" / "train-000.tar", {"c0/new.png": picture(9), "c0/new.cls": "c0"}
    )
    assert "c0/new.png" in webdataset(pattern).ids
    with pytest.raises(ImageError, match="changed while it was in use"):
        first.load([0], ImageSize(8, 8, 3))
    os.unlink(changed)
    with pytest.raises(ImageError, match=r"train-000\.tar#c0/00\.png: cannot be read"):
        first.load([0], ImageSize(8, 8, 3))


def test_webdataset_memory_is_independent_of_the_shard_size(tmp_path: Path) -> None:
    """A shard of 45 MB is indexed and read in batches in less than a tenth of that."""
    big = picture(7, kind="BMP", height=500, width=500)  # 0.75 MB
    path = write_shard(tmp_path / "a.tar", {f"{n:03}.bmp": big for n in range(60)})
    write_shard(tmp_path / "b.tar", {"first.bmp": big})
    webdataset(tmp_path / "b.tar")  # imports are not what is measured
    tracemalloc.start()
    try:
        images = webdataset(path)
        for start in range(0, 60, 4):
            images.load(np.arange(start, start + 4), ImageSize(32, 32, 3))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 45e6
    assert peak < 4.5e6
