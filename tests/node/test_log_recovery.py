"""While a node opens its logs it answers probes, says how far it is, and obeys a signal to stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from tidegate.node.lifecycle.log_recovery import open_logs, page_while_opening
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.log_loader import LogLoader
from tidegate.storage.directory.opening_progress import OpeningStopped
from tidegate.storage.folders.data_folders import DataFolders
from tidegate.storage.log.log import LogConfig
from tidegate.tests.eventually import eventually

LOGS = 3


def folders(path: Path) -> DataFolders:
    return DataFolders(RealDisk(), [path], "c", 1, lambda: "id")


@pytest.fixture
def go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Three logs lie there; each is opened when this is released once."""
    made = folders(tmp_path)
    made.open_all(now_ms=0)
    for number in range(LOGS):
        made.create("t", UUID(int=1), number, LogConfig(), now_ms=0)
    made.close(clean=True, broker_epoch=7)
    gate, load = threading.Semaphore(0), LogLoader.open_found

    def wait(self: LogLoader, *arguments: object, **options: object) -> object:
        gate.acquire()
        return load(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LogLoader, "open_found", wait)
    yield gate
    gate.release(LOGS)


def says(found: DataFolders, path: str) -> str:
    return page_while_opening(found, path).body.decode()


async def reaches(found: DataFolders, text: str) -> None:
    await eventually(lambda: text in says(found, "/readyz"))


async def test_probes_show_how_many_logs_are_open(tmp_path: Path, go_on: threading.Semaphore) -> None:
    found = folders(tmp_path)
    opening = asyncio.create_task(open_logs(found, SystemClock(), asyncio.Event().wait()))
    for opened in range(LOGS):
        await reaches(found, f"recovering: {opened} of {LOGS} logs are open")
        assert page_while_opening(found, "/readyz").status == 503
        assert says(found, "/livez") == "ok\n"
        assert f"tidegate_recovery_logs {LOGS}.0" in says(found, "/metrics")
        assert f"tidegate_recovery_logs_opened {opened}.0" in says(found, "/metrics")
        go_on.release()
    assert (await opening).opened == LOGS
    found.close(clean=True, broker_epoch=8)


async def test_a_stopping_node_opens_no_further_log(tmp_path: Path, go_on: threading.Semaphore) -> None:
    found, stop = folders(tmp_path), asyncio.Event()
    opening = asyncio.create_task(open_logs(found, SystemClock(), stop.wait()))
    await reaches(found, "recovering: 0 of")
    stop.set()
    await eventually(lambda: found.progress._stop_wanted)
    go_on.release()
    with pytest.raises(OpeningStopped):
        await opening
    assert found.progress.opened <= 1
    again = folders(tmp_path)  # the folder was given back
    go_on.release(LOGS)
    assert again.open_all(now_ms=0).opened == LOGS
    again.close(clean=True, broker_epoch=8)
