"""Answering the fetches of clients: one evaluation for immediate and delayed answers (KAFKA-5376).

Clients see what is committed: below the high watermark, or, when read_committed, below the last stable offset
and with the aborted transactions of the range.  A fetch waits until `min_bytes` are there, a partition has an
error or a divergence, `max_wait_ms` is over, or the wait is ended (`waiting.py`).  After a wait the leader
looks at every partition again, because its leadership may be lost, or the partition deleted or truncated.  An
unknown partition gets an error but does not end the wait for the others, or its client would send fetches
without a pause.

Each fetch spends its byte budget from another partition on, and the first partition that has records always
gets one whole batch, however large, so every partition gets its records.  Within a session
(`client_sessions`) the partitions that had records go to the end instead.

With the rack-aware `replica.selector.class` the leader sends a client that names its rack to a replica in
that rack, and followers serve clients (`nearby`).  Every replica serves a debugging consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from uuid import UUID

from ...runtime.clock import Clock
from ...wire.errors import ErrorCode, KafkaError
from ...wire.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
)
from ..partition.history import find_divergence
from ..replica.reading import UNKNOWN, failed_answer, read_batches
from ..replica.replica import Replica, TakeOffline
from ..replica.waiters import FetchWaiter
from .client_sessions import (
    FINAL_EPOCH,
    FULL_EPOCH,
    SESSIONS_MAX,
    ClientSession,
    ClientSessions,
    FetchPart,
    TopicNameOf,
)
from .nearby import NONE, RackOf, nearby_replica

READ_COMMITTED = 1
DEBUGGING_CONSUMER_ID = -2
"""The `replica_id` of a tool that compares replicas: each replica serves it the committed records that it
has."""
WAITING_FETCHES_MAX = 10_000
MayRead = Callable[[str], bool]
"""Whether a client may read a topic."""


class ClientFetches:
    """Serves fetches of consumers."""

    def __init__(
        self,
        clock: Clock,
        lookup: Callable[[str, int], Replica],
        take_offline: TakeOffline,
        rack_of: RackOf | None = None,
        *,
        topic_name_of: TopicNameOf = lambda _topic_id: None,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        """Without `rack_of` only leaders serve clients; `topic_name_of(topic_id)` is None for an unknown
        topic."""
        self._clock = clock
        self._lookup = lookup
        self._take_offline = take_offline
        self._rack_of = rack_of
        self._topic_name_of = topic_name_of
        self.sessions = ClientSessions(clock.random, sessions_max)
        self._rotation = 0
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Fetches that wait right now."""
        return self._waiting

    async def fetch(
        self,
        request: FetchRequest,
        *,
        by_id: bool = False,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        may_read: MayRead = lambda _topic: True,
        owner: str = "",
    ) -> FetchResponse:
        """Answers `request`, waiting up to its `max_wait_ms`; errors are values of the partitions.  `by_id`:
        the request names topics by their ids, and so does the answer.  `may_read(topic)`: whether the client
        may; asked again after each wait, because rights may be taken away meanwhile.  `owner`: its principal.

        The partitions are looked at in a `turn` of the client's: one append may wake the fetches of very
        many."""
        started_s = self._clock.monotonic()
        session = self.sessions.open(request, by_id, self._topic_name_of, started_s, owner)
        if isinstance(session, ErrorCode):
            return FetchResponse(session)
        parts = list(session.parts.values())
        deadline_s = started_s + request.max_wait_ms / 1000
        unknown: dict[int, FetchResponsePartition] = {}
        async with turn():
            answers, ready = self._evaluate(request, session, parts, unknown, may_read, arrival=True)
        while not ready and self._waiting < WAITING_FETCHES_MAX:
            remaining_s = deadline_s - self._clock.monotonic()
            if remaining_s <= 0:
                break
            waiting_for = [part for index, part in enumerate(parts) if index not in unknown]
            is_ended = await self._wait(waiting_for, remaining_s)
            async with turn():
                answers, ready = self._evaluate(request, session, parts, unknown, may_read, arrival=False)
            ready = ready or is_ended
        if not self.sessions.is_current(session, request.session_epoch):
            return FetchResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id)
        everything = request.session_epoch <= 0
        found = (
            [index for index in range(len(parts)) if index not in unknown] if unknown else range(len(parts))
        )
        answered = [
            (part, answer)
            for part, answer in ((parts[index], answers[index]) for index in (*found, *unknown))
            if session.session_id == 0 or session.answered(part, answer) or everything
        ]
        return _in_topics(session, answered)

    def throttled(self, request: FetchRequest, *, by_id: bool, owner: str = "") -> FetchResponse:
        """Nothing, for a client that has to pause (KIP-219).  Its session goes on; a new one does not begin,
        because the client takes an empty full answer for none."""
        if request.session_epoch == FULL_EPOCH:
            request.session_epoch = FINAL_EPOCH
        session = self.sessions.open(request, by_id, self._topic_name_of, self._clock.monotonic(), owner)
        return (
            FetchResponse(session)
            if isinstance(session, ErrorCode)
            else FetchResponse(ErrorCode.NONE, session.session_id)
        )

    def end(self, replica: Replica, code: ErrorCode) -> None:
        """Answers all fetches that wait for this replica, with what each of them finds now."""
        for waiter in tuple(replica.watchers.clients):
            waiter.end()

    async def _wait(self, parts: Sequence[FetchPart], delay_s: float) -> bool:
        """True when the fetch must not wait again."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = FetchWaiter(lambda: None if woken.done() else woken.set_result(None))
        for part in parts:
            assert part.topic is not None
            # found a moment ago, or it would not wait
            waiter.watch(self._lookup(part.topic, part.spec.partition).watchers)
        waiter.start_timer(self._clock, delay_s)
        self._waiting += 1
        try:
            await woken
        finally:
            self._waiting -= 1
            waiter.close()
        return waiter.is_ended

    def _evaluate(
        self,
        request: FetchRequest,
        session: ClientSession,
        parts: Sequence[FetchPart],
        unknown: dict[int, FetchResponsePartition],
        may_read: MayRead,
        *,
        arrival: bool,
    ) -> tuple[list[FetchResponsePartition], bool]:
        """The answer as of now, and whether it should go out without (further) waiting.  `unknown` gets, on
        arrival, the answers of the partitions for which nothing is waited."""
        answers: dict[int, FetchResponsePartition] = dict(unknown)
        # the wait must end by `max_bytes` at the latest; with 0 the fetch does not wait
        enough = min(request.min_bytes, request.max_bytes)
        total, ready = 0, request.max_wait_ms <= 0
        first = 0
        if session.session_id == 0 and parts:
            self._rotation += 1
            first = self._rotation % len(parts)
        for index in (*range(first, len(parts)), *range(first)):
            if index in unknown:
                continue
            part = parts[index]
            budget = min(part.spec.max_bytes, request.max_bytes - total)
            try:
                if part.topic is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
                if not may_read(part.topic):
                    raise KafkaError(
                        ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"the client may not read {part.topic}"
                    )
                answer = self._answer(request, part.topic, part.spec, budget, total == 0)
                ready = ready or answer.diverging_epoch is not None or answer.preferred_read_replica != NONE
            except KafkaError as error:
                answer = failed_answer(self._lookup, (part.topic, part.spec.partition), error)
                if arrival and (error.code in UNKNOWN or error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                    unknown[index] = answer
                else:
                    ready = True
            answers[index] = answer
            total += len(answer.records)
        ready = ready or total >= enough or len(unknown) == len(parts)
        return [answers[index] for index in range(len(parts))], ready

    def _answer(
        self, request: FetchRequest, topic: str, spec: FetchPartition, budget: int, at_least_one: bool
    ) -> FetchResponsePartition:
        replica = self._lookup(topic, spec.partition)
        if spec.topic_id is not None and spec.topic_id != replica.topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{topic} is topic {replica.topic_id} here, not {spec.topic_id}",
            )
        rack_of = self._rack_of if request.rack_id else None
        nearby = rack_of is not None or request.replica_id == DEBUGGING_CONSUMER_ID
        replica.require_reader_at(spec.current_leader_epoch, nearby=nearby)
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
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, "this follower does not hold what was read: ask the leader"
            )
        if replica.leader is not None and rack_of is not None and answer.diverging_epoch is None:
            answer.preferred_read_replica = nearby_replica(
                replica.leader, request.rack_id, spec.fetch_offset, rack_of
            )
            if answer.preferred_read_replica != NONE:
                return answer
        upper = answer.last_stable_offset if committed_only else log.high_watermark
        if answer.diverging_epoch is None and spec.fetch_offset < upper and (budget > 0 or at_least_one):
            answer.records, next_offset = read_batches(
                replica, spec.fetch_offset, budget, upper, at_least_one, self._take_offline
            )
            if committed_only and answer.records:
                answer.aborted = [
                    AbortedTransaction(aborted.producer_id, aborted.first_offset)
                    for aborted in log.aborted_transactions(spec.fetch_offset, next_offset)
                ]
        return answer


def _in_topics(
    session: ClientSession, answered: Sequence[tuple[FetchPart, FetchResponsePartition]]
) -> FetchResponse:
    response = FetchResponse(ErrorCode.NONE, session.session_id)
    topics: list[tuple[str | UUID, list[FetchResponsePartition]]] = []
    for part, answer in answered:
        topic = part.key[0]
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append(answer)
    if session.by_id:
        response.topics_by_id = topics  # type: ignore[assignment]
    else:
        response.topics = topics  # type: ignore[assignment]
    return response
