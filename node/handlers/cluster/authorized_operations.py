"""The operations that a client may do with a resource, in answers to requests that ask for them: bit n stands
for Kafka's AclOperation n (KIP-430)."""

from __future__ import annotations

from typing import Final

from ....security.acls import CLUSTER_NAME, OPERATIONS, ResourceType
from ...serving.broker import Broker
from ...serving.requests import RequestContext

NOT_ASKED_FOR: Final = -(2**31)


def authorized_operations(
    broker: Broker, context: RequestContext, resource_type: ResourceType, name: str = CLUSTER_NAME
) -> int:
    """Without an authorizer: all operations of the resource."""
    return sum(
        1 << operation
        for operation in OPERATIONS[resource_type]
        if broker.permissions.may(context, operation, resource_type, name)
    )
