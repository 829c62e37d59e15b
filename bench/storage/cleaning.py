"""The speed of the cleaner, the memory of its key map, and the delay of the loop beside it.

A log in batches of about 16 KiB is cleaned once, by records of 100 bytes and of 1 KiB, uncompressed and with
lz4, with 10 % and 90 % of the records superseded.  MB/s are of the log's bytes (a cleaning reads its dirty
part twice).  The raw loop reads and writes as many bytes, a MiB at a time, and syncs its writes: the cost of
a cleaning that decodes no batch.

The next rows run the cleaner as a node does, in its thread, and say how late a loop with nothing else to do
was woken; likewise for the removal of old segments, where the loop does it and where a thread does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TypeVar
from uuid import UUID

from tidegate.bench.storage.fixture import NOW_MS
from tidegate.node.__main__ import SWITCH_INTERVAL_S
from tidegate.node.upkeep.log_upkeep import _Pace
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.storage.cleaning.cleaner import begin_cleaning
from tidegate.storage.cleaning.compaction import KeyMap
from tidegate.storage.directory.async_delete import AsyncFileDeleter
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.directory.log_loader import FolderOptions
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.compression import Compression
from tidegate.wire.records import NewRecord, encode_batch

CONFIG = LogConfig(segment_bytes=16 << 20, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
BATCH_BYTES = 16 << 10
RAW_BYTES = 1 << 20
T = TypeVar("T")


def filled(
    directory: Path, size: int, value_bytes: int, codec: Compression, superseded: float
) -> tuple[Log, int]:
    """A log whose every segment but the last is dirty, and the records in it."""
    log = Log.open(
        RealDisk(), directory, topic="bench", partition=0, config=CONFIG, clean=False, recovery_point=0
    )
    random, count = Random(1), 0
    per_batch = max(1, BATCH_BYTES // (value_bytes + 20))
    total = size // (value_bytes + 20)
    keys = max(1, int(total * (1 - superseded)))
    while count < total:
        records = [
            NewRecord(
                b"key-%012d" % random.randrange(keys),
                random.randbytes(value_bytes // 2).hex().encode(),
                (),
                NOW_MS,
            )
            for _ in range(per_batch)
        ]
        log.append_leader(
            encode_batch(records, compression=codec),
            leader_epoch=0,
            origin=AppendOrigin.COORDINATOR,
            now_ms=NOW_MS,
        )
        count += per_batch
    log.roll()
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    return log, count


def clean_row(root: Path, size: int, value_bytes: int, codec: Compression, superseded: float) -> None:
    log, count = filled(root / "log", size, value_bytes, codec, superseded)
    before = log.size_bytes
    cleaning = begin_cleaning(log, NOW_MS)
    assert cleaning is not None
    began = time.perf_counter()
    cleaning.run(RealDisk(), lambda work: work())
    seconds = time.perf_counter() - began
    result = cleaning.finish()
    raw_s = raw_copy(root / "raw", result.bytes_read, result.bytes_written)
    print(
        f"{value_bytes:>8} {codec.name.lower():>6} {superseded:>11.0%} {before / seconds / 1e6:>12.1f} "
        f"{count / seconds / 1e3:>12.0f} {before / 1e6:>5.0f} {log.size_bytes / 1e6:>5.0f} "
        f"{before / raw_s / 1e6:>9.0f} {raw_s / seconds:>6.2f}"
    )
    log.close(clean=False)
    shutil.rmtree(root / "log")


def raw_copy(path: Path, read: int, written: int) -> float:
    """Seconds to read `read` bytes of a file that is in the page cache, and to write and sync `written`."""
    data = Random(2).randbytes(RAW_BYTES)
    source, target = (os.open(path.with_suffix(name), os.O_RDWR | os.O_CREAT) for name in (".from", ".to"))
    for _ in range(16):
        os.write(source, data)
    began = time.perf_counter()
    for at in range(0, read, RAW_BYTES):
        os.pread(source, min(RAW_BYTES, read - at), at % (16 * RAW_BYTES))
    for at in range(0, written, RAW_BYTES):
        os.pwrite(target, data[: written - at], at)
    os.fdatasync(target)
    seconds = time.perf_counter() - began
    for file, name in ((source, ".from"), (target, ".to")):
        os.close(file)
        path.with_suffix(name).unlink()
    return seconds


async def beside_the_loop(root: Path, size: int, bytes_per_second: int) -> None:
    log, _count = filled(root / "log", size, 100, Compression.NONE, 0.5)
    cleaning = begin_cleaning(log, NOW_MS)
    assert cleaning is not None
    loop, clock = asyncio.get_running_loop(), SystemClock()
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + 0.002
            await asyncio.sleep(0.002)
            late.append(time.perf_counter() - due)

    def on_loop(work: Callable[[], T]) -> T:
        async def turn() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(turn(), loop).result()

    ticker = asyncio.create_task(tick())
    began = time.perf_counter()
    with ThreadPoolExecutor(1) as executor:
        pace = _Pace(clock, bytes_per_second, threading.Event())
        await loop.run_in_executor(executor, lambda: cleaning.run(RealDisk(), on_loop, pace))
    seconds = time.perf_counter() - began
    ticker.cancel()
    late.sort()
    moved = cleaning.result.bytes_read + cleaning.result.bytes_written
    rate = f"{bytes_per_second / 1e6:.0f} MB/s" if bytes_per_second else "no limit"
    middle, tail, worst = (late[int(len(late) * share)] * 1e3 for share in (0.5, 0.99, 0.99999))
    print(
        f"in a thread, {rate}: {moved / seconds / 1e6:.1f} MB/s of disk; a loop beside it was late "
        f"by {middle:.2f} ms (median), "
        f"{tail:.2f} ms (99 %), {worst:.1f} ms (worst)"
    )
    log.close(clean=False)
    shutil.rmtree(root / "log")


async def removal_row(root: Path, size: int, in_thread: bool) -> None:
    """One segment of `size` bytes and more goes."""
    file_deleter = AsyncFileDeleter() if in_thread else None
    directory = LogDirectory(
        RealDisk(), root / "folder", "bench", 1, options=FolderOptions(file_deleter=file_deleter)
    )
    directory.open_all(now_ms=NOW_MS)
    log = directory.create("bench", UUID(int=1), 0, LogConfig(segment_bytes=2 * size), now_ms=NOW_MS)
    data = encode_batch(
        [NewRecord(b"k", random_bytes, (), NOW_MS) for random_bytes in [Random(1).randbytes(1 << 19)]]
    )
    for _ in range(size >> 19):
        log.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
    log.roll()
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    began = time.perf_counter()
    log.advance_log_start(log.log_end_offset)
    blocked, worst = time.perf_counter() - began, 0.0
    while file_deleter is not None and file_deleter.waiting:
        due = time.perf_counter() + 0.001
        await asyncio.sleep(0.001)
        worst = max(worst, time.perf_counter() - due)
    where = "in a thread" if in_thread else "on the loop"
    print(f"removal of {size >> 20} MiB {where}: the loop stood still for {max(blocked, worst) * 1e3:.1f} ms")
    if file_deleter is not None:
        file_deleter.close()
    directory.close(clean=False)
    shutil.rmtree(root / "folder")


def key_map_row(keys: int) -> None:
    table = KeyMap(1 << 40, keys)
    began = time.perf_counter()
    for number in range(keys):
        table.put(b"key-%012d" % number, number)
    seconds = time.perf_counter() - began
    print(
        f"key map: {keys} keys, {table.memory_bytes / keys:.1f} bytes a key, {keys / seconds / 1e3:.0f} k/s"
    )


def bench_cleaning(root: Path, megabytes: int) -> None:
    before, size = sys.getswitchinterval(), megabytes << 20
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    print("\ncleaning")
    key_map_row(500_000)
    print(
        f"{'record B':>8} {'codec':>6} {'superseded':>11} {'MB/s of log':>12} {'k records/s':>12} "
        f"{'MB':>5} {'left':>5} "
        f"{'raw MB/s':>9} {'ratio':>6}"
    )
    for value_bytes in (100, 1024):
        for codec in (Compression.NONE, Compression.LZ4):
            for superseded in (0.1, 0.9):
                clean_row(root, size, value_bytes, codec, superseded)
    for limit in (0, 32 << 20):
        asyncio.run(beside_the_loop(root, size // 2, limit))
    for in_thread in (False, True, False, True):
        asyncio.run(removal_row(root, 8 * size, in_thread))
    sys.setswitchinterval(before)
