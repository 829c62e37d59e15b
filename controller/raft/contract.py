"""The types between the quorum's core and its surroundings: settings, status, proposals, outbox, state
machine.

Values only; the algorithm is in `voter` and the parts that it imports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .messages import Entry, Message
    from .snapshot_store import Snapshot


class Role(IntEnum):
    """What a voter is in its present term; the numbers are PySyncObj's."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


@dataclass(slots=True, frozen=True)
class RaftTimings:
    """Seconds and sizes.  A leader is replaced within about `election_s_max`; PreVote keeps a noisy machine
    from overdoing it."""

    election_s_min: float = 0.5
    election_s_max: float = 1.0
    heartbeat_s: float = 0.1
    hurry_s: float = 0.1  # until a follower whose connection to the leader broke starts an election
    leader_fallback_s: float = 2.0
    batch_bytes: int = 1 << 20
    compact_after_entries: int = 20_000
    compact_after_bytes: int = 64 << 20
    trailing_entries: int = 2_000  # kept behind a snapshot, so that a follower a little behind needs none
    snapshot_chunk_bytes: int = 256 << 10
    snapshot_resend_s: float = 1.0  # chunks are sent again only when none was acknowledged for so long


@dataclass(slots=True, frozen=True)
class QuorumStatus:
    """The quorum as the rest of the node sees it.  Never used for safety: epochs are (docs/raft.md Q18)."""

    role: Role
    term: int
    leader_id: int  # -1: not known
    active: bool  # leader, and the no-op of its own term was applied
    commit_index: int
    last_index: int
    connected: tuple[int, ...] = ()
    # voters without a vote at present, as far as this one knows (`membership`)
    not_voting: tuple[int, ...] = ()
    waits_for: str = ""  # what stands between this node and its vote; "" when it has it


@dataclass(slots=True, frozen=True)
class FollowerView:
    """The leader's view of a follower, for people and tools.  None: never."""

    match_index: int  # the last entry that it acknowledged, with or without a vote
    silent_s: float | None = None  # since its last message
    behind_s: float | None = None  # since it had the leader's whole log


@dataclass(slots=True)
class Contact:
    """When a follower last answered, and when it last had the leader's whole log: monotonic seconds; None:
    never."""

    answered_at: float | None = None
    caught_up_at: float | None = None
    end_at_answer: int = 0

    def answered(self, now: float, reached: int, end: int) -> None:
        """The follower has entry `reached`, while the log ends at `end`.  Under load it never has the whole
        log: once it has reached the end of its last answer, it counts as caught up at that answer."""
        if reached >= end:
            self.caught_up_at = now
        elif self.answered_at is not None and reached >= self.end_at_answer > 0:
            self.caught_up_at = self.answered_at
        self.answered_at, self.end_at_answer = now, end

    def view(self, now: float, match_index: int) -> FollowerView:
        silent_s = None if self.answered_at is None else now - self.answered_at
        return FollowerView(
            match_index, silent_s, None if self.caught_up_at is None else now - self.caught_up_at
        )


class Outbox(Protocol):
    """Where messages leave; may drop them, but of one connection only together with the connection."""

    def send(self, node_id: int, message: Message) -> None: ...


class StateMachine(Protocol):
    """Gets what the quorum commits; called on the Raft thread, in log order, and must not raise."""

    def applied(self, entries: list[Entry]) -> None:
        """Committed entries, each exactly once; the command without its type byte, empty for a no-op."""

    def installed(self, snapshot: Snapshot) -> None:
        """Everything up to `snapshot.index` is replaced by this."""

    def snapshot_wanted(self) -> None:
        """The journal is long: make a snapshot, store it, then call `snapshot_stored`."""

    def status_changed(self, status: QuorumStatus) -> None: ...


@dataclass(slots=True, frozen=True)
class Proposal:
    """A command to append.  The core calls exactly one of the two callbacks, once."""

    command: bytes
    accepted: Callable[[int, int], None]  # (index, term): appended here; whether it commits is not known yet
    refused: Callable[[str], None]  # nothing was appended
