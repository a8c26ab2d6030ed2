"""Tenants of one gallery: each meets its own items alone, as if it had a gallery of its own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import GalleryError, ItemError, UnknownId
from midspan.gallery import Eq, Gallery, Hit
from midspan.gallery.tenants import Tenant
from midspan.upgrade import Upgrade
from tests.cli.conftest import Command, midspan  # noqa: F401
from tests.gallery.conftest import Locate
from tests.gallery.samples import NEW, OLD, embed

IDS = [f"i{number:02}" for number in range(40)]


def shown(hits: list[list[Hit]]) -> list[list[tuple[str, float, object]]]:
    return [[(hit.id, hit.score, hit.payload.get("n")) for hit in one] for one in hits]


def fill(tenant: Tenant, *, seed: int) -> None:
    tenant.add(
        embed(IDS, seed=seed),
        uris=[f"{id}.jpg" for id in IDS],
        payloads=[{"n": place % 3} for place in range(len(IDS))],
    )


@pytest.fixture
def shared(locate_engine: Locate) -> Iterator[Gallery]:
    with Gallery.create(locate_engine(), OLD) as gallery:
        fill(gallery.tenant("acme"), seed=1)
        fill(gallery.tenant("zeta"), seed=2)
        yield gallery


def test_tenant_search_equals_a_gallery_of_its_own(shared: Gallery) -> None:
    queries = embed([f"q{number}" for number in range(5)], seed=3)
    with Gallery.create("memory:alone", OLD) as alone:
        alone.add(embed(IDS, seed=1), payloads=[{"n": place % 3} for place in range(len(IDS))])
        acme = shared.tenant("acme")
        for filter in (None, Eq("n", 1), {"$not": {"n": 1}}):
            expected = shown(alone.search(queries, k=60, filter=filter))
            assert shown(acme.search(queries, k=60, filter=filter)) == expected
        expected = shown([alone.more_like("i03", k=60)])
        assert shown([acme.more_like("i03", k=60)]) == expected
        assert [item.id for item in acme.scan(after="i10", limit=100)] == IDS[11:]
        assert len(acme) == len(alone) == 40
        found = acme.vectors(["i05", "nobody"], space=OLD.fingerprint)
        assert found.ids.tolist() == ["i05"]
        assert np.array_equal(found.vectors, embed(IDS, seed=1).vectors[5:6])


def test_tenant_filters_and_ids_never_reach_another_tenant(shared: Gallery) -> None:
    acme = shared.tenant("acme")
    queries = embed(IDS, seed=2)  # the other tenant's vectors
    every = {"$or": [{"tenant": "zeta"}, {"n": {"$exists": True}}]}
    for filter in (Eq("tenant", "zeta"), ~Eq("tenant", "acme")):
        assert acme.search(queries, k=5, filter=filter) == [[] for _ in IDS]
    for hits in acme.search(queries, k=100, filter=every):
        assert {hit.payload["tenant"] for hit in hits} == {"acme"}
    assert acme.get_many(["zeta:i01", ":i01", "i99"]) == []
    assert acme.delete(["zeta:i01"]) == 0
    with pytest.raises(UnknownId):
        acme.more_like("zeta:i01")


def test_tenant_writes_leave_other_tenants_unchanged(shared: Gallery) -> None:
    acme, zeta = shared.tenant("acme"), shared.tenant("zeta")
    before = zeta.scan(limit=100)
    acme.put(embed(IDS[:5], seed=7), payloads=[{"n": 9}] * 5)
    acme.set_payload({"i06": {"n": 8}})
    assert acme.delete(IDS[20:]) == 20
    assert zeta.scan(limit=100) == before
    assert (len(acme), len(zeta), len(shared)) == (20, 40, 60)
    (hits,) = acme.search(embed(["i00"], seed=7), k=1)
    assert (hits[0].id, hits[0].payload["n"]) == ("i00", 9)
    assert acme.get_many(["i06"])[0].payload == {"n": 8, "tenant": "acme"}


def test_upgrade_moves_all_tenants_and_mixes_none(shared: Gallery) -> None:
    upgrade = Upgrade.start(shared, to=NEW)
    for key in [item.id for item in shared.scan(limit=100)][::2]:
        revision = shared.get(key).revision
        shared.add_missing_vectors(embed([key], NEW), revisions=[revision])
    for name in ("acme", "zeta"):
        tenant = shared.tenant(name)
        (hits,) = tenant.search(embed(["q"], NEW), k=100)
        assert sorted(hit.id for hit in hits) == IDS
        assert {hit.payload["tenant"] for hit in hits} == {name}
        assert len({hit.space.fingerprint for hit in hits}) == 2
    upgrade.rollback()
    assert len(shared.tenant("zeta").search(embed(["q"]), k=100)[0]) == 40


def test_tenant_invalid_name_raises_and_changes_nothing(shared: Gallery) -> None:
    acme = shared.tenant("acme")
    for name in ("", "a:b", "a/b", "x" * 65, "ü", None):
        with pytest.raises(ItemError, match="a tenant's name is"):
            shared.tenant(name)  # type: ignore[arg-type]
    with pytest.raises(ItemError, match="names the tenant 'zeta'"):
        acme.add(embed(["new"]), payloads=[{"tenant": "zeta"}])
    with pytest.raises(ItemError, match="names the tenant 'zeta'"):
        acme.set_payload({"i01": {"tenant": "zeta"}})
    with pytest.raises(GalleryError):
        acme.add(embed(["i01"]))
    assert (len(acme), len(shared)) == (40, 80)


def test_tenant_add_columns_become_the_payload(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "shop.midspan", OLD) as gallery:
        acme = gallery.tenant("acme")
        acme.add(dataclasses.replace(embed(["a", "b"]), columns={"labels": np.array(["x", "y"])}))
        assert [item.payload["labels"] for item in acme.get_many(["a", "b"])] == ["x", "y"]


def test_cli_tenant_option_adds_and_searches(
    tmp_path: Path,
    midspan: Command,  # noqa: F811
) -> None:
    shop, file = tmp_path / "shop.midspan", tmp_path / "vectors.npz"
    Gallery.create(shop, OLD).close()
    for tenant, seed in (("acme", 1), ("zeta", 2)):
        embed(IDS, seed=seed).save(file)
        assert midspan("gallery", "add", shop, "--vectors", file, "--tenant", tenant)[0] == 0
    found = {}
    for tenant in ("acme", "zeta"):  # the file is zeta's
        words = ("--vectors", file, "--tenant", tenant, "-k", 3, "--json")
        code, out, err = midspan("gallery", "search", shop, *words)
        assert code == 0, err
        found[tenant] = [hits[0]["id"] for hits in json.loads(out)["results"]]
    assert found["zeta"] == IDS
    assert found["acme"] != IDS
    with Gallery.open(shop) as gallery:
        assert len(gallery.tenant("acme")) == len(gallery.tenant("zeta")) == len(IDS)
    code, _, err = midspan("gallery", "search", shop, "--vectors", file, "--tenant", "no:body")
    assert code == 2
    assert "a tenant's name" in err
