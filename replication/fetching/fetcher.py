"""The follower's side of replication: one task per leader broker, all partitions of that leader in one fetch.

Order, for every answer: check that this node still follows the partition in the leader epoch of the fetch;
let the core decide; change the log as it says; flush the logs that got records (one group commit for all of
them) *before* the next fetch, because the fetch offset tells the leader that everything below it is durable
here.

Each partition is in a state of the table in `followed.py`, which says whether the next fetch of the session
(KIP-227) lists it, and whether an answer may come for it.  A fetch that fails in any way ends the session;
the next ones list all partitions, `FetcherLimits.listed_max` at a time, because the leader rejects a request
with more entries than the wire allows.

Bounds: one fetch in flight per leader, plus at most one for partitions that were assigned while it waits;
pauses after errors grow to a limit; a partition with an error pauses alone, and the fetcher goes on with the
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...runtime import logs
from ...runtime.calm_logs import Outage, RateLimitedLines
from ...runtime.clock import Clock
from ...runtime.tasks import OnFailure, spawn
from ...wire.errors import ErrorCode, KafkaError
from ...wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchResponsePartition
from ..partition.follower import (
    Answer,
    Append,
    BackOff,
    Fail,
    FetchPosition,
    Ignore,
    Restart,
    Truncate,
)
from ..replica.catch_up_throttle import CatchUpThrottle
from ..replica.replica import OfflineCause, Replica, TakeOffline
from .fetch_session import FULL_EPOCH
from .followed import IN_SESSION, TRANSITIONS, Followed, ListingEvent, ListingState, Positions

Key = tuple[str, int]

_log = logs.get(__name__)


class FetchTransport(Protocol):
    """A connection to one broker, supplied by node; it connects when first used and again after a failure.

    `fetch` raises OSError or KafkaError when the request could not be answered; it may be cancelled at any
    time.
    """

    async def fetch(self, request: FetchRequest) -> FetchResponse: ...
    def close(self) -> None: ...


SESSION_ERRORS = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})

TransportFactory = Callable[[int], FetchTransport]


@dataclass(slots=True, frozen=True)
class FetcherLimits:
    """The limits of one fetch, its timeout and the pauses after errors."""

    wait_max_ms: int = 500
    response_max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    listed_max: int = 10_000
    answer_timeout_s: float = 10.0
    backoff_first_s: float = 0.02
    backoff_max_s: float = 1.0


class LeaderFetcher:
    """Fetches everything that this node follows from one leader broker."""

    def __init__(
        self,
        node_id: int,
        leader_id: int,
        clock: Clock,
        transport: FetchTransport,
        limits: FetcherLimits,
        *,
        broker_epoch: Callable[[], int],
        flush: Callable[[Sequence[Replica]], Awaitable[None]],
        take_offline: TakeOffline,
        require_room: Callable[[Replica], None],
        throttle: CatchUpThrottle,
        on_failure: OnFailure,
    ) -> None:
        """`flush(replicas)` makes their logs durable (a failure takes the replica offline); `require_room`
        raises KAFKA_STORAGE_ERROR when the disk takes no more records.  All fetchers share `throttle`.
        `on_failure(error)`: a defect ended the task in spite of its own handler."""
        self._on_failure = on_failure
        self.leader_id = leader_id
        self._node_id = node_id
        self._clock = clock
        self._transport = transport
        self._limits = limits
        self._broker_epoch = broker_epoch
        self._flush = flush
        self._take_offline = take_offline
        self._require_room = require_room
        self._throttle = throttle
        self._followed: dict[Key, Followed] = {}
        self._due: dict[Key, None] = {}  # in any state but LISTED, in the order in which they came to it
        self._positions: Positions = {}  # as the session has them at the leader: those `IN_SESSION`
        self._session_id = 0
        self._session_epoch = FULL_EPOCH
        self._wake = asyncio.Event()
        self._waiting = False
        self._extra: asyncio.Task[None] | None = None
        self._main: asyncio.Task[None] | None = None
        self._unanswered = Outage(_log, "fetch_not_answered")
        self.lines = RateLimitedLines(_log, "partition_fetch_rests", "partition_fetches_rest")

    def __len__(self) -> int:
        return len(self._followed)

    def start(self) -> None:
        self._main = spawn(self._run(), f"fetch-from-{self.leader_id}", self._on_failure)

    async def close(self) -> None:
        tasks = [task for task in (self._main, self._extra) if task is not None]
        self._main = self._extra = None
        self._followed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._transport.close()

    def assign(self, replica: Replica) -> None:
        """Follows `replica` in its present leader epoch, instead of an earlier one."""
        if replica.follower is None or replica.follower.leader != self.leader_id:
            raise ValueError(f"{replica.topic}-{replica.partition} does not follow node {self.leader_id}")
        state = ListingState.NEW if self._waiting else ListingState.UNLISTED
        self._followed[replica.key] = Followed(replica, replica.follower, state)
        self._positions.pop(replica.key, None)
        self._due[replica.key] = None
        self._wake.set()
        if state is ListingState.NEW and self._extra is None:
            self._extra = spawn(
                self._fetch_newly_assigned(), f"fetch-aside-{self.leader_id}", self._on_failure
            )

    def remove(self, key: Key) -> None:
        """Stops following the partition.  The session still has it; the fetcher ignores an answer for it."""
        self._followed.pop(key, None)
        self._positions.pop(key, None)
        self._due.pop(key, None)

    def _advance(self, followed: Followed, event: ListingEvent) -> None:
        key, followed.state = followed.replica.key, TRANSITIONS[followed.state, event]
        if followed.state not in IN_SESSION:
            self._positions.pop(key, None)
        if followed.state is ListingState.LISTED:
            self._due.pop(key, None)
        else:
            self._due[key] = None

    # ---- the loop ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                answered = await self._step()
            except Exception:
                # A defect, or an answer that cannot be read: the fetcher must go on with the other
                # partitions.
                _log.exception("fetcher_step_failed", leader=self.leader_id)
                answered = self._restart_session(None)
            failures = 0 if answered else failures + 1
            if failures:
                await self._clock.sleep(self._backoff_s(failures))

    async def _step(self) -> bool:
        """One fetch of the partitions that are due; False when it failed."""
        self._wake.clear()
        if not self._followed:
            await self._wake.wait()
            return True
        if self._session_epoch == FULL_EPOCH:
            for followed in self._followed.values():  # those not listed yet stay in front
                self._advance(followed, ListingEvent.SESSION_ENDED)
        chosen, rest_s = self._take_due()
        if not chosen and not self._positions:
            await self._pause(rest_s)
            return True
        positions = await self._positions_to_send(chosen)
        # The fetch waits at the leader at most until the next pause of a partition is over.
        request = self._request(positions, max(1, int(rest_s * 1000)))
        request.session_id, request.session_epoch = self._session_id, self._session_epoch
        request.forgotten_topics = self._forgotten(positions)
        self._positions.update(positions)
        for followed, _ in positions.values():
            self._advance(followed, ListingEvent.LISTED)
            if followed.replica.log.local.start_note.is_due:  # this fetch still sends the old log start
                self._advance(followed, ListingEvent.LIST_AGAIN)
        self._waiting = True
        try:
            response = await self._ask(request)
        finally:
            self._waiting = False
        if response is None or response.error is not ErrorCode.NONE:
            return self._restart_session(response)
        self._session_id = response.session_id
        self._session_epoch = self._session_epoch % 0x7FFFFFFF + 1 if response.session_id else FULL_EPOCH
        await self._carry_out(self._positions, response)
        return True

    def _take_due(self) -> tuple[list[Followed], float]:
        """The partitions that the next fetch lists, and the seconds until the first of the others may be
        listed."""
        now_s, rest_s = self._clock.monotonic(), self._limits.wait_max_ms / 1000
        chosen: list[Followed] = []
        for key in tuple(self._due):
            followed = self._followed.get(key)
            if followed is None or not followed.is_current():
                self.remove(key)  # offline, or another role
            elif followed.rests_until_s > now_s:
                rest_s = min(rest_s, followed.rests_until_s - now_s)
            elif len(chosen) == self._limits.listed_max:
                return chosen, 0.0  # the leader answers at once, and the next fetch lists on
            else:
                chosen.append(followed)
        return chosen, rest_s

    def _forgotten(self, positions: Positions) -> list[tuple[str, list[int]]]:
        """The partitions that the leader removes from the session.  One that this fetch lists again gets a
        full answer, because this node did not use the last one; a throttled one gets no records until a later
        fetch lists it."""
        due = [followed for key in self._due if (followed := self._followed.get(key)) is not None]
        gone = [
            each for each in due if each.state is ListingState.HELD_BACK and each.replica.key not in positions
        ]
        for followed in gone:
            self._advance(followed, ListingEvent.FORGOTTEN)
        gone += [each for each in due if each.state is ListingState.UNUSED and each.replica.key in positions]
        return [(topic, [partition]) for topic, partition in sorted(each.replica.key for each in gone)]

    def _restart_session(self, response: FetchResponse | None) -> bool:
        """Ends the session: the next fetch lists all partitions.  True when the leader had only lost the
        session, so that the next fetch needs no pause."""
        forgotten = (
            response is not None and response.error in SESSION_ERRORS and self._session_epoch != FULL_EPOCH
        )
        if response is not None and not forgotten:
            _log.warning("fetch_refused", leader=self.leader_id, error=response.error.name)
        self._session_id, self._session_epoch = 0, FULL_EPOCH
        return forgotten

    async def _pause(self, rest_s: float) -> None:
        """Returns when a partition is assigned, or after `rest_s`."""
        timer = self._clock.call_later(rest_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _fetch_newly_assigned(self) -> None:
        """Fetches newly assigned partitions at once, while another fetch waits at the leader, which then
        answers that one."""
        try:
            await asyncio.sleep(0)  # metadata is applied in one go: take all that it assigns
            while chosen := self._take_new():
                positions = await self._positions_to_send(chosen)
                response = await self._ask(self._request(positions, 0)) if positions else None
                if response is not None and response.error is ErrorCode.NONE:
                    await self._carry_out(positions, response)
        except Exception:
            # the next fetch of the loop lists them anyway
            _log.exception("fetcher_extra_fetch_failed", leader=self.leader_id)
        finally:
            self._extra = None

    def _take_new(self) -> list[Followed]:
        due = [followed for key in self._due if (followed := self._followed.get(key)) is not None]
        found = [each for each in due if each.state is ListingState.NEW][: self._limits.listed_max]
        for followed in found:
            self._advance(followed, ListingEvent.ASKED_BESIDE)
        return found

    def _backoff_s(self, failures: int) -> float:
        pause_s = min(self._limits.backoff_max_s, self._limits.backoff_first_s * 2 ** min(failures - 1, 10))
        return float(pause_s * (0.75 + 0.5 * self._clock.random()))

    # ---- one fetch -----------------------------------------------------------------------------------------

    async def _positions_to_send(self, chosen: Sequence[Followed]) -> Positions:
        unflushed = [
            each.replica
            for each in chosen
            if each.replica.needs_flush or each.replica.log.local.start_note.is_due
        ]
        if unflushed:  # for example records of an own leadership: a fetch offset may name only flushed ones
            await self._flush(unflushed)
        positions: Positions = {}
        for followed in chosen:
            if followed.is_current() and not followed.replica.needs_flush:
                positions[followed.replica.key] = (followed, followed.core.next_fetch(followed.replica.log))
                if followed.replica.log.local.start_note.is_due:  # a full disk
                    self._rest(followed, ErrorCode.KAFKA_STORAGE_ERROR, "the log start could not be noted")
        return positions

    async def _ask(self, request: FetchRequest) -> FetchResponse | None:
        """The leader's answer; None after an error or a timeout, which also close the connection."""
        try:
            async with asyncio.timeout(self._limits.answer_timeout_s + request.max_wait_ms / 1000):
                return await self._transport.fetch(request)
        except (KafkaError, OSError, TimeoutError) as error:
            self._unanswered.failed(self._clock.monotonic(), leader=self.leader_id, error=repr(error))
            self._transport.close()
            return None

    def _request(self, positions: Positions, wait_max_ms: int) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for (topic, partition), (followed, position) in positions.items():
            topics.setdefault(topic, []).append(
                FetchPartition(
                    partition,
                    position.fetch_offset,
                    self._limits.partition_max_bytes,
                    position.leader_epoch,
                    position.last_fetched_epoch,
                    position.log_start_offset,
                    followed.replica.topic_id,
                )
            )
        return FetchRequest(
            replica_id=self._node_id,
            max_wait_ms=wait_max_ms,
            min_bytes=1,
            max_bytes=self._limits.response_max_bytes,
            topics=list(topics.items()),
            replica_epoch=self._broker_epoch(),
        )

    async def _carry_out(self, positions: Positions, response: FetchResponse) -> None:
        appended: list[Replica] = []
        for topic, partitions in response.topics:
            for part in partitions:
                found = positions.get((topic, part.partition))
                if found is None:
                    continue  # no longer followed
                followed, position = found
                if not followed.is_current():
                    continue
                if self._on_answer(followed, position, part):
                    appended.append(followed.replica)
        if appended:
            await self._flush(appended)

    def _on_answer(self, followed: Followed, position: FetchPosition, part: FetchResponsePartition) -> bool:
        """Lets the core decide on the answer and changes the log; True when the log must be flushed before
        the next fetch."""
        replica = followed.replica
        moved = part.log_start_offset > position.log_start_offset
        if moved or part.records or part.diverging_epoch is not None or part.error is not ErrorCode.NONE:
            # the next fetch sends the leader this log's position, also after an error
            self._advance(followed, ListingEvent.LIST_AGAIN)
        answer = Answer(
            part.error,
            part.high_watermark,
            part.log_start_offset,
            part.diverging_epoch,
            part.records,
            part.may_have_offset_gaps,
            part.cleaned_at_most,
        )
        try:
            action = followed.core.on_answer(position, answer, replica.log)
            match action:
                case Append(records):
                    if records:
                        self._require_room(replica)
                    appended = replica.carry_out(action)
                    followed.failures = 0  # only after the append: on a full disk the pauses must grow
                    if records and replica.is_follower_throttled:
                        self._hold_back(followed, len(records))
                    return appended
                case Truncate(offset) | Restart(offset):
                    self._log_truncation(replica, offset, part)
                    replica.carry_out(action)
                case BackOff(error):
                    self._rest(followed, error, "")
                case Fail(reason):
                    self._take_offline(replica, OfflineCause.LOGS_DISAGREE, reason)
                case Ignore.STALE:
                    self._advance(followed, ListingEvent.NOT_USED)
        except KafkaError as error:
            if replica.log.is_offline:
                self._take_offline(replica, OfflineCause.DISK_FAILED, str(error))
            else:  # a batch damaged on the network, a full disk: fetch it again
                followed.core.on_refused()
                self._rest(followed, error.code, error.message)
        # the session counts the whole answer as sent, so the other partitions must use theirs
        except Exception as error:
            if not followed.failures:
                _log.exception(
                    "partition_fetch_failed",
                    topic=replica.topic,
                    partition=replica.partition,
                    leader=self.leader_id,
                )
            followed.core.on_refused()
            self._advance(followed, ListingEvent.NOT_USED)
            self._rest(followed, ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))
        return False

    def _hold_back(self, followed: Followed, size: int) -> None:
        """A throttled replica has fetched `size` bytes: when the throttle's quota is used up, it pauses."""
        now_s = self._clock.monotonic()
        self._throttle.sent(size)
        delay_s = self._throttle.delay_s(now_s)
        if delay_s > 0:
            followed.rests_until_s = now_s + delay_s
            self._advance(followed, ListingEvent.THROTTLED)

    def _rest(self, followed: Followed, error: ErrorCode, message: str) -> None:
        """Pauses the fetching of this partition alone; newer metadata with another leader epoch ends the
        pause."""
        followed.failures += 1
        pause_s = self._backoff_s(followed.failures)
        followed.rests_until_s = self._clock.monotonic() + pause_s
        if followed.failures & (followed.failures - 1):
            return  # a line at the first, second, fourth, eighth failure and so on
        self.lines.line(
            self._clock.monotonic(),
            error.name,
            leader=self.leader_id,
            topic=followed.replica.topic,
            partition=followed.replica.partition,
            leader_epoch=followed.core.leader_epoch,
            error=error.name,
            message=message,
            failures=followed.failures,
            pause_ms=int(pause_s * 1000),
        )

    def _log_truncation(self, replica: Replica, offset: int, part: FetchResponsePartition) -> None:
        """A WARNING only when the truncation removes records below this replica's high watermark.  After a
        change of leaders it is normal that followers truncate uncommitted records, and most have none to
        remove."""
        log = replica.log
        say = (
            _log.warning
            if offset < log.high_watermark
            else _log.info
            if offset < log.log_end_offset
            else _log.debug
        )
        say(
            "log_truncated",
            topic=replica.topic,
            partition=replica.partition,
            leader=self.leader_id,
            leader_epoch=replica.leader_epoch,
            from_offset=log.log_end_offset,
            to_offset=offset,
            high_watermark=log.high_watermark,
            diverging_epoch=part.diverging_epoch,
            error=part.error.name,
        )
