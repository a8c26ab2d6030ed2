"""The demo's image set: characters drawn with real fonts. Character = class, font = instance.

The fonts come in the PyPI package trdg 1.8.0 (fonts/latin, 100 files), which is read but
never imported. Each glyph is cropped to its ink, scaled to fill the box with its aspect kept, and
centred; ink = 255 on 0.

Cropping takes size and place away, and with them the only difference between some characters.
So that no label is wrong, look-alikes are left out:

- `CHARACTERS` names one of each group: C for c and the Cyrillic С, O for o and 0, one accent of
  those that are the same at this size. It was chosen by measuring how alike two characters are
  within a font, over all fonts. Dots, dashes and quotes, all blots when enlarged, are not in it.
- Small letters of fonts that draw capitals for them are left out (`CAPITALS_ONLY`).
- Of glyphs of one font that still look the same, the first in `CHARACTERS` is kept.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageFont

from midspan.data.cache import cache_dir
from midspan.data.decode import Pixels
from midspan.data.from_npz import npz, save_npz
from midspan.data.images import ImageSet
from midspan.data.sources import ArraySource
from midspan.errors import ConfigError, DataError, FormatError
from midspan.spaces import fingerprint

CHARACTERS = (
    "!#$%&()*+/123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^abdefghijkmnqrty{}~"
    "¡¢£¤¥¦§©«¬®±µ¶»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæèéêëðñ÷þÿ"
    "ĀāăĄąĆĈĊčĎďđĒēĕĖėĘęĜĝĞĠġĢģĤĥĦħĨĪĬĮĲĳĴĵĶķĹĻļĽľĿŀŁłŃńŅņňŉŊŋŌŏŐŒœŔŕŖŗŘřŚŜŞšŢţŤťŦŧũŪŬŮŰŲųŴŶŹŻŽ"
    "ΆΈΉΊΌΎΏΐΓΔΘΛΞΠΣΦΨΩΫάέήίΰαβγδεζθιλξπρςστφχψωϊώ"
    "ЂЃЄЉЊЋЌЍЎЏБДЖИЙЛУЦЧШЩЪЫЬЭЮЯбфђҐҒҔҖҘҚҞҠҢҤҦҨҬҰҲҴҶҺҼҾӁӃӅӇӋӍӐӖӘӚӛӜӞӠӢӤӪӬӮӰӲӴӶӸӺ"
    "†‡…‰‹›₣₧€ℓ№℮⅔⅛⅜⅞←↑→↓↔∂∏√∞∫≈≠≤≥◊ﬁﬂ"
)
# These fonts draw capitals for small letters, which are therefore left out.
CAPITALS_ONLY = (
    *("AllerDisplay", "Amatic-Bold", "AmaticSC-Regular", "BEBAS___"),
    *("Capture_it", "Capture_it_2", "SEASRN__"),
)
MIN_FONTS = 20  # a character in fewer fonts is left out
TEST_SHARE = 137 / 437  # of the classes
MARGIN = 1 / 14  # of the box on each side, empty: 2 of 28 pixels
DRAWN_AT = 56  # font size in pixels before scaling
ALIKE = 0.99  # cosine from which two glyphs of one font count as the same

_RECIPE = "1"  # raise it when the same characters are drawn differently
_MISSING = "\ufffe\uffff"  # never in a font: drawn, they show its 'no such glyph' sign


def glyphs(
    *, cache: str | Path | None = None, size: int = 28, fonts: int | None = None
) -> ImageSet:
    """385 characters in up to 100 fonts, size x size grey; column `font`.

    Test classes are disjoint from training classes. Rendered in seconds at the first call and kept
    as a file in `cache` (midspan's cache folder). fonts: only so many of them, for a quick look.

    Args:
        cache: Folder to keep the file in.
        size: Height and width.
        fonts: Number of fonts; all by default.

    Returns:
        The images, with a split and the column `font`.

    Raises:
        MissingDependency: The fonts are not installed.

    Example:
        >>> import midspan as ms
        >>> images = ms.data.glyphs(fonts=4)  # doctest: +SKIP
    """
    images = _all_glyphs(cache, size=size)
    if fonts is None:
        return images
    names = np.unique(images.columns["font"])
    if not 2 <= fonts <= len(names):
        raise ConfigError(f"fonts = {fonts}; expected 2 to {len(names)}")
    return images[np.isin(images.columns["font"], names[:fonts])]


def _all_glyphs(cache: str | Path | None, *, size: int) -> ImageSet:
    if not 8 <= size <= 256:
        raise ConfigError(f"expected glyphs of 8 to 256 pixels, got {size}")
    path = (
        Path(cache) if cache is not None else cache_dir()
    ) / f"glyphs{size}-{fingerprint(_RECIPE, CHARACTERS)[:8]}.npz"
    if path.is_file():
        try:
            return npz(path)
        except (FormatError, DataError):
            pass  # damaged: render it again
    drawn = render(font_files(), characters=CHARACTERS, size=size)
    try:
        return npz(save_npz(drawn, path))
    except OSError:  # a cache that cannot be written costs seconds, not the demo
        return drawn


def font_files() -> list[Path]:
    spec = importlib.util.find_spec("trdg")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if files := sorted((Path(place) / "fonts" / "latin").glob("*.ttf")):
            return files
    raise DataError(
        "the image set 'glyphs' is drawn with the fonts in the package trdg, which is not "
        'installed; run: pip install --no-deps "trdg==1.8.0"'
    )


def render(fonts: Sequence[Path], *, characters: str, size: int) -> ImageSet:
    """Every character in every font that has it, ordered by character, then font."""
    pictures: dict[tuple[int, str], Pixels] = {}  # number of the character, font
    for path in fonts:
        for number, picture in _draw(path, characters=characters, size=size).items():
            pictures[number, path.stem] = picture
    fonts_of = Counter(number for number, _ in pictures)
    kept = sorted(key for key in pictures if fonts_of[key[0]] >= MIN_FONTS)
    if not kept:
        raise DataError(f"no character is in {MIN_FONTS} of the {len(fonts)} fonts")
    numbers, labels = np.unique([number for number, _ in kept], return_inverse=True)
    names = tuple(characters[number] for number in numbers)
    in_test = np.isin(np.arange(len(names)), _test_classes(names))
    return ImageSet(
        ids=np.array([f"U+{ord(characters[number]):04X}/{font}" for number, font in kept]),
        source=ArraySource.of(np.stack([pictures[key] for key in kept])[..., None], name="glyphs"),
        labels=np.array(names)[labels],
        class_names=names,
        split=in_test[labels].astype(np.uint8),
        columns={"font": np.array([font for _, font in kept])},
    )


def _draw(path: Path, *, characters: str, size: int) -> dict[int, Pixels]:
    """The glyphs that a font really has, by the number of the character."""
    font = ImageFont.truetype(str(path), DRAWN_AT, layout_engine=ImageFont.Layout.BASIC)
    no_glyph = {_ink(font, character)[1] for character in _MISSING}
    drawn: dict[int, Pixels] = {}
    for number, character in enumerate(characters):
        if path.stem in CAPITALS_ONLY and character.islower():
            continue
        ink, raw = _ink(font, character)
        if ink.getbbox() is not None and raw not in no_glyph:
            drawn[number] = _boxed(ink, size=size)
    return _without_doubles(drawn)


def _ink(font: ImageFont.FreeTypeFont, character: str) -> tuple[Image.Image, bytes]:
    mask = font.getmask(character)
    raw = bytes(mask)
    return Image.frombytes("L", mask.size, raw), raw


def _boxed(ink: Image.Image, *, size: int) -> Pixels:
    """Cropped to the ink, scaled to the box less its margin, centred."""
    ink = ink.crop(ink.getbbox())
    scale = size * (1 - 2 * MARGIN) / max(ink.size)
    width, height = (max(1, round(side * scale)) for side in ink.size)
    box = Image.new("L", (size, size))
    box.paste(
        ink.resize((width, height), Image.Resampling.BILINEAR),
        ((size - width) // 2, (size - height) // 2),
    )
    return np.asarray(box)


def _without_doubles(drawn: dict[int, Pixels]) -> dict[int, Pixels]:
    if not drawn:
        return drawn
    flat = np.stack(list(drawn.values())).reshape(len(drawn), -1).astype(np.float32)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    alike = np.tril(flat @ flat.T >= ALIKE, k=-1)  # (G, G) to an earlier one
    numbers = np.array(list(drawn))
    return {number: drawn[number] for number in numbers[~alike.any(axis=1)].tolist()}


def _test_classes(names: Sequence[str]) -> list[int]:
    """A fixed draw: a character that a future font lacks would not move the others."""
    draw = [hashlib.sha256(f"glyphs {name}".encode()).digest() for name in names]
    ranked = sorted(range(len(names)), key=draw.__getitem__)
    return ranked[: round(TEST_SHARE * len(names))]
