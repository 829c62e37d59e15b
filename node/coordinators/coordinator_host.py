"""The event-loop side of a coordinator runtime: loads shards from the local log, passes in time and high
watermarks, returns answers.

What a request means is the runtime's and the shard's; the host refuses requests while the node has no session
with the controller.  The host loads a shard in chunks, so that a large state log
does not block the loop; at each chunk the runtime compares the leader epoch, because the leadership may
change between two chunks.

The host loads a failed shard again after a pause, as long as this node leads: the shard's memory is lost, its
log is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Generic, TypeVar

from ...coordinator.batches import BATCH_BYTES_MAX, BATCH_HEADER_BYTES
from ...coordinator.running_shard import CoordinatorLoadError
from ...coordinator.runtime import CoordinatorRuntime
from ...coordinator.shard_view import Phase
from ...replication.manager import ReplicaManager
from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.tasks import OnFailure, spawn
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
ShardT = TypeVar("ShardT")


class ReplicatedStateLog:
    """The coordinator runtime's `StateLog`: appends as the partition's leader on this node, with acks=all."""

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
            if (
                error.code is ErrorCode.KAFKA_STORAGE_ERROR
                and not self._replicas.replica(self._topic, partition).log.is_offline
            ):
                # A full disk: nothing was written, and the shard's state holds.  The client retries; the
                # shard still answers reads.
                raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, error.message) from error
            raise
        return info.next_offset

    def high_watermark(self, partition: int) -> int:
        return self._replicas.leader_log(self._topic, partition).high_watermark

    def batch_bytes_max(self, partition: int) -> int:
        """The most bytes of records in one batch: the topic's `max.message.bytes` now, without the batch
        header."""
        try:
            limit = self._replicas.leader_log(self._topic, partition).config.max_message_bytes
        except KafkaError:
            return BATCH_BYTES_MAX  # another node leads the partition: an append would be rejected anyway
        return max(1, limit - BATCH_HEADER_BYTES)


class CoordinatorHost(Generic[EventT, ReplyT, EffectT]):
    """The shards of one state topic on this node.  Everything runs on the node's loop."""

    def __init__(
        self,
        topic: str,
        runtime: CoordinatorRuntime[EventT, ReplyT, EffectT],
        clock: Clock,
        *,
        holds_session: Callable[[], bool],
        on_failure: OnFailure,
        leads: Callable[[int], bool] = lambda _partition: False,
    ) -> None:
        """`holds_session()`: this node's session with the controller is not over.  `leads(partition)`: this
        node leads the partition of the topic, by the metadata that it has applied.  `on_failure(error)`: a
        defect ended a task; without the ticks no session and no transaction would time out."""
        self._on_failure = on_failure
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

    def shards(self, kind: type[ShardT]) -> Iterator[ShardT]:
        """The shards of this node, in any phase."""
        return (shard for _, _, shard in self.runtime.shards() if isinstance(shard, kind))

    def start(self) -> None:
        self._ticker = spawn(self._tick_forever(), f"tick {self.topic}", self._on_failure)

    async def stop(self) -> None:
        """Stops timers and loads; requests that wait get NOT_COORDINATOR, and their clients look for the next
        coordinator."""
        tasks = [task for task in (self._ticker, *self._loads.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for partition, _phase, _shard in list(self.runtime.shards()):
            self.on_resigned(partition, 2**31 - 1)

    # --- leadership and watermarks, from the replica manager ------------------------------------------------

    def on_elected(self, partition: int, leader_epoch: int, replica_log: Log) -> None:
        """The replica manager's, through the coordination: this node leads the partition from now on.  The
        log's end at this moment is the barrier (docs/semantics.md T20): the shard answers when the high
        watermark has passed it."""
        self._logs[partition] = replica_log
        self._failures.pop(partition, None)
        self._start(partition, self._begin(partition, leader_epoch))
        self._elected.set()

    def on_failed(self, partition: int, leader_epoch: int, reason: str) -> None:
        """The runtime's: a shard failed while this node leads its partition.

        Loading it again repairs everything that is not in the log itself.  Where the log cannot be read or
        replayed the pauses grow, and each attempt writes its reason to the node's log.
        """
        failures = self._failures[partition] = self._failures.get(partition, 0) + 1
        pause_s = min(RELOAD_S_MAX, RELOAD_S_MIN * 2 ** min(failures - 1, 10))
        if partition in self._logs:
            self._start(partition, self._reload(partition, leader_epoch, pause_s))

    def _start(self, partition: int, work: Coroutine[Any, Any, None]) -> None:
        previous = self._loads.pop(partition, None)
        task = spawn(
            work, f"load {self.topic}-{partition}", lambda error: self._load_failed(partition, error)
        )
        if previous is not None and previous is not asyncio.current_task():
            previous.cancel()
        self._loads[partition] = task
        task.add_done_callback(
            lambda done: self._loads.pop(partition) if self._loads.get(partition) is done else None
        )

    def _begin(self, partition: int, leader_epoch: int) -> Coroutine[Any, Any, None]:
        replica_log = self._logs[partition]
        self.runtime.begin_load(
            partition, leader_epoch, replica_log.log_end_offset, replica_log.log_start_offset
        )
        return self._load(partition, leader_epoch, replica_log, replica_log.log_end_offset)

    async def _reload(self, partition: int, leader_epoch: int, pause_s: float) -> None:
        await self._clock.sleep(pause_s)
        # A new leadership, or the end of this one, cancels this task; the runtime is checked all the same.
        if (
            self.runtime.leader_epoch(partition) == leader_epoch
            and self.runtime.phase(partition) is Phase.FAILED
        ):
            log.info(
                "coordinator_loads_again", topic=self.topic, partition=partition, leader_epoch=leader_epoch
            )
            await self._begin(partition, leader_epoch)

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        """The replica manager's, through the coordination: this node does not lead the partition any more."""
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
            # The shard answers NOT_COORDINATOR from now on: as an empty shard it would lose decided
            # transactions.
            log.error(
                "coordinator_load_failed",
                topic=self.topic,
                partition=partition,
                leader_epoch=leader_epoch,
                error=error,
            )
            self.runtime.fail(partition, leader_epoch, f"its log could not be read: {error}")
            return
        # An empty shard has no line at INFO: a node may lead hundreds of them.
        write_line = log.info if end_offset > replica_log.log_start_offset else log.debug
        write_line(
            "coordinator_loaded",
            topic=self.topic,
            partition=partition,
            leader_epoch=leader_epoch,
            offsets=end_offset - replica_log.log_start_offset,
            milliseconds=round((self._clock.monotonic() - started) * 1000),
        )

    def _load_failed(self, partition: int, error: BaseException) -> None:
        """A defect in the load of one shard: the others serve on, and it is loaded again."""
        log.failure("coordinator_load_failed", error, topic=self.topic, partition=partition)
        leader_epoch = self.runtime.leader_epoch(partition)
        if leader_epoch is not None:
            self.runtime.fail(partition, leader_epoch, f"its load failed by a defect: {error!r}")

    async def _tick_forever(self) -> None:
        away_since_ms: int | None = None
        while True:
            if next(self.runtime.shards(), None) is None:  # without shards there is nothing to tick
                self._elected.clear()
                await self._elected.wait()
                away_since_ms = None  # of shards that other nodes have led since
            await self._clock.sleep(TICK_S)
            now_ms, here = self._clock.steady_ms(), self._holds_session()
            if here and away_since_ms is not None:  # the session is back, and this node still leads
                self.runtime.resume(now_ms - away_since_ms)
                away_since_ms = None
            # Without a session clients cannot be expected to reach this node, so no member's silence counts.
            self.runtime.tick(timers=here)
            # requests that wait for other members get NOT_COORDINATOR: another node may coordinate them now
            if not here:
                away_since_ms = now_ms if away_since_ms is None else away_since_ms
                self.runtime.reject_waiting_callers()

    # --- requests -------------------------------------------------------------------------------------------

    async def ask_partition(self, partition: int, event: EventT) -> ReplyT:
        """Submits an event to a shard; raises the shard's KafkaError.  Without a session it raises
        NOT_COORDINATOR, also for events that append nothing: a node without a connection to the controller
        would answer from old state for ever, and its clients would not look for the next coordinator."""
        self._require_session()
        self.require_log_open(partition)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(value: Any) -> None:
            if future.done():  # the request was cancelled
                return
            if isinstance(value, KafkaError):
                future.set_exception(value)
            else:
                future.set_result(value)

        self.runtime.submit(partition, event, reply)
        answer: ReplyT = await future
        return answer

    async def ask_all(self, event: EventT, *, whole: bool) -> list[ReplyT]:
        """The answers of all shards of this node.  Raises COORDINATOR_LOAD_IN_PROGRESS while one of them
        loads, and NOT_COORDINATOR without a session: a client cannot tell a partial list from a whole one.

        Leaves out a shard that has failed or moves to another node.  With `whole` it raises
        COORDINATOR_LOAD_IN_PROGRESS for those too: the caller acts on what is missing in the list.
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

    def require_log_open(self, partition: int) -> None:
        """Raises COORDINATOR_LOAD_IN_PROGRESS while this node leads the partition by the metadata and has not
        opened its log. After NOT_COORDINATOR the client would look for the coordinator and find this node
        again."""
        if self.runtime.phase(partition) is None and self._leads(partition):
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the log of {self.topic}-{partition} is not open yet"
            )

    def _require_session(self) -> None:
        if not self._holds_session():
            raise KafkaError(
                ErrorCode.NOT_COORDINATOR, f"{self.topic}: the session with the controller is over"
            )
