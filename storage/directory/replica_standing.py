"""What the log of a partition is that has a place in more than one data folder of a node: `replica-move`, a word beside the log.

    future      a copy on its way to becoming the log (KIP-113): never used as one, whatever else is missing
    leaving     the log in use, and perhaps no longer: its future replica is complete, and about to take its place
    (none)      the log in use
    stayed      the log in use; its future replica failed in the moment that would have decided, and may claim to be the log

The words are a total order, the last wins.  **The decision of a move is one removal: that of `future` beside the new log.**
Before it `leaving` is durable beside the old one, and nothing is acknowledged after it before the old one has lost its name.  So
at every crash one of the two is known to have all that was ever acknowledged, and the other one goes, or stays a future replica.

While a data folder cannot be looked into, a log that is `leaving` is not used: the other one may be in there, with more.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path

from ...runtime.disk import Disk
from ..checkpoint import CheckpointInvalid, decode_checkpoint, encode_checkpoint

REPLICA_MOVE = "replica-move"


class Standing(enum.IntEnum):
    """See the module's text; what counts more is higher."""

    UNKNOWN = 0
    """The word cannot be read."""
    FUTURE = 1
    LEAVING = 2
    CURRENT = 3
    STAYED = 4


class Verdict(enum.Enum):
    """What a start does with one of them."""

    USE = "use"
    USE_PLAIN = "use_plain"
    """Use it; the word goes first."""
    FUTURE = "future"
    REMOVE = "remove"
    HOLD = "hold"
    """It stays as it is, and is not used."""


class TwinLogs(Exception):
    """Which one is right cannot be known."""


def read_standing(disk: Disk, directory: Path) -> Standing:
    """Raises OSError."""
    path = directory / REPLICA_MOVE
    if not disk.exists(path):
        return Standing.CURRENT
    try:
        found = Standing[decode_checkpoint(disk.read(path), 1)[0][0].upper()]
    except (CheckpointInvalid, ValueError, KeyError, IndexError):
        return Standing.UNKNOWN
    return found if found in (Standing.FUTURE, Standing.LEAVING, Standing.STAYED) else Standing.UNKNOWN


def write_standing(disk: Disk, directory: Path, standing: Standing) -> None:
    """Durably.  Raises OSError."""
    if standing is not Standing.CURRENT:
        disk.write_atomic(directory / REPLICA_MOVE, encode_checkpoint([[standing.name.lower()]]))
    elif disk.exists(directory / REPLICA_MOVE):
        disk.remove(directory / REPLICA_MOVE)
        disk.sync_directory(directory)


def judge(standings: Mapping[Path, Standing], *, some_failed: bool) -> dict[Path, Verdict]:
    """What becomes of the logs of one partition, by data folder.  `some_failed`: a data folder cannot be looked into.

    Raises TwinLogs.
    """
    assert standings
    best = max(standings.values())
    if len(standings) > 1 and Standing.UNKNOWN in standings.values():
        raise TwinLogs
    winners = [place for place, standing in standings.items() if standing is best]
    if best is Standing.FUTURE:  # the log itself is on a disk that failed, or that was replaced
        return dict.fromkeys(standings, Verdict.HOLD if some_failed else Verdict.REMOVE)
    if len(winners) > 1:
        raise TwinLogs
    verdicts = {place: _of_other(standing, best) for place, standing in standings.items()}
    futures = [place for place, verdict in verdicts.items() if verdict is Verdict.FUTURE]
    for place in futures[1:]:  # the move was directed elsewhere, and one folder did not hear of it
        verdicts[place] = Verdict.REMOVE
    verdicts[winners[0]] = _of_winner(best, some_failed=some_failed, has_future=bool(futures))
    return verdicts


def _of_other(standing: Standing, best: Standing) -> Verdict:
    # What a log in use has displaced is behind it; a future replica of the log that stays goes on.
    return Verdict.FUTURE if standing is Standing.FUTURE and best is not Standing.STAYED else Verdict.REMOVE


def _of_winner(best: Standing, *, some_failed: bool, has_future: bool) -> Verdict:
    if best is Standing.UNKNOWN:
        return Verdict.HOLD
    if best is Standing.LEAVING:  # where its future replica is still one, nothing was decided
        return Verdict.HOLD if some_failed and not has_future else Verdict.USE_PLAIN
    if best is Standing.STAYED:
        return Verdict.USE if some_failed else Verdict.USE_PLAIN
    return Verdict.USE
