"""Carries transaction markers from this node's coordinators to the partitions' leaders: the shell around `MarkerQueue`.

Every answer goes back into the queue, which alone decides what is written, retried or given up.  A marker for a topic that the
metadata does not hold is dropped only once this node has applied the metadata at least as far as the controller had committed
it when the question was asked: never on stale metadata (docs/semantics.md T17).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from ...coordinator.transaction.events import MarkersWritten, SendMarkers
from ...coordinator.transaction.markers import MarkerBatch, MarkerQueue, MarkerResult
from ...coordinator.transaction.state import TransactionPartition
from ...runtime import faults, logs
from ...runtime.clock import Clock
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.peers import Peers

log = logs.get(__name__)

WRITE_MARKERS_VERSION = 2
ANSWER_TIMEOUT_S = 30.0
IDLE_S = 0.5


class TopicView(Protocol):
    """What the sender asks of the metadata."""

    def leader_of(self, partition: TransactionPartition) -> int | None: ...
    def is_gone(self, partition: TransactionPartition) -> bool: ...


Codes = Mapping[tuple[int, str, int], ErrorCode]
"""By producer id, topic and partition."""


class MarkerSender:
    """One per node."""

    def __init__(
        self,
        topics: TopicView,
        peers: Peers,
        clock: Clock,
        on_written: Callable[[int, MarkersWritten], None],
        node_id: int,
        write_here: Callable[[MarkerBatch], Awaitable[Codes]],
    ) -> None:
        """`on_written(state_partition, event)` submits the event to the shard.  `write_here(batch)` writes markers of which
        this node, `node_id`, is the leader, and raises KafkaError: a request to itself would cost it more than the markers."""
        self.queue = MarkerQueue(topics.leader_of)
        self._node_id = node_id
        self._write_here = write_here
        self._topics = topics
        self._peers = peers
        self._clock = clock
        self._on_written = on_written
        self._wake = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._silent: set[int] = set()
        self.cancelled = 0

    def start(self) -> None:
        self._main = asyncio.create_task(self._run(), name="markers")

    async def stop(self) -> None:
        tasks = [task for task in (self._main, *self._sending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, state_partition: int, markers: SendMarkers) -> None:
        """The PREPARE of this transaction is committed: from here on its outcome must reach every partition."""
        faults.point("transaction.before_markers", transactional_id=markers.transactional_id, commit=markers.commit)
        self._settle(self.queue.add(state_partition, markers))
        self._wake.set()

    def cancel(self, state_partition: int) -> None:
        """This node stopped coordinating that partition; its successor sends the markers."""
        self.queue.cancel_state_partition(state_partition)

    def _settle(self, result: MarkerResult) -> None:
        self.cancelled += len(result.cancelled)
        for cancelled in result.cancelled:
            log.warning("markers_abandoned", transactional_id=cancelled.transactional_id, producer_id=cancelled.producer_id)
        for state_partition, event in result.written:
            self._on_written(state_partition, event)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait_s: float | None = IDLE_S
            try:
                wait_s = self._turn()
            except Exception:  # without this task no transaction of this node's would ever end
                log.exception("marker_turn_failed")
            try:
                async with asyncio.timeout(wait_s):  # not wait_for, which in Python 3.11 may lose the cancellation by `stop`
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _turn(self) -> float | None:
        """Sends what can be sent; returns after how many seconds to look again; None: only what comes brings more to do."""
        for batch in self.queue.take(self._now_ms()):
            task = asyncio.create_task(self._send(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        if not self.queue:
            return None
        self._drop_gone()
        next_ms = self.queue.next_attempt_ms()
        return IDLE_S if next_ms is None else max(0.005, min(IDLE_S, (next_ms - self._now_ms()) / 1000))

    async def _send(self, batch: MarkerBatch) -> None:
        """Whatever happens, the batch lands: one that stays under way would hold up all that follow."""
        try:
            errors = await (self._ask_here(batch) if batch.node_id == self._node_id else self._ask(batch))
        except Exception as error:
            if batch.node_id not in self._silent:  # one line for a node that is away, not one a retry
                self._silent.add(batch.node_id)
                if not isinstance(error, KafkaError):
                    log.exception("markers_failed", node=batch.node_id)
                log.info("markers_not_answered", node=batch.node_id, transactions=len(batch.transactions), error=error)
            result = self.queue.failed(batch, self._now_ms())
        else:
            if batch.node_id in self._silent:
                self._silent.discard(batch.node_id)
                log.info("markers_answered_again", node=batch.node_id)
            result = self.queue.complete(batch, errors, self._now_ms())
        self._settle(result)
        self._wake.set()

    async def _ask(self, batch: MarkerBatch) -> Codes:
        response = await self._peers.peer(batch.node_id).request(
            ApiKey.WRITE_TXN_MARKERS, WRITE_MARKERS_VERSION, _fields(batch), ANSWER_TIMEOUT_S
        )
        return {
            (int(marker.producer_id), str(topic.name), int(partition.partition_index)): ErrorCode.from_wire(
                int(partition.error_code)
            )
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }

    async def _ask_here(self, batch: MarkerBatch) -> Codes:
        """Ends as late as a request to another node."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._write_here(batch)
        except TimeoutError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"not written here in {ANSWER_TIMEOUT_S:g} s") from error

    def _drop_gone(self) -> None:
        for partition in [p for p in self.queue.waiting_partitions() if p.topic_id is not None and self._topics.is_gone(p)]:
            log.info("marker_dropped_for_deleted_topic", topic=partition.topic, partition=partition.partition)
            self._settle(self.queue.partition_gone(partition))

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)


def _fields(batch: MarkerBatch) -> dict[str, object]:
    markers = []
    for entry in batch.transactions:
        topics: dict[str, list[int]] = {}
        for partition in entry.partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        markers.append(
            {
                "producer_id": entry.send.producer_id,
                "producer_epoch": entry.send.producer_epoch,
                "transaction_result": entry.send.commit,
                "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
                "coordinator_epoch": entry.send.coordinator_epoch,
                "transaction_version": entry.send.transaction_version,
            }
        )
    return {"markers": markers}
