"""Which range reads of a node run now: a fixed number at once, the others in the order in which they came.

A read is in one of these states:

- *active*: it has a turn, and reads and sends chunks;
- *waiting*: it is in the queue; when an active read ends, parks or yields, the first read of the queue
  becomes active;
- *parked*: its reader has not taken a chunk for a while, so that it holds a chunk in memory and needs no
  turn; when the reader takes the chunk, the read queues again.

All reads together hold chunks of `held_bytes_max`, or one batch that is larger.  A read has room for a chunk
before it reads it.  Where there is none, those parked reads are ended whose readers stand still, the first
one that which has held its chunk longest, and their readers ask again.  One that takes its chunk slowly is
left alone: to it the end is a chunk that it has to take from its beginning.

A read that has sent `turn_bytes` while others wait goes to the end of the queue: a long range does not delay
the short ones.

Pure: the caller gives the time.  `progress_at` is the last time that any read made progress: a waiting read
fails only when that is long ago, however long the queue is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...wire.errors import ErrorCode, KafkaError

ACTIVE_MAX: Final = 128
WAITING_MAX: Final = 4096
HELD_BYTES_MAX: Final = 256 << 20
TURN_BYTES: Final = 64 << 20
MOVING_BYTES_S: Final = 16 << 10
"""A reader takes so much a second for each chunk that it has not taken, or it stands still."""
STILL_S: Final = 10.0


@dataclass(slots=True, eq=False)
class Turn:
    """One read's place; `on_granted` is called when it becomes active, or has room, after it had to wait.
    reader: the connection."""

    on_granted: Callable[[], None]
    reader: str
    is_active: bool = False
    is_parked: bool = False
    held_bytes: int = 0
    wanted_bytes: int = 0
    sent_bytes: int = 0

    @property
    def may_read(self) -> bool:
        return self.is_active and not self.wanted_bytes


class RangeTurns:
    """The places of all reads of one node."""

    def __init__(
        self,
        *,
        active_max: int = ACTIVE_MAX,
        waiting_max: int = WAITING_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
        turn_bytes: int = TURN_BYTES,
    ) -> None:
        self._active_max = active_max
        self._waiting_max = waiting_max
        self._held_bytes_max = held_bytes_max
        self._turn_bytes = turn_bytes
        self._active = 0
        self._held_bytes = 0
        self._waiting: deque[Turn] = deque()
        self._without_room: deque[Turn] = deque()
        self._parked: dict[Turn, None] = {}  # those that hold a chunk, the longest first
        self.progress_at = 0.0

    @property
    def active(self) -> int:
        return self._active

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def lacks_room(self) -> bool:
        """Whether a read waits for room."""
        return bool(self._without_room)

    @property
    def parked(self) -> tuple[Turn, ...]:
        """Those that hold a chunk, the longest first."""
        return tuple(self._parked)

    def to_end(self, still: Container[str]) -> list[str]:
        """Which of the readers that stand still to end, so that all that wait have room."""
        wanted = sum(turn.wanted_bytes for turn in self._without_room)
        missing = self._held_bytes + wanted - self._held_bytes_max if wanted else 0
        readers: dict[str, None] = {}
        for turn in self._parked:
            if missing > 0 and turn.reader in still:
                readers[turn.reader] = None
                missing -= turn.held_bytes
        return list(readers)

    def enter(self, on_granted: Callable[[], None], reader: str, now: float) -> Turn:
        """A place for a new read, active at once where one is free; raises THROTTLING_QUOTA_EXCEEDED when the
        queue is full."""
        if len(self._waiting) >= self._waiting_max:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{self._active} range reads are in progress and {len(self._waiting)} wait for their "
                "turn: try again",
            )
        turn = Turn(on_granted, reader)
        if not self._waiting:
            self.progress_at = now  # the queue begins with this read, or there is none
        self._queue(turn)
        return turn

    def leave(self, turn: Turn, now: float) -> None:
        """The read is over, in whatever state it was."""
        if turn.is_active:
            self._end_turn(turn, now)
        elif turn in self._waiting:
            self._waiting.remove(turn)
        self._want_nothing(turn)
        self._release(turn)
        self._give_room()

    def hold(self, turn: Turn, chunk_bytes: int) -> bool:
        """Whether an active read has room for its next chunk; if not, it waits until it `may_read`, and asks
        again."""
        assert turn.may_read
        if chunk_bytes > turn.held_bytes:
            self._release(turn)
            turn.wanted_bytes = chunk_bytes
            if self._without_room or not self._take_room(turn):
                self._without_room.append(turn)
        return turn.may_read

    def park(self, turn: Turn, now: float) -> None:
        """The reader does not take what it is sent, or may not read on: the turn goes to another read."""
        if turn.is_active:
            turn.is_parked = True
            if turn.held_bytes:
                self._parked[turn] = None
            self._want_nothing(turn)
            self._end_turn(turn, now)
            self._give_room()

    def sent(self, turn: Turn, sent_bytes: int, now: float) -> None:
        """The reader has taken what it was sent.  Afterwards the turn may be over: look at `is_active`."""
        self.progress_at = now
        turn.sent_bytes += sent_bytes
        self._release(turn)
        if turn.is_parked:
            turn.is_parked = False
            self._queue(turn)
        elif turn.is_active and self._waiting and turn.sent_bytes >= self._turn_bytes:
            self._end_turn(turn, now)
            self._queue(turn)
        self._give_room()

    def validate(self) -> None:
        assert 0 <= self._active <= self._active_max
        assert not (self._waiting and self._active < self._active_max), "a free turn is taken at once"
        assert not any(turn.is_active or turn.is_parked or turn.held_bytes for turn in self._waiting)
        assert all(turn.is_parked and turn.held_bytes for turn in self._parked)
        assert all(turn.is_active and turn.wanted_bytes for turn in self._without_room)
        if self._without_room:
            assert self._held_bytes + self._without_room[0].wanted_bytes > self._held_bytes_max
            assert self._held_bytes, "one chunk has room, whatever its size"

    def _queue(self, turn: Turn) -> None:
        if self._active < self._active_max and not self._waiting:
            self._grant(turn)
        else:
            self._waiting.append(turn)

    def _want_nothing(self, turn: Turn) -> None:
        if turn.wanted_bytes:
            turn.wanted_bytes = 0
            self._without_room.remove(turn)

    def _release(self, turn: Turn) -> None:
        self._held_bytes -= turn.held_bytes
        turn.held_bytes = 0
        self._parked.pop(turn, None)

    def _give_room(self) -> None:
        """To those that wait for it, in the order in which they asked."""
        while self._without_room and self._take_room(self._without_room[0]):
            self._without_room.popleft().on_granted()

    def _take_room(self, turn: Turn) -> bool:
        """Whether there is room for what the read wants."""
        if not self._has_room(turn):
            return False
        turn.held_bytes, turn.wanted_bytes = turn.wanted_bytes, 0
        self._held_bytes += turn.held_bytes
        return True

    def _has_room(self, turn: Turn) -> bool:
        return not self._held_bytes or self._held_bytes + turn.wanted_bytes <= self._held_bytes_max

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


class Looks:
    """At what the readers of parked reads have taken, from time to time while another read waits for room.

    A reader behind a proxy that has full buffers is acknowledged only now and then, so one stands still that
    has taken next to nothing for `still_s`, with chunks to take all the time."""

    def __init__(self, still_s: float = STILL_S) -> None:
        self._still_s = still_s
        self._looks: deque[tuple[float, Sequence[Turn], Mapping[str, int]]] = deque()

    def standing_still(self, now: float, parked: Sequence[Turn], taken: Mapping[str, int]) -> set[str]:
        """The readers that stand still; none before the looks reach back so far.  taken: bytes by reader,
        without those that are gone."""
        looks = self._looks
        while looks and looks[0][0] < now - 2 * self._still_s:
            looks.popleft()  # for a long time no read has waited for room
        looks.append((now, parked, taken))
        while len(looks) > 1 and looks[1][0] <= now - self._still_s:
            looks.popleft()
        at, _, before = looks[0]
        if at > now - self._still_s:
            return set()
        always = set(parked).intersection(*(were_parked for _, were_parked, _ in looks))
        chunks = Counter(turn.reader for turn in always)
        return {
            reader
            for reader, number in chunks.items()
            if reader in before
            and reader in taken
            and taken[reader] - before[reader] < number * (now - at) * MOVING_BYTES_S
        }
