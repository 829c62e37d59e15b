"""Holds: while a transaction-consistent cut is taken, a shard decides no commit, and completes none
(docs/cuts.md, docs/semantics.md K1 to K3).

Held wait: an EndTxn that would decide a commit, a CommitJob that would, and the record of COMPLETE after a
commit.  Aborts, new transactions and everything else go on.

Promises
- The answer to HoldDecisions leaves when all that the shard wrote before is committed: the runtime parks it.
  So the commits that it names are decided for ever.
- COMPLETE waits, too: the producer of a decided transaction begins no other one while its decision is named.
- A shard is held for `HOLD_MS_MAX` without a break, however many cuts are taken, and then as long not at all:
  each commit is delayed by no more than that.
- A held request is judged anew when the hold ends, or as soon as something else ends its transaction or job:
  an abort, a new instance of the producer, never the transaction's own timeout.  That request came in time.

Volatile: a shard that is loaded knows no hold, and its taker learns so (`ReleasedReply`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from ...wire.errors import ErrorCode, KafkaError
from ..outcome import NO_TOKEN, Context, Reply, Wait, Write
from .cut_events import CutEvent, ExpireHolds, HeldReply, HoldDecisions, ReleaseDecisions, ReleasedReply
from .events import CompleteHeld, Done, MarkersWritten, TransactionIdentity, TransactionOutcome
from .job_book import JobBook
from .jobs import JobId, JobState
from .state import TransactionMetadata

HOLD_MS_MAX: Final = 2_000
"""Without a break, of all cuts together."""
HOLDS_MAX: Final = 16
"""Cuts that hold a shard at the same time."""
HELD_REQUESTS_MAX: Final = 10_000
"""More get CONCURRENT_TRANSACTIONS, which every client repeats."""
DECIDED_MAX: Final = 100_000
"""Producer ids in one answer."""

Subject = str | JobId
"""Of a decision: a transactional id, or a job."""


class DecidedPort(Protocol):
    """What is decided, as the holds ask for it."""

    transactions: dict[str, TransactionMetadata]
    decided: dict[str, None]
    marked: dict[str, TransactionIdentity]

    @property
    def book(self) -> JobBook: ...


class DecisionHolds:
    """Of one shard."""

    def __init__(self, port: DecidedPort) -> None:
        self._port = port
        self._until_ms: dict[str, int] = {}
        """Of each cut that holds; those in the past count no more."""
        self._began_ms = 0
        """Of the holds without a break."""
        self._next_ms = 0
        """No hold begins earlier."""
        self._waiting: dict[Subject, list[int]] = {}
        self._held = 0
        """Requests that wait, of all subjects."""

    def handle(self, event: CutEvent, context: Context) -> TransactionOutcome:
        match event:
            case HoldDecisions():
                return self._hold(event, context)
            case ReleaseDecisions():
                held = self._release(event, context)
                return self._resumed(ReleasedReply(held), context.now_ms)
            case ExpireHolds():
                return self._resumed(Done(), context.now_ms)

    def is_held(self, now_ms: int) -> bool:
        return any(until_ms > now_ms for until_ms in self._until_ms.values())

    # --- cuts -----------------------------------------------------------------------------------------------

    def _hold(self, event: HoldDecisions, context: Context) -> TransactionOutcome:
        now_ms = context.now_ms
        for hold_id in [hold_id for hold_id, until_ms in self._until_ms.items() if until_ms <= now_ms]:
            self._end(hold_id, now_ms)
        if event.hold_id in self._until_ms:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{event.hold_id} holds this shard already")
        if not self._until_ms:
            if now_ms < self._next_ms or self._waiting:
                message = "commits that waited for another cut are being decided: try again"
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message)
            self._began_ms = now_ms
        if len(self._until_ms) >= HOLDS_MAX:
            message = f"{HOLDS_MAX} cuts are being taken: try again"
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message)
        decided = self._decided()
        if len(decided) > DECIDED_MAX:
            message = (
                f"{len(decided)} commits are decided and not completed: at most {DECIDED_MAX} can be named"
            )
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message)
        until_ms = min(now_ms + max(event.hold_ms, 0), self._began_ms + HOLD_MS_MAX)
        self._until_ms[event.hold_id] = until_ms
        return Reply(HeldReply(context.leader_epoch, until_ms, decided))

    def _decided(self) -> frozenset[int]:
        port = self._port
        entries = (port.transactions[name] for name in port.decided)
        found = {entry.producer_id for entry in entries if entry.state.commits}
        for job_id in port.book.unfinished:
            job = port.book.jobs[job_id]
            if job.state is JobState.COMMITTED:
                found |= self._winners(job.winners)
        return frozenset(found)

    @staticmethod
    def _winners(winners: Sequence[tuple[str, int, int]]) -> set[int]:
        return {producer_id for _, producer_id, _ in winners}

    def _release(self, event: ReleaseDecisions, context: Context) -> bool:
        """Whether it is the very hold that was answered, and not over."""
        until_ms = self._until_ms.get(event.hold_id)
        if until_ms is None:
            return False
        self._end(event.hold_id, context.now_ms)
        is_same = (event.leader_epoch, event.until_ms) == (context.leader_epoch, until_ms)
        return is_same and until_ms > context.now_ms

    def _end(self, hold_id: str, now_ms: int) -> None:
        ended_ms = min(self._until_ms.pop(hold_id), now_ms)
        if not self._until_ms:
            self._next_ms = ended_ms + max(1, ended_ms - self._began_ms)

    def _resumed(self, reply: ReleasedReply | Done, now_ms: int) -> TransactionOutcome:
        """What waited is handled anew once nothing holds any more."""
        if self.is_held(now_ms):
            return Reply(reply)
        for hold_id in list(self._until_ms):
            self._end(hold_id, now_ms)
        tokens = [token for waiting in self._waiting.values() for token in waiting]
        self._waiting.clear()
        self._held = 0
        events = tuple(
            MarkersWritten(identity)
            for name, identity in self._port.marked.items()
            if self._port.transactions[name].state.commits
        )
        return Write((), reply, (CompleteHeld(events),) if events else (), resume=tokens)

    # --- requests -------------------------------------------------------------------------------------------

    def keep(self, subject: Subject, context: Context) -> TransactionOutcome:
        """The outcome of a request that would decide a commit of this subject."""
        if self._held >= HELD_REQUESTS_MAX or context.token == NO_TOKEN:
            message = f"{subject}: a cut is being taken, and {self._held} commits wait: retry"
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, message)
        self._held += 1
        self._waiting.setdefault(subject, []).append(context.token)
        return Wait()

    def waits(self, subject: Subject) -> bool:
        """Whether a commit of it was asked for, and waits."""
        return subject in self._waiting

    def tokens_of(self, subject: Subject) -> Sequence[int]:
        return self._waiting.get(subject, ())

    def remove(self, subject: Subject) -> None:
        """Its end is decided: the shard handles those requests anew."""
        self._held -= len(self._waiting.pop(subject, ()))

    def is_overdue(self, now_ms: int) -> bool:
        return bool(self._until_ms or self._waiting) and not self.is_held(now_ms)

    @property
    def waiting(self) -> Mapping[Subject, Sequence[int]]:
        """The tokens of the requests that wait."""
        return self._waiting
