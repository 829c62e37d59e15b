"""One flipped bit in the places where it would do the most harm: no reader skips a batch or gets a wrong
answer."""

from __future__ import annotations

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.log.log import CorruptLog, Log
from tidegate.storage.log.lookup import offset_for_timestamp
from tidegate.storage.segment.checksums import SegmentChecksums
from tidegate.wire.errors import KafkaError

from .workload import NOW_MS, SMALL, append, append_marker, batch, marker, open_log


def closed(*, aborted: bool = False) -> tuple[LyingDisk, int]:
    """A log of several segments after a clean close, and its end."""
    disk = LyingDisk()
    log = open_log(disk)
    for turn in range(20):
        append(log, batch(3, size=100, timestamp_ms=NOW_MS + 1000 * turn))
        if aborted:
            append(log, batch(pid=7, epoch=turn, sequence=0, transactional=True))
            append_marker(log, marker(7, turn + 1, commit=False))
    end = log.log_end_offset
    assert len(log.segments) > 3
    log.close(clean=True)
    disk.kill()
    return disk, end


def opened(disk: LyingDisk, end: int) -> Log:
    return open_log(disk, config=SMALL, clean=True, recovery_point=end)


def file_of(disk: LyingDisk, suffix: str, number: int = 1):  # type: ignore[no-untyped-def]
    return [path for path in disk.files() if path.suffix == suffix][number]


def test_a_batch_whose_end_is_wrong_does_not_lead_readers_past_itself() -> None:
    """The last offset delta is below the checksum, which a read does not compute: the batch seems to end far
    above."""
    disk, end = closed()
    path = file_of(disk, ".log")
    log = opened(disk, end)
    base = int(path.stem)
    assert log.read(base, 1, upper_offset=end).first_offset == base
    disk.flip_bit(path, 24)
    with pytest.raises(KafkaError, match=r"cannot (stand|follow)"):
        log.read(base, 1, upper_offset=end)
    assert log.is_offline


@pytest.mark.parametrize("byte", [3, 9, 17, 25])
def test_a_damaged_entry_of_the_transaction_index_is_not_believed(byte: int) -> None:
    """Neither another producer nor another place: records of an aborted transaction would pass for committed
    ones."""
    disk, end = closed(aborted=True)
    right = opened(disk, end).aborted_transactions(0, end)
    for suffix in (".txnindex", ".seal"):
        disk.kill()
        log = opened(disk, end)
        disk.flip_bit(file_of(disk, suffix), byte)
        assert log.aborted_transactions(0, end) == right
        assert len(right) == 20
        assert not log.is_offline
        if suffix == ".seal":  # no step has written it again
            disk.flip_bit(file_of(disk, suffix), byte)


@pytest.mark.parametrize("byte", [0, 3, 9, 17, 25])
def test_a_damaged_transaction_index_is_built_again_at_the_start(byte: int) -> None:
    disk, end = closed(aborted=True)
    log = opened(disk, end)
    right = log.aborted_transactions(0, end)
    log.close(clean=True)
    disk.flip_bit(file_of(disk, ".txnindex"), byte)
    again = opened(disk, end)
    assert again.recovered
    assert again.aborted_transactions(0, end) == right
    assert len(right) == 20


def answers(disk: LyingDisk, end: int) -> list[int]:
    """The first offset of every timestamp that was written."""
    log = opened(disk, end)
    found = [offset_for_timestamp(log, NOW_MS + 1000 * turn, end) for turn in range(20)]
    return [each.offset if each is not None else -1 for each in found]


def flipped(disk: LyingDisk, bit: int) -> list[int]:
    path = file_of(disk, ".timeindex")
    disk.flip_bit(path, bit // 8, bit % 8)
    try:
        return answers(disk, 60)
    finally:
        disk.flip_bit(path, bit // 8, bit % 8)
        disk.kill()


def test_a_damaged_time_index_answers_as_the_batches_do() -> None:
    disk, end = closed()
    right = answers(disk, end)
    assert end == 60
    assert right == list(range(0, 60, 3))
    disk.kill()
    for bit in range(8 * disk.size(file_of(disk, ".timeindex"))):
        assert flipped(disk, bit) == right, f"bit {bit}"


def test_ablation_a_time_index_that_is_believed_unseen_answers_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, end = closed()
    right = answers(disk, end)
    disk.kill()
    monkeypatch.setattr(SegmentChecksums, "vouches_for", lambda *asked: True)
    assert any(flipped(disk, bit) != right for bit in range(8 * disk.size(file_of(disk, ".timeindex"))))


def without_its_beginning() -> tuple[LyingDisk, int]:
    """The only thing that knows producer 1 is a snapshot: its records were removed."""
    disk = LyingDisk()
    log = open_log(disk)
    append(log, batch(3, pid=1, epoch=0, sequence=0))
    log.roll()
    for turn in range(3):
        append(log, batch(1, timestamp_ms=NOW_MS + turn))
    log.flush_now()
    log.set_high_watermark(log.log_end_offset)
    log.advance_log_start(3)
    end = log.log_end_offset
    log.close(clean=True)
    return disk, end


def test_a_log_without_the_only_snapshots_of_a_producer_is_refused() -> None:
    """A batch that the producer repeats would be taken twice (docs/semantics.md I9)."""
    disk, end = without_its_beginning()
    snapshots = [path for path in disk.files() if path.suffix == ".snapshot"]
    for path in snapshots:
        disk.flip_bit(path, disk.size(path) - 1)
    for _ in range(2):  # the first try changes nothing
        with pytest.raises(CorruptLog, match="producers whose records were removed") as refused:
            open_log(disk, config=SMALL, clean=True, recovery_point=end, log_start_offset=3)
        assert refused.value.path in snapshots
    for path in snapshots:
        disk.remove(path)  # as the message says
    with pytest.raises(CorruptLog):  # a clean stop left one
        open_log(disk, config=SMALL, clean=True, recovery_point=end, log_start_offset=3)
    assert not open_log(disk, config=SMALL, recovery_point=end, log_start_offset=3).producers.views()


def test_one_snapshot_that_is_right_is_enough() -> None:
    disk, end = without_its_beginning()
    oldest, *_rest = sorted(path for path in disk.files() if path.suffix == ".snapshot")
    disk.flip_bit(oldest, disk.size(oldest) - 1)
    again = open_log(disk, config=SMALL, clean=True, recovery_point=end, log_start_offset=3)
    assert [view.producer_id for view in again.producers.views()] == [1]
