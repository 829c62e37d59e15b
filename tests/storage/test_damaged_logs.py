"""A damaged log is out of use until it is set aside; a folder remembers the configuration of its logs; logs
open in parallel."""

from __future__ import annotations

import threading
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.runtime.disk import RealDisk
from tidegate.storage.directory import stored_config
from tidegate.storage.directory.log_directory import DAMAGED, LOG_CONFIG, LogDirectory
from tidegate.storage.directory.log_loader import FolderOptions, LogLoader
from tidegate.storage.directory.stored_config import decode_config, encode_config
from tidegate.storage.durability.flush_notes import FLUSH_NOTES
from tidegate.storage.log.log import CorruptLog, Log, LogConfig
from tidegate.storage.topic_config import CleanupPolicy, FlushPolicy, TimestampType
from tidegate.wire.errors import KafkaError

from .workload import NOW_MS, append, batch, stored

DATA = Path("/data")
TOPIC = UUID(int=7)
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)


def opened(disk: LyingDisk, **options: Any) -> LogDirectory:
    directory = LogDirectory(disk, DATA, "c", 1, **options)
    directory.open_all(now_ms=NOW_MS)
    return directory


def with_damage(disk: LyingDisk) -> tuple[LogDirectory, Log]:
    """A log with several segments, open, and a flipped bit in the version of a flushed batch in its
    middle."""
    directory = opened(disk)
    log = directory.create("flights", TOPIC, 0, SMALL, now_ms=NOW_MS)
    for _ in range(30):
        append(log, batch(2, size=200))
    log.flush_now()
    directory.write_checkpoints()
    disk.flip_bit(log.segments[2].path("log"), 16)
    return directory, log


def test_damage_found_by_a_read_takes_this_log_offline_also_after_restarts() -> None:
    disk = LyingDisk()
    directory, log = with_damage(disk)
    other = directory.create("other", uuid4(), 0, LogConfig(), now_ms=NOW_MS)
    found: list[CorruptLog] = []
    directory.on_corrupt = lambda _log, error: found.append(error)
    with pytest.raises(KafkaError):
        stored(log)
    assert log.is_offline
    assert not other.is_offline
    assert not directory.is_offline
    assert found[0].path == log.segments[2].path("log")
    assert found[0].position == 0
    append(other, batch(1))
    directory.close(clean=True, broker_epoch=5)
    disk.kill()
    again = LogDirectory(disk, DATA, "c", 1)
    report = again.open_all(now_ms=NOW_MS)
    assert list(report.failed) == [("flights", 0)]
    assert "damaged at byte 0" in str(report.failed["flights", 0])
    assert again.damaged == {("flights", 0): TOPIC}
    assert ("other", 0) in again.logs


def test_a_read_never_gives_out_a_first_batch_under_another_offset() -> None:
    """No checksum covers the base offset: that a batch of this offset begins where the read begins is looked
    at every time."""
    disk = LyingDisk()
    _, log = with_damage(disk)
    active = log.segments.active
    disk.flip_bit(active.path("log"), 7)
    with pytest.raises(KafkaError, match=f"no batch of offset {active.base_offset} begins here"):
        log.read(active.base_offset, 1 << 20, upper_offset=log.log_end_offset)
    assert log.is_offline


def test_a_damaged_log_is_created_again_only_after_it_is_set_aside() -> None:
    disk = LyingDisk()
    directory, log = with_damage(disk)
    directory.close(clean=False)
    disk.kill()
    disk.open(log.segments[2].path("log")).truncate(0)
    disk.write_atomic(DATA / "flights-0" / f"{log.segments[3].base_offset:020d}.index", b"junk")
    for name in disk.list_names(DATA / "flights-0"):
        if name.endswith(".snapshot"):
            disk.remove(DATA / "flights-0" / name)
    disk.remove(log.segments[-1].path("log"))
    again = opened(disk)
    assert again.damaged == {("flights", 0): TOPIC}
    with pytest.raises(KafkaError, match="not usable"):
        again.create("flights", TOPIC, 0, SMALL, now_ms=NOW_MS)
    again.set_aside("flights", 0)
    fresh = again.create("flights", TOPIC, 0, SMALL, now_ms=NOW_MS)
    assert fresh.log_end_offset == 0
    assert not again.damaged
    assert "0-damaged" in disk.list_names(DATA)
    assert disk.exists(DATA / "0-damaged" / log.segments[0].path("log").name)
    again.close(clean=True, broker_epoch=1)
    assert not opened(disk).damaged


def test_a_damaged_log_of_a_deleted_topic_makes_room_for_the_new_topic() -> None:
    disk = LyingDisk()
    directory, _log = with_damage(disk)
    directory.close(clean=False)
    disk.write_atomic(DATA / "flights-0" / DAMAGED, b"it is")
    again = opened(disk)
    assert again.create("flights", uuid4(), 0, SMALL, now_ms=NOW_MS).log_end_offset == 0


def test_a_log_is_opened_with_the_configuration_that_it_had_last() -> None:
    disk = LyingDisk()
    directory = opened(disk)
    compacted = replace(SMALL, cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    directory.create("a", uuid4(), 0, compacted, now_ms=NOW_MS)
    plain = directory.create("b", uuid4(), 0, LogConfig(), now_ms=NOW_MS)
    assert not disk.exists(DATA / "b-0" / LOG_CONFIG)
    plain.update_config(SMALL)
    directory.close(clean=False)
    disk.kill()
    again = opened(disk)
    assert again.logs["a", 0].config == compacted
    assert again.logs["b", 0].config == SMALL
    again.logs["b", 0].update_config(LogConfig())
    again.close(clean=True, broker_epoch=1)
    assert opened(disk).logs["b", 0].config == LogConfig()


def test_a_configuration_without_room_is_written_at_the_next_checkpoint() -> None:
    disk = LyingDisk()
    directory = opened(disk)
    log = directory.create("a", uuid4(), 0, LogConfig(), now_ms=NOW_MS)
    disk.capacity = 0
    log.update_config(SMALL)
    assert log.config == SMALL
    disk.capacity = None
    directory.write_checkpoints()
    directory.close(clean=False)
    assert opened(disk).logs["a", 0].config == SMALL


def test_recovery_without_metadata_keeps_a_compacted_log_with_offset_gaps() -> None:
    disk = LyingDisk()
    compacted = LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}))
    directory = opened(disk)
    log = directory.create("a", uuid4(), 0, compacted, now_ms=NOW_MS)
    for offset in (0, 5, 9):  # as a follower gets them from a leader that has cleaned
        log.append_follower(batch(1, base_offset=offset, leader_epoch=0))
    log.flush_now()
    directory.close(clean=False)
    disk.kill()
    again = opened(disk)
    assert [each.header.base_offset for each in stored(again.logs["a", 0])] == [0, 5, 9]
    again.close(clean=False)
    disk.kill()
    disk.remove(DATA / "a-0" / LOG_CONFIG)  # the ablation
    disk.remove(DATA / FLUSH_NOTES)  # or else it would be seen that this was flushed
    assert opened(disk).logs["a", 0].log_end_offset == 1


def drawn(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a setting's type, whichever setting it is."""
    if get_origin(kind) is frozenset:
        return st.frozensets(drawn(get_args(kind)[0]), min_size=1)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    return {
        bool: st.booleans(),
        int: st.integers(-1, 2**60),
        float: st.floats(0, 1),
        str: st.sampled_from(("producer", "zstd")),
    }[kind]


@given(st.builds(LogConfig, **{name: drawn(kind) for name, kind in stored_config._TYPES.items()}))
def test_a_stored_configuration_reads_back_as_it_was(config: LogConfig) -> None:
    assert decode_config(encode_config(config)) == config


@pytest.mark.parametrize("kind", [frozenset[TimestampType], frozenset[int], FlushPolicy, bool, float])
@given(data=st.data())
def test_a_setting_of_any_type_is_read_as_it_was_written(kind: Any, data: st.DataObject) -> None:
    value = data.draw(drawn(kind))
    assert stored_config._value(kind, stored_config._text(value)) == value


def test_logs_recover_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = LogDirectory(RealDisk(), tmp_path, "c", 1)
    directory.open_all(now_ms=NOW_MS)
    ends = {}
    for partition in range(12):
        log = directory.create("t", uuid4(), partition, SMALL, now_ms=NOW_MS)
        for _ in range(partition + 1):
            append(log, batch(2, size=300))
        ends["t", partition] = log.log_end_offset
    directory.close(clean=False)
    meeting, met = threading.Barrier(4, timeout=20), []
    load = LogLoader.open

    def met_load(self: LogLoader, key: tuple[str, int], *args: object, **options: Any) -> Log:
        met.append(meeting.wait())
        return load(self, key, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(LogLoader, "open", met_load)
    again = LogDirectory(RealDisk(), tmp_path, "c", 1, options=FolderOptions(recovery_threads=4))
    report = again.open_all(now_ms=NOW_MS)
    assert len(met) == 12
    assert len(report.recovered) == 12
    assert {key: log.log_end_offset for key, log in again.logs.items()} == ends
    again.close(clean=True)
