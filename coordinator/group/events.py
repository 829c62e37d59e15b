"""The requests, timers and answers of the group shard: plain values.  Errors of a whole request travel as
`KafkaError`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ...wire.errors import ErrorCode
from ..outcome import ShardOutcome
from .classic.events import (
    ClassicGroupConfig,
    ClassicReply,
    DescribedMember,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from .classic.state import GroupState
from .consumer.events import (
    ConsumerGroupConfig,
    ConsumerGroupEvent,
    ConsumerGroupHeartbeat,
    ConsumerGroupReply,
    ConsumerGroupTimer,
    DescribeConsumerGroup,
)
from .consumer.state import ConsumerGroupState
from .policy import MigrationPolicy

TopicPartition = tuple[str, int]


class GroupType(Enum):
    """The protocol of a group, with the names that ListGroups shows (KIP-848)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(slots=True, frozen=True)
class OffsetToCommit:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(slots=True, frozen=True)
class OffsetCommit:
    """generation -1 and an empty member id: a consumer that manages its partitions itself, or an
    administrator.

    In a consumer group the generation is the member epoch; knows_member_epochs: version 9, whose clients know
    its errors.
    """

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_ms: int = -1
    knows_member_epochs: bool = False


@dataclass(slots=True, frozen=True)
class TxnOffsetCommit:
    """Offsets that count only if the producer's transaction commits.  The node has enlisted or verified the
    partition of __consumer_offsets before; the append checks `guard` again (KIP-890 part 1)."""

    group_id: str
    producer_id: int
    producer_epoch: int
    offsets: tuple[OffsetToCommit, ...]
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    guard: object | None = None


@dataclass(slots=True, frozen=True)
class OffsetFetch:
    """partitions None: all of the group's.  require_stable: UNSTABLE_OFFSET_COMMIT while a transaction is
    undecided. member_id None: the client does not ask as a member of a consumer group."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(slots=True, frozen=True)
class DeleteGroup:
    group_id: str


@dataclass(slots=True, frozen=True)
class DeleteOffsets:
    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True, frozen=True)
class TopicsDeleted:
    """The controller deleted these topics: the shard deletes their offsets."""

    topics: frozenset[str]


@dataclass(slots=True, frozen=True)
class ListGroups:
    """States and types by display name, in lower case; empty for all."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(slots=True, frozen=True)
class DescribeGroup:
    group_id: str


@dataclass(slots=True, frozen=True)
class GroupTimer:
    """Timer: a session, join or sync deadline of the group has passed."""

    group_id: str


@dataclass(slots=True, frozen=True)
class SilenceTimer:
    """Timer: the grace period of some members is over (`silence.py`)."""


@dataclass(slots=True, frozen=True)
class ExpireOffsets:
    """Timer: offsets of these groups may be past their retention."""

    group_ids: tuple[str, ...]


GroupEvent = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | TxnOffsetCommit
    | OffsetFetch
    | DeleteGroup
    | DeleteOffsets
    | TopicsDeleted
    | ListGroups
    | DescribeGroup
    | GroupTimer
    | ExpireOffsets
    | SilenceTimer
    | ConsumerGroupEvent
)


@dataclass(slots=True, frozen=True)
class OffsetsReply:
    """One error code for each partition (commits and deletions)."""

    errors: Mapping[TopicPartition, ErrorCode]


@dataclass(slots=True, frozen=True)
class FetchedOffset:
    """offset -1: none committed."""

    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True, frozen=True)
class OffsetFetchReply:
    offsets: Mapping[TopicPartition, FetchedOffset]


@dataclass(slots=True, frozen=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: GroupState | ConsumerGroupState
    type: GroupType = GroupType.CLASSIC


@dataclass(slots=True, frozen=True)
class ListGroupsReply:
    groups: tuple[ListedGroup, ...]


@dataclass(slots=True, frozen=True)
class DescribeGroupReply:
    """An unknown group is Dead.  problem: why there is no such classic group (KIP-1043); since version 6 that
    is an error."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    generation: int = -1
    members: tuple[DescribedMember, ...] = ()
    problem: str = ""


GroupReply = (
    ClassicReply | OffsetsReply | OffsetFetchReply | ListGroupsReply | DescribeGroupReply | ConsumerGroupReply
)

GroupOutcome = ShardOutcome[GroupReply, None]


def group_ids_of(event: GroupEvent) -> tuple[str, ...]:
    """The groups that an event is about; those of a timer of the whole shard are not known."""
    match event:
        case ExpireOffsets():
            return event.group_ids
        case TopicsDeleted() | ListGroups() | SilenceTimer():
            return ()
        case (
            JoinGroup()
            | SyncGroup()
            | Heartbeat()
            | LeaveGroup()
            | OffsetCommit()
            | TxnOffsetCommit()
            | OffsetFetch()
            | DeleteGroup()
            | DeleteOffsets()
            | DescribeGroup()
            | GroupTimer()
            | ConsumerGroupHeartbeat()
            | ConsumerGroupTimer()
            | DescribeConsumerGroup()
        ):
            return (event.group_id,)


def heard_member(event: GroupEvent) -> str | None:
    """The member that the coordinator hears by this event, once its group knows it: its silence ends
    (`silence.py`).  None: of a member that leaves, of a client that may be no member, of no member."""
    match event:
        case Heartbeat() | ConsumerGroupHeartbeat() | JoinGroup() | SyncGroup():
            return event.member_id
        case LeaveGroup() | OffsetCommit() | TxnOffsetCommit() | OffsetFetch():
            return None
        case DeleteGroup() | DeleteOffsets() | ListGroups() | DescribeGroup() | DescribeConsumerGroup():
            return None
        case TopicsDeleted() | GroupTimer() | ConsumerGroupTimer() | SilenceTimer() | ExpireOffsets():
            return None


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """The settings of a group shard."""

    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    expiration_batch_max: int = 1_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    classic: ClassicGroupConfig = field(default_factory=ClassicGroupConfig)
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
