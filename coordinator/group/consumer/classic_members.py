"""Members of the classic protocol in a consumer group (KIP-848's online migration).

Such a member joins, syncs, sends heartbeats and leaves as in a classic group, but the coordinator assigns,
not a leader among the members.  Its generation is its member epoch.  One round of the protocol moves it by
one step of `reconcile.py`:

    Heartbeat --REBALANCE_IN_PROGRESS--> JoinGroup (names what it owns) --> SyncGroup (gets its assignment)
    --> Heartbeat ...

The coordinator requests a join when the group epoch is above the member's, when it must revoke partitions,
and when no other member holds a partition of its target any more: one join for its whole share, as in Kafka,
because an eager member gives up everything for each join.  It answers a join at once, without waiting for
other members.  A member that does not join on this request, or joins and does not sync, is removed after its
rebalance timeout.

The functions return a `Draft` with the records to write, and raise KafkaError with the codes of the classic
protocol.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....wire.errors import ErrorCode, KafkaError
from ...fields import RecordFormatError
from ...outcome import Context
from ..classic.consumer_protocol import (
    PROTOCOL_TYPE,
    NamedPartition,
    Subscription,
    read_subscription,
    write_assignment,
)
from ..classic.events import (
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    SyncGroup,
    SyncReply,
)
from .events import Partitions, TopicCatalog
from .group import NOTHING, ConsumerGroup, Draft
from .groups import ClassicRequest, ConsumerGroups
from .reconcile import reconcile
from .records import ClassicMember, MemberMetadata, RecordKind
from .state import STATIC_LEAVING_EPOCH, MemberState


def by_id(partitions: Iterable[NamedPartition], catalog: TopicCatalog) -> Partitions:
    """The existing ones of these partitions, by topic id."""
    named = list(partitions)
    shapes = catalog.shapes({topic for topic, _ in named})
    return frozenset(
        (shapes[topic].topic_id, number)
        for topic, number in named
        if topic in shapes and 0 <= number < shapes[topic].partitions
    )


def by_name(partitions: Partitions, group: ConsumerGroup) -> set[NamedPartition]:
    """The partitions by topic name, without those of deleted topics."""
    names = {shape.topic_id: name for name, shape in group.topics.items()}
    return {(names[topic_id], number) for topic_id, number in partitions if topic_id in names}


def metadata_of(
    subscription: Subscription,
    classic: ClassicMember,
    *,
    instance_id: str | None,
    client_id: str,
    client_host: str,
    rebalance_timeout_ms: int,
) -> MemberMetadata:
    return MemberMetadata(
        instance_id=instance_id,
        rack_id=subscription.rack_id or None,
        client_id=client_id,
        client_host=client_host,
        topic_names=tuple(sorted(set(subscription.topics))),
        topic_regex=None,
        rebalance_timeout_ms=rebalance_timeout_ms,
        assignor=None,
        classic=classic,
    )


# --- join ---------------------------------------------------------------------------------------------------


def join(
    consumers: ConsumerGroups, catalog: TopicCatalog, event: JoinGroup, context: Context
) -> tuple[Draft, JoinReply]:
    group = consumers.groups[event.group_id]
    draft = consumers.draft(group)
    _check_protocols(group, event)
    before = _replaced_member(group, event)
    member_id = event.member_id or event.new_member_id
    is_new = before is None
    if is_new and len(group.members) >= consumers.config.max_size:
        message = (
            f"group {group.group_id} has its {consumers.config.max_size} members (group.consumer.max.size)"
        )
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
    if is_new and not event.member_id and event.group_instance_id is None and event.require_known_member_id:
        # KIP-394; the coordinator does not store the id, as in Kafka
        return draft, JoinReply(member_id, error=ErrorCode.MEMBER_ID_REQUIRED)
    try:
        subscription = read_subscription(event.protocols[0][1])
    except RecordFormatError as error:
        message = f"the subscription of {member_id} cannot be read: {error}"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message) from error
    metadata = metadata_of(
        subscription,
        ClassicMember(event.session_timeout_ms, event.protocols),
        instance_id=event.group_instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
    )
    if before is not None and (before != member_id or group.current_of(before).epoch == STATIC_LEAVING_EPOCH):
        consumers.hand_over(draft, before, member_id, metadata)
    elif metadata != group.members.get(member_id):
        draft.write(RecordKind.MEMBER, metadata, member_id)
    changed = consumers.look_for_changes(draft, group)
    consumers.assign(draft, context.now_ms, at_once=changed and not is_new)
    current = draft.group.current_of(member_id)
    target = draft.group.target.get(member_id, NOTHING)
    owned = by_id(subscription.owned, catalog)
    after = reconcile(member_id, current, owned, target, draft.group.target_epoch, draft.group.holders)
    if after != current:
        draft.write(RecordKind.CURRENT, after, member_id)
    consumers.watch(draft.group, member_id, context.now_ms)
    consumers.request_received(group.group_id, member_id)
    consumers.await_request(
        group.group_id, member_id, ClassicRequest.SYNC, context.now_ms + event.rebalance_timeout_ms
    )
    return draft, JoinReply(member_id, after.epoch, PROTOCOL_TYPE, event.protocols[0][0])


def _check_protocols(group: ConsumerGroup, event: JoinGroup) -> None:
    names = {name for name, _ in event.protocols}
    for member_id, member in group.members.items():
        if member.classic is not None and member_id != event.member_id:
            names &= member.classic.names
    if event.protocol_type != PROTOCOL_TYPE or not names:
        message = (
            f"group {group.group_id} is a consumer group, whose classic members share a protocol of type "
            f"{PROTOCOL_TYPE!r}"
        )
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)


def _replaced_member(group: ConsumerGroup, event: JoinGroup) -> str | None:
    """The member that the caller is, or replaces (a static instance); None for a new member."""
    if event.group_instance_id is None:
        return event.member_id if event.member_id in group.members else None
    holder = group.instances.get(event.group_instance_id)
    if not event.member_id:
        return holder
    _check_instance(group, event.member_id, event.group_instance_id)
    return holder


# --- sync, heartbeat ----------------------------------------------------------------------------------------


def _check_instance(group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
    if instance_id is None:
        return
    holder = group.instances.get(instance_id)
    if holder is None:
        raise _unknown(group, f"instance {instance_id}")
    if holder != member_id:
        message = f"group {group.group_id}: instance {instance_id} is now {holder}, no longer {member_id}"
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)


def _unknown(group: ConsumerGroup, member: str) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} does not know {member}: join again"
    )


def _member(group: ConsumerGroup, event: SyncGroup | Heartbeat) -> tuple[MemberMetadata, ClassicMember]:
    _check_instance(group, event.member_id, event.group_instance_id)
    member = group.members.get(event.member_id)
    if member is None or member.classic is None:
        raise _unknown(group, f"member {event.member_id!r} of the classic protocol")
    epoch = group.current_of(event.member_id).epoch
    if event.generation != epoch:
        message = (
            f"member {event.member_id} of group {group.group_id} is at epoch {epoch}, not in generation "
            f"{event.generation}"
        )
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)
    return member, member.classic


def _tell_to_join(consumers: ConsumerGroups, group: ConsumerGroup, member_id: str, now_ms: int) -> KafkaError:
    until_ms = now_ms + group.members[member_id].rebalance_timeout_ms
    consumers.await_request(group.group_id, member_id, ClassicRequest.JOIN, until_ms)
    return KafkaError(
        ErrorCode.REBALANCE_IN_PROGRESS, f"group {group.group_id}: there is a newer assignment: join again"
    )


def sync(consumers: ConsumerGroups, event: SyncGroup, context: Context) -> SyncReply:
    group = consumers.groups[event.group_id]
    _, classic = _member(group, event)
    name, metadata = classic.protocols[0]
    for said, present in ((event.protocol_type, PROTOCOL_TYPE), (event.protocol_name, name)):
        if said is not None and said != present:
            message = f"group {group.group_id} agreed on {present}, not {said}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    consumers.watch(group, event.member_id, context.now_ms)
    current = group.current_of(event.member_id)
    if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        raise _tell_to_join(consumers, group, event.member_id, context.now_ms)
    consumers.request_received(group.group_id, event.member_id)
    version = read_subscription(metadata).version
    return SyncReply(PROTOCOL_TYPE, name, write_assignment(by_name(current.assigned, group), version))


def heartbeat(consumers: ConsumerGroups, event: Heartbeat, context: Context) -> None:
    group = consumers.groups[event.group_id]
    _member(group, event)
    consumers.watch(group, event.member_id, context.now_ms)
    current = group.current_of(event.member_id)
    must_join = group.epoch > current.epoch or current.state is MemberState.UNREVOKED_PARTITIONS
    if current.state is MemberState.UNRELEASED_PARTITIONS:
        missing = group.target.get(event.member_id, NOTHING) - current.assigned
        must_join = must_join or all(
            group.holders.get(each, event.member_id) == event.member_id for each in missing
        )
    if must_join:
        raise _tell_to_join(consumers, group, event.member_id, context.now_ms)


# --- leave --------------------------------------------------------------------------------------------------


def leave(consumers: ConsumerGroups, event: LeaveGroup) -> tuple[Draft, LeaveReply]:
    """LeaveGroup: of a classic member, or of an administrator who removes static members of either protocol
    (KIP-345)."""
    group = consumers.groups[event.group_id]
    draft = consumers.draft(group)
    results: list[tuple[LeavingMember, ErrorCode]] = []
    leaving: set[str] = set()
    for each in event.members:
        try:
            leaving.add(_leaving(group, each))
            results.append((each, ErrorCode.NONE))
        except KafkaError as error:
            results.append((each, error.code))
    consumers.remove(draft, sorted(leaving))
    return draft, LeaveReply(tuple(results))


def _leaving(group: ConsumerGroup, each: LeavingMember) -> str:
    if not each.member_id and each.group_instance_id in group.instances:
        return group.instances[each.group_instance_id]
    _check_instance(group, each.member_id, each.group_instance_id)
    if not group.is_classic(each.member_id):
        raise _unknown(group, f"member {each.member_id!r} of the classic protocol")
    return each.member_id
