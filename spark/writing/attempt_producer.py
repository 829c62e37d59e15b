"""Produces the records of one task attempt, under the identity that the job gave it.

The parts are those of `tidegate.client`'s producer, without its requests for an identity and for the end of a
transaction: the job has both.  They run on an event loop in a thread of their own, so that acknowledgements
come in while Spark computes the next rows.  Rows are encoded when they are sent, so that none of them waits
as an object of Python; `memory_bytes` bounds what waits, and at the bound `send` waits, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np

from ...client.connecting.cluster import Backoff, Cluster
from ...client.connecting.errors import (
    AbortableError,
    BufferExhausted,
    ConnectionFailed,
    RequestError,
    RetriableError,
)
from ...client.connecting.metadata import NO_LEADER, TopicView
from ...client.producing.accumulator import BATCH_OVERHEAD_BYTES, Accumulator, TopicPartition
from ...client.producing.partitioner import StickyChooser
from ...client.producing.sender import Sender
from ...client.producing.transaction_manager import Event, TransactionManager
from ...client.requests.transaction_requests import Identity, TransactionRequests
from ...security.client_security import ClientSecurity
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import EncodedRecords
from ..connecting.retry import UNKNOWN_TOPIC_TIMEOUT_S
from .encoding import NO_KEY, Encoder, key_hashes
from .options import WriteOptions
from .results import WriteError
from .rows import BY_PARTITIONER, Numbers, Rows, grouped

T = TypeVar("T")

TRANSACTION_VERSION: Final = 2
END_S: Final = 10.0
PIECES_OF_MEMORY: Final = 8
"""Rows are appended in pieces of so much of the memory at most: where a piece has no room, the accumulator is
so full that its batches linger no more."""


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
        self._sent = 0
        self._parts: _Parts | None = None

    def start(self) -> None:
        """Raises KafkaError when no broker answers."""
        self._thread.start()
        self._call(self._start())

    def send(self, rows: Rows) -> None:
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
        except AbortableError as error:  # says that the program is to call abort(): no task of Spark can
            raise (self._cause() or error) from None
        except BaseException:
            future.cancel()
            raise

    def _cause(self) -> KafkaError | None:
        """Why no more records may be sent."""
        return None if self._parts is None else self._parts.manager.error

    async def _start(self) -> None:
        self._parts = parts = _Parts(self._options, self._security, self._transactional_id, self._identity)
        cluster = parts.cluster
        await self._patiently(cluster, "the brokers", self._producer.max_block_s, cluster.start)
        parts.sender.start()

    async def _send(self, rows: Rows) -> None:
        parts, encoder = self._started(), Encoder(rows)
        hashes = None if rows.keys is None else key_hashes(rows.keys)
        for topic, numbers in rows.topics:
            view = parts.cluster.view.topics.get(topic)
            if view is None or view.error is not ErrorCode.NONE or not view.partitions:
                view = await self._topic(parts.cluster, topic)
            self._check_size(parts, topic, int(rows.sizes[numbers].max()))
            for partition, places in grouped(parts.partitions(view, rows, numbers, hashes)):
                await self._append(parts, (topic, partition), encoder, numbers[places], rows.sizes)

    def _check_size(self, parts: _Parts, topic: str, size: int) -> None:
        for name, fits in (
            ("kafka.max.request.size", size + BATCH_OVERHEAD_BYTES <= self._producer.request_bytes_max),
            ("kafka.buffer.memory", parts.accumulator.could_hold(size)),
        ):
            if not fits:
                raise RequestError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"a row of {size} bytes for {topic!r}: raise {name}"
                )

    async def _append(
        self, parts: _Parts, partition: TopicPartition, encoder: Encoder, chosen: Numbers, sizes: Numbers
    ) -> None:
        accumulator, now_s = parts.accumulator, parts.cluster.clock.monotonic
        ends = np.cumsum(sizes[chosen])
        piece_bytes_max = self._producer.memory_bytes // PIECES_OF_MEMORY
        at = 0

        def encode(records: EncodedRecords, room: int) -> int:
            """As many rows as there is room for, at least one."""
            nonlocal at
            until = max(at + 1, int(np.searchsorted(ends, before + min(room, size), "right")))
            encoder.encode_into(records, chosen[at:until])
            at = until
            return int(ends[until - 1]) - before

        while at < len(chosen):
            before = int(ends[at - 1]) if at else 0
            size_first = int(ends[at]) - before
            size = max(size_first, min(piece_bytes_max, self._producer.batch_bytes, int(ends[-1]) - before))
            parts.manager.require_sending()
            if not accumulator.has_room(size):
                await self._wait_for_room(parts, size)
                parts.manager.require_sending()  # the state may have changed during the wait
            began = at
            if accumulator.append_encoded(*partition, size_first, encode, now_s()):
                parts.sender.wake()
            self._sent += at - began

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

    async def _wait_for_room(self, parts: _Parts, size: int) -> None:
        try:
            async with asyncio.timeout(self._producer.max_block_s):
                await parts.sender.wait_for_room(size, parts.manager.require_sending)
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
        if parts.accumulator.acknowledged_count != self._sent:
            raise WriteError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{self._sent} records were sent and {parts.accumulator.acknowledged_count} acknowledged: a "
                "defect",
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

    def partitions(self, view: TopicView, rows: Rows, numbers: Numbers, hashes: Numbers | None) -> Numbers:
        """The partition of each of these rows.  Raises RequestError for one that the topic does not have."""
        count = len(view.partitions)
        found = np.full(len(numbers), BY_PARTITIONER)
        if rows.partitions is not None:
            found = rows.partitions[numbers]
            outside = (found != BY_PARTITIONER) & ~np.isin(found, list(view.partitions))
            if outside.any():
                raise RequestError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"column 'partition' is {found[outside][0]}, and {view.name!r} has {count}",
                )
        if hashes is not None:
            hashes = hashes[numbers]
            found = np.where((found == BY_PARTITIONER) & (hashes != NO_KEY), hashes % count, found)
        free = np.flatnonzero(found == BY_PARTITIONER)
        self._choose(view, found, free, np.cumsum(rows.sizes[numbers[free]]).tolist())
        return found

    def _choose(self, view: TopicView, found: Numbers, free: Numbers, ends: list[int]) -> None:
        if view is not self._seen:
            led = tuple(number for number, each in view.partitions.items() if each.leader != NO_LEADER)
            self._seen, self._available = view, led or tuple(view.partitions)
        at = 0
        while at < len(ends):
            partition, until = self._sticky.choose_run(view.name, self._available, ends, at)
            found[free[at:until]] = partition
            at = until

    async def _no_identity(self) -> None:
        raise WriteError(ErrorCode.INVALID_TXN_STATE, "an attempt has one identity, which its job gave it")
