"""Producer snapshots: the producer state up to an offset as one small file, `<offset>.snapshot`
(docs/semantics.md I9).

    crc32c u32 over all that follows | version u16 | end offset i64 | producers u32 | unreplicated u32
    producer:     id i64 | epoch i16 | coordinator epoch i32 | last timestamp i64 | open transaction's first
                  offset i64 (-1: none)
                  | batches u8, and each: last sequence i32 | last offset i64 | offset delta i32 | timestamp
                      i64
    unreplicated: first offset i64 | marker offset i64

Producers stand in order of last use.  Unlike Kafka's snapshot it holds the ended transactions whose marker
was not yet below the high watermark: without them a restarted node would, for a moment, show records of a
transaction whose marker it could still lose (rule L1).  A snapshot whose checksum or version is wrong is not
used; an older one and a longer replay take its place.  One of another version is no damage: its file stays.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error

from crc32c import crc32c

from ..checkpoint import Versions
from .producer_state import BatchMetadata, ProducerEntry, ProducerState

_CRC = Struct(">I")
_VERSION = Struct(">H")
_HEAD = Struct(">HqII")
_PRODUCER = Struct(">qhiqqB")
_BATCH = Struct(">iqiq")
_UNREPLICATED = Struct(">qq")
_Content = tuple[list[ProducerEntry], list[tuple[int, int]], int]
"""Producers, ended transactions that are not replicated, and the end offset."""
_Reader = Callable[[bytes], _Content]


class SnapshotInvalid(Exception):
    """The snapshot cannot be trusted: wrong checksum, unknown version, or incomplete."""


class SnapshotOfOtherVersion(SnapshotInvalid):
    """The snapshot is as it was written, by a release that reads and writes another version."""


def encode_snapshot(state: ProducerState) -> bytes:
    """The state as of `state.end_offset`."""
    unreplicated = state.unreplicated
    parts = [_HEAD.pack(SNAPSHOT_VERSIONS.writes, state.end_offset, len(state), len(unreplicated))]
    for entry in state.entries():
        first = -1 if entry.transaction_first_offset is None else entry.transaction_first_offset
        parts.append(
            _PRODUCER.pack(
                entry.producer_id,
                entry.epoch,
                entry.coordinator_epoch,
                entry.last_timestamp_ms,
                first,
                len(entry.batches),
            )
        )
        parts += [_BATCH.pack(*batch) for batch in entry.batches]
    parts += [_UNREPLICATED.pack(*pair) for pair in unreplicated]
    body = b"".join(parts)
    return _CRC.pack(crc32c(body)) + body


def check_snapshot(data: bytes) -> None:
    """The file is unchanged since it was written, in a version that is read; much cheaper than decoding it.
    Raises SnapshotInvalid."""
    _reader_of(data)


def _reader_of(data: bytes) -> _Reader:
    if data[: _CRC.size] != _CRC.pack(crc32c(data[_CRC.size :])) or len(data) < _CRC.size + _VERSION.size:
        raise SnapshotInvalid("its checksum is wrong")
    (version,) = _VERSION.unpack_from(data, _CRC.size)
    if version not in SNAPSHOT_VERSIONS.reads:
        raise SnapshotOfOtherVersion(f"it {SNAPSHOT_VERSIONS.other(version)}")
    return SNAPSHOT_VERSIONS.reads[version]


def decode_snapshot(data: bytes, state: ProducerState) -> None:
    """Loads a snapshot into an empty `state`.  Raises SnapshotInvalid, and then `state` is still empty."""
    read = _reader_of(data)
    try:
        content = read(data)
    except struct_error as error:
        raise SnapshotInvalid(f"it is cut short: {error}") from None
    state.restore(*content)


def _read_version_1(data: bytes) -> _Content:
    _, end_offset, producers, pairs = _HEAD.unpack_from(data, _CRC.size)
    entries: list[ProducerEntry] = []
    position = _CRC.size + _HEAD.size
    for _ in range(producers):
        producer_id, epoch, coordinator_epoch, timestamp, first, count = _PRODUCER.unpack_from(data, position)
        position += _PRODUCER.size
        batches = tuple(
            BatchMetadata(*_BATCH.unpack_from(data, position + i * _BATCH.size)) for i in range(count)
        )
        position += count * _BATCH.size
        first_offset = None if first < 0 else first
        entries.append(ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches))
    unreplicated = [_UNREPLICATED.unpack_from(data, position + i * _UNREPLICATED.size) for i in range(pairs)]
    return entries, unreplicated, end_offset


SNAPSHOT_VERSIONS: Versions[_Reader] = Versions({1: _read_version_1}, writes=1)
