"""`midspan upgrade plan | start | run | status | failures | pause | resume | gate | finish | …`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer

from midspan.cli.output import JSON_OPTION, percent, print_json, print_table
from midspan.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    from midspan.data import ImageSet, ImageSource
    from midspan.encoders import Encoder
    from midspan.encoders.onnx import OnnxEncoder
    from midspan.gallery import Item
    from midspan.spaces import Embeddings, Space
    from midspan.upgrade import Embed, Embedded, Plan, Shadow, Status, Upgrade

app = typer.Typer(
    help="Change a gallery over to another encoder while it is searched.", no_args_is_help=True
)

LOCATION = typer.Argument(help="The gallery: shop.midspan, postgresql://…, milvus://…")
TO = typer.Option("--to", help="Vectors of the new encoder (some or all items): .npz, .parquet.")
ENCODER = typer.Option(help="The new encoder: run folder, model.onnx, hf:… …")
MODE = typer.Option(
    help="direct: trained compatibly. map-query: a bridge new → old maps queries, nothing is "
    "written. map-gallery: a bridge old → new maps the stored vectors."
)
BRIDGE = typer.Option(help="Folder of the bridge, for the two map modes.")
ORDER = typer.Option(
    help="uncertainty, random, newest, most_seen, least_confidence, margin, entropy, "
    "class_distance, bridge_error, disagreement."
)
CALIBRATE = typer.Option(
    "--calibrate",
    help="Bring scores of old and new vectors to one scale: better ranking, two searches.",
)
SHADOW_OLD = typer.Option(help="Queries of the old encoder, best with labels: .npz.")
SHADOW_NEW = typer.Option(help="The same queries (by id) of the new encoder: .npz.")
Mode = Literal["direct", "map-query", "map-gallery"]


@app.command("plan")
def plan(
    location: Annotated[str, LOCATION],
    to: Annotated[Path | None, TO] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    mode: Annotated[Mode, MODE] = "direct",
    bridge: Annotated[Path | None, BRIDGE] = None,
    order: Annotated[str, ORDER] = "uncertainty",
    calibrate: Annotated[bool, CALIBRATE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """What an upgrade would do, how long it takes and what the gate says. Writes nothing."""
    embed = None if encoder is None else _encoder(encoder)[1]
    with _opened(location) as upgrade:
        made = upgrade.plan(
            upgrade.gallery,
            to=_target(to, encoder),
            mode=mode,
            bridge=bridge,
            order=order,
            calibrate=calibrate,
            embed=embed,
        )
    if as_json:
        print_json(made.to_dict())
    else:
        _print_plan(made)


@app.command("start")
def start(
    location: Annotated[str, LOCATION],
    to: Annotated[Path | None, TO] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    mode: Annotated[Mode, MODE] = "direct",
    bridge: Annotated[Path | None, BRIDGE] = None,
    order: Annotated[str, ORDER] = "uncertainty",
    calibrate: Annotated[bool, CALIBRATE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """From the next query on the new encoder answers. No image is read yet."""
    with _opened(location) as upgrade:
        upgrade.start(
            upgrade.gallery,
            to=_target(to, encoder),
            mode=mode,
            bridge=bridge,
            order=order,
            calibrate=calibrate,
            show=True,
        )
        _print_status(upgrade.status(), as_json=as_json)


@app.command("run")
def run(
    location: Annotated[str, LOCATION],
    embeddings: Annotated[
        Path | None, typer.Option(help="Vectors that exist already, found by id: .npz, .parquet.")
    ] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many items.")] = None,
    max_rate: Annotated[float | None, typer.Option(help="Items a second at most.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Items embedded and written at once.")] = 64,
    shadow_old: Annotated[Path | None, SHADOW_OLD] = None,
    shadow_new: Annotated[Path | None, SHADOW_NEW] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """The backfill. Stop it at any time, start it again, run it in several processes at once.

    With shadow queries the gate is asked each 1,000 items; a FAIL pauses the upgrade.
    """
    from midspan.upgrade import Settings, watch

    shadow = _shadow(shadow_old, shadow_new)
    with _opened(location) as upgrade:
        report = upgrade.run(
            _embed(embeddings, encoder),
            limit=limit,
            max_rate=max_rate,
            check=None if shadow is None else watch(upgrade.gallery, shadow),
            settings=Settings(batch=batch),
            show=True,
        )
    if as_json:
        print_json({**asdict(report), "rate": report.rate, "seconds_left": report.seconds_left})
        return
    print(
        f"{report.stopped}: {report.written:,} written, {report.given_up:,} given up in "
        f"{report.seconds:.1f} s ({report.rate:,.0f} items/s); old {report.old:,} + new "
        f"{report.new:,} + failed {report.failed:,} = {report.all:,}"
    )


@app.command("status")
def status(location: Annotated[str, LOCATION], as_json: bool = JSON_OPTION) -> None:
    """How far it is, how fast it goes, how long it will take."""
    with _opened(location) as upgrade:
        _print_status(upgrade.status(), as_json=as_json)


@app.command("failures")
def failures(
    location: Annotated[str, LOCATION],
    retry: Annotated[
        bool, typer.Option("--retry", help="Put them back on the work list, for the next run.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Items that could not be embedded, with reasons."""
    with _opened(location) as upgrade:
        found = upgrade.gallery.store.failures(after="", limit=100_000)
        retried = upgrade.gallery.store.retry() if retry else 0
    if as_json:
        print_json({"failures": [asdict(failure) for failure in found], "retried": retried})
        return
    rows = [[one.id, one.reason, str(one.attempts), one.uri or "–"] for one in found]
    print_table(f"{len(found)} failures", ["item", "reason", "tries", "image"], rows)
    if retry:
        print(f"{retried} are back on the work list")


@app.command("pause")
def pause(
    location: Annotated[str, LOCATION],
    reason: Annotated[str | None, typer.Option(help="For those who look at the status.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Stop the backfill in every process, within a batch. Searches go on."""
    with _opened(location) as upgrade:
        upgrade.pause(reason=reason)
        _print_status(upgrade.status(), as_json=as_json)


@app.command("resume")
def resume(location: Annotated[str, LOCATION], as_json: bool = JSON_OPTION) -> None:
    """Allow the backfill again; then start `upgrade run`."""
    with _opened(location) as upgrade:
        upgrade.resume()
        _print_status(upgrade.status(), as_json=as_json)


@app.command("gate")
def gate(
    location: Annotated[str, LOCATION],
    shadow_old: Annotated[Path, SHADOW_OLD],
    shadow_new: Annotated[Path, SHADOW_NEW],
    as_json: bool = JSON_OPTION,
) -> None:
    """Ask the old service and today's the same queries. FAIL pauses and is exit code 1."""
    from midspan.cli.gate import _print as print_gate
    from midspan.upgrade import judged_by, shadow_gate

    shadow = _shadow(shadow_old, shadow_new)
    assert shadow is not None
    with _opened(location) as upgrade:
        result = shadow_gate(upgrade.gallery, shadow)
        judged_by(upgrade.gallery, result)
    if as_json:
        print_json(result.to_dict())
    else:
        print_gate(result)
    if result.verdict == "FAIL":
        raise typer.Exit(1)


@app.command("finish")
def finish(
    location: Annotated[str, LOCATION],
    force: Annotated[
        bool, typer.Option("--force", help="Also with items left, or after a failed gate.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Drop the old vectors, for good."""
    with _opened(location) as upgrade:
        done = upgrade.finish(force=force)
    if as_json:
        print_json({"location": location, **asdict(done)})
        return
    left = f"; {done.left:,} items are left to embed" if done.left else ""
    print(f"{location} is in {done.space}; {done.dropped:,} old vectors dropped{left}")


@app.command("rollback")
def rollback(
    location: Annotated[str, LOCATION],
    drop: Annotated[
        bool, typer.Option("--drop", help="Also remove the new vectors that were made.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """The old vectors answer again, from the next query on."""
    with _opened(location) as upgrade:
        done = upgrade.rollback(drop=drop)
    if as_json:
        print_json({"location": location, **asdict(done)})
        return
    print(f"{location} is back in {done.space}")
    if done.without:
        print(
            f"{done.without:,} items came without an old vector and are not found now; embed them "
            f"with the old encoder: midspan upgrade run {location} --encoder OLD"
        )


# ---- from files and encoders to what the library takes


@contextmanager
def _opened(location: str) -> Iterator[Upgrade]:
    from midspan.gallery import Gallery
    from midspan.upgrade import Upgrade

    with Gallery.open(location) as gallery:
        yield Upgrade(gallery)


def _target(to: Path | None, encoder: str | None) -> Space | Embeddings:
    from midspan.spaces import Embeddings

    if to is not None:
        return Embeddings.load(to)
    if encoder is None:
        raise ConfigError("where to? give --to NEW.npz or --encoder RUN")
    return _encoder(encoder)[0]


def _embed(embeddings: Path | None, encoder: str | None) -> Embed:
    from midspan.spaces import Embeddings
    from midspan.upgrade import from_embeddings

    if (embeddings is None) == (encoder is None):
        raise ConfigError("give either --embeddings NEW.npz or --encoder RUN")
    if embeddings is not None:
        return from_embeddings(Embeddings.load(embeddings), source=embeddings.name)
    assert encoder is not None
    return _encoder(encoder)[1]


@functools.cache
def _encoder(name: str) -> tuple[Space, Embed]:
    from midspan.encoders import load_encoder

    loaded = load_encoder(name)
    if not loaded.takes_images:
        raise EncoderError(
            f"{name} embeds vectors, not images; embed them with midspan embed and give the file: "
            "--to and --embeddings"
        )
    return loaded.space, functools.partial(_embed_images, loaded)


def _embed_images(encoder: Encoder | OnnxEncoder, items: Sequence[Item]) -> Embedded:
    """What stands at the uri of each item: an image file, or a row of an image set (set.npz#3)."""
    from midspan.data import ImageSet
    from midspan.upgrade import Embedded

    hopeless = {item.id: "the item has no uri" for item in items if item.uri is None}
    by_set: dict[str, dict[str, str]] = {}
    for item in items:
        if item.uri is not None:
            file = item.uri.rpartition("#")[0]
            by_set.setdefault(file if file.endswith(".npz") else "", {})[item.id] = item.uri
    made = encoder.embed(np.empty((0, 1, 1, 1), np.uint8), ids=[], progress=False)
    failed: dict[str, str] = {}
    for file, uris in by_set.items():
        images = ImageSet(ids=np.array(list(uris)), source=_source(file, list(uris.values())))
        part = encoder.embed(images, progress=False, on_failure=failed.__setitem__)
        made = part if not len(made) else made.joined_with(part)
    # A file that is not there may come back (a share that is not mounted); a broken one stays so.
    uri_of = {item.id: item.uri or "" for item in items}
    gone = {id: why for id, why in failed.items() if not Path(uri_of[id]).exists()}
    hopeless |= {id: why for id, why in failed.items() if id not in gone}
    return Embedded(made, failed=gone, hopeless=hopeless)


def _source(file: str, uris: list[str]) -> ImageSource:
    from midspan.data.sources import FileSource

    if not file:
        return FileSource(root=Path(), names=np.array(uris))
    rows = np.array([int(uri.rpartition("#")[2]) for uri in uris])
    return _image_set(file).source.take(rows)


@functools.lru_cache(maxsize=4)
def _image_set(file: str) -> ImageSet:
    from midspan.data import npz

    return npz(file)


def _shadow(old: Path | None, new: Path | None) -> Shadow | None:
    from midspan.spaces import Embeddings
    from midspan.upgrade import Shadow

    if old is None and new is None:
        return None
    if old is None or new is None:
        raise ConfigError("shadow queries come in pairs: --shadow-old and --shadow-new")
    return Shadow(old=Embeddings.load(old), new=Embeddings.load(new))


# ---- for people


def _print_status(found: Status, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
        return
    rows = [
        ["phase", found.phase + (f" ({found.reason})" if found.reason else "")],
        ["mode, order", f"{found.mode or '–'}, {found.order or '–'}"],
        ["from, to", f"{found.from_space or '–'} → {found.to_space or '–'}"],
        ["old + new + failed = all", f"{found.old:,} + {found.new:,} + {found.failed:,}"],
        ["", f"= {found.all:,} ({percent(found.share)} % new)"],
        ["rate", "nobody works" if found.rate is None else f"{found.rate:,.1f} items/s"],
        ["time left", _time(found.seconds_left)],
        ["gate", found.gate or "not asked"],
    ]
    print_table(f"{found.location}: upgrade", ["", ""], rows)


def _print_plan(plan: Plan) -> None:
    rows = [
        ["from", plan.from_space],
        ["to", plan.to_space],
        ["mode, order", f"{plan.mode}, {plan.order}"],
        ["items", f"{plan.items:,}, {plan.to_embed:,} to embed"],
        ["time", f"{_time(plan.seconds)} on this machine" if plan.seconds is not None else "–"],
        ["disk until finished", f"{plan.disk_bytes / 1e6:,.1f} MB"],
        ["searches for a query", str(plan.searches_per_query)],
    ]
    if plan.gate is not None:
        rows.append(["gate at the start", f"{plan.gate['verdict']} on {plan.sample:,} items"])
        rows += [
            [f"  {check['name']}", f"{percent(check['value'])} %, limit {percent(check['limit'])}"]
            for check in plan.gate["checks"]
        ]
    if plan.curve is not None:
        shown = ", ".join(percent(value) for value in plan.curve["values"][::5])
        rows.append([f"expected {plan.curve['metric']}, %", f"{shown} at 0, 50, 100 %"])
    print_table(f"{plan.location}: plan, nothing is written", ["", ""], rows)
    for note in plan.notes:
        print(f"· {note}")


def _time(seconds: float | None) -> str:
    if seconds is None or seconds < 120:
        return "–" if seconds is None else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
