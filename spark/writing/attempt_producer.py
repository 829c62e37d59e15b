"""Produces the records of one task attempt, under the identity that the job gave it.

The parts are those of `tidegate.client`'s producer, without its requests for an identity and for the end of a
transaction: the job has both.  They run on an event loop in a thread of their own, so that acknowledgements
come in while Spark computes the next rows.  `memory_bytes` bounds the bytes that are buffered, and
RECORDS_WAITING_MAX the records, which are Python objects: at either bound `send` waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from ...client.connecting.cluster import Backoff, Cluster
from ...client.connecting.errors import BufferExhausted, ConnectionFailed, RequestError, RetriableError
from ...client.connecting.metadata import NO_LEADER, TopicView
from ...client.producing.accumulator import BATCH_OVERHEAD_BYTES, Accumulator
from ...client.producing.partitioner import StickyChooser, partition_of_key
from ...client.producing.sender import RecordMetadata, Sender
from ...client.producing.transaction_manager import Event, TransactionManager
from ...client.requests.transaction_requests import Identity, TransactionRequests
from ...security.client_security import ClientSecurity
from ...wire.errors import ErrorCode
from ..connection import UNKNOWN_TOPIC_TIMEOUT_S
from .options import WriteOptions
from .results import WriteError
from .rows import Row

T = TypeVar("T")

TRANSACTION_VERSION: Final = 2
END_S: Final = 10.0
RECORDS_WAITING_MAX: Final = 50_000
"""Sent and not acknowledged, of a task: of tiny rows the objects take ten times what their bytes do."""


class Acknowledgements:
    """The token of every record: counts those that are in the log."""

    def __init__(self) -> None:
        self.count = 0

    def done(self) -> bool:
        return False

    def set_result(self, place: RecordMetadata) -> None:
        self.count += 1

    def set_exception(self, error: BaseException) -> None:
        """The transaction has this error, too."""

    def exception(self) -> None:
        """As a future has it."""


class AttemptProducer:
    """Use from one thread: `start`, `send`, `finish`; `close` at the end in any case."""

    def __init__(
        self,
        options: WriteOptions,
        security: ClientSecurity | None,
        transactional_id: str,
        identity: Identity,
    ) -> None:
        self._options, self._producer = options, options.producer
        self._security = security
        self._transactional_id, self._identity = transactional_id, identity
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="attempt-producer", daemon=True)
        self._acknowledged = Acknowledgements()
        self._sent = 0
        self._parts: _Parts | None = None

    def start(self) -> None:
        """Raises KafkaError when no broker answers."""
        self._thread.start()
        self._call(self._start())

    def send(self, rows: Sequence[Row]) -> None:
        """Waits for metadata and memory, not for acknowledgements.  Raises KafkaError, also of rows that were
        sent before."""
        self._call(self._send(rows))

    def finish(self) -> None:
        """Waits until all are acknowledged.  Raises KafkaError unless every record is in the log."""
        self._call(self._finish())

    def close(self) -> None:
        """Sends no more; does not end the transaction."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        try:
            self._call(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(END_S)
            if not self._thread.is_alive():
                self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _start(self) -> None:
        self._parts = parts = _Parts(self._options, self._security, self._transactional_id, self._identity)
        cluster = parts.cluster
        await self._patiently(cluster, "the brokers", self._producer.max_block_s, cluster.start)
        parts.sender.start()

    async def _send(self, rows: Sequence[Row]) -> None:
        parts = self._started()
        cluster, accumulator, manager = parts.cluster, parts.accumulator, parts.manager
        for topic, wanted, record in rows:
            manager.require_sending()
            view = cluster.view.topics.get(topic)
            if view is None or view.error is not ErrorCode.NONE or not view.partitions:
                view = await self._topic(cluster, topic)
            size = Accumulator.size_of(record)
            for name, fits in (
                ("kafka.max.request.size", size + BATCH_OVERHEAD_BYTES <= self._producer.request_bytes_max),
                ("kafka.buffer.memory", accumulator.could_hold(size)),
            ):
                if not fits:
                    raise RequestError(
                        ErrorCode.MESSAGE_TOO_LARGE, f"a row of {size} bytes for {topic!r}: raise {name}"
                    )
            number = parts.partition(view, wanted, record.key, size)
            if not self._has_room(parts, size):
                await self._wait_for_room(parts, size)
                manager.require_sending()  # the state may have changed during the wait
            if accumulator.append(topic, number, record, self._acknowledged, cluster.clock.monotonic()):
                parts.sender.wake()
            self._sent += 1

    async def _topic(self, cluster: Cluster, name: str) -> TopicView:
        """Waits some seconds for a topic that no broker knows, and longer for brokers that are away."""
        patience_s = min(UNKNOWN_TOPIC_TIMEOUT_S, self._producer.max_block_s)
        return await self._patiently(
            cluster, f"topic {name!r}", self._producer.max_block_s, lambda: cluster.topic(name, patience_s)
        )

    @staticmethod
    async def _patiently(
        cluster: Cluster, what: str, patience_s: float, call: Callable[[], Awaitable[T]]
    ) -> T:
        deadline_s, backoff = cluster.clock.monotonic() + patience_s, Backoff(cluster.clock)
        while True:
            try:
                return await call()
            except (ConnectionFailed, RetriableError) as error:
                if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise WriteError(
                        error.code, f"{what} does not exist, and the brokers do not make it: create it first"
                    ) from None
                await cluster.pause(backoff, deadline_s, error.code, what, error.message)

    def _has_room(self, parts: _Parts, size: int) -> bool:
        waiting = self._sent - self._acknowledged.count
        return waiting < RECORDS_WAITING_MAX and parts.accumulator.has_room(size)

    async def _wait_for_room(self, parts: _Parts, size: int) -> None:
        try:
            async with asyncio.timeout(self._producer.max_block_s):
                while not self._has_room(parts, size):
                    parts.manager.require_sending()
                    await parts.sender.wait_progress()
        except TimeoutError:
            reason = parts.sender.waits_for(0.0)
            raise BufferExhausted(
                ErrorCode.REQUEST_TIMED_OUT,
                f"no room for {size} bytes within kafka.max.block.ms: {reason or 'the brokers are slow'}",
            ) from None

    async def _finish(self) -> None:
        parts = self._started()
        await parts.sender.flush()
        parts.manager.require_sending()  # raises the error of a batch that failed
        if self._acknowledged.count != self._sent:
            raise WriteError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{self._sent} records were sent and {self._acknowledged.count} acknowledged: a defect",
            )

    async def _close(self) -> None:
        if self._parts is not None:
            parts, self._parts = self._parts, None
            try:
                await parts.sender.close()
            finally:
                await parts.cluster.close()

    def _started(self) -> _Parts:
        assert self._parts is not None, "start() first"
        return self._parts


class _Parts:
    """Made on the event loop."""

    def __init__(
        self,
        options: WriteOptions,
        security: ClientSecurity | None,
        transactional_id: str,
        identity: Identity,
    ) -> None:
        producer = options.producer
        self.cluster = Cluster(
            ",".join(options.bootstrap),
            client_id=producer.client_id,
            request_timeout_s=producer.request_timeout_s,
            create_topics=True,
            security=security,
        )
        self.accumulator = Accumulator(producer.for_accumulator())
        self.accumulator.set_identity(identity)
        self.manager = TransactionManager(transactional_id)
        self.manager.on(Event.INITIALIZE)
        self.manager.initialized(identity, TRANSACTION_VERSION)
        self.manager.begin()
        requests = TransactionRequests(self.cluster, transactional_id, 0, producer.max_block_s)
        settings = replace(producer.for_sender(), requests_in_flight_max=options.requests_in_flight_max)
        self.sender = Sender(
            self.cluster, self.accumulator, self.manager, requests, settings, self._no_identity
        )
        self._sticky = StickyChooser(producer.batch_bytes, self.cluster.clock.random)
        self._seen: TopicView | None = None  # of which `_available` are the partitions with a leader
        self._available: tuple[int, ...] = ()

    def partition(self, view: TopicView, wanted: int | None, key: bytes | None, size: int) -> int:
        """Raises RequestError for one that the topic does not have."""
        if wanted is not None:
            if wanted not in view.partitions:
                raise RequestError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"column 'partition' is {wanted}, and {view.name!r} has {len(view.partitions)}",
                )
            return wanted
        if key is not None:
            return partition_of_key(key, len(view.partitions))
        if view is not self._seen:
            led = tuple(number for number, each in view.partitions.items() if each.leader != NO_LEADER)
            self._seen, self._available = view, led or tuple(view.partitions)
        return self._sticky.choose(view.name, self._available, size)

    async def _no_identity(self) -> None:
        raise WriteError(ErrorCode.INVALID_TXN_STATE, "an attempt has one identity, which its job gave it")
