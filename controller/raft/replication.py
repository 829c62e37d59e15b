"""The leader's side of replication: the progress of each follower, and what to send next.

    PROBE ----- an acknowledgement shows where the logs agree ----> REPLICATE
      ^ ^                                                               |
      | +---- rejected frame, new connection -------------------------- +
      |
      +--- installed <--- SNAPSHOT <--- the follower needs entries that the journal no longer has

As etcd does: in PROBE at most one frame is on its way, repeated by the heartbeat; in REPLICATE up to
`FRAMES_IN_FLIGHT_MAX`.  A lost frame means a new connection (frames of one connection arrive in order or not
at all), and a new connection means PROBE.

Safety is decided in `core.py`: which node leads, what is committed, and which answers count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from .contract import Contact, FollowerView, Outbox, RaftTimings
from .failure import RaftFatal
from .messages import AppendEntries, AppendReply, SnapshotReply
from .snapshot_store import SnapshotStore, SnapshotTransfer

if TYPE_CHECKING:
    from .journal import DurableJournal

FRAMES_IN_FLIGHT_MAX = 16
FRAMES_PER_SEND_MAX = 8
ENTRIES_PER_FRAME_MAX = 4096
CATCH_UP_COMPACTIONS_MAX = 4  # for so many compactions the entries that a follower wants are kept
_ENTRY_OVERHEAD_BYTES = 20


class LeaderState(Protocol):
    """What the sending side reads of the leader's core."""

    @property
    def term(self) -> int: ...

    @property
    def last_index(self) -> int: ...

    @property
    def commit_index(self) -> int: ...

    @property
    def timings(self) -> RaftTimings: ...

    def now(self) -> float:
        """Monotonic seconds."""


class Mode(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    """One follower; its next and match index live in PySyncObj's own tables, which its commit rule reads."""

    mode: Mode = Mode.PROBE
    probe_sent: bool = False
    in_flight: deque[int] = field(default_factory=deque)  # the last index of each unacknowledged frame
    transfer: SnapshotTransfer | None = None
    journal: int = 0  # the id of the journal that gave these answers
    # the last index that this journal acknowledged; PySyncObj's table, which counts, has it only with a vote
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

    def __init__(
        self, leader: LeaderState, journal: DurableJournal, snapshots: SnapshotStore, outbox: Outbox
    ) -> None:
        self._leader, self._journal, self._snapshots, self._outbox = leader, journal, snapshots, outbox
        self._progress: dict[Any, Progress] = {}
        self._next: dict[Any, int] = {}
        self._match: dict[Any, int] = {}

    def begin(self, nodes: Collection[Any], next_index: dict[Any, int], match_index: dict[Any, int]) -> None:
        """A leadership begins; the two tables are PySyncObj's, shared."""
        self._progress = {node: Progress() for node in nodes}
        self._next, self._match = next_index, match_index

    def begin_again(self, node: Any) -> None:
        """A new connection: what was on its way is lost."""
        self._progress[node].to_probe()
        self._next[node] = self._leader.last_index + 1
        self.send_to(node)

    # ---- answers -------------------------------------------------------------------------------------------

    def reached(self, node: Any) -> int:
        """The last index that the follower has acknowledged, with or without a vote."""
        return self._progress[node].reached

    def view(self, node: Any) -> FollowerView:
        return self._progress[node].contact.view(self._leader.now(), self._progress[node].reached)

    def entries_to_keep(self, index: int, followers: Collection[Any]) -> int:
        """How many entries up to `index` a trim keeps for these followers, within bounds.  Without this, a
        follower under load that has installed a snapshot finds the entries after it trimmed, and gets the
        next snapshot, for ever."""
        timings = self._leader.timings
        if self._journal.size_bytes >= timings.compact_after_bytes:
            return 0
        wanted = index - min((self._goes_on_from(node) for node in followers), default=index)
        return max(
            timings.trailing_entries, min(wanted, CATCH_UP_COMPACTIONS_MAX * timings.compact_after_entries)
        )

    def _goes_on_from(self, node: Any) -> int:
        """The last index that the follower has, or will have with the snapshot that it is being sent."""
        progress = self._progress[node]
        return progress.reached if progress.transfer is None else progress.transfer.snapshot.index

    def _note(self, node: Any, progress: Progress, reply: AppendReply | SnapshotReply, index: int) -> int:
        """Notes an acknowledgement.  Only a journal with a vote enters the table that PySyncObj counts; a new
        journal begins at 0."""
        if progress.journal != reply.journal:
            progress.journal, progress.reached, self._match[node] = reply.journal, 0, 0
        progress.reached = max(progress.reached, index)
        if reply.voting:
            self._match[node] = progress.reached
        progress.contact.answered(self._leader.now(), progress.reached, self._leader.last_index)
        return progress.reached

    def on_append_reply(self, node: Any, reply: AppendReply) -> None:
        progress, last = self._progress[node], self._leader.last_index
        if reply.success:
            if reply.next_index - 1 > last:
                raise RaftFatal(
                    f"node {node.id} acknowledges entry {reply.next_index - 1}, but the log ends at {last}"
                )
            match = self._note(node, progress, reply, reply.next_index - 1)
            progress.acknowledged(match)
            if progress.mode is Mode.PROBE or (
                progress.mode is Mode.SNAPSHOT and match >= self._journal[0][1]
            ):
                progress.to_replicate()
                self._next[node] = match + 1
            self._next[node] = max(self._next[node], match + 1)
            if self._next[node] <= last:
                self.send_to(node)
            return
        reached = self._note(node, progress, reply, 0)
        if progress.mode is not Mode.SNAPSHOT and reply.previous_index >= reached:
            of_this_probe = reply.previous_index == self._next[node] - 1
            # rejections of frames sent before the probe are stale
            if progress.mode is Mode.REPLICATE or of_this_probe:
                wanted = min(reply.next_index, reply.previous_index, last + 1)
                self._next[node] = max(wanted, reached + 1, 2)
                progress.to_probe()
                self.send_to(node)

    def on_snapshot_reply(self, node: Any, reply: SnapshotReply) -> None:
        progress = self._progress[node]
        if progress.transfer is None:
            return
        progress.transfer.acknowledge(reply.checksum, reply.received_bytes, self._leader.now())
        if reply.last_index:
            self._next[node] = (
                self._note(node, progress, reply, min(reply.last_index, self._leader.last_index)) + 1
            )
            progress.to_probe()
        self.send_to(node)

    # ---- sending -------------------------------------------------------------------------------------------

    def send_to(self, node: Any, *, heartbeat: bool = False, commit_news: bool = False) -> None:
        """Sends what may go now: entries, a probe, chunks of a snapshot; else, on request, an empty frame."""
        progress = self._progress[node]
        if progress.transfer is not None or self._next[node] <= self._journal[0][1]:
            self._send_snapshot(node, progress, heartbeat)
            return
        if progress.mode is Mode.PROBE:
            if heartbeat or not progress.probe_sent:
                progress.probe_sent = True
                self._outbox.send(node.id, self._frame(self._next[node]))
            return
        for _ in range(FRAMES_PER_SEND_MAX):
            following = self._next[node]
            if following > self._leader.last_index or len(progress.in_flight) >= FRAMES_IN_FLIGHT_MAX:
                break
            frame = self._frame(following)
            self._outbox.send(node.id, frame)
            progress.in_flight.append(frame.entries[-1][1])
            self._next[node] = frame.entries[-1][1] + 1
            heartbeat = commit_news = False
        if heartbeat or commit_news:
            self._outbox.send(node.id, self._frame(self._next[node], empty=True))

    def _frame(self, following: int, *, empty: bool = False) -> AppendEntries:
        first, size, entries = self._journal[0][1], 0, []
        for entry in self._journal[
            following - first : following - first + (0 if empty else ENTRIES_PER_FRAME_MAX)
        ]:
            entries.append(entry)
            size += len(entry[0]) + _ENTRY_OVERHEAD_BYTES
            if size >= self._leader.timings.batch_bytes:
                break
        previous_term = self._journal[following - 1 - first][2]
        return AppendEntries(
            self._leader.term, self._leader.commit_index, following - 1, previous_term, tuple(entries)
        )

    def _send_snapshot(self, node: Any, progress: Progress, heartbeat: bool) -> None:
        """A window of chunks that moves with the follower's answers; empty frames keep its election timer
        quiet meanwhile."""
        if progress.transfer is None:
            snapshot = self._snapshots.latest
            if snapshot is None or snapshot.index < self._journal[0][1]:
                raise RaftFatal(
                    f"entries before {self._journal[0][1]} are gone and no snapshot stands for them"
                )
            timings = self._leader.timings
            progress.to_snapshot(
                SnapshotTransfer(snapshot, timings.snapshot_chunk_bytes, timings.snapshot_resend_s)
            )
        if progress.transfer is not None:
            for chunk in progress.transfer.chunks(
                self._leader.now(), self._leader.term, self._leader.commit_index
            ):
                self._outbox.send(node.id, chunk)
        if heartbeat:
            self._outbox.send(node.id, self._frame(self._leader.last_index + 1, empty=True))
