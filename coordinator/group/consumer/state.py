"""The consumer group protocol's state machine (KIP-848), as data.

There are three epochs, and none ever falls:

- the *group epoch* rises when members, their subscriptions or the topics they read change;
- the *assignment epoch* is the group epoch that the target assignment was computed for;
- each *member epoch* follows, once the member has revoked what its target does not hold.

`RULES` says what each request does in each situation of the caller.  A member with an older epoch is PREVIOUS
if it is the epoch before its present one and the member owns nothing that it should not: it has only missed
the last answer.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from ..levels import FIRST_LEVEL

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2


class MemberState(IntEnum):
    """How far a member is on its way to the target; numbers as in CurrentMemberAssignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # must revoke partitions before its epoch rises
    UNRELEASED_PARTITIONS = 2  # is at the target's epoch, but others still hold partitions of its target


STORED_FROM: Final[dict[MemberState, int]] = {
    MemberState.STABLE: FIRST_LEVEL,
    MemberState.UNREVOKED_PARTITIONS: FIRST_LEVEL,
    MemberState.UNRELEASED_PARTITIONS: FIRST_LEVEL,
}
"""State -> the level from which on the shard writes it: a coordinator of an older version cannot load it."""


class ConsumerGroupState(Enum):
    """The states, with the names that ListGroups and ConsumerGroupDescribe show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Situation(Enum):
    """The relation of a caller to the group that it names."""

    NO_GROUP = "no such group"
    CLASSIC = "classic group with members"
    STRANGER = "not a member"
    CURRENT = "member, present epoch"
    PREVIOUS = "member, last answer missed"
    OLDER = "member, older epoch"
    NEWER = "member, newer epoch"
    INSTANCE_HELD = "another's instance id"
    INSTANCE_LEFT = "instance that left for a while"


class MemberRequest(Enum):
    """The requests; member epochs: join 0, leave -1, leave for a while -2 (static members)."""

    JOIN = "join"
    HEARTBEAT = "heartbeat"
    LEAVE = "leave"
    LEAVE_FOR_A_WHILE = "leave for a while"
    COMMIT = "commit"
    COMMIT_IN_TRANSACTION = "commit in a transaction"
    FETCH_OFFSETS = "fetch offsets"


class Action(Enum):
    """What the coordinator does."""

    ADD = "add the member"
    ADMIT_AGAIN = "tell it everything again"
    REPLACE = "give it the instance's place"
    RECONCILE = "move it towards the target"
    REMOVE = "remove the member"
    KEEP_PLACE = "keep its place until the session ends"
    PROCEED = "NONE"
    # never looked up: the shard has judged the request by the classic group's rules
    AS_CLASSIC = "as a classic group's members and table say"
    REFUSE_NO_GROUP = "GROUP_ID_NOT_FOUND"
    REFUSE_UNKNOWN = "UNKNOWN_MEMBER_ID"
    REFUSE_EPOCH = "FENCED_MEMBER_EPOCH"
    REFUSE_STALE = "STALE_MEMBER_EPOCH"
    REFUSE_GENERATION = "ILLEGAL_GENERATION"
    REFUSE_HELD = "UNRELEASED_INSTANCE_ID"
    REFUSE_INSTANCE = "FENCED_INSTANCE_ID"


_ADD, _ALL, _SWAP, _MOVE = Action.ADD, Action.ADMIT_AGAIN, Action.REPLACE, Action.RECONCILE
_OUT, _KEEP, _OK, _GONE = Action.REMOVE, Action.KEEP_PLACE, Action.PROCEED, Action.REFUSE_NO_GROUP
_CLS = Action.AS_CLASSIC
_UNK, _FENCE, _STALE = Action.REFUSE_UNKNOWN, Action.REFUSE_EPOCH, Action.REFUSE_STALE
_GEN, _HELD, _INST = Action.REFUSE_GENERATION, Action.REFUSE_HELD, Action.REFUSE_INSTANCE
_R = MemberRequest

# fmt: off
_TABLE: dict[MemberRequest, tuple[Action, ...]] = {
    #                          no group classic stranger current previous older   newer   held   left
    _R.JOIN:                  (_ADD,    _GONE,  _ADD,    _ALL,   _ALL,    _ALL,   _ALL,   _HELD, _SWAP),
    _R.HEARTBEAT:             (_GONE,   _GONE,  _UNK,    _MOVE,  _MOVE,   _FENCE, _FENCE, _INST, _FENCE),
    _R.LEAVE:                 (_GONE,   _GONE,  _UNK,    _OUT,   _OUT,    _OUT,   _OUT,   _INST, _OUT),
    _R.LEAVE_FOR_A_WHILE:     (_GONE,   _GONE,  _UNK,    _KEEP,  _KEEP,   _KEEP,  _KEEP,  _INST, _KEEP),
    # OffsetCommit names no owned partitions, and its instance id does not count: only the epoch fences a
    # zombie.
    _R.COMMIT:                (_GONE,   _CLS,   _UNK,    _OK,    _STALE,  _STALE, _STALE, _UNK,  _STALE),
    _R.COMMIT_IN_TRANSACTION: (_GEN,    _CLS,   _UNK,    _OK,    _GEN,    _GEN,   _GEN,   _UNK,  _GEN),
    _R.FETCH_OFFSETS:         (_OK,     _OK,    _UNK,    _OK,    _STALE,  _STALE, _STALE, _UNK,  _STALE),
}
# fmt: on

RULES: dict[tuple[Situation, MemberRequest], Action] = {
    (situation, request): action
    for request, row in _TABLE.items()
    for situation, action in zip(Situation, row, strict=True)
}
