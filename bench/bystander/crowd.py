"""One crowd, as a process of its own: python crowd.py KIND HOST:PORT.  Prints nothing; exits at its end."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from crc32c import crc32c
from tidegate.wire.compression import Compression, compress
from tidegate.wire.primitives import zigzag
from tidegate.wire.produce import encode_produce_request
from tidegate.wire.records import NewRecord, encode_batch

CONNECTIONS = 300
PIPELINED = 50
PAUSED = 200  # more than a node starts of one connection at once
BATCHES_BYTES = 2 << 20
SENDERS = 16
METADATA, PRODUCE = 3, 0
PRODUCE_VERSION = 9


def frame(key: int, version: int, body: bytes, correlation_id: int = 1, *, flexible: bool = False) -> bytes:
    head = struct.pack(">hhih", key, version, correlation_id, -1) + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


ALL_TOPICS = frame(METADATA, 1, struct.pack(">i", -1))


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 30)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def pipelined(address: str, requests: int) -> None:
    connections = [connected(address) for _ in range(CONNECTIONS)]
    for connection in connections:
        connection.sendall(ALL_TOPICS * requests)
    for connection in connections:
        reset(connection)


def read_answer(connection: socket.socket) -> bytes:
    size = int.from_bytes(exactly(connection, 4), "big")
    return exactly(connection, size)


def exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        data = connection.recv(size - len(parts))
        if not data:
            raise ConnectionError("closed")
        parts += data
    return bytes(parts)


def insistent(address: str) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(address)) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.sendall(ALL_TOPICS * PIPELINED)
        for connection in connections:
            for _ in range(PIPELINED):
                read_answer(connection)


def produce(batch: bytes) -> bytes:
    body = encode_produce_request(PRODUCE_VERSION, [("crowd", [(0, batch)])], acks=1, timeout_ms=30_000)
    return frame(
        PRODUCE,
        PRODUCE_VERSION,
        bytes(body) if isinstance(body, (bytes, bytearray)) else b"".join(body),
        flexible=True,
    )


def send_all(address: str, requests: Iterator[bytes], senders: int = SENDERS, pipelined_max: int = 8) -> None:
    """Pipelines requests over a few connections; opens a connection again that the node closed."""
    opened = [connected(address) for _ in range(senders)]
    in_flight = [0] * senders
    turn = 0
    for request in requests:
        at = turn = (turn + 1) % senders
        try:
            opened[at].sendall(request)
            in_flight[at] += 1
            if in_flight[at] >= pipelined_max:
                read_answer(opened[at])
                in_flight[at] -= 1
        except OSError:
            opened[at].close()
            opened[at], in_flight[at] = connected(address), 0
    for at, connection in enumerate(opened):
        try:
            while in_flight[at]:
                read_answer(connection)
                in_flight[at] -= 1
        except OSError:
            pass
        connection.close()


def large(address: str) -> None:
    batch = encode_batch([NewRecord(None, bytes(1_000_000))])
    send_all(address, (produce(batch) for _ in range(200)), senders=8, pipelined_max=4)


def with_payload(payload: bytes, count: int, codec: Compression) -> bytes:
    """A batch around any records, with a right header and a right checksum."""
    packed = compress(codec, payload)
    batch = bytearray(encode_batch([NewRecord(None, b"")])[:61]) + packed
    struct.pack_into(">i", batch, 8, 49 + len(packed))
    struct.pack_into(">hi", batch, 21, codec, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def record(delta: int, size: int, key: bytes = b"\1") -> bytes:
    body = b"\0\0" + zigzag(delta) + key + zigzag(size) + bytes(size) + b"\0"
    return zigzag(len(body)) + body


def batch_of(kind: str) -> bytes:
    one = encode_batch([NewRecord(None, bytes(50 << 20))])
    match kind:
        case "zeros":  # small enough for any bound on decompression
            return with_payload(record(0, 1_000_000), 1, Compression.ZSTD)
        case "one-zstd":
            return with_payload(one[61:], 1, Compression.ZSTD)
        case "one-gzip":
            return with_payload(one[61:], 1, Compression.GZIP)
        case "one-lz4":
            return with_payload(one[61:], 1, Compression.LZ4)
        case "many-records":
            return with_payload(
                b"".join(record(delta, 0) for delta in range(900_000)), 900_000, Compression.ZSTD
            )
        case "walked-records":  # no two adjacent records of one size
            records = b"".join(record(delta, 40 + delta * 7 % 120) for delta in range(400_000))
            return with_payload(records, 400_000, Compression.ZSTD)
        case "repeated-deltas":
            records = record(0, 0) + record(1, 0) * 899_998 + record(899_999, 0)
            return with_payload(records, 900_000, Compression.ZSTD)
        case "compacted":
            return with_payload(
                b"".join(record(delta, 1, b"\2k") for delta in range(900_000)), 900_000, Compression.ZSTD
            )
        case _:
            raise SystemExit(f"there is no crowd {kind}")


def main() -> None:
    kind, address = sys.argv[1:]
    match kind:
        case "warm":
            with connected(address) as connection:
                connection.sendall(ALL_TOPICS)
                read_answer(connection)
        case "pipelined":
            pipelined(address, PIPELINED)
        case "paused":
            pipelined(address, PAUSED)
        case "insistent":
            insistent(address)
        case "large":
            large(address)
        case _:
            request = produce(batch_of(kind))
            send_all(address, (request for _ in range(max(1, BATCHES_BYTES // len(request)))))


if __name__ == "__main__":
    main()
