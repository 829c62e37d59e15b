"""ListTransactions (66): the transactional ids that this node coordinates (KIP-664)."""

from __future__ import annotations

from typing import Any

from ...coordinator.transaction.events import ListTransactions
from ...coordinator.transaction.id_pattern import matcher
from ...wire.errors import ErrorCode, KafkaError
from ..broker import Broker
from ..requests import Fields, RequestContext


async def handle(broker: Broker, context: RequestContext, request: Any) -> Fields:
    event = ListTransactions(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        getattr(request, "duration_filter", -1),
        getattr(request, "transactional_id_pattern", None) or "",
    )
    try:
        matcher(event.transactional_id_pattern)  # also where no id is coordinated
        replies = await broker.transactions.ask_all(event)
    except KafkaError as error:
        return {"throttle_time": 0, "error_code": error.code, "unknown_state_filters": [], "transaction_states": []}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": sorted({name for reply in replies for name in reply.unknown_states}),
        "transaction_states": [
            {
                "transactional_id": listing.transactional_id,
                "producer_id": listing.producer_id,
                "transaction_state": listing.state.display_name,
            }
            for reply in replies
            for listing in reply.transactions
        ],
    }
