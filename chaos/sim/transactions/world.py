"""Everything around the coordinators, and the schedule that a seed draws.

Real: `CoordinatorRuntime`, `TransactionShard`, `MarkerQueue` and their records, one of each on every node; the logs of the
partitions that are written to, with their producers, guards, markers and indexes; the group shard that reads the offsets.
Modelled: the replicated state partition (three replicas, in-sync set, high watermark, elections, truncation), who leads the other
partitions, a network that delays, reorders, duplicates and loses, and producers that follow the protocol.

A run draws faults from its seed, then heals, waits for rest, and `check` holds the history against the promises: no torn
transaction, no lost write, no aborted read at any time; offsets and output atomic; no marker before its PREPARE is committed; the
last stable offset never back within a leader epoch; nothing open or prepared at rest; no epoch out of range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from ....coordinator.group.events import GroupConfig
from ....coordinator.group.records import OffsetValue, encode_offset_key, encode_offset_value
from ....coordinator.group.shard import GroupShard
from ....coordinator.runtime import CoordinatorRuntime, Phase
from ....coordinator.transaction.events import AddPartitions, EndTxn, SendMarkers
from ....coordinator.transaction.shard import TransactionShard
from ....coordinator.transaction.state import TransactionPartition
from ....storage.log import AppendOrigin, VerificationGuard
from ....wire.errors import ErrorCode, KafkaError
from ....wire.records import NewRecord, encode_batch, iterate_headers
from ..runs import Broken
from .coordinators import Node
from .faults import Faults
from .partitions import NOW_MS, DataPartition
from .producers import DATA_PARTITIONS, OFFSETS, Client, Transaction


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
        self.partitions = [DataPartition(TransactionPartition("t", index)) for index in range(DATA_PARTITIONS + 1)]
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

        def lost() -> None:
            reply(KafkaError(ErrorCode.NETWORK_EXCEPTION))

        if isinstance(event, EndTxn) and not self.healing and self.random.random() < self.faults.late_ends:
            self.postpone(arrive)
            self.network.append(lost)
            return
        self.post(arrive, on_lost=lost)

    def produce(
        self, client: Client, place: int, pid: int, epoch: int, sequence: int, value: int, reply: Callable[[ErrorCode], None]
    ) -> None:
        """KIP-890: the first append of a transaction is enlisted (TV2) or verified (TV1) under a guard."""
        partition = self.partitions[place]
        batch = encode_batch(
            [_record(client.id, place, value)], producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )

        def answer(code: ErrorCode) -> None:
            self.post(lambda: reply(code))

        def arrive() -> None:
            at, log = partition.leader, partition.log
            try:
                if log.transaction_open(pid, epoch) or not self.faults.verifies:
                    append(at, None)
                    return
                guard = log.start_verification(pid, epoch, sequence)
            except KafkaError as error:
                answer(error.code)
                return
            ask = AddPartitions(client.id, pid, epoch, (partition.name,), client.version, client.version < 2)
            self.to_coordinator(ask, lambda said: enlisted(said, at, guard))

        def enlisted(said: Any, at: int, guard: VerificationGuard) -> None:
            code = said.code if isinstance(said, KafkaError) else next(iter(said.errors.values()))
            if code is not ErrorCode.NONE:
                answer(code)
                return
            if not self.faults.guard_before_question:
                try:
                    guard = partition.logs[at].start_verification(pid, epoch, sequence)
                except KafkaError as error:
                    answer(error.code)
                    return
            append(at, guard)

        def append(at: int, guard: VerificationGuard | None) -> None:
            full = not self.healing and self.random.random() < self.faults.full
            partition.append(at, batch, AppendOrigin.CLIENT, guard, client.version, answer, full=full)

        if not self.healing and self.random.random() < self.faults.late_produces:
            self.postpone(arrive)
            self.network.append(lambda: reply(ErrorCode.NETWORK_EXCEPTION))
            return
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
        for partition in self.partitions:
            partition.replicate(self.random, everything=self.healing)
            if not self.healing and self.random.random() < self.faults.move:
                partition.move((partition.leader + self.random.randint(1, 2)) % 3)
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
        found = [f"{p.name.partition}: producer {pid} is open" for p in self.partitions for pid in p.open_producers()]
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
        for partition in self.partitions:
            found += partition.violations
            truth = sorted(value for _key, value in partition.committed())
            if sorted(partition.seen) != truth:
                found.append(f"aborted read or lost: readers of {partition.name.partition} saw something else than was committed")
        seen = [set(partition.seen) for partition in self.partitions]
        for number, transaction in enumerate(self.transactions):
            visible = [value for value, place in transaction.values.items() if value in seen[place]]
            if 0 < len(visible) < len(transaction.values):
                found.append(f"torn: transaction {number}, {len(visible)} of {len(transaction.values)} visible")
            if transaction.outcome == "committed" and not visible:
                found.append(f"lost: transaction {number}")
            if transaction.outcome == "aborted" and visible:
                found.append(f"aborted read: transaction {number}")
        found += self._check_offsets()
        for node in self.nodes:
            counted = node.runtime.metrics_of(0)
            if counted.handler_failures or counted.failures:
                found.append(f"node {node.number}: a shard or handler failed")
        return found


    def _check_offsets(self) -> list[str]:
        """What a group coordinator that loads the offsets partition answers, against the last committed record of each key."""
        partition = self.partitions[OFFSETS]
        shard = GroupShard(GroupConfig())
        end = partition.log.log_end_offset
        runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime("offsets", lambda *_: shard, _Read(end), lambda *_: None)
        runtime.begin_load(0, 1, end)
        runtime.load_batches(0, 1, partition.batches())
        runtime.finish_load(0, 1)
        wanted = dict(partition.committed())
        stored = {
            encode_offset_key(group, *place): entry.value.offset
            for group in shard.offsets.groups()
            for place, entry in shard.offsets.of_group(group).items()
        }
        return [] if stored == wanted else [f"offsets: {stored} are stored, and {wanted} were committed"]

    def counts(self) -> Counter[str]:
        """What happened in this history, to add up."""
        outcomes = Counter(f"transactions {transaction.outcome}" for transaction in self.transactions)
        outcomes["elections of a coordinator"] = self.epoch
        outcomes["leaders moved"] = sum(partition.moves for partition in self.partitions)
        return outcomes


class _Read:
    """The log of a load: nothing is appended, and all of it is committed."""

    def __init__(self, end: int) -> None:
        self._end = end

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        raise AssertionError("a load appends nothing")

    def high_watermark(self, partition: int) -> int:
        return self._end


def _record(client_id: str, place: int, value: int) -> NewRecord:
    if place == OFFSETS:
        key = encode_offset_key(client_id, "t", 0)
        return NewRecord(key, encode_offset_value(OffsetValue(value, -1, "", NOW_MS)), (), NOW_MS)
    return NewRecord(None, b"%d" % value, (), NOW_MS)


def batches_are_single(node: Node) -> bool:
    """The model's offsets count batches: every batch of the state topic here holds one record."""
    return all(header.record_count == 1 for _, batch in node.entries for _, header in iterate_headers(batch))


def run_history(seed: int, faults: Faults, steps: int = 1_000) -> Counter[str]:
    """One seed.  Raises Broken."""
    world = World(seed, faults)
    found = world.run(steps)
    if found:
        raise Broken(f"seed {seed}: " + "; ".join(found))
    return world.counts()
