"""InitProducerId (22): a producer id and epoch, which fence every earlier producer of the same transactional
id.

Version 6 (KIP-939) may take the timeout off the id's transactions, and keep the one that is open.  Both need
`transaction.two.phase.commit.enable` and the right TWO_PHASE_COMMIT: a client that has neither cannot hold a
last stable offset for longer than `transaction.max.timeout.ms`.  (Kafka 4.1 asks for the right only where the
timeout goes, and keeps no transaction yet: UNSUPPORTED_VERSION.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....coordinator.transaction.events import InitProducerId
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, for_version, milliseconds

if TYPE_CHECKING:
    from ....wire.request_types import InitProducerIdRequest


async def handle(broker: Broker, context: RequestContext, request: InitProducerIdRequest) -> Fields:
    producer_id, producer_epoch = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    try:
        if (producer_id == -1) is not (producer_epoch == -1):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a producer id and its epoch come together or not at all"
            )
        if request.transactional_id is None:
            if not broker.permissions.allows_some(context, "any topic"):
                broker.permissions.require(context, "cluster")
            return _answer(await broker.producer_ids.next(), 0)
        if not request.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        broker.permissions.require(context, "transactional id", request.transactional_id)
        two_phase_commit = getattr(request, "enable2_pc", False)
        keeps_transaction = getattr(request, "keep_prepared_txn", False)
        if two_phase_commit or keeps_transaction:
            _require_two_phase_commit(broker, context, request.transactional_id)
        reply = await broker.transactions.ask(
            request.transactional_id,
            InitProducerId(
                request.transactional_id,
                milliseconds(request.transaction_timeout),
                producer_id,
                producer_epoch,
                two_phase_commit,
                keeps_transaction,
            ),
        )
        return _answer(reply.producer_id, reply.producer_epoch, *reply.ongoing)
    except KafkaError as error:
        code = for_version(error.code, fenced_known=context.api_version >= 4)
        return {"throttle_time": 0, "error_code": code, "producer_id": -1, "producer_epoch": -1}


def _require_two_phase_commit(broker: Broker, context: RequestContext, transactional_id: str) -> None:
    if not broker.configuration.flag("transaction.two.phase.commit.enable"):
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "two-phase commit is not enabled on this node (transaction.two.phase.commit.enable)",
        )
    broker.permissions.require(context, "two-phase commit", transactional_id)
    if broker.state.features.get("transaction.version", 0) < 2:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "two-phase commit needs transaction.version 2")


def _answer(
    producer_id: int, producer_epoch: int, ongoing_producer_id: int = -1, ongoing_producer_epoch: int = -1
) -> Fields:
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "ongoing_txn_producer_id": ongoing_producer_id,
        "ongoing_txn_producer_epoch": ongoing_producer_epoch,
    }
