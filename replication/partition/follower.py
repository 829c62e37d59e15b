"""The follower of one partition in one leader epoch, as a pure core: what to fetch, and what an answer means for the log.

Promises

* A log is cut **by leader-epoch history only, never by the high watermark** (KIP-101).  Every fetch says the epoch of the last
  record it follows on; a leader whose history differs answers with the largest epoch it knows that is not greater, and that
  epoch's end (`diverging_epoch`, KIP-595).  We cut to the smaller of the two logs' ends of that epoch and ask again: the loop
  goes on until both agree, however many fast elections lie between (docs/semantics.md E4, E5).
* Nothing is appended or cut by an answer to an old question: an answer counts only for the leader epoch, log end and last epoch
  of the fetch it belongs to, so late and duplicated answers have no effect.
* Every cut makes progress or the replica fails: two logs that never agree are reported, not retried for ever.
* The high watermark adopted is min(leader's, own log end), after the append (rule R6).

`on_answer` returns what to do with the log; it changes nothing itself.  The caller carries it out before it sends the next fetch,
and flushes before that fetch when the flush policy says so: the fetch offset is the follower's word that all below is durable.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from ...wire.errors import ErrorCode


class EpochEndView(Protocol):
    """`storage.log.EpochEnd`: an epoch and its exclusive end offset; (-1, -1) when undefined."""

    @property
    def epoch(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class LogView(Protocol):
    """What a follower needs to know of its own log."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def noted_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def latest_epoch(self) -> int: ...
    def epoch_end(self, epoch: int) -> EpochEndView: ...


@dataclass(slots=True, frozen=True)
class FetchPosition:
    """One partition of a fetch request: everything the answer's validity depends on."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(slots=True, frozen=True)
class Answer:
    """One partition of a fetch answer, freed of its wire form.  `diverging_epoch` is (epoch, end_offset) or None."""

    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None
    records: bytes | memoryview | None
    may_have_offset_gaps: bool = False


@dataclass(slots=True, frozen=True)
class Append:
    """Append `records` (maybe none), then adopt min(high_watermark, log end), then the leader's log start if committed.

    `may_have_offset_gaps`: offsets may be missing between them, because the leader's log was compacted once.
    """

    records: bytes | memoryview | None
    high_watermark: int
    leader_log_start: int
    may_have_offset_gaps: bool = False


@dataclass(slots=True, frozen=True)
class Truncate:
    """Remove everything from `offset` on, and epoch entries that start there, even when no record lies behind `offset`."""

    offset: int


@dataclass(slots=True, frozen=True)
class Restart:
    """Remove everything; the log begins anew at `offset`."""

    offset: int


@dataclass(slots=True, frozen=True)
class BackOff:
    """Nothing to do with the log: ask again after a pause, or after newer metadata, whichever comes first."""

    error: ErrorCode


@dataclass(slots=True, frozen=True)
class Fail:
    """This replica cannot go on without help."""

    reason: str


class Ignore(enum.Enum):
    """The answer belongs to a question that is no longer ours."""

    STALE = "stale"


Action = Append | Truncate | Restart | BackOff | Fail | Ignore


class PartitionFollower:
    """The state of one followership; see the module's docstring for the rules."""

    __slots__ = ("_last_cut", "leader", "leader_epoch")

    def __init__(self, *, leader: int, leader_epoch: int) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self._last_cut: tuple[int, int, tuple[int, int]] | None = None

    def next_fetch(self, log: LogView) -> FetchPosition:
        return FetchPosition(self.leader_epoch, log.log_end_offset, log.latest_epoch, log.noted_start_offset)

    def on_answer(self, sent: FetchPosition, answer: Answer, log: LogView) -> Action:
        """What `answer` to the fetch `sent` means for `log` as it is now."""
        if (
            sent.leader_epoch != self.leader_epoch
            or sent.fetch_offset != log.log_end_offset
            or sent.last_fetched_epoch != log.latest_epoch
        ):
            return Ignore.STALE
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(answer, log)
        if answer.error is not ErrorCode.NONE:
            return BackOff(answer.error)
        if answer.diverging_epoch is not None:
            return self._diverged(answer.diverging_epoch, log)
        self._last_cut = None
        return Append(answer.records, answer.high_watermark, answer.log_start_offset, answer.may_have_offset_gaps)

    def on_refused(self) -> None:
        """The last action was refused and changed nothing (a full disk): the same answer may lead to it again."""
        self._last_cut = None

    def _diverged(self, diverging: tuple[int, int], log: LogView) -> Action:
        state = (log.log_end_offset, log.latest_epoch, diverging)
        if state == self._last_cut:
            return Fail(
                f"cutting the log at {log.log_end_offset} (epoch {log.latest_epoch}) did not bring it closer to the leader's"
                f" epoch {diverging[0]} ending at {diverging[1]}"
            )
        self._last_cut = state
        target = self._truncation_point(diverging, log)
        return Restart(target) if target < log.log_start_offset else Truncate(target)

    def _truncation_point(self, diverging: tuple[int, int], log: LogView) -> int:
        """The end of what both logs may have in common; the next fetch tells whether it was enough."""
        leader_epoch, leader_end = diverging
        own = log.epoch_end(leader_epoch)
        if own.end_offset < 0:  # all our epochs are newer than anything the leader has below our end
            return min(leader_end, log.log_end_offset)
        if own.epoch != leader_epoch:
            # We never saw that epoch.  What we have of older epochs may still be shared: cut to there, and ask about those.
            return min(own.end_offset, log.log_end_offset)
        return min(leader_end, own.end_offset, log.log_end_offset)

    def _out_of_range(self, answer: Answer, log: LogView) -> Action:
        """Our end lies below the leader's log start: nothing of our log adjoins the leader's, so begin where it begins.

        An end above the leader's is never answered like this, but with a diverging epoch.
        """
        if answer.log_start_offset > log.log_end_offset:
            return Restart(answer.log_start_offset)
        return BackOff(ErrorCode.OFFSET_OUT_OF_RANGE)
