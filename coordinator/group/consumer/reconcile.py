"""How a member gets from what it owns to what it shall own (KIP-848).

    STABLE --the target takes something--> UNREVOKED --its heartbeat does not name it any more--> one epoch on, and again
       ^ \\--the target gives something--> UNRELEASED --others release it--> STABLE
       +----------------------------------------------------------------------+

A partition is given to its new owner only when nobody holds it: when the old one's heartbeat left it out, or the old one was
removed.  A member's epoch moves to the target's only when it has nothing left to give up; so an epoch tells whether what a member
commits may still be its own.

What a heartbeat leaves out is given up, as in Kafka, even if the member was told of it and had not taken it up yet: a client must
take up nothing that a heartbeat without an answer has left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from .events import Partitions, TopicIdPartition
from .records import CurrentAssignment
from .state import MemberState


def reconcile(
    member_id: str,
    current: CurrentAssignment,
    owned: Partitions | None,
    target: Partitions,
    target_epoch: int,
    holders: Mapping[TopicIdPartition, str],
) -> CurrentAssignment:
    """The member's next assignment.  owned: what its heartbeat says it has; None: as before, so all of it."""
    epoch = current.epoch
    match current.state:
        case MemberState.STABLE:
            if epoch == target_epoch:
                return current
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns(owned, current.revoking):
                return current
            epoch = min(epoch + 1, target_epoch)
        case MemberState.UNRELEASED_PARTITIONS:
            pass
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and _owns(owned, revoking):
        return _next(current, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    released = frozenset(each for each in target - kept if holders.get(each, member_id) == member_id)
    state = MemberState.STABLE if kept | released == target else MemberState.UNRELEASED_PARTITIONS
    return _next(current, target_epoch, state, kept | released)


def _owns(owned: Partitions | None, partitions: Partitions) -> bool:
    return owned is None or not owned.isdisjoint(partitions)


def _next(
    current: CurrentAssignment, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions = frozenset()
) -> CurrentAssignment:
    """An epoch that stays keeps its predecessor: whoever missed several answers at it has still missed but one epoch."""
    previous = current.epoch if epoch != current.epoch else current.previous_epoch
    return CurrentAssignment(epoch, previous, state, assigned, revoking)
