"""The consumer group protocol (KIP-848): every (situation, request) pair, against outcomes written down a
second time."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate.coordinator.group.classic.events import JoinGroup
from tidegate.coordinator.group.consumer.events import ConsumerGroupHeartbeatReply
from tidegate.coordinator.group.consumer.state import RULES, Action, MemberRequest, Situation
from tidegate.coordinator.group.events import OffsetCommit, OffsetFetch, OffsetToCommit, TxnOffsetCommit
from tidegate.wire.errors import ErrorCode, KafkaError

from .consumer_group_driver import REBALANCE_MS, Consumers, G, owned
from .coordinator_doubles import code_of
from .replayed_state import check_load

R, S = MemberRequest, Situation
ONE = (OffsetToCommit("flights", 0, 5),)
EPOCH = 5  # the member's in every situation in which there is one

NONE, GONE, UNK = "NONE", "GROUP_ID_NOT_FOUND", "UNKNOWN_MEMBER_ID"
FENCED, STALE, GEN = "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION"
INST, HELD = "FENCED_INSTANCE_ID", "UNRELEASED_INSTANCE_ID"

# What a caller sees, written independently of the table.  Columns in the order of the situations.
# fmt: off
EXPECTED = {
    #                         no group classic stranger current previous older   newer   held  left
    R.JOIN:                  (NONE,    GONE,   NONE,    NONE,   NONE,    NONE,   NONE,   HELD, NONE),
    R.HEARTBEAT:             (GONE,    GONE,   UNK,     NONE,   NONE,    FENCED, FENCED, INST, FENCED),
    R.LEAVE:                 (GONE,    GONE,   UNK,     NONE,   NONE,    NONE,   NONE,   INST, NONE),
    R.LEAVE_FOR_A_WHILE:     (GONE,    GONE,   UNK,     NONE,   NONE,    NONE,   NONE,   INST, NONE),
    R.COMMIT:                (GONE,    UNK,    UNK,     NONE,   STALE,   STALE,  STALE,  UNK,  STALE),
    R.COMMIT_IN_TRANSACTION: (GEN,     UNK,    UNK,     NONE,   GEN,     GEN,    GEN,    UNK,  GEN),
    R.FETCH_OFFSETS:         (NONE,    NONE,   UNK,     NONE,   STALE,   STALE,  STALE,  UNK,  STALE),
}
# fmt: on
EPOCHS = {S.PREVIOUS: EPOCH - 1, S.OLDER: EPOCH - 2, S.NEWER: EPOCH + 1}


def in_situation(situation: Situation, request: MemberRequest) -> Consumers:
    """The caller is "m"; static where the request or the situation needs it."""
    groups = Consumers()
    if situation is S.NO_GROUP:
        return groups
    if situation is S.CLASSIC:
        protocols = (("range", b"sub"),)
        classic = JoinGroup(G, "", None, "c", "/h", 10_000, 60_000, "consumer", protocols, "classic", False)
        groups.submit("classic", classic)
        assert groups.shard.groups.classic[G].members
        return groups
    groups.join("other")
    if situation in (S.STRANGER,):
        return groups
    holder = "holder" if situation is S.INSTANCE_HELD else "m"
    static = request is R.LEAVE_FOR_A_WHILE or situation in (S.INSTANCE_HELD, S.INSTANCE_LEFT)
    instance = "i" if static else None
    groups.join(holder, instance_id=instance)
    for other in range(EPOCH - 2):  # each member that comes moves the epochs on
        groups.join(f"more-{other}")
        epoch = groups.group.current[holder].epoch
        groups.beat(holder, epoch, instance_id=instance, owned=frozenset())
    current = groups.group.current[holder]
    assert (current.epoch, current.previous_epoch) == (EPOCH, EPOCH - 1)
    if situation is S.INSTANCE_LEFT:
        groups.beat("m", -2, instance_id="i")
    return groups


def ask(groups: Consumers, situation: Situation, request: MemberRequest) -> Any:
    epoch = EPOCHS.get(situation, EPOCH)
    static = request is R.LEAVE_FOR_A_WHILE or situation in (S.INSTANCE_HELD, S.INSTANCE_LEFT)
    instance = "i" if static else None
    match request:
        case R.JOIN:
            return groups.join("m", instance_id=instance)
        case R.HEARTBEAT:
            return groups.beat("m", epoch, instance_id=instance, owned=frozenset())
        case R.LEAVE | R.LEAVE_FOR_A_WHILE:
            return groups.beat("m", -1 if request is R.LEAVE else -2, instance_id=instance)
        case R.COMMIT:
            return groups.ask(OffsetCommit(G, ONE, epoch, "m", knows_member_epochs=True))
        case R.COMMIT_IN_TRANSACTION:
            return groups.ask(TxnOffsetCommit(G, 7, 0, ONE, epoch, "m"))
        case R.FETCH_OFFSETS:
            return groups.ask(OffsetFetch(G, None, False, "m", epoch))


@pytest.mark.parametrize("request_kind", list(R), ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("situation", list(S), ids=lambda situation: situation.name.lower())
def test_every_situation_meets_every_request(situation: Situation, request_kind: MemberRequest) -> None:
    groups = in_situation(situation, request_kind)
    assert (
        code_of(ask(groups, situation, request_kind)).name == EXPECTED[request_kind][list(S).index(situation)]
    )
    check_load(groups.shard, groups.loaded())


def test_the_expectations_are_complete_and_agree_with_the_table() -> None:
    assert set(RULES) == {(situation, request) for situation in S for request in R}
    for (situation, request), action in RULES.items():
        if action is Action.AS_CLASSIC:
            with pytest.raises(AssertionError, match="was not judged as one"):
                Consumers().shard.groups.consumers.judge(request, G, "m", EPOCH, classic=True)
            continue
        refused = action.value if action.value in ErrorCode.__members__ else "NONE"
        assert refused == EXPECTED[request][list(S).index(situation)], (situation, request)


@pytest.mark.parametrize(
    "fields",
    [
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": owned(1)},
        {"topic_names": None},
        {"instance_id": ""},
        {"rack_id": ""},
        {"group_id": ""},
    ],
    ids=str,
)
def test_a_join_that_says_too_little_is_refused(fields: dict[str, Any]) -> None:
    assert code_of(Consumers().join("m", **fields)) is ErrorCode.INVALID_REQUEST


def test_other_requests_that_no_group_could_make_sense_of_are_refused() -> None:
    groups = Consumers()
    groups.join("m")
    assert code_of(groups.beat("", 1)) is ErrorCode.INVALID_REQUEST
    assert code_of(groups.beat("m", -3)) is ErrorCode.INVALID_REQUEST
    # a dynamic member cannot leave for a while
    assert code_of(groups.beat("m", -2)) is ErrorCode.INVALID_REQUEST
    assert code_of(groups.join("n", assignor="magic")) is ErrorCode.UNSUPPORTED_ASSIGNOR
    refused = groups.join("n", topic_names=None, topic_regex="(")
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert isinstance(groups.join("n", topic_names=None, topic_regex="fli.*"), ConsumerGroupHeartbeatReply)


def test_only_a_member_with_no_extra_partitions_has_missed_just_an_answer() -> None:
    """KIP-848: the epoch before the present one is accepted from a member whose partitions are part of its
    assignment."""
    groups = in_situation(S.PREVIOUS, R.HEARTBEAT)
    assert code_of(groups.beat("m", EPOCH - 1, owned=owned(99))) is ErrorCode.FENCED_MEMBER_EPOCH
    assert code_of(groups.beat("m", EPOCH - 1)) is ErrorCode.FENCED_MEMBER_EPOCH  # it does not say
    # it was in the answer that was missed
    assert groups.beat("m", EPOCH - 1, owned=frozenset()).assignment is not None
    answer = groups.beat(
        "m", EPOCH - 1, rebalance_timeout_ms=REBALANCE_MS, topic_names=("flights",), owned=frozenset()
    )
    assert answer.member_epoch >= EPOCH
    assert answer.assignment is not None


def test_offsets_of_members_need_the_version_that_knows_member_epochs() -> None:
    groups = in_situation(S.CURRENT, R.COMMIT)
    assert code_of(groups.ask(OffsetCommit(G, ONE, EPOCH, "m"))) is ErrorCode.UNSUPPORTED_VERSION
    # An administrator may set offsets while the group has no member, and only then.
    assert code_of(groups.ask(OffsetCommit(G, ONE, knows_member_epochs=True))) is ErrorCode.UNKNOWN_MEMBER_ID
    for member_id in list(groups.group.members):
        groups.beat(member_id, -1)
    assert code_of(groups.ask(OffsetCommit(G, ONE))) is ErrorCode.NONE


def test_a_transaction_that_names_no_member_is_not_fenced() -> None:
    """Producers before KIP-447, as in a classic group."""
    groups = in_situation(S.CURRENT, R.COMMIT_IN_TRANSACTION)
    assert code_of(groups.ask(TxnOffsetCommit(G, 7, 0, ONE))) is ErrorCode.NONE
