"""What the leader's fetch session (KIP-227) knows of a partition that this node follows: the table that
`LeaderFetcher` runs, and from which docs/states.md is made.

Within a session a fetch lists only what the session does not have or has with an older position.  A position
that the session has is used for the answers until another one is listed: an answer that does not fit the log
any more is not used (`PartitionFollower.on_answer`).  The session counts every answer as sent; so what this
node did not use comes again only when the leader forgets the partition first.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..partition.follower import FetchPosition, PartitionFollower
from ..replica.replica import Replica


class ListingState(enum.Enum):
    """Of a partition at one fetcher.  In every state but LISTED the next fetch lists it, after its rest."""

    NEW = "new"  # assigned while a fetch waits at the leader: a fetch beside the session asks for it at once
    UNLISTED = "unlisted"  # the session does not have it
    LISTED = "listed"
    MOVED = "moved"  # the session has an older position of it, or has dropped it with an error
    UNUSED = "unused"  # the session counts an answer as sent that this node did not use
    HELD_BACK = "held back"  # throttled: the leader must forget it, or it sends more records


class ListingEvent(enum.Enum):
    """What happens to a partition at a fetcher."""

    LISTED = "a fetch of the session lists it"
    ASKED_BESIDE = "a fetch beside the session asks for it"
    LIST_AGAIN = "its log changes, or the answer is an error"
    NOT_USED = "an answer is not used"
    THROTTLED = "it has fetched its share"
    FORGOTTEN = "the next fetch makes the leader forget it"
    SESSION_ENDED = "the session is over"


IN_SESSION = frozenset({ListingState.LISTED, ListingState.MOVED, ListingState.UNUSED})
"""The session has a position of it, for which an answer may come."""

_S, _E = ListingState, ListingEvent

TRANSITIONS: dict[tuple[ListingState, ListingEvent], ListingState] = {
    **{(state, _E.LISTED): _S.LISTED for state in _S if state is not _S.LISTED},
    **{(state, _E.SESSION_ENDED): _S.NEW if state is _S.NEW else _S.UNLISTED for state in _S},
    **{
        (state, event): after
        for state, afters in {
            # answers to a fetch beside the session
            _S.UNLISTED: (_S.UNLISTED, _S.UNLISTED, _S.UNLISTED),
            _S.LISTED: (_S.MOVED, _S.UNUSED, _S.HELD_BACK),
            _S.MOVED: (_S.MOVED, _S.UNUSED, _S.HELD_BACK),
            _S.UNUSED: (_S.UNUSED, _S.UNUSED, _S.HELD_BACK),
            _S.HELD_BACK: (_S.HELD_BACK, _S.HELD_BACK, _S.HELD_BACK),
        }.items()
        for event, after in zip((_E.LIST_AGAIN, _E.NOT_USED, _E.THROTTLED), afters, strict=True)
    },
    (_S.NEW, _E.ASKED_BESIDE): _S.UNLISTED,
    (_S.HELD_BACK, _E.FORGOTTEN): _S.UNLISTED,
}


@dataclass(slots=True, eq=False)
class Followed:
    """One followed partition under one leader epoch."""

    replica: Replica
    core: PartitionFollower
    state: ListingState
    failures: int = 0
    rests_until_s: float = 0.0

    def is_current(self) -> bool:
        return self.replica.follower is self.core


Positions = dict[tuple[str, int], tuple[Followed, FetchPosition]]
