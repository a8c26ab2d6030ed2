"""Work on a Ray cluster; `import ray` happens where it is used."""

from midspan.upgrade.cluster.actor import Batch, Make
from midspan.upgrade.cluster.backfill import ClusterReport, run_on_cluster
from midspan.upgrade.cluster.connect import Workers
from midspan.upgrade.cluster.embedding import embed_on_cluster
from midspan.upgrade.cluster.pool import Pack

__all__ = [
    "Batch",
    "ClusterReport",
    "Make",
    "Pack",
    "Workers",
    "embed_on_cluster",
    "run_on_cluster",
]
