"""The client's end of a connection that exchanges frames (`frames`), for threads that block.

What comes goes from the kernel straight into memory that the caller gives.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Final

from .host_names import check_host

_LENGTH: Final = Struct(">I")
PIECE_BYTES: Final = 256 << 10
"""A larger frame is received in such pieces: one that comes over a slow link is not silence."""
_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4),
    (socket.TCP_USER_TIMEOUT, 40_000),
)  # fmt: skip
"""Another side that vanished without a word is noticed after 40 s."""


def _nothing() -> None:
    pass


class BlockingFrames:
    """One connection; for one thread, but for `shut`.  Each call raises OSError when it breaks."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.heard: Callable[[], None] = _nothing
        """Called whenever something has come, also a part of a frame."""

    def wait_without_end(self) -> None:
        """From now on: `shut` from another thread ends a wait."""
        self._connection.settimeout(None)

    @property
    def is_silent(self) -> bool:
        """Whether the connection is open, and nothing has come that was not received."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return not poll.poll(0)

    @property
    def is_to_this_host(self) -> bool:
        """Whether the other side has an address of this machine, which it seems to have through a tunnel,
        too."""
        try:
            there, here = self._connection.getpeername()[0], self._connection.getsockname()[0]
        except OSError:  # it is broken already
            return False
        return bool(there == here)

    def send(self, frame: bytes) -> None:
        self._connection.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self, bytes_max: int, allocate: Callable[[int], memoryview]) -> memoryview:
        """The next frame, in what `allocate(bytes)` returns.  ConnectionError for one above `bytes_max`."""
        prefix = memoryview(bytearray(_LENGTH.size))
        self._fill(prefix)
        (size,) = _LENGTH.unpack(prefix)
        if size > bytes_max:
            raise ConnectionError(f"a frame of {size} bytes, where at most {bytes_max} are expected")
        frame = allocate(size)
        self._fill(frame)
        return frame

    def shut(self) -> None:
        """From any thread: a call that waits ends with an error."""
        with suppress(OSError):  # it is broken already
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _fill(self, room: memoryview) -> None:
        while room:
            piece = min(len(room), PIECE_BYTES)
            came = self._connection.recv_into(room, piece, socket.MSG_WAITALL)
            if not came:
                raise ConnectionError("the other side closed the connection")
            self.heard()
            room = room[came:]


def connect_blocking(host: str, port: int, timeout_s: float) -> BlockingFrames:
    """Connects; `timeout_s` bounds each step, and later each wait until `wait_without_end`.  Raises
    OSError."""
    check_host(host, port)
    connection = socket.create_connection((host, port), timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
    except BaseException:
        connection.close()
        raise
    return BlockingFrames(connection)
