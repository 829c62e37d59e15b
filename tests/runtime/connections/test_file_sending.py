"""Frames whose bytes go from a file to a socket, and the end that receives them."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tidegate.runtime.connections import file_sending
from tidegate.runtime.connections.blocking_frames import connect_blocking
from tidegate.runtime.connections.file_sending import FilePart, FileSender, SendFailed
from tidegate.runtime.connections.frames import FrameConnection, frame_length
from tidegate.runtime.disk import File, RealDisk
from tidegate.runtime.network import FrameServer
from tidegate.tests.eventually import eventually

LENGTH = struct.Struct(">I")


def memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


def test_another_side_that_vanished_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        frames = connect_blocking("127.0.0.1", listening.getsockname()[1], 5.0)
        opened = frames._connection
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        times = [
            opened.getsockopt(socket.IPPROTO_TCP, each)
            for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)
        ]
        assert times == [20, 5]
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 40_000
        frames.close()


@pytest.mark.parametrize(
    ("code", "is_of_the_file"),
    [(errno.EIO, True), (errno.EBADMSG, True), (errno.ETIMEDOUT, False), (errno.ENOBUFS, False)],
)
def test_whose_error_a_failed_sending_is(code: int, *, is_of_the_file: bool) -> None:
    here, there = socket.socketpair()
    here.setblocking(False)

    class Failing:
        path = Path("file")

        def send_at(self, descriptor: int, position: int, length: int) -> int:
            raise OSError(code, "it failed")

    async def send() -> None:
        sender = FileSender(here.fileno())
        with ThreadPoolExecutor(1) as pool:
            await sender.send(lambda: (b"", FilePart(cast(File, Failing()), 0, 10)), pool)

    with here, there, pytest.raises(SendFailed) as caught:
        asyncio.run(send())
    assert caught.value.in_file is is_of_the_file


def test_a_descriptor_is_closed_when_no_thread_uses_it() -> None:
    """Its number may be another connection's right after."""
    here, there = socket.socketpair()
    with here, there:
        same = file_sending._SameSocket(here.fileno())
        with same.used() as to:
            same.end()
            assert to.fileno() >= 0
            with pytest.raises(BrokenPipeError):
                to.send(b"x")
        assert same.same.fileno() == -1
        with pytest.raises(ConnectionResetError), same.used():
            pass


def test_a_thread_goes_to_another_connection_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the reader would make room."""

    class NeverWaits:
        def register(self, *_: object) -> None:
            pass

        def poll(self, *_: object) -> list[object]:
            raise AssertionError("the thread waits")

    monkeypatch.setattr(file_sending, "THREAD_S", 0.0)
    monkeypatch.setattr(file_sending, "select", SimpleNamespace(poll=NeverWaits, POLLOUT=4))
    path = tmp_path / "file"
    path.write_bytes(bytes(8 << 20))
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there:
        part = FilePart(RealDisk().open(path, read_only=True), 0, 8 << 20)
        sending = file_sending._Sending(file_sending._SameSocket(here.fileno()), lambda: (b"", part))
        assert not sending.advance()


def test_a_thread_does_not_wait_for_a_reader_that_takes_nothing(tmp_path: Path) -> None:
    """Eight threads send for all readers of a node; the loop waits."""
    path = tmp_path / "file"
    path.write_bytes(bytes(8 << 20))
    here, there = socket.socketpair()
    here.setblocking(False)

    async def send_and_take() -> bytes:
        with ThreadPoolExecutor(1) as pool:
            sender = FileSender(here.fileno())
            file = RealDisk().open(path, read_only=True)
            sending = asyncio.create_task(sender.send(lambda: (b"head", FilePart(file, 0, 8 << 20)), pool))
            await eventually(lambda: sender._writable is not None)  # the loop waits now
            await asyncio.get_running_loop().run_in_executor(pool, lambda: None)  # the thread is free
            taken = await asyncio.to_thread(there.recv, (8 << 20) + 4, socket.MSG_WAITALL)
            await sending
            sender.close()
        return taken

    with here, there:
        assert asyncio.run(send_and_take()) == b"head" + bytes(8 << 20)


def test_a_frame_that_is_cut_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        frames = connect_blocking("127.0.0.1", listening.getsockname()[1], 5.0)
        with listening.accept()[0] as other:
            other.sendall(LENGTH.pack(10) + b"abc")
        with pytest.raises(ConnectionError, match="closed the connection"):
            frames.receive(100, memory)
        frames.close()


@pytest.mark.parametrize("reads", [True, False])
def test_what_is_sent_from_a_file_follows_what_was_sent_before(tmp_path: Path, *, reads: bool) -> None:
    """Also when that is still with asyncio; and who waits for it is told when the reader is gone."""
    path = tmp_path / "file"
    path.write_bytes(b"file")
    before = bytes(8 << 20)
    outcome: list[object] = []

    async def serve() -> None:
        tasks: list[asyncio.Task[None]] = []

        class Handler:
            def __init__(self, connection: FrameConnection) -> None:
                self._connection = connection

            def on_frame(self, frame: memoryview) -> None:
                self._connection.send(before)
                tasks.append(asyncio.create_task(self._send()))

            def on_close(self, reason: str) -> None:
                pass

            async def _send(self) -> None:
                part = FilePart(RealDisk().open(path, read_only=True), 0, 4)
                try:
                    await self._connection.send_made(lambda: (frame_length(4), part), pool)
                except SendFailed as failed:
                    outcome.append(failed)

        def talk(port: int) -> None:
            frames = connect_blocking("127.0.0.1", port, 10.0)
            frames.send(b"begin")
            if reads:
                received = [frames.receive(16 << 20, memory) for _ in range(2)]
                outcome.extend(map(bytes, received))
            else:
                frames._fill(memoryview(bytearray(4)))
            frames.close()

        server = FrameServer(max_frame_bytes=100, max_connections=10, pause_on_write_bytes=0)
        await server.listen("127.0.0.1", 0, Handler)
        with ThreadPoolExecutor(1) as pool:
            await asyncio.to_thread(talk, server.port)
            async with asyncio.timeout(10):
                await asyncio.gather(*tasks)
            await server.close(0.1)

    asyncio.run(serve())
    if reads:
        assert outcome == [before, b"file"]
    else:
        assert [type(each) for each in outcome] == [SendFailed]
