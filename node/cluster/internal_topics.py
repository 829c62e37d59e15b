"""The two state topics, their configurations, and which of their partitions is responsible for a key.

docs/semantics.md T2: compacted, stored as written, unclean election off, and a partition count that never
changes: the hash of a key must lead to the same partition for as long as the cluster lives.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from ...controller.state.model import CONSUMER_OFFSETS_TOPIC as CONSUMER_OFFSETS
from ...controller.state.model import INTERNAL_TOPICS
from ...controller.state.model import TRANSACTION_STATE_TOPIC as TRANSACTION_STATE
from ...coordinator.transaction.jobs import coordination_key
from ..settings.configuration import Configuration

__all__ = [
    "CONSUMER_OFFSETS",
    "INTERNAL_TOPICS",
    "STATE_SEGMENT_BYTES",
    "TRANSACTION_STATE",
    "partition_for",
    "settings",
    "transaction_partition_for",
]

STATE_SEGMENT_BYTES: Final = 100 << 20
"""Kafka's: the active segment is never cleaned, and all of it is read when a coordinator loads."""


@lru_cache(maxsize=4096)  # several times a transaction, a character at a time
def partition_for(key: str, partition_count: int) -> int:
    """The state partition of a transactional id or group id: Java's String.hashCode, as Kafka does, modulo
    the count."""
    value = 0
    for unit in memoryview(key.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % partition_count


def transaction_partition_for(transactional_id: str, partition_count: int) -> int:
    """The state partition of a transactional id; an attempt of a job has that of the job's sink."""
    return partition_for(coordination_key(transactional_id), partition_count)


def settings(topic: str, configuration: Configuration) -> tuple[int, int, dict[str, str]]:
    """(partitions, replication factor, topic configuration) with which a state topic is created."""
    prefix = "transaction.state.log" if topic == TRANSACTION_STATE else "offsets.topic"
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(STATE_SEGMENT_BYTES),
        "compression.type": "producer",
        "unclean.leader.election.enable": "false",
        "flush.policy": "always",
        "min.insync.replicas": str(configuration.integer(f"{prefix}.min.isr")),
    }
    return (
        configuration.integer(f"{prefix}.num.partitions"),
        configuration.integer(f"{prefix}.replication.factor"),
        config,
    )
