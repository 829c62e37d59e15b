"""What the clients of a run observed: one `Op` per operation, from its invocation to its outcome.

The model is that of Jepsen's kafka workload (docs/semantics.md V1), with two changes that suit Python.  An
operation is one value that carries both its times, instead of an invocation and a completion that must be
paired; and its micro-operations are typed steps.  A *process* is one life of one client: a client that is
torn down and made anew gets a new process name, since it has a new position in every partition and, when
transactional, a new producer epoch.

Outcomes are facts, and the checker draws hard conclusions from them:

* `OK`: the cluster acknowledged it.  Every effect must stay for ever.
* `FAIL`: the cluster rejected it, or confirmed the client's abort.  No effect may ever be visible.
* `INFO`: the outcome is unknown (a timeout, a broken connection, a killed client).  All effects or none.

Recording order: `begin` before the first request is sent; every step after its answer (a send's *value*
before the request, since the record may be appended even if no answer arrives); `ending` right before the
commit is sent; one of `ok`, `fail`, `info` when the outcome is known.  An operation without an outcome at the
end of the run is `INFO`.

Values must be unique within a partition over the whole history: a record that is written again after an abort
is a new value (put the attempt into it).  Polls recorded here are read_committed; anything else has no place
in this history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any

Partition = tuple[str, int]
"""Topic and partition number."""

Value = str | int
"""What identifies a record: unique within its partition."""


class OpOutcome(StrEnum):
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Send:
    """A record produced; `offset` is None as long as no acknowledgement named it."""

    partition: Partition
    value: Value
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """What one read_committed poll returned: offset and value per partition, in the order in which they
    came."""

    records: Mapping[Partition, Sequence[tuple[int, Value]]]


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Positions committed for a group; inside a transaction when the operation has a transactional id."""

    group: str
    offsets: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Init:
    """An InitProducerId that was answered with this identity."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Assign:
    """From now on the process reads these partitions; it keeps its position in the partitions that it already
    read."""

    partitions: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """From now on the group decides what the process reads: partitions may come and go between polls."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Seek:
    """The process called `seek` for these partitions."""

    partitions: frozenset[Partition]


Step = Send | Poll | CommitOffsets | Init | Assign | Subscribe | Seek


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of one process; a transaction when `transactional_id` is set.

    Times are seconds of one monotonic clock shared by all processes of the run.  `ending` is when the commit
    was sent: an acknowledged commit that was sent after a newer producer was initialised is a zombie's.
    `rebalanced` names the partitions that the group moved during the operation: their positions prove
    nothing.
    """

    index: int
    process: str
    outcome: OpOutcome
    steps: tuple[Step, ...]
    invoked: float
    completed: float
    transactional_id: str | None = None
    ending: float | None = None
    rebalanced: frozenset[Partition] = frozenset()
    error: str = ""

    @property
    def sends(self) -> Iterator[Send]:
        return (step for step in self.steps if isinstance(step, Send))

    @property
    def polls(self) -> Iterator[Poll]:
        return (step for step in self.steps if isinstance(step, Poll))

    @property
    def commits(self) -> Iterator[CommitOffsets]:
        return (step for step in self.steps if isinstance(step, CommitOffsets))

    def __str__(self) -> str:
        name = f"transaction of {self.transactional_id}" if self.transactional_id else "operation"
        return f"{name} #{self.index} of {self.process} ({self.outcome})"


class HistoryError(Exception):
    """A client broke the rules of the recorder: the checker would misread the history."""


@dataclass(slots=True)
class OpenOp:
    """A running operation.  As a context manager it becomes `INFO` when its body raises without having set an
    outcome."""

    _history: History
    index: int
    process: str
    transactional_id: str | None
    invoked: float
    steps: list[Step] = field(default_factory=list)
    rebalanced: set[Partition] = field(default_factory=set)
    _ending: float | None = None
    _closed: bool = False

    def send(self, partition: Partition, value: Value) -> int:
        """Records a record before it is sent; returns the number for `acknowledged`."""
        return self._add(Send(partition, value))

    def acknowledged(self, number: int, offset: int) -> None:
        step = self.steps[number]
        if not isinstance(step, Send):
            raise HistoryError(f"step {number} of operation {self.index} is no send: {step}")
        self.steps[number] = Send(step.partition, step.value, offset)

    def polled(self, records: Mapping[Partition, Sequence[tuple[int, Value]]]) -> None:
        self._add(Poll({partition: tuple(read) for partition, read in records.items()}))

    def offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        self._add(CommitOffsets(group, dict(offsets)))

    def initialised(self, producer_id: int, epoch: int) -> None:
        self._add(Init(producer_id, epoch))

    def assigned(self, partitions: Iterable[Partition]) -> None:
        self._add(Assign(frozenset(partitions)))

    def subscribed(self, topics: Iterable[str]) -> None:
        self._add(Subscribe(frozenset(topics)))

    def sought(self, partitions: Iterable[Partition]) -> None:
        self._add(Seek(frozenset(partitions)))

    def ending(self) -> None:
        """The commit is about to be sent."""
        self._ending = self._history.now()

    def ok(self) -> Op:
        return self._close(OpOutcome.OK, "")

    def fail(self, error: str = "") -> Op:
        return self._close(OpOutcome.FAIL, error)

    def info(self, error: str = "") -> Op:
        return self._close(OpOutcome.INFO, error)

    def _add(self, step: Step) -> int:
        if self._closed:
            raise HistoryError(
                f"operation {self.index} of {self.process} has its outcome: no step may follow ({step})"
            )
        self.steps.append(step)
        return len(self.steps) - 1

    def _close(self, outcome: OpOutcome, error: str) -> Op:
        if self._closed:
            raise HistoryError(f"operation {self.index} of {self.process} has its outcome already")
        self._closed = True
        return self._history.complete(self.as_op(outcome, error))

    def as_op(self, outcome: OpOutcome, error: str) -> Op:
        """The operation so far, with this outcome; the operation itself does not change."""
        return Op(
            index=self.index,
            process=self.process,
            outcome=outcome,
            steps=tuple(self.steps),
            invoked=self.invoked,
            completed=self._history.now(),
            transactional_id=self.transactional_id,
            ending=self._ending,
            rebalanced=frozenset(self.rebalanced),
            error=error,
        )

    def __enter__(self) -> OpenOp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self.info(repr(error) if error is not None else "left without an outcome")


class History:
    """Records the operations of one run.  One thread (or event loop) writes it; `now` is a monotonic clock in
    seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._begun = 0
        self._open: dict[int, OpenOp] = {}
        self._done: list[Op] = []

    def begin(self, process: str, *, transactional_id: str | None = None) -> OpenOp:
        operation = OpenOp(self, self._begun, process, transactional_id, self.now())
        self._open[operation.index] = operation
        self._begun += 1
        return operation

    def complete(self, op: Op) -> Op:
        del self._open[op.index]
        self._done.append(op)
        return op

    def ops(self) -> list[Op]:
        """The history in the order of invocation; running operations count as `INFO`."""
        unfinished = [
            operation.as_op(OpOutcome.INFO, "not finished when the run ended")
            for operation in self._open.values()
        ]
        return sorted([*self._done, *unfinished], key=lambda op: op.index)


def to_json(op: Op) -> dict[str, Any]:
    """An operation as plain JSON values: a run's history is kept as one line per operation, to be checked
    again later."""
    document: dict[str, Any] = {
        "index": op.index,
        "process": op.process,
        "outcome": op.outcome.value,
        "invoked": op.invoked,
        "completed": op.completed,
        "steps": [_step_to_json(step) for step in op.steps],
    }
    if op.transactional_id is not None:
        document["transactional_id"] = op.transactional_id
    if op.ending is not None:
        document["ending"] = op.ending
    if op.rebalanced:
        document["rebalanced"] = sorted(list(partition) for partition in op.rebalanced)
    if op.error:
        document["error"] = op.error
    return document


def _step_to_json(step: Step) -> list[Any]:
    match step:
        case Send(partition, value, offset):
            return ["send", list(partition), value, offset]
        case Poll(records):
            return [
                "poll",
                [[list(partition), [list(read) for read in reads]] for partition, reads in records.items()],
            ]
        case CommitOffsets(group, offsets):
            return ["commit", group, [[list(partition), offset] for partition, offset in offsets.items()]]
        case Init(producer_id, epoch):
            return ["init", producer_id, epoch]
        case Assign(partitions):
            return ["assign", sorted(list(partition) for partition in partitions)]
        case Subscribe(topics):
            return ["subscribe", sorted(topics)]
        case Seek(partitions):
            return ["seek", sorted(list(partition) for partition in partitions)]


def from_json(document: Mapping[str, Any]) -> Op:
    """The inverse of `to_json`.  Raises HistoryError for a step that this version does not know."""
    return Op(
        index=document["index"],
        process=document["process"],
        outcome=OpOutcome(document["outcome"]),
        steps=tuple(_step_from_json(step) for step in document["steps"]),
        invoked=document["invoked"],
        completed=document["completed"],
        transactional_id=document.get("transactional_id"),
        ending=document.get("ending"),
        rebalanced=frozenset(_partition(name) for name in document.get("rebalanced", ())),
        error=document.get("error", ""),
    )


def _partition(name: Sequence[Any]) -> Partition:
    topic, number = name
    return (str(topic), int(number))


def _step_from_json(step: Sequence[Any]) -> Step:
    match list(step):
        case ["send", partition, value, offset]:
            return Send(_partition(partition), value, offset)
        case ["poll", records]:
            return Poll(
                {
                    _partition(name): tuple((offset, value) for offset, value in reads)
                    for name, reads in records
                }
            )
        case ["commit", group, offsets]:
            return CommitOffsets(group, {_partition(name): offset for name, offset in offsets})
        case ["init", producer_id, epoch]:
            return Init(producer_id, epoch)
        case ["assign", partitions]:
            return Assign(frozenset(_partition(name) for name in partitions))
        case ["subscribe", topics]:
            return Subscribe(frozenset(topics))
        case ["seek", partitions]:
            return Seek(frozenset(_partition(name) for name in partitions))
        case _:
            raise HistoryError(f"unknown step in a history: {step!r}")
