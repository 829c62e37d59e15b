"""Whether another process holds the lock of a file (`Disk.lock`), found out without creating, changing or
keeping anything.

The kernel says so only to a process that tries to take the lock. So the probe takes a shared lock and
releases it at once: in between, for some microseconds, the kernel would refuse the lock to another process.
A stopped node is started by hand or by a supervisor that tries again, and no answer is as sure in every
container as this one (/proc/locks shows only its own).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_locked(path: Path) -> bool:
    """True when some process holds the exclusive lock; False when none does, or there is no such file.
    Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)  # gives the lock back
    return False
