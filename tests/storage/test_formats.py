"""Every version of every small file that was ever written, kept as it was (`formats/<version>/<name>`): this
release reads them all, and writes each file as the kept one of its version, byte for byte.

The versions are read from the code, so a new one fails here until `formats/<version>` has the file and
`Format` says what stands in it.  A kept file is never changed: a new version is a new file beside it, made as
the release will write it that comes after the one that reads it first (`test_two_releases.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast
from uuid import UUID

import pytest
import tidegate
from tidegate.chaos.sim import disk
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.storage.log_history import StorageHistory
from tidegate.chaos.sim.storage.moves_history import MovesHistory
from tidegate.storage.checkpoint import (
    CheckpointInvalid,
    RowShapes,
    Versions,
    decode_checkpoint,
    encode_checkpoint,
    encode_value,
    parse_checkpoint,
    parse_value,
)
from tidegate.storage.cleaning.positions import CleanerPosition, decode_positions, encode_positions
from tidegate.storage.directory.folder_notes import (
    FolderNotes,
    PartitionCheckpoint,
    decode_partition_checkpoint,
)
from tidegate.storage.directory.folder_owner import decode_owner, encode_owner
from tidegate.storage.directory.set_aside import note_set_aside
from tidegate.storage.directory.stored_config import decode_config
from tidegate.storage.durability.flush_notes import decode_flush_notes, encode_flush_notes, identity_of
from tidegate.storage.epoch_cache import EPOCH_CHECKPOINT_SHAPES, EpochCache, parse_epoch
from tidegate.storage.folders.folder_ids import FolderIds
from tidegate.storage.inspection.dump import Selection, dump_file
from tidegate.storage.inspection.producers import ProducerReplay
from tidegate.storage.log import local_log
from tidegate.storage.log.log import LogConfig
from tidegate.storage.producers.producer_snapshot import decode_snapshot, encode_snapshot
from tidegate.storage.producers.producer_state import BatchMetadata, ProducerEntry, ProducerState
from tidegate.storage.segment.checksums import SegmentChecksums, decode_checksums
from tidegate.storage.segment.count_index import CountIndex, decode_count_index
from tidegate.storage.segment.offset_index import OffsetIndex
from tidegate.storage.segment.swap import decide_swap
from tidegate.storage.segment.time_index import TimeIndex
from tidegate.storage.segment.transaction_index import TransactionIndexEntry, decode_transaction_index
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.records import parse_header

from .workload import batch

FORMATS = Path(__file__).parent / "formats"
PRODUCT = Path(tidegate.__path__[0]) / "storage"
TOPIC_ID = UUID(int=0xF)


MODULES = {
    ".".join(path.relative_to(PRODUCT).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted(PRODUCT.rglob("*.py"))
    if path.name != "__init__.py"
}


def constants() -> Iterator[tuple[str, object]]:
    """Every name that a module of storage gives a value to."""
    for module, tree in MODULES.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in [node.target] if isinstance(node, ast.AnnAssign) else targets:
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    name = ast.unparse(each)
                    yield name, getattr(import_module(f"tidegate.storage.{module}"), name, None)


DECLARED: dict[str, Versions[object] | str] = {
    name: value
    for name, value in constants()
    if isinstance(value, Versions) or (isinstance(value, str) and name.endswith("_VERSION"))
}
"""The constants of the code with the versions of a file that this release reads, and the one it writes."""

LATEST_RELEASE_READS: dict[str, set[int]] = {}
"""Constant -> the versions above 1 that the latest release reads (CONTRIBUTING.md, "A release")."""

UNVERSIONED = "of a file without a version, which never gets another format"


def versions_of(constant: str) -> Versions[object]:
    declared = "1" if constant == UNVERSIONED else DECLARED[constant]
    return declared if isinstance(declared, Versions) else Versions({int(declared): None}, int(declared))


def shapes(constant: str) -> RowShapes:
    return cast(RowShapes, versions_of(constant))


class Format(NamedTuple):
    """A file: the constant with its versions, its reader, and the bytes that this release writes for what the
    kept file says; None: they hold every setting, so they change with a new one."""

    constant: str
    read: Callable[[bytes], object]
    says: object
    writes: bytes | None
    said: Mapping[int, object] = {}
    """By version, where the kept file of it says something else."""

    @property
    def versions(self) -> list[int]:
        return sorted(versions_of(self.constant).reads)


def rows(constant: str, written: bytes, *expected: list[str]) -> Format:
    return Format(constant, partial(decode_checkpoint, shapes=shapes(constant)), list(expected), written)


def written(name: str, write: Callable[[LyingDisk, Path], object]) -> bytes:
    """What the product writes into a folder as the file of that name."""
    lying, folder = LyingDisk(), Path("/d")
    lying.make_directory(folder)
    write(lying, folder)
    return lying.read(folder / name)


def _decide_swap(lying: LyingDisk, folder: Path) -> None:
    for suffix in ("log", "index"):
        lying.write_atomic(folder / f"{1200:020d}.{suffix}.cleaned", b"")
    decide_swap(lying, folder, [0, 1200], 1200)


def _settle_ids(lying: LyingDisk, folder: Path) -> None:
    lying.make_directory(Path("/e"))
    opened = {folder: "folder-a", Path("/e"): "folder-b"}
    FolderIds(lying, lambda: "fresh").settle(opened, failed_count=0)


def _refuse(error: OSError) -> None:
    raise error


def value(parse: Callable[[str], object], expected: object) -> Format:
    return Format("VALUE_SHAPES", lambda data: parse_value(data, parse), expected, encode_value(expected))


def index(
    of: type[OffsetIndex] | type[TimeIndex], suffix: str, *entries: tuple[int, int]
) -> tuple[str, Format]:
    made = of(1200)
    for entry in entries:
        made.append(*entry)
    read = partial(of.decode, base_offset=1200)
    return suffix, Format(UNVERSIONED, lambda data: read(data).encode(), made.encode(), made.encode())


POSITIONS = {
    (TOPIC_ID, 0): CleanerPosition(1200, 4),
    (TOPIC_ID, 1): CleanerPosition(700, 0, 1700000000000),
}
CHECKSUMS = SegmentChecksums(1200, 1500, 20480, 16, 439041101, 24, 3868672435, 2, 1275210071)
PARTITIONS = {
    ("flights", 0): PartitionCheckpoint(1500, 1480, 0),
    ("flights", 1): PartitionCheckpoint(900, 900, 300),
}
OWNER = {
    "version": "1", "cluster.id": "prod", "node.id": "3", "directory.id": "folder-a", "metadata.id": "90aa"
}  # fmt: skip
ABORTED = [TransactionIndexEntry(7, 1210, 1220, 1205), TransactionIndexEntry(8, 1205, 1230, 1205)]
CLAIMS = [(identity_of(TOPIC_ID, 0), 1500), (identity_of(TOPIC_ID, 1), 900)]
PRODUCERS = [
    ProducerEntry(7, 2, 5, 1700000000000, None, (BatchMetadata(9, 1490, 4, 1700000000000),)),
    ProducerEntry(8, 0, -1, 1700000000001, 1495, ()),
]


def _state(producers: Sequence[ProducerEntry]) -> ProducerState:
    state = ProducerState()
    state.restore(producers, [(1300, 1480)], 1500)
    return state


def _read_snapshot(data: bytes) -> object:
    state = ProducerState()
    decode_snapshot(data, state)
    return state.end_offset, state.as_comparable()


def _counts() -> CountIndex:
    counts = CountIndex(1200, 100)
    counts.mark(1200, 0)
    data = batch(3, pid=7, epoch=2, sequence=0, transactional=True)
    counts.take(parse_header(data), 1200, 0, 0)
    counts.mark(1203, len(data))
    return counts


FILES: dict[str, Format] = {
    "partition-checkpoint": Format(
        "PARTITION_CHECKPOINT_SHAPES",
        decode_partition_checkpoint,
        PARTITIONS,
        written(
            "partition-checkpoint", lambda disk, path: FolderNotes(disk, path, _refuse).write(PARTITIONS)
        ),
    ),
    "leader-epoch-checkpoint": Format(
        "EPOCH_CHECKPOINT_SHAPES",
        lambda data: parse_checkpoint(data, EPOCH_CHECKPOINT_SHAPES, parse_epoch),
        [(0, 0), (4, 1200)],
        EpochCache([(0, 0), (4, 1200)]).encode(),
    ),
    "cleaner-offset-checkpoint": Format(
        "CLEANER_CHECKPOINT_SHAPES", decode_positions, POSITIONS, encode_positions(POSITIONS)
    ),
    "log-config": Format(
        "LOG_CONFIG_SHAPES",
        decode_config,
        LogConfig(cleanup_policy=frozenset({CleanupPolicy.COMPACT}), retention_ms=-1),
        None,
    ),
    "00000000000000001200.seal": Format(
        "CHECKSUMS_SHAPES", lambda data: decode_checksums(data, 1200), CHECKSUMS, CHECKSUMS.encode()
    ),
    "00000000000000001200.swap": rows(
        "SWAP_SHAPES",
        written("00000000000000001200.swap", _decide_swap),
        ["old", "0"],
        ["old", "1200"],
        ["new", "log"],
        ["new", "index"],
    ),
    "00000000000000001500.snapshot": Format(
        "SNAPSHOT_VERSIONS",
        _read_snapshot,
        (1500, _state(PRODUCERS).as_comparable()),
        encode_snapshot(_state(PRODUCERS)),
    ),
    "00000000000000001200.countindex": Format(
        "COUNT_INDEX_VERSIONS",
        lambda data: list(decode_count_index(data, 1200)[1].entries()),
        list(_counts().entries()),
        _counts().encode(4096, 1203, 0x1A2B3C4D),
    ),
    "data-folders": rows(
        "DATA_FOLDERS_SHAPES",
        written("data-folders", _settle_ids),
        ["node", "folder-a"],
        ["member", "folder-a"],
        ["member", "folder-b"],
    ),
    "set-aside": rows(
        "SET_ASIDE_SHAPES",
        written("set-aside", lambda disk, path: note_set_aside(disk, path, 1700000000000, ("flights", 1))),
        ["1700000000000", "flights", "1"],
    ),
    "meta.properties": Format("OWNER_VERSION", decode_owner, OWNER, encode_owner(OWNER)),
    "clean-shutdown": value(int, 17),
    "partition.metadata": value(UUID, TOPIC_ID),
    "log-start": value(int, 300),
    "replica-move": value(str, "leaving"),
    "flush-notes": Format(
        UNVERSIONED, lambda data: list(decode_flush_notes(data)), CLAIMS, encode_flush_notes(CLAIMS)
    ),
    "00000000000000001200.txnindex": Format(
        UNVERSIONED, decode_transaction_index, ABORTED, b"".join(entry.encode() for entry in ABORTED)
    ),
    **dict(
        [
            index(OffsetIndex, "00000000000000001200.index", (1205, 4100), (1230, 8300)),
            index(TimeIndex, "00000000000000001200.timeindex", (1700000000000, 1205), (1700000000007, 1230)),
        ]
    ),
}


def faults(file: Format, kept: Mapping[int, bytes], latest_release_reads: Collection[int]) -> list[str]:
    """What breaks the way back or forth: an older node may come back to the folder, so a version is read
    first, and written one release later."""
    found, versions = [], versions_of(file.constant)
    for version in versions.reads:
        if version not in kept:
            found.append(f"version {version} is read: keep a file of it, as it will be written")
        elif file.read(kept[version]) != (expected := file.said.get(version, file.says)):
            found.append(f"the kept file of version {version} does not say {expected}")
    if versions.writes not in versions.reads.keys() & {1, *latest_release_reads}:
        found.append(f"version {versions.writes} is written: no release reads it yet (LATEST_RELEASE_READS)")
    if file.writes is not None and file.writes != kept.get(versions.writes):
        found.append(f"what is written is not the kept file of version {versions.writes}")
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_version_is_read_and_the_written_one_is_as_it_was_kept(name: str) -> None:
    kept = {int(path.parent.name): path.read_bytes() for path in FORMATS.glob(f"*/{name}")}
    assert faults(FILES[name], kept, LATEST_RELEASE_READS.get(FILES[name].constant, set())) == []


def test_no_file_is_without_its_kept_versions() -> None:
    assert {each.constant for each in FILES.values()} - {UNVERSIONED} == DECLARED.keys()
    for version in {version for each in FILES.values() for version in each.versions}:
        kept = {path.name for path in (FORMATS / str(version)).iterdir()}
        assert kept == {name for name, each in FILES.items() if version in each.versions}


NOT_KEPT = {
    ".lock": "is empty: only its lock counts",
    "damaged": "a text for operators: no reader takes it apart",
    "data": "a folder, of a node's data folder",
    "log": "bytes of batches: `test_compatibility.py`",
    "log.tmp": "a segment without batches, under another name before it begins",
}
"""Names in the code that have no kept file, and why."""


def test_every_name_of_a_file_in_the_code_is_kept() -> None:
    value_of = {name: value for name, value in constants() if isinstance(value, str)}
    named = set[str]()
    for tree in MODULES.values():
        for node in ast.walk(tree):
            part: ast.expr | None = None
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                part = node.right
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "segment_path":
                part = node.args[2]
            if isinstance(part, ast.Constant):
                named.add(str(part.value))
            elif isinstance(part, ast.Name) and part.id in value_of:
                named.add(value_of[part.id])
    kept = {re.sub(r"^\d+\.", "", name) for name in FILES}
    unknown = named - kept - NOT_KEPT.keys()
    assert not unknown, f"{unknown}: `FILES` is to say what stands in it, `formats/1` to keep one"
    assert named >= NOT_KEPT.keys()
    assert len(named & kept) > 12


def test_files_of_histories_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tidegate log` knows the kept ones (below), and all that says how far a log reaches (the table)."""
    made: set[str] = set()

    class Noting(disk._Folder):
        def change(self, old: str | None, new: str | None, node: disk._Inode | disk._Folder) -> None:
            if new is not None and isinstance(node, disk._Inode):
                made.add(re.sub(r"^\d+|(\.cleaned|\.deleted|\.tmp)+$", "", new))
            super().change(old, new, node)

    monkeypatch.setattr(disk, "_Folder", Noting)
    for seed in range(8):
        StorageHistory(seed).run()
        MovesHistory(seed, length=40).run()
    kept = {re.sub(r"^\d+", "", name) for name in FILES}
    assert made - kept == {".log"}, "bytes of batches: `test_compatibility`"
    assert len(made) > 15


def test_the_table_of_notes_has_every_file_of_offsets_and_names_code_that_exists() -> None:
    """Of the other files none says how far a log reaches."""
    table = local_log.__doc__ or ""
    files = {
        re.sub(r"^<\w+>", "", row) for row in re.findall(r"^    (\S+)   +cut: ", table, flags=re.MULTILINE)
    }
    others = {
        "log-config", ".swap", "data-folders", "set-aside", "clean-shutdown", "partition.metadata",
        "replica-move", "meta.properties", ".countindex", ".index", ".timeindex", ".txnindex",
    }  # fmt: skip
    assert files == {re.sub(r"^\d+", "", name) for name in FILES} - others
    source = "".join(path.read_text() for path in PRODUCT.rglob("*.py"))
    for name in re.findall(r"`(\w+(?:\.\w+)?)`", table[table.index("What the next start") :]):
        owner, _, method = name.rpartition(".")
        assert f"def {method}(" in source, name
        assert not owner or f"class {owner}" in source, name


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"data-folders", "set-aside", "replica-move"}))
def test_dump_log_shows_every_kept_file(name: str) -> None:
    for kept in FORMATS.glob(f"*/{name}"):
        lying, path = LyingDisk(), Path("/d") / name
        lying.make_directory(path.parent)
        lying.write_atomic(path, kept.read_bytes())
        dumped = list(dump_file(lying, path, Selection()))
        assert dumped
        assert not [row for row in dumped if row["type"] == "damaged"]


def test_a_producer_of_an_older_snapshot_is_no_damage() -> None:
    """`tidegate log verify` compares it with the batches: a later field that has its default says nothing."""
    from_batches = cast(ProducerReplay, SimpleNamespace(knows_start=True, _perhaps_forgotten=set()))
    for kept in FORMATS.glob("*/*.snapshot"):
        decode_snapshot(kept.read_bytes(), state := ProducerState())
        for stored, known in zip(state.entries(), PRODUCERS, strict=True):
            assert ProducerReplay._is_same(from_batches, stored, known), kept


def test_a_file_of_a_later_version_is_refused_and_the_version_named() -> None:
    later = encode_checkpoint([("flights", 0, 1500, 1480, 0, 7)], version=2)
    with pytest.raises(CheckpointInvalid, match="has version 2; this release reads version 1 of it"):
        decode_partition_checkpoint(later)
    with pytest.raises(CheckpointInvalid, match="a row has 6 fields; a row of version 1 has 5"):
        decode_partition_checkpoint(encode_checkpoint([("flights", 0, 1500, 1480, 0, 7)], 1))


def test_a_reader_of_two_versions_gives_the_later_field_its_default() -> None:
    shapes = RowShapes({1: 2, 2: 3}, writes=1)

    def parse(topic: str, offset: str, epoch: str = "-1") -> tuple[str, int, int]:
        return topic, int(offset), int(epoch)

    assert parse_checkpoint(encode_checkpoint([("t", 7)], 1), shapes, parse) == [("t", 7, -1)]
    assert parse_checkpoint(encode_checkpoint([("t", 7, 4)], version=2), shapes, parse) == [("t", 7, 4)]
    with pytest.raises(CheckpointInvalid):
        parse_checkpoint(encode_checkpoint([("t", 7, 4)], 1), shapes, parse)
