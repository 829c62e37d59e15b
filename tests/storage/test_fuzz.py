"""A seeded share of the fuzzing of batches, index files, snapshots, checkpoints and data folders (`fuzz.py`
runs the million)."""

from __future__ import annotations

import os

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.directory.log_directory import LogDirectory
from tidegate.wire.records import iterate_headers

from . import fuzz
from .fuzz_folder import CONFIG, ROOT, Pristine, folder_case
from .workload import NOW_MS

FIRST_SEED = int(os.environ.get("TIDEGATE_FUZZ_SEED", "0"))


@pytest.mark.parametrize("share", range(2))
def test_damage_gives_an_error_or_a_right_answer(share: int) -> None:
    outcomes = fuzz.run(FIRST_SEED + share * 30_000, 30_000, folder_case)
    assert outcomes["read"] > 500
    assert outcomes["refused"] > 500
    assert outcomes["folder right"] > 20


def test_ablation_a_reader_that_does_not_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.wire.records import parse_header

    monkeypatch.setattr(fuzz, "validate_batch", lambda view, position=0: parse_header(view, position))
    with pytest.raises(fuzz.Found):
        fuzz.run(0, 2000)


def _read_with_moved_index(clean: bool, moved: int) -> bool:
    """Whether every batch is read right, alone, when the first entry of every offset index stands `moved`
    offsets higher."""
    pristine, disk = Pristine(clean), LyingDisk()
    for path, content in pristine.files.items():
        disk.make_directory(path.parent)
        if path.suffix == ".index" and content:
            content = (int.from_bytes(content[:4], "big") + moved).to_bytes(4, "big") + content[4:]
        disk.put(path, content)
    directory = LogDirectory(disk, ROOT, "cluster", 1)
    assert not directory.open_all(lambda _topic: CONFIG, now_ms=NOW_MS).failed
    log = directory.logs["flights", 0]
    return all(
        log.read(header.base_offset, 1, upper_offset=header.next_offset).data
        == pristine.data[at : at + header.size_bytes]
        for at, header in iterate_headers(pristine.data)
    )


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("moved", [1, 2, 3, 20, 1000])
def test_an_index_whose_first_entry_moved_up_explains_no_offset_gap(clean: bool, moved: int) -> None:
    """Found by seed 951899: what stands before the entry was taken for a gap, and not read."""
    assert _read_with_moved_index(clean, moved)
