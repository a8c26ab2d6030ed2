"""AVIF and HEIC images, made by the libraries that read them."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, features

from midspan.data.decode import decode_image
from midspan.errors import ImageError
from midspan.image_size import ImageSize


def _picture() -> Image.Image:
    """Left half red, right half blue; 40 wide, 20 high."""
    pixels = np.zeros((20, 40, 3), dtype=np.uint8)
    pixels[:, :20, 0], pixels[:, 20:, 2] = 230, 230
    return Image.fromarray(pixels)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_is_decoded_upright() -> None:
    file, exif = BytesIO(), Image.Exif()
    exif[274] = 6  # must be turned clockwise: left becomes top
    _picture().save(file, "AVIF", quality=95, exif=exif)
    seen = decode_image(file.getvalue(), ImageSize(40, 20, 3))
    assert seen[5, 10, 0] > 200
    assert seen[5, 10, 2] < 60
    assert seen[35, 10, 2] > 200
    assert seen[35, 10, 0] < 60


def test_heic_is_decoded() -> None:
    heif = pytest.importorskip("pillow_heif")
    file = BytesIO()
    heif.from_pillow(_picture()).save(file, quality=95)
    seen = decode_image(file.getvalue(), ImageSize(20, 40, 3))
    assert seen[10, 5, 0] > 200
    assert seen[10, 5, 2] < 60
    assert seen[10, 35, 2] > 200
    assert seen[10, 35, 0] < 60


def test_decode_heic_without_its_library_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("midspan.data.phone_formats.importlib.import_module", missing)
    with pytest.raises(ImageError, match=r"install pillow-heif .*midspan\[heif\]"):
        decode_image(b"\0\0\0\x18ftypheic" + bytes(40), ImageSize(8, 8, 3))


def test_other_ftyp_file_raises_image_error() -> None:
    with pytest.raises(ImageError, match="is not a JPEG"):
        decode_image(b"\0\0\0\x18ftypisom" + bytes(40), ImageSize(8, 8, 3))
