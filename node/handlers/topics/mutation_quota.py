"""The quota of a client for topics that it creates, widens or deletes (KIP-599).

The active controller keeps it, so it holds for all nodes together.  A client of a version that knows
THROTTLING_QUOTA_EXCEEDED gets that for what is above its quota; any other pauses afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....proto import controller_pb2 as pb
from ....security.quotas import QuotaKind
from ....wire.api import ApiKey
from ...serving.broker import Broker
from ...serving.requests import RequestContext

STRICT_FROM: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
NEVER: Final = 1 << 15
"""Above every version: of Metadata, which may create a topic, too."""
EXCEEDED: Final = "The throttling quota has been exceeded."


async def charge_mutations(
    broker: Broker, context: RequestContext, partitions: Sequence[int]
) -> tuple[int, int]:
    """How many of the topics are admitted, the first of them, and the milliseconds for which the client
    pauses.  `partitions`: of each topic.  Raises KafkaError."""
    user, client_id = context.principal.name, context.client_id
    if broker.throttling.rate(QuotaKind.CONTROLLER_MUTATION, user, client_id) is None:
        return len(partitions), 0
    request = pb.ChargeMutationsRequest(
        user=user,
        client_id=client_id,
        partitions=partitions,
        is_strict=context.api_version >= STRICT_FROM.get(ApiKey(context.api_key), NEVER),
    )
    reply = await broker.controller.charge_mutations(request)
    return reply.admitted, broker.throttling.paused(
        QuotaKind.CONTROLLER_MUTATION, user, client_id, reply.pause_s
    )
