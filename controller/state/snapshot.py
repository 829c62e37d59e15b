"""The snapshot of the cluster metadata: compact protobuf, one encoding for one state.

Brokers are ordered by id, topics and features by name, proposers by last use, so the bytes can be hashed to
compare nodes. The file and its checksum are `raft/snapshot_store.py`'s; this is the inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from google.protobuf.message import DecodeError

from ...proto import metadata_pb2 as pb
from ...security.records import SecurityRecords
from ...wire.errors import ErrorCode
from . import pinned_cuts, security_commands
from .broker_fields import decode_listeners, decode_replicas, encode_listeners, encode_replicas
from .model import BrokerState, PartitionState, TopicState, Value
from .proposers import CommandOutcome, ProposerMemory

FORMAT = 1


@dataclass(slots=True, frozen=True)
class Contents:
    """Everything that a snapshot holds."""

    index: int
    term: int
    cluster_id: str
    metadata_id: str
    features: dict[str, int]
    brokers: dict[int, BrokerState]
    topics: dict[str, TopicState]
    next_producer_id: int
    controller_id: int
    controller_epoch: int
    proposers: tuple[tuple[str, ProposerMemory], ...]
    node_configs: Mapping[int, Mapping[str, str]]
    resource_configs: Mapping[tuple[int, str], Mapping[str, str]]
    session_timeout_ms: int
    security: SecurityRecords
    pinned_cuts: pinned_cuts.PinnedCuts


def encode(contents: Contents) -> bytes:
    return pb.ClusterSnapshot(
        format=FORMAT,
        index=contents.index,
        term=contents.term,
        cluster_id=contents.cluster_id,
        metadata_id=contents.metadata_id,
        features=[pb.Feature(name=name, level=contents.features[name]) for name in sorted(contents.features)],
        brokers=[_encode_broker(contents.brokers[node_id]) for node_id in sorted(contents.brokers)],
        topics=[_encode_topic(contents.topics[name]) for name in sorted(contents.topics)],
        next_producer_id=contents.next_producer_id,
        controller_id=contents.controller_id,
        controller_epoch=contents.controller_epoch,
        proposers=[_encode_proposer(name, memory) for name, memory in contents.proposers],
        node_configs=[
            pb.NodeConfigRecord(node_id=node_id, config=_encode_config(contents.node_configs[node_id]))
            for node_id in sorted(contents.node_configs)
        ],
        resource_configs=[
            pb.ResourceConfigRecord(
                resource_type=kind, name=name, config=_encode_config(contents.resource_configs[kind, name])
            )
            for kind, name in sorted(contents.resource_configs)
        ],
        session_timeout_ms=contents.session_timeout_ms,
        security=security_commands.encode(contents.security),
        pinned_cuts=pinned_cuts.encode(contents.pinned_cuts),
    ).SerializeToString(deterministic=True)


def decode(data: bytes) -> Contents:
    """Raises ValueError when `data` is not a snapshot, or one of a newer format."""
    parsed = _parse(data)
    return Contents(
        index=parsed.index,
        term=parsed.term,
        cluster_id=parsed.cluster_id,
        metadata_id=parsed.metadata_id,
        features=_features(parsed),
        brokers={record.node_id: _decode_broker(record) for record in parsed.brokers},
        topics={record.name: _decode_topic(record) for record in parsed.topics},
        next_producer_id=parsed.next_producer_id,
        controller_id=parsed.controller_id,
        controller_epoch=parsed.controller_epoch,
        proposers=tuple((record.proposer, _decode_proposer(record)) for record in parsed.proposers),
        node_configs={record.node_id: _decode_config(record.config) for record in parsed.node_configs},
        resource_configs={
            (each.resource_type, each.name): _decode_config(each.config) for each in parsed.resource_configs
        },
        session_timeout_ms=parsed.session_timeout_ms,
        security=security_commands.decode(parsed.security),
        pinned_cuts=pinned_cuts.decode(parsed.pinned_cuts),
    )


def features_in(data: bytes) -> dict[str, int]:
    """The finalised levels alone, read before the rest is believed.  Raises ValueError like `decode`."""
    return _features(_parse(data))


def _features(parsed: pb.ClusterSnapshot) -> dict[str, int]:
    return {feature.name: feature.level for feature in parsed.features}


def _parse(data: bytes) -> pb.ClusterSnapshot:
    try:
        parsed = pb.ClusterSnapshot.FromString(data)
    except DecodeError as error:
        raise ValueError("the metadata snapshot cannot be parsed") from error
    if parsed.format != FORMAT:
        raise ValueError(
            f"the metadata snapshot has format {parsed.format}, this version reads format {FORMAT}"
        )
    return parsed


def _encode_broker(broker: BrokerState) -> pb.BrokerRecord:
    return pb.BrokerRecord(
        node_id=broker.node_id,
        incarnation=broker.incarnation,
        broker_epoch=broker.broker_epoch,
        fenced=broker.fenced,
        shutting_down=broker.shutting_down,
        rack=broker.rack,
        kafka=pb.Endpoint(host=broker.kafka_host, port=broker.kafka_port),
        grpc=pb.Endpoint(host=broker.grpc_host, port=broker.grpc_port),
        directory_id=broker.directory_id,
        supported_features=[pb.Feature(name=name, level=level) for name, level in broker.supported_features],
        offline_replicas=encode_replicas(broker.offline_replicas, pb.PartitionsOfTopic),
        listeners=encode_listeners(broker.listeners),
    )


def _decode_broker(record: pb.BrokerRecord) -> BrokerState:
    return BrokerState(
        node_id=record.node_id,
        incarnation=record.incarnation,
        broker_epoch=record.broker_epoch,
        fenced=record.fenced,
        rack=record.rack,
        kafka_host=record.kafka.host,
        kafka_port=record.kafka.port,
        grpc_host=record.grpc.host,
        grpc_port=record.grpc.port,
        directory_id=record.directory_id,
        shutting_down=record.shutting_down,
        supported_features=tuple((feature.name, feature.level) for feature in record.supported_features),
        offline_replicas=decode_replicas(record.offline_replicas),
        listeners=decode_listeners(record.listeners),
    )


def _encode_topic(topic: TopicState) -> pb.TopicRecord:
    return pb.TopicRecord(
        topic_id=topic.topic_id.bytes,
        name=topic.name,
        config=_encode_config(topic.config),
        partitions=[
            pb.PartitionRecord(
                replicas=partition.replicas,
                isr=partition.isr,
                elr=partition.elr,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                last_known_leader=partition.last_known_leader,
                adding=partition.adding,
                target=partition.target,
            )
            for partition in (topic.partitions[number] for number in range(len(topic.partitions)))
        ],
    )


def _decode_topic(record: pb.TopicRecord) -> TopicState:
    partitions = {
        number: PartitionState(
            replicas=tuple(partition.replicas),
            isr=tuple(partition.isr),
            elr=tuple(partition.elr),
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            last_known_leader=partition.last_known_leader,
            adding=tuple(partition.adding),
            target=tuple(partition.target),
        )
        for number, partition in enumerate(record.partitions)
    }
    return TopicState(record.name, UUID(bytes=record.topic_id), _decode_config(record.config), partitions)


def _encode_config(config: Mapping[str, str]) -> list[pb.ConfigEntry]:
    return [pb.ConfigEntry(key=key, value=config[key]) for key in sorted(config)]


def _decode_config(entries: Iterable[pb.ConfigEntry]) -> dict[str, str]:
    return {entry.key: entry.value for entry in entries}


def _encode_proposer(name: str, memory: ProposerMemory) -> pb.ProposerRecord:
    record = pb.ProposerRecord(proposer=name, floor=memory.floor)
    for sequence, outcome in sorted(memory.seen.items()):
        seen = record.seen.add(sequence=sequence, error=int(outcome.error), message=outcome.message)
        match outcome.value:
            case UUID() as topic_id:
                seen.topic_id = topic_id.bytes
            case tuple() as errors:
                seen.partition_errors.extend(int(error) for error in errors)
            case int() as number:
                seen.number = number
                seen.has_number = True
            case None:
                pass
    return record


def _decode_proposer(record: pb.ProposerRecord) -> ProposerMemory:
    seen = {}
    for entry in record.seen:
        value: Value = None
        if entry.topic_id:
            value = UUID(bytes=entry.topic_id)
        elif entry.has_number:
            value = entry.number
        elif entry.partition_errors:
            value = tuple(ErrorCode(code) for code in entry.partition_errors)
        seen[entry.sequence] = CommandOutcome(ErrorCode(entry.error), entry.message, value)
    return ProposerMemory(record.floor, seen)
