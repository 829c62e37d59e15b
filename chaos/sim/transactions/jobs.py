"""A batch engine over the coordinators: drivers that run the batches of a sink, one job each, and the
attempts of their tasks.

A driver is not told when another one runs the same sink: after a crash its successor runs the batch again
while what the former one left is still there, and a driver that stalled goes on as a zombie.  Drivers commit,
abort, repeat both when an answer is lost, and ask for another decision afterwards.  When a run is aborted,
some of its tasks are still there for a while, as an engine cannot stop them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ....coordinator.transaction.job_events import (
    AbortJob,
    AttemptReply,
    CommitJob,
    DecisionReply,
    OpenAttempt,
    PrepareAttempt,
    PreparedReply,
    RenewJob,
)
from ....coordinator.transaction.jobs import JobId, JobState, Winner, transactional_id
from ....wire.errors import ErrorCode, KafkaError
from .environment import Environment
from .producers import RETRIABLE, Workload
from .requests import Requests

TIMEOUT_MS = 1_500
SINK = "sink"


@dataclass
class Decisions:
    """Of one job, as the coordinators answered: each driver must have been told the same."""

    written: dict[Winner, dict[int, int]] = field(default_factory=dict)
    """The values of each attempt that was opened, and their partitions."""
    proposed: list[frozenset[Winner]] = field(default_factory=list)
    committed: set[frozenset[Winner]] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    """As later runs were told that it was committed with."""
    began: int = 0
    acknowledged: int | None = None


class Asker:
    """Sends one request at a time, again until an answer comes."""

    def __init__(self, environment: Environment, requests: Requests) -> None:
        self._environment, self._requests = environment, requests
        self.alive = True
        self._number = 0
        self.waiting = False

    def ask(self, event: Any, then: Callable[[Any], None]) -> None:
        self._send(lambda reply: self._requests.to_coordinator(event, reply), then)

    def _send(self, send: Callable[[Callable[[Any], None]], None], then: Callable[[Any], None]) -> None:
        self._number += 1
        number, self.waiting = self._number, True

        def reply(value: Any) -> None:
            if self.alive and self.waiting and self._number == number:
                self.waiting = False
                then(value)

        send(reply)
        if self._environment.inflicts(self._environment.faults.duplicate):
            send(reply)


class Attempt(Asker):
    """One attempt of a task: opens, produces, prepares."""

    def __init__(
        self, environment: Environment, requests: Requests, job: JobId, name: str, values: dict[int, int],
        noted: Decisions,
    ) -> None:  # fmt: skip
        super().__init__(environment, requests)
        self.job, self.name, self.values, self._noted = job, name, values, noted
        self.phase = "open"
        self.winner: Winner | None = None
        self._todo = list(values.items())
        self._sequences: dict[int, int] = {}
        self._is_left_over = False

    def leave(self) -> None:
        """Its run is aborted now: what it asks for from here on opens nothing."""
        self._is_left_over = self.phase == "open" and not self.waiting

    def step(self) -> None:
        if self.waiting or not self.alive:
            return
        if self.phase == "open":
            self.ask(OpenAttempt(self.job, self.name, TIMEOUT_MS), self._opened)
        elif self.phase == "send" and self._todo:
            self._produce(*self._todo[0])
        elif self.phase == "send":
            assert self.winner is not None
            identity = self.winner.producer_id, self.winner.producer_epoch
            self.ask(PrepareAttempt(self.job, self.name, *identity, TIMEOUT_MS), self._prepared)

    def _opened(self, reply: Any) -> None:
        if isinstance(reply, AttemptReply) and reply.state is JobState.COMMITTED:
            self.phase = "replayed"
            if reply.rows is not None:
                self._noted.rows.add(reply.rows)
        elif isinstance(reply, AttemptReply):
            if self._is_left_over:
                self._environment.violations.append(f"{self.job}: {self.name} of an aborted run was opened")
            self.winner = Winner(self.name, reply.producer_id, reply.producer_epoch)
            self._noted.written[self.winner] = self.values
            self.phase = "send"
        else:
            self._failed(reply.code)

    def _produce(self, value: int, place: int) -> None:
        assert self.winner is not None
        name, identity = transactional_id(self.job, self.name), self.winner[1:]
        sequence = self._sequences.get(place, 0)

        def answered(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._sequences[place] = sequence + 1
                self._todo.pop(0)
            else:
                self._failed(code)

        self._send(
            lambda reply: self._requests.produce(name, 2, place, *identity, sequence, value, reply), answered
        )

    def _prepared(self, reply: Any) -> None:
        if isinstance(reply, PreparedReply):
            self.phase = "prepared"
        else:
            self._failed(reply.code)

    def _failed(self, code: ErrorCode) -> None:
        if code not in RETRIABLE:
            self.phase = "failed"


class Driver(Asker):
    """One instance, which runs a batch after the other."""

    def __init__(
        self, environment: Environment, requests: Requests, workload: Workload,
        decisions: dict[JobId, Decisions],
        number: int, batch: int,
    ) -> None:  # fmt: skip
        super().__init__(environment, requests)
        self._random, self._workload, self._decisions = environment.random, workload, decisions
        self._number, self._run, self._batch = number, "", batch
        self._names, self._runs = count(), count()
        self._left_over: list[Attempt] = []
        self._stalled_until_ms = 0
        self.is_idle = True
        self.attempts: list[list[Attempt]] = []
        """Of each task."""

    @property
    def batch(self) -> int:
        return self._batch

    @property
    def job(self) -> JobId:
        return JobId(SINK, str(self._batch))

    def stall(self) -> None:
        self._stalled_until_ms = self._environment.now_ms + self._random.randint(500, 5_000)

    def step(self) -> None:
        if not self.alive or self._environment.now_ms < self._stalled_until_ms:
            return
        for attempt in self._left_over:
            attempt.step()
        if self.is_idle:
            if not self._environment.healing:
                self._begin()
            return
        for attempts in self.attempts:
            for attempt in attempts:
                attempt.step()
            have_failed = all(attempt.phase == "failed" for attempt in attempts)
            if len(attempts) < 5 and (have_failed or self._random.random() < 0.01):
                attempts.append(self._attempt(attempts[0].values.values()))
        if self.waiting:
            return
        if any(attempt.phase == "replayed" for attempts in self.attempts for attempt in attempts):
            self._next()
            return
        prepared = [[a for a in attempts if a.phase == "prepared"] for attempts in self.attempts]
        if all(prepared):
            self._commit(frozenset(w for tries in prepared if (w := self._random.choice(tries).winner)))
        elif self._random.random() < 0.004 or self._has_failed():
            self.ask(AbortJob(self.job, self._run), self._aborted)
        elif self._random.random() < 0.02:
            self.ask(RenewJob(self.job, TIMEOUT_MS), lambda reply: None)

    def _has_failed(self) -> bool:
        return any(len(tries) == 5 and all(a.phase == "failed" for a in tries) for tries in self.attempts)

    def _begin(self) -> None:
        self.is_idle = False
        self._run = f"{self._number}.{next(self._runs)}"
        self._decisions.setdefault(self.job, Decisions(began=self._environment.note()))
        places = [
            [self._workload.draw_place(self._random) for _ in range(self._random.randint(1, 3))]
            for _ in range(self._random.randint(1, 3))
        ]
        self.attempts = [[self._attempt(each)] for each in places]

    def _attempt(self, places: Any) -> Attempt:
        name = f"{next(self._names)}-{self._run}"
        values = {next(self._workload.values): place for place in places}
        noted = self._decisions.setdefault(self.job, Decisions())
        return Attempt(self._environment, self._requests, self.job, name, values, noted)

    def _commit(self, winners: frozenset[Winner]) -> None:
        noted, job = self._decisions[self.job], self.job
        noted.proposed.append(winners)
        rows = sum(len(noted.written[winner]) for winner in winners)

        def answered(reply: Any) -> None:
            self._note(job, reply)
            if isinstance(reply, DecisionReply):
                if self._random.random() < 0.2:  # it asks for another decision, which nothing comes of
                    self.ask(AbortJob(job, self._run), lambda said: self._contradicted(job, said))
                self._next()
            elif reply.code is ErrorCode.NETWORK_EXCEPTION and self._random.random() < 0.3:
                self.ask(AbortJob(job, self._run), self._aborted)  # as an engine does whose commit failed
            elif reply.code not in RETRIABLE:
                self.ask(AbortJob(job, self._run), self._aborted)

        self.ask(CommitJob(job, tuple(winners), rows), answered)

    def _contradicted(self, job: JobId, reply: Any) -> None:
        self._note(job, reply)
        if isinstance(reply, DecisionReply) and reply.outcome is not JobState.COMMITTED:
            self._environment.violations.append(f"job {job} was committed, and then {reply.outcome}")

    def _aborted(self, reply: Any) -> None:
        self._note(self.job, reply)
        if isinstance(reply, KafkaError):
            return
        if reply.outcome is JobState.COMMITTED:
            self._next()
        else:  # the same batch again, with new attempts
            self._left_over = [attempt for attempts in self.attempts for attempt in attempts]
            if reply.is_yours:
                for attempt in self._left_over:
                    attempt.leave()
            self.is_idle = True

    def _next(self) -> None:
        self._batch += 1
        self.is_idle = True

    def _note(self, job: JobId, reply: Any) -> None:
        if not isinstance(reply, DecisionReply) or reply.outcome is not JobState.COMMITTED:
            return
        if reply.winners:  # a batch whose record is forgotten has none to tell
            noted = self._decisions.setdefault(job, Decisions())
            noted.committed.add(frozenset(reply.winners))
            if reply.rows is not None:
                noted.rows.add(reply.rows)
            if noted.acknowledged is None:
                noted.acknowledged = self._environment.note()


def violations(decisions: dict[JobId, Decisions], seen: list[set[int]]) -> list[str]:
    """What readers saw of the jobs, against what the drivers were told."""
    found: list[str] = []
    for job, noted in decisions.items():
        visible = {w for w, values in noted.written.items() if any(v in seen[p] for v, p in values.items())}
        found += [
            f"job {job}: torn: {winner.attempt}"
            for winner in visible
            if not all(value in seen[place] for value, place in noted.written[winner].items())
        ]
        rows = sum(len(noted.written[winner]) for winner in visible)
        if noted.rows - {rows}:
            found.append(f"job {job}: later runs were told of {noted.rows} rows, {rows} are visible")
        if len(noted.committed) > 1:
            found.append(f"job {job}: twice committed: {noted.committed}")
        for winners in noted.committed:
            wanted = {winner for winner in winners if noted.written.get(winner)}
            if visible != wanted:
                found.append(f"job {job}: lost or doubled: {visible} are visible, {wanted} committed")
        if not noted.committed and visible and visible not in noted.proposed:
            found.append(f"job {job}: a part: {visible} are visible")
    return found
