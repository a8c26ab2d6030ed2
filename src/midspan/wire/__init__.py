"""What a service answers, as small frozen values; their fields are those of its JSON.

The service describes them in its OpenAPI document, the client reads them.
"""

from __future__ import annotations

from midspan.wire.errors import (
    ErrorAnswer,
    ErrorDetail,
)
from midspan.wire.gallery import (
    AuditAnswer,
    AuditEntry,
    Event,
    Galleries,
    GalleryEntry,
    GalleryInfo,
    Health,
    SpaceCheck,
    SpaceInfo,
    Verification,
)
from midspan.wire.jobs import (
    Job,
    JobProgress,
    Jobs,
)
from midspan.wire.search import (
    Comparison,
    Deleted,
    DuplicateGroup,
    Duplicates,
    FacetCount,
    Facets,
    Hit,
    Item,
    ItemsPage,
    RankChange,
    SearchAnswer,
    SearchManyAnswer,
    StoredVector,
    Written,
)
from midspan.wire.upgrade import (
    Curve,
    CurvePoint,
    Failure,
    FailuresPage,
    Flips,
    GateCheck,
    GateFlips,
    GateResult,
    GateVerdict,
    JobStatus,
    QueryFlip,
    UpgradePlan,
    UpgradeStatus,
)

__all__ = [
    "AuditAnswer",
    "AuditEntry",
    "Comparison",
    "Curve",
    "CurvePoint",
    "Deleted",
    "DuplicateGroup",
    "Duplicates",
    "ErrorAnswer",
    "ErrorDetail",
    "Event",
    "FacetCount",
    "Facets",
    "Failure",
    "FailuresPage",
    "Flips",
    "Galleries",
    "GalleryEntry",
    "GalleryInfo",
    "GateCheck",
    "GateFlips",
    "GateResult",
    "GateVerdict",
    "Health",
    "Hit",
    "Item",
    "ItemsPage",
    "Job",
    "JobProgress",
    "JobStatus",
    "Jobs",
    "QueryFlip",
    "RankChange",
    "SearchAnswer",
    "SearchManyAnswer",
    "SpaceCheck",
    "SpaceInfo",
    "StoredVector",
    "UpgradePlan",
    "UpgradeStatus",
    "Verification",
    "Written",
]
