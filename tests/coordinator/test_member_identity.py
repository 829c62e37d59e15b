"""Each request that names a member: a foreign identity is refused, and the right one renews the session and
ends the silence.

`ROWS` has a row for each event that names a member.  Where the coordinator does not check a part of the
identity, or the member is not heard, the row says why; such a reason is held, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, get_args

import pytest
from tidegate.coordinator.group.classic.events import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    SyncGroup,
)
from tidegate.coordinator.group.classic.state import GroupState
from tidegate.coordinator.group.consumer.events import (
    ConsumerGroupHeartbeat,
    ConsumerGroupTimer,
    DescribeConsumerGroup,
)
from tidegate.coordinator.group.consumer.state import ConsumerGroupState
from tidegate.coordinator.group.events import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    ExpireOffsets,
    GroupEvent,
    GroupTimer,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    SilenceTimer,
    TopicsDeleted,
    TxnOffsetCommit,
)
from tidegate.wire.errors import ErrorCode

from .consumer_group_driver import G
from .coordinator_doubles import code_of
from .test_group_migration import CLASSIC_SESSION_MS, ONE, Mixed, share, subscription

SESSION_MS = CLASSIC_SESSION_MS  # the shortest session of a caller
SILENT_MS = 5_000


class Kind(Enum):
    """The caller's protocol, and the type of the group."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    MIXED = "classic, in a consumer group"


class Foreign(Enum):
    """The part of the identity that is not the caller's."""

    MEMBER = "a member id that the group does not know"
    GENERATION = "a later generation, or member epoch"
    EARLIER = "an earlier generation, or member epoch"
    INSTANCE = "the instance of another member"


K, F = Kind, Foreign
REFUSALS: dict[Foreign, set[ErrorCode]] = {
    F.MEMBER: {ErrorCode.UNKNOWN_MEMBER_ID},
    F.GENERATION: {
        ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH
    },
    F.INSTANCE: {ErrorCode.FENCED_INSTANCE_ID},
}  # fmt: skip
REFUSALS[F.EARLIER] = REFUSALS[F.GENERATION]
NO_MEMBERS = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.GROUP_ID_NOT_FOUND}
"""The refusals of a group without members."""


@dataclass(frozen=True)
class Row:
    """sent: an event of this type, to which `said` adds the identity.  The rest says why not: what is not
    checked, by which kinds of callers the session is not renewed, the silence not ended."""

    sent: GroupEvent
    kinds: tuple[Kind, ...] = tuple(Kind)
    unchecked: Mapping[tuple[Kind, Foreign], str] = field(default_factory=dict)
    not_renewed: Mapping[Kind, str] = field(default_factory=dict)
    not_heard: Mapping[Kind, str] = field(default_factory=dict)


def of_all(reason: str) -> dict[Kind, str]:
    return dict.fromkeys(Kind, reason)


BY_CLASSIC = (K.CLASSIC, K.MIXED)
GONE = "the member is gone"
PRODUCER = "the producer sends it: the member may be silent"
BY_EPOCH = "member id and epoch fence: the id of a replaced member is unknown (KIP-848)"
COMMITTED = "a member that lives sends heartbeats, too"
PROTOCOLS = (("range", subscription("flights")),)
ROWS: dict[type, Row] = {
    JoinGroup: Row(
        JoinGroup(G, "", None, "c", "/h", CLASSIC_SESSION_MS, 60_000, "consumer", PROTOCOLS, "new", False),
        BY_CLASSIC,
        {(K.MIXED, F.MEMBER): "it joins as a new member, with the id that it names (KIP-848)"},
    ),
    SyncGroup: Row(SyncGroup(G, 0, ""), BY_CLASSIC),
    Heartbeat: Row(Heartbeat(G, 0, ""), BY_CLASSIC),
    LeaveGroup: Row(LeaveGroup(G, ()), BY_CLASSIC, not_renewed=of_all(GONE), not_heard={K.CLASSIC: GONE}),
    ConsumerGroupHeartbeat: Row(
        ConsumerGroupHeartbeat(G, "", 0, owned=frozenset()),
        (K.CONSUMER,),
        {(K.CONSUMER, F.EARLIER): "the answer with the present epoch may be lost (KIP-848)"},
    ),
    OffsetCommit: Row(
        OffsetCommit(G, ONE, knows_member_epochs=True),
        unchecked={(K.CONSUMER, F.INSTANCE): BY_EPOCH, (K.MIXED, F.INSTANCE): BY_EPOCH},
        not_renewed=dict.fromkeys((K.CONSUMER, K.MIXED), "heartbeats alone renew it (KIP-848)"),
        not_heard=of_all(COMMITTED),
    ),
    TxnOffsetCommit: Row(
        TxnOffsetCommit(G, 7, 0, ONE),
        unchecked={(K.CONSUMER, F.INSTANCE): BY_EPOCH, (K.MIXED, F.INSTANCE): BY_EPOCH},
        not_renewed=of_all(PRODUCER),
        not_heard=of_all(PRODUCER),
    ),
    OffsetFetch: Row(
        OffsetFetch(G, None),
        unchecked={
            (K.CLASSIC, each): "a classic group answers any client"
            for each in (F.MEMBER, F.GENERATION, F.EARLIER)
        },
        not_renewed=of_all("it only reads"),
        not_heard=of_all("it only reads"),
    ),
}
NAME_NO_MEMBER = {
    DeleteGroup, DeleteOffsets, DescribeGroup, DescribeConsumerGroup, ListGroups, TopicsDeleted,
    GroupTimer, ConsumerGroupTimer, SilenceTimer, ExpireOffsets,
}  # fmt: skip


# --- who asks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    member_id: str
    generation: int
    instance_id: str | None = None


GENERATIONS, INSTANCES = ("generation", "member_epoch"), ("group_instance_id", "instance_id")


def said(event: Any, by: Identity) -> Any:
    """The event with this identity."""
    if isinstance(event, LeaveGroup):
        return replace(event, members=(LeavingMember(by.member_id, by.instance_id),))
    values: dict[str, Any] = {"member_id": by.member_id}
    values |= dict.fromkeys(GENERATIONS, by.generation) | dict.fromkeys(INSTANCES, by.instance_id)
    names = {each.name for each in fields(event)}
    return replace(event, **{name: value for name, value in values.items() if name in names})


def foreign_parts(event: Any) -> list[Foreign]:
    """Those that the event names at all."""
    names = {each.name for each in fields(event)}
    found = [F.MEMBER]
    if names.intersection(GENERATIONS):
        found += [F.GENERATION, F.EARLIER]
    if isinstance(event, LeaveGroup) or names.intersection(INSTANCES):
        found.append(F.INSTANCE)
    return found


def with_foreign(part: Foreign, own: Identity) -> Identity:
    return {
        F.MEMBER: replace(own, member_id="stranger"),
        F.GENERATION: replace(own, generation=own.generation + 1),
        F.EARLIER: replace(own, generation=own.generation - 1),
        F.INSTANCE: replace(own, instance_id="other's"),
    }[part]


# --- the states ---------------------------------------------------------------------------------------------
# The caller is a dynamic member; a static member "other" is in each group that has members.


def classic_empty(groups: Mixed) -> Identity:
    groups.stable_classic()
    groups.ask(OffsetCommit(G, ONE, 1, "m"))
    groups.leave("m")
    return Identity("m", 2)


def classic_completing(groups: Mixed, *, leads: bool = True) -> Identity:
    members = {"m": None, "other": "other's"}
    first, second = members if leads else reversed(members)
    for member_id in (first, second):
        groups.classic("", new_member_id=member_id, group_instance_id=members[member_id])
    groups.classic(first, group_instance_id=members[first])
    return Identity("m", 2)


def classic_stable(groups: Mixed) -> Identity:
    own = classic_completing(groups, leads=False)
    groups.sync("other", own.generation, "other's", m=share(0, 1), other=share(2, 3))
    groups.sync("m", own.generation)
    return own


def classic_preparing(groups: Mixed) -> Identity:
    own = classic_stable(groups)
    groups.classic("", new_member_id="third")
    return own


def settle(groups: Mixed) -> Identity:
    """The members of both protocols follow the coordinator's answers until each has its target."""
    for _ in range(10):
        for member_id, member in list(groups.group.members.items()):
            current = groups.group.current[member_id]
            if member.classic is None:
                instance = member.instance_id
                groups.beat(member_id, current.epoch, instance_id=instance, owned=current.assigned)
            elif groups.live(member_id, current.epoch) is not ErrorCode.NONE:
                groups.sync(member_id, groups.classic(member_id).generation)
    assert groups.group.state is ConsumerGroupState.STABLE
    return Identity("m", groups.group.current["m"].epoch)


def consumers(groups: Mixed) -> Identity:
    groups.join("other", instance_id="other's")
    groups.join("m")
    return settle(groups)


def mixed(groups: Mixed) -> Identity:
    groups.join("other", instance_id="other's")
    groups.classic("", new_member_id="m")
    return settle(groups)


def consumers_left(groups: Mixed) -> Identity:
    own = consumers(groups)
    for member_id in ("m", "other"):
        groups.beat(member_id, -1)
    return own


def reconciling(stable: Callable[[Mixed], Identity]) -> Callable[[Mixed], Identity]:
    def joined(groups: Mixed) -> Identity:
        own = stable(groups)
        groups.join("third")
        return own

    return joined


def assigning(stable: Callable[[Mixed], Identity]) -> Callable[[Mixed], Identity]:
    """A member has left, and no heartbeat has come since."""

    def left(groups: Mixed) -> Identity:
        reconciling(stable)(groups)
        own = settle(groups)
        groups.beat("third", -1)
        return own

    return left


C, S = ConsumerGroupState, GroupState
STATES: dict[tuple[Kind, GroupState | ConsumerGroupState], Callable[[Mixed], Identity]] = {
    (K.CLASSIC, S.DEAD): lambda _groups: Identity("m", 1),
    (K.CLASSIC, S.EMPTY): classic_empty,
    (K.CLASSIC, S.PREPARING_REBALANCE): classic_preparing,
    (K.CLASSIC, S.COMPLETING_REBALANCE): classic_completing,
    (K.CLASSIC, S.STABLE): classic_stable,
    (K.CONSUMER, C.EMPTY): consumers_left,
    (K.CONSUMER, C.ASSIGNING): assigning(consumers),
    (K.CONSUMER, C.RECONCILING): reconciling(consumers),
    (K.CONSUMER, C.STABLE): consumers,
    (K.MIXED, C.ASSIGNING): assigning(mixed),
    (K.MIXED, C.RECONCILING): reconciling(mixed),
    (K.MIXED, C.STABLE): mixed,
}
NO_STATES = {(K.CONSUMER, C.DEAD), (K.MIXED, C.DEAD), (K.MIXED, C.EMPTY)}
"""A dead consumer group is no group, and one without members has no classic members."""


@dataclass
class Asked:
    """A group in this state, whose member "m" was silent for a while."""

    kind: Kind
    state: GroupState | ConsumerGroupState

    def __post_init__(self) -> None:
        self.groups = Mixed()
        self.own = STATES[self.kind, self.state](self.groups)
        core = self.groups.shard.groups
        of_consumers = core.consumers.groups.get(G)
        found = core.state_of(G) if self.kind is K.CLASSIC or of_consumers is None else of_consumers.state
        assert found is self.state
        if not self.has_members:
            return
        assert "m" in self.members
        core.silences.begin_grace_period(G, "m", SILENT_MS, SESSION_MS, self.groups.now_ms)
        self.groups.tick(SILENT_MS)
        self.groups.commit()
        core.silences.begin_grace_period(G, "m", 60_000, SESSION_MS, self.groups.now_ms)
        assert not self.is_heard
        self.session_ends_ms = self.session_deadline_ms

    @property
    def has_members(self) -> bool:
        return self.state not in (S.DEAD, S.EMPTY, C.EMPTY)

    @property
    def members(self) -> set[str]:
        core = self.groups.shard.groups
        return set(core.classic[G].members if self.kind is K.CLASSIC else core.consumers.groups[G].members)

    @property
    def is_heard(self) -> bool:
        silences = self.groups.shard.groups.silences
        return "m" not in silences.notes.get(G, {}) and "m" not in silences._grace_periods.get(G, {})

    @property
    def is_renewed(self) -> bool:
        if "m" not in self.members:
            return False
        until_ms = self.session_deadline_ms
        assert until_ms == self.session_ends_ms or until_ms >= self.groups.now_ms + SESSION_MS
        return until_ms != self.session_ends_ms

    @property
    def session_deadline_ms(self) -> int:
        core = self.groups.shard.groups
        if self.kind is K.CLASSIC:
            return core.classic[G].members["m"].session_deadline_ms
        return core.consumers._volatile[G].sessions["m"]

    def ask(self, event: GroupEvent) -> ErrorCode:
        """NONE of a request that waits, too."""
        reply = self.groups.submit("asked", event)
        self.groups.commit()
        reply = self.groups.replies.get("asked", reply)
        return reply.results[0][1] if isinstance(reply, LeaveReply) else code_of(reply)


# --- the tests ----------------------------------------------------------------------------------------------


def test_every_event_that_names_a_member_has_its_row_and_every_state_its_group() -> None:
    assert ROWS.keys() | NAME_NO_MEMBER == set(get_args(GroupEvent))
    assert not ROWS.keys() & NAME_NO_MEMBER
    for event_type in NAME_NO_MEMBER:
        assert {each.name for each in fields(event_type)}.isdisjoint(("member_id", "members", *INSTANCES))
    assert all(row.kinds for row in ROWS.values())
    of_classic = {(K.CLASSIC, state) for state in GroupState}
    of_consumers = {(kind, state) for kind in (K.CONSUMER, K.MIXED) for state in ConsumerGroupState}
    assert STATES.keys() | NO_STATES == of_classic | of_consumers
    assert not STATES.keys() & NO_STATES


EVENTS = pytest.mark.parametrize("event_type", ROWS, ids=lambda event_type: event_type.__name__)


def groups_of(row: Row) -> Iterator[tuple[Kind, GroupState | ConsumerGroupState]]:
    return ((kind, state) for kind, state in STATES if kind in row.kinds)


@EVENTS
def test_a_foreign_identity_is_refused_or_its_row_says_why_not(event_type: type) -> None:
    row, accepted = ROWS[event_type], set[tuple[Kind, Foreign]]()
    for kind, state in groups_of(row):
        for part in foreign_parts(row.sent):
            asked = Asked(kind, state)
            code = asked.ask(said(row.sent, with_foreign(part, asked.own)))
            where = f"{kind.value} {state.value}, {part.value}: {code.name}"
            if code in (REFUSALS[part] if asked.has_members else NO_MEMBERS):
                assert not asked.has_members or not asked.is_renewed, where
                continue
            assert code is ErrorCode.NONE, where
            assert (kind, part) in row.unchecked, where
            accepted.add((kind, part))
    assert accepted == row.unchecked.keys(), "a reason that does not hold"


@EVENTS
def test_the_right_identity_renews_the_session_and_ends_the_silence_or_its_row_says_why_not(
    event_type: type,
) -> None:
    row = ROWS[event_type]
    for kind, state in groups_of(row):
        asked = Asked(kind, state)
        code = asked.ask(said(row.sent, asked.own))
        where = f"{kind.value} {state.value}: {code.name}"
        if not asked.has_members:  # it was a member
            assert code in NO_MEMBERS or (kind, F.MEMBER) in row.unchecked, where
            continue
        assert code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS), where
        assert asked.is_renewed is (kind not in row.not_renewed), where
        assert asked.is_heard is (kind not in row.not_heard), where
