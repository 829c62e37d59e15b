"""Appends: without a flush, with one every 16 batches, with one for every batch; and group commit."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from uuid import UUID

from tidegate.bench.storage.fixture import (
    CONFIG,
    SIZES,
    Turns,
    append,
    batch_of,
    batch_of_records,
    open_log,
    percentile,
)
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.hooks import DETACHED
from tidegate.storage.log.log import LogConfig

TURN_BYTES = 256 << 10  # short: what else the machine runs then falls into few of them
POLICIES = {"flush.policy=os (no flush)": 0, "a flush every 16 batches": 16, "a flush for every batch": 1}
SYNCED_BATCHES = {16: 640, 1: 150}


def bench_append(root: Path, megabytes: int) -> None:
    for title, sync_every in POLICIES.items():
        print(
            f"\nappend, {title}\n{'batch':>8} {'us/batch':>9} {'MB/s':>8} {'raw us':>8} "
            f"{'over raw us':>12} {'ratio':>6}"
        )
        for name, size in SIZES.items():
            data = batch_of(size)
            each = sync_every or max(1, TURN_BYTES // size)
            count = max(4 * each, min(SYNCED_BATCHES.get(sync_every, 1 << 30), (megabytes << 20) // size))
            turns = _alternate(root, data, each, count // each, sync_every)
            log_s, raw_s = turns.log_s / each, turns.raw_s / each
            print(
                f"{name:>8} {log_s * 1e6:9.1f} {size / log_s / 1e6:8.0f} {raw_s * 1e6:8.1f} "
                f"{(log_s - raw_s) * 1e6:12.1f} "
                f"{turns.ratio:6.2f}"
            )

    size = SIZES["64 KiB"]
    print(
        f"\nappend, no flush, 64 KiB\n{'records':>20} {'checked':>8} {'us/batch':>9} {'raw us':>8} "
        f"{'ratio':>6}"
    )
    each_way: dict[str, bytearray] = {
        "1": batch_of(size),
        "64 of 1 KiB": batch_of_records(size, [1024]),
        "655 of 100 B": batch_of_records(size, [100]),
        "655 of 40 to 160 B": batch_of_records(size, range(40, 161)),
    }
    for records, data in each_way.items():
        for checked in (True, False):
            each = TURN_BYTES // size
            turns = _alternate(
                root, data, each, (megabytes << 20) // TURN_BYTES, 0, replace(CONFIG, record_check=checked)
            )
            log_us, raw_us = turns.log_s / each * 1e6, turns.raw_s / each * 1e6
            print(
                f"{records:>20} {'yes' if checked else 'no':>8} {log_us:9.1f} {raw_us:8.1f} "
                f"{turns.ratio:6.2f}"
            )


def _alternate(
    root: Path, data: bytearray, each: int, count: int, sync_every: int, config: LogConfig = CONFIG
) -> Turns:
    log, turns, position = open_log(root / "log", config=config), Turns(), 0
    file = RealDisk().open(root / "raw", create=True)
    for turn in range(count + 2):
        begin = perf_counter()
        for _ in range(each):
            append(log, data)
        if sync_every:
            log.flush_now()
        middle = perf_counter()
        for _ in range(each):
            file.write_at(position, data)
            position += len(data)
        if sync_every:
            file.sync_data()
        end = perf_counter()
        if turn > 1:  # the first turns make files and sync their folder
            turns.add(middle - begin, end - middle)
    log.close(clean=False)
    file.close()
    shutil.rmtree(root / "log")
    (root / "raw").unlink()
    return turns


def bench_commit(root: Path) -> None:
    """Many writers, each waiting for its flush: they share them."""
    data = batch_of(1 << 10)
    file, raw = RealDisk().open(root / "raw", create=True), []
    for number in range(150):
        begin = perf_counter()
        file.write_at(number * len(data), data)
        file.sync_data()
        raw.append(perf_counter() - begin)
    file.close()
    print(f"\ngroup commit, 1 KiB; raw write and fdatasync: p50 {percentile(raw, 0.5) * 1e6:.0f} us")
    print(
        f"{'writers':>8} {'appends/s':>10} {'appends a flush':>16} {'p50 us':>8} {'p99 us':>8} "
        f"{'p50 over raw':>13}"
    )
    for writers in (1, 16, 256):
        took, seconds, flushes = asyncio.run(_commit(root / "log", data, writers))
        middle = percentile(took, 0.5)
        print(
            f"{writers:>8} {len(took) / seconds:10.0f} {len(took) / flushes:16.1f} {middle * 1e6:8.0f} "
            f"{percentile(took, 0.99) * 1e6:8.0f} {middle / percentile(raw, 0.5):13.2f}"
        )
    turns, note_s = asyncio.run(_noted(root / "folder", data))
    share = 100 * (turns.log_s / turns.raw_s - 1)
    print(
        f"in a data folder, one writer: {turns.raw_s * 1e6:.0f} us a commit, {turns.log_s * 1e6:.0f} "
        "us with its note "
        f"({share:+.1f} %); the note itself {note_s * 1e6:.1f} us, {100 * note_s / turns.raw_s:.1f} "
        "% of a commit"
    )


async def _noted(path: Path, data: bytearray) -> tuple[Turns, float]:
    """Commits with and without the note of each flush (`storage/durability/flush_notes.py`), taking turns;
    and the median of the note."""
    directory = LogDirectory(RealDisk(), path, "bench", 1)
    directory.open_all(now_ms=0)
    log, commit, turns, notes = (
        directory.create("bench", UUID(int=1), 0, CONFIG),
        GroupCommit(),
        Turns(),
        list[float](),
    )
    hooks = log.local.hooks

    def timed(end: int) -> None:
        begin = perf_counter()
        hooks.flushed(end)
        notes.append(perf_counter() - begin)

    async def turn(flushed: Callable[[int], None]) -> float:
        log.local.attach(replace(hooks, flushed=flushed))
        begin = perf_counter()
        for _ in range(20):
            append(log, data)
            await commit.flush(log)
        return (perf_counter() - begin) / 20

    for number in range(101):
        order = (hooks, DETACHED) if number % 2 else (DETACHED, hooks)
        took = [await turn(each.flushed) for each in order]
        if number:
            turns.add(took[order.index(hooks)], took[order.index(DETACHED)])
    await turn(timed)
    commit.close()
    directory.close(clean=False)
    return turns, percentile(notes, 0.5)


async def _commit(directory: Path, data: bytearray, writers: int) -> tuple[list[float], float, int]:
    log, commit, took = open_log(directory), GroupCommit(), []

    async def write(turns: int) -> None:
        for _ in range(turns):
            begin = perf_counter()
            append(log, data)
            await commit.flush(log)
            took.append(perf_counter() - begin)

    begin = perf_counter()
    await asyncio.gather(*(write(max(20, 500 // writers)) for _ in range(writers)))
    seconds = perf_counter() - begin
    flushes = commit.flush_count
    commit.close()
    log.close(clean=False)
    shutil.rmtree(directory)
    return took, seconds, flushes
