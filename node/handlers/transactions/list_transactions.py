"""ListTransactions (66): the transactional ids that this node coordinates (KIP-664).

Since version 2 a regular expression picks those whose whole id it matches (KIP-1152), by RE2's rules as in
Kafka; the loop is shared between the ids, for a pattern made for that takes more than a millisecond for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....coordinator.group.consumer.patterns import UnsupportedPattern, topic_pattern
from ....coordinator.transaction.events import ListTransactions
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import CooperativeYield, Fields, RequestContext

if TYPE_CHECKING:
    from ....wire.request_types import ListTransactionsRequest

_MATCH_COST: Final = CooperativeYield.BYTES // 16
"""Sixteen ids at a time."""


async def handle(broker: Broker, context: RequestContext, request: ListTransactionsRequest) -> Fields:
    event = ListTransactions(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        getattr(request, "duration_filter", -1),
    )
    wanted = getattr(request, "transactional_id_pattern", None)
    try:
        pattern = topic_pattern(wanted) if wanted else None
        replies = await broker.transactions.ask_all(event)
    except UnsupportedPattern:
        return _failed(ErrorCode.INVALID_REGULAR_EXPRESSION)
    except KafkaError as error:
        return _failed(error.code)
    states = []
    turns = CooperativeYield(context)
    for listing in (listing for reply in replies for listing in reply.transactions):
        if not broker.permissions.allows(context, "transactional id", listing.transactional_id):
            continue
        if pattern is not None:
            await turns.before_next(_MATCH_COST)
            if not pattern.matches(listing.transactional_id):
                continue
        states.append(
            {
                "transactional_id": listing.transactional_id,
                "producer_id": listing.producer_id,
                "transaction_state": listing.state.display_name,
            }
        )
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "unknown_state_filters": sorted({name for reply in replies for name in reply.unknown_states}),
        "transaction_states": states,
    }


def _failed(code: ErrorCode) -> Fields:
    return {"throttle_time": 0, "error_code": code, "unknown_state_filters": [], "transaction_states": []}
