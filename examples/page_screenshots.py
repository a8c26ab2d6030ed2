"""Photograph the service's page in the middle of an upgrade, from the folder `midspan demo` wrote.

    midspan demo --out demo
    python examples/page_screenshots.py demo docs/images

The demo's test images are written as files, drawn larger; a gallery of them is served with the
demo's old and compatible encoders, and upgraded by the service until 45 % have new vectors. Needs
the extra `serve`, playwright, and a Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import midspan as ms
from midspan.data import ImageSet, ImageSize, font_glyphs

SIZE = 112  # pixels of an image; the encoders take 28
SHARE = 0.45  # of the items that have new vectors in the pictures
TRIED = 60  # queries, to find one whose results come from both spaces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="folder that `midspan demo` wrote")
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--classes", type=int, default=121, help="so many characters of the test")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "glyphs"
        write_images(drawn_larger(given.classes), photos)
        place = Path(folder) / "glyphs.midspan"
        old = ms.load_encoder(given.demo / "old")
        vectors = old.embed(photos)
        names = [chr(int(label.removeprefix("U+"), 16)) for label in vectors.labels.tolist()]
        fonts = [Path(id).stem for id in vectors.ids.tolist()]
        columns = {"labels": np.array(names), "font": np.array(fonts)}
        with ms.Gallery.create(place, vectors.space) as gallery:
            gallery.add(vectors.with_columns(columns))
        encoders = [str(given.demo / "old"), str(given.demo / "compatible")]
        with served(place, photos, encoders) as url:
            upgrade_to(url, SHARE)
            photograph(url, mixed_query(url, sorted(photos.rglob("*.png"))), given.out)


def drawn_larger(classes: int) -> ImageSet:
    font_glyphs.DRAWN_AT = 2 * SIZE  # else the letters are drawn small and scaled up
    fonts = font_glyphs.font_files()
    test = font_glyphs.render(fonts, characters=font_glyphs.CHARACTERS, size=SIZE).test
    assert test.labels is not None
    chosen = np.unique(test.labels)[:classes]
    return test[np.isin(test.labels, chosen)]


def write_images(images: ImageSet, folder: Path) -> None:
    pixels = images.load(np.arange(len(images)), ImageSize(SIZE, SIZE, 1))
    for id, picture in zip(images.ids.tolist(), pixels, strict=True):
        path = folder / f"{id}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture[..., 0]).save(path)


@contextlib.contextmanager
def served(gallery: Path, images: Path, encoders: list[str]) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "midspan", "serve", "--gallery", str(gallery)]
    command += ["--encoder", encoders[0], "--new-encoder", encoders[1]]
    command += ["--images", str(images), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command)
    try:
        with ms.Client(url) as client:
            deadline = time.monotonic() + 120
            while not client.ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the service did not start")
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def upgrade_to(url: str, share: float) -> None:
    """Plan, start and run in the service, and pause at this share."""
    with ms.Client(url) as client:
        client.upgrade.plan()
        client.upgrade.start(override="a demo: whatever its test said")
        client.upgrade.run(max_rate=400)
        while (status := client.upgrade.status()).new < share * status.all:
            time.sleep(0.1)
        client.upgrade.gate()
        client.upgrade.pause(reason="for the picture")
        while client.upgrade.status().phase != "paused":
            time.sleep(0.1)


def mixed_query(url: str, photos: list[Path]) -> Path:
    """Of some images the one whose first ten results are by old and new vectors in equal parts."""
    chosen = [photos[row] for row in np.linspace(0, len(photos) - 1, TRIED).astype(int)]
    with ms.Client(url) as client:

        def apart(path: Path) -> float:
            hits = client.search(image=path, k=10)
            return abs(sum(hit.space_role == "new" for hit in hits) - len(hits) / 2)

        return min(chosen, key=apart)


def photograph(url: str, query: Path, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 760}, color_scheme="light")
        page.goto(f"{url}/#/upgrade")
        page.wait_for_selector("#curve svg")
        shoot(page, out / "page-upgrade.png")
        page.goto(f"{url}/#/search")
        page.set_input_files("#file", query)
        page.wait_for_function(
            "() => document.querySelector('#results-title').textContent.startsWith('Most alike')"
        )
        page.wait_for_function(
            "() => [...document.querySelectorAll('#grid img')].every(one => one.naturalWidth > 0)"
        )
        shoot(page, out / "page-search.png")
        browser.close()


def shoot(page: Any, path: Path) -> None:
    page.wait_for_timeout(800)  # of transitions
    page.screenshot(path=path)
    with Image.open(path) as picture:  # few colours: a third of the size
        picture.convert("RGB").quantize(128).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
