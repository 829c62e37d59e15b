"""Producers that follow the protocol, one request at a time, and the outcomes of their transactions as they
know them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from ....coordinator.transaction.events import (
    AddPartitions,
    EndTxn,
    InitProducerId,
    PartitionsReply,
    PrepareTransaction,
    ProducerReply,
)
from ....wire.errors import ErrorCode
from .environment import Environment
from .partitions import DATA_PARTITIONS, OFFSETS
from .requests import Requests

TIMEOUT_MS = 2_000
TWO_PHASES = "client-1"
"""The producer that prepares some of its transactions (KIP-939, transactions v2).  It keeps what it finds at
its start, and ends it then: a late copy of a plain InitProducerId would abort what is prepared meanwhile."""
RETRIABLE = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
}


@dataclass
class Transaction:
    """One transaction of a producer. outcome: "committed", "aborted" (the producer sent no commit, or an
    abort was confirmed), "unknown".  The moments: `began` before its first request, `acknowledged` when the
    producer knew that it is committed."""

    values: dict[Any, int] = field(default_factory=dict)  # value -> partition
    outcome: str = "aborted"
    began: int = 0
    acknowledged: int | None = None


@dataclass
class Workload:
    """What all producers of a history did, and the numbers that their records carry."""

    transactions: list[Transaction] = field(default_factory=list)
    values: Iterator[int] = field(default_factory=lambda: count(1))
    places: list[int] = field(default_factory=lambda: list(range(DATA_PARTITIONS)))
    """The partitions of the topic; more may be added."""

    def draw_place(self, random: Random) -> int:
        return self.places[random.randrange(len(self.places))]


class Client:
    """A producer that follows the protocol, one request at a time."""

    def __init__(
        self, environment: Environment, requests: Requests, workload: Workload, transactional_id: str
    ) -> None:
        self._environment, self._random = environment, environment.random
        self._requests, self._workload = requests, workload
        self.id = transactional_id
        self.version = environment.faults.transaction_version
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
        self.in_doubt = False  # a record of the transaction was given up, and may arrive later
        self.two_phases = transactional_id == TWO_PHASES and self.version >= 2
        self.prepares = False
        self.is_prepared = False
        """The transaction ends as `commit` says, whatever happens to this instance."""

    def step(self) -> None:
        if self.waiting:
            if self.resend is not None and self._random.random() < self._environment.faults.resend:
                self.resend()
            return
        if self.phase == "init":
            two_phases = self.two_phases, self.two_phases
            self.ask(InitProducerId(self.id, TIMEOUT_MS, *self.expected, *two_phases), self.initialised)
        elif self.phase == "idle":
            self.begin()
        elif self.todo and self.phase == "sending":
            self.send(*self.todo[0])
        else:
            assert self.transaction is not None
            if self.phase == "sending":
                self.commit = self._random.random() < 0.7
                self.phase = "preparing" if self.prepares else "ending"
            if self.phase == "preparing":
                self.ask(PrepareTransaction(self.id, *self.identity), self.prepared)
                return
            if self.is_prepared and self._random.random() < 0.9 and not self._environment.healing:
                return  # another system decides
            if self.commit:
                self.transaction.outcome = "unknown"
            self.ask(EndTxn(self.id, *self.identity, self.commit, self.version), self.ended)

    def begin(self) -> None:
        if self._environment.healing:
            return
        self.transaction = Transaction(began=self._environment.note())
        self._workload.transactions.append(self.transaction)
        for _ in range(self._random.randint(1, 3)):
            self._add(self._workload.draw_place(self._random))
        if self._random.random() < 0.5:
            self._add(OFFSETS)
        self.phase, self.in_doubt = "sending", False
        self.prepares = self.two_phases and self._random.random() < self._environment.faults.prepare
        self.enlisted = set()

    def _add(self, place: int) -> None:
        value = next(self._workload.values)
        assert self.transaction is not None
        self.transaction.values[value] = place
        self.todo.append((value, place))

    def ask(self, event: Any, then: Callable[[Any], None]) -> None:
        self.request += 1
        number, self.waiting = self.request, True

        def reply(value: Any) -> None:
            if self.alive and self.waiting and self.request == number:
                self.waiting = False
                then(value)

        self.resend = lambda: self._requests.to_coordinator(event, reply)
        self.resend()

    def send(self, value: Any, place: int) -> None:
        if self.version < 2 and place not in self.enlisted:
            add = AddPartitions(self.id, *self.identity, (self._requests.partitions[place].name,), 1)
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
                elif code is ErrorCode.NETWORK_EXCEPTION and self._random.random() < 0.3:
                    self._give_up()
                else:
                    self.fail(code)

        self.resend = lambda: self._requests.produce(
            self.id, self.version, place, pid, epoch, sequence, value, reply
        )
        self.resend()

    def _give_up(self) -> None:
        """Aborts, though the record may still be on its way: its sequence number must not be given to another
        one."""
        self.todo.clear()
        self.commit, self.in_doubt, self.phase = False, True, "ending"

    def added(self, place: int, reply: Any) -> None:
        if isinstance(reply, PartitionsReply):
            self.enlisted.add(place)
        else:
            self.fail(reply.code)

    def prepared(self, reply: Any) -> None:
        if isinstance(reply, ProducerReply):
            self.is_prepared, self.phase = True, "ending"
        else:
            self.fail(reply.code)

    def inherit(self, former: Client) -> None:
        """The next instance: another system remembers what was prepared, and how it has to end."""
        if former.is_prepared:
            self.transaction, self.commit, self.is_prepared = former.transaction, former.commit, True

    def fail(self, code: ErrorCode) -> None:
        """After a retriable error the producer repeats the request. After any other it gives the transaction
        up and asks for its identity anew (KIP-360)."""
        if code in RETRIABLE:
            return
        self.todo.clear()
        self.phase = "init"
        if self.two_phases:
            return  # a new instance, in effect
        resumes = (
            self.identity[0] >= 0 and code is not ErrorCode.PRODUCER_FENCED and self.expected == (-1, -1)
        )
        self.expected = self.identity if resumes else (-1, -1)

    def initialised(self, reply: Any) -> None:
        if isinstance(reply, ProducerReply):
            if (reply.producer_id, reply.producer_epoch) != self.identity:
                self.sequences = {}
            self.identity, self.expected = (reply.producer_id, reply.producer_epoch), (-1, -1)
            self._check_identity()
            self.phase = "idle"
            if reply.ongoing != (-1, -1):
                self.phase = "ending"
                if not self.is_prepared:
                    self.commit, self.transaction = False, self.transaction or Transaction()
            elif self.is_prepared:
                self._has_ended()  # by the request whose answer was lost: nothing else may
        else:
            self.fail(reply.code)

    def _has_ended(self) -> None:
        assert self.transaction is not None
        self.transaction.outcome = "committed" if self.commit else "aborted"
        if self.commit and self.transaction.acknowledged is None:
            self.transaction.acknowledged = self._environment.note()
        self.is_prepared = False

    def _check_identity(self) -> None:
        if not 0 <= self.identity[1] < self._environment.faults.max_epoch:
            self._environment.violations.append(f"a client was given {self.identity}")

    def ended(self, reply: Any) -> None:
        assert self.transaction is not None
        if isinstance(reply, ProducerReply):
            self._has_ended()
            if self.version >= 2:
                self.identity, self.sequences = (reply.producer_id, reply.producer_epoch), {}
                self._check_identity()
            self.phase = "idle"
            if self.in_doubt and self.version < 2:
                self.phase, self.expected = "init", self.identity
        elif reply.code is ErrorCode.NETWORK_EXCEPTION and self._random.random() < (
            0.3 if self.version >= 2 else 1.0
        ):
            self._outcome_is_unknown()
        else:
            self.fail(reply.code)

    def _outcome_is_unknown(self) -> None:
        """A late copy of this EndTxn could end the next transaction, unless that has another epoch
        (KAFKA-17754)."""
        if self.two_phases:
            self.phase = "init"
        elif self._environment.faults.initialises_after_unknown_end:
            self.phase, self.expected = "init", self.identity
        else:
            self.phase = "idle"
