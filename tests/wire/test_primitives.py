"""Lengths, counts and tags of a stranger: what is read before a client has authenticated lies within its
frame, and costs no more than it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.primitives import (
    TAGS_MAX,
    expect_end,
    read_count,
    read_length,
    read_nullable_text,
    read_tags,
    read_text,
    read_uuid,
    read_varint,
    skip_tags,
)


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda: read_varint(b"\xff\xff\xff\xff\x0f", 0), "a length or tag of 4294967295"),
        (lambda: read_varint(b"\x80\x80\x80\x80\x80\x01", 0), "a varint of more than five bytes"),
        (lambda: read_length(b"\xff\xff\xff\xfe1234", 0, False), "a length of -2"),
        (lambda: read_length(b"\x00\x00\x00\x051234", 0, False), "a length of 5 where 4 bytes are left"),
        (lambda: read_length(b"\x7f\xff\xff\xff1234", 0, False), "a length of 2147483647"),
        (lambda: read_length(b"\x061234", 0, True), "a length of 5 where 4 bytes are left"),
        (lambda: read_count(b"\xff\xff\xff\xff", 0, False), "an array is null"),
        (lambda: read_count(b"\x00", 0, True), "an array is null"),
        (lambda: read_nullable_text(b"\xff\xfeab", 0, False), "text with the length -2"),
        (lambda: read_nullable_text(b"\x00\x03ab", 0, False), "text of 3 bytes where 2 are left"),
        (lambda: read_nullable_text(b"\x04ab", 0, True), "text of 3 bytes where 2 are left"),
        (lambda: read_text(b"\xff\xff", 0, False), "a text is null"),
        (lambda: read_text(b"\x00", 0, True), "a text is null"),
        (lambda: read_uuid(bytes(15), 0), "a UUID of 16 bytes where 15 are left"),
        (lambda: skip_tags(b"\x02\x01\x00\x01\x00", 0), "tag 1 comes after tag 1"),
        (lambda: skip_tags(b"\x02\x02\x00\x01\x00", 0), "tag 1 comes after tag 2"),
        (lambda: skip_tags(b"\x01\x00\x03ab", 0), "tag 0 claims 3 bytes where 2 are left"),
        (lambda: skip_tags(bytes([TAGS_MAX + 1]) + bytes(99), 0), f"at most {TAGS_MAX} are taken"),
        (lambda: expect_end(b"abc", 2, "message"), "1 bytes follow the message"),
    ],
)
def test_what_does_not_fit_is_refused(read: Callable[[], object], reason: str) -> None:
    with pytest.raises(KafkaError) as refused:
        read()
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert reason in refused.value.message


def test_what_fits_is_read() -> None:
    assert read_varint(b"\xff\xff\xff\xff\x07", 0) == (0x7FFFFFFF, 5)
    assert read_length(b"\x00\x00\x00\x041234", 0, False) == (4, 4)
    assert read_length(b"\x00", 0, True) == (-1, 1)
    assert read_nullable_text(b"\xff\xff", 0, False) == (None, 2)
    assert read_text(b"\x03ab", 0, True) == ("ab", 3)
    assert list(read_tags(b"\x02\x00\x01x\x05\x00", 0)) == [(0, 3, 4), (5, 6, 6), (-1, 6, 6)]
    assert skip_tags(b"\x00", 0) == 1


def header(length: int, client_id: bytes = b"") -> bytes:
    return struct.pack(">hhih", ApiKey.SASL_HANDSHAKE, 1, 7, length) + client_id


API_VERSIONS = bytes(4) + bytes(2) + b"\x01" + bytes(4)
HEARTBEAT = bytes(4) + b"\x00" + bytes(4) + bytes(2) + b"\x00\x00" + bytes(8)


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda: codec.parse_request_header(header(3, b"ab")), "claims 3 bytes where 2 are left"),
        (lambda: codec.parse_request_header(header(-2)), "the client id has the length -2"),
        (lambda: codec.parse_request_header(header(1, b"\xff")), "the client id is not UTF-8"),
        (lambda: codec.parse_request_header(header(0)[:-1]), "too few for a request"),
        (lambda: body(ApiKey.SASL_HANDSHAKE, 1, b"\x00\x05ab"), "ends 3 bytes after the message"),
        (lambda: body(ApiKey.SASL_HANDSHAKE, 1, b"\xff\xff"), "mechanism has the length -1"),
        (lambda: body(ApiKey.SASL_HANDSHAKE, 1, b"\xff\xfe"), "mechanism has the length -2"),
        (lambda: body(ApiKey.SASL_AUTHENTICATE, 2, b"\x00\x00"), "auth_bytes is null"),
        (lambda: body(ApiKey.SASL_AUTHENTICATE, 2, b"\x05ab"), "auth_bytes ends 2 bytes after the message"),
        (lambda: body(ApiKey.SASL_AUTHENTICATE, 2, b"\x02x\x21" + bytes(99)), "33 tagged fields"),
        (lambda: body(ApiKey.SASL_AUTHENTICATE, 2, b"\x02x\x02\x01\x00\x01\x00"), "tag 1 comes after tag 1"),
        (lambda: body(ApiKey.SASL_AUTHENTICATE, 2, b"\x02x\x01\x00\x05"), "tag 0 ends 5 bytes after"),
        (lambda: body(ApiKey.DESCRIBE_GROUPS, 0, b"\xff\xff\xff\xff"), "groups has -1 elements"),
        (lambda: body(ApiKey.METADATA, 1, b"\xff\xff\xff\xfe"), "topics has -2 elements"),
        (
            lambda: codec.decode_response(ApiKey.API_VERSIONS, 3, API_VERSIONS + b"\x01\x01\x07" + bytes(8)),
            "tag 1 has 7 bytes and its content 8",
        ),
        (
            lambda: codec.decode_response(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, HEARTBEAT + b"\x02\x01\x00\x00"
            ),
            "the null marker of a structure is 2",
        ),
        (
            lambda: codec.decode_response(ApiKey.METADATA, 1, bytes(codec.MESSAGE_BYTES_MAX + 1)),
            f"at most {codec.MESSAGE_BYTES_MAX} are taken",
        ),
    ],
)
def test_a_message_is_walked_before_anything_is_made_of_it(read: Callable[[], object], reason: str) -> None:
    """The decoder behind it reserves memory by what a message claims."""
    with pytest.raises(KafkaError) as refused:
        read()
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert reason in refused.value.message


def body(key: ApiKey, version: int, data: bytes) -> object:
    return codec.decode_request_body(key, version, data, 0)


def test_what_is_walked_is_decoded() -> None:
    decoded, position = codec.parse_request_header(header(2, b"ab"))
    assert (decoded.client_id, position) == ("ab", 12)
    assert getattr(body(ApiKey.SASL_HANDSHAKE, 1, b"\x00\x02ab"), "mechanism", "") == "ab"
    assert getattr(body(ApiKey.SASL_AUTHENTICATE, 2, b"\x02x\x01\x05\x01y"), "auth_bytes", b"") == b"x"
