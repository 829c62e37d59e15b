"""DescribeClientQuotas (48): the limits of the entities that a filter finds (KIP-546)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....security.quotas import DEFAULT, ENTITY_TYPES, QuotaEntity
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import DescribeClientQuotasRequest, QuotaComponent

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


async def handle(broker: Broker, context: RequestContext, request: DescribeClientQuotasRequest) -> Fields:
    try:
        broker.permissions.require(context, "cluster")
        _check(request.components)
    except KafkaError as error:
        return {
            "throttle_time": 0,
            "error_code": error.code,
            "error_message": error.message or None,
            "entries": None,
        }
    limits: dict[QuotaEntity, list[dict[str, object]]] = {}
    for (entity, kind), limit in broker.state.security.quotas.items():
        if _matches(entity, request.components, strict=request.strict):
            limits.setdefault(entity, []).append({"key": kind.value, "value": limit})
    entries = [
        {
            "entity": [{"entity_type": each, "entity_name": name} for each, name in entity.parts],
            "values": values,
        }
        for entity, values in limits.items()
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "error_message": None, "entries": entries}


def _check(components: Sequence[QuotaComponent]) -> None:
    types = [component.entity_type for component in components]
    if "" in types:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
    for each in types:
        if each not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{each}' not supported")
    if len(set(types)) < len(types):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate filter component entity type")
    if "ip" in types and len(types) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination, IP filter component should not be used with user "
            "or clientId filter component.",
        )


def _matches(entity: QuotaEntity, components: Sequence[QuotaComponent], *, strict: bool) -> bool:
    parts = dict(entity.parts)
    if strict and len(parts) != len(components):
        return False
    for component in components:
        if component.entity_type not in parts:
            return False
        name = parts[component.entity_type]
        if component.match_type == _EXACT and name != component.match:
            return False
        if component.match_type == _DEFAULT and name is not DEFAULT:
            return False
    return True
