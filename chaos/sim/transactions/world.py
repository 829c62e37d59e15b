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
from itertools import count
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
from .cuts import Metadata, TakenCut, Taker, Unit, reading_violations
from .cuts import violations as cut_violations
from .environment import Environment
from .faults import Faults
from .jobs import Decisions, Driver, violations
from .partitions import DATA_PARTITIONS, OFFSETS, DataPartition
from .producers import Client, Workload
from .requests import Requests


class World:
    """Everything, and the schedule drawn from the seed."""

    def __init__(self, seed: int, faults: Faults | None = None, clients: int | None = None) -> None:
        self.environment = Environment(seed, faults or Faults())
        clients = self.environment.faults.clients if clients is None else clients
        self.faults, self.random = self.environment.faults, self.environment.random
        self.partitions = [
            DataPartition(TransactionPartition("t", index), lags=self.faults.cuts)
            for index in range(DATA_PARTITIONS + 1)
        ]
        producer_ids = count(100)
        self.shards = [
            Coordinators(self.environment, self.partitions, (0, 30, 400)[seed % 3], producer_ids)
            for _ in range(self.faults.shards)
        ]
        self.requests = Requests(self.environment, self.shards, self.partitions)
        self.workload = Workload()
        self.clients = [self.client(f"client-{number}") for number in range(clients)]
        self.decisions: dict[JobId, Decisions] = {}
        self.drivers: list[Driver] = []
        if self.faults.jobs:
            self.drive(0)
        self.metadata = Metadata(self.shards, self.partitions)
        self.cuts: list[TakenCut] = []
        self._cuts_before = 0
        self.takers: list[Taker] = []
        if self.faults.cuts:
            self.takers = [
                Taker(self.environment, self.metadata, self.shards, self.partitions, self.cuts)
                for _ in range(2)
            ]

    @property
    def coordinators(self) -> Coordinators:
        """Of the first state partition, which most histories have alone."""
        return self.shards[0]

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
        for shard in self.shards:
            for node in shard.nodes:
                if node.alive and self.random.random() < 0.3:
                    node.runtime.tick()
                    node.send_markers()
                if self.random.random() < (0.7 if environment.healing else self.faults.fetch):
                    shard.fetch(node)
        for client in self.clients:
            if self.random.random() < 0.7:
                client.step()
        for driver in self.drivers:
            if self.random.random() < 0.7:
                driver.step()
        for partition in self.partitions:
            partition.replicate(self.random, everything=environment.healing)
            if environment.inflicts(self.faults.move):
                to = (partition.leader + self.random.randint(1, 2)) % 3
                if self.faults.cuts:
                    unaware = environment.inflicts(self.faults.unaware)
                    partition.move(to, unaware=unaware, silent_for=self.random.randint(0, 20))
                    environment.violations += reading_violations(self.cuts[-4:], self.partitions)
                else:
                    partition.move(to)
            if self.faults.unaware and self.random.random() < 0.02:
                partition.learn()
        if self.takers:
            self._step_takers()
        environment.deliver()
        if self.faults.validates:
            self.validate()

    def _step_takers(self) -> None:
        self.metadata.remember()
        if self.environment.inflicts(self.faults.grow) and len(self.partitions) < DATA_PARTITIONS + 4:
            self.workload.places.append(len(self.partitions))
            name = TransactionPartition("t", len(self.partitions))
            self.partitions.append(DataPartition(name, lags=True))
        for partition in self.partitions:
            for value in partition.seen[len(partition.seen_at) :]:
                partition.seen_at[value] = self.environment.note()
        if len(self.cuts) > self._cuts_before and self.environment.inflicts(self.faults.strike):
            self._strike()
        self._cuts_before = len(self.cuts)
        for taker in self.takers:
            begun = taker.begun
            taker.step()
            if taker.begun > begun and self.environment.inflicts(self.faults.usurp):
                coordinators = self.random.choice(self.shards)
                if coordinators.leader is not None:
                    coordinators.choose_leader(besides=coordinators.leader)

    def _strike(self) -> None:
        coordinators = self.random.choice(self.shards)
        if coordinators.leader is not None and all(node.alive for node in coordinators.nodes):
            coordinators.kill(coordinators.leader)
        for index, client in enumerate(self.clients):
            if client.phase == "ending":
                self._crash(index)

    def _crash(self, index: int) -> None:
        """A producer's next instance begins."""
        former = self.clients[index]
        former.alive = False
        self.clients[index] = self.client(former.id)
        self.clients[index].inherit(former)

    def validate(self) -> None:
        """The invariants of every shard that serves."""
        for node in (node for each in self.shards for node in each.nodes):
            for _, phase, shard in node.runtime.shards():
                if phase is Phase.ACTIVE:
                    try:
                        shard.validate()
                    except AssertionError as error:
                        self.environment.violations.append(f"node {node.number}: invariant: {error}")

    def break_something(self, draw: float) -> None:
        coordinators = self.coordinators if len(self.shards) == 1 else self.random.choice(self.shards)
        state = coordinators.state
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
            self._crash(self.random.randrange(len(self.clients)))
        elif self.drivers and 0.61 < draw < 0.61 + self.faults.crash_driver:
            last = self.drivers[-1]
            # some of the time the former driver is not dead, and goes on as a zombie
            last.alive = self.random.random() < 0.3
            self.drive(last.batch)
        elif self.drivers and 0.62 < draw < 0.62 + self.faults.stall:
            self.random.choice(self.drivers).stall()

    def heal(self) -> None:
        """Every node is up, every message arrives; runs until nothing moves any more."""
        self.environment.healing = True
        for partition in self.partitions:
            partition.learn()
        for coordinators in self.shards:
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
        for coordinators in self.shards:
            leader = coordinators.leader
            if leader is None or leader.runtime.phase(0) is not Phase.ACTIVE:
                return [*found, "no coordinator"]
            ((_, _, shard),) = leader.runtime.shards()
            assert isinstance(shard, TransactionShard)
            found += [f"{name} is decided" for name in shard.decided]
            found += [f"{name} is prepared" for name in shard.prepared]
            found += [f"{name} is ongoing" for name in shard.ongoing]
            found += [f"job {job_id} is open" for job_id in shard.jobs.book.open]
            found += [f"job {job_id} has attempts" for job_id in shard.jobs.book.attempts]
        return found

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
        found += cut_violations(self.cuts, self.partitions, self._units(), {v for each in seen for v in each})
        for node in (node for each in self.shards for node in each.nodes):
            counted = node.runtime.metrics_of(0)
            if counted.handler_failures or counted.failures:
                found.append(f"node {node.number}: a shard or handler failed")
        return found

    def _units(self) -> list[Unit]:
        """What committed in the end."""
        seen_at = {value: at for partition in self.partitions for value, at in partition.seen_at.items()}
        seen = {value for partition in self.partitions for value in partition.seen}
        found: list[Unit] = []

        def add(name: str, values: frozenset[int], began: int, acknowledged: int | None) -> None:
            moments = [seen_at[value] for value in values if value in seen_at]
            moments += [] if acknowledged is None else [acknowledged]
            if values and values <= seen:
                found.append(Unit(name, values, began, min(moments, default=None)))

        for number, each in enumerate(self.workload.transactions):
            add(f"transaction {number}", frozenset(each.values), each.began, each.acknowledged)
        for job, noted in self.decisions.items():
            written = (value for values in noted.written.values() for value in values)
            values = frozenset(value for value in written if value in seen)
            add(f"job {job}", values, noted.began, noted.acknowledged)
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
        outcomes["elections of a coordinator"] = sum(each.state.epoch for each in self.shards)
        outcomes["jobs committed"] = sum(bool(noted.committed) for noted in self.decisions.values())
        outcomes["jobs proposed"] = sum(len(noted.proposed) for noted in self.decisions.values())
        outcomes["leaders moved"] = sum(partition.moves for partition in self.partitions)
        if self.takers:
            outcomes["cuts taken"] = len(self.cuts)
            for taker in self.takers:
                outcomes.update({f"given up: {reason}": many for reason, many in taker.given_up.items()})
            outcomes["transactions inside"] = sum(len(taken.inside) for taken in self.cuts)
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
