"""One flush for all waiters, and no second try after a failure."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.durability.flush import FlushTicket
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.log import Log
from tidegate.wire.errors import ErrorCode, KafkaError

from .workload import append, batch, open_log


@pytest.fixture
async def commit() -> AsyncIterator[GroupCommit]:
    commit = GroupCommit(threads=2)
    yield commit
    commit.close()


class Gate:
    """Holds `FlushTicket.run` until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        run = FlushTicket.run

        def held(ticket: FlushTicket) -> None:
            self.entered.set()
            assert self.opened.wait(10)
            run(ticket)

        monkeypatch.setattr(FlushTicket, "run", held)

    async def wait_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 10)


async def test_all_appends_of_one_turn_share_a_flush(commit: GroupCommit) -> None:
    log = open_log(LyingDisk())

    async def write() -> int:
        info = append(log, batch())
        assert await commit.flush(log) >= info.next_offset
        return info.next_offset

    assert sorted(await asyncio.gather(*(write() for _ in range(20)))) == list(range(1, 21))
    assert commit.flush_count == 1
    assert log.flushed_end_offset == 20


async def test_a_request_during_a_flush_joins_the_next_flush(
    commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, gate = open_log(LyingDisk()), Gate(monkeypatch)
    append(log, batch())
    first = asyncio.ensure_future(commit.flush(log))
    await gate.wait_entered()
    append(log, batch(3))
    others = [asyncio.ensure_future(commit.flush(log)) for _ in range(5)]
    await asyncio.sleep(0)
    assert log.flushed_end_offset == 0
    assert not first.done()
    gate.opened.set()
    assert await first == 1
    assert await asyncio.gather(*others) == [4] * 5
    assert commit.flush_count == 2


async def test_a_flushed_log_costs_no_flush(commit: GroupCommit) -> None:
    log = open_log(LyingDisk())
    append(log, batch())
    await commit.flush(log)
    assert await commit.flush(log) == 1
    assert commit.flush_count == 1


async def test_a_truncated_log_owes_only_what_is_left(
    commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, gate = open_log(LyingDisk()), Gate(monkeypatch)
    append(log, batch())
    append(log, batch(3))
    waiting = asyncio.ensure_future(commit.flush(log))
    await gate.wait_entered()
    log.truncate_to(1)
    gate.opened.set()
    assert await waiting == 1 == log.log_end_offset


async def test_a_failed_flush_fails_every_waiter_and_is_never_retried() -> None:
    disk, failures = LyingDisk(), []
    log = open_log(disk)
    commit = GroupCommit(
        threads=1, on_storage_failure=lambda failed, error: failures.append((failed, error.errno))
    )
    append(log, batch())
    disk.fail_sync = True
    results = await asyncio.gather(*(commit.flush(log) for _ in range(3)), return_exceptions=True)
    disk.fail_sync = False
    assert [getattr(result, "code", None) for result in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    assert failures == [(log, errno.EIO)]
    assert log.is_offline
    with pytest.raises(KafkaError):
        await commit.flush(log)
    assert commit.flush_count == 1
    assert log.flushed_end_offset == 0
    commit.close()


async def test_a_flush_that_ends_by_an_unexpected_error_takes_the_log_offline(
    commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it made durable is unknown, whatever the error is."""
    log = open_log(LyingDisk())

    def fail(ticket: FlushTicket) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(FlushTicket, "run", fail)
    append(log, batch())
    for _ in range(2):
        with pytest.raises(KafkaError) as raised:
            await commit.flush(log)
        assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.is_offline
    assert log.flushed_end_offset == 0


async def test_a_requested_flush_happens_without_a_waiter(commit: GroupCommit) -> None:
    logs: list[Log] = [open_log(LyingDisk()) for _ in range(3)]
    for log in logs:
        append(log, batch())
        commit.request(log)
    for _ in range(1000):
        if not any(log.has_unflushed_records for log in logs):
            break
        await asyncio.sleep(0.005)
    assert [log.flushed_end_offset for log in logs] == [1, 1, 1]
    append(logs[0], batch())
    await commit.flush_all(logs)
    assert logs[0].flushed_end_offset == 2


async def test_a_cancelled_waiter_disturbs_no_other(
    commit: GroupCommit, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, gate = open_log(LyingDisk()), Gate(monkeypatch)
    append(log, batch())
    one, other = (asyncio.ensure_future(commit.flush(log)) for _ in range(2))
    await gate.wait_entered()
    one.cancel()
    gate.opened.set()
    assert await other == 1


async def test_a_closed_group_commit_refuses() -> None:
    commit, log = GroupCommit(threads=1), open_log(LyingDisk())
    commit.close()
    append(log, batch())
    with pytest.raises(KafkaError):
        await commit.flush(log)


async def test_a_log_that_was_closed_fails_its_waiters(commit: GroupCommit) -> None:
    log = open_log(LyingDisk())
    append(log, batch())
    waiting = asyncio.ensure_future(commit.flush(log))
    await asyncio.sleep(0)
    log.close(clean=False)
    with pytest.raises(KafkaError):
        await asyncio.wait_for(waiting, 10)
