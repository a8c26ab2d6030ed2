"""The plan on paper against numbers computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.errors import ConfigError
from midspan.gallery import Gallery
from midspan.spaces import Embeddings
from midspan.upgrade.scale import Cluster, ScalePlan, StorePlan, scale_plan
from midspan.upgrade.scale_sample import ask_gallery
from midspan.upgrade.unit_costs import SHIPPED, Costs, StoreCosts, read_costs
from tests.upgrade.world import NEW, OLD, encoder

COSTS = Costs(
    decode_seconds_per_kb=0.0001,
    embed_seconds=0.04,
    stores={
        "embedded": StoreCosts(
            start_seconds=3e-6,
            order_seconds=1e-4,
            write_seconds=2e-4,
            index_seconds=1e-4,
            item_bytes=100,
            vector_bytes=50,
            index_bytes=40,
        ),
        "pgvector": StoreCosts(write_seconds=4e-4, index_bytes=300),
    },
)


def planned(store: str = "embedded", /, **settings: float) -> tuple[ScalePlan, StorePlan]:
    cluster = Cluster(**{"workers": 10, **settings})  # type: ignore[arg-type]
    plan = scale_plan(items=10**9, dim=100, image_kb=100, cluster=cluster, costs=COSTS)
    return plan, next(one for one in plan.stores if one.store == store)


def test_a_core_decodes_and_embeds_one_image_after_the_other() -> None:
    plan, store = planned()
    assert plan.embed_seconds == pytest.approx(1e9 * (0.01 + 0.04) / 10)  # 5e6 s
    assert plan.read_seconds == pytest.approx(1e9 * 8e5 / (10 * 10e9))  # bits over bits a second
    assert plan.image_bytes == 1e14
    assert plan.vector_bytes == 4e11
    assert plan.gbit_needed == pytest.approx(20 * 8e5 / 1e9)  # a worker takes 20 images a second
    assert store.backfill_seconds == pytest.approx(5e6)
    assert store.bottleneck == "embed"
    assert store.useful_workers == 10


def test_steps_follow_each_other_and_the_backfill_is_as_slow_as_its_slowest_part() -> None:
    _, store = planned(workers=1000)
    assert store.write_seconds == pytest.approx(2e5)  # one writer, however many workers
    assert store.backfill_seconds == pytest.approx(2e5)  # embedding would take 5e4
    assert store.bottleneck == "write"
    assert store.useful_workers == 250
    assert store.seconds == pytest.approx(3e3 + 1e5 + 2e5 + 1e5)


def test_gpus_embed_while_workers_decode() -> None:
    plan, store = planned(gpus=8, images_per_second=500)
    assert plan.embed_seconds == pytest.approx(1e9 / 4000)
    assert plan.decode_seconds == pytest.approx(1e9 * 0.01 / 10)
    assert store.bottleneck == "decode"
    assert plan.gbit_needed == pytest.approx(100 * 8e5 / 1e9)  # ten workers, 1,000 images a second


def test_a_rate_that_is_given_is_that_of_a_worker_with_all_it_does() -> None:
    plan, _ = planned(images_per_second=100)
    assert plan.embed_seconds == pytest.approx(1e6)
    assert plan.decode_seconds == 0
    assert planned(images_per_second=1e6, gbit=0.01)[1].bottleneck == "read images"


def test_money_is_that_of_all_workers_while_the_backfill_runs() -> None:
    _, store = planned(workers=1000, price_per_worker_hour=0.5)
    assert store.money == pytest.approx(1000 * 2e5 / 3600 * 0.5)
    assert planned()[1].money is None


def test_disk_and_memory_by_precision() -> None:
    _, store = planned()
    assert store.disk_bytes == pytest.approx(1e9 * (100 + 2 * (400 + 50)))
    wanted = {"float32": 5.4e11, "int8": 1.4e11, "binary": 5.25e10}
    assert store.memory_bytes == pytest.approx(wanted)  # 5, 1 and 1/8 bytes a number, and 40
    assert store.machines == {"float32": 3, "int8": 1, "binary": 1}


def test_a_server_writes_with_its_cores_but_no_more_than_there_are_workers() -> None:
    assert planned("pgvector")[1].write_seconds == pytest.approx(4e5)
    assert planned("pgvector", server_cores=4)[1].write_seconds == pytest.approx(1e5)
    assert planned("pgvector", server_cores=64)[1].write_seconds == pytest.approx(4e4)


def test_what_was_not_measured_stays_unknown() -> None:
    _, store = planned("qdrant")
    assert store.write_seconds is None
    assert not store.complete
    assert planned()[1].complete
    assert store.disk_bytes is None
    assert store.memory_bytes["float32"] is None
    assert planned("pgvector")[1].memory_bytes["int8"] is None, "pgvector has no int8"


def test_where_it_breaks_first() -> None:
    limits = planned()[1].limits
    assert [limit.items for limit in limits] == sorted(limit.items for limit in limits)
    found = {limit.what.split()[0]: limit.items for limit in limits}
    assert found["other"] == 20_000_000  # 60 s ÷ 3 µs
    assert found["float32"] == int(256e9 / 540)
    assert found["one"] == 864_000_000  # a day ÷ 0.1 ms
    assert found["writing"] == 3_024_000_000  # a week ÷ 0.2 ms
    assert found["the"] == 864_000_000
    assert limits[0].items == 20_000_000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gpus": 8}, "8 GPUs, but how fast is one"),
        ({"gpus": -1}, "gpus = -1"),
        ({"workers": 0}, "workers = 0"),
        ({"gbit": -1.0}, "gbit = -1"),
        ({"images_per_second": 0.0}, "images-per-second = 0"),
        ({"price_per_worker_hour": -2.0}, "price-per-worker-hour = -2"),
    ],
)
def test_impossible_clusters_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned(**settings)


# ---- the table


def test_the_shipped_table_has_all_that_was_measured_and_how() -> None:
    costs = read_costs()
    assert {"embedded", "pgvector", "milvus"} <= costs.stores.keys()
    for store in ("embedded", "pgvector"):
        values = costs.stores[store]
        assert values.write_seconds is not None
        assert 1e-6 < values.write_seconds < 0.1
        assert values.index_seconds is not None
    lines = SHIPPED.read_text().splitlines()[1:]
    assert all("python -m benchmarks.unit_costs --engine" in line for line in lines)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("embedded,wirte_seconds,1", "did you mean 'write_seconds'"),
        ("embedded,write_seconds,fast", "'fast'; wanted a number"),
        ("embedded,write_seconds,-1", "'-1'; wanted a number"),
        ("embedded,write_seconds,1", "wanted a value for decode_seconds_per_kb, embed_seconds"),
    ],
)
def test_a_table_with_mistakes_is_refused(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(f"store,name,value\n{line}\n")
    with pytest.raises(ConfigError, match=words):
        read_costs(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_costs(tmp_path / "none.csv")


def test_a_gallery_tells_what_it_is_and_how_large_its_images_are(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jpg" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(b"x" * 1000 * (number + 1))
    with Gallery.create(str(tmp_path / "shop.midspan"), OLD) as gallery:
        rows = np.eye(4, 12, dtype=np.float32)
        uris = [*map(str, files), "https://elsewhere/4.jpg"]
        gallery.add(Embeddings(np.array(list("abcd")), rows, OLD), uris=uris)
        found = ask_gallery(gallery, space=None, embed=None)
        assert (found.store, found.dim, found.image_kb) == ("embedded", 12, 2.0)
        assert found.images_per_second is None
        measured = ask_gallery(gallery, space=NEW, embed=encoder(NEW))
        assert measured.images_per_second is not None
        assert measured.images_per_second > 0
