"""The lease on leadership, as the broker counts it from the answers to its heartbeats.  Pure: times are given.

A heartbeat that was sent at `sent_at` and answered, however late, is good for one session from `sent_at`: the controller counts
from when it arrived, which is no earlier.  Several are under way at a time and answers come in any order, so each kind of news
has an order of its own, and what is older never undoes what is newer:

* The lease goes by the latest `sent_at` that was answered.
* Whether the broker is fenced goes by the metadata index that the controller had applied when it answered: one index, one state.
* An answer from an earlier controller epoch than one heard of counts for nothing.

An answer alone does not renew.  The controller may have fenced this broker, and had others elected, before it heard of it
(again): in its silence, or while a deposed controller still answered.  Those elections are in the metadata that the controller
had at its answer (it waits for a fencing that is under way), so the broker first applies the metadata up to `known_index`.  That
is taken from the first answer of a controller epoch, and again from the first one after a whole session for which no answer of
that controller is good.  In between it cannot have fenced this broker for its silence, so the index stays, and a broker that is
always a little behind the controller still renews.

Controllers may have different session timeouts, by their files, so each answer names that of its controller.  A shorter one
shortens at once what an earlier controller granted; a longer one, up to what the registration allowed, comes only with a
heartbeat that this controller has answered and that renews.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(slots=True, frozen=True)
class HeartbeatAnswer:
    """What one answered heartbeat tells."""

    sent_at: float
    controller_epoch: int
    metadata_index: int
    fenced: bool
    session_s: float = 0.0
    """The controller's session; 0: it does not say."""


class Change(Enum):
    """What became of the session."""

    LOST = auto()
    REGAINED = auto()


class Lease:
    """See the module's text.  `session_s` is at most the broker's own and that of the registration."""

    __slots__ = (
        "_controller_epoch", "_fenced_index", "_granted_s", "_heard_sent_at", "_held", "_known_index", "_session_s_max",
        "answered_sent_at", "fenced", "session_s",
    )  # fmt: skip

    def __init__(self, session_s: float, now: float) -> None:
        self.session_s = self._session_s_max = self._granted_s = session_s
        self.answered_sent_at = now  # the lease counts from here
        self.fenced = True
        self._held = True
        self._controller_epoch = 0
        self._known_index = 0
        self._heard_sent_at: float | None = None  # the latest that the controller of this epoch has answered, renewing or not
        self._fenced_index = -1

    def begin(self, session_s: float, now: float) -> None:
        """The broker is registered, and fenced."""
        self.session_s = self._session_s_max = self._granted_s = min(self.session_s, session_s or self.session_s)
        self.answered_sent_at = now

    def left_s(self, now: float) -> float:
        return self.answered_sent_at + self.session_s - now

    def holds(self, now: float) -> bool:
        return self._held and self.left_s(now) > 0

    @property
    def is_lost(self) -> bool:
        """As far as it was noticed, by `end_when_over`."""
        return not self._held

    def end_when_over(self, now: float) -> Change | None:
        """To be called before the lease is renewed, too: this process may have slept, and its timers are still to run."""
        if self.left_s(now) > 0 or not self._held:
            return None
        self._held = False
        return Change.LOST

    def shorten(self, answer: HeartbeatAnswer) -> bool:
        """Before `end_when_over` and `answered`: by the session of this controller the lease may be over already.  True: it ends
        earlier than before."""
        if answer.controller_epoch < self._controller_epoch or answer.session_s <= 0:
            return False
        self._granted_s = min(self._session_s_max, answer.session_s)
        if self._granted_s >= self.session_s:
            return False
        self.session_s = self._granted_s
        return True

    def answered(self, answer: HeartbeatAnswer, applied_index: int, now: float) -> Change | None:
        """Takes in an answer that arrives `now`, when the metadata is applied up to `applied_index`; after `end_when_over`."""
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

    def _note_heard(self, answer: HeartbeatAnswer, now: float) -> None:
        before = self._heard_sent_at if answer.controller_epoch == self._controller_epoch else None
        if before is None or now >= before + self._granted_s:
            self._known_index = answer.metadata_index
        self._controller_epoch = answer.controller_epoch
        self._heard_sent_at = answer.sent_at if before is None else max(before, answer.sent_at)
