"""EndTxn (26): commits or aborts.  The answer comes when the decision is committed, before the markers
(docs/semantics.md T11).

Version 5 is transactions v2: the epoch is bumped, and the answer carries the producer id and epoch of the
next transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.transaction.events import EndTxn
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, for_version

if TYPE_CHECKING:
    from ....wire.request_types import EndTxnRequest


async def handle(broker: Broker, context: RequestContext, request: EndTxnRequest) -> Fields:
    event = EndTxn(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        transaction_version=2 if context.api_version >= 5 else 1,
    )
    try:
        broker.permissions.require(context, "transactional id", request.transactional_id)
        reply = await broker.transactions.ask(request.transactional_id, event)
    except KafkaError as error:
        code = for_version(error.code, fenced_known=context.api_version >= 2)
        return {"throttle_time": 0, "error_code": code, "producer_id": -1, "producer_epoch": -1}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "producer_id": reply.producer_id,
        "producer_epoch": reply.producer_epoch,
    }
