"""The requests and answers of consumer groups (KIP-848); by topic id where the protocol uses ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from .state import ConsumerGroupState

TopicIdPartition = tuple[UUID, int]
Partitions = frozenset[TopicIdPartition]


class TopicShape(NamedTuple):
    """The properties of a topic that an assignment depends on."""

    topic_id: UUID
    partitions: int


class TopicCatalog(Protocol):
    """The topics of the cluster in the node's present metadata."""

    @property
    def version(self) -> int:
        """Rises whenever a shape may have changed; groups compare their topics only then."""

    def shapes(self, names: Iterable[str]) -> dict[str, TopicShape]:
        """Those of the named topics that exist."""

    def matching(self, pattern: str) -> Iterable[str] | None:
        """The topics that a regular expression matches, but not the internal ones; None while the matching is
        not finished."""


@dataclass(slots=True, frozen=True)
class ConsumerGroupHeartbeat:
    """ConsumerGroupHeartbeat.  None, and -1 for the timeout: unchanged since the last heartbeat.  `owned`:
    what the member owns now."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """The heartbeat has all fields, as after an error: the answer must be complete, too."""
        subscribed = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and subscribed and self.owned is not None


@dataclass(slots=True, frozen=True)
class DescribeConsumerGroup:
    group_id: str


@dataclass(slots=True, frozen=True)
class ConsumerGroupTimer:
    """Timer: a session or a revocation of the group is overdue."""

    group_id: str


ConsumerGroupEvent = ConsumerGroupHeartbeat | DescribeConsumerGroup | ConsumerGroupTimer


@dataclass(slots=True, frozen=True)
class ConsumerGroupHeartbeatReply:
    """assignment None: unchanged since the last answer."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None = None


@dataclass(slots=True, frozen=True)
class DescribedConsumer:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    assignment: Partitions
    target: Partitions
    is_classic: bool = False


@dataclass(slots=True, frozen=True)
class DescribeConsumerGroupReply:
    """topic_names: of the ids in the assignments, as far as the group knows them."""

    group_id: str
    state: ConsumerGroupState
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]
    topic_names: Mapping[UUID, str]


ConsumerGroupReply = ConsumerGroupHeartbeatReply | DescribeConsumerGroupReply


@dataclass(slots=True, frozen=True)
class ConsumerGroupConfig:
    """assignors: those that members may name; the first is for groups that name none.

    assignment_interval_ms: members that join or leave within this time of a computed target wait for the next
    one together (KIP-1263)."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    assignment_interval_ms: int = 0
