"""One node, asked by bytes: requests written and answers read by kio alone, to the last byte, in any
version."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

from kio.serial import entity_reader
from tidegate.wire import codec
from tidegate.wire.schema import response_class

ANSWER_S = 30.0


class Asker:
    """A connection to one node."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._correlation_id = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Asker:
        host, _, port = self._address.rpartition(":")
        self._streams = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._streams is not None
        self._streams[1].close()

    async def ask(self, key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """The answer as kio reads it; nothing may be left over.  Raises IncompleteReadError when the node
        closes instead."""
        return await self.ask_bytes(key, version, codec.request(key, version, fields))

    async def ask_bytes(self, key: int, version: int, body: bytes) -> Any:
        assert self._streams is not None
        reader, writer = self._streams
        self._correlation_id += 1
        frame = codec.encode_request_frame(self._correlation_id, key, version, body, "conformance")
        writer.write(struct.pack(">i", len(frame)) + frame)
        async with asyncio.timeout(ANSWER_S):
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            answer = await reader.readexactly(size)
        entity_type = response_class(key, version)
        header_version = entity_type.__header_schema__.__version__
        assert struct.unpack_from(">i", answer)[0] == self._correlation_id
        body_at = 4
        if header_version == 1:
            assert answer[4] == 0, "no tagged fields are defined for a response's header"
            body_at = 5
        entity, read = entity_reader(entity_type)(answer, body_at)
        assert body_at + read == len(answer), (
            f"{len(answer) - body_at - read} bytes of the answer are left over"
        )
        return entity
