"""Bad input and bad times, by the commands that people type: a clear error, and nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from midspan.cli import app
from midspan.errors import MidspanError, StoreError, VectorError
from midspan.gallery import Gallery, Item
from midspan.spaces import Embeddings, Space
from midspan.upgrade import Embedded, Upgrade
from tests.gallery.postgres import Postgres
from tests.upgrade.world import NEW, OLD, QUICK, accounted, add, encoder, ids, make, vectors

ROOT = Path(__file__).parents[2]
MIDSPAN = [sys.executable, "-c", "from midspan.cli import main; main()"]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run() -> Run:
    """The JSON that a command prints; its error is raised."""

    def call(*words: object) -> dict[str, Any]:
        result = CliRunner().invoke(app, [*map(str, words), "--json"])
        if isinstance(result.exception, MidspanError):
            raise result.exception
        assert result.exit_code == 0, result.output
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    return call


@pytest.fixture
def shop(tmp_path: Path) -> str:
    with make("sqlite", tmp_path) as gallery:
        return gallery.location


def written(path: Path, rows: Any, space: Space = OLD, names: Sequence[str] = ("bad",)) -> Path:
    """A file as somebody else's program may write it: nothing is checked."""
    about = {
        "name": space.name,
        "dim": space.dim,
        "metric": space.metric,
        "fingerprint": space.fingerprint,
    }
    np.savez(path, vectors=rows, ids=np.array(names), space=np.array(json.dumps(about)))
    return path


BAD = {
    "nan": (np.full((1, 12), np.nan, np.float32), "'bad'.*NaN or infinite"),
    "infinite": (np.full((1, 12), np.inf, np.float32), "'bad'.*NaN or infinite"),
    "zero": (np.zeros((1, 12), np.float32), "'bad'.*length zero, which has no direction"),
    "dims": (np.ones((1, 7), np.float32), r"shape \(N, 12\).*got \(1, 7\)"),
    "flat": (np.ones(12, np.float32), r"of floats, got float32 \(12,\)"),
    "words": (np.array([["x"] * 12]), "expected vectors"),
}


@pytest.mark.parametrize("kind", BAD)
def test_invalid_vectors_exit_2_on_every_command(
    run: Run, shop: str, tmp_path: Path, kind: str
) -> None:
    rows, message = BAD[kind]
    bad = written(tmp_path / "bad.npz", rows)
    before = run("gallery", "info", shop)
    commands: list[list[object]] = [
        ["gallery", "add", shop, "--embeddings", bad],
        ["gallery", "add", shop, "--embeddings", bad, "--replace"],
        ["gallery", "search", shop, "--vectors", bad],
        ["gallery", "create", tmp_path / "other.midspan", "--embeddings", bad],
        ["upgrade", "plan", shop, "--to", bad],
        ["upgrade", "start", shop, "--to", bad],
    ]
    for words in commands:
        with pytest.raises(MidspanError, match=message):
            run(*words)
    assert run("gallery", "info", shop) == before
    assert run("gallery", "verify", shop)["problems"] == []
    assert not (tmp_path / "other.midspan").exists()


def test_vectors_of_other_dims_or_encoders_exit_2(run: Run, shop: str, tmp_path: Path) -> None:
    narrow = Space("old", 7, fingerprint=OLD.fingerprint)  # says it is the gallery's own
    other = Space("other", 12, fingerprint="f-other")
    for space, message in ((narrow, "7-d"), (other, "Two ways out|no compatibility")):
        file = written(tmp_path / "x.npz", np.ones((1, space.dim), np.float32), space)
        for words in (["add", shop, "--embeddings", file], ["search", shop, "--vectors", file]):
            with pytest.raises(MidspanError, match=message):
                run("gallery", *words)
    assert run("gallery", "info", shop)["items"] == 60


def test_hostile_ids_and_payloads_survive_an_upgrade(run: Run, tmp_path: Path) -> None:
    names = ["../../etc/passwd", "/dev/null", "C:\\x", "'; DROP TABLE items; --", "日本語 🙂", "-x"]
    names += ["a" * 512, "%s {} $1", "é", "e\u0301"]  # the last two look the same
    texts = ["x" * 1_000_000, *(f"\u202e{name}\n\t\x7f" for name in names[1:])]
    columns = {"labels": np.array(texts), "place": np.arange(len(names))}
    shop = tmp_path / "shop.midspan"
    old, new = vectors(names, OLD), vectors(names, NEW)
    run(
        "gallery",
        "create",
        shop,
        "--embeddings",
        old.with_columns(columns).save(tmp_path / "o.npz"),
    )
    file = new.save(tmp_path / "n.npz")
    run("upgrade", "start", shop, "--to", file, "--order", "random")
    assert run("upgrade", "run", shop, "--embeddings", file)["new"] == len(names)
    assert run("upgrade", "finish", shop, "--override", "ten items")["left"] == 0
    found = run("gallery", "search", shop, "--vectors", file, "-k", 1)["results"]
    assert [hits[0]["id"] for hits in found] == names
    only = json.dumps({"place": 4})
    found = run("gallery", "search", shop, "--vectors", file, "--filter", only)["results"]
    assert [[hit["id"] for hit in hits] for hits in found] == [["日本語 🙂"]] * len(names)
    with Gallery.open(shop) as gallery:
        kept = {name: gallery.get(name).payload["labels"] for name in names}
        assert kept == dict(zip(names, texts, strict=True))
        assert gallery.verify().ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n.npz", "o.npz", "shop.midspan"]


@pytest.mark.parametrize(
    ("id", "message"), [("", "item id"), ("a\0b", "item id"), ("x" * 513, "512")]
)
def test_invalid_ids_are_refused(
    run: Run, shop: str, tmp_path: Path, id: str, message: str
) -> None:
    file = written(tmp_path / "x.npz", np.ones((2, 12), np.float32), names=["fine", id])
    with pytest.raises(MidspanError, match=message):
        run("gallery", "add", shop, "--embeddings", file)
    assert run("gallery", "info", shop)["items"] == 60


def test_items_that_cannot_be_embedded_are_listed_as_failures(tmp_path: Path) -> None:
    """NaN, nothing at all, or another dim than it says: by item, and all others are done."""
    see = encoder(NEW)

    def embed(items: Sequence[Item]) -> Embedded:
        made = see(items).vectors
        rows = made.vectors.copy()
        rows[[id == "i0007" for id in made.ids]] = np.nan
        rows[[id == "i0011" for id in made.ids]] = 0.0
        return Embedded(Embeddings(made.ids, rows, NEW))

    with make("sqlite", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="random")
        report = upgrade.run(embed, settings=QUICK)
        assert (report.stopped, report.written, report.failed) == ("done", 58, 2)
        assert accounted(gallery) == (0, 58, 2)
        reasons = {one.id: one.reason for one in gallery.work.failures(after="", limit=9)}
        assert set(reasons) == {"i0007", "i0011"}
        assert "NaN" in reasons["i0007"]
        assert "length zero" in reasons["i0011"]
        found = upgrade.search(vectors(ids(60), NEW), k=60)
        assert all(len({hit.id for hit in hits}) == 60 for hits in found)
        narrow = Space("new", 7, fingerprint="f-new")
        gallery.work.retry()
        with pytest.raises(MidspanError, match="7-d"):
            upgrade.run(
                lambda items: Embedded(
                    Embeddings(
                        np.array([item.id for item in items]),
                        np.ones((len(items), 7), np.float32),
                        narrow,
                    )
                ),
                settings=QUICK,
            )
        assert upgrade.run(see, settings=QUICK).new == 60


def test_backfill_disk_full_stops_and_continues_later(small_disk: Path) -> None:
    names = ids(300)
    with make("sqlite", small_disk, count=0) as gallery:
        for start in range(0, 300, 50):
            add(gallery, names[start : start + 50])
        before = gallery.search(vectors(names[:5], OLD), k=10)
        upgrade = Upgrade.start(gallery, to=NEW, order="random")
        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(b"x" * 2**22)
        with pytest.raises(StoreError, match=r"disk (is )?full"):
            upgrade.run(encoder(NEW), settings=QUICK)
        old, new, failed = accounted(gallery)
        assert (old + new, failed) == (300, 0)
        assert old > 0
        hits = upgrade.search(vectors(names[:5], NEW), k=300)
        assert all(len({hit.id for hit in found}) == 300 for found in hits)
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
        assert upgrade.run(encoder(NEW), settings=QUICK).new == 300
        assert gallery.verify().ok
        upgrade.rollback(drop=True)
        assert gallery.search(vectors(names[:5], OLD), k=10) == before


@pytest.fixture
def closed(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], Path]:
    """A folder with a gallery; when called, it may only be read. Root needs a disk for that."""
    root = os.geteuid() == 0
    folder: Path = request.getfixturevalue("small_disk") if root else tmp_path / "closed"
    folder.mkdir(exist_ok=True)
    make("sqlite", folder).close()

    def close() -> Path:
        if root:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        else:
            folder.chmod(0o500)
            request.addfinalizer(lambda: folder.chmod(0o700))
        return folder

    return close


def test_unwritable_folder_exits_with_the_reason(
    run: Run, closed: Callable[[], Path], tmp_path: Path
) -> None:
    query = vectors(ids(1), OLD).save(tmp_path / "q.npz")
    folder = closed()
    for words in (
        ["gallery", "search", folder / "shop.midspan", "--vectors", query],
        ["gallery", "add", folder / "shop.midspan", "--embeddings", query],
        ["gallery", "create", folder / "other.midspan", "--embeddings", query],
        ["upgrade", "start", folder / "shop.midspan", "--to", query],
    ):
        with pytest.raises(StoreError, match="cannot be"):
            run(*words)
    assert [path.name for path in folder.iterdir()] == ["shop.midspan"]


def test_two_concurrent_writing_commands_both_succeed(shop: str, tmp_path: Path) -> None:
    """Neither waits for ever, neither loses an item."""
    files = [
        vectors(ids(40, first=first), OLD).save(tmp_path / f"{first}.npz") for first in (100, 200)
    ]
    writers = [
        subprocess.Popen(
            [*MIDSPAN, "gallery", "add", shop, "--embeddings", str(file)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for file in files
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    with Gallery.open(shop) as gallery:
        assert len(gallery) == 140
        assert gallery.verify().ok


@pytest.mark.server
@pytest.mark.slow
def test_backfill_server_lost_stops_and_continues_later(postgres: Postgres) -> None:
    location = postgres.location("gone")
    see, names = encoder(NEW), ids(200)
    with Gallery.create(location, OLD) as gallery:
        add(gallery, names)
        upgrade = Upgrade.start(gallery, to=NEW, order="random")
        batches = 0

        def embed(items: Sequence[Item]) -> Embedded:
            nonlocal batches
            batches += 1
            if batches == 6:
                postgres.kill()
            return see(items)

        try:
            with pytest.raises(StoreError, match="cannot be reached or broke off"):
                upgrade.run(embed, settings=QUICK)
        finally:
            postgres.start()
        old, new, failed = accounted(gallery)
        assert (old + new, failed) == (200, 0)
        assert new >= 8 * 4  # what was acknowledged is there; the fifth was being written
        assert upgrade.run(see, settings=QUICK).new == 200
        assert gallery.verify().ok


def test_invalid_vector_is_never_repaired_silently() -> None:
    with pytest.raises(VectorError, match="remove the 1 such rows"):
        Embeddings(np.array(["a"]), np.zeros((1, 12), np.float32), OLD)
