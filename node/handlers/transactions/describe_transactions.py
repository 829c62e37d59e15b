"""DescribeTransactions (65): state, producer and partitions of transactional ids that this node coordinates
(KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.transaction.events import DescribeTransactions
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import DescribeTransactionsRequest


async def handle(broker: Broker, context: RequestContext, request: DescribeTransactionsRequest) -> Fields:
    described, turns = [], CooperativeYield(context)
    for name in request.transactional_ids:
        await turns.before_next()
        described.append(await _describe(broker, context, name))
    return {"throttle_time": 0, "transaction_states": described}


async def _describe(broker: Broker, context: RequestContext, transactional_id: str) -> dict[str, object]:
    try:
        if not context.nodes:  # a partition's leader asks to which transactional id a producer id belongs
            broker.permissions.require(context, "transactional id", transactional_id)
        reply = await broker.transactions.ask(transactional_id, DescribeTransactions(transactional_id))
    except KafkaError as error:
        return {
            "error_code": error.code,
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": -1,
            "producer_epoch": -1,
            "topics": [],
        }
    found = reply.metadata
    topics: dict[str, list[int]] = {}
    for partition in sorted(found.partitions, key=lambda p: (p.topic, p.partition)):
        if broker.permissions.allows(context, "topic", partition.topic):
            topics.setdefault(partition.topic, []).append(partition.partition)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": transactional_id,
        "transaction_state": found.state.display_name,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": [{"topic": name, "partitions": indexes} for name, indexes in topics.items()],
    }
