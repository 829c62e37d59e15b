"""Length-prefixed frames over one TCP connection: receiving without copies, sending, back-pressure.

A frame is a 4-byte big-endian length and that many bytes.  `FrameConnection` is the asyncio protocol for both
ends; the handler interprets a frame.

Receiving.  The kernel writes straight into the connection's buffer and the handler gets a *writable* view of
the frame in it: the log patches offsets in place and writes the very same bytes.  The view dies when
`on_frame` returns, unless the handler called `detach()` meanwhile.  The buffer starts small, grows to the
size of a frame, and shrinks back.

Back-pressure, in the order in which it bites:

1. a handler that cannot keep up calls `pause()`: no further frame is delivered before `resume()`, and TCP
   pushes back;
2. on a server, reading stops while the peer does not take its answers (`write_high_bytes`), so one slow
   reader costs one answer more than that, never an unbounded queue.  A client must not do this: two ends that
   both refuse to read deadlock;
3. frames larger than the small first buffer take their bytes from a `ByteBudget` shared by all connections
   (`frame_memory`): the first `EAGER_BYTES` before their body is read, then fourfold steps as the bytes
   arrive;
4. frames are handed out in turns of the loop, whose time all connections of a server share (`turns`): when it
   is used up, or after `FRAMES_PER_TICK` frames of one connection, the rest waits for the connection's next
   turn;
5. a client that has used more than its quota is muted (`mute`): nothing is read from it for a while.

A server closes the connection of a peer (`look_after`, for all its connections) that stands still within a
frame; that sends a frame at less than `RATE_MIN` while other connections wait for its memory; or that is
silent for longer than the server allows while no answer is owed.

A length that is negative or above the maximum closes the connection with one log line; the process lives.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, cast

from .. import logs
from ..turns import LoopTurns
from .file_sending import FileSender, Made, SendFailed
from .frame_memory import FIRST_BUFFER_BYTES, BufferPool, ByteBudget, FrameLease

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

log = logs.get(__name__)

_LENGTH = Struct(">i")
LENGTH_BYTES = 4
KEPT_BUFFER_BYTES_MAX = 4 << 20
"""A larger buffer is given back as soon as it is empty; a smaller one when it was not needed for
`SHRINK_AFTER_S`."""
SHRINK_AFTER_S = 5.0
EAGER_BYTES = 1 << 20
"""A frame up to this size gets its memory at once; a larger one in fourfold steps, as its bytes really
arrive."""
FRAMES_PER_TICK = 64
STALLED_FRAME_S = 30.0
"""So long nothing may come of a frame that has begun."""
RATE_MIN = 16 * 1024
"""Bytes a second of a frame that holds memory for which others wait."""
SLOW_FRAME_S = 10.0
"""So long a frame may come slower than that."""
LINGER_S = 10.0
COALESCE_BYTES = 64 * 1024
"""Smaller buffers are joined into one write; copying larger ones would cost more than a system call."""
WRITE_HIGH_BYTES = 1 << 20

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""A peer that vanished without a word is noticed after two minutes, not after the kernel's two hours."""

# why reading is paused; it goes on when all are cleared
_BY_HANDLER, _BY_BUDGET, _BY_WRITER, _BY_TURN, _BY_QUOTA = 1, 2, 4, 8, 16


class FrameHandler(Protocol):
    """The receiver of a connection's frames.  Both methods run on the event loop and must not block."""

    def on_frame(self, frame: memoryview) -> None:
        """One whole frame, without its length.  The view is writable and is released when this returns:
        detach() or copy."""

    def on_close(self, reason: str) -> None:
        """The connection is gone; called exactly once, and no frame follows."""


GRPC_ON_ANOTHER_PORT = (
    "a gRPC client (HTTP/2) came to a port that does not speak gRPC; readers ask there for the gRPC port next"
)
"""Spark readers and `tidegate count` take either port, and try gRPC first."""


class LogLimiter:
    """At most `burst` lines in `period_s` seconds about what strangers send; the rest is counted."""

    __slots__ = ("_burst", "_lines", "_period_s", "_since", "_suppressed")

    def __init__(self, burst: int = 10, period_s: float = 10.0) -> None:
        self._burst = burst
        self._period_s = period_s
        self._since = float("-inf")
        self._lines = 0
        self._suppressed = 0

    def warning(self, now: float, event: str, *, is_usual: bool = False, **fields: object) -> None:
        """`is_usual`: a close that also happens without a fault is logged at INFO."""
        if now - self._since >= self._period_s:
            if self._suppressed:
                fields["suppressed_before"] = self._suppressed
            self._since, self._lines, self._suppressed = now, 0, 0
        if self._lines < self._burst:
            self._lines += 1
            (log.info if is_usual else log.warning)(event, **fields)
        else:
            self._suppressed += 1


class _Seen:
    """What `look_after` found when it last looked, by the loop's time."""

    __slots__ = ("at", "backlog", "fast_at", "moved_at", "progress")

    def __init__(self, now: float) -> None:
        self.at = self.fast_at = self.moved_at = now
        self.progress = self.backlog = 0


def frame_length(size: int) -> bytes:
    """What stands before a frame of so many bytes."""
    return _LENGTH.pack(size)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """ "address:port" of the other side; "?" when the system does not know it any more."""
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) and len(address) >= 2 else "?"


class FrameConnection(asyncio.BufferedProtocol):
    """One end of a connection.  Made by `serve_frames` and `connect_frames`; used on the event loop's thread
    only."""

    def __init__(
        self,
        *,
        max_frame_bytes: int,
        limiter: LogLimiter,
        budget: ByteBudget | None = None,
        pool: BufferPool | None = None,
        turns: LoopTurns | None = None,
        pause_on_write_bytes: int | None = None,
        on_made: Callable[[FrameConnection], FrameHandler | None],
        on_lost: Callable[[FrameConnection], None] | None = None,
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        self.peer = "?"
        self.close_reason = ""
        self._loop = asyncio.get_running_loop()
        self._max_frame_bytes = max_frame_bytes
        self._frame_limit_bytes = max_frame_bytes  # of this connection, for now
        self._limiter = limiter
        self._budget = budget
        self._pool = pool
        self._turns = turns or LoopTurns(self._loop.time)
        self._account = self._turns.account()
        self._pause_on_write_bytes = pause_on_write_bytes
        self._on_made = on_made
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._handler: FrameHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._paused = 0
        self._buffer = self._new_buffer(FIRST_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0  # the first byte not yet delivered
        self._filled = 0  # the first byte not yet received
        self._frame_bytes = -1  # length of the frame at _start, prefix not included; -1: not known yet
        self._allowed = 0  # bytes of the frame at _start that may be stored as yet
        self._asked = 0  # bytes that the budget has not granted yet
        self._reserved = 0  # bytes of the budget that the frame at _start holds
        self._large_frames = 0  # frames since the last look that the first buffer could not have held
        self._shrink_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._mute_timer: asyncio.TimerHandle | None = None
        # set by a handler that has a request in work: then silence is not the peer's
        self.owes_answer = False
        self._progress = 0  # bytes that came, and a little for each that went
        self._seen = _Seen(self._loop.time())
        self._delivering = False
        self._detached = False
        self._corked: list[ReadableBuffer] = []
        self._corked_bytes = 0
        self._file_sender: FileSender | None = None
        self._is_full = False  # the transport has more than it should keep for the kernel
        self._room: asyncio.Future[None] | None = None  # of the one who waits for that to end

    # ---- for handlers --------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def write_backlog(self) -> int:
        """Bytes given to `send` that the kernel has not taken yet."""
        transport = self._transport
        return self._corked_bytes + (transport.get_write_buffer_size() if transport is not None else 0)

    def send(self, *buffers: ReadableBuffer) -> bool:
        """Sends one frame, put together from `buffers`; its length is added here.  False when the connection
        is closing.

        A buffer must not change afterwards: copy (or `detach()`) what belongs to the frame being delivered.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            # a write to a closing transport only makes asyncio warn, from another connection's callback
            return False
        size = 0
        for buffer in buffers:
            size += buffer.nbytes if isinstance(buffer, memoryview) else len(cast(bytes, buffer))
        self._corked.append(_LENGTH.pack(size))
        self._corked.extend(buffers)
        self._corked_bytes += size + LENGTH_BYTES
        self._progress += 1
        if not self._delivering or self._corked_bytes > COALESCE_BYTES:
            self._uncork(transport)
        return True

    async def send_made(self, make: Callable[[], Made], pool: Executor) -> None:
        """Calls `make` in a thread and sends what it returns, whole frames (`frame_length`); the kernel has
        taken them when this returns.  Not within TLS.  For one task, which sends nothing else meanwhile.
        Raises what `make` raises; SendFailed, after which the connection is of no use."""
        if self._transport is not None:
            self._uncork(self._transport)
            await self.until_taken()
        if self._transport is None or self._transport.is_closing():
            reason = self.close_reason or "the connection is closing"
            raise SendFailed(ConnectionResetError(errno.ECONNRESET, reason), in_file=False)
        if self._file_sender is None:
            self._file_sender = FileSender(self._transport.get_extra_info("socket").fileno())
        await self._file_sender.send(make, pool)
        self._progress += 1

    async def until_taken(self) -> None:
        """Waits while the peer does not take what was sent (more than `pause_on_write_bytes` of it), or until
        the connection is gone.  For one task."""
        while self._is_full and self._transport is not None:
            self._room = self._loop.create_future()
            await self._room

    def pause(self) -> None:
        """Delivers no further frame before `resume()`."""
        self._pause(_BY_HANDLER)

    def resume(self) -> None:
        self._resume(_BY_HANDLER)

    def limit_frames(self, bytes_max: int | None) -> None:
        """Refuses larger frames by their length, before they take memory.  None: what the server takes."""
        most = self._max_frame_bytes
        self._frame_limit_bytes = most if bytes_max is None else min(bytes_max, most)

    def mute(self, seconds: float) -> None:
        """Delivers no further frame for `seconds`; the later end of two counts."""
        if self._transport is None:
            return
        until = self._loop.time() + seconds
        if self._mute_timer is not None:
            if self._mute_timer.when() >= until:
                return
            self._mute_timer.cancel()
        self._pause(_BY_QUOTA)
        self._mute_timer = self._loop.call_at(until, self._unmute)

    def detach(self) -> FrameLease:
        """Within `on_frame`: keeps the frame's memory beyond the call, until the lease is released, which
        must happen."""
        assert self._delivering, "detach() is for the frame being delivered"
        assert self._frame_bytes >= 0, "detach() is for the frame being delivered"
        start = self._start + LENGTH_BYTES
        reserved, self._reserved = self._reserved, 0
        self._detached = True
        view = self._view[start : start + self._frame_bytes]
        return FrameLease(view, self._budget, reserved, self._pool, self._buffer)

    def close(self, reason: str = "closed here") -> None:
        """Closes once all sent frames have been written, at the latest after `LINGER_S`; idempotent."""
        if self._transport is not None and not self._transport.is_closing():
            self.close_reason = reason
            self._uncork(self._transport)
            self._transport.close()
            self._linger_timer = self._loop.call_later(LINGER_S, self.abort)

    def abort(self, reason: str = "aborted here") -> None:
        """Closes at once and drops unwritten frames."""
        if self._transport is not None:
            self.close_reason = self.close_reason or reason
            self._transport.abort()

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The peer's verified certificate; None without mutual TLS."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    # ---- asyncio's callbacks -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = peer_of(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, seconds)
        kept = self._pause_on_write_bytes
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES if kept is None else kept)
        self._handler = self._on_made(self)
        if self._handler is None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer) or (
            self._start
            and self._frame_bytes >= 0
            and self._start + LENGTH_BYTES + self._frame_bytes > len(self._buffer)
        ):
            # at once, when the frame will not fit behind the delivered frames: one large read, not two
            self._make_room()
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._progress += nbytes
        self._deliver()

    def eof_received(self) -> bool:
        if self._filled > self._start:
            have = self._filled - self._start
            want = "?" if self._frame_bytes < 0 else self._frame_bytes + LENGTH_BYTES
            self._refuse("cut_short", f"the peer closed within a frame: {have} of {want} bytes came")
        return False

    def pause_writing(self) -> None:
        self._is_full = True
        if self._pause_on_write_bytes is not None:
            self._pause(_BY_WRITER)

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake_writer()
        if self._pause_on_write_bytes is not None:
            self._resume(_BY_WRITER)

    def _wake_writer(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._file_sender is not None:
            self._file_sender.close()
        self._wake_writer()
        self._stop_timers()
        self._corked.clear()
        self._corked_bytes = 0
        budget = self._budget
        if budget is not None:
            if self._paused & _BY_BUDGET:
                budget.forget(self._granted)
            budget.whole(self._granted)
            reserved, self._reserved = self._reserved, 0
            if reserved:
                budget.give_back(reserved)
        if not self.close_reason:
            self.close_reason = (
                "the peer closed the connection" if exc is None else f"{type(exc).__name__}: {exc}"
            )
        if not self._delivering:
            self._drop_buffer()
        handler, self._handler = self._handler, None
        try:
            if handler is not None:
                handler.on_close(self.close_reason)
        finally:
            if self._on_lost is not None:
                self._on_lost(self)

    # ---- receiving -----------------------------------------------------------------------------------------

    def _deliver(self, *, is_admitted: bool = False) -> None:
        """Delivers the whole frames in the buffer, until none is left, reading is paused, or the turn has
        ended.

        `is_admitted`: it has waited for this turn."""
        if self._delivering:
            return
        self._delivering = True
        frames = 0
        turns = self._turns
        begun = turns.begin()
        try:
            while not self._paused and self._next_frame_is_whole():
                may_go_on = (frames == 0 or turns.has_time()) if is_admitted else turns.admits()
                if frames == FRAMES_PER_TICK or not may_go_on:
                    self._pause(_BY_TURN)
                    turns.when_admitted(self._account, self._continue)
                    break
                frames += 1
                if not self._deliver_one():
                    return
        finally:
            self._delivering = False
            turns.end(self._account, begun)
            if self._transport is not None and self._corked:
                self._uncork(self._transport)
        if self._start == self._filled:
            self._start = self._filled = 0
            if len(self._buffer) > KEPT_BUFFER_BYTES_MAX:
                self._drop_buffer()
        elif self._frame_bytes > self._allowed and self._filled - self._start >= self._allowed + LENGTH_BYTES:
            self._ask_for_more()

    def _next_frame_is_whole(self) -> bool:
        have = self._filled - self._start
        if self._frame_bytes < 0 and (have < LENGTH_BYTES or not self._begin_frame()):
            return False
        return have >= self._frame_bytes + LENGTH_BYTES

    def _begin_frame(self) -> bool:
        """Reads the length of the frame at `_start`; False when the frame must wait for the budget or is
        refused."""
        size: int = _LENGTH.unpack_from(self._buffer, self._start)[0]
        if not 0 <= size <= self._frame_limit_bytes:
            prefix = bytes(self._view[self._start : self._start + LENGTH_BYTES])
            self._refuse("bad_length", _describe_bad_length(prefix, size, self._frame_limit_bytes))
            return False
        self._frame_bytes = size
        self._allowed = size
        if size + LENGTH_BYTES <= FIRST_BUFFER_BYTES:
            return True
        self._large_frames += 1
        if self._shrink_timer is None:
            self._shrink_timer = self._loop.call_later(SHRINK_AFTER_S, self._shrink)
        self._allowed = 0
        return self._ask(min(size, EAGER_BYTES))

    def _ask_for_more(self) -> None:
        """The allowed part of a large frame has arrived: allows four times as much, or the rest."""
        if not self._paused & _BY_BUDGET:
            self._ask(min(self._frame_bytes - self._allowed, self._allowed * 3))

    def _ask(self, size: int) -> bool:
        budget = self._budget
        if budget is None or budget.take(size, self._granted, growing=self._reserved > 0):
            self._allowed += size
            self._reserved += size if budget is not None else 0
            return True
        self._asked = size
        self._pause(_BY_BUDGET)
        return False

    def _granted(self) -> None:
        """The budget has room: more of the frame at `_start` may be read."""
        self._allowed += self._asked
        self._reserved += self._asked
        self._resume(_BY_BUDGET)

    def _deliver_one(self) -> bool:
        """One whole frame to the handler; False when the connection is gone afterwards."""
        handler = self._handler
        if handler is None:
            return False
        start = self._start + LENGTH_BYTES
        end = start + self._frame_bytes
        frame = self._view[start:end]
        try:
            handler.on_frame(frame)
        except Exception:
            log.exception("frame_handler_failed", peer=self.peer, frame_bytes=self._frame_bytes)
            self.abort("the handler of a frame failed")
            return False
        large = self._reserved or self._detached
        self._frame_bytes = -1
        self._start = end
        if self._detached:
            self._detached = False
            self._move_to(
                self._new_buffer(max(FIRST_BUFFER_BYTES, self._filled - self._start)), is_leased=True
            )
        else:
            frame.release()  # a caller that kept the view gets a ValueError and not another request's bytes
        if large and self._budget is not None:
            self._budget.whole(self._granted)
            reserved, self._reserved = self._reserved, 0
            if reserved:
                self._budget.give_back(reserved)
        return self.is_open  # a handler that closed wants nothing more

    def _make_room(self) -> None:
        """The buffer is full to its end: moves the remaining bytes to the front, or to a larger buffer that
        fits the frame."""
        have = self._filled - self._start
        # a claim alone does not get the memory, bytes do
        need = LENGTH_BYTES + (0 if self._frame_bytes < 0 else self._allowed)
        capacity = len(self._buffer)
        if need > capacity:
            self._move_to(
                self._new_buffer(min(need + FIRST_BUFFER_BYTES, max(need, EAGER_BYTES + LENGTH_BYTES)))
            )
        elif self._start:
            self._view[:have] = self._view[self._start : self._filled]
            self._start, self._filled = 0, have
        else:
            self._move_to(self._new_buffer(capacity * 2))

    def _new_buffer(self, size: int) -> bytearray:
        return bytearray(size) if self._pool is None else self._pool.take(size)

    def _move_to(self, buffer: bytearray, *, is_leased: bool = False) -> None:
        """Continues in another buffer; the one before is the pool's, unless a lease has it."""
        have = self._filled - self._start
        view = memoryview(buffer)
        view[:have] = self._view[self._start : self._filled]
        before = self._buffer
        self._buffer, self._view = buffer, view
        self._start, self._filled = 0, have
        if self._pool is not None and not is_leased:
            self._pool.give(before)

    def _drop_buffer(self) -> None:
        self._start = self._filled = 0
        self._move_to(self._new_buffer(FIRST_BUFFER_BYTES) if self._transport is not None else bytearray())

    def _shrink(self) -> None:
        """Gives a large buffer back once a whole period has passed without need of it."""
        self._shrink_timer = None
        if len(self._buffer) <= FIRST_BUFFER_BYTES:
            return
        if self._large_frames == 0 and self._start == self._filled and not self._delivering:
            self._drop_buffer()
            return
        self._large_frames = 0
        self._shrink_timer = self._loop.call_later(SHRINK_AFTER_S, self._shrink)

    def look_after(self, now: float, idle_s: float | None = None) -> None:
        """Closes the connection of a peer that stalls; a server calls this every few seconds with the loop's
        time."""
        seen = self._seen
        came = self._progress - seen.progress
        backlog = self.write_backlog
        seen.progress = self._progress
        if came or backlog != seen.backlog or self.owes_answer:
            seen.moved_at, seen.backlog = now, backlog
        within_a_frame = self._filled > self._start and not self._paused
        if (
            not within_a_frame
            or came >= RATE_MIN * (now - seen.at)
            or self._budget is None
            or not self._budget.waiting_count
        ):
            seen.fast_at = now
        seen.at = now
        still_s = now - seen.moved_at
        if within_a_frame and still_s >= STALLED_FRAME_S:
            self._refuse(
                "stalled", f"nothing came of a frame of {self._frame_bytes} bytes for {still_s:.0f} s"
            )
        elif now - seen.fast_at >= SLOW_FRAME_S:
            self._refuse(
                "too_slow",
                f"a frame of {self._frame_bytes} bytes comes too slowly while others wait for memory",
            )
        elif self._paused and self._is_reset():
            self.abort("the peer reset the connection")
        elif (
            idle_s is not None
            and still_s >= idle_s
            and not self._paused & (_BY_HANDLER | _BY_BUDGET | _BY_TURN | _BY_QUOTA)
        ):
            self.abort(f"idle for {still_s:.0f} s")

    def _unmute(self) -> None:
        self._mute_timer = None
        self._resume(_BY_QUOTA)

    def _is_reset(self) -> bool:
        """While reading is paused the loop is not notified of it."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(sock.fileno(), 0)
        return bool(poll.poll(0))  # poll reports POLLERR and POLLHUP without being asked for them

    # ---- pausing, closing ----------------------------------------------------------------------------------

    def _pause(self, why: int) -> None:
        if not self._paused and self._transport is not None:
            self._transport.pause_reading()
        self._paused |= why

    def _resume(self, why: int) -> None:
        if not self._paused & why:
            return
        self._paused &= ~why
        if self._paused or self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._filled > self._start and not self._delivering:
            # the loop delivers the waiting frames, not the caller of `_resume`
            self._pause(_BY_TURN)
            self._turns.when_admitted(self._account, self._continue)

    def _continue(self) -> None:
        self._resume_turn()
        if self._transport is not None and not self._transport.is_closing():
            self._deliver(is_admitted=True)

    def _resume_turn(self) -> None:
        self._paused &= ~_BY_TURN
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _uncork(self, transport: asyncio.Transport) -> None:
        if not self._corked:
            return
        buffers, self._corked = self._corked, []
        self._corked_bytes = 0
        small: list[ReadableBuffer] = []
        for buffer in buffers:
            size = buffer.nbytes if isinstance(buffer, memoryview) else len(cast(bytes, buffer))
            if size <= COALESCE_BYTES:
                small.append(buffer)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(cast(bytes, buffer))
        if small:
            transport.write(b"".join(small))

    def _refuse(self, kind: str, reason: str) -> None:
        """Closes because of what the peer sent (or did not send), with one line in the log; `kind` is the
        label of the metric."""
        if self._on_refused is not None:
            self._on_refused(kind)
        is_usual = reason == GRPC_ON_ANOTHER_PORT
        self._limiter.warning(
            self._loop.time(), "connection_refused", is_usual=is_usual, peer=self.peer, reason=reason
        )
        self.abort(reason)

    def _stop_timers(self) -> None:
        for timer in (self._shrink_timer, self._linger_timer, self._mute_timer):
            if timer is not None:
                timer.cancel()
        self._shrink_timer = self._linger_timer = self._mute_timer = None


def _describe_bad_length(prefix: bytes, size: int, max_frame_bytes: int) -> str:
    if prefix == b"PRI ":
        return GRPC_ON_ANOTHER_PORT
    if prefix in (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC"):
        return f"an HTTP request ({prefix.decode().strip()}) came to a port that does not speak HTTP"
    if prefix[:2] == b"\x16\x03":
        return "a TLS handshake came to a plain-text port: set security.protocol=PLAINTEXT in the client"
    return f"a frame of {size} bytes where 0 to {max_frame_bytes} are allowed"
