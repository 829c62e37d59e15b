"""The consumer groups of one shard (KIP-848): their requests and their deadlines.

A heartbeat, in this order:

1. check the member and its epoch (`RULES`), and store its metadata;
2. if members, subscriptions or the topics read have changed, raise the group epoch;
3. if the group epoch is above the target's, compute a new target assignment at once.  But members that join
   soon after the last computation wait for the next one together, and the answer tells them when to send
   their next heartbeat (KIP-1263): a group of hundreds that starts would otherwise be assigned anew for each
   member;
4. move the caller, and no other member, towards the target (`reconcile.py`): each member moves by its own
   heartbeats;
5. write all of it as one batch; the member gets its answer when that is committed.

Durable state changes by `replay` alone.  Volatile are the deadlines, which a new coordinator begins anew, and
the version of the metadata that each group's topics were compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from ....wire.errors import ErrorCode, KafkaError
from ...outcome import Context, CoordinatorRecord
from ...silence import Silences
from ..levels import NEWEST_LEVEL
from . import records
from .assignors import ASSIGNORS
from .events import (
    ConsumerGroupConfig,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatReply,
    ConsumerGroupTimer,
    DescribeConsumerGroupReply,
    DescribedConsumer,
    Partitions,
    TopicCatalog,
    TopicShape,
)
from .group import NOTHING, ConsumerGroup, Draft
from .reconcile import reconcile
from .records import CurrentAssignment, Key, MemberMetadata, RecordKind
from .refusals import not_found, refusal
from .state import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    RULES,
    STATIC_LEAVING_EPOCH,
    Action,
    ConsumerGroupState,
    MemberRequest,
    MemberState,
    Situation,
)

_FOREVER_MS = 2**63
PATTERN_RETRY_MS: Final = 500
"""How long a target assignment waits for a pattern that is not matched against all topics yet."""


class ClassicRequest(Enum):
    """The request that the coordinator awaits of a classic member."""

    JOIN = "join"
    SYNC = "sync"


class MemberTimeouts(NamedTuple):
    """The session timeout and heartbeat interval of the members of one group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


GroupTimeouts = Callable[[str], tuple[int | None, int | None]]


class NoTopics:
    """A catalog without topics."""

    version = 0

    def shapes(self, names: object) -> dict[str, TopicShape]:
        return {}

    def matching(self, pattern: str) -> tuple[str, ...]:
        return ()


@dataclass(slots=True)
class _Volatile:
    """sessions: member -> end of its session.  revocations: member -> (its epoch, deadline to revoke).
    awaited: classic member -> (the request that the coordinator awaits, deadline).  topics_seen: the
    catalog's version at the last comparison, -1 for never. assign_from_ms: joins and leaves get no new target
    before then."""

    sessions: dict[str, int] = field(default_factory=dict)
    revocations: dict[str, tuple[int, int]] = field(default_factory=dict)
    awaited: dict[str, tuple[ClassicRequest, int]] = field(default_factory=dict)
    topics_seen: int = -1
    assign_from_ms: int = 0

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """The earliest deadline after `now_ms`."""
        untils = [*self.sessions.values(), *(until_ms for _, until_ms in self.revocations.values())]
        untils += [until_ms for _, until_ms in self.awaited.values()]
        return min((until_ms for until_ms in untils if until_ms > now_ms), default=None)


class ConsumerGroups:
    """All consumer groups of one partition of __consumer_offsets."""

    def __init__(
        self,
        config: ConsumerGroupConfig,
        catalog: TopicCatalog | None = None,
        group_timeouts: GroupTimeouts = lambda _group_id: (None, None),
        finalised_level: Callable[[], int] = lambda: NEWEST_LEVEL,
    ) -> None:
        """`group_timeouts(group_id)`: the session timeout and heartbeat interval of the group's own settings;
        None where it has none.  `finalised_level()`: see `GroupShard`."""
        self.config = config
        self._finalised_level = finalised_level
        self._group_timeouts = group_timeouts
        self.groups: dict[str, ConsumerGroup] = {}
        self._catalog: TopicCatalog = catalog or NoTopics()
        self._volatile: dict[str, _Volatile] = {}
        self._deadlines: dict[str, int] = {}

    def timeouts_of(self, group_id: str) -> MemberTimeouts:
        session_ms, interval_ms = self._group_timeouts(group_id)
        session_ms = self.config.session_timeout_ms if session_ms is None else session_ms
        interval_ms = self.config.heartbeat_interval_ms if interval_ms is None else interval_ms
        # One of the two may be the node's setting and not fit the group's.
        return MemberTimeouts(session_ms, min(interval_ms, max(1, session_ms // 2)))

    def draft(self, group: ConsumerGroup) -> Draft:
        return Draft(group, self._finalised_level())

    # --- replay ---------------------------------------------------------------------------------------------

    def replay(self, key_data: bytes, data: bytes | None) -> None:
        """Skips records of later releases."""
        key = records.decode_key(key_data)
        if key is None:
            return
        value = None if data is None else records.decode_value(key.kind, data)
        group = self.groups.setdefault(key.group_id, ConsumerGroup(key.group_id))
        group.apply(key, value)
        if group.is_blank:
            del self.groups[key.group_id]
            self._volatile.pop(key.group_id, None)
            self._deadlines.pop(key.group_id, None)

    def activated(self, now_ms: int, silences: Silences) -> None:
        """A new coordinator: every member gets a full session to find it, and its full time to revoke; but
        see `silence.py`."""
        for group in self.groups.values():
            session_ms, interval_ms = self.timeouts_of(group.group_id)
            for member_id, member in group.members.items():
                self.watch(group, member_id, now_ms)
                if member.classic is None:
                    until_ms = silences.begin_grace_period(
                        group.group_id, member_id, 2 * interval_ms, session_ms, now_ms
                    )
                else:
                    session_ms = member.classic.session_timeout_ms
                    until_ms = silences.begin_classic_grace_period(
                        group.group_id, member_id, session_ms, now_ms
                    )
                self._volatile[group.group_id].sessions[member_id] = until_ms
                self._deadlines[group.group_id] = min(until_ms, self._deadlines[group.group_id])

    def resumed(self, now_ms: int, away_ms: int) -> None:
        """The coordinator answered no request for `away_ms`: every session begins anew, and the other
        deadlines move by that time."""
        for group_id, group in self.groups.items():
            volatile = self._volatile.get(group_id, _Volatile())
            volatile.revocations = {
                name: (epoch, until + away_ms) for name, (epoch, until) in volatile.revocations.items()
            }
            volatile.awaited = {
                name: (request, until + away_ms) for name, (request, until) in volatile.awaited.items()
            }
            self._deadlines.pop(group_id, None)
            for member_id in group.members:
                self.watch(group, member_id, now_ms)

    def due(self, now_ms: int) -> Sequence[ConsumerGroupTimer]:
        return [
            ConsumerGroupTimer(group_id)
            for group_id, deadline_ms in self._deadlines.items()
            if deadline_ms <= now_ms
        ]

    # --- time -----------------------------------------------------------------------------------------------

    def watch(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Begins the member's session anew, and sets the deadline for the partitions that it must revoke."""
        volatile = self._volatile.setdefault(group.group_id, _Volatile())
        current = group.current_of(member_id)
        classic = group.members[member_id].classic
        session_ms = (
            classic.session_timeout_ms if classic else self.timeouts_of(group.group_id).session_timeout_ms
        )
        volatile.sessions[member_id] = now_ms + session_ms
        if current.state is not MemberState.UNREVOKED_PARTITIONS:
            volatile.revocations.pop(member_id, None)
        elif volatile.revocations.get(member_id, (0, 0))[0] != current.epoch:
            volatile.revocations[member_id] = (
                current.epoch,
                now_ms + group.members[member_id].rebalance_timeout_ms,
            )
        # The stored deadline is a lower bound: when it is due, the timer computes the exact one.
        until_ms = min(volatile.sessions[member_id], volatile.revocations.get(member_id, (0, _FOREVER_MS))[1])
        self._deadlines[group.group_id] = min(until_ms, self._deadlines.get(group.group_id, _FOREVER_MS))

    def await_request(self, group_id: str, member_id: str, request: ClassicRequest, until_ms: int) -> None:
        """A classic member must send JoinGroup or SyncGroup until `until_ms`, or it is removed.  An earlier
        deadline for the same request stays."""
        volatile = self._volatile.setdefault(group_id, _Volatile())
        if volatile.awaited.get(member_id, (None, 0))[0] is not request:
            volatile.awaited[member_id] = (request, until_ms)
            self._deadlines[group_id] = min(until_ms, self._deadlines.get(group_id, _FOREVER_MS))

    def request_received(self, group_id: str, member_id: str) -> None:
        """The classic member has sent the awaited request."""
        if group_id in self._volatile:
            self._volatile[group_id].awaited.pop(member_id, None)

    def on_timer(self, event: ConsumerGroupTimer, context: Context) -> Draft:
        """Removes the members past a deadline: session, revocation, or awaited request."""
        group, volatile = self.groups.get(event.group_id), self._volatile.get(event.group_id)
        self._deadlines.pop(event.group_id, None)
        # the group was deleted meanwhile, or the append of its first record failed
        if group is None or volatile is None:
            self._volatile.pop(event.group_id, None)
            return self.draft(group or ConsumerGroup(event.group_id))
        volatile.awaited = {
            name: awaited for name, awaited in volatile.awaited.items() if group.is_classic(name)
        }
        volatile.sessions = {
            name: until_ms for name, until_ms in volatile.sessions.items() if name in group.members
        }
        overdue = {
            member_id for member_id, until_ms in volatile.sessions.items() if until_ms <= context.now_ms
        }
        overdue |= {
            member_id for member_id, (_, until_ms) in volatile.awaited.items() if until_ms <= context.now_ms
        }
        for member_id, (epoch, until_ms) in list(volatile.revocations.items()):
            current = group.current_of(member_id)
            if current.epoch != epoch or current.state is not MemberState.UNREVOKED_PARTITIONS:
                del volatile.revocations[member_id]
            elif until_ms <= context.now_ms:
                overdue.add(member_id)
        for member_id in overdue:  # should the append fail, the timer tries again
            volatile.sessions[member_id] = (
                context.now_ms + self.timeouts_of(event.group_id).heartbeat_interval_ms
            )
        deadline_ms = volatile.next_deadline_ms(context.now_ms)
        if deadline_ms is not None:
            self._deadlines[event.group_id] = deadline_ms
        draft = self.draft(group)
        self.remove(draft, sorted(overdue))
        return draft

    # --- heartbeat ------------------------------------------------------------------------------------------

    def judge(
        self,
        request: MemberRequest,
        group_id: str,
        member_id: str,
        epoch: int,
        *,
        classic: bool = False,
        instance_id: str | None = None,
        owned: Partitions | None = None,
        converted: ConsumerGroup | None = None,
    ) -> Action:
        """The table's action; raises KafkaError when it rejects.  classic: a classic group of that name has
        members. converted: the consumer group that such a classic group becomes by this request."""
        group = converted or self.groups.get(group_id)
        if classic:
            situation = Situation.CLASSIC
        elif group is None:
            situation = Situation.NO_GROUP
        else:
            situation = group.situation(request, member_id, instance_id, epoch, owned)
        action = RULES[(situation, request)]
        if action is Action.REFUSE_STALE and group is not None and group.is_classic(member_id):
            action = Action.REFUSE_GENERATION  # the error code of the classic protocol
        error = refusal(action, situation, request, group_id, group, member_id, instance_id, epoch)
        if error is not None:
            raise error
        return action

    def heartbeat(
        self,
        event: ConsumerGroupHeartbeat,
        context: Context,
        *,
        classic: bool = False,
        converted: Draft | None = None,
    ) -> tuple[Draft, ConsumerGroupHeartbeatReply]:
        """The records, and the answer for when they are committed.  converted: the draft of a classic group
        that this upgrades."""
        request = {
            JOINING_EPOCH: MemberRequest.JOIN,
            LEAVING_EPOCH: MemberRequest.LEAVE,
            STATIC_LEAVING_EPOCH: MemberRequest.LEAVE_FOR_A_WHILE,
        }.get(event.member_epoch, MemberRequest.HEARTBEAT)
        action = self.judge(
            request,
            event.group_id,
            event.member_id,
            event.member_epoch,
            classic=classic,
            instance_id=event.instance_id,
            owned=event.owned,
            converted=None if converted is None else converted.group,
        )
        draft = converted or self.draft(self.groups.get(event.group_id) or ConsumerGroup(event.group_id))
        before = draft.group.copy() if converted is not None else self.groups.get(event.group_id)
        if action in (Action.REMOVE, Action.KEEP_PLACE):
            return self._leave(draft, event, action)
        self._admit(draft, event, action)
        changed = self.look_for_changes(draft, before)
        # A changed subscription of a member, or changed topics, cannot wait: the old target may hold
        # partitions that must not be assigned.
        self.assign(draft, context.now_ms, at_once=changed and action is not Action.ADD)
        return self._move(draft, event, context.now_ms)

    def _leave(
        self, draft: Draft, event: ConsumerGroupHeartbeat, action: Action
    ) -> tuple[Draft, ConsumerGroupHeartbeatReply]:
        if action is Action.REMOVE:
            self.remove(draft, [event.member_id])
        else:
            # Its revocation is done: a client leaves when it has stopped reading.  The session runs on.
            current = draft.group.current_of(event.member_id)
            if current.epoch != STATIC_LEAVING_EPOCH:
                left = CurrentAssignment(STATIC_LEAVING_EPOCH, current.epoch, assigned=current.assigned)
                draft.write(RecordKind.CURRENT, left, event.member_id)
        interval_ms = self.timeouts_of(event.group_id).heartbeat_interval_ms
        return draft, ConsumerGroupHeartbeatReply(event.member_id, event.member_epoch, interval_ms)

    def remove(self, draft: Draft, member_ids: Sequence[str]) -> None:
        """Deletes the members' records, so that others may get their partitions; the next heartbeat of any
        member finds a newer epoch."""
        for member_id in member_ids:
            self.erase_member(draft, member_id)
        if member_ids:
            draft.write(RecordKind.GROUP, draft.group.epoch + 1)

    def erase_member(self, draft: Draft, member_id: str) -> None:
        group = draft.group
        for kind, slots in (
            (RecordKind.CURRENT, group.current),
            (RecordKind.TARGET, group.target),
            (RecordKind.MEMBER, group.members),
        ):
            if member_id in slots:
                draft.erase(Key(kind, group.group_id, member_id))

    def _admit(self, draft: Draft, event: ConsumerGroupHeartbeat, action: Action) -> None:
        """Stores the member's metadata; a returning instance gets its former assignment."""
        group = draft.group
        if action is Action.ADD and len(group.members) >= self.config.max_size:
            message = (
                f"group {group.group_id} has its {self.config.max_size} members (group.consumer.max.size)"
            )
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if action is Action.REPLACE:
            before = event.member_id if event.instance_id is None else group.instances[event.instance_id]
            self.hand_over(draft, before, event.member_id, _metadata_after(event, group.members[before]))
        else:
            metadata = _metadata_after(event, group.members.get(event.member_id))
            if metadata != group.members.get(event.member_id):
                draft.write(RecordKind.MEMBER, metadata, event.member_id)

    def hand_over(self, draft: Draft, before: str, member_id: str, metadata: MemberMetadata) -> None:
        """KIP-345: an instance is back, perhaps under another member id; it gets its former assignment, and
        the group epoch stays."""
        place, target = draft.group.current_of(before), draft.group.target.get(before, NOTHING)
        if before != member_id:
            self.erase_member(draft, before)
        draft.write(RecordKind.MEMBER, metadata, member_id)
        draft.write_targets({member_id: target})
        fresh = CurrentAssignment(JOINING_EPOCH, JOINING_EPOCH, assigned=place.assigned)
        draft.write(RecordKind.CURRENT, fresh, member_id)

    def look_for_changes(self, draft: Draft, before: ConsumerGroup | None) -> bool:
        """Raises the group epoch when the inputs of the assignor differ from those of `before`; returns
        whether it did."""
        group = draft.group
        changed = bool(draft.records) and (
            before is None or _assignor_inputs(before) != _assignor_inputs(group)
        )
        volatile = self._volatile.get(group.group_id)
        if changed or volatile is None or volatile.topics_seen != self._catalog.version:
            names, complete = self._names(group)
            topics = self._catalog.shapes(names)
            if topics != group.topics:
                draft.write(RecordKind.TOPICS, topics)
                changed = True
            if volatile is not None and not changed and complete:
                volatile.topics_seen = self._catalog.version  # nothing is written, so no append can fail
        if changed:
            draft.write(RecordKind.GROUP, group.epoch + 1)
        return changed

    def _names(self, group: ConsumerGroup) -> tuple[set[str], bool]:
        """The topics that the members read, and whether the set is complete: a pattern that is not matched
        against all topics yet keeps its former topics."""
        names, complete = {name for member in group.members.values() for name in member.topic_names}, True
        for pattern in patterns(group):
            matching = self._catalog.matching(pattern)
            if matching is None:
                complete, matching = False, group.topics
            names.update(matching)
        return names, complete

    def assign(self, draft: Draft, now_ms: int, *, at_once: bool) -> None:
        """Computes a new target assignment if the group epoch is above that of the present one."""
        group = draft.group
        volatile = self._volatile.setdefault(group.group_id, _Volatile())
        if group.epoch <= group.target_epoch or (now_ms < volatile.assign_from_ms and not at_once):
            return
        matched: dict[str, Iterable[str]] = {}
        for pattern in patterns(group):
            matching = self._catalog.matching(pattern)
            if matching is None:  # the target waits for the pattern: one without it would be kept
                volatile.assign_from_ms = now_ms + PATTERN_RETRY_MS
                return
            matched[pattern] = matching
        volatile.assign_from_ms = now_ms + self.config.assignment_interval_ms
        subscriptions: dict[str, frozenset[UUID]] = {}
        for member_id, member in group.members.items():
            names = set(member.topic_names).union(matched.get(member.topic_regex or "", ()))
            subscriptions[member_id] = frozenset(
                group.topics[name].topic_id for name in names if name in group.topics
            )
        counts = {shape.topic_id: shape.partitions for shape in group.topics.values()}
        assignor = ASSIGNORS[group.assignor(self.config.assignors)]
        instances = {member_id: instance for instance, member_id in group.instances.items()}
        draft.write_targets(assignor(subscriptions, counts, group.target, instances))
        draft.write(RecordKind.TARGET_EPOCH, group.epoch)

    def _move(
        self, draft: Draft, event: ConsumerGroupHeartbeat, now_ms: int
    ) -> tuple[Draft, ConsumerGroupHeartbeatReply]:
        group, member_id = draft.group, event.member_id
        before = group.current_of(member_id)
        target = group.target.get(member_id, NOTHING)
        after = reconcile(member_id, before, event.owned, target, group.target_epoch, group.holders)
        if after != before:
            draft.write(RecordKind.CURRENT, after, member_id)
        self.watch(draft.group, member_id, now_ms)
        missed_the_last = event.member_epoch != before.epoch
        changed = after.assigned != before.assigned
        must_answer = missed_the_last or event.member_epoch == JOINING_EPOCH or event.is_full or changed
        interval_ms = self._until_next_heartbeat_ms(group, member_id, now_ms)
        return draft, ConsumerGroupHeartbeatReply(
            member_id, after.epoch, interval_ms, after.assigned if must_answer else None
        )

    def _until_next_heartbeat_ms(self, group: ConsumerGroup, member_id: str, now_ms: int) -> int:
        """Shorter for a member that waits for its first target."""
        interval_ms = self.timeouts_of(group.group_id).heartbeat_interval_ms
        if group.epoch <= group.target_epoch or member_id in group.target:
            return interval_ms
        due_ms = self._volatile[group.group_id].assign_from_ms - now_ms
        return min(interval_ms, max(1, due_ms))

    # --- the whole group ------------------------------------------------------------------------------------

    def state_of(self, group_id: str) -> ConsumerGroupState:
        group = self.groups.get(group_id)
        return ConsumerGroupState.DEAD if group is None else group.state

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Tombstones for all records of the group."""
        group = self.groups.get(group_id)
        return (
            []
            if group is None
            else [CoordinatorRecord(records.encode_key(key), None) for key in group.record_keys()]
        )

    def describe(self, group_id: str, *, is_other_kind: bool) -> DescribeConsumerGroupReply:
        """Raises KafkaError GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise not_found(group_id, is_other_kind=is_other_kind)
        members = tuple(_described(group, member_id, member) for member_id, member in group.members.items())
        names: Mapping[UUID, str] = {shape.topic_id: name for name, shape in group.topics.items()}
        assignor = group.assignor(self.config.assignors)
        return DescribeConsumerGroupReply(
            group_id, group.state, group.epoch, group.target_epoch, assignor, members, names
        )


def _metadata_after(event: ConsumerGroupHeartbeat, before: MemberMetadata | None) -> MemberMetadata:
    """The member's metadata after this heartbeat; fields that it leaves out keep their values, unless the
    member joins."""
    if before is None or event.member_epoch == JOINING_EPOCH:
        before = MemberMetadata(
            event.instance_id, event.rack_id, "", "", (), None, event.rebalance_timeout_ms, None
        )
    regex = before.topic_regex if event.topic_regex is None else event.topic_regex or None
    return MemberMetadata(
        instance_id=before.instance_id if event.instance_id is None else event.instance_id,
        rack_id=before.rack_id if event.rack_id is None else event.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        topic_names=before.topic_names
        if event.topic_names is None
        else tuple(sorted(set(event.topic_names))),
        topic_regex=regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if event.rebalance_timeout_ms < 0
        else event.rebalance_timeout_ms,
        assignor=before.assignor if event.assignor is None else event.assignor,
    )


def _assignor_inputs(group: ConsumerGroup) -> dict[tuple[bool, str], tuple[object, ...]]:
    """The inputs of the assignor by member.  A static member counts by its instance: coming back under
    another member id is no change, because its assignment is handed over."""
    return {
        (member.instance_id is not None, member.instance_id or member_id): (
            member.topic_names,
            member.topic_regex,
            member.assignor,
        )
        for member_id, member in group.members.items()
    }


def patterns(group: ConsumerGroup) -> list[str]:
    return sorted({member.topic_regex for member in group.members.values() if member.topic_regex})


def _described(group: ConsumerGroup, member_id: str, member: MemberMetadata) -> DescribedConsumer:
    current = group.current_of(member_id)
    return DescribedConsumer(
        member_id,
        member.instance_id,
        member.rack_id,
        current.epoch,
        member.client_id,
        member.client_host,
        member.topic_names,
        member.topic_regex,
        current.assigned,
        group.target.get(member_id, NOTHING),
        member.classic is not None,
    )
