"""Flushes in the kernel: they call back on the loop, a caller that closes the file can wait for them, and
errors are those of fdatasync."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate.runtime import faults, kernel_sync
from tidegate.runtime.disk import File, RealDisk, RealFile
from tidegate.runtime.kernel_sync import KernelSync
from tidegate.tests.eventually import eventually
from tidegate.tests.machine import Need, lacks


@pytest.fixture
async def kernel() -> AsyncIterator[KernelSync]:
    found = KernelSync.open()
    if found is None:
        lacks(Need.KERNEL_FLUSH, "the kernel refuses")
    yield found
    found.close()


@pytest.fixture
def file(tmp_path: Path) -> File:
    found = RealDisk().open(tmp_path / "file", create=True)
    found.write_at(0, b"data")
    return found


async def test_flushes_end_each_with_its_own_answer_never_within_the_call(
    kernel: KernelSync, file: File
) -> None:
    loop = asyncio.get_running_loop()
    answers = [loop.create_future() for _ in range(200)]
    for answer in answers:
        assert kernel.start(file, answer.set_result) is not None
    assert not any(answer.done() for answer in answers)
    assert len(kernel) == 200
    assert await asyncio.wait_for(asyncio.gather(*answers), 30) == [None] * 200
    assert len(kernel) == 0


async def test_wait_blocks_until_the_flush_ends_and_calls_back_on_the_loop(
    kernel: KernelSync, file: File
) -> None:
    outcomes: list[OSError | None] = []
    first = kernel.start(file, outcomes.append)
    second = kernel.start(file, outcomes.append)
    assert first is not None
    assert second is not None
    second.wait()
    assert outcomes == []
    await eventually(lambda: len(outcomes) >= 2)
    assert first.is_over
    assert second.is_over
    assert outcomes == [None, None]


async def test_the_file_may_be_closed_while_it_is_flushed(kernel: KernelSync, tmp_path: Path) -> None:
    answer = asyncio.get_running_loop().create_future()
    file = RealDisk().open(tmp_path / "closed", create=True)
    file.write_at(0, b"data")
    assert kernel.start(file, answer.set_result) is not None
    file.close()
    assert await asyncio.wait_for(answer, 10) is None


async def test_what_cannot_be_flushed_is_not_begun_or_ends_with_the_error(
    kernel: KernelSync, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    pipe, answer = RealFile(tmp_path, writing), asyncio.get_running_loop().create_future()
    if kernel.start(pipe, answer.set_result) is not None:
        error = await asyncio.wait_for(answer, 10)
        assert error is not None
        assert error.errno == errno.EINVAL
    assert len(kernel) == 0
    pipe.close()
    os.close(reading)


async def test_a_file_that_is_not_the_operating_systems_is_left_to_its_own_sync(
    kernel: KernelSync, file: File
) -> None:
    class Lying(RealFile):
        def sync_data(self) -> None:
            raise AssertionError

    assert isinstance(file, RealFile)
    assert kernel.start(Lying(file.path, os.dup(file.descriptor)), lambda _: None) is None


async def test_the_number_of_flushes_in_flight_is_bounded(
    kernel: KernelSync, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_sync, "IN_FLIGHT_MAX", 3)
    begun = [kernel.start(file, lambda _: None) for _ in range(5)]
    assert [each is not None for each in begun] == [True, True, True, False, False]


async def test_a_machine_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_sync, "_CALLS", {})
    assert KernelSync.open() is None


async def test_a_disk_that_is_to_fail_is_not_asked_past_its_fault_point(
    kernel: KernelSync, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "ENABLED", True)
    monkeypatch.setattr(faults, "_armed", {})
    faults.arm("disk.sync", "fail")
    assert kernel.start(file, lambda _: None) is None
    assert len(kernel) == 0
