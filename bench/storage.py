"""What a log costs over the bare system calls: append, group commit, read, recovery.

    python bench/storage.py [--directory DIR] [--megabytes 256]

Every row prints the log's figure, a raw loop of the same size in the same run (pwrite, pwrite + fdatasync, pread), and their
ratio.  The raw writer and the log take turns on fresh files, and the median of the rounds counts: page-cache allocation dominates
large writes.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tidegate.runtime.disk import RealDisk, RealFile
from tidegate.storage.group_commit import GroupCommit
from tidegate.storage.log import AppendOrigin, Log, LogConfig
from tidegate.wire.records import NewRecord, encode_batch

NOW_MS = 1_700_000_000_000
SIZES = {"1 KiB": 1 << 10, "16 KiB": 1 << 14, "64 KiB": 1 << 16, "1 MiB": 1 << 20}
ROUNDS = 3
CONFIG = LogConfig(max_message_bytes=2 << 20)


def batch_of(size: int) -> bytearray:
    """A batch of exactly `size` bytes, in a writable buffer as the network gives it."""
    overhead = len(encode_batch([NewRecord(b"key", b"v" * (size - 100), (), NOW_MS)])) - (size - 100)
    data = bytearray(encode_batch([NewRecord(b"key", b"v" * (size - overhead), (), NOW_MS)]))
    assert abs(len(data) - size) < 4
    return data


def open_log(directory: Path, *, clean: bool = False, recovery_point: int = 0) -> Log:
    return Log.open(
        RealDisk(),
        directory,
        topic="bench",
        partition=0,
        config=CONFIG,
        now_ms=NOW_MS,
        clean=clean,
        recovery_point=recovery_point,
    )


def timed(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def append_round(root: Path, data: bytearray, count: int, sync_every: int) -> tuple[float, float]:
    """Seconds of (log, raw) for `count` batches, each on a fresh file; with a sync after every `sync_every` (0: never)."""
    log = open_log(root / "log")

    def by_log() -> None:
        for number in range(1, count + 1):
            log.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
            if sync_every and not number % sync_every:
                log.flush_now()

    file = RealDisk().open(root / "raw", create=True)

    def raw() -> None:
        position = 0
        for number in range(1, count + 1):
            file.write_at(position, data)
            position += len(data)
            if sync_every and not number % sync_every:
                file.sync_data()

    seconds = timed(by_log), timed(raw)
    log.close(clean=False)
    file.close()
    shutil.rmtree(root / "log")
    (root / "raw").unlink()
    return seconds


def bench_append(root: Path, megabytes: int) -> None:
    for title, sync_every in (("append, page cache", 0), ("append, fdatasync every 16 batches", 16)):
        print(f"\n{title}\n{'batch':>8} {'us/batch':>9} {'MB/s':>8} {'raw us':>8} {'over raw us':>12} {'log/raw':>8}")
        for name, size in SIZES.items():
            data = batch_of(size)
            count = max(64, min(20_000 if not sync_every else 800, (megabytes << 20) // size))
            rounds = [append_round(root, data, count, sync_every) for _ in range(ROUNDS)]
            log_s, raw_s = (statistics.median(column) / count for column in zip(*rounds, strict=True))
            print(
                f"{name:>8} {log_s * 1e6:9.1f} {size / log_s / 1e6:8.0f} {raw_s * 1e6:8.1f} {(log_s - raw_s) * 1e6:12.1f} "
                f"{raw_s / log_s:8.2f}"
            )


def bench_read(root: Path, megabytes: int) -> None:
    print(f"\nread 1 MiB at a time\n{'batch':>8} {'MB/s':>8} {'raw MB/s':>9} {'log/raw':>8}")
    for name, size in SIZES.items():
        log, data = open_log(root / "log"), batch_of(size)
        for _ in range((megabytes << 20) // size):
            log.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
        end, total = log.log_end_offset, log.size_bytes

        def by_log(log: Log = log, end: int = end) -> None:
            offset = 0
            while offset < end:
                offset = log.read(offset, 1 << 20, upper_offset=end).next_offset

        file = RealDisk().open(root / "log" / f"{0:020d}.log")

        def raw(file: RealFile = file, file_end: int = total) -> None:
            for position in range(0, file_end, 1 << 20):
                file.read_at(position, 1 << 20)

        log_s = statistics.median(timed(by_log) for _ in range(ROUNDS))
        raw_s = statistics.median(timed(raw) for _ in range(ROUNDS))
        print(f"{name:>8} {total / log_s / 1e6:8.0f} {total / raw_s / 1e6:9.0f} {raw_s / log_s:8.2f}")
        file.close()
        log.close(clean=False)
        shutil.rmtree(root / "log")


async def bench_group_commit(root: Path) -> None:
    print(f"\ngroup commit, 1 KiB\n{'writers':>8} {'appends/s':>10} {'appends a flush':>16} {'p50 us':>8} {'p99 us':>8}")
    data = batch_of(1 << 10)
    for writers in (1, 16, 256):
        log, commit, took = open_log(root / "log"), GroupCommit(), []

        async def write(turns: int, log: Log = log, commit: GroupCommit = commit, took: list[float] = took) -> None:
            for _ in range(turns):
                begin = time.perf_counter()
                log.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
                await commit.flush(log)
                took.append(time.perf_counter() - begin)

        begin = time.perf_counter()
        await asyncio.gather(*(write(max(20, 2000 // writers)) for _ in range(writers)))
        seconds = time.perf_counter() - begin
        took.sort()
        print(
            f"{writers:>8} {len(took) / seconds:10.0f} {len(took) / commit.flush_count:16.1f} {took[len(took) // 2] * 1e6:8.0f} "
            f"{took[len(took) * 99 // 100] * 1e6:8.0f}"
        )
        commit.close()
        log.close(clean=False)
        shutil.rmtree(root / "log")


def bench_recovery(root: Path, megabytes: int) -> None:
    print(f"\nopening {megabytes} MiB\n{'batch':>8} {'clean ms':>9} {'flushed, unclean ms':>20} {'nothing flushed ms':>19}")
    for name, size in SIZES.items():
        log, data = open_log(root / "log"), batch_of(size)
        for _ in range((megabytes << 20) // size):
            log.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
        end = log.log_end_offset
        log.close(clean=True)
        figures = []
        for clean, point in ((True, end), (False, end), (False, 0)):
            begin = time.perf_counter()
            log = open_log(root / "log", clean=clean, recovery_point=point)
            figures.append((time.perf_counter() - begin) * 1e3)
            log.close(clean=clean)
        print(f"{name:>8} {figures[0]:9.1f} {figures[1]:20.1f} {figures[2]:19.1f}")
        shutil.rmtree(root / "log")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--directory", type=Path, help="a folder on the disk to measure (default: the temporary one)")
    arguments.add_argument("--megabytes", type=int, default=256, help="data written for each size")
    chosen = arguments.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tidegate-bench-", dir=chosen.directory))
    try:
        bench_append(root, chosen.megabytes)
        asyncio.run(bench_group_commit(root))
        bench_read(root, chosen.megabytes)
        bench_recovery(root, chosen.megabytes)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
