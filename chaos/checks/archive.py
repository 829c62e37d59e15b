"""A run on disk: the clients' history (history.jsonl) and the final read (final.json), for later checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .evidence import FinalLogs, FinalOffsets
from .history import HistoryError, Op, Partition, Value, from_json, to_json

HISTORY = "history.jsonl"
FINAL = "final.json"


@dataclass(frozen=True, slots=True)
class Archive:
    """The input of `check`."""

    history: list[Op]
    logs: dict[Partition, list[tuple[int, Value]]]
    offsets: dict[str, dict[Partition, int]]


def write(directory: Path, history: Sequence[Op], logs: FinalLogs, offsets: FinalOffsets) -> None:
    """One line per operation; the final read as lists, since JSON has no keys but strings."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(to_json(op), ensure_ascii=False) + "\n" for op in history]
    (directory / HISTORY).write_text("".join(lines), encoding="utf-8")
    final = {
        "logs": [
            [list(partition), [list(record) for record in records]] for partition, records in logs.items()
        ],
        "offsets": [[group, _pairs(positions)] for group, positions in offsets.items()],
    }
    (directory / FINAL).write_text(json.dumps(final, ensure_ascii=False) + "\n", encoding="utf-8")


def _pairs(positions: Mapping[Partition, int]) -> list[Any]:
    return [[list(partition), offset] for partition, offset in positions.items()]


def read(directory: Path) -> Archive:
    """Raises HistoryError when the folder does not hold a run."""
    try:
        lines = (directory / HISTORY).read_text(encoding="utf-8").splitlines()
        final = json.loads((directory / FINAL).read_text(encoding="utf-8"))
        return Archive(
            [from_json(json.loads(line)) for line in lines],
            {
                _partition(name): [(offset, value) for offset, value in records]
                for name, records in final["logs"]
            },
            {
                group: {_partition(name): offset for name, offset in pairs}
                for group, pairs in final["offsets"]
            },
        )
    except FileNotFoundError as error:
        raise HistoryError(f"{directory} does not hold a run: {error.filename} is missing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise HistoryError(f"the run in {directory} cannot be read: {error!r}") from error


def _partition(name: Sequence[Any]) -> Partition:
    topic, number = name
    return (str(topic), int(number))
