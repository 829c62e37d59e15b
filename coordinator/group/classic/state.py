"""The classic group protocol's state machine, as data.

    Empty --join--> PreparingRebalance --all joined--> CompletingRebalance --leader's sync--> Stable
      ^                 ^    |  no members                  |  member joins, leaves, expires     |
      +-----------------|----+                              |                                    |
                        +-----------------------------------+------------------------------------+

`VALID_PREVIOUS` says from which states a state may be entered; `RULES` what each request does in each state,
after the check of member id, instance id and generation.  A group id that the coordinator does not know
counts as DEAD.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ..levels import FIRST_LEVEL


class GroupState(Enum):
    """The states, with the names that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, STABLE, DEAD = GroupState.EMPTY, GroupState.STABLE, GroupState.DEAD
PREPARING, COMPLETING = GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE

VALID_PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    EMPTY: frozenset({PREPARING}),
    PREPARING: frozenset({EMPTY, COMPLETING, STABLE}),
    COMPLETING: frozenset({PREPARING}),
    STABLE: frozenset({COMPLETING}),
    DEAD: frozenset({EMPTY}),
}


STORED_FROM: Final[dict[GroupState, int | None]] = {
    EMPTY: FIRST_LEVEL,
    PREPARING: None,
    COMPLETING: None,
    STABLE: FIRST_LEVEL,
    DEAD: None,
}
"""State -> the level from which on the shard writes a generation that a load finds in it; None: no record
says it."""


class GroupRequest(Enum):
    """The requests of clients, after the check of member id and generation; and the timer of offset
    expiry."""

    JOIN_NEW = "join, new member"
    JOIN_KNOWN = "join, known member"
    SYNC = "sync"
    HEARTBEAT = "heartbeat"
    LEAVE = "leave"
    COMMIT_MEMBER = "commit by a member"
    COMMIT_SIMPLE = "commit without a group"
    COMMIT_TRANSACTION = "commit in a transaction"
    FETCH_OFFSETS = "fetch offsets"
    DELETE_OFFSETS = "delete offsets"
    DELETE_GROUP = "delete group"
    DESCRIBE = "describe"
    EXPIRE_OFFSETS = "offsets are too old"


class GroupAction(Enum):
    """What the coordinator does."""

    ADD_AND_REBALANCE = "add the member, rebalance"
    ADD_AND_WAIT = "add the member to the running rebalance"
    WAIT = "wait for the other members"
    REBALANCE_IF_CHANGED = "rebalance if protocols changed, else answer the generation"
    REBALANCE_IF_LEADER_OR_CHANGED = "rebalance if leader or protocols changed, else answer the generation"
    AWAIT_ASSIGNMENT = "wait for the leader's assignment"
    ANSWER_ASSIGNMENT = "answer the assignment"
    KEEP_ALIVE = "NONE"
    REMOVE_AND_REBALANCE = "remove the member, rebalance"
    REMOVE = "remove the member"
    WRITE_OFFSETS = "write the offsets"
    READ_OFFSETS = "answer the offsets"
    DELETE_OFFSETS = "tombstones for the offsets"
    DELETE_UNREAD_OFFSETS = "tombstones, but for topics that members read"
    TOMBSTONE = "tombstones for the group and its offsets"
    DESCRIBE = "answer state and members"
    EXPIRE = "tombstones, and for the group when nothing is left"
    EXPIRE_UNREAD = "tombstones for topics that no member reads"
    IGNORE = "nothing is done"  # a timer came when it had nothing to end any more
    REFUSE_UNKNOWN_MEMBER = "UNKNOWN_MEMBER_ID"
    REFUSE_REBALANCING = "REBALANCE_IN_PROGRESS"
    REFUSE_GENERATION = "ILLEGAL_GENERATION"
    REFUSE_NON_EMPTY = "NON_EMPTY_GROUP"
    REFUSE_NOT_FOUND = "GROUP_ID_NOT_FOUND"


_COLUMNS = (EMPTY, PREPARING, COMPLETING, STABLE, DEAD)
_JOIN, _ADD, _WAIT = GroupAction.ADD_AND_REBALANCE, GroupAction.ADD_AND_WAIT, GroupAction.WAIT
_SAME, _LEAD = GroupAction.REBALANCE_IF_CHANGED, GroupAction.REBALANCE_IF_LEADER_OR_CHANGED
_SYNC, _ANS, _OK = GroupAction.AWAIT_ASSIGNMENT, GroupAction.ANSWER_ASSIGNMENT, GroupAction.KEEP_ALIVE
_OUT, _CUT, _PUT = GroupAction.REMOVE_AND_REBALANCE, GroupAction.REMOVE, GroupAction.WRITE_OFFSETS
_TOMB, _UNK, _BUSY = GroupAction.TOMBSTONE, GroupAction.REFUSE_UNKNOWN_MEMBER, GroupAction.REFUSE_REBALANCING
_READ, _DEL, _DELU, _SHOW = (
    GroupAction.READ_OFFSETS, GroupAction.DELETE_OFFSETS, GroupAction.DELETE_UNREAD_OFFSETS,
    GroupAction.DESCRIBE,
)  # fmt: skip
_EXP, _EXPU, _SKIP = GroupAction.EXPIRE, GroupAction.EXPIRE_UNREAD, GroupAction.IGNORE
_GEN, _FULL, _MISS = GroupAction.REFUSE_GENERATION, GroupAction.REFUSE_NON_EMPTY, GroupAction.REFUSE_NOT_FOUND

# fmt: off
_TABLE: dict[GroupRequest, tuple[GroupAction, ...]] = {
    #                                 Empty  Preparing Completing Stable Dead
    GroupRequest.JOIN_NEW:           (_JOIN, _ADD,     _JOIN,     _JOIN, _JOIN),
    GroupRequest.JOIN_KNOWN:         (_UNK,  _WAIT,    _SAME,     _LEAD, _UNK),
    GroupRequest.SYNC:               (_UNK,  _BUSY,    _SYNC,     _ANS,  _UNK),
    GroupRequest.HEARTBEAT:          (_UNK,  _BUSY,    _OK,       _OK,   _UNK),
    GroupRequest.LEAVE:              (_UNK,  _CUT,     _OUT,      _OUT,  _UNK),
    GroupRequest.COMMIT_MEMBER:      (_UNK,  _PUT,     _BUSY,     _PUT,  _GEN),
    GroupRequest.COMMIT_SIMPLE:      (_PUT,  _UNK,     _UNK,      _UNK,  _PUT),
    # Producers before KIP-447 name no member, and their offsets go with the transaction whatever the group
    # does.
    GroupRequest.COMMIT_TRANSACTION: (_PUT,  _PUT,     _PUT,      _PUT,  _PUT),
    # of an unknown group: none, without an error
    GroupRequest.FETCH_OFFSETS:      (_READ, _READ,    _READ,     _READ, _READ),
    GroupRequest.DELETE_OFFSETS:     (_DEL,  _DELU,    _DELU,     _DELU, _MISS),
    GroupRequest.DELETE_GROUP:       (_TOMB, _FULL,    _FULL,     _FULL, _MISS),
    GroupRequest.DESCRIBE:           (_SHOW, _SHOW,    _SHOW,     _SHOW, _SHOW),
    GroupRequest.EXPIRE_OFFSETS:     (_EXP,  _SKIP,    _SKIP,     _EXPU, _SKIP),  # KIP-211
}
# fmt: on

RULES: dict[tuple[GroupState, GroupRequest], GroupAction] = {
    (state, request): action
    for request, row in _TABLE.items()
    for state, action in zip(_COLUMNS, row, strict=True)
}
