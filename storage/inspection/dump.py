"""The contents of a log's files, as rows for people and machines: one dictionary for each thing that is
found. Read-only.

    segment (.log)            batch, record, marker, damaged        by `Selection`: batches, records or both;
                                                                    a range of offsets
    .index .timeindex         offset_entry, time_entry
    .txnindex                 aborted_transaction
    .countindex               counts, count_entry, count_run
    .snapshot                 producer, undecided
    leader-epoch-checkpoint   epoch
    .swap, .seal              replacement, seal
    other files               rows of their own names: partition-checkpoint, cleaner-offset-checkpoint,
                              clean-shutdown, partition.metadata, log-config, meta.properties
    a partition's folder      file, then the batches of all segments
    a data folder             partition

A file is known by its name; `.cleaned` and `.deleted` at its end change nothing.  A segment is read batch by
batch: memory holds one of them, decompressed, however large the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.disk import Disk
from ...wire.errors import KafkaError
from ...wire.records import BatchHeader, decode_batch, decode_marker
from ..checkpoint import VALUE_SHAPES, CheckpointInvalid, RowShapes, decode_checkpoint
from ..cleaning.positions import CLEANER_CHECKPOINT, CLEANER_CHECKPOINT_SHAPES
from ..directory.creation import PARTITION_METADATA
from ..directory.folder_notes import PARTITION_CHECKPOINT, PARTITION_CHECKPOINT_SHAPES
from ..directory.log_directory import CLEAN_SHUTDOWN, META_PROPERTIES, parse_name
from ..directory.stored_config import LOG_CONFIG, LOG_CONFIG_SHAPES
from ..durability.flush_notes import FLUSH_NOTES, RECORD_BYTES, decode_flush_notes, identified
from ..epoch_cache import EPOCH_CHECKPOINT, EPOCH_CHECKPOINT_SHAPES
from ..log.log_start import LOG_START
from ..producers.producer_snapshot import SnapshotInvalid, decode_snapshot
from ..producers.producer_state import ProducerState
from ..segment.checksums import CHECKSUMS_SHAPES, SegmentChecksums
from ..segment.count_index import CountIndexInvalid, decode_count_index
from ..segment.swap import CLEANED, DELETED, SWAP_SHAPES
from ..segment.transaction_index import ENTRY_BYTES, decode_transaction_index
from .directory import NotInspectable, is_partition_folder, looks_like_a_log, read_data_folder
from .indexes import OFFSET_ENTRY, TIME_ENTRY
from .verification import DamagedBytes, StoredBatch, list_partition, walk_batches

Row = dict[str, Any]
EVERY_OFFSET = 2**63 - 1
_ROWS_OF_CHECKPOINTS: dict[str, tuple[str, RowShapes, tuple[str, ...]]] = {
    EPOCH_CHECKPOINT: ("epoch", EPOCH_CHECKPOINT_SHAPES, ("epoch", "start_offset")),
    PARTITION_CHECKPOINT: (
        "noted",
        PARTITION_CHECKPOINT_SHAPES,
        ("topic", "partition", "recovery_point", "high_watermark", "log_start_offset"),
    ),
    CLEANER_CHECKPOINT: (
        "cleaned",
        CLEANER_CHECKPOINT_SHAPES,
        ("topic_id", "partition", "offset", "epoch", "horizon_ms"),
    ),
    CLEAN_SHUTDOWN: ("clean_shutdown", VALUE_SHAPES, ("broker_epoch",)),
    PARTITION_METADATA: ("identity", VALUE_SHAPES, ("topic_id",)),
    LOG_START: ("log_start", VALUE_SHAPES, ("log_start_offset",)),
    LOG_CONFIG: ("setting", LOG_CONFIG_SHAPES, ("name", "value")),
    "swap": ("replacement", SWAP_SHAPES, ("kind", "what")),
    "seal": ("seal", CHECKSUMS_SHAPES, SegmentChecksums._fields),
}
"""File -> the kind of its rows, its shapes, the columns of its newest one: an older row has the first of
them."""


@dataclass(slots=True, frozen=True)
class Selection:
    """Which rows of segments are wanted; offsets in [first, end)."""

    batches: bool = True
    records: bool = False
    first: int = 0
    end: int = EVERY_OFFSET

    def holds(self, header: BatchHeader) -> bool:
        return header.next_offset > self.first and header.base_offset < self.end


def dump(disk: Disk, path: Path, selection: Selection, is_locked: Callable[[Path], bool]) -> Iterator[Row]:
    """The rows of a file or a folder.  Raises NotInspectable, OSError."""
    try:
        names = disk.list_names(path)
    except NotADirectoryError:
        yield from dump_file(disk, path, selection)
        return
    if looks_like_a_log(names):
        yield from _dump_partition(disk, path, selection)
    elif META_PROPERTIES in names or any(is_partition_folder(disk, path / name) for name in names):
        yield from _dump_data_folder(disk, path, is_locked)
    else:
        raise NotInspectable(f"{path} is neither a data folder nor a partition's folder")


def dump_file(disk: Disk, path: Path, selection: Selection) -> Iterator[Row]:
    """The rows of one file."""
    name = path.name.removesuffix(CLEANED).removesuffix(DELETED)
    stem, _, suffix = name.partition(".")
    if name in _ROWS_OF_CHECKPOINTS or suffix in ("swap", "seal"):
        yield from _dump_checkpoint(
            disk, path, *_ROWS_OF_CHECKPOINTS[name if name in _ROWS_OF_CHECKPOINTS else suffix]
        )
    elif name == META_PROPERTIES:
        lines = disk.read(path).decode(errors="replace").splitlines()
        for key, _, value in (line.partition("=") for line in lines):
            yield {"type": "property", "name": key, "value": value}
    elif name == FLUSH_NOTES:
        yield from _dump_flush_notes(disk, path)
    elif suffix == "log":
        yield from dump_segment(disk, path, selection)
    elif suffix in _DERIVED and stem.isdigit():
        yield from _DERIVED[suffix](disk, path, int(stem), selection)
    else:
        named = sorted({*_ROWS_OF_CHECKPOINTS, META_PROPERTIES, FLUSH_NOTES} - {"swap", "seal"})
        raise NotInspectable(
            f"{path.name}: no such file of a log is known; known are .log, .index, .timeindex, "
            ".txnindex, .countindex, "
            f".seal, .snapshot, .swap, {', '.join(named)}"
        )


# ---- segments ----------------------------------------------------------------------------------------------


def dump_segment(disk: Disk, path: Path, selection: Selection) -> Iterator[Row]:
    """Batches and records of one segment, as selected."""
    file = disk.open(path, read_only=True)
    try:
        size = file.size()
        for found in walk_batches(file, size, start=_start(disk, path, size, selection.first)):
            if isinstance(found, DamagedBytes):
                resumed = found.resumed_at if found.resumed_at >= 0 else None
                yield {
                    "type": "damaged",
                    "position": found.position,
                    "reason": found.reason,
                    "resumed_at": resumed,
                }
            elif found.header.base_offset >= selection.end:
                return
            elif selection.holds(found.header):
                if selection.batches:
                    yield _batch_row(found)
                if selection.records:
                    yield from _record_rows(found, selection)
    finally:
        file.close()


def _start(disk: Disk, path: Path, size: int, offset: int) -> int:
    """The position to begin at for `offset`: that of an index entry, when the offset index exists and is
    right."""
    index = path.with_name(path.name.replace(".log", ".index"))
    if not offset or not disk.exists(index):
        return 0
    data = disk.read(index)
    base = int(path.name.partition(".")[0]) if path.name.partition(".")[0].isdigit() else 0
    start = 0
    for relative, position in OFFSET_ENTRY.iter_unpack(
        data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size]
    ):
        if base + relative > offset or position >= size:
            break
        start, first = position, base + relative
    if not start:
        return 0
    file = disk.open(path, read_only=True)
    try:
        found = next(walk_batches(file, size, start=start), None)
        return start if isinstance(found, StoredBatch) and found.header.base_offset == first else 0
    finally:
        file.close()


def _codec(header: BatchHeader) -> str:
    try:
        return header.compression.name.lower()
    except KafkaError:
        return f"unknown ({header.attributes & 7})"


def _batch_row(found: StoredBatch) -> Row:
    header = found.header
    flags = [name for name, is_set in (
        ("transactional", header.is_transactional), ("control", header.is_control),
        ("append_time", header.is_log_append_time),
    ) if is_set]  # fmt: skip
    return {
        "type": "batch", "position": found.position, "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count, "bytes": header.size_bytes,
        "leader_epoch": header.partition_leader_epoch,
        "base_timestamp": header.base_timestamp, "max_timestamp": header.max_timestamp,
        "codec": _codec(header),
        "producer_id": header.producer_id, "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "flags": flags, "marker": _marker(found) if header.is_control else None,
    }  # fmt: skip


def _marker(found: StoredBatch) -> str:
    try:
        marker = decode_marker(found.view)
    except KafkaError as error:
        return f"damaged: {error.message}"
    if marker is None:
        return "unknown or emptied"
    return f"{marker.control_type.name} by coordinator epoch {marker.coordinator_epoch}"


def _record_rows(found: StoredBatch, selection: Selection) -> Iterator[Row]:
    header = found.header
    if header.is_control:
        yield {
            "type": "marker", "offset": header.base_offset, "timestamp": header.max_timestamp,
            "marker": _marker(found),
            "producer_id": header.producer_id, "producer_epoch": header.producer_epoch,
        }  # fmt: skip
        return
    try:
        records = decode_batch(found.view)
    except KafkaError as error:
        yield {"type": "damaged", "position": found.position, "reason": error.message, "resumed_at": None}
        return
    for offset, timestamp, key, value, headers in records:
        if selection.first <= offset < selection.end:
            yield {
                "type": "record", "offset": offset, "timestamp": timestamp, "producer_id": header.producer_id,
                "key": key,
                "value": value, "headers": headers,
            }  # fmt: skip


# ---- derived files -----------------------------------------------------------------------------------------


def _dump_offset_index(disk: Disk, path: Path, base: int, selection: Selection) -> Iterator[Row]:
    data = disk.read(path)
    whole = len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size
    for relative, position in OFFSET_ENTRY.iter_unpack(data[:whole]):
        if selection.first <= base + relative < selection.end:
            yield {"type": "offset_entry", "offset": base + relative, "position": position}
    yield from _rest(data, whole)


def _dump_time_index(disk: Disk, path: Path, base: int, selection: Selection) -> Iterator[Row]:
    data = disk.read(path)
    whole = len(data) // TIME_ENTRY.size * TIME_ENTRY.size
    for timestamp, relative in TIME_ENTRY.iter_unpack(data[:whole]):
        if selection.first <= base + relative < selection.end:
            yield {"type": "time_entry", "timestamp": timestamp, "offset": base + relative}
    yield from _rest(data, whole)


def _dump_transaction_index(disk: Disk, path: Path, _base: int, selection: Selection) -> Iterator[Row]:
    data = disk.read(path)
    for at in range(0, len(data), ENTRY_BYTES):
        try:
            (entry,) = decode_transaction_index(data[at : at + ENTRY_BYTES])
        except ValueError as error:
            yield {"type": "damaged", "position": at, "reason": str(error), "resumed_at": None}
            continue
        if entry.last_offset >= selection.first and entry.first_offset < selection.end:
            yield {"type": "aborted_transaction", **entry._asdict()}


def _dump_count_index(disk: Disk, path: Path, base: int, selection: Selection) -> Iterator[Row]:
    data = disk.read(path)
    if not data:
        return  # an empty index counts nothing
    try:
        stored, index = decode_count_index(data, base)
    except CountIndexInvalid as error:
        yield {"type": "damaged", "position": 0, "reason": str(error), "resumed_at": None}
        return
    yield {
        "type": "counts",
        "records": stored.total.records,
        "segment_bytes": stored.segment_bytes,
        "entries": stored.entries,
    }
    for entry in index.entries():
        if selection.first <= entry.offset < selection.end:
            yield {"type": "count_entry", **entry._asdict()}
    for run in stored.total.runs:
        if run.last >= selection.first and run.first < selection.end:
            yield {"type": "count_run", **run._asdict()}


def _rest(data: bytes, whole: int) -> Iterator[Row]:
    if whole < len(data):
        yield {
            "type": "damaged",
            "position": whole,
            "reason": f"{len(data) - whole} bytes of an entry",
            "resumed_at": None,
        }


def _dump_snapshot(disk: Disk, path: Path, _base: int, _selection: Selection) -> Iterator[Row]:
    state = ProducerState(max_producer_ids=EVERY_OFFSET)
    try:
        decode_snapshot(disk.read(path), state)
    except SnapshotInvalid as error:
        yield {"type": "damaged", "position": 0, "reason": str(error), "resumed_at": None}
        return
    for entry in state.entries():
        yield {
            "type": "producer", "producer_id": entry.producer_id, "epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch, "last_timestamp": entry.last_timestamp_ms,
            "transaction_first_offset": entry.transaction_first_offset,
            "batches": [f"{b.first_sequence}-{b.last_sequence} at {b.first_offset}-{b.last_offset}"
                        for b in entry.batches],
        }  # fmt: skip
    for first, marker in state.unreplicated:
        yield {"type": "undecided", "first_offset": first, "marker_offset": marker}


_DERIVED: dict[str, Callable[[Disk, Path, int, Selection], Iterator[Row]]] = {
    "index": _dump_offset_index,
    "timeindex": _dump_time_index,
    "txnindex": _dump_transaction_index,
    "countindex": _dump_count_index,
    "snapshot": _dump_snapshot,
}


def _dump_checkpoint(
    disk: Disk, path: Path, kind: str, shapes: RowShapes, columns: tuple[str, ...]
) -> Iterator[Row]:
    try:
        rows = decode_checkpoint(disk.read(path), shapes)
    except CheckpointInvalid as error:
        yield {"type": "damaged", "position": 0, "reason": str(error), "resumed_at": None}
        return
    for row in rows:
        values = (int(value) if value.lstrip("-").isdigit() else value for value in row)
        yield {"type": kind, **dict(zip(columns, values, strict=False))}


def _dump_flush_notes(disk: Disk, path: Path) -> Iterator[Row]:
    """An invalid record is no violation: the node ignores it, like a record that a power cut destroyed."""
    for number, claim in enumerate(decode_flush_notes(disk.read(path))):
        if claim is None:
            at, reason = number * RECORD_BYTES, "the checksum is wrong: it counts nothing"
            yield {"type": "damaged", "position": at, "reason": reason, "resumed_at": at + RECORD_BYTES}
        else:
            topic_id, partition = identified(claim[0])
            yield {
                "type": "flushed",
                "topic_id": str(topic_id),
                "partition": partition,
                "flushed_end_offset": claim[1],
            }


# ---- folders -----------------------------------------------------------------------------------------------


def _dump_partition(disk: Disk, path: Path, selection: Selection) -> Iterator[Row]:
    files = list_partition(disk, path)
    for name in sorted(files.names):
        yield {"type": "file", "name": name, "bytes": disk.size(path / name)}
    for at, segment in enumerate(files.segments):
        following = files.segments[at + 1].base_offset if at + 1 < len(files.segments) else EVERY_OFFSET
        if segment.base_offset < selection.end and following > selection.first:
            yield {"type": "segment", "name": segment.files["log"].name}
            yield from dump_segment(disk, segment.files["log"], selection)


def _dump_data_folder(disk: Disk, path: Path, is_locked: Callable[[Path], bool]) -> Iterator[Row]:
    folder = read_data_folder(disk, path, is_locked)
    about = {
        "path": str(path),
        "state": folder.state.value,
        "broker_epoch": folder.broker_epoch,
        **folder.identity,
    }
    yield {"type": "folder", **about}
    for directory in folder.partitions:
        key = parse_name(directory.name)
        noted = folder.checkpoint.get(key) if key is not None else None
        files = list_partition(disk, directory)
        yield {
            "type": "partition", "name": directory.name, "segments": len(files.segments),
            "bytes": sum(disk.size(segment.files["log"]) for segment in files.segments),
            "first_offset": files.segments[0].base_offset if files.segments else None,
            "log_start_offset": noted.log_start_offset if noted else None,
            "high_watermark": noted.high_watermark if noted else None,
            "recovery_point": noted.recovery_point if noted else None,
        }  # fmt: skip
