"""One question to all brokers, because each coordinates a part of the groups and of the transactional ids."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...wire.api import ApiKey
from ...wire.errors import ErrorCode
from ..connecting.cluster import Backoff, Cluster, top_level_code
from ..connecting.errors import ConnectionFailed


async def ask_all(
    cluster: Cluster, api_key: ApiKey, fields: Mapping[str, Any], timeout_s: float, *, lowest: int = 0
) -> list[tuple[int, Any]]:
    """The answers of all brokers; raises when one cannot be reached, since a partial list would look
    complete."""
    await cluster.refresh(())
    nodes = sorted(cluster.view.brokers)
    answers = await asyncio.gather(
        *(_ask_loaded(cluster, node, api_key, fields, timeout_s, lowest) for node in nodes)
    )
    return list(zip(nodes, answers, strict=True))


async def _ask_loaded(
    cluster: Cluster, node_id: int, api_key: ApiKey, fields: Mapping[str, Any], timeout_s: float, lowest: int
) -> Any:
    """One broker's answer, after its coordinators have loaded their state."""
    deadline_s, backoff = cluster.clock.monotonic() + timeout_s, Backoff(cluster.clock)
    while True:
        try:
            answer = await cluster.ask(node_id, api_key, fields, lowest=lowest)
        except ConnectionFailed as error:
            message = (
                f"a part of the list is known to node {node_id} only, which does not answer ({error.message})"
            )
            raise ConnectionFailed(error.code, message) from None
        code = top_level_code(answer)
        if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return answer
        await cluster.pause(backoff, deadline_s, code, f"{api_key.name} at node {node_id}")
