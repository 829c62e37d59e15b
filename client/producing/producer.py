"""The asyncio producer: idempotent by default, transactional when it has a transactional id.

    async with Producer("127.0.0.1:9092", transactional_id="payments-1") as producer:
        async with producer.transaction():
            await producer.send("payments", key="alice", value=b"...")
            await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

`send` waits only for metadata and for room in memory, and returns a future of RecordMetadata; `await (await
send(...))`, or `send_and_wait`, waits for the acknowledgement.  `commit` first waits for all records of the
transaction.

What an error means is its class (see errors.py): after an `AbortableError` call `abort()` and run the
transaction again (`transaction()` aborts by itself); after a `FatalError` close the producer;
`CommitOutcomeUnknown` says that the coordinator did not answer: call `commit()` again to learn the outcome,
or `begin()` to continue without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Unpack

from ...runtime import logs
from ...runtime.clock import Clock, SystemClock
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import NewRecord
from ..connecting.cluster import Cluster
from ..connecting.errors import (
    AbortableError,
    BufferExhausted,
    CommitOutcomeUnknown,
    Family,
    FatalError,
    ProducerFenced,
    RequestError,
    RetriableError,
    TransactionTimedOut,
    error_for,
    family,
    sentence,
)
from ..connecting.metadata import NO_LEADER, TopicView
from ..requests.transaction_requests import (
    NO_IDENTITY,
    CommittedOffset,
    EndAnswer,
    GroupMetadata,
    Identity,
    Offsets,
    TransactionRequests,
)
from .accumulator import BATCH_OVERHEAD_BYTES, Accumulator
from .options import ProducerOptions, ProducerSettings
from .partitioner import StickyChooser, partition_of_key
from .sender import RecordMetadata, Sender
from .transaction_manager import Event, State, TransactionManager

__all__ = ["CommittedOffset", "GroupMetadata", "Producer", "RecordMetadata"]

log = logs.get(__name__)

Headers = Sequence[tuple[str, bytes | None]]


class Producer:
    """See the module's text.  Keys and values are bytes, or str (sent as UTF-8).  Use all methods on one
    event loop.  The settings are those of `ProducerOptions`."""

    def __init__(
        self, bootstrap: str, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]
    ) -> None:
        self._options = options = ProducerOptions(**settings)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._sticky = StickyChooser(options.batch_bytes, self._clock.random)
        self._cluster = Cluster(
            bootstrap,
            client_id=options.client_id,
            clock=self._clock,
            request_timeout_s=options.request_timeout_s,
            create_topics=True,
            security=options.security,
        )
        self._accumulator = Accumulator(options.for_accumulator())
        self._manager = TransactionManager(options.transactional_id)
        self._requests = TransactionRequests(
            self._cluster, options.transactional_id, options.transaction_timeout_ms, options.max_block_s
        )
        self._sender = Sender(
            self._cluster, self._accumulator, self._manager, self._requests, options.for_sender(),
            self._renew_identity,
        )  # fmt: skip
        self._state_lock = asyncio.Lock()  # one begin, commit, abort or initialisation at a time
        self._close_lock = asyncio.Lock()
        self._started = False
        self._closing = False  # no new record is accepted
        self._closed = False

    # ---- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects; with a transactional id, also fences a former producer of this id and ends its open
        transaction."""
        if self._closing:
            raise self._not_open("closed")
        if self._started:
            return
        try:
            await self._cluster.start()
            self._sender.start()
            async with self._state_lock:
                await self._initialize()
        except BaseException:
            await self._shut_down()
            raise
        self._started = True

    async def close(self) -> None:
        """Sends the remaining records (or aborts an open transaction), then closes the connections.

        From then on every other call raises.  When it returns, every future that `send` returned has a result
        or an error; also when it is cancelled: then the remaining records fail at once.  A second call waits
        for the first and does nothing.
        """
        self._closing = True
        self._sender.notify_progress()  # a `send` that waits for memory raises now
        async with self._close_lock:
            if self._closed:
                return
            try:
                if self._started:
                    await self._finish()
            except KafkaError as error:
                log.warning("close_incomplete", reason=str(error))
            finally:
                await self._shut_down()

    async def _finish(self) -> None:
        manager = self._manager
        if manager.transactional_id is None:
            if manager.state is not State.FATAL_ERROR:
                await self._sender.flush()
            return
        async with self._state_lock:  # a running commit first gets its answer
            if manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                await self._abort()

    async def _shut_down(self) -> None:
        self._closing = self._closed = True
        try:
            await self._sender.close()
        finally:
            await self._cluster.close()

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self.close()

    # ---- records -------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        *,
        partition: int | None = None,
        headers: Headers | Mapping[str, bytes] = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queues a record.  The future is its acknowledgement; in a transaction `commit` waits for all of
        them.

        Raises TypeError and UnicodeEncodeError (a header), RequestError (record too large, no such partition,
        no open transaction, closed), BufferExhausted, or the error that brought the transaction to its state.
        """
        self._require_open()
        self._manager.require_sending()
        view = self._cluster.view.topics.get(topic)
        if view is None or view.error is not ErrorCode.NONE or not view.partitions:
            view = await self._cluster.topic(topic, self._options.max_block_s)
        record = NewRecord(
            _encoded(key),
            _encoded(value),
            _checked(headers),
            timestamp_ms if timestamp_ms is not None else self._clock.wall_ms(),
        )
        size = Accumulator.size_of(record)
        if size + BATCH_OVERHEAD_BYTES > self._options.request_bytes_max:
            raise RequestError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes for {topic!r} exceeds "
                f"request_bytes_max={self._options.request_bytes_max}: raise it",
            )
        if not self._accumulator.could_hold(size):
            raise RequestError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes for {topic!r} does not fit into "
                f"memory_bytes={self._options.memory_bytes}: raise it",
            )
        number = self._partition(view, record, size) if partition is None else self._explicit(view, partition)
        if not self._accumulator.has_room(size):
            await self._wait_for_room(size)
        self._require_open()
        self._manager.require_sending()  # the state may have changed during the wait
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        if self._accumulator.append(topic, number, record, future, self._clock.monotonic()):
            self._sender.wake()
        return future

    async def send_and_wait(
        self, topic: str, value: bytes | str | None = None, key: bytes | str | None = None, **options: object
    ) -> RecordMetadata:
        """`send`, then waits for the acknowledgement."""
        return await (await self.send(topic, value, key, **options))  # type: ignore[arg-type]

    def waits_for(self, waited_s: float = 0.0) -> str | None:
        """One sentence on the oldest records without acknowledgement for so long; None without any."""
        return self._sender.waits_for(waited_s)

    async def flush(self) -> None:
        """Waits until every queued record is acknowledged or has failed; the futures show which."""
        self._require_open()
        await self._sender.flush()

    async def partitions_for(self, topic: str) -> list[int]:
        """The partition numbers of a topic."""
        self._require_open()
        return list((await self._cluster.topic(topic, self._options.max_block_s)).partitions)

    def _partition(self, view: TopicView, record: NewRecord, size: int) -> int:
        numbers = list(view.partitions)
        if self._options.partitioner is not None:
            return self._explicit(
                view, self._options.partitioner(view.name, record.key, record.value, numbers)
            )
        if record.key is not None:
            return partition_of_key(record.key, len(numbers))
        available = [number for number, partition in view.partitions.items() if partition.leader != NO_LEADER]
        return self._sticky.choose(view.name, available or numbers, size)

    @staticmethod
    def _explicit(view: TopicView, number: int) -> int:
        if number not in view.partitions:
            raise RequestError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{view.name!r} has {_numbers(view)}, not {number}",
            )
        return number

    async def _wait_for_room(self, size: int) -> None:
        try:
            async with asyncio.timeout(self._options.max_block_s):
                await self._sender.wait_for_room(size, self._require_open)
        except TimeoutError:
            raise BufferExhausted(
                ErrorCode.REQUEST_TIMED_OUT,
                f"no room for {size} bytes within {self._options.max_block_s:g} s: the brokers take records "
                "more slowly than they come; "
                "send less, raise memory_bytes, or look at the brokers with `tidegate status`",
            ) from None

    # ---- transactions --------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the transaction."""
        return self._manager.state

    @property
    def transactional(self) -> bool:
        """Whether it has a transactional id."""
        return self._manager.transactional_id is not None

    @property
    def identity(self) -> Identity:
        """The present producer id and epoch."""
        return self._manager.identity

    @property
    def transaction_version(self) -> int:
        """1, or 2 when the cluster runs KIP-890 part 2."""
        return self._manager.version

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Producer]:
        """Begins; commits at the end, or aborts and raises when the body or the commit fails."""
        await self.begin()
        try:
            yield self
        except BaseException:
            await self.abort_after_failure()
            raise
        try:
            await self.commit()
        except CommitOutcomeUnknown:
            raise
        except BaseException:
            await self.abort_after_failure()
            raise

    async def abort_after_failure(self) -> None:
        """Aborts and only logs a failing abort: the user must see the first failure, and the next begin ends
        the transaction."""
        if self._manager.state not in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            return
        try:
            await self.abort()
        except KafkaError as error:
            log.warning("abort_failed", transactional_id=self._manager.transactional_id, reason=str(error))

    async def begin(self) -> None:
        """Opens a transaction.  After an unknown outcome this first gets a new epoch."""
        async with self._alone():
            if self._manager.transactional_id is not None and self._manager.needs_identity:
                await self._initialize()
            self._manager.begin()

    async def commit(self) -> None:
        """Waits for all records, then commits.  When it returns, the transaction is committed (readers see it
        a moment later).

        Raises AbortableError (call abort), ProducerFenced, CommitOutcomeUnknown (call commit again).
        """
        async with self._alone():
            if self._manager.begin_end(commit=True):
                await self._flush_transaction()
            await self._end(commit=True)

    async def abort(self) -> None:
        """Aborts: no read_committed reader will see any record of the transaction."""
        async with self._alone():
            await self._abort()

    async def _abort(self) -> None:
        if self._manager.begin_end(commit=False):
            cause = self._manager.error or RequestError(
                ErrorCode.TRANSACTION_ABORTABLE, "the transaction was aborted"
            )
            try:
                await self._sender.drop_unsent(cause)
            except asyncio.CancelledError:
                self._manager.outcome_unknown()
                raise
        await self._end(commit=False)

    async def send_offsets_to_transaction(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Commits consumed offsets with the transaction: they count if and only if it commits.

        `offsets`: {(topic, partition): next offset to read}.  Pass the consumer's `group_metadata()`: with
        only a group id, the coordinator cannot fence a consumer that lost its partitions meanwhile (KIP-447).
        """
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        async with self._alone():
            manager = self._manager
            if manager.transactional_id is None:
                raise RequestError(
                    ErrorCode.INVALID_TXN_STATE,
                    "this producer has no transactional_id: commit with the consumer",
                )
            manager.require_sending()
            if not offsets:
                return
            manager.left()
            try:
                await self._requests.send_offsets(manager.identity, manager.version, offsets, metadata)
            except KafkaError as error:
                self._sender.transaction_failed(error)
                raise manager.error or error from error
            except asyncio.CancelledError:
                self._sender.transaction_failed(
                    AbortableError(
                        ErrorCode.TRANSACTION_ABORTABLE,
                        "sending the offsets was cancelled: abort the transaction",
                    )
                )
                raise

    async def _flush_transaction(self) -> None:
        """Waits until all records have an outcome; raises the cause when the transaction has failed."""
        manager = self._manager
        try:
            await self._sender.flush()
        except asyncio.CancelledError:
            cause = AbortableError(
                ErrorCode.TRANSACTION_ABORTABLE, "the commit was cancelled before it was sent: call abort()"
            )
            self._sender.transaction_failed(cause)
            raise
        if manager.state is not State.COMMITTING:
            assert manager.error is not None
            raise manager.error

    async def _end(self, *, commit: bool) -> None:
        manager = self._manager
        if not manager.end_txn_needed:
            self._ended(manager.identity if manager.ended_by_coordinator else None)
            return
        try:
            answer = await self._requests.end(manager.identity, manager.version, commit=commit)
        except RetriableError as error:
            manager.outcome_unknown()
            raise self._unknown(commit, error) from error
        except asyncio.CancelledError:
            manager.outcome_unknown()  # the request may be in the network
            raise
        except KafkaError as error:
            if self._closed:  # under the request
                raise self._unknown(commit, error, learnable=False) from error
            manager.fatal(error)
            raise
        await self._ended_with(answer, commit=commit)

    async def _ended_with(self, answer: EndAnswer, *, commit: bool) -> None:
        manager = self._manager
        what = f"{'commit' if commit else 'abort'} of transactional id {manager.transactional_id!r}"
        match family(answer.code) if answer.code is not ErrorCode.NONE else None:
            case None:
                self._ended(answer.identity)
            case Family.FENCED:
                await self._refused_epoch(answer, commit=commit)
            case Family.ABORTABLE if not commit:
                # No transaction is open under this identity: it is already aborted.
                manager.identity_lost()
            case Family.ABORTABLE if answer.code is ErrorCode.INVALID_TXN_STATE:
                # The coordinator has aborted it: had an earlier attempt committed, the coordinator would have
                # confirmed this one.
                timed_out = TransactionTimedOut(answer.code, sentence(answer.code, what))
                manager.abortable(timed_out)
                raise timed_out
            case Family.ABORTABLE if answer.uncertain:
                manager.outcome_unknown()
                raise self._unknown(commit, error_for(answer.code, what))
            case Family.ABORTABLE:
                error = AbortableError(answer.code, sentence(answer.code, what))
                manager.abortable(error)
                raise error
            case _:
                fatal = FatalError(answer.code, sentence(answer.code, what))
                manager.fatal(fatal)
                raise fatal

    async def _refused_epoch(self, answer: EndAnswer, *, commit: bool) -> None:
        """The coordinator knows a newer epoch: another producer took over, or the transaction timed out
        (KIP-588). InitProducerId with the old epoch tells which: the coordinator rejects it only from a
        fenced producer."""
        manager = self._manager
        if not commit:
            manager.identity_lost()
            await self._initialize()
            return
        if answer.uncertain:
            manager.outcome_unknown()
            await self._initialize()
            raise self._unknown(commit, error_for(answer.code, "the second attempt"), learnable=False)
        error = TransactionTimedOut(
            answer.code,
            "the coordinator has aborted this transaction (was it open for longer than its "
            "timeout?): run it again",
        )
        manager.abortable(error)
        try:
            identity = await self._requests.init(manager.identity)
        except ProducerFenced as fenced:
            manager.fatal(fenced)
            raise
        except RetriableError:
            raise error from None  # abort() will ask again
        manager.ended_without_us(identity)
        raise error

    def _unknown(self, commit: bool, error: KafkaError, *, learnable: bool = True) -> KafkaError:
        if not commit:
            return RetriableError(
                error.code,
                f"the abort was not confirmed ({error.message}): nothing of it will be seen; begin() "
                "makes sure of it",
            )
        advice = (
            "call commit() again to learn which, or begin() to go on"
            if learnable
            else "look at the data to learn which"
        )
        return CommitOutcomeUnknown(
            error.code,
            f"the commit was not confirmed ({error.message}): it is committed or aborted as a whole; "
            f"{advice}",
        )

    def _ended(self, identity: Identity | None) -> None:
        self._manager.ended(identity, unresolved_sequences=self._accumulator.has_unresolved_sequences)
        self._accumulator.set_identity(self._manager.identity)
        self._sender.wake()

    # ---- identity ------------------------------------------------------------------------------------------

    async def _renew_identity(self) -> None:
        """A producer without transactions gets a fresh producer id."""
        async with self._state_lock:
            if self._manager.state is State.READY:
                try:
                    self._accumulator.set_identity(await self._requests.init(NO_IDENTITY))
                except (FatalError, RequestError) as error:
                    self._manager.fatal(error)
                    raise
            elif self._manager.needs_identity:
                await self._initialize()

    async def _initialize(self) -> None:
        """UNINITIALIZED -> INITIALIZING -> READY; called with the lock."""
        manager = self._manager
        manager.on(Event.INITIALIZE)
        try:
            identity = await self._requests.init(manager.identity) if self._options.numbered else NO_IDENTITY
        except (FatalError, RequestError) as error:
            manager.fatal(error)
            raise
        except BaseException:
            manager.on(Event.INITIALIZE_FAILED)
            raise
        manager.initialized(
            identity, self._requests.transaction_version() if manager.transactional_id is not None else 1
        )
        self._accumulator.set_identity(identity)
        self._sender.wake()
        log.debug(
            "producer_initialized",
            transactional_id=manager.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            transaction_version=manager.version,
        )

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One change of the transaction's state at a time; after close() also the callers that waited
        raise."""
        self._require_open()
        async with self._state_lock:
            self._require_open()
            yield

    def _require_open(self) -> None:
        if self._closing or not self._started:
            raise self._not_open("closed" if self._closing else "not started")

    @staticmethod
    def _not_open(state: str) -> RequestError:
        return RequestError(
            ErrorCode.INVALID_REQUEST, f"the producer is {state}: use `async with Producer(...)`"
        )


def _numbers(view: TopicView) -> str:
    count = len(view.partitions)
    return f"partitions 0 to {count - 1}" if count > 1 else "only partition 0"


def _checked(headers: Headers | Mapping[str, bytes]) -> Headers:
    """Here, since a header that cannot be encoded would later fail a whole batch."""
    found = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for name, value in found:
        if not isinstance(name, str) or not isinstance(value, bytes | bytearray | memoryview | None):
            kinds = f"{type(name).__name__} and {type(value).__name__}"
            raise TypeError(f"a header is a str and bytes, or None; {name!r} is {kinds}")
    return found


def _encoded(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
