"""The replicas that this node hosts, by topic and partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

from ...wire.errors import ErrorCode, KafkaError
from ..partition.leader import PartitionLeader
from .replica import Replica, Role

Key = tuple[str, int]


class HostedReplicas:
    """A replica is here from the moment its log is open until it is deleted, also while it is offline."""

    def __init__(
        self,
        node_id: int,
        partition_exists: Callable[[str, int], bool],
        require_possible: Callable[[Key], None],
    ) -> None:
        """`require_possible` raises the KafkaError for a replica whose log did not open or is being made."""
        self._node_id = node_id
        self._partition_exists = partition_exists
        self._require_possible = require_possible
        self._replicas: dict[Key, Replica] = {}

    def __iter__(self) -> Iterator[Replica]:
        """A copy: the caller may add and remove replicas meanwhile."""
        return iter(tuple(self._replicas.values()))

    def __contains__(self, replica: Replica) -> bool:
        """False for a replica that was deleted, or created again."""
        return self._replicas.get(replica.key) is replica

    def get(self, key: Key) -> Replica | None:
        return self._replicas.get(key)

    def add(self, replica: Replica) -> None:
        assert replica.key not in self._replicas
        self._replicas[replica.key] = replica

    def remove(self, replica: Replica) -> None:
        del self._replicas[replica.key]

    def require(self, topic: str, partition: int) -> Replica:
        """Raises KAFKA_STORAGE_ERROR when the node could not open its log, NOT_LEADER_OR_FOLLOWER when the
        partition exists and the node has no replica of it (yet), so that the client reads the metadata again,
        and UNKNOWN_TOPIC_OR_PARTITION when the partition does not exist."""
        found = self._replicas.get((topic, partition))
        if found is None:
            self._require_possible((topic, partition))
            elsewhere = self._partition_exists(topic, partition)
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if elsewhere else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"node {self._node_id} holds no replica of {topic}-{partition}")
        return found

    def leaders(self) -> list[PartitionLeader]:
        return [replica.leader for replica in self._replicas.values() if replica.leader is not None]

    @property
    def leader_count(self) -> int:
        return len(self.leaders())

    @property
    def under_replicated_count(self) -> int:
        """Partitions led here whose ISR is smaller than their replica set."""
        return sum(leader.is_under_replicated() for leader in self.leaders())

    @property
    def under_min_isr_count(self) -> int:
        """Partitions led here that reject acks=all because their ISR is below min.insync.replicas."""
        return sum(leader.is_under_min_isr() for leader in self.leaders())

    def offline(self) -> set[tuple[UUID, int]]:
        """(topic id, partition) of the replicas whose disk failed."""
        return {
            (each.topic_id, each.partition) for each in self._replicas.values() if each.role is Role.OFFLINE
        }
