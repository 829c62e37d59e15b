"""Produce (0), versions 3 to 13, written by hand for both ends: records go through as views and are never
copied here.

A request (version 9 and later with compact lengths and tags):

    transactional_id acks timeout_ms [topic [partition records]]

An answer carries per partition an error, the base offset, the append time, the log start (5+), the records
that were refused (8+), and in version 10 and later the current leader as tag 0 (KIP-951), so that a client
need not ask for metadata first. Version 12 is version 11 with transactions v2: the leader enlists the
partition (KIP-890 part 2).  Version 13 names topics by their ids (KIP-516): where a topic stands as text in
older versions, it is a UUID then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING
from uuid import UUID

from .endpoints import NodeEndpoint, parse_endpoints, write_endpoints
from .errors import ErrorCode
from .primitives import (
    INT32,
    READ_ERRORS,
    Data,
    EntryBudget,
    expect_end,
    invalid,
    read_count,
    read_length,
    read_nullable_text,
    read_tags,
    read_text,
    read_uuid,
    skip_tags,
    unreadable,
    write_length,
    write_text,
    write_topic,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

VERSION_LOW, VERSION_HIGH = 3, 13
NAMES_TO = 12
"""The last version whose topics go by name."""
_FLEXIBLE_FROM = 9
_RECORD_ERRORS_FROM = 8
LEADER_FROM = 10

_ACKS_AND_TIMEOUT = Struct(">hi")
_ANSWER_HEAD = Struct(">ihqq")  # partition, error, base offset, append time
_INT64 = Struct(">q")
_LEADER = Struct(">iib")  # leader, leader epoch, no tags


@dataclass(slots=True)
class ProduceRequest:
    """One Produce request; `records` are views into the frame, one or more batches each, not decoded yet.

    Up to version 12 the topics are in `topics`, in version 13 in `topics_by_id`.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[tuple[int, memoryview]]]] = field(default_factory=list)
    topics_by_id: list[tuple[UUID, list[tuple[int, memoryview]]]] = field(default_factory=list)


@dataclass(slots=True)
class ProduceResponsePartition:
    """The answer for one partition.  `current_leader` is (leader, leader epoch); `record_errors` is (index in
    the batch, why)."""

    partition: int
    error: ErrorCode = ErrorCode.NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    current_leader: tuple[int, int] | None = None


@dataclass(slots=True)
class ProduceResponse:
    """The whole answer: `topics` up to version 12, later `topics_by_id`.  `node_endpoints`: of the leaders
    named in it (10+)."""

    topics: list[tuple[str, list[ProduceResponsePartition]]] = field(default_factory=list)
    throttle_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()
    topics_by_id: list[tuple[UUID, list[ProduceResponsePartition]]] = field(default_factory=list)


def _check_version(version: int) -> bool:
    """Whether the version is flexible."""
    if not VERSION_LOW <= version <= VERSION_HIGH:
        raise invalid(f"Produce version {version} is not served: {VERSION_LOW} to {VERSION_HIGH} are")
    return version >= _FLEXIBLE_FROM


def asks_no_answer(version: int, frame: memoryview, position: int = 0) -> bool:
    """Whether the request has acks=0; INVALID_REQUEST when it ends before that is said."""
    flexible = _check_version(version)
    try:
        position = read_nullable_text(frame, position, flexible)[1]
        return bool(_ACKS_AND_TIMEOUT.unpack_from(frame, position)[0] == 0)
    except READ_ERRORS as error:
        raise unreadable("Produce request", error) from None


def parse_produce_request(version: int, frame: memoryview, position: int = 0) -> ProduceRequest:
    """The request whose body starts at `position` and ends with `frame`; INVALID_REQUEST for anything else.

    Records that are null are given as an empty view: what that means is the log's to say.
    """
    flexible = _check_version(version)
    try:
        transactional_id, position = read_nullable_text(frame, position, flexible)
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
        topic_count, position = read_count(frame, position + 6, flexible)
        entries = EntryBudget()
        entries.take(topic_count)
        request = ProduceRequest(transactional_id, acks, timeout_ms)
        for _ in range(topic_count):
            partitions: list[tuple[int, memoryview]] = []
            if version > NAMES_TO:
                topic_id, position = read_uuid(frame, position)
                request.topics_by_id.append((topic_id, partitions))
            else:
                topic, position = read_text(frame, position, flexible)
                request.topics.append((topic, partitions))
            if flexible and 0 < (byte := frame[position]) < 0x80:  # one byte says it nearly always
                partition_count, position = byte - 1, position + 1
            else:
                partition_count, position = read_count(frame, position, flexible)
            entries.take(partition_count)
            for _ in range(partition_count):
                partition: int = INT32.unpack_from(frame, position)[0]
                length, position = read_length(frame, position + 4, flexible)
                end = position + max(0, length)
                partitions.append((partition, frame[position:end]))
                position = end
                if flexible:
                    position = end + 1 if frame[end] == 0 else skip_tags(frame, end)
            if flexible:
                position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
        if flexible:
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
    except READ_ERRORS as error:
        raise unreadable("Produce request", error) from None
    expect_end(frame, position, "Produce request")
    return request


def refuse_old_produce(version: int, frame: Data, position: int = 0) -> bytes | None:
    """The body that answers a Produce of version 0 to 2: UNSUPPORTED_VERSION for every partition; None when
    acks=0 wants none.

    These versions are advertised (see `api`) and carry message formats 0 and 1, which are not stored.
    """
    if not 0 <= version < VERSION_LOW:
        raise invalid(f"Produce version {version} is no old version")
    body = bytearray()
    try:
        acks, _ = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
        topic_count, position = read_count(frame, position + 6, False)
        entries = EntryBudget()
        entries.take(topic_count)
        write_length(body, topic_count, False)
        for _ in range(topic_count):
            topic, position = read_text(frame, position, False)
            partition_count, position = read_count(frame, position, False)
            entries.take(partition_count)
            write_text(body, topic, False)
            write_length(body, partition_count, False)
            for _ in range(partition_count):
                partition: int = INT32.unpack_from(frame, position)[0]
                length, position = read_length(frame, position + 4, False)
                position += max(0, length)
                head = _ANSWER_HEAD.pack(partition, ErrorCode.UNSUPPORTED_VERSION, -1, -1)
                body += head if version == 2 else head[:-8]  # the append time came with version 2
    except READ_ERRORS as error:
        raise unreadable("Produce request", error) from None
    expect_end(frame, position, "Produce request")
    if version >= 1:
        body += INT32.pack(0)
    return None if acks == 0 else bytes(body)


def encode_produce_request(
    version: int,
    topics: Sequence[tuple[str | UUID, Sequence[tuple[int, ReadableBuffer]]]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[ReadableBuffer]:
    """The body as buffers to be sent in this order; the records among them are the caller's own."""
    flexible = _check_version(version)
    buffers: list[ReadableBuffer] = []
    out = bytearray()
    write_text(out, transactional_id, flexible)
    out += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
    write_length(out, len(topics), flexible)
    for topic, partitions in topics:
        write_topic(out, topic, flexible)
        write_length(out, len(partitions), flexible)
        for partition, records in partitions:
            out += INT32.pack(partition)
            write_length(out, memoryview(records).nbytes, flexible)
            buffers += (out, records)
            out = bytearray(b"\x00") if flexible else bytearray()
        if flexible:
            out.append(0)
    if flexible:
        out.append(0)
    if out:
        buffers.append(out)
    return buffers


def encode_produce_response(version: int, response: ProduceResponse) -> bytes:
    """The body of an answer."""
    flexible = _check_version(version)
    out = bytearray()
    topics: Sequence[tuple[str | UUID, list[ProduceResponsePartition]]] = (
        response.topics_by_id if version > NAMES_TO else response.topics
    )
    write_length(out, len(topics), flexible)
    for topic, partitions in topics:
        write_topic(out, topic, flexible)
        write_length(out, len(partitions), flexible)
        for part in partitions:
            out += _ANSWER_HEAD.pack(part.partition, part.error, part.base_offset, part.log_append_time_ms)
            if version >= 5:
                out += _INT64.pack(part.log_start_offset)
            if version >= _RECORD_ERRORS_FROM:
                _write_record_errors(out, part, flexible)
            if flexible:
                _write_leader(out, part.current_leader if version >= LEADER_FROM else None)
        if flexible:
            out.append(0)
    out += INT32.pack(response.throttle_ms)
    if flexible:
        write_endpoints(out, response.node_endpoints if version >= LEADER_FROM else ())
    return bytes(out)


def _write_record_errors(out: bytearray, part: ProduceResponsePartition, flexible: bool) -> None:
    write_length(out, len(part.record_errors), flexible)
    for index, message in part.record_errors:
        out += INT32.pack(index)
        write_text(out, message, flexible)
        if flexible:
            out.append(0)
    write_text(out, part.error_message, flexible)


def _write_leader(out: bytearray, leader: tuple[int, int] | None) -> None:
    """The tags of a partition: the current leader, unless it is the default (-1, -1)."""
    if leader is None or leader == (-1, -1):
        out.append(0)
    else:
        out += b"\x01\x00\x09" + _LEADER.pack(*leader, 0)  # one tag: number 0, of 9 bytes


def parse_produce_response(version: int, frame: Data, position: int = 0) -> ProduceResponse:
    """The answer whose body starts at `position` and ends with `frame`; INVALID_REQUEST for anything else."""
    flexible = _check_version(version)
    try:
        topic_count, position = read_count(frame, position, flexible)
        response = ProduceResponse()
        for _ in range(topic_count):
            partitions: list[ProduceResponsePartition] = []
            if version > NAMES_TO:
                topic_id, position = read_uuid(frame, position)
                response.topics_by_id.append((topic_id, partitions))
            else:
                topic, position = read_text(frame, position, flexible)
                response.topics.append((topic, partitions))
            partition_count, position = read_count(frame, position, flexible)
            for _ in range(partition_count):
                part, position = _parse_partition(version, frame, position, flexible)
                partitions.append(part)
            if flexible:
                position = skip_tags(frame, position)
        response.throttle_ms = INT32.unpack_from(frame, position)[0]
        position += 4
        if flexible:
            for tag, start, end in read_tags(frame, position):
                if tag == 0:
                    response.node_endpoints = parse_endpoints(frame, start, end)
                position = end
    except READ_ERRORS as error:
        raise unreadable("Produce response", error) from None
    expect_end(frame, position, "Produce response")
    return response


def _parse_partition(
    version: int, frame: Data, position: int, flexible: bool
) -> tuple[ProduceResponsePartition, int]:
    partition, error, base_offset, append_time_ms = _ANSWER_HEAD.unpack_from(frame, position)
    position += _ANSWER_HEAD.size
    part = ProduceResponsePartition(partition, ErrorCode.from_wire(error), base_offset, append_time_ms)
    if version >= 5:
        part.log_start_offset = _INT64.unpack_from(frame, position)[0]
        position += 8
    if version >= _RECORD_ERRORS_FROM:
        count, position = read_count(frame, position, flexible)
        record_errors: list[tuple[int, str | None]] = []
        for _ in range(count):
            index: int = INT32.unpack_from(frame, position)[0]
            message, position = read_nullable_text(frame, position + 4, flexible)
            record_errors.append((index, message))
            if flexible:
                position = skip_tags(frame, position)
        part.record_errors = record_errors
        part.error_message, position = read_nullable_text(frame, position, flexible)
    if flexible:
        for tag, start, end in read_tags(frame, position):
            if tag == 0:
                leader, leader_epoch, _ = _LEADER.unpack_from(frame, start)
                part.current_leader = (leader, leader_epoch)
            position = end
    return part, position


__all__ = [
    "VERSION_HIGH", "VERSION_LOW", "ProduceRequest", "ProduceResponse", "ProduceResponsePartition",
    "encode_produce_request", "encode_produce_response", "parse_produce_request", "parse_produce_response",
    "refuse_old_produce",
]  # fmt: skip
