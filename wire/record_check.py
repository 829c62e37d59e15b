"""Whether the records of a batch can be read at all: checked before a leader takes the batch, because afterwards it is for ever.

A batch with a right CRC may still hold garbage, when the client that made it has a defect or means harm.  Every consumer would
stop at its offset and never get past it.  So a client's batch is unfolded when it is compressed (bounded: `UNFOLDED_BYTES_MAX`),
and then:

* the lengths of all records are followed: there are as many as the header says, and they end where the batch ends;
* the first and the last record are read in full: attributes, timestamp, offset delta (0 and `last_offset_delta`), key, value,
  headers, each within its record.  With `every_record` all are, in the order of their offset deltas, and must have a key: so for
  compacted topics, whose cleaner looks into every record.

What is wrong with the records is INVALID_RECORD, which a client does not repeat; CORRUPT_MESSAGE is for what the network may have
done.  Only for client appends: followers, recovery and markers go by what a leader took.

Cost.  Python takes 45 to 60 ns to follow one length, which is a third of what a produced record of 100 bytes costs a node.
Therefore runs of records of one size are followed by strided slices at C's speed: their first one or two bytes are the same.
Measured in us a batch, values of eight letters (`validate_batch`, mostly the CRC, takes 1 us for one record, 1.8 for 16 KiB, 41
for 1 MiB):

    codec                            none   snappy   lz4   gzip   zstd
    1 record of 100 B                 1.1      4       9     11     26
    150 of one size, 16 KiB           6       23      21     48     52
    150 of 40 to 160 B, 16 KiB       11       25      28     54     57
    10,000 of one size, 1 MiB        82
    10,000 of 40 to 160 B, 1 MiB    500
    1,000 of 600 to 1,400 B, 1 MiB   55

In all, librdkafka to one node on the same two cores, 100 B, acks=all: the node takes about 5 % more CPU for records of one size
and 15 to 20 % more for those of 40 to 160 B.  `record.check=false` on a topic spares that.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

from .compression import decompress
from .errors import ErrorCode, KafkaError
from .primitives import read_zigzag
from .records import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader

UNFOLDED_BYTES_MAX: Final = 64 << 20
"""Of the records of one batch.  Half of what a reader allows itself."""
RECORDS_MAX: Final = 1_000_000
"""In one batch of a client; librdkafka's and Java's largest settings stay below."""
NAMED_MAX: Final = 10_000
"""Records at fault that a refusal names; of more it names none, and the whole batch is at fault."""

_RECORD_BYTES_MIN = 7
_RUN_MIN = 16  # shorter runs cost more to find than to walk
_WALK = 64  # records that are walked one by one before a run is looked for again; grows while none is found
_SPARSE = 512  # bytes a record from which on it costs more to copy them than to look at a few of them through a view
_FAR = 1 << 40  # added to a position: the next byte is not there
_NOWHERE: Final = (_FAR,) * 128


def _steps(first: int) -> tuple[int, ...]:
    """How far the next record lies behind one that begins with this byte, by its second byte; _FAR where that is no length.

    Without an entry: the second byte belongs to a length of three bytes (or holds attributes that nobody has defined)."""
    if first & 1:
        return _NOWHERE
    if first < 0x80:
        return _NOWHERE if first >> 1 < _RECORD_BYTES_MIN - 1 else ((first >> 1) + 1,) * 128
    return (_FAR, *(((first & 0x7F) >> 1) + (second << 6) + 2 for second in range(1, 128)))


_STEPS: Final = tuple(map(_steps, range(256)))


def check_records(
    view: memoryview,
    position: int,
    header: BatchHeader,
    unfolded_bytes_max: int = UNFOLDED_BYTES_MAX,
    *,
    every_record: bool = False,
) -> None:
    """Checks the batch at `position`, whose header and CRC were found right.  Raises INVALID_RECORD, MESSAGE_TOO_LARGE."""
    count = header.record_count
    if count > RECORDS_MAX:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {count} records and at most {RECORDS_MAX} are taken")
    payload = view[position + HEADER_BYTES : position + LOG_OVERHEAD_BYTES + header.batch_length]
    if header.attributes & 0x07:
        try:
            payload = decompress(header.compression, payload, unfolded_bytes_max)
        except KafkaError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                raise _invalid(error.message) from error
            raise
    try:
        if every_record:
            end = _check_every(bytes(payload), count)
        else:
            end = _check_record(payload, 0, 0)
            if count > 1:
                # Reading single bytes of a view takes twice the time, strided slices nine times.
                data = bytes(payload) if len(payload) < _SPARSE * count else memoryview(payload)
                last = _follow(data, end, count - 2)
                end = _check_record(data, last, header.last_offset_delta)
    except IndexError:
        raise _invalid(f"the batch claims {count} records and ends within one of them") from None
    except ValueError as error:
        raise _invalid(str(error)) from None
    if end != len(payload):
        raise _invalid(f"{len(payload) - end} bytes follow the last of {count} records")


def _follow(data: bytes | memoryview, at: int, count: int) -> int:
    """The position after `count` records that begin at `at`.  IndexError when it is not in the data."""
    stretch = _WALK
    following: bytes | memoryview | None = None
    while count:
        if count >= _RUN_MIN:
            run, after = _run(data, at, count)
            if run >= _RUN_MIN:
                at, count, stretch = after, count - run, _WALK
                continue
        walked = min(stretch, count)
        stretch *= 2
        if following is None:
            following = data[1:]
        at = _walk(data, following, at, walked)
        count -= walked
        if at > len(data):
            raise IndexError
    return at


def _run(data: bytes | memoryview, at: int, count: int) -> tuple[int, int]:
    """How many of at most `count` records from `at` on have the size of the first, and the position after them."""
    first, second = data[at], data[at + 1]
    step = _STEPS[first][second] if second < 0x80 else _FAR
    there = at + step * (_RUN_MIN - 1)
    if there >= len(data) or data[there] != first:
        return 0, at
    run = _same(data[at : at + step * count : step])
    if first > 0x7F:
        run = min(run, _same(data[at + 1 : at + step * run : step]))
    return run, at + run * step


def _same(column: bytes | memoryview) -> int:
    """How many bytes at the beginning are the same."""
    column = bytes(column)
    first = column[:1]
    size = len(column)
    return size if column == first * size else size - len(column.lstrip(first))  # to compare is seven times as fast


def _walk(data: bytes | memoryview, following: bytes | memoryview, at: int, count: int) -> int:
    """The loop: lengths of one byte and of two (records below 8 KiB) by a table, longer ones by a call.

    `following` is the data without its first byte: to make the position of the second byte takes as long as to read it.
    """
    steps = _STEPS
    start = at
    try:
        for _ in repeat(None, count >> 2):
            at += steps[data[at]][following[at]]
            at += steps[data[at]][following[at]]
            at += steps[data[at]][following[at]]
            at += steps[data[at]][following[at]]
        for _ in repeat(None, count & 3):
            at += steps[data[at]][following[at]]
    except IndexError:
        pass
    else:
        if at < _FAR:
            return at
    at = start  # a length of three bytes or more, or a wrong one: once more, with care
    for _ in repeat(None, count):
        length, at = read_zigzag(data, at)
        if length < _RECORD_BYTES_MIN - 1:
            raise _invalid(f"a record of {length} bytes")
        at += length
    return at


def _check_every(data: bytes, count: int) -> int:
    at = 0
    keyless: list[int] = []
    for index in range(count):
        at = _check_record(data, at, index, keyless)
    if keyless:
        message = "a record without a key came to a compacted topic: every record needs one there"
        raise KafkaError(ErrorCode.INVALID_RECORD, message, keyless if len(keyless) <= NAMED_MAX else ())
    return at


def _check_record(data: bytes | memoryview, at: int, offset_delta: int, keyless: list[int] | None = None) -> int:
    """Reads the record at `at` in full; the position after it.  Most of its numbers are of one byte: read without a call.

    `keyless` takes down the records that have no key."""
    length, at = ((byte >> 1) ^ -(byte & 1), at + 1) if (byte := data[at]) < 0x80 else read_zigzag(data, at)
    end = at + length
    if length < _RECORD_BYTES_MIN - 1 or end > len(data):
        raise _invalid(f"a record of {length} bytes where {len(data) - at} are left")
    # the timestamp, after a byte of attributes that nobody uses
    at = at + 2 if data[at + 1] < 0x80 else read_zigzag(data, at + 1)[1]
    delta, at = ((byte >> 1) ^ -(byte & 1), at + 1) if (byte := data[at]) < 0x80 else read_zigzag(data, at)
    if delta != offset_delta:
        raise _invalid(f"a record has the offset delta {delta} where {offset_delta} is due")
    length, at = ((byte >> 1) ^ -(byte & 1), at + 1) if (byte := data[at]) < 0x80 else read_zigzag(data, at)
    if length >= 0:
        at += length
    elif keyless is not None:
        keyless.append(offset_delta)
    if at >= end:
        raise _invalid("the key of a record ends after it")
    length, at = ((byte >> 1) ^ -(byte & 1), at + 1) if (byte := data[at]) < 0x80 else read_zigzag(data, at)
    if length > 0:
        at += length
    if at >= end:
        raise _invalid("the value of a record ends after it")
    if data[at]:
        headers, at = read_zigzag(data, at)
        at = _check_headers(data, at, end, headers)
    else:
        at += 1
    if at != end:
        raise _invalid(f"a record ends at byte {at}, its length says {end}")
    return end


def _check_headers(data: bytes | memoryview, at: int, end: int, count: int) -> int:
    if count < 0 or count * 2 > end - at:
        raise _invalid(f"{count} record headers in {end - at} bytes")
    for _ in range(count):
        length, at = read_zigzag(data, at)
        if not 0 <= length <= end - at:
            raise _invalid(f"the name of a record header has {length} bytes where {end - at} are left")
        try:
            str(data[at : at + length], "utf-8")
        except UnicodeDecodeError:
            raise _invalid("the name of a record header is not UTF-8") from None
        length, at = read_zigzag(data, at + length)
        if length > 0:
            at += length
        if at > end:
            raise _invalid("the value of a record header ends after its record")
    return at


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)
