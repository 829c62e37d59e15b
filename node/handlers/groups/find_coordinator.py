"""FindCoordinator (10): which broker leads the state partition of a group or a transactional id.

The state topic is created on the first question; until its partition has a leader the answer is
COORDINATOR_NOT_AVAILABLE and clients ask again.  So it is where this node is cut off from the controller:
clients then ask another node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ....wire.errors import ErrorCode, KafkaError
from ...cluster.internal_topics import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    partition_for,
    transaction_partition_for,
)
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import (
        FindCoordinatorRequest,
        FindCoordinatorRequestV0,
        FindCoordinatorRequestV6,
    )

_TOPIC_OF_KEY_TYPE = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
_SHARE_GROUP = 2
"""Asked for by brokers; there are none here."""
_SUBJECTS = {0: "group", 1: "transactional id"}
_NOWHERE = {"node_id": -1, "host": "", "port": -1}


async def handle(broker: Broker, context: RequestContext, request: FindCoordinatorRequest) -> Fields:
    key_type = getattr(request, "key_type", 0)
    if context.api_version >= 4:
        keys = cast("FindCoordinatorRequestV6", request).coordinator_keys
        found, turns = [], CooperativeYield(context)
        for key in keys:
            await turns.before_next()
            found.append({"key": key, **await _find(broker, context, key_type, key)})
        return {"throttle_time": 0, "coordinators": found}
    key = cast("FindCoordinatorRequestV0", request).key
    return {"throttle_time": 0, **await _find(broker, context, key_type, key)}


async def _find(broker: Broker, context: RequestContext, key_type: int, key: str) -> dict[str, object]:
    topic_name = _TOPIC_OF_KEY_TYPE.get(key_type)
    if key_type == _SHARE_GROUP:
        refused = broker.permissions.refusal(context, "share group")
        if refused is not ErrorCode.NONE:
            return _failure(refused, "")
    if topic_name is None:
        return _failure(
            ErrorCode.INVALID_REQUEST, f"unknown coordinator type {key_type}: 0 is a group, 1 a transaction"
        )
    refused = broker.permissions.refusal(context, _SUBJECTS[key_type], key)
    if refused is not ErrorCode.NONE:
        return _failure(refused, "")
    try:
        _require_session(broker)
        topic = await broker.topics.ensure_internal_topic(topic_name)
        _require_session(broker)  # to make the topic takes its time
    except KafkaError as error:
        return _failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    number_for = transaction_partition_for if topic_name == TRANSACTION_STATE else partition_for
    partition = topic.partitions.get(number_for(key, len(topic.partitions)))
    leader = broker.state.brokers.get(partition.leader) if partition else None
    endpoint = None if leader is None or leader.fenced else leader.endpoint(context.listener_name)
    if leader is None or endpoint is None:
        return _failure(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"the coordinator's partition has no leader on {context.listener_name} at the moment",
        )
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "node_id": leader.node_id,
        "host": endpoint.host,
        "port": endpoint.port,
    }


def _require_session(broker: Broker) -> None:
    """Raises KafkaError: what this node knows may be old, and it would name itself."""
    if not broker.lifecycle.holds_session:
        message = "this node has no session with the controller now: ask another one"
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)


def _failure(code: ErrorCode, message: str) -> dict[str, object]:
    return {"error_code": code, "error_message": message, **_NOWHERE}
