"""The values that the admin client takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..connecting.metadata import BrokerAddress, PartitionMetadata
from ..consuming.cut import Cut
from ..requests.assignors import TopicPartitions


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the cluster's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic; `is_default`: the topic itself does not set it."""

    name: str
    value: str | None
    is_default: bool
    read_only: bool


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its partitions and settings."""

    name: str
    internal: bool
    partitions: Sequence[PartitionMetadata]
    config: Sequence[ConfigEntry] = ()


@dataclass(frozen=True, slots=True)
class GroupListing:
    """An entry of the list of groups.  `type`: classic or consumer (KIP-848); empty from a broker of an older
    version."""

    group_id: str
    protocol_type: str
    state: str
    type: str = ""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """An entry of the list of transactional ids."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class JobListing:
    """An entry of the list of jobs.  attempts: those that have not ended.  deadline_ms: of an open job;
    decided_ms: of a decided one, else -1.  rows: of a committed one, when its engine has said so."""

    sink: str
    batch: str
    state: str
    attempts: int
    winners: int
    deadline_ms: int
    decided_ms: int
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class CutListing:
    """An entry of the list of pinned cuts.  A cut cannot be read before its pin is confirmed, nor when a
    topic of it was deleted."""

    name: str
    topics: tuple[str, ...]
    partitions: int
    taken_ms: int
    pinned_ms: int
    expires_ms: int
    is_confirmed: bool
    deleted_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PinnedCut:
    """A cut that is kept under its name."""

    name: str
    cut: Cut
    pinned_ms: int
    expires_ms: int
    deleted_topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """An attempt that has not ended, with the partitions of its transaction by topic."""

    attempt: str
    producer_id: int
    producer_epoch: int
    state: str
    partitions: Mapping[str, list[int]]


@dataclass(frozen=True, slots=True)
class JobDescription:
    """A job; the names of its winners when it is committed."""

    job: JobListing
    winners: tuple[str, ...]
    attempts: list[JobAttempt]


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id with its open transaction, if any (`started_ms` -1: none)."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    coordinator: int
    partitions: TopicPartitions


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A partition's state of one producer; `open_since_offset` -1: it has no open transaction there."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    open_since_offset: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of the cluster and its active controller."""

    cluster_id: str
    controller_id: int
    brokers: Sequence[BrokerAddress]
