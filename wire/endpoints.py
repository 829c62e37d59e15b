"""The addresses of leaders that answers to Produce (10 and later) and Fetch (16 and later) name (KIP-951),
tag 0 of both: a client that asked the wrong node goes on to the right one at once, also when that node is not
in its metadata."""

from __future__ import annotations

from collections.abc import Sequence

from .primitives import (
    INT32,
    Data,
    invalid,
    read_count,
    read_nullable_text,
    read_text,
    skip_tags,
    write_length,
    write_text,
    write_varint,
)

NodeEndpoint = tuple[int, str, int, str | None]
"""Node, host, port, rack."""


def write_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """The tags that end the answer: no tag when there are none."""
    if not endpoints:
        out.append(0)
        return
    body = bytearray()
    write_length(body, len(endpoints), True)
    for node, host, port, rack in endpoints:
        body += INT32.pack(node)
        write_text(body, host, True)
        body += INT32.pack(port)
        write_text(body, rack, True)
        body.append(0)
    out += b"\x01\x00"
    write_varint(out, len(body))
    out += body


def parse_endpoints(frame: Data, position: int, end: int) -> list[NodeEndpoint]:
    """The content of the tag, which reaches from `position` to `end`."""
    count, position = read_count(frame, position, True)
    endpoints: list[NodeEndpoint] = []
    for _ in range(count):
        node: int = INT32.unpack_from(frame, position)[0]
        host, position = read_text(frame, position + 4, True)
        port: int = INT32.unpack_from(frame, position)[0]
        rack, position = read_nullable_text(frame, position + 4, True)
        position = skip_tags(frame, position)
        endpoints.append((node, host, port, rack))
    if position != end:
        raise invalid("the node endpoints do not fill their tag")
    return endpoints
