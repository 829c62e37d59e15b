"""Logs that are on their way from one data folder of a node to another (KIP-113), as an inspection of the
folders finds them.

A state that a start of the node resolves (`move_state`) is no fault, at any step of a move: a future replica,
or the rest of a log that has moved. Faults are a state file that cannot be read, and two folders that both
claim to have the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...runtime.disk import Disk
from ..directory.folder_notes import PartitionKey
from ..directory.found_logs import parse_name
from ..directory.move_state import (
    REPLICA_MOVE,
    MoveState,
    TwinLogs,
    Verdict,
    read_move_state,
    resolve_twins,
)
from .findings import Finding

Standings = dict[PartitionKey, dict[Path, MoveState]]
"""By the folder of each log."""


def read_standings(disk: Disk, partitions: Sequence[Path]) -> Standings:
    """Raises OSError."""
    found: Standings = {}
    for directory in dict.fromkeys(partitions):
        key = parse_name(directory.name)
        if key is not None:
            try:
                found.setdefault(key, {})[directory] = read_move_state(disk, directory)
            except FileNotFoundError:  # settled in between
                found.setdefault(key, {})[directory] = MoveState.CURRENT
    return found


def is_future(states: Standings, directory: Path) -> bool:
    key = parse_name(directory.name)
    return key is not None and states.get(key, {}).get(directory) is MoveState.FUTURE


def has_log(states: Standings, key: PartitionKey) -> bool:
    """Whether a folder has a log that is not on its way."""
    return any(standing is not MoveState.FUTURE for standing in states.get(key, {}).values())


def judge_moves(disk: Disk, states: Standings, *, is_running: bool) -> list[Finding]:
    """The decision of a start of the node about them.  In a folder in use it counts only when a second look
    finds it, too."""
    found: list[Finding] = []
    for key, places in sorted(states.items()):
        findings = _judge(places)
        if is_running and any(finding.kind == "partition-twice" for finding in findings):
            there = [place for place in places if _is_there(disk, place)]
            findings = _judge(read_standings(disk, there).get(key, {}))
        found += findings
    return found


def _is_there(disk: Disk, place: Path) -> bool:
    try:
        disk.list_names(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _judge(places: Mapping[Path, MoveState]) -> list[Finding]:
    found = [
        Finding(
            "move-word-damaged", place / REPLICA_MOVE, "what this log is, beside another one, is not known"
        )
        for place, standing in places.items()
        if standing is MoveState.UNKNOWN
    ]
    if found or not places:
        return found
    try:
        verdicts = resolve_twins(places, some_failed=False)
    except TwinLogs:
        first, *others = places
        return [Finding("partition-twice", place, f"it is also at {first}") for place in others]
    for place, standing in places.items():
        if standing is MoveState.FUTURE:
            alone = "" if len(places) > 1 else "; the log is not among what is looked at"
            found.append(
                Finding(
                    "future-replica", place, f"it follows the log in another data folder of the node{alone}"
                )
            )
        elif verdicts[place] is Verdict.REMOVE:
            found.append(Finding("displaced-replica", place, "the log is in another data folder now"))
    return found
