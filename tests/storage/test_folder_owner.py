"""A damaged `meta.properties` is an error that names it, and never another node's or another cluster's
name."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.checkpoint import CheckpointInvalid
from tidegate.storage.directory.folder_owner import (
    META_PROPERTIES,
    DirectoryRefused,
    bind_folders,
    claim_folder,
    decode_owner,
    encode_owner,
)

DATA = Path("/data")
FILE = DATA / META_PROPERTIES
OWN = {"cluster.id": "tide", "node.id": "3"}
OLDER = b"version=1\ncluster.id=tide\nnode.id=3\ndirectory.id=d-1\n"


def claimed(disk: LyingDisk, own: dict[str, str] = OWN) -> str:
    return claim_folder(disk, DATA, own, "d-1", holds_logs=False)


def marked() -> LyingDisk:
    disk = LyingDisk()
    disk.make_directory(DATA)
    assert claimed(disk) == "d-1"
    return disk


def flipped(data: bytes) -> list[bytes]:
    """Each single bit, once."""
    return [
        bytes([*data[:at], data[at] ^ 1 << bit, *data[at + 1 :]])
        for at in range(len(data))
        for bit in range(8)
    ]


def test_no_flipped_bit_is_believed_and_the_error_names_the_file() -> None:
    disk = marked()
    for damaged in flipped(disk.read(FILE)):
        with pytest.raises(CheckpointInvalid):
            decode_owner(damaged)
        disk.put(FILE, damaged)
        with pytest.raises(DirectoryRefused, match=r"/data/meta\.properties is damaged"):
            claimed(disk)


def test_a_node_never_starts_in_a_folder_that_a_flipped_bit_makes_its_own() -> None:
    disk = marked()
    disk.put(FILE, disk.read(FILE).replace(b"node.id=3", b"node.id=2"))
    with pytest.raises(DirectoryRefused, match="damaged"):
        claimed(disk, {**OWN, "node.id": "2"})
    # the ablation: without a checksum it is believed
    disk.put(FILE, OLDER.replace(b"node.id=3", b"node.id=2"))
    assert claimed(disk, {**OWN, "node.id": "2"}) == "d-1"


def test_a_file_of_an_older_version_is_read_and_gets_a_checksum() -> None:
    disk = marked()
    now = disk.read(FILE)
    disk.put(FILE, OLDER)
    assert claimed(disk) == "d-1"
    assert disk.read(FILE) == now
    disk.put(FILE, OLDER)
    with pytest.raises(DirectoryRefused, match=r"belongs to node\.id='3'"):
        claimed(disk, {**OWN, "node.id": "1"})
    assert disk.read(FILE) == OLDER, "another node's file is left alone"


def test_on_a_full_disk_a_file_of_an_older_version_does() -> None:
    disk = marked()
    disk.put(FILE, OLDER)
    disk.capacity = disk.used_bytes()
    assert claimed(disk) == "d-1"
    assert disk.read(FILE) == OLDER


@pytest.mark.parametrize("line", [b"cluster.id", b"node.id", b"version"])
def test_a_file_without_one_of_its_lines_is_damaged(line: bytes) -> None:
    rest = b"".join(each for each in OLDER.splitlines(True) if not each.startswith(line))
    with pytest.raises(CheckpointInvalid, match=f"does not say {line.decode()}"):
        decode_owner(rest)


def test_what_is_written_is_what_is_read() -> None:
    fields = {"version": "1", "cluster.id": "a=b crc32", "node.id": "7", "directory.id": "x"}
    assert decode_owner(encode_owner(fields)) == fields


def test_a_folder_of_another_metadata_log_is_refused_for_ever() -> None:
    """A quorum that lost all its disks and was formed again knows of no topic: every log here would be a
    deleted topic's."""
    disk = marked()
    bind_folders(disk, [DATA], "m-1")
    bind_folders(disk, [DATA], "m-1")
    for _ in range(2):
        with pytest.raises(DirectoryRefused, match="begun anew"):
            bind_folders(disk, [DATA], "m-2")
    assert claimed(disk) == "d-1"
    assert decode_owner(disk.read(FILE))["metadata.id"] == "m-1"
    bind_folders(disk, [DATA], "m-1")


def test_the_bond_of_a_folder_is_durable_and_waits_for_room_on_a_full_disk() -> None:
    disk = marked()
    disk.capacity = 0
    bind_folders(disk, [DATA], "m-1")
    assert "metadata.id" not in decode_owner(disk.read(FILE))
    disk.capacity = None
    bind_folders(disk, [DATA], "m-1")
    disk.crash(Random(1))
    assert decode_owner(disk.read(FILE))["metadata.id"] == "m-1"


def test_no_folder_is_bound_when_another_one_is_refused() -> None:
    """Or the empty disk that replaced a dead one would belong to the wrong metadata from then on."""
    disk, other = marked(), Path("/other")
    bind_folders(disk, [DATA], "m-1")
    disk.make_directory(other)
    claim_folder(disk, other, OWN, "d-2", holds_logs=False)
    with pytest.raises(DirectoryRefused, match="begun anew"):
        bind_folders(disk, [other, DATA], "m-2")
    assert "metadata.id" not in decode_owner(disk.read(other / META_PROPERTIES))
