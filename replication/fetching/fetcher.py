"""The follower's side of replication: one task per leader broker, all partitions of that leader in one fetch.

Order, for every answer: re-check that the partition is still followed in the epoch of the question; let the core decide; carry it
out on the log; flush the logs that got data (one group commit for all of them) *before* the next fetch, because a fetch offset is
the promise that everything below it is durable here.

Within a fetch session (KIP-227, `fetch_session`) a fetch lists only the partitions in `_due`: newly assigned ones, those whose
log an answer changed, those that rested after an error.  A fetch that fails in any way ends the session; the next one lists all,
`FetcherLimits.listed_max` at a time: a request of more entries than the wire allows would be refused for ever.

Bounded: one fetch in flight per leader, plus at most one for partitions that were assigned while it waits; pauses after errors
grow to a limit; a partition with an error rests alone, the others go on.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...runtime import logs
from ...runtime.calm_logs import Outage, RateLimitedLines
from ...runtime.clock import Clock
from ...wire.errors import ErrorCode, KafkaError
from ...wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchResponsePartition
from ..partition.follower import Answer, Append, BackOff, Fail, FetchPosition, Ignore, PartitionFollower, Restart, Truncate
from ..replica.catch_up_throttle import CatchUpThrottle
from ..replica.replica import Replica
from .fetch_session import FULL_EPOCH

Key = tuple[str, int]

_log = logs.get(__name__)


class FetchTransport(Protocol):
    """A connection to one broker, supplied by node; it connects when first used and again after a failure.

    `fetch` raises OSError or KafkaError when the request could not be answered; it may be cancelled at any time.
    """

    async def fetch(self, request: FetchRequest) -> FetchResponse: ...
    def close(self) -> None: ...


SESSION_ERRORS = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})

TransportFactory = Callable[[int], FetchTransport]


@dataclass(slots=True, frozen=True)
class FetcherLimits:
    """What one fetch may ask for, and how long things may take."""

    wait_max_ms: int = 500
    response_max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    listed_max: int = 10_000
    answer_timeout_s: float = 10.0
    backoff_first_s: float = 0.02
    backoff_max_s: float = 1.0


@dataclass(slots=True, eq=False)
class _Followed:
    """One followed partition under one leader epoch."""

    replica: Replica
    core: PartitionFollower
    failures: int = 0
    rests_until_s: float = 0.0

    def is_current(self) -> bool:
        return self.replica.follower is self.core


Positions = dict[Key, tuple[_Followed, FetchPosition]]


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
        on_failed: Callable[[Replica, str], None],
        require_room: Callable[[Replica], None],
        throttle: CatchUpThrottle,
    ) -> None:
        """`flush(replicas)` makes their logs durable (a failure takes the replica offline); `on_failed` takes one offline;
        `require_room` raises KAFKA_STORAGE_ERROR where nothing more may be appended.  `throttle` is that of all fetchers."""
        self.leader_id = leader_id
        self._node_id = node_id
        self._clock = clock
        self._transport = transport
        self._limits = limits
        self._broker_epoch = broker_epoch
        self._flush = flush
        self._on_failed = on_failed
        self._require_room = require_room
        self._throttle = throttle
        self._held_back: set[Key] = set()  # the leader is to send no more of them until they are listed again
        self._followed: dict[Key, _Followed] = {}
        self._due: dict[Key, None] = {}  # to be listed in the next fetch
        self._positions: dict[Key, tuple[_Followed, FetchPosition]] = {}  # as the leader knows them in the present session
        self._session_id = 0
        self._session_epoch = FULL_EPOCH
        self._wake = asyncio.Event()
        self._unheard: set[Key] = set()  # the leader believes to have told something, and it was not taken
        self._fresh: set[Key] = set()  # assigned while a fetch was waiting at the leader
        self._waiting = False
        self._extra: asyncio.Task[None] | None = None
        self._main: asyncio.Task[None] | None = None
        self._unanswered = Outage(_log, "fetch_not_answered")
        self.lines = RateLimitedLines(_log, "partition_fetch_rests", "partition_fetches_rest")

    def __len__(self) -> int:
        return len(self._followed)

    def start(self) -> None:
        self._main = asyncio.get_running_loop().create_task(self._run(), name=f"fetch-from-{self.leader_id}")

    async def close(self) -> None:
        tasks = [task for task in (self._main, self._extra) if task is not None]
        self._main = self._extra = None
        self._followed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._transport.close()

    def assign(self, replica: Replica) -> None:
        """Follows `replica` in its present leader epoch, replacing what was followed of it before."""
        if replica.follower is None or replica.follower.leader != self.leader_id:
            raise ValueError(f"{replica.topic}-{replica.partition} does not follow node {self.leader_id}")
        self._followed[replica.key] = _Followed(replica, replica.follower)
        self._due[replica.key] = None
        self._wake.set()
        if self._waiting:
            self._fresh.add(replica.key)
            if self._extra is None:
                self._extra = asyncio.get_running_loop().create_task(self._fetch_fresh(), name=f"fetch-aside-{self.leader_id}")

    def remove(self, key: Key) -> None:
        """No longer follows it; the leader finds out by itself, or answers once more for nothing."""
        self._followed.pop(key, None)
        self._positions.pop(key, None)
        self._due.pop(key, None)
        self._fresh.discard(key)
        self._unheard.discard(key)
        self._held_back.discard(key)

    # -- the loop ------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                answered = await self._step()
            except Exception:
                # A defect or an answer that makes no sense: replication of the other partitions must not end with it.
                _log.exception("fetcher_step_failed", leader=self.leader_id)
                answered = self._restart_session(None)
            failures = 0 if answered else failures + 1
            if failures:
                await self._clock.sleep(self._backoff_s(failures))

    async def _step(self) -> bool:
        """One fetch of what is due; False when the leader could not be asked."""
        self._wake.clear()
        if not self._followed:
            await self._wake.wait()
            return True
        if self._session_epoch == FULL_EPOCH:
            self._due = self._due | dict.fromkeys(self._followed)  # those not listed yet stay in front
        chosen, rest_s = self._take_due()
        if not chosen and not self._positions:
            await self._pause(rest_s)
            return True
        positions = await self._positions_to_send(chosen)
        self._positions.update(positions)
        # A resting partition shortens the wait at the leader, so that its next turn is not late.
        request = self._request(positions, max(1, int(rest_s * 1000)))
        request.session_id, request.session_epoch = self._session_id, self._session_epoch
        request.forgotten_topics = self._forgotten(positions)
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

    def _take_due(self) -> tuple[list[_Followed], float]:
        """What is to be listed now, and for how long the next that rests is still to rest."""
        now_s, rest_s = self._clock.monotonic(), self._limits.wait_max_ms / 1000
        chosen: list[_Followed] = []
        for key in tuple(self._due):
            followed = self._followed.get(key)
            if followed is None or not followed.is_current():
                self.remove(key)  # offline, or another role
            elif followed.rests_until_s > now_s:
                rest_s = min(rest_s, followed.rests_until_s - now_s)
            elif len(chosen) == self._limits.listed_max:
                return chosen, 0.0  # the leader answers at once, and the next fetch lists on
            else:
                del self._due[key]
                chosen.append(followed)
        return chosen, rest_s

    def _forgotten(self, positions: Positions) -> list[tuple[str, list[int]]]:
        """Of those that are listed now, the leader forgets what it has told of them, if that was not taken, and tells it again;
        of those that are held back it forgets everything until they are listed again."""
        gone = (self._unheard & positions.keys()) | (self._held_back - positions.keys())
        self._unheard -= gone
        self._held_back.clear()
        return [(topic, [partition]) for topic, partition in sorted(gone)]

    def _restart_session(self, response: FetchResponse | None) -> bool:
        """The session is over: the next fetch lists everything.  A leader that merely forgot it is asked again at once."""
        forgotten = response is not None and response.error in SESSION_ERRORS and self._session_epoch != FULL_EPOCH
        if response is not None and not forgotten:
            _log.warning("fetch_refused", leader=self.leader_id, error=response.error.name)
        self._session_id, self._session_epoch = 0, FULL_EPOCH
        self._positions.clear()
        self._held_back.clear()
        return forgotten

    async def _pause(self, rest_s: float) -> None:
        """Until something is assigned, or a partition has rested."""
        timer = self._clock.call_later(rest_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _fetch_fresh(self) -> None:
        """Fetches newly assigned partitions at once, beside the fetch that waits; its arrival ends that wait at the leader."""
        try:
            await asyncio.sleep(0)  # metadata is applied in one go: take all that it assigns
            while self._fresh:
                keys = set(itertools.islice(self._fresh, self._limits.listed_max))
                self._fresh -= keys
                chosen = [self._followed[key] for key in keys if key in self._followed]
                positions = await self._positions_to_send(chosen)
                response = await self._ask(self._request(positions, 0)) if positions else None
                if response is not None and response.error is ErrorCode.NONE:
                    await self._carry_out(positions, response)
        except Exception:
            _log.exception("fetcher_extra_fetch_failed", leader=self.leader_id)  # the next fetch of the loop lists them anyway
        finally:
            self._extra = None

    def _backoff_s(self, failures: int) -> float:
        pause_s = min(self._limits.backoff_max_s, self._limits.backoff_first_s * 2 ** min(failures - 1, 10))
        return float(pause_s * (0.75 + 0.5 * self._clock.random()))

    # -- one fetch -----------------------------------------------------------------------------------------------------------

    async def _positions_to_send(self, chosen: Sequence[_Followed]) -> Positions:
        unflushed = [each.replica for each in chosen if each.replica.needs_flush or each.replica.log.start_note.is_due]
        if unflushed:  # for example the tail of an earlier leadership: the fetch offset may not vouch for it yet
            await self._flush(unflushed)
        positions: Positions = {}
        for followed in chosen:
            if not followed.is_current():
                continue
            if followed.replica.needs_flush:
                self._due[followed.replica.key] = None
            else:
                positions[followed.replica.key] = (followed, followed.core.next_fetch(followed.replica.log))
                if followed.replica.log.start_note.is_due:  # a full disk: the leader hears of the old one, and has no more to say
                    self._due[followed.replica.key] = None
                    self._rest(followed, ErrorCode.KAFKA_STORAGE_ERROR, "the log start could not be noted")
        return positions

    async def _ask(self, request: FetchRequest) -> FetchResponse | None:
        """The leader's answer, None when there is none: then the connection is given up."""
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

    def _on_answer(self, followed: _Followed, position: FetchPosition, part: FetchResponsePartition) -> bool:
        """Carries out what the core decides; True when records were appended."""
        replica = followed.replica
        moved = part.log_start_offset > position.log_start_offset
        if moved or part.records or part.diverging_epoch is not None or part.error is not ErrorCode.NONE:
            self._due[replica.key] = None  # whatever comes of it, the leader has to hear where we stand
        answer = Answer(
            part.error, part.high_watermark, part.log_start_offset, part.diverging_epoch, part.records, part.may_have_offset_gaps
        )
        try:
            action = followed.core.on_answer(position, answer, replica.log)
            match action:
                case Append(records):
                    if records:
                        self._require_room(replica)
                    appended = replica.carry_out(action)
                    followed.failures = 0  # not before: a full disk refuses it each time, and the pauses must grow
                    if records and replica.is_follower_throttled:
                        self._hold_back(followed, len(records))
                    return appended
                case Truncate(offset) | Restart(offset):
                    self._log_truncation(replica, offset, part)
                    replica.carry_out(action)
                case BackOff(error):
                    self._rest(followed, error, "")
                case Fail(reason):
                    self._on_failed(replica, reason)
                case Ignore.STALE:
                    self._tell_again(replica.key)
        except KafkaError as error:
            if replica.log.is_offline:
                self._on_failed(replica, str(error))
            else:  # a batch damaged on its way, a full disk: ask again
                followed.core.on_refused()
                self._rest(followed, error.code, error.message)
        except Exception as error:  # the leader believes that the rest of its answer was taken, so it has to be
            if not followed.failures:
                _log.exception("partition_fetch_failed", topic=replica.topic, partition=replica.partition, leader=self.leader_id)
            followed.core.on_refused()
            self._tell_again(replica.key)
            self._rest(followed, ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))
        return False

    def _hold_back(self, followed: _Followed, size: int) -> None:
        """A throttled replica that catches up has fetched `size` bytes: when that was all that it may, it rests."""
        now_s = self._clock.monotonic()
        self._throttle.sent(size)
        delay_s = self._throttle.delay_s(now_s)
        if delay_s > 0:
            followed.rests_until_s = now_s + delay_s
            self._held_back.add(followed.replica.key)
            self._positions.pop(followed.replica.key, None)

    def _tell_again(self, key: Key) -> None:
        """The leader forgets what it believes to have told of this partition."""
        self._due[key] = None
        self._unheard.add(key)

    def _rest(self, followed: _Followed, error: ErrorCode, message: str) -> None:
        """This partition alone asks again after a pause; newer metadata replaces it, and its pause, at once."""
        followed.failures += 1
        pause_s = self._backoff_s(followed.failures)
        followed.rests_until_s = self._clock.monotonic() + pause_s
        if followed.failures & (followed.failures - 1):
            return  # said at the first, second, fourth, eighth time and so on
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
        """A warning only where what this replica knew to be committed goes.  An uncommitted tail goes after every change of
        leaders; and most followers then ask where to cut and have nothing to."""
        log = replica.log
        say = _log.warning if offset < log.high_watermark else _log.info if offset < log.log_end_offset else _log.debug
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
