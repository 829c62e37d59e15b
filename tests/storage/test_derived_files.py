"""After a clean stop, a file beside the batches that is missing or short is noticed at the start and built again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.derived_files import DERIVED_FILES, DerivedFiles
from tidegate.storage.log import Log

from .data_folder import build, open_folder
from .workload import NOW_MS, stored

Seen = dict[str, object]


def seen(log: Log) -> Seen:
    """What readers get by the help of the files beside the batches."""
    end = log.log_end_offset
    return {
        "batches": stored(log),
        "aborted": [log.aborted_transactions(start, end) for start in range(0, end, 5)],
        "times": [log.offset_for_timestamp(NOW_MS + at, end) for at in range(-300, 1400, 50)],
        "greatest": log.max_timestamp(),
        "producers": log.producers(),
    }


def everything(path: Path) -> tuple[dict[str, Seen], list[str]]:
    """All logs of the folder, and which of them had to be recovered; the folder is closed cleanly again."""
    folder = open_folder(path)
    recovered = sorted(log.name for log in folder.logs.values() if log.recovered)
    found = {log.name: seen(log) for log in folder.logs.values()}
    folder.close(clean=True, broker_epoch=3)
    return found, recovered


def derived_of(path: Path, log: str) -> list[Path]:
    return sorted(each for each in (path / log).iterdir() if each.suffix in (".index", ".timeindex", ".txnindex", ".countindex"))


@pytest.mark.parametrize("how", ["missing", "short", "empty", "long"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".countindex"])
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
                file.write_bytes(content[: -{".index": 8, ".timeindex": 12, ".txnindex": 34}.get(suffix, 1)])
            case "empty":
                file.write_bytes(b"")
            case "long":
                file.write_bytes(content + bytes(34))
        assert everything(path) == (wanted, ["flights-0"])
        assert file.read_bytes() == content, "it is on the disk again"
    assert everything(path) == (wanted, [])


def test_ablation_without_the_note_a_missing_transaction_index_shows_what_was_aborted(tmp_path: Path) -> None:
    path = build(tmp_path / "data")
    wanted, _ = everything(path)
    (path / DERIVED_FILES).unlink()
    for file in derived_of(path, "flights-0"):
        if file.suffix == ".txnindex":
            file.unlink()
    found, recovered = everything(path)
    assert not recovered and found["flights-0"]["aborted"] != wanted["flights-0"]["aborted"]


def test_after_an_unclean_stop_the_note_of_an_earlier_stop_means_nothing(tmp_path: Path) -> None:
    path = build(tmp_path / "data")
    wanted, _ = everything(path)
    folder = open_folder(path)
    for log in folder.logs.values():
        log.roll()
        log.flush_now()
    folder.write_checkpoints()
    folder.close(clean=False)
    found, _recovered = everything(path)
    assert {name: each["batches"] for name, each in found.items()} == {name: each["batches"] for name, each in wanted.items()}


@pytest.mark.parametrize("content", [b"", b"junk", b"1\n1\na b c d\n"])
def test_a_damaged_note_is_not_believed(content: bytes) -> None:
    disk, folder = LyingDisk(), Path("/data")
    disk.make_directory(folder / "t-0")
    disk.write_atomic(folder / DERIVED_FILES, content)
    assert DerivedFiles(disk, folder, clean=True).first_changed(folder / "t-0") is None
