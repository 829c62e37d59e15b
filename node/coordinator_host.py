"""The event-loop side of a coordinator runtime: loads shards from the local log, passes time and watermarks in, futures out.

It holds no rule of its own (DESIGN 2).  A shard is loaded in chunks, so that a large state log does not hold up the loop; what
may have changed in between (the leadership) is checked by the runtime at each chunk through the leader epoch.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Generic, TypeVar

from ..coordinator.runtime import CoordinatorLoadError, CoordinatorRuntime
from ..replication.manager import ReplicaManager
from ..runtime import logs
from ..runtime.clock import Clock
from ..storage.log import AppendOrigin, Log, VerificationGuard
from ..wire.errors import ErrorCode, KafkaError
from .internal_topics import partition_for

log = logs.get(__name__)

LOAD_CHUNK_BYTES: Final = 1 << 20
TICK_S: Final = 0.1

EventT = TypeVar("EventT")
ReplyT = TypeVar("ReplyT")
EffectT = TypeVar("EffectT")


class ReplicatedStateLog:
    """The coordinators' `StateLog`: appends through the partition leader on this node, with acks=all."""

    def __init__(self, topic: str, replicas: ReplicaManager) -> None:
        self._topic = topic
        self._replicas = replicas

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        info = self._replicas.append_now(
            self._topic,
            partition,
            batch,
            origin=AppendOrigin.COORDINATOR,
            guard=guard if isinstance(guard, VerificationGuard) else None,
            required_acks=-1,
            expected_leader_epoch=leader_epoch,
        )
        return info.next_offset

    def high_watermark(self, partition: int) -> int:
        return self._replicas.leader_log(self._topic, partition).high_watermark


class CoordinatorHost(Generic[EventT, ReplyT, EffectT]):
    """One state topic on this node.  Everything runs on the node's loop."""

    def __init__(self, topic: str, runtime: CoordinatorRuntime[EventT, ReplyT, EffectT], clock: Clock) -> None:
        self.topic = topic
        self.runtime = runtime
        self._clock = clock
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._ticker: asyncio.Task[None] | None = None

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
        self.runtime.begin_load(partition, leader_epoch, replica_log.log_end_offset, replica_log.log_start_offset)
        previous = self._loads.pop(partition, None)
        if previous is not None:
            previous.cancel()
        task = asyncio.create_task(self._load(partition, leader_epoch, replica_log, replica_log.log_end_offset))
        self._loads[partition] = task
        task.add_done_callback(lambda done: self._loads.pop(partition) if self._loads.get(partition) is done else None)

    def on_resigned(self, partition: int, leader_epoch: int) -> None:
        """Another node leads, or nobody does."""
        task = self._loads.pop(partition, None)
        if task is not None:
            task.cancel()
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
            if not isinstance(error, CoordinatorLoadError):
                self.runtime.unload(partition, leader_epoch)  # otherwise it would say that it loads for as long as it leads
            log.error("coordinator_load_failed", topic=self.topic, partition=partition, leader_epoch=leader_epoch, error=error)
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
        while True:
            await self._clock.sleep(TICK_S)
            self.runtime.tick(self._clock.wall_ms())

    # --- requests ---------------------------------------------------------------------------------------------------------

    async def ask(self, key: str, partitions: int, event: EventT) -> ReplyT:
        """Submits an event to the shard that is responsible for `key`.  Raises the shard's KafkaError."""
        if partitions == 0:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.topic} does not exist yet")
        return await self.ask_partition(partition_for(key, partitions), event)

    async def ask_partition(self, partition: int, event: EventT) -> ReplyT:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(value: Any) -> None:
            if future.done():  # the caller went away
                return
            if isinstance(value, KafkaError):
                future.set_exception(value)
            else:
                future.set_result(value)

        self.runtime.submit(partition, event, reply, self._clock.wall_ms())
        answer: ReplyT = await future
        return answer
