"""The topics and their partitions: a part of `ClusterState.apply`, and as total and deterministic as that.

Every name and every topic id stands for one topic.  How a partition changes says `partition_changes.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from uuid import UUID

from ...proto import metadata_pb2 as pb
from ...wire.errors import ErrorCode
from .changes import Changes, Refused
from .model import (
    INTERNAL_TOPICS,
    BrokerState,
    DeletedTopic,
    PartitionState,
    TopicState,
    Value,
    topic_name_problem,
)
from .partition_changes import Members, Membership, changed_partition

PARTITIONS_MAX = 200_000  # of one topic


class TopicTable:
    """The topics by name and by id."""

    __slots__ = ("_names", "by_name")

    def __init__(self, topics: Iterable[TopicState] = ()) -> None:
        self.by_name = {topic.name: topic for topic in topics}
        self._names = {topic.topic_id: topic.name for topic in self.by_name.values()}

    def copy(self) -> TopicTable:
        other = TopicTable()
        other.by_name, other._names = self.by_name.copy(), self._names.copy()
        return other

    # ---- views ---------------------------------------------------------------------------------------------

    def by_id(self, topic_id: UUID) -> TopicState | None:
        name = self._names.get(topic_id)
        return None if name is None else self.by_name[name]

    def by_raw_id(self, raw: bytes) -> TopicState | None:
        """By the 16 bytes of the id; None when there is no such topic, or when `raw` is no id."""
        return self.by_id(UUID(bytes=raw)) if len(raw) == 16 else None

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        found = self.by_name.get(topic)
        return None if found is None else found.partitions.get(partition)

    def replicas_of(self, node_id: int, at_most: int) -> list[tuple[str, int]]:
        """Partitions of which this broker is a replica, also by a move that is not finished; at most
        `at_most`."""
        held = (
            (topic.name, number)
            for topic in self.by_name.values()
            for number, partition in topic.partitions.items()
            if node_id in partition.replicas
        )
        return list(islice(held, at_most))

    def first_in_isr(self, node_id: int) -> tuple[str, int] | None:
        """The first partition that has the broker in its ISR, by name and number: a snapshot changes the
        order of the table."""
        held = (
            (topic.name, number)
            for topic in self.by_name.values()
            for number, partition in topic.partitions.items()
            if node_id in partition.isr
        )
        return min(held, default=None)

    def ids(self) -> int:
        return len(self._names)

    # ---- operations ----------------------------------------------------------------------------------------

    def with_id(self, raw: bytes) -> TopicState:
        topic = self.by_raw_id(raw)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {raw.hex()}")
        return topic

    @staticmethod
    def _new_partition(wanted: pb.NewPartition, brokers: Mapping[int, BrokerState]) -> PartitionState:
        replicas, isr = tuple(wanted.replicas), tuple(wanted.isr)
        if not replicas or len(set(replicas)) != len(replicas):
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(replicas)} are empty or not distinct"
            )
        if any(node_id not in brokers for node_id in replicas):
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas {list(replicas)} name an unknown broker"
            )
        if not isr or len(set(isr)) != len(isr) or not set(isr) <= set(replicas):
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the ISR {list(isr)} does not fit the replicas"
            )
        if any(not brokers[node_id].active for node_id in isr):
            raise Refused(
                ErrorCode.INELIGIBLE_REPLICA, f"a member of the ISR {list(isr)} was fenced meanwhile"
            )
        return PartitionState(replicas, isr, leader=isr[0])

    def create(
        self,
        op: pb.CreateTopic,
        brokers: Mapping[int, BrokerState],
        defaults: Mapping[str, str],
        changes: Changes,
    ) -> Value:
        """`defaults`: those on which the controller acts; an internal topic has none."""
        problem = topic_name_problem(op.name)
        if problem is not None:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if op.name in self.by_name:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {op.name!r} already exists")
        if len(op.topic_id) != 16 or UUID(bytes=op.topic_id) in self._names:
            raise Refused(ErrorCode.INVALID_REQUEST, "a topic id has 16 bytes and is used once")
        if not 0 < len(op.partitions) <= PARTITIONS_MAX:
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"a topic has 1 to {PARTITIONS_MAX} partitions")
        partitions = {
            number: self._new_partition(wanted, brokers) for number, wanted in enumerate(op.partitions)
        }
        topic_id = UUID(bytes=op.topic_id)
        config = {entry.key: entry.value for entry in op.config}
        defaults = {} if op.name in INTERNAL_TOPICS else defaults
        self.by_name[op.name] = TopicState(op.name, topic_id, config, partitions, defaults)
        self._names[topic_id] = op.name
        changes.topics.add(op.name)
        changes.partitions.update((op.name, number) for number in partitions)
        return topic_id

    def delete(self, op: pb.DeleteTopic, changes: Changes) -> Value:
        topic = self.with_id(op.topic_id)
        del self.by_name[topic.name]
        del self._names[topic.topic_id]
        changes.deleted.append(DeletedTopic(topic.name, topic.topic_id, tuple(sorted(topic.partitions))))
        return topic.topic_id

    def create_partitions(
        self, op: pb.CreatePartitions, brokers: Mapping[int, BrokerState], changes: Changes
    ) -> Value:
        topic = self.with_id(op.topic_id)
        present = len(topic.partitions)
        if present != op.expected_partitions:
            message = f"topic {topic.name!r} has {present} partitions by now, not {op.expected_partitions}"
            raise Refused(ErrorCode.INVALID_UPDATE_VERSION, message)
        if not op.partitions or present + len(op.partitions) > PARTITIONS_MAX:
            raise Refused(ErrorCode.INVALID_PARTITIONS, f"a topic has at most {PARTITIONS_MAX} partitions")
        added = {
            present + number: self._new_partition(wanted, brokers)
            for number, wanted in enumerate(op.partitions)
        }
        self.by_name[topic.name] = replace(topic, partitions={**topic.partitions, **added})
        changes.topics.add(topic.name)
        changes.partitions.update((topic.name, number) for number in added)
        return topic.topic_id

    def change_config(self, op: pb.ChangeTopicConfig, changes: Changes) -> Value:
        topic = self.with_id(op.topic_id)
        config = {key: value for key, value in topic.config.items() if key not in op.remove}
        config.update((entry.key, entry.value) for entry in op.set)
        self._put(replace(topic, config=config), changes)
        return topic.topic_id

    def _put(self, topic: TopicState, changes: Changes) -> None:
        """After a change of its settings."""
        self.by_name[topic.name], numbers = topic.with_settled_eligible_leaders()
        changes.partitions.update((topic.name, number) for number in numbers)
        changes.topics.add(topic.name)

    def change_partitions(
        self,
        op: pb.ChangePartitions,
        brokers: Mapping[int, BrokerState],
        features: Mapping[str, int],
        changes: Changes,
    ) -> Value:
        errors: list[ErrorCode] = []
        for group in op.topics:
            topic = self.by_raw_id(group.topic_id)
            if topic is None:
                errors.extend(ErrorCode.UNKNOWN_TOPIC_ID for _ in group.partitions)
                continue
            partitions = dict(topic.partitions)
            known: dict[Membership, Members | ErrorCode] = {}
            for change in group.partitions:
                number = change.partition
                found = changed_partition(brokers, features, topic, partitions.get(number), change, known)
                if isinstance(found, ErrorCode):
                    errors.append(found)
                    continue
                errors.append(ErrorCode.NONE)
                partitions[number] = found
                changes.partitions.add((topic.name, number))
            self.by_name[topic.name] = replace(topic, partitions=partitions)
        return tuple(errors) or None  # as a snapshot remembers it

    def set_defaults(self, defaults: Mapping[str, str], changes: Changes) -> None:
        """The settings of all nodes have changed: the defaults on which the controller acts, of every topic
        but the internal ones."""
        for topic in list(self.by_name.values()):
            if not topic.internal and topic.defaults != defaults:
                self._put(replace(topic, defaults=defaults), changes)
