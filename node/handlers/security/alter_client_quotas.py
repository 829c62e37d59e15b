"""AlterClientQuotas (49): sets and removes limits of clients (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import AlterClientQuotasRequest, QuotaEntry


async def handle(broker: Broker, context: RequestContext, request: AlterClientQuotasRequest) -> Fields:
    wanted = pb.ChangeSecurityRequest(validate_only=request.validate_only)
    for entry in request.entries:
        change = wanted.quotas.add()
        for part in entry.entity:
            name = part.entity_name
            change.entity.add(type=part.entity_type, name=name or "", is_default=name is None)
        for operation in entry.ops:
            if operation.remove:
                change.remove.append(operation.key)
            else:
                change.set[operation.key] = operation.value
    try:
        broker.permissions.require(context, "cluster")
        reply = await broker.controller.change_security(wanted)
        results = list(reply.results)
    except KafkaError as error:
        results = [pb.SecurityResult(error=int(error.code), message=error.message) for _ in request.entries]
    else:
        await broker.topics.wait_for_metadata(reply.metadata_index)
    return {
        "throttle_time": 0,
        "entries": [
            {"error_code": ErrorCode(each.error), "error_message": each.message or None, "entity": entity}
            for each, entity in zip(results, map(_entity, request.entries), strict=True)
        ],
    }


def _entity(entry: QuotaEntry) -> list[dict[str, object]]:
    return [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
