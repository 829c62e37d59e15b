"""Nodes that get a little CPU a second and no more, whatever the machine has to spare.

    with CpuQuota([node.pid for node in nodes], ms_per_second=20):
        ...                # each node, with all its threads, stands still for most of the time

Each process gets a control group of its own (cgroup v1, controller `cpu`) with a quota over `PERIOD_MS`; a leashed process
(leash.py) moves it back and removes the group when this process lets go of it or ends.  What a process has used up of its quota
it waits for until the next period begins, in the middle of whatever it was doing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Final, Self

from .leash import Leashed, MissingRight

PERIOD_MS: Final = 100
CONTROLLER: Final = "/sys/fs/cgroup/cpu"
GROUP: Final = (
    'mkdir "$1" && echo "$3" >"$1/cpu.cfs_period_us" && echo "$4" >"$1/cpu.cfs_quota_us" && echo "$2" >"$1/cgroup.procs" '
    '|| exit 1; '
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
        self._groups: list[Leashed] = []

    def __enter__(self) -> Self:
        """Raises MissingRight where that is not permitted."""
        try:
            for pid in self._pids:
                folder = f"{CONTROLLER}/tidegate-chaos-{os.getpid()}-{next(_numbers)}"
                arguments = [folder, str(pid), str(PERIOD_MS * 1000), str(self._quota_us), CONTROLLER]
                self._groups.append(Leashed(GROUP, arguments))
        except BaseException as error:
            self.__exit__(None, None, None)
            if isinstance(error, MissingRight):
                advice = "run as root, on Linux with the cpu controller of cgroup v1"
                raise MissingRight(f"NO CPU QUOTA CAN BE SET HERE, so nothing was tried: {error}; {advice}") from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for group in self._groups:
            group.let_go()
        self._groups.clear()
