"""The follower's side of replication: one task per leader broker, all partitions of that leader in one fetch.

Order, for every answer: re-check that the partition is still followed in the epoch of the question; let the core decide; carry it
out on the log; flush the logs that got data (one group commit for all of them) *before* the next fetch, because a fetch offset is
the promise that everything below it is durable here.

Bounded: one fetch in flight per leader, plus at most one for partitions that were assigned while it waits; pauses after errors
grow to a limit; a partition with an error rests alone, the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..runtime import logs
from ..runtime.clock import Clock
from ..wire.errors import ErrorCode, KafkaError
from ..wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchResponsePartition
from .follower import Answer, Append, BackOff, Fail, FetchPosition, Ignore, PartitionFollower, Restart, Truncate
from .replica import Replica

Key = tuple[str, int]

_log = logs.get(__name__)


class FetchTransport(Protocol):
    """A connection to one broker, supplied by node; it connects when first used and again after a failure.

    `fetch` raises OSError or KafkaError when the request could not be answered; it may be cancelled at any time.
    """

    async def fetch(self, request: FetchRequest) -> FetchResponse: ...
    def close(self) -> None: ...


TransportFactory = Callable[[int], FetchTransport]


@dataclass(slots=True, frozen=True)
class FetcherLimits:
    """What one fetch may ask for, and how long things may take."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    response_max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
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
    ) -> None:
        """`flush(replicas)` makes their logs durable (a failure takes the replica offline); `on_failed` takes one offline."""
        self.leader_id = leader_id
        self._node_id = node_id
        self._clock = clock
        self._transport = transport
        self._limits = limits
        self._broker_epoch = broker_epoch
        self._flush = flush
        self._on_failed = on_failed
        self._followed: dict[Key, _Followed] = {}
        self._wake = asyncio.Event()
        self._fresh: set[Key] = set()  # assigned while a fetch was waiting at the leader
        self._aside: frozenset[Key] = frozenset()  # in the extra fetch right now
        self._waiting = False
        self._extra: asyncio.Task[None] | None = None
        self._main: asyncio.Task[None] | None = None

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
        self._wake.set()
        if self._waiting:
            self._fresh.add(replica.key)
            if self._extra is None:
                self._extra = asyncio.get_running_loop().create_task(self._fetch_fresh(), name=f"fetch-aside-{self.leader_id}")

    def remove(self, key: Key) -> None:
        self._followed.pop(key, None)
        self._fresh.discard(key)

    # -- the loop ------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                answered = await self._step()
            except Exception:
                # A defect or an answer that makes no sense: replication of the other partitions must not end with it.
                _log.exception("fetcher_step_failed", leader=self.leader_id)
                answered = False
            failures = 0 if answered else failures + 1
            if failures:
                await self._clock.sleep(self._backoff_s(failures))

    async def _step(self) -> bool:
        """One fetch of everything that is ready; False when the leader could not be asked."""
        now_s = self._clock.monotonic()
        chosen: list[_Followed] = []
        rest_s = self._limits.wait_max_ms / 1000
        for key, followed in tuple(self._followed.items()):
            if not followed.is_current():
                del self._followed[key]  # offline, or another role
            elif followed.rests_until_s > now_s:
                rest_s = min(rest_s, followed.rests_until_s - now_s)
            elif key not in self._aside:
                chosen.append(followed)
        self._wake.clear()
        if not chosen:
            await self._pause(rest_s)
            return True
        # A resting partition shortens the wait at the leader, so that its next turn is not late.
        return await self._fetch(chosen, wait_max_ms=max(1, int(rest_s * 1000)), main=True)

    async def _pause(self, rest_s: float) -> None:
        """Until something is assigned, or a partition has rested."""
        timer = self._clock.call_later(rest_s, self._wake.set) if self._followed else None
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _fetch_fresh(self) -> None:
        """Fetches newly assigned partitions at once, beside the fetch that waits; its arrival ends that wait at the leader."""
        try:
            await asyncio.sleep(0)  # metadata is applied in one go: take all that it assigns
            while self._fresh:
                keys, self._fresh = frozenset(self._fresh), set()
                self._aside = keys
                await self._fetch([self._followed[key] for key in keys if key in self._followed], wait_max_ms=0, main=False)
        except Exception:
            _log.exception("fetcher_extra_fetch_failed", leader=self.leader_id)  # the next fetch of the loop takes them
        finally:
            self._aside = frozenset()
            self._extra = None
            self._wake.set()

    def _backoff_s(self, failures: int) -> float:
        pause_s = min(self._limits.backoff_max_s, self._limits.backoff_first_s * 2 ** min(failures - 1, 10))
        return pause_s * (0.75 + 0.5 * self._clock.random())

    # -- one fetch -----------------------------------------------------------------------------------------------------------

    async def _fetch(self, chosen: Sequence[_Followed], *, wait_max_ms: int, main: bool) -> bool:
        unflushed = [followed.replica for followed in chosen if followed.replica.needs_flush]
        if unflushed:  # for example the tail of an earlier leadership: the fetch offset may not vouch for it yet
            await self._flush(unflushed)
        sent: dict[Key, tuple[_Followed, FetchPosition]] = {}
        for followed in chosen:
            if followed.is_current() and not followed.replica.needs_flush:
                sent[followed.replica.key] = (followed, followed.core.next_fetch(followed.replica.log))
        if not sent:
            return True
        self._waiting = self._waiting or main
        try:
            async with asyncio.timeout(self._limits.answer_timeout_s + wait_max_ms / 1000):
                response = await self._transport.fetch(self._request(sent, wait_max_ms))
        except (KafkaError, OSError, TimeoutError) as error:
            _log.warning("fetch_not_answered", leader=self.leader_id, error=repr(error), partitions=len(sent))
            self._transport.close()
            return False
        finally:
            self._waiting = self._waiting and not main
        if response.error is not ErrorCode.NONE:
            _log.warning("fetch_refused", leader=self.leader_id, error=response.error.name)
            return False
        await self._carry_out(sent, response)
        return True

    def _request(self, sent: dict[Key, tuple[_Followed, FetchPosition]], wait_max_ms: int) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for (topic, partition), (_, position) in sent.items():
            topics.setdefault(topic, []).append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    max_bytes=self._limits.partition_max_bytes,
                )
            )
        return FetchRequest(
            replica_id=self._node_id,
            replica_epoch=self._broker_epoch(),
            max_wait_ms=wait_max_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.response_max_bytes,
            topics=list(topics.items()),
        )

    async def _carry_out(self, sent: dict[Key, tuple[_Followed, FetchPosition]], response: FetchResponse) -> None:
        appended: list[Replica] = []
        for topic, partitions in response.topics:
            for part in partitions:
                found = sent.pop((topic, part.partition), None)
                if found is None:
                    _log.warning("fetch_answered_something_else", leader=self.leader_id, topic=topic, partition=part.partition)
                    continue
                followed, position = found
                if followed.is_current() and self._on_answer(followed, position, part):
                    appended.append(followed.replica)
        if appended:
            await self._flush(appended)

    def _on_answer(self, followed: _Followed, position: FetchPosition, part: FetchResponsePartition) -> bool:
        """Carries out what the core decides; True when records were appended."""
        replica = followed.replica
        answer = Answer(part.error, part.high_watermark, part.log_start_offset, part.diverging_epoch, part.records)
        try:
            action = followed.core.on_answer(position, answer, replica.log)
            match action:
                case Append():
                    followed.failures = 0
                    return replica.carry_out(action)
                case Truncate(offset) | Restart(offset):
                    self._log_cut(replica, offset, part)
                    replica.carry_out(action)
                case BackOff(error):
                    self._rest(followed, error, "")
                case Fail(reason):
                    self._on_failed(replica, reason)
                case Ignore.STALE:
                    pass
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._on_failed(replica, str(error))
            else:  # for example a batch damaged on its way: ask again
                self._rest(followed, error.code, error.message)
        except OSError as error:
            self._on_failed(replica, f"the log could not be written: {error}")
        return False

    def _rest(self, followed: _Followed, error: ErrorCode, message: str) -> None:
        """This partition alone asks again after a pause; newer metadata replaces it, and its pause, at once."""
        followed.failures += 1
        pause_s = self._backoff_s(followed.failures)
        followed.rests_until_s = self._clock.monotonic() + pause_s
        _log.info(
            "partition_fetch_rests",
            leader=self.leader_id,
            topic=followed.replica.topic,
            partition=followed.replica.partition,
            leader_epoch=followed.core.leader_epoch,
            error=error.name,
            message=message,
            pause_ms=int(pause_s * 1000),
        )

    def _log_cut(self, replica: Replica, offset: int, part: FetchResponsePartition) -> None:
        _log.warning(
            "log_truncated",
            topic=replica.topic,
            partition=replica.partition,
            leader=self.leader_id,
            leader_epoch=replica.leader_epoch,
            from_offset=replica.log.log_end_offset,
            to_offset=offset,
            diverging_epoch=part.diverging_epoch,
            error=part.error.name,
        )
