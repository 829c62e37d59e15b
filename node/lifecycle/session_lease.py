"""The lease on leadership, as the broker computes it from the answers to its heartbeats.  Pure: the caller
gives the times.

A heartbeat sent at `sent_at` and answered, however late, extends the lease to one session after `sent_at`:
the controller counts the session from the heartbeat's arrival, which is not earlier.  Several heartbeats are
in flight and answers come in any order, so each fact has an order of its own, and an older answer never
replaces a newer one:

* The lease counts from the latest `sent_at` whose heartbeat was answered.
* The answer with the highest metadata index says whether the broker is fenced: at one index the metadata have
  one state.
* The broker ignores an answer with an earlier controller epoch than one it has seen.

An answer alone does not renew the lease.  The controller may have fenced this broker and elected other
leaders before the heartbeat arrived: while the broker was silent, or while a deposed controller still
answered.  Those elections are in the metadata that the controller had when it answered (it waits for a
fencing in progress), so the broker first applies the metadata up to `known_index`.  The broker takes that
index from the first answer of a controller epoch, and again from the first answer after a whole session
without one that renews.  In between the controller cannot have fenced this broker for silence, so the index
stays, and a broker that is always a little behind the controller still renews.

Controllers may have different session timeouts in their files, so each answer names that of its controller.
A shorter timeout shortens at once the lease that an earlier controller granted; a longer one, at most that of
the registration, counts only from a heartbeat that this controller has answered and that renews.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(slots=True, frozen=True)
class AnsweredHeartbeat:
    """The content of one answered heartbeat."""

    sent_at: float
    controller_epoch: int
    metadata_index: int
    fenced: bool
    session_s: float = 0.0
    """The controller's session timeout; 0: a controller of an older version, which does not send it."""


class Change(Enum):
    """How the session changed."""

    LOST = auto()
    REGAINED = auto()


class SessionLease:
    """See the module's docstring.  `session_s` is at most the broker's own session timeout and that of the
    registration."""

    __slots__ = (
        "_controller_epoch", "_fenced_index", "_granted_s", "_heard_sent_at", "_held", "_known_index",
        "_session_s_max",
        "answered_sent_at", "fenced", "session_s",
    )  # fmt: skip

    def __init__(self, session_s: float, now: float) -> None:
        self.session_s = self._session_s_max = self._granted_s = session_s
        self.answered_sent_at = now  # the lease counts from here
        self.fenced = True
        self._held = True
        self._controller_epoch = 0
        self._known_index = 0
        # the latest that the controller of this epoch has answered, renewing or not
        self._heard_sent_at: float | None = None
        self._fenced_index = -1

    def begin(self, session_s: float, now: float) -> None:
        """The broker is registered, and fenced."""
        self.session_s = self._session_s_max = self._granted_s = min(
            self.session_s, session_s or self.session_s
        )
        self.answered_sent_at = now

    def left_s(self, now: float) -> float:
        return self.answered_sent_at + self.session_s - now

    def holds(self, now: float) -> bool:
        return self._held and self.left_s(now) > 0

    @property
    def is_lost(self) -> bool:
        """Whether `end_when_over` has found the session over, and none was regained since."""
        return not self._held

    def end_when_over(self, now: float) -> Change | None:
        """Called by a timer, and before each renewal: after a pause of the process its timers may run later
        than the answers."""
        if self.left_s(now) > 0 or not self._held:
            return None
        self._held = False
        return Change.LOST

    def shorten(self, answer: AnsweredHeartbeat) -> bool:
        """Called before `end_when_over` and `answered`, because by this controller's session timeout the
        lease may be over already. True when the lease ends earlier than before."""
        if answer.controller_epoch < self._controller_epoch or answer.session_s <= 0:
            return False
        self._granted_s = min(self._session_s_max, answer.session_s)
        if self._granted_s >= self.session_s:
            return False
        self.session_s = self._granted_s
        return True

    def answered(self, answer: AnsweredHeartbeat, applied_index: int, now: float) -> Change | None:
        """An answer arrives at `now`, with the metadata applied up to `applied_index`; called after
        `end_when_over`."""
        if answer.controller_epoch < self._controller_epoch:
            return None
        self._note_heard(answer, now)
        assert self._heard_sent_at is not None
        if answer.metadata_index >= self._fenced_index:
            self.fenced, self._fenced_index = answer.fenced, answer.metadata_index
        if applied_index < self._known_index:
            return None
        if self._heard_sent_at >= self.answered_sent_at:
            self.answered_sent_at, self.session_s = self._heard_sent_at, self._granted_s
        if self._held or self.fenced or self.left_s(now) <= 0:
            return None
        self._held = True
        return Change.REGAINED

    def _note_heard(self, answer: AnsweredHeartbeat, now: float) -> None:
        before = self._heard_sent_at if answer.controller_epoch == self._controller_epoch else None
        if before is None or now >= before + self._granted_s:
            self._known_index = answer.metadata_index
        self._controller_epoch = answer.controller_epoch
        self._heard_sent_at = answer.sent_at if before is None else max(before, answer.sent_at)
