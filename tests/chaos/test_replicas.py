"""Replicas are compared byte by byte: one flipped bit, one missing batch, one missing folder is found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tidegate.chaos.run.replicas import compare_replicas
from tidegate.wire.records import NewRecord, encode_batch

TOPIC = ("topic", 0)


@dataclass
class StoppedNode:
    data_path: Path


@dataclass
class StoppedCluster:
    nodes: list[StoppedNode]


def batch(offset: int, value: bytes = b"v") -> bytes:
    return encode_batch([NewRecord(None, value, (), 0)], base_offset=offset, leader_epoch=1)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Three replicas with the same two segments of two batches."""
    made = []
    for node in (1, 2, 3):
        folder = tmp_path / f"node-{node}" / "data" / "topic-0"
        folder.mkdir(parents=True)
        (folder / "00000000000000000000.log").write_bytes(batch(0) + batch(1))
        (folder / "00000000000000000002.log").write_bytes(batch(2) + batch(3))
        made.append(folder)
    return made


def compare(folders: list[Path]) -> tuple[list[str], int]:
    return compare_replicas(StoppedCluster([StoppedNode(folder.parent) for folder in folders]), [TOPIC])  # type: ignore[arg-type]


def test_equal_replicas_have_no_difference(folders: list[Path]) -> None:
    differences, compared = compare(folders)
    assert differences == []
    assert compared == 2 * 4 * len(batch(0))


def test_segments_may_begin_elsewhere(folders: list[Path]) -> None:
    for segment in folders[1].iterdir():
        segment.unlink()
    (folders[1] / "00000000000000000000.log").write_bytes(batch(0) + batch(1) + batch(2) + batch(3))
    assert compare(folders)[0] == []


def test_one_other_byte_is_found(folders: list[Path]) -> None:
    (folders[2] / "00000000000000000002.log").write_bytes(batch(2) + batch(3, b"w"))
    assert compare(folders)[0] == ["topic-0: node-1 and node-3 differ at offset 3 (3 there)"]


def test_a_missing_batch_is_found(folders: list[Path]) -> None:
    (folders[1] / "00000000000000000002.log").write_bytes(batch(2))
    assert compare(folders)[0] == [
        "topic-0: node-1 and node-2 differ in length: only one has the batch at offset 3"
    ]


def test_a_missing_folder_is_found(folders: list[Path]) -> None:
    for segment in folders[0].iterdir():
        segment.unlink()
    folders[0].rmdir()
    assert compare(folders)[0] == ["topic-0: node-1 has no folder for it"]


def test_a_replica_may_be_in_any_data_folder_but_in_one_only(folders: list[Path]) -> None:
    second = folders[1].parent.parent / "data-b" / folders[1].name
    second.parent.mkdir()
    folders[1].rename(second)
    assert compare(folders)[0] == []
    folders[1].mkdir()
    assert compare(folders)[0] == ["topic-0: node-2 has 2 folder for it"]
