"""Sends frames whose bytes stand in a file: the kernel hands its pages to the socket without a copy.

A page that is not in memory is read from the disk meanwhile, so this is done in threads.  What is sent is
what the file holds when the other side receives it: the caller sends only what does not change.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from ..disk import File

WAIT_MS: Final = 1
"""So long a thread waits for a socket that is full; then the loop does.  A quick reader makes room in it."""
THREAD_S: Final = 0.02
"""After so long a thread goes to another connection, also when it need not wait."""
STILL_S: Final = 600.0
"""A reader that takes nothing for so long is ended: what it is to be sent may be a file that is deleted, and
whose room on the disk is not free before."""
_OF_THE_FILE: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EBADF, errno.EINVAL})


@dataclass(frozen=True, slots=True)
class FilePart:
    """Bytes in a file."""

    file: File
    start: int
    length: int


Made = tuple[bytes, FilePart]
"""What is sent: some bytes, and then those of a file."""


class FileSender:
    """For one connection; used on its loop, by one task at a time."""

    __slots__ = ("_socket", "_writable")

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of a non-blocking socket, which may be closed at any time."""
        self._socket = _SameSocket(descriptor)
        self._writable: asyncio.Future[None] | None = None

    async def send(self, make: Callable[[], Made], pool: Executor) -> None:
        """Calls `make` in a thread, and sends what it returns; raises what it raises.  Then SendFailed: a
        part may have been sent."""
        loop, sending = asyncio.get_running_loop(), _Sending(self._socket, make)
        while not await loop.run_in_executor(pool, sending.advance):
            await self._until_writable(loop)

    def close(self) -> None:
        """The connection is gone, also for a thread that sends just now."""
        writable = self._writable
        if writable is not None:
            writable.get_loop().remove_writer(self._socket.descriptor)
            self._writable = None
            if not writable.done():
                writable.set_result(None)
        self._socket.end()

    async def _until_writable(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._socket.is_ended:
            return
        writable = self._writable = loop.create_future()

        def note() -> None:
            if not writable.done():
                writable.set_result(None)

        loop.add_writer(self._socket.descriptor, note)
        try:
            async with asyncio.timeout(STILL_S):
                await writable
        except TimeoutError:
            still = TimeoutError(errno.ETIMEDOUT, f"the reader took nothing for {STILL_S:g} s")
            raise SendFailed(still, in_file=False) from None
        finally:
            if self._writable is writable:  # not closed
                loop.remove_writer(self._socket.descriptor)
                self._writable = None


class SendFailed(Exception):
    """The connection is of no use any more: it was lost, or `in_file`, the bytes could not be read."""

    def __init__(self, error: OSError, *, in_file: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.in_file = in_file


class _SameSocket:
    """A descriptor of its own for a socket, which is closed when no thread uses it: the number of a closed
    one may be another connection's."""

    __slots__ = ("_is_used", "_lock", "descriptor", "is_ended", "same")

    def __init__(self, descriptor: int) -> None:
        self.same = socket.socket(fileno=os.dup(descriptor))
        self.descriptor = self.same.fileno()
        """For the loop, which would name a socket in words each time that it does not know it."""
        self.is_ended = False
        self._is_used = False
        self._lock = threading.Lock()

    @contextmanager
    def used(self) -> Iterator[socket.socket]:
        """By one thread at a time.  Raises ConnectionResetError when it has ended."""
        with self._lock:
            if self.is_ended:
                raise ConnectionResetError(errno.ECONNRESET, "the connection is closed")
            self._is_used = True
        try:
            yield self.same
        finally:
            with self._lock:
                self._is_used = False
                if self.is_ended:
                    self.same.close()

    def end(self) -> None:
        """For all: a thread that uses it finds it broken."""
        with self._lock:
            if self.is_ended:
                return
            self.is_ended = True
            with suppress(OSError):  # the other side has ended it
                self.same.shutdown(socket.SHUT_RDWR)
            if not self._is_used:
                self.same.close()


class _Sending:
    """One frame, or a few."""

    __slots__ = ("_first", "_make", "_rest", "_to")

    def __init__(self, to: _SameSocket, make: Callable[[], Made]) -> None:
        self._to = to
        self._make: Callable[[], Made] | None = make
        self._first = memoryview(b"")
        self._rest: FilePart | None = None

    def advance(self) -> bool:
        """In a thread: sends on; whether all is sent.  If not, the socket is full."""
        if self._make is not None:
            first, self._rest = self._make()
            self._make = None
            self._first = memoryview(first)
        try:
            with self._to.used() as to:
                return self._send_all(to)
        except OSError as error:
            raise SendFailed(error, in_file=False) from error

    def _send_all(self, to: socket.socket) -> bool:
        poll = select.poll()
        poll.register(to, select.POLLOUT)
        until = time.monotonic() + THREAD_S
        while True:
            try:
                self._send_some(to)
                return True
            except BlockingIOError:
                if time.monotonic() >= until or not poll.poll(WAIT_MS):
                    return False

    def _send_some(self, to: socket.socket) -> None:
        assert self._rest is not None
        while self._first:
            self._first = self._first[to.send(self._first, socket.MSG_MORE if self._rest.length else 0) :]
        while self._rest.length:
            self._rest = _send_of_file(to.fileno(), self._rest)


def _send_of_file(descriptor: int, part: FilePart) -> FilePart:
    """What is left of it."""
    try:
        count = part.file.send_at(descriptor, part.start, part.length)
        if not count:
            missing = f"it ends at {part.start}, {part.length} bytes too early"
            raise OSError(errno.EIO, missing, str(part.file.path))
    except OSError as error:
        if error.errno not in _OF_THE_FILE:
            raise
        raise SendFailed(error, in_file=True) from error
    return FilePart(part.file, part.start + count, part.length - count)
