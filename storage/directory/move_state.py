"""The state of a log that has a place in more than one data folder of a node: `replica-move`, one word beside
the log.

    future      a copy that is not complete (KIP-113): never used as the log, whatever else is missing
    leaving     the log in use, or the log of before: its future replica is complete and about to take its
                place
    (none)      the log in use
    stayed      the log in use; the removal that decides the move failed, so the future replica may look like
                the log

The states are a total order; the last one wins.  **The decision of a move is one removal: that of `future`
beside the new log.** Before it, `leaving` is durable beside the old log, and after it nothing is acknowledged
until the old log has lost its name.  So at every crash one of the two logs is known to have all acknowledged
records; the other one is removed, or stays a future replica.

While a data folder cannot be read, a log that is `leaving` is not used: the other one may be in that folder,
with more records.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path

from ...runtime.disk import Disk
from ..checkpoint import CheckpointInvalid, encode_value, parse_value

REPLICA_MOVE = "replica-move"


class MoveState(enum.IntEnum):
    """See the module's text; a higher state wins."""

    UNKNOWN = 0
    """The file cannot be read."""
    FUTURE = 1
    LEAVING = 2
    CURRENT = 3
    STAYED = 4


class Verdict(enum.Enum):
    """What a start does with one of the logs."""

    USE = "use"
    USE_UNMARKED = "use_plain"
    """Use it, after its `replica-move` file is removed."""
    FUTURE = "future"
    REMOVE = "remove"
    HOLD = "hold"
    """Leave it as it is, and do not use it."""


class TwinLogs(Exception):
    """Two logs claim to be the partition's log, and their states do not decide between them."""


def read_move_state(disk: Disk, directory: Path) -> MoveState:
    """Raises OSError."""
    path = directory / REPLICA_MOVE
    if not disk.exists(path):
        return MoveState.CURRENT
    try:
        found = parse_value(disk.read(path), lambda name: MoveState[name.upper()])
    except CheckpointInvalid:
        return MoveState.UNKNOWN
    return found if found in (MoveState.FUTURE, MoveState.LEAVING, MoveState.STAYED) else MoveState.UNKNOWN


def write_move_state(disk: Disk, directory: Path, state: MoveState) -> None:
    """Durably.  Raises OSError."""
    if state is not MoveState.CURRENT:
        disk.write_atomic(directory / REPLICA_MOVE, encode_value(state.name.lower()))
    elif disk.exists(directory / REPLICA_MOVE):
        disk.remove(directory / REPLICA_MOVE)
        disk.sync_directory(directory)


def resolve_twins(states: Mapping[Path, MoveState], *, some_failed: bool) -> dict[Path, Verdict]:
    """The verdict on each log of one partition, by data folder.  `some_failed`: a data folder cannot be read.

    Raises TwinLogs.
    """
    assert states
    best = max(states.values())
    if len(states) > 1 and MoveState.UNKNOWN in states.values():
        raise TwinLogs
    winners = [place for place, state in states.items() if state is best]
    if best is MoveState.FUTURE:  # the log itself is on a disk that failed or was replaced
        return dict.fromkeys(states, Verdict.HOLD if some_failed else Verdict.REMOVE)
    if len(winners) > 1:
        raise TwinLogs
    verdicts = {place: _of_other(state, best) for place, state in states.items()}
    futures = [place for place, verdict in verdicts.items() if verdict is Verdict.FUTURE]
    for place in futures[1:]:  # the move changed its target while one folder could not be written
        verdicts[place] = Verdict.REMOVE
    verdicts[winners[0]] = _of_winner(best, some_failed=some_failed, has_future=bool(futures))
    return verdicts


def _of_other(state: MoveState, best: MoveState) -> Verdict:
    # A log that the winner replaced has fewer records; a future replica of the winner continues.
    return Verdict.FUTURE if state is MoveState.FUTURE and best is not MoveState.STAYED else Verdict.REMOVE


def _of_winner(best: MoveState, *, some_failed: bool, has_future: bool) -> Verdict:
    if best is MoveState.UNKNOWN:
        return Verdict.HOLD
    if best is MoveState.LEAVING:  # when its future replica is still `future`, the move was not decided
        return Verdict.HOLD if some_failed and not has_future else Verdict.USE_UNMARKED
    if best is MoveState.STAYED:
        return Verdict.USE if some_failed else Verdict.USE_UNMARKED
    return Verdict.USE
