"""A group that moves from one protocol to the other while it lives (KIP-848's online migration).

Up: the first member of the consumer protocol that joins a classic group makes a consumer group of it.  Its members stay, as
classic members with what the last generation gave them, and their generation is their epoch; whoever waits for a rebalance joins
again.

Down: when the last member of the consumer protocol is gone and classic members are left, they are a classic group again.  Its
generation is the group epoch, in which those that were up to date go on, until they hear that they have to join again; the leader
among them assigns what the other had.  A note (`silence.py`) tells that to the next coordinator.  Nothing moves where the last
one became a classic member itself.

`group.consumer.migration.policy` says which ways are open.  Both are one batch of records: a log holds one group or the other.
Where that batch would be larger than the log takes, a group stays what it is: the consumer that joins is refused, and a consumer
group goes on with classic members alone.
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
"""Kafka's own: librdkafka repeats in the user data what the member owns, which the coordinator knows better."""


def upgraded(group: ClassicGroup, catalog: TopicCatalog, size_max: int) -> Draft:
    """The consumer group that a classic group with members becomes.  Raises GROUP_ID_NOT_FOUND where it cannot."""
    if group.members and group.protocol_type != PROTOCOL_TYPE:
        raise _cannot(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > size_max:
        raise _cannot(group, "the group size exceeds the consumer group maximum size")
    draft = Draft(ConsumerGroup(group.group_id))
    epoch, names = group.generation, set[str]()
    try:
        for member in group.members.values():
            names |= _take_over(draft, group, member, catalog)
    except RecordFormatError as error:
        raise _cannot(group, "the embedded consumer protocol is malformed") from error
    if epoch > 0:
        draft.write(RecordKind.TOPICS, catalog.shapes(names))
        draft.write(RecordKind.TARGET_EPOCH, epoch)
        draft.write(RecordKind.GROUP, epoch)
    return draft


def _take_over(draft: Draft, group: ClassicGroup, member: Member, catalog: TopicCatalog) -> set[str]:
    subscription = read_subscription(member.metadata(group.protocol) or member.protocols[0][1])
    assignment = read_assignment(member.assignment)
    if assignment.user_data and group.protocol not in STICKY_ASSIGNORS:
        raise _cannot(
            group,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default assignor before "
            "re-attempting the upgrade",
        )
    told = metadata_of(
        subscription,
        ClassicMember(member.session_timeout_ms, member.protocols),
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
    )
    # An assignor that gave a partition to two members gave it to the first.
    held = by_id(assignment.partitions, catalog).difference(draft.group.holders)
    draft.write(RecordKind.MEMBER, told, member.member_id)
    if group.generation > 0:
        draft.write(RecordKind.TARGET, held, member.member_id)
        draft.write(RecordKind.CURRENT, CurrentAssignment(group.generation, group.generation, assigned=held), member.member_id)
    return set(subscription.topics)


def _cannot(group: ClassicGroup, why: str) -> KafkaError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def check_upgrade_fits(group: ClassicGroup, written: Sequence[CoordinatorRecord], bytes_max: int) -> None:
    """Raises GROUP_ID_NOT_FOUND where the log would refuse what the upgrade writes."""
    if batch_bytes(written) > bytes_max:
        raise _cannot(group, "the group is too large for one batch of records")


def downgrade_bytes_min(group: ConsumerGroup) -> int:
    """What a downgrade writes at the least: three tombstones a member, and the members."""
    group_bytes = 3 * len(group.group_id)
    return sum(
        group_bytes + 4 * len(member_id) + sum(len(metadata) for _, metadata in told.classic.protocols[:1])
        for member_id, told in group.members.items()
        if told.classic is not None
    )


def may_downgrade(config: GroupConfig, group: ConsumerGroup, bytes_max: int) -> bool:
    """Whether a consumer group of classic members may become a classic group, as far as is known before it is tried."""
    small = len(group.members) <= config.classic.max_size and downgrade_bytes_min(group) <= bytes_max
    return small and config.migration_policy.goes_down


def downgraded(group: ConsumerGroup, generation: int, now_ms: int) -> ClassicGroup:
    """The classic group that a consumer group of classic members becomes: stable, in that generation."""
    made = ClassicGroup(group.group_id, generation=generation, protocol_type=PROTOCOL_TYPE)
    for member_id, told in group.members.items():
        assert told.classic is not None
        version = read_subscription(told.classic.protocols[0][1]).version
        made.add(
            Member(
                member_id,
                told.instance_id,
                told.client_id,
                told.client_host,
                told.rebalance_timeout_ms,
                told.classic.session_timeout_ms,
                told.classic.protocols,
                write_assignment(by_name(group.current_of(member_id).assigned, group), version),
                session_deadline_ms=now_ms + told.classic.session_timeout_ms,
            )
        )
    made.protocol = made.choose_protocol()
    made.state = GroupState.STABLE
    return made
