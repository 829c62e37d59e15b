"""Lengths, counts and tags of a stranger: what is read before a client has authenticated lies within its
frame, and costs no more than it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
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
