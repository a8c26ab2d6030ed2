from __future__ import annotations

import os

import pytest

from midspan.data.image_uri import ImageUri


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("a/b.png", ImageUri("a/b.png")),
        ("a/b#3.png", ImageUri("a/b#3.png")),
        ("set.npz#3", ImageUri("set.npz", row=3)),
        ("a#1/set.NPZ#12", ImageUri("a#1/set.NPZ", row=12)),
        ("set.npz#x", ImageUri("set.npz#x")),
        ("set.npz#-1", ImageUri("set.npz#-1")),
        ("set.npz#" + "9" * 5000, ImageUri("set.npz#" + "9" * 5000)),
        ("set.npz#3/photo.png", ImageUri("set.npz#3/photo.png")),
        ("s/a.tar#cat/1.jpg", ImageUri("s/a.tar", member="cat/1.jpg")),
        ("s/a.TAR#1.jpg", ImageUri("s/a.TAR", member="1.jpg")),
        ("a.tar#cat#1.jpg", ImageUri("a.tar", member="cat#1.jpg")),
        ("a.tar#b.tar#1.jpg", ImageUri("a.tar", member="b.tar#1.jpg")),
        ("a.tar#set.npz#1", ImageUri("a.tar", member="set.npz#1")),
        ("a.tar#", ImageUri("a.tar#")),
        ("a.tar", ImageUri("a.tar")),
        ("", ImageUri("")),
    ],
)
def test_image_uri_round_trip_keeps_the_text(uri: str, expected: ImageUri) -> None:
    parsed = ImageUri.of(uri)
    assert parsed == expected
    assert str(parsed) == uri
    assert parsed.whole == ("" if parsed.file == uri else parsed.file)


def test_image_uri_absolute_resolves_the_file_only() -> None:
    here = os.getcwd()
    assert str(ImageUri.of("a.tar#../1.jpg").absolute()) == f"{here}/a.tar#../1.jpg"
    assert str(ImageUri.of("x/../a.npz#4").absolute()) == f"{here}/a.npz#4"
