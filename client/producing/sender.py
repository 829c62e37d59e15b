"""The producer's sender: sends the accumulator's batches to the leaders and reports their outcomes back.

One task runs the loop, and each change wakes it: it expires old batches, requests a new identity when one is
needed, enlists partitions (TV1), sends sendable batches, and sleeps until the next batch is due.  Requests
are pipelined, up to `requests_in_flight_max` for each node; answers arrive as callbacks.  The accumulator
decides which batches may be sent, in which order and with which sequence numbers; the transaction manager
decides whether records of a transaction may be sent.

In a transaction, the first batch that fails makes the transaction abortable, and all unsent batches fail with
the same cause: a transaction that lost a record must not be committed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ...runtime import logs
from ...wire import codec
from ...wire.api import ApiKey
from ...wire.compression import Compression
from ...wire.errors import ErrorCode, KafkaError
from ...wire.produce import ProduceResponsePartition, encode_produce_request, parse_produce_response
from ...wire.records import encode_batch
from ..connecting.cluster import Backoff, Cluster
from ..connecting.connection import BrokerConnection
from ..connecting.errors import (
    AbortableError,
    ConnectionFailed,
    DeliveryTimeout,
    Family,
    FatalError,
    error_for,
    family,
    sentence,
)
from ..connecting.metadata import NO_LEADER
from ..requests.transaction_requests import PRODUCE_TV2, TransactionRequests
from .accumulator import Accumulator, ProducerBatch
from .transaction_manager import State, TransactionManager

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

log = logs.get(__name__)

RETRY_FIRST_S: Final = 0.02
RETRY_LAST_S: Final = 1.0
EXPIRE_INTERVAL_S: Final = 1.0
CLOSED_UNDER_RECORD: Final = (
    "the producer was closed before this record was acknowledged: call flush() before close()"
)
ANSWER_GRACE_S: Final = 5.0
_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


class RecordMetadata(NamedTuple):
    """The place of an acknowledged record.  `offset` is -1 with acks=0; `timestamp_ms` is the one in the
    log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """The parameters of requests."""

    acks: int
    compression: Compression
    request_bytes_max: int
    request_timeout_s: float
    requests_in_flight_max: int = 5


class Sender:
    """See the module's text.  `start`, then `wake` after every change, `close` at the end."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        manager: TransactionManager,
        requests: TransactionRequests,
        settings: SenderSettings,
        renew_identity: Callable[[], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._manager = manager
        self._requests = requests
        self._settings = settings
        self._renew_identity = renew_identity
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()
        self._in_flight: defaultdict[int, int] = defaultdict(int)
        self._refusals: dict[tuple[str, int], str] = {}  # per partition, why its batches are sent again
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._identity_task: asyncio.Task[None] | None = None
        self._enlist_task: asyncio.Task[None] | None = None
        self._metadata_task: asyncio.Task[None] | None = None
        self._metadata_backoff = Backoff(cluster.clock)
        self._metadata_topics: set[str] = set()
        self._next_expiry_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._defect: Exception | None = None  # of a callback: the loop ends with it
        self._ended = False  # every batch has an outcome; later answers are ignored

    # ---- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._cluster.on_metadata(self.wake)
        self._task = asyncio.create_task(self._run(), name="producer-sender")

    def wake(self) -> None:
        """Wakes the loop after a change."""
        self._wake.set()

    async def close(self) -> None:
        """Stops at once.  The remaining batches fail before the first await, so a cancelled close leaves no
        caller waiting."""
        tasks = [
            *self._connecting.values(),
            self._task,
            self._identity_task,
            self._enlist_task,
            self._metadata_task,
        ]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        self._fail_everything(RequestClosed(ErrorCode.NETWORK_EXCEPTION, CLOSED_UNDER_RECORD))
        await asyncio.gather(*running, return_exceptions=True)

    async def wait_progress(self) -> None:
        """Returns when some batch was acknowledged or failed, or the transaction's state changed."""
        self._progress.clear()
        await self._progress.wait()

    def notify_progress(self) -> None:
        self._progress.set()

    async def wait_for_room(self, size_bytes: int, require_going_on: Callable[[], None]) -> None:
        """Waits until a record of this size has room.  Meanwhile no batch lingers, as in Kafka's producer: it
        would keep the memory that the record waits for."""
        self._accumulator.begin_flush()
        try:
            self.wake()
            while not self._accumulator.has_room(size_bytes):
                require_going_on()
                await self.wait_progress()
        finally:
            self._accumulator.end_flush()

    async def flush(self) -> None:
        """Waits until every batch appended so far has an outcome."""
        mark = self._accumulator.started_count
        self._accumulator.begin_flush()
        try:
            self.wake()
            while self._accumulator.incomplete_before(mark):
                await self.wait_progress()
        finally:
            self._accumulator.end_flush()

    async def drop_unsent(self, error: KafkaError) -> None:
        """Fails the unsent batches, and waits for the answers of the sent ones.  Enlistment stops: a
        partition enlisted after EndTxn would begin another transaction, which no request ends."""
        if self._enlist_task is not None:
            self._enlist_task.cancel()
        self._drop_waiting(error)
        while self._accumulator.in_flight_count():
            await self.wait_progress()
            self._drop_waiting(error)

    # ---- the loop ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._defect is None:
                self._wake.clear()
                self._turn(self._cluster.clock.monotonic())
                await self._sleep()
            raise self._defect
        except Exception as error:
            # A bug here must not look like a slow broker: fail the waiting batches, reject new ones.
            log.exception("sender_failed")
            self._manager.fatal(
                FatalError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the producer's sender failed: {error!r}")
            )
            self._fail_everything(self._manager.error or error)
            raise

    async def _sleep(self) -> None:
        now_s = self._cluster.clock.monotonic()
        due_s = self._accumulator.next_due_s(now_s)
        limit_s = EXPIRE_INTERVAL_S if self._accumulator.used_bytes else None
        if due_s is not None and due_s > now_s:
            limit_s = min(due_s - now_s, EXPIRE_INTERVAL_S)
        timer = None if limit_s is None else self._cluster.clock.call_later(limit_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _turn(self, now_s: float) -> None:
        if now_s >= self._next_expiry_s:
            self._next_expiry_s = now_s + EXPIRE_INTERVAL_S
            for batch in self._accumulator.expire(now_s):
                self._batch_failed(batch, self._late(batch))
        if self._manager.transactional_id is None and (
            self._manager.needs_identity or self._accumulator.needs_identity()
        ):
            self._identity_task = self._ensure(self._identity_task, self._renew, "producer-identity")
        by_leader: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        view = self._cluster.view
        if view.topics and self._cluster.metadata_is_old:
            self._want_metadata(*view.topics)  # for partitions added to a topic
        for partition in self._accumulator.waiting():
            if not self._manager.may_send_to(partition):
                continue
            leader = view.leader(*partition)
            if leader == NO_LEADER:
                self._want_metadata(partition[0])
            else:
                by_leader[leader].append(partition)
        if self._manager.has_to_enlist:
            self._enlist_task = self._ensure(self._enlist_task, self._enlist, "producer-enlist")
        for node_id, partitions in by_leader.items():
            self._send_to(node_id, partitions, now_s)

    def _send_to(self, node_id: int, partitions: list[tuple[str, int]], now_s: float) -> None:
        while self._in_flight[node_id] < self._settings.requests_in_flight_max:
            connection = self._cluster.ready_connection(node_id)
            if connection is None:
                if node_id not in self._connecting:
                    task = asyncio.create_task(self._connect(node_id), name=f"producer-connect-{node_id}")
                    self._connecting[node_id] = task
                return
            batches = self._accumulator.drain(partitions, self._settings.request_bytes_max, now_s)
            if not batches:
                return
            self._send(connection, node_id, batches)

    async def _connect(self, node_id: int) -> None:
        try:
            await self._cluster.connection(node_id)
        except ConnectionFailed as error:
            log.debug("leader_unreachable", node=node_id, reason=error.message)
            self._want_metadata(*{topic for topic, _ in self._accumulator.waiting()})
        finally:
            self._connecting.pop(node_id, None)
            self.wake()

    @staticmethod
    def _ensure(
        task: asyncio.Task[None] | None, make: Callable[[], Awaitable[None]], name: str
    ) -> asyncio.Task[None]:
        """The running task, or a new one."""
        if task is not None and not task.done():
            return task

        async def run() -> None:
            await make()

        return asyncio.create_task(run(), name=name)

    # ---- side tasks ----------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        try:
            await self._renew_identity()
        except KafkaError as error:
            log.warning("no_producer_id", reason=str(error))
            if self._manager.state is State.FATAL_ERROR:
                self._fail_everything(error)
            else:
                await self._cluster.clock.sleep(RETRY_LAST_S)
        self.wake()

    async def _enlist(self) -> None:
        partitions = self._manager.take_to_enlist()
        # before the request: if its answer is lost, the coordinator may have begun the transaction
        self._manager.left()
        try:
            await self._requests.enlist(self._manager.identity, partitions)
        except KafkaError as error:
            self.transaction_failed(error)
            return
        self._manager.enlisted(partitions)
        self.wake()

    def _want_metadata(self, *topics: str) -> None:
        self._metadata_topics.update(topics)
        self._metadata_task = self._ensure(self._metadata_task, self._refresh_metadata, "producer-metadata")

    async def _refresh_metadata(self) -> None:
        while self._metadata_topics:
            topics, self._metadata_topics = self._metadata_topics, set()
            try:
                await self._cluster.refresh(topics)
            except KafkaError as error:
                log.debug("metadata_failed", reason=str(error))
                self._metadata_topics |= topics
            await self._cluster.clock.sleep(self._metadata_backoff.next_s())
            if not any(self._cluster.view.leader(*key) == NO_LEADER for key in self._accumulator.waiting()):
                self._metadata_backoff.reset()
        self.wake()

    # ---- produce requests ----------------------------------------------------------------------------------

    def _send(self, connection: BrokerConnection, node_id: int, batches: list[ProducerBatch]) -> None:
        manager, settings = self._manager, self._settings
        transactional = manager.transactional_id is not None
        highest = PRODUCE_TV2 if not transactional or manager.version >= 2 else PRODUCE_TV2 - 1
        lowest = PRODUCE_TV2 if transactional and manager.version >= 2 else 3
        try:
            version = connection.version_for(ApiKey.PRODUCE, highest=highest, lowest=lowest)
        except FatalError as error:
            for batch in batches:
                self._accumulator.rejected(batch)
                self._batch_failed(batch, error)
            return
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for batch in batches:
            topics.setdefault(batch.topic, []).append((batch.partition, self._encoded(batch, transactional)))
        timeout_ms = int(settings.request_timeout_s * 1000)
        body = encode_produce_request(
            version,
            list(topics.items()),
            acks=settings.acks,
            timeout_ms=timeout_ms,
            transactional_id=manager.transactional_id,
        )
        if transactional:
            manager.left()
        if settings.acks == 0:
            self._send_unanswered(connection, version, body, batches)
            return
        self._in_flight[node_id] += 1
        # The broker itself answers after timeout_ms; only the connection of a silent broker is closed.
        patience_s = settings.request_timeout_s + min(ANSWER_GRACE_S, settings.request_timeout_s)
        answer = connection.send(ApiKey.PRODUCE, version, body, timeout_s=patience_s)
        answer.add_done_callback(partial(self._answered, node_id, version, batches))

    def _encoded(self, batch: ProducerBatch, transactional: bool) -> bytes:
        if batch.encoded is None:
            batch.encoded = encode_batch(
                batch.records,
                compression=self._settings.compression,
                producer_id=batch.identity.producer_id,
                producer_epoch=batch.identity.producer_epoch,
                base_sequence=batch.base_sequence,
                transactional=transactional,
            )
        return batch.encoded

    def _send_unanswered(
        self,
        connection: BrokerConnection,
        version: int,
        body: Sequence[ReadableBuffer],
        batches: list[ProducerBatch],
    ) -> None:
        try:
            connection.send_without_answer(ApiKey.PRODUCE, version, body)
        except ConnectionFailed:
            for batch in batches:
                self._retry(batch, uncertain=True)
            return
        for batch in batches:
            self._succeeded(batch, -1, -1)

    def _answered(
        self, node_id: int, version: int, batches: list[ProducerBatch], answer: asyncio.Future[bytes]
    ) -> None:
        self._in_flight[node_id] -= 1
        if self._ended:
            return
        self.wake()
        try:
            self._settle_all(node_id, version, batches, answer)
        except Exception as error:
            self._defect = error

    def _settle_all(
        self, node_id: int, version: int, batches: list[ProducerBatch], answer: asyncio.Future[bytes]
    ) -> None:
        if answer.cancelled() or answer.exception() is not None:
            for batch in batches:
                self._retry(batch, uncertain=True)
            self._want_metadata(*{batch.topic for batch in batches})
            return
        try:
            frame = answer.result()
            _, position = codec.parse_response_header(ApiKey.PRODUCE, version, frame)
            response = parse_produce_response(version, frame, position)
            results = {
                (topic, entry.partition): entry for topic, entries in response.topics for entry in entries
            }
        except KafkaError as error:
            log.error("unreadable_produce_answer", node=node_id, reason=str(error))
            results = {}
        for batch in batches:
            result = results.get((batch.topic, batch.partition))
            if result is None:
                self._retry(batch, uncertain=True)
            else:
                self._settle(batch, result)
        if self._manager.error is not None:
            self._drop_waiting(self._manager.error)

    def _settle(self, batch: ProducerBatch, result: ProduceResponsePartition) -> None:
        code = result.error
        now_s = self._cluster.clock.monotonic()
        match code:
            case ErrorCode.NONE | ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                self._succeeded(batch, result.base_offset, result.log_append_time_ms)
            case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE if self._accumulator.split(
                batch
            ):
                self.notify_progress()
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                if not self._accumulator.rejected_out_of_order(batch, now_s + self._retry_delay_s(batch)):
                    self._batch_failed(batch, self._refusal(batch, result))
            case ErrorCode.UNKNOWN_PRODUCER_ID if self._manager.transactional_id is None and batch.numbered:
                log.info(
                    "producer_forgotten",
                    topic=batch.topic,
                    partition=batch.partition,
                    sequence=batch.base_sequence,
                )
                self._want_metadata(batch.topic)  # the topic may have been deleted and created again
                if not self._accumulator.rejected_unknown_producer(batch, now_s + self._retry_delay_s(batch)):
                    self._batch_failed(batch, self._refusal(batch, result))
            case _ if family(code) is Family.RETRIABLE:
                log.debug("produce_retried", topic=batch.topic, partition=batch.partition, error=code.name)
                self._refusals[batch.topic, batch.partition] = self._refusal(batch, result).message
                if code in _MOVED:
                    self._want_metadata(batch.topic)
                self._retry(batch, uncertain=False)
            case _ if family(code) in (Family.FENCED, Family.ABORTABLE):
                self._accumulator.failed(batch)
                self._batch_failed(batch, self._refusal(batch, result))
            case _:
                self._accumulator.rejected(batch)
                self._batch_failed(batch, self._refusal(batch, result))

    def _refusal(self, batch: ProducerBatch, result: ProduceResponsePartition) -> KafkaError:
        what = f"{len(batch.records)} records for {batch.topic}-{batch.partition}"
        return error_for(result.error, what, result.error_message)

    def _retry_delay_s(self, batch: ProducerBatch) -> float:
        delay_s = min(RETRY_LAST_S, RETRY_FIRST_S * (1 << min(batch.attempts, 10)))
        return delay_s * (0.5 + self._cluster.clock.random() / 2)

    def _retry(self, batch: ProducerBatch, *, uncertain: bool) -> None:
        now_s = self._cluster.clock.monotonic()
        if now_s >= batch.deadline_s:
            self._accumulator.failed(batch)
            self._batch_failed(batch, self._late(batch))
        else:
            self._accumulator.retry(batch, now_s + self._retry_delay_s(batch), uncertain=uncertain)

    # ---- outcomes ------------------------------------------------------------------------------------------

    def _succeeded(self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int) -> None:
        self._accumulator.succeeded(batch)
        self._refusals.pop((batch.topic, batch.partition), None)
        for index, future in enumerate(batch.tokens):
            if not future.done():
                timestamp_ms = (
                    log_append_time_ms if log_append_time_ms >= 0 else batch.records[index].timestamp_ms
                )
                offset = base_offset + index if base_offset >= 0 else -1
                future.set_result(RecordMetadata(batch.topic, batch.partition, offset, timestamp_ms))
        self.notify_progress()

    def _batch_failed(self, batch: ProducerBatch, error: KafkaError) -> None:
        """The accumulator has removed the batch: its futures fail."""
        log.warning(
            "records_not_delivered",
            topic=batch.topic,
            partition=batch.partition,
            records=len(batch.records),
            reason=str(error),
        )
        self._tell(batch, error)
        if self._manager.transactional_id is not None:
            self.transaction_failed(error)

    def _tell(self, batch: ProducerBatch, error: BaseException) -> None:
        for future in batch.tokens:
            if not future.done():
                future.set_exception(error)
                # logged already, and commit() or flush() raise it: the user need not check every record
                future.exception()
        self.notify_progress()

    def transaction_failed(self, error: KafkaError) -> None:
        """The open transaction can only be aborted, for this reason."""
        manager = self._manager
        if manager.state in (State.IN_TRANSACTION, State.COMMITTING, State.ABORTING, State.ABORTABLE_ERROR):
            if isinstance(error, FatalError) and family(error.code) is not Family.FENCED:
                manager.fatal(error)
            else:
                manager.abortable(
                    error if isinstance(error, AbortableError) else AbortableError(error.code, error.message)
                )
        if manager.error is not None:
            self._drop_waiting(manager.error)
        self.notify_progress()

    def _drop_waiting(self, error: BaseException) -> None:
        for batch in self._accumulator.drop_waiting():
            self._tell(batch, error)

    def _fail_everything(self, error: BaseException) -> None:
        """Fails all batches and ends the sender, so that flush() and a `send` that waits for memory
        return."""
        self._ended = True
        for batch in self._accumulator.abandon():
            self._tell(batch, error)
        self.notify_progress()

    def waits_for(self, waited_s: float) -> str | None:
        """Why the oldest batch without acknowledgement for so long still waits; None without such a batch."""
        since_s = self._cluster.clock.monotonic() - waited_s
        late = [batch for batch in self._accumulator.incomplete() if batch.created_s <= since_s]
        if not late:
            return None
        oldest = min(late, key=lambda batch: batch.born)
        what = f"{len(oldest.records)} records for {oldest.topic}-{oldest.partition}"
        if self._cluster.view.leader(oldest.topic, oldest.partition) == NO_LEADER:
            return sentence(ErrorCode.LEADER_NOT_AVAILABLE, what)
        return self._refusals.get((oldest.topic, oldest.partition), f"{what}: no answer yet")

    def _late(self, batch: ProducerBatch) -> DeliveryTimeout:
        what = (
            f"{len(batch.records)} records for {batch.topic}-{batch.partition} were not acknowledged in time"
        )
        if self._cluster.view.leader(batch.topic, batch.partition) == NO_LEADER:
            return DeliveryTimeout(
                ErrorCode.REQUEST_TIMED_OUT, sentence(ErrorCode.LEADER_NOT_AVAILABLE, what)
            )
        fate = "they may or may not be in the log" if batch.attempts else "they were never sent"
        return DeliveryTimeout(ErrorCode.REQUEST_TIMED_OUT, f"{what} ({batch.attempts} attempts; {fate})")


class RequestClosed(KafkaError):
    """The producer was closed before the record was acknowledged."""
