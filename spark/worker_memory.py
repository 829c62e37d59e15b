"""How a Spark worker keeps the memory that it reads with.

A read takes and frees blocks of about a megabyte, one after the other.  By its defaults the allocator of
Linux gives each back to the kernel, which has to clear the pages of the next: half of the time that a worker
spends in the kernel.  Arrow's allocator does so with columns, and what one of the two has, the other cannot
use: here Arrow takes from Linux's.  That one also gives nearly each thread of gRPC an arena of its own, and
no thread uses what is free in another's: a third of the memory of a worker.  The object collector, which
PySpark's daemon calls after every use of a worker, walks over all that the worker has imported: a fifth of
the cost of a small task, and 50 ms in each of the five workers of the smallest write.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

# of mallopt(3), for glibc; another C library has no mallopt, or refuses
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
DAEMON: Final = "pyspark.daemon"
KEPT_BYTES_MAX: Final = 128 << 20  # free, at the end of the heap: what a task of large chunks has freed
BLOCK_BYTES_MAX: Final = 17 << 20  # more than a chunk; a larger block is given back when it is freed
ARENAS_MAX: Final = 2  # one for the thread of the task, one for those of gRPC

_tasks_begun = 0


def keep_memory() -> None:
    """For a process that begins a task; has an effect twice, since the first task imports more."""
    global _tasks_begun
    if _tasks_begun == 2:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        if not _tasks_begun:
            mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES_MAX)
            mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
            mallopt(_M_ARENA_MAX, ARENAS_MAX)
        if arrow := sys.modules.get("pyarrow"):  # the process that only makes a source has none
            arrow.set_memory_pool(arrow.system_memory_pool())
    _tasks_begun += 1
    gc.freeze()


def keep_memory_in_daemon() -> None:
    """The same, where it may be the process of a user, too."""
    if getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) == DAEMON:
        keep_memory()
