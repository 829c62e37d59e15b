"""Sends frames whose bytes stand in a file: the kernel hands its pages to the socket, and nobody copies them.

A page that is not in memory is read from the disk meanwhile, so this is done in threads.  What is sent is
what the file holds when the other side receives it: the caller sends only what does not change.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from .disk import File

WAIT_MS: Final = 20
"""So long a thread waits for a socket that is full; then the loop does."""


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

    __slots__ = ("_socket",)

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of a non-blocking socket, which may be closed at any time."""
        self._socket = _SameSocket(descriptor)

    async def send(self, make: Callable[[], Made], pool: Executor) -> None:
        """Calls `make` in a thread, and sends what it returns; raises what it raises.  Then SendFailed: a
        part may have been sent."""
        loop, sending = asyncio.get_running_loop(), _Sending(self._socket, make)
        while not await loop.run_in_executor(pool, sending.advance):
            await self._until_writable(loop)

    async def _until_writable(self, loop: asyncio.AbstractEventLoop) -> None:
        writable: asyncio.Future[None] = loop.create_future()

        def note() -> None:
            if not writable.done():
                writable.set_result(None)

        loop.add_writer(self._socket.same, note)
        try:
            await writable
        finally:
            loop.remove_writer(self._socket.same)


class SendFailed(Exception):
    """The connection is of no use any more: it was lost, or `in_file`, the bytes could not be read."""

    def __init__(self, error: OSError, *, in_file: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.in_file = in_file


class _SameSocket:
    """A descriptor of its own for a socket: a thread may still use it when the connection is closed.  It is
    closed with the last reference."""

    __slots__ = ("same",)

    def __init__(self, descriptor: int) -> None:
        self.same = socket.socket(fileno=os.dup(descriptor))

    def __del__(self) -> None:
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
        poll = select.poll()
        poll.register(self._to.same, select.POLLOUT)
        while True:
            try:
                self._send_some()
                return True
            except BlockingIOError:
                if not poll.poll(WAIT_MS):
                    return False
            except SendFailed:
                raise
            except OSError as error:
                raise SendFailed(error, in_file=False) from error

    def _send_some(self) -> None:
        to = self._to.same
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
            raise OSError(5, f"it ends at {part.start}, {part.length} bytes too early", str(part.file.path))
    except (BlockingIOError, ConnectionError):
        raise
    except OSError as error:
        raise SendFailed(error, in_file=True) from error
    return FilePart(part.file, part.start + count, part.length - count)
