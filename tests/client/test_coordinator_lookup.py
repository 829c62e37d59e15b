"""Where a client sends what is for a coordinator: to the one it knows, unless that node has fallen silent."""

from __future__ import annotations

import time

from tidegate.client.connecting.cluster import Cluster, CoordinatorKind
from tidegate.runtime.clock import SystemClock
from tidegate.wire.api import ApiKey

from .conftest import ScriptedBroker


async def test_a_lost_connection_to_a_node_makes_its_coordinator_looked_up_again(
    broker: ScriptedBroker,
) -> None:
    """A node that stopped answering produce requests would not answer the commit either, and the client would
    wait twice."""
    cluster = Cluster(broker.bootstrap, client_id="t", clock=SystemClock(), request_timeout_s=5)
    await cluster.start()
    try:

        async def lookups() -> int:
            assert await cluster.coordinator(CoordinatorKind.TRANSACTION, "id", time.monotonic() + 5) == 1
            return len(broker.sent(ApiKey.FIND_COORDINATOR))

        assert await lookups() == 1
        assert await lookups() == 1, "it is known"
        (await cluster.connection(1)).close("no answer to PRODUCE in 5 s")
        assert await lookups() == 2
        assert await lookups() == 2
    finally:
        await cluster.close()
