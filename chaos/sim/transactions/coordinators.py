"""The coordinators: on each of three nodes the product's runtime, shard and marker queue, upon a modelled state partition."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ....coordinator.runtime import CoordinatorRuntime, RuntimeConfig
from ....coordinator.transaction.events import SendMarkers, TransactionConfig
from ....coordinator.transaction.markers import MarkerBatch
from ....coordinator.transaction.state import TransactionPartition
from ....wire.errors import ErrorCode, KafkaError
from ....wire.records import assign_in_place

if TYPE_CHECKING:
    from .world import World


@dataclass
class Node:
    """One replica of the state partition, with the coordinator that runs on it when it leads."""

    number: int
    world: World
    entries: list[tuple[int, bytes]] = field(default_factory=list)  # (leader epoch, batch)
    watermark: int = 0
    leads: int = 0  # the epoch it believes to lead in; 0: it follows
    alive: bool = True
    follower_ends: dict[int, int] = field(default_factory=dict)
    incarnation: int = 0

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """A process starts: its memory is empty, its log is what it was."""
        world = self.world
        self.incarnation += 1
        self.leads = 0
        config = TransactionConfig(
            max_producer_epoch=world.faults.max_epoch, timeout_scan_interval_ms=100, completion_wait_ms=world.completion_wait_ms
        )
        self.runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(
            "__transaction_state",
            lambda partition, epoch: world.faults.shard(config, lambda: next(world.producer_ids), epoch),
            self,
            self.execute,
            config=RuntimeConfig(parked_timeout_ms=500),
            now_ms=world.now_ms,
        )
        self.queue = world.faults.queue(lambda partition: partition.partition, retry_backoff_ms=10)

    # StateLog
    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        if self.leads != leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "deposed")
        refused = not self.world.healing and self.world.random.random() < self.world.faults.refuse
        if refused or (self.world.leader is self and len(self.world.in_sync) < 2):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "alone")
        copy = bytearray(batch)
        assign_in_place(memoryview(copy), 0, self.end, leader_epoch)
        self.entries.append((leader_epoch, bytes(copy)))
        return self.end

    def high_watermark(self, partition: int) -> int:
        return self.watermark

    @property
    def end(self) -> int:
        return len(self.entries)  # one record a batch on this topic

    def lead(self, epoch: int) -> None:
        self.leads = epoch
        self.follower_ends = {}
        self.runtime.begin_load(0, epoch, self.end)
        self.runtime.load_batches(0, epoch, b"".join(batch for _, batch in self.entries))
        self.runtime.finish_load(0, epoch)
        if self.world.faults.skip_barrier:
            self.runtime.on_high_watermark(0, epoch, self.end)

    def follow(self) -> None:
        if self.leads:
            self.runtime.unload(0, self.leads + 1)
            self.queue.cancel_state_partition(0)
            self.leads = 0

    def execute(self, partition: int, epoch: int, effect: Any) -> None:
        if isinstance(effect, SendMarkers):
            self.world.note_markers(effect)
            self.finish(self.queue.add(0, effect))

    def finish(self, result: Any) -> None:
        for partition, event in result.written:
            self.runtime.submit(partition, event, None, self.world.now_ms)

    def send_markers(self) -> None:
        for batch in self.queue.take(self.world.now_ms):
            self.post_markers(batch, self.incarnation)

    def post_markers(self, batch: MarkerBatch, incarnation: int) -> None:
        """A late request is one that the sender still waits for; meanwhile the coordinator may have moved."""
        if not self.world.healing and self.world.random.random() < self.world.faults.late_markers:
            self.world.postpone(lambda: self.deliver_markers(batch, incarnation))
        else:
            self.world.post(lambda: self.deliver_markers(batch, incarnation), on_lost=lambda: self.lost(batch, incarnation))

    def deliver_markers(self, batch: MarkerBatch, incarnation: int) -> None:
        """Answered when all of them are committed, or refused."""
        wanted = [(entry.send, partition) for entry in batch.transactions for partition in entry.partitions]
        errors: dict[tuple[int, str, int], ErrorCode] = {}

        def note(send: SendMarkers, partition: TransactionPartition, code: ErrorCode) -> None:
            errors[send.producer_id, partition.topic, partition.partition] = code
            if len(errors) == len(wanted):
                self.world.post(lambda: self.answered(batch, errors, incarnation), on_lost=lambda: self.lost(batch, incarnation))

        for send, partition in wanted:
            self.world.partitions[partition.partition].mark(send, partial(note, send, partition))

    def answered(self, batch: MarkerBatch, errors: dict[tuple[int, str, int], ErrorCode], incarnation: int) -> None:
        if self.alive and self.incarnation == incarnation:
            self.finish(self.queue.complete(batch, errors, self.world.now_ms))

    def lost(self, batch: MarkerBatch, incarnation: int) -> None:
        if self.alive and self.incarnation == incarnation:
            self.finish(self.queue.failed(batch, self.world.now_ms))
