"""Every route, with the role it asks for. There is no other way to add one.

open: anyone who reaches the service. read: the read token. admin: the admin token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import Response

from midspan import wire
from midspan.service import requests as r
from midspan.service import requests_upgrade as u
from midspan.service import (
    routes_explore,
    routes_gallery,
    routes_items,
    routes_jobs,
    routes_search,
    routes_upgrade,
)
from midspan.service.auth import Role

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler = Callable[..., Awaitable[Response]]


TAGS = {
    **dict.fromkeys(("audit", "events"), "gallery"),
    **dict.fromkeys(("thumbnails", "vectors", "facets", "duplicates"), "items"),
}


OF_TENANTS = {
    *(("POST", f"/v1/search{kind}") for kind in ("", "/vector", "/item", "/image")),
    *(("GET", f"/v1/items{rest}") for rest in ("", "/{id:path}", "/{id:path}/vector")),
    *(("GET", f"/v1/{kind}/{{id:path}}") for kind in ("thumbnails", "vectors")),
}


@dataclass(frozen=True, slots=True)
class Route:
    method: Method
    path: str
    role: Role
    handler: Handler
    gives: Any  # a class of midspan.wire, a tuple of them, or a content type
    takes: type[BaseModel] | None = None  # JSON
    form: type[BaseModel] | None = None  # fields besides the file of a multipart form
    job: bool = False  # may answer 202 with a job

    @property
    def tenants(self) -> bool:
        """Whether a tenant's token may ask it: only what keeps to the tenant's own items."""
        return self.key in OF_TENANTS

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path

    @property
    def tag(self) -> str:
        parts = self.path.split("/")
        if len(parts) < 3 or parts[1] != "v1":
            return "service"
        return TAGS.get(parts[2], parts[2])

    @property
    def name(self) -> str:
        """The operation's id: what a generated client calls it."""
        name = self.handler.__name__
        if name == self.tag or self.tag not in ("upgrade", "search", "gallery"):
            return name
        return f"{self.tag}_{name}"


class PutForm(BaseModel):
    payload: str = "{}"  # JSON


class SearchForm(BaseModel):
    k: int = 10
    limit: int | None = None
    filter: str | None = None  # JSON
    threshold: float | None = None
    score_threshold: float | None = None
    exact: bool = False
    with_payload: bool = True
    with_vectors: bool = False


_EXPLORE, _GALLERY, _ITEMS, _JOBS = routes_explore, routes_gallery, routes_items, routes_jobs
_SEARCH, _UPGRADE = routes_search, routes_upgrade
_VECTOR: Any = (wire.StoredVector, wire.Item)
_MANY: Any = (wire.SearchAnswer, wire.SearchManyAnswer)


def _step(
    name: str, handler: Handler, takes: type[BaseModel], *, gives: type = wire.UpgradeStatus
) -> Route:
    return Route("POST", f"/v1/upgrade/{name}", "admin", handler, gives, takes, job=True)


TABLE: tuple[Route, ...] = (
    Route("GET", "/", "open", _GALLERY.index, "text/html"),
    Route("GET", "/page/{name}", "open", _GALLERY.page_file, "text/plain"),
    Route("GET", "/healthz", "open", _GALLERY.health, wire.Health),
    Route("GET", "/readyz", "open", _GALLERY.ready, wire.Health),
    Route("GET", "/metrics", "read", _GALLERY.metrics, "text/plain"),
    Route("GET", "/v1/galleries", "read", _GALLERY.list_galleries, wire.Galleries),
    Route("GET", "/v1/gallery", "read", _GALLERY.info, wire.GalleryInfo),
    Route("GET", "/v1/gallery/verify", "read", _GALLERY.verify, wire.Verification),
    Route("GET", "/v1/audit", "admin", _GALLERY.audit, wire.AuditAnswer),
    Route("GET", "/v1/events", "read", _GALLERY.events, "text/event-stream"),
    Route("GET", "/docs", "open", _GALLERY.docs, "text/html"),
    Route(
        *("POST", "/v1/search", "read", _SEARCH.search, wire.SearchAnswer),
        takes=r.AnySearch,
        form=SearchForm,
    ),
    Route("POST", "/v1/search/vector", "read", _SEARCH.by_vector, _MANY, r.VectorSearch),
    Route("POST", "/v1/search/item", "read", _SEARCH.by_item, wire.SearchAnswer, r.ItemSearch),
    Route("POST", "/v1/search/image", "read", _SEARCH.by_image, wire.SearchAnswer, form=SearchForm),
    Route(
        *("POST", "/v1/search/compare", "read", _SEARCH.compare, wire.Comparison),
        takes=r.ItemSearch,
        form=SearchForm,
    ),
    Route("GET", "/v1/items", "read", _ITEMS.list_items, wire.ItemsPage),
    Route("POST", "/v1/items", "admin", _ITEMS.write_items, wire.Written, r.ItemsWrite),
    Route("GET", "/v1/items/{id:path}/vector", "read", _EXPLORE.get_item_vector, _VECTOR),
    Route("GET", "/v1/items/{id:path}", "read", _ITEMS.get_item, wire.Item),
    Route(
        *("PUT", "/v1/items/{id:path}", "admin", _ITEMS.put_item, wire.Written),
        takes=r.ItemWrite,
        form=PutForm,
    ),
    Route("PATCH", "/v1/items/{id:path}", "admin", _ITEMS.patch_item, wire.Item, r.PayloadWrite),
    Route("DELETE", "/v1/items/{id:path}", "admin", _ITEMS.delete_item, wire.Deleted),
    Route("GET", "/v1/thumbnails/{id:path}", "read", _ITEMS.thumbnail, "image/png"),
    Route("GET", "/v1/vectors/{id:path}", "read", _EXPLORE.get_vector, wire.StoredVector),
    Route("POST", "/v1/facets", "read", _EXPLORE.count_facets, wire.Facets, r.FacetsSearch),
    Route(
        *("POST", "/v1/duplicates", "admin", _EXPLORE.find_duplicates, wire.Duplicates),
        takes=r.DuplicatesSearch,
        job=True,
    ),
    Route("GET", "/v1/jobs", "read", _JOBS.list_jobs, wire.Jobs),
    Route("GET", "/v1/jobs/{job_id}", "read", _JOBS.get_job, wire.Job),
    Route("POST", "/v1/jobs/{job_id}/cancel", "admin", _JOBS.cancel_job, wire.Job, u.Empty),
    Route("GET", "/v1/upgrade", "read", _UPGRADE.status, wire.UpgradeStatus),
    Route("GET", "/v1/upgrade/curve", "read", _UPGRADE.curve, wire.Curve),
    Route("GET", "/v1/upgrade/flips", "read", _UPGRADE.flips, wire.Flips),
    Route("GET", "/v1/upgrade/failures", "read", _UPGRADE.failures, wire.FailuresPage),
    _step("plan", _UPGRADE.plan, u.UpgradeSettings, gives=wire.UpgradePlan),
    _step("start", _UPGRADE.start, u.UpgradeStart),
    _step("run", _UPGRADE.run, u.UpgradeRun),
    _step("traffic", _UPGRADE.traffic, u.UpgradeTraffic),
    _step("pause", _UPGRADE.pause, u.UpgradePause),
    _step("resume", _UPGRADE.resume, u.UpgradeResume),
    _step("retry", _UPGRADE.retry, u.Empty),
    _step("gate", _UPGRADE.gate, u.Empty, gives=wire.GateResult),
    _step("finish", _UPGRADE.finish, u.UpgradeFinish),
    _step("forget", _UPGRADE.forget, u.Empty),
    _step("rollback", _UPGRADE.rollback, u.UpgradeRollback),
)
