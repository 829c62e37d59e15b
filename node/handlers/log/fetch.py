"""Fetch (1): record batches as they are stored, for consumers and followers alike; long poll.

From version 13 on topics go by their ids (KIP-516).  A follower's fetch of such a version (our own followers
stay at 12) is served by names, as the others are, and an id that no topic has is answered beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ....security.quotas import QuotaKind
from ....wire.errors import ErrorCode
from ....wire.fetch import (
    NAMES_TO,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    encode_fetch_response,
    parse_fetch_request,
)
from ...serving.broker import Broker
from ...serving.requests import Deferred, Encoded, RequestContext, Staged, most_severe_error
from .current_leader import current_leader, endpoints

ENDPOINTS_FROM = 16
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def begin(broker: Broker, context: RequestContext, body: memoryview) -> Staged:
    # Parsed now: the body's memory belongs to the connection and goes back to it when this request is
    # answered.
    request = parse_fetch_request(context.api_version, body)
    request.max_bytes = min(request.max_bytes, broker.configuration.integer("fetch.max.bytes"))

    async def execute() -> Deferred:
        return Deferred(_fetch(broker, context, request))

    return Staged(None, execute)


async def _fetch(broker: Broker, context: RequestContext, request: FetchRequest) -> Encoded:
    version = context.api_version
    by_id = version > NAMES_TO
    throttling, is_client, throttle_ms = broker.throttling, request.replica_id < 0, 0
    if not is_client and not broker.permissions.allows_follower(context, request.replica_id):
        result, is_client = _refused(request), True
    elif by_id and not is_client:
        result = await _for_follower(broker, request)
    elif is_client and throttling.has_debt(context, QuotaKind.FETCH):
        result = broker.replicas.throttled_fetch(request, by_id=by_id, owner=context.principal.text)
    else:
        if is_client and (bytes_max := throttling.bytes_max(context, QuotaKind.FETCH)) is not None:
            request.max_bytes = min(request.max_bytes, bytes_max)
        may_read = broker.permissions.asker(context, "topic")
        result = await broker.replicas.fetch(
            request, by_id=by_id, turn=context.turn, may_read=may_read, owner=context.principal.text
        )
    codes, sent, moved = [result.error], 0, False
    for _, parts in result.topics or result.topics_by_id:
        for part in parts:
            codes.append(part.error)
            sent += len(part.records)
            moved = moved or part.error in _MOVED
    if moved and version >= ENDPOINTS_FROM:
        _name_leaders(broker, result, context.listener_name)
    if is_client:
        throttle_ms = throttling.charge(context, QuotaKind.FETCH, sent)
    buffers = encode_fetch_response(
        version,
        result.topics_by_id if by_id else result.topics,
        error=result.error,
        session_id=result.session_id,
        throttle_ms=throttle_ms,
        node_endpoints=result.node_endpoints,
    )
    broker.metrics.bytes_out(sent)
    return Encoded(buffers, most_severe_error(codes), throttle_ms)


def _refused(request: FetchRequest) -> FetchResponse:
    """Of a client that is no broker and names itself one: each partition has the error, as in Kafka."""

    def failed(specs: Sequence[FetchPartition]) -> list[FetchResponsePartition]:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return [FetchResponsePartition(spec.partition, code) for spec in specs]

    return FetchResponse(
        topics=[(name, failed(specs)) for name, specs in request.topics],
        topics_by_id=[(topic_id, failed(specs)) for topic_id, specs in request.topics_by_id],
    )


def _name_leaders(broker: Broker, result: FetchResponse, listener_name: str) -> None:
    """KIP-951: the present leader and its address."""
    leaders = set()
    for topic_id, parts in result.topics_by_id:
        name = broker.cluster.topic_name(topic_id)
        for part in parts:
            if part.error in _MOVED and name is not None:
                part.current_leader = part.current_leader or current_leader(broker, name, part.partition)
                if part.current_leader is not None:
                    leaders.add(part.current_leader[0])
    result.node_endpoints = endpoints(broker, leaders, listener_name)


async def _for_follower(broker: Broker, request: FetchRequest) -> FetchResponse:
    unknown: list[tuple[UUID, list[FetchResponsePartition]]] = []
    for topic_id, specs in request.topics_by_id:
        name = broker.cluster.topic_name(topic_id)
        if name is None:
            refused = [FetchResponsePartition(spec.partition, ErrorCode.UNKNOWN_TOPIC_ID) for spec in specs]
            unknown.append((topic_id, refused))
        else:
            request.topics.append((name, specs))
    for topic_id, partitions in request.forgotten_by_id:
        if (name := broker.cluster.topic_name(topic_id)) is not None:
            request.forgotten_topics.append((name, partitions))
    ids = {name: specs[0].topic_id for name, specs in request.topics if specs}
    if unknown:
        request.max_wait_ms = 0
    result = await broker.replicas.fetch(request)
    for name, parts in result.topics:
        topic = broker.state.topics.get(name)
        topic_id_now = ids.get(name) or (None if topic is None else topic.topic_id)
        if topic_id_now is not None:
            result.topics_by_id.append((topic_id_now, parts))
    result.topics_by_id += unknown
    return result
