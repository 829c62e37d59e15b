"""fdatasync without a thread: Linux's asynchronous I/O, whose completions arrive on the event loop
(docs/hot-path.md H8).

Handing a flush to a thread and its result back costs two switches of the interpreter: for many small
transactions more than the flush itself.  `io_submit` with IOCB_CMD_FDSYNC queues the same flush in the
kernel, and an eventfd wakes the loop when the flush is complete.  Where the kernel or the container does not
permit it (`KernelSync.open` answers None), callers use a thread.

A completion has the result that fdatasync would have had. This module never tries a flush again.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable
from typing import Final

from . import faults, logs
from .disk import File, RealFile

log = logs.get(__name__)

# linux/aio_abi.h.  The layouts are those of little-endian machines.
_CALLS: Final = {  # io_setup, io_destroy, io_getevents, io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
}
_IOCB: Final = struct.Struct("<QIIHhIQQqQII")
_EVENT: Final = struct.Struct("<QQqq")
_FDSYNC: Final = 3
_NOTIFY: Final = 1
IN_FLIGHT_MAX: Final = 1024
_EVENTS_AT_ONCE: Final = 64

Done = Callable[[OSError | None], None]


class Sync:
    """One flush in the kernel."""

    __slots__ = ("_done", "_kernel", "is_over", "number")

    def __init__(self, kernel: KernelSync, number: int, done: Done) -> None:
        self._kernel = kernel
        self.number = number
        self._done = done
        self.is_over = False

    def wait(self) -> None:
        """Blocks until the kernel is done with the file; `done` is called on the loop's next turn, as
        always."""
        self._kernel.wait(self)

    def finish(self, error: OSError | None) -> None:
        self.is_over = True
        self._done(error)


class KernelSync:
    """The flushes of one event loop.  Used on its thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError where asynchronous flushes are not to be had."""
        numbers = _CALLS.get(platform.machine())
        if numbers is None or sys.platform != "linux" or sys.byteorder != "little":
            raise OSError(errno.ENOSYS, "no asynchronous flush on this kind of machine")
        setup, self._destroy_call, self._getevents_call, self._submit_call = numbers
        # keeps the interpreter lock: these calls do not wait
        self._quick = ctypes.PyDLL(None, use_errno=True)
        self._waiting = ctypes.CDLL(None, use_errno=True)
        self._context = ctypes.c_ulong(0)
        self._require(self._quick.syscall(setup, IN_FLIGHT_MAX, ctypes.byref(self._context)), "io_setup")
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocb_list = ctypes.c_void_p(ctypes.addressof(self._iocb))
        self._events = ctypes.create_string_buffer(_EVENT.size * _EVENTS_AT_ONCE)
        self._at_once = struct.pack("qq", 0, 0)  # a timespec
        self._running: dict[int, Sync] = {}
        self._count = 0
        self._loop = loop
        loop.add_reader(self._eventfd, self._on_ready)

    @classmethod
    def open(cls) -> KernelSync | None:
        """For the running loop; None where the kernel or the container does not permit it."""
        try:
            return cls(asyncio.get_running_loop())
        except OSError as error:
            log.info("flushes_use_threads", reason=error)
            return None

    def __len__(self) -> int:
        return len(self._running)

    def start(self, file: File, done: Done) -> Sync | None:
        """Begins to flush a file's data; `done(error)` follows on a later turn of the loop.

        None when the kernel does not accept it (too many flushes in flight, no file of the operating system)
        or must not be asked (a fault point is armed): no flush was begun.
        """
        if len(self._running) >= IN_FLIGHT_MAX or type(file) is not RealFile or faults.armed("disk.sync"):
            return None
        descriptor = file.descriptor
        self._count += 1
        _IOCB.pack_into(
            self._iocb, 0, self._count, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _NOTIFY, self._eventfd
        )
        if self._quick.syscall(self._submit_call, self._context, 1, ctypes.byref(self._iocb_list)) != 1:
            return None
        sync = self._running[self._count] = Sync(self, self._count, done)
        return sync

    def wait(self, sync: Sync) -> None:
        """Blocks until `sync` is complete; the callbacks of other flushes that completed meanwhile run on the
        loop's next turn."""
        while sync.number in self._running:
            self._collect(wait=True)

    def _on_ready(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return  # `wait` has collected the completions of this wake-up
        self._collect(wait=False)

    def _collect(self, *, wait: bool) -> None:
        while True:
            library, least, patience = (self._waiting, 1, None) if wait else (self._quick, 0, self._at_once)
            count = library.syscall(
                self._getevents_call, self._context, least, _EVENTS_AT_ONCE, self._events, patience
            )
            if count < 0:
                if ctypes.get_errno() == errno.EINTR:
                    continue
                self._require(count, "io_getevents")
            for index in range(count):
                number, _, result, _ = _EVENT.unpack_from(self._events, _EVENT.size * index)
                error = None if result >= 0 else OSError(-result, os.strerror(-result))
                self._loop.call_soon(self._running.pop(number).finish, error)
            if count < _EVENTS_AT_ONCE:
                return
            wait = False

    def close(self) -> None:
        """Waits for the flushes in flight; their callbacks run on the loop, if it still runs."""
        while self._running:
            self.wait(next(iter(self._running.values())))
        self._loop.remove_reader(self._eventfd)
        self._quick.syscall(self._destroy_call, self._context)
        os.close(self._eventfd)

    @staticmethod
    def _require(result: int, call: str) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{call}: {os.strerror(number)}")
