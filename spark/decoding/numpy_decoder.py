"""Decodes record batches to Arrow columns with numpy, where there is no compiled kernel; the cost of a record
is about half of the JVM's part.  It also says what is wrong where the kernel refuses a piece.

How a piece becomes columns:

1. one loop in Python reads the record *lengths*, since only they are sequential;
2. numpy decodes each varint field of all records at once, every field giving the position of the next;
3. Arrow gathers the keys and values: as a binary array whose offsets alternate start, end, start, end, ...,
   the buffer has the selected bytes at even indices and the bytes between at odd ones, so that one `take`
   copies exactly the selected ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import BatchHeader
from ..arrow_schema import ARROW_TYPES
from .columns import Decoded, Target, headers_column, to_batch
from .decompression import Malformed, Piece, Section

TIMESTAMP_MS_MAX = ((1 << 63) - 1) // 1000  # Spark counts microseconds in 64 bits
LOG_APPEND_TIME = 1
HEADER_TURNS_MAX = 1_000
"""A turn decodes one header of each record that has so many.  Few records have more: to walk over the rest of
theirs one by one costs less than a turn for each."""

Positions = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]


def decode_piece(target: Target, piece: Piece, floor: int) -> Decoded:
    """The columns of a piece whose offsets lie above `floor`.  Raises Malformed, IndexError, and KafkaError
    for a timestamp that Spark does not have."""
    data, sections = piece
    group = _Group(target, bytes(data), sections, floor)
    return Decoded(group.to_arrow(), group.last_offset)


class _Group:
    """Some batches whose records lie in one buffer, decoded field by field."""

    __slots__ = ("_counts", "_data", "_headers", "_octets", "_sections", "_target", "last_offset")

    def __init__(self, target: Target, data: bytes, sections: Sequence[Section], floor: int) -> None:
        """`floor`: the last offset before this group."""
        self.last_offset = floor
        self._target = target
        self._data = data
        self._octets: Octets = np.frombuffer(data, np.uint8)
        self._sections = sections
        self._headers = dict(
            zip(
                BatchHeader._fields,
                np.array([section.header for section in sections], np.int64).T,
                strict=True,
            )
        )
        self._counts = self._headers["record_count"]

    def to_arrow(self) -> pa.RecordBatch:
        octets = self._octets
        starts, ends = _record_bounds(octets, self._data, self._sections)
        if (octets[starts] & 1).any():
            raise Malformed("negative record length")
        position = _skip_varint(octets, starts) + 1  # the attributes byte is unused
        timestamp_delta, position = _varint(octets, position)
        offset_delta, position = _varint(octets, position)
        offsets = self._offsets(offset_delta)
        key_start, key_end, key_null, position = self._field(position)
        value_start, value_end, value_null, position = self._field(position)
        if (position >= ends).any():
            raise Malformed("key and value reach beyond the record")
        wanted = slice(*np.searchsorted(offsets, (self._target.start, self._target.end)))
        made: dict[str, Callable[[], Any]] = {
            "key": lambda: _gather(self._data, key_start[wanted], key_end[wanted], _some(key_null, wanted)),
            "value": lambda: _gather(
                self._data, value_start[wanted], value_end[wanted], _some(value_null, wanted)
            ),
            "offset": lambda: pa.array(offsets[wanted]),
            "timestamp": lambda: self._timestamps(timestamp_delta[wanted], offsets[wanted], wanted),
            "timestampType": lambda: pa.array(self._timestamp_types()[wanted]),
            "headers": lambda: _headers(self._data, octets, position[wanted], ends[wanted]),
        }
        return to_batch(self._target, len(offsets[wanted]), made)

    def _offsets(self, delta: Positions) -> Positions:
        offsets = self._for_each_record("base_offset") + delta
        beyond = delta > self._for_each_record("last_offset_delta")
        if (
            (delta < 0).any()
            or beyond.any()
            or (offsets[1:] <= offsets[:-1]).any()
            or offsets[0] <= self.last_offset
        ):
            raise Malformed("offsets do not ascend within their batch")
        self.last_offset = int(offsets[-1])
        return offsets

    def _field(
        self, position: Positions
    ) -> tuple[Positions, Positions, npt.NDArray[np.bool_] | None, Positions]:
        """A length and that many bytes; -1 is null.  Returns start, end, where null (None: nowhere), next
        position."""
        length, start = _varint(self._octets, position)
        null = None
        shortest = length.min()
        if shortest < 0:
            if shortest < -1:
                raise Malformed("negative length")
            null = length < 0
            length = np.maximum(length, 0)
        if length.max() > len(self._octets):
            raise Malformed("length beyond the batch")
        end = start + length
        return start, end, null, end

    def _timestamps(self, delta: Positions, offsets: Positions, wanted: slice) -> Any:
        base = self._for_each_record("base_timestamp")[wanted]
        milliseconds = base + delta
        # the sum of two of one sign has another
        beyond = ((base ^ milliseconds) & (delta ^ milliseconds)) < 0
        appended = self._timestamp_types()[wanted] == LOG_APPEND_TIME
        if appended.any():
            milliseconds = np.where(appended, self._for_each_record("max_timestamp")[wanted], milliseconds)
            beyond &= ~appended
        beyond |= (milliseconds > TIMESTAMP_MS_MAX) | (milliseconds < -TIMESTAMP_MS_MAX)
        if beyond.any():
            at = int(np.flatnonzero(beyond)[0])
            time = int(milliseconds[at]) if appended[at] else int(base[at]) + int(delta[at])
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"{self._target.topic}-{self._target.partition}: the record at offset {offsets[at]} "
                f"has the timestamp {time} ms, "
                f"and Spark's timestamps reach to {TIMESTAMP_MS_MAX} ms: read without the column "
                "'timestamp', or around it",
            )
        return pa.array(milliseconds * 1000).cast(ARROW_TYPES["timestamp"])

    def _timestamp_types(self) -> npt.NDArray[np.int32]:
        appended = np.fromiter(
            (section.header.is_log_append_time for section in self._sections), np.int32, len(self._sections)
        )
        return np.repeat(appended, self._counts)

    def _for_each_record(self, field: str) -> Positions:
        return np.repeat(self._headers[field], self._counts)


def _some(mask: npt.NDArray[np.bool_] | None, wanted: slice) -> npt.NDArray[np.bool_] | None:
    return None if mask is None else mask[wanted]


_LOW = [low >> 1 for low in range(256)]
# together ((low & 127) | high << 7) >> 1, plus the two bytes of the length
_HIGH = [(high << 6) - 62 for high in range(256)]


def _record_bounds(octets: Octets, data: bytes, sections: Sequence[Section]) -> tuple[Positions, Positions]:
    """Where each record's length field begins, and where the record ends."""
    try:
        begin = np.array(_walk_short_records(data, sections), np.int64)
        two_bytes = begin[octets[begin] > 127]
        if (octets[two_bytes + 1] > 127).any():
            raise Malformed("a length of more than two bytes")
    except (IndexError, Malformed):  # rare: a record of 8 KiB or more, or invalid data
        begin = np.array(_walk_any_records(data, sections), np.int64)
    end = np.empty_like(begin)
    end[:-1] = begin[1:]
    last = np.cumsum([section.header.record_count for section in sections]) - 1
    end[last] = [section.end for section in sections]  # between two batches there is a header
    return begin, end


def _walk_short_records(data: bytes, sections: Sequence[Section]) -> list[int]:
    """The one loop over records, bare because it is half of the whole cost: it *assumes* lengths of one or
    two bytes.

    The result is valid only if the caller then finds that the assumption held for all records.
    """
    starts: list[int] = []
    low_part, high_part = _LOW, _HIGH
    for section in sections:
        position = section.start
        for _ in range(section.header.record_count):
            starts.append(position)
            low = data[position]
            if low > 127:
                position += low_part[low] + high_part[data[position + 1]]
            else:
                position += low_part[low] + 1
        if position != section.end:
            raise Malformed(f"the records of the batch at {section.header.base_offset} do not fill it")
    return starts


def _walk_any_records(data: bytes, sections: Sequence[Section]) -> list[int]:
    starts: list[int] = []
    for section in sections:
        position = section.start
        for _ in range(section.header.record_count):
            starts.append(position)
            position = _record_end(data, position)
        if position != section.end:
            raise Malformed(f"the records of the batch at {section.header.base_offset} do not fill it")
    return starts


def _record_end(data: bytes, position: int) -> int:
    length = shift = 0
    for octet in data[position : position + 5]:
        position += 1
        length |= (octet & 127) << shift
        if octet < 128:
            return position + (length >> 1)
        shift += 7
    raise Malformed("a record length is cut off or has more than five bytes")


def _skip_varint(octets: Octets, position: Positions) -> Positions:
    """The positions after the varints at `position`."""
    after = position + 1
    longer = np.flatnonzero(octets[position] > 127)
    while longer.size:
        more = octets[after[longer]] > 127
        after[longer] += 1
        longer = longer[more]
    return after


def _varint(octets: Octets, position: Positions) -> tuple[Positions, Positions]:
    """The zigzag varints (up to ten bytes) at `position`, and the positions after them."""
    first = octets[position]
    after = position + 1
    value = first.astype(np.int64)
    longer = np.flatnonzero(first > 127)
    if longer.size:
        value &= 127
        shift = 7
        while longer.size:
            if shift > 63:
                raise Malformed("varint of more than ten bytes")
            octet = octets[after[longer]]
            value[longer] |= (octet & 127).astype(np.int64) << shift
            after[longer] += 1
            longer = longer[octet > 127]
            shift += 7
    # Unsigned, so that the top bit of a ten-byte varint is shifted out like any other.
    plain = value.view(np.uint64)
    return ((plain >> np.uint64(1)).view(np.int64) ^ -(value & 1)), after


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """As `_varint`, of one: the bits above the 64th fall away."""
    value = 0
    for shift in range(0, 70, 7):
        octet = data[at]
        at += 1
        value |= (octet & 127) << shift
        if octet < 128:
            value &= (1 << 64) - 1
            return (value >> 1) ^ -(value & 1), at
    raise Malformed("varint of more than ten bytes")


def _gather(data: bytes, start: Positions, end: Positions, null: npt.NDArray[np.bool_] | None) -> Any:
    """The byte strings data[start:end] as one Arrow binary array; start and end ascend and do not overlap."""
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = start
    edges[1::2] = end
    alternating = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)]
    )
    return alternating.take(pa.array(np.arange(0, 2 * count, 2), mask=null))


def _walk_headers(data: bytes, at: int, bounds: Positions, null: npt.NDArray[np.bool_], slots: range) -> int:
    """The headers of one record from `at` on, one after the other, into `slots` of `bounds` and `null`; the
    position after them."""
    for slot in slots:
        for field in (0, 2):
            length, at = _varint_at(data, at)
            if length < (-1 if field else 0) or length > len(data):
                raise Malformed("length of a header")
            null[slot] = length < 0
            bounds[field, slot] = at
            at += max(length, 0)
            bounds[field + 1, slot] = at
    return at


def _headers(data: bytes, octets: Octets, position: Positions, ends: Positions) -> Any:
    """The headers of each record as list<struct<key, value>>."""
    counts, position = _varint(octets, position)
    if len(counts) and (counts.min() < 0 or counts.max() > len(data)):
        raise Malformed("number of headers")
    first = np.concatenate(([0], np.cumsum(counts)))
    total = int(first[-1])
    if total > len(data):
        raise Malformed("number of headers")
    bounds = np.zeros((4, total), np.int64)  # key start, key end, value start, value end
    null = np.zeros(total, np.bool_)
    rows = np.flatnonzero(counts)
    turn = 0
    while rows.size and turn < HEADER_TURNS_MAX:  # one turn a header, over all records that have so many
        slot = first[rows] + turn
        for field in (0, 2):
            length, begin = _varint(octets, position[rows])
            if length.min() < (-1 if field else 0) or length.max() > len(data):
                raise Malformed("length of a header")
            null[slot] = length < 0
            position[rows] = begin + np.maximum(length, 0)
            bounds[field, slot] = begin
            bounds[field + 1, slot] = position[rows]
        if (position[rows] > ends[rows]).any():
            raise Malformed("headers reach beyond the record")
        turn += 1
        rows = rows[counts[rows] > turn]
    for row in rows:
        slots = range(int(first[row]) + turn, int(first[row + 1]))
        position[row] = _walk_headers(data, int(position[row]), bounds, null, slots)
    if (position != ends).any():
        raise Malformed("bytes are left after the last header")
    names = _gather(data, bounds[0], bounds[1], None)
    values = _gather(data, bounds[2], bounds[3], null if null.any() else None)
    missing = counts == 0
    # A null list has the same offsets as an empty one, so only the mask makes it null.
    valid = pa.array(~missing).buffers()[1] if missing.any() else None
    offsets = pa.py_buffer(first.astype(np.int32))
    return headers_column(len(counts), valid, int(missing.sum()), offsets, names, values)
