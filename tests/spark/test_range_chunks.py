"""RangeChunk without copies: the same bytes and fields as protobuf's, and no other input is believed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from google.protobuf.message import DecodeError
from tidegate.proto import data_pb2 as pb
from tidegate.proto.range_chunks import MalformedChunk, RecordsChunk, parse, serialize

CHUNKS = [
    pb.RangeChunk(),
    pb.RangeChunk(start_offset=1, next_offset=2, waiting=True),
    pb.RangeChunk(records=b"r", start_offset=1 << 62, next_offset=-1, at_cut=True),
    pb.RangeChunk(
        records=bytes(range(256)) * 1_000,
        next_offset=300,
        aborted_transactions=[pb.AbortedTransaction(producer_id=7, first_offset=n) for n in range(200)],
    ),
]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_both_ways_are_those_of_protobuf(chunk: pb.RangeChunk) -> None:
    fields = pb.RangeChunk()
    fields.CopyFrom(chunk)
    fields.ClearField("records")
    assert pb.RangeChunk.FromString(serialize(RecordsChunk(fields, chunk.records))) == chunk
    parsed = parse(chunk.SerializeToString())
    assert (parsed.fields, bytes(parsed.records)) == (fields, chunk.records)


def test_the_records_are_a_view_of_what_came_in() -> None:
    message = CHUNKS[-1].SerializeToString()
    records = parse(message).records
    assert isinstance(records, memoryview)
    assert records.obj is message


def test_a_field_of_a_later_version_is_passed_over() -> None:
    later = b"\x78\x01" + b"\x7a\x02hi" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)  # field 15, of each kind
    message = later + CHUNKS[2].SerializeToString() + later
    parsed = parse(message)
    assert bytes(parsed.records) == b"r"
    assert parsed.fields.start_offset == 1 << 62


def test_of_two_records_fields_the_last_counts() -> None:
    message = (
        pb.RangeChunk(records=b"first").SerializeToString() + pb.RangeChunk(records=b"2").SerializeToString()
    )
    assert bytes(parse(message).records) == pb.RangeChunk.FromString(message).records == b"2"


@pytest.mark.parametrize("length", range(1, 30))
def test_a_message_that_ends_too_early_is_refused_as_protobuf_refuses_it(length: int) -> None:
    message = pb.RangeChunk(records=b"0123456789", start_offset=1 << 40, next_offset=9).SerializeToString()[
        :length
    ]
    assert _understood(lambda: parse(message)) == _understood(lambda: pb.RangeChunk.FromString(message))


def test_any_bytes_give_what_protobuf_gives_or_an_error() -> None:
    rng = random.Random(20)
    whole = CHUNKS[-1].SerializeToString()[-200:] + CHUNKS[2].SerializeToString()
    for _ in range(3_000):
        message = bytearray(whole[: rng.randrange(len(whole))])
        for _ in range(rng.randrange(3)):
            if message:
                message[rng.randrange(len(message))] = rng.randrange(256)
        try:
            parsed = parse(bytes(message))
        except (MalformedChunk, DecodeError):
            continue
        theirs = pb.RangeChunk.FromString(bytes(message))
        assert bytes(parsed.records) == theirs.records
        theirs.ClearField("records")
        assert parsed.fields == theirs


def _understood(parse_it: Callable[[], object]) -> bool:
    try:
        parse_it()
    except (MalformedChunk, DecodeError):
        return False
    return True
