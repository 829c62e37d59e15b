"""The group shard: the groups and offsets of one partition of __consumer_offsets (docs/semantics.md, O and
G).

A group has one type at a time: a classic group (`classic/`), or a consumer group in `consumer/` (KIP-848).  A
group without members changes its type when a member of the other protocol joins; a group with members
migrates as `migration.py` says, and a consumer group may have members of both protocols.

Offsets and the outcome of each generation are durable: written by `handle`, applied by `replay`.  Requests
that wait for a rebalance are volatile, and `handle` itself changes them (`classic/membership.py`,
`classic/rebalance.py`); when an append fails, the waiting members get the error and ask again, and the
generation in the log is still the old one.

The shard defers some answers (JoinGroup, SyncGroup) by token; the runtime sends them when the outcome that
carries them is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from tidegate.coordinator import silence
from tidegate.coordinator.batches import BATCH_BYTES_MAX, batch_bytes, in_batches
from tidegate.coordinator.outcome import (
    Context,
    CoordinatorRecord,
    ProducerIdentity,
    ReplayedRecord,
    ShardOutcome,
)
from tidegate.wire.errors import ErrorCode, KafkaError

from . import migration, views
from .classic import rebalance, records
from .classic.events import Acknowledged, Heartbeat, JoinGroup, LeaveGroup, LeaveReply, SyncGroup
from .classic.membership import FOREVER_MS, ClassicGroup
from .classic.rebalance import Change
from .classic.state import RULES, GroupAction, GroupRequest, GroupState
from .consumer import classic_members
from .consumer.events import ConsumerGroupHeartbeat, ConsumerGroupTimer, DescribeConsumerGroup, TopicCatalog
from .consumer.group import Draft
from .consumer.groups import ConsumerGroups, GroupTimeouts, NoTopics
from .consumer.refusals import check_heartbeat
from .consumer.state import JOINING_EPOCH, MemberRequest
from .events import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    DescribeGroupReply,
    ExpireOffsets,
    GroupConfig,
    GroupEvent,
    GroupReply,
    GroupTimer,
    ListGroups,
    ListGroupsReply,
    OffsetCommit,
    OffsetFetch,
    OffsetFetchReply,
    OffsetsReply,
    SilenceTimer,
    TopicPartition,
    TopicsDeleted,
    TxnOffsetCommit,
)
from .offsets import CommittedOffset, OffsetStore, offset_records

GroupOutcome = ShardOutcome[GroupReply, None]

TOPIC_NAME_MAX: Final = 249


class GroupShard:
    """One partition's groups."""

    def __init__(
        self,
        config: GroupConfig,
        catalog: TopicCatalog | None = None,
        knows_classic_members: Callable[[], bool] = lambda: True,
        group_timeouts: GroupTimeouts = lambda _group_id: (None, None),
        batch_bytes_max: Callable[[], int] = lambda: BATCH_BYTES_MAX,
    ) -> None:
        """`catalog` has the topics at least as of this election; without a catalog there are no topics, and
        none counts as deleted. `knows_classic_members()`: whether every node that may coordinate supports
        classic members in consumer groups. `group_timeouts`: see `ConsumerGroups`.  `batch_bytes_max()`: the
        largest batch that the log takes now."""
        self._batch_bytes_max = batch_bytes_max
        self._knows_classic_members = knows_classic_members
        self.config = config
        self._catalog = catalog
        self.groups: dict[str, ClassicGroup] = {}
        self.consumers = ConsumerGroups(config.consumer, catalog, group_timeouts)
        self.offsets = OffsetStore()
        self.silences = silence.Silences()
        self._is_live = False
        self._deadlines: dict[str, int] = {}
        self._downgrades: dict[str, ClassicGroup] = {}  # whose record the runtime is appending
        self._deleted_topics: dict[str, int] = {}
        self._next_expiration_scan_ms = -1

    # --- replay ---------------------------------------------------------------------------------------------

    def replay(self, record: ReplayedRecord) -> None:
        match records.decode_key(record.key):
            case records.OffsetKey() as key:
                value = None if record.value is None else records.decode_offset_value(record.value)
                if record.producer is not None:
                    self.offsets.replay_transactional(record.producer.producer_id, key, value, record.offset)
                else:
                    self.offsets.replay_commit(key, value, record.offset)
            case records.GroupKey(group_id):
                self._replay_group(group_id, record.value)
            case None:
                note = silence.decode_key(record.key)
                if note is not None:
                    self.silences.replay(note, record.value)
                else:
                    self.consumers.replay(record.key, record.value)

    def _replay_group(self, group_id: str, data: bytes | None) -> None:
        if data is None:
            self.groups.pop(group_id, None)
            self._deadlines.pop(group_id, None)
            return
        made = self._downgrades.pop(group_id, None)
        if made is not None:
            self.groups[group_id] = made
            self._deadlines[group_id] = made.next_deadline_ms()
        group = self.groups.setdefault(group_id, ClassicGroup(group_id))
        if self._is_live:
            group.confirm(records.decode_group_value(data))
        else:
            group.restore(records.decode_group_value(data))

    def replay_marker(self, producer: ProducerIdentity, commit: bool, offset: int) -> None:
        self.offsets.replay_marker(producer.producer_id, commit)

    def activated(self, context: Context) -> GroupOutcome:
        self._is_live = True
        units = [self._begin_sessions(group, context.now_ms) for group in list(self.groups.values())]
        batches = in_batches(units, self._batch_bytes_max())
        self._next_expiration_scan_ms = context.now_ms + self.config.offsets_retention_check_interval_ms
        self.consumers.activated(context.now_ms, self.silences)
        if self._catalog is not None:
            # A topic may have been deleted while the partition was loading or had no leader, so that no shard
            # wrote tombstones. The clients that committed these offsets had seen no newer metadata than this
            # election: a topic missing now is deleted.
            topics = {
                topic
                for group_id in self.offsets.groups()
                for topic, _ in self.offsets.newest_of_group(group_id)
            }
            self._deleted_topics.update(
                dict.fromkeys(topics - self._catalog.shapes(topics).keys(), context.now_ms)
            )
        return ShardOutcome(further=batches)

    def _begin_sessions(self, group: ClassicGroup, now_ms: int) -> list[CoordinatorRecord]:
        """Every member gets a full session to find this coordinator (but see `silence.py`).  Members that
        left under the former coordinator are removed, and the others join again."""
        for member in group.members.values():
            member.session_deadline_ms = self.silences.begin_classic_grace_period(
                group.group_id, member.member_id, member.session_timeout_ms, now_ms
            )
        change = Change()
        left = self.silences.departed_members(group.group_id)
        for member_id in left:
            rebalance.remove_member(group, member_id, now_ms, self.config.classic, change)
        # they were members of the consumer group that became this one
        if left and group.state is GroupState.STABLE:
            rebalance.prepare(group, now_ms, self.config.classic, change)
        self._store_group(group)
        return self._written(group, change, now_ms)

    def resumed(self, now_ms: int, away_ms: int) -> None:
        for group in self.groups.values():
            rebalance.resume(group, now_ms, away_ms)
            if group.group_id in self._deadlines:
                self._deadlines[group.group_id] = group.next_deadline_ms()
        self.consumers.resumed(now_ms, away_ms)
        self.silences.resumed(away_ms)

    def due(self, now_ms: int) -> Sequence[GroupEvent]:
        events: list[GroupEvent] = [
            GroupTimer(group_id) for group_id, deadline in self._deadlines.items() if deadline <= now_ms
        ]
        events += self.consumers.due(now_ms)
        if self.silences.is_due(now_ms):
            events.append(SilenceTimer())
        if self._deleted_topics:
            events.append(TopicsDeleted(frozenset()))
        if now_ms >= self._next_expiration_scan_ms:
            self._next_expiration_scan_ms = now_ms + self.config.offsets_retention_check_interval_ms
            names = [name for name in self._all_names() if self._kept_topics(name) is not None]
            size = 100
            events += [
                ExpireOffsets(tuple(names[start : start + size])) for start in range(0, len(names), size)
            ]
        return events

    # --- handle ---------------------------------------------------------------------------------------------

    def handle(self, event: GroupEvent, context: Context) -> GroupOutcome:
        self._downgrades.clear()  # what is left of an append that failed
        match event:
            case JoinGroup() | SyncGroup() | Heartbeat() | LeaveGroup() | GroupTimer():
                return self._membership(event, context)
            case OffsetCommit():
                return self._commit(event, context)
            case TxnOffsetCommit():
                return self._commit_in_transaction(event, context)
            case OffsetFetch():
                return self._fetch(event)
            case DeleteGroup():
                return self._delete_group(event.group_id, context.token)
            case DeleteOffsets():
                return self._delete_offsets(event)
            case TopicsDeleted():
                return self._topics_deleted(event.topics, context.now_ms)
            case ExpireOffsets():
                return self._expire(event.group_ids, context.now_ms)
            case ListGroups():
                return self._list(event)
            case DescribeGroup():
                return self._describe(event.group_id)
            case ConsumerGroupHeartbeat():
                return self._consumer_heartbeat(event, context)
            case ConsumerGroupTimer():
                draft = self.consumers.on_timer(event, context)
                return ShardOutcome(
                    records=self._settled(draft, context.now_ms, joined=False), reply=Acknowledged()
                )
            case SilenceTimer():
                return ShardOutcome(
                    records=self.silences.on_timer(context.now_ms, self._is_member), reply=Acknowledged()
                )
            case DescribeConsumerGroup():
                known = self.state_of(event.group_id) is not GroupState.DEAD
                return ShardOutcome(reply=self.consumers.describe(event.group_id, is_other_kind=known))

    # --- membership -----------------------------------------------------------------------------------------

    def _membership(
        self, event: JoinGroup | SyncGroup | Heartbeat | LeaveGroup | GroupTimer, context: Context
    ) -> GroupOutcome:
        if not event.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        if isinstance(event, JoinGroup):
            rebalance.check_session(event, self.config.classic)
        group = self.groups.get(event.group_id)
        if group is None and self._has_consumers(event.group_id) and not isinstance(event, GroupTimer):
            return self._classic_member(event, context)
        kind_before = self.consumers.tombstones(event.group_id)  # of a former consumer group without members
        if group is None:
            if isinstance(event, JoinGroup) and not event.member_id:
                group = ClassicGroup(event.group_id)
            else:
                return self._without_group(event)
        change = Change()
        try:
            self._move(group, event, context, change)
        except KafkaError as error:
            change.reply = error
        # a heartbeat only extends a deadline: the stored one is still a lower bound
        if not isinstance(event, Heartbeat):
            self._store_group(group)
        written = kind_before if group.members or group.pending_members else []
        written += self._written(group, change, context.now_ms)
        if isinstance(event, (JoinGroup, SyncGroup, Heartbeat)) and event.member_id in group.members:
            written += self.silences.request_received(group.group_id, event.member_id)
        return ShardOutcome(
            records=written, reply=change.reply, deferred=change.deferred, defer=change.reply is None
        )

    def _written(self, group: ClassicGroup, change: Change, now_ms: int) -> list[CoordinatorRecord]:
        """The record of the new generation; without one, notes about members of the stored generation that
        have left."""
        if not change.write:
            return self.silences.left(
                group.group_id, [name for name in change.removed if name in group.stored_members], now_ms
            )
        value = records.encode_group_value(group.to_value(now_ms, change.assignment))
        generation = CoordinatorRecord(records.encode_group_key(group.group_id), value)
        return [generation, *self.silences.forget_all_but(group.group_id, group.members)]

    def _is_member(self, group_id: str, member_id: str) -> bool:
        group, consumers = self.groups.get(group_id), self.consumers.groups.get(group_id)
        return (group is not None and member_id in group.members) or (
            consumers is not None and member_id in consumers.members
        )

    def _move(
        self,
        group: ClassicGroup,
        event: JoinGroup | SyncGroup | Heartbeat | LeaveGroup | GroupTimer,
        context: Context,
        change: Change,
    ) -> None:
        match event:
            case JoinGroup():
                rebalance.join(group, event, context.token, context.now_ms, self.config.classic, change)
            case SyncGroup():
                rebalance.sync(group, event, context.token, context.now_ms, change)
            case Heartbeat():
                rebalance.heartbeat(group, event, context.now_ms, change)
            case LeaveGroup():
                rebalance.leave(group, event, context.now_ms, self.config.classic, change)
            case GroupTimer():
                rebalance.advance(group, context.now_ms, self.config.classic, change)
                change.reply = Acknowledged()

    # --- both protocols in one group (migration.py) ---------------------------------------------------------

    def _classic_member(
        self, event: JoinGroup | SyncGroup | Heartbeat | LeaveGroup, context: Context
    ) -> GroupOutcome:
        """A request of a classic member to a consumer group."""
        draft = Draft(self.consumers.groups[event.group_id])
        reply: GroupReply | KafkaError
        notes_removed = (
            []
            if isinstance(event, LeaveGroup)
            else self.silences.request_received(event.group_id, event.member_id)
        )
        try:
            match event:
                case JoinGroup():
                    if not self._knows_classic_members():
                        message = (
                            f"{event.group_id} is a consumer group with members: set group.protocol=consumer"
                        )
                        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
                    draft, reply = classic_members.join(
                        self.consumers, self._catalog or NoTopics(), event, context
                    )
                case SyncGroup():
                    reply = classic_members.sync(self.consumers, event, context)
                case Heartbeat():
                    classic_members.heartbeat(self.consumers, event, context)
                    reply = Acknowledged()
                case LeaveGroup():
                    draft, reply = classic_members.leave(self.consumers, event)
        except KafkaError as error:
            reply = error
        joined = isinstance(event, JoinGroup)
        return ShardOutcome(
            records=self._settled(draft, context.now_ms, joined=joined) + notes_removed, reply=reply
        )

    def _settled(self, draft: Draft, now_ms: int, *, joined: bool) -> list[CoordinatorRecord]:
        """The records of a draft; or instead those of the classic group that it becomes, when the last member
        of the consumer protocol left, or (`joined`) became a classic member while every member has its target
        assignment."""
        group, group_id = draft.group, draft.group.group_id
        written = draft.records
        may = written and group.is_all_classic and (group.is_settled or not joined)
        if may and migration.may_downgrade(self.config, group, self._batch_bytes_max()):
            present = self.consumers.groups[group_id]
            made = migration.downgraded(group, group.epoch if joined else present.epoch, now_ms)
            value = CoordinatorRecord(
                records.encode_group_key(group_id), records.encode_group_value(made.to_value(now_ms, None))
            )
            notes = self.silences.forget_all_but(group_id, made.members)
            if not joined:  # by these notes a next coordinator knows that the other members must join again
                notes += self.silences.left(group_id, present.members.keys() - made.members.keys(), now_ms)
            instead = [*self.consumers.tombstones(group_id), value, *notes]
            # otherwise it stays a consumer group: the log takes all or nothing
            if batch_bytes(instead) <= self._batch_bytes_max():
                if not joined:
                    rebalance.prepare(made, now_ms, self.config.classic, Change())
                self._downgrades[group_id] = made
                return instead
        if group_id in self.silences.notes:
            written = written + self.silences.forget_all_but(group_id, group.members)
        return written

    def _consumer_heartbeat(self, event: ConsumerGroupHeartbeat, context: Context) -> GroupOutcome:
        check_heartbeat(event, self.config.consumer)
        group = self.groups.get(event.group_id)
        classic = group is not None and bool(group.members or group.pending_members)
        if event.member_epoch != JOINING_EPOCH and event.group_id not in self.consumers.groups:
            classic = self.state_of(event.group_id) is not GroupState.DEAD
        converted: Draft | None = None
        change = Change()
        if (
            classic
            and group is not None
            and event.member_epoch == JOINING_EPOCH
            and self.config.migration_policy.goes_up
            and self._knows_classic_members()
        ):
            converted = migration.upgraded(group, self._catalog or NoTopics(), self.config.consumer.max_size)
            classic = False
        draft, reply = self.consumers.heartbeat(event, context, classic=classic, converted=converted)
        if converted is not None and group is not None:
            migration.check_upgrade_fits(group, draft.records, self._batch_bytes_max())
            rebalance.dissolve(group, change)
            for member_id in group.members:
                if member_id in draft.group.members:
                    self.consumers.watch(draft.group, member_id, context.now_ms)
        tombstone = self._classic_tombstone(event.group_id) if draft.records else []
        notes_removed = self.silences.request_received(event.group_id, event.member_id)
        written = [*tombstone, *self._settled(draft, context.now_ms, joined=False), *notes_removed]
        return ShardOutcome(records=written, reply=reply, deferred=change.deferred)

    def _without_group(
        self, event: JoinGroup | SyncGroup | Heartbeat | LeaveGroup | GroupTimer
    ) -> GroupOutcome:
        if isinstance(event, GroupTimer):
            return ShardOutcome(reply=Acknowledged())
        if isinstance(event, LeaveGroup):
            return ShardOutcome(
                reply=LeaveReply(tuple((member, ErrorCode.UNKNOWN_MEMBER_ID) for member in event.members))
            )
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {event.group_id} is not known: join again")

    def _store_group(self, group: ClassicGroup) -> None:
        """Stores the group and its next deadline; drops a group that never had a member."""
        if (
            group.state is GroupState.EMPTY
            and not group.is_stored
            and not group.pending_members
            and group.generation == 0
        ):
            self.groups.pop(group.group_id, None)
            self._deadlines.pop(group.group_id, None)
            return
        self.groups[group.group_id] = group
        deadline_ms = group.next_deadline_ms()
        if deadline_ms == FOREVER_MS:
            self._deadlines.pop(group.group_id, None)
        else:
            self._deadlines[group.group_id] = deadline_ms

    def state_of(self, group_id: str) -> GroupState:
        """A group without members but with offsets is Empty; an unknown group is Dead."""
        group = self.groups.get(group_id)
        if group is not None:
            return group.state
        return GroupState.EMPTY if self.offsets.knows(group_id) else GroupState.DEAD

    def _is_consumer_kind(self, group_id: str) -> bool:
        return group_id in self.consumers.groups and group_id not in self.groups

    def _has_consumers(self, group_id: str) -> bool:
        group = self.consumers.groups.get(group_id)
        return group is not None and bool(group.members)

    def _all_names(self) -> Iterable[str]:
        return dict.fromkeys([*self.groups, *self.consumers.groups, *self.offsets.groups()])

    # --- committing offsets ---------------------------------------------------------------------------------

    def _commit(self, event: OffsetCommit, context: Context) -> GroupOutcome:
        if self._is_consumer_kind(event.group_id):
            self._check_consumer(event)
        else:
            self._check_classic_committer(event, context.now_ms)
        expire_ms = context.now_ms + event.retention_ms if event.retention_ms >= 0 else -1
        written, errors = offset_records(
            event.group_id, event.offsets, self.config, context.now_ms, expire_ms
        )
        return ShardOutcome(records=written, reply=OffsetsReply(errors))

    def _check_consumer(self, event: OffsetCommit) -> None:
        """KIP-848: the member epoch fences; while the group has no members, a client that names no epoch may
        commit."""
        if event.generation < 0 and not self._has_consumers(event.group_id):
            return
        self.consumers.judge(MemberRequest.COMMIT, event.group_id, event.member_id, event.generation)
        member = self.consumers.groups[event.group_id].members[event.member_id]
        if not event.knows_member_epochs and member.classic is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "members of a consumer group commit by OffsetCommit version 9"
            )

    def _check_classic_committer(self, event: OffsetCommit, now_ms: int) -> None:
        state = self.state_of(event.group_id)
        simple = event.generation < 0 and (
            state in (GroupState.EMPTY, GroupState.DEAD)
            or (not event.member_id and event.group_instance_id is None)
        )
        if not simple and state is GroupState.DEAD and event.knows_member_epochs:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {event.group_id} is not known")
        self._check_committer(
            event, GroupRequest.COMMIT_SIMPLE if simple else GroupRequest.COMMIT_MEMBER, now_ms
        )

    def _commit_in_transaction(self, event: TxnOffsetCommit, context: Context) -> GroupOutcome:
        """Rule O5 (KIP-447): a producer that names its member is fenced like the member."""
        anonymous = event.generation < 0 and not event.member_id and event.group_instance_id is None
        group = self.groups.get(event.group_id)
        if self._is_consumer_kind(event.group_id):
            if not anonymous and (event.generation >= 0 or self._has_consumers(event.group_id)):
                self.consumers.judge(
                    MemberRequest.COMMIT_IN_TRANSACTION, event.group_id, event.member_id, event.generation
                )
        elif group is None and event.generation >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"group {event.group_id} is not known")
        if (
            group is not None
            and not anonymous
            and not (event.generation < 0 and group.state is GroupState.EMPTY)
        ):
            group.check_member(event.member_id, event.group_instance_id)
            group.check_generation(event.generation)
        self._require_allowed(self.state_of(event.group_id), GroupRequest.COMMIT_TRANSACTION, event.group_id)
        written, errors = offset_records(event.group_id, event.offsets, self.config, context.now_ms, -1)
        producer = ProducerIdentity(event.producer_id, event.producer_epoch)
        return ShardOutcome(records=written, reply=OffsetsReply(errors), producer=producer, guard=event.guard)

    def _check_committer(self, event: OffsetCommit, request: GroupRequest, now_ms: int) -> None:
        if not event.group_id and request is not GroupRequest.COMMIT_SIMPLE:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = self.groups.get(event.group_id)
        if request is GroupRequest.COMMIT_MEMBER and group is not None:
            member = group.check_member(event.member_id, event.group_instance_id)
            group.check_generation(event.generation)
            member.session_deadline_ms = max(member.session_deadline_ms, now_ms + member.session_timeout_ms)
        self._require_allowed(self.state_of(event.group_id), request, event.group_id)

    def _require_allowed(self, state: GroupState, request: GroupRequest, group_id: str) -> GroupAction:
        action = RULES[(state, request)]
        error = rebalance.refusal(action, group_id)
        if error is not None:
            raise error
        return action

    # --- reading offsets ------------------------------------------------------------------------------------

    def _fetch(self, event: OffsetFetch) -> GroupOutcome:
        if event.member_id is not None and event.member_epoch >= 0 and self._is_consumer_kind(event.group_id):
            self.consumers.judge(
                MemberRequest.FETCH_OFFSETS, event.group_id, event.member_id, event.member_epoch
            )
        topic_partitions: Iterable[TopicPartition]
        if event.partitions is not None:
            topic_partitions = event.partitions
        else:
            undecided = self.offsets.undecided(event.group_id) if event.require_stable else ()
            topic_partitions = dict.fromkeys([*self.offsets.of_group(event.group_id), *undecided])
        found = {
            key: self.offsets.fetch(event.group_id, key, event.require_stable) for key in topic_partitions
        }
        return ShardOutcome(reply=OffsetFetchReply(found))

    # --- deleting -------------------------------------------------------------------------------------------

    def _offset_tombstones(
        self, group_id: str, topic_partitions: Iterable[TopicPartition]
    ) -> list[CoordinatorRecord]:
        keys = (
            records.encode_offset_key(group_id, topic, partition) for topic, partition in topic_partitions
        )
        return [CoordinatorRecord(key, None) for key in keys]

    def _classic_tombstone(self, group_id: str) -> list[CoordinatorRecord]:
        return (
            [CoordinatorRecord(records.encode_group_key(group_id), None)] if group_id in self.groups else []
        )

    def _group_tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """The tombstones of a group without members, of either type."""
        return (
            self._classic_tombstone(group_id)
            + self.consumers.tombstones(group_id)
            + self.silences.forget(group_id)
        )

    def _tombstones_max(self, group_id: str) -> int:
        """How many tombstones of the group's offsets fit into the largest batch that the log takes."""
        key_bytes = len(group_id.encode()) + TOPIC_NAME_MAX
        return max(1, min(self.config.expiration_batch_max, self._batch_bytes_max() // (2 * key_bytes)))

    def _delete_group(self, group_id: str, token: int) -> GroupOutcome:
        """A bounded number of tombstones at a time, like `_topics_deleted`; the caller gets its answer after
        the last."""
        if not self._is_consumer_kind(group_id):
            self._require_allowed(self.state_of(group_id), GroupRequest.DELETE_GROUP, group_id)
        elif self._has_consumers(group_id):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
        if self.offsets.undecided(group_id):
            message = f"group {group_id} has offsets in an open transaction: retry when it has ended"
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, message)
        offsets, room = self.offsets.of_group(group_id), self._tombstones_max(group_id)
        tombstones = self._offset_tombstones(group_id, islice(offsets, room))
        if len(offsets) > room:
            return ShardOutcome(records=tombstones, defer=True, again=((DeleteGroup(group_id), token),))
        return ShardOutcome(records=tombstones + self._group_tombstones(group_id), reply=Acknowledged())

    def _delete_offsets(self, event: DeleteOffsets) -> GroupOutcome:
        group, action = self.groups.get(event.group_id), GroupAction.DELETE_OFFSETS
        if not self._is_consumer_kind(event.group_id):
            action = self._require_allowed(
                self.state_of(event.group_id), GroupRequest.DELETE_OFFSETS, event.group_id
            )
        in_use: set[str] | None = set()  # None: the subscriptions cannot be read, so any topic may be in use
        if group is not None and action is GroupAction.DELETE_UNREAD_OFFSETS:
            if group.protocol_type != "consumer":
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {event.group_id} has members")
            in_use = views.subscribed_topics(group)
        if self._has_consumers(event.group_id):
            in_use = self.consumers.groups[event.group_id].subscribed_topics()
        errors: dict[TopicPartition, ErrorCode] = {}
        for topic_partition in event.partitions:
            blocked = (
                in_use is None
                or topic_partition[0] in in_use
                or self.offsets.is_undecided(event.group_id, topic_partition)
            )
            errors[topic_partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if blocked else ErrorCode.NONE
        present = [
            p for p, code in errors.items() if code is ErrorCode.NONE and self.offsets.get(event.group_id, p)
        ]
        return ShardOutcome(
            records=self._offset_tombstones(event.group_id, present), reply=OffsetsReply(errors)
        )

    def _topics_deleted(self, topics: frozenset[str], now_ms: int) -> GroupOutcome:
        """A bounded number of tombstones at a time, until none is left; also for undecided offsets, which a
        COMMIT marker would bring back.  Offsets that were committed after this event belong to a new topic of
        the same name and stay."""
        for topic in topics:
            self._deleted_topics.setdefault(topic, now_ms)
        written: list[CoordinatorRecord] = []
        for group_id in self.offsets.groups():
            room = self._tombstones_max(group_id) - len(written)
            if room <= 0:
                break
            newest = self.offsets.newest_of_group(group_id).items()
            gone = (key for key, written_ms in newest if written_ms <= self._deleted_topics.get(key[0], -1))
            written += self._offset_tombstones(group_id, islice(gone, room))
        if not written:
            self._deleted_topics.clear()
        return ShardOutcome(records=written, reply=Acknowledged())

    # --- expiry ---------------------------------------------------------------------------------------------

    def _kept_topics(self, group_id: str) -> set[str] | None:
        """The topics whose offsets do not expire: those that members read (KIP-211).  None: no offset of the
        group expires now, because a transaction is open on its offsets (rule O4), it rebalances, or its
        subscriptions cannot be read."""
        if self.offsets.undecided(group_id):
            return None
        if self._has_consumers(group_id):
            return self.consumers.groups[group_id].subscribed_topics()
        group, action = (
            self.groups.get(group_id),
            RULES[(self.state_of(group_id), GroupRequest.EXPIRE_OFFSETS)],
        )
        if action is GroupAction.EXPIRE:
            return None if group is not None and group.pending_members else set()
        if action is not GroupAction.EXPIRE_UNREAD or group is None or group.protocol_type != "consumer":
            return None
        return views.subscribed_topics(group)

    def _has_expired(self, group: ClassicGroup | None, committed: CommittedOffset, now_ms: int) -> bool:
        if committed.value.expire_timestamp_ms >= 0:
            return committed.value.expire_timestamp_ms <= now_ms
        since_ms = committed.value.commit_timestamp_ms
        if group is not None and group.protocol_type is not None and group.state is GroupState.EMPTY:
            since_ms = max(since_ms, group.state_since_ms)  # the clock starts when the last member left
        return since_ms + self.config.offsets_retention_ms <= now_ms

    def _expire(self, group_ids: Sequence[str], now_ms: int) -> GroupOutcome:
        written: list[CoordinatorRecord] = []
        for group_id in group_ids:
            kept = self._kept_topics(group_id)
            if kept is None:
                continue
            room = self._tombstones_max(group_id) - len(written)
            if room <= 0:
                break  # the next scan does the rest
            group, offsets = self.groups.get(group_id), self.offsets.of_group(group_id)
            expired = [
                topic_partition for topic_partition, committed in offsets.items()
                if topic_partition[0] not in kept and self._has_expired(group, committed, now_ms)
            ][:room]  # fmt: skip
            written += self._offset_tombstones(group_id, expired)
            deserted = not self._has_consumers(group_id) and (
                group is None or group.state is GroupState.EMPTY
            )
            if deserted and len(expired) == len(offsets):
                written += self._group_tombstones(group_id)
        return ShardOutcome(records=written, reply=Acknowledged())

    # --- views ----------------------------------------------------------------------------------------------

    def _list(self, event: ListGroups) -> GroupOutcome:
        listings = [
            views.consumer_listing(group_id, self.consumers.state_of(group_id))
            if self._is_consumer_kind(group_id)
            else views.classic_listing(group_id, self.groups.get(group_id), self.state_of(group_id))
            for group_id in self._all_names()
        ]
        return ShardOutcome(
            reply=ListGroupsReply(tuple(listing for listing in listings if views.is_wanted(listing, event)))
        )

    def _describe(self, group_id: str) -> GroupOutcome:
        group, problem = self.groups.get(group_id), ""
        if group is not None:
            return ShardOutcome(reply=views.description(group))
        state = self.state_of(group_id)
        # not a classic group: DescribeGroups answers as for an unknown one
        if self._is_consumer_kind(group_id):
            state, problem = GroupState.DEAD, f"Group {group_id} is not a classic group."
        elif state is GroupState.DEAD:
            problem = f"Group {group_id} not found."
        return ShardOutcome(reply=DescribeGroupReply(group_id, state, problem=problem))
