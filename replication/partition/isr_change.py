"""What becomes of an ISR change that a leader has proposed, and what pauses its proposals: the tables that
`PartitionLeader` runs, and from which docs/states.md is made.

A change is a compare-and-set on the leader epoch and the partition epoch.  While its outcome is unknown it
stays pending, so that the maximal ISR covers both outcomes: only a refusal, newer metadata, or the end of a
joining broker's life ends it.  Sending it twice is harmless.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ...wire.errors import ErrorCode
from .assignment import IsrProposal

#: Errors that say that the controller has not changed the ISR: the committed ISR alone counts again.
REFUSED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})

#: Errors after which only newer metadata can decide the change.
SUPERSEDED = frozenset(
    {
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)


class ChangeKind(enum.Enum):
    """The two ISR changes that a leader may propose."""

    EXPAND = "expand"
    SHRINK = "shrink"


class ChangeState(enum.Enum):
    """Of a change that a leader has proposed."""

    SENT = "sent"  # or about to be sent
    AWAITS_METADATA = "awaits metadata"
    OVERDUE = "overdue"  # it awaits metadata since before the last maintenance
    ENDED = "ended"  # not pending any more


class ChangeEvent(enum.Enum):
    """What happens to a pending change."""

    REFUSED = "the controller refuses it"
    SUPERSEDED = "the answer leaves it to newer metadata"
    UNANSWERED = "no answer, or a passing error"
    METADATA = "the leader learns a newer ISR"
    JOINER_GONE = "the broker epoch of a joining follower is over"
    MAINTENANCE = "maintenance"


#: An overdue change is sent again: a deposed controller of an older version, whose answers name no term, may
#: have rejected it, and then no metadata would end it.
TRANSITIONS: dict[tuple[ChangeState, ChangeEvent], ChangeState] = {
    (state, event): ChangeState.ENDED
    for state in (ChangeState.SENT, ChangeState.AWAITS_METADATA, ChangeState.OVERDUE)
    for event in (ChangeEvent.REFUSED, ChangeEvent.METADATA, ChangeEvent.JOINER_GONE)
} | {
    (ChangeState.SENT, ChangeEvent.SUPERSEDED): ChangeState.AWAITS_METADATA,
    (ChangeState.SENT, ChangeEvent.UNANSWERED): ChangeState.SENT,
    (ChangeState.SENT, ChangeEvent.MAINTENANCE): ChangeState.SENT,
    (ChangeState.AWAITS_METADATA, ChangeEvent.SUPERSEDED): ChangeState.AWAITS_METADATA,
    (ChangeState.AWAITS_METADATA, ChangeEvent.UNANSWERED): ChangeState.AWAITS_METADATA,
    (ChangeState.AWAITS_METADATA, ChangeEvent.MAINTENANCE): ChangeState.OVERDUE,
    (ChangeState.OVERDUE, ChangeEvent.SUPERSEDED): ChangeState.OVERDUE,
    (ChangeState.OVERDUE, ChangeEvent.UNANSWERED): ChangeState.OVERDUE,
    (ChangeState.OVERDUE, ChangeEvent.MAINTENANCE): ChangeState.SENT,
}


@dataclass(slots=True, eq=False)
class PendingChange:
    """An ISR change whose outcome is not known yet; compared by identity, so that a late answer cannot end a
    newer one."""

    kind: ChangeKind
    proposal: IsrProposal
    nodes: frozenset[int]
    state: ChangeState = ChangeState.SENT


class AlterOutcome(enum.Enum):
    """What the shell has to do after an answer of the controller."""

    SETTLED = "settled"
    AWAIT_METADATA = "await_metadata"
    RETRY = "retry"
    STALE = "stale"


def event_of(error: ErrorCode) -> ChangeEvent:
    """Of an answer that did not give the leader a newer ISR; NONE: accepted, and only metadata say with which
    ISR."""
    if error in REFUSED:
        return ChangeEvent.REFUSED
    is_decided = error is ErrorCode.NONE or error in SUPERSEDED
    return ChangeEvent.SUPERSEDED if is_decided else ChangeEvent.UNANSWERED


OUTCOMES = {
    ChangeEvent.REFUSED: AlterOutcome.SETTLED,
    ChangeEvent.SUPERSEDED: AlterOutcome.AWAIT_METADATA,
    ChangeEvent.UNANSWERED: AlterOutcome.RETRY,
}


class JoinTrigger(enum.Enum):
    """The events after which the shell asks the leader to propose a follower."""

    FETCH = "a fetch that lists the partition"
    BROKER_NEWS = "the metadata of its broker change"
    PAUSE_END = "its pause ends"


class JoinObstacle(enum.Enum):
    """What keeps a follower out of the ISR (docs/semantics.md R7, R10): a name, whether the high watermark
    waits for a follower that keeps up and that nothing else keeps out (R4), and the event that ends it."""

    def __init__(self, label: str, is_waited_for: bool, ended_by: JoinTrigger) -> None:
        self.label, self.is_waited_for, self.ended_by = label, is_waited_for, ended_by

    # refused or removed, and the pause is not over
    PAUSED = "paused", False, JoinTrigger.PAUSE_END
    # fenced, shutting down, or another broker epoch in the applied metadata
    NOT_ELIGIBLE = "not_eligible", False, JoinTrigger.BROKER_NEWS
    BELOW_EPOCH_START = "below_epoch_start", False, JoinTrigger.FETCH  # KIP-320
    # its log start is below `deleted_below`
    HAS_DELETED_RECORDS = "has_deleted_records", False, JoinTrigger.FETCH
    BELOW_HIGH_WATERMARK = "below_high_watermark", True, JoinTrigger.FETCH


class JoinEvent(enum.Enum):
    """What pauses a follower, and what ends its pause.  A paused follower is not proposed for the ISR, and
    does not hold the high watermark."""

    REFUSED = "the controller refuses to add it to the ISR"
    REMOVED = "it is removed from the ISR: it may be down"
    ADDED = "it is added to the ISR"
    FETCHES_AGAIN = "it fetches with a newer broker epoch, or after a silence"
    ELIGIBLE = "the metadata of its broker change, and it may join"
    PAUSE_OVER = "the pause is over, and it has fetched lately"


#: Whether the follower is paused after the event, whatever it was before.
JOIN_PAUSED: dict[JoinEvent, bool] = {
    JoinEvent.REFUSED: True,
    JoinEvent.REMOVED: True,
    JoinEvent.ADDED: False,
    JoinEvent.FETCHES_AGAIN: False,
    JoinEvent.ELIGIBLE: False,
    JoinEvent.PAUSE_OVER: False,
}
