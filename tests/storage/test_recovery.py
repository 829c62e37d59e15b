"""What opening a log's folder trusts, rebuilds, cuts and refuses."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.durability import flush
from tidegate.storage.durability.flush import FlushTicket
from tidegate.storage.log.log import CorruptLog, Log, LogConfig
from tidegate.storage.log.lookup import offset_for_timestamp
from tidegate.storage.producers.producer_snapshot import SNAPSHOT_VERSIONS
from tidegate.storage.producers.producer_state import ProducerState
from tidegate.wire.errors import KafkaError

from .workload import FOLDER, append, append_marker, batch, marker, open_log, stored


def filled(disk: LyingDisk) -> Log:
    """Ten-odd batches over several segments, producers, an open transaction and an aborted one, all
    flushed."""
    log = open_log(disk)
    for turn in range(4):
        append(log, batch(2, size=300, pid=1, epoch=0, sequence=2 * turn), leader_epoch=turn)
        append(log, batch(1, size=300, pid=2, epoch=turn, sequence=0, transactional=True), leader_epoch=turn)
        append_marker(log, marker(2, turn + 1, commit=bool(turn % 2)), leader_epoch=turn)
    append(log, batch(1, pid=3, epoch=0, sequence=0, transactional=True), leader_epoch=3)
    log.flush_now()
    return log


def remove_checksums(disk: LyingDisk) -> None:
    """As if nothing had been flushed since the segments were complete."""
    for name in disk.list_names(FOLDER):
        if name.endswith(".seal"):
            disk.remove(FOLDER / name)


def everything(log: Log) -> tuple[object, ...]:
    return (
        [each.data for each in stored(log)],
        log.producers.as_comparable(),
        log._epochs.entries(),
        log.aborted_transactions(0, log.log_end_offset),
        [offset_for_timestamp(log, each.header.max_timestamp, 99) for each in stored(log)],
    )


class WritesSeen(LyingDisk):
    """Remembers the names of what is written as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write_atomic(self, path: Path, data: bytes) -> None:
        self.written.append(path.name)
        super().write_atomic(path, data)


def test_a_clean_close_writes_only_what_the_disk_does_not_have_yet() -> None:
    """Each file costs two syncs; of ten thousand logs most have not changed since the last clean close."""
    disk = WritesSeen()
    log = filled(disk)
    log.close(clean=True)
    end, before = log.log_end_offset, set(disk.list_names(FOLDER))
    disk.written.clear()
    log = open_log(disk, clean=True, recovery_point=end)
    known = everything(log)
    log.close(clean=True)
    assert disk.written == []
    assert set(disk.list_names(FOLDER)) == before
    log = open_log(disk, clean=True, recovery_point=end)
    assert not log.recovered
    assert everything(log) == known

    log.assign_epoch(9, end)
    log.close(clean=True)
    assert disk.written == ["leader-epoch-checkpoint"]
    log = open_log(disk, clean=True, recovery_point=end)
    append(log, batch(1, size=300, pid=1, epoch=0, sequence=8), leader_epoch=9)
    disk.written.clear()
    log.close(clean=True)
    suffixes = {name.partition(".")[2] for name in disk.written if "." in name}
    assert suffixes == {"index", "timeindex", "countindex", "seal", "snapshot"}


def test_a_clean_close_rewrites_derived_files_that_were_changed() -> None:
    disk = WritesSeen()
    log = filled(disk)
    log.close(clean=True)
    end = log.log_end_offset
    log = open_log(disk, clean=True, recovery_point=end)
    snapshot = FOLDER / f"{end:020d}.snapshot"
    disk.write_atomic(snapshot, b"x" * disk.size(snapshot))
    log.close(clean=True)
    log = open_log(disk, clean=True, recovery_point=end)
    assert not log.recovered
    assert len(log.producers.views()) == 3


def test_a_clean_close_rewrites_unreadable_derived_files() -> None:
    disk = WritesSeen()
    log = filled(disk)
    log.close(clean=True)
    end = log.log_end_offset
    log = open_log(disk, clean=True, recovery_point=end)
    disk.unreadable = frozenset({FOLDER / f"{end:020d}.snapshot"})
    log.close(clean=True)
    disk.unreadable = frozenset()
    log = open_log(disk, clean=True, recovery_point=end)
    assert disk.written.count(f"{end:020d}.snapshot") == 2
    assert not log.recovered
    assert len(log.producers.views()) == 3


def test_a_log_whose_last_flush_writes_a_snapshot_closes_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both want the same files: every log with 64 MiB in its last segment met this."""
    monkeypatch.setattr(flush, "RESUME_BYTES", 1000)
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig())
    for sequence in range(20):
        append(log, batch(1, size=300, pid=1, epoch=0, sequence=sequence))
    end = log.log_end_offset
    log.close(clean=True)
    again = open_log(disk, config=LogConfig(), clean=True, recovery_point=end)
    assert again.log_end_offset == end
    assert again.producers.views()[0].last_sequence == 19


def test_a_clean_close_needs_no_recovery_and_reads_almost_nothing() -> None:
    disk = LyingDisk()
    log = filled(disk)
    before, end = everything(log), log.log_end_offset
    log.close(clean=True)
    disk.kill()
    disk.reads = 0
    again = open_log(disk, clean=True, recovery_point=end)
    assert not again.recovered
    assert disk.reads <= 2
    assert everything(again) == before


def test_a_clean_mark_on_a_log_that_does_not_fit_is_not_believed() -> None:
    disk = LyingDisk()
    log = filled(disk)
    before, end = everything(log), log.log_end_offset
    log.close(clean=True)
    append_later = disk.open(log.segments.active.path("log"))
    append_later.write_at(append_later.size(), b"junk that was written after the close")
    again = open_log(disk, clean=True, recovery_point=end)
    assert again.recovered
    assert everything(again) == before


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex", "countindex", "snapshot"])
@pytest.mark.parametrize("how", ["missing", "damaged", "empty"])
def test_derived_files_are_built_again(suffix: str, how: str) -> None:
    disk = LyingDisk()
    before = everything(filled(disk))
    disk.kill()
    for name in disk.list_names(FOLDER):
        if name.endswith(f".{suffix}"):
            path = FOLDER / name
            if how == "missing":
                disk.remove(path)
            else:
                disk.write_atomic(path, b"" if how == "empty" else b"\xff" * 37)
    assert everything(open_log(disk, recovery_point=0)) == before


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_the_indexes_of_trusted_segments_are_built_again_when_first_needed(suffix: str) -> None:
    disk = LyingDisk()
    log = filled(disk)
    before, point = everything(log), log.recovery_point
    disk.kill()
    for name in disk.list_names(FOLDER):
        if name.endswith(f".{suffix}"):
            disk.write_atomic(FOLDER / name, b"\xff" * 24)
    assert everything(open_log(disk, recovery_point=point)) == before


def test_a_damaged_transaction_index_of_a_trusted_segment_is_built_again() -> None:
    disk = LyingDisk()
    log = filled(disk)
    before, point = everything(log), log.recovery_point
    disk.kill()
    disk.write_atomic(
        next(FOLDER / name for name in disk.list_names(FOLDER) if name.endswith(".txnindex")), b"\xff" * 40
    )
    assert everything(open_log(disk, recovery_point=point)) == before


@pytest.mark.parametrize("content", [b"", b"1\n1\n0 0\ncrc32c 00000000\n"], ids=["empty", "wrong checksum"])
def test_a_damaged_epoch_history_is_built_again(content: bytes) -> None:
    disk = LyingDisk()
    log = filled(disk)
    before, point = everything(log), log.recovery_point
    disk.kill()
    disk.write_atomic(FOLDER / "leader-epoch-checkpoint", content)
    assert everything(open_log(disk, recovery_point=point)) == before


@pytest.mark.parametrize("tail", [b"\0" * 500, b"\xff" * 90, b"x", "torn", "zeros"])
def test_a_torn_tail_above_the_recovery_point_is_cut(tail: bytes | str) -> None:
    disk = LyingDisk()
    log = filled(disk)
    before, end = everything(log), log.log_end_offset
    last = batch(2, base_offset=end, leader_epoch=3)
    if tail == "torn":
        tail = last[:-7]
    elif tail == "zeros":
        tail = last[:70] + bytes(len(last) - 70)
    assert isinstance(tail, bytes)
    file = disk.open(log.segments.active.path("log"))
    file.write_at(file.size(), tail)
    disk.kill()
    again = open_log(disk, recovery_point=end)
    assert again.recovered
    assert again.recovery_truncated_bytes == len(tail)
    assert everything(again) == before
    assert again.flushed_end_offset == end
    append(again, batch(), leader_epoch=4)
    assert stored(again)[-1].header.base_offset == end


def test_damage_in_flushed_data_is_refused_and_named() -> None:
    disk = LyingDisk()
    log = filled(disk)
    end, target = log.log_end_offset, log.segments.active
    position = target.index.entry(len(target.index) // 2)[1]
    disk.kill()
    disk.flip_bit(target.path("log"), position + 80)
    size = disk.size(target.path("log"))
    with pytest.raises(CorruptLog) as caught:
        open_log(disk, recovery_point=end)
    assert caught.value.path == target.path("log")
    assert caught.value.position == position
    assert caught.value.offset < end
    assert str(caught.value.path) in caught.value.message
    assert "Nothing was cut" in caught.value.message
    assert disk.size(target.path("log")) == size


def test_the_same_damage_above_the_recovery_point_is_a_torn_tail() -> None:
    disk = LyingDisk()
    log = filled(disk)
    target, offset = log.segments.active, log.segments.active.base_offset
    disk.kill()
    disk.flip_bit(target.path("log"), 80)
    again = open_log(disk, recovery_point=offset)
    assert again.log_end_offset == offset


@pytest.mark.parametrize("what", ["shorter", "last segment gone", "all gone"])
def test_missing_flushed_data_is_refused(what: str) -> None:
    disk = LyingDisk()
    log = filled(disk)
    end = log.log_end_offset
    disk.kill()
    if what == "shorter":
        disk.open(log.segments.active.path("log")).truncate(0)
    else:
        for segment in log.local.segments[-1:] if what == "last segment gone" else log.local.segments:
            disk.remove(segment.path("log"))
    with pytest.raises(CorruptLog):
        open_log(disk, recovery_point=end)


def test_a_segment_behind_a_gap_above_the_recovery_point_is_removed() -> None:
    disk = LyingDisk()
    log = filled(disk)
    gone = log.local.segments[1]
    disk.kill()
    remove_checksums(disk)
    disk.remove(gone.path("log"))
    again = open_log(disk, recovery_point=0)
    assert again.log_end_offset == gone.base_offset
    assert len(again.segments) == 1


def test_a_snapshot_above_the_end_does_not_come_back_to_life() -> None:
    disk = LyingDisk()
    log = filled(disk)
    first, second = log.local.segments[0], log.local.segments[1]
    disk.kill()
    remove_checksums(disk)
    disk.open(second.path("log")).truncate(0)
    again = open_log(disk, recovery_point=0)
    assert again.log_end_offset == second.base_offset
    assert [name for name in disk.list_names(FOLDER) if name.endswith(".snapshot")] == [
        f"{second.base_offset:020d}.snapshot"
    ]
    assert first.base_offset == 0


def test_producers_equal_a_replay_from_zero_with_any_snapshot() -> None:
    disk = LyingDisk()
    log = filled(disk)
    before = log.producers.as_comparable()
    names = [name for name in disk.list_names(FOLDER) if name.endswith(".snapshot")]
    assert len(names) >= 2
    for name in reversed(names):
        disk.kill()
        disk.remove(FOLDER / name)
        assert open_log(disk, recovery_point=log.log_end_offset).producers.as_comparable() == before


@pytest.mark.parametrize("asks", [True, False])
def test_a_producer_known_only_to_the_last_snapshot_is_kept(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    """Its batches went with the log's front, and the snapshot that stood there rots; with the notes gone
    everything is scanned (docs/semantics.md C5).  Ablation: recovery does not look at the last snapshot."""
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(pid=7, epoch=3, sequence=0))
    log.roll()
    append(log, batch(pid=8, epoch=0, sequence=0))
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(1)
    log.close(clean=True)
    disk.kill()
    names = [name for name in disk.list_names(FOLDER) if name.endswith((".log", ".snapshot"))]
    assert sorted(names) == [f"{1:020d}.log", f"{1:020d}.snapshot", f"{2:020d}.snapshot"]
    disk.write_atomic(FOLDER / f"{1:020d}.snapshot", b"rotten")
    if not asks:
        monkeypatch.setattr(ProducerState, "adopt_unknown", lambda producers, older: None)
    again = open_log(disk, recovery_point=0)
    assert [(view.producer_id, view.epoch) for view in again.producers.views()] == [(7, 3), (8, 0)][
        not asks :
    ]


def of_a_later_version(disk: LyingDisk) -> dict[Path, bytes]:
    """All snapshots in the folder, as if a later release had written them in another format."""
    found = {}
    for name in disk.list_names(FOLDER):
        if name.endswith(".snapshot"):
            body = (SNAPSHOT_VERSIONS.writes + 1).to_bytes(2, "big") + b"what only that release can read"
            found[FOLDER / name] = crc32c(body).to_bytes(4, "big") + body
            disk.write_atomic(FOLDER / name, found[FOLDER / name])
    return found


@pytest.mark.parametrize("clean", [True, False])
def test_a_snapshot_of_a_later_version_is_passed_over_and_kept(clean: bool) -> None:
    disk = LyingDisk()
    log = filled(disk)
    log.close(clean=True)
    end, known = log.log_end_offset, log.producers.as_comparable()
    later = of_a_later_version(disk)
    again = open_log(disk, clean=clean, recovery_point=end)
    assert again.producers.as_comparable() == known
    assert {path: disk.read(path) for path in later if disk.exists(path)} == later
    again.truncate_to(again.segments[2].base_offset)
    assert not [path for path in later if int(path.stem) > again.log_end_offset and disk.exists(path)]


def test_a_snapshot_of_a_later_version_above_the_end_goes() -> None:
    """The log grows over its offset with other batches, which the later release must not take it for."""
    disk = LyingDisk()
    log = filled(disk)
    newest = log.segments[-1].base_offset
    log.close(clean=False)
    of_a_later_version(disk)
    remove_checksums(disk)
    data = disk.open(log.segments[1].path("log"))
    data.write_at(data.size() - 1, b"?")
    again = open_log(disk)
    assert again.log_end_offset < newest
    assert max(int(name[:20]) for name in disk.list_names(FOLDER) if name.endswith(".snapshot")) < newest


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_needs_a_snapshot_of_a_later_version_is_refused_and_not_damaged(clean: bool) -> None:
    """Without the first segments no replay finds their producers, and a repeated batch would be taken."""
    disk = LyingDisk()
    log = filled(disk)
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(log.segments[2].base_offset)
    log.close(clean=True)
    start, end, kept = log.log_start_offset, log.log_end_offset, of_a_later_version(disk)
    with pytest.raises(KafkaError, match="it has version 2; this release reads version 1 of it") as refused:
        open_log(disk, clean=clean, recovery_point=end, log_start_offset=start)
    assert not isinstance(refused.value, CorruptLog)
    assert {path: disk.read(path) for path in kept} == kept


def test_snapshots_of_earlier_closes_do_not_pile_up() -> None:
    disk = LyingDisk()
    log = filled(disk)
    segments = len(log.segments)
    for turn in range(4):
        append(log, batch(1, pid=9, epoch=0, sequence=turn), leader_epoch=3)
        end, before = log.log_end_offset, log.producers.as_comparable()
        log.close(clean=True)
        log = open_log(disk, clean=True, recovery_point=end)
        assert log.producers.as_comparable() == before
        assert not log.recovered
    assert len([name for name in disk.list_names(FOLDER) if name.endswith(".snapshot")]) <= segments


def test_ended_transactions_still_bound_readers_after_a_restart() -> None:
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(1, pid=7, epoch=0, sequence=0, transactional=True))
    append_marker(log, marker(7, 1, commit=True))
    log.set_high_watermark(1)
    assert log.last_stable_offset == 0
    log.close(clean=True)
    again = open_log(disk, clean=True, recovery_point=2, high_watermark=1)
    assert not again.recovered
    assert again.last_stable_offset == 0
    again.set_high_watermark(2)
    assert again.last_stable_offset == 2


def test_ablation_a_snapshot_without_unreplicated_ones_shows_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerState, "unreplicated", property(lambda self: []))
    with pytest.raises(AssertionError):
        test_ended_transactions_still_bound_readers_after_a_restart()


def unclean(disk: LyingDisk, point: int, flushed: int) -> Log:
    """Opened after a kill, with a recovery point noted earlier than the last flush."""
    log = open_log(disk, config=LogConfig(index_interval_bytes=300), recovery_point=point)
    assert log.log_end_offset == flushed
    return log


def long_active_segment(disk: LyingDisk, monkeypatch: pytest.MonkeyPatch) -> tuple[Log, int]:
    """One segment with a snapshot in its middle, made by a flush; returns the snapshot's offset."""
    monkeypatch.setattr("tidegate.storage.durability.flush.RESUME_BYTES", 12_000)
    log = open_log(disk, config=LogConfig(index_interval_bytes=300))
    for turn in range(40):
        append(log, batch(2, size=300, pid=1, epoch=0, sequence=2 * turn), leader_epoch=turn // 10)
        append(log, batch(1, pid=2, epoch=turn, sequence=0, transactional=True), leader_epoch=turn // 10)
        append_marker(log, marker(2, turn + 1, commit=bool(turn % 3)), leader_epoch=turn // 10)
        if turn % 5 == 4:
            log.flush_now()
    names = [name for name in disk.list_names(FOLDER) if name.endswith(".snapshot")]
    assert len(names) == 1, "the snapshot before it is of no use any more"
    return log, int(names[0][:-9])


@pytest.mark.parametrize("power", [False, True])
def test_a_long_active_segment_is_scanned_from_its_last_snapshot(
    power: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LyingDisk()
    log, snapshot = long_active_segment(disk, monkeypatch)
    before, end, size = everything(log), log.log_end_offset, log.size_bytes
    disk.crash(Random(1)) if power else disk.kill()
    reads = disk.reads
    again = unclean(disk, 1, end)
    assert disk.reads - reads < 20
    assert everything(again) == before
    assert again.recovered
    assert 0 < snapshot < end
    scanned = size - again.segments.active.position_of(snapshot)
    assert 0 < scanned < size / 2
    again.close(clean=False)
    disk.kill()
    for suffix in ("index", "timeindex", "txnindex"):
        disk.write_atomic(FOLDER / f"{0:020d}.{suffix}", b"\xff" * 24)
    assert everything(unclean(disk, 1, end)) == before
    disk.write_atomic(FOLDER / f"{snapshot:020d}.snapshot", b"\xff" * 24)
    assert everything(unclean(disk, 1, end)) == before


def test_what_a_snapshot_proves_to_be_flushed_is_not_silently_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk()
    log, _snapshot = long_active_segment(disk, monkeypatch)
    end = log.log_end_offset
    disk.kill()
    disk.open(log.segments.active.path("log")).truncate(5000)
    with pytest.raises(CorruptLog, match="flushed"):
        unclean(disk, 1, end)


@pytest.mark.parametrize("sealed", [True, False])
def test_batches_missing_right_below_a_snapshot_are_missed(
    monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """The index fits the shorter file, which ends with a whole batch, below what the snapshot says was
    flushed."""
    monkeypatch.setattr("tidegate.storage.durability.flush.RESUME_BYTES", 1)
    disk = LyingDisk()
    log = open_log(disk, config=LogConfig(index_interval_bytes=300))
    for sequence in range(12):
        append(log, batch(1, pid=1, epoch=0, sequence=sequence))
    log.flush_now()
    last = log.segments.active.position_of(11)
    disk.kill()
    disk.open(log.segments.active.path("log")).truncate(last)
    if not sealed:
        remove_checksums(disk)
    wanted = (
        f"{last} bytes where {log.size_bytes} had been flushed" if sealed else "up to offset 12 was flushed"
    )
    with pytest.raises(CorruptLog, match=wanted) as damage:
        unclean(disk, 12, 12)
    assert damage.value.position == last


def test_damage_below_segment_checksums_is_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash came between segment checksums and their snapshot, and the notes are lost.  Batches are durable
    before their checksums are written."""
    disk = LyingDisk()
    log, snapshot = long_active_segment(disk, monkeypatch)
    path, size = log.segments.active.path("log"), log.segments.active.size_bytes
    at = log.segments.active.position_of(snapshot // 2)
    disk.kill()
    for name in disk.list_names(FOLDER):
        if name.endswith(".snapshot"):
            disk.remove(FOLDER / name)
    disk.flip_bit(path, at + 70)
    with pytest.raises(CorruptLog) as damage:
        unclean(disk, 1, 0)
    assert damage.value.position == at
    assert disk.size(path) == size
    remove_checksums(disk)  # ablation: then it is a torn tail
    assert (
        open_log(disk, config=LogConfig(index_interval_bytes=300), recovery_point=1).log_end_offset
        == damage.value.offset
    )


@pytest.mark.parametrize("vouched", [True, False])
def test_checksums_vouch_for_all_before_their_segment(vouched: bool) -> None:
    """Notes are lost, and the checksums of the damaged segment.  Later ones were written after all segments
    were synced."""
    disk = LyingDisk()
    log = filled(disk)
    segments = list(log.segments)
    assert len(segments) >= 3
    disk.kill()
    for name in disk.list_names(FOLDER):
        is_left = name.endswith(".seal") and vouched and int(name[:20]) == segments[-2].base_offset
        if name.endswith((".snapshot", ".seal")) and not is_left:
            disk.remove(FOLDER / name)
    disk.flip_bit(segments[0].path("log"), segments[0].size_bytes - 5)
    if vouched:
        with pytest.raises(CorruptLog) as damage:
            open_log(disk, recovery_point=1)
        assert damage.value.path == segments[0].path("log")
    else:  # ablation: then it is a torn tail
        assert open_log(disk, recovery_point=1).log_end_offset < segments[1].base_offset


def test_a_flushed_segment_is_not_removed_for_bytes_before_it() -> None:
    disk = LyingDisk()
    log = filled(disk)
    segments = list(log.segments)
    disk.kill()
    for name in disk.list_names(FOLDER):
        if name.endswith(".snapshot") or (
            name.endswith(".seal") and int(name[:20]) < segments[-2].base_offset
        ):
            disk.remove(FOLDER / name)
    before = segments[-3]
    disk.open(before.path("log")).write_at(before.size_bytes, b"not a batch")
    with pytest.raises(CorruptLog):
        open_log(disk, recovery_point=1)


def test_where_the_next_segment_began_is_forgotten_when_it_is_removed() -> None:
    """Bytes behind a sealed segment end the log there; another next segment begins elsewhere."""
    disk = LyingDisk()
    log = open_log(disk)
    for _ in range(2):
        append(log, batch(2))
    log.roll()
    log.flush_now()
    append(log, batch(2))
    first = log.segments[0]
    disk.kill()
    disk.open(first.path("log")).write_at(first.size_bytes, b"not a batch")
    again = open_log(disk, recovery_point=1)
    assert again.log_end_offset == 4
    append(again, batch(3))
    again.roll()
    disk.kill()
    assert open_log(disk, recovery_point=1).log_end_offset == 7


@pytest.mark.parametrize("flushed", [True, False])
def test_a_leader_epoch_that_falls_is_damage(flushed: bool) -> None:
    """It stands outside of the checksum; believed, it would make the log refuse what the true leader
    appends."""
    disk = LyingDisk()
    log = open_log(disk)
    for _ in range(4):
        append(log, batch(1), leader_epoch=3)
    path, second = log.segments.active.path("log"), log.segments.active.position_of(1)
    disk.kill()
    disk.flip_bit(path, second + 13)
    if flushed:
        with pytest.raises(CorruptLog, match="leader epoch 3 behind a batch of epoch"):
            open_log(disk, flushed_end=4)
    else:
        assert open_log(disk).log_end_offset == 2


def test_a_cut_below_the_snapshot_takes_it_away_before_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LyingDisk()
    log, snapshot = long_active_segment(disk, monkeypatch)
    log.truncate_to(snapshot - 20)
    for turn in range(3):
        append(log, batch(1, size=700 + turn), leader_epoch=9)
    log.flush_now()
    before, end = everything(log), log.log_end_offset
    disk.crash(Random(2))
    assert everything(unclean(disk, 1, end)) == before


def test_ablation_a_snapshot_before_the_data_sync_refuses_a_good_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = FlushTicket.run

    def wrong_order(ticket: FlushTicket) -> None:
        for path, data in ticket.derived.items():
            ticket._disk.write_atomic(path, data)
        raise OSError(5, "the power goes here")

    disk = LyingDisk()
    log, _snapshot = long_active_segment(disk, monkeypatch)
    monkeypatch.setattr(FlushTicket, "run", wrong_order)
    for _ in range(20):
        append(log, batch(2, size=300), leader_epoch=5)
    with pytest.raises(KafkaError):
        log.flush_now()
    monkeypatch.setattr(FlushTicket, "run", run)
    refused = 0
    for seed in range(5):
        copy = deepcopy(disk)
        copy.crash(Random(seed))
        try:
            open_log(copy, config=LogConfig(index_interval_bytes=300), recovery_point=1)
        except CorruptLog:
            refused += 1
    assert refused


def test_an_index_of_an_earlier_life_is_built_again_when_it_is_read() -> None:
    disk = LyingDisk()
    log = filled(disk)
    segment = log.segments[0]
    size = len(disk.read(segment.path("index")))
    before, end = everything(log), log.log_end_offset
    log.close(clean=True)
    again = open_log(disk, clean=True, recovery_point=end)
    disk.write_atomic(segment.path("index"), disk.read(segment.path("index"))[:8])
    assert everything(again) == before
    assert len(again.segments[0].index.encode()) == size
