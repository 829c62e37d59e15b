"""A reader's range connections to nodes: the chunks of ReadRange in plain frames (`proto/range_frames.py`).

They stay open from task to task, like the channels of gRPC beside them.  A node of an older version has none,
nor has one whose gRPC listener has TLS, and a firewall may let gRPC's port through alone: then the
reader takes the chunks over gRPC, and tries again after a while.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from typing import Final

import grpc
import pyarrow as pa
from google.protobuf.message import DecodeError

from ...proto import data_pb2
from ...proto.range_chunks import MalformedChunk, RecordsChunk, parse
from ...proto.range_frames import (
    CHUNK,
    CONFIRMED,
    END,
    FAILED,
    GREETING,
    IN_FILE,
    NOT_READ,
    OPEN_RANGE_CONNECTION,
    READ,
    STORED,
)
from ...runtime.clock import Clock
from ...runtime.connections.blocking_frames import BlockingFrames, connect_blocking
from ...runtime.kernel_id import kernel_id
from ...runtime.logs import get
from ...security.grpc_session import Metadata
from ...wire.errors import ErrorCode
from .local_files import LocalFiles

log = get(__name__)

CONNECT_S: Final = 2.0
"""For each step of opening a connection; the reader has another way."""
AVOIDED_S: Final = 60.0
"""After a failure the chunks of this node come over gRPC for so long; after each further one for twice as
long."""
AVOIDED_S_MAX: Final = 3_600.0
IDLE_MAX: Final = 64
MESSAGE_BYTES_MAX: Final = 64 << 20
"""As over gRPC."""
SMALL_BYTES: Final = 64 << 10


class RangeRefused(Exception):
    """The node does not answer a read, or not to its end."""

    def __init__(self, detail: data_pb2.ErrorDetail) -> None:
        super().__init__(detail.message)
        self.detail = detail


class RangeConnectionLost(Exception):
    """The connection broke, or what came over it makes no sense."""


class RangeConnection:
    """One connection, for one read at a time."""

    def __init__(self, frames: BlockingFrames, shown: Metadata) -> None:
        """`shown`: by what the node knows the reader."""
        self._frames = frames
        self.shown = shown
        self.is_idle = True
        """Whether no read is in progress on it."""
        self.has_answered = False
        """Whether the last read has come to a chunk, or to its end."""
        self._files = LocalFiles(_memory)
        self._can_open = frames.is_to_this_host
        """The files of this node; through a tunnel a node of another machine has an address of this one,
        hence `kernel_id`."""

    def read(
        self,
        request: data_pb2.ReadRangeRequest,
        heard: Callable[[], None] = lambda: None,
        *,
        reads_files: bool = True,
    ) -> Generator[RecordsChunk]:
        """The chunks; the records of each are in memory of their own.  `heard` is called whenever something
        has come, also a part of a chunk.  `reads_files`: also from the node's files, on its machine.  Raises
        RangeRefused, RangeConnectionLost."""
        self._frames.heard = heard
        request.kernel_id = kernel_id() if reads_files and self._can_open else ""
        try:
            self.is_idle = self.has_answered = False
            stored: RecordsChunk | None = None  # it does not count yet
            self._frames.send(request.SerializeToString())
            while True:
                message = self._frames.receive(MESSAGE_BYTES_MAX, _memory)
                kind, body = bytes(message[:1]), message[1:]
                if kind == FAILED:
                    detail = data_pb2.ErrorDetail.FromString(bytes(body))
                    # a session ends with its connection
                    self.is_idle = detail.error_code != ErrorCode.SASL_AUTHENTICATION_FAILED
                    self.has_answered = True
                    raise RangeRefused(detail)
                if kind == CONFIRMED and stored is not None:
                    chunk, stored = stored, None
                    self.has_answered = True
                    yield chunk
                elif stored is not None:
                    raise RangeConnectionLost(f"a frame of kind {kind.hex()} where a chunk waits for its end")
                elif kind == CHUNK:
                    chunk = parse(body)
                    self.has_answered = self.has_answered or not chunk.fields.waiting
                    yield chunk
                elif kind == STORED:
                    stored = parse(body)
                elif kind == IN_FILE and request.kernel_id:
                    stored = self._read_file(data_pb2.FileChunk.FromString(bytes(body)), heard)
                    if stored is None:
                        request.kernel_id = ""  # the rest of this range is to be sent
                    self._frames.send(NOT_READ if stored is None else READ)
                elif kind == END:
                    self.is_idle = True  # the reader looks whether it has the whole range
                    return
                else:
                    raise RangeConnectionLost(f"a frame of unknown kind {kind.hex() or 'none'}")
        except (OSError, MalformedChunk, DecodeError) as problem:
            raise RangeConnectionLost(str(problem)) from problem

    def _read_file(self, told: data_pb2.FileChunk, heard: Callable[[], None]) -> RecordsChunk | None:
        """None: this reader may not open the file, or cannot just now; then the node is to send its
        records."""
        try:
            return self._files.read(told, MESSAGE_BYTES_MAX, heard)
        except (OSError, ValueError) as problem:  # ValueError: a name that no file can have
            log.info("file_not_read_here", path=os.fsdecode(told.path), reason=problem)
            self._can_open = not isinstance(problem, PermissionError)
            return None

    @property
    def is_usable(self) -> bool:
        """Whether another read may begin on it."""
        return self.is_idle and self._frames.is_silent

    def shut(self) -> None:
        """From any thread: the read in progress ends with RangeConnectionLost."""
        self._frames.shut()
        self._files.give_up()

    def close(self) -> None:
        self._frames.close()


class RangeConnections:
    """Those of one client's identity, by endpoint; for any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: dict[str, list[RangeConnection]] = {}
        self._avoided: dict[str, tuple[float, float]] = {}
        """By endpoint: until when, and for how long the next time."""
        self._process = os.getpid()

    def take(self, endpoint: str, channel: grpc.Channel, shown: Metadata) -> RangeConnection | None:
        """A connection for one read, which is then given back; None where there is none to be had."""
        with self._lock:
            if self._process != os.getpid():  # the parent reads on its own connections
                self._idle, self._process = {}, os.getpid()
            if self._clock.monotonic() < self._avoided.get(endpoint, (0.0, 0.0))[0]:
                return None
            idle = self._idle.get(endpoint, [])
            while idle:
                found = idle.pop()
                if found.shown == shown and found.is_usable:
                    return found
                found.close()
        return self._open(endpoint, channel, shown)

    def give_back(self, endpoint: str, connection: RangeConnection) -> None:
        """After a read, however it ended."""
        if self._process != os.getpid():
            connection.close()
            return
        with self._lock:
            surplus = not connection.is_idle or sum(map(len, self._idle.values())) >= IDLE_MAX
            if connection.has_answered:
                self._avoided.pop(endpoint, None)
            if not surplus:
                self._idle.setdefault(endpoint, []).append(connection)
        if surplus:
            connection.close()

    def drop(self, endpoint: str) -> None:
        """Closes those to this endpoint that no read has."""
        with self._lock:
            dropped = self._idle.pop(endpoint, [])
        for each in dropped:
            each.close()

    def close(self) -> None:
        """Closes all that no read has."""
        for endpoint in list(self._idle):
            self.drop(endpoint)

    def avoid(self, endpoint: str, reason: str) -> None:
        """For a while reads of this node are to come over gRPC; without a reason this is not logged."""
        with self._lock:
            until, for_s = self._avoided.get(endpoint, (0.0, AVOIDED_S))
            if self._clock.monotonic() < until:
                return  # several reads met the same failure
            following = min(AVOIDED_S_MAX, 2 * for_s)
            self._avoided[endpoint] = self._clock.monotonic() + for_s, following
        if reason:
            log.info("range_connection_not_used", endpoint=endpoint, reason=reason, for_s=for_s)

    def _open(self, endpoint: str, channel: grpc.Channel, shown: Metadata) -> RangeConnection | None:
        ask = channel.unary_unary(
            OPEN_RANGE_CONNECTION,
            data_pb2.OpenRangeConnectionRequest.SerializeToString,
            data_pb2.OpenRangeConnectionReply.FromString,
        )
        try:
            invited = ask(data_pb2.OpenRangeConnectionRequest(), timeout=CONNECT_S, metadata=shown)
        except grpc.RpcError as failure:
            assert isinstance(failure, grpc.Call)
            if failure.code() == grpc.StatusCode.UNIMPLEMENTED:  # of an older version
                self.avoid(endpoint, "")
            return None  # the read itself then meets what is wrong
        if not invited.port:
            self.avoid(endpoint, "")
            return None
        host = endpoint.rpartition(":")[0].strip("[]")
        try:
            frames = connect_blocking(host, invited.port, CONNECT_S)
        except OSError as problem:
            self.avoid(endpoint, f"port {invited.port}: {problem}")
            return None
        try:
            frames.send(invited.ticket)
            greeting = bytes(frames.receive(len(GREETING), _memory))
            if greeting != GREETING:
                raise ConnectionError(f"another server answers there: {greeting!r}")
            frames.wait_without_end()
        except OSError as problem:
            frames.close()
            self.avoid(endpoint, f"port {invited.port}: {problem}")
            return None
        return RangeConnection(frames, shown)


def _memory(size: int) -> memoryview:
    """Of Arrow: it is not filled with zeros, and what was freed is used again."""
    if size < SMALL_BYTES:
        return memoryview(bytearray(size))
    return memoryview(pa.allocate_buffer(size)).cast("B")
