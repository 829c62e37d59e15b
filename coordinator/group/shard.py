"""The group shard: the groups and offsets of one partition of __consumer_offsets (docs/semantics.md, O and
G).

Two parts, as in Kafka: `Groups` has the groups and their members, `GroupOffsets` their committed offsets.
The shard decodes records, hands each request to its part, and passes on what the part returns.

Some requests (JoinGroup, SyncGroup) wait for others (`Wait`); a later outcome of their part answers them by
token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import silence
from ..batches import BATCH_BYTES_MAX, in_batches
from ..outcome import Context, ProducerIdentity, ReplayedRecord, Write
from .classic import records
from .classic.events import Acknowledged, Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from .classic.state import GroupState
from .consumer.events import ConsumerGroupHeartbeat, ConsumerGroupTimer, DescribeConsumerGroup, TopicCatalog
from .consumer.groups import GroupTimeouts
from .events import (
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    ExpireOffsets,
    GroupConfig,
    GroupEvent,
    GroupOutcome,
    GroupTimer,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    SilenceTimer,
    TopicsDeleted,
    TxnOffsetCommit,
    group_ids_of,
)
from .group_offsets import GroupOffsets
from .groups import Groups
from .levels import NEWEST_LEVEL
from .offsets import OffsetStore


class GroupShard:
    """One partition's groups."""

    def __init__(
        self,
        config: GroupConfig,
        catalog: TopicCatalog | None = None,
        finalised_level: Callable[[], int] = lambda: NEWEST_LEVEL,
        group_timeouts: GroupTimeouts = lambda _group_id: (None, None),
        batch_bytes_max: Callable[[], int] = lambda: BATCH_BYTES_MAX,
    ) -> None:
        """`catalog` has the topics at least as of this election; without a catalog there are no topics, and
        none counts as deleted. `finalised_level()`: that of `tidegate.metadata.version`; what came
        with a later one is not written.  `group_timeouts`: see `ConsumerGroups`.  `batch_bytes_max()`: the
        largest batch that the log takes now."""
        self.config = config
        self.offsets = OffsetStore()
        self.groups = Groups(config, self.offsets, catalog, finalised_level, group_timeouts, batch_bytes_max)
        self._group_offsets = GroupOffsets(
            config, self.offsets, self.groups, finalised_level, batch_bytes_max
        )
        self._catalog = catalog
        self._batch_bytes_max = batch_bytes_max

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
                self.groups.replay_group(group_id, record.value)
            case None:
                note = silence.decode_key(record.key)
                if note is not None:
                    self.groups.silences.replay(note, record.value)
                else:
                    self.groups.consumers.replay(record.key, record.value)

    def replay_marker(self, producer: ProducerIdentity, commit: bool, offset: int) -> None:
        self.offsets.replay_marker(producer.producer_id, commit)

    def activated(self, context: Context) -> Sequence[GroupOutcome]:
        units = self.groups.activated(context.now_ms)
        self._group_offsets.activated(context.now_ms, self._catalog)
        return [Write(batch, Acknowledged()) for batch in in_batches(units, self._batch_bytes_max())]

    def resumed(self, now_ms: int, away_ms: int) -> None:
        self.groups.resumed(now_ms, away_ms)

    def due(self, now_ms: int) -> Sequence[GroupEvent]:
        return self.groups.due(now_ms) + self._group_offsets.due(now_ms)

    # --- handle ---------------------------------------------------------------------------------------------

    def handle(self, event: GroupEvent, context: Context) -> GroupOutcome:
        self.groups.forget_failed_downgrades()
        match event:
            case JoinGroup() | SyncGroup() | Heartbeat() | LeaveGroup() | GroupTimer():
                return self.groups.on_classic_request(event, context)
            case ConsumerGroupHeartbeat():
                return self.groups.on_consumer_heartbeat(event, context)
            case ConsumerGroupTimer():
                return self.groups.on_consumer_timer(event, context)
            case SilenceTimer():
                return self.groups.on_silence_timer(context.now_ms)
            case ListGroups():
                return self.groups.list_groups(event)
            case DescribeGroup():
                return self.groups.describe(event.group_id)
            case DescribeConsumerGroup():
                return self.groups.describe_consumers(event.group_id)
            case OffsetCommit():
                return self._group_offsets.commit(event, context)
            case TxnOffsetCommit():
                return self._group_offsets.commit_in_transaction(event, context)
            case OffsetFetch():
                return self._group_offsets.fetch(event)
            case DeleteGroup():
                return self._group_offsets.delete_group(event.group_id)
            case DeleteOffsets():
                return self._group_offsets.delete_offsets(event)
            case TopicsDeleted():
                return self._group_offsets.topics_deleted(event.topics, context.now_ms)
            case ExpireOffsets():
                return self._group_offsets.expire(event.group_ids, context.now_ms)

    def state_of(self, group_id: str) -> GroupState:
        return self.groups.state_of(group_id)

    # --- invariants -----------------------------------------------------------------------------------------

    def validate(self, event: GroupEvent | None = None) -> None:
        """Raises AssertionError when an invariant of the groups or of the offsets does not hold.  With
        `event`, which the runtime has just handled, it looks at the groups of that event alone; else at
        all."""
        group_ids = None if event is None else group_ids_of(event)
        self.groups.validate(group_ids)
        self.offsets.validate(group_ids)
