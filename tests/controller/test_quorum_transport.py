"""Strangers, liars and garbage at the quorum's port: refused, counted, and never shown to Raft."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
from tidegate.controller.raft import transport as module
from tidegate.controller.raft.messages import AppendEntries, Hello, Ping, VoteRequest, encode
from tidegate.controller.raft.transport import (
    HELLO_BYTES_MAX,
    PeerDown,
    PeerEvent,
    PeerUp,
    QuorumTransport,
    Received,
)
from tidegate.runtime import network
from tidegate.runtime.clock import SystemClock
from tidegate.tests.eventually import eventually

from .reserved_ports import reserve_ports

VOTE = VoteRequest(3, 2, 1, preliminary=False)
HONEST = Hello(2, "blue", (1, 2, 3))


class Voter:
    """A transport and what it has handed to Raft."""

    def __init__(self, node_id: int, voters: dict[int, tuple[str, int]], cluster_id: str = "blue") -> None:
        self.events: list[PeerEvent] = []
        self.failures: list[BaseException] = []
        self.takes_messages = True
        self.transport = QuorumTransport(
            node_id=node_id,
            cluster_id=cluster_id,
            voters=voters,
            listen=voters[node_id],
            clock=SystemClock(),
            inbox=self._take,
            on_failure=self.failures.append,
        )

    def _take(self, event: PeerEvent) -> bool:
        self.events.append(event)
        return self.takes_messages

    @property
    def received(self) -> list[object]:
        return [event.message for event in self.events if isinstance(event, Received)]

    @property
    def up(self) -> set[int]:
        links = {event.node_id: event.link for event in self.events if isinstance(event, PeerUp)}
        for event in self.events:
            if isinstance(event, PeerDown) and links.get(event.node_id) == event.link:
                del links[event.node_id]
        return set(links)


def addresses(count: int = 3) -> dict[int, tuple[str, int]]:
    return {
        node_id: ("127.0.0.1", ports.quorum) for node_id, ports in reserve_ports(addresses, count).items()
    }


@pytest.fixture
async def voter() -> AsyncIterator[Voter]:
    voter = Voter(1, addresses())
    await voter.transport.start()
    yield voter
    await voter.transport.stop()


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


async def talk(voter: Voter, *raw: bytes) -> bytes:
    """Sends bytes as they are; returns what came back before the other side closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", voter.transport.port)
    for data in raw:
        writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        [b"GET / HTTP/1.1\r\n\r\n"],
        [struct.pack(">i", 2**31 - 1)],
        [struct.pack(">i", -1)],
        [frame(b"")],
        [frame(b"\x80\x04\x95cos\nsystem\n")],
        [frame(encode(VOTE))],
        [frame(encode(Ping()))],
        [frame(bytes(5000))],
        [frame(encode(replace(HONEST, cluster_id="green")))],
        [frame(encode(replace(HONEST, voters=(1, 2))))],
        [frame(encode(replace(HONEST, node_id=1)))],
        [frame(encode(replace(HONEST, node_id=9)))],
        [frame(encode(HONEST)[:-1])],
    ],
    ids=lambda raw: raw[0][4:14].hex(),
)
async def test_a_connection_without_an_acceptable_hello_delivers_nothing(
    voter: Voter, raw: list[bytes]
) -> None:
    assert await talk(voter, *raw) == b""
    assert voter.events == []


async def test_a_peer_without_a_name_takes_no_memory_for_a_large_frame(voter: Voter) -> None:
    """It is refused by the length that it claims; a voter sends larger ones."""
    reader, writer = await asyncio.open_connection("127.0.0.1", voter.transport.port)
    writer.write(struct.pack(">i", HELLO_BYTES_MAX + 1))
    assert await asyncio.wait_for(reader.read(), 3) == b""
    writer.close()
    large = AppendEntries(5, 1, 7, 4, ((bytes(2 * HELLO_BYTES_MAX), 8, 5),))
    await talk(voter, frame(encode(HONEST)), frame(encode(large)), frame(b"\x00"))
    assert voter.received == [large]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00",
        b"\x09" * 9,
        encode(VOTE) + b"\x00",
        encode(VOTE)[:-1],
        encode(AppendEntries(5, 1, 7, 4, ((b"abc", 8, 5),)))[:-1],
        encode(AppendEntries(5, 1, 7, 4, ((b"abc", 9, 5),))),
        encode(HONEST),
        b"\x80\x04.",
    ],
    ids=lambda garbage: garbage[:10].hex(),
)
async def test_garbage_after_a_good_hello_ends_the_connection(voter: Voter, garbage: bytes) -> None:
    await talk(voter, frame(encode(HONEST)), frame(encode(VOTE)), frame(garbage), frame(encode(VOTE)))
    await eventually(lambda: voter.up == set())
    assert voter.received == [VOTE]


async def test_malformed_frames_are_counted(voter: Voter) -> None:
    before = voter.transport.malformed_frames
    await talk(voter, frame(b"\xff\xff"))
    await talk(voter, frame(encode(HONEST)), frame(b"\x00"))
    assert voter.transport.malformed_frames == before + 2


async def test_without_the_schema_check_garbage_would_reach_raft(
    voter: Voter, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.decode  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "decode", lambda raw: VOTE if raw == b"\x00" else real(raw))
    _reader, writer = await asyncio.open_connection("127.0.0.1", voter.transport.port)
    writer.write(frame(encode(HONEST)) + frame(b"\x00"))
    await eventually(lambda: voter.received == [VOTE])
    writer.close()


async def test_voters_find_each_other_and_a_replaced_connection_is_ignored() -> None:
    voters = addresses()
    nodes = [Voter(node_id, voters) for node_id in voters]
    for node in nodes:
        await node.transport.start()
    for node in nodes:
        await eventually(lambda node=node: node.up == set(voters) - {node.transport.node_id})  # type: ignore[misc]
    nodes[0].transport.send(2, VOTE)
    nodes[1].transport.send(1, VOTE)
    nodes[2].transport.send(1, replace(VOTE, term=9))
    await eventually(lambda: len(nodes[0].received) == 2 and nodes[1].received == [VOTE])
    first = next(event.link for event in nodes[0].events if isinstance(event, PeerUp) and event.node_id == 2)
    _reader, writer = await asyncio.open_connection(*voters[1])
    writer.write(frame(encode(HONEST)))
    await eventually(lambda: PeerDown(2, first) in nodes[0].events)
    writer.close()
    await eventually(lambda: nodes[0].up == {2, 3})
    await nodes[2].transport.stop()
    await eventually(lambda: nodes[0].up == {2} and nodes[1].up == {1})
    for node in nodes[:2]:
        await node.transport.stop()


class _ClockWithoutPauses(SystemClock):
    def __init__(self) -> None:
        super().__init__()
        self.pauses_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        await asyncio.sleep(0)


async def test_a_voter_that_was_away_for_long_is_dialed_as_soon_as_any() -> None:
    voters = addresses(2)
    dialer, away = Voter(2, voters), Voter(1, voters)
    dialer.transport.clock = clock = _ClockWithoutPauses()
    dialing = asyncio.create_task(dialer.transport._dial(1))
    await eventually(lambda: len(clock.pauses_s) > 20)
    assert max(clock.pauses_s) <= 1.5 * module.REDIAL_S
    await away.transport.start()
    await eventually(lambda: away.up == {2} and dialer.up == {1})
    dialing.cancel()
    await away.transport.stop()
    await dialer.transport.stop()


async def test_a_silent_connection_is_closed(voter: Voter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S_MAX", 0.5)
    assert await talk(voter, frame(encode(HONEST))) != b"", "a hello and pings came back until it was closed"
    await eventually(lambda: voter.up == set())


async def test_a_peer_that_sends_more_than_raft_can_take_is_disconnected(
    voter: Voter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_S_MAX", 1e9)
    voter.takes_messages = False
    await talk(voter, frame(encode(HONEST)), frame(encode(VOTE)))
    await eventually(lambda: voter.up == set())


async def test_a_port_in_use_is_reported_at_the_start(voter: Voter) -> None:
    second = Voter(1, {**addresses(), 1: ("127.0.0.1", voter.transport.port)})
    with pytest.raises(network.PortInUse, match=str(voter.transport.port)):
        await second.transport.start()
    await second.transport.stop()


async def test_a_voter_is_dialed_by_those_with_higher_ids_alone() -> None:
    """Else there would be two connections of one pair, and each would replace the other."""
    voter = Voter(2, addresses())
    await voter.transport.start()
    assert await talk(voter, frame(encode(replace(HONEST, node_id=1)))) == b""
    assert voter.events == []
    await voter.transport.stop()


async def test_a_connection_without_a_hello_is_closed(voter: Voter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELLO_S_MAX", 0.2)
    assert await talk(voter, b"") == b""


@pytest.mark.parametrize("answer", [b"", frame(encode(replace(HONEST, node_id=3)))], ids=["none", "another"])
async def test_a_voter_that_answers_with_no_hello_or_another_ones_is_left(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(module, "HELLO_S_MAX", 0.2)
    places, closed = addresses(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()  # its hello, until it hangs up
        closed.set()
        writer.close()

    server = await asyncio.start_server(serve, *places[1])
    voter = Voter(2, places)
    await voter.transport.start()
    await asyncio.wait_for(closed.wait(), 3)
    assert voter.events == []
    await voter.transport.stop()
    server.close()


async def test_what_a_peer_does_not_take_is_bounded(voter: Voter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKLOG_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(module, "SILENCE_S_MAX", 1e9)
    _reader, writer = await asyncio.open_connection("127.0.0.1", voter.transport.port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(frame(encode(HONEST)))
    await eventually(lambda: voter.up == {2})
    large = AppendEntries(5, 1, 7, 4, ((bytes(1 << 20), 8, 5),))
    for _ in range(64):
        voter.transport.send(2, large)
    await eventually(lambda: voter.up == set())
    writer.close()


async def test_strangers_take_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 2)
    voter = Voter(1, addresses())
    await voter.transport.start()
    ends = [await asyncio.open_connection("127.0.0.1", voter.transport.port) for _ in range(3)]
    assert await asyncio.wait_for(ends[2][0].read(), 3) == b""
    for _, writer in ends:
        writer.close()
    await voter.transport.stop()


@pytest.mark.parametrize(("says_the_same", "lines"), [(True, 1), (False, 10)])
async def test_a_refused_stranger_fills_no_disk(
    voter: Voter, caplog: pytest.LogCaptureFixture, says_the_same: bool, lines: int
) -> None:
    for number in range(30):
        cluster_id = "green" if says_the_same else f"green-{number}"
        assert await talk(voter, frame(encode(replace(HONEST, cluster_id=cluster_id)))) == b""
    said = [record for record in caplog.records if record.msg == "quorum_peer_refused"]
    assert len(said) == lines


async def test_strangers_of_many_addresses_take_bounded_memory(voter: Voter) -> None:
    for number in range(300):
        from_address = (f"127.0.{number // 100}.{number % 100 + 2}", 0)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", voter.transport.port, local_addr=from_address
        )
        writer.write(frame(encode(replace(HONEST, cluster_id="green"))))
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 3) == b""
        writer.close()
    assert len(vars(voter.transport)["_warned"]) <= 257
