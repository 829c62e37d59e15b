"""The members of a classic group: static instances, shared protocols, assignments, and the requests that
wait.

A group has two halves.  A generation (number, protocol, leader, members and their assignments) is in the log,
and `restore` loads it.  The tokens of waiting requests and all deadlines are volatile: a new coordinator
begins every member's session anew. The voters of the metadata quorum are another thing
(`controller/raft/membership.py`).

This module holds the data and its invariants; `rebalance.py` moves the group through its states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ....wire.errors import ErrorCode, KafkaError
from .events import DescribedMember, JoinedMember
from .records import GroupValue, MemberValue
from .state import VALID_PREVIOUS, GroupState

NO_TOKEN = 0
FOREVER_MS = 2**63


@dataclass(slots=True)
class Member:
    """One member.  join_token / sync_token: its pending request, 0 for none.  is_new: joined since the last
    generation."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    session_deadline_ms: int = FOREVER_MS
    join_token: int = NO_TOKEN
    sync_token: int = NO_TOKEN
    is_new: bool = False

    @property
    def protocol_names(self) -> list[str]:
        return [name for name, _ in self.protocols]

    def metadata(self, protocol: str | None) -> bytes:
        """The subscription under a protocol; empty when the member does not know it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    @property
    def is_waiting(self) -> bool:
        """Whether a request of the member waits here: then it is alive, even past its session."""
        return self.join_token != NO_TOKEN or self.sync_token != NO_TOKEN


@dataclass(slots=True)
class ClassicGroup:
    """One group.  Deadlines are FOREVER_MS when they do not run."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    state_since_ms: int = -1
    is_stored: bool = False
    stored_members: frozenset[str] = frozenset()  # of the newest generation in the log
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    # have their id (KIP-394), have not joined yet -> deadline
    pending_members: dict[str, int] = field(default_factory=dict)
    unsynced: set[str] = field(default_factory=set)
    join_deadline_ms: int = FOREVER_MS
    sync_deadline_ms: int = FOREVER_MS
    # what is left to extend the initial delay by; -1 outside the initial rebalance
    initial_window_ms: int = -1
    joined_in_window: bool = False

    # --- states ---------------------------------------------------------------------------------------------

    def enter(self, state: GroupState) -> None:
        """The only way to change the state at run time."""
        if self.state not in VALID_PREVIOUS[state]:
            raise AssertionError(f"group {self.group_id}: {state.value} may not follow {self.state.value}")
        self.state = state

    # --- members --------------------------------------------------------------------------------------------

    def check_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member, or UNKNOWN_MEMBER_ID / FENCED_INSTANCE_ID (KIP-345)."""
        if group_instance_id is not None:
            holder = self.static_members.get(group_instance_id)
            if holder is None:
                raise self.unknown(f"instance {group_instance_id}")
            if holder != member_id:
                message = (
                    f"group {self.group_id}: instance {group_instance_id} is now {holder}, no longer "
                    f"{member_id}"
                )
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
        member = self.members.get(member_id)
        if member is None:
            raise self.unknown(f"member {member_id!r}")
        return member

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            message = f"group {self.group_id} is in generation {self.generation}, not {generation}"
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)

    def unknown(self, member: str) -> KafkaError:
        return KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} does not know {member}: join again"
        )

    def add(self, member: Member) -> None:
        self.pending_members.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self.unsynced.discard(member_id)
        if (
            member.group_instance_id is not None
            and self.static_members.get(member.group_instance_id) == member_id
        ):
            del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """A static member came back under a new id, which gets the assignment and the leadership of the old
        one."""
        member = self.members[old_id]
        member.member_id = new_id
        self.members = {m.member_id: m for m in self.members.values()}
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    @property
    def all_joined(self) -> bool:
        return not self.pending_members and all(
            member.join_token != NO_TOKEN for member in self.members.values()
        )

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # --- protocols ------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether a member with these protocols can be in the group."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        return protocol_type == self.protocol_type and bool(
            self.shared_protocols() & {name for name, _ in protocols}
        )

    def shared_protocols(self) -> set[str]:
        shared: set[str] | None = None
        for member in self.members.values():
            names = set(member.protocol_names)
            shared = names if shared is None else shared & names
        return shared or set()

    def choose_protocol(self) -> str | None:
        """Every member votes for the first of its protocols that all share; ties go to the first vote
        cast."""
        shared = self.shared_protocols()
        votes = Counter(
            next(n for n in m.protocol_names if n in shared) for m in self.members.values() if shared
        )
        return votes.most_common(1)[0][0] if votes else None

    # --- the stored half ------------------------------------------------------------------------------------

    def to_value(self, now_ms: int, proposed: Mapping[str, bytes] | None) -> GroupValue:
        """The record of this generation; `proposed`: the assignment that the leader's SyncGroup has just
        brought."""
        members = tuple(
            MemberValue(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol),
                member.assignment if proposed is None else proposed.get(member.member_id, b""),
            )
            for member in self.members.values()
        )
        return GroupValue(
            self.protocol_type or "", self.generation, self.protocol, self.leader, now_ms, members
        )

    def confirm(self, value: GroupValue) -> None:
        """This coordinator's record is in the log: its assignments are valid from now on."""
        self.is_stored = True
        self.stored_members = frozenset(stored.member_id for stored in value.members)
        self.state_since_ms = value.state_timestamp_ms
        for stored in value.members:
            self.members[stored.member_id].assignment = stored.assignment
        if self.state is GroupState.COMPLETING_REBALANCE:
            self.enter(GroupState.STABLE)

    def restore(self, value: GroupValue) -> None:
        """Loads a stored generation, which replaces that of an earlier record."""
        self.is_stored = True
        self.stored_members = frozenset(stored.member_id for stored in value.members)
        self.state_since_ms = value.state_timestamp_ms
        self.generation, self.protocol, self.leader = value.generation, value.protocol, value.leader
        self.protocol_type = value.protocol_type or None
        self.members, self.static_members = {}, {}
        for stored in value.members:
            member = Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                stored.rebalance_timeout_ms,
                stored.session_timeout_ms,
                ((value.protocol or "", stored.subscription),),
                stored.assignment,
            )
            self.members[member.member_id] = member
            if member.group_instance_id is not None:
                self.static_members[member.group_instance_id] = member.member_id
        self.state = value.state

    # --- views ----------------------------------------------------------------------------------------------

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """All members with their subscriptions, as the leader gets them."""
        return tuple(
            JoinedMember(m.member_id, m.group_instance_id, m.metadata(self.protocol))
            for m in self.members.values()
        )

    def described_members(self) -> tuple[DescribedMember, ...]:
        """As Kafka shows them: the subscription only while the group is stable, the assignment always: during
        a rebalance members keep their last assignment."""
        settled = self.state is GroupState.STABLE
        return tuple(
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol) if settled else b"",
                member.assignment,
            )
            for member in self.members.values()
        )

    def next_deadline_ms(self) -> int:
        """The earliest deadline of the group."""
        deadlines = [self.join_deadline_ms, self.sync_deadline_ms]
        deadlines += [member.session_deadline_ms for member in self.members.values()]
        deadlines += self.pending_members.values()
        return min(deadlines)
