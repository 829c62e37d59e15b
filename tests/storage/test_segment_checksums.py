"""What segment checksums do not vouch for is noticed at the start: files beside the batches are built again,
lost batches are named."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tidegate.chaos.sim.disk import LyingDisk, PowerCut
from tidegate.storage.log.log import CorruptLog, Log
from tidegate.storage.log.lookup import max_timestamp, offset_for_timestamp
from tidegate.storage.recovery.recovery import _Loader
from tidegate.storage.segment.checksums import STILL_OPEN, decode_checksums
from tidegate.storage.segment.segment_files import SegmentFiles
from tidegate.wire.records import iterate_headers

from .data_folder import build, open_folder
from .test_segments import COMPACTED
from .test_segments import clean as cleaned
from .workload import FOLDER, NOW_MS, append, batch, open_log, stored

Seen = dict[str, object]


def seen(log: Log) -> Seen:
    """What readers get by the help of the files beside the batches."""
    end = log.log_end_offset
    return {
        "batches": stored(log),
        "aborted": [log.aborted_transactions(start, end) for start in range(0, end, 5)],
        "times": [offset_for_timestamp(log, NOW_MS + at, end) for at in range(-300, 1400, 50)],
        "greatest": max_timestamp(log),
        "producers": log.producers.views(),
    }


def everything(path: Path) -> tuple[dict[str, Seen], list[str]]:
    """All logs of the folder, and which of them had to be recovered; the folder is closed cleanly again."""
    folder = open_folder(path)
    recovered = sorted(log.name for log in folder.logs.values() if log.recovered)
    found = {log.name: seen(log) for log in folder.logs.values()}
    folder.close(clean=True, broker_epoch=3)
    return found, recovered


def derived_of(path: Path, log: str) -> list[Path]:
    return sorted(
        each
        for each in (path / log).iterdir()
        if each.suffix in (".index", ".timeindex", ".txnindex", ".seal")
    )


@pytest.mark.parametrize("how", ["missing", "short", "empty", "long"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".seal"])
def test_a_file_that_is_not_as_the_stop_left_it_is_built_again(tmp_path: Path, suffix: str, how: str) -> None:
    path = build(tmp_path / "data")
    wanted, recovered = everything(path)
    assert not recovered
    files = [each for each in derived_of(path, "flights-0") if each.suffix == suffix and each.stat().st_size]
    assert files
    for file in (files[0], files[len(files) // 2], files[-1]):
        content = file.read_bytes()
        match how:
            case "missing":
                file.unlink()
            case "short":
                file.write_bytes(
                    content[: -{".index": 8, ".timeindex": 12, ".txnindex": 34, ".seal": 2}[suffix]]
                )
            case "empty":
                file.write_bytes(b"")
            case "long":
                file.write_bytes(content + bytes(34))
            case _:
                raise AssertionError(how)
        assert everything(path) == (wanted, ["flights-0"])
        assert file.read_bytes() == content, "it is on the disk again"
    assert everything(path) == (wanted, [])


def test_ablation_checksums_without_transaction_index_show_aborted_ones(tmp_path: Path) -> None:
    path = build(tmp_path / "data")
    wanted, _ = everything(path)
    for file in derived_of(path, "flights-0"):
        if file.suffix == ".txnindex":
            file.unlink()
        if file.suffix == ".seal":
            file.write_bytes(
                decode_checksums(file.read_bytes(), int(file.stem))
                ._replace(aborted=0, aborted_crc=0)
                .encode()
            )
    found, recovered = everything(path)
    assert not recovered
    assert found["flights-0"]["aborted"] != wanted["flights-0"]["aborted"]


def test_a_missing_transaction_index_is_rebuilt_after_an_unclean_stop(tmp_path: Path) -> None:
    path = build(tmp_path / "data", clean=False)
    wanted, _ = everything(build(tmp_path / "whole", clean=False))
    files = [each for each in derived_of(path, "flights-0") if each.suffix == ".txnindex"]
    assert len(files) > 2
    for file in files:
        file.unlink()
    assert everything(path)[0]["flights-0"] == wanted["flights-0"]


def data_of(path: Path, log: str) -> list[Path]:
    return sorted(each for each in (path / log).iterdir() if each.suffix == ".log")


def with_more_holes(path: Path, *, clean: bool) -> Path:
    """The folder with more segments in its compacted log."""
    folder = open_folder(path)
    state = folder.logs["state", 0]
    for at in range(20, 80):
        state.append_follower(batch(2, base_offset=5 * at, leader_epoch=1))
    state.flush_now()
    folder.write_checkpoints()
    folder.close(clean=clean, broker_epoch=3)
    assert len(data_of(path, "state-0")) > 5
    return path


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [0, 1, 3, -2])
@pytest.mark.parametrize("log", ["flights-0", "state-0"])
@pytest.mark.parametrize("how", ["gone", "empty", "cut at a batch", "gone with checksums"])
def test_a_segment_that_lost_batches_is_named_and_nothing_is_served(
    tmp_path: Path, clean: bool, which: int, log: str, how: str
) -> None:
    """Also of a compacted log, where a gap between segments, or within one, is nothing unusual."""
    path = with_more_holes(build(tmp_path / "data"), clean=clean)
    file = data_of(path, log)[which]
    match how:
        case "gone":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "cut at a batch":
            content = memoryview(file.read_bytes())
            file.write_bytes(content[: [at for at, _header in iterate_headers(content)][-1]])
        case "gone with checksums":
            file.unlink()
            file.with_suffix(".seal").unlink()
        case _:
            raise AssertionError(how)
    folder = open_folder(path)
    name, partition = log.split("-")
    if how == "gone with checksums" and not which and not clean:  # perhaps a removal, which is noted later
        assert folder.logs[name, int(partition)].log_start_offset > 0
    else:
        assert (name, int(partition)) in folder.damaged
    folder.close(clean=False)


def test_ablation_without_checksums_a_lost_segment_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Loader, "verify_checksums", lambda *_: None)
    monkeypatch.setattr(_Loader, "_check_orphan", lambda *_: None)
    path = with_more_holes(build(tmp_path / "data"), clean=True)
    data_of(path, "state-0")[2].unlink()
    folder = open_folder(path)
    assert not folder.damaged
    assert ("state", 0) in folder.logs
    folder.close(clean=False)


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_without_its_last_batch_and_checksums_is_refused(tmp_path: Path, clean: bool) -> None:
    """Nothing vouches for the batch; but the next segment begins behind it."""
    path = build(tmp_path / "data", clean=clean)
    file = data_of(path, "flights-0")[1]
    content = memoryview(file.read_bytes())
    file.write_bytes(content[: [at for at, _header in iterate_headers(content)][-1]])
    file.with_suffix(".seal").unlink()
    folder = open_folder(path)
    assert ("flights", 0) in folder.damaged
    folder.close(clean=False)


@pytest.mark.parametrize("with_checksums", [True, False])
def test_an_offset_gap_of_a_cleaning_is_known_by_the_checksums_before_it(with_checksums: bool) -> None:
    """Checkpoint and snapshots know nothing: without the checksums, what stands behind the gap would be cut
    like a torn tail."""
    disk = LyingDisk()
    log = open_log(disk, config=COMPACTED)
    for _ in range(2):
        append(log, batch(2))
    log.roll()
    append(log, batch(2))
    log.flush_now()
    old = log.segments[:1]
    for path in log.local.replacements.replace_now(old, cleaned(log, disk, old)):
        disk.remove(path)
    disk.kill()
    for name in disk.list_names(FOLDER):
        if name.endswith(".snapshot") or (name.endswith(".seal") and not with_checksums):
            disk.remove(FOLDER / name)
    assert open_log(disk, config=COMPACTED, recovery_point=1).log_end_offset == (6 if with_checksums else 2)


def test_checksums_of_an_active_segment_do_not_name_the_next(tmp_path: Path) -> None:
    path = build(tmp_path / "data")
    checksums = [
        decode_checksums(each.read_bytes(), int(each.stem))
        for each in derived_of(path, "flights-0")
        if each.suffix == ".seal"
    ]
    assert [each.end_offset == STILL_OPEN for each in checksums] == [False] * (len(checksums) - 1) + [True]
    bases = [int(each.stem) for each in data_of(path, "flights-0")]
    assert [each.end_offset for each in checksums[:-1]] == bases[1:]


def test_a_removal_that_a_crash_cut_short_is_no_loss(tmp_path: Path) -> None:
    """The data of the first segment has lost its name; its checksums and its indexes are still there."""
    path = build(tmp_path / "data", clean=False)
    first, second = data_of(path, "flights-0")[:2]
    first.rename(first.with_name(first.name + ".deleted"))
    folder = open_folder(path)
    assert folder.logs["flights", 0].log_start_offset == int(second.stem)
    assert not [each for each in first.parent.iterdir() if each.name.startswith(first.stem)]
    folder.close(clean=True, broker_epoch=3)


def test_ablation_a_truncation_that_keeps_checksums_breaks_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentFiles, "remove_checksums", lambda _files: None)
    with pytest.raises(CorruptLog, match="flushed"):
        test_a_truncation_removes_checksums_before_batches()


def test_a_truncation_removes_checksums_before_batches() -> None:
    """A crash at any step leaves a log that opens (docs/semantics.md S9): what is cut is not missed."""
    cut_short = 0
    for step in range(100):
        for seed in range(4):
            disk = LyingDisk()
            log = open_log(disk)
            for turn in range(20):
                append(log, batch(2, size=300), leader_epoch=turn // 7)
            log.flush_now()
            assert len(log.segments) > 5
            disk.cut_after = step
            done = False
            with suppress(PowerCut):
                log.truncate_to(17)
                done = True
            if done:
                assert cut_short > 20
                return
            cut_short += 1
            disk.crash(Random(seed))
            assert open_log(disk, recovery_point=1).log_end_offset >= 16
    pytest.fail("the truncation never ends")
