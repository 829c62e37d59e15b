"""Making many logs: one by one, as a batch, and the delay of a loop beside that; then opening them all."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from time import perf_counter
from uuid import UUID

from tidegate.node.__main__ import SWITCH_INTERVAL_S
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.creation import NewLog
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.directory.log_loader import FolderOptions
from tidegate.storage.log.log import LogConfig

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(retention_ms=3_600_000)
TICK_S = 0.001


def _opened(root: Path) -> LogDirectory:
    directory = LogDirectory(RealDisk(), root, "bench", 1, options=FolderOptions(recovery_threads=4))
    directory.open_all(now_ms=NOW_MS)
    return directory


async def _worst_lateness_while(work: asyncio.Future[None]) -> float:
    worst = 0.0
    while not work.done():
        due = perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        worst = max(worst, perf_counter() - due)
    return worst


def bench_creation(root: Path, count: int) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as a node does
    fd = os.open(root / "raw", os.O_RDWR | os.O_CREAT)
    raws = []
    for number in range(100):
        os.pwrite(fd, b"x" * 100, number * 100)
        begin = perf_counter()
        os.fsync(fd)
        raws.append(perf_counter() - begin)
    os.close(fd)
    raw = sorted(raws)[50]
    print(f"\nmaking logs (a raw fsync takes {raw * 1e3:.2f} ms)")
    print(
        f"{'how':>32} {'logs':>6} {'seconds':>8} {'ms a log':>9} {'in raw fsyncs':>13} "
        f"{'loop late by, at most':>22}"
    )

    few = min(count, 300)
    directory = _opened(root / "single")
    begin = perf_counter()
    for partition in range(few):
        directory.create("bench", UUID(int=1), partition, CONFIG, now_ms=NOW_MS)
    _row("one by one, on the loop", few, perf_counter() - begin, raw, (perf_counter() - begin) / few)
    directory.close(clean=False)
    shutil.rmtree(root / "single")

    async def batch() -> tuple[float, float]:
        begin = perf_counter()
        making = directory.begin_creation(
            [NewLog("bench", UUID(int=1), n, CONFIG) for n in range(count)], now_ms=NOW_MS
        )
        started = perf_counter()
        worst = await _worst_lateness_while(asyncio.ensure_future(asyncio.to_thread(making.run)))
        made = perf_counter()
        making.finish()
        return perf_counter() - begin, max(worst, started - begin, perf_counter() - made)

    directory = _opened(root / "many")
    took, late = asyncio.run(batch())
    _row("at once, in a thread", count, took, raw, late)
    directory.close(clean=True)
    for how in ("opened after a clean stop", "opened after a kill"):
        begin = perf_counter()
        directory = _opened(root / "many")
        _row(how, count, perf_counter() - begin, raw, None)
        directory.close(clean=False)


def _row(how: str, count: int, took: float, raw: float, late: float | None) -> None:
    lateness = "" if late is None else f"{late * 1e3:19.1f} ms"
    print(f"{how:>32} {count:6} {took:8.2f} {took / count * 1e3:9.2f} {took / count / raw:13.1f} {lateness}")
