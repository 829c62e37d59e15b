"""What holds of a consumer group at every moment, and from one moment to the next (KIP-848;
docs/semantics.md, chapter G).

First of all: no partition is held by two members, so no two may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from .events import TopicIdPartition
from .group import NOTHING, ConsumerGroup
from .state import JOINING_EPOCH, STATIC_LEAVING_EPOCH, MemberState


class Epochs(NamedTuple):
    """The epochs of a group and of its members at one moment."""

    group: int
    target: int
    members: Mapping[str, int]


NO_EPOCHS = Epochs(0, 0, {})


def epochs_of(group: ConsumerGroup) -> Epochs:
    members = {member_id: current.epoch for member_id, current in group.current.items()}
    return Epochs(group.epoch, group.target_epoch, members)


def violations(group: ConsumerGroup) -> Iterator[str]:
    """Sentences about what does not hold."""
    held: dict[TopicIdPartition, str] = {}
    for member_id, current in group.current.items():
        yield from _held_twice(held, member_id, current.held, "is held by")
    if held != group.holders:
        yield "the table of holders disagrees with the assignments"
    targets: dict[TopicIdPartition, str] = {}
    for member_id, target in group.target.items():
        yield from _held_twice(targets, member_id, target, "is in the target of")
    instances = {m.instance_id: name for name, m in group.members.items() if m.instance_id is not None}
    if instances != group.instances:
        yield f"the instances are {instances}, and the table of instances is {group.instances}"
    if not group.members.keys() >= group.current.keys() | group.target.keys():
        yield "an assignment of a member that is gone"
    if not 0 <= group.target_epoch <= group.epoch:
        yield f"the target of epoch {group.target_epoch} is past the group epoch {group.epoch}"
    counts = {shape.topic_id: shape.partitions for shape in group.topics.values()}
    if group.epoch == group.target_epoch and any(n >= counts.get(topic, 0) for topic, n in targets):
        yield "the target has a partition of no topic that the group reads"
    for member_id in group.current:
        yield from (f"member {member_id}: {each}" for each in _member_violations(group, member_id))


def _held_twice(
    holders: dict[TopicIdPartition, str], member_id: str, partitions: Iterable[TopicIdPartition], verb: str
) -> Iterator[str]:
    for partition in partitions:
        other = holders.setdefault(partition, member_id)
        if other != member_id:
            yield f"{partition} {verb} {other} and {member_id}"


def _member_violations(group: ConsumerGroup, member_id: str) -> Iterator[str]:
    current, target = group.current[member_id], group.target.get(member_id, NOTHING)
    if current.epoch > group.target_epoch or current.epoch < STATIC_LEAVING_EPOCH:
        yield f"epoch {current.epoch} is past that of the target, {group.target_epoch}"
    if not current.assigned.isdisjoint(current.revoking):
        yield "it owns and revokes the same partition"
    if bool(current.revoking) != (current.state is MemberState.UNREVOKED_PARTITIONS):
        yield f"it revokes {len(current.revoking)} partitions and is {current.state.name}"
    if current.epoch == group.target_epoch > JOINING_EPOCH:
        if not current.assigned <= target:
            yield "it is at the target's epoch and owns what is not in its target"
        if current.state is MemberState.STABLE and current.assigned != target:
            yield "it is stable at the target's epoch without all of its target"


def succession_violations(before: Epochs, group: ConsumerGroup) -> Iterator[str]:
    """No epoch falls; a member that joins again, or leaves for a while, has none meanwhile."""
    if group.epoch < before.group or group.target_epoch < before.target:
        yield f"the epochs fell from {before[:2]} to {epochs_of(group)[:2]}"
    for member_id, current in group.current.items():
        epoch = before.members.get(member_id, JOINING_EPOCH)
        if JOINING_EPOCH < current.epoch < epoch:
            yield f"member {member_id}: its epoch fell from {epoch} to {current.epoch}"
