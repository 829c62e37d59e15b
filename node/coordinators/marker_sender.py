"""Sends transaction markers from this node's coordinator to the partitions' leaders: the shell around
`MarkerQueue`.

Every answer goes back into the queue, which alone decides whether a marker is written, sent again or dropped.
The sender drops the marker of a deleted topic only by metadata that are newer than the partition's enlistment
(docs/semantics.md T17; `transaction_coordination.Topics.is_gone` says why this node's are).
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
from ...runtime.tasks import OnFailure, spawn
from ...wire.api import ApiKey
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.peers import Peers

log = logs.get(__name__)

WRITE_MARKERS_VERSION = 2
ANSWER_TIMEOUT_S = 30.0
IDLE_S = 0.5


class TopicView(Protocol):
    """The metadata, as far as the sender reads them."""

    def leader_of(self, partition: TransactionPartition) -> int | None: ...
    def is_gone(self, partition: TransactionPartition) -> bool: ...


Codes = Mapping[tuple[int, str, int], ErrorCode]
"""By producer id, topic and partition."""


class MarkerSender:
    """The queue of markers of one node, and the task that sends them."""

    def __init__(
        self,
        topics: TopicView,
        peers: Peers,
        clock: Clock,
        on_written: Callable[[int, MarkersWritten], None],
        node_id: int,
        write_here: Callable[[MarkerBatch], Awaitable[Codes]],
        on_failure: OnFailure,
    ) -> None:
        """`on_written(state_partition, event)` submits the event to the shard.  `write_here(batch)` writes
        markers to partitions that this node, `node_id`, leads, without a request over the network, and raises
        KafkaError.  `on_failure(error)`: a defect ended a task."""
        self._on_failure = on_failure
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
        self._main = spawn(self._run(), "markers", self._on_failure)

    async def stop(self) -> None:
        tasks = [task for task in (self._main, *self._sending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, state_partition: int, markers: SendMarkers) -> None:
        """The transaction's PREPARE is committed: from now on every one of its partitions must get the
        marker."""
        faults.point(
            "transaction.before_markers", transactional_id=markers.transactional_id, commit=markers.commit
        )
        self._settle(self.queue.add(state_partition, markers))
        self._wake.set()

    def cancel(self, state_partition: int) -> None:
        """This node does not lead the state partition any more; the next coordinator sends the markers."""
        self.queue.cancel_state_partition(state_partition)

    def _settle(self, result: MarkerResult) -> None:
        self.cancelled += len(result.cancelled)
        for cancelled in result.cancelled:
            log.warning(
                "markers_abandoned",
                transactional_id=cancelled.transactional_id,
                producer_id=cancelled.producer_id,
            )
        for state_partition, event in result.written:
            self._on_written(state_partition, event)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait_s: float | None = IDLE_S
            try:
                wait_s = self._turn()
            except Exception:  # without this task no transaction of this coordinator would complete
                log.exception("marker_turn_failed")
            try:
                # not wait_for, which in Python 3.11 may lose the cancellation by `stop`
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _turn(self) -> float | None:
        """Sends the batches that are due; returns the seconds until the next one, None when the queue is
        empty."""
        for batch in self.queue.take(self._now_ms()):
            task = spawn(self._send(batch), "marker batch", self._on_failure)
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        if not self.queue:
            return None
        self._drop_gone()
        next_ms = self.queue.next_attempt_ms()
        return IDLE_S if next_ms is None else max(0.005, min(IDLE_S, (next_ms - self._now_ms()) / 1000))

    async def _send(self, batch: MarkerBatch) -> None:
        """Sends one batch and always gives the queue its result: a batch in flight blocks the later markers
        of its partitions."""
        try:
            errors = await (self._ask_here(batch) if batch.node_id == self._node_id else self._ask(batch))
        except Exception as error:
            if batch.node_id not in self._silent:  # one line for a node that is away, not one a retry
                self._silent.add(batch.node_id)
                if not isinstance(error, KafkaError):
                    log.exception("markers_failed", node=batch.node_id)
                log.info(
                    "markers_not_answered",
                    node=batch.node_id,
                    transactions=len(batch.transactions),
                    error=error,
                )
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
        """Writes the batch on this node, with the timeout of a request to another node."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._write_here(batch)
        except TimeoutError as error:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"not written here in {ANSWER_TIMEOUT_S:g} s"
            ) from error

    def _drop_gone(self) -> None:
        for partition in [
            p for p in self.queue.waiting_partitions() if p.topic_id is not None and self._topics.is_gone(p)
        ]:
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
