"""Every version of every small file that was ever written, kept as it was (`formats/<version>/<name>`): this
release reads them all, and writes version 1 byte for byte.

A file under `formats` is never changed: a new version is a new folder beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
import tidegate
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.checkpoint import (
    VALUE_SHAPES,
    CheckpointInvalid,
    RowShapes,
    decode_checkpoint,
    encode_checkpoint,
    encode_value,
    parse_checkpoint,
    parse_value,
)
from tidegate.storage.cleaning.positions import (
    CLEANER_CHECKPOINT_SHAPES,
    CleanerPosition,
    decode_positions,
    encode_positions,
)
from tidegate.storage.directory.folder_notes import (
    PARTITION_CHECKPOINT_SHAPES,
    PartitionCheckpoint,
    decode_partition_checkpoint,
)
from tidegate.storage.directory.folder_owner import decode_owner, encode_owner
from tidegate.storage.directory.set_aside import SET_ASIDE_SHAPES
from tidegate.storage.directory.stored_config import LOG_CONFIG_SHAPES, decode_config
from tidegate.storage.epoch_cache import EPOCH_CHECKPOINT_SHAPES, parse_epoch
from tidegate.storage.folders.folder_ids import DATA_FOLDERS_SHAPES
from tidegate.storage.inspection.dump import Selection, dump_file
from tidegate.storage.log import local_log
from tidegate.storage.log.log import LogConfig
from tidegate.storage.segment.checksums import CHECKSUMS_SHAPES, SegmentChecksums, decode_checksums
from tidegate.storage.segment.swap import SWAP_SHAPES
from tidegate.storage.topic_config import CleanupPolicy

FORMATS = Path(__file__).parent / "formats"
PRODUCT = Path(tidegate.__path__[0]) / "storage"
TOPIC_ID = UUID(int=0xF)
POSITIONS = {
    (TOPIC_ID, 0): CleanerPosition(1200, 4),
    (TOPIC_ID, 1): CleanerPosition(700, 0, 1700000000000),
}
CHECKSUMS = SegmentChecksums(1200, 1500, 20480, 16, 439041101, 24, 3868672435, 2, 1275210071)


class Format(NamedTuple):
    """A file with its shapes, its reader, what the kept file says, and the bytes that this release writes for
    that; None: they hold every setting, so they change with a new one."""

    shapes: RowShapes
    read: Callable[[bytes], object]
    says: object
    writes: bytes | None


def rows(shapes: RowShapes, *expected: list[str]) -> Format:
    return Format(
        shapes, lambda data: decode_checkpoint(data, shapes), list(expected), encode_checkpoint(expected)
    )


def value(parse: Callable[[str], object], expected: object) -> Format:
    return Format(VALUE_SHAPES, lambda data: parse_value(data, parse), expected, encode_value(expected))


FILES: dict[str, Format] = {
    "partition-checkpoint": Format(
        PARTITION_CHECKPOINT_SHAPES,
        decode_partition_checkpoint,
        {
            ("flights", 0): PartitionCheckpoint(1500, 1480, 0),
            ("flights", 1): PartitionCheckpoint(900, 900, 300),
        },
        encode_checkpoint([("flights", 0, 1500, 1480, 0), ("flights", 1, 900, 900, 300)]),
    ),
    "leader-epoch-checkpoint": Format(
        EPOCH_CHECKPOINT_SHAPES,
        lambda data: parse_checkpoint(data, EPOCH_CHECKPOINT_SHAPES, parse_epoch),
        [(0, 0), (4, 1200)],
        encode_checkpoint([(0, 0), (4, 1200)]),
    ),
    "cleaner-offset-checkpoint": Format(
        CLEANER_CHECKPOINT_SHAPES, decode_positions, POSITIONS, encode_positions(POSITIONS)
    ),
    "log-config": Format(
        LOG_CONFIG_SHAPES,
        decode_config,
        LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}), retention_ms=-1),
        None,
    ),
    "00000000000000001200.seal": Format(
        CHECKSUMS_SHAPES, lambda data: decode_checksums(data, 1200), CHECKSUMS, CHECKSUMS.encode()
    ),
    "00000000000000001200.swap": rows(
        SWAP_SHAPES, ["old", "0"], ["old", "1200"], ["new", "log"], ["new", "index"]
    ),
    "data-folders": rows(
        DATA_FOLDERS_SHAPES, ["node", "folder-a"], ["member", "folder-a"], ["member", "folder-b"]
    ),
    "set-aside": rows(SET_ASIDE_SHAPES, ["1700000000000", "flights", "1"]),
    "clean-shutdown": value(int, 17),
    "partition.metadata": value(UUID, TOPIC_ID),
    "log-start": value(int, 300),
    "replica-move": value(str, "leaving"),
}
OWNER = {
    "version": "1", "cluster.id": "prod", "node.id": "3", "directory.id": "folder-a", "metadata.id": "90aa"
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_version_that_was_ever_written_is_read(name: str) -> None:
    for version in FILES[name].shapes:
        kept = (FORMATS / str(version) / name).read_bytes()
        assert FILES[name].read(kept) == FILES[name].says


@pytest.mark.parametrize("name", [name for name, each in FILES.items() if each.writes is not None])
def test_version_1_is_written_as_it_always_was(name: str) -> None:
    assert FILES[name].writes == (FORMATS / "1" / name).read_bytes()


def test_the_owner_of_a_folder_is_read_and_written_as_it_always_was() -> None:
    kept = (FORMATS / "1" / "meta.properties").read_bytes()
    assert decode_owner(kept) == OWNER
    assert encode_owner(OWNER) == kept


def test_no_small_file_is_without_its_kept_versions() -> None:
    declared = {
        name
        for path in PRODUCT.rglob("*.py")
        for name in re.findall(r"^(\w+_SHAPES): RowShapes = ", path.read_text(), re.MULTILINE)
    }
    tested = {name for name in declared if any(globals().get(name) is each.shapes for each in FILES.values())}
    assert tested == declared
    for version in {version for each in FILES.values() for version in each.shapes}:
        kept = {path.name for path in (FORMATS / str(version)).iterdir()}
        assert kept - {"meta.properties"} == {name for name, each in FILES.items() if version in each.shapes}


def test_the_table_of_notes_has_every_file_of_offsets_and_names_code_that_exists() -> None:
    """Of the other files none says how far a log reaches."""
    table = local_log.__doc__ or ""
    files = {
        re.sub(r"^<\w+>", "", row) for row in re.findall(r"^    (\S+)   +cut: ", table, flags=re.MULTILINE)
    }
    others = {
        "log-config", "00000000000000001200.swap", "data-folders", "set-aside", "clean-shutdown",
        "partition.metadata", "replica-move",
    }  # fmt: skip
    of_offsets = {re.sub(r"^\d+", "", name) for name in FILES.keys() - others}
    assert files == of_offsets | {"flush-notes", ".snapshot"}
    source = "".join(path.read_text() for path in PRODUCT.rglob("*.py"))
    for name in re.findall(r"`(\w+(?:\.\w+)?)`", table[table.index("What the next start") :]):
        owner, _, method = name.rpartition(".")
        assert f"def {method}(" in source, name
        assert not owner or f"class {owner}" in source, name


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"data-folders", "set-aside", "replica-move"}))
def test_dump_log_shows_every_kept_file(name: str) -> None:
    disk, path = LyingDisk(), Path("/d") / name
    disk.make_directory(path.parent)
    disk.write_atomic(path, (FORMATS / "1" / name).read_bytes())
    dumped = list(dump_file(disk, path, Selection()))
    assert dumped
    assert not [row for row in dumped if row["type"] == "damaged"]


def test_a_file_of_a_later_version_is_refused_and_the_version_named() -> None:
    later = encode_checkpoint([("flights", 0, 1500, 1480, 0, 7)], version=2)
    with pytest.raises(CheckpointInvalid, match="has version 2; this release reads version 1 of it"):
        decode_partition_checkpoint(later)
    with pytest.raises(CheckpointInvalid, match="a row has 6 fields; a row of version 1 has 5"):
        decode_partition_checkpoint(encode_checkpoint([("flights", 0, 1500, 1480, 0, 7)]))


def test_a_reader_of_two_versions_gives_the_later_field_its_default() -> None:
    shapes = {1: 2, 2: 3}

    def parse(topic: str, offset: str, epoch: str = "-1") -> tuple[str, int, int]:
        return topic, int(offset), int(epoch)

    assert parse_checkpoint(encode_checkpoint([("t", 7)]), shapes, parse) == [("t", 7, -1)]
    assert parse_checkpoint(encode_checkpoint([("t", 7, 4)], version=2), shapes, parse) == [("t", 7, 4)]
    with pytest.raises(CheckpointInvalid):
        parse_checkpoint(encode_checkpoint([("t", 7, 4)]), shapes, parse)
