"""TxnOffsetCommit (28): offsets that count only when the producer's transaction commits (docs/semantics.md
O1).

The offsets partition is a partition of the transaction like any other: its first append is verified
(transactions v1, where the client enlisted it by AddOffsetsToTxn) or enlisted (version 5, transactions v2)
under a guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....coordinator.group.events import TxnOffsetCommit
from ....storage.log.log import VerificationGuard
from ....wire.errors import ErrorCode, KafkaError
from ...cluster.internal_topics import CONSUMER_OFFSETS
from ...serving.broker import Broker
from ...serving.requests import Fields, RequestContext, for_version
from ..groups.offset_commit import all_refused, split_known

if TYPE_CHECKING:
    from ....wire.request_types import TxnOffsetCommitRequest

# The first version whose clients know TRANSACTION_ABORTABLE.
ABORTABLE_FROM: Final = 4


async def handle(broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest) -> Fields:
    permissions = broker.permissions
    refused = permissions.refusal(context, "transactional id", request.transactional_id)
    refused = refused or permissions.refusal(context, "group", request.group_id)
    if refused is not ErrorCode.NONE:
        return {"throttle_time": 0, "topics": all_refused(request.topics, refused)}
    known, answer = split_known(broker, context, request.topics)
    if not known:
        return {"throttle_time": 0, "topics": answer(lambda _key: ErrorCode.NONE)}
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        partition = await broker.groups.partition_for(request.group_id)
        guard = await _verified(broker, context, request, partition)
        event = TxnOffsetCommit(
            group_id=request.group_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            offsets=known,
            generation=getattr(request, "generation_id", -1),
            member_id=getattr(request, "member_id", ""),
            group_instance_id=getattr(request, "group_instance_id", None),
            guard=guard,
        )
        errors = (await broker.groups.ask(request.group_id, event)).errors
    except KafkaError as error:
        # The leader of the offsets partition is the group's coordinator: a client that gets this error looks
        # for the new one.
        moved = error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        code = ErrorCode.NOT_COORDINATOR if moved else error.code
        # KIP-588 gave this request no version that knows PRODUCER_FENCED: Kafka says INVALID_PRODUCER_EPOCH
        # in all of them.
        code = for_version(code, fenced_known=False, abortable_known=context.api_version >= ABORTABLE_FROM)
        return {"throttle_time": 0, "topics": answer(lambda _key: code)}
    return {"throttle_time": 0, "topics": answer(lambda key: errors.get(key, ErrorCode.UNKNOWN_SERVER_ERROR))}


async def _verified(
    broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest, partition: int
) -> VerificationGuard | None:
    """The guard for this transaction's first append at the offsets partition; None when it has appended
    already."""
    enlistment, producer_id = broker.enlistment, request.producer_id
    if broker.permissions.is_enabled and enlistment.owner_of(producer_id) != request.transactional_id:
        code = await enlistment.confirm_owner(request.transactional_id, producer_id)
        if code is not ErrorCode.NONE:
            message = f"the producer id {producer_id} is not that of {request.transactional_id}"
            raise KafkaError(_for_coordinator(code), message)
    log = broker.replicas.leader_log(CONSUMER_OFFSETS, partition)
    if log.producers.has_open_transaction(request.producer_id, request.producer_epoch):
        return None
    guard: VerificationGuard | None = None
    refusal: KafkaError | None = None
    key = (CONSUMER_OFFSETS, partition)

    def take_guard() -> None:
        nonlocal guard, refusal
        try:
            log = broker.replicas.leader_log(CONSUMER_OFFSETS, partition)
            guard = log.producers.start_verification(request.producer_id, request.producer_epoch, -1)
        except KafkaError as error:
            refusal = error

    codes = await broker.enlistment.ask(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [key],
        verify_only=context.api_version < 5,
        before_asking=take_guard,
    )
    if refusal is not None:
        raise refusal
    if codes[key] is not ErrorCode.NONE:
        raise KafkaError(_for_coordinator(codes[key]), "the offsets partition is not part of the transaction")
    return guard


def _for_coordinator(code: ErrorCode) -> ErrorCode:
    """The clients of coordinators retry another error than those of partitions' leaders."""
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code is ErrorCode.NOT_ENOUGH_REPLICAS else code
