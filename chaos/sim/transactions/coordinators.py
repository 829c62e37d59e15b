"""The coordinators: on each of three nodes the product's runtime, shard and marker queue, upon a modelled
state partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from ....controller.state.model import TWO_PHASE_COMMIT_LEVEL
from ....coordinator.running_shard import RuntimeConfig
from ....coordinator.runtime import CoordinatorRuntime
from ....coordinator.transaction.events import CompleteHeld, SendMarkers, TransactionConfig
from ....coordinator.transaction.job_events import CarryOutJob, ContinueJob
from ....coordinator.transaction.markers import MarkerBatch
from ....coordinator.transaction.shard import TransactionShard
from ....coordinator.transaction.state import TransactionPartition
from ....wire.errors import ErrorCode, KafkaError
from ....wire.records import NewRecord, assign_in_place, decode_batch, encode_batch
from .environment import Environment
from .partitions import DataPartition


@dataclass
class StatePartition:
    """What the cluster knows of the state partition; a node may not know it yet."""

    leader: int | None = None  # the number of its node
    epoch: int = 0
    in_sync: set[int] = field(default_factory=lambda: {0, 1, 2})
    committed: int = 0  # the highest high watermark that any leader has reached


@dataclass
class Node:
    """One replica of the state partition, with the coordinator that runs on it when it leads."""

    number: int
    environment: Environment
    state: StatePartition
    partitions: Sequence[DataPartition]
    make_shard: Callable[[int], TransactionShard]
    """Of a leader epoch."""
    entries: list[tuple[int, bytes]] = field(default_factory=list)  # (leader epoch, batch)
    watermark: int = 0
    leads: int = 0  # the epoch it believes to lead in; 0: it follows
    alive: bool = True
    follower_ends: dict[int, int] = field(default_factory=dict)
    incarnation: int = 0

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """A process starts: its memory is empty, its log is unchanged."""
        self.incarnation += 1
        self.leads = 0
        self.runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(
            "__transaction_state",
            lambda partition, epoch: self.make_shard(epoch),
            self,
            self.execute,
            config=RuntimeConfig(parked_timeout_ms=500, validate=self.environment.faults.validates),
            steady_ms=lambda: self.environment.now_ms,
        )
        self.queue = self.environment.faults.queue(lambda partition: partition.partition, retry_backoff_ms=10)

    # StateLog
    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        if self.leads != leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "deposed")
        refused = self.environment.inflicts(self.environment.faults.refuse)
        if refused or (self.state.leader == self.number and len(self.state.in_sync) < 2):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "alone")
        # A batch of its own for each record: a follower may have some of them, which is more than a log does.
        for record in decode_batch(batch, 0):
            alone = NewRecord(record.key, record.value, (), record.timestamp_ms)
            copy = bytearray(encode_batch([alone], leader_epoch=leader_epoch))
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
        if self.environment.faults.skip_barrier:
            self.runtime.on_high_watermark(0, epoch, self.end)

    def follow(self) -> None:
        if self.leads:
            self.runtime.unload(0, self.leads + 1)
            self.queue.cancel_state_partition(0)
            self.leads = 0

    def execute(self, partition: int, epoch: int, effect: Any) -> None:
        if isinstance(effect, SendMarkers):
            if effect.identity.prepare_offset >= self.state.committed:
                self.environment.violations.append(
                    f"markers of {effect.transactional_id} before its PREPARE is committed"
                )
            self.finish(self.queue.add(0, effect))
        elif isinstance(effect, ContinueJob):
            self.runtime.submit(0, CarryOutJob(effect.job), None)
        elif isinstance(effect, CompleteHeld):
            for event in effect.events:
                self.runtime.submit(0, event, None)

    def finish(self, result: Any) -> None:
        for partition, event in result.written:
            self.runtime.submit(partition, event, None)

    def send_markers(self) -> None:
        for batch in self.queue.take(self.environment.now_ms):
            self.post_markers(batch, self.incarnation)

    def post_markers(self, batch: MarkerBatch, incarnation: int) -> None:
        """The sender still waits for a late request; meanwhile the coordinator may have moved."""
        if self.environment.inflicts(self.environment.faults.late_markers):
            self.environment.postpone(lambda: self.deliver_markers(batch, incarnation))
        else:
            lost = partial(self.lost, batch, incarnation)
            self.environment.post(lambda: self.deliver_markers(batch, incarnation), on_lost=lost)

    def deliver_markers(self, batch: MarkerBatch, incarnation: int) -> None:
        """Answered when all of them are committed, or refused."""
        wanted = [(entry.send, partition) for entry in batch.transactions for partition in entry.partitions]
        errors: dict[tuple[int, str, int], ErrorCode] = {}

        def note(send: SendMarkers, partition: TransactionPartition, code: ErrorCode) -> None:
            errors[send.producer_id, partition.topic, partition.partition] = code
            if len(errors) == len(wanted):
                lost = partial(self.lost, batch, incarnation)
                self.environment.post(lambda: self.answered(batch, errors, incarnation), on_lost=lost)

        for send, partition in wanted:
            self.partitions[partition.partition].mark(send, partial(note, send, partition))

    def answered(
        self, batch: MarkerBatch, errors: dict[tuple[int, str, int], ErrorCode], incarnation: int
    ) -> None:
        if self.alive and self.incarnation == incarnation:
            self.finish(self.queue.complete(batch, errors, self.environment.now_ms))

    def lost(self, batch: MarkerBatch, incarnation: int) -> None:
        if self.alive and self.incarnation == incarnation:
            self.finish(self.queue.failed(batch, self.environment.now_ms))


class Coordinators:
    """Of one state partition: all nodes, and which of them leads it."""

    def __init__(
        self,
        environment: Environment,
        partitions: Sequence[DataPartition],
        completion_wait_ms: int,
        producer_ids: Iterator[int] | None = None,
    ) -> None:
        self._environment = environment
        self.state = StatePartition()
        self.producer_ids = count(100) if producer_ids is None else producer_ids
        config = TransactionConfig(
            max_producer_epoch=environment.faults.max_epoch,
            timeout_scan_interval_ms=100,
            completion_wait_ms=completion_wait_ms,
            job_batch_max=2,
            job_failover_grace_ms=500,
        )

        def make_shard(epoch: int) -> TransactionShard:
            return environment.faults.shard(
                config, lambda: next(self.producer_ids), epoch, finalised_level=lambda: TWO_PHASE_COMMIT_LEVEL
            )

        self.nodes = [Node(number, environment, self.state, partitions, make_shard) for number in range(3)]
        self.elect(self.nodes[0])

    @property
    def leader(self) -> Node | None:
        return None if self.state.leader is None else self.nodes[self.state.leader]

    def elect(self, node: Node) -> None:
        self.state.epoch += 1
        self.state.leader = node.number
        node.lead(self.state.epoch)

    def choose_leader(self, *, besides: Node) -> None:
        in_sync = [node for node in self.nodes if node.number in self.state.in_sync]
        able = [node for node in in_sync if node.alive and node is not besides and not node.leads]
        self.state.leader = None
        if able:
            if self._environment.faults.cuts:  # the controller takes it for dead
                self.state.in_sync.discard(besides.number)
            self.elect(self._environment.random.choice(able))

    def fetch(self, node: Node) -> None:
        """A follower fetches from the true leader: truncates what differs, acknowledges, takes a batch or
        two."""
        leader = self.leader
        if leader is None or not node.alive or node is leader or node.leads:
            return
        common = 0
        while common < min(node.end, leader.end) and node.entries[common] == leader.entries[common]:
            common += 1
        del node.entries[common:]
        leader.follower_ends[node.number] = node.end
        if node.number not in self.state.in_sync and node.end >= leader.end:
            self.state.in_sync.add(node.number)
        self.advance_watermark(leader)
        node.entries += leader.entries[node.end : node.end + self._environment.random.randint(1, 2)]
        node.watermark = max(node.watermark, min(leader.watermark, node.end))

    def advance_watermark(self, leader: Node) -> None:
        if len(self.state.in_sync) < 2 or leader.number not in self.state.in_sync:
            return
        ends = [
            leader.end if number == leader.number else leader.follower_ends.get(number, 0)
            for number in self.state.in_sync
        ]
        if min(ends) > leader.watermark:
            leader.watermark = min(ends)
            self.state.committed = max(self.state.committed, leader.watermark)
            leader.runtime.on_high_watermark(0, leader.leads, leader.watermark)

    def kill(self, node: Node) -> None:
        node.alive = False
        node.leads = 0
        if self.leader is node:
            self.choose_leader(besides=node)

    def restart(self, node: Node) -> None:
        node.alive = True
        node.boot()
        if self.leader is None and node.number in self.state.in_sync:
            self.elect(node)
