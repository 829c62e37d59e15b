"""AddPartitionsToTxn (24): enlists partitions in an open transaction.

Versions 0-3 come from clients (transactions v1), one transaction a request; versions 4 and 5 come from
partition leaders, which verify (4 and 5 with verify_only) or enlist (5) before a first append (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from ....coordinator.transaction.events import AddPartitions
from ....wire.errors import ErrorCode, KafkaError
from ...serving.broker import Broker
from ...serving.requests import Deferred, Fields, RequestContext, for_version

if TYPE_CHECKING:
    from ....wire.request_types import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnRequestV0,
        AddPartitionsToTxnRequestV5,
        AddPartitionsToTxnTopic,
    )


async def handle(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Fields | Deferred:
    if context.api_version >= 4:
        if not broker.permissions.allows_node(context, "broker"):
            return {
                "throttle_time": 0,
                "error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "results_by_transaction": [],
            }
        # A leader asks for all its producers on one connection: none of them waits for the commit of another
        # one's answer.
        return Deferred(_answer_leader(broker, context, cast("AddPartitionsToTxnRequestV5", request)))
    of_client = cast("AddPartitionsToTxnRequestV0", request)
    refused = broker.permissions.refusal(context, "transactional id", of_client.v3_and_below_transactional_id)
    if refused is not ErrorCode.NONE:
        wanted = [(t.name, index) for t in of_client.v3_and_below_topics for index in t.partitions]
        return {
            "throttle_time": 0,
            "results_by_topic_v3_and_below": _results(dict.fromkeys(wanted, refused)),
        }
    results = await _add(
        broker,
        context,
        of_client.v3_and_below_transactional_id,
        of_client.v3_and_below_producer_id,
        of_client.v3_and_below_producer_epoch,
        of_client.v3_and_below_topics,
        transaction_version=1,
        verify_only=False,
        fenced_known=context.api_version >= 2,
    )
    return {"throttle_time": 0, "results_by_topic_v3_and_below": results}


async def _answer_leader(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequestV5
) -> Fields:
    results = [
        {
            "transactional_id": transaction.transactional_id,
            "topic_results": await _add(
                broker,
                context,
                transaction.transactional_id,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.topics,
                transaction_version=1 if transaction.verify_only or context.api_version < 5 else 2,
                verify_only=transaction.verify_only,
            ),
        }
        for transaction in request.transactions
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.NONE, "results_by_transaction": results}


async def _add(
    broker: Broker,
    context: RequestContext,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    topics: Iterable[AddPartitionsToTxnTopic],
    *,
    transaction_version: int,
    verify_only: bool,
    fenced_known: bool = True,
) -> list[dict[str, object]]:
    wanted = [(topic.name, index) for topic in topics for index in topic.partitions]
    refusals = broker.transactions.refusals(wanted)
    if context.api_version < 4:  # later versions come from brokers
        unauthorized = {
            key: code
            for key in wanted
            if (code := broker.permissions.refusal(context, "topic", key[0])) is not ErrorCode.NONE
        }
        if unauthorized:
            refusals = dict.fromkeys(wanted, ErrorCode.OPERATION_NOT_ATTEMPTED) | refusals | unauthorized
    if refusals:
        return _results(refusals)
    try:
        partitions = tuple(
            broker.transactions.partition(name, index) for name, index in dict.fromkeys(wanted)
        )
        event = AddPartitions(
            transactional_id, producer_id, producer_epoch, partitions, transaction_version, verify_only
        )
        reply = await broker.transactions.ask(transactional_id, event)
        codes = {(p.topic, p.partition): code for p, code in reply.errors.items()}
    except KafkaError as error:
        codes = dict.fromkeys(wanted, for_version(error.code, fenced_known=fenced_known))
    return _results(codes)


def _results(codes: dict[tuple[str, int], ErrorCode]) -> list[dict[str, object]]:
    topics: dict[str, list[dict[str, object]]] = {}
    for (name, index), code in codes.items():
        topics.setdefault(name, []).append({"partition_index": index, "partition_error_code": code})
    return [{"name": name, "results_by_partition": partitions} for name, partitions in topics.items()]
