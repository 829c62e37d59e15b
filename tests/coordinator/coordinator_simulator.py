"""A seeded simulator of transactions: real coordinator cores, a modelled cluster around them.

Real: `CoordinatorRuntime`, `TransactionShard`, `MarkerQueue` and the records, one of each on every node.
Modelled: the replicated state partition (three replicas, in-sync set, high watermark, elections, truncation), data partitions
(producer epochs, sequences, verification guards, markers; SEMANTICS 1-16 in short), a network that delays, reorders, duplicates
and loses, and producers that follow the protocol.

A run draws faults from its seed, then heals, waits for rest, and `check` holds the history against the invariants:
no torn transaction, no lost write, no aborted read, no marker before its PREPARE is committed, nothing open or prepared at rest,
no epoch out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from simulated_partitions import DataPartition, Faults
from tidegate.coordinator.runtime import CoordinatorRuntime, Phase, RuntimeConfig
from tidegate.coordinator.transaction.events import (
    AddPartitions,
    EndTxn,
    InitProducerId,
    PartitionsReply,
    ProducerReply,
    SendMarkers,
    TransactionConfig,
)
from tidegate.coordinator.transaction.markers import MarkerBatch
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import TransactionPartition
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import assign_in_place, iterate_headers

RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
}
TIMEOUT_MS = 2_000


# --- nodes and the state partition -----------------------------------------------------------------------------------------


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
        errors: dict[tuple[int, str, int], ErrorCode] = {}
        for entry in batch.transactions:
            for partition in entry.partitions:
                errors[(entry.send.producer_id, *partition[:2])] = self.world.partitions[partition.partition].mark(entry.send)
        self.world.post(lambda: self.answered(batch, errors, incarnation), on_lost=lambda: self.lost(batch, incarnation))

    def answered(self, batch: MarkerBatch, errors: dict[tuple[int, str, int], ErrorCode], incarnation: int) -> None:
        if self.alive and self.incarnation == incarnation:
            self.finish(self.queue.complete(batch, errors, self.world.now_ms))

    def lost(self, batch: MarkerBatch, incarnation: int) -> None:
        if self.alive and self.incarnation == incarnation:
            self.finish(self.queue.failed(batch, self.world.now_ms))


# --- producers -------------------------------------------------------------------------------------------------------------


@dataclass
class Transaction:
    """What a producer did.  outcome: "committed", "aborted" (no commit was asked for, or an abort was confirmed), "unknown"."""

    values: dict[Any, int] = field(default_factory=dict)  # value -> partition
    outcome: str = "aborted"


class Client:
    """A producer that follows the protocol, one request at a time."""

    def __init__(self, world: World, transactional_id: str) -> None:
        self.world = world
        self.id = transactional_id
        self.version = world.faults.transaction_version
        self.alive = True
        self.identity = (-1, -1)
        self.phase = "init"
        self.expected = (-1, -1)
        self.request = 0
        self.waiting = False
        self.resend: Callable[[], None] | None = None
        self.transaction: Transaction | None = None
        self.todo: list[tuple[Any, int]] = []
        self.sequences: dict[int, int] = {}
        self.enlisted: set[int] = set()
        self.commit = False

    def step(self) -> None:
        if self.waiting:
            if self.resend is not None and self.world.random.random() < self.world.faults.resend:
                self.resend()
            return
        if self.phase == "init":
            self.ask(InitProducerId(self.id, TIMEOUT_MS, *self.expected), self.initialised)
        elif self.phase == "idle":
            self.begin()
        elif self.todo and self.phase == "sending":
            self.send(*self.todo[0])
        else:
            assert self.transaction is not None
            if self.phase == "sending":
                self.commit = self.world.random.random() < 0.7
                self.phase = "ending"
            if self.commit:
                self.transaction.outcome = "unknown"
            self.ask(EndTxn(self.id, *self.identity, self.commit, self.version), self.ended)

    def begin(self) -> None:
        if self.world.healing:
            return
        self.transaction = Transaction()
        self.world.transactions.append(self.transaction)
        for _ in range(self.world.random.randint(1, 3)):
            value, place = next(self.world.values), self.world.random.randrange(len(self.world.partitions))
            self.transaction.values[value] = place
            self.todo.append((value, place))
        self.phase = "sending"
        self.enlisted = set()

    def ask(self, event: Any, then: Callable[[Any], None]) -> None:
        self.request += 1
        number, self.waiting = self.request, True

        def reply(value: Any) -> None:
            if self.alive and self.waiting and self.request == number:
                self.waiting = False
                then(value)

        self.resend = lambda: self.world.to_coordinator(event, reply)
        self.resend()

    def send(self, value: Any, place: int) -> None:
        if self.version < 2 and place not in self.enlisted:
            add = AddPartitions(self.id, *self.identity, (self.world.partitions[place].name,), 1)
            self.ask(add, lambda reply: self.added(place, reply))
            return
        self.request += 1
        number, self.waiting = self.request, True
        pid, epoch, sequence = *self.identity, self.sequences.get(place, 0)

        def reply(code: ErrorCode) -> None:
            if self.alive and self.waiting and self.request == number:
                self.waiting = False
                if code is ErrorCode.NONE:
                    self.sequences[place] = sequence + 1
                    self.todo.pop(0)
                else:
                    self.fail(code)

        self.resend = lambda: self.world.produce(self, place, pid, epoch, sequence, value, reply)
        self.resend()

    def added(self, place: int, reply: Any) -> None:
        if isinstance(reply, PartitionsReply):
            self.enlisted.add(place)
        else:
            self.fail(reply.code)

    def fail(self, code: ErrorCode) -> None:
        """Retriable: the same again.  Else the transaction is given up, and the identity is asked for anew (KIP-360)."""
        if code in RETRIABLE:
            return
        self.todo.clear()
        self.phase = "init"
        resumes = self.identity[0] >= 0 and code is not ErrorCode.PRODUCER_FENCED and self.expected == (-1, -1)
        self.expected = self.identity if resumes else (-1, -1)

    def initialised(self, reply: Any) -> None:
        if isinstance(reply, ProducerReply):
            if (reply.producer_id, reply.producer_epoch) != self.identity:
                self.sequences = {}
            self.identity, self.expected = (reply.producer_id, reply.producer_epoch), (-1, -1)
            self.world.note_identity(self.identity)
            self.phase = "idle"
        else:
            self.fail(reply.code)

    def ended(self, reply: Any) -> None:
        assert self.transaction is not None
        if isinstance(reply, ProducerReply):
            self.transaction.outcome = "committed" if self.commit else "aborted"
            if self.version >= 2:
                self.identity, self.sequences = (reply.producer_id, reply.producer_epoch), {}
                self.world.note_identity(self.identity)
            self.phase = "idle"
        else:
            self.fail(reply.code)


# --- the world -------------------------------------------------------------------------------------------------------------


class World:
    """Everything, and the schedule drawn from the seed."""

    def __init__(self, seed: int, faults: Faults | None = None, clients: int = 2) -> None:
        self.random = Random(seed)
        self.completion_wait_ms = (0, 30, 400)[seed % 3]
        self.faults = faults or Faults()
        self.now_ms = 1_000_000
        self.healing = False
        self.violations: list[str] = []
        self.values, self.producer_ids = count(1), count(100)
        self.partitions = [DataPartition(TransactionPartition("t", index), self.faults) for index in range(3)]
        self.network: list[Callable[[], None]] = []
        self.late: list[tuple[int, Callable[[], None]]] = []
        self.transactions: list[Transaction] = []
        self.epoch = 0
        self.committed = 0
        self.leader: Node | None = None
        self.in_sync = {0, 1, 2}
        self.nodes = [Node(number, self) for number in range(3)]
        self.elect(self.nodes[0])
        self.clients = [Client(self, f"client-{number}") for number in range(clients)]

    # network
    def post(self, deliver: Callable[[], None], on_lost: Callable[[], None] | None = None) -> None:
        """Delivers some day; perhaps twice, perhaps never (then `on_lost`, if the sender can notice)."""
        if not self.healing and on_lost is not None and self.random.random() < self.faults.lose:
            self.network.append(on_lost)
            if self.random.random() < 0.5:
                self.postpone(deliver)  # the sender gave up, and it arrives nevertheless
            return
        if not self.healing and self.random.random() < self.faults.late:
            self.postpone(deliver)
        else:
            self.network.append(deliver)
        if not self.healing and self.random.random() < self.faults.duplicate:
            self.postpone(deliver)

    def postpone(self, deliver: Callable[[], None]) -> None:
        """Out of order by anything up to several transactions."""
        self.late.append((self.now_ms + int(10 ** self.random.uniform(0, 3.3)), deliver))

    def to_coordinator(self, event: Any, reply: Callable[[Any], None]) -> None:
        believers = [node for node in self.nodes if node.alive and node.leads]
        target = self.random.choice(believers) if believers else self.nodes[0]

        def arrive() -> None:
            if not target.alive:
                self.post(lambda: reply(KafkaError(ErrorCode.NETWORK_EXCEPTION)))
                return
            target.runtime.submit(0, event, lambda value: self.post(lambda: reply(value)), self.now_ms)

        self.post(arrive, on_lost=lambda: reply(KafkaError(ErrorCode.NETWORK_EXCEPTION)))

    def produce(
        self, client: Client, place: int, pid: int, epoch: int, sequence: int, value: Any, reply: Callable[[ErrorCode], None]
    ) -> None:
        """KIP-890: the first append of a transaction is enlisted (TV2) or verified (TV1) under a guard."""
        partition = self.partitions[place]

        def arrive() -> None:
            code = partition.check(pid, epoch, sequence)
            if code is not None:
                self.post(lambda: reply(code))
            elif partition.is_open(pid, epoch):
                append()
            else:
                guard = partition.guards.setdefault(pid, object())
                ask = AddPartitions(client.id, pid, epoch, (partition.name,), client.version, client.version < 2)
                self.to_coordinator(ask, lambda answer: enlisted(answer, guard))

        def enlisted(answer: Any, guard: object) -> None:
            code = answer.code if isinstance(answer, KafkaError) else next(iter(answer.errors.values()))
            if code is not ErrorCode.NONE:
                self.post(lambda: reply(code))
            elif partition.guards.get(pid) is not guard and not partition.is_open(pid, epoch):
                self.post(lambda: reply(ErrorCode.CONCURRENT_TRANSACTIONS))
            else:
                append()

        def append() -> None:
            code = partition.check(pid, epoch, sequence)
            if code is None:
                partition.append(pid, epoch, sequence, value)
            self.post(lambda: reply(code or ErrorCode.NONE))

        self.post(arrive, on_lost=lambda: reply(ErrorCode.NETWORK_EXCEPTION))

    # replication and elections
    def elect(self, node: Node) -> None:
        self.epoch += 1
        self.leader = node
        node.lead(self.epoch)

    def choose_leader(self, *, besides: Node) -> None:
        able = [
            node for node in self.nodes if node.alive and node is not besides and node.number in self.in_sync and not node.leads
        ]
        self.leader = None
        if able:
            self.elect(self.random.choice(able))

    def fetch(self, node: Node) -> None:
        """A follower fetches from the true leader: cuts what differs, acknowledges, takes a batch or two."""
        leader = self.leader
        if leader is None or not node.alive or node is leader or node.leads:
            return
        common = 0
        while common < min(node.end, leader.end) and node.entries[common] == leader.entries[common]:
            common += 1
        del node.entries[common:]
        leader.follower_ends[node.number] = node.end
        if node.number not in self.in_sync and node.end >= leader.end:
            self.in_sync.add(node.number)
        self.advance_watermark(leader)
        node.entries += leader.entries[node.end : node.end + self.random.randint(1, 2)]
        node.watermark = max(node.watermark, min(leader.watermark, node.end))

    def advance_watermark(self, leader: Node) -> None:
        if len(self.in_sync) < 2 or leader.number not in self.in_sync:
            return
        ends = [leader.end if number == leader.number else leader.follower_ends.get(number, 0) for number in self.in_sync]
        if min(ends) > leader.watermark:
            leader.watermark = min(ends)
            self.committed = max(self.committed, leader.watermark)
            leader.runtime.on_high_watermark(0, leader.leads, leader.watermark)

    def kill(self, node: Node) -> None:
        node.alive = False
        node.leads = 0
        if self.leader is node:
            self.choose_leader(besides=node)

    def restart(self, node: Node) -> None:
        node.alive = True
        node.boot()
        if self.leader is None and node.number in self.in_sync:
            self.elect(node)

    # what must hold while running
    def note_markers(self, send: SendMarkers) -> None:
        if send.identity.prepare_offset >= self.committed:
            self.violations.append(f"markers of {send.transactional_id} before its PREPARE is committed")

    def note_identity(self, identity: tuple[int, int]) -> None:
        if not 0 <= identity[1] < self.faults.max_epoch:
            self.violations.append(f"a client was given {identity}")

    # the schedule
    def step(self) -> None:
        self.now_ms += self.random.randint(0, 20)
        draw = self.random.random()
        if not self.healing:
            self.break_something(draw)
        for node in self.nodes:
            if node.alive and self.random.random() < 0.3:
                node.runtime.tick(self.now_ms)
                node.send_markers()
            if self.random.random() < 0.7:
                self.fetch(node)
        for client in self.clients:
            if self.random.random() < 0.7:
                client.step()
        arrived = [deliver for due_ms, deliver in self.late if due_ms <= self.now_ms]
        self.late = [(due_ms, deliver) for due_ms, deliver in self.late if due_ms > self.now_ms]
        self.network += arrived
        for _ in range(min(len(self.network), self.random.randint(0, 6))):
            self.network.pop(self.random.randrange(len(self.network)))()

    def break_something(self, draw: float) -> None:
        node = self.random.choice(self.nodes)
        if draw < self.faults.kill and node.alive and sum(n.alive for n in self.nodes) == 3:
            self.kill(node)
        elif draw < 4 * self.faults.kill and not node.alive:
            self.restart(node)
        elif draw > 1 - self.faults.depose and self.leader is not None:
            self.choose_leader(besides=self.leader)  # the old leader does not know yet
        elif 0.7 < draw < 0.7 + 3 * self.faults.learn and node.leads and node is not self.leader:
            node.follow()  # one node in three is drawn
        elif 0.5 < draw < 0.52 and node is not self.leader and not (node.alive and not node.leads) and len(self.in_sync) > 1:
            self.in_sync.discard(node.number)
        elif 0.6 < draw < 0.6 + self.faults.crash_client:
            index = self.random.randrange(len(self.clients))
            self.clients[index].alive = False
            self.clients[index] = Client(self, self.clients[index].id)

    def heal(self) -> None:
        """Everybody is up, every message arrives; runs until nothing moves any more."""
        self.healing = True
        for node in self.nodes:
            if not node.alive:
                self.restart(node)
            if node is not self.leader:
                node.follow()
        if self.leader is None:
            self.elect(next(node for node in self.nodes if node.number in self.in_sync))
        for _ in range(1_500):
            self.step()
            if not self.unfinished() and not self.network and not self.late:
                return

    def unfinished(self) -> list[str]:
        """What is still open: at the end, hanging transactions."""
        found = [
            f"{p.name.partition}: producer {pid} is open" for p in self.partitions for pid, s in p.producers.items() if s.is_open
        ]
        leader = self.leader
        if leader is None or leader.runtime.phase(0) is not Phase.ACTIVE:
            return [*found, "no coordinator"]
        ((_, _, shard),) = leader.runtime.shards()
        assert isinstance(shard, TransactionShard)
        return found + [f"{name} is prepared" for name in shard.prepared] + [f"{name} is ongoing" for name in shard.ongoing]

    def run(self, steps: int) -> list[str]:
        for _ in range(steps):
            self.step()
        self.heal()
        return self.check()

    def check(self) -> list[str]:
        """The violations of this history."""
        found = self.violations + [f"hanging: {what}" for what in self.unfinished()]
        seen = [partition.visible() for partition in self.partitions]
        for number, transaction in enumerate(self.transactions):
            visible = [value for value, place in transaction.values.items() if value in seen[place]]
            if 0 < len(visible) < len(transaction.values):
                found.append(f"torn: transaction {number}, {len(visible)} of {len(transaction.values)} visible")
            if transaction.outcome == "committed" and not visible:
                found.append(f"lost: transaction {number}")
            if transaction.outcome == "aborted" and visible:
                found.append(f"aborted read: transaction {number}")
        for node in self.nodes:
            if node.runtime.metrics.handler_failures or node.runtime.metrics.shards_failed:
                found.append(f"node {node.number}: a shard or handler failed")
        return found


def batches_are_single(node: Node) -> bool:
    """The model's offsets count batches: every batch of the state topic here holds one record."""
    return all(header.record_count == 1 for _, batch in node.entries for _, header in iterate_headers(batch))
