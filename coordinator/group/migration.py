"""A group that moves from one protocol to the other while it lives (KIP-848's online migration).

Upgrade: the first member of the consumer protocol that joins a classic group makes a consumer group of it.
The group keeps its members as classic members with the assignment of the last generation, and their
generation is their epoch; members that wait for a rebalance get the error to join again.

Downgrade: when the last member of the consumer protocol leaves and classic members are left, the group is a
classic group again. Its generation is the group epoch; the members at that epoch keep their assignment until
a heartbeat tells them to join again, and the leader among them assigns what the departed member had.  A
silence note (`silence.py`) tells the next coordinator that this rebalance is due.  Where the last member
became a classic member itself, no rebalance follows.

`group.consumer.migration.policy` says which of the two is allowed.  Each is one batch of records, so a log
holds either group, never both.  Where the batch would be too large for the log, the group keeps its type: the
shard rejects the consumer that joins, and a consumer group goes on with classic members alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...wire.errors import ErrorCode, KafkaError
from ..batches import batch_bytes
from ..fields import RecordFormatError
from ..outcome import CoordinatorRecord
from .classic.consumer_protocol import PROTOCOL_TYPE, read_assignment, read_subscription, write_assignment
from .classic.membership import ClassicGroup, Member
from .classic.state import GroupState
from .consumer.classic_members import by_id, by_name, metadata_of
from .consumer.events import TopicCatalog
from .consumer.group import ConsumerGroup, Draft
from .consumer.records import ClassicMember, CurrentAssignment, RecordKind
from .events import GroupConfig

STICKY_ASSIGNORS: Final = frozenset({"sticky", "cooperative-sticky"})
"""Kafka's own: their user data repeats what the member owns (librdkafka), which the coordinator knows
already."""


def upgraded(group: ClassicGroup, catalog: TopicCatalog, size_max: int, level: int) -> Draft:
    """The consumer group that a classic group with members becomes; `level`: the finalised one.  Raises
    GROUP_ID_NOT_FOUND where it cannot."""
    if group.members and group.protocol_type != PROTOCOL_TYPE:
        raise _cannot(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > size_max:
        raise _cannot(group, "the group size exceeds the consumer group maximum size")
    draft = Draft(ConsumerGroup(group.group_id), level)
    epoch, names = group.generation, set[str]()
    try:
        for member in group.members.values():
            names |= _convert_member(draft, group, member, catalog)
    except RecordFormatError as error:
        raise _cannot(group, "the embedded consumer protocol is malformed") from error
    if epoch > 0:
        draft.write(RecordKind.TOPICS, catalog.shapes(names))
        draft.write(RecordKind.TARGET_EPOCH, epoch)
        draft.write(RecordKind.GROUP, epoch)
    return draft


def _convert_member(draft: Draft, group: ClassicGroup, member: Member, catalog: TopicCatalog) -> set[str]:
    subscription = read_subscription(member.metadata(group.protocol) or member.protocols[0][1])
    assignment = read_assignment(member.assignment)
    if assignment.user_data and group.protocol not in STICKY_ASSIGNORS:
        raise _cannot(
            group,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch "
            "to a default assignor before "
            "re-attempting the upgrade",
        )
    metadata = metadata_of(
        subscription,
        ClassicMember(member.session_timeout_ms, member.protocols),
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
    )
    # Where the leader assigned a partition to two members, the first one keeps it.
    held = by_id(assignment.partitions, catalog).difference(draft.group.holders)
    draft.write(RecordKind.MEMBER, metadata, member.member_id)
    if group.generation > 0:
        draft.write(RecordKind.TARGET, held, member.member_id)
        draft.write(
            RecordKind.CURRENT,
            CurrentAssignment(group.generation, group.generation, assigned=held),
            member.member_id,
        )
    return set(subscription.topics)


def _cannot(group: ClassicGroup, why: str) -> KafkaError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def check_upgrade_fits(group: ClassicGroup, written: Sequence[CoordinatorRecord], bytes_max: int) -> None:
    """Raises GROUP_ID_NOT_FOUND where the records of the upgrade are too large for one batch."""
    if batch_bytes(written) > bytes_max:
        raise _cannot(group, "the group is too large for one batch of records")


def downgrade_bytes_min(group: ConsumerGroup) -> int:
    """A lower bound of the bytes that a downgrade writes: three tombstones for each member, and the
    members."""
    group_bytes = 3 * len(group.group_id)
    return sum(
        group_bytes
        + 4 * len(member_id)
        + sum(len(subscription) for _, subscription in metadata.classic.protocols[:1])
        for member_id, metadata in group.members.items()
        if metadata.classic is not None
    )


def may_downgrade(config: GroupConfig, group: ConsumerGroup, bytes_max: int) -> bool:
    """Whether a consumer group of classic members may become a classic group.  The exact size of the batch is
    checked later."""
    small = len(group.members) <= config.classic.max_size and downgrade_bytes_min(group) <= bytes_max
    return small and config.migration_policy.goes_down


def downgraded(group: ConsumerGroup, generation: int, now_ms: int) -> ClassicGroup:
    """The classic group that a consumer group of classic members becomes: stable, in that generation."""
    made = ClassicGroup(group.group_id, generation=generation, protocol_type=PROTOCOL_TYPE)
    for member_id, metadata in group.members.items():
        assert metadata.classic is not None
        version = read_subscription(metadata.classic.protocols[0][1]).version
        made.add(
            Member(
                member_id,
                metadata.instance_id,
                metadata.client_id,
                metadata.client_host,
                metadata.rebalance_timeout_ms,
                metadata.classic.session_timeout_ms,
                metadata.classic.protocols,
                write_assignment(by_name(group.current_of(member_id).assigned, group), version),
                session_deadline_ms=now_ms + metadata.classic.session_timeout_ms,
            )
        )
    made.protocol = made.choose_protocol()
    made.state = GroupState.STABLE
    return made
