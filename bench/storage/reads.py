"""Reads in order, from the page cache: of the active segment, and of complete ones, whose index comes from a
file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from time import perf_counter

from tidegate.bench.storage.fixture import SIZES, Turns, append, batch_of, open_log
from tidegate.storage.log.log import Log

READ_SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20}


def bench_read(root: Path, megabytes: int) -> None:
    for kind in ("the active segment", "a complete segment"):
        print(
            f"\nread {kind}\n{'batch':>8} {'at a time':>10} {'MB/s':>8} {'raw MB/s':>9} "
            f"{'over raw us':>12} {'ratio':>6}"
        )
        for name, size in SIZES.items():
            log, data = open_log(root / "log"), batch_of(size)
            for _ in range((megabytes << 20) // size):
                append(log, data)
            end = log.log_end_offset
            log.flush_now()
            if kind == "a complete segment":
                log.roll()
                log.flush_now()
                log.segments[0].indexes.drop()
            for label, chunk in READ_SIZES.items():
                turns, total, count = _alternate(log, end, max(chunk, size))
                log_s, raw_s = turns.log_s, turns.raw_s
                read = total / count
                print(
                    f"{name:>8} {label:>10} {read / log_s / 1e6:8.0f} {read / raw_s / 1e6:9.0f} "
                    f"{(log_s - raw_s) * 1e6:12.1f} "
                    f"{turns.ratio:6.2f}"
                )
            log.close(clean=False)
            shutil.rmtree(root / "log")


def _alternate(log: Log, end: int, chunk: int) -> tuple[Turns, int, int]:
    """Both read the whole log; the raw loop the same ranges, half a log away, so that neither warms the
    other's cache lines."""
    fd = os.open(log.segments[0].path("log"), os.O_RDONLY)
    turns, ranges, offset, position = Turns(), [], 0, 0
    while offset < end:
        found = log.read(offset, chunk, upper_offset=end)
        ranges.append((offset, position, len(found.data)))
        offset, position = found.next_offset, position + len(found.data)
    for _ in range(3):
        for at, (offset, _position, length) in enumerate(ranges):
            _, other, _ = ranges[(at + len(ranges) // 2) % len(ranges)]
            begin = perf_counter()
            data = log.read(offset, chunk, upper_offset=end).data
            middle = perf_counter()
            del data
            between = perf_counter()
            data = os.pread(fd, length, other)
            last = perf_counter()
            del data
            turns.add(middle - begin, last - between)
    os.close(fd)
    return turns, position, len(ranges)
