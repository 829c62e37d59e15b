"""What the group shard is asked and what it answers: plain values.  Errors of a whole request travel as `KafkaError`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ...wire.errors import ErrorCode
from .consumer.events import ConsumerGroupConfig, ConsumerGroupEvent, ConsumerGroupReply
from .consumer.state import ConsumerGroupState
from .policy import MigrationPolicy
from .state import GroupState

TopicPartition = tuple[str, int]


class GroupType(Enum):
    """By which protocol a group is kept, with the names that ListGroups shows (KIP-848)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


@dataclass(slots=True, frozen=True)
class JoinGroup:
    """JoinGroup.  new_member_id is what the member shall be called if it brings no id (the node makes it: client id or instance
    id, "-", a fresh uuid).  require_known_member_id: v4 and later (KIP-394); supports_skipping: v9 (KIP-814)."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    new_member_id: str
    require_known_member_id: bool = True
    supports_skipping_assignment: bool = False


@dataclass(slots=True, frozen=True)
class SyncGroup:
    """SyncGroup; protocol type and name are None below v5.  Only the leader brings assignments."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True, frozen=True)
class Heartbeat:
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(slots=True, frozen=True)
class LeavingMember:
    """A static member may leave by its instance id alone (member_id empty): KIP-345's administrator removal."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(slots=True, frozen=True)
class LeaveGroup:
    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(slots=True, frozen=True)
class OffsetToCommit:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(slots=True, frozen=True)
class OffsetCommit:
    """generation -1 and an empty member id: a consumer that manages its partitions itself, or an administrator.

    In a consumer group the generation is the member epoch; knows_member_epochs: version 9, whose callers understand its errors.
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
    """Offsets that count only if the producer's transaction commits.  The node has enlisted or verified the partition of
    __consumer_offsets before; `guard` is what the append re-checks (KIP-890 part 1)."""

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
    """partitions None: all of the group's.  require_stable: UNSTABLE_OFFSET_COMMIT while a transaction is undecided.
    member_id None: not asked as a member of a consumer group."""

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
    """The controller deleted these topics: their offsets are of no use."""

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
    """Timer: members had their chance to be heard by this coordinator."""


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
class JoinedMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True, frozen=True)
class JoinReply:
    """error is NONE or MEMBER_ID_REQUIRED (then only member_id counts); `members` is for the leader only."""

    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False
    error: ErrorCode = ErrorCode.NONE


@dataclass(slots=True, frozen=True)
class SyncReply:
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


@dataclass(slots=True, frozen=True)
class LeaveReply:
    """One result for each member that was to leave, in order."""

    results: tuple[tuple[LeavingMember, ErrorCode], ...]


@dataclass(slots=True, frozen=True)
class OffsetsReply:
    """One error code a partition (commits and deletions)."""

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
class GroupListing:
    group_id: str
    protocol_type: str
    state: GroupState | ConsumerGroupState
    type: GroupType = GroupType.CLASSIC


@dataclass(slots=True, frozen=True)
class ListGroupsReply:
    groups: tuple[GroupListing, ...]


@dataclass(slots=True, frozen=True)
class DescribedMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class DescribeGroupReply:
    """An unknown group is Dead.  problem: why there is no such classic group (KIP-1043); since version 6 that is an error."""

    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol_name: str = ""
    generation: int = -1
    members: tuple[DescribedMember, ...] = ()
    problem: str = ""


@dataclass(slots=True, frozen=True)
class Acknowledged:
    """Done, nothing more to say."""


GroupReply = (
    JoinReply
    | SyncReply
    | LeaveReply
    | OffsetsReply
    | OffsetFetchReply
    | ListGroupsReply
    | DescribeGroupReply
    | Acknowledged
    | ConsumerGroupReply
)


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """initial_rebalance_delay_ms: 3000 as in Kafka; `tidegate dev` sets 0, so that the first consumer need not wait."""

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    expiration_batch_max: int = 1_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
