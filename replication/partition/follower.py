"""The follower of one partition in one leader epoch, as a pure core: what to fetch, and what an answer means
for the log.

How a follower whose log has diverged finds its truncation point (KIP-101, KIP-595; docs/semantics.md E3 to
E5)

1. Every fetch names the follower's log end and the leader epoch of its last record.
2. The leader looks that epoch up in its own epoch history (`find_divergence`).  When its history differs it
   sends no records but `diverging_epoch`: the largest epoch it has that is not above the follower's, and the
   end offset of that epoch in the leader's log; where all of the leader's epochs are newer, the follower's
   epoch and the start of the leader's first.
3. The follower truncates to the smaller of both logs' ends of that epoch; when it has no record of that
   epoch, to the end of its largest older epoch, so that the next fetch compares that one; when all of its
   epochs are newer, to the start of its first or the leader's end (`_truncation_point`).
4. The follower fetches again from there.  Steps 1 to 3 repeat until the two histories agree, at most once for
   each leader epoch.

Promises

* The follower truncates **by leader-epoch history only, never by the high watermark**.
* An answer to an earlier fetch neither appends nor truncates: an answer counts only while the leader epoch,
  the log end and the last epoch are still those of its fetch, so late and duplicated answers have no effect.
* Every truncation brings the logs closer together, or the replica fails: the follower reports two logs that
  never agree.
* The follower adopts min(the leader's high watermark, own log end), after the append (rule R6).

`on_answer` returns what to do with the log; it changes nothing itself.  The caller carries it out before it
sends the next fetch, and flushes before that fetch when the flush policy says so: the fetch offset tells the
leader that everything below is durable.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from ...wire.errors import ErrorCode


class EpochEndView(Protocol):
    """`storage.epoch_cache.EpochEnd`: an epoch and its exclusive end offset; (-1, -1) when undefined."""

    @property
    def epoch(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class LogView(Protocol):
    """The follower's own log, as far as the core reads it."""

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
    """One partition of a fetch request.  An answer counts only while the first three are still the follower's
    (`PartitionFollower.on_answer`): they say for which records it was made.  It also counts after the log
    start has moved: the leader only notes that, and what it answers does not depend on it."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(slots=True, frozen=True)
class Answer:
    """One partition of a fetch response, decoded.  `diverging_epoch` is (epoch, end_offset) or None."""

    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    diverging_epoch: tuple[int, int] | None
    records: bytes | memoryview | None
    may_have_offset_gaps: bool = False
    cleaned_at_most: int = -1


@dataclass(slots=True, frozen=True)
class Append:
    """Append `records` (maybe none), adopt min(high_watermark, log end), then move the log start up to
    `leader_log_start` unless that is above the high watermark.

    `may_have_offset_gaps`: offsets may be missing between the batches, because the leader's log was compacted
    once; by a record at `cleaned_at_most` or above, none that this follower lacks.  -1: a leader of an older
    version does not say that.
    """

    records: bytes | memoryview | None
    high_watermark: int
    leader_log_start: int
    may_have_offset_gaps: bool = False
    cleaned_at_most: int = -1


@dataclass(slots=True, frozen=True)
class Truncate:
    """Remove everything from `offset` on, and epoch entries that start there, even when no record lies behind
    `offset`."""

    offset: int


@dataclass(slots=True, frozen=True)
class Restart:
    """Remove all records; the log starts again, empty, at `offset`."""

    offset: int


@dataclass(slots=True, frozen=True)
class BackOff:
    """Leave the log as it is; fetch again after a pause or after newer metadata, whichever comes first."""

    error: ErrorCode


@dataclass(slots=True, frozen=True)
class Fail:
    """Take this replica offline: its log cannot be brought to agree with the leader's."""

    reason: str


class Ignore(enum.Enum):
    """The answer belongs to a fetch whose position is not the follower's any more."""

    STALE = "stale"


Action = Append | Truncate | Restart | BackOff | Fail | Ignore


class PartitionFollower:
    """The state of one followership; see the module's docstring for the rules."""

    __slots__ = ("_last_truncation", "leader", "leader_epoch")

    def __init__(self, *, leader: int, leader_epoch: int) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self._last_truncation: tuple[int, int, tuple[int, int]] | None = None

    def next_fetch(self, log: LogView) -> FetchPosition:
        return FetchPosition(self.leader_epoch, log.log_end_offset, log.latest_epoch, log.noted_start_offset)

    def on_answer(self, sent: FetchPosition, answer: Answer, log: LogView) -> Action:
        """What the caller must do with `log`, as it is now, after `answer` to the fetch `sent`."""
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
        self._last_truncation = None
        return Append(
            answer.records,
            answer.high_watermark,
            answer.log_start_offset,
            answer.may_have_offset_gaps,
            answer.cleaned_at_most,
        )

    def on_refused(self) -> None:
        """The log rejected the last action and did not change (a full disk): the same answer may lead to the
        same action again."""
        self._last_truncation = None

    def _diverged(self, diverging: tuple[int, int], log: LogView) -> Action:
        state = (log.log_end_offset, log.latest_epoch, diverging)
        if state == self._last_truncation:
            return Fail(
                f"truncating the log at {log.log_end_offset} (epoch {log.latest_epoch}) did not "
                "bring it closer to the leader's"
                f" epoch {diverging[0]} ending at {diverging[1]}"
            )
        self._last_truncation = state
        target = self._truncation_point(diverging, log)
        return Restart(target) if target < log.log_start_offset else Truncate(target)

    def _truncation_point(self, diverging: tuple[int, int], log: LogView) -> int:
        """The offset up to which both logs may agree, given the leader's (epoch, end offset); the next fetch
        checks it."""
        diverging_epoch, leader_end = diverging
        # the follower's largest epoch that is not above that one, and its end
        own = log.epoch_end(diverging_epoch)
        # no history to compare, or one that ends below the diverging epoch: the leader's end alone decides
        if own.end_offset < 0:
            return min(leader_end, log.log_end_offset)
        # it has none of the diverging epoch: it keeps its older epochs, which the next fetch compares
        if own.epoch < diverging_epoch:
            return min(own.end_offset, log.log_end_offset)
        # both have the epoch, or all of the follower's are newer (then `epoch_end` gives the start of its
        # first): they agree up to the smaller end
        return min(leader_end, own.end_offset, log.log_end_offset)

    def _out_of_range(self, answer: Answer, log: LogView) -> Action:
        """The follower's log ends below the leader's log start: the follower removes its records and starts
        there.

        A log that ends above the leader's gets a diverging epoch instead, never OFFSET_OUT_OF_RANGE.
        """
        if answer.log_start_offset > log.log_end_offset:
            return Restart(answer.log_start_offset)
        return BackOff(ErrorCode.OFFSET_OUT_OF_RANGE)
