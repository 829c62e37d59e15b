"""One history: all parts together, the schedule that its seed draws, and the invariants.

Real: `CoordinatorRuntime`, `TransactionShard`, `MarkerQueue` and their records, one of each on every node;
the logs of the partitions that transactions write to, with their producers, guards, markers and indexes; the
group shard that reads the offsets. Modelled: the replicated state partition (three replicas, in-sync set,
high watermark, elections, truncation), the leaders of the other partitions, a network that delays, reorders,
duplicates and loses, and producers that follow the protocol.

A run draws faults from its seed, then heals, waits for rest, and `check` holds the history against the
promises: no torn transaction, no lost write, no aborted read at any time; offsets and output atomic; no
marker before its PREPARE is committed; the last stable offset never back within a leader epoch; nothing open
or prepared at rest; no epoch out of range.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ....coordinator.group.classic.records import encode_offset_key
from ....coordinator.group.events import GroupConfig
from ....coordinator.group.shard import GroupShard
from ....coordinator.runtime import CoordinatorRuntime
from ....coordinator.shard_view import Phase
from ....coordinator.transaction.jobs import JobId
from ....coordinator.transaction.shard import TransactionShard
from ....coordinator.transaction.state import TransactionPartition
from ....wire.records import iterate_headers
from ..runs import Broken
from .coordinators import Coordinators, Node
from .environment import Environment
from .faults import Faults
from .jobs import Decisions, Driver, violations
from .partitions import DATA_PARTITIONS, OFFSETS, DataPartition
from .producers import Client, Workload
from .requests import Requests


class World:
    """Everything, and the schedule drawn from the seed."""

    def __init__(self, seed: int, faults: Faults | None = None, clients: int = 2) -> None:
        self.environment = Environment(seed, faults or Faults())
        self.faults, self.random = self.environment.faults, self.environment.random
        self.partitions = [
            DataPartition(TransactionPartition("t", index)) for index in range(DATA_PARTITIONS + 1)
        ]
        self.coordinators = Coordinators(
            self.environment, self.partitions, completion_wait_ms=(0, 30, 400)[seed % 3]
        )
        self.requests = Requests(self.environment, self.coordinators, self.partitions)
        self.workload = Workload()
        self.clients = [self.client(f"client-{number}") for number in range(clients)]
        self.decisions: dict[JobId, Decisions] = {}
        self.drivers: list[Driver] = []
        if self.faults.jobs:
            self.drive(0)

    def client(self, transactional_id: str) -> Client:
        """A new one."""
        return Client(self.environment, self.requests, self.workload, transactional_id)

    def drive(self, batch: int) -> None:
        """A new instance of the batch engine's driver."""
        number = len(self.drivers)
        self.drivers.append(
            Driver(self.environment, self.requests, self.workload, self.decisions, number, batch)
        )

    # the schedule
    def step(self) -> None:
        environment = self.environment
        environment.now_ms += self.random.randint(0, 20)
        draw = self.random.random()
        if not environment.healing:
            self.break_something(draw)
        for node in self.coordinators.nodes:
            if node.alive and self.random.random() < 0.3:
                node.runtime.tick()
                node.send_markers()
            if self.random.random() < 0.7:
                self.coordinators.fetch(node)
        for client in self.clients:
            if self.random.random() < 0.7:
                client.step()
        for driver in self.drivers:
            if self.random.random() < 0.7:
                driver.step()
        for partition in self.partitions:
            partition.replicate(self.random, everything=environment.healing)
            if environment.inflicts(self.faults.move):
                partition.move((partition.leader + self.random.randint(1, 2)) % 3)
        environment.deliver()
        if self.faults.validates:
            self.validate()

    def validate(self) -> None:
        """The invariants of every shard that serves."""
        for node in self.coordinators.nodes:
            for _, phase, shard in node.runtime.shards():
                if phase is Phase.ACTIVE:
                    try:
                        shard.validate()
                    except AssertionError as error:
                        self.environment.violations.append(f"node {node.number}: invariant: {error}")

    def break_something(self, draw: float) -> None:
        coordinators, state = self.coordinators, self.coordinators.state
        node = self.random.choice(coordinators.nodes)
        leads = node is coordinators.leader
        if draw < self.faults.kill and node.alive and all(each.alive for each in coordinators.nodes):
            coordinators.kill(node)
        elif draw < 4 * self.faults.kill and not node.alive:
            coordinators.restart(node)
        elif draw > 1 - self.faults.depose and coordinators.leader is not None:
            coordinators.choose_leader(besides=coordinators.leader)  # the old leader does not know yet
        elif 0.7 < draw < 0.7 + 3 * self.faults.learn and node.leads and not leads:
            node.follow()  # one node in three is drawn
        elif (
            0.5 < draw < 0.52 and not leads and not (node.alive and not node.leads) and len(state.in_sync) > 1
        ):
            state.in_sync.discard(node.number)
        elif 0.6 < draw < 0.6 + self.faults.crash_client:
            index = self.random.randrange(len(self.clients))
            former = self.clients[index]
            former.alive = False
            self.clients[index] = self.client(former.id)
            self.clients[index].inherit(former)
        elif self.drivers and 0.61 < draw < 0.61 + self.faults.crash_driver:
            last = self.drivers[-1]
            # some of the time the former driver is not dead, and goes on as a zombie
            last.alive = self.random.random() < 0.3
            self.drive(last.batch)
        elif self.drivers and 0.62 < draw < 0.62 + self.faults.stall:
            self.random.choice(self.drivers).stall()

    def heal(self) -> None:
        """Every node is up, every message arrives; runs until nothing moves any more."""
        coordinators, self.environment.healing = self.coordinators, True
        for node in coordinators.nodes:
            if not node.alive:
                coordinators.restart(node)
            if node is not coordinators.leader:
                node.follow()
        if coordinators.leader is None:
            coordinators.elect(
                next(node for node in coordinators.nodes if node.number in coordinators.state.in_sync)
            )
        for _ in range(1_500):
            self.step()
            if not self.unfinished() and not self.environment.messages and not self.environment.late:
                return

    def unfinished(self) -> list[str]:
        """The transactions that are still open: at the end, hanging transactions."""
        found = [
            f"{p.name.partition}: producer {pid} is open"
            for p in self.partitions
            for pid in p.open_producers()
        ]
        leader = self.coordinators.leader
        if leader is None or leader.runtime.phase(0) is not Phase.ACTIVE:
            return [*found, "no coordinator"]
        ((_, _, shard),) = leader.runtime.shards()
        assert isinstance(shard, TransactionShard)
        return (
            found
            + [f"{name} is decided" for name in shard.decided]
            + [f"{name} is prepared" for name in shard.prepared]
            + [f"{name} is ongoing" for name in shard.ongoing]
            + [f"job {job_id} is open" for job_id in shard.jobs.book.open]
            + [f"job {job_id} has attempts" for job_id in shard.jobs.book.attempts]
        )

    def run(self, steps: int) -> list[str]:
        for _ in range(steps):
            self.step()
        self.heal()
        return self.check()

    def check(self) -> list[str]:
        """The violations of this history."""
        found = self.environment.violations + [f"hanging: {what}" for what in self.unfinished()]
        for partition in self.partitions:
            found += partition.violations
            truth = sorted(value for _key, value in partition.committed())
            if sorted(partition.seen) != truth:
                found.append(
                    f"aborted read or lost: readers of {partition.name.partition} saw something else "
                    "than was committed"
                )
        seen = [set(partition.seen) for partition in self.partitions]
        for number, transaction in enumerate(self.workload.transactions):
            visible = [value for value, place in transaction.values.items() if value in seen[place]]
            if 0 < len(visible) < len(transaction.values):
                found.append(
                    f"torn: transaction {number}, {len(visible)} of {len(transaction.values)} visible"
                )
            if transaction.outcome == "committed" and not visible:
                found.append(f"lost: transaction {number}")
            if transaction.outcome == "aborted" and visible:
                found.append(f"aborted read: transaction {number}")
        found += violations(self.decisions, seen)
        found += self._check_offsets()
        for node in self.coordinators.nodes:
            counted = node.runtime.metrics_of(0)
            if counted.handler_failures or counted.failures:
                found.append(f"node {node.number}: a shard or handler failed")
        return found

    def _check_offsets(self) -> list[str]:
        """What a group coordinator that loads the offsets partition answers, against the last committed
        record of each key."""
        partition = self.partitions[OFFSETS]
        shard = GroupShard(GroupConfig())
        end = partition.log.log_end_offset
        runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(
            "offsets", lambda *_: shard, _Read(end), lambda *_: None, steady_ms=lambda: 0
        )
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
        outcomes = Counter(
            f"transactions {transaction.outcome}" for transaction in self.workload.transactions
        )
        outcomes["elections of a coordinator"] = self.coordinators.state.epoch
        outcomes["jobs committed"] = sum(bool(noted.committed) for noted in self.decisions.values())
        outcomes["jobs proposed"] = sum(len(noted.proposed) for noted in self.decisions.values())
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
