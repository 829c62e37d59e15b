"""Which running kernel this is: two processes with the same answer see the same files by device and inode."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from .disk import RealDisk

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def kernel_id() -> str:
    """Another one after each start of the machine; empty where the system does not tell (it is not Linux)."""
    try:
        return RealDisk().read(BOOT_ID).decode().strip()
    except OSError:  # or not to this process
        return ""
