from __future__ import annotations

import time
from pathlib import Path

import pytest

from midspan.errors import ConfigError
from midspan.gallery import AuditEvent
from midspan.service.image_roots import ImageRoots
from midspan.service.quality import Quality
from midspan.service.settings import GallerySettings, Limits, ServerSettings, read_settings
from midspan.service.upgrade_worker import UpgradeWorker, run_request
from midspan.upgrade import Record, Upgrade
from tests.service.shop import Shop, close, make_gallery, open_service


def entry(what: str, who: str = "service@a", **details: object) -> AuditEvent:
    return AuditEvent(who=who, what=what, details=details)


def test_run_request_is_read_from_the_audit_log() -> None:
    start, ask = entry("upgrade start"), entry("service run", max_rate=5.0)
    work, other = entry("upgrade run"), entry("upgrade run", who="bob@cli")
    assert run_request([]) is None
    assert run_request([start]) is None
    assert run_request([other, start]) is None, "somebody else's worker is no wish of ours"
    assert run_request([work, other, ask, start]) == run_request([ask])
    request = run_request([work])  # the wish itself is further back than what was read
    assert request is not None
    assert request.max_rate is None
    asked = run_request([ask])
    assert asked is not None
    assert asked.max_rate == 5.0
    assert run_request([start, ask]) is None, "an earlier upgrade's"


def test_new_server_continues_the_backfill_recorded_in_the_gallery(
    shop: Shop, tmp_path: Path
) -> None:
    place = make_gallery(shop, tmp_path / "g.midspan", count=24)
    service = open_service(shop, place)
    Upgrade.start(service.gallery, to=service.encoders.loaded[1].space, order="random")
    service.gallery.record(entry("service run", max_rate=None))
    close(service)  # as if killed: nothing but the gallery is left

    service = open_service(shop, place)
    worker = UpgradeWorker(service, Quality(service))
    worker.start()
    try:
        deadline = time.monotonic() + 60
        while service.gallery.count().pending and time.monotonic() < deadline:
            time.sleep(0.05)
        assert service.gallery.count().pending == 0
    finally:
        worker.close()
        close(service)


def test_interrupted_forget_is_completed_by_a_new_server(shop: Shop, tmp_path: Path) -> None:
    import dataclasses

    service = open_service(shop, make_gallery(shop, tmp_path / "g.midspan", count=12))
    new = service.encoders.loaded[1].space
    upgrade = Upgrade.start(service.gallery, to=new, order="random")
    embed = service.embed_into(new.fingerprint)
    assert embed is not None
    upgrade.run(embed)
    state = service.gallery.state
    record = Record.of(state)
    assert record is not None
    half = dataclasses.replace(record, phase="forgetting").to_json()
    done = dataclasses.replace(state, live=(record.new,), target=None, upgrade=half)
    service.gallery.change(done, event=entry("upgrade finish"))
    worker = UpgradeWorker(service, Quality(service))
    worker.start()
    try:
        deadline = time.monotonic() + 60
        while service.gallery.state.upgrade is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(service.gallery.state.spaces) == [new.fingerprint]
    finally:
        worker.close()
        close(service)


def test_closing_stops_within_a_batch_and_keeps_the_run_request(shop: Shop, tmp_path: Path) -> None:
    service = open_service(shop, make_gallery(shop, tmp_path / "g.midspan"), max_rate=2.0, batch=2)
    Upgrade.start(service.gallery, to=service.encoders.loaded[1].space, order="random")
    worker = UpgradeWorker(service, Quality(service))
    worker.start()
    worker.request_run(service.gallery, max_rate=None)
    deadline = time.monotonic() + 60
    while not service.gallery.count().done and time.monotonic() < deadline:
        time.sleep(0.02)
    started = time.monotonic()
    worker.close()
    assert time.monotonic() - started < 20
    counts = service.gallery.count()
    assert 0 < counts.done < 60
    assert run_request(service.gallery.audit_log(limit=100)) is not None
    held = service.gallery.work.claim(worker="other", limit=60, seconds=1.0)
    assert len(held) == counts.pending, "what it held was given back"
    close(service)


def test_stored_images_are_named_by_their_digest(tmp_path: Path) -> None:
    image_roots = ImageRoots(images=(), uploads=tmp_path / "up")
    first = image_roots.store("a", b"one")
    assert image_roots.store("a", b"one") == first
    assert len({first, image_roots.store("a", b"two"), image_roots.store("b", b"one")}) == 3
    assert image_roots.find(first)[0].read_bytes() == b"one"
    assert image_roots.may_show(first)
    keep = tmp_path / "keep.image"
    keep.write_bytes(b"x")
    for not_ours in (str(keep), f"{tmp_path}/up/../keep.image", None, "s3://x/y.image"):
        image_roots.discard("a", not_ours)
    assert keep.exists()
    image_roots.discard("b", first)
    assert Path(first).exists(), "another item's image went with an item that named it"
    image_roots.discard("a", first)
    assert not Path(first).exists()


def test_image_set_rows_are_read_as_images(shop: Shop, tmp_path: Path) -> None:
    import numpy as np

    from midspan.data import ImageSet, save_npz
    from midspan.data.sources import ArraySource
    from midspan.errors import ImageError
    from tests.service.shop import picture

    images = np.stack([picture(n) for n in range(4)])
    made = ImageSet(ids=np.array(list("abcd")), source=ArraySource.of(images, name="x"))
    file = save_npz(made, tmp_path / "set.npz")
    place = make_gallery(shop, tmp_path / "g.midspan", count=2)
    service = open_service(shop, place, images=(tmp_path,))
    try:
        box = service.encoders.loaded[0].box
        assert np.array_equal(service.image_loader.pixels(f"{file}#2", box), images[2])
        with pytest.raises(ImageError, match="4 rows"):
            service.image_loader.pixels(f"{file}#4", box)
    finally:
        close(service)


def test_command_line_overrides_the_settings_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        'port = 9000\nlabel_key = "kind"\nuploads = "up"\nhosts = ["shop.example"]\n'
        "[limits]\nimage_bytes = 1000\n"
    )
    given = {"gallery": "shop.midspan", "port": 9001, "encoder": None, "images": ()}
    settings = read_settings(file, given)
    assert (settings.server.port, settings.server.hosts) == (9001, ("shop.example",))
    assert settings.server.limits == Limits(image_bytes=1000)
    [gallery] = settings.galleries
    assert (gallery.name, gallery.label_key) == ("default", "kind")
    assert gallery.uploads_folder == Path("up")
    beside = GallerySettings(gallery="data/shop.midspan").uploads_folder
    assert beside == Path("data/shop.midspan.images")
    assert GallerySettings(gallery="postgresql://h/db?table=t").uploads_folder is None
    file.write_text("prot = 1")
    with pytest.raises(ConfigError, match="did you mean 'port'"):
        read_settings(file, given)
    for bad, word in (
        ({"new_encoder": "a", "new_vectors": Path("b")}, "either"),
        ({"shadow_old": Path("a")}, "pairs"),
        ({"images": (tmp_path / "nothing",)}, "not a folder"),
    ):
        with pytest.raises(ConfigError, match=word):
            GallerySettings(gallery="g", **bad)
    with pytest.raises(ConfigError, match="65535"):
        ServerSettings(port=70000)


def test_server_start_with_an_encoder_of_another_space_raises(shop: Shop, tmp_path: Path) -> None:
    from midspan.errors import SpaceMismatch
    from midspan.gallery import Gallery
    from midspan.service.resources import Resources
    from midspan.service.search_service import SearchService
    from midspan.spaces import Space

    place = str(tmp_path / "other.midspan")
    Gallery.create(place, Space("other", 16)).close()
    with pytest.raises(SpaceMismatch, match="Two ways out"):
        SearchService.open(
            GallerySettings(gallery=place, encoder=str(shop.old)), resources=Resources(Limits())
        )
