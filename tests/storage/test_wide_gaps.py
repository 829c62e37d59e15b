"""Compacted topics with gaps that no segment can span: billions of updates to a few keys (indexes hold 32
bits)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.segment.offset_index import OFFSET_SPAN_MAX
from tidegate.storage.topic_config import CleanupPolicy

from .workload import batch, stored

COMPACTED = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
FAR = OFFSET_SPAN_MAX + 6
GAPS = {
    "a little more than a segment spans": [0, FAR],
    "and goes on behind it": [0, FAR, FAR + 1],
    "more than 32 bits": [0, 2**32 + 5],
    "twice": [0, FAR, 3 * FAR],
    "at the beginning": [FAR],
    "just as much as a segment spans": [0, OFFSET_SPAN_MAX - 1],
}


def opened(disk: LyingDisk) -> tuple[LogDirectory, Log]:
    directory = LogDirectory(disk, Path("/data"), "cluster", 1)
    report = directory.open_all(lambda _topic: COMPACTED, now_ms=0)
    assert not report.failed
    return directory, directory.logs.get(("t", 0)) or directory.create("t", UUID(int=7), 0, COMPACTED)


def offsets(log: Log) -> list[int]:
    return [each.header.base_offset for each in stored(log)]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("end", ["close", "kill", "power cut", "power cut before the flush"])
@pytest.mark.parametrize("gap", GAPS)
def test_a_follower_takes_what_the_leader_has_and_finds_it_again(gap: str, end: str, together: bool) -> None:
    disk = LyingDisk()
    directory, log = opened(disk)
    sent = [
        batch(1, pid=1, epoch=0, sequence=number, base_offset=at, leader_epoch=0)
        for number, at in enumerate(GAPS[gap])
    ]
    while len(there := offsets(log)) < len(sent):  # a follower fetches from where its log ends
        log.append_follower(b"".join(sent[len(there) :]) if together else sent[len(there)])
    assert offsets(log) == GAPS[gap]
    producers = log.producers.as_comparable()
    if end != "power cut before the flush":
        log.flush_now()
        directory.write_checkpoints()
    if end == "close":
        directory.close(clean=True, broker_epoch=1)
    if "power" in end:
        disk.crash(Random(3))
    else:
        disk.kill()
    _directory, again = opened(disk)
    if end == "power cut before the flush":
        assert offsets(again) == GAPS[gap][: len(offsets(again))]
    else:
        assert offsets(again) == GAPS[gap]
        assert again.producers.as_comparable() == producers
    end_offset = again.log_end_offset
    again.append_follower(batch(1, base_offset=end_offset, leader_epoch=0))
    assert again.log_end_offset == end_offset + 1
    again.truncate_to(0)
    assert again.log_end_offset == 0
