"""AlterClientQuotas (49): sets and removes limits of clients (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....proto import controller_pb2 as pb
from ....wire.errors import ErrorCode
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext
from .security_changes import change_security

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
    results = await change_security(broker, context, wanted, len(request.entries))
    return {
        "throttle_time": 0,
        "entries": [
            {"error_code": ErrorCode(each.error), "error_message": each.message or None, "entity": entity}
            for each, entity in zip(results, map(_entity, request.entries), strict=True)
        ],
    }


def _entity(entry: QuotaEntry) -> list[dict[str, object]]:
    return [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
