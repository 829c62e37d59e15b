"""The leader's side of replication: the progress of each follower, and what to send next.

    from         to          when
    any          PROBE       a leadership or a connection begins
    REPLICATE    PROBE       the follower has rejected a frame
    SNAPSHOT     PROBE       the follower has installed the snapshot
    PROBE        REPLICATE   an acknowledgement shows where the logs agree
    SNAPSHOT     REPLICATE   the same, by a frame from before: the follower needs no snapshot
    not SNAPSHOT SNAPSHOT    the follower needs entries that the log no longer has

As etcd does: in PROBE at most one frame is on its way, repeated by the heartbeat; in REPLICATE up to
`FRAMES_IN_FLIGHT_MAX`; in SNAPSHOT the chunks of `SnapshotTransfer`.  A lost frame means a new connection
(frames of one connection arrive in order or not at all).

Safety is decided elsewhere: which node leads (`election`), what is committed (`library`), and which answers
count (`voter`).  Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from .contract import Contact, FollowerView
from .failure import RaftFatal
from .messages import AppendEntries, AppendReply, SnapshotReply
from .snapshot_store import SnapshotTransfer
from .state import VoterState

FRAMES_IN_FLIGHT_MAX = 16
FRAMES_PER_SEND_MAX = 8
ENTRIES_PER_FRAME_MAX = 4096
CATCH_UP_COMPACTIONS_MAX = 4  # for so many compactions the entries that a follower wants are kept
_ENTRY_OVERHEAD_BYTES = 20


class Mode(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    """One follower.  `VoterState.match_index`, which is counted, has what it acknowledged with a vote."""

    next_index: int
    mode: Mode = Mode.PROBE
    probe_sent: bool = False
    in_flight: deque[int] = field(default_factory=deque)  # the last index of each unacknowledged frame
    transfer: SnapshotTransfer | None = None
    journal: int = 0  # the id of the journal that gave these answers
    # the last index that this journal acknowledged, with or without a vote
    reached: int = 0
    contact: Contact = field(default_factory=Contact)

    def to_probe(self) -> None:
        self.mode, self.probe_sent, self.transfer = Mode.PROBE, False, None
        self.in_flight.clear()

    def to_replicate(self) -> None:
        self.mode, self.transfer = Mode.REPLICATE, None
        self.in_flight.clear()

    def to_snapshot(self, transfer: SnapshotTransfer) -> None:
        self.mode, self.transfer = Mode.SNAPSHOT, transfer
        self.in_flight.clear()

    def acknowledged(self, match_index: int) -> None:
        while self.in_flight and self.in_flight[0] <= match_index:
            self.in_flight.popleft()


class Replication:
    """Sends to all followers of one leadership after the other."""

    def __init__(self, state: VoterState) -> None:
        self._state = state
        self._progress: dict[int, Progress] = {}

    def begin(self) -> None:
        """A leadership begins: nothing is known of the followers."""
        state = self._state
        self._progress = {other: Progress(state.log.last_index + 1) for other in state.others}
        state.match_index = dict.fromkeys(state.others, 0)
        state.answered_at = dict.fromkeys(state.others, state.now)

    def begin_again(self, follower: int) -> None:
        """A new connection: what was on its way is lost."""
        self._progress[follower].to_probe()
        self._progress[follower].next_index = self._state.log.last_index + 1
        self.send_to(follower)

    # ---- answers -------------------------------------------------------------------------------------------

    def reached(self, follower: int) -> int:
        """The last index that the follower has acknowledged, with or without a vote."""
        return self._progress[follower].reached

    def view(self, follower: int) -> FollowerView:
        return self._progress[follower].contact.view(self._state.now, self._progress[follower].reached)

    def entries_to_keep(self, index: int, followers: Collection[int]) -> int:
        """How many entries up to `index` a trim keeps for these followers, within bounds.  Without this, a
        follower under load that has installed a snapshot finds the entries after it trimmed, and gets the
        next snapshot, for ever."""
        timings = self._state.timings
        if self._state.log.size_bytes >= timings.compact_after_bytes:
            return 0
        wanted = index - min((self._goes_on_from(follower) for follower in followers), default=index)
        return max(
            timings.trailing_entries, min(wanted, CATCH_UP_COMPACTIONS_MAX * timings.compact_after_entries)
        )

    def _goes_on_from(self, follower: int) -> int:
        """The last index that the follower has, or will have with the snapshot that it is being sent."""
        progress = self._progress[follower]
        return progress.reached if progress.transfer is None else progress.transfer.snapshot.index

    def _note(self, follower: int, progress: Progress, reply: AppendReply | SnapshotReply, index: int) -> int:
        """Notes an acknowledgement.  Only that of a journal with a vote enters the table that is counted; a
        new journal begins at 0."""
        if progress.journal != reply.journal:
            progress.journal, progress.reached, self._state.match_index[follower] = reply.journal, 0, 0
        progress.reached = max(progress.reached, index)
        if reply.voting:
            self._state.match_index[follower] = progress.reached
        progress.contact.answered(self._state.now, progress.reached, self._state.log.last_index)
        return progress.reached

    def on_append_reply(self, follower: int, reply: AppendReply) -> None:
        progress, last = self._progress[follower], self._state.log.last_index
        if reply.success:
            if reply.next_index - 1 > last:
                raise RaftFatal(
                    f"node {follower} acknowledges entry {reply.next_index - 1}, but the log ends at {last}"
                )
            match = self._note(follower, progress, reply, reply.next_index - 1)
            progress.acknowledged(match)
            if progress.mode is Mode.PROBE or (
                progress.mode is Mode.SNAPSHOT and match >= self._state.log.first_index
            ):
                progress.to_replicate()
                progress.next_index = match + 1
            progress.next_index = max(progress.next_index, match + 1)
            if progress.next_index <= last:
                self.send_to(follower)
            return
        reached = self._note(follower, progress, reply, 0)
        if progress.mode is not Mode.SNAPSHOT and reply.previous_index >= reached:
            of_this_probe = reply.previous_index == progress.next_index - 1
            # rejections of frames sent before the probe are stale
            if progress.mode is Mode.REPLICATE or of_this_probe:
                wanted = min(reply.next_index, reply.previous_index, last + 1)
                progress.next_index = max(wanted, reached + 1, 2)
                progress.to_probe()
                # A journal that lost what it acknowledged rejects the same probe for ever: the heartbeat
                # repeats it.
                progress.probe_sent = progress.next_index > reply.previous_index
                self.send_to(follower)

    def on_snapshot_reply(self, follower: int, reply: SnapshotReply) -> None:
        progress = self._progress[follower]
        if progress.transfer is None:
            return
        progress.transfer.acknowledge(reply.checksum, reply.received_bytes, self._state.now)
        if reply.last_index:
            progress.next_index = (
                self._note(follower, progress, reply, min(reply.last_index, self._state.log.last_index)) + 1
            )
            progress.to_probe()
        self.send_to(follower)

    # ---- sending -------------------------------------------------------------------------------------------

    def send_to(self, follower: int, *, heartbeat: bool = False, commit_news: bool = False) -> None:
        """Sends what may go now: entries, a probe, chunks of a snapshot; else, on request, an empty frame."""
        progress = self._progress[follower]
        if progress.transfer is not None or progress.next_index <= self._state.log.first_index:
            self._send_snapshot(follower, progress, heartbeat)
            return
        if progress.mode is Mode.PROBE:
            if heartbeat or not progress.probe_sent:
                progress.probe_sent = True
                self._state.send(follower, self._frame(progress.next_index))
            return
        for _ in range(FRAMES_PER_SEND_MAX):
            following = progress.next_index
            if following > self._state.log.last_index or len(progress.in_flight) >= FRAMES_IN_FLIGHT_MAX:
                break
            frame = self._frame(following)
            self._state.send(follower, frame)
            progress.in_flight.append(frame.entries[-1][1])
            progress.next_index = frame.entries[-1][1] + 1
            heartbeat = commit_news = False
        if heartbeat or commit_news:
            self._state.send(follower, self._frame(progress.next_index, empty=True))

    def _frame(self, following: int, *, empty: bool = False) -> AppendEntries:
        state, size, entries = self._state, 0, []
        last = following - 1 if empty else following + ENTRIES_PER_FRAME_MAX - 1
        for entry in state.log.between(following, last):
            entries.append(entry)
            size += len(entry[0]) + _ENTRY_OVERHEAD_BYTES
            if size >= state.timings.batch_bytes:
                break
        previous_term = state.log.term_at(following - 1)
        return AppendEntries(state.term, state.commit_index, following - 1, previous_term, tuple(entries))

    def _send_snapshot(self, follower: int, progress: Progress, heartbeat: bool) -> None:
        """A window of chunks that moves with the follower's answers; empty frames keep its election timer
        quiet meanwhile."""
        if progress.transfer is None:
            snapshot = self._state.snapshot
            if snapshot is None or snapshot.index < self._state.log.first_index:
                raise RaftFatal(
                    f"entries before {self._state.log.first_index} are gone and no snapshot stands for them"
                )
            timings = self._state.timings
            progress.to_snapshot(
                SnapshotTransfer(snapshot, timings.snapshot_chunk_bytes, timings.snapshot_resend_s)
            )
        if progress.transfer is not None:
            for chunk in progress.transfer.chunks(
                self._state.now, self._state.term, self._state.commit_index
            ):
                self._state.send(follower, chunk)
        if heartbeat:
            self._state.send(follower, self._frame(self._state.log.last_index + 1, empty=True))

    # ---- invariants ----------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raises AssertionError when the leader believes of a follower what cannot be."""
        last = self._state.log.last_index
        for follower, progress in self._progress.items():
            match_index = self._state.match_index[follower]
            assert match_index <= progress.reached <= last, (
                f"node {follower}: match {match_index}, reached {progress.reached}, last {last}"
            )
            assert progress.reached < progress.next_index <= last + 1 or progress.mode is Mode.SNAPSHOT, (
                f"node {follower} has entry {progress.reached}, the next one to it is {progress.next_index}"
            )
            assert (progress.mode is Mode.SNAPSHOT) == (progress.transfer is not None), (
                f"node {follower} is in mode {progress.mode.value}, transfer {progress.transfer is not None}"
            )
