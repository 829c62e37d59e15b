"""Answering the fetches of clients: one evaluation for immediate and delayed answers (KAFKA-5376).

Clients see what is committed: below the high watermark, or, when read_committed, below the last stable offset and with the
aborted transactions of the range.  A fetch waits until `min_bytes` are there, a partition has an error or a divergence, or
`max_wait_ms` is over; after a wait every partition is looked at again: another leader, a deletion, a truncation is found out.

The byte budget is given out from another partition on each time, and the first partition that has records always gets one whole
batch, however large: nobody starves.  Clients get no fetch sessions (session id 0): the protocol lets a broker decline.

A client that names its rack is sent to a replica there, and served by a follower, when the node has them do so (`nearby`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..runtime.clock import Clock
from ..wire.errors import ErrorCode, KafkaError
from ..wire.fetch import AbortedTransaction, FetchPartition, FetchRequest, FetchResponse, FetchResponsePartition
from .delayed import FetchWaiter
from .history import find_divergence
from .nearby import NONE, RackOf, nearby_replica
from .reading import failed_answer, read_batches
from .replica import Replica

READ_COMMITTED = 1
WAITING_FETCHES_MAX = 10_000


class ClientFetches:
    """Serves fetches of consumers."""

    def __init__(
        self,
        clock: Clock,
        lookup: Callable[[str, int], Replica],
        on_storage_failure: Callable[[Replica, str], None],
        rack_of: RackOf | None = None,
    ) -> None:
        """Without `rack_of`, leaders alone serve clients."""
        self._clock = clock
        self._lookup = lookup
        self._on_storage_failure = on_storage_failure
        self._rack_of = rack_of
        self._rotation = 0
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Fetches that wait right now."""
        return self._waiting

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Answers `request`, waiting up to its `max_wait_ms`; errors are values of the partitions."""
        parts = [(topic, spec) for topic, specs in request.topics for spec in specs]
        deadline_s = self._clock.monotonic() + request.max_wait_ms / 1000
        answers, ready = self._evaluate(request, parts)
        while not ready and self._waiting < WAITING_FETCHES_MAX:
            remaining_s = deadline_s - self._clock.monotonic()
            if remaining_s <= 0:
                break
            await self._wait(parts, remaining_s)
            answers, ready = self._evaluate(request, parts)
        return _in_topics(request, answers)

    async def _wait(self, parts: Sequence[tuple[str, FetchPartition]], delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = FetchWaiter(lambda: None if woken.done() else woken.set_result(None))
        for topic, spec in parts:
            waiter.watch(self._lookup(topic, spec.partition).watchers)  # found a moment ago, or the fetch would not wait
        waiter.start_timer(self._clock, delay_s)
        self._waiting += 1
        try:
            await woken
        finally:
            self._waiting -= 1
            waiter.close()

    def _evaluate(
        self, request: FetchRequest, parts: Sequence[tuple[str, FetchPartition]]
    ) -> tuple[list[FetchResponsePartition], bool]:
        """The answer as of now, and whether it should go out without (further) waiting."""
        answers: dict[int, FetchResponsePartition] = {}
        enough = min(request.min_bytes, request.max_bytes)  # more than it may be given nobody can wait for; with 0 nobody waits
        total, ready = 0, request.max_wait_ms <= 0 or not parts
        self._rotation += 1
        first = self._rotation % len(parts) if parts else 0
        for index in (*range(first, len(parts)), *range(first)):
            topic, spec = parts[index]
            budget = min(spec.max_bytes, request.max_bytes - total)
            try:
                answer = self._answer(request, topic, spec, budget, total == 0)
                ready = ready or answer.diverging_epoch is not None or answer.preferred_read_replica != NONE
            except KafkaError as error:
                answer, ready = failed_answer(self._lookup, (topic, spec.partition), error), True
            answers[index] = answer
            total += len(answer.records)
        return [answers[index] for index in range(len(parts))], ready or total >= enough

    def _answer(
        self, request: FetchRequest, topic: str, spec: FetchPartition, budget: int, at_least_one: bool
    ) -> FetchResponsePartition:
        replica = self._lookup(topic, spec.partition)
        rack_of = self._rack_of if request.rack_id else None
        replica.require_reader_at(spec.current_leader_epoch, nearby=rack_of is not None)
        log = replica.log
        committed_only = request.isolation_level == READ_COMMITTED
        answer = FetchResponsePartition(
            spec.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted=() if committed_only else None,
            diverging_epoch=find_divergence(log, spec.fetch_offset, spec.last_fetched_epoch, follower=False),
        )
        if replica.leader is None and answer.diverging_epoch is not None:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "this follower does not hold what was read: ask the leader")
        if replica.leader is not None and rack_of is not None and answer.diverging_epoch is None:
            answer.preferred_read_replica = nearby_replica(replica.leader, request.rack_id, spec.fetch_offset, rack_of)
            if answer.preferred_read_replica != NONE:
                return answer
        upper = answer.last_stable_offset if committed_only else log.high_watermark
        if answer.diverging_epoch is None and spec.fetch_offset < upper and (budget > 0 or at_least_one):
            answer.records, next_offset = read_batches(
                replica, spec.fetch_offset, budget, upper, at_least_one, self._on_storage_failure
            )
            if committed_only and answer.records:
                answer.aborted = [
                    AbortedTransaction(aborted.producer_id, aborted.first_offset)
                    for aborted in log.aborted_transactions(spec.fetch_offset, next_offset)
                ]
        return answer


def _in_topics(request: FetchRequest, answers: list[FetchResponsePartition]) -> FetchResponse:
    response = FetchResponse()
    position = 0
    for topic, specs in request.topics:
        response.topics.append((topic, answers[position : position + len(specs)]))
        position += len(specs)
    return response
