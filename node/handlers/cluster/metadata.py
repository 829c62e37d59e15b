"""Metadata (3): brokers, and the leaders of topics' partitions.

Brokers that are fenced are not listed and a partition without a leader answers LEADER_NOT_AVAILABLE, so that
clients retry instead of talking to a dead node.  A response names the brokers' addresses on the listener on
which its request came: a broker that does not advertise this listener is not listed, and a partition that it
leads answers LISTENER_NOT_FOUND (KIP-103).

Topics are described once and kept encoded (`described_topics`); what has to be described anew is, a few
partitions a turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ....controller.state.cluster_state import ClusterState
from ....controller.state.model import PartitionState, TopicState, topic_name_problem
from ....security.acls import ResourceType
from ....wire import codec
from ....wire.api import ApiKey
from ....wire.encode import EncodedItems
from ....wire.errors import ErrorCode, KafkaError
from ...cluster.internal_topics import INTERNAL_TOPICS
from ...serving.broker import Broker
from ...serving.described_topics import Variant
from ...serving.requests import (
    CooperativeYield,
    Encoded,
    RequestContext,
    most_severe_error,
    worst_error,
)
from ..topics.mutation_quota import charge_mutations
from .authorized_operations import NOT_ASKED_FOR, authorized_operations

if TYPE_CHECKING:
    from ....wire.request_types import MetadataRequest

IDS_ASKED_FROM: Final = 12
LISTENER_NOT_FOUND_FROM: Final = 6
OPERATIONS_ON_CLUSTER_TO: Final = 10
_WORK_BYTES: Final = 4096
"""One partition is described in the time in which so many bytes are gone through."""


async def handle(broker: Broker, context: RequestContext, request: MetadataRequest) -> Encoded:
    version, pause_ms = context.api_version, broker.throttling.charge_time(context)
    with_operations = getattr(request, "include_topic_authorized_operations", False)
    on_cluster = NOT_ASKED_FOR
    if getattr(request, "include_cluster_authorized_operations", False):
        allowed = broker.permissions.allows(context, "cluster")
        on_cluster = authorized_operations(broker, context, ResourceType.CLUSTER) if allowed else 0
    encode = codec.response_item_encoder(ApiKey.METADATA, version, "topics")

    def operations_on(name: str) -> int:
        if not with_operations:
            return NOT_ASKED_FOR
        return authorized_operations(broker, context, ResourceType.TOPIC, name)

    def descriptions(name: str) -> Variant:
        operations = operations_on(name)

        def describe(state: ClusterState, topic: TopicState) -> tuple[bytes, ErrorCode]:
            fields = _describe(state, topic, operations, context)
            return encode(fields), worst_error(fields)

        return broker.described_topics.variant((version, operations, context.listener_name), describe)

    turns = CooperativeYield(context)
    # v0 asked for all topics by an empty list, v1 and later by null.
    if request.topics is None or (version == 0 and not request.topics):
        # The same answer for everyone, where everyone sees everything.
        kept = None if broker.permissions.is_enabled else descriptions("")
        whole = None if kept is None or pause_ms else kept.whole(_whole(broker, on_cluster))
        if whole is not None:
            return Encoded([whole[0]], whole[1])
        for topic in list(broker.state.topics.values()):
            described = kept or descriptions(topic.name)
            described.look_at(broker.state)
            if not described.has(topic):
                await turns.before_next(_WORK_BYTES * len(topic.partitions))
                described.look_at(broker.state)
                described.of(broker.state, topic)
        # From here on nothing is awaited: what has changed since is described anew.
        state = broker.state
        found = []
        for seen in broker.permissions.allowed(context, "any topic", sorted(state.topics)):
            described = kept or descriptions(seen)
            described.look_at(state)
            found.append(described.of(state, state.topics[seen]))
        body = _body(broker, context, EncodedItems([each.encoded for each in found]), on_cluster, pause_ms)
        outcome = most_severe_error(each.outcome for each in found)
        if kept is not None and not pause_ms:
            kept.keep_whole(_whole(broker, on_cluster), body, outcome)
        return Encoded([body], outcome, pause_ms)

    async def created(name: str) -> ErrorCode:
        """Charged as CreateTopics is."""
        nonlocal pause_ms
        try:
            if broker.topics.would_create(name):
                partitions = [broker.configuration.integer("num.partitions")]
                _, owed_ms = await charge_mutations(broker, context, partitions)
                pause_ms = max(pause_ms, owed_ms)
        except KafkaError as error:
            return error.code
        return await broker.topics.auto_create(name)

    create = created if getattr(request, "allow_auto_topic_creation", True) else None
    items, codes = [], []
    for name, topic_id in dict.fromkeys(
        (topic.name, getattr(topic, "topic_id", None)) for topic in request.topics
    ):
        one = await _one(broker, context, name, topic_id, create, operations_on)
        if isinstance(one, TopicState):
            described = descriptions(one.name)
            await turns.before_next(0 if described.has(one) else _WORK_BYTES * len(one.partitions))
            described.look_at(broker.state)
            _, encoded, code = described.of(broker.state, broker.state.topic_by_id(one.topic_id) or one)
        else:
            await turns.before_next()
            encoded, code = encode(one), worst_error(one)
        items.append(encoded)
        codes.append(code)
    body = _body(broker, context, EncodedItems(items), on_cluster, pause_ms)
    return Encoded([body], most_severe_error(codes), pause_ms)


def _whole(broker: Broker, on_cluster: int) -> Hashable:
    """What an answer about all topics rests on.  The state's index grows with everything that changes it."""
    return id(broker.state), broker.state.index, broker.cluster.controller_id, on_cluster


def _body(
    broker: Broker, context: RequestContext, topics: EncodedItems, on_cluster: int, pause_ms: int
) -> bytes:
    state, version = broker.state, context.api_version
    fields: dict[str, object] = {
        "throttle_time": pause_ms,
        "brokers": [
            {"node_id": b.node_id, "host": at.host, "port": at.port, "rack": b.rack or None}
            for b in state.unfenced_brokers()
            if (at := b.endpoint(context.listener_name)) is not None
        ],
        "cluster_id": state.cluster_id,
        "controller_id": some_broker(state, broker.cluster.controller_id, context.listener_name),
        "topics": topics,
        "error_code": ErrorCode.NONE,
    }
    if version <= OPERATIONS_ON_CLUSTER_TO:
        fields["cluster_authorized_operations"] = on_cluster
    return codec.response(ApiKey.METADATA, version, fields)


async def _one(
    broker: Broker,
    context: RequestContext,
    name: str | None,
    topic_id: UUID | None,
    create: Callable[[str], Awaitable[ErrorCode]] | None,
    operations_on: Callable[[str], int],
) -> TopicState | dict[str, object]:
    """One topic that was asked for: by name, or since version 12 by id; or why there is none.  A client that
    may not describe a topic does not learn whether it exists."""
    if context.api_version < IDS_ASKED_FROM and (name is None or topic_id is not None):
        return _failed(name or "", topic_id, ErrorCode.INVALID_REQUEST)
    if topic_id is not None:
        found = broker.state.topic_by_id(topic_id)
        if found is None:
            return _failed(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        refused = broker.permissions.refusal(context, "topic", found.name)
        return found if refused is ErrorCode.NONE else _failed(None, topic_id, refused)
    if name is None:
        return _failed(None, None, ErrorCode.INVALID_REQUEST)
    refused = broker.permissions.refusal(context, "topic", name)
    if refused is not ErrorCode.NONE:
        return _failed(name, None, refused)
    found = broker.state.topics.get(name)
    if found is not None:
        return found
    operations = operations_on(name)
    if topic_name_problem(name) is not None:
        return _failed(name, None, ErrorCode.INVALID_TOPIC_EXCEPTION, operations)
    if create is None:
        return _failed(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, operations)
    if not broker.permissions.allows(context, "new topics"):
        refused = broker.permissions.refusal(context, "new topic", name)
        if refused is not ErrorCode.NONE:
            return _failed(name, None, refused)
    code = await create(name)
    if code is ErrorCode.LEADER_NOT_AVAILABLE:
        broker.audit.created(context, name)
    return _failed(name, None, code, operations)


def _failed(
    name: str | None, topic_id: UUID | None, code: ErrorCode, operations: int = NOT_ASKED_FOR
) -> dict[str, object]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [],
        "topic_authorized_operations": operations,
    }


def some_broker(state: ClusterState, controller_id: int, listener_name: str) -> int:
    """The broker to which clients of this listener send administration: any live broker serves it and
    forwards."""
    live = live_brokers(state, listener_name)
    if controller_id in live:
        return controller_id
    return min(live, default=-1)


def offline_replicas(state: ClusterState, topic: TopicState, index: int, live: Collection[int]) -> list[int]:
    """The replicas whose node is not among `live`, or cannot serve them."""
    offline = state.offline_nodes(topic.topic_id, index)
    return [
        replica for replica in topic.partitions[index].replicas if replica not in live or replica in offline
    ]


def live_brokers(state: ClusterState, listener_name: str) -> frozenset[int]:
    """Those that clients of this listener can reach."""
    return frozenset(
        broker.node_id for broker in state.unfenced_brokers() if broker.endpoint(listener_name) is not None
    )


def leader_on(state: ClusterState, partition: PartitionState, listener_name: str) -> int:
    """The partition's leader; -1 when there is none, or its broker does not advertise the listener."""
    leader = state.brokers.get(partition.leader)
    return -1 if leader is None or leader.endpoint(listener_name) is None else partition.leader


def isr_nodes(partition: PartitionState) -> list[int]:
    """In the order of the replicas, in which Kafka's tools show both: a replica that left and came back
    stands where it stood."""
    isr = partition.isr
    return (
        list(isr)
        if isr == partition.replicas
        else [node_id for node_id in partition.replicas if node_id in isr]
    )


def _describe(
    state: ClusterState, topic: TopicState, operations: int, context: RequestContext
) -> dict[str, object]:
    live = live_brokers(state, context.listener_name)
    elsewhere = (
        ErrorCode.LISTENER_NOT_FOUND
        if context.api_version >= LISTENER_NOT_FOUND_FROM
        else ErrorCode.LEADER_NOT_AVAILABLE
    )
    leaders = {
        index: leader_on(state, partition, context.listener_name)
        for index, partition in topic.partitions.items()
    }

    def code(index: int, partition: PartitionState) -> ErrorCode:
        if partition.leader < 0:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return ErrorCode.NONE if leaders[index] >= 0 else elsewhere

    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [
            {
                "error_code": code(index, partition),
                "partition_index": index,
                "leader_id": leaders[index],
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": list(partition.replicas),
                "isr_nodes": isr_nodes(partition),
                "offline_replicas": offline_replicas(state, topic, index, live),
            }
            for index, partition in sorted(topic.partitions.items())
        ],
        "topic_authorized_operations": operations,
    }
