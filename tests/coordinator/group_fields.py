"""What each transition of a consumer group does with each field of its records, written down cell by cell.

A field that is wrongly carried on, or wrongly reset, is the same in memory and in the log.  So each record
that a test writes is held against these tables (`replayed_state.checked`, the simulator), and
`test_group_fields.py` plays every column with values that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from tidegate.coordinator.group.classic.consumer_protocol import read_subscription
from tidegate.coordinator.group.classic.events import JoinGroup, LeaveGroup
from tidegate.coordinator.group.classic.membership import ClassicGroup
from tidegate.coordinator.group.consumer import records
from tidegate.coordinator.group.consumer.events import ConsumerGroupHeartbeat, ConsumerGroupTimer
from tidegate.coordinator.group.consumer.group import NOTHING, ConsumerGroup
from tidegate.coordinator.group.consumer.records import (
    ClassicMember,
    CurrentAssignment,
    Key,
    MemberMetadata,
    RecordKind,
    Value,
)
from tidegate.coordinator.group.consumer.state import STATIC_LEAVING_EPOCH, MemberState
from tidegate.coordinator.group.events import GroupEvent, GroupOutcome
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import Context


class Transition(Enum):
    JOINS = "a member joins"
    JOINS_AGAIN = "a member joins once more"
    RETURNS = "an instance is back, perhaps under another member id"
    HEARTBEAT = "heartbeat"
    LEAVES = "leave"
    LEAVES_FOR_A_WHILE = "leave for a while"
    IS_LATE = "members are past a deadline"
    CLASSIC_JOINS = "a classic member joins"
    CLASSIC_JOINS_AGAIN = "a member joins once more, as a classic one"
    CLASSIC_RETURNS = "an instance is back as a classic member"
    CLASSIC_LEAVES = "LeaveGroup"
    UPGRADE = "a classic group becomes a consumer group"
    # `reconcile.py` writes it at a join or a heartbeat
    MOVES = "a member gets partitions of its target"
    MUST_REVOKE = "a member must revoke partitions"


@dataclass(slots=True)
class Field:
    """One field before and after a transition.  former, record: the record, or the group, that has it; said:
    what the request says, None for nothing; group: as it is when the record is written."""

    name: str
    former: Any
    record: Any
    said: Mapping[str, Any]
    group: ConsumerGroup
    member_id: str

    @property
    def before(self) -> Any:
        return getattr(self.former, self.name)

    @property
    def after(self) -> Any:
        return getattr(self.record, self.name)

    @property
    def unset(self) -> Any:
        return getattr(NOT_YET if isinstance(self.record, CurrentAssignment) else NOTHING_SAID, self.name)

    @property
    def target(self) -> Any:
        return self.group.target.get(self.member_id, NOTHING)


Cell = Callable[[Field], bool]
NOT_YET = CurrentAssignment(0, 0)
NOTHING_SAID = MemberMetadata(None, None, "", "", (), None, -1, None)


def kept(field: Field) -> bool:
    return bool(field.after == field.before)


def cleared(field: Field) -> bool:
    return bool(field.after == field.unset)


def as_said(field: Field) -> bool:
    return bool(field.after == (field.said.get(field.name) or field.unset))


def as_said_or_kept(field: Field) -> bool:
    return kept(field) if field.said.get(field.name) is None else as_said(field)


# --- of the group -------------------------------------------------------------------------------------------


def one_more(field: Field) -> bool:
    return bool(field.after == field.before + 1)


def kept_or_one_more(field: Field) -> bool:
    return kept(field) or one_more(field)


def kept_or_as_the_catalog(field: Field) -> bool:
    return kept(field) or bool(field.after == field.said["catalog"].shapes(field.after))


def kept_or_the_group_epoch(field: Field) -> bool:
    return kept(field) or bool(field.after == field.record.epoch)


def kept_or_assigned(field: Field) -> bool:
    """A new target comes with its epoch."""
    return kept(field) or bool(field.record.target_epoch > field.former.target_epoch)


def generation(field: Field) -> bool:
    return bool(field.after == field.said["generation"])


# --- of a current assignment --------------------------------------------------------------------------------


def target_epoch(field: Field) -> bool:
    return bool(field.after == field.group.target_epoch)


def next_epoch(field: Field) -> bool:
    """It rises only where all partitions before are revoked."""
    revoked = field.former.state is MemberState.UNREVOKED_PARTITIONS
    return bool(field.after == (min(field.before + 1, field.group.target_epoch) if revoked else field.before))


def former_epoch(field: Field) -> bool:
    """Kept where the epoch is kept."""
    return (
        kept(field) if field.record.epoch == field.former.epoch else bool(field.after == field.former.epoch)
    )


def leaving_epoch(field: Field) -> bool:
    return bool(field.after == STATIC_LEAVING_EPOCH)


def unrevoked(field: Field) -> bool:
    return field.after is MemberState.UNREVOKED_PARTITIONS


def stable_with_the_target(field: Field) -> bool:
    complete = field.record.assigned == field.target
    return field.after is (MemberState.STABLE if complete else MemberState.UNRELEASED_PARTITIONS)


def of_the_target(field: Field) -> bool:
    return bool(field.former.assigned & field.target <= field.after <= field.target)


def the_target(field: Field) -> bool:
    return bool(field.after == field.target)


def still_in_the_target(field: Field) -> bool:
    return bool(field.after == field.former.assigned & field.target)


def no_more_in_the_target(field: Field) -> bool:
    return bool(field.after == field.former.assigned - field.target)


# --- the tables ---------------------------------------------------------------------------------------------

T = Transition
SET, SAID, CLR, _ = as_said, as_said_or_kept, cleared, kept
UP, MAY, CAT, EPO, TGT, GEN = (
    one_more, kept_or_one_more, kept_or_as_the_catalog, kept_or_the_group_epoch, kept_or_assigned, generation,
)  # fmt: skip

# fmt: off
MEMBER_COLUMNS = (
    T.JOINS, T.JOINS_AGAIN, T.RETURNS, T.HEARTBEAT, T.CLASSIC_JOINS, T.CLASSIC_JOINS_AGAIN, T.CLASSIC_RETURNS,
    T.UPGRADE,
)
MEMBER: dict[str, tuple[Cell, ...]] = {
    #                        joins again returns heartbeat classic: joins again returns upgrade
    "instance_id":          (SET,  SET,  _,      _,                 SET,  SET,  _,      SET),
    "rack_id":              (SET,  SET,  SET,    SAID,              SET,  SET,  SET,    SET),
    "client_id":            (SET,  SET,  SET,    SET,               SET,  SET,  SET,    SET),
    "client_host":          (SET,  SET,  SET,    SET,               SET,  SET,  SET,    SET),
    "topic_names":          (SET,  SET,  SET,    SAID,              SET,  SET,  SET,    SET),
    "topic_regex":          (SET,  SET,  SET,    SAID,              CLR,  CLR,  CLR,    CLR),
    "rebalance_timeout_ms": (SET,  SET,  SET,    SAID,              SET,  SET,  SET,    SET),
    "assignor":             (SET,  SET,  SET,    SAID,              CLR,  CLR,  CLR,    CLR),
    "classic":              (CLR,  CLR,  CLR,    CLR,               SET,  SET,  SET,    SET),
}
CURRENT_COLUMNS = (T.MOVES, T.MUST_REVOKE, T.LEAVES_FOR_A_WHILE, T.RETURNS, T.UPGRADE)
CURRENT: dict[str, tuple[Cell, ...]] = {
    #                  moves                   must revoke            for a while    returns upgrade
    "epoch":          (target_epoch,           next_epoch,            leaving_epoch, CLR,    GEN),
    "previous_epoch": (former_epoch,           former_epoch,          former_epoch,  CLR,    GEN),
    "state":          (stable_with_the_target, unrevoked,             CLR,           CLR,    CLR),
    "assigned":       (of_the_target,          still_in_the_target,   _,             _,      the_target),
    "revoking":       (CLR,                    no_more_in_the_target, CLR,           CLR,    CLR),
}
GROUP_COLUMNS = tuple(each for each in T if each not in (T.MOVES, T.MUST_REVOKE))
GROUP: dict[str, tuple[Cell, ...]] = {
    #               joins again returns heartbeat leaves awhile late classic: joins again returns leaves up
    "epoch":        (UP,  MAY,  MAY,    MAY,      UP,    _,     UP,           UP,   MAY,  MAY,    UP,    GEN),
    "topics":       (CAT, CAT,  CAT,    CAT,      _,     _,     _,            CAT,  CAT,  CAT,    _,     CAT),
    "target_epoch": (EPO, EPO,  EPO,    EPO,      _,     _,     _,            EPO,  EPO,  EPO,    _,     GEN),
    "target":       (TGT, TGT,  TGT,    TGT,      _,     _,     _,            TGT,  TGT,  TGT,    _,     TGT),
}
# fmt: on
IN_OTHER_TABLES = {"group_id", "members", "current", "holders", "instances"}


def columns(kind: type) -> tuple[dict[str, tuple[Cell, ...]], tuple[Transition, ...]]:
    return {
        MemberMetadata: (MEMBER, MEMBER_COLUMNS),
        CurrentAssignment: (CURRENT, CURRENT_COLUMNS),
        ConsumerGroup: (GROUP, GROUP_COLUMNS),
    }[kind]


def wrong_fields(
    transition: Transition,
    former: Any,
    record: MemberMetadata | CurrentAssignment | ConsumerGroup,
    said: Mapping[str, Any],
    group: ConsumerGroup,
    member_id: str = "",
) -> Iterator[str]:
    table, transitions = columns(type(record))
    for name, row in table.items():
        cell, field = row[transitions.index(transition)], Field(name, former, record, said, group, member_id)
        if not cell(field):
            stated = (
                f"{type(record).__name__}.{name}, {transition.value}: group_fields.py says {cell.__name__}"
            )
            is_so = f"it was {field.before!r}, the request says {said.get(name)!r}, now it is {field.after!r}"
            yield f"{stated}, but {is_so}"


# --- what a request says ------------------------------------------------------------------------------------


def said_by(event: ConsumerGroupHeartbeat | JoinGroup) -> dict[str, Any]:
    """Of the fields of `MemberMetadata`; None, or no entry, for nothing."""
    if isinstance(event, JoinGroup):
        classic = ClassicMember(event.session_timeout_ms, event.protocols)
        return said_by_classic(event, classic, event.protocols[0][1])
    said = {each.name: getattr(event, each.name, None) for each in fields(MemberMetadata)}
    if event.topic_names is not None:
        said["topic_names"] = tuple(sorted(set(event.topic_names)))
    if event.rebalance_timeout_ms < 0:
        said["rebalance_timeout_ms"] = None
    return said


def said_by_classic(member: Any, classic: ClassicMember, data: bytes) -> dict[str, Any]:
    """The same, of JoinGroup or of a member of a classic group, with its subscription."""
    subscription = read_subscription(data)
    return {
        "instance_id": member.group_instance_id,
        "rack_id": subscription.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topic_names": tuple(sorted(set(subscription.topics))),
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "classic": classic,
    }


# --- the records of an event --------------------------------------------------------------------------------


def held_against_the_tables(shard: GroupShard, found: list[str]) -> GroupShard:
    """The shard; `found` gets a line for each field that a record does not have as the tables say."""
    handle = shard.handle

    def checked(event: GroupEvent, context: Context) -> GroupOutcome:
        outcome = handle(event, context)
        found.extend(violations(shard, event, outcome))
        return outcome

    shard.handle = checked
    return shard


def violations(shard: GroupShard, event: Any, outcome: Any) -> Iterator[str]:
    """What the records of `outcome`, which the shard has not replayed yet, do to a consumer group against the
    tables."""
    decoded = [(records.decode_key(each.key), each.value) for each in getattr(outcome, "records", ())]
    written = [
        (key, None if value is None else records.decode_value(key.kind, value))
        for key, value in decoded
        if key is not None
    ]
    if not any(value is not None for _, value in written):
        return  # nothing, or the group is removed, or becomes a classic one
    group = shard.groups.consumers.groups.get(written[0][0].group_id) or ConsumerGroup(written[0][0].group_id)
    group, catalog, classic = group.copy(), shard.groups._catalog, shard.groups.classic.get(group.group_id)
    if classic is not None and classic.members:
        upgrade = len(classic.members) * (3 if classic.generation else 1) + (3 if classic.generation else 0)
        yield from _upgrade(classic, catalog, group, written[:upgrade])
        written = written[upgrade:]
    yield from _transition(event, catalog, group, written)


def _upgrade(
    classic: ClassicGroup,
    catalog: Any,
    group: ConsumerGroup,
    written: list[tuple[Key, Value | None]],
) -> Iterator[str]:
    before, said = group.copy(), {"generation": classic.generation, "catalog": catalog}
    for key, value in written:
        group.apply(key, value)
    for member_id, member in classic.members.items():
        own = ClassicMember(member.session_timeout_ms, member.protocols)
        data = member.metadata(classic.protocol) or member.protocols[0][1]
        metadata = group.members[member_id]
        yield from wrong_fields(T.UPGRADE, NOTHING_SAID, metadata, said_by_classic(member, own, data), group)
        if classic.generation:
            current = group.current[member_id]
            yield from wrong_fields(T.UPGRADE, NOT_YET, current, said, group, member_id)
    if classic.generation:
        yield from wrong_fields(T.UPGRADE, before, group.copy(), said, group)


def _transition(
    event: Any,
    catalog: Any,
    group: ConsumerGroup,
    written: list[tuple[Key, Value | None]],
) -> Iterator[str]:
    """`group` is the one before, and in the end the one after."""
    before = group.copy()
    transition, member_id, replaced = _transition_of(event, before)
    place = before.current_of(replaced)
    for key, value in written:
        former = group.current_of(key.member_id)
        group.apply(key, value)
        if isinstance(value, CurrentAssignment):
            column = _current_column(transition, value, former)
            former = place if column is T.RETURNS else former
            yield from wrong_fields(column, former, value, {}, group, key.member_id)
        if key.member_id not in ("", member_id) and value is not None and key.kind is not RecordKind.TARGET:
            yield f"{transition.value}: {key} is written, the request comes from {member_id!r}"
    if member_id in group.members:
        metadata = group.members[member_id]
        former_metadata = before.members.get(replaced, NOTHING_SAID)
        if transition in MEMBER_COLUMNS:
            yield from wrong_fields(transition, former_metadata, metadata, said_by(event), group)
    names = {replaced: member_id}
    for each in (before, group):  # an empty target is none, and that of an instance is handed over
        each.target = {names.get(name, name): target for name, target in each.target.items() if target}
    before.target = {name: target for name, target in before.target.items() if name in group.members}
    yield from wrong_fields(transition, before, group, {"catalog": catalog}, group)


def _current_column(
    transition: Transition, after: CurrentAssignment, former: CurrentAssignment
) -> Transition:
    if transition is T.LEAVES_FOR_A_WHILE:
        return transition
    if transition in (T.RETURNS, T.CLASSIC_RETURNS) and after.epoch == 0:
        return T.RETURNS
    return T.MUST_REVOKE if after.revoking else T.MOVES


def _transition_of(event: Any, group: ConsumerGroup) -> tuple[Transition, str, str]:
    """With the member that the request is of, and the one whose place it takes; mostly that is the same."""
    match event:
        case ConsumerGroupTimer():
            return T.IS_LATE, "", ""
        case LeaveGroup():
            return T.CLASSIC_LEAVES, "", ""
        case ConsumerGroupHeartbeat(member_epoch=-1):
            return T.LEAVES, event.member_id, event.member_id
        case ConsumerGroupHeartbeat(member_epoch=-2):
            return T.LEAVES_FOR_A_WHILE, event.member_id, event.member_id
        case ConsumerGroupHeartbeat(member_epoch=0):
            joins, again, returns = T.JOINS, T.JOINS_AGAIN, T.RETURNS
            member_id, instance_id = event.member_id, event.instance_id
        case JoinGroup():
            joins, again, returns = T.CLASSIC_JOINS, T.CLASSIC_JOINS_AGAIN, T.CLASSIC_RETURNS
            member_id, instance_id = event.member_id or event.new_member_id, event.group_instance_id
        case ConsumerGroupHeartbeat():
            return T.HEARTBEAT, event.member_id, event.member_id
        case _:
            raise AssertionError(
                f"{event} writes a consumer group's records: give it a column in group_fields.py"
            )
    place = group.instances.get(instance_id, member_id) if instance_id is not None else member_id
    if place not in group.members:
        return joins, member_id, member_id
    left = group.current_of(place).epoch == STATIC_LEAVING_EPOCH
    return (returns if left or place != member_id else again), member_id, place
