"""Every route, with the role it asks for. There is no other way to add one.

open: anyone who reaches the service. read: the read token. admin: the admin token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import Response

from midspan.service import models as m
from midspan.service import models_upgrade as u
from midspan.service import routes_gallery, routes_items, routes_search, routes_upgrade
from midspan.service.auth import Role

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    method: Method
    path: str
    role: Role
    handler: Handler
    gives: type[BaseModel] | tuple[type[BaseModel], ...] | str  # a model, or a content type
    takes: type[BaseModel] | None = None  # JSON
    form: type[BaseModel] | None = None  # fields beside the file of a multipart form

    @property
    def key(self) -> tuple[str, str]:
        return self.method, self.path


class PutForm(BaseModel):
    payload: str = "{}"  # JSON


class SearchForm(BaseModel):
    k: int = 10
    filter: str | None = None  # JSON
    threshold: float | None = None
    exact: bool = False


_GALLERY, _ITEMS, _SEARCH, _UPGRADE = routes_gallery, routes_items, routes_search, routes_upgrade
_MANY: Any = (m.SearchAnswer, m.SearchManyAnswer)

TABLE: tuple[Route, ...] = (
    Route("GET", "/", "open", _GALLERY.index, "text/html"),
    Route("GET", "/page/{name}", "open", _GALLERY.page_file, "text/plain"),
    Route("GET", "/healthz", "open", _GALLERY.health, m.Health),
    Route("GET", "/readyz", "open", _GALLERY.ready, m.Health),
    Route("GET", "/metrics", "read", _GALLERY.metrics, "text/plain"),
    Route("GET", "/v1/gallery", "read", _GALLERY.info, m.GalleryInfo),
    Route("GET", "/v1/gallery/verify", "read", _GALLERY.verify, m.VerifyAnswer),
    Route("GET", "/v1/audit", "admin", _GALLERY.audit, u.AuditAnswer),
    Route("GET", "/v1/events", "read", _GALLERY.events, "text/event-stream"),
    Route("POST", "/v1/search/vector", "read", _SEARCH.by_vector, _MANY, m.VectorSearch),
    Route("POST", "/v1/search/item", "read", _SEARCH.by_item, m.SearchAnswer, m.ItemSearch),
    Route("POST", "/v1/search/image", "read", _SEARCH.by_image, m.SearchAnswer, form=SearchForm),
    Route(
        *("POST", "/v1/search/compare", "read", _SEARCH.compare, m.CompareAnswer),
        takes=m.ItemSearch,
        form=SearchForm,
    ),
    Route("GET", "/v1/items", "read", _ITEMS.list_items, m.ItemsAnswer),
    Route("POST", "/v1/items", "admin", _ITEMS.write_items, m.Written, m.ItemsWrite),
    Route("GET", "/v1/items/{id:path}", "read", _ITEMS.get_item, m.ItemModel),
    Route(
        *("PUT", "/v1/items/{id:path}", "admin", _ITEMS.put_item, m.Written),
        takes=m.ItemWrite,
        form=PutForm,
    ),
    Route("PATCH", "/v1/items/{id:path}", "admin", _ITEMS.patch_item, m.ItemModel, m.PayloadWrite),
    Route("DELETE", "/v1/items/{id:path}", "admin", _ITEMS.delete_item, m.Deleted),
    Route("GET", "/v1/thumbnails/{id:path}", "read", _ITEMS.thumbnail, "image/png"),
    Route("GET", "/v1/upgrade", "read", _UPGRADE.status, u.UpgradeStatus),
    Route("GET", "/v1/upgrade/curve", "read", _UPGRADE.curve, u.CurveAnswer),
    Route("GET", "/v1/upgrade/flips", "read", _UPGRADE.flips, u.FlipsAnswer),
    Route("GET", "/v1/upgrade/failures", "read", _UPGRADE.failures, u.FailuresAnswer),
    Route("POST", "/v1/upgrade/plan", "admin", _UPGRADE.plan, u.PlanAnswer, u.UpgradeSettings),
    Route("POST", "/v1/upgrade/start", "admin", _UPGRADE.start, u.UpgradeStatus, u.UpgradeStart),
    Route("POST", "/v1/upgrade/run", "admin", _UPGRADE.run, u.UpgradeStatus, u.UpgradeRun),
    Route("POST", "/v1/upgrade/pause", "admin", _UPGRADE.pause, u.UpgradeStatus, u.UpgradePause),
    Route("POST", "/v1/upgrade/resume", "admin", _UPGRADE.resume, u.UpgradeStatus, u.Empty),
    Route("POST", "/v1/upgrade/retry", "admin", _UPGRADE.retry, u.UpgradeStatus, u.Empty),
    Route("POST", "/v1/upgrade/gate", "admin", _UPGRADE.gate, u.GateAnswer, u.Empty),
    Route(
        *("POST", "/v1/upgrade/finish", "admin", _UPGRADE.finish, u.UpgradeStatus),
        takes=u.UpgradeFinish,
    ),
    Route(
        *("POST", "/v1/upgrade/rollback", "admin", _UPGRADE.rollback, u.UpgradeStatus),
        takes=u.UpgradeRollback,
    ),
)
