"""What a leader checks of batches before they concern any producer, and how it stamps them.  Pure.

Cost is per batch: a header, a checksum, a few comparisons; and, for batches of clients, a walk over the
records' lengths (`record_check`), because a batch that cannot be read would stop every consumer for good.  In
a compacted topic every record is checked for a key: the cleaner could never remove a record without one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...wire.errors import ErrorCode, KafkaError
from ...wire.recompression import recompressed
from ...wire.record_check import NAMED_MAX, check_records, unfolded_bytes_max
from ...wire.records import (
    DELETE_HORIZON,
    HEADER_BYTES,
    BatchHeader,
    assign_in_place,
    decode_batch,
    iterate_headers,
    parse_header,
    set_log_append_time,
    validate_batch,
)
from ..producers.producer_state import AppendOrigin
from ..topic_config import LogConfig, TimestampType

NO_APPEND_TIME = -1
"""The records keep their producer's timestamps."""
CLIENT_BATCHES_MAX = 16
"""Bound on the batches in one append of a client; Kafka takes one."""
CHEAP_RECORDS = 10_000
CHEAP_RECORDS_LOOKED_INTO = 1_000
CHEAP_COMPRESSED_BYTES = 64 * 1024
CHEAP_UNFOLDED_BYTES = 128 * 1024
"""Bounds on a batch that is checked on the loop; a thread costs 0.1 ms and competes with the loop for the
interpreter's lock."""
_CLIENT = AppendOrigin.CLIENT  # a look-up through the enumeration costs as much as unpacking a header
_LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME
_COMPRESSION_MASK = 0x07
_COPY_WHOLE_BYTES = 16 * 1024
"""Up to this size a read-only batch is copied to be stamped; above it, only its header, and both parts are
written together."""


@dataclass(frozen=True, slots=True)
class CheckedBatches:
    """Batches that passed `check_batches`: the bytes to append, the settings they were checked by, and
    (position, header) of each.

    An append takes them without another check while the log's settings are still these.
    """

    view: memoryview
    config: LogConfig
    batches: list[tuple[int, BatchHeader]]


def is_cheap(header: BatchHeader) -> bool:
    """Whether `check_batches` of a batch with this header is fast enough for the loop (about 1 ms), whatever
    its records and the topic's settings are."""
    return not header.attributes & _COMPRESSION_MASK and header.record_count <= CHEAP_RECORDS_LOOKED_INTO


def check_at_once(view: memoryview, config: LogConfig, now_ms: int) -> CheckedBatches | None:
    """`check_batches` for a client's batch when the loop can spare the time; None when a thread should check
    it."""
    header = parse_header(view)
    if header.record_count > (CHEAP_RECORDS_LOOKED_INTO if config.is_compacted else CHEAP_RECORDS):
        return None
    if header.attributes & _COMPRESSION_MASK and len(view) > CHEAP_COMPRESSED_BYTES:
        return None
    try:
        return check_batches(view, _CLIENT, config, now_ms, CHEAP_UNFOLDED_BYTES)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:  # the bound of the loop may be the cause
            return None
        raise


def check_batches(
    view: memoryview, origin: AppendOrigin, config: LogConfig, now_ms: int, unfolded_max: int | None = None
) -> CheckedBatches:
    """Checks every batch of an append; all of `view` must be whole, valid batches.  May be called in any
    thread.

    `unfolded_max` bounds what each may unfold to more tightly than is done anyway
    (`record_check.unfolded_bytes_max`).  Raises CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE.
    """
    from_client = origin is _CLIENT
    checked: list[tuple[int, BatchHeader]] = []
    position, size = 0, len(view)
    while True:
        header = validate_batch(view, position, config.max_message_bytes, from_client=from_client)
        if from_client:
            most = 0
            if header.attributes & _COMPRESSION_MASK:
                most = unfolded_bytes_max(header.batch_length, config.max_message_bytes)
                most = most if unfolded_max is None else min(most, unfolded_max)
            _check_timestamp(view, position, header, config, now_ms, most)
            if len(checked) == CLIENT_BATCHES_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"more than {CLIENT_BATCHES_MAX} batches for one partition at once",
                )
            if config.is_compacted:
                _check_horizon(header)
                check_records(view, position, header, most, every_record=True)
            elif config.record_check:
                check_records(view, position, header, most)
        checked.append((position, header))
        position += header.batch_length + 12
        if position >= size:
            return CheckedBatches(view, config, checked)


def is_to_be_recompressed(header: BatchHeader, config: LogConfig) -> bool:
    """Whether the topic stores its batches in another codec than this one's.  (A batch in the topic's codec
    stays as it is, at any level, as in Kafka.)"""
    return config.target_codec is not None and header.attributes & _COMPRESSION_MASK != config.target_codec


def check_and_recompress(view: memoryview, config: LogConfig, now_ms: int) -> CheckedBatches:
    """`check_batches` of a client's batches, then the batches in the topic's codec.  May be called in any
    thread.  Raises what that raises, and MESSAGE_TOO_LARGE for a batch that is too large only in the topic's
    codec."""
    checked = check_batches(view, _CLIENT, config, now_ms)
    codec = config.target_codec
    if codec is None or not any(
        is_to_be_recompressed(header, config) for _position, header in checked.batches
    ):
        return checked
    parts: list[memoryview | bytearray] = []
    for position, header in checked.batches:
        part: memoryview | bytearray = view[position : position + header.size_bytes]
        if is_to_be_recompressed(header, config):
            most = unfolded_bytes_max(header.batch_length, config.max_message_bytes)
            part = recompressed(view, position, header, codec, config.compression_level, most)
        if len(part) > config.max_message_bytes:
            limit = f"max.message.bytes is {config.max_message_bytes}"
            message = f"as {config.compression_type} the batch has {len(part)} bytes, {limit}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message)
        parts.append(part)
    new = memoryview(bytearray().join(parts))
    return CheckedBatches(new, config, list(iterate_headers(new)))


def _check_horizon(header: BatchHeader) -> None:
    if header.attributes & DELETE_HORIZON:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "a producer may not set the delete horizon of its batch: cleaners do"
        )


def _check_timestamp(
    view: memoryview, position: int, header: BatchHeader, config: LogConfig, now_ms: int, unfolded_max: int
) -> None:
    if header.is_log_append_time:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a producer may not mark its batch as stamped by the broker"
        )
    if config.timestamp_type is _LOG_APPEND_TIME or header.max_timestamp < 0:
        return
    ahead, behind = header.max_timestamp - now_ms, now_ms - header.base_timestamp
    if ahead > config.timestamp_after_max_ms or behind > config.timestamp_before_max_ms:
        earliest_ms, latest_ms = (
            now_ms - config.timestamp_before_max_ms,
            now_ms + config.timestamp_after_max_ms,
        )
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamps {header.base_timestamp} to {header.max_timestamp} are too far from the "
            f"broker's {now_ms}; allowed are "
            f"{config.timestamp_before_max_ms} ms before and {config.timestamp_after_max_ms} ms after it "
            "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
            _misdated(view, position, header, earliest_ms, latest_ms, unfolded_max),
        )


def _misdated(
    view: memoryview, position: int, header: BatchHeader, earliest_ms: int, latest_ms: int, unfolded_max: int
) -> list[int]:
    """The indexes of the records with a wrong timestamp (KIP-467); none when they are too many to list or
    cannot be read."""
    if header.record_count > NAMED_MAX:
        return []
    try:
        records = decode_batch(view, position, max_bytes=unfolded_max)
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise  # the bound of the loop may be the cause
        return []
    return [
        index for index, record in enumerate(records) if not earliest_ms <= record.timestamp_ms <= latest_ms
    ]


def stamp_batches(
    view: memoryview,
    checked: list[tuple[int, BatchHeader]],
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int,
) -> list[memoryview | bytearray]:
    """The buffers to write: `view` itself, stamped in place, or as little of a copy as a read-only buffer
    allows.

    With `append_time_ms` (not NO_APPEND_TIME), records take that time, which changes the checksum as well.
    """
    if view.readonly:
        if len(checked) == 1 and len(view) > _COPY_WHOLE_BYTES and append_time_ms == NO_APPEND_TIME:
            head = bytearray(view[:HEADER_BYTES])
            assign_in_place(head, 0, base_offset, leader_epoch)
            return [head, view[HEADER_BYTES:]]
        view = memoryview(bytearray(view))
    offset = base_offset
    for position, header in checked:
        assign_in_place(view, position, offset, leader_epoch)
        if append_time_ms != NO_APPEND_TIME:
            set_log_append_time(view, position, append_time_ms)
        offset += header.last_offset_delta + 1
    return [view]
