"""The group commit with flushes in the kernel: the same promises as with threads (test_group_commit.py)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tidegate.runtime.disk import File, RealDisk
from tidegate.runtime.kernel_sync import KernelSync
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.log import Log
from tidegate.tests.eventually import eventually
from tidegate.tests.machine import Need, lacks
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import append, batch, open_log


class Kernel:
    """Flushes end when the test says so, and as it says."""

    def __init__(self) -> None:
        self.in_flight: list[Callable[[OSError | None], None]] = []
        self.waited = 0
        self.closed = False

    def start(self, file: File, done: Callable[[OSError | None], None]) -> Any:
        self.in_flight.append(done)
        return self

    def wait(self) -> None:
        self.waited += 1
        self.end()

    def end(self, error: OSError | None = None) -> None:
        waiting, self.in_flight = self.in_flight, []
        for done in waiting:
            asyncio.get_running_loop().call_soon(done, error)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
async def commit(kernel: Kernel) -> AsyncIterator[GroupCommit]:
    made = GroupCommit(threads=1, kernel=cast(KernelSync, kernel))
    yield made
    made.close()
    assert kernel.closed


@pytest.fixture
async def log(tmp_path: Path, commit: GroupCommit, kernel: Kernel) -> Log:
    """With its first flush behind it: that one syncs the folder as well, and takes a thread."""
    made = open_log(RealDisk(), folder=tmp_path / "flights-0")
    append(made, batch())
    await commit.flush(made)
    assert made.flushed_end_offset == 1
    return made


async def begun(kernel: Kernel) -> None:
    await eventually(lambda: kernel.in_flight)


async def test_nothing_counts_as_flushed_before_the_kernel_says_so(
    log: Log, commit: GroupCommit, kernel: Kernel
) -> None:
    append(log, batch())
    waiting = [asyncio.ensure_future(commit.flush(log)) for _ in range(3)]
    await begun(kernel)
    append(log, batch())
    late = asyncio.ensure_future(commit.flush(log))
    await asyncio.sleep(0.02)
    assert len(kernel.in_flight) == 1
    assert log.flushed_end_offset == 1
    assert not any(task.done() for task in (*waiting, late))
    kernel.end()
    assert await asyncio.gather(*waiting) == [2, 2, 2]
    assert not late.done()
    await begun(kernel)
    kernel.end()
    assert await late == 3


async def test_a_failure_reaches_every_waiter_and_is_never_retried(tmp_path: Path, kernel: Kernel) -> None:
    failures: list[tuple[Log, int | None]] = []
    commit = GroupCommit(
        1, lambda failed, error: failures.append((failed, error.errno)), cast(KernelSync, kernel)
    )
    log = open_log(RealDisk(), folder=tmp_path / "flights-0")
    append(log, batch())
    await commit.flush(log)
    append(log, batch())
    waiting = [asyncio.ensure_future(commit.flush(log)) for _ in range(3)]
    await begun(kernel)
    kernel.end(OSError(errno.EIO, "the disk is gone"))
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(result, "code", None) for result in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert failures == [(log, errno.EIO)]
    assert log.is_offline
    assert log.flushed_end_offset == 1
    with pytest.raises(KafkaError):
        await commit.flush(log)
    assert kernel.in_flight == []
    commit.close()


async def test_a_cut_waits_for_the_kernel_and_takes_the_result_away(
    log: Log, commit: GroupCommit, kernel: Kernel
) -> None:
    append(log, batch())
    append(log, batch())
    waiting = asyncio.ensure_future(commit.flush(log))
    await begun(kernel)
    log.truncate_to(1)
    assert kernel.waited == 1
    assert await waiting == 1 == log.log_end_offset == log.flushed_end_offset


async def test_a_real_kernel_flushes_many_logs_at_once(tmp_path: Path) -> None:
    real = KernelSync.open()
    if real is None:
        lacks(Need.KERNEL_FLUSH, "the kernel refuses")
    commit = GroupCommit(threads=1, kernel=real)
    logs = [open_log(RealDisk(), folder=tmp_path / f"flights-{number}") for number in range(20)]
    for turn in range(5):
        for log in logs:
            append(log, batch())
        assert await asyncio.gather(*(commit.flush(log) for log in logs)) == [turn + 1] * 20
    append(logs[0], batch())
    commit.request(logs[0])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    logs[0].close(clean=True)  # while it is flushed
    commit.close()
