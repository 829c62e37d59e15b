"""What the quorum's core and its surroundings say to each other: settings, status, proposals, and who is told.

Values only; the algorithm is in `core` and `replication`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .messages import Entry, Message
    from .snapshot_store import Snapshot


@dataclass(slots=True, frozen=True)
class RaftTimings:
    """Seconds and sizes.  A leader is replaced within about `election_s_max`; PreVote keeps a noisy machine from overdoing it."""

    election_s_min: float = 0.5
    election_s_max: float = 1.0
    heartbeat_s: float = 0.1
    hurry_s: float = 0.1  # until a follower stands whose connection to the leader broke
    leader_fallback_s: float = 2.0
    batch_bytes: int = 1 << 20
    compact_after_entries: int = 20_000
    compact_after_bytes: int = 64 << 20
    trailing_entries: int = 2_000  # kept behind a snapshot, so that a follower a little behind needs none
    snapshot_chunk_bytes: int = 256 << 10
    snapshot_resend_s: float = 1.0  # chunks are sent again only when none was acknowledged for so long


@dataclass(slots=True, frozen=True)
class QuorumStatus:
    """What the rest of the node may know of the quorum.  Never used for safety: epochs are (docs/raft.md Q18)."""

    role: int
    term: int
    leader_id: int  # -1: not known
    active: bool  # leader, and the no-op of its own term was applied
    commit_index: int
    last_index: int
    connected: tuple[int, ...] = ()
    not_voting: tuple[int, ...] = ()  # voters without a vote at present, as far as this one knows (`membership`)
    waits_for: str = ""  # what stands between this node and its vote; "" when it has it


@dataclass(slots=True, frozen=True)
class FollowerView:
    """What the leader knows of a follower; for people and tools.  None: never."""

    match_index: int
    silent_s: float | None = None  # since it was heard last
    behind_s: float | None = None  # since it had all that there was


@dataclass(slots=True)
class Contact:
    """When a follower was heard last, and when it had all there was: monotonic seconds; None: never."""

    heard_at: float | None = None
    caught_up_at: float | None = None
    end_when_heard: int = 0

    def heard(self, now: float, reached: int, end: int) -> None:
        """The follower has `reached`, while the log ends at `end`.  Under load it never has all of what is there now: it was
        caught up at the moment whose end it has reached."""
        if reached >= end:
            self.caught_up_at = now
        elif self.heard_at is not None and reached >= self.end_when_heard > 0:
            self.caught_up_at = self.heard_at
        self.heard_at, self.end_when_heard = now, end

    def view(self, now: float, match_index: int) -> FollowerView:
        silent_s = None if self.heard_at is None else now - self.heard_at
        return FollowerView(match_index, silent_s, None if self.caught_up_at is None else now - self.caught_up_at)


class Outbox(Protocol):
    """Where messages leave; may drop them, but of one connection only together with the connection."""

    def send(self, node_id: int, message: Message) -> None: ...


class StateMachine(Protocol):
    """Who is told; called on the Raft thread, in log order, and must not raise."""

    def applied(self, entries: list[Entry]) -> None:
        """Committed entries, each exactly once; the command without its type byte, empty for a no-op."""

    def installed(self, snapshot: Snapshot) -> None:
        """Everything up to `snapshot.index` is replaced by this."""

    def snapshot_wanted(self) -> None:
        """The journal is long: make a snapshot, store it, then call `snapshot_stored`."""

    def status_changed(self, status: QuorumStatus) -> None: ...


@dataclass(slots=True, frozen=True)
class Proposal:
    """A command on its way into the log.  Exactly one of the two is called, once."""

    command: bytes
    accepted: Callable[[int, int], None]  # (index, term): appended here; whether it commits is not known yet
    refused: Callable[[str], None]  # nothing was appended
