"""Limits the CPU time of nodes, on a machine with any load.

    with CpuQuota([node.pid for node in nodes], ms_per_second=20):
        ...                # each node, with all its threads, stands still for most of the time

Each process gets a control group of its own (cgroup v1, controller `cpu`) with a quota per `PERIOD_MS`; a
helper process (undo.py) moves the process back and removes the group when this process calls `undo` or ends.
The kernel stops a process that has used its quota, at any instruction, until the next period begins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .undo import MissingRight, UndoProcess

PERIOD_MS: Final = 100
CONTROLLER: Final = "/sys/fs/cgroup/cpu"
GROUP: Final = (
    'mkdir "$1" && echo "$3" >"$1/cpu.cfs_period_us" && echo "$4" >"$1/cpu.cfs_quota_us" || exit 1; '
    'if [ -n "$2" ]; then echo "$2" >"$1/cgroup.procs" || exit 1; fi; '
    'echo ready; cat >/dev/null; echo -1 >"$1/cpu.cfs_quota_us"; '
    'for each in $(cat "$1/cgroup.procs"); do echo "$each" >"$5/cgroup.procs"; done; '
    'for again in 1 2 3 4 5; do rmdir "$1" && break; sleep 0.2; done'
)
_numbers = count(1)


class CpuQuota:
    """See the module's text."""

    def __init__(self, pids: Sequence[int], ms_per_second: int) -> None:
        self._pids = list(pids)
        self._quota_us = ms_per_second * PERIOD_MS
        self._groups: list[UndoProcess] = []

    def __enter__(self) -> Self:
        """Raises MissingRight where that is not permitted."""
        try:
            for pid in self._pids:
                self._groups.append(_group(_folder(), pid, self._quota_us))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for group in self._groups:
            group.undo()
        self._groups.clear()


class SharedCpuQuota:
    """One quota that several processes share; `take` adds a process, for example as soon as it is started."""

    def __init__(self, ms_per_second: int) -> None:
        self._quota_us = ms_per_second * PERIOD_MS
        self._folder = _folder()
        self._group: UndoProcess | None = None

    def __enter__(self) -> Self:
        """Raises MissingRight where that is not permitted."""
        self._group = _group(self._folder, None, self._quota_us)
        return self

    def take(self, pid: int) -> bool:
        """Puts a process, with all its threads, under the quota; False when it has already ended."""
        try:
            (self._folder / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is not None:
            self._group.undo()
        self._group = None


def _folder() -> Path:
    return Path(CONTROLLER, f"tidegate-chaos-{os.getpid()}-{next(_numbers)}")


def _group(folder: Path, pid: int | None, quota_us: int) -> UndoProcess:
    arguments = [
        str(folder),
        "" if pid is None else str(pid),
        str(PERIOD_MS * 1000),
        str(quota_us),
        CONTROLLER,
    ]
    try:
        return UndoProcess(GROUP, arguments)
    except MissingRight as error:
        advice = "run as root, on Linux with the cpu controller of cgroup v1"
        raise MissingRight(
            f"NO CPU QUOTA CAN BE SET HERE, so nothing was tried: {error}; {advice}"
        ) from error
