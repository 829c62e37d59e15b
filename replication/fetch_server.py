"""Answering fetches, of clients and of followers: one evaluation for immediate and delayed answers (KAFKA-5376).

Order, for every partition of a follower's fetch on its arrival: fence by leader epoch, compare histories, and only then believe
its fetch offset, move the high watermark, consider it for the ISR.  Reading comes last and is the same code for the first look
and for every look after a wait: whatever happened meanwhile (another leader, a deletion, a truncation) is found out then.

A fetch waits until `min_bytes` are there, a partition has an error or a divergence, a follower's knowledge of a high watermark is
outdated, or `max_wait_ms` is over.  The byte budget of a fetch is given out from another partition on each time, and the first
partition that has data always gets one whole batch, however large: nobody starves and replication never wedges (HOTPATH 9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..runtime.clock import Clock
from ..wire.errors import ErrorCode, KafkaError
from ..wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchResponsePartition
from .delayed import FetchWaiter
from .follower import FetchPosition
from .history import find_divergence
from .replica import Replica

READ_COMMITTED = 1
CLIENT_REPLICA_ID = -1
WAITING_FETCHES_MAX = 10_000


#: The answer to a fetch, as the wire has it; `topics` in the order of the request.
FetchResult = FetchResponse


class FetchServer:
    """Serves `FetchRequest`s from the replicas that `lookup` finds."""

    def __init__(
        self,
        clock: Clock,
        lookup: Callable[[str, int], Replica],
        *,
        on_follower_progress: Callable[[Replica, int], None],
        on_storage_failure: Callable[[Replica, str], None],
    ) -> None:
        """`on_follower_progress(replica, node)` runs right after a fetch offset was recorded."""
        self._clock = clock
        self._lookup = lookup
        self._on_follower_progress = on_follower_progress
        self._on_storage_failure = on_storage_failure
        self._rotation = 0
        self._waiting = 0
        self._follower_waits: dict[int, FetchWaiter] = {}

    @property
    def waiting(self) -> int:
        """Fetches that wait right now."""
        return self._waiting

    def wake_followers(self) -> None:
        """Ends the long poll of every follower, so that it can ask for partitions that it did not know when it asked."""
        for waiter in tuple(self._follower_waits.values()):
            waiter.wake()

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Answers `request`, waiting up to its `max_wait_ms`; errors are values of the partitions."""
        parts = [(topic, spec) for topic, specs in request.topics for spec in specs]
        follower = request.replica_id >= 0
        if follower and (previous := self._follower_waits.get(request.replica_id)) is not None:
            previous.wake()  # it asks anew: nothing is gained by keeping its older question
        deadline_s = self._clock.monotonic() + request.max_wait_ms / 1000
        answers, ready = self._evaluate(request, parts, arrival=True)
        while not ready and self._waiting < WAITING_FETCHES_MAX:
            remaining_s = deadline_s - self._clock.monotonic()
            if remaining_s <= 0:
                break
            await self._wait(request, parts, remaining_s)
            answers, ready = self._evaluate(request, parts, arrival=False)
            if follower:
                break  # woken by a change that concerns it, by its own newer fetch, or by time: answer in any case
        return _in_topics(request, answers)

    async def _wait(self, request: FetchRequest, parts: Sequence[tuple[str, FetchPartition]], delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = FetchWaiter(lambda: None if woken.done() else woken.set_result(None))
        follower = request.replica_id >= 0
        for topic, spec in parts:
            try:
                replica = self._lookup(topic, spec.partition)
            except KafkaError:
                continue  # it was in the answer already; the next evaluation says so again
            if follower:
                replica.watchers.watch_records(waiter)
            replica.watchers.watch_high_watermark(waiter)
        waiter.start_timer(self._clock, delay_s)
        if follower:
            self._follower_waits[request.replica_id] = waiter
        self._waiting += 1
        try:
            await woken
        finally:
            self._waiting -= 1
            waiter.close()
            if follower and self._follower_waits.get(request.replica_id) is waiter:
                del self._follower_waits[request.replica_id]

    def _evaluate(
        self, request: FetchRequest, parts: Sequence[tuple[str, FetchPartition]], *, arrival: bool
    ) -> tuple[list[FetchResponsePartition], bool]:
        """The answer as of now, and whether it should go out without (further) waiting."""
        answers: list[FetchResponsePartition | None] = [None] * len(parts)
        follower = request.replica_id >= 0
        total, ready = 0, request.max_wait_ms <= 0 or not parts
        self._rotation += 1
        first = self._rotation % len(parts) if parts else 0
        for index in (*range(first, len(parts)), *range(first)):
            topic, spec = parts[index]
            budget = min(spec.max_bytes, request.max_bytes - total)
            try:
                if follower:
                    answer, news = self._follower_answer(request, topic, spec, budget, total == 0, arrival)
                else:
                    answer, news = self._client_answer(request, topic, spec, budget, total == 0)
            except KafkaError as error:
                answer, news = self._failed(topic, spec, error), True
            answers[index] = answer
            total += len(answer.records)
            ready = ready or news
        return [answer for answer in answers if answer is not None], ready or total >= max(1, request.min_bytes)

    # -- followers -----------------------------------------------------------------------------------------------------------

    def _follower_answer(
        self, request: FetchRequest, topic: str, spec: FetchPartition, budget: int, at_least_one: bool, arrival: bool
    ) -> tuple[FetchResponsePartition, bool]:
        replica = self._lookup(topic, spec.partition)
        diverging = replica.receive_fetch(
            request.replica_id,
            request.replica_epoch,
            FetchPosition(spec.current_leader_epoch, spec.fetch_offset, spec.last_fetched_epoch, spec.log_start_offset),
            now_s=self._clock.monotonic(),
            arrival=arrival,
        )
        leader, log = replica.require_leader(), replica.log
        if diverging is not None:
            answer = FetchResponsePartition(spec.partition, ErrorCode.NONE, leader.high_watermark, -1, log.log_start_offset)
            answer.diverging_epoch = diverging
            return answer, True
        if arrival:
            self._on_follower_progress(replica, request.replica_id)
        records = b""
        if spec.fetch_offset < log.log_end_offset and (budget > 0 or at_least_one):
            records = self._read(replica, spec.fetch_offset, budget, log.log_end_offset, at_least_one)
        progress = leader.follower(request.replica_id)
        news = progress.high_watermark_sent < leader.high_watermark
        answer = FetchResponsePartition(
            spec.partition, ErrorCode.NONE, leader.high_watermark, -1, log.log_start_offset, records=records
        )
        progress.high_watermark_sent = leader.high_watermark
        return answer, news

    # -- clients -------------------------------------------------------------------------------------------------------------

    def _client_answer(
        self, request: FetchRequest, topic: str, spec: FetchPartition, budget: int, at_least_one: bool
    ) -> tuple[FetchResponsePartition, bool]:
        replica = self._lookup(topic, spec.partition)
        leader = replica.require_leader_at(spec.current_leader_epoch)
        log = replica.log
        stable = log.last_stable_offset
        answer = FetchResponsePartition(spec.partition, ErrorCode.NONE, leader.high_watermark, stable, log.log_start_offset)
        committed_only = request.isolation_level == READ_COMMITTED
        if committed_only:
            answer.aborted = []
        diverging = find_divergence(log, spec.fetch_offset, spec.last_fetched_epoch, follower=False)
        if diverging is not None:
            answer.diverging_epoch = diverging
            return answer, True
        upper = stable if committed_only else leader.high_watermark
        if spec.fetch_offset < upper and (budget > 0 or at_least_one):
            answer.records, next_offset = self._read_range(replica, spec.fetch_offset, budget, upper, at_least_one)
            if committed_only and answer.records:
                answer.aborted = log.aborted_transactions(spec.fetch_offset, next_offset)
        return answer, False

    # -- reading and failing -------------------------------------------------------------------------------------------------

    def _read(self, replica: Replica, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool) -> bytes:
        return self._read_range(replica, offset, max_bytes, upper_offset, at_least_one)[0]

    def _read_range(
        self, replica: Replica, offset: int, max_bytes: int, upper_offset: int, at_least_one: bool
    ) -> tuple[bytes, int]:
        try:
            result = replica.log.read(offset, max(0, max_bytes), upper_offset=upper_offset, at_least_one_batch=at_least_one)
        except OSError as error:
            self._on_storage_failure(replica, f"reading at offset {offset} failed: {error}")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"reading at offset {offset} failed: {error}") from error
        return result.data, result.next_offset

    def _failed(self, topic: str, spec: FetchPartition, error: KafkaError) -> FetchResponsePartition:
        answer = FetchResponsePartition(spec.partition, error.code)
        try:
            replica = self._lookup(topic, spec.partition)
        except KafkaError:
            return answer
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            answer.log_start_offset = replica.log.log_start_offset
            answer.high_watermark = replica.log.high_watermark
        elif error.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            answer.current_leader = (replica.leader_id, replica.leader_epoch)  # KIP-951: where to go next
        return answer


def _in_topics(request: FetchRequest, answers: list[FetchResponsePartition]) -> FetchResult:
    result = FetchResult()
    position = 0
    for topic, specs in request.topics:
        result.topics.append((topic, answers[position : position + len(specs)]))
        position += len(specs)
    return result
