"""Record batches, version 2: headers, validation, offsets assigned in place, records for clients, transaction
markers.

A batch is stored exactly as its producer sent it.  The CRC-32C covers everything from `attributes` on, and
deliberately not base offset, length, leader epoch and magic: the leader patches offset and epoch in place and
the checksum stays valid.

    offset size  field                    offset size  field
         0    8  base_offset                  27    8  base_timestamp
         8    4  batch_length (after it)      35    8  max_timestamp
        12    4  partition_leader_epoch       43    8  producer_id
        16    1  magic (2)                    51    2  producer_epoch
        17    4  crc                          53    4  base_sequence
        21    2  attributes                   57    4  record_count
        23    4  last_offset_delta            61    .  records, compressed as a whole

The order for a leader: `validate_batch` each batch of the request, then `assign_in_place`, then append.  The
broker never decodes records on that path: cost is per batch.  Offsets inside a log have gaps (markers,
compaction): nothing here assumes otherwise.

Promise: for any input bytes the result is a value or a `KafkaError`, and memory stays bounded by
`DECOMPRESSED_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, NamedTuple, overload

from crc32c import crc32c

from .compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompress
from .errors import ErrorCode, KafkaError
from .primitives import read_zigzag, zigzag

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = [
    "HEADER_BYTES", "LOG_OVERHEAD_BYTES", "RECORDS_MAX",
    "BatchHeader", "Compression", "ControlType", "EncodedRecords", "Marker", "NewRecord", "Record",
    "assign_in_place", "decode_batch", "decode_marker", "encode_batch", "encode_marker", "encode_records",
    "iterate_headers", "next_sequence",
    "parse_header", "set_log_append_time", "validate_batch",
]  # fmt: skip

_HEADER = Struct(">qiibIhiqqqhii")
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT16 = Struct(">h")

HEADER_BYTES = 61
"""Size of a batch's header, base offset and length included."""
LOG_OVERHEAD_BYTES = 12
"""Base offset and length: what `batch_length` does not count."""
_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD_BYTES
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
DELETE_HORIZON = 0x40  # the base timestamp is the time from which tombstones and markers may go (KIP-534)

# length, attributes, timestamp, offset, key length, value length, header count: one byte each
_RECORD_BYTES_MIN = 7
RECORDS_MAX = DECOMPRESSED_BYTES_MAX // _RECORD_BYTES_MIN
"""No batch that we would decompress can hold more records."""
_SEQUENCES = 1 << 31


class BatchHeader(NamedTuple):
    """The 61 bytes before the records.

    A named tuple, as one is made for every batch on the hot path and a frozen dataclass costs tenfold.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """Raises UNSUPPORTED_COMPRESSION_TYPE for an undefined codec number."""
        codec = self.attributes & _COMPRESSION_MASK
        if codec > Compression.ZSTD:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec} is not known"
            )
        return Compression(codec)

    @property
    def is_log_append_time(self) -> bool:
        """All records carry `max_timestamp`, set by the broker."""
        return self.attributes & _LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, wrapping from 2^31-1 to 0 (docs/semantics.md I3); -1 without
        sequences."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def next_sequence(sequence: int) -> int:
    """The sequence number after `sequence`, wrapping from 2^31-1 to 0."""
    return (sequence + 1) & 0x7FFFFFFF


_unpack_header = _HEADER.unpack_from
_new = tuple.__new__  # of named tuples: half the time of their own constructors


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)


def parse_header(view: ReadableBuffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked; CORRUPT_MESSAGE when fewer than 61 bytes are left."""
    try:
        return _new(BatchHeader, _unpack_header(view, position))
    except struct_error:
        raise _corrupt(f"no room for a batch header at byte {position}") from None


def iterate_headers(view: ReadableBuffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every whole batch; stops at a partial tail, raises CORRUPT_MESSAGE at bytes that
    are no batch."""
    size = memoryview(view).nbytes
    position = 0
    while position + HEADER_BYTES <= size:
        header = _new(BatchHeader, _unpack_header(view, position))
        length = header.batch_length
        if length < _LENGTH_MIN or header.magic != 2:
            raise _corrupt(f"no batch of version 2 at byte {position}: length {length}, magic {header.magic}")
        end = position + length + LOG_OVERHEAD_BYTES
        if end > size:
            return
        yield position, header
        position = end


def validate_batch(
    view: memoryview, position: int = 0, max_bytes: int | None = None, *, from_client: bool = False
) -> BatchHeader:
    """Checks one whole batch at `position` without looking into its records, and returns its header.

    `max_bytes` bounds the batch's size.  With `from_client`, the rules for a producer's batches hold as well:
    at least one record, offsets without gaps, no control batch, sequences with a producer id.  A replicated
    or recovered batch may have been compacted and must obey only the rules of every batch.

    Raises CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE.
    """
    try:
        header = _new(BatchHeader, _unpack_header(view, position))
    except struct_error:
        raise _corrupt(
            f"{len(view) - position} bytes are too few for a record batch (a header has {HEADER_BYTES})"
        ) from None
    length = header.batch_length
    end = position + LOG_OVERHEAD_BYTES + length
    if header.magic != 2:
        raise _wrong_magic(header.magic)
    if length < _LENGTH_MIN or end > len(view):
        raise _corrupt(
            f"the batch claims {length} bytes where {len(view) - position - LOG_OVERHEAD_BYTES} are left"
        )
    if max_bytes is not None and length + LOG_OVERHEAD_BYTES > max_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {length + LOG_OVERHEAD_BYTES} bytes and at most {max_bytes} are allowed "
            "(max.message.bytes)",
        )
    if crc32c(view[position + _ATTRIBUTES_AT : end]) != header.crc:
        raise _corrupt("the batch's CRC-32C does not match its content")
    codec = header.attributes & _COMPRESSION_MASK
    if codec > 4:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec} is not known")
    count = header.record_count
    if not 0 <= count <= header.last_offset_delta + 1 or count > RECORDS_MAX:
        raise _invalid(f"the batch claims {count} records over {header.last_offset_delta + 1} offsets")
    if codec == 0 and count * _RECORD_BYTES_MIN > length - _LENGTH_MIN:
        raise _invalid(f"the batch claims {count} records in {length - _LENGTH_MIN} bytes")
    if from_client:
        _check_client_batch(header)
    return header


def _wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return _invalid(
            f"message format {magic} is not supported: use a client of Kafka 0.11 or newer (format 2)"
        )
    return _corrupt(f"magic {magic} is no record batch format")


def _check_client_batch(header: BatchHeader) -> None:
    if header.record_count == 0:
        raise _invalid("the batch holds no record")
    if header.record_count != header.last_offset_delta + 1:
        raise _invalid(
            f"{header.record_count} records over {header.last_offset_delta + 1} offsets: no gaps are allowed"
        )
    if header.attributes & _CONTROL:
        raise _invalid("clients may not write control records")
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(
                f"producer id {header.producer_id} with epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}: "
                "both must be 0 or more"
            )
    elif header.attributes & _TRANSACTIONAL:
        raise _invalid("a transactional batch needs a producer id")


def assign_in_place(view: WriteableBuffer, position: int, base_offset: int, leader_epoch: int) -> None:
    """Writes the offset and the leader epoch into the batch at `position`; both stand outside the CRC."""
    _INT64.pack_into(view, position, base_offset)
    _INT32.pack_into(view, position + 12, leader_epoch)


def set_log_append_time(view: memoryview, position: int, timestamp_ms: int) -> None:
    """Marks the batch as stamped by the broker (message.timestamp.type=LogAppendTime) and computes its CRC
    again."""
    length: int = _INT32.unpack_from(view, position + 8)[0]
    attributes: int = _INT16.unpack_from(view, position + _ATTRIBUTES_AT)[0]
    _INT16.pack_into(view, position + _ATTRIBUTES_AT, attributes | _LOG_APPEND_TIME)
    _INT64.pack_into(view, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    checksum = crc32c(view[position + _ATTRIBUTES_AT : position + LOG_OVERHEAD_BYTES + length])
    _UINT32.pack_into(view, position + _CRC_AT, checksum)


# ---- records -----------------------------------------------------------------------------------------------


class Record(NamedTuple):
    """A record as a consumer sees it.  Kafka requires that the names of headers are UTF-8, and other clients
    do not check it: bytes that are none are replacement characters here, as in Kafka's Java client.  An error
    would end the read of the partition at this record for ever."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class NewRecord(NamedTuple):
    """A record to be written."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = -1


# most lengths and deltas are small: a list look-up instead of a loop
_VARINTS = [zigzag(value) for value in range(2048)]
_NULL = zigzag(-1)


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One batch of at least one record, ready to be sent or appended."""
    if not records:
        raise ValueError("a batch needs at least one record")
    if isinstance(records, EncodedRecords):
        pieces = records.pieces
        base_timestamp, max_timestamp = records.base_timestamp_ms, records.max_timestamp_ms
    else:
        base_timestamp = records[0].timestamp_ms
        payload, max_timestamp = encode_records(records, 0, base_timestamp)
        pieces = [payload]
    if compression:
        pieces = [compress(compression, pieces[0] if len(pieces) == 1 else b"".join(pieces))]
    attributes = compression | (_TRANSACTIONAL if transactional else 0) | (_CONTROL if control else 0)
    header = _HEADER.pack(
        base_offset, _LENGTH_MIN + sum(map(len, pieces)), leader_epoch, 2, 0, attributes, len(records) - 1,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    checksum = crc32c(header[_ATTRIBUTES_AT:])
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    return b"".join((header[:_CRC_AT], _UINT32.pack(checksum), header[_ATTRIBUTES_AT:], *pieces))


def encode_records(records: Sequence[NewRecord], first: int, base_timestamp: int) -> tuple[bytes, int]:
    """The records of a batch from its record `first` on, and the latest of their timestamps and the
    batch's."""
    max_timestamp = base_timestamp
    varints = _VARINTS
    parts: list[bytes] = []
    for index, (key, value, headers, timestamp_ms) in enumerate(records, first):
        if timestamp_ms > max_timestamp:
            max_timestamp = timestamp_ms
        delta = timestamp_ms - base_timestamp
        body = b"\x00" + (varints[delta] if 0 <= delta < 2048 else zigzag(delta))
        body += varints[index] if index < 2048 else zigzag(index)
        if key is None:
            body += _NULL
        else:
            size = len(key)
            body += (varints[size] if size < 2048 else zigzag(size)) + key
        if value is None:
            body += _NULL
        else:
            size = len(value)
            body += (varints[size] if size < 2048 else zigzag(size)) + value
        body += _encode_headers(headers) if headers else b"\x00"
        size = len(body)
        parts.append(varints[size] if size < 2048 else zigzag(size))
        parts.append(body)
    return b"".join(parts), max_timestamp


class EncodedRecords(Sequence[NewRecord]):
    """Records that are bytes of a batch already, in pieces: a sequence that decodes them only when it is
    looked into.  A slice is made of the same bytes."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._count = 0
        self.base_timestamp_ms = self.max_timestamp_ms = -1

    def append(self, piece: bytes, count: int, base_timestamp_ms: int, max_timestamp_ms: int) -> None:
        """Adds `count` records; their offsets and timestamps in `piece` count from the batch's first record,
        whose timestamp is `base_timestamp_ms`."""
        if not self._count:
            self.base_timestamp_ms = self.max_timestamp_ms = base_timestamp_ms
        assert base_timestamp_ms == self.base_timestamp_ms
        self.pieces.append(piece)
        self._count += count
        self.max_timestamp_ms = max(self.max_timestamp_ms, max_timestamp_ms)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.pieces))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NewRecord]:
        if not self._count:
            return iter(())
        return (
            NewRecord(each.key, each.value, each.headers, each.timestamp_ms)
            for each in decode_batch(encode_batch(self))
        )

    @overload
    def __getitem__(self, index: int) -> NewRecord: ...

    @overload
    def __getitem__(self, index: slice) -> EncodedRecords: ...

    def __getitem__(self, index: int | slice) -> NewRecord | EncodedRecords:
        return self._slice(index) if isinstance(index, slice) else list(self)[index]

    def _slice(self, index: slice) -> EncodedRecords:
        """Keys, values and headers byte for byte; only offsets and timestamps count anew."""
        chosen = list(self._bodies())[index]
        made, base = EncodedRecords(), chosen[0][0] if chosen else -1
        parts: list[bytes] = []
        for number, (timestamp_ms, body) in enumerate(chosen):
            head = b"\x00" + zigzag(timestamp_ms - base) + zigzag(number)
            parts += (zigzag(len(head) + len(body)), head, body)
        if chosen:
            made.append(b"".join(parts), len(chosen), base, max(timestamp_ms for timestamp_ms, _ in chosen))
        return made

    def _bodies(self) -> Iterator[tuple[int, bytes]]:
        """The timestamp of each record, and what follows its offset."""
        for piece in self.pieces:
            at = 0
            while at < len(piece):
                length, at = read_zigzag(piece, at)
                end = at + length
                delta, at = read_zigzag(piece, at + 1)
                _, at = read_zigzag(piece, at)
                yield self.base_timestamp_ms + delta, piece[at:end]
                at = end


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [zigzag(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (zigzag(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (zigzag(len(value)), value)
    return b"".join(parts)


def decode_batch(
    view: ReadableBuffer, position: int = 0, *, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """The records of the batch at `position`, with absolute offsets; the caller checks the CRC
    (`validate_batch`).

    A control batch decodes like any other: a caller that must not see control records looks at
    `header.is_control` first. Raises CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE.
    """
    whole = memoryview(view).cast("B")
    header = parse_header(whole, position)
    end = position + header.size_bytes
    if header.magic != 2 or header.batch_length < _LENGTH_MIN or end > len(whole):
        raise _corrupt(f"no whole batch of version 2 at byte {position}")
    payload = whole[position + HEADER_BYTES : end]
    if header.attributes & _COMPRESSION_MASK:
        payload = decompress(header.compression, payload, max_bytes)
    if not 0 <= header.record_count * _RECORD_BYTES_MIN <= len(payload):
        raise _invalid(f"the batch claims {header.record_count} records in {len(payload)} bytes")
    try:
        return _decode_records(bytes(payload), header)
    except (IndexError, ValueError) as error:
        raise _corrupt(f"a record of the batch at offset {header.base_offset} is cut off: {error}") from error


def _decode_records(data: bytes, header: BatchHeader) -> list[Record]:
    """The loop that clients spend their time in: varints of one and two bytes are read inline, longer ones by
    a call."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    size = len(data)
    records: list[Record] = []
    append, new = records.append, tuple.__new__
    at = 0
    for _ in range(header.record_count):
        # length of the record
        byte = data[at]
        if byte < 0x80:
            at += 1
            length = (byte >> 1) ^ -(byte & 1)
        elif (more := data[at + 1]) < 0x80:
            at += 2
            length = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1)
        else:
            length, at = read_zigzag(data, at)
        end = at + length
        if length < _RECORD_BYTES_MIN - 1 or end > size:
            raise _corrupt(f"a record of {length} bytes where {size - at} are left")
        # timestamp delta, after the unused byte of attributes
        byte = data[at + 1]
        if byte < 0x80:
            at += 2
            timestamp = (byte >> 1) ^ -(byte & 1)
        elif (more := data[at + 2]) < 0x80:
            at += 3
            timestamp = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1)
        else:
            timestamp, at = read_zigzag(data, at + 1)
        # offset delta
        byte = data[at]
        if byte < 0x80:
            at += 1
            delta = (byte >> 1) ^ -(byte & 1)
        elif (more := data[at + 1]) < 0x80:
            at += 2
            delta = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1)
        else:
            delta, at = read_zigzag(data, at)
        # key
        byte = data[at]
        if byte < 0x80:
            at += 1
            length = (byte >> 1) ^ -(byte & 1)
        else:
            length, at = read_zigzag(data, at)
        key = None
        if length >= 0:
            key = data[at : at + length]
            at += length
        # value
        byte = data[at]
        if byte < 0x80:
            at += 1
            length = (byte >> 1) ^ -(byte & 1)
        elif (more := data[at + 1]) < 0x80:
            at += 2
            length = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1)
        else:
            length, at = read_zigzag(data, at)
        value = None
        if length >= 0:
            value = data[at : at + length]
            at += length
        if data[at]:
            headers, at = _decode_headers(data, at, end)
        else:
            headers = ()
            at += 1
        if at != end:  # also true of a key or value that its length leads beyond the record
            raise _corrupt(f"a record ends at byte {at}, its length says {end}")
        moment = base_timestamp + timestamp if append_time is None else append_time
        append(new(Record, (base_offset + delta, moment, key, value, headers)))
    if at != size:
        raise _corrupt(f"{size - at} bytes follow the last record")
    return records


def _decode_headers(data: bytes, at: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = read_zigzag(data, at)
    if count < 0 or count * 2 > end - at:
        raise _corrupt(f"{count} record headers in {end - at} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, at = read_zigzag(data, at)
        if not 0 <= length <= end - at:
            raise _corrupt(f"the name of a record header has {length} bytes where {end - at} are left")
        name = data[at : at + length].decode("utf-8", "replace")
        length, at = read_zigzag(data, at + length)
        if length < 0:
            headers.append((name, None))
        else:
            headers.append((name, data[at : at + length]))
            at += length
    return tuple(headers), at


# ---- markers -----------------------------------------------------------------------------------------------


class ControlType(IntEnum):
    """How a transaction ended (docs/semantics.md L8)."""

    ABORT = 0
    COMMIT = 1


_MARKER_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")


class Marker(NamedTuple):
    """The contents of a transaction marker."""

    control_type: ControlType
    coordinator_epoch: int
    producer_id: int
    producer_epoch: int
    offset: int
    timestamp_ms: int


def encode_marker(
    control_type: ControlType,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytes:
    """A whole control batch of one record, which takes one offset."""
    record = NewRecord(
        _MARKER_KEY.pack(0, control_type), _MARKER_VALUE.pack(0, coordinator_epoch), (), timestamp_ms
    )
    return encode_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def decode_marker(view: ReadableBuffer, position: int = 0) -> Marker | None:
    """The marker in the control batch at `position`; None for an emptied batch and for control types that we
    do not know."""
    header = parse_header(view, position)
    if not header.is_control:
        raise _invalid(f"the batch at offset {header.base_offset} is no control batch")
    records = decode_batch(view, position)
    if not records:
        return None
    offset, timestamp_ms, key, value, _ = records[0]
    if key is None or len(key) < _MARKER_KEY.size:
        raise _invalid(f"the control record at offset {offset} has no type")
    version, kind = _MARKER_KEY.unpack_from(key)
    if version < 0 or kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _MARKER_VALUE.size:
        raise _invalid(f"the transaction marker at offset {offset} has no coordinator epoch")
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    return Marker(
        ControlType(kind), coordinator_epoch, header.producer_id, header.producer_epoch, offset, timestamp_ms
    )
