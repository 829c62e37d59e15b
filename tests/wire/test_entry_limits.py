"""No request gets more entries past its first reading than the loop can bear: counted, for every array of
every request."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from typing import Any

import pytest
from tidegate.wire import codec, fetch, primitives, produce
from tidegate.wire.api import TABLE, ApiKey
from tidegate.wire.errors import ErrorCode
from tidegate.wire.primitives import ENTRIES_MAX, REQUEST_BYTES_MAX, TAGS_MAX, RequestTooLarge
from tidegate.wire.schema import FieldShape, Shape, request_class, shape_of

Path = tuple[str, ...]
SIZES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "float64": 8, "bool": 1,
    "uuid": 16,
         "error_code": 2, "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8}  # fmt: skip


def array_paths(shape: Shape, before: Path = ()) -> Iterator[Path]:
    for field in shape.plain:
        if field.is_array:
            yield (*before, field.name)
        if field.entity is not None:
            yield from array_paths(field.entity, (*before, field.name))


def length(count: int, flexible: bool, small: bool = False) -> bytes:
    if not flexible:
        return pack(">h" if small else ">i", count)
    out = bytearray()
    primitives.write_varint(out, count + 1)
    return bytes(out)


def message(shape: Shape, path: Path, count: int) -> bytes:
    """The smallest message whose array at `path` has `count` elements, each enclosing array one, and all
    others none."""
    body = b"".join(_field(field, shape.flexible, path, count) for field in shape.plain)
    return body + (b"\x00" if shape.flexible else b"")


def _field(field: FieldShape, flexible: bool, path: Path, count: int) -> bytes:
    here = bool(path) and path[0] == field.name
    if not field.is_array:
        if field.entity is not None:
            return (b"\x01" if field.nullable else b"") + message(
                field.entity, path[1:] if here else (), count
            )
        return _item(field, flexible)
    if not here:
        return length(0, flexible)
    if len(path) == 1:
        item = _item(field, flexible) if field.entity is None else message(field.entity, (), 0)
        return length(count, flexible) + item * count
    assert field.entity is not None
    return length(1, flexible) + message(field.entity, path[1:], count)


def _item(field: FieldShape, flexible: bool) -> bytes:
    if field.kind in SIZES:
        return bytes(SIZES[field.kind])
    return length(0, flexible, small=field.kind == "string")


ARRAYS = [
    (key, version, path)
    for key, spec in TABLE.items()
    for version in (spec.low, spec.high)
    if key not in (ApiKey.PRODUCE, ApiKey.FETCH)
    for path in array_paths(shape_of(request_class(key, version)))
]


@pytest.mark.parametrize(
    ("key", "version", "path"), ARRAYS, ids=[f"{k.name}-{v}-{'.'.join(p)}" for k, v, p in ARRAYS]
)
def test_every_array_of_every_request_is_bounded(key: ApiKey, version: int, path: Path) -> None:
    shape = shape_of(request_class(key, version))
    allowed = min(ENTRIES_MAX, codec._ENTRIES_MAX.get(key, ENTRIES_MAX)) - (len(path) - 1)
    codec.decode_request_body(key, version, message(shape, path, allowed), 0)
    with pytest.raises(RequestTooLarge, match=r"more than \d+ entries") as refused:
        codec.decode_request_body(key, version, message(shape, path, allowed + 1), 0)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_the_walk_stops_before_anything_is_made_of_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ablation: without the count, four million entries go on to be decoded."""
    body = pack(">i", 4_000_000) + bytes(2 * 4_000_000) + b"\x00"
    decoded: list[Any] = []

    def reader(entity_type: Any) -> Any:
        decoded.append(entity_type)
        return lambda data, position: (None, 0)

    monkeypatch.setattr(codec, "_reader", reader)
    with pytest.raises(RequestTooLarge, match="more than 20000 entries"):
        codec.decode_request_body(ApiKey.METADATA, 4, body, 0)
    assert not decoded
    monkeypatch.setattr(codec, "ENTRIES_MAX", 1 << 31)
    codec.decode_request_body(ApiKey.METADATA, 4, body, 0)
    assert decoded


def produce_body(version: int, topics: int, partitions: int) -> bytes:
    flexible = version >= 9
    tags = b"\x00" if flexible else b""
    partition = pack(">i", 0) + (b"\x00" if flexible else pack(">i", -1)) + tags
    topic = (
        length(1, flexible, small=True) + b"t" + length(partitions, flexible) + partition * partitions + tags
    )
    return (
        length(-1, flexible, small=True)
        + pack(">hi", -1, 100)
        + length(topics, flexible)
        + topic * topics
        + tags
    )


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_partitions_and_topics_of_a_produce_are_counted(version: int) -> None:
    produce.parse_produce_request(version, memoryview(produce_body(version, 1, ENTRIES_MAX - 1)))
    produce.parse_produce_request(version, memoryview(produce_body(version, ENTRIES_MAX // 2, 1)))
    for topics, partitions in ((1, ENTRIES_MAX), (ENTRIES_MAX // 2 + 1, 1), (1_500_000, 0)):
        with pytest.raises(RequestTooLarge):
            produce.parse_produce_request(version, memoryview(produce_body(version, topics, partitions)))


def test_an_old_produce_is_counted_as_well() -> None:
    body = produce_body(3, 1, ENTRIES_MAX)[2:]  # without the transactional id
    with pytest.raises(RequestTooLarge):
        produce.refuse_old_produce(2, body)


def fetch_body(version: int, topics: int, partitions: int, forgotten: int = 0) -> bytes:
    flexible = version >= 12
    tags = b"\x00" if flexible else b""
    part = {4: 16, 7: 24, 11: 28, 12: 32}[version]
    topic = (
        length(1, flexible, small=True)
        + b"t"
        + length(partitions, flexible)
        + (bytes(part) + tags) * partitions
        + tags
    )
    body = (
        pack(">iiiib", -1, 100, 1, 1, 0)
        + (pack(">ii", 0, -1) if version >= 7 else b"")
        + length(topics, flexible)
    )
    body += topic * topics
    if version >= 7:
        left_out = (
            length(1, flexible, small=True) + b"t" + length(forgotten, flexible) + bytes(4) * forgotten + tags
        )
        body += length(1 if forgotten else 0, flexible) + (left_out if forgotten else b"")
    return body + (length(0, flexible, small=True) if version >= 11 else b"") + tags


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_partitions_topics_and_forgotten_partitions_of_a_fetch_are_counted(version: int) -> None:
    fetch.parse_fetch_request(version, fetch_body(version, 1, ENTRIES_MAX - 1))
    for topics, partitions in ((1, ENTRIES_MAX), (ENTRIES_MAX // 2 + 1, 1)):
        with pytest.raises(RequestTooLarge):
            fetch.parse_fetch_request(version, fetch_body(version, topics, partitions))
    if version >= 7:
        with pytest.raises(RequestTooLarge):
            fetch.parse_fetch_request(version, fetch_body(version, 1, 1, forgotten=ENTRIES_MAX))


def test_tagged_fields_are_bounded_wherever_they_stand() -> None:
    tags = bytearray()
    primitives.write_varint(tags, TAGS_MAX + 1)
    for tag in range(TAGS_MAX + 1):
        tags += bytes([tag + 50, 0])
    with pytest.raises(RequestTooLarge, match="tagged fields"):
        codec.parse_request_header(pack(">hhih", ApiKey.METADATA, 12, 1, -1) + tags)
    metadata = message(shape_of(request_class(ApiKey.METADATA, 12)), (), 0)[:-1]
    with pytest.raises(RequestTooLarge, match="tagged fields"):
        codec.decode_request_body(ApiKey.METADATA, 12, metadata + tags, 0)
    with pytest.raises(RequestTooLarge, match="tagged fields"):
        produce.parse_produce_request(9, memoryview(produce_body(9, 0, 0)[:-1] + tags))


@pytest.mark.parametrize("key", [ApiKey.FETCH, ApiKey.METADATA, ApiKey.OFFSET_COMMIT])
def test_only_a_produce_may_be_as_large_as_a_frame(key: ApiKey) -> None:
    body = bytes(REQUEST_BYTES_MAX + 1)
    with pytest.raises(RequestTooLarge, match="at most 8388608 are taken"):
        if key is ApiKey.FETCH:
            fetch.parse_fetch_request(4, body)
        else:
            codec.decode_request_body(key, 4, body, 0)


def test_answers_of_large_clusters_are_not_bounded_as_requests_are() -> None:
    partitions = [
        {
            "error_code": 0,
            "partition_index": index,
            "leader_id": 1,
            "replica_nodes": [1, 2, 3],
            "isr_nodes": [1, 2, 3],
        }
        for index in range(ENTRIES_MAX)
    ]
    topic = {"error_code": 0, "name": "t", "is_internal": False, "partitions": partitions}
    answer = codec.response(ApiKey.METADATA, 4, {"brokers": [], "topics": [topic], "controller_id": 1})
    _, decoded = codec.decode_response(
        ApiKey.METADATA, 4, codec.encode_response_frame(1, ApiKey.METADATA, 4, answer)
    )
    assert len(decoded.topics[0].partitions) == ENTRIES_MAX
