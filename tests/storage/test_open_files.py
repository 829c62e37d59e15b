"""A folder of very many segments needs few open files and little memory, and no reader loses a file in
use."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.runtime.disk import RealDisk
from tidegate.storage.checkpoint import encode_checkpoint
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.storage.directory.log_loader import FolderOptions
from tidegate.storage.log.bulk_read import begin_bulk_read
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.segment.open_files import OpenFiles
from tidegate.storage.segment.segment import Segment

from .workload import append, batch, stored

TINY = LogConfig(segment_bytes=1024, index_interval_bytes=100)
NOW_MS = 1_700_000_000_000


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def open_tiny(path: Path, files: OpenFiles, recovery_point: int = 0, clean: bool = False) -> Log:
    return Log.open(
        RealDisk(),
        path,
        topic="t",
        partition=0,
        config=TINY,
        clean=clean,
        recovery_point=recovery_point,
        files=files,
    )


def filled(path: Path, files: OpenFiles, segments: int) -> Log:
    log = open_tiny(path, files)
    while len(log.segments) < segments:
        append(log, batch(1, size=600))
    log.flush_now()
    return log


def test_reads_all_over_a_log_of_many_segments_keep_few_files_open(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), files_max=8)
    log = filled(tmp_path / "t-0", files, 60)
    before = descriptors()
    for _ in range(2):
        assert len(stored(log)) == log.log_end_offset
        assert len(files) <= 8
        assert descriptors() <= before + 8
    log.close(clean=True)
    assert descriptors() <= before
    assert len(files) <= 2


def test_ten_thousand_segments_of_one_folder_open_and_answer(tmp_path: Path) -> None:
    """Made by hand: 100 logs of 100 segments, closed cleanly."""
    directory = LogDirectory(RealDisk(), tmp_path, "c", 1)
    directory.open_all(now_ms=NOW_MS)
    first = directory.create("t", uuid4(), 0, TINY, now_ms=NOW_MS)
    while len(first.segments) < 100:
        append(first, batch(1, size=600))
    first.flush_now()
    directory.close(clean=True)
    source = tmp_path / "t-0"
    for partition in range(1, 100):
        folder = tmp_path / f"t-{partition}"
        folder.mkdir()
        for path in source.iterdir():
            os.link(path, folder / path.name) if path.suffix == ".log" else (folder / path.name).write_bytes(
                path.read_bytes()
            )
    row = (tmp_path / "partition-checkpoint").read_bytes().decode().splitlines()[2].split(" ")
    rows = [["t", str(partition), *row[2:]] for partition in range(100)]
    (tmp_path / "partition-checkpoint").write_bytes(encode_checkpoint(rows, 1))
    before = descriptors()
    again = LogDirectory(RealDisk(), tmp_path, "c", 1, options=FolderOptions(files_max=64))
    report = again.open_all(lambda _topic: TINY, now_ms=NOW_MS)
    assert report.opened == 100
    assert sum(len(log.segments) for log in again.logs.values()) == 10_000
    for log in again.logs.values():
        for offset in range(0, log.log_end_offset, 20):
            assert log.read(offset, 1, upper_offset=log.log_end_offset).first_offset == offset
    assert descriptors() <= before + 64 + 8
    again.close(clean=True)


def test_a_file_with_unsynced_writes_is_never_given_up(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), files_max=1)
    log = filled(tmp_path / "t-0", files, 3)
    append(log, batch(1, size=20))
    writing = log.segments.active.file
    stored(log)  # opens all the others
    assert log.segments.active.file is writing
    log.flush_now()
    stored(log, 0, upper=2)
    assert log.segments.active.file is not writing  # flushed: it may go


@pytest.mark.parametrize("files_max", [1, 100])
def test_a_read_in_another_thread_never_loses_its_file(tmp_path: Path, files_max: int) -> None:
    files = OpenFiles(RealDisk(), files_max)
    log = filled(tmp_path / "t-0", files, 6)
    log.set_high_watermark(log.log_end_offset)
    reads = [begin_bulk_read(log, segment.base_offset, 1000, log.log_end_offset) for segment in log.segments]
    log.advance_log_start(log.segments[3].base_offset)  # removes the first ones
    log.close(clean=True)
    assert [read.run()[0] != b"" for read in reads] == [True] * 6


def test_ablation_when_files_are_closed_on_the_way_out_reads_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Segment.close

    def closing(segment: Segment) -> None:
        segment.file.close()
        close(segment)

    monkeypatch.setattr(Segment, "close", closing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        test_a_read_in_another_thread_never_loses_its_file(tmp_path, 100)


def test_indexes_of_complete_segments_are_dropped_and_read_again(tmp_path: Path) -> None:
    files = OpenFiles(RealDisk(), index_bytes_max=200)
    log = filled(tmp_path / "t-0", files, 30)
    for _ in range(3):
        assert len(stored(log)) == log.log_end_offset
        assert files.index_bytes <= 200
    append(log, batch(1))
    assert log.read(log.log_end_offset - 1, 1, upper_offset=log.log_end_offset).data
    log.truncate_to(log.segments[10].base_offset + 1)
    append(log, batch(1))
    assert len(stored(log)) == log.log_end_offset
    log.close(clean=True)
    end = log.log_end_offset
    again = open_tiny(tmp_path / "t-0", OpenFiles(RealDisk(), index_bytes_max=1), end, clean=True)
    append(again, batch(1))
    assert len(stored(again)) == end + 1


@pytest.mark.parametrize("entry", [1, 2, 3])
def test_an_index_that_names_other_places_is_built_again_when_it_is_used(tmp_path: Path, entry: int) -> None:
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=300)
    log = Log.open(RealDisk(), tmp_path, topic="t", partition=0, config=config, clean=False, recovery_point=0)
    while len(log.segments) < 2:
        append(log, batch(1, size=200))
    log.flush_now()
    log.close(clean=True)
    index = tmp_path / f"{0:020d}.index"
    data = bytearray(index.read_bytes())
    data[8 * entry + 7] ^= 1  # another position, which still rises
    index.write_bytes(data)
    again = Log.open(
        RealDisk(),
        tmp_path,
        topic="t",
        partition=0,
        config=config,
        clean=True,
        recovery_point=log.log_end_offset,
    )
    for offset in range(again.log_end_offset):
        for max_bytes in (1, 600, 5000):
            result = again.read(offset, max_bytes, upper_offset=again.log_end_offset)
            assert result.first_offset == offset
            assert len(result.data) % len(batch(1, size=200)) == 0


def test_a_segment_ends_when_its_index_is_full() -> None:
    from .workload import open_log

    log = open_log(LyingDisk(), config=LogConfig(index_interval_bytes=1, segment_index_bytes=80))
    for turn in range(40):
        append(log, batch(1, timestamp_ms=NOW_MS + turn))
    assert [segment.next_offset - segment.base_offset for segment in log.segments][:-1] == [7] * (
        len(log.segments) - 1
    )
    assert len(stored(log)) == 40


def test_segments_end_earlier_by_a_jitter_that_differs_between_logs() -> None:
    from .workload import open_log

    ends = set()
    for partition in range(20):
        config = LogConfig(segment_ms=1000, segment_jitter_ms=900)
        log = open_log(LyingDisk(), folder=Path(f"/data/t-{partition}"), config=config)
        turn = 0
        while len(log.segments) == 1:
            append(log, batch(1, timestamp_ms=NOW_MS + turn))
            turn += 10
        ends.add(turn)
        assert 100 <= turn <= 1020
    assert len(ends) > 10
