"""A frame server whose handlers can be looked at, and raw clients for it."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tidegate.runtime.connections.frames import FrameConnection
from tidegate.runtime.network import FrameServer, connect_frames, serve_frames

HOST = "127.0.0.1"
MAX = 8 << 20


class Recorder:
    """A handler that keeps what it gets, and runs `action(connection, frame)` for each frame."""

    def __init__(
        self, connection: FrameConnection, action: Callable[[FrameConnection, memoryview], None] | None = None
    ) -> None:
        self.connection = connection
        self.frames: list[bytes] = []
        self.closed: list[str] = []
        self._action = action

    def on_frame(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        if self._action is not None:
            self._action(self.connection, frame)

    def on_close(self, reason: str) -> None:
        self.closed.append(reason)


class Served:
    """A server whose handlers can be looked at."""

    def __init__(self) -> None:
        self.server: FrameServer
        self.handlers: list[Recorder] = []

    @property
    def port(self) -> int:
        return self.server.port

    def dial(self) -> socket.socket:
        """A raw client, for what a well-behaved one would not send."""
        return socket.create_connection((HOST, self.port))

    async def connect(self) -> tuple[FrameConnection, Recorder]:
        recorder = Recorder(None)  # type: ignore[arg-type]
        recorder.connection = await connect_frames(
            HOST, self.port, recorder.on_frame, recorder.on_close, MAX, 5.0
        )
        return recorder.connection, recorder


@asynccontextmanager
async def serving(
    action: Callable[[FrameConnection, memoryview], None] | None = None, **options: Any
) -> AsyncIterator[Served]:
    served = Served()

    def factory(connection: FrameConnection) -> Recorder:
        handler = Recorder(connection, action)
        served.handlers.append(handler)
        return handler

    served.server = await serve_frames(HOST, 0, factory, options.pop("max_frame_bytes", MAX), **options)
    try:
        yield served
    finally:
        await served.server.close()


def echo(connection: FrameConnection, frame: memoryview) -> None:
    connection.send(bytes(frame))


def framed(*payloads: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.fields["reason"]  # type: ignore[attr-defined]
        for record in caplog.records
        if record.msg == "connection_refused"
    ]
