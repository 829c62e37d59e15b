"""Producer, Consumer and Admin for programs without asyncio: the same objects, on an event loop in a thread
of their own.

    from tidegate.client.blocking import Consumer, Producer

    with Producer("127.0.0.1:9092", transactional_id="payments-1") as producer:
        with producer.transaction():
            producer.send("payments", key="alice", value=b"...")

Constructor arguments and errors are those of `tidegate.client`.  A producer may be shared by threads (its
transactions may not); a consumer belongs to one thread at a time.  `send` returns a
concurrent.futures.Future.  `close` may be called from any thread, and twice: calls of other threads then end
with a result or an error, and later calls raise.  Each call costs a switch between threads (about 50 us): for
many records use `send_all`, and `poll` with a large `max_records`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from ..wire.errors import ErrorCode
from .administration.admin import (
    Admin as AsyncAdmin,
)
from .administration.descriptions import (
    ClusterDescription,
    ConfigEntry,
    GroupListing,
    NewTopic,
    ProducerDescription,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from .administration.group_descriptions import GroupDescription
from .administration.hanging_transactions import IDLE_MS, HangingTransaction
from .administration.operations import DataFolder, FeatureLevel, PartitionMove, RegisteredBroker
from .connecting.errors import CommitOutcomeUnknown, RequestError
from .connecting.metadata import TopicView
from .consuming.consumer import Consumer as AsyncConsumer
from .consuming.consumer import RebalanceListener
from .consuming.fetched import ConsumerRecord
from .producing.producer import Headers, RecordMetadata
from .producing.producer import Producer as AsyncProducer
from .producing.transaction_manager import State
from .requests.offset_requests import OffsetAtTime, TopicPartition
from .requests.transaction_requests import CommittedOffset, GroupMetadata, Offsets

__all__ = ["Admin", "Consumer", "NewTopic", "Producer", "Send"]

T = TypeVar("T")
ITERATION_RECORDS: Final = 200
SEND_CHUNK_RECORDS: Final = 500
# a cancelled task normally ends at once; close() waits no longer than this for a call that does not end
TASKS_END_S: Final = 5.0


def _documented_by(source: type) -> Callable[[type[T]], type[T]]:
    """Methods without a docstring do what those of `source` do, and get theirs."""

    def document(own: type[T]) -> type[T]:
        for name, member in vars(own).items():
            if not name.startswith("_") and callable(member) and not member.__doc__:
                member.__doc__ = getattr(source, name).__doc__
        return own

    return document


class _LoopThread:
    """An event loop in a daemon thread; `call` runs a coroutine there and waits for it.

    Every call ends: a call made before `close` with its own result, or an error when `close` cancels it; a
    later call raises. `close` refuses new calls, runs the closing coroutine, cancels the tasks that still
    run, and stops the loop, in this order.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"tidegate-{name}", daemon=True)
        # calls submitted under it reach the loop before the closing coroutine
        self._lock = threading.Lock()
        self._closing = False
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            refusal = self._refusal()
            if refusal is None:
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        if refusal is not None:
            work.close()
            raise RequestError(ErrorCode.INVALID_REQUEST, refusal)
        return self._result(future)

    def _refusal(self) -> str | None:
        if self._closing:
            return f"the {self._name} is closed: make a new one"
        if threading.current_thread() is self._thread:
            return (
                f"a call from a callback of the {self._name}'s own thread would wait for itself: make it "
                "from another thread"
            )
        return None

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError:  # the future's, not asyncio's: the loop was stopped
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"the {self._name} was closed during this call"
            ) from None
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: the task must not continue without its caller
            raise

    def run(self, function: Callable[[], T]) -> T:
        """Runs a plain function on the loop's thread."""

        async def work() -> T:
            return function()

        return self.call(work())

    def close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the closing coroutine and ends the thread.  A second call waits for the first."""
        with self._lock:
            refusal = None if self._closing else self._refusal()
            first = not self._closing and refusal is None
            if first:
                self._closing = True
                future = asyncio.run_coroutine_threadsafe(work(), self._loop)
        if refusal is not None:
            raise RequestError(ErrorCode.INVALID_REQUEST, refusal)
        try:
            if first:
                self._result(future)
        finally:
            if first:
                asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop)
            if threading.current_thread() is not self._thread:
                self._thread.join()
            if first:
                self._loop.close()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=TASKS_END_S)
        await self._loop.shutdown_asyncgens()
        self._loop.stop()


class Send(NamedTuple):
    """One record for `Producer.send_all`."""

    value: bytes | str | None
    key: bytes | str | None = None
    partition: int | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


@_documented_by(AsyncProducer)
class Producer:
    """See `tidegate.client.Producer`."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self._producer = AsyncProducer(bootstrap, **settings)
        self._thread = _LoopThread("producer")

    def start(self) -> None:
        try:
            self._thread.call(self._producer.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """As the asyncio producer's: sends the remaining records; then every future is done, also those of
        other threads."""
        self._thread.close(self._producer.close)

    def __enter__(self) -> Producer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        *,
        partition: int | None = None,
        headers: Headers | Mapping[str, bytes] = (),
        timestamp_ms: int | None = None,
    ) -> Future[RecordMetadata]:
        """Queues a record, after waiting for memory; the future is its acknowledgement (it cannot be
        cancelled)."""

        async def work() -> Future[RecordMetadata]:
            return _acknowledgement(
                await self._producer.send(
                    topic, value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
                )
            )

        return self._thread.call(work())

    def send_and_wait(
        self, topic: str, value: bytes | str | None = None, key: bytes | str | None = None, **options: Any
    ) -> RecordMetadata:
        return self.send(topic, value, key, **options).result()

    def send_all(self, topic: str, records: Iterable[Send]) -> list[Future[RecordMetadata]]:
        """Sends many records with few switches between the threads."""
        futures: list[Future[RecordMetadata]] = []
        chunk: list[Send] = []

        async def work(part: list[Send]) -> None:
            for entry in part:
                sent = await self._producer.send(
                    topic,
                    entry.value,
                    entry.key,
                    partition=entry.partition,
                    headers=entry.headers,
                    timestamp_ms=entry.timestamp_ms,
                )
                futures.append(_acknowledgement(sent))

        for record in records:
            chunk.append(record)
            if len(chunk) >= SEND_CHUNK_RECORDS:
                self._thread.call(work(chunk))
                chunk = []
        if chunk:
            self._thread.call(work(chunk))
        return futures

    def flush(self) -> None:
        self._thread.call(self._producer.flush())

    def partitions_for(self, topic: str) -> list[int]:
        return self._thread.call(self._producer.partitions_for(topic))

    @property
    def state(self) -> State:
        """The state of the transaction."""
        return self._producer.state

    def begin(self) -> None:
        self._thread.call(self._producer.begin())

    def commit(self) -> None:
        self._thread.call(self._producer.commit())

    def abort(self) -> None:
        self._thread.call(self._producer.abort())

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """begin; commit at the end, or abort when the body or the commit fails."""
        self.begin()
        try:
            yield self
            self.commit()
        except CommitOutcomeUnknown:
            raise
        except BaseException:
            self._thread.call(self._producer.abort_after_failure())
            raise

    def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        self._thread.call(self._producer.send_offsets_to_transaction(offsets, group))


def _acknowledgement(source: asyncio.Future[RecordMetadata]) -> Future[RecordMetadata]:
    """The same outcome for another thread.  The record is on its way, so `cancel()` answers False and changes
    nothing."""
    target: Future[RecordMetadata] = Future()
    target.set_running_or_notify_cancel()

    def done(finished: asyncio.Future[RecordMetadata]) -> None:
        if finished.cancelled():
            target.set_exception(
                RequestError(ErrorCode.INVALID_REQUEST, "the producer's loop ended under this record")
            )
            return
        error = finished.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(finished.result())

    source.add_done_callback(done)
    return target


@_documented_by(AsyncConsumer)
class Consumer:
    """See `tidegate.client.Consumer`.  Rebalance listeners are coroutines and run on the consumer's own
    thread."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self._consumer = AsyncConsumer(bootstrap, **settings)
        self._thread = _LoopThread("consumer")
        self._undelivered: deque[ConsumerRecord] = deque()  # fetched by an iteration, not yet yielded

    def start(self) -> None:
        try:
            self._thread.call(self._consumer.start())
        except BaseException:
            self.close(commit=False)
            raise

    def close(self, *, commit: bool = True) -> None:
        async def work() -> None:
            self._seek_back()
            await self._consumer.close(commit=commit)

        self._thread.close(work)

    def __enter__(self) -> Consumer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(commit=kind is None)

    def subscribe(self, topics: Sequence[str] | str, listener: RebalanceListener | None = None) -> None:
        self._thread.run(lambda: self._consumer.subscribe(topics, listener))

    def unsubscribe(self) -> None:
        self._rewind()
        self._thread.call(self._consumer.unsubscribe())

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        wanted = list(partitions)
        self._rewind()
        self._thread.run(lambda: self._consumer.assign(wanted))

    def assignment(self) -> set[TopicPartition]:
        return self._thread.run(self._consumer.assignment)

    def partitions_for(self, topic: str) -> list[int]:
        return self._thread.call(self._consumer.partitions_for(topic))

    def poll(self, max_records: int | None = None, timeout_s: float = 1.0) -> list[ConsumerRecord]:
        self._rewind()
        return self._thread.call(self._consumer.poll(max_records, timeout_s))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yields records without end.  They are fetched in groups, but a commit covers only the yielded
        ones."""
        try:
            while True:
                self._undelivered.extend(self._thread.call(self._consumer.poll(ITERATION_RECORDS, 60.0)))
                while self._undelivered:
                    yield self._undelivered.popleft()
        finally:
            self._rewind()

    def _rewind(self) -> None:
        """Returns the records that an iteration fetched and did not yield."""
        if self._undelivered:
            self._thread.run(self._seek_back)

    def _seek_back(self) -> None:
        """On the loop's thread."""
        first: dict[tuple[str, int], int] = {}
        while self._undelivered:
            record = self._undelivered.popleft()
            first.setdefault((record.topic, record.partition), record.offset)
        assigned = self._consumer.assignment()
        for key, offset in first.items():
            if key in assigned:
                self._consumer.seek(key, offset)

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        self._rewind()
        self._thread.run(lambda: self._consumer.seek(partition, offset))

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        self._rewind()
        self._thread.call(self._consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        self._rewind()
        self._thread.call(self._consumer.seek_to_end(*partitions))

    def position(self, partition: tuple[str, int]) -> int:
        self._rewind()
        return self._thread.call(self._consumer.position(partition))

    def positions(self) -> dict[tuple[str, int], int]:
        """The offset of the next record to yield, per partition."""
        found = self._thread.run(self._consumer.positions)
        for record in reversed(self._undelivered):
            found[record.topic, record.partition] = record.offset
        return found

    def lag(self, partition: tuple[str, int]) -> int | None:
        return self._thread.run(lambda: self._consumer.lag(partition))

    def pause(self, *partitions: tuple[str, int]) -> None:
        self._thread.run(lambda: self._consumer.pause(*partitions))

    def resume(self, *partitions: tuple[str, int]) -> None:
        self._thread.run(lambda: self._consumer.resume(*partitions))

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return self._thread.call(self._consumer.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return self._thread.call(self._consumer.end_offsets(partitions))

    def offsets_for_times(
        self, times: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], OffsetAtTime | None]:
        return self._thread.call(self._consumer.offsets_for_times(times))

    def group_metadata(self) -> GroupMetadata:
        return self._consumer.group_metadata()

    def commit(self, offsets: Offsets | None = None) -> None:
        self._thread.call(self._consumer.commit(offsets if offsets is not None else self.positions()))

    def committed(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], CommittedOffset]:
        return self._thread.call(self._consumer.committed(partitions))


@_documented_by(AsyncAdmin)
class Admin:
    """See `tidegate.client.Admin`."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self._admin = AsyncAdmin(bootstrap, **settings)
        self._thread = _LoopThread("admin")

    def __enter__(self) -> Admin:
        try:
            self._thread.call(self._admin.start())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.close(self._admin.close)

    def create_topics(self, topics: Sequence[NewTopic], *, wait: bool = True) -> None:
        self._thread.call(self._admin.create_topics(topics, wait=wait))

    def delete_topics(self, names: Sequence[str]) -> None:
        self._thread.call(self._admin.delete_topics(names))

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        return self._thread.call(self._admin.delete_records(before))

    def create_partitions(self, counts: Mapping[str, int]) -> None:
        self._thread.call(self._admin.create_partitions(counts))

    def list_topics(self, *, internal: bool = False) -> list[TopicView]:
        return self._thread.call(self._admin.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str]) -> list[TopicDescription]:
        return self._thread.call(self._admin.describe_topics(names))

    def describe_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        return self._thread.call(self._admin.describe_configs(names))

    def alter_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        self._thread.call(self._admin.alter_config(name, changes))

    def list_groups(self, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        return self._thread.call(self._admin.list_groups(states, types))

    def describe_group(self, group_id: str) -> GroupDescription:
        return self._thread.call(self._admin.describe_group(group_id))

    def group_offsets(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        return self._thread.call(self._admin.group_offsets(group_id))

    def delete_group(self, group_id: str) -> None:
        self._thread.call(self._admin.delete_group(group_id))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        self._thread.call(self._admin.delete_group_offsets(group_id, partitions))

    def set_group_offsets(self, group_id: str, offsets: Offsets) -> None:
        self._thread.call(self._admin.set_group_offsets(group_id, offsets))

    def remove_group_members(
        self, group_id: str, *, instance_ids: Iterable[str] = (), member_ids: Iterable[str] = ()
    ) -> None:
        self._thread.call(
            self._admin.remove_group_members(group_id, instance_ids=instance_ids, member_ids=member_ids)
        )

    def list_transactions(
        self, states: Sequence[str] = (), *, producer_ids: Collection[int] = (), running_for_ms: int = -1
    ) -> list[TransactionListing]:
        listing = self._admin.list_transactions(
            states, producer_ids=producer_ids, running_for_ms=running_for_ms
        )
        return self._thread.call(listing)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        return self._thread.call(self._admin.describe_transaction(transactional_id))

    def describe_producers(self, partitions: Iterable[tuple[str, int]]) -> list[ProducerDescription]:
        return self._thread.call(self._admin.describe_producers(partitions))

    def hanging_transactions(
        self, partitions: Collection[tuple[str, int]], *, idle_ms: int = IDLE_MS
    ) -> list[HangingTransaction]:
        return self._thread.call(self._admin.hanging_transactions(partitions, idle_ms=idle_ms))

    def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        self._thread.call(self._admin.abort_hanging_transaction(hanging))

    def reassign_partitions(self, targets: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        self._thread.call(self._admin.reassign_partitions(targets))

    def alter_broker_config(self, node_id: int | None, changes: Mapping[str, str | None]) -> None:
        self._thread.call(self._admin.alter_broker_config(node_id, changes))

    def list_reassignments(self) -> list[PartitionMove]:
        return self._thread.call(self._admin.list_reassignments())

    def describe_features(self) -> list[FeatureLevel]:
        return self._thread.call(self._admin.describe_features())

    def update_features(
        self, levels: Mapping[str, int], *, downgrade: bool = False, validate_only: bool = False
    ) -> None:
        self._thread.call(
            self._admin.update_features(levels, downgrade=downgrade, validate_only=validate_only)
        )

    def list_brokers(self) -> list[RegisteredBroker]:
        return self._thread.call(self._admin.list_brokers())

    def describe_data_folders(self, *, timeout_s: float = 5.0) -> list[DataFolder]:
        return self._thread.call(self._admin.describe_data_folders(timeout_s=timeout_s))

    def unregister_broker(self, node_id: int) -> None:
        self._thread.call(self._admin.unregister_broker(node_id))

    def describe_cluster(self) -> ClusterDescription:
        return self._thread.call(self._admin.describe_cluster())

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return self._thread.call(self._admin.beginning_offsets(partitions))

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, read_committed: bool = False
    ) -> dict[tuple[str, int], int]:
        return self._thread.call(self._admin.end_offsets(partitions, read_committed=read_committed))
