"""Opening after a stop: one large log, and many small ones; with and without a warm page cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from time import perf_counter
from uuid import UUID

from tidegate.bench.storage.fixture import CONFIG, NOW_MS, append, batch_of, forget_pages, open_log
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.directory.log_loader import FolderOptions

BATCH = 1 << 16
FREE_BYTES_KEPT = 10 << 30
BATCHES_A_PARTITION = 8


def bench_recovery(root: Path, megabytes: int) -> None:
    room = (RealDisk().free_bytes(root) - FREE_BYTES_KEPT) >> 20
    if room < megabytes:
        print(f"\n{megabytes} MiB are wanted, and there is room for {room}")
        megabytes = max(64, room)
    log, data = open_log(root / "log"), batch_of(BATCH)
    begin = perf_counter()
    for _ in range((megabytes << 20) // BATCH):
        append(log, data)
        if log.local.flush_due:
            log.flush_now()
    log.flush_now()
    point, written = log.recovery_point, perf_counter() - begin
    size = log.size_bytes
    for _ in range((32 << 20) // BATCH):  # the part that no flush has covered
        append(log, data)
    end = log.log_end_offset
    log.close(clean=False)
    print(f"\nopening {size / 1e9:.1f} GB in batches of 64 KiB (written and flushed in {written:.0f} s)")
    print(f"{'state':>48} {'ms':>9} {'raw ms':>8} {'ratio':>6} {'scanned MB':>11}")
    for title, recovery_point, cold in (
        ("unclean, 32 MiB unflushed, cached", point, False),
        ("unclean, all flushed, cached", end, False),
        ("unclean, all flushed, not cached", end, True),
    ):
        if cold:
            os.sync()
            forget_pages(root)
        begin = perf_counter()
        log = open_log(root / "log", recovery_point=recovery_point)
        took = perf_counter() - begin
        assert log.log_end_offset == end
        scanned = sum(s.size_bytes for s in log.segments if s.base_offset >= recovery_point) / 1e6
        raw = _raw_scan(root / "log", 32 << 20) if "unflushed" in title else _raw_look(root / "log")
        print(f"{title:>48} {took * 1e3:9.1f} {raw * 1e3:8.1f} {raw / took:6.2f} {scanned:11.0f}")
        log.close(clean=False)
    log = open_log(root / "log", recovery_point=end)
    log.close(clean=True)
    begin = perf_counter()
    open_log(root / "log", clean=True, recovery_point=end).close(clean=False)
    took, raw = perf_counter() - begin, _raw_look(root / "log")
    print(f"{'clean':>48} {took * 1e3:9.1f} {raw * 1e3:8.1f} {raw / took:6.2f} {0:11.0f}")
    if megabytes <= 2048:
        begin = perf_counter()
        open_log(root / "log").close(clean=False)
        took, raw = perf_counter() - begin, _raw_scan(root / "log", size)
        title = "no checkpoint: everything is scanned"
        print(f"{title:>48} {took * 1e3:9.1f} {raw * 1e3:8.1f} {raw / took:6.2f} {size / 1e6:11.0f}")
    shutil.rmtree(root / "log")


def _raw_look(directory: Path) -> float:
    """Seconds of the work that every opening needs: listing the folder, reading the size of every file, and
    reading the small files."""
    begin = perf_counter()
    for entry in list(os.scandir(directory)):
        if entry.stat().st_size < 4096:
            Path(entry.path).read_bytes()
    return perf_counter() - begin


def _raw_scan(directory: Path, size: int) -> float:
    """Seconds of reading as many bytes, from the end, in chunks of 256 KiB, with their CRC-32C."""
    from crc32c import crc32c

    path = sorted(directory.glob("*.log"))[-1]
    fd, length = os.open(path, os.O_RDONLY), path.stat().st_size
    begin, done = perf_counter(), 0
    while done < size:
        crc32c(os.pread(fd, 1 << 18, max(0, length - size) + done % max(1, length)))
        done += 1 << 18
    os.close(fd)
    return perf_counter() - begin


def bench_partitions(root: Path, count: int) -> None:
    data = batch_of(1 << 12)
    directory = LogDirectory(RealDisk(), root / "data", "bench", 1)
    directory.open_all(now_ms=NOW_MS)
    begin = perf_counter()
    for partition in range(count):
        log = directory.create("bench", UUID(int=1), partition, CONFIG, now_ms=NOW_MS)
        for _ in range(BATCHES_A_PARTITION):
            append(log, data)
        log.flush_now()
    made = perf_counter() - begin
    directory.write_checkpoints()
    directory.close(clean=False)
    syncs = min(count, 200)
    fd = os.open(root / "data" / "raw", os.O_RDWR | os.O_CREAT)
    begin = perf_counter()
    for number in range(syncs):
        os.pwrite(fd, b"x" * 4096, number * 4096)
        os.fdatasync(fd)
    raw = (perf_counter() - begin) / syncs
    os.close(fd)
    print(
        f"\nopening {count} partitions of 32 KiB (made in {made:.1f} s; a raw write and fdatasync "
        f"takes {raw * 1e3:.2f} ms)"
    )
    print(f"{'state':>32} {'seconds':>8} {'ms a log':>9} {'in raw syncs':>13}")
    ways = (("unclean, 1 thread", 1, False), ("unclean, 4 threads", 4, False), ("clean, 1 thread", 1, True))
    for title, threads, clean in ways:
        if clean:
            opened = LogDirectory(RealDisk(), root / "data", "bench", 1)
            opened.open_all(now_ms=NOW_MS)
            opened.close(clean=True)
        opened = LogDirectory(
            RealDisk(), root / "data", "bench", 1, options=FolderOptions(recovery_threads=threads)
        )
        begin = perf_counter()
        report = opened.open_all(now_ms=NOW_MS)
        took = perf_counter() - begin
        assert report.opened == count
        assert report.clean == clean
        print(f"{title:>32} {took:8.2f} {took / count * 1e3:9.2f} {took / count / raw:13.1f}")
        opened.close(clean=False)
