"""What the takers of cuts ask of a transaction shard (`decision_holds.py`): plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class HoldDecisions:
    """No commit is decided or completed from now on, for `hold_ms` at most.  hold_id: of one attempt to take
    a cut."""

    hold_id: str
    hold_ms: int


@dataclass(slots=True, frozen=True)
class ReleaseDecisions:
    """Ends the hold that was answered with this `until_ms`; -1: the answer did not come."""

    hold_id: str
    leader_epoch: int
    until_ms: int


@dataclass(slots=True, frozen=True)
class ExpireHolds:
    """Timer: no hold is left, and requests still wait for its end."""


CutEvent = HoldDecisions | ReleaseDecisions | ExpireHolds


@dataclass(slots=True, frozen=True)
class HeldReply:
    """until_ms: the end of the hold by the shard's clock.  decided: the producer ids of the commits that are
    decided, and perhaps not completed."""

    leader_epoch: int
    until_ms: int
    decided: frozenset[int]


@dataclass(slots=True, frozen=True)
class ReleasedReply:
    """has_held: since the answer to HoldDecisions no commit was decided or completed."""

    has_held: bool


CutReply = HeldReply | ReleasedReply
