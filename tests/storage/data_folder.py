"""A healthy data folder with everything in it that a log can hold, for tests that damage it.  Real files, a
real lock."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.topic_config import CleanupPolicy

from .workload import NOW_MS, append, append_marker, batch, marker

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300)
COMPACTED = LogConfig(
    segment_bytes=1500, index_interval_bytes=300, cleanup_policy=frozenset({CleanupPolicy.COMPACT})
)
FLIGHTS, STATE, SMALL = UUID(int=0xF), UUID(int=0x5), UUID(int=0x1)
CLUSTER, NODE = "lisbon", 1


def open_folder(path: Path, *, directory_id: str = "disk-1") -> LogDirectory:
    folder = LogDirectory(RealDisk(), path, CLUSTER, NODE, directory_id)
    folder.open_all(now_ms=NOW_MS)
    return folder


def fill(log: Log, *, rounds: int = 12) -> None:
    """Plain batches, an idempotent producer, committed and aborted transactions, three leader epochs, late
    timestamps."""
    for at in range(rounds):
        epoch = at * 3 // rounds
        append(log, batch(2, timestamp_ms=NOW_MS + 100 * at), leader_epoch=epoch)
        append(
            log,
            batch(3, pid=7, epoch=0, sequence=3 * at, timestamp_ms=NOW_MS + 100 * at - 250),
            leader_epoch=epoch,
        )
        append(
            log,
            batch(2, pid=8, epoch=at, sequence=0, transactional=True, timestamp_ms=NOW_MS + at),
            leader_epoch=epoch,
        )
        append(
            log,
            batch(1, pid=8, epoch=at, sequence=2, transactional=True, timestamp_ms=NOW_MS + at),
            leader_epoch=epoch,
        )
        ended = marker(8, at + 1, commit=at % 3 != 1, coordinator_epoch=at // 4)
        append_marker(log, ended, leader_epoch=epoch)
    log.set_high_watermark(log.log_end_offset)


def build(path: Path, *, clean: bool = True) -> Path:
    """`flights-0`, `flights-1` (plain), `state-0` (compacted, with gaps), `small-0` (nothing in it);
    stopped."""
    folder = open_folder(path)
    for partition in (0, 1):
        fill(folder.create("flights", FLIGHTS, partition, CONFIG, now_ms=NOW_MS))
    state = folder.create("state", STATE, 0, COMPACTED, now_ms=NOW_MS)
    for at in range(20):
        state.append_follower(batch(2, base_offset=5 * at, leader_epoch=1))
    state.set_high_watermark(state.log_end_offset)
    folder.create("small", SMALL, 0, CONFIG, now_ms=NOW_MS)
    if clean:
        folder.close(clean=True, broker_epoch=3)
    else:
        for log in folder.logs.values():
            log.flush_now()
        folder.write_checkpoints()
        folder.close(clean=False)
    return path
