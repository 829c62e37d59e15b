"""A broker follows no metadata that was begun anew: it would remove every log that it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidegate.node.metadata_seen import METADATA_SEEN, MetadataSeen
from tidegate.runtime.disk import RealDisk


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for folder in made:
        folder.mkdir()
    return made


def test_an_epoch_above_what_was_applied_is_of_the_same_metadata(folders: list[Path]) -> None:
    assert MetadataSeen(RealDisk(), folders).refusal(1, folders) is None, "a new node"
    MetadataSeen(RealDisk(), folders).note(40, folders)
    assert MetadataSeen(RealDisk(), folders).refusal(41, folders) is None


def test_an_epoch_that_is_not_above_is_refused_and_so_is_every_later_one(folders: list[Path]) -> None:
    """A node that is started again and again registers again and again, until the new log is longer than the old one was."""
    MetadataSeen(RealDisk(), folders).note(40, folders)
    assert "begun anew" in (MetadataSeen(RealDisk(), folders).refusal(40, folders) or "")
    assert "begun anew" in (MetadataSeen(RealDisk(), folders).refusal(1000, folders) or "")


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_one_folder_that_remembers_is_enough(folders: list[Path], damage: str) -> None:
    MetadataSeen(RealDisk(), folders).note(40, folders)
    if damage == "lost":
        (folders[0] / METADATA_SEEN).unlink()
    else:
        (folders[0] / METADATA_SEEN).write_bytes(b"garbage")
    assert MetadataSeen(RealDisk(), folders).refusal(40, folders) is not None


def test_the_note_never_goes_back(folders: list[Path]) -> None:
    seen = MetadataSeen(RealDisk(), folders)
    seen.note(40, folders)
    seen.note(7, folders)
    assert MetadataSeen(RealDisk(), folders).index == 40
