"""A Ray cluster of several nodes on this machine, made by Ray's own utility."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from midspan.upgrade.cluster.connect import ray_module

STORE = 80 * 2**20  # bytes of each node's object store; the least that Ray takes is 75 MB
SYSTEM = {
    "worker_niceness": 0,  # 15 otherwise: never their turn beside other tests
    "worker_register_timeout_seconds": 300,
    # a dead node is known to be dead after a second instead of fifteen
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 300,
    "health_check_failure_threshold": 3,
}
PORTS = (  # asked of the system here: else a node waits until its helpers have chosen theirs
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
    "dashboard_agent_listen_port",
)


@contextmanager
def started(*, nodes: int) -> Iterator[Any]:
    """A head that does no work, and nodes with room for one worker each; connected."""
    ray = ray_module()
    from ray.cluster_utils import Cluster

    head = {**node_settings(), "num_cpus": 0, "include_dashboard": False, "_system_config": SYSTEM}
    made: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            made.add_node(**node_settings())
        ray.init(made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def node_settings() -> dict[str, Any]:
    with ExitStack() as held:
        doors = [held.enter_context(socket.socket()) for _ in PORTS]
        for door in doors:
            door.bind(("", 0))
        ports = {name: door.getsockname()[1] for name, door in zip(PORTS, doors, strict=True)}
    return {"num_cpus": 1, "object_store_memory": STORE, **ports}
