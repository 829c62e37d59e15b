"""A transactional log in a few lines, with bugs that can be switched on, and a random workload that records
its history.

It exists to prove the checker: the healthy model must pass whatever the seed, and every bug must be found.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto

from tidegate.chaos.checks.history import History, OpenOp, OpOutcome, Partition, Value

INPUT: Partition = ("input", 0)
OUTPUTS: tuple[Partition, ...] = (("out", 0), ("out", 1), ("out", 2))
GROUP = "job"


class Bug(Enum):
    NONE = auto()
    LOSES_A_RECORD = auto()
    APPENDS_TWICE = auto()
    READS_UNCOMMITTED = auto()
    FORGETS_AN_ABORT_MARKER = auto()
    COMMITS_ONE_PARTITION_ONLY = auto()
    DROPS_OFFSETS_ON_COMMIT = auto()
    KEEPS_OFFSETS_ON_ABORT = auto()
    DOES_NOT_FENCE = auto()
    TRUNCATES_WHAT_WAS_READ = auto()
    REORDERS_BATCHES = auto()
    SKIPS_WHEN_FETCHING = auto()
    GOES_BACK_WHEN_FETCHING = auto()
    WRITES_TO_ANOTHER_PARTITION = auto()
    CORRUPTS_A_VALUE = auto()


class State(Enum):
    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


@dataclass
class Transaction:
    identity: tuple[str, int]
    states: dict[Partition, State] = field(default_factory=dict)
    offsets: dict[Partition, int] = field(default_factory=dict)


@dataclass
class Entry:
    value: Value | None
    transaction: Transaction | None


class Refused(Exception):
    """Fenced: definitely not done."""


class Broker:
    def __init__(self, bug: Bug, chance: random.Random) -> None:
        self.bug = bug
        self.chance = chance
        self.logs: dict[Partition, list[Entry]] = defaultdict(list)
        self.epochs: dict[str, int] = defaultdict(int)
        self.group: dict[Partition, int] = {}

    def strikes(self, bug: Bug, odds: float = 0.15) -> bool:
        return self.bug is bug and self.chance.random() < odds

    def initialise(self, transactional_id: str) -> int:
        self.epochs[transactional_id] += 1
        for log in self.logs.values():
            for entry in log:
                if entry.transaction and entry.transaction.identity[0] == transactional_id:
                    for partition, state in entry.transaction.states.items():
                        if state is State.OPEN and self.bug is not Bug.DOES_NOT_FENCE:
                            entry.transaction.states[partition] = State.ABORTED
        return self.epochs[transactional_id]

    def _check(self, transaction: Transaction) -> None:
        transactional_id, epoch = transaction.identity
        if self.epochs[transactional_id] != epoch and self.bug is not Bug.DOES_NOT_FENCE:
            raise Refused(f"{transactional_id} epoch {epoch}")

    def append(self, partition: Partition, values: list[Value], transaction: Transaction | None) -> list[int]:
        if transaction is not None:
            self._check(transaction)
            transaction.states[partition] = State.OPEN
        if self.strikes(Bug.WRITES_TO_ANOTHER_PARTITION):
            partition = (
                OUTPUTS[(OUTPUTS.index(partition) + 1) % len(OUTPUTS)] if partition in OUTPUTS else OUTPUTS[0]
            )
            if transaction is not None:
                transaction.states[partition] = State.OPEN
        log = self.logs[partition]
        first = len(log)
        written: list[Value | None] = list(values)
        if self.strikes(Bug.LOSES_A_RECORD):
            written[-1] = None
        if self.strikes(Bug.CORRUPTS_A_VALUE):
            written[0] = f"{written[0]}?"
        if self.strikes(Bug.REORDERS_BATCHES, 0.5):
            written.reverse()
        if self.strikes(Bug.TRUNCATES_WHAT_WAS_READ) and len(log) > 3:
            del log[-2:]
            first = len(log)
        log.extend(Entry(value, transaction) for value in written)
        if self.strikes(Bug.APPENDS_TWICE):
            log.extend(Entry(value, transaction) for value in written)
        return list(range(first, first + len(values)))

    def end(self, transaction: Transaction, commit: bool) -> None:
        self._check(transaction)
        for number, partition in enumerate(list(transaction.states)):
            state = State.COMMITTED if commit else State.ABORTED
            if commit and number and self.strikes(Bug.COMMITS_ONE_PARTITION_ONLY, 0.5):
                state = State.ABORTED
            if not commit and self.strikes(Bug.FORGETS_AN_ABORT_MARKER, 0.5):
                state = State.COMMITTED
            transaction.states[partition] = state
            self.logs[partition].append(Entry(None, None))  # the marker
        keep = (commit and not self.strikes(Bug.DROPS_OFFSETS_ON_COMMIT, 0.3)) or self.strikes(
            Bug.KEEPS_OFFSETS_ON_ABORT, 1.0
        )
        if keep:
            self.group.update(transaction.offsets)

    def fetch(
        self, partition: Partition, position: int, most: int = 5
    ) -> tuple[list[tuple[int, Value]], int]:
        """Committed records from a position on, and the next position."""
        records: list[tuple[int, Value]] = []
        if self.strikes(Bug.SKIPS_WHEN_FETCHING):
            position += 1
        if self.strikes(Bug.GOES_BACK_WHEN_FETCHING):
            position = max(position - 2, 0)
        log = self.logs[partition]
        while position < len(log) and len(records) < most:
            entry = log[position]
            state = entry.transaction.states.get(partition) if entry.transaction else State.COMMITTED
            if state is State.OPEN and self.bug is not Bug.READS_UNCOMMITTED:
                break
            if entry.value is not None and (state is State.COMMITTED or state is State.OPEN):
                records.append((position, entry.value))
            position += 1
        return records, position


@dataclass
class Client:
    """A transactional producer; its process changes with each life."""

    transactional_id: str
    life: int = 0
    epoch: int = -1
    busy: bool = False

    @property
    def process(self) -> str:
        return f"{self.transactional_id}/{self.life}"


@dataclass
class InFlight:
    """A transaction left open; a zombie's when its producer is replaced before it ends."""

    client: Client
    life: int
    operation: OpenOp
    transaction: Transaction


class Run:
    """A random workload over a broker, one client step at a time."""

    def __init__(self, bug: Bug, seed: int, steps: int = 150) -> None:
        self.chance = random.Random(seed)
        self.broker = Broker(bug, random.Random(seed + 1))
        ticks = itertools.count()
        self.history = History(now=lambda: float(next(ticks)))
        self.names = itertools.count()
        self.clients = [Client(f"producer-{number}") for number in range(3)]
        self.positions: dict[Partition, int] = defaultdict(int)
        self.in_flight: list[InFlight] = []
        self.job = Client("job")
        for client in (*self.clients, self.job):
            self.start(client)
        for _ in range(steps):
            self.chance.choice(
                [self.feed, self.produce, self.produce, self.consume, self.transform, self.replace, self.wake]
            )()
        while self.in_flight:
            self.wake()

    def start(self, client: Client) -> None:
        client.life += 1
        client.busy = False
        with self.history.begin(client.process, transactional_id=client.transactional_id) as operation:
            client.epoch = self.broker.initialise(client.transactional_id)
            operation.initialised(sum(client.transactional_id.encode()), client.epoch)
            operation.ok()

    def feed(self) -> None:
        with self.history.begin("feeder") as operation:
            self.send(operation, INPUT, None)
            operation.ok()

    def send(self, operation: OpenOp, partition: Partition, transaction: Transaction | None) -> None:
        values: list[Value] = [f"v{next(self.names)}" for _ in range(self.chance.randint(1, 3))]
        numbers = [operation.send(partition, value) for value in values]
        for number, offset in zip(numbers, self.broker.append(partition, values, transaction), strict=True):
            operation.acknowledged(number, offset)

    def produce(self) -> None:
        client = self.chance.choice(self.clients)
        if client.busy:
            return
        operation = self.history.begin(client.process, transactional_id=client.transactional_id)
        transaction = Transaction((client.transactional_id, client.epoch))
        for partition in self.chance.sample(OUTPUTS, self.chance.randint(1, 3)):
            self.send(operation, partition, transaction)
        if self.chance.random() < 0.3:
            client.busy = True
            self.in_flight.append(InFlight(client, client.life, operation, transaction))
            return
        self.finish(operation, transaction)

    def finish(self, operation: OpenOp, transaction: Transaction) -> OpOutcome:
        draw = self.chance.random()
        try:
            operation.ending()
            if draw < 0.1:  # the answer is lost, with the request or without it
                if draw < 0.05:
                    self.broker.end(transaction, commit=True)
                else:
                    self.broker.end(transaction, commit=False)
                return operation.info("timed out").outcome
            self.broker.end(transaction, commit=draw < 0.8)
        except Refused as refused:
            return operation.fail(str(refused)).outcome
        return (operation.ok() if draw < 0.8 else operation.fail("aborted on purpose")).outcome

    def wake(self) -> None:
        if self.in_flight:
            left = self.in_flight.pop(self.chance.randrange(len(self.in_flight)))
            self.finish(left.operation, left.transaction)
            if left.client.life == left.life:
                left.client.busy = False

    def replace(self) -> None:
        self.start(self.chance.choice(self.clients))

    def consume(self) -> None:
        with self.history.begin("consumer") as operation:
            for partition in OUTPUTS:
                records, self.positions[partition] = self.broker.fetch(partition, self.positions[partition])
                operation.polled({partition: records})
            operation.ok()

    def transform(self) -> None:
        """Consume, transform, produce; after anything but success a new life begins at the group's
        position."""
        records, position = self.broker.fetch(INPUT, self.broker.group.get(INPUT, 0))
        if not records:
            return
        operation = self.history.begin(self.job.process, transactional_id=self.job.transactional_id)
        operation.polled({INPUT: records})
        transaction = Transaction((self.job.transactional_id, self.job.epoch))
        self.send(operation, self.chance.choice(OUTPUTS), transaction)
        transaction.offsets[INPUT] = position
        operation.offsets(GROUP, {INPUT: position})
        if self.finish(operation, transaction) is not OpOutcome.OK:
            self.start(self.job)

    def final_logs(self) -> dict[Partition, list[tuple[int, Value]]]:
        """What a fresh reader sees from start to end: the bug under test may strike here as well."""
        logs: dict[Partition, list[tuple[int, Value]]] = {}
        for partition in (INPUT, *OUTPUTS):
            logs[partition] = self.broker.fetch(partition, 0, most=1 << 30)[0]
        return logs
