"""The event-loop side of a coordinator runtime: loads shards from the local log, passes time and watermarks in, futures out.

It holds no rule of its own (docs/architecture.md).  A shard is loaded in chunks, so that a large state log does not hold up the
loop; what may have changed in between (the leadership) is checked by the runtime at each chunk through the leader epoch.

A shard that failed is loaded anew after a pause, for as long as this node leads: what it believed is gone, the log is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from ...coordinator.batches import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from ...coordinator.runtime import CoordinatorLoadError, CoordinatorRuntime, Phase
from ...replication.manager import ReplicaManager
from ...runtime import logs
from ...runtime.clock import Clock
from ...storage.log.log import AppendOrigin, Log, VerificationGuard
from ...wire.errors import ErrorCode, KafkaError

log = logs.get(__name__)

LOAD_CHUNK_BYTES: Final = 1 << 20
TICK_S: Final = 0.1
RELOAD_S_MIN: Final = 0.5
RELOAD_S_MAX: Final = 30.0

EventT = TypeVar("EventT")
ReplyT = TypeVar("ReplyT")
EffectT = TypeVar("EffectT")


class ReplicatedStateLog:
    """The coordinators' `StateLog`: appends through the partition leader on this node, with acks=all."""

    def __init__(self, topic: str, replicas: ReplicaManager) -> None:
        self._topic = topic
        self._replicas = replicas

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        try:
            info = self._replicas.append_now(
                self._topic,
                partition,
                batch,
                origin=AppendOrigin.COORDINATOR,
                guard=guard if isinstance(guard, VerificationGuard) else None,
                required_acks=-1,
                expected_leader_epoch=leader_epoch,
            )
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR and not self._replicas.replica(self._topic, partition).log.is_offline:
                # A full disk: nothing was written, and the state stands.  Who asks is told to ask again, and reads are answered.
                raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, error.message) from error
            raise
        return info.next_offset

    def high_watermark(self, partition: int) -> int:
        return self._replicas.leader_log(self._topic, partition).high_watermark

    def batch_bytes_max(self, partition: int) -> int:
        """Of the records in one batch that the log takes now: its topic's `max.message.bytes`, without the batch's header."""
        try:
            limit = self._replicas.leader_log(self._topic, partition).config.max_message_bytes
        except KafkaError:
            return BATCH_BYTES_MAX  # it is led elsewhere by now, and takes nothing
        return max(1, limit - BATCH_HEADER_BYTES)


class CoordinatorHost(Generic[EventT, ReplyT, EffectT]):
    """One state topic on this node.  Everything runs on the node's loop."""

    def __init__(
        self,
        topic: str,
        runtime: CoordinatorRuntime[EventT, ReplyT, EffectT],
        clock: Clock,
        *,
        holds_session: Callable[[], bool],
        leads: Callable[[int], bool] = lambda _partition: False,
    ) -> None:
        """`holds_session()`: this node's session with the controller is good right now.  `leads(partition)`: by the metadata that
        this node has applied, it leads this partition of the topic."""
        self.topic = topic
        self.runtime = runtime
        self._clock = clock
        self._holds_session = holds_session
        self._leads = leads
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._logs: dict[int, Log] = {}
        self._failures: dict[int, int] = {}
        self._ticker: asyncio.Task[None] | None = None
        self._elected = asyncio.Event()

    def start(self) -> None:
        self._ticker = asyncio.create_task(self._tick_forever(), name=f"tick {self.topic}")

    async def stop(self) -> None:
        """Stops timers and loads; callers that wait get NOT_COORDINATOR and ask the next coordinator."""
        tasks = [task for task in (self._ticker, *self._loads.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for partition, _phase, _shard in list(self.runtime.shards()):
            self.on_resigned(partition, 2**31 - 1)

    # --- leadership and watermarks, from the replica manager ---------------------------------------------------------------

    def on_elected(self, partition: int, leader_epoch: int, replica_log: Log) -> None:
        """This node leads the partition from now on: the log's end at this moment is the barrier."""
        self._logs[partition] = replica_log
        self._failures.pop(partition, None)
        self._start(partition, self._begin(partition, leader_epoch))
        self._elected.set()

    def on_failed(self, partition: int, leader_epoch: int, reason: str) -> None:
        """The runtime's: a shard stopped serving while this node leads its partition.

        Loading it anew is right for all that is not in the log itself; where the log cannot be read, or does not make sense,
        the pauses grow, and each attempt leaves its reason in the node's log.
        """
        failures = self._failures[partition] = self._failures.get(partition, 0) + 1
        pause_s = min(RELOAD_S_MAX, RELOAD_S_MIN * 2 ** min(failures - 1, 10))
        if partition in self._logs:
            self._start(partition, self._reload(partition, leader_epoch, pause_s))

    def _start(self, partition: int, work: Coroutine[Any, Any, None]) -> None:
        previous = self._loads.pop(partition, None)
        task = asyncio.create_task(work, name=f"load {self.topic}-{partition}")
        if previous is not None and previous is not asyncio.current_task():
            previous.cancel()
        self._loads[partition] = task
        task.add_done_callback(lambda done: self._loads.pop(partition) if self._loads.get(partition) is done else None)

    def _begin(self, partition: int, leader_epoch: int) -> Coroutine[Any, Any, None]:
        replica_log = self._logs[partition]
        self.runtime.begin_load(partition, leader_epoch, replica_log.log_end_offset, replica_log.log_start_offset)
        return self._load(partition, leader_epoch, replica_log, replica_log.log_end_offset)

    async def _reload(self, partition: int, leader_epoch: int, pause_s: float) -> None:
        await self._clock.sleep(pause_s)
        # Another leadership, or the end of this one, cancels this task; the runtime knows best all the same.
        if self.runtime.leader_epoch(partition) == leader_epoch and self.runtime.phase(partition) is Phase.FAILED:
            log.info("coordinator_loads_again", topic=self.topic, partition=partition, leader_epoch=leader_epoch)
            await self._begin(partition, leader_epoch)

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        """Another node leads, or nobody does."""
        task = self._loads.pop(partition, None)
        if task is not None:
            task.cancel()
        self._logs.pop(partition, None)
        self._failures.pop(partition, None)
        self.runtime.unload(partition, leader_epoch)

    def on_high_watermark(self, partition: int, offset: int) -> None:
        epoch = self.runtime.leader_epoch(partition)
        if epoch is not None:
            self.runtime.on_high_watermark(partition, epoch, offset)

    async def _load(self, partition: int, leader_epoch: int, replica_log: Log, end_offset: int) -> None:
        started = self._clock.monotonic()
        position = replica_log.log_start_offset
        try:
            while 0 <= position < end_offset:
                chunk = replica_log.read(position, LOAD_CHUNK_BYTES, upper_offset=end_offset)
                position = self.runtime.load_batches(partition, leader_epoch, chunk.data)
                await asyncio.sleep(0)
            if position >= 0:
                self.runtime.finish_load(partition, leader_epoch)
        except (CoordinatorLoadError, KafkaError, OSError) as error:
            # The shard answers NOT_COORDINATOR from here on; serving it as if it were empty would lose decided transactions.
            log.error("coordinator_load_failed", topic=self.topic, partition=partition, leader_epoch=leader_epoch, error=error)
            self.runtime.fail(partition, leader_epoch, f"its log could not be read: {error}")
            return
        # An empty shard is not worth a line: a node may lead hundreds of them.
        tell = log.info if end_offset > replica_log.log_start_offset else log.debug
        tell(
            "coordinator_loaded",
            topic=self.topic,
            partition=partition,
            leader_epoch=leader_epoch,
            offsets=end_offset - replica_log.log_start_offset,
            milliseconds=round((self._clock.monotonic() - started) * 1000),
        )

    async def _tick_forever(self) -> None:
        away_since_ms: int | None = None
        while True:
            if next(self.runtime.shards(), None) is None:  # a node that coordinates nothing is not woken for it
                self._elected.clear()
                await self._elected.wait()
            await self._clock.sleep(TICK_S)
            now_ms, here = self._clock.steady_ms(), self._holds_session()
            if here and away_since_ms is not None:  # the quorum was away, and nobody was elected instead of this node
                self.runtime.resume(now_ms - away_since_ms)
                away_since_ms = None
            # While nobody can be heard here, nobody's silence counts.
            self.runtime.tick(now_ms, timers=here)
            if not here:  # whoever waits for others would wait for long: they go to the successor, if there is one
                away_since_ms = now_ms if away_since_ms is None else away_since_ms
                self.runtime.turn_away()

    # --- requests ---------------------------------------------------------------------------------------------------------

    async def ask_partition(self, partition: int, event: EventT) -> ReplyT:
        """Submits an event to a shard; raises the shard's KafkaError.  Raises NOT_COORDINATOR when another node may coordinate by
        now, also for what needs no append: a node that is cut off would answer from what it last knew, for ever, and the client
        would not look for its successor."""
        self._require_session()
        self.require_taken_up(partition)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(value: Any) -> None:
            if future.done():  # the caller went away
                return
            if isinstance(value, KafkaError):
                future.set_exception(value)
            else:
                future.set_result(value)

        self.runtime.submit(partition, event, reply, self._clock.steady_ms())
        answer: ReplyT = await future
        return answer

    async def ask_all(self, event: EventT, *, whole: bool) -> list[ReplyT]:
        """The answers of all shards that are served here.  Raises COORDINATOR_LOAD_IN_PROGRESS while one is being loaded, and
        NOT_COORDINATOR without a session: half a list would look like a whole one.

        One that failed, or moves away meanwhile, is passed over; but not where the list must be `whole`, because something is
        done about what is missing in it: that is COORDINATOR_LOAD_IN_PROGRESS as well.
        """
        partitions = [partition for partition, _phase, _shard in self.runtime.shards()]
        asked = (self.ask_partition(partition, event) for partition in partitions)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        self._require_session()
        found: list[ReplyT] = []
        for partition, answer in zip(partitions, answers, strict=True):
            if isinstance(answer, KafkaError) and answer.code is ErrorCode.NOT_COORDINATOR:
                if whole:
                    message = f"{self.topic}-{partition} is to be loaded again, or moves"
                    raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
                continue
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)
        return found

    def require_taken_up(self, partition: int) -> None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS where this node was made leader and its log is still being made: nobody else
        coordinates the partition, and a client that was told NOT_COORDINATOR would only be sent back here."""
        if self.runtime.phase(partition) is None and self._leads(partition):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is being taken up")

    def _require_session(self) -> None:
        if not self._holds_session():
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.topic}: the session with the controller is over")
