"""What all storage benchmarks share: batches of an exact size, logs, and the statistics of turns."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate.runtime.disk import RealDisk
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.wire.records import NewRecord, encode_batch

NOW_MS = 1_700_000_000_000
SIZES = {"1 KiB": 1 << 10, "16 KiB": 1 << 14, "64 KiB": 1 << 16, "1 MiB": 1 << 20}
CONFIG = LogConfig(max_message_bytes=2 << 20)


def batch_of(size: int) -> bytearray:
    """A batch of `size` bytes, give or take three, in a writable buffer as the network gives it."""
    overhead = len(encode_batch([NewRecord(b"key", b"v" * (size - 100), (), NOW_MS)])) - (size - 100)
    data = bytearray(encode_batch([NewRecord(b"key", b"v" * (size - overhead), (), NOW_MS)]))
    assert abs(len(data) - size) < 4
    return data


def batch_of_records(size: int, record_bytes: Sequence[int]) -> bytearray:
    """A batch of about `size` bytes, in records whose sizes are drawn from these."""
    draw = random.Random(1)
    records: list[Any] = []
    while size > 0:
        length = draw.choice(record_bytes)
        records.append(NewRecord(b"key-%08d" % len(records), b"v" * (length - 22), (), NOW_MS))
        size -= length
    return bytearray(encode_batch(records))


def open_log(
    directory: Path, *, clean: bool = False, recovery_point: int = 0, config: LogConfig = CONFIG
) -> Log:
    return Log.open(
        RealDisk(), directory, topic="bench", partition=0, config=config, clean=clean,
        recovery_point=recovery_point,
    )  # fmt: skip


def append(log: Log, data: bytearray) -> None:
    log.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)


def forget_pages(directory: Path) -> None:
    """Asks the kernel to drop the folder's files from the page cache; they must be synced."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Turns:
    """Seconds of the log's and the raw loop's turns, taken one after the other."""

    def __init__(self) -> None:
        self.log: list[float] = []
        self.raw: list[float] = []

    def add(self, log_s: float, raw_s: float) -> None:
        self.log.append(log_s)
        self.raw.append(raw_s)

    @property
    def log_s(self) -> float:
        return statistics.median(self.log)

    @property
    def raw_s(self) -> float:
        return statistics.median(self.raw)

    @property
    def ratio(self) -> float:
        return self.raw_s / self.log_s


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
