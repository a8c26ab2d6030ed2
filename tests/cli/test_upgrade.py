"""`midspan upgrade`: the whole way with vectors alone, with images, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from midspan import Embeddings, Space
from midspan.cli import app as whole_app
from midspan.cli import upgrade_sources
from midspan.cli.gallery import app as gallery_app
from midspan.cli.upgrade import app
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import (
    ConfigError,
    DataError,
    FormatError,
    GalleryError,
    ItemError,
    MidspanError,
    SpaceMismatch,
)
from midspan.gallery import Gallery, Item
from midspan.upgrade import Upgrade, images_embedder
from tests.data.shards import write_shard
from tests.upgrade.world import NEW, OLD, WIDE, add, bridge, encoder, ids, make, vectors

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def shop(tmp_path: Path) -> str:
    with make("sqlite", tmp_path) as gallery:
        return gallery.location


def json_of(command: typer.Typer) -> Run:
    """The JSON that a command prints; its error is raised."""

    def call(*words: object, code: int | None = 0) -> dict[str, Any]:
        result = CliRunner().invoke(command, [*map(str, words), "--json"])
        if isinstance(result.exception, MidspanError):
            raise result.exception
        assert code is None or result.exit_code == code, result.output
        document: dict[str, Any] = json.loads(result.stdout)
        return document

    return call


@pytest.fixture
def run() -> Run:
    return json_of(app)


@pytest.fixture
def run_all() -> Run:
    """The whole command line: `gallery add`, `upgrade status` …"""
    return json_of(whole_app)


def test_upgrade_direct_with_vectors_only_runs_to_forget(
    run: Run, shop: str, tmp_path: Path
) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    planned = run("plan", shop, "--to", new)
    assert (planned["items"], planned["to_embed"], planned["sample"]) == (60, 60, 60)
    assert planned["gate"]["labelled"]
    assert len(planned["curve"]["values"]) == 11
    with Gallery.open(shop) as gallery:
        assert gallery.state.upgrade is None

    started = run("start", shop, "--to", new, "--mode", "direct", "--order", "newest")
    assert (started["phase"], started["order"], started["old"]) == ("running", "newest", 60)
    report = run("run", shop, "--embeddings", new, "--limit", 20)
    assert (report["stopped"], report["old"], report["new"], report["all"]) == ("limit", 40, 20, 60)
    assert run("pause", shop, "--reason", "lunch")["reason"] == "lunch"
    assert run("run", shop, "--embeddings", new, code=1)["stopped"] == "paused"
    assert run("resume", shop)["phase"] == "running"
    assert run("status", shop)["share"] == pytest.approx(1 / 3)
    report = run("run", shop, "--embeddings", new, "--max-rate", 1000)
    assert (report["stopped"], report["new"]) == ("done", 60)
    assert run("status", shop)["would_vanish"] == 0
    done = run("finish", shop, "--keep-old", "7d")
    assert (done["space"], done["kept"], done["left"], done["dropped"]) == ("f-new", 60, 0, 0)
    assert run("status", shop)["keep_until"] == done["keep_until"]
    assert run("forget", shop, "--due")["dropped"] == 0
    assert run("rollback", shop)["space"] == "f-old"
    run("start", shop, "--to", new)
    assert run("finish", shop, "--keep-old", "0")["dropped"] == 60
    with Gallery.open(shop) as gallery:
        assert gallery.info().by_space == {"new": 60}
        assert gallery.verify().ok


@pytest.mark.parametrize("mode", ["map-query", "map-gallery"])
def test_upgrade_bridged_runs_and_rolls_back(
    run: Run, shop: str, tmp_path: Path, mode: str
) -> None:
    new = vectors(ids(60), WIDE).save(tmp_path / "new.npz")
    ends = (WIDE, OLD) if mode == "map-query" else (OLD, WIDE)
    folder = bridge(tmp_path, *ends)
    words = ["--mode", mode, "--bridge", folder, "--order", "random"]
    planned = run("plan", shop, "--to", new, *words)
    started = run("start", shop, "--to", new, *words)
    assert started["standardised"]
    assert planned["standardised"]
    assert planned["searches_per_query"] == 2
    run("run", shop, "--embeddings", new, "--limit", 30)
    with Gallery.open(shop) as gallery:
        results = gallery.search(vectors(ids(5), WIDE), k=10)
        assert all(len({hit.id for hit in hits}) == 10 for hits in results)
    rolled = run("rollback", shop, "--drop")
    assert rolled["space"] == "f-old"
    assert rolled["dropped"] >= 30
    assert run("status", shop)["phase"] == "none"


def test_plan_with_an_encoder_embeds_a_sample(
    run: Run, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade_sources, "encoder_named", lambda name, *_: (NEW, encoder(NEW)))
    for module in ("upgrade_plan", "upgrade"):
        name = f"midspan.cli.{module}.encoder_named"
        monkeypatch.setattr(name, lambda name, *_: (NEW, encoder(NEW)))
    planned = run("plan", shop, "--encoder", "runs/new")
    assert planned["sample"] == 60
    assert planned["gate"]["labelled"]
    assert planned["seconds"] > 0
    assert run("plan", shop, "--encoder", "runs/new", "--sample", 0)["sample"] == 0
    started = run("start", shop, "--encoder", "runs/new")
    assert started["standardised"]
    assert (started["old"], started["new"]) == (60, 0)
    assert run("run", shop, "--encoder", "runs/new")["new"] == 60


def test_mode_both_for_a_share_is_searched_with_two_files(
    run: Run, shop: str, tmp_path: Path
) -> None:
    new = vectors(ids(60), WIDE).save(tmp_path / "new.npz")
    planned = run("plan", shop, "--to", new, "--mode", "both")
    assert (planned["searches_per_query"], planned["encoders_per_query"]) == (2, 2)
    started = run("start", shop, "--to", new, "--mode", "both", "--traffic", "0%")
    assert (started["mode"], started["traffic"]) == ("both", 0.0)
    run("run", shop, "--embeddings", new, "--limit", 30)
    assert run("traffic", shop, "100%")["traffic"] == 1.0
    with Gallery.open(shop) as gallery:
        queries = [vectors(ids(3, first=900), space) for space in (OLD, WIDE)]
        expected = gallery.search(queries, k=5)
    files = [one.save(tmp_path / f"{one.space.name}.npz") for one in queries]
    words = ["search", shop, "--vectors", files[0], "--vectors", files[1], "-k", 5]
    result = CliRunner().invoke(gallery_app, [str(word) for word in [*words, "--json"]])
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)["results"]
    assert [[hit["id"] for hit in hits] for hits in results] == [
        [h.id for h in o] for o in expected
    ]
    assert results[0][0]["rank_score"] == pytest.approx(expected[0][0].rank_score)


@pytest.mark.parametrize("share", ["150%", "-1", "half"])
def test_traffic_invalid_share_exits_2(shop: str, share: str) -> None:
    result = CliRunner().invoke(app, ["traffic", shop, "--", share])
    assert result.exit_code == 2
    assert "expected a share" in result.output


def test_failures_are_listed_and_retried(run: Run, shop: str, tmp_path: Path) -> None:
    part = vectors(ids(58), NEW).save(tmp_path / "part.npz")
    run("start", shop, "--to", part, "--order", "random")
    assert run("run", shop, "--embeddings", part, code=1)["failed"] == 2
    listed = run("failures", shop)
    assert [one["id"] for one in listed["failures"]] == ["i0058", "i0059"]
    assert listed["failures"][0]["reason"] == "no vector for this id in part.npz"
    with pytest.raises(GalleryError, match="2 of 60 items failed"):
        run("finish", shop)
    assert run("failures", shop, "--retry")["retried"] == 2
    whole = vectors(ids(60), NEW).save(tmp_path / "whole.npz")
    assert run("run", shop, "--embeddings", whole)["new"] == 60


def test_run_failed_gate_pauses_the_upgrade(run: Run, shop: str, tmp_path: Path) -> None:
    names = ids(40, first=900)
    old = vectors(names, OLD).save(tmp_path / "q-old.npz")
    good = vectors(names, NEW)
    fine = good.save(tmp_path / "q-new.npz")
    shuffled = good.vectors[np.random.default_rng(0).permutation(len(good))]
    bad = Embeddings(good.ids, shuffled, NEW).save(tmp_path / "q-bad.npz")
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    run("start", shop, "--to", new)
    for wrong in ((old, old), (fine, old)):  # the same file twice, both swapped
        with pytest.raises(SpaceMismatch, match="shadow queries are in"):
            run("gate", shop, "--shadow-old", wrong[0], "--shadow-new", wrong[1])
    assert run("status", shop)["gate"] is None
    failed = run("gate", shop, "--shadow-old", old, "--shadow-new", bad, code=1)
    assert failed["verdict"] == "FAIL"
    status = run("status", shop)
    assert (status["phase"], status["gate"]) == ("paused", "FAIL")
    run("resume", shop, "--override", "the queries were mixed up")
    words = ["--embeddings", new, "--shadow-old", old, "--shadow-new", bad]
    report = run("run", shop, *words, "--limit", 60)
    assert (report["gate"], report["paused"]) == ("FAIL", None)  # no worse than what was overridden
    judged = run("gate", shop, "--shadow-old", old, "--shadow-new", fine, code=None)
    assert judged["checks"][0]["verdict"] == "PASS"  # the new encoder is the better one
    assert judged["flips"]["negative"] < failed["flips"]["negative"]


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        (["start", "SHOP"], ConfigError, "--to NEW.npz or --encoder"),
        (["start", "SHOP", "--to", "WIDE"], SpaceMismatch, "not on record as compatible"),
        (["run", "SHOP"], ConfigError, "either --vectors"),
        (["run", "SHOP", "--embeddings", "NEW"], GalleryError, "midspan upgrade start"),
        (["finish", "SHOP"], GalleryError, "no upgrade is open"),
        (["rollback", "SHOP"], GalleryError, "no upgrade is open"),
        (["status", "nothing.midspan"], GalleryError, "nothing.midspan"),
        (["run", "SHOP", "--embeddings", "NEW", "--shadow-old", "NEW"], ConfigError, "in pairs"),
    ],
)
def test_upgrade_invalid_request_raises(
    run: Run, tmp_path: Path, words: list[str], error: type[MidspanError], match: str
) -> None:
    with make("sqlite", tmp_path) as gallery:
        shop = gallery.location
    places = {
        "SHOP": shop,
        "NEW": str(vectors(ids(60), NEW).save(tmp_path / "new.npz")),
        "WIDE": str(vectors(ids(60), WIDE).save(tmp_path / "wide.npz")),
    }
    with pytest.raises(error, match=match):
        run(*(places.get(word, word) for word in words))


def test_gate_limits_are_settable(run: Run, shop: str, tmp_path: Path) -> None:
    names = ids(40, first=900)
    old = vectors(names, OLD).save(tmp_path / "q-old.npz")
    good = vectors(names, NEW)
    turned = Embeddings(good.ids, np.roll(good.vectors, 1, axis=0), NEW).save(tmp_path / "q.npz")
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    run("start", shop, "--to", new)
    shadow = ["--shadow-old", old, "--shadow-new", turned]
    assert run("gate", shop, *shadow, code=1)["verdict"] == "FAIL"
    run("resume", shop, "--override", "a mistake")
    loose = [*shadow, "--max-negative-flips", 1, "--min-retention", 0]
    judged = run("gate", shop, *loose)
    assert (judged["verdict"], judged["checks"][0]["limit"]) == ("PASS", 1.0)
    assert run("run", shop, "--embeddings", new, *loose, "--max-latency", 1000)["new"] == 60
    assert run("status", shop)["phase"] == "running"


def test_audit_log_names_actor_step_and_reason(run: Run, shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    started = time.time()
    run("start", shop, "--to", new, "--order", "random")
    run("pause", shop, "--reason", "lunch")
    run("rollback", shop)
    entries = run("audit", shop)["entries"]
    steps = [entry["what"] for entry in reversed(entries)]
    assert steps[0] == "create"
    expected = ["upgrade start", "upgrade order", "upgrade pause", "upgrade rollback"]
    assert [step for step in steps if step in expected] == expected
    pause = next(entry for entry in entries if entry["what"] == "upgrade pause")
    assert pause["details"] == {"reason": "lunch"}
    assert pause["who"]
    assert started - 1 <= pause["when"] <= time.time() + 1
    assert len(run("audit", shop, "--limit", 2)["entries"]) == 2
    shown = CliRunner().invoke(app, ["audit", shop], terminal_width=200).stdout
    assert "upgrade rollback" in shown.replace("\n", " ")


def test_former_name_of_audit_works_and_is_not_listed(run: Run, shop: str) -> None:
    assert run("trail", shop, "--limit", 1) == run("audit", shop, "--limit", 1)
    listed = CliRunner().invoke(app, ["--help"]).stdout
    assert "audit" in listed
    assert "trail" not in listed
    assert CliRunner().invoke(app, ["trial", shop]).exit_code == 2


def test_upgrade_verbs_print_readable_tables(shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")

    def read(*words: object) -> str:
        result = CliRunner().invoke(app, [*map(str, words)])
        assert result.exit_code == 0, result.output
        return " ".join(result.stdout.split())

    assert "nothing is changed" in read("plan", shop, "--to", new)
    assert "running" in read("start", shop, "--to", new)
    assert "old 0 + new 60 + failed 0 = 60" in " ".join(
        read("run", shop, "--embeddings", new).split()
    )
    assert "0 failures" in read("failures", shop)
    assert "100.00 % new" in read("status", shop)
    assert "would vanish on rollback │ 0" in read("status", shop)
    assert "60 old vectors are kept until midspan upgrade forget" in read("finish", shop)
    assert "kept until midspan upgrade forget" in read("status", shop)
    assert "60 old vectors dropped" in read("forget", shop)


def test_resume_failed_gate_requires_a_reason(run: Run, shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    old = vectors(ids(60), OLD).save(tmp_path / "old.npz")
    run("start", shop, "--to", new)
    shadow = ["--shadow-old", old, "--shadow-new", new]
    report = run("gate", shop, *shadow, "--min-retention", 2, code=1)
    assert report["verdict"] == "FAIL"
    assert run("status", shop)["evidence"]["limits"] == {"retention": 2.0}
    with pytest.raises(GalleryError, match="resume with `override`"):
        run("resume", shop)
    status = run("resume", shop, "--override", "two is a typo")
    assert (status["phase"], status["gate"]) == ("running", "FAIL")
    assert status["override"]["reason"] == "two is a typo"
    run("run", shop, "--embeddings", new)
    run("gate", shop, *shadow, "--min-retention", 2, code=1)
    with pytest.raises(GalleryError, match="expected PASS"):
        run("finish", shop, "--force")
    assert run("finish", shop, "--override", "two is a typo")["left"] == 0


def test_gate_click_log_gives_a_verdict(run: Run, shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    old = vectors(ids(60), OLD).save(tmp_path / "old.npz")
    run("start", shop, "--to", new)
    with Gallery.open(shop) as gallery:
        served = gallery.search(vectors(ids(60), NEW), k=3)
    log = tmp_path / "log.jsonl"
    lines = [
        json.dumps({"id": id, "clicked": [hit.id for hit in hits if hit.id != id][:1]})
        for id, hits in zip(ids(60), served, strict=True)
    ]
    log.write_text("\n".join([*lines, ""]))
    shadow = ["--shadow-old", old, "--shadow-new", new]
    report = run("gate", shop, *shadow, "--queries", log, code=None)
    assert (report["metric"], report["n_queries"]) == ("clicked@10", 60)
    assert report["checks"][0]["value"] >= 1.0
    for bad in ("{}", "no JSON", '{"id": 1, "clicked": []}', '{"id": "a", "clicked": "b"}'):
        log.write_text(bad)
        with pytest.raises(FormatError, match=r'line 1: .*expected {"id": "query"'):
            run("gate", shop, *shadow, "--queries", log)
    with pytest.raises(DataError, match="cannot be read"):
        run("gate", shop, *shadow, "--queries", tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="needs --shadow-old"):
        run("run", shop, "--embeddings", new, "--queries", log)


def test_failures_delete_removes_items_without_a_vector(
    run: Run, shop: str, tmp_path: Path
) -> None:
    new = vectors(ids(59), NEW).save(tmp_path / "new.npz")
    run("start", shop, "--to", new)
    run("run", shop, "--embeddings", new, code=1)
    with pytest.raises(GalleryError, match="with midspan upgrade failures"):
        run("finish", shop, "--force")
    with pytest.raises(ConfigError, match="exclude each other"):
        run("failures", shop, "--retry", "--delete")
    assert run("failures", shop, "--delete")["deleted"] == 1
    assert run("finish", shop)["kept"] == 59


@pytest.mark.parametrize("given", ["7", "x", "-1d", "d"])
def test_finish_invalid_keep_time_exits_2(shop: str, given: str) -> None:
    result = CliRunner().invoke(app, ["finish", shop, "--keep-old", given])
    assert result.exit_code == 2
    assert "expected a time such as" in " ".join(result.output.split())


def test_start_no_rollback_accepts_new_vectors_only(run: Run, shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    status = run("start", shop, "--to", new, "--no-rollback")
    assert status["rollback"] is False
    with Gallery.open(shop) as gallery:
        gallery.add(vectors(["late"], NEW))
    assert run("status", shop)["would_vanish"] == 1


class Brightness:
    """Stands for an encoder: the mean of each channel."""

    space = Space("brightness", 3, fingerprint="f-bright")
    takes_images = True

    device = "cpu"
    preprocessing = Preprocessing(height=4, width=4, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)

    def embed(self, images: Any, *, ids: list[str], **_: Any) -> Embeddings:
        assert images.shape == (len(ids), 4, 4, 3)
        means = 1.0 + images.astype(np.float32).mean(axis=(1, 2))
        return Embeddings(np.array(ids, dtype=np.str_), means, self.space)


def test_run_reads_images_from_the_uris_of_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    red = tmp_path / "red.png"
    Image.new("RGB", (8, 8), (200, 0, 0)).save(red)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    images = np.zeros((3, 4, 4, 3), dtype=np.uint8)
    images[2, ..., 1] = 90
    np.savez(tmp_path / "set.npz", images=images, labels=np.array([0, 1, 1]))
    shard = write_shard(
        tmp_path / "a.tar", {"c#1/red.png": red.read_bytes(), "bad.png": broken.read_bytes()}
    )
    (tmp_path / "cut.tar").write_bytes(shard.read_bytes()[:700])
    (tmp_path / "cut.npz").write_bytes((tmp_path / "set.npz").read_bytes()[:100])
    places = {
        "red": str(red),
        "green": f"{tmp_path / 'set.npz'}#2",
        "in a shard": f"{shard}#c#1/red.png",
        "broken": str(broken),
        "gone": str(tmp_path / "gone.png"),
        "no such row": f"{tmp_path / 'set.npz'}#3",
        "set gone": f"{tmp_path / 'gone.npz'}#0",
        "set cut": f"{tmp_path / 'cut.npz'}#0",
        "broken in a shard": f"{shard}#bad.png",
        "not in the shard": f"{shard}#other.png",
        "climbs": f"{shard}#../red.png",
        "shard gone": f"{tmp_path / 'gone.tar'}#red.png",
        "shard cut": f"{tmp_path / 'cut.tar'}#c#1/red.png",
        "url": "http://127.0.0.1:9/a.tar#red.png",
        "none": None,
    }
    items = [Item(id, uri, {}, 1, 0.0, 0.0, ()) for id, uri in places.items()]
    made = images_embedder(Brightness())(items)  # type: ignore[arg-type]
    embedded = dict(zip(made.vectors.ids.tolist(), made.vectors.vectors.tolist(), strict=True))
    red_mean = [201.0, 1.0, 1.0]
    assert embedded == {"red": red_mean, "green": [1.0, 91.0, 1.0], "in a shard": red_mean}
    assert set(made.failed) == {"gone", "set gone", "shard gone", "url"}
    assert {*embedded, *made.failed, *made.hopeless} == set(places)
    assert made.hopeless["none"] == "the item has no uri"
    assert "no image of this name" in made.hopeless["not in the shard"]
    assert "has 3 images" in made.hopeless["no such row"]


def test_upgrade_every_command_has_help() -> None:
    commands = typer.main.get_command(app)
    names = set(commands.commands)  # type: ignore[attr-defined]
    expected = {"plan", "start", "run", "status", "pause", "resume", "gate", "finish", "rollback"}
    assert expected <= names
    for name in names:
        result = CliRunner().invoke(app, [name, "--help"])
        assert result.exit_code == 0
        assert "--json" in result.stdout


def test_rollback_counts_items_without_an_old_vector(run: Run, shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    run("start", shop, "--to", new, "--no-rollback")
    with Gallery.open(shop) as gallery:
        add(gallery, ["fresh"], NEW)
    assert run("rollback", shop)["without"] == 1
    old = vectors(["fresh"], OLD).save(tmp_path / "old.npz")
    assert run("run", shop, "--embeddings", old)["new"] == 61


def test_run_alongside_searches_lowers_its_priority_by_default(
    run: Run, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from midspan.gallery import search_log

    nices: list[int] = []
    monkeypatch.setattr(search_log, "BEACON_SECONDS", 0.0)
    monkeypatch.setattr(upgrade_sources, "LOOK", 1.0)
    monkeypatch.setattr("os.nice", nices.append)
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    run("start", shop, "--to", new, "--order", "random")
    with Gallery.open(shop) as searching:

        def search() -> None:
            for _ in range(30):
                searching.search(vectors(ids(1), NEW), space=NEW)

        search()
        assert run("run", shop, "--embeddings", new, "--limit", 10)["new"] == 10
        assert nices == [upgrade_sources.GENTLE]
        search()
        run("run", shop, "--embeddings", new, "--limit", 10, "--full-speed")
        assert nices == [upgrade_sources.GENTLE]


def test_gallery_add_during_an_upgrade_takes_both_vectors(
    run_all: Run, shop: str, tmp_path: Path
) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    run_all("upgrade", "start", shop, "--to", new)
    fresh = [
        vectors(["fresh"], space).save(tmp_path / f"{space.name}1.npz") for space in (NEW, OLD)
    ]
    with pytest.raises(ItemError, match="promises a rollback"):
        run_all("gallery", "add", shop, "--embeddings", fresh[0])
    with pytest.raises(ConfigError, match="goes with --images"):
        run_all("gallery", "add", shop, "--embeddings", fresh[0], "--also-encoder", "x")
    run_all("gallery", "add", shop, "--embeddings", fresh[0], "--also", fresh[1])
    assert run_all("upgrade", "status", shop)["would_vanish"] == 0
    with Gallery.open(shop) as gallery:
        assert set(gallery.get("fresh").spaces) == {"f-new", "f-old"}


def test_status_without_an_upgrade_counts_items_by_space(run: Run, shop: str) -> None:
    result = CliRunner().invoke(app, ["status", shop])
    assert result.stdout == f"{shop}: no upgrade is open; 60 items in 'old'\n"
    status = run("status", shop)
    assert (status["phase"], status["space"], status["all"]) == ("none", "old", 60)
    assert (status["from_space"], status["to_space"], status["rate"]) == (None, None, None)


def test_status_after_a_rollback_shows_the_old_space(run: Run, shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    run("start", shop, "--to", new)
    run("run", shop, "--vectors", new, "--limit", 20)
    run("rollback", shop)
    assert (
        "no upgrade is open; 60 items in 'old'" in CliRunner().invoke(app, ["status", shop]).stdout
    )
    with Gallery.open(shop) as gallery:
        assert repr(Upgrade(gallery).status()).endswith("no upgrade is open; 60 items in 'old')")


def test_gate_without_files_uses_the_stored_sample(run: Run, shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    run("start", shop, "--to", new)
    judged = run("gate", shop)
    assert (judged["verdict"], judged["labelled"], judged["n_queries"]) == ("PASS", True, 60)
    rows = np.random.default_rng(0).normal(size=(60, NEW.dim)).astype(np.float32)
    bad = Embeddings(np.array(ids(60)), rows, NEW).save(tmp_path / "bad.npz")
    result = CliRunner().invoke(app, ["run", shop, "--vectors", str(bad)])
    assert result.exit_code == 1
    shown = " ".join(result.stdout.split())
    assert "the gate says FAIL and paused the upgrade (gate: retention" in shown
    assert "on: midspan upgrade resume" in shown
    assert '--override "reason"' in shown
    status = run("status", shop)
    assert (status["phase"], status["rate"], status["seconds_left"]) == ("paused", None, None)


def test_finish_below_full_traffic_prints_the_share(shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    for words in (["start", shop, "--to", new, "--traffic", "5%"], ["run", shop, "--vectors", new]):
        assert CliRunner().invoke(app, list(map(str, words))).exit_code == 0
    shown = CliRunner().invoke(app, ["finish", shop]).stdout
    assert "the new way had answered 5.00 % of the traffic until now" in shown
    assert "traffic answered" not in CliRunner().invoke(app, ["status", shop]).stdout


def test_traffic_bare_number_suggests_a_percentage(shop: str) -> None:
    result = CliRunner().invoke(app, ["traffic", shop, "50"])
    assert result.exit_code == 2
    assert "did you mean 50%?" in result.output


def test_reorder_changes_the_order_of_a_running_upgrade(
    run: Run, shop: str, tmp_path: Path
) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    with pytest.raises(GalleryError, match="no upgrade is open"):
        run("reorder", shop, "newest")
    run("start", shop, "--to", new, "--order", "random")
    assert run("reorder", shop, "newest")["order"] == "newest"
    with pytest.raises(ConfigError, match="record of searches"):
        run("reorder", shop, "traffic")
    run("run", shop, "--vectors", new)
    run("finish", shop)
    with pytest.raises(GalleryError, match="no item waits"):
        run("reorder", shop, "random")


@pytest.mark.parametrize("verb", ["plan", "start"])
def test_start_invalid_request_fails_before_the_encoder_is_loaded(
    run: Run, shop: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(upgrade_sources, "embedder_of", lambda name, **_: loaded.append(name))
    for words, message in (
        (["--mode", "map-query"], "requires a bridge from new to old"),
        (["--mode", "both", "--bridge", "b"], "takes no bridge"),
        (["--order", "alphabetical"], "order"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(verb, shop, "--encoder", "slow", *words)
    with Gallery.open(shop) as gallery:
        Upgrade.start(gallery, to=NEW)
    with pytest.raises(GalleryError, match="is open; continue it with midspan upgrade"):
        run(verb, shop, "--encoder", "slow")
    assert loaded == []


def test_upgrade_refusals_state_the_reason(run: Run, shop: str, tmp_path: Path) -> None:
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    wide = vectors(ids(60), WIDE).save(tmp_path / "wide.npz")
    with pytest.raises(ConfigError, match="`sample_size` is 0, and mode both merges scores"):
        run("start", shop, "--to", wide, "--mode", "both", "--sample", 0)
    with pytest.raises(ConfigError, match="shadow queries come in pairs"):
        run("run", shop, "--vectors", new, "--shadow-old", new)
    with pytest.raises(SpaceMismatch, match="there is nothing to upgrade"):
        run("start", shop, "--to", vectors(ids(60), OLD).save(tmp_path / "old.npz"))
    run("start", shop, "--to", new)
    with pytest.raises(SpaceMismatch, match="these vectors are in 'wide'"):
        run("run", shop, "--vectors", wide)
    with pytest.raises(GalleryError, match=r": 60 of 60 items have no new vector yet; continue"):
        run("finish", shop)
    with pytest.raises(GalleryError, match="run midspan upgrade finish first"):
        run("forget", shop)
    run("rollback", shop)
    for verb in (["forget"], ["traffic", "5%"], ["gate"]):
        with pytest.raises(GalleryError, match="no upgrade is open; the gallery is in 'old'"):
            run(verb[0], shop, *verb[1:])
