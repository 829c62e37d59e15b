"""Fault points: named places in the code at which a test can stop the process dead, or let the disk fail.

A point does nothing unless the process was started with TIDEGATE_FAULT_POINTS=1 *and* the point was armed;
otherwise its cost is one attribute look-up.  The actions:

kill      SIGKILL to the own process, the closest thing to a power cut that a process can do to itself.  No
buffer is flushed,
          no handler runs.
fail      OSError EIO, at this pass and every later one: a disk that has died.
disarm    takes the point back.

Points in the code (grep for `faults.point`): each names the promise that is at stake between the line before
and the line after.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

ACTIONS: Final = ("kill", "fail", "disarm")
ENABLED = os.environ.get("TIDEGATE_FAULT_POINTS") == "1"


@dataclass(slots=True)
class Armed:
    """One armed point: lets `skip` matching passes through, then acts.  `match` holds shell patterns."""

    action: str
    skip: int
    match: dict[str, str] = field(default_factory=dict)


_armed: dict[str, Armed] = {}
_kill = os.kill  # replaced by tests of the fault points themselves


def arm(name: str, action: str, *, skip: int = 0, match: dict[str, str] | None = None) -> None:
    """Arms the point `name`.  Raises PermissionError when fault points are not enabled, ValueError for an
    unknown action."""
    if not ENABLED:
        raise PermissionError(
            "fault points are off: start the node with TIDEGATE_FAULT_POINTS=1 (never in production)"
        )
    if action not in ACTIONS:
        raise ValueError(f"unknown fault action {action!r}: choose {', '.join(ACTIONS)}")
    if action == "disarm":
        _armed.pop(name, None)
        return
    _armed[name] = Armed(action, skip, dict(match or {}))


def armed(name: str) -> bool:
    """Whether the point `name` is armed: for code that reaches it on another way than it usually takes."""
    return name in _armed


def point(name: str, **context: object) -> None:
    """A place where the process may be killed, or OSError raised, when armed with values that match
    `context`."""
    if not _armed:
        return
    found = _armed.get(name)
    if found is None or any(
        not fnmatchcase(str(context.get(key)), pattern) for key, pattern in found.match.items()
    ):
        return
    if found.skip > 0:
        found.skip -= 1
        return
    if found.action == "fail":
        raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} (at the fault point {name})")
    _kill(os.getpid(), signal.SIGKILL)
