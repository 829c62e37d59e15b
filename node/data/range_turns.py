"""Which range reads of a node run now: a fixed number at once, the others in the order in which they came.

A read is in one of these states:

- *active*: it has a turn, and reads and sends chunks;
- *waiting*: it is in the queue; when an active read ends, parks or yields, the first read of the queue
  becomes active;
- *parked*: its reader has not taken a chunk for a while, so that it holds a chunk in memory and needs no
  turn; when the reader takes the chunk, the read queues again.  Parked chunks are bounded in bytes: where
  they reach the bound, a read keeps its turn.

A read that has sent `turn_bytes` while others wait goes to the end of the queue: a long range does not delay
the short ones.

Pure: the caller gives the time.  `progress_at` is the last time that any read made progress: a waiting read
fails only when that is long ago, however long the queue is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ...wire.errors import ErrorCode, KafkaError

ACTIVE_MAX: Final = 128
WAITING_MAX: Final = 4096
PARKED_BYTES_MAX: Final = 256 << 20
TURN_BYTES: Final = 64 << 20


@dataclass(slots=True, eq=False)
class Turn:
    """One read's place; `on_granted` is called when it becomes active after it had to wait."""

    on_granted: Callable[[], None]
    is_active: bool = False
    parked_bytes: int = 0
    sent_bytes: int = 0


class RangeTurns:
    """The places of all reads of one node."""

    def __init__(
        self,
        *,
        active_max: int = ACTIVE_MAX,
        waiting_max: int = WAITING_MAX,
        parked_bytes_max: int = PARKED_BYTES_MAX,
        turn_bytes: int = TURN_BYTES,
    ) -> None:
        self._active_max = active_max
        self._waiting_max = waiting_max
        self._parked_bytes_max = parked_bytes_max
        self._turn_bytes = turn_bytes
        self._active = 0
        self._parked_bytes = 0
        self._waiting: deque[Turn] = deque()
        self.progress_at = 0.0

    @property
    def active(self) -> int:
        return self._active

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, on_granted: Callable[[], None], now: float) -> Turn:
        """A place for a new read, active at once where one is free; raises THROTTLING_QUOTA_EXCEEDED when the
        queue is full."""
        if len(self._waiting) >= self._waiting_max:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self._active} range reads are in progress and {len(self._waiting)} wait for their "
                "turn: try again",
            )
        turn = Turn(on_granted)
        if not self._waiting:
            self.progress_at = now  # the queue begins with this read, or there is none
        self._queue(turn)
        return turn

    def leave(self, turn: Turn, now: float) -> None:
        """The read is over, in whatever state it was."""
        if turn.is_active:
            self._end_turn(turn, now)
        elif turn.parked_bytes:
            self._unpark(turn)
        elif turn in self._waiting:
            self._waiting.remove(turn)

    def park(self, turn: Turn, held_bytes: int, now: float) -> None:
        """The reader does not take the chunk: the turn goes to another read, unless the parked chunks reach
        their bound."""
        held_bytes = max(1, held_bytes)
        if turn.is_active and self._parked_bytes + held_bytes <= self._parked_bytes_max:
            turn.parked_bytes = held_bytes
            self._parked_bytes += held_bytes
            self._end_turn(turn, now)

    def sent(self, turn: Turn, sent_bytes: int, now: float) -> None:
        """The reader has taken a chunk.  Afterwards the turn may be over: look at `is_active`."""
        self.progress_at = now
        turn.sent_bytes += sent_bytes
        if turn.parked_bytes:
            self._unpark(turn)
            self._queue(turn)
        elif turn.is_active and self._waiting and turn.sent_bytes >= self._turn_bytes:
            self._end_turn(turn, now)
            self._queue(turn)

    def validate(self) -> None:
        assert 0 <= self._active <= self._active_max
        assert 0 <= self._parked_bytes <= self._parked_bytes_max
        assert not (self._waiting and self._active < self._active_max), "a free turn is taken at once"
        assert not any(turn.is_active or turn.parked_bytes for turn in self._waiting)

    def _queue(self, turn: Turn) -> None:
        if self._active < self._active_max and not self._waiting:
            self._grant(turn)
        else:
            self._waiting.append(turn)

    def _unpark(self, turn: Turn) -> None:
        self._parked_bytes -= turn.parked_bytes
        turn.parked_bytes = 0

    def _end_turn(self, turn: Turn, now: float) -> None:
        turn.is_active = False
        self._active -= 1
        self.progress_at = now
        if self._waiting and self._active < self._active_max:
            following = self._waiting.popleft()
            self._grant(following)
            following.on_granted()

    def _grant(self, turn: Turn) -> None:
        turn.is_active = True
        turn.sent_bytes = 0
        self._active += 1
