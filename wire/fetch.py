"""Fetch (1), versions 4 to 18, written by hand for both ends: for consumers and for followers.

A request (version 12 and later with compact lengths and tags):

    replica_id(to 14) max_wait_ms min_bytes max_bytes isolation_level session_id session_epoch(7+)
    [topic [partition current_leader_epoch(9+) fetch_offset last_fetched_epoch(12) log_start_offset(5+)
        max_bytes]]
    [forgotten topic [partition]](7+) rack_id(11+)

Version 12 carries what a follower needs: the leader epoch that the follower believes in (fencing), the epoch
of the last record it has, and in the answer the diverging epoch (tag 0) from which it must truncate
(docs/semantics.md E4), and the current leader (tag 1).  A follower's broker epoch (KIP-903) is sent as tag 1
in the form that version 15 has it, and the id of a topic, which tells it from an earlier one of its name, as
tag 16 of the topic: other readers of version 12 skip both.  Tag 16 of a partition's answer says to a follower
that the leader's log may have gaps, and in its content, which older leaders leave empty, how far the records
may have been cleaned.

From version 13 on a topic is named by its id (KIP-516): such topics stand in `topics_by_id`, older ones in
`topics`.  Version 15 has the replica's id in a tag, and answers of version 16 bring the addresses of the
leaders that they name (KIP-951).

An answer is a list of buffers in which the records are the caller's own: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from .endpoints import NodeEndpoint, parse_endpoints, write_endpoints
from .errors import ErrorCode
from .primitives import (
    INT32,
    INT64,
    READ_ERRORS,
    Data,
    EntryBudget,
    check_request_size,
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
    write_varint,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

VERSION_LOW, VERSION_HIGH = 4, 18
NAMES_TO = 12
"""The last version whose topics go by name: our own client's, and the one in which followers fetch."""
_FLEXIBLE_FROM = 12
_REPLICA_STATE_FROM = 15
_ENDPOINTS_FROM = 16
_TOPIC_ID_TAG = 16
_HOLES_TAG = 16

_REQUEST_HEAD = Struct(">iiiib")  # replica id, max wait, min bytes, max bytes, isolation level
_HEAD_WITHOUT_REPLICA = Struct(">iiib")
_SESSION = Struct(">ii")
_REPLICA_STATE = Struct(">iqb")  # replica id, broker epoch, no tags
_ANSWER_SESSION = Struct(">hi")  # error, session id
_ABORTED = Struct(">qq")
_LEADER = Struct(">iib")
_DIVERGING = Struct(">iqb")

_REQUEST_PARTITION = {  # version from which on -> fields, see _read_request_partition
    4: Struct(">iqi"),
    5: Struct(">iqqi"),
    9: Struct(">iiqqi"),
    12: Struct(">iiqiqib"),
}
_RESPONSE_PARTITION = {4: Struct(">ihqq"), 5: Struct(">ihqqq")}


class AbortedTransaction(NamedTuple):
    """A transaction that a read_committed reader drops, from its first offset in this partition to its
    marker."""

    producer_id: int
    first_offset: int


@dataclass(slots=True)
class FetchPartition:
    """The fetch of one partition.  -1 stands for unknown: no fencing, no look at the epoch history.

    `topic_id` is given by followers: the same for all partitions of a topic in one request.
    """

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    topic_id: UUID | None = None


@dataclass(slots=True)
class FetchRequest:
    """One fetch.  `replica_id` is -1 for consumers; `replica_epoch` is the follower's broker epoch, -1 when
    unknown.

    Up to version 12 `topics` and `forgotten_topics` are used, later `topics_by_id` and `forgotten_by_id`, in
    which the partitions know their topic's id, too.
    """

    replica_id: int = -1
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = 0x7FFFFFFF
    isolation_level: int = 0
    session_id: int = 0
    session_epoch: int = -1
    topics: list[tuple[str, list[FetchPartition]]] = field(default_factory=list)
    rack_id: str = ""
    forgotten_topics: list[tuple[str, list[int]]] = field(default_factory=list)
    cluster_id: str | None = None
    replica_epoch: int = -1
    topics_by_id: list[tuple[UUID, list[FetchPartition]]] = field(default_factory=list)
    forgotten_by_id: list[tuple[UUID, list[int]]] = field(default_factory=list)


@dataclass(slots=True)
class FetchResponsePartition:
    """The answer for one partition.  `aborted` is None for a read_uncommitted reader.

    `diverging_epoch` is (epoch, end offset), `current_leader` is (leader, leader epoch).
    """

    partition: int
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    records: bytes | memoryview = b""
    preferred_read_replica: int = -1
    # for followers: the cleaner has removed offsets from this log, now or in the past
    may_have_offset_gaps: bool = False
    # with gaps: no record from here on has let a cleaner take away one that the follower lacks; -1: not said
    cleaned_at_most: int = -1


@dataclass(slots=True)
class FetchResponse:
    """The whole answer: `topics` up to version 12, later `topics_by_id`."""

    error: ErrorCode = ErrorCode.NONE
    session_id: int = 0
    topics: list[tuple[str, list[FetchResponsePartition]]] = field(default_factory=list)
    throttle_ms: int = 0
    topics_by_id: list[tuple[UUID, list[FetchResponsePartition]]] = field(default_factory=list)
    node_endpoints: Sequence[NodeEndpoint] = ()


class _Aborted(Protocol):
    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...


class FetchAnswerPartition(Protocol):
    """What `encode_fetch_response` needs to know of a partition: `FetchResponsePartition`, or the broker's
    own kind."""

    @property
    def partition(self) -> int: ...
    @property
    def error(self) -> ErrorCode: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def aborted(self) -> Sequence[_Aborted] | None: ...
    @property
    def diverging_epoch(self) -> tuple[int, int] | None: ...
    @property
    def current_leader(self) -> tuple[int, int] | None: ...
    @property
    def records(self) -> bytes | memoryview: ...


def _check_version(version: int) -> bool:
    """Whether the version is flexible."""
    if not VERSION_LOW <= version <= VERSION_HIGH:
        raise invalid(f"Fetch version {version} is not served: {VERSION_LOW} to {VERSION_HIGH} are")
    return version >= _FLEXIBLE_FROM


def _partition_struct(version: int) -> Struct:
    return _REQUEST_PARTITION[max(first for first in _REQUEST_PARTITION if first <= version)]


# ---- requests ----------------------------------------------------------------------------------------------


def parse_fetch_request(version: int, frame: Data, position: int = 0) -> FetchRequest:
    """The request whose body starts at `position` and ends with `frame`; INVALID_REQUEST for anything
    else."""
    flexible = _check_version(version)
    check_request_size(len(frame))
    entries = EntryBudget()
    request = FetchRequest()
    try:
        if version >= _REPLICA_STATE_FROM:
            head = (-1, *_HEAD_WITHOUT_REPLICA.unpack_from(frame, position))
            position += _HEAD_WITHOUT_REPLICA.size
        else:
            head = _REQUEST_HEAD.unpack_from(frame, position)
            position += _REQUEST_HEAD.size
        (
            request.replica_id,
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
        ) = head
        if version >= 7:
            request.session_id, request.session_epoch = _SESSION.unpack_from(frame, position)
            position += 8
        count, position = read_count(frame, position, flexible)
        entries.take(count)
        for _ in range(count):
            if version > NAMES_TO:
                topic_id, position = read_uuid(frame, position)
                partitions, position = _parse_request_partitions(version, frame, position, entries)
                for partition in partitions:
                    partition.topic_id = topic_id
                request.topics_by_id.append((topic_id, partitions))
                position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
                continue
            topic, position = read_text(frame, position, flexible)
            partitions, position = _parse_request_partitions(version, frame, position, entries)
            request.topics.append((topic, partitions))
            if flexible:
                position = _parse_topic_tags(partitions, frame, position)
        if version >= 7:
            position = _parse_forgotten(version, frame, position, request, entries)
        if version >= 11:
            request.rack_id, position = read_text(frame, position, flexible)
        if flexible:
            position = _parse_request_tags(version, request, frame, position)
    except READ_ERRORS as error:
        raise unreadable("Fetch request", error) from None
    expect_end(frame, position, "Fetch request")
    return request


def _parse_request_partitions(
    version: int, frame: Data, position: int, entries: EntryBudget
) -> tuple[list[FetchPartition], int]:
    flexible = version >= _FLEXIBLE_FROM
    count, position = read_count(frame, position, flexible)
    entries.take(count)
    struct = _partition_struct(version)
    unpack, size = struct.unpack_from, struct.size
    partitions: list[FetchPartition] = []
    for _ in range(count):
        if flexible:
            partition, leader_epoch, offset, fetched_epoch, log_start, max_bytes, tags = unpack(
                frame, position
            )
            partitions.append(
                FetchPartition(partition, offset, max_bytes, leader_epoch, fetched_epoch, log_start)
            )
            position = position + size if tags == 0 else skip_tags(frame, position + size - 1)
            continue
        if version >= 9:
            partition, leader_epoch, offset, log_start, max_bytes = unpack(frame, position)
            partitions.append(FetchPartition(partition, offset, max_bytes, leader_epoch, -1, log_start))
        elif version >= 5:
            partition, offset, log_start, max_bytes = unpack(frame, position)
            partitions.append(FetchPartition(partition, offset, max_bytes, -1, -1, log_start))
        else:
            partition, offset, max_bytes = unpack(frame, position)
            partitions.append(FetchPartition(partition, offset, max_bytes))
        position += size
    return partitions, position


def _parse_forgotten(
    version: int, frame: Data, position: int, request: FetchRequest, entries: EntryBudget
) -> int:
    flexible = version >= _FLEXIBLE_FROM
    count, position = read_count(frame, position, flexible)
    entries.take(count)
    for _ in range(count):
        if by_id := version > NAMES_TO:
            topic_id, position = read_uuid(frame, position)
        else:
            topic, position = read_text(frame, position, flexible)
        partition_count, position = read_count(frame, position, flexible)
        entries.take(partition_count)
        partitions = list(Struct(f">{partition_count}i").unpack_from(frame, position))
        position += 4 * partition_count
        if by_id:
            request.forgotten_by_id.append((topic_id, partitions))
        else:
            request.forgotten_topics.append((topic, partitions))
        if flexible:
            position = skip_tags(frame, position)
    return position


def _parse_topic_tags(partitions: list[FetchPartition], frame: Data, position: int) -> int:
    if frame[position] == 0:
        return position + 1
    for tag, start, end in read_tags(frame, position):
        if tag == _TOPIC_ID_TAG and end - start == 16:
            topic_id = UUID(bytes=bytes(frame[start:end]))
            for partition in partitions:
                partition.topic_id = topic_id
        position = end
    return position


def _parse_request_tags(version: int, request: FetchRequest, frame: Data, position: int) -> int:
    for tag, start, end in read_tags(frame, position):
        if tag == 0:
            request.cluster_id, read_to = read_nullable_text(frame, start, True)
            if read_to != end:
                raise invalid("the cluster id does not fill its tag")
        elif tag == 1 and end - start >= _REPLICA_STATE.size:
            replica_id, request.replica_epoch, _ = _REPLICA_STATE.unpack_from(frame, start)
            if version >= _REPLICA_STATE_FROM:
                request.replica_id = replica_id
        position = end
    return position


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    """The body of a request; fields that the version does not have are left out."""
    flexible = _check_version(version)
    head = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= _REPLICA_STATE_FROM:
        out = bytearray(_HEAD_WITHOUT_REPLICA.pack(*head))
    else:
        out = bytearray(_REQUEST_HEAD.pack(request.replica_id, *head))
    if version >= 7:
        out += _SESSION.pack(request.session_id, request.session_epoch)
    topics: Sequence[tuple[str | UUID, list[FetchPartition]]] = (
        request.topics_by_id if version > NAMES_TO else request.topics
    )
    write_length(out, len(topics), flexible)
    pack = _partition_struct(version).pack
    for topic, partitions in topics:
        write_topic(out, topic, flexible)
        write_length(out, len(partitions), flexible)
        for p in partitions:
            if flexible:
                out += pack(
                    p.partition,
                    p.current_leader_epoch,
                    p.fetch_offset,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                    p.max_bytes,
                    0,
                )
            elif version >= 9:
                out += pack(
                    p.partition, p.current_leader_epoch, p.fetch_offset, p.log_start_offset, p.max_bytes
                )
            elif version >= 5:
                out += pack(p.partition, p.fetch_offset, p.log_start_offset, p.max_bytes)
            else:
                out += pack(p.partition, p.fetch_offset, p.max_bytes)
        if flexible:
            topic_id = partitions[0].topic_id if partitions and version <= NAMES_TO else None
            _write_tags(out, [] if topic_id is None else [(_TOPIC_ID_TAG, topic_id.bytes)])
    if version >= 7:
        _write_forgotten(
            out, request.forgotten_by_id if version > NAMES_TO else request.forgotten_topics, flexible
        )
    if version >= 11:
        write_text(out, request.rack_id, flexible)
    if flexible:
        _write_request_tags(version, out, request)
    return bytes(out)


def _write_forgotten(
    out: bytearray, forgotten: Sequence[tuple[str | UUID, list[int]]], flexible: bool
) -> None:
    write_length(out, len(forgotten), flexible)
    for topic, partitions in forgotten:
        write_topic(out, topic, flexible)
        write_length(out, len(partitions), flexible)
        out += Struct(f">{len(partitions)}i").pack(*partitions)
        if flexible:
            out.append(0)


def _write_request_tags(version: int, out: bytearray, request: FetchRequest) -> None:
    tags: list[tuple[int, bytes | bytearray]] = []
    if request.cluster_id is not None:
        body = bytearray()
        write_text(body, request.cluster_id, True)
        tags.append((0, body))
    if request.replica_epoch >= 0 or (version >= _REPLICA_STATE_FROM and request.replica_id != -1):
        tags.append((1, _REPLICA_STATE.pack(request.replica_id, request.replica_epoch, 0)))
    _write_tags(out, tags)


def _write_tags(out: bytearray, tags: Sequence[tuple[int, bytes | bytearray]]) -> None:
    write_varint(out, len(tags))
    for tag, content in tags:
        write_varint(out, tag)
        write_varint(out, len(content))
        out += content


# ---- answers -----------------------------------------------------------------------------------------------


def encode_fetch_response(
    version: int,
    topics: Sequence[tuple[str | UUID, Sequence[FetchAnswerPartition]]],
    *,
    error: ErrorCode = ErrorCode.NONE,
    session_id: int = 0,
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[ReadableBuffer]:
    """The body as buffers to be sent in this order; the records among them are the caller's own and must not
    change.  Topics are given by name up to version 12, and by id later."""
    flexible = _check_version(version)
    buffers: list[ReadableBuffer] = []
    out = bytearray(INT32.pack(throttle_ms))
    if version >= 7:
        out += _ANSWER_SESSION.pack(error, session_id)
    write_length(out, len(topics), flexible)
    for topic, partitions in topics:
        write_topic(out, topic, flexible)
        write_length(out, len(partitions), flexible)
        for part in partitions:
            _write_answer_head(version, out, part, flexible)
            records = part.records
            write_length(out, len(records), flexible)
            if records:
                buffers += (out, records)
                out = bytearray()
            if flexible:
                _write_answer_tags(out, part)
        if flexible:
            out.append(0)
    if flexible:
        write_endpoints(out, node_endpoints if version >= _ENDPOINTS_FROM else ())
    if out:
        buffers.append(out)
    return buffers


def _write_answer_head(version: int, out: bytearray, part: FetchAnswerPartition, flexible: bool) -> None:
    if version >= 5:
        out += _RESPONSE_PARTITION[5].pack(
            part.partition, part.error, part.high_watermark, part.last_stable_offset, part.log_start_offset
        )
    else:
        out += _RESPONSE_PARTITION[4].pack(
            part.partition, part.error, part.high_watermark, part.last_stable_offset
        )
    aborted = part.aborted
    if aborted is None:
        write_length(out, -1, flexible)
    else:
        write_length(out, len(aborted), flexible)
        for transaction in aborted:
            out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += INT32.pack(getattr(part, "preferred_read_replica", -1))


def _write_answer_tags(out: bytearray, part: FetchAnswerPartition) -> None:
    diverging, leader = part.diverging_epoch, part.current_leader
    gaps = getattr(part, "may_have_offset_gaps", False)
    if diverging is None and leader is None and not gaps:
        out.append(0)
        return
    tags: list[tuple[int, bytes]] = []
    if diverging is not None and diverging != (-1, -1):
        tags.append((0, _DIVERGING.pack(*diverging, 0)))
    if leader is not None and leader != (-1, -1):
        tags.append((1, _LEADER.pack(*leader, 0)))
    if gaps:
        cleaned_at_most = getattr(part, "cleaned_at_most", -1)
        tags.append((_HOLES_TAG, b"" if cleaned_at_most < 0 else INT64.pack(cleaned_at_most)))
    _write_tags(out, tags)


def parse_fetch_response(version: int, frame: memoryview, position: int = 0) -> FetchResponse:
    """The answer whose body starts at `position` and ends with `frame`; records are views into it."""
    flexible = _check_version(version)
    response = FetchResponse()
    try:
        response.throttle_ms = INT32.unpack_from(frame, position)[0]
        position += 4
        if version >= 7:
            error, response.session_id = _ANSWER_SESSION.unpack_from(frame, position)
            response.error = ErrorCode.from_wire(error)
            position += _ANSWER_SESSION.size
        count, position = read_count(frame, position, flexible)
        for _ in range(count):
            partitions: list[FetchResponsePartition] = []
            if version > NAMES_TO:
                topic_id, position = read_uuid(frame, position)
                response.topics_by_id.append((topic_id, partitions))
            else:
                topic, position = read_text(frame, position, flexible)
                response.topics.append((topic, partitions))
            partition_count, position = read_count(frame, position, flexible)
            for _ in range(partition_count):
                part, position = _parse_answer_partition(version, frame, position, flexible)
                partitions.append(part)
            if flexible:
                position = skip_tags(frame, position)
        if flexible:
            for tag, start, end in read_tags(frame, position):
                if tag == 0 and version >= _ENDPOINTS_FROM:
                    response.node_endpoints = parse_endpoints(frame, start, end)
                position = end
    except READ_ERRORS as error:
        raise unreadable("Fetch response", error) from None
    expect_end(frame, position, "Fetch response")
    return response


def _parse_answer_partition(
    version: int, frame: memoryview, position: int, flexible: bool
) -> tuple[FetchResponsePartition, int]:
    if version >= 5:
        partition, error, high_watermark, stable, log_start = _RESPONSE_PARTITION[5].unpack_from(
            frame, position
        )
        position += _RESPONSE_PARTITION[5].size
    else:
        partition, error, high_watermark, stable = _RESPONSE_PARTITION[4].unpack_from(frame, position)
        log_start = -1
        position += _RESPONSE_PARTITION[4].size
    part = FetchResponsePartition(partition, ErrorCode.from_wire(error), high_watermark, stable, log_start)
    count, position = read_length(frame, position, flexible)
    if count >= 0:
        aborted: list[AbortedTransaction] = []
        for _ in range(count):
            aborted.append(AbortedTransaction._make(_ABORTED.unpack_from(frame, position)))
            position += 16
            if flexible:
                position = skip_tags(frame, position)
        part.aborted = aborted
    if version >= 11:
        part.preferred_read_replica = INT32.unpack_from(frame, position)[0]
        position += 4
    length, position = read_length(frame, position, flexible)
    end = position + max(0, length)
    part.records = frame[position:end]
    position = end
    if flexible:
        for tag, start, end in read_tags(frame, position):
            if tag == 0:
                epoch, end_offset, _ = _DIVERGING.unpack_from(frame, start)
                part.diverging_epoch = (epoch, end_offset)
            elif tag == 1:
                leader, leader_epoch, _ = _LEADER.unpack_from(frame, start)
                part.current_leader = (leader, leader_epoch)
            elif tag == _HOLES_TAG:
                part.may_have_offset_gaps = True
                if end - start >= INT64.size:
                    (part.cleaned_at_most,) = INT64.unpack_from(frame, start)
            position = end
    return part, position
