"""The requests of members of the classic group protocol, and the answers to them: plain values."""

from __future__ import annotations

from dataclasses import dataclass

from ....wire.errors import ErrorCode


@dataclass(slots=True, frozen=True)
class JoinGroup:
    """JoinGroup.  new_member_id: the id for a member that brings none (the node makes it: client id or
    instance id, "-", a fresh uuid).  require_known_member_id: v4 and later (KIP-394); supports_skipping: v9
    (KIP-814)."""

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
    """A static member may leave by its instance id alone (member_id empty): KIP-345's administrator
    removal."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(slots=True, frozen=True)
class LeaveGroup:
    group_id: str
    members: tuple[LeavingMember, ...]


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
    """One result for each member of the request, in order."""

    results: tuple[tuple[LeavingMember, ErrorCode], ...]


@dataclass(slots=True, frozen=True)
class DescribedMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class Acknowledged:
    """An answer without content."""


ClassicReply = JoinReply | SyncReply | LeaveReply | Acknowledged


@dataclass(slots=True, frozen=True)
class ClassicGroupConfig:
    """initial_rebalance_delay_ms: 3000 as in Kafka; `tidegate dev` sets 0, so that the first consumer need
    not wait."""

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    new_member_join_timeout_ms: int = 300_000
