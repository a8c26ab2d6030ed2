from __future__ import annotations

import time
from pathlib import Path

import pytest

from midspan.errors import ConfigError
from midspan.gallery import Entry
from midspan.service.jobs import Job, wish
from midspan.service.places import Places
from midspan.service.quality import Quality
from midspan.service.settings import Limits, Settings, read_settings
from midspan.upgrade import Record, Upgrade
from tests.service.shop import Shop, make_gallery, open_core


def entry(what: str, who: str = "service@a", **details: object) -> Entry:
    return Entry(who=who, what=what, details=details)


def test_the_wish_is_read_from_the_trail() -> None:
    start, ask = entry("upgrade start"), entry("service run", max_rate=5.0)
    work, other = entry("upgrade run"), entry("upgrade run", who="bob@cli")
    assert wish([]) is None
    assert wish([start]) is None
    assert wish([other, start]) is None, "somebody else's worker is no wish of ours"
    assert wish([work, other, ask, start]) == wish([ask])
    found = wish([work])  # the wish itself is further back than what was read
    assert found is not None
    assert found.max_rate is None
    asked = wish([ask])
    assert asked is not None
    assert asked.max_rate == 5.0
    assert wish([start, ask]) is None, "an earlier upgrade's"


def test_a_new_server_goes_on_with_what_the_gallery_says(shop: Shop, tmp_path: Path) -> None:
    place = make_gallery(shop, tmp_path / "g.midspan", count=24)
    core = open_core(shop, place)
    Upgrade.start(core.gallery, to=core.encoders.loaded[1].space, order="random")
    core.gallery.store.record(entry("service run", max_rate=None))
    core.close()  # as if killed: nothing but the gallery is left

    core = open_core(shop, place)
    job = Job(core, Quality(core))
    job.start()
    try:
        deadline = time.monotonic() + 60
        while core.gallery.store.count().pending and time.monotonic() < deadline:
            time.sleep(0.05)
        assert core.gallery.store.count().pending == 0
    finally:
        job.close()
        core.close()


def test_an_interrupted_finish_is_finished(shop: Shop, tmp_path: Path) -> None:
    import dataclasses

    core = open_core(shop, make_gallery(shop, tmp_path / "g.midspan", count=12))
    new = core.encoders.loaded[1].space
    upgrade = Upgrade.start(core.gallery, to=new, order="random")
    embed = core.embed_into(new.fingerprint)
    assert embed is not None
    upgrade.run(embed)
    state = core.gallery.state
    record = Record.of(state)
    assert record is not None
    half = dataclasses.replace(record, phase="finishing").to_json()
    done = dataclasses.replace(state, live=(record.new,), target=None, upgrade=half)
    core.gallery.store.change(done, entry=entry("upgrade finish"))
    job = Job(core, Quality(core))
    job.start()
    try:
        deadline = time.monotonic() + 60
        while core.gallery.state.upgrade is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(core.gallery.state.spaces) == [new.fingerprint]
    finally:
        job.close()
        core.close()


def test_closing_stops_within_a_batch_and_keeps_the_wish(shop: Shop, tmp_path: Path) -> None:
    core = open_core(shop, make_gallery(shop, tmp_path / "g.midspan"), max_rate=2.0, batch=2)
    Upgrade.start(core.gallery, to=core.encoders.loaded[1].space, order="random")
    job = Job(core, Quality(core))
    job.start()
    job.want(core.gallery, max_rate=None)
    deadline = time.monotonic() + 60
    while not core.gallery.store.count().done and time.monotonic() < deadline:
        time.sleep(0.02)
    started = time.monotonic()
    job.close()
    assert time.monotonic() - started < 20
    counts = core.gallery.store.count()
    assert 0 < counts.done < 60
    assert wish(core.gallery.trail(limit=100)) is not None
    held = core.gallery.store.claim(worker="other", limit=60, seconds=1.0)
    assert len(held) == counts.pending, "what it held was given back"
    core.close()


def test_stored_images_have_names_of_their_content(tmp_path: Path) -> None:
    places = Places(images=(), uploads=tmp_path / "up")
    first = places.store("a", b"one")
    assert places.store("a", b"one") == first
    assert len({first, places.store("a", b"two"), places.store("b", b"one")}) == 3
    assert places.find(first)[0].read_bytes() == b"one"
    assert places.may_show(first)
    keep = tmp_path / "keep.image"
    keep.write_bytes(b"x")
    for not_ours in (str(keep), f"{tmp_path}/up/../keep.image", None, "s3://x/y.image"):
        places.discard("a", not_ours)
    assert keep.exists()
    places.discard("b", first)
    assert Path(first).exists(), "another item's image went with an item that named it"
    places.discard("a", first)
    assert not Path(first).exists()


def test_rows_of_an_image_set_are_pictures_too(shop: Shop, tmp_path: Path) -> None:
    import numpy as np

    from midspan.data import ImageSet, save_npz
    from midspan.data.sources import ArraySource
    from midspan.errors import ImageError
    from tests.service.shop import picture

    images = np.stack([picture(n) for n in range(4)])
    made = ImageSet(ids=np.array(list("abcd")), source=ArraySource.of(images, name="x"))
    file = save_npz(made, tmp_path / "set.npz")
    place = make_gallery(shop, tmp_path / "g.midspan", count=2)
    core = open_core(shop, place, images=(tmp_path,))
    try:
        box = core.encoders.loaded[0].box
        assert np.array_equal(core.pictures.pixels(f"{file}#2", box), images[2])
        with pytest.raises(ImageError, match="4 rows"):
            core.pictures.pixels(f"{file}#4", box)
    finally:
        core.close()


def test_settings_from_a_file_under_those_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        'port = 9000\nlabel_key = "kind"\nuploads = "up"\nhosts = ["shop.example"]\n'
        "[limits]\nimage_bytes = 1000\n"
    )
    given = {"gallery": "shop.midspan", "port": 9001, "encoder": None, "images": ()}
    found = read_settings(file, given)
    assert (found.port, found.label_key, found.hosts) == (9001, "kind", ("shop.example",))
    assert found.limits == Limits(image_bytes=1000)
    assert found.uploads_folder == Path("up")
    beside = Settings(gallery="data/shop.midspan").uploads_folder
    assert beside == Path("data/shop.midspan.images")
    assert Settings(gallery="postgresql://h/db?table=t").uploads_folder is None
    file.write_text("prot = 1")
    with pytest.raises(ConfigError, match="did you mean 'port'"):
        read_settings(file, given)
    for bad, word in (
        ({"new_encoder": "a", "new_vectors": Path("b")}, "either"),
        ({"shadow_old": Path("a")}, "pairs"),
        ({"port": 70000}, "65535"),
        ({"images": (tmp_path / "nothing",)}, "not a folder"),
    ):
        with pytest.raises(ConfigError, match=word):
            Settings(gallery="g", **bad)


def test_an_encoder_of_another_gallery_is_refused_at_the_start(shop: Shop, tmp_path: Path) -> None:
    from midspan.errors import SpaceMismatch
    from midspan.gallery import Gallery
    from midspan.service.core import Core
    from midspan.spaces import Space

    place = str(tmp_path / "other.midspan")
    Gallery.create(place, Space("other", 16)).close()
    with pytest.raises(SpaceMismatch, match="Two ways out"):
        Core.open(Settings(gallery=place, encoder=str(shop.old)))
