from __future__ import annotations

import os
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFile, TiffImagePlugin

from midspan.data import decode
from midspan.data.decode import MAX_PIXELS, Pixels, decode_image, fit_array, open_checked
from midspan.errors import DataError, ImageError
from midspan.image_size import ImageSize

RNG = np.random.default_rng(0)


def encoded(image: Image.Image, kind: str = "PNG", **settings: object) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **settings)
    return stream.getvalue()


def noise(*shape: int) -> Pixels:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )


def shrink_by_equation(image: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.float64]:
    """Antialiased bilinear along the first axis: a triangle as wide as two output pixels."""
    scale = len(image) / size
    rows = []
    for place in range(size):
        centre = (place + 0.5) * scale
        weights = np.maximum(0, 1 - np.abs(np.arange(len(image)) + 0.5 - centre) / scale)
        rows.append((weights[:, None] * image).sum(axis=0) / weights.sum())
    return np.array(rows)


# ---- resizing -----------------------------------------------------------------------------------


def test_squash_equals_antialiased_bilinear_resizing() -> None:
    image = noise(40, 24)
    expected = shrink_by_equation(shrink_by_equation(image.astype(float), 10).T, 8).T
    got = decode_image(encoded(Image.fromarray(image)), ImageSize(10, 8, 1))
    assert got.shape == (10, 8, 1)
    assert np.abs(got[:, :, 0] - expected).max() <= 1  # rounded after each axis


@pytest.mark.parametrize(("tall", "wide"), [(1, 3), (3, 1), (1, 2), (1, 1)])
def test_crop_scales_the_shorter_side_then_takes_the_centre(tall: int, wide: int) -> None:
    image = noise(20 * tall, 20 * wide, 3)
    whole = fit_array(image, ImageSize(8 * tall, 8 * wide, 3))
    top, left = 4 * (tall - 1), 4 * (wide - 1)
    got = fit_array(image, ImageSize(8, 8, 3, "crop"))
    assert np.array_equal(got, whole[top : top + 8, left : left + 8])


@pytest.mark.parametrize("seed", range(20))
def test_crop_any_aspect_gives_the_exact_size(seed: int) -> None:
    random = np.random.default_rng(seed)
    height, width, tall, wide = (int(side) for side in random.integers(1, 200, 4))
    got = fit_array(noise(height, width, 3), ImageSize(tall, wide, 3, "crop"))
    assert got.shape == (tall, wide, 3)


def test_fit_array_of_the_right_size_is_returned_unchanged() -> None:
    image = noise(9, 7, 3)
    assert fit_array(image, ImageSize(9, 7, 3)) is image
    assert np.array_equal(decode_image(encoded(Image.fromarray(image)), ImageSize(9, 7, 3)), image)


def test_decode_and_fit_array_give_the_same_pixels() -> None:
    image = noise(33, 47, 3)
    file = encoded(Image.fromarray(image))
    for channels in (1, 3):
        for fit in ("squash", "crop"):
            expected = fit_array(image, ImageSize(16, 20, channels, fit))
            got = decode_image(file, ImageSize(16, 20, channels, fit))
            assert np.array_equal(got, expected)


@pytest.mark.parametrize("shape", [(997, 803), (400, 1201), (64, 64)])
def test_reduced_jpeg_decoding_is_close_to_full_decoding(shape: tuple[int, int]) -> None:
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    waves = 127 + 60 * np.sin(rows / 40) + 60 * np.cos(columns / 25)
    file = encoded(Image.fromarray(waves.astype(np.uint8)), "JPEG", quality=95)
    with Image.open(BytesIO(file)) as whole:
        expected = fit_array(np.asarray(whole), ImageSize(32, 32, 1))
    got = decode_image(file, ImageSize(32, 32, 1))
    assert np.abs(got.astype(int) - expected).max() <= 3


# ---- kinds of images ----------------------------------------------------------------------------


def test_decode_grey_and_colour_convert_to_the_asked_channels() -> None:
    grey = noise(6, 5)
    got = decode_image(encoded(Image.fromarray(grey)), ImageSize(6, 5, 3))
    assert np.array_equal(got, np.stack([grey] * 3, axis=2))
    colour = noise(6, 5, 3)
    luma = colour @ np.array([0.299, 0.587, 0.114])  # ITU-R 601
    got = decode_image(encoded(Image.fromarray(colour)), ImageSize(6, 5, 1))
    assert np.abs(got[:, :, 0] - luma).max() <= 1


def test_decode_alpha_channel_is_blended_on_white() -> None:
    rgba = noise(6, 5, 4)
    alpha = rgba[:, :, 3:] / 255
    expected = rgba[:, :, :3] * alpha + 255 * (1 - alpha)
    from_file = decode_image(encoded(Image.fromarray(rgba)), ImageSize(6, 5, 3))
    from_memory = fit_array(rgba, ImageSize(6, 5, 3))
    assert np.abs(from_file - expected).max() <= 1
    assert np.array_equal(from_file, from_memory)


def test_decode_palette_transparency_is_blended_on_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    red_then_clear = encoded(image, transparency=1)
    got = decode_image(red_then_clear, ImageSize(1, 2, 3))
    assert got.tolist() == [[[255, 0, 0], [255, 255, 255]]]


def test_decode_sixteen_bits_are_scaled_to_eight() -> None:
    deep = np.array([[0, 256, 257, 32768, 65535]], dtype=np.uint16)
    expected = np.round(deep / 257).astype(int).tolist()
    png = encoded(Image.fromarray(deep))
    assert decode_image(png, ImageSize(1, 5, 1))[:, :, 0].tolist() == expected
    tiff = encoded(Image.fromarray(deep), "TIFF")
    assert decode_image(tiff, ImageSize(1, 5, 1))[:, :, 0].tolist() == expected


def test_decode_big_endian_sixteen_bit_tiff_is_scaled_to_eight(tmp_path: Path) -> None:
    deep = np.array([[0, 300, 65535]], dtype=">u2")
    path = tmp_path / "deep.tif"
    image = Image.frombytes("I;16B", (3, 1), deep.tobytes())
    image.save(path)
    got = decode_image(path, ImageSize(1, 3, 1))
    assert got[:, :, 0].tolist() == [[0, 1, 255]]


def test_decode_thirty_two_bits_raises_image_error() -> None:
    file = encoded(Image.fromarray(np.ones((4, 4), dtype=np.float32)), "TIFF")
    with pytest.raises(ImageError, match="32-bit values of unknown range; convert it"):
        decode_image(file, ImageSize(4, 4, 1))


def test_decode_cmyk_jpeg_is_converted_to_rgb() -> None:
    file = encoded(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=100)
    cyan = decode_image(file, ImageSize(16, 16, 3))[8, 8]
    assert cyan[0] < 10
    assert min(cyan[1:]) > 245


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_decode_image_reads_each_format(kind: str) -> None:
    file = encoded(Image.new("RGB", (10, 20), (200, 200, 200)), kind)
    got = decode_image(file, ImageSize(5, 5, 3))
    assert np.abs(got.astype(int) - 200).max() <= 3


def test_decode_gif_gives_the_first_frame() -> None:
    first, second = Image.new("L", (4, 4), 10), Image.new("L", (4, 4), 240)
    file = encoded(first, "GIF", save_all=True, append_images=[second])
    assert (decode_image(file, ImageSize(4, 4, 1)) == 10).all()


# How each EXIF orientation stores an upright picture, from the standard's table of where row 0 and
# column 0 of the stored picture belong.
STORED = {
    1: lambda upright: upright,  # top, left
    2: lambda upright: upright[:, ::-1],  # top, right
    3: lambda upright: upright[::-1, ::-1],  # bottom, right
    4: lambda upright: upright[::-1],  # bottom, left
    5: lambda upright: upright.T,  # left, top
    6: lambda upright: upright[:, ::-1].T,  # right, top
    7: lambda upright: upright[::-1, ::-1].T,  # right, bottom
    8: lambda upright: upright[::-1].T,  # left, bottom
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_decode_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    upright = noise(5, 8)
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    if kind == "TIFF":
        tags = TiffImagePlugin.ImageFileDirectory_v2()
        tags[274] = orientation
        file = encoded(stored, kind, tiffinfo=tags)
    else:
        exif = Image.Exif()
        exif[274] = orientation
        file = encoded(stored, kind, exif=exif)
    got = decode_image(file, ImageSize(5, 8, 1))
    assert np.array_equal(got[:, :, 0], upright)


def test_decode_rotated_large_jpeg_is_reduced_and_cropped_upright() -> None:
    upright = np.zeros((300, 900), dtype=np.uint8)
    upright[:, 450:] = 255  # left black, right white
    exif = Image.Exif()
    exif[274] = 6
    stored = Image.fromarray(np.ascontiguousarray(STORED[6](upright)))
    file = encoded(stored, "JPEG", quality=95, exif=exif)
    for fit in ("squash", "crop"):
        got = decode_image(file, ImageSize(8, 24, 1, fit))
        assert got.shape == (8, 24, 1)
        assert got[:, :11].max() < 10
        assert got[:, 13:].min() > 245


def test_decode_broken_exif_is_ignored() -> None:
    image = noise(4, 4)
    file = encoded(Image.fromarray(image), exif=b"Exif\0\0MM\0*\xff\xff\xff\xff garbage")
    assert np.array_equal(decode_image(file, ImageSize(4, 4, 1))[:, :, 0], image)


# ---- hostile and broken input -------------------------------------------------------------------


def never_decode(*_: object) -> None:
    pytest.fail("pixels were decoded")


def test_decode_huge_header_raises_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", never_decode)
    with pytest.raises(ImageError, match=r"50,000 x 50,000 pixels; more than 89,478,485 .* shrink"):
        decode_image(png_header(50_000, 50_000), ImageSize(8, 8, 3))


@pytest.mark.parametrize(
    "header",
    [
        png_header(10_000, 10_000),  # Pillow alone would only warn
        b"GIF89a" + struct.pack("<HHBBB", 60_000, 60_000, 0, 0, 0) + b";",
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 50_000, 50_000, 1, 24, *[0] * 6),
        b"RIFF\x1e\0\0\0WEBPVP8X\n\0\0\0" + b"\0" * 4 + b"\xfe\x3f\0\xfe\x3f\0",
    ],
    ids=["png", "gif", "bmp", "webp"],
)
def test_decode_too_many_pixels_in_any_format_raises_before_decoding(
    header: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", never_decode)
    with pytest.raises(ImageError):
        decode_image(header, ImageSize(8, 8, 3))


def test_open_checked_at_the_pixel_limit_opens_and_above_raises() -> None:
    with open_checked(png_header(MAX_PIXELS, 1)) as image:
        assert image.size == (MAX_PIXELS, 1)
    with (
        pytest.raises(ImageError, match="89,478,486 x 1"),
        open_checked(png_header(MAX_PIXELS + 1, 1)),
    ):
        pass


def test_decode_image_over_the_byte_limit_raises_image_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = encoded(Image.fromarray(noise(20, 20)))
    path = tmp_path / "big.png"
    path.write_bytes(file)
    monkeypatch.setattr(decode, "MAX_BYTES", 100)
    for image in (file, path):
        with pytest.raises(ImageError, match=r"has \d+ bytes; more than 100"):
            decode_image(image, ImageSize(4, 4, 1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"just some text, no picture", "is not a JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF or HEIC"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "is not a JPEG"),
        (b"\x89PNG\r\n\x1a\n", "broken header"),
        (b"\xff\xd8\xff", "broken header"),
        (b"BM", "broken header"),
        (b"II*\0", "broken header"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "broken header"),
    ],
)
def test_decode_image_of_other_bytes_raises_image_error(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=f"odd.jpg: .*{message}"):
        decode_image(path, ImageSize(4, 4, 3))


def test_decode_truncated_file_raises_image_error(truncated_jpeg: bytes) -> None:
    with open_checked(truncated_jpeg) as image:  # the header alone is fine
        assert image.size == (64, 64)
    with pytest.raises(ImageError, match=r"cannot be decoded .*truncated"):
        decode_image(truncated_jpeg, ImageSize(64, 64, 3))
    png = encoded(Image.fromarray(noise(64, 64, 3)))
    with pytest.raises(ImageError, match="cannot be decoded"):
        decode_image(png[: len(png) // 2], ImageSize(8, 8, 3))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_decode_flipped_bytes_gives_an_image_or_image_error(kind: str) -> None:
    whole = bytearray(encoded(Image.fromarray(noise(16, 16, 3)), kind))
    random = np.random.default_rng(1)
    for _ in range(60):
        broken = bytearray(whole)
        for place in random.integers(0, len(whole), 4):
            broken[place] = random.integers(256)
        try:
            got = decode_image(bytes(broken), ImageSize(8, 8, 3))
        except ImageError:
            continue
        assert got.shape == (8, 8, 3)


def test_decode_missing_file_folder_or_pipe_raises_image_error(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone.png: cannot be read \(No such file"):
        decode_image(tmp_path / "gone.png", ImageSize(4, 4, 3))
    with pytest.raises(ImageError, match="is not a file"):
        decode_image(tmp_path, ImageSize(4, 4, 3))
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    with pytest.raises(ImageError, match="is not a file"):
        decode_image(pipe, ImageSize(4, 4, 3))
    with pytest.raises(ImageError, match="cannot be read"):
        decode_image("zero\0byte.png", ImageSize(4, 4, 3))


def test_image_size_wrong_values_raise_data_error() -> None:
    image = noise(4, 4, 3)
    with pytest.raises(DataError, match="got images of 0 x 4 x 3"):
        fit_array(image, ImageSize(0, 4, 3))
    with pytest.raises(DataError, match="1 or 3 channels"):
        fit_array(image, ImageSize(4, 4, 2))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="expected one of 'squash', 'crop', got 'stretch'"):
        fit_array(image, ImageSize(5, 4, 3, "stretch"))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(4,), (4, 4, 2), (1, 4, 4, 3)])
def test_fit_array_wrong_shape_raises_image_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageError, match=r"expected \(H, W, C\) uint8"):
        fit_array(np.zeros(shape, dtype=np.uint8), ImageSize(4, 5, 3))


def test_fit_array_floats_or_no_pixels_raises_image_error() -> None:
    with pytest.raises(ImageError, match="got float32"):
        fit_array(np.zeros((4, 4, 3), dtype=np.float32), ImageSize(4, 4, 3))
    with pytest.raises(ImageError, match="no pixels"):
        fit_array(np.zeros((0, 4, 3), dtype=np.uint8), ImageSize(4, 4, 3))
