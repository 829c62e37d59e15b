"""The node's end of range connections: ReadRange in plain frames (`proto/range_frames.py`).

A reader gets its ticket by gRPC, where it is known; the first frame of its connection has it, and the
connection is the reader's from then on.  Each read asks for the right to the topic like a call of gRPC's, at
the beginning and before each chunk, and counts among the calls of its principal.  Nothing here is encrypted:
beside a gRPC listener with TLS there are none.

Records go from their file straight to the socket, and no chunk is in the memory of the node.  A chunk is sent
when the kernel has taken the one before.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Final

from google.protobuf.message import DecodeError

from ...proto import data_pb2 as pb
from ...proto.range_chunks import RecordsChunk, head, parts
from ...proto.range_frames import (
    CHUNK,
    CONFIRMED,
    END,
    FAILED,
    GREETING,
    IN_FILE,
    NOT_READ,
    READ,
    REQUEST_BYTES_MAX,
    STORED,
)
from ...runtime import logs
from ...runtime.calm_logs import RateLimitedLines
from ...runtime.connections.file_sending import STILL_S, FilePart, Made, SendFailed
from ...runtime.connections.frames import frame_length
from ...runtime.connections.unauthenticated import Unauthenticated
from ...runtime.disk import FileIdentity
from ...runtime.kernel_id import kernel_id
from ...runtime.network import (
    FrameConnection,
    FrameServer,
    PortInUse,
    free_port,
    share_of_descriptors,
)
from ...runtime.tasks import spawn
from ...security.connection_tickets import ConnectionTickets
from ...security.principals import Principal
from ...wire.errors import KafkaError
from ..serving.grpc_callers import Caller, GrpcAccess
from .data_service import FILE_CHUNK_BYTES_MAX, DataService
from .range_pieces import FileRead, RangePiece

log = logs.get(__name__)

ATTEMPTS: Final = 5
CONNECTIONS_PER_PRINCIPAL_MAX: Final = 1_000
"""As of calls and of sessions."""
SHARE_OF_DESCRIPTORS: Final = 8
"""The connections, which may take two each, take one in four at most, as gRPC's do."""
SEND_THREADS: Final = 8
"""Each waits for a moment for a reader that does not take what it is sent."""
TICKET_BYTES_MAX: Final = 256
NOTHING_KEPT: Final = 0
"""Bytes that asyncio may keep for the kernel before a chunk counts as not taken."""


class RangeConnections:
    """The listener for range connections.  Used on the node's loop."""

    def __init__(
        self, service: DataService, access: GrpcAccess, *, connections_max: int, idle_s: float
    ) -> None:
        self.service = service
        self.access = access
        self.tickets: ConnectionTickets[Caller] = ConnectionTickets()
        self.port = 0
        """Where readers are told to come; 0: nowhere."""
        self.threads = ThreadPoolExecutor(SEND_THREADS, thread_name_prefix="range-send")
        self.of_principal: Counter[Principal] = Counter()
        """How many connections each has."""
        self.refused = RateLimitedLines(log, "range_connection_refused", "range_connections_refused")
        self._connections_max = connections_max
        self._idle_s = idle_s
        self._server: FrameServer | None = None

    def invite(self, caller: Caller) -> pb.OpenRangeConnectionReply:
        """OpenRangeConnection."""
        if not self.port:
            return pb.OpenRangeConnectionReply()
        ticket = self.tickets.issue(caller, caller.host, asyncio.get_running_loop().time())
        return pb.OpenRangeConnectionReply(port=self.port, ticket=ticket)

    async def start(self, host: str, port: int) -> None:
        """Listens; `port` 0: on any free one.  Raises PortInUse, or another OSError."""
        server = FrameServer(
            max_frame_bytes=REQUEST_BYTES_MAX,
            max_connections=min(self._connections_max, share_of_descriptors(SHARE_OF_DESCRIPTORS)),
            idle_s=self._idle_s,
            pause_on_write_bytes=NOTHING_KEPT,
        )

        def serve(connection: FrameConnection) -> RangeConnection:
            return RangeConnection(connection, self, server.unauthenticated)

        await _listen(server, host, port, serve)
        self._server = server
        self.port = server.port

    async def close(self) -> None:
        """Ends all connections."""
        self.port = 0
        if self._server is not None:
            await self._server.close()
        self.threads.shutdown(wait=False, cancel_futures=True)


async def _listen(
    server: FrameServer,
    host: str,
    port: int,
    factory: Callable[[FrameConnection], RangeConnection],
) -> None:
    """A host may have several addresses, and all have one port: of a free one is known only that it was free
    a moment ago."""
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            await server.listen(host, port or free_port(), factory)
            break
        except PortInUse:
            if port or not attempts_left:
                raise


class RangeConnection:
    """One reader's: a `FrameHandler`."""

    def __init__(
        self, connection: FrameConnection, listener: RangeConnections, unauthenticated: Unauthenticated
    ) -> None:
        self._connection = connection
        self._listener = listener
        self._unauthenticated = unauthenticated
        self._now: Callable[[], float] = asyncio.get_running_loop().time
        self._caller: Caller | None = None
        self._read: asyncio.Task[None] | None = None
        self._last: FileRead | None = None  # which the reader does not know to count yet
        self._is_torn = False  # a frame was not sent to its end
        self._reads_files = False  # the reader, by itself
        self._topic = ""  # of the read in progress
        self._answer: asyncio.Future[bool] | None = None  # whether it has read what it was told to
        self._unauthenticated.began(self, self._now(), connection.abort)
        connection.limit_frames(TICKET_BYTES_MAX)

    # --- FrameHandler ---------------------------------------------------------------------------------------

    def on_frame(self, frame: memoryview) -> None:
        if self._caller is None:
            self._admit(bytes(frame))
        elif self._answer is not None and not self._answer.done() and bytes(frame[:2]) in (READ, NOT_READ):
            self._answer.set_result(bytes(frame) == READ)
        elif self._read is not None:
            self._refuse("the reader asks for a range while it is sent another one")
        else:
            self._ask(self._caller, bytes(frame))

    def on_close(self, reason: str) -> None:
        self._unauthenticated.ended(self)
        if self._caller is not None:
            self._listener.of_principal[self._caller.principal] -= 1
            if not self._listener.of_principal[self._caller.principal]:
                del self._listener.of_principal[self._caller.principal]
        if self._read is not None:
            self._read.cancel()

    # --- reads ----------------------------------------------------------------------------------------------

    def _admit(self, ticket: bytes) -> None:
        caller = self._listener.tickets.redeem(ticket, self._address, self._now())
        if caller is None:
            self._refuse("the ticket does not hold")
        elif self._listener.of_principal[caller.principal] >= CONNECTIONS_PER_PRINCIPAL_MAX:
            self._refuse(f"{caller.principal} has {CONNECTIONS_PER_PRINCIPAL_MAX} connections")
        else:
            self._caller = caller
            self._listener.of_principal[caller.principal] += 1
            self._unauthenticated.ended(self)
            self._connection.limit_frames(None)
            self._connection.send(GREETING)

    def _refuse(self, reason: str) -> None:
        self._listener.refused.line(self._now(), self._address, peer=self._connection.peer, reason=reason)
        self._connection.abort(reason)

    def _ask(self, caller: Caller, frame: bytes) -> None:
        try:
            request = pb.ReadRangeRequest.FromString(frame)
        except DecodeError:
            self._refuse("the frame is no request")
            return
        self._connection.owes_answer = True
        self._topic = request.topic
        self._reads_files = request.kernel_id != "" and request.kernel_id == kernel_id()
        if self._reads_files:  # what they cost the node depends on their number alone
            request.chunk_bytes = request.chunk_bytes or FILE_CHUNK_BYTES_MAX
        self._read = spawn(self._serve(request, caller), f"range read {self._connection.peer}", self._failed)

    async def _serve(self, request: pb.ReadRangeRequest, caller: Caller) -> None:
        try:
            with self._listener.access.counted(caller):
                reading = self._listener.service.read_range(request, caller, self._reader, from_files=True)
                async with aclosing(reading) as pieces:
                    async for piece in pieces:
                        await self._send(piece)
        except SendFailed as lost:
            self._connection.abort(str(lost))
            return
        except (KafkaError, OSError) as error:
            detail = self._listener.service.detail(error, request.topic, request.partition)
            last = FAILED + detail.SerializeToString()
        else:
            last = END
        if self._is_torn:  # nothing that is sent now would be understood
            self._connection.abort("the records of a chunk could not be read")
            return
        self._confirm()
        self._read = None  # before the reader can ask for more
        self._connection.owes_answer = False
        self._connection.send(last)

    async def _send(self, piece: RangePiece) -> None:
        if isinstance(piece, FileRead):
            await self._send_of_file(piece)
            return
        self._confirm()
        if isinstance(piece, RecordsChunk):
            self._connection.send(CHUNK, *parts(piece))
            await self._connection.until_taken()

    async def _send_of_file(self, piece: FileRead) -> None:
        last = self._last
        assert last is None or last.counts, "the next chunk is read when the last one was looked at again"

        def make() -> Made:
            first = b"" if self._last is None else frame_length(len(CONFIRMED)) + CONFIRMED
            found, piece.fields.next_offset = piece.read.locate()
            piece.size = found.length
            begin = STORED + head(piece.fields, piece.size)
            self._last = piece  # what is sent now confirms the one before
            return first + frame_length(len(begin) + piece.size) + begin, found

        try:
            if self._reads_files:
                if await self._hand_over(piece):
                    return
                assert self._caller is not None
                # the right may be taken back while the reader thinks
                self._listener.access.require(self._caller, "ReadRange", self._topic)
            await self._connection.send_made(make, self._listener.threads)
        except SendFailed as failed:
            if not failed.in_file:
                raise
            piece.failure, self._is_torn = failed.error, True
        except (KafkaError, OSError) as error:
            piece.failure = error

    async def _hand_over(self, piece: FileRead) -> bool:
        """Whether the reader, on this machine, has read the records itself.  Raises as `locate` does;
        SendFailed."""

        def place() -> tuple[FilePart, int, FileIdentity]:
            found, next_offset = piece.read.locate()
            return found, next_offset, found.file.identity()

        self._confirm()
        loop = asyncio.get_running_loop()
        found, next_offset, identity = await loop.run_in_executor(self._listener.threads, place)
        if not found.length:
            return False
        piece.fields.next_offset, piece.size = next_offset, found.length
        in_file = pb.FileChunk(
            chunk=piece.fields,
            path=os.fsencode(found.file.path.absolute()),
            device=identity.device,
            inode=identity.inode,
            position=found.start,
            length=found.length,
        )
        answer = self._answer = loop.create_future()
        self._connection.send(IN_FILE, in_file.SerializeToString())
        try:
            async with asyncio.timeout(STILL_S):
                self._reads_files = await answer
        except TimeoutError:
            still = TimeoutError(errno.ETIMEDOUT, f"the reader has read nothing for {STILL_S:g} s")
            raise SendFailed(still, in_file=False) from None
        finally:
            self._answer = None
        if self._reads_files:
            self._last = piece
        return self._reads_files

    def _confirm(self) -> None:
        last, self._last = self._last, None
        if last is not None and last.counts:
            self._connection.send(CONFIRMED)

    def _failed(self, error: BaseException) -> None:
        """A defect of the node: this connection ends, and the others are not affected."""
        log.failure("range_read_failed", error, peer=self._connection.peer)
        self._connection.abort("internal error")

    @property
    def _address(self) -> str:
        return self._connection.peer.rpartition(":")[0]

    @property
    def _reader(self) -> str:
        """The connection as gRPC would name it, for `range_turns`."""
        family = "ipv6" if ":" in self._address else "ipv4"
        return f"{family}:{self._connection.peer}"
