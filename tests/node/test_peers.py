"""Requests to another broker: answers find their request, and whatever goes wrong is an error in bounded
time, never a hang."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tidegate.node.cluster import peers
from tidegate.node.cluster.peers import Peer, PeerFetchTransport, Peers
from tidegate.runtime.network import FrameConnection, FrameServer, serve_frames
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchRequest


class Remote:
    """The other broker: does with each request what `script` says."""

    def __init__(self) -> None:
        self.script: Callable[[FrameConnection, int], None] = self.echo
        self.connections: list[FrameConnection] = []
        self.server: FrameServer
        self.received: list[int] = []
        self.changed = asyncio.Event()

    def accept(self, connection: FrameConnection) -> Any:
        self.connections.append(connection)

        class Handler:
            @staticmethod
            def on_frame(frame: memoryview) -> None:
                correlation_id = int.from_bytes(frame[4:8], "big")
                self.received.append(correlation_id)
                self.changed.set()
                self.script(connection, correlation_id)

            @staticmethod
            def on_close(reason: str) -> None: ...

        return Handler

    @staticmethod
    def echo(connection: FrameConnection, correlation_id: int) -> None:
        connection.send(struct.pack(">i", correlation_id), b"answer")

    def resolve(self, node_id: int) -> tuple[str, int]:
        if node_id == 404:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "node 404 is not registered")
        return "127.0.0.1", self.server.port


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    found = Remote()
    found.server = await serve_frames("127.0.0.1", 0, found.accept, 1 << 20)
    yield found
    await found.server.close(0)


@pytest.fixture
async def peer(remote: Remote) -> AsyncIterator[Peer]:
    found = Peer(2, remote.resolve, client_id="test", max_frame_bytes=1 << 20)
    yield found
    found.close()


async def ask(peer: Peer, timeout_s: float = 5.0, decode: Callable[[memoryview], Any] | None = None) -> bytes:
    answer: bytes = await peer.exchange(
        ApiKey.FETCH, 4, [b"body"], decode or (lambda frame: bytes(frame[4:])), timeout_s
    )
    return answer


async def code_of(work: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        await work
    return error.value.code


async def test_many_requests_share_one_connection_and_each_gets_its_own_answer(
    remote: Remote, peer: Peer
) -> None:
    remote.script = lambda connection, number: (  # type: ignore[assignment]
        connection.send(struct.pack(">i", number), str(number).encode()) and None
    )
    answers = await asyncio.gather(*(ask(peer) for _ in range(50)))
    assert answers == [str(number).encode() for number in remote.received]
    assert len(remote.connections) == 1


async def test_a_lost_connection_fails_its_requests_and_the_next_reconnects(
    remote: Remote, peer: Peer
) -> None:
    remote.script = lambda connection, number: connection.abort("gone") if number == 3 else None
    codes = await asyncio.gather(*(code_of(ask(peer)) for _ in range(3)))
    assert set(codes) == {ErrorCode.NETWORK_EXCEPTION}
    remote.script = remote.echo
    assert await ask(peer) == b"answer"
    assert len(remote.connections) == 2


async def test_a_response_out_of_order_fails_all_waiting_requests(remote: Remote, peer: Peer) -> None:
    remote.script = lambda connection, number: (  # type: ignore[assignment]
        connection.send(struct.pack(">i", number + 1), b"wrong") and None
    )
    assert await code_of(ask(peer)) is ErrorCode.NETWORK_EXCEPTION
    remote.script = remote.echo
    assert await ask(peer) == b"answer"


async def test_an_unexpected_answer_ends_the_connection(remote: Remote, peer: Peer) -> None:
    def twice(connection: FrameConnection, number: int) -> None:
        remote.echo(connection, number)
        connection.send(struct.pack(">i", number), b"again")

    remote.script = twice
    assert await ask(peer) == b"answer"
    remote.script = remote.echo
    assert await ask(peer) in (b"answer",)
    assert len(remote.connections) <= 2


async def test_no_answer_in_time_is_a_timeout_and_poisons_the_connection(remote: Remote, peer: Peer) -> None:
    remote.script = lambda _connection, _number: None
    slow = asyncio.create_task(ask(peer, 30.0))
    while not remote.received:
        await remote.changed.wait()
    assert await code_of(ask(peer, 0.05)) is ErrorCode.REQUEST_TIMED_OUT
    # its answer could not be distinguished from that of the abandoned request
    assert await code_of(slow) is ErrorCode.NETWORK_EXCEPTION
    remote.script = remote.echo
    assert await ask(peer) == b"answer"


async def test_an_unreadable_answer_fails_its_own_request_only(remote: Remote, peer: Peer) -> None:
    def broken(_frame: memoryview) -> None:
        raise IndexError("too short")

    assert await code_of(ask(peer, decode=broken)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert await ask(peer) == b"answer"
    assert len(remote.connections) == 1


async def test_a_request_that_is_given_up_does_not_disturb_the_next(remote: Remote, peer: Peer) -> None:
    remote.script = lambda _connection, _number: None
    given_up = asyncio.create_task(ask(peer))
    while not remote.received:
        await remote.changed.wait()
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    remote.script = lambda connection, number: (  # type: ignore[assignment]
        [remote.echo(connection, n) for n in (number - 1, number)] and None
    )
    assert await ask(peer) == b"answer"


async def test_a_closed_port_is_a_network_error(remote: Remote, peer: Peer) -> None:
    await remote.server.close(0)
    assert await code_of(ask(peer)) is ErrorCode.NETWORK_EXCEPTION


async def test_an_unknown_node_is_not_available(remote: Remote) -> None:
    peer = Peer(404, remote.resolve, client_id="test", max_frame_bytes=1 << 20)
    assert await code_of(ask(peer)) is ErrorCode.BROKER_NOT_AVAILABLE


async def test_what_may_wait_is_bounded(remote: Remote, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "IN_FLIGHT_MAX", 3)
    remote.script = lambda _connection, _number: None
    waiting = [asyncio.create_task(ask(peer)) for _ in range(3)]
    while len(remote.received) < 3:
        remote.changed.clear()
        await remote.changed.wait()
    assert await code_of(ask(peer)) is ErrorCode.NETWORK_EXCEPTION
    peer.close()
    assert {await code_of(task) for task in waiting} == {ErrorCode.NETWORK_EXCEPTION}


async def test_one_connection_a_broker_and_all_are_closed_together(remote: Remote) -> None:
    everyone = Peers(remote.resolve, client_id="test", max_frame_bytes=1 << 20)
    assert everyone.peer(2) is everyone.peer(2)
    assert everyone.peer(2) is not everyone.peer(3)
    remote.script = lambda _connection, _number: None
    task = asyncio.create_task(ask(everyone.peer(2)))
    while not remote.received:
        await remote.changed.wait()
    everyone.close()
    assert await code_of(task) is ErrorCode.NETWORK_EXCEPTION


async def test_an_unreadable_fetch_answer_is_an_error_of_the_fetch(remote: Remote, peer: Peer) -> None:
    transport = PeerFetchTransport(peer, 5.0)
    assert await code_of(transport.fetch(FetchRequest())) in (
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )
