"""Every column of `group_fields.py` is played from a member each of whose fields has a value of its own, by
requests that say something else; then each field of each record is once wrongly carried on, and once wrongly
reset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import fields, replace
from typing import Any, NamedTuple

import pytest
from tidegate.coordinator.fields import FieldWriter
from tidegate.coordinator.group.classic.events import LeaveGroup, LeavingMember
from tidegate.coordinator.group.consumer import records
from tidegate.coordinator.group.consumer.events import TopicShape
from tidegate.coordinator.group.consumer.group import ConsumerGroup
from tidegate.coordinator.group.consumer.records import (
    ClassicMember,
    CurrentAssignment,
    Key,
    MemberMetadata,
    RecordKind,
)
from tidegate.coordinator.group.consumer.state import MemberState
from tidegate.coordinator.group.levels import NEWEST_LEVEL
from tidegate.coordinator.outcome import ReplayedRecord

from . import group_fields
from .consumer_group_driver import G, owned
from .coordinator_doubles import Catalog
from .group_fields import (
    CURRENT,
    GROUP,
    IN_OTHER_TABLES,
    MEMBER,
    NOT_YET,
    NOTHING_SAID,
    Transition,
    columns,
    wrong_fields,
)
from .test_group_migration import Mixed

T = Transition


def subscription(topic: str, rack_id: str) -> bytes:
    """ConsumerProtocolSubscription 3."""
    writer = FieldWriter()
    writer.int16(3)
    writer.array(1)
    writer.string(topic)
    writer.data(b"")
    writer.array(0)
    writer.int32(-1)
    writer.string(rack_id)
    return writer.finish()


PROTOCOLS = (("range", subscription("trains", "rack 2")),)
OWN_MEMBER = MemberMetadata(
    "i",
    "rack 1",
    "client 1",
    "/host-1",
    ("flights",),
    "f.*",
    11_000,
    "range",
    ClassicMember(12_000, PROTOCOLS),
)
OWN_CURRENT = CurrentAssignment(5, 4, MemberState.UNREVOKED_PARTITIONS, owned(0), owned(1))
"""What "m" has before: no field is as it was never set."""
SAYS: dict[str, Any] = {
    "rack_id": "rack 2", "client_id": "client 2", "client_host": "/host-2", "topic_names": ("trains",),
    "topic_regex": "t.*", "rebalance_timeout_ms": 22_000, "assignor": "uniform",
}  # fmt: skip
CLASSIC_SAYS: dict[str, Any] = {
    "client_id": "client 2", "client_host": "/host-2", "rebalance_timeout_ms": 22_000,
    "session_timeout_ms": 23_000, "protocols": PROTOCOLS,
}  # fmt: skip


def group_of_two(**of_m: Any) -> Mixed:
    """ "m", which is on its way to the target, and "c", which waits for what "m" must revoke; `of_m`: in what
    the records of "m" differ, by their kinds."""
    groups = Mixed(catalog=Catalog(flights=4, trains=2))
    of_c = MemberMetadata(None, None, "c", "/c", ("flights",), None, 60_000, None)
    for kind, member_id, value in (
        (RecordKind.GROUP, "", 7),
        (RecordKind.TOPICS, "", groups.catalog.shapes(("flights",))),
        (RecordKind.MEMBER, "m", OWN_MEMBER),
        (RecordKind.MEMBER, "c", of_c),
        (RecordKind.TARGET_EPOCH, "", 7),
        (RecordKind.TARGET, "m", of_m.get("target", owned(0, 2))),
        (RecordKind.TARGET, "c", owned(1, 3)),
        (RecordKind.CURRENT, "m", of_m.get("current", OWN_CURRENT)),
        (RecordKind.CURRENT, "c", CurrentAssignment(7, 6, MemberState.UNRELEASED_PARTITIONS, owned(3))),
    ):
        key = records.encode_key(Key(kind, G, member_id))
        groups.shard.replay(ReplayedRecord(0, 0, key, records.encode_value(kind, value, NEWEST_LEVEL)))
    groups.shard.groups.consumers.watch(groups.group, "m", groups.now_ms)
    return groups


def instance_that_left() -> Mixed:
    return group_of_two(current=replace(OWN_CURRENT, epoch=-2))


def classic_group() -> Mixed:
    groups = Mixed(catalog=Catalog(flights=4, trains=2))
    groups.stable_classic(group_instance_id="i", **CLASSIC_SAYS)
    return groups


def is_late(groups: Mixed) -> None:
    groups.tick(12_000)


PLAYS: dict[Transition, tuple[Callable[[], Mixed], tuple[Callable[[Mixed], Any], ...]]] = {
    # the group before, and the requests, each of which is the first one
    T.JOINS: (group_of_two, (lambda groups: groups.join("n", instance_id="k", **SAYS),)),
    T.JOINS_AGAIN: (
        group_of_two,
        (lambda groups: groups.join("m", instance_id="j", **SAYS), lambda groups: groups.join("m")),
    ),
    T.RETURNS: (
        instance_that_left,
        (
            lambda groups: groups.join("n", instance_id="i", **SAYS),
            lambda groups: groups.join("m", instance_id="i", **SAYS),
            lambda groups: groups.join("n", instance_id="i"),  # what a join leaves out is not kept
        ),
    ),
    T.HEARTBEAT: (
        group_of_two,
        (lambda groups: groups.beat("m", 5, instance_id="i", **SAYS), lambda groups: groups.beat("m", 5)),
    ),
    T.LEAVES: (group_of_two, (lambda groups: groups.beat("m", -1),)),
    T.LEAVES_FOR_A_WHILE: (group_of_two, (lambda groups: groups.beat("m", -2, instance_id="i"),)),
    T.IS_LATE: (group_of_two, (is_late,)),
    T.CLASSIC_JOINS: (
        group_of_two,
        (lambda groups: groups.classic("", new_member_id="n", group_instance_id="k", **CLASSIC_SAYS),),
    ),
    T.CLASSIC_JOINS_AGAIN: (group_of_two, (lambda groups: groups.classic("m", **CLASSIC_SAYS),)),
    T.CLASSIC_RETURNS: (
        instance_that_left,
        (lambda groups: groups.classic("", new_member_id="n", group_instance_id="i", **CLASSIC_SAYS),),
    ),
    T.CLASSIC_LEAVES: (group_of_two, (lambda groups: groups.ask(LeaveGroup(G, (LeavingMember("m"),))),)),
    T.UPGRADE: (classic_group, (lambda groups: groups.join("c"),)),
    T.MOVES: (group_of_two, (lambda groups: groups.beat("m", 5, owned=owned(0)),)),
    T.MUST_REVOKE: (
        lambda: group_of_two(target=owned(2)),
        (lambda groups: groups.beat("m", 5, owned=owned(0)),),  # it has revoked one, and must another one
    ),
}


class Looked(NamedTuple):
    """The arguments of `wrong_fields`."""

    transition: Transition
    former: Any
    record: Any
    said: Any
    group: ConsumerGroup
    member_id: str = ""


def looks(transition: Transition, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looked]:
    """What the tables were asked for in the plays of this transition."""
    make, requests = PLAYS[transition]
    for request in requests:
        groups, found = make(), list[Looked]()

        def noting(*arguments: Any, found: list[Looked] = found) -> Iterator[str]:
            look = Looked(*arguments)
            found.append(look._replace(group=look.group.copy()))
            return wrong_fields(*arguments)

        with monkeypatch.context() as noted:
            noted.setattr(group_fields, "wrong_fields", noting)
            request(groups)
        assert found, f"{transition}: nothing is written"
        yield from (look for look in found if look.transition is transition)


@pytest.mark.parametrize("transition", Transition, ids=lambda transition: transition.name.lower())
def test_a_field_that_is_wrongly_carried_on_or_reset_is_noticed(
    transition: Transition, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = set[type]()
    for look in looks(transition, monkeypatch):
        assert list(wrong_fields(*look)) == []
        played.add(type(look.record))
        if isinstance(look.record, ConsumerGroup):
            continue
        never_set = NOT_YET if isinstance(look.record, CurrentAssignment) else NOTHING_SAID
        for name in (each.name for each in fields(look.record)):
            for wrong in (getattr(look.former, name), getattr(never_set, name)):
                broken = replace(look.record, **{name: wrong})
                assert broken == look.record or list(wrong_fields(*look._replace(record=broken))), (
                    name,
                    wrong,
                )
    assert played == {kind for kind in KINDS if transition in columns(kind)[1]}


WRONG = {
    "epoch": 99,
    "topics": {"x": TopicShape(next(iter(owned(0)))[0], 9)},
    "target_epoch": 98,
    "target": {"m": owned(9)},
}


@pytest.mark.parametrize(
    "transition", columns(ConsumerGroup)[1], ids=lambda transition: transition.name.lower()
)
def test_a_wrong_record_of_the_group_is_noticed(
    transition: Transition, monkeypatch: pytest.MonkeyPatch
) -> None:
    for look in looks(transition, monkeypatch):
        for name, wrong in WRONG.items() if isinstance(look.record, ConsumerGroup) else ():
            broken = copy(look.record)
            setattr(broken, name, wrong)
            computed = name == "target" and look.record.target_epoch > look.former.target_epoch
            assert computed or list(wrong_fields(*look._replace(record=broken))), name


KINDS = {MemberMetadata: MEMBER, CurrentAssignment: CURRENT, ConsumerGroup: GROUP}


def test_every_field_and_every_transition_stands_in_the_tables() -> None:
    """A new field: its row, a value of its own before (`OWN_MEMBER`, `OWN_CURRENT`), and what requests say of
    it (`SAYS`, `said_by`)."""
    for table, names in (
        (MEMBER, {each.name for each in fields(MemberMetadata)}),
        (CURRENT, {each.name for each in fields(CurrentAssignment)}),
        (GROUP, vars(ConsumerGroup(G)).keys() - IN_OTHER_TABLES),
        (WRONG, vars(ConsumerGroup(G)).keys() - IN_OTHER_TABLES),
    ):
        assert table.keys() == names, (
            f"{table.keys() ^ names}: has it a row in group_fields.py, for each transition?"
        )
    for own, never_set in ((OWN_MEMBER, NOTHING_SAID), (OWN_CURRENT, NOT_YET)):
        alike = [
            each.name for each in fields(own) if getattr(own, each.name) == getattr(never_set, each.name)
        ]
        assert not alike, f"{alike}: before, it has no value of its own"
    for kind in KINDS:
        table, transitions = columns(kind)
        assert {len(row) for row in table.values()} == {len(transitions)}
    assert PLAYS.keys() == set(Transition)
