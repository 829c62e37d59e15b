"""Fault points: named places in the code at which a test can stop the process dead.

A point does nothing unless the process was started with TIDEGATE_FAULT_POINTS=1 *and* the point was armed; otherwise its cost
is one attribute look-up.  The only action is `kill`: SIGKILL to the own process, the closest thing to a power cut that a
process can do to itself.  No buffer is flushed, no handler runs.

Points in the code (grep for `faults.point`): each names the promise that is at stake between the line before and the line after.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

ENABLED = os.environ.get("TIDEGATE_FAULT_POINTS") == "1"


@dataclass(slots=True)
class Armed:
    """One armed point: lets `skip` matching passes through, then kills."""

    action: str
    skip: int
    match: dict[str, str] = field(default_factory=dict)


_armed: dict[str, Armed] = {}
_kill = os.kill  # replaced by tests of the fault points themselves


def arm(name: str, action: str, *, skip: int = 0, match: dict[str, str] | None = None) -> None:
    """Arms the point `name`.  Raises PermissionError when fault points are not enabled, ValueError for an unknown action."""
    if not ENABLED:
        raise PermissionError("fault points are off: start the node with TIDEGATE_FAULT_POINTS=1 (never in production)")
    if action != "kill":
        raise ValueError(f"unknown fault action {action!r}: the only action is 'kill'")
    _armed[name] = Armed(action, skip, dict(match or {}))


def point(name: str, **context: object) -> None:
    """A place where the process may be killed, when armed with values that match `context`."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None or any(str(context.get(key)) != value for key, value in armed.match.items()):
        return
    if armed.skip > 0:
        armed.skip -= 1
        return
    _kill(os.getpid(), signal.SIGKILL)
