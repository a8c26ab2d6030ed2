from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import ImageFont

from midspan.data import ImageSet, font_glyphs, glyphs
from midspan.data.font_glyphs import CAPITALS_ONLY, CHARACTERS, font_files, render
from midspan.errors import ConfigError, DataError
from midspan.image_size import ImageSize
from midspan.labels import ClassNames

FAMILIES = ("Lato-Regular", "Roboto-Bold", "OpenSans-Italic")


@pytest.fixture(scope="module")
def fonts() -> list[Path]:
    try:
        return font_files()
    except DataError:
        pytest.skip("the fonts of trdg are not installed")


def some(fonts: list[Path], *names: str) -> list[Path]:
    return [path for path in fonts if path.stem in names]


@pytest.fixture
def few_fonts_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(font_glyphs, "MIN_FONTS", 1)


@pytest.mark.usefixtures("few_fonts_are_enough")
def test_render_glyph_fills_the_box_and_is_centred(fonts: list[Path]) -> None:
    drawn = render(some(fonts, *FAMILIES), characters="AWI%", size=28)
    assert len(drawn) == 12
    pixels = drawn.load(np.arange(12), ImageSize(28, 28, 1))[..., 0]
    for picture in pixels:
        rows, columns = np.flatnonzero(picture.any(axis=1)), np.flatnonzero(picture.any(axis=0))
        tall, wide = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
        assert max(tall, wide) == 24  # two pixels of margin on each side
        assert abs(rows[0] + rows[-1] - 27) <= 1
        assert abs(columns[0] + columns[-1] - 27) <= 1
    assert pixels.max() == 255
    assert (pixels[:, :2] == 0).all()


@pytest.mark.usefixtures("few_fonts_are_enough")
def test_render_keeps_the_aspect(fonts: list[Path]) -> None:
    (path,) = some(fonts, "Roboto-Bold")
    left, top, right, bottom = ImageFont.truetype(str(path), 400).getbbox("W")
    drawn = render([path], characters="W", size=60)
    picture = drawn.load([0], ImageSize(60, 60, 1))[0, :, :, 0]
    tall, wide = picture.any(axis=1).sum(), picture.any(axis=0).sum()
    assert wide / tall == pytest.approx((right - left) / (bottom - top), rel=0.05)


@pytest.mark.usefixtures("few_fonts_are_enough")
def test_render_gives_labels_ids_and_fonts(fonts: list[Path]) -> None:
    drawn = render(some(fonts, *FAMILIES), characters="BA", size=28)
    assert drawn.class_names == ("B", "A")
    assert drawn.ids.tolist()[:3] == [
        "U+0042/Lato-Regular",
        "U+0042/OpenSans-Italic",
        "U+0042/Roboto-Bold",
    ]
    assert drawn.labels is not None
    assert drawn.labels.tolist() == ["B", "B", "B", "A", "A", "A"]
    assert drawn.columns["font"].tolist() == ["Lato-Regular", "OpenSans-Italic", "Roboto-Bold"] * 2


@pytest.mark.usefixtures("few_fonts_are_enough")
def test_render_character_missing_in_a_font_is_left_out(fonts: list[Path]) -> None:
    """Lato has Cyrillic, Pacifico has not; nobody has Thai or a space with ink."""
    drawn = render(some(fonts, "Lato-Regular", "Pacifico"), characters="AЖ\u0e01 ", size=28)
    assert drawn.ids.tolist() == ["U+0041/Lato-Regular", "U+0041/Pacifico", "U+0416/Lato-Regular"]


@pytest.mark.usefixtures("few_fonts_are_enough")
def test_glyphs_of_equal_shape_share_one_label(fonts: list[Path]) -> None:
    latin_then_cyrillic = render(some(fonts, "Lato-Regular"), characters="AА", size=28)
    assert latin_then_cyrillic.class_names == ("A",)
    capitals = render(some(fonts, "BEBAS___"), characters="Qq", size=28)
    assert capitals.class_names == ("Q",)


def test_render_too_few_fonts_raises_data_error(fonts: list[Path]) -> None:
    with pytest.raises(DataError, match="no character is in 20 of the 3 fonts"):
        render(some(fonts, *FAMILIES), characters="AB", size=28)


def test_characters_are_distinct_and_printable() -> None:
    assert len(set(CHARACTERS)) == len(CHARACTERS)
    assert all(unicodedata.category(character)[0] in "LNPS" for character in CHARACTERS)


def test_glyphs_without_the_fonts_raises_data_error_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'run: pip install --no-deps "trdg==1\.8\.0"'):
        glyphs(cache=tmp_path)


def test_glyphs_wrong_size_raises_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected glyphs of 8 to 256 pixels, got 4"):
        glyphs(cache=tmp_path, size=4)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, fonts: list[Path]) -> None:
    monkeypatch.setattr(font_glyphs, "CHARACTERS", "ABCDEFGHIJ")
    monkeypatch.setattr(font_glyphs, "font_files", lambda: fonts[16:40])


@pytest.mark.usefixtures("quick")
def test_glyphs_second_call_reads_the_cached_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = glyphs(cache=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]
    monkeypatch.setattr(font_glyphs, "font_files", lambda: pytest.fail("rendered again"))
    second = glyphs(cache=tmp_path)
    assert second.ids.tolist() == first.ids.tolist()
    assert second.class_names == first.class_names
    rows = np.arange(len(first))
    assert np.array_equal(
        first.load(rows, ImageSize(28, 28, 1)),
        second.load(rows, ImageSize(28, 28, 1)),
    )


@pytest.mark.usefixtures("quick")
def test_glyphs_damaged_cache_is_rendered_again(tmp_path: Path) -> None:
    count = len(glyphs(cache=tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    assert len(glyphs(cache=tmp_path)) == count
    assert len(glyphs(cache=tmp_path)) == count


@pytest.mark.usefixtures("quick")
def test_glyphs_unwritable_cache_still_gives_images(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    images = glyphs(cache=in_the_way)
    assert len(np.unique(images.labels)) == 10  # type: ignore[arg-type]


@pytest.mark.usefixtures("quick")
def test_glyphs_without_a_cache_argument_use_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "mine"))
    images = glyphs()
    assert images.uri(0).startswith(str(tmp_path / "mine"))


# ---- the whole set ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(fonts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return glyphs(cache=tmp_path_factory.mktemp("glyphs"))


def unit_pictures(images: ImageSet, *, side: int) -> npt.NDArray[np.float64]:
    pixels = images.load(np.arange(len(images)), ImageSize(28, 28, 1))
    step = 28 // side
    pooled = pixels.reshape(-1, side, step, side, step).mean(axis=(2, 4)).reshape(len(images), -1)
    return np.asarray(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))


@pytest.mark.slow
def test_glyphs_whole_set_has_the_documented_counts(whole: ImageSet) -> None:
    assert whole.labels is not None
    per_class = np.unique(whole.labels, return_counts=True)[1]
    assert 350 <= len(whole.class_names) <= 450
    assert per_class.min() >= 20
    assert per_class.max() <= 100
    assert len(whole) > 25_000
    train = set(whole.labels[whole.split == 0].tolist())
    test = set(whole.labels[whole.split == 1].tolist())
    assert not train & test
    assert len(train) / len(whole.class_names) == pytest.approx(300 / 437, abs=0.01)


@pytest.mark.slow
def test_glyphs_small_letters_differ_from_capitals(whole: ImageSet) -> None:
    names = whole.labels
    assert names is not None
    for font in CAPITALS_ONLY:
        drawn = names[whole.columns["font"] == font]
        assert len(drawn) > 50
        assert not any(character.islower() for character in drawn)


@pytest.mark.slow
def test_glyphs_of_one_font_are_distinct(whole: ImageSet) -> None:
    pictures, fonts = unit_pictures(whole, side=28), whole.columns["font"]
    for font in np.unique(fonts):
        own = pictures[fonts == font]
        assert (own @ own.T - 2 * np.eye(len(own))).max() < 0.99 + 1e-6


@pytest.mark.slow
def test_glyph_classes_are_distinct(whole: ImageSet) -> None:
    """Mean cosine of two characters over the fonts that have both, at 14 x 14.

    For comparison: A and the Cyrillic А have 1.00, c and C 0.93, u and U 0.88.
    """
    assert whole.labels is not None
    pictures, fonts = unit_pictures(whole, side=14), whole.columns["font"]
    count = len(whole.class_names)
    numbers = ClassNames(whole.class_names).encode(whole.labels)
    total, shared = np.zeros((count, count)), np.zeros((count, count))
    for font in np.unique(fonts):
        rows = np.flatnonzero(fonts == font)
        place = np.ix_(numbers[rows], numbers[rows])
        total[place] += pictures[rows] @ pictures[rows].T
        shared[place] += 1
    mean = total / np.maximum(shared, 1) - 2 * np.eye(count)
    closest = np.unravel_index(mean.argmax(), mean.shape)
    assert mean.max() < 0.975, [whole.class_names[label] for label in closest]
    number = {name: label for label, name in enumerate(whole.class_names)}
    for small, label in number.items():
        if small.upper() in number and small.upper() != small and small != "i":  # i has its dot
            assert mean[label, number[small.upper()]] < 0.85, small


@pytest.mark.slow
def test_glyphs_of_one_character_are_alike_over_fonts(whole: ImageSet) -> None:
    """The nearest other picture from another family is mostly the same character."""
    assert whole.labels is not None
    pictures, fonts = unit_pictures(whole, side=28), whole.columns["font"]
    families = np.array([font.split("-")[0].split("_")[0] for font in fonts])
    queries = np.flatnonzero(fonts == "Roboto-Regular")
    others = np.flatnonzero(families == "Lato")
    nearest = others[(pictures[queries] @ pictures[others].T).argmax(axis=1)]
    known = np.isin(whole.labels[queries], whole.labels[others])
    right = whole.labels[nearest] == whole.labels[queries]
    assert right[known].mean() > 0.6
