"""Committed offsets, and offsets that wait for their transaction's marker (docs/semantics.md O1 to O4).

`replay_*` are the only mutators.  `shard.py` checks the requests.

- A plain commit counts once it is in the log.  A transactional one waits under its producer id for the
  marker.
- On COMMIT an offset replaces the committed one only if its *record* is newer (rule O2): a plain commit or a
  tombstone after the transactional record and before the marker stays.
- While a group has an undecided offset, a stable read gets UNSTABLE_OFFSET_COMMIT, the offset does not
  expire, and the group cannot be deleted (rules O3, O4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...wire.errors import ErrorCode
from ..outcome import CoordinatorRecord
from .classic.records import OffsetKey, OffsetValue, encode_offset_key, encode_offset_value
from .events import FetchedOffset, GroupConfig, OffsetToCommit, TopicPartition


class CommittedOffset(NamedTuple):
    """A committed offset, and the offset of its record in the log."""

    value: OffsetValue
    record_offset: int


def offset_records(
    group_id: str,
    offsets: Iterable[OffsetToCommit],
    config: GroupConfig,
    now_ms: int,
    expire_ms: int,
    level: int,
) -> tuple[list[CoordinatorRecord], dict[TopicPartition, ErrorCode]]:
    """The records of a commit, and the error code for each partition."""
    written: list[CoordinatorRecord] = []
    errors: dict[TopicPartition, ErrorCode] = {}
    for offset in offsets:
        topic_partition = (offset.topic, offset.partition)
        if len(offset.metadata.encode()) > config.offset_metadata_max_bytes:
            errors[topic_partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        errors[topic_partition] = ErrorCode.NONE
        value = OffsetValue(offset.offset, offset.leader_epoch, offset.metadata, now_ms, expire_ms)
        key = encode_offset_key(group_id, offset.topic, offset.partition)
        written.append(CoordinatorRecord(key, encode_offset_value(value, level)))
    return written, errors


class OffsetStore:
    """All offsets of one partition of __consumer_offsets."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[str, dict[TopicPartition, CommittedOffset | None]]] = {}
        self._undecided: dict[str, dict[TopicPartition, set[int]]] = {}

    # --- replay ---------------------------------------------------------------------------------------------

    def replay_commit(self, key: OffsetKey, value: OffsetValue | None, record_offset: int) -> None:
        """A plain commit, or a tombstone."""
        topic_partition = (key.topic, key.partition)
        if value is not None:
            self._committed.setdefault(key.group_id, {})[topic_partition] = CommittedOffset(
                value, record_offset
            )
            return
        self._forget_undecided(key.group_id, topic_partition)
        offsets = self._committed.get(key.group_id)
        if offsets is not None:
            offsets.pop(topic_partition, None)
            if not offsets:
                del self._committed[key.group_id]

    def _forget_undecided(self, group_id: str, topic_partition: TopicPartition) -> None:
        """A tombstone is newer than the records of open transactions before it (rule O2); log cleaning keeps
        the tombstone."""
        undecided = self._undecided.get(group_id, {})
        for producer_id in undecided.pop(topic_partition, ()):
            offsets = self._pending[producer_id][group_id]
            del offsets[topic_partition]
            if not offsets:
                del self._pending[producer_id][group_id]
            if not self._pending[producer_id]:
                del self._pending[producer_id]
        if not undecided:
            self._undecided.pop(group_id, None)

    def replay_transactional(
        self, producer_id: int, key: OffsetKey, value: OffsetValue | None, record_offset: int
    ) -> None:
        """A commit inside a transaction; the last one of a partition counts."""
        topic_partition = (key.topic, key.partition)
        committed = None if value is None else CommittedOffset(value, record_offset)
        self._pending.setdefault(producer_id, {}).setdefault(key.group_id, {})[topic_partition] = committed
        self._undecided.setdefault(key.group_id, {}).setdefault(topic_partition, set()).add(producer_id)

    def replay_marker(self, producer_id: int, commit: bool) -> set[str]:
        """A marker decides the transaction; returns the groups that it touched.  Without pending offsets
        nothing changes (rule L4)."""
        decided = self._pending.pop(producer_id, {})
        for group_id, offsets in decided.items():
            undecided = self._undecided[group_id]
            for topic_partition, committed in offsets.items():
                producers = undecided[topic_partition]
                producers.discard(producer_id)
                if not producers:
                    del undecided[topic_partition]
                if commit and committed is not None:
                    present = self._committed.get(group_id, {}).get(topic_partition)
                    if present is None or present.record_offset < committed.record_offset:
                        self._committed.setdefault(group_id, {})[topic_partition] = committed
            if not undecided:
                del self._undecided[group_id]
        return set(decided)

    # --- invariants -----------------------------------------------------------------------------------------

    def validate(self, group_ids: Iterable[str] | None) -> None:
        """Raises AssertionError when the offsets of these groups, or with None of any, break an invariant:
        the table of undecided partitions is the inverse of the pending offsets, and no table is empty."""
        for group_id in [*self.groups()] if group_ids is None else group_ids:
            undecided = self._undecided.get(group_id)
            empty = self._committed.get(group_id) == {} or undecided == {}
            assert not empty, f"group {group_id}: an empty table"
            pending: dict[TopicPartition, set[int]] = {}
            for producer_id, groups in self._pending.items():
                for topic_partition in groups.get(group_id, {}):
                    pending.setdefault(topic_partition, set()).add(producer_id)
            assert pending == (undecided or {}), f"group {group_id}: {pending} pending, {undecided} undecided"

    # --- views ----------------------------------------------------------------------------------------------

    def get(self, group_id: str, topic_partition: TopicPartition) -> CommittedOffset | None:
        return self._committed.get(group_id, {}).get(topic_partition)

    def fetch(self, group_id: str, topic_partition: TopicPartition, require_stable: bool) -> FetchedOffset:
        if require_stable and self.is_undecided(group_id, topic_partition):
            return FetchedOffset(error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
        committed = self.get(group_id, topic_partition)
        if committed is None:
            return FetchedOffset()
        return FetchedOffset(committed.value.offset, committed.value.leader_epoch, committed.value.metadata)

    def of_group(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        return self._committed.get(group_id, {})

    def is_undecided(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Whether some open transaction has written an offset for this partition."""
        return topic_partition in self._undecided.get(group_id, {})

    def undecided(self, group_id: str) -> frozenset[TopicPartition]:
        return frozenset(self._undecided.get(group_id, {}))

    def knows(self, group_id: str) -> bool:
        return group_id in self._committed or group_id in self._undecided

    def newest_of_group(self, group_id: str) -> dict[TopicPartition, int]:
        """For each partition: the time (ms) of its newest offset, committed or undecided."""
        newest = {
            key: committed.value.commit_timestamp_ms for key, committed in self.of_group(group_id).items()
        }
        for topic_partition, producers in self._undecided.get(group_id, {}).items():
            for producer_id in producers:
                pending = self._pending[producer_id][group_id][topic_partition]
                if pending is not None:
                    newest[topic_partition] = max(
                        newest.get(topic_partition, -1), pending.value.commit_timestamp_ms
                    )
        return newest

    def groups(self) -> Iterator[str]:
        """Every group with an offset, committed or undecided."""
        yield from self._committed
        yield from (group_id for group_id in self._undecided if group_id not in self._committed)

    def count(self) -> int:
        """Committed offsets, for metrics."""
        return sum(len(offsets) for offsets in self._committed.values())

    def open_producers(self) -> frozenset[int]:
        """Producer ids with undecided offsets: for metrics, and to find hanging transactions."""
        return frozenset(self._pending)
