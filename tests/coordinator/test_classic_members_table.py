"""Members of the classic protocol in a consumer group: every (situation, request) pair, against outcomes that
are written down (the rules stand in `group/consumer/classic_members.py`)."""

from __future__ import annotations

from enum import Enum
from typing import get_args, get_type_hints

import pytest
from tidegate.coordinator.group.classic.events import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from tidegate.coordinator.group.consumer.state import MemberState
from tidegate.coordinator.group.groups import Groups

from .consumer_group_driver import G
from .coordinator_doubles import code_of
from .replayed_state import check_load
from .test_group_migration import Mixed, settled, upgraded


class Situation(Enum):
    """The relation of the caller "m" to the group."""

    STRANGER = "not a member"
    CONSUMER = "a member of the consumer protocol"
    CURRENT = "has all of its target"
    BEHIND = "the group has a newer epoch"
    REVOKING = "must give up partitions"
    WAITING = "others hold partitions of its target"
    RELEASED = "what it waited for is free"
    OLDER = "names an older generation"
    NEWER = "names a newer generation"
    INSTANCE_HELD = "names the instance of another member"


S = Situation
NONE, AGAIN, UNK = "NONE", "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"
GEN, INST = "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID"

# Columns in the order of the situations.
# fmt: off
EXPECTED: dict[type, tuple[str, ...]] = {
    #            stranger consumer current behind revoking waiting released older newer held
    JoinGroup:  (NONE,    NONE,    NONE,   NONE,  NONE,    NONE,   NONE,    NONE, NONE, INST),
    SyncGroup:  (UNK,     UNK,     NONE,   AGAIN, NONE,    NONE,   NONE,    GEN,  GEN,  INST),
    Heartbeat:  (UNK,     UNK,     NONE,   AGAIN, AGAIN,   NONE,   AGAIN,   GEN,  GEN,  INST),
    LeaveGroup: (UNK,     UNK,     NONE,   NONE,  NONE,    NONE,   NONE,    NONE, NONE, INST),
}
# fmt: on


def in_situation(situation: Situation) -> tuple[Mixed, str, int, str | None]:
    """The group, and what the caller says of itself: member id, generation, instance id."""
    groups = Mixed()
    match situation:
        case S.REVOKING:
            upgraded(groups)
            groups.classic(owns=(0, 1, 2, 3))
            assert groups.group.current["m"].state is MemberState.UNREVOKED_PARTITIONS
            return groups, "m", 1, None
        case S.WAITING | S.RELEASED:
            groups.join("c")
            generation = groups.classic("", new_member_id="m").generation
            groups.sync("m", generation)
            assert groups.group.current["m"].state is MemberState.UNRELEASED_PARTITIONS
            kept = groups.beat("c", 1, owned=groups.group.current["c"].assigned)
            if situation is S.RELEASED:
                groups.beat("c", kept.member_epoch, owned=kept.assignment)
            return groups, "m", generation, None
        case S.INSTANCE_HELD:
            groups.join("c")
            groups.classic("", new_member_id="holder", group_instance_id="i")
            return groups, "m", 2, "i"
        case S.STRANGER | S.CONSUMER | S.CURRENT | S.BEHIND | S.OLDER | S.NEWER:
            settled(groups)
            if situation is S.BEHIND:
                groups.join("d")
            member_id = {S.STRANGER: "x", S.CONSUMER: "c"}.get(situation, "m")
            return groups, member_id, {S.OLDER: 1, S.NEWER: 3}.get(situation, 2), None


def ask(groups: Mixed, request: type, member_id: str, generation: int, instance: str | None) -> str:
    if request is JoinGroup:
        return code_of(groups.classic(member_id, group_instance_id=instance)).name
    if request is SyncGroup:
        return code_of(groups.sync(member_id, generation, instance)).name
    if request is Heartbeat:
        return groups.live(member_id, generation, instance).name
    reply = groups.ask(LeaveGroup(G, (LeavingMember(member_id, instance),)))
    return str(reply.results[0][1].name)


@pytest.mark.parametrize("request_kind", EXPECTED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("situation", S, ids=lambda situation: situation.name.lower())
def test_every_situation_meets_every_classic_request(situation: Situation, request_kind: type) -> None:
    groups, member_id, generation, instance = in_situation(situation)
    found = ask(groups, request_kind, member_id, generation, instance)
    assert found == EXPECTED[request_kind][list(S).index(situation)]
    check_load(groups.shard, groups.loaded())


def test_every_classic_request_to_a_consumer_group_has_its_row() -> None:
    of_members = get_type_hints(Groups._classic_member)["event"]
    assert set(get_args(of_members)) == EXPECTED.keys()
    assert {len(row) for row in EXPECTED.values()} == {len(S)}
