"""The hand-written messages: byte for byte what kio writes and reads, in every version, without copying
records."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader
from tidegate.wire import codec, fetch, produce
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
)
from tidegate.wire.produce import ProduceRequest, ProduceResponse, ProduceResponsePartition

from .samples import entity, kio_bytes, message_class

PRODUCE_VERSIONS = range(produce.VERSION_LOW, produce.VERSION_HIGH + 1)
FETCH_VERSIONS = range(fetch.VERSION_LOW, fetch.VERSION_HIGH + 1)
SEEDS = range(25)


def name_or_id(topic: Any) -> Any:
    """What one of kio's topics goes by."""
    if hasattr(topic, "topic_id"):
        return topic.topic_id or UUID(int=0)
    return topic.name if hasattr(topic, "name") else topic.topic


def joined(buffers: Sequence[Any]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def an_id(rng: random.Random) -> UUID:
    return UUID(int=rng.randrange(1, 2**128))


def topics_of(message: Any) -> Any:
    """The topics of a message, by name or by id as its version has them."""
    assert not (message.topics and message.topics_by_id)
    return message.topics or message.topics_by_id


def random_produce_request(version: int, rng: random.Random) -> ProduceRequest:
    def partition() -> tuple[int, memoryview]:
        return rng.randrange(2**31), memoryview(rng.randbytes(rng.choice([0, 5, 70_000])))

    topics = [
        (f"t{i}" * rng.choice([1, 90]), [partition() for _ in range(rng.randrange(3))])
        for i in range(rng.randrange(4))
    ]
    made = ProduceRequest(rng.choice([None, "txn"]), rng.choice([-1, 0, 1]), rng.randrange(2**31))
    if version > produce.NAMES_TO:
        made.topics_by_id = [(an_id(rng), partitions) for _, partitions in topics]
    else:
        made.topics = topics
    return made


def random_produce_response(version: int, rng: random.Random) -> ProduceResponse:
    def part() -> ProduceResponsePartition:
        made = ProduceResponsePartition(rng.randrange(99), rng.choice(list(ErrorCode)), rng.randrange(2**50))
        made.log_append_time_ms = rng.choice([-1, 1_700_000_000_123])
        if version >= 5:
            made.log_start_offset = rng.randrange(2**40)
        if version >= 8:
            made.error_message = rng.choice([None, "", "too bad"])
            made.record_errors = [
                (rng.randrange(9), rng.choice([None, "x"])) for _ in range(rng.randrange(3))
            ]
        if version >= 10 and rng.random() < 0.5:
            made.current_leader = (rng.randrange(9), rng.randrange(9))
        return made

    topics = [(f"t{i}", [part() for _ in range(rng.randrange(3))]) for i in range(rng.randrange(3))]
    nodes = (
        [(i, f"host-{i}" * 20, 9092, rng.choice([None, "r"])) for i in range(rng.randrange(3))]
        if version >= 10
        else []
    )
    made = ProduceResponse(topics, rng.randrange(1000), nodes or ())
    if version > produce.NAMES_TO:
        made.topics, made.topics_by_id = [], [(an_id(rng), parts) for _, parts in topics]
    return made


def kio_produce_response(version: int, response: ProduceResponse) -> Any:
    """The same answer made of kio's classes, found by the way they nest."""
    cls = message_class(0, version, False)
    module = __import__(cls.__module__, fromlist=["*"])

    def part(p: ProduceResponsePartition) -> Any:
        values: dict[str, Any] = {
            "index": p.partition,
            "error_code": p.error,
            "base_offset": p.base_offset,
            "log_append_time": None
            if p.log_append_time_ms < 0
            else datetime.fromtimestamp(p.log_append_time_ms / 1000, UTC),
        }
        if version >= 5:
            values["log_start_offset"] = p.log_start_offset
        if version >= 8:
            values["record_errors"] = tuple(
                module.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=m)
                for i, m in p.record_errors
            )
            values["error_message"] = p.error_message
        if version >= 10 and p.current_leader is not None:
            values["current_leader"] = module.LeaderIdAndEpoch(
                leader_id=p.current_leader[0], leader_epoch=p.current_leader[1]
            )
        return module.PartitionProduceResponse(**values)

    topics = tuple(
        module.TopicProduceResponse(
            partition_responses=tuple(part(p) for p in ps),
            **{"topic_id" if version > produce.NAMES_TO else "name": t},
        )
        for t, ps in topics_of(response)
    )
    values: dict[str, Any] = {
        "responses": topics,
        "throttle_time": timedelta(milliseconds=response.throttle_ms),
    }
    if version >= 10:
        values["node_endpoints"] = tuple(
            module.NodeEndpoint(node_id=n, host=h, port=p, rack=r) for n, h, p, r in response.node_endpoints
        )
    return cls(**values)


# ---- produce -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_request_is_kios_in_both_directions(version: int) -> None:
    for seed in SEEDS:
        made = random_produce_request(version, random.Random(seed))
        body = joined(
            produce.encode_produce_request(
                version,
                topics_of(made),
                acks=made.acks,
                timeout_ms=made.timeout_ms,
                transactional_id=made.transactional_id,
            )
        )
        theirs, end = entity_reader(message_class(0, version, True))(body, 0)
        assert end == len(body)
        assert kio_bytes(theirs) == body
        topics = [
            (name_or_id(t), [(p.index, p.records) for p in t.partition_data]) for t in theirs.topic_data
        ]
        assert topics == [(t, [(i, bytes(r)) for i, r in ps]) for t, ps in topics_of(made)]
        parsed = produce.parse_produce_request(version, memoryview(b"head" + body), 4)
        assert parsed == made


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_kios_random_produce_requests_are_read_alike(version: int) -> None:
    for seed in SEEDS:
        theirs = entity(message_class(0, version, True), random.Random(seed))
        ours = produce.parse_produce_request(version, memoryview(kio_bytes(theirs)))
        assert ours.transactional_id == theirs.transactional_id
        assert ours.acks == theirs.acks
        asked = [
            (name_or_id(t), [(p.index, p.records or b"") for p in t.partition_data])
            for t in theirs.topic_data
        ]
        assert topics_of(ours) == asked


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_response_is_kios_in_both_directions(version: int) -> None:
    for seed in SEEDS:
        made = random_produce_response(version, random.Random(seed))
        body = produce.encode_produce_response(version, made)
        assert body == kio_bytes(kio_produce_response(version, made))
        assert produce.parse_produce_response(version, b"head" + body, 4) == made


def test_records_of_a_produce_request_are_views_of_the_frame() -> None:
    frame = bytearray(
        joined(produce.encode_produce_request(9, [("t", [(0, b"records")])], acks=-1, timeout_ms=1))
    )
    records = produce.parse_produce_request(9, memoryview(frame)).topics[0][1][0][1]
    records[0] = ord("R")
    assert b"Records" in frame


@pytest.mark.parametrize("version", [0, 1, 2, 19])
def test_versions_that_are_not_served_are_refused(version: int) -> None:
    for call in (
        lambda: produce.parse_produce_request(version, memoryview(b"")),
        lambda: fetch.parse_fetch_request(version, memoryview(b"")),
    ):
        with pytest.raises(KafkaError) as caught:
            call()
        assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_produce_version_before_record_batches_fails_every_partition(version: int) -> None:
    """Layouts by hand: neither kio nor Kafka 4 know these versions any more."""
    request = struct.pack(">hi", 1, 5000) + struct.pack(">i", 1) + b"\0\1t" + struct.pack(">i", 2)
    request += struct.pack(">ii", 7, 3) + b"old" + struct.pack(">ii", 8, -1)
    append_time = struct.pack(">q", -1) if version == 2 else b""
    answer = struct.pack(">i", 1) + b"\0\1t" + struct.pack(">i", 2)
    answer += struct.pack(">ihq", 7, 35, -1) + append_time + struct.pack(">ihq", 8, 35, -1) + append_time
    answer += struct.pack(">i", 0) if version >= 1 else b""
    assert produce.refuse_old_produce(version, b"head" + request, 4) == answer
    assert produce.refuse_old_produce(version, b"\0\0" + request[2:]) is None, "acks=0 wants no answer"
    for cut in range(len(request)):
        with pytest.raises(KafkaError):
            produce.refuse_old_produce(version, request[:cut])
    with pytest.raises(KafkaError):
        produce.refuse_old_produce(3, request)


# ---- fetch -------------------------------------------------------------------------------------------------


def random_fetch_request(version: int, rng: random.Random) -> FetchRequest:
    def part() -> FetchPartition:
        made = FetchPartition(rng.randrange(99), rng.randrange(2**50), rng.randrange(2**31))
        if version >= 5:
            made.log_start_offset = rng.randrange(-1, 2**40)
        if version >= 9:
            made.current_leader_epoch = rng.randrange(-1, 99)
        if version >= 12:
            made.last_fetched_epoch = rng.randrange(-1, 99)
        return made

    topics = [(f"t{i}", [part() for _ in range(rng.randrange(3))]) for i in range(rng.randrange(3))]
    made = FetchRequest(
        rng.randrange(-1, 9), rng.randrange(9999), rng.randrange(99), rng.randrange(2**31), topics=topics
    )
    made.isolation_level = rng.randrange(2)
    if version >= 7:
        made.session_id, made.session_epoch = rng.randrange(99), rng.randrange(-1, 99)
        made.forgotten_topics = [("gone", [1, 2, 3]), ("too", [])] if rng.random() < 0.5 else []
    if version >= 11:
        made.rack_id = rng.choice(["", "rack"])
    if version >= 12:
        made.cluster_id = rng.choice([None, "cluster"])
    if version > fetch.NAMES_TO:
        made.topics, made.topics_by_id = [], [(an_id(rng), parts) for _, parts in topics]
        for topic_id, parts in made.topics_by_id:
            for each in parts:
                each.topic_id = topic_id
        made.forgotten_topics, made.forgotten_by_id = (
            [],
            [(an_id(rng), each) for _, each in made.forgotten_topics],
        )
    if version >= 15 and made.replica_id >= 0:
        made.replica_epoch = rng.randrange(99)
    return made


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_request_is_kios_in_both_directions(version: int) -> None:
    for seed in SEEDS:
        made = random_fetch_request(version, random.Random(seed))
        body = fetch.encode_fetch_request(version, made)
        theirs, end = entity_reader(message_class(1, version, True))(body, 0)
        assert end == len(body)
        assert kio_bytes(theirs) == body
        assert theirs.max_wait == timedelta(milliseconds=made.max_wait_ms)
        asked = [
            (name_or_id(t), [(p.partition, p.fetch_offset, p.partition_max_bytes) for p in t.partitions])
            for t in theirs.topics
        ]
        assert asked == [
            (t, [(p.partition, p.fetch_offset, p.max_bytes) for p in ps]) for t, ps in topics_of(made)
        ]
        replica = theirs.replica_state if version >= 15 else theirs
        assert replica.replica_id == made.replica_id
        assert fetch.parse_fetch_request(version, b"head" + body, 4) == made


def test_a_followers_broker_epoch_and_topic_ids_are_skippable_tags() -> None:
    made = FetchRequest(
        replica_id=2, replica_epoch=77, topics=[("t", [FetchPartition(0, 5, 100, topic_id=UUID(int=9))])]
    )
    body = fetch.encode_fetch_request(12, made)
    assert fetch.parse_fetch_request(12, body) == made
    theirs = codec.decode_request_body(1, 12, body, 0)
    assert theirs.replica_id == 2
    assert theirs.topics[0].partitions[0].fetch_offset == 5
    older = fetch.parse_fetch_request(11, fetch.encode_fetch_request(11, made))
    assert older.replica_epoch == -1
    assert older.topics[0][1][0].topic_id is None


def random_fetch_response(version: int, rng: random.Random) -> FetchResponse:
    def part() -> FetchResponsePartition:
        made = FetchResponsePartition(
            rng.randrange(99), rng.choice(list(ErrorCode)), rng.randrange(2**50), rng.randrange(2**50)
        )
        made.records = rng.randbytes(rng.choice([0, 1, 300, 70_000]))
        made.aborted = rng.choice(
            [None, [], [AbortedTransaction(rng.randrange(99), rng.randrange(99)) for _ in range(2)]]
        )
        if version >= 5:
            made.log_start_offset = rng.randrange(99)
        if version >= 11:
            made.preferred_read_replica = rng.randrange(-1, 3)
        if version >= 12:
            made.diverging_epoch = rng.choice([None, (3, 900)])
            made.current_leader = rng.choice([None, (2, 8)])
        return made

    topics = [(f"t{i}", [part() for _ in range(rng.randrange(3))]) for i in range(rng.randrange(3))]
    made = FetchResponse(topics=topics, throttle_ms=rng.randrange(99))
    if version >= 7:
        made.error, made.session_id = rng.choice(list(ErrorCode)), rng.randrange(99)
    if version > fetch.NAMES_TO:
        made.topics, made.topics_by_id = [], [(an_id(rng), parts) for _, parts in topics]
    if version >= 16:
        made.node_endpoints = [
            (i, f"host-{i}", 9092, rng.choice([None, "r"])) for i in range(rng.randrange(3))
        ] or ()
    return made


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_response_is_kios_in_both_directions(version: int) -> None:
    for seed in SEEDS:
        made = random_fetch_response(version, random.Random(seed))
        body = joined(
            fetch.encode_fetch_response(
                version,
                topics_of(made),
                error=made.error,
                session_id=made.session_id,
                throttle_ms=made.throttle_ms,
                node_endpoints=made.node_endpoints,
            )
        )
        theirs, end = entity_reader(message_class(1, version, False))(body, 0)
        assert end == len(body)
        assert kio_bytes(theirs) == body
        for (topic, parts), t in zip(topics_of(made), theirs.responses, strict=True):
            assert topic == name_or_id(t)
            for ours, p in zip(parts, t.partitions, strict=True):
                assert (ours.partition, ours.error, ours.high_watermark, ours.records) == (
                    p.partition_index, p.error_code, p.high_watermark, p.records
                )  # fmt: skip
                assert ours.aborted == (
                    None
                    if p.aborted_transactions is None
                    else [(a.producer_id, a.first_offset) for a in p.aborted_transactions]
                )
                if version >= 12:
                    assert (p.diverging_epoch.epoch, p.diverging_epoch.end_offset) == (
                        ours.diverging_epoch or (-1, -1)
                    )
                    assert (p.current_leader.leader_id, p.current_leader.leader_epoch) == (
                        ours.current_leader or (-1, -1)
                    )
        assert fetch.parse_fetch_response(version, memoryview(b"head" + body), 4) == made


def test_records_of_a_fetch_response_are_not_copied() -> None:
    records = bytes(100_000)
    buffers = fetch.encode_fetch_response(12, [("t", [FetchResponsePartition(0, records=records)])])
    assert any(buffer is records for buffer in buffers)
    frame = bytearray(joined(buffers))
    view = fetch.parse_fetch_response(12, memoryview(frame)).topics[0][1][0].records
    view[0] = 7  # type: ignore[index]
    assert 7 in frame


# ---- damage ------------------------------------------------------------------------------------------------

PARSERS = {
    "produce request": (PRODUCE_VERSIONS, produce.parse_produce_request),
    "produce response": (PRODUCE_VERSIONS, produce.parse_produce_response),
    "fetch request": (FETCH_VERSIONS, fetch.parse_fetch_request),
    "fetch response": (FETCH_VERSIONS, fetch.parse_fetch_response),
}


def a_body(kind: str, version: int, seed: int) -> bytes:
    rng = random.Random(seed)
    match kind:
        case "produce request":
            made = random_produce_request(version, rng)
            topics = [(t, [(i, r[:50]) for i, r in ps]) for t, ps in topics_of(made)]
            return joined(produce.encode_produce_request(version, topics, acks=1, timeout_ms=5))
        case "produce response":
            return produce.encode_produce_response(version, random_produce_response(version, rng))
        case "fetch request":
            return fetch.encode_fetch_request(version, random_fetch_request(version, rng))
        case _:
            response = random_fetch_response(version, rng)
            for _, parts in topics_of(response):
                for part in parts:
                    part.records = part.records[:50]
            return joined(fetch.encode_fetch_response(version, topics_of(response)))


@settings(max_examples=500)
@given(kind=st.sampled_from(sorted(PARSERS)), seed=st.integers(0, 40), data=st.data())
def test_a_damaged_message_gives_an_error_or_a_value(kind: str, seed: int, data: st.DataObject) -> None:
    versions, parse = PARSERS[kind]
    version = data.draw(st.sampled_from(list(versions)))
    body = bytearray(a_body(kind, version, seed))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body)))
        change = data.draw(st.sampled_from(["byte", "cut", "grow", "int32", "varint"]))
        if change == "byte" and at < len(body):
            body[at] = data.draw(st.integers(0, 255))
        elif change == "cut":
            del body[at:]
        elif change == "grow":
            body[at:at] = data.draw(st.binary(max_size=9))
        elif change == "int32" and at + 4 <= len(body):
            struct.pack_into(
                ">i", body, at, data.draw(st.sampled_from([-1, 2**31 - 1, -(2**31), 10_000_000]))
            )
        elif change == "varint":
            body[at : at + 5] = b"\xff\xff\xff\xff" + bytes([data.draw(st.sampled_from([7, 15, 1, 0]))])
    try:
        parse(version, memoryview(bytes(body)))
    except KafkaError as error:
        assert error.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("kind", sorted(PARSERS))
def test_a_message_that_is_cut_anywhere_or_has_a_tail_is_refused(kind: str) -> None:
    versions, parse = PARSERS[kind]
    for version in versions:
        body = a_body(kind, version, 7)
        parse(version, memoryview(body))
        for cut in range(len(body)):
            with pytest.raises(KafkaError):
                parse(version, memoryview(body[:cut]))
        with pytest.raises(KafkaError):
            parse(version, memoryview(body + b"\0"))
