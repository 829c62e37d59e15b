"""Step 1 of the main job: four transactional producers write every flight, one transaction in ten aborted
first on purpose.

A `Journal` records each acknowledgement and its time: the checks compare it with Spark's result, and it gives
the time to recover from a kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...client.connecting.errors import (
    AbortableError,
    CommitOutcomeUnknown,
    RequestError,
    RetriableError,
)
from ...client.producing.producer import Producer
from ...runtime import logs
from ...runtime.clock import Clock
from .flights import Flight

log = logs.get(__name__)

PRODUCERS: Final = 4
RECORDS_PER_TRANSACTION: Final = 500
ABORT_EVERY: Final = 10
# A kill may cost several attempts; more than this is a defect that the demo must show, not hide.
ATTEMPTS_MAX: Final = 20
COMMIT_ANSWERS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Committed:
    """An acknowledged transaction: which flights, under which attempt they became visible, and when it was
    acknowledged."""

    name: str
    producer: int
    attempt: int
    flights: tuple[int, ...]
    acknowledged_at: float


@dataclass(slots=True)
class Journal:
    """The producers' acknowledgements, in order.  `sent` has when how many flights were given to a producer,
    also by attempts that were aborted; `failures` are attempts that they had to repeat."""

    committed: list[Committed] = field(default_factory=list)
    sent: list[tuple[float, int]] = field(default_factory=list)
    aborted_on_purpose: int = 0
    failures: int = 0

    @property
    def records(self) -> int:
        return sum(len(transaction.flights) for transaction in self.committed)

    def first_commit_after(self, moment: float, producer: int | None = None) -> float | None:
        """When the first transaction after `moment` (of one producer, or of any) was acknowledged."""
        times = [
            t.acknowledged_at
            for t in self.committed
            if t.acknowledged_at > moment and (producer is None or t.producer == producer)
        ]
        return min(times, default=None)


def transactional_id(producer: int) -> str:
    return f"flights-loader-{producer}"


class Loader:
    """Writes `flights` to `topic`; `on_progress(records)` is called after every commit."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        flights: Sequence[Flight],
        clock: Clock,
        on_progress: Callable[[int], None],
    ) -> None:
        self.journal = Journal()
        self._bootstrap = bootstrap
        self._topic = topic
        self._flights = flights
        self._clock = clock
        self._on_progress = on_progress

    async def run(self) -> None:
        """All producers, side by side, each with its share of the flights.  Raises the first error from which
        a producer could not recover."""
        size = RECORDS_PER_TRANSACTION
        chunks = [self._flights[start : start + size] for start in range(0, len(self._flights), size)]
        async with asyncio.TaskGroup() as group:
            for number in range(PRODUCERS):
                group.create_task(self._produce(number, chunks[number::PRODUCERS]))

    async def _produce(self, number: int, chunks: Sequence[Sequence[Flight]]) -> None:
        async with Producer(
            self._bootstrap,
            transactional_id=transactional_id(number),
            compression="lz4",
            linger_ms=20,
            batch_bytes=128 * 1024,
        ) as producer:
            for index, chunk in enumerate(chunks):
                name = f"{number}-{index}"
                if index % ABORT_EVERY == ABORT_EVERY // 2:
                    await self._abort_on_purpose(producer, name, chunk)
                await self._commit(producer, number, name, chunk)

    async def _abort_on_purpose(self, producer: Producer, name: str, chunk: Sequence[Flight]) -> None:
        try:
            await producer.begin()
            await self._send(producer, name, 0, chunk)
            await producer.flush()
            await producer.abort()
        except (AbortableError, RetriableError) as error:
            # An intended abort: it is done, or the next begin does it.
            log.info("abort_on_purpose_disturbed", transaction=name, error=error)
            await self._reset(producer)
        self.journal.aborted_on_purpose += 1

    async def _commit(self, producer: Producer, number: int, name: str, chunk: Sequence[Flight]) -> None:
        last: Exception | None = None
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await producer.begin()
                await self._send(producer, name, attempt, chunk)
                await self._commit_until_known(producer)
            except CommitOutcomeUnknown:
                raise  # the checks could not tell what must be visible
            except (AbortableError, RetriableError) as error:
                self.journal.failures += 1
                last = error
                log.info("transaction_repeated", transaction=name, attempt=attempt, error=error)
                await self._reset(producer)
                continue
            ids = tuple(flight.number for flight in chunk)
            self.journal.committed.append(Committed(name, number, attempt, ids, self._clock.monotonic()))
            self._on_progress(len(chunk))
            return
        raise RuntimeError(f"transaction {name} failed {ATTEMPTS_MAX} times, the last time: {last}")

    async def _send(self, producer: Producer, name: str, attempt: int, chunk: Sequence[Flight]) -> None:
        for flight in chunk:
            await producer.send(self._topic, flight.value(name, attempt), flight.key)
        self.journal.sent.append((self._clock.monotonic(), len(chunk)))

    async def _commit_until_known(self, producer: Producer) -> None:
        for _ in range(COMMIT_ANSWERS_MAX - 1):
            try:
                await producer.commit()
                return
            except CommitOutcomeUnknown as error:
                log.info("commit_asked_again", error=error)
        await producer.commit()

    async def _reset(self, producer: Producer) -> None:
        try:
            await producer.abort()
        except (RetriableError, AbortableError, RequestError) as error:
            # Not confirmed, or there is nothing to abort any more: the next `begin` makes sure of it, or says
            # why it cannot.
            log.info("abort_not_confirmed", error=error)
        await self._clock.sleep(0.1)
