"""The answers of ListGroups and DescribeGroups, and the topics that a classic group reads."""

from __future__ import annotations

from ..fields import RecordFormatError
from .classic import consumer_protocol
from .classic.membership import ClassicGroup
from .classic.state import GroupState
from .consumer.state import ConsumerGroupState
from .events import DescribeGroupReply, GroupType, ListedGroup, ListGroups


def classic_listing(group_id: str, group: ClassicGroup | None, state: GroupState) -> ListedGroup:
    """group None: the group has only offsets."""
    return ListedGroup(group_id, (group.protocol_type if group else None) or "", state)


def consumer_listing(group_id: str, state: ConsumerGroupState) -> ListedGroup:
    return ListedGroup(group_id, "consumer", state, GroupType.CONSUMER)


def is_wanted(listing: ListedGroup, event: ListGroups) -> bool:
    if event.states and listing.state.value.lower() not in event.states:
        return False
    return not event.types or listing.type.value in event.types


def description(group: ClassicGroup) -> DescribeGroupReply:
    settled = group.state is GroupState.STABLE
    return DescribeGroupReply(
        group.group_id,
        group.state,
        group.protocol_type or "",
        (group.protocol or "") if settled else "",
        group.generation,
        group.described_members(),
    )


def subscribed_topics(group: ClassicGroup) -> set[str] | None:
    """The topics that its members read (ConsumerProtocolSubscription begins with version and topics); None
    when a subscription cannot be read: then any topic may be meant, as in Kafka
    (ClassicGroup.isSubscribedToTopic)."""
    read: set[str] = set()
    for member in group.members.values():
        protocol = group.protocol or next(iter(member.protocol_names), None)
        try:
            read.update(consumer_protocol.read_topics(member.metadata(protocol)))
        except RecordFormatError:
            return None
    return read
