"""The changes of ACLs, quotas and credentials, as the controller makes them."""

from __future__ import annotations

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import RequestContext

NO_AUTHORIZER = "No Authorizer is configured."


def require_authorizer(broker: Broker) -> None:
    """Raises KafkaError where the cluster has no ACLs."""
    if not broker.permissions.is_enabled:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)


async def change_security(
    broker: Broker,
    context: RequestContext,
    wanted: pb.ChangeSecurityRequest,
    count: int,
    *,
    needs_authorizer: bool = False,
) -> list[pb.SecurityResult]:
    """The result of each of the `count` changes, once this node has them in its metadata.  What refuses the
    whole request is the result of each."""
    try:
        if needs_authorizer:
            require_authorizer(broker)
        broker.permissions.require(context, "cluster")
        reply = await broker.controller.change_security(wanted)
    except KafkaError as error:
        return [pb.SecurityResult(error=int(error.code), message=error.message)] * count
    await broker.topics.wait_for_metadata(reply.metadata_index)
    return list(reply.results)
