from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.data import folder, from_npz, npz, save_npz
from midspan.errors import DataError, FormatError
from midspan.image_size import ImageSize
from tests.data.conftest import WriteImage

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(**arrays: Any) -> Path:
        path = tmp_path / "set.npz"
        np.savez(path, **{"images": IMAGES, **arrays})
        return path

    return write


def test_npz_arrays_become_columns_of_the_set(file: Any) -> None:
    path = file(
        labels=np.array([1, 0, 2, 0]),
        split=np.array([0, 0, 1, 0]),
        class_name=np.array(["ant", "bee", "cat"]),
        drawer=np.array([7, 8, 9, 7], dtype=np.uint8),
        font_name=np.array(["not", "one", "for", "each", "image"]),
        version=np.array(3),
    )
    images = npz(path)
    assert np.array_equal(images.load([2, 0], ImageSize(6, 5, 3)), IMAGES[[2, 0]])
    assert images.labels is not None
    assert images.labels.tolist() == ["bee", "ant", "cat", "ant"]
    assert images.class_names == ("ant", "bee", "cat")
    assert images.test.ids.tolist() == ["set#2"]
    assert list(images.columns) == ["drawer"]
    assert images.columns["drawer"].tolist() == [7, 8, 9, 7]
    assert images.uri(3) == f"{path}#3"


def test_npz_images_without_labels_are_read(file: Any) -> None:
    images = npz(file())
    assert (images.labels, images.split, images.class_names) == (None, None, ())
    assert images.ids.tolist() == ["set#0", "set#1", "set#2", "set#3"]


def test_npz_ids_of_the_file_are_kept(file: Any) -> None:
    assert npz(file(ids=np.array(["w", "x", "y", "z"]))).ids.tolist() == ["w", "x", "y", "z"]
    with pytest.raises(
        DataError, match=r"set\.npz: expected unique ids, got 1 duplicates, first 'x'"
    ):
        npz(file(ids=np.array(["w", "x", "x", "z"])))


@pytest.mark.parametrize(
    ("given", "labels", "names"),
    [
        ([0, 1, 1, 0], ["0", "1", "1", "0"], ("0", "1")),
        ([10, -3, 10, 7], ["10", "-3", "10", "7"], ("-3", "7", "10")),
        (["dog", "cat", "dog", "cat"], ["dog", "cat", "dog", "cat"], ("cat", "dog")),
        ([True, False, True, True], ["True", "False", "True", "True"], ("False", "True")),
    ],
)
def test_npz_labels_of_any_type_become_names(
    file: Any, given: list[Any], labels: list[str], names: tuple[str, ...]
) -> None:
    images = npz(file(labels=np.array(given)))
    assert images.labels is not None
    assert images.labels.tolist() == labels
    assert images.class_names == names


def test_npz_labels_with_gaps_keep_their_class_names(file: Any) -> None:
    path = file(labels=np.array([4, 1, 1, 4]), class_name=np.array(list("abcde")))
    images = npz(path)
    assert images.labels is not None
    assert images.labels.tolist() == ["e", "b", "b", "e"]
    assert images.class_names == ("a", "b", "c", "d", "e")


def test_npz_duplicate_class_names_raise_data_error(file: Any) -> None:
    path = file(labels=np.array([0, 1, 2, 0]), class_name=np.array(["ant", "bee", "ant"]))
    with pytest.raises(DataError, match="1 class names are duplicates, first 'ant'"):
        npz(path)


def test_npz_grey_without_a_channel_axis_is_read(file: Any) -> None:
    images = npz(file(images=IMAGES[..., 0]))
    assert images.load([1], ImageSize(6, 5, 1)).shape == (1, 6, 5, 1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.array([0, 1])}, r"expected one whole number or name .* got int64\(2,\)"),
        ({"labels": np.array([0.5] * 4)}, r"got float64\(4,\)"),
        ({"labels": np.zeros((4, 2), dtype=int)}, r"each of the 4 images, got int64\(4, 2\)"),
        ({"labels": np.arange(4), "class_name": np.array(["a"])}, "1 class names, but labels from"),
        ({"split": np.array([0, -1, 0, 1])}, "set.npz: split: expected .* got -1 in row 1"),
        ({"split": np.array([0, 1])}, r"set.npz: split of shape \(2,\) for 4 images"),
        ({"images": IMAGES.astype(np.float32)}, "expected uint8 images, got float32; scale them"),
        ({"images": IMAGES.astype(np.int64)}, "expected uint8 images, got int64$"),
        (
            {"images": np.zeros((4, 6, 5, 2), np.uint8)},
            r"expected images \(N, H, W, C\) .*, got shape \(4, 6, 5, 2\)",
        ),
        ({"images": np.zeros((4, 0, 5, 3), np.uint8)}, r"shape \(4, 0, 5, 3\)"),
        ({"images": np.zeros(4, np.uint8)}, r"shape \(4,\)"),
    ],
)
def test_npz_mismatched_arrays_raise(file: Any, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, FormatError), match=message):
        npz(file(**arrays))


def test_npz_object_arrays_are_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, images=IMAGES, labels=np.array([{}, 1, 2, 3], dtype=object))
    with pytest.raises(FormatError, match="'labels' holds Python objects, which could run code"):
        npz(path)


def lying_npz(path: Path, *, shape: tuple[int, ...], content: bytes) -> Path:
    member = BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, header)
    member.write(content)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", member.getvalue())
    return path


def test_npz_header_larger_than_the_file_raises_format_error(tmp_path: Path) -> None:
    path = lying_npz(tmp_path / "lie.npz", shape=(10**6, 1000, 1000, 3), content=b"\0" * 64)
    with pytest.raises(FormatError, match=r"3,000,000,000,000 bytes, but holds 64; .* damaged"):
        npz(path)


def test_npz_larger_than_the_memory_is_refused_before_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lying_npz(tmp_path / "bomb.npz", shape=(2**22, 1, 1, 1), content=b"\0" * 2**22)
    assert path.stat().st_size < 2**14
    monkeypatch.setattr(from_npz, "_memory", lambda: 2**21)

    def never(*_: object, **__: object) -> None:
        pytest.fail("unpacked it")

    monkeypatch.setattr(np, "load", never)
    with pytest.raises(FormatError, match="more than this machine's memory"):
        npz(path)


def test_npz_missing_or_not_npz_raises_format_error(tmp_path: Path, file: Any) -> None:
    with pytest.raises(FormatError, match="no such file"):
        npz(tmp_path / "gone.npz")
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(FormatError, match=r"not a readable \.npz file"):
        npz(text)
    whole = file().read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=r"not a readable \.npz file"):
        npz(cut)
    np.savez(tmp_path / "vectors.npz", vectors=np.zeros((3, 2)))
    with pytest.raises(FormatError, match="these are embeddings, not images"):
        npz(tmp_path / "vectors.npz")
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    with pytest.raises(FormatError, match=r"not a readable \.npz file"):
        npz(tmp_path / "other.npz")


def test_npz_flipped_bytes_raise_format_error(file: Any, tmp_path: Path) -> None:
    whole = bytearray(file(labels=np.array([0, 1, 0, 1])).read_bytes())
    place = bytes(whole).index(IMAGES.tobytes()[:16])
    whole[place] ^= 255
    broken = tmp_path / "broken.npz"
    broken.write_bytes(whole)
    with pytest.raises(FormatError, match="CRC"):
        npz(broken)


def test_save_npz_round_trip_keeps_everything(file: Any, tmp_path: Path) -> None:
    path = file(
        labels=np.array([1, 0, 2, 0]),
        split=np.array([0, 0, 1, 0]),
        class_name=np.array(["ant", "bee", "cat"]),
        drawer=np.array([7, 8, 9, 7]),
    )
    part = npz(path)[[3, 2, 0]]
    again = npz(save_npz(part, tmp_path / "deep" / "part.npz"))
    assert again.ids.tolist() == ["set#3", "set#2", "set#0"]
    assert again.labels is not None
    assert again.labels.tolist() == ["ant", "cat", "bee"]
    assert again.columns["drawer"].tolist() == [7, 9, 7]
    assert np.array_equal(again.load([0, 1, 2], ImageSize(6, 5, 3)), IMAGES[[3, 2, 0]])
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["part.npz"]


def test_save_npz_of_a_folder_requires_decoded_images(
    write_image: WriteImage, tmp_path: Path
) -> None:
    write_image("set/cat/1.png", value=30)
    write_image("set/dog/1.png", value=60)
    files = folder(tmp_path / "set")
    with pytest.raises(DataError, match=r"decode them first with \.cached"):
        save_npz(files, tmp_path / "set.npz")
    saved = npz(save_npz(files.cached(ImageSize(4, 4, 1)), tmp_path / "set.npz"))
    assert saved.class_names == ("cat", "dog")
    assert saved.load([1], ImageSize(4, 4, 1)).tolist() == [[[[60]] * 4] * 4]
