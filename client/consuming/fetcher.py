"""The consumer's fetches: positions of the assigned partitions, and prefetching from many leaders at once.

The fetcher sends one fetch at a time to each node, for all its partitions whose buffer has room; it keeps
answers undecoded until the consumer takes records.  A leader directs a consumer that names its `rack` to a
replica nearby (KIP-392).  The fetcher returns to the leader when that replica fails or does not have the
offset, and every `NEARBY_S`, since another replica may be nearer by then.  An answer counts only if the
partition is still assigned and `seek` has not moved it meanwhile (`position_version`).  A partition without a
position, or with an offset out of range, waits until the consumer sets one (`without_position`).

Bounds: a fetch requests up to `partition_bytes` of each partition.  Fetching pauses for a partition with that
many undelivered bytes, and for all partitions when `buffer_bytes` are buffered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ...runtime import logs
from ...wire import codec
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ...wire.fetch import NAMES_TO as FETCH_NAMES_TO
from ...wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponsePartition,
    encode_fetch_request,
    parse_fetch_response,
)
from ..connecting.cluster import Backoff, Cluster
from ..connecting.errors import ConnectionFailed, error_for
from ..connecting.metadata import NO_LEADER
from .fetched import ConsumerRecord, FetchedRecords

log = logs.get(__name__)

# How long a leader may wait for data while the fetch leaves out one of its partitions, whose buffer is full.
CROWDED_WAIT_MS: Final = 20
RETRY_DELAY_S: Final = 0.1
NEARBY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The parameters of fetches; see Consumer."""

    read_committed: bool = True
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 16 << 20
    partition_bytes: int = 1 << 20
    buffer_bytes: int = 64 << 20
    request_timeout_s: float = 30.0
    rack: str = ""


@dataclass(slots=True)
class _Partition:
    topic: str
    partition: int
    position: int | None = None  # offset of the next record to deliver
    fetch_offset: int = -1  # offset of the next fetch
    position_version: int = 0  # counts assignments and seeks
    paused: bool = False
    # its position was out of range: the reset policy applies, not the committed offset
    lost_position: bool = False
    buffered: deque[FetchedRecords] = field(default_factory=deque)
    not_before_s: float = 0.0
    failure: KafkaError | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    nearby: int = NO_LEADER  # the replica to read from instead of the leader,
    nearby_until_s: float = 0.0  # and for how long

    def read_from_leader(self) -> bool:
        """Returns to the leader; False when it already reads from the leader."""
        was, self.nearby = self.nearby, NO_LEADER
        return was != NO_LEADER

    @property
    def buffered_bytes(self) -> int:
        return sum(part.size_bytes for part in self.buffered)


class Fetcher:
    """See the module's text.  `news` is set when `take` may return records, or a partition may need a
    position."""

    def __init__(self, cluster: Cluster, settings: FetchSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._fetching: dict[int, asyncio.Task[None]] = {}
        self._metadata_task: asyncio.Task[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._counter = 0
        self._first = 0  # where the next `take` begins, for fairness
        self._closed = False
        self.news = asyncio.Event()
        cluster.on_metadata(self.pump)

    # ---- assignment and positions --------------------------------------------------------------------------

    @property
    def assigned(self) -> set[tuple[str, int]]:
        return set(self._partitions)

    def assign(self, partitions: Iterable[tuple[str, int]], *, keep: bool) -> None:
        """Replaces the assignment; with `keep`, partitions that stay keep position and buffer."""
        wanted = set(partitions)
        if not keep:
            self._partitions.clear()
        for key in set(self._partitions) - wanted:
            del self._partitions[key]
        for key in sorted(wanted - set(self._partitions)):
            self._counter += 1
            self._partitions[key] = _Partition(*key, position_version=self._counter)
        self.pump()

    def seek(self, key: tuple[str, int], offset: int) -> None:
        """The next record taken from this partition is the first at or after `offset`."""
        partition = self._of(key)
        self._counter += 1
        partition.position_version = self._counter
        partition.position = partition.fetch_offset = offset
        partition.lost_position = False
        partition.failure = None
        partition.not_before_s = 0.0
        partition.buffered.clear()
        self.pump()

    def position(self, key: tuple[str, int]) -> int | None:
        return self._of(key).position

    def positions(self) -> dict[tuple[str, int], int]:
        """The positions that are known."""
        return {key: state.position for key, state in self._partitions.items() if state.position is not None}

    def without_position(self) -> dict[tuple[str, int], bool]:
        """Partitions that need a position; True when some offset is out of range."""
        return {key: state.lost_position for key, state in self._partitions.items() if state.position is None}

    def lag(self, key: tuple[str, int]) -> int | None:
        """Offsets between the position and the log end that this consumer can see, by the last answer."""
        state = self._of(key)
        end = state.last_stable_offset if self._settings.read_committed else state.high_watermark
        return None if state.position is None or end < 0 else max(0, end - state.position)

    def pause(self, keys: Iterable[tuple[str, int]], paused: bool) -> None:
        for key in keys:
            self._of(key).paused = paused
        self.pump()
        self.news.set()

    def paused(self) -> set[tuple[str, int]]:
        return {key for key, state in self._partitions.items() if state.paused}

    def _of(self, key: tuple[str, int]) -> _Partition:
        found = self._partitions.get(key)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{key[0]}-{key[1]} is not assigned to this consumer"
            )
        return found

    # ---- taking --------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` buffered records.  Raises a partition's failure when no other record is left to
        deliver."""
        taken: list[ConsumerRecord] = []
        states = list(self._partitions.values())
        freed = False
        failure: _Partition | None = None
        for step in range(len(states)):
            index = (self._first + step) % len(states)
            state = states[index]
            if state.paused:
                continue
            while state.buffered and len(taken) < count:
                part = state.buffered[0]
                try:
                    taken += part.take(count - len(taken))
                except KafkaError as error:
                    state.failure = error
                    state.buffered.clear()
                    break
                finally:
                    state.position = part.position
                if part.exhausted:
                    state.buffered.popleft()
                    freed = True
            if state.failure is not None and not state.buffered:
                failure = state
            if len(taken) >= count:
                self._first = index  # the next call continues here: records of one partition stay together
                break
        else:
            self._first += 1
        if freed:
            self.pump()
        if not taken and failure is not None and failure.failure is not None:
            reason, failure.failure = failure.failure, None
            failure.fetch_offset = failure.position if failure.position is not None else -1
            raise reason
        return taken

    def has_records(self) -> bool:
        return any(state.buffered and not state.paused for state in self._partitions.values())

    # ---- fetching ------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Starts a fetch at every node without a running one that leads a partition to fetch."""
        if self._closed:
            return
        now_s = self._cluster.clock.monotonic()
        held = sum(state.buffered_bytes for state in self._partitions.values())
        groups: defaultdict[int, list[_Partition]] = defaultdict(list)
        crowded: set[int] = set()
        leaderless: set[str] = set()
        wait_s: float | None = None
        for state in self._partitions.values():
            if state.position is None or state.paused or state.failure is not None:
                continue
            if state.nearby_until_s <= now_s or state.nearby not in self._cluster.view.brokers:
                state.read_from_leader()
            node_id = state.nearby
            if node_id == NO_LEADER:
                node_id = self._cluster.view.leader(state.topic, state.partition)
            if node_id == NO_LEADER:
                leaderless.add(state.topic)
            elif state.not_before_s > now_s:
                wait_s = min(wait_s or 60.0, state.not_before_s - now_s)
            elif (
                state.buffered_bytes >= self._settings.partition_bytes or held >= self._settings.buffer_bytes
            ):
                crowded.add(node_id)
            else:
                groups[node_id].append(state)
        for node_id, group in groups.items():
            if node_id not in self._fetching:
                wait_ms = CROWDED_WAIT_MS if node_id in crowded else self._settings.max_wait_ms
                task = asyncio.create_task(self._fetch(node_id, group, wait_ms), name=f"fetch-{node_id}")
                self._fetching[node_id] = task
        if leaderless:
            self._want_metadata(leaderless)
        if wait_s is not None:
            self._pump_after(wait_s)

    def _pump_after(self, delay_s: float) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._retry_timer = asyncio.get_running_loop().call_later(delay_s, self.pump)

    def _want_metadata(self, topics: set[str]) -> None:
        if self._metadata_task is None or self._metadata_task.done():
            self._metadata_task = asyncio.create_task(self._refresh(topics), name="consumer-metadata")

    async def _refresh(self, topics: set[str]) -> None:
        await self._cluster.clock.sleep(RETRY_DELAY_S * (0.5 + self._cluster.clock.random() / 2))
        try:
            await self._cluster.refresh(topics)
        except ConnectionFailed as error:
            log.warning("metadata_failed", reason=error.message)
            self._pump_after(1.0)

    async def _fetch(self, node_id: int, group: list[_Partition], wait_ms: int) -> None:
        turns = {
            (state.topic, state.partition): (state, state.position_version, state.fetch_offset)
            for state in group
        }
        try:
            connection = await self._cluster.connection(node_id, "fetch")
            version = connection.version_for(ApiKey.FETCH, highest=FETCH_NAMES_TO)
            body = encode_fetch_request(version, self._request(group, wait_ms))
            timeout_s = wait_ms / 1000 + self._settings.request_timeout_s
            frame = memoryview(await connection.send(ApiKey.FETCH, version, [body], timeout_s=timeout_s))
            _, place = codec.parse_response_header(ApiKey.FETCH, version, frame)
            response = parse_fetch_response(version, frame, place)
            if response.error is not ErrorCode.NONE:
                raise ConnectionFailed(response.error, f"node {node_id} refused the fetch")
        except ConnectionFailed as error:
            log.debug("fetch_failed", node=node_id, reason=error.message)
            self._leave_alone(group)
        except KafkaError as error:
            for state in group:
                state.failure = error
        except Exception as error:
            # A bug must not look like an idle topic: the next poll raises it.
            log.exception("fetch_broken", node=node_id)
            for state in group:
                state.failure = KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"the consumer's fetch failed: {error!r}"
                )
        else:
            for topic, entries in response.topics:
                for entry in entries:
                    known = turns.get((topic, entry.partition))
                    if known is not None and self._partitions.get((topic, entry.partition)) is known[0]:
                        state, version, offset = known
                        if state.position_version == version and state.fetch_offset == offset:
                            self._answered(state, entry)
        finally:
            self._fetching.pop(node_id, None)
        self.news.set()
        self.pump()

    def _request(self, group: list[_Partition], wait_ms: int) -> FetchRequest:
        settings = self._settings
        topics: defaultdict[str, list[FetchPartition]] = defaultdict(list)
        turned = group[self._counter % len(group) :] + group[: self._counter % len(group)]
        self._counter += 1  # a leader fills the answer in the request's order: rotate it
        for state in turned:
            epoch = self._cluster.view.leader_epoch(state.topic, state.partition)
            topics[state.topic].append(
                FetchPartition(state.partition, state.fetch_offset, settings.partition_bytes, epoch)
            )
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=1 if settings.read_committed else 0,
            topics=list(topics.items()),
            rack_id=settings.rack,
        )

    def _answered(self, state: _Partition, entry: FetchResponsePartition) -> None:
        code = entry.error
        if code is ErrorCode.NONE:
            if entry.preferred_read_replica != NO_LEADER:
                state.nearby, state.nearby_until_s = (
                    entry.preferred_read_replica,
                    self._cluster.clock.monotonic() + NEARBY_S,
                )
                return
            state.high_watermark, state.last_stable_offset = entry.high_watermark, entry.last_stable_offset
            aborted = list(entry.aborted or ()) if self._settings.read_committed else None
            part = FetchedRecords(state.topic, state.partition, state.fetch_offset, entry.records, aborted)
            if part.next_fetch_offset > state.fetch_offset:
                state.fetch_offset = part.next_fetch_offset
                state.buffered.append(part)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE and state.read_from_leader():
            log.debug(
                "offset_not_at_replica",
                topic=state.topic,
                partition=state.partition,
                offset=state.fetch_offset,
            )
            state.not_before_s = self._cluster.clock.monotonic() + RETRY_DELAY_S
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if not state.buffered:  # else deliver the buffered records first; the next fetch asks again
                log.warning(
                    "offset_out_of_range",
                    topic=state.topic,
                    partition=state.partition,
                    offset=state.fetch_offset,
                )
                state.position, state.lost_position = None, True
            else:
                state.not_before_s = self._cluster.clock.monotonic() + RETRY_DELAY_S
        elif code.retriable:
            log.debug("fetch_retried", topic=state.topic, partition=state.partition, error=code.name)
            self._leave_alone([state])
        else:
            state.failure = error_for(code, f"reading {state.topic}-{state.partition}")

    def _leave_alone(self, states: list[_Partition]) -> None:
        """Delays the next fetch until some time has passed and the metadata is refreshed."""
        delay_s = Backoff(self._cluster.clock, RETRY_DELAY_S).next_s()
        for state in states:
            state.read_from_leader()
            state.not_before_s = self._cluster.clock.monotonic() + delay_s
        self._want_metadata({state.topic for state in states})

    async def close(self) -> None:
        self._closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        tasks = [
            *self._fetching.values(),
            *([self._metadata_task] if self._metadata_task is not None else []),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.news.set()
