"""The gRPC data service: bulk reads of committed records for Spark, answered by partition leaders.

Every call asks for its client's right to the topics that it names; a call for all topics leaves out those
that the client may not describe.

Every call for a partition then checks that this node leads it in the leader epoch that the caller names, and
that the topic still has the caller's topic id.  A stream checks that its range is settled, pins the replica
and the leader epoch, and repeats, chunk by chunk:

1. find the place on the loop and read whole batches in a thread (a bulk read must never hold up the node's
   loop; `bulk_read` says why that is safe);
2. back on the loop, check again that this node leads in the pinned epoch with the same replica, and that the
   log still begins at or below the position (below the last stable offset a leader truncates nothing);
3. only then send the chunk; gRPC's flow control holds the stream until the reader takes it.

Over a range connection a chunk is sent from its file in place of 1 (`FileRead`), and 3 tells the reader that
it counts: the node holds no bytes of it.

So a reader gets no records that were read while this node lost the leadership.  The first chunk carries the
aborted transactions of the *whole* range: all are decided, since the range ends at or below the last stable
offset.  Where the cleaner removes some of their markers meanwhile, the stream ends with an error that may
pass, and the reader asks for the rest, with another list (`AbortedOfRange`).  A range at a cut (AT_CUT) ends
at or below the high watermark: what its list lacks, since it is aborted later, is among the transactions that
the cut leaves out.  The list also has transactions whose ABORT marker lies above the range.

Streams beyond those that the node serves at once wait in a fair queue (`range_turns`); a reader of a newer
version gets a message while it waits.  So does a reader that has used more than its quota
(`consumer_byte_rate`): its stream gives up its place until the debt is paid.

The chunks that gRPC carries are bounded in bytes, those of all streams together.  A stream that must make
room, since its reader takes nothing of its chunk, ends with its connection: while a message waits for its
reader, gRPC's server for asyncio neither ends a call with an error nor frees the message.  To the reader this
is a node that was lost: it connects again, and asks for the rest.  Whether a reader takes something is what
its connection has acknowledged for ten seconds, by looks that are taken while a stream waits for room: behind
a proxy that has full buffers a slow reader is acknowledged only now and then.

A plan of ranges lets others run every few milliseconds; then it makes sure that this node still leads in the
same epoch, and that the range is still there, and goes on in the segments that there are by then.

A count of a range takes the same three steps, piece by piece.  The log keeps what a piece has counted, so a
caller that times out and asks again does not start from the beginning.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, TypeVar
from uuid import UUID

import grpc
import grpc.aio

from ...controller.state.cluster_state import ClusterState
from ...proto import data_pb2 as pb
from ...proto.range_chunks import RecordsChunk, serialize
from ...replication.fetching.offsets import LATEST
from ...replication.manager import ReplicaManager
from ...replication.replica.replica import Replica
from ...runtime import logs
from ...runtime.calm_logs import RateLimitedLines
from ...runtime.network import bytes_taken, shut_connections_of
from ...runtime.tasks import log_failure, spawn
from ...security.quotas import QuotaKind
from ...storage.log.bulk_read import AbortedOfRange, BulkRead, begin_bulk_read
from ...storage.log.counting import AtCut, CountInvalidated, begin_count, count_stop
from ...storage.log.health import unreadable
from ...storage.log.log import Log
from ...storage.log.lookup import DecodedBatches, split_range
from ...wire.compression import decompress
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import HEADER_BYTES, parse_header
from ..serving.batch_threads import BatchThreads
from ..serving.grpc_callers import Caller, GrpcAccess
from ..serving.throttling import Throttling
from .range_pieces import FileRead, Pause, RangePiece
from .range_turns import ACTIVE_MAX, HELD_BYTES_MAX, Looks, RangeTurns, Turn

log = logs.get(__name__)

Reply = TypeVar("Reply")
Invite = Callable[[Caller], pb.OpenRangeConnectionReply]

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Data"].full_name
ERROR_DETAIL_KEY: Final = "tidegate-error-bin"
CHUNK_BYTES_DEFAULT: Final = 1 << 20
CHUNK_BYTES_MAX: Final = HELD_BYTES_MAX // ACTIVE_MAX  # but one batch may be larger, and is then sent alone
FILE_CHUNK_BYTES: Final = 8 << 20  # of those that the node does not hold
FILE_CHUNK_BYTES_MAX: Final = 16 << 20
TARGET_BYTES_MIN: Final = 1 << 10
READ_THREADS: Final = 2
PARK_AFTER_S: Final = 2.0  # a stream whose reader leaves a chunk for so long loses its turn
LOOK_S: Final = 1.0  # between two looks at what readers take, while a stream waits for room
WAITING_NOTE_S: Final = 5.0  # how often a stream in the queue sends its reader a message
QUEUE_STALL_S: Final = 60.0  # when no stream makes progress for so long, waiting ones fail
SAMPLE_BYTES_MAX: Final = 16 << 20  # of the one batch by which compression is judged
ENTRIES_MAX: Final = 10_000  # of one request: four megabytes can claim two millions
ENTRIES_AT_ONCE: Final = 100  # then other clients have their turn on the loop
CHEAP_AT_ONCE: Final = 1_000  # likewise, of what costs less than a microsecond
PLANNING_S: Final = 0.002  # likewise, when a segment or some ranges of a plan are done
COUNT_ATTEMPTS: Final = 5  # the cleaner or a truncation may change the log while it is counted
RANGES_MAX: Final = 100_000  # of one answer
CLIENT_ID: Final = ""  # of all readers: they share the quota of their user

_STATUS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: grpc.StatusCode.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: grpc.StatusCode.NOT_FOUND,
    ErrorCode.INCONSISTENT_TOPIC_ID: grpc.StatusCode.NOT_FOUND,
    ErrorCode.OFFSET_OUT_OF_RANGE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.SNAPSHOT_NOT_FOUND: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.UNKNOWN_SERVER_ERROR: grpc.StatusCode.INTERNAL,
    ErrorCode.CORRUPT_MESSAGE: grpc.StatusCode.DATA_LOSS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.SASL_AUTHENTICATION_FAILED: grpc.StatusCode.UNAUTHENTICATED,
}


@dataclass(frozen=True, slots=True)
class _Pinned:
    """The replica and leader epoch of a stream, checked for every chunk."""

    replica: Replica
    leader_epoch: int


class DataService:
    """`cluster()` is the metadata that this node has applied; everything else comes from the replicas.
    `request_flush` is the group commit's."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cluster: Callable[[], ClusterState],
        request_flush: Callable[[Log], None],
        batch_threads: BatchThreads,
        access: GrpcAccess,
        throttling: Throttling,
    ) -> None:
        self._access = access
        self._replicas = replicas
        self._throttling = throttling
        self._batch_threads = batch_threads
        self._request_flush = request_flush
        self._cluster = cluster
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="bulk-read")
        self._turns = RangeTurns()
        self._room: asyncio.Task[None] | None = None
        self._looks = Looks()
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="range-read-room")
        self._ended = RateLimitedLines(log, "range_reader_ended", "range_readers_ended")
        self._no_room = RateLimitedLines(log, "range_read_room_failed", "range_read_rooms_failed")
        # One at a time, and not in the threads of the reads: a log that an older version has written is
        # walked over.
        self._counts = ThreadPoolExecutor(1, thread_name_prefix="count")
        self._counts_turn = asyncio.Lock()

    def add_to_server(self, server: grpc.aio.Server, invite: Invite) -> None:
        """By hand, since ReadRange has a serializer of its own (range_chunks.py).  `invite`: to a range
        connection."""

        def unary(method: Any, request: Any, reply: Any) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(method, request.FromString, reply.SerializeToString)

        async def open_range_connection(
            _: pb.OpenRangeConnectionRequest, context: grpc.aio.ServicerContext[Any, Any]
        ) -> pb.OpenRangeConnectionReply:
            return invite(self._access.caller(context))

        handlers = {
            "DescribeTopics": unary(self.DescribeTopics, pb.DescribeTopicsRequest, pb.DescribeTopicsReply),
            "Offsets": unary(self.Offsets, pb.OffsetsRequest, pb.OffsetsReply),
            "PlanRanges": unary(self.PlanRanges, pb.PlanRangesRequest, pb.PlanRangesReply),
            "PlanManyRanges": unary(self.PlanManyRanges, pb.PlanManyRangesRequest, pb.PlanManyRangesReply),
            "CountRecords": unary(self.CountRecords, pb.CountRecordsRequest, pb.CountRecordsReply),
            "ReadRange": grpc.unary_stream_rpc_method_handler(
                self.ReadRange, pb.ReadRangeRequest.FromString, serialize
            ),
            "OpenRangeConnection": unary(
                open_range_connection, pb.OpenRangeConnectionRequest, pb.OpenRangeConnectionReply
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def close(self) -> None:
        """Shuts the threads down; streams in progress fail."""
        if self._room is not None:
            self._room.cancel()
        for pool in (self._pool, self._looking, self._counts):
            pool.shutdown(wait=False, cancel_futures=True)

    # --- the calls ------------------------------------------------------------------------------------------

    async def DescribeTopics(
        self, request: pb.DescribeTopicsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DescribeTopicsReply:
        return await self._answer(context, "", -1, self._describe_topics(request, context))

    async def _describe_topics(
        self, request: pb.DescribeTopicsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DescribeTopicsReply:
        _require_few(len(request.topics), "topics")
        state, caller = self._cluster(), self._access.caller(context)
        reply = pb.DescribeTopicsReply(endpoints=[str(broker.grpc) for broker in state.unfenced_brokers()])
        # once each: a topic of many partitions, named many times, would make an answer of any size
        names = dict.fromkeys(request.topics) or sorted(state.topics)
        for number, name in enumerate(names):
            if number % ENTRIES_AT_ONCE == ENTRIES_AT_ONCE - 1:
                await asyncio.sleep(0)
            if not self._access.allows(caller, "DescribeTopics", name):
                if request.topics:
                    refused = self._access.refusal(caller, "DescribeTopics", name)
                    reply.topics.add(name=name, error_code=refused.code)
                continue
            topic = state.topics.get(name)
            if topic is None:
                reply.topics.add(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            described = reply.topics.add(name=name, topic_id=topic.topic_id.bytes, internal=topic.internal)
            for partition in sorted(topic.partitions):
                described.partitions.add(partition=partition, leader=self._leader_hint(name, partition))
        return reply

    async def Offsets(
        self, request: pb.OffsetsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.OffsetsReply:
        async def work() -> pb.OffsetsReply:
            self._access.require(self._access.caller(context), "Offsets", request.topic)
            return await self._offsets(request)

        return await self._answer(context, request.topic, -1, work())

    async def PlanRanges(
        self, request: pb.PlanRangesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PlanRangesReply:
        async def work() -> pb.PlanRangesReply:
            self._access.require(self._access.caller(context), "PlanRanges", request.topic)
            reply = pb.PlanRangesReply()
            await self._plan_ranges(request, reply)
            return reply

        return await self._answer(context, request.topic, request.partition, work())

    async def PlanManyRanges(
        self, request: pb.PlanManyRangesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PlanManyRangesReply:
        return await self._answer(context, "", -1, self._plan_many_ranges(request, context))

    async def CountRecords(
        self, request: pb.CountRecordsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CountRecordsReply:
        async def work() -> pb.CountRecordsReply:
            self._access.require(self._access.caller(context), "CountRecords", request.topic)
            return await self._count(request)

        return await self._answer(context, request.topic, request.partition, work())

    async def ReadRange(
        self, request: pb.ReadRangeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[RecordsChunk]:
        try:
            caller = self._access.caller(context)
            reading = self.read_range(request, caller, context.peer(), from_files=False)
            async with aclosing(reading) as pieces:
                async for piece in pieces:
                    if isinstance(piece, RecordsChunk):
                        yield piece
        except (KafkaError, OSError) as error:
            await self._abort(context, request.topic, request.partition, error)

    async def read_range(
        self, request: pb.ReadRangeRequest, caller: Caller, reader: str, *, from_files: bool
    ) -> AsyncGenerator[RangePiece]:
        """The chunks, for whatever carries them; the reader has taken one when the next is asked for.
        `reader`: its connection, as gRPC names it.  `from_files`: they are a
        FileRead each.  Raises KafkaError, OSError."""
        turn: Turn | None = None
        granted = asyncio.Event()
        now = asyncio.get_running_loop().time
        try:
            self._access.require(caller, "ReadRange", request.topic)
            turn = self._turns.enter(granted.set, reader, now())
            async for piece in self._pieces(request, turn, granted, caller.principal.name, from_files):
                # the right may be taken back, and the session may end, while the stream waits
                self._access.require(caller, "ReadRange", request.topic)
                with self._parking(turn):
                    yield piece
                if isinstance(piece, RecordsChunk):
                    piece.records = b""
        finally:
            if turn is not None:
                self._turns.leave(turn, now())

    # --- offsets --------------------------------------------------------------------------------------------

    async def _offsets(self, request: pb.OffsetsRequest) -> pb.OffsetsReply:
        _require_few(len(request.queries), "queries")
        reply = pb.OffsetsReply()
        for number, query in enumerate(request.queries):
            if number % ENTRIES_AT_ONCE == ENTRIES_AT_ONCE - 1:
                await asyncio.sleep(0)
            answer = reply.offsets.add(partition=query.partition, offset=-1, timestamp_ms=-1)
            try:
                await self._batch_threads.ask(partial(self._answer_offset, request, query, answer))
            except KafkaError as error:
                answer.error_code = error.code
                answer.error_message = error.message
                answer.leader.CopyFrom(self._leader_hint(request.topic, query.partition))
        return reply

    def _answer_offset(
        self,
        request: pb.OffsetsRequest,
        query: pb.OffsetQuery,
        answer: pb.PartitionOffset,
        known: DecodedBatches,
    ) -> None:
        replica = self._leading(request.topic, request.topic_id, query.partition, query.leader_epoch)
        isolation = 1 if request.isolation == pb.READ_COMMITTED else 0

        def look_up(timestamp: int) -> tuple[int, int]:
            found = self._replicas.list_offsets(
                request.topic, query.partition, timestamp, isolation, query.leader_epoch, known
            )
            return found.offset, found.timestamp_ms

        # Also for the other kinds: right after an election this refuses, and the limits below would not be
        # true yet.
        latest = look_up(LATEST)
        match query.kind:
            case pb.OffsetQuery.LATEST:
                answer.offset, answer.timestamp_ms = latest
            case pb.OffsetQuery.AT_TIMESTAMP if query.timestamp_ms >= 0:
                answer.offset, answer.timestamp_ms = look_up(query.timestamp_ms)
            case pb.OffsetQuery.EARLIEST:
                answer.offset = replica.log.log_start_offset
            case _:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"offset query {query.kind} at {query.timestamp_ms} has no meaning",
                )
        answer.log_start_offset = replica.log.log_start_offset
        answer.last_stable_offset = replica.log.last_stable_offset
        answer.high_watermark = replica.log.high_watermark

    # --- ranges ---------------------------------------------------------------------------------------------

    async def _plan_many_ranges(
        self, request: pb.PlanManyRangesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PlanManyRangesReply:
        caller = self._access.caller(context)
        _require_few(len(request.partitions), "partitions")
        await _require_distinct(request.partitions)
        reply = pb.PlanManyRangesReply()
        ranges = 0
        for each in request.partitions:
            answer = reply.partitions.add(topic=each.topic, partition=each.partition, log_start_offset=-1)
            try:
                self._access.require(caller, "PlanManyRanges", each.topic)
                await self._plan_ranges(each, answer)
                if request.estimate_decompressed:
                    await self._estimate_decompressed(each, answer.ranges)
            except (KafkaError, OSError) as failure:
                ranges += len(answer.ranges)  # they cost as much as those that are answered
                del answer.ranges[:]
                error, answer.log_start_offset = self._judged(failure, each.topic, each.partition)
                answer.error_code = error.code
                answer.error_message = error.message
                answer.leader.CopyFrom(self._leader_beside(error, each.topic, each.partition))
            ranges += len(answer.ranges)
            if ranges >= RANGES_MAX:
                break
            await asyncio.sleep(0)  # many partitions must not hold up the loop
        return reply

    async def _estimate_decompressed(self, request: pb.PlanRangesRequest, ranges: Iterable[pb.Range]) -> None:
        """Notes how much the ranges hold decompressed, judged by the first batch; leaves it open when that
        cannot be read."""
        replica = self._leading(request.topic, request.topic_id, request.partition, request.leader_epoch)
        if request.start >= request.end:
            return
        try:
            read = begin_bulk_read(replica.log, request.start, 1, request.end)
            ratio = await asyncio.get_running_loop().run_in_executor(self._pool, _compression_ratio, read)
        # beside a truncation a read may fail in any way; a real fault shows in the read
        except (KafkaError, OSError) as error:
            log.debug(
                "compression_not_estimated", topic=request.topic, partition=request.partition, reason=error
            )
            return
        for number, part in enumerate(ranges):
            if number % CHEAP_AT_ONCE == CHEAP_AT_ONCE - 1:
                await asyncio.sleep(0)
            part.decompressed_bytes_estimated = int(part.bytes_estimated * ratio)

    async def _plan_ranges(
        self, request: pb.PlanRangesRequest, answer: pb.PlanRangesReply | pb.PartitionRanges
    ) -> None:
        """Adds the ranges to the answer; those that it has added when it fails mean nothing."""
        replica = self._leading(request.topic, request.topic_id, request.partition, request.leader_epoch)
        self._require_range(replica, request.start, request.end, replica.log.high_watermark)
        pinned = _Pinned(replica, replica.leader_epoch)
        now = asyncio.get_running_loop().time
        began = now()
        for pieces in split_range(
            replica.log, request.start, request.end, max(TARGET_BYTES_MIN, request.target_bytes)
        ):
            for start, end, size in pieces:
                answer.ranges.add(start=start, end=end, bytes_estimated=size)
            if len(answer.ranges) > RANGES_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"splits of {request.target_bytes} bytes would make more than {RANGES_MAX} ranges: ask "
                    "for larger ones",
                )
            if now() - began >= PLANNING_S:
                await asyncio.sleep(0)
                self._require_still_led(request, pinned, request.start)
                began = now()

    async def _count(self, request: pb.CountRecordsRequest) -> pb.CountRecordsReply:
        replica = self._leading(request.topic, request.topic_id, request.partition, request.leader_epoch)
        self._require_settled(request, replica)
        at_cut = _at_cut(request)
        pinned = _Pinned(replica, replica.leader_epoch)
        self._require_still_pinned(request, pinned, request.start)
        position = request.start
        records = attempts = 0
        while position < request.end:
            try:
                stop = count_stop(replica.log, position, request.end, at_cut)
                records += await self._count_piece(request, pinned, position, stop, at_cut)
            except CountInvalidated as error:
                attempts += 1
                if attempts == COUNT_ATTEMPTS:
                    raise KafkaError(
                        ErrorCode.REQUEST_TIMED_OUT, f"{error}, {attempts} times: try again"
                    ) from error
            else:
                position, attempts = stop, 0
        return pb.CountRecordsReply(records=records, at_cut=at_cut is not None)

    async def _count_piece(
        self, request: pb.CountRecordsRequest, pinned: _Pinned, start: int, end: int, at_cut: AtCut | None
    ) -> int:
        async with self._counts_turn:
            self._require_still_pinned(request, pinned, start)
            committed = request.isolation != pb.READ_UNCOMMITTED
            counting = begin_count(pinned.replica.log, start, end, committed=committed, at_cut=at_cut)
            try:
                await asyncio.get_running_loop().run_in_executor(self._counts, counting.run)
            finally:  # as with reads: a lost leadership is the better answer
                self._require_still_pinned(request, pinned, start)
                counting.require_unchanged()
            records = counting.finish()
        if pinned.replica.log.local.flush_due:
            self._request_flush(pinned.replica.log)  # writes the counts to the disk
        return records

    async def _pieces(
        self,
        request: pb.ReadRangeRequest,
        turn: Turn,
        granted: asyncio.Event,
        user: str,
        from_files: bool,
    ) -> AsyncIterator[RangePiece]:
        loop = asyncio.get_running_loop()
        async for note in self._until_paid(request, turn, granted, request.start, user):
            yield note
        async for note in self._until_granted(request, turn, granted, request.start):
            yield note
        replica = self._leading(request.topic, request.topic_id, request.partition, request.leader_epoch)
        self._require_settled(request, replica)
        committed = request.isolation != pb.READ_UNCOMMITTED
        pinned = _Pinned(replica, replica.leader_epoch)
        chunk_bytes = min(CHUNK_BYTES_MAX, request.chunk_bytes or CHUNK_BYTES_DEFAULT)
        if from_files:
            chunk_bytes = min(FILE_CHUNK_BYTES_MAX, request.chunk_bytes or FILE_CHUNK_BYTES)
        aborted = AbortedOfRange(replica.log, request.start, request.end) if committed else None
        position = request.start
        while position < request.end:
            if aborted is not None and not aborted.is_right_from(position):
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{request.topic}-{request.partition}: the cleaner has removed markers of aborted "
                    f"transactions from the range since the read began: ask again from {position} on",
                )
            read = begin_bulk_read(replica.log, position, chunk_bytes, request.end)
            if not from_files and not self._turns.hold(turn, read.length):
                self._make_room_soon()
                async for note in self._until_granted(request, turn, granted, position):
                    yield note
                self._require_still_pinned(request, pinned, position)
                continue
            fields = pb.RangeChunk(
                start_offset=position, at_cut=request.isolation == pb.AT_CUT and position == request.start
            )
            if aborted is not None:
                for transaction in aborted.transactions:
                    fields.aborted_transactions.add(
                        producer_id=transaction.producer_id, first_offset=transaction.first_offset
                    )
                aborted.note_told()
            if from_files:
                from_file = FileRead(read, fields)
                yield from_file
                # it was read while it was sent
                self._require_read(request, pinned, position, from_file.failure)
                from_file.counts = True
                size, position = from_file.size, fields.next_offset
            else:
                records, failure = b"", None
                try:
                    records, fields.next_offset = await loop.run_in_executor(self._pool, read.run)
                except (KafkaError, OSError) as error:
                    failure = error
                self._require_read(request, pinned, position, failure)
                size, position, chunk = len(records), fields.next_offset, RecordsChunk(fields, records)
                del records, read
                yield chunk
            self._turns.sent(turn, size, loop.time())
            self._throttling.charge_client(QuotaKind.FETCH, user, CLIENT_ID, size)
            if position < request.end:
                if not turn.may_read or self._throttling.debt_s(QuotaKind.FETCH, user, CLIENT_ID) > 0:
                    yield Pause()
                async for note in self._until_paid(request, turn, granted, position, user):
                    yield note
                async for note in self._until_granted(request, turn, granted, position):
                    yield note
            self._require_still_pinned(request, pinned, position)  # the reader may have taken its time

    def _require_read(
        self, request: pb.ReadRangeRequest, pinned: _Pinned, position: int, failure: Exception | None
    ) -> None:
        """After a read from `position` on: raises what makes it worthless.  A truncation or deletion may make
        it fail in any way: then that is the better answer."""
        self._require_still_pinned(request, pinned, position)
        if failure is None:
            return
        if isinstance(failure, OSError) and failure.errno == errno.EIO:
            # a disk error, which no truncation or deletion explains
            read = pinned.replica.log
            read.go_offline(unreadable(failure, read.directory, position))
        raise failure

    @contextmanager
    def _parking(self, turn: Turn) -> Iterator[None]:
        """For as long as the reader does not take a message: the turn is given away, also one that comes only
        then."""
        loop = asyncio.get_running_loop()
        parking: asyncio.TimerHandle

        def park() -> None:
            nonlocal parking
            self._park(turn)
            parking = loop.call_later(PARK_AFTER_S, park)

        parking = loop.call_later(PARK_AFTER_S, park)
        try:
            yield
        finally:
            parking.cancel()

    def _park(self, turn: Turn) -> None:
        self._turns.park(turn, asyncio.get_running_loop().time())

    def _make_room_soon(self) -> None:
        if self._room is None or self._room.done():
            consequence = "range reads wait until their chunks have room, or until the next one asks for it"
            on_failure = log_failure("range_read_room", consequence=consequence)
            self._room = spawn(self._make_room(), "range_read_room", on_failure)

    async def _make_room(self) -> None:
        loop = asyncio.get_running_loop()
        while self._turns.lacks_room:
            try:
                parked = self._turns.parked
                readers = {turn.reader for turn in parked}
                taken = await loop.run_in_executor(self._looking, bytes_taken, readers)
                ended = self._turns.to_end(self._looks.standing_still(loop.time(), parked, taken))
                if ended:
                    await loop.run_in_executor(self._looking, shut_connections_of, ended)
                for reader in ended:
                    self._ended.line(loop.time(), reader, reader=reader)
            except OSError as error:
                self._no_room.line(loop.time(), "", reason=error)
            await asyncio.sleep(LOOK_S)

    async def _until_paid(
        self,
        request: pb.ReadRangeRequest,
        turn: Turn,
        granted: asyncio.Event,
        position: int,
        user: str,
    ) -> AsyncIterator[RecordsChunk]:
        """Waits until the reader may read on by its quota, and then for its turn."""
        while (debt_s := self._throttling.debt_s(QuotaKind.FETCH, user, CLIENT_ID)) > 0:
            self._park(turn)
            await asyncio.sleep(min(debt_s, WAITING_NOTE_S))
            if request.accepts_waiting:
                yield _waiting(position)
        if not turn.is_active:
            self._turns.sent(turn, 0, asyncio.get_running_loop().time())

    async def _until_granted(
        self, request: pb.ReadRangeRequest, turn: Turn, granted: asyncio.Event, position: int
    ) -> AsyncIterator[RecordsChunk]:
        """Waits for the turn, or for room, and yields a message from time to time.  Fails only when no stream
        of the node makes progress."""
        loop = asyncio.get_running_loop()
        while not turn.may_read:
            try:
                async with asyncio.timeout(WAITING_NOTE_S):
                    await granted.wait()
                granted.clear()
            except TimeoutError:
                if loop.time() - self._turns.progress_at >= QUEUE_STALL_S:
                    raise KafkaError(
                        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                        f"{self._turns.active} range reads are in progress and none got on for "
                        f"{QUEUE_STALL_S:g} s: try again",
                    ) from None
                if request.accepts_waiting:
                    yield _waiting(position)
                if turn.is_parked:
                    self._turns.sent(turn, 0, loop.time())

    def _require_still_led(
        self,
        request: pb.ReadRangeRequest | pb.CountRecordsRequest | pb.PlanRangesRequest,
        pinned: _Pinned,
        position: int,
    ) -> None:
        now = self._leading(request.topic, request.topic_id, request.partition, pinned.leader_epoch)
        if now is not pinned.replica:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{request.topic}-{request.partition} was replaced during the read",
            )
        if position < now.log.log_start_offset:
            raise _out_of_range(now, position, request.end)

    def _require_still_pinned(
        self, request: pb.ReadRangeRequest | pb.CountRecordsRequest, pinned: _Pinned, position: int
    ) -> None:
        self._require_still_led(request, pinned, position)
        cleaned_at_most = pinned.replica.log.cleaned_at_most
        if request.HasField("settled_end") and cleaned_at_most > request.settled_end:
            raise KafkaError(
                ErrorCode.SNAPSHOT_NOT_FOUND,
                f"{request.topic}-{request.partition} may have been compacted since the cut, up to "
                f"{cleaned_at_most}; it is settled up to {request.settled_end}: take another cut, "
                "and pin it",
            )

    # --- finding the leader ---------------------------------------------------------------------------------

    def _leading(self, topic: str, topic_id: bytes, partition: int, leader_epoch: int) -> Replica:
        """The replica, which this node leads; raises KafkaError when it does not, or when the name means
        another topic now."""
        replica = self._replicas.replica(topic, partition)
        if topic_id and replica.topic_id.bytes != topic_id:
            wanted = UUID(bytes=topic_id) if len(topic_id) == 16 else topic_id.hex()
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"topic {topic!r} has id {replica.topic_id}, not {wanted}: it was deleted and made again",
            )
        replica.require_leader_at(leader_epoch)
        return replica

    def _require_settled(
        self, request: pb.ReadRangeRequest | pb.CountRecordsRequest, replica: Replica
    ) -> None:
        if request.isolation not in pb.Isolation.values():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"this node knows no isolation {request.isolation}")
        committed = request.isolation == pb.READ_COMMITTED
        bound = replica.log.last_stable_offset if committed else replica.log.high_watermark
        self._require_range(replica, request.start, request.end, bound)

    def _require_range(self, replica: Replica, start: int, end: int, bound: int) -> None:
        if not 0 <= start <= end:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"[{start}, {end}) is no range of offsets")
        if start < replica.log.log_start_offset:
            raise _out_of_range(replica, start, end)
        if end > bound:
            # The caller has this end from a leader.  A new leader's high watermark may need a moment to reach
            # it.
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{replica.topic}-{replica.partition}: {end} is above {bound}, up to which records "
                "are settled",
            )

    def _leader_hint(self, topic: str, partition: int) -> pb.Leader:
        state = self._cluster()
        found = state.topics.get(topic)
        assigned = found.partitions.get(partition) if found else None
        if assigned is None or assigned.leader < 0:
            return pb.Leader(node_id=-1, leader_epoch=assigned.leader_epoch if assigned else -1)
        broker = state.brokers.get(assigned.leader)
        return pb.Leader(
            node_id=assigned.leader,
            leader_epoch=assigned.leader_epoch,
            endpoint=str(broker.grpc) if broker else "",
        )

    def _leader_beside(self, error: KafkaError, topic: str, partition: int) -> pb.Leader:
        """The leader that an error names: none for a client that may not know whether the topic exists."""
        if error.code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.SASL_AUTHENTICATION_FAILED):
            return pb.Leader(node_id=-1, leader_epoch=-1)
        return self._leader_hint(topic, partition)

    # --- errors ---------------------------------------------------------------------------------------------

    def _judged(self, failure: KafkaError | OSError, topic: str, partition: int) -> tuple[KafkaError, int]:
        """What to answer, and where the log begins if that is why, else -1.  A partition may be deleted while
        a request of it waits: then that is the answer."""
        error = _as_kafka_error(failure, topic, partition)
        if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            return error, -1
        try:
            return error, self._replicas.replica(topic, partition).log.log_start_offset
        except KafkaError as gone:
            return gone, -1

    async def _answer(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        topic: str,
        partition: int,
        call: Coroutine[Any, Any, Reply],
    ) -> Reply:
        try:
            return await call
        except (KafkaError, OSError) as error:
            await self._abort(context, topic, partition, error)

    async def _abort(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        topic: str,
        partition: int,
        error: KafkaError | OSError,
    ) -> NoReturn:
        """Ends the call with the error code and the partition's present leader."""
        detail = self.detail(error, topic, partition)
        code = ErrorCode.from_wire(detail.error_code)
        await context.abort(
            _STATUS.get(code, grpc.StatusCode.UNAVAILABLE),
            str(KafkaError(code, detail.message)),
            ((ERROR_DETAIL_KEY, detail.SerializeToString()),),
        )

    def detail(self, error: KafkaError | OSError, topic: str, partition: int) -> pb.ErrorDetail:
        """What the reader is told: the error, and the partition's present leader."""
        error, log_start_offset = self._judged(error, topic, partition)
        detail = pb.ErrorDetail(
            error_code=error.code, message=error.message, log_start_offset=log_start_offset
        )
        detail.leader.CopyFrom(self._leader_beside(error, topic, partition))
        return detail


def _require_few(count: int, entries: str) -> None:
    """Raises KafkaError for a request of more entries than any client sends."""
    if count > ENTRIES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{count} {entries} in one request: at most {ENTRIES_MAX}"
        )


async def _require_distinct(partitions: Iterable[pb.PlanRangesRequest]) -> None:
    """Raises KafkaError when one is named twice: a short request could ask for much work by that."""
    named: set[tuple[str, int]] = set()
    for number, each in enumerate(partitions):
        if number % CHEAP_AT_ONCE == CHEAP_AT_ONCE - 1:
            await asyncio.sleep(0)
        place = each.topic, each.partition
        if place in named:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{each.topic}-{each.partition} is named twice in one request: name it once",
            )
        named.add(place)


def _waiting(position: int) -> RecordsChunk:
    return RecordsChunk(pb.RangeChunk(start_offset=position, next_offset=position, waiting=True))


def _at_cut(request: pb.CountRecordsRequest) -> AtCut | None:
    """What a count at a cut leaves out.  Raises KafkaError."""
    if request.isolation != pb.AT_CUT:
        return None
    _require_few(len(request.transactions), "transactions")
    if request.only and not request.transactions:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "only the records of transactions, and none is named")
    return AtCut({each.producer_id: each.first_offset for each in request.transactions}, request.only)


def _compression_ratio(read: BulkRead) -> float:
    """Bytes of the first batch decompressed for each that is stored; 0 where there is none.  Runs in a
    thread."""
    data, _ = read.run()
    if not data:
        return 0.0
    header = parse_header(data)
    stored = memoryview(data)[HEADER_BYTES : header.size_bytes]
    try:
        size = len(decompress(header.compression, stored, SAMPLE_BYTES_MAX))
    except KafkaError as error:
        if error.code != ErrorCode.MESSAGE_TOO_LARGE:
            raise
        size = SAMPLE_BYTES_MAX
    return (HEADER_BYTES + size) / header.size_bytes


def _as_kafka_error(error: KafkaError | OSError, topic: str, partition: int) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    log.error("bulk_read_failed", topic=topic, partition=partition, reason=error)
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"reading {topic}-{partition} failed: {error}")


def _out_of_range(replica: Replica, start: int, end: int) -> KafkaError:
    place = f"{replica.topic}-{replica.partition}"
    return KafkaError(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"{place}: [{start}, {end}) was asked for, but the log begins at {replica.log.log_start_offset}",
    )
