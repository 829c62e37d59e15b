"""Counts the log lines of a run's nodes by level and event: operators do not read a log with warnings that
need no action.

    python -m tidegate.chaos.run.node_logs DIRECTORY...        # every node.log below the directories

Lines of tracebacks count to the line before them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
LOUD: Final = LEVELS[LEVELS.index("WARNING") :]
"""What an operator is to look at."""

NEVER_LOUD: Final = frozenset(
    {"log_cut_at_recovery", "log_recovered", "log_truncated", "requests_abandoned", "role_changed"}
)
"""What kills and restarts bring by the dozen, and what asks nothing of an operator as long as no committed
record goes."""

Counted = Counter[tuple[str, str]]
"""Lines by (level, event)."""


def count_lines(lines: Iterable[str]) -> Counted:
    """Counts one log in its text form (runtime/logs.py)."""
    found: Counted = Counter()
    for line in lines:
        words = line.split(None, 4)
        if len(words) >= 4 and words[1] in LEVELS:
            found[words[1], words[3]] += 1
    return found


def count_logs(paths: Iterable[Path]) -> Counted:
    """Counts all the logs together; a missing one counts as empty."""
    found: Counted = Counter()
    for path in paths:
        if path.exists():
            with path.open(encoding="utf-8", errors="replace") as lines:
                found += count_lines(lines)
    return found


def loud(counted: Counted) -> Counted:
    """The lines that an operator must read."""
    return Counter({(level, event): count for (level, event), count in counted.items() if level in LOUD})


def table(counted: Counted) -> Iterator[str]:
    """Lines for people: the loudest level first, then the most frequent event."""
    for (level, event), count in sorted(
        counted.items(), key=lambda item: (-LEVELS.index(item[0][0]), -item[1], item[0][1])
    ):
        yield f"{count:8} {level:<8} {event}"


def main(arguments: list[str]) -> None:
    counted = count_logs(path for name in arguments for path in sorted(Path(name).rglob("node.log")))
    for line in table(counted):
        print(line)
    print(f"{counted.total():8} lines, {loud(counted).total()} of them at WARNING or above")


if __name__ == "__main__":
    main(sys.argv[1:])
