"""Published protocols, one file each: the loader of the data set's real layout, and the metrics.

Every protocol has the same shape:

    protocol = Market1501(root=None)                       # settings, all keyword-only
    outcome = protocol.evaluate(query, gallery, metrics=("map", "cmc@1"), direct=False)
    outcome.metrics, outcome.per_query, outcome.n_queries, outcome.n_gallery

`query` and `gallery` are Embeddings; two encoders make the cross test. Without a gallery the query
set stands on both sides. `metrics` default to the published ones (`protocol.default_metrics`).
`direct` compares vectors of two spaces although no compatibility is on record.

Some need a folder of lists (`root`): it says which ids are queries, what is relevant, what is junk.
The others read columns of the embeddings and take `root` only to fill in those columns by id.

    columns alone       leave-one-out, query-gallery, sop, cub, inshop, market1501, tinyface, ijbs
    need a root         roxford, rparis, gldv2, lfw, ijbc-1v1, ijbc-1vn

Each module's `load…` functions return the ids and columns of the data set as small values, for
embedding the images in the first place. No image is opened here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from midspan.evaluation.protocols.outcome import Outcome
from midspan.spaces import Embeddings

PROTOCOLS = {
    "leave-one-out": "midspan.evaluation.protocols.leave_one_out:LeaveOneOut",
    "query-gallery": "midspan.evaluation.protocols.query_gallery:QueryGallery",
    "sop": "midspan.evaluation.protocols.sop:SOP",
    "cub": "midspan.evaluation.protocols.cub:CUB",
    "inshop": "midspan.evaluation.protocols.inshop:InShop",
    "market1501": "midspan.evaluation.protocols.market1501:Market1501",
    "roxford": "midspan.evaluation.protocols.revisited:ROxford",
    "rparis": "midspan.evaluation.protocols.revisited:RParis",
    "gldv2": "midspan.evaluation.protocols.gldv2:GLDv2",
    "lfw": "midspan.evaluation.protocols.lfw:LFW",
    "ijbc-1v1": "midspan.evaluation.protocols.ijbc:IJBCVerification",
    "ijbc-1vn": "midspan.evaluation.protocols.ijbc:IJBCIdentification",
    "ijbs": "midspan.evaluation.protocols.ijbs:IJBS",
    "tinyface": "midspan.evaluation.protocols.tinyface:TinyFace",
}


class EvaluationProtocol(Protocol):
    default_metrics: ClassVar[tuple[str, ...]]

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = ...,
        direct: bool = False,
    ) -> Outcome: ...


__all__ = ["PROTOCOLS", "EvaluationProtocol", "Outcome"]
