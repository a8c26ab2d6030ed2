"""Moving a gallery from one space to the next: `Upgrade` is the public API, `gate` decides."""

from midspan.gallery.records import MODES, Mode, Record
from midspan.upgrade.backfill import run
from midspan.upgrade.embed import Embed, Embedded, Staged, from_embeddings
from midspan.upgrade.failures import Reason, reasons, use_source, without_uris
from midspan.upgrade.finish import Finished, Forgotten, RolledBack
from midspan.upgrade.gate import gate
from midspan.upgrade.images import ImageEncoder, as_embed, images_embedder
from midspan.upgrade.orders import ORDERS, Hints, order_named
from midspan.upgrade.own_queries import own_gate, watch_own
from midspan.upgrade.plan import Plan
from midspan.upgrade.shadow import judged_by, shadow_gate, watch
from midspan.upgrade.shadow_queries import Shadow
from midspan.upgrade.status import Status
from midspan.upgrade.throttle import Latency
from midspan.upgrade.upgrade import Upgrade
from midspan.upgrade.verdicts import Check, GateResult, judged
from midspan.upgrade.worker import Report, Settings

__all__ = [
    "MODES",
    "ORDERS",
    "Check",
    "Embed",
    "Embedded",
    "Finished",
    "Forgotten",
    "GateResult",
    "Hints",
    "ImageEncoder",
    "Latency",
    "Mode",
    "Plan",
    "Reason",
    "Record",
    "Report",
    "RolledBack",
    "Settings",
    "Shadow",
    "Staged",
    "Status",
    "Upgrade",
    "as_embed",
    "from_embeddings",
    "gate",
    "images_embedder",
    "judged",
    "judged_by",
    "order_named",
    "own_gate",
    "reasons",
    "run",
    "shadow_gate",
    "use_source",
    "watch",
    "watch_own",
    "without_uris",
]
