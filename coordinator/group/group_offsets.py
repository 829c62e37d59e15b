"""The requests about the committed offsets of one shard's groups: commit, fetch, delete, expire
(docs/semantics.md, chapter O).

`OffsetStore` has the offsets, and `replay` alone changes them.  This part decides which clients may commit
and which offsets go: those of a deleted group or topic, and those that no member reads for longer than the
retention (KIP-211).  Volatile are the topics whose offsets have yet to be deleted, and the time of the next
scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from ...wire.errors import ErrorCode, KafkaError
from ..outcome import (
    Context,
    CoordinatorRecord,
    ProducerIdentity,
    Reply,
    Write,
    WriteAndRepeat,
    WriteOffsets,
)
from . import views
from .classic import rebalance, records
from .classic.events import Acknowledged
from .classic.membership import ClassicGroup
from .classic.state import RULES, GroupAction, GroupRequest, GroupState
from .consumer.events import TopicCatalog
from .consumer.state import MemberRequest
from .events import (
    DeleteOffsets,
    ExpireOffsets,
    GroupConfig,
    GroupEvent,
    GroupOutcome,
    OffsetCommit,
    OffsetFetch,
    OffsetFetchReply,
    OffsetsReply,
    TopicPartition,
    TopicsDeleted,
    TxnOffsetCommit,
)
from .groups import Groups
from .offsets import CommittedOffset, OffsetStore, offset_records

TOPIC_NAME_MAX: Final = 249


class GroupOffsets:
    """The offsets of a shard's groups."""

    def __init__(
        self,
        config: GroupConfig,
        offsets: OffsetStore,
        groups: Groups,
        finalised_level: Callable[[], int],
        batch_bytes_max: Callable[[], int],
    ) -> None:
        self.config = config
        self.offsets = offsets
        self._groups = groups
        self._finalised_level = finalised_level
        self._batch_bytes_max = batch_bytes_max
        self._deleted_topics: dict[str, int] = {}
        self._next_expiration_scan_ms = -1

    # --- time -----------------------------------------------------------------------------------------------

    def activated(self, now_ms: int, catalog: TopicCatalog | None) -> None:
        """A topic may have been deleted while the partition was loading or had no leader, so that no shard
        wrote tombstones. The clients that committed these offsets had seen no newer metadata than this
        election: a topic missing now is deleted."""
        self._next_expiration_scan_ms = now_ms + self.config.offsets_retention_check_interval_ms
        if catalog is not None:
            topics = {
                topic
                for group_id in self.offsets.groups()
                for topic, _ in self.offsets.newest_of_group(group_id)
            }
            self._deleted_topics.update(dict.fromkeys(topics - catalog.shapes(topics).keys(), now_ms))

    def due(self, now_ms: int) -> list[GroupEvent]:
        events: list[GroupEvent] = []
        if self._deleted_topics:
            events.append(TopicsDeleted(frozenset()))
        if now_ms >= self._next_expiration_scan_ms:
            self._next_expiration_scan_ms = now_ms + self.config.offsets_retention_check_interval_ms
            names = [name for name in self._groups.names() if self._kept_topics(name) is not None]
            size = 100
            events += [
                ExpireOffsets(tuple(names[start : start + size])) for start in range(0, len(names), size)
            ]
        return events

    # --- committing -----------------------------------------------------------------------------------------

    def commit(self, event: OffsetCommit, context: Context) -> GroupOutcome:
        if self._groups.is_consumer_kind(event.group_id):
            self._check_consumer(event)
        else:
            self._check_classic_committer(event, context.now_ms)
        expire_ms = context.now_ms + event.retention_ms if event.retention_ms >= 0 else -1
        written, errors = offset_records(
            event.group_id, event.offsets, self.config, context.now_ms, expire_ms, self._finalised_level()
        )
        return WriteOffsets(written, OffsetsReply(errors))

    def _check_consumer(self, event: OffsetCommit) -> None:
        """KIP-848: the member epoch fences; while the group has no members, a client that names no epoch may
        commit."""
        if event.generation < 0 and not self._groups.has_consumers(event.group_id):
            return
        self._groups.consumers.judge(MemberRequest.COMMIT, event.group_id, event.member_id, event.generation)
        member = self._groups.consumers.groups[event.group_id].members[event.member_id]
        if not event.knows_member_epochs and member.classic is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, "members of a consumer group commit by OffsetCommit version 9"
            )

    def _check_classic_committer(self, event: OffsetCommit, now_ms: int) -> None:
        state = self._groups.state_of(event.group_id)
        simple = event.generation < 0 and (
            state in (GroupState.EMPTY, GroupState.DEAD)
            or (not event.member_id and event.group_instance_id is None)
        )
        if not simple and state is GroupState.DEAD and event.knows_member_epochs:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {event.group_id} is not known")
        self._check_committer(
            event, GroupRequest.COMMIT_SIMPLE if simple else GroupRequest.COMMIT_MEMBER, now_ms
        )

    def commit_in_transaction(self, event: TxnOffsetCommit, context: Context) -> GroupOutcome:
        """Rule O5 (KIP-447): a producer that names its member is fenced like the member."""
        anonymous = event.generation < 0 and not event.member_id and event.group_instance_id is None
        group = self._groups.classic.get(event.group_id)
        if self._groups.is_consumer_kind(event.group_id):
            if not anonymous and (event.generation >= 0 or self._groups.has_consumers(event.group_id)):
                self._groups.consumers.judge(
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
        self._act(GroupRequest.COMMIT_TRANSACTION, event.group_id)
        written, errors = offset_records(
            event.group_id, event.offsets, self.config, context.now_ms, -1, self._finalised_level()
        )
        producer = ProducerIdentity(event.producer_id, event.producer_epoch)
        return WriteOffsets(written, OffsetsReply(errors), producer, event.guard)

    def _check_committer(self, event: OffsetCommit, request: GroupRequest, now_ms: int) -> None:
        if not event.group_id and request is not GroupRequest.COMMIT_SIMPLE:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = self._groups.classic.get(event.group_id)
        if request is GroupRequest.COMMIT_MEMBER and group is not None:
            member = group.check_member(event.member_id, event.group_instance_id)
            group.check_generation(event.generation)
            member.session_deadline_ms = max(member.session_deadline_ms, now_ms + member.session_timeout_ms)
        self._act(request, event.group_id)

    def _act(self, request: GroupRequest, group_id: str) -> GroupAction:
        return rebalance.act(self._groups.state_of(group_id), request, group_id)

    # --- fetching -------------------------------------------------------------------------------------------

    def fetch(self, event: OffsetFetch) -> GroupOutcome:
        if not self._groups.is_consumer_kind(event.group_id):
            self._act(GroupRequest.FETCH_OFFSETS, event.group_id)
        elif event.member_id is not None and event.member_epoch >= 0:
            self._groups.consumers.judge(
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
        return Reply(OffsetFetchReply(found))

    # --- deleting -------------------------------------------------------------------------------------------

    def _offset_tombstones(
        self, group_id: str, topic_partitions: Iterable[TopicPartition]
    ) -> list[CoordinatorRecord]:
        keys = (
            records.encode_offset_key(group_id, topic, partition) for topic, partition in topic_partitions
        )
        return [CoordinatorRecord(key, None) for key in keys]

    def _tombstones_max(self, group_id: str) -> int:
        """How many tombstones of the group's offsets fit into the largest batch that the log takes."""
        key_bytes = len(group_id.encode()) + TOPIC_NAME_MAX
        return max(1, min(self.config.expiration_batch_max, self._batch_bytes_max() // (2 * key_bytes)))

    def delete_group(self, group_id: str) -> GroupOutcome:
        """A bounded number of tombstones at a time, like `_topics_deleted`; the caller gets its answer after
        the last."""
        if not self._groups.is_consumer_kind(group_id):
            self._act(GroupRequest.DELETE_GROUP, group_id)
        elif self._groups.has_consumers(group_id):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
        if self.offsets.undecided(group_id):
            message = f"group {group_id} has offsets in an open transaction: retry when it has ended"
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, message)
        offsets, room = self.offsets.of_group(group_id), self._tombstones_max(group_id)
        tombstones = self._offset_tombstones(group_id, islice(offsets, room))
        if len(offsets) > room:
            return WriteAndRepeat(tombstones)
        return Write(tombstones + self._groups.tombstones(group_id), Acknowledged())

    def delete_offsets(self, event: DeleteOffsets) -> GroupOutcome:
        group, action = self._groups.classic.get(event.group_id), GroupAction.DELETE_OFFSETS
        if not self._groups.is_consumer_kind(event.group_id):
            action = self._act(GroupRequest.DELETE_OFFSETS, event.group_id)
        in_use: set[str] | None = set()  # None: the subscriptions cannot be read, so any topic may be in use
        if group is not None and action is GroupAction.DELETE_UNREAD_OFFSETS:
            if group.protocol_type != "consumer":
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {event.group_id} has members")
            in_use = views.subscribed_topics(group)
        if self._groups.has_consumers(event.group_id):
            in_use = self._groups.consumers.groups[event.group_id].subscribed_topics()
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
        return Write(self._offset_tombstones(event.group_id, present), OffsetsReply(errors))

    def topics_deleted(self, topics: frozenset[str], now_ms: int) -> GroupOutcome:
        """A bounded number of tombstones at a time, until none is left; also for undecided offsets, which a
        COMMIT marker would bring back.  Offsets that were committed after this event belong to a new topic of
        the same name and stay."""
        self._deleted_topics.update(dict.fromkeys(topics, now_ms))
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
        return Write(written, Acknowledged())

    # --- expiry ---------------------------------------------------------------------------------------------

    def _kept_topics(self, group_id: str) -> set[str] | None:
        """The topics whose offsets do not expire: those that members read (KIP-211).  None: no offset of the
        group expires now, because a transaction is open on its offsets (rule O4), it rebalances, or its
        subscriptions cannot be read."""
        if self.offsets.undecided(group_id):
            return None
        if self._groups.has_consumers(group_id):
            return self._groups.consumers.groups[group_id].subscribed_topics()
        group, action = (
            self._groups.classic.get(group_id),
            RULES[(self._groups.state_of(group_id), GroupRequest.EXPIRE_OFFSETS)],
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

    def expire(self, group_ids: Sequence[str], now_ms: int) -> GroupOutcome:
        written: list[CoordinatorRecord] = []
        for group_id in group_ids:
            kept = self._kept_topics(group_id)
            if kept is None:
                continue
            room = self._tombstones_max(group_id) - len(written)
            if room <= 0:
                break  # the next scan does the rest
            group, offsets = self._groups.classic.get(group_id), self.offsets.of_group(group_id)
            expired = [
                topic_partition for topic_partition, committed in offsets.items()
                if topic_partition[0] not in kept and self._has_expired(group, committed, now_ms)
            ][:room]  # fmt: skip
            written += self._offset_tombstones(group_id, expired)
            deserted = not self._groups.has_consumers(group_id) and (
                group is None or group.state is GroupState.EMPTY
            )
            if deserted and len(expired) == len(offsets):
                written += self._groups.tombstones(group_id)
        return Write(written, Acknowledged())
