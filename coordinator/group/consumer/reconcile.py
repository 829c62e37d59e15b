"""How a member gets from its current assignment to its target (KIP-848).

    STABLE --the target lacks a partition--> UNREVOKED --its heartbeat leaves it out--> next epoch, and again
       ^ \\--the target adds a partition--> UNRELEASED --others release it--> STABLE
       +--------------------------------------------------------------------------+

The new owner gets a partition only when no member holds it: after the old owner's heartbeat left it out, or
after the old owner was removed.  A member's epoch rises to the target's only when it has nothing left to
revoke; so the epoch tells whether the member may still commit offsets of its partitions.

A partition that a heartbeat leaves out is revoked, as in Kafka, even if the member was just assigned it and
had not begun to read: after a heartbeat without an answer, a client must begin to read no partition that this
heartbeat left out.
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
    """The member's next assignment.  owned: the partitions in its heartbeat; None: unchanged, so all."""
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
    current: CurrentAssignment,
    epoch: int,
    state: MemberState,
    assigned: Partitions,
    revoking: Partitions = frozenset(),
) -> CurrentAssignment:
    """An unchanged epoch keeps its predecessor: a member that missed several answers at one epoch has missed
    one epoch only."""
    previous = current.epoch if epoch != current.epoch else current.previous_epoch
    return CurrentAssignment(epoch, previous, state, assigned, revoking)
