"""A task that fails by a defect says so at once."""

from __future__ import annotations

import asyncio

import pytest
from tidegate.runtime.tasks import log_failure, spawn


async def fail() -> None:
    raise KeyError("a defect")


async def test_a_failed_task_is_reported_and_a_cancelled_one_is_not() -> None:
    failures: list[BaseException] = []
    failed = spawn(fail(), "fails", failures.append)
    cancelled = spawn(asyncio.sleep(60), "waits", failures.append)
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(failed, cancelled, return_exceptions=True)
    assert [repr(error) for error in failures] == ["KeyError('a defect')"]
    assert (failed.get_name(), cancelled.cancelled()) == ("fails", True)


async def test_a_part_that_goes_on_logs_what_it_lacks(caplog: pytest.LogCaptureFixture) -> None:
    await asyncio.gather(
        spawn(fail(), "ids", log_failure("ids", consequence="the next asks")), return_exceptions=True
    )
    assert vars(caplog.records[-1])["fields"] == {"task": "ids", "consequence": "the next asks"}
    assert "KeyError: 'a defect'" in caplog.text
