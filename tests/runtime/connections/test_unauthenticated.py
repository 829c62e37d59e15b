"""Clients that do not prove who they are take no place from those that do."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidegate.runtime import network
from tidegate.runtime.connections.tls import ClientTls, ServerTls, TlsFiles
from tidegate.runtime.connections.unauthenticated import Abort, Unauthenticated
from tidegate.runtime.network import FrameConnection, FrameServer, serve_frames
from tidegate.tests.certificates import Authority
from tidegate.tests.eventually import eventually

LIMIT = 5


def waiting(limit: int = 2) -> tuple[Unauthenticated, list[str]]:
    """... and the names of those that it closes."""
    closed: list[str] = []
    return Unauthenticated(lambda: limit, 30.0, lambda _: None), closed


def closing(closed: list[str], name: str) -> Abort:
    return lambda _: closed.append(name)


def test_one_more_and_the_oldest_goes() -> None:
    unauthenticated, closed = waiting()
    for name in "abcd":
        unauthenticated.began(name, 0.0, closing(closed, name))
    assert closed == ["a", "b"]
    assert len(unauthenticated) == 2


def test_a_client_that_has_authenticated_stays() -> None:
    unauthenticated, closed = waiting()
    unauthenticated.began("honest", 0.0, closing(closed, "honest"))
    unauthenticated.ended("honest")
    for name in "abc":
        unauthenticated.began(name, 0.0, closing(closed, name))
    assert closed == ["a"]


def test_the_newest_stays_however_small_the_limit_is() -> None:
    unauthenticated, closed = waiting(limit=0)
    for name in "ab":
        unauthenticated.began(name, 0.0, closing(closed, name))
    assert closed == ["a"]


def test_after_their_time_they_go() -> None:
    unauthenticated, closed = waiting()
    unauthenticated.began("early", 0.0, closing(closed, "early"))
    unauthenticated.began("late", 20.0, closing(closed, "late"))
    unauthenticated.look_after(30.0)
    assert closed == []
    unauthenticated.look_after(31.0)
    assert closed == ["early"]


class Echo:
    def __init__(self, connection: FrameConnection) -> None:
        self._connection = connection

    def on_frame(self, frame: memoryview) -> None:
        self._connection.send(bytes(frame))

    def on_close(self, reason: str) -> None: ...


async def _served(authority: Authority, refused: list[str]) -> FrameServer:
    return await serve_frames(
        "127.0.0.1", 0, Echo, 1 << 20,
        max_connections=2 * LIMIT, on_refused=refused.append, tls=ServerTls(authority.issue("localhost")),
    )  # fmt: skip


async def test_clients_silent_in_the_handshake_keep_no_client_out(tmp_path: Path) -> None:
    """All places would be theirs: they are twice as many as the server takes."""
    authority, refused = Authority(tmp_path), list[str]()
    server = await _served(authority, refused)
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(4 * LIMIT)]
    await eventually(lambda: refused.count("not_authenticated") == 3 * LIMIT)
    await eventually(lambda: server.open_count == LIMIT)
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    connection = await network.connect_frames(
        "localhost", server.port, lambda frame: answer.set_result(bytes(frame)), lambda _: None, 1 << 20, 3.0,
        tls=ClientTls(TlsFiles(authorities=authority.path)),
    )  # fmt: skip
    connection.send(b"hello")
    assert await asyncio.wait_for(answer, 3) == b"hello"
    connection.close("done")
    for _, writer in silent:
        writer.close()
    await server.close()
