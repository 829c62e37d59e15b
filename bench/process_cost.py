"""What processes cost: CPU seconds and memory, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of the processes so far, all threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_A_SECOND


def resident_mib(pids: Iterable[int], key: str = "VmRSS") -> float:
    """Resident memory of the processes now (`VmHWM`: at its highest), summed."""
    kib = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                kib += int(line.split()[1])
    return kib / 1024
