"""Moving a gallery from one space to the next: `Upgrade` is the front door, `gate` decides."""

from midspan.upgrade.backfill import Report, Settings, run
from midspan.upgrade.embed import Embed, Embedded, Staged, from_embeddings
from midspan.upgrade.gate import Check, GateResult, gate, judged
from midspan.upgrade.mixing import Mixing, choose_scores, fit_scores
from midspan.upgrade.orders import ORDERS, Hints, order_named
from midspan.upgrade.plan import Plan
from midspan.upgrade.record import MODES, Mode, Record
from midspan.upgrade.routing import search
from midspan.upgrade.shadow import Shadow, shadow_gate, watch
from midspan.upgrade.status import Status
from midspan.upgrade.steps import Finished, RolledBack, judged_by
from midspan.upgrade.throttle import Latency
from midspan.upgrade.upgrade import Upgrade

__all__ = [
    "MODES",
    "ORDERS",
    "Check",
    "Embed",
    "Embedded",
    "Finished",
    "GateResult",
    "Hints",
    "Latency",
    "Mixing",
    "Mode",
    "Plan",
    "Record",
    "Report",
    "RolledBack",
    "Settings",
    "Shadow",
    "Staged",
    "Status",
    "Upgrade",
    "choose_scores",
    "fit_scores",
    "from_embeddings",
    "gate",
    "judged",
    "judged_by",
    "order_named",
    "run",
    "search",
    "shadow_gate",
    "watch",
]
