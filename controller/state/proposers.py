"""The outcomes of applied commands by proposer and sequence, so that a duplicate changes nothing.

Part of the replicated state, so it is bounded by counts and orders only, never by time: the `PROPOSERS_MAX`
most recently used proposers, each with its last `WINDOW` outcomes.  A sequence below the window is rejected,
because it may have been applied before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...wire.errors import ErrorCode
from .model import Value

PROPOSERS_MAX = 512
WINDOW = 64


@dataclass(slots=True, frozen=True)
class CommandOutcome:
    """How a command ended."""

    error: ErrorCode
    message: str
    value: Value


@dataclass(slots=True, frozen=True)
class ProposerMemory:
    """One proposer: every sequence up to `floor` is closed; `seen` are those above it that were applied,
    ascending."""

    floor: int
    seen: dict[int, CommandOutcome]


_TOO_OLD = CommandOutcome(
    ErrorCode.INVALID_REQUEST, "this request is older than what is remembered of its sender", None
)


class ProposerTable:
    """Least recently used first."""

    __slots__ = ("_memories",)

    def __init__(self, memories: Iterable[tuple[str, ProposerMemory]] = ()) -> None:
        self._memories = dict(memories)

    def find(self, proposer: str, sequence: int) -> CommandOutcome | None:
        memory = self._memories.get(proposer)
        if memory is None:
            return None
        return _TOO_OLD if sequence <= memory.floor else memory.seen.get(sequence)

    def remember(self, proposer: str, sequence: int, error: ErrorCode, message: str, value: Value) -> None:
        memory = self._memories.pop(proposer, None)
        seen = dict(memory.seen) if memory is not None else {}
        floor = memory.floor if memory is not None else -(2**63)
        seen[sequence] = CommandOutcome(error, message, value)
        if len(seen) > WINDOW:
            floor = min(seen)
            del seen[floor]
        self._memories[proposer] = ProposerMemory(floor, seen)
        if len(self._memories) > PROPOSERS_MAX:
            del self._memories[next(iter(self._memories))]

    def freeze(self) -> tuple[tuple[str, ProposerMemory], ...]:
        """Safe to read on another thread: a memory is replaced, never changed."""
        return tuple(self._memories.items())
