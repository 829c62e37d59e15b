"""The client's view of the cluster: brokers, topics, leaders.  A value and its merge; no I/O.

An answer of a broker with old metadata must not restore a former leader (KIP-320): of two answers for a
partition of the same topic id, the view keeps the one with the higher leader epoch, in any order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from ...wire.errors import ErrorCode

NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's address for clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition; `leader` is -1 when there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic; with an error it has no partitions."""

    name: str
    internal: bool = False
    partitions: Mapping[int, PartitionMetadata] = field(default_factory=dict)
    error: ErrorCode = ErrorCode.NONE
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A snapshot.  `topics` holds the topics of former requests, not necessarily all topics of the
    cluster."""

    cluster_id: str = ""
    controller_id: int = -1
    brokers: Mapping[int, BrokerAddress] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> int:
        """The leader's node id, -1 when unknown."""
        found = self.topics.get(topic)
        view = found.partitions.get(partition) if found is not None else None
        return view.leader if view is not None and view.leader in self.brokers else NO_LEADER

    def leader_epoch(self, topic: str, partition: int) -> int:
        found = self.topics.get(topic)
        view = found.partitions.get(partition) if found is not None else None
        return view.leader_epoch if view is not None else -1

    def merged(self, answer: Any, *, all_topics: bool) -> ClusterView:
        """This view and a MetadataResponse.  With `all_topics`, a topic that is not in the answer is
        removed."""
        brokers = {
            int(broker.node_id): BrokerAddress(
                int(broker.node_id), broker.host, int(broker.port), broker.rack
            )
            for broker in answer.brokers
        }
        topics = {} if all_topics else dict(self.topics)
        for topic in answer.topics:
            topics[topic.name] = self._merged_topic(topic)
        return ClusterView(
            answer.cluster_id or self.cluster_id, int(answer.controller_id), brokers or self.brokers, topics
        )

    def _merged_topic(self, topic: Any) -> TopicView:
        error = ErrorCode.from_wire(int(topic.error_code))
        topic_id = getattr(topic, "topic_id", None)  # version 10
        known = self.topics.get(topic.name)
        if known is not None and known.topic_id != topic_id:
            known = None  # deleted and created again: its leader epochs restart at 0
        partitions: dict[int, PartitionMetadata] = {}
        for entry in topic.partitions:
            fresh = PartitionMetadata(
                int(entry.partition_index),
                int(entry.leader_id),
                int(entry.leader_epoch),
                tuple(int(node) for node in entry.replica_nodes),
                tuple(int(node) for node in entry.isr_nodes),
                ErrorCode.from_wire(int(entry.error_code)),
            )
            old = known.partitions.get(fresh.partition) if known is not None else None
            partitions[fresh.partition] = (
                old if old is not None and old.leader_epoch > fresh.leader_epoch else fresh
            )
        return TopicView(
            topic.name, bool(topic.is_internal), dict(sorted(partitions.items())), error, topic_id
        )

    def without_topics(self, names: Iterable[str]) -> ClusterView:
        """Removes topics from the view: a new topic with the name of a deleted one restarts its epochs at
        0."""
        gone = set(names)
        kept = {name: view for name, view in self.topics.items() if name not in gone}
        return ClusterView(self.cluster_id, self.controller_id, self.brokers, kept)


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """`host:port,host:port`; IPv6 hosts in brackets.  Raises ValueError that names the invalid part."""
    addresses: list[tuple[str, int]] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        host, separator, port = part.rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{part!r} is not of the form host:port")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise ValueError("no broker address is given: write host:port,host:port")
    return addresses


def no_partition(topic: TopicView, number: int) -> str:
    """The message for a partition that does not exist."""
    return f"topic {topic.name!r} has no partition {number}: it has {len(topic.partitions)}, from 0 on"
