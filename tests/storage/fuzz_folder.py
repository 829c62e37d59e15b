"""Damaged data folders: one file of a folder is changed at rest, or is gone, then the folder is opened and
read.

Allowed: the folder or the log is refused, a read is refused, or everything that is read is right: batches,
aborted transactions, counts, look-ups by timestamp.  Damage inside a batch may be given out: its checksum
tells the reader, and damage outside the checksum is held against what stood there.  Nothing may be missing.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.directory.log_directory import DirectoryRefused, LogDirectory
from tidegate.storage.log.counting import count_now
from tidegate.storage.log.log import Log
from tidegate.storage.log.lookup import max_timestamp, offset_for_timestamp
from tidegate.storage.topic_config import LogConfig
from tidegate.wire.errors import KafkaError
from tidegate.wire.records import iterate_headers, validate_batch

from .fuzz import Found, damaged
from .workload import NOW_MS, append, append_marker, batch, marker

ROOT = Path("/data")
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300)
TOPIC_ID = "00000000-0000-0000-0000-000000000007"


class Pristine:
    """A folder with one log of several segments, aborted transactions and epochs, closed clean or not, as
    path -> content."""

    def __init__(self, clean: bool) -> None:
        from uuid import UUID

        disk = LyingDisk()
        directory = LogDirectory(disk, ROOT, "cluster", 1)
        directory.open_all(lambda _topic: CONFIG, now_ms=NOW_MS)
        log = directory.create("flights", UUID(TOPIC_ID), 0, CONFIG, now_ms=NOW_MS)
        for turn in range(8):
            epoch, at = turn // 3, NOW_MS + 100 * turn
            first = batch(2, pid=200, epoch=turn, sequence=0, transactional=True, size=150, timestamp_ms=at)
            append(log, first, leader_epoch=epoch)
            append(
                log,
                batch(1, pid=100, epoch=0, sequence=turn, size=300, timestamp_ms=at - 250),
                leader_epoch=epoch,
            )
            append_marker(log, marker(200, turn + 1, commit=turn % 2 == 0), leader_epoch=turn // 3)
        log.set_high_watermark(log.log_end_offset)
        log.flush_now()
        directory.write_checkpoints()
        self.end = log.log_end_offset
        self.data = self.read(log)
        self.aborted = [tuple(each) for each in log.aborted_transactions(0, self.end)]
        self.times = look_ups(log)
        self.records = 8 + 4 * 2  # plain ones, and every other transaction
        if clean:
            directory.close(clean=True, broker_epoch=3)
        self.files = {path: disk.read(path) for path in disk.files()}
        self.paths = [path for path in self.files if self.files[path]]

    @staticmethod
    def read(log: Log) -> bytes:
        parts: list[bytes] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            result = log.read(offset, 700, upper_offset=log.log_end_offset)
            if not result.data or result.next_offset <= offset:
                break
            parts.append(bytes(result.data))
            offset = result.next_offset
        return b"".join(parts)


_pristine: dict[bool, Pristine] = {}


def folder_case(random: Random) -> str:
    clean = random.random() < 0.5
    if clean not in _pristine:
        _pristine[clean] = Pristine(clean)
    pristine = _pristine[clean]
    disk = LyingDisk()
    for path, content in pristine.files.items():
        disk.make_directory(path.parent)
        disk.put(path, content)
    victim = random.choice(pristine.paths)
    if random.random() < 0.1:
        disk.remove(victim)
    else:
        disk.put(victim, damaged(random, pristine.files[victim]))
    directory = LogDirectory(disk, ROOT, "cluster", 1)
    try:
        report = directory.open_all(lambda _topic: CONFIG, now_ms=NOW_MS)
    except DirectoryRefused:
        return "folder refused"
    if report.failed:
        return "log refused"
    log = directory.logs.get(("flights", 0))
    if log is None:
        return f"no log: {victim.suffix}"
    try:
        return _compare(log, pristine, victim)
    except KafkaError:
        return "read refused"


def _compare(log: Log, pristine: Pristine, victim: Path) -> str:
    data = pristine.read(log)
    if len(data) != len(pristine.data):
        raise Found(f"damage to {victim.name} shows {len(data)} bytes of {len(pristine.data)}")
    if data != pristine.data:
        if victim.suffix != ".log":
            raise Found(f"damage to {victim.name} changed what is read")
        whole = b"".join(
            bytes(data[at : at + h.size_bytes]) for at, h in iterate_headers(data) if _is_valid(data, at)
        )
        if any(part not in pristine.data for part in _parts(whole)):
            return "damage outside a checksum"
        return "damage that a checksum shows"
    if [tuple(each) for each in log.aborted_transactions(0, log.log_end_offset)] != pristine.aborted:
        raise Found(f"damage to {victim.name} changed the aborted transactions")
    if look_ups(log) != pristine.times:
        raise Found(f"damage to {victim.name} changed what is found by timestamp")
    log.set_high_watermark(log.log_end_offset)
    if count_now(log, 0, log.last_stable_offset) != pristine.records:
        raise Found(f"damage to {victim.name} changed the number of committed records")
    return "folder right"


def look_ups(log: Log) -> list[object]:
    """What is found by every timestamp that there is, and by others."""
    end = log.log_end_offset
    return [max_timestamp(log), *(offset_for_timestamp(log, NOW_MS + at, end) for at in range(-300, 900, 25))]


def _is_valid(data: bytes, at: int) -> bool:
    try:
        validate_batch(memoryview(data), at)
    except KafkaError:
        return False
    return True


def _parts(data: bytes) -> list[bytes]:
    return [data[at + 21 : at + h.size_bytes] for at, h in iterate_headers(data)]
