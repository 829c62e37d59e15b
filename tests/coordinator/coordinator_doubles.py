"""Doubles for the coordinator's tests: a log in memory, and a driver that remembers the replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from tidegate.coordinator.group.consumer.events import TopicShape
from tidegate.coordinator.group.consumer.patterns import topic_pattern
from tidegate.coordinator.outcome import ProducerIdentity
from tidegate.coordinator.running_shard import RuntimeConfig
from tidegate.coordinator.runtime import CoordinatorRuntime
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import ControlType, assign_in_place, encode_marker, iterate_headers


class MemoryLog:
    """A `StateLog`: partitions in memory; `commit` moves the high watermark, `refuse` makes appends fail."""

    def __init__(self) -> None:
        self.data: dict[int, bytearray] = {}
        self.end: dict[int, int] = {}
        self.watermark: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.refuse: KafkaError | None = None
        self.guards: list[object] = []
        self.on_append: Callable[[int], None] | None = None

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        if self.refuse is not None:
            raise self.refuse
        if leader_epoch < self.epochs.get(partition, 0):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fenced")
        self.guards.append(guard)
        end = self._append(partition, leader_epoch, batch)
        if self.on_append is not None:
            self.on_append(partition)
        return end

    def _append(self, partition: int, leader_epoch: int, batch: bytes) -> int:
        copy = bytearray(batch)
        assign_in_place(memoryview(copy), 0, self.end.get(partition, 0), leader_epoch)
        _, header = next(iter(iterate_headers(bytes(copy))))
        self.data.setdefault(partition, bytearray()).extend(copy)
        self.end[partition] = header.next_offset
        return header.next_offset

    def append_marker(
        self, partition: int, producer: ProducerIdentity, commit: bool, coordinator_epoch: int = 0
    ) -> int:
        """What the node does with WriteTxnMarkers; returns the marker's offset."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = encode_marker(kind, producer.producer_id, producer.producer_epoch, coordinator_epoch, 0)
        return self._append(partition, self.epochs.get(partition, 0), marker) - 1

    def high_watermark(self, partition: int) -> int:
        return self.watermark.get(partition, 0)


class LimitedLog(MemoryLog):
    """Takes batches of Kafka's `max.message.bytes`."""

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        if len(batch) > 1_048_588:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
        return super().append(partition, leader_epoch, batch, guard)


class Catalog:
    """Topics by name with their partition counts; `set` makes, deletes (0) and enlarges them."""

    def __init__(self, **counts: int) -> None:
        self.version = 0
        self.topics: dict[str, TopicShape] = {}
        self._ids = 0
        for name, partitions in sorted(counts.items()):
            self.set(name, partitions)

    def set(self, name: str, partitions: int) -> None:
        self.version += 1
        old = self.topics.pop(name, None)
        if old is None:
            self._ids += 1
        if partitions:
            self.topics[name] = TopicShape(UUID(int=self._ids) if old is None else old.topic_id, partitions)

    def shapes(self, names: Iterable[str]) -> dict[str, TopicShape]:
        return {name: self.topics[name] for name in names if name in self.topics}

    def matching(self, pattern: str) -> Iterable[str] | None:
        return [name for name in self.topics if topic_pattern(pattern).matches(name)]


class Driver:
    """A runtime over a `MemoryLog`; replies are collected by the caller's label."""

    def __init__(
        self,
        make_shard: Callable[[int, int], Any],
        *,
        config: RuntimeConfig | None = None,
        log: MemoryLog | None = None,
        now_ms: int = 1_000_000,
    ) -> None:
        self.log = log or MemoryLog()
        self._make_shard = make_shard
        self.violations: list[str] = []  # of what `replayed_state.checked` looks at
        self.effects: list[tuple[int, int, Any]] = []
        self.failures: list[tuple[int, int, str]] = []
        self.replies: dict[object, Any] = {}
        self.now_ms = now_ms
        self.runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(
            "__state",
            make_shard,
            self.log,
            lambda partition, epoch, effect: self.effects.append((partition, epoch, effect)),
            config=replace(config or RuntimeConfig(), validate=True),
            on_failed=lambda partition, epoch, reason: self.failures.append((partition, epoch, reason)),
            steady_ms=lambda: self.now_ms,
        )

    def load(self, partition: int = 0, epoch: int = 1, *, barrier: bool = True) -> None:
        self.log.epochs[partition] = epoch
        end = self.log.end.get(partition, 0)
        self.runtime.begin_load(partition, epoch, end)
        self.runtime.load_batches(partition, epoch, bytes(self.log.data.get(partition, b"")))
        self.runtime.finish_load(partition, epoch)
        if barrier:
            self.commit(partition, epoch)

    def loaded(self) -> Any:
        """A shard that has loaded what is in the log now, and does not serve."""
        log = MemoryLog()
        log.data, log.end = {0: bytearray(self.log.data.get(0, b""))}, {0: self.log.end.get(0, 0)}
        successor = Driver(self._make_shard, log=log, now_ms=self.now_ms)
        successor.load(epoch=self.log.epochs[0] + 1, barrier=False)
        ((_, _, shard),) = successor.runtime.shards()
        return shard

    def commit(self, partition: int = 0, epoch: int | None = None, offset: int | None = None) -> None:
        """Moves the high watermark, by default to the end of the log."""
        self.log.watermark[partition] = self.log.end.get(partition, 0) if offset is None else offset
        epoch = epoch or self.runtime.leader_epoch(partition) or 0
        self.runtime.on_high_watermark(partition, epoch, self.log.watermark[partition])

    def submit(self, label: object, event: Any, partition: int = 0) -> Any:
        """Submits; returns the reply if it is there already."""
        self.replies.pop(label, None)

        def keep(value: Any) -> None:
            assert label not in self.replies, f"{label} was answered twice"
            self.replies[label] = value

        self.runtime.submit(partition, event, keep)
        assert not self.violations, self.violations
        return self.replies.get(label)

    def ask(self, event: Any, partition: int = 0) -> Any:
        """Submits, commits, and returns the reply."""
        label = object()
        self.submit(label, event, partition)
        self.commit(partition)
        return self.replies[label]

    def tick(self, advance_ms: int = 0) -> None:
        self.now_ms += advance_ms
        self.runtime.tick()
        assert not self.violations, self.violations

    def away(self, for_ms: int) -> None:
        """The node is cut off for so long, and no other leader is elected."""
        self.now_ms += for_ms
        self.runtime.reject_waiting_callers()
        self.runtime.tick(timers=False)
        self.runtime.resume(for_ms)
        self.runtime.tick()


def code_of(reply: Any) -> ErrorCode:
    """The error code of a reply; NONE for one that is not an error."""
    return reply.code if isinstance(reply, KafkaError) else ErrorCode.NONE
