"""The memory of frames: a limit over all connections, the buffers, and leases on a frame's bytes.

A frame takes bytes of the `ByteBudget` in steps, as its bytes arrive: a client that only announces a large
frame takes few.  With steps all of the budget could be taken by incomplete frames, each waiting for more.
Therefore incomplete frames come before new ones, and when nothing is left *one* of them at a time may exceed
the limit until it is complete.  So the bytes in flight exceed the limit by at most one frame, and some frame
can always complete.

`BufferPool` keeps buffers for reuse, because a new one must be zeroed (a tenth of the time of produce
requests of 100 KB).  It reuses a buffer only when there is no view of it any more: a bytearray with views
raises when it is resized.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

FIRST_BUFFER_BYTES: Final = 16 * 1024
POOLED_BYTES_MAX: Final = 32 << 20
_POOLED_BUFFER_BYTES_MAX: Final = 4 << 20


class ByteBudget:
    """Bytes of frames in flight over all connections that share it; frames that do not fit wait in order of
    arrival.

    A first step larger than the whole budget is granted when no other frame is in flight: it waits long, but
    not forever.
    """

    __slots__ = ("_beyond", "_growing", "_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes <= 0:
            raise ValueError(f"a byte budget of {limit_bytes} lets nothing through")
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # new frames
        self._growing: deque[tuple[int, Callable[[], None]]] = deque()  # incomplete frames
        self._beyond: Callable[[], None] | None = None  # the one frame that may go beyond the limit

    @property
    def waiting_count(self) -> int:
        return len(self._waiting) + len(self._growing)

    def take(self, size: int, on_granted: Callable[[], None], *, growing: bool = False) -> bool:
        """True when `size` bytes are granted at once; otherwise `on_granted` is called when they are.

        `on_granted` stands for the frame: `growing` asks for more of what it has already, until
        `whole(on_granted)`.
        """
        if growing:
            at_once = on_granted == self._beyond or (not self._growing and self._may_grow(size, on_granted))
        else:
            at_once = not self._growing and not self._waiting and self._fits(size)
        if at_once:
            self.used_bytes += size
            return True
        (self._growing if growing else self._waiting).append((size, on_granted))
        return False

    def give_back(self, size: int) -> None:
        self.used_bytes -= size
        assert self.used_bytes >= 0, "more bytes were given back than taken"
        self._grant()

    def whole(self, on_granted: Callable[[], None]) -> None:
        """The frame needs no more: it is complete, or its connection is closed.  Another one may exceed the
        limit."""
        if self._beyond is not None and self._beyond == on_granted:
            self._beyond = None
            self._grant()

    def forget(self, on_granted: Callable[[], None]) -> None:
        """Takes a waiter out of the queues; no effect when it is not there."""
        for queue in (self._waiting, self._growing):
            for entry in queue:
                if entry[1] == on_granted:
                    queue.remove(entry)
                    break
        self._grant()  # the next one in the queue may fit although this one did not

    def _grant(self) -> None:
        while self._growing and self._may_grow(*self._growing[0]):
            self._let_in(self._growing)
        while not self._growing and self._waiting and self._fits(self._waiting[0][0]):
            self._let_in(self._waiting)

    def _let_in(self, queue: deque[tuple[int, Callable[[], None]]]) -> None:
        size, on_granted = queue.popleft()
        self.used_bytes += size
        on_granted()

    def _fits(self, size: int) -> bool:
        return self.used_bytes == 0 or self.used_bytes + size <= self.limit_bytes

    def _may_grow(self, size: int, on_granted: Callable[[], None]) -> bool:
        if self.used_bytes + size <= self.limit_bytes or on_granted == self._beyond:
            return True
        if self._beyond is not None or self.used_bytes > self.limit_bytes:
            return False
        self._beyond = on_granted
        return True


class BufferPool:
    """Buffers for frames.  `take` and `give` on one thread."""

    __slots__ = ("_bytes_max", "_free", "kept_bytes")

    def __init__(self, bytes_max: int = POOLED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._free: dict[int, deque[bytearray]] = {}
        self.kept_bytes = 0

    def take(self, size: int) -> bytearray:
        """A buffer of `size` bytes or up to an eighth more; its content is undefined."""
        quantum = max(FIRST_BUFFER_BYTES, 1 << max(0, size.bit_length() - 4))
        capacity = -(-size // quantum) * quantum
        free = self._free.get(capacity)
        while free:
            # the buffer that was released first: its views are the likeliest to have been deleted
            buffer = free.popleft()
            self.kept_bytes -= capacity
            if _has_no_view(buffer):
                return buffer
        buffer = bytearray(capacity)
        if capacity <= _POOLED_BUFFER_BYTES_MAX:
            _has_no_view(buffer)  # room for the trial's byte, made while there is nothing to copy
        return buffer

    def give(self, buffer: bytearray) -> None:
        """The caller must not write to the buffer any more; remaining views keep it from being used again."""
        capacity = len(buffer)
        if not 0 < capacity <= _POOLED_BUFFER_BYTES_MAX or self.kept_bytes + capacity > self._bytes_max:
            return
        self._free.setdefault(capacity, deque()).append(buffer)
        self.kept_bytes += capacity


def _has_no_view(buffer: bytearray) -> bool:
    try:
        buffer.append(0)
    except BufferError:  # "Existing exports of data: object cannot be re-sized"
        return False
    buffer.pop()
    return True


class FrameLease:
    """A frame's memory after `detach()`: `view` is valid, and its bytes count against the budget, until
    `release()`."""

    __slots__ = ("_budget", "_buffer", "_pool", "_reserved", "view")

    def __init__(
        self,
        view: memoryview,
        budget: ByteBudget | None,
        reserved: int,
        pool: BufferPool | None,
        buffer: bytearray,
    ) -> None:
        self.view = view
        self._budget = budget
        self._reserved = reserved
        self._pool = pool
        self._buffer: bytearray | None = buffer

    def release(self) -> None:
        """Gives the bytes back; idempotent.  The buffer is used again when the last slice of the view is
        gone, too."""
        self.view = memoryview(b"")
        buffer, self._buffer = self._buffer, None
        if buffer is not None and self._pool is not None:
            self._pool.give(buffer)
        reserved, self._reserved = self._reserved, 0
        if reserved and self._budget is not None:
            self._budget.give_back(reserved)
