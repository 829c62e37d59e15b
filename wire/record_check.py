"""Whether the records of a batch can be read at all. The leader checks it before it appends the batch,
because an appended batch stays in the log.

A batch with a right CRC may still hold invalid records, when the client that made it is defective or hostile.
Every consumer would stop at its offset for ever. So the leader decompresses a client's batch (bounded:
`unfolded_bytes_max`) and checks:

* the length of every record: there are as many records as the header says, and the last one ends where the
  batch ends;
* the offset delta of every record: it is one more than that of the record before, as Kafka requires of
  compressed batches.  With two records at one offset, or none, a consumer's committed position would be
  wrong;
* the first and the last record in full: attributes, timestamp, offset delta (0 and `last_offset_delta`), key,
  value, headers, each within its record.  With `every_record` the leader checks every record in full, and
  that it has a key: compacted topics need this, because their cleaner reads every record.

Invalid records are INVALID_RECORD, which a client does not retry; CORRUPT_MESSAGE is for damage that the
network may have done.  Only appends of clients are checked: followers and recovery rely on the leader's
check, and the coordinator makes the markers.

Cost.  Python takes 45 to 60 ns to follow one length, which is a third of what a produced record of 100 bytes
costs a node. Records of one size have the same first one or two bytes: a strided slice follows a run of them
at C's speed. Of records of different sizes, some hundred offset deltas are fetched and compared at once.
Measured in us a batch, values of eight letters (`validate_batch`, mostly the CRC, takes 1 us for one
record, 1.8 for 16 KiB, 41 for 1 MiB), on a machine with other work:

    codec                            none   snappy   lz4   gzip   zstd
    1 record of 100 B                 1.0      3       5      6     14
    150 of one size, 16 KiB           8       22      19     43     34
    150 of 40 to 160 B, 16 KiB       30       41      40     61     60
    10,000 of one size, 1 MiB       140
    10,000 of 40 to 160 B, 1 MiB  1,650
    1,000 of 600 to 1,400 B, 1 MiB  230

`record.check=false` on a topic spares that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import itemgetter
from typing import Final

from .compression import DECOMPRESSED_BYTES_MAX, Scratch, decompress
from .errors import ErrorCode, KafkaError
from .primitives import read_zigzag
from .records import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader

UNFOLDED_BYTES_MAX: Final = 64 << 20
"""Of the records of one batch.  Half of the reader's own bound."""
UNFOLDED_FREE_BYTES: Final = 16 << 20
"""So far a batch may unfold however small it is: a record of a megabyte of zeros takes 124 bytes in zstd."""
UNFOLDED_TIMES_MAX: Final = 1100
"""Beyond that, so many times its size.  Snappy, lz4 and gzip cannot do more (21, 255, 1032); zstd can, up to
32,768, but records of 1 KB, all zeros, come to 430.  Those of 10 KB come to 2,250: refused above 16 MiB;
Java's producer then splits."""
RECORDS_MAX: Final = 1_000_000
"""In one batch of a client; librdkafka's and Java's largest settings stay below."""
NAMED_MAX: Final = 10_000
"""Records at fault that a refusal names; of more it names none, and the whole batch is at fault."""

_SCRATCH: Final = Scratch()
_RECORD_BYTES_MIN = 7
_RUN_MIN = 16  # shorter runs cost more to find than to walk
_WALK = 64  # records that are read one by one before anything faster is tried again
_GATHERED = 1024  # records whose lengths are followed before all of them are looked at
_WINDOW = 96 * 1024
_COPIED_BYTES_MAX = 1 << 20  # more would hold the interpreter's lock for long
# bytes a record from which on it costs more to copy them than to look at a few of them through a view
_SPARSE = 4096
_FAR = 1 << 40  # added to a position: the next byte is not there
_NOWHERE: Final = (_FAR,) * 128


def _steps(first: int) -> tuple[int, ...]:
    """How far the next record lies behind one that begins with this byte, by its second byte; _FAR where that
    is no length.

    Without an entry: the second byte belongs to a length of three bytes (or holds attributes, and no
    attribute is defined)."""
    if first & 1:
        return _NOWHERE
    if first < 0x80:
        return _NOWHERE if first >> 1 < _RECORD_BYTES_MIN - 1 else ((first >> 1) + 1,) * 128
    return (_FAR, *(((first & 0x7F) >> 1) + (second << 6) + 2 for second in range(1, 128)))


_STEPS: Final = tuple(map(_steps, range(256)))
_LOW: Final = bytes(range(0x80))
_HIGH: Final = bytes(range(0x80, 0x100))
# Offset deltas as zigzag varints: of one byte below 64, of two below 8192, of three below 2^20, which is more
# than RECORDS_MAX.
_DELTA_BOUNDS: Final = (64, 8192, 1 << 20)
_DELTA_FIRST: Final = bytes(2 * delta for delta in range(64))
_DELTA_LOW: Final = bytes(2 * delta & 0x7F | 0x80 for delta in range(64))
_DELTA_MIDDLE: Final = bytes(delta >> 6 for delta in range(8192))
_DELTA_MIDDLE_MORE: Final = bytes(delta >> 6 & 0x7F | 0x80 for delta in range(8192))


def unfolded_bytes_max(batch_bytes: int, max_message_bytes: int) -> int:
    """The bound on the decompressed size of a client's batch of this size in a topic with this
    `max.message.bytes`."""
    most = min(DECOMPRESSED_BYTES_MAX, max(UNFOLDED_BYTES_MAX, max_message_bytes))
    return min(most, max(UNFOLDED_FREE_BYTES, 4 * max_message_bytes, UNFOLDED_TIMES_MAX * batch_bytes))


def check_records(
    view: memoryview,
    position: int,
    header: BatchHeader,
    unfolded_max: int = UNFOLDED_BYTES_MAX,
    *,
    every_record: bool = False,
) -> None:
    """Checks the batch at `position`, whose header and CRC were found right.  Raises INVALID_RECORD,
    MESSAGE_TOO_LARGE."""
    count = header.record_count
    if count > RECORDS_MAX:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {count} records and at most {RECORDS_MAX} are taken"
        )
    payload = view[position + HEADER_BYTES : position + LOG_OVERHEAD_BYTES + header.batch_length]
    if header.attributes & 0x07:
        try:
            payload = decompress(header.compression, payload, unfolded_max, _SCRATCH)
        except KafkaError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                raise _invalid(error.message) from error
            raise
    try:
        if every_record:
            end = _check_every(bytes(payload) if len(payload) <= _COPIED_BYTES_MAX else payload, count)
        else:
            end = _check_record(payload, 0, 0)
            if count > 1:
                end = _check_record(payload, _follow(payload, end, 1, count - 2), header.last_offset_delta)
    except IndexError:
        raise _invalid(f"the batch claims {count} records and ends within one of them") from None
    except ValueError as error:
        raise _invalid(str(error)) from None
    if end != len(payload):
        raise _invalid(f"{len(payload) - end} bytes follow the last of {count} records")


def _follow(payload: memoryview, at: int, delta: int, count: int) -> int:
    """The position after `count` records that begin at `at`, whose offset deltas are `delta` and what follows
    it.

    Raises IndexError when they do not end in the payload.  Looks at one window after the other: a copy of it
    all would hold the interpreter's lock for long, and to read single bytes of a view takes twice the time,
    strided slices nine times.
    """
    size = len(payload)
    while count:
        followed = 0
        if size - at < _SPARSE * count:
            window = bytes(payload[at : at + _WINDOW])
            followed, position = _follow_window(window, delta, count)
            at += position
        if not followed:  # records too large for a window to pay, or a record larger than the window
            followed, at = _walk(payload, at, delta, min(count, _WALK))
            if not followed:
                raise IndexError
        delta, count = delta + followed, count - followed
    return at


def _follow_window(data: bytes, delta: int, count: int) -> tuple[int, int]:
    """How many of `count` records from the beginning on are wholly in the data, and the position after
    them."""
    at = followed = 0
    following = data[1:]
    while followed < count:
        wanted = min(
            count - followed,
            next(bound for bound in _DELTA_BOUNDS if bound > delta + followed) - delta - followed,
        )
        done = 0
        if wanted >= _RUN_MIN:
            done, at = _follow_run(data, at, delta + followed, wanted)
        if not done:
            done, at = _follow_gathered(data, following, at, delta + followed, min(wanted, _GATHERED))
        if not done:
            done, at = _walk(data, at, delta + followed, min(wanted, _WALK))
            if not done:
                break
        followed += done
    return followed, at


def _follow_run(data: bytes, at: int, delta: int, count: int) -> tuple[int, int]:
    """How many records from `at` on have the size of the first (0 when that are few), and the position after
    them."""
    if at + 1 >= len(data):
        return 0, at
    first, second = data[at], data[at + 1]
    step = _STEPS[first][second] if second < 0x80 else _FAR
    there = at + step * (_RUN_MIN - 1)
    if there >= len(data) or data[there] != first:
        return 0, at
    run = min(_same(data[at : at + step * count : step]), (len(data) - at) // step)
    body = at + 1
    if first > 0x7F:
        run = min(run, _same(data[body : at + step * run : step]))
        body += 1
    if run < _RUN_MIN:
        return 0, at
    run = _check_deltas(lambda place, most: data[body + place : at + step * most : step], delta, run)
    return run, at + run * step


def _follow_gathered(data: bytes, following: bytes, at: int, delta: int, count: int) -> tuple[int, int]:
    """The same for records below 8 KiB of any size: their lengths are followed one by one, the rest is looked
    at all at once.

    `following` is the data without its first byte: to make the position of the second byte takes as long as
    to read it.
    """
    steps = _STEPS
    starts = [at]
    note = starts.append
    try:
        for _ in repeat(None, count):
            at += steps[data[at]][following[at]]
            note(at)
    except IndexError:
        pass
    while starts[-1] > len(data):  # at most one record that is cut off, and one whose length is invalid
        starts.pop()
    after = starts.pop()
    if len(starts) < 2:
        return 0, starts[0] if starts else after
    heads = bytes(itemgetter(*starts)(data))
    if heads.isascii():
        bodies, lead = starts, 1
    elif not heads.translate(None, _HIGH):
        bodies, lead = starts, 2
    else:
        bodies, lead = (
            [start + 2 if head > 0x7F else start + 1 for start, head in zip(starts, heads, strict=True)],
            0,
        )
    gather = itemgetter(*bodies)

    def column(place: int, most: int) -> bytes:
        shifted = data[lead + place : after]
        return bytes(gather(shifted) if most == len(bodies) else [shifted[body] for body in bodies[:most]])

    done = _check_deltas(column, delta, len(starts))
    return done, starts[done] if done < len(starts) else after


def _check_deltas(column: Callable[[int, int], bytes], delta: int, count: int) -> int:
    """Checks the offset deltas of `count` records, which take the same number of bytes, as far as their
    timestamps do, too; how many that were.  `column(n, most)` is byte n behind the length of each, of the
    first `most`."""
    place = 1
    while True:
        timestamps = column(place, count)
        place += 1
        if timestamps.isascii():
            break
        if timestamps[0] < 0x80:
            count = len(timestamps) - len(timestamps.lstrip(_LOW))
            break
        if timestamps.translate(None, _HIGH):
            count = len(timestamps) - len(timestamps.lstrip(_HIGH))
        if place > 10:
            raise _invalid("the timestamp of a record has more than ten bytes")
    for number, due in enumerate(_encoded_deltas(delta, count)):
        found = column(place + number, count)
        if found != due:
            wrong = next(index for index in range(count) if found[index] != due[index])
            raise _invalid(f"a record has another offset delta than {delta + wrong}, which is due")
    return count


def _encoded_deltas(delta: int, count: int) -> list[bytes]:
    """First, second and third bytes of the zigzag varints of `count` deltas from `delta` on, which have the
    same size."""
    if delta < 64:
        return [_DELTA_FIRST[delta : delta + count]]
    first = (_DELTA_LOW * (count // 64 + 2))[delta % 64 :][:count]
    if delta < 8192:
        return [first, _DELTA_MIDDLE[delta : delta + count]]
    middle = (_DELTA_MIDDLE_MORE * (count // 8192 + 2))[delta % 8192 :][:count]
    last = b"".join(bytes((high,)) * 8192 for high in range(delta >> 13, (delta + count - 1 >> 13) + 1))
    return [first, middle, last[delta % 8192 :][:count]]


def _same(column: bytes) -> int:
    """How many bytes at the beginning are the same."""
    first = column[:1]
    size = len(column)
    # to compare is seven times as fast
    return size if column == first * size else size - len(column.lstrip(first))


def _walk(data: bytes | memoryview, at: int, delta: int, count: int) -> tuple[int, int]:
    """Up to `count` records of any kind, as far as they are wholly in the data: how many, and the position
    after them."""
    size, due = len(data), 2 * delta
    for done in range(count):
        try:
            if (byte := data[at]) < 0x80:
                length, body = (byte >> 1) ^ -(byte & 1), at + 1
            elif (more := data[at + 1]) < 0x80:
                length, body = ((byte & 0x7F | more << 7) >> 1) ^ -(byte & 1), at + 2
            else:
                length, body = read_zigzag(data, at)
        except IndexError:
            return done, at
        if length < _RECORD_BYTES_MIN - 1:
            raise _invalid(f"a record of {length} bytes")
        end = body + length
        if end > size:
            return done, at
        place = body + 2 if data[body + 1] < 0x80 else read_zigzag(data, body + 1)[1]
        found = data[place]
        if found > 0x7F:
            found = found & 0x7F | (more := data[place + 1]) << 7
            if more > 0x7F:
                found = found & 0x3FFF | data[place + 2] << 14
        if found != due:
            raise _invalid(f"a record has another offset delta than {delta + done}, which is due")
        at = end
        due += 2
    return count, at


def _check_every(data: bytes | memoryview, count: int) -> int:
    at = 0
    keyless: list[int] = []
    for index in range(count):
        at = _check_record(data, at, index, keyless)
    if keyless:
        message = "a record without a key came to a compacted topic: every record needs one there"
        raise KafkaError(ErrorCode.INVALID_RECORD, message, keyless if len(keyless) <= NAMED_MAX else ())
    return at


def _check_record(
    data: bytes | memoryview, at: int, offset_delta: int, keyless: list[int] | None = None
) -> int:
    """Reads the record at `at` in full; the position after it.  Most of its numbers are of one byte: read
    without a call.

    `keyless` takes down the records that have no key."""
    length, at = ((byte >> 1) ^ -(byte & 1), at + 1) if (byte := data[at]) < 0x80 else read_zigzag(data, at)
    end = at + length
    if length < _RECORD_BYTES_MIN - 1 or end > len(data):
        raise _invalid(f"a record of {length} bytes where {len(data) - at} are left")
    # the timestamp, after the unused byte of attributes
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
        # a name that is no UTF-8 is accepted, as at a Kafka: readers replace what they cannot decode
        length, at = read_zigzag(data, at + length)
        if length > 0:
            at += length
        if at > end:
            raise _invalid("the value of a record header ends after its record")
    return at


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)
