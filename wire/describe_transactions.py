"""The answer to DescribeTransactions (65), version 0, by hand: kio cannot read a start time of -1, which
means "none open"."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from . import codec
from .api import ApiKey
from .errors import ErrorCode
from .primitives import READ_ERRORS, expect_end, read_count, read_text, skip_tags, unreadable

_ERROR: Final = Struct(">h")
_NUMBERS: Final = Struct(">iqqh")  # timeout, start time, producer id, producer epoch
_INT32: Final = Struct(">i")


@dataclass(slots=True)
class DescribedTransaction:
    """One transactional id as its coordinator describes it; times in milliseconds, `started_ms` -1: nothing
    is open."""

    error_code: ErrorCode
    transactional_id: str
    state: str
    timeout_ms: int
    started_ms: int
    producer_id: int
    producer_epoch: int
    partitions: dict[str, list[int]] = field(default_factory=dict)


def decode_described_transactions(version: int, frame: bytes) -> list[DescribedTransaction]:
    """The states in the order of the request.  Raises KafkaError(INVALID_REQUEST) for anything malformed."""
    try:
        _, position = codec.parse_response_header(ApiKey.DESCRIBE_TRANSACTIONS, version, frame)
        position += 4  # throttle time
        count, position = read_count(frame, position, True)
        found: list[DescribedTransaction] = []
        for _ in range(count):
            described, position = _decode_one(frame, position)
            found.append(described)
        position = skip_tags(frame, position)
    except READ_ERRORS as error:
        raise unreadable("DescribeTransactions response", error) from error
    expect_end(frame, position, "DescribeTransactions response")
    return found


def _decode_one(frame: bytes, position: int) -> tuple[DescribedTransaction, int]:
    (code,) = _ERROR.unpack_from(frame, position)
    transactional_id, position = read_text(frame, position + _ERROR.size, True)
    state, position = read_text(frame, position, True)
    timeout_ms, started_ms, producer_id, producer_epoch = _NUMBERS.unpack_from(frame, position)
    position += _NUMBERS.size
    described = DescribedTransaction(
        ErrorCode.from_wire(code),
        transactional_id,
        state,
        timeout_ms,
        started_ms,
        producer_id,
        producer_epoch,
    )
    topics, position = read_count(frame, position, True)
    for _ in range(topics):
        topic, position = read_text(frame, position, True)
        partitions, position = read_count(frame, position, True)
        described.partitions[topic] = [
            _INT32.unpack_from(frame, position + 4 * index)[0] for index in range(partitions)
        ]
        position = skip_tags(frame, position + 4 * partitions)
    return described, skip_tags(frame, position)
