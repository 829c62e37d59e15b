"""Frames over real sockets on loopback: nothing lost, nothing unbounded, and no peer can hurt another
connection."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import resource
import socket
import struct
import subprocess
import sys

import grpc
import pytest
from tidegate.runtime import network
from tidegate.runtime.connections import frames
from tidegate.runtime.connections.frame_memory import FIRST_BUFFER_BYTES, ByteBudget, FrameLease
from tidegate.runtime.connections.frames import FrameConnection, LogLimiter
from tidegate.runtime.connections.host_names import host_problem
from tidegate.runtime.http import get
from tidegate.runtime.network import PortInUse, connect_frames, free_port, serve_frames
from tidegate.tests.eventually import eventually

from .served import HOST, MAX, Recorder, Served, echo, framed, refusals, serving

# ---- framing -----------------------------------------------------------------------------------------------


FIRST = FIRST_BUFFER_BYTES
SIZES = [0, 1, 1000, FIRST - 5, FIRST - 4, FIRST - 3, 65_536, 1 << 20, (1 << 20) + 5, 6 << 20]


async def test_frames_of_every_size_arrive_whole_and_in_order() -> None:
    async with serving(echo) as served:
        connection, recorder = await served.connect()
        sent = [random.Random(size).randbytes(size) for size in [*SIZES, *reversed(SIZES)]]
        for payload in sent:
            assert connection.send(payload[: len(payload) // 2], memoryview(payload)[len(payload) // 2 :])
        await eventually(lambda: len(recorder.frames) == len(sent), "all echoes")
        assert recorder.frames == sent


@pytest.mark.parametrize("seed", range(6))
async def test_frames_survive_any_division_into_packets(seed: int) -> None:
    rng = random.Random(seed)
    payloads = [rng.randbytes(rng.choice([0, 1, 3, 200, 5_000, 20_000, 100_000])) for _ in range(60)]
    stream = framed(*payloads)
    async with serving() as served:
        _reader, writer = await asyncio.open_connection(HOST, served.port)
        at = 0
        while at < len(stream):
            size = rng.choice([1, 2, 3, 4, 5, 100, 7_000, 60_000])
            writer.write(stream[at : at + size])
            at += size
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        await eventually(
            lambda: served.handlers and len(served.handlers[0].frames) == len(payloads), "all frames"
        )
        assert served.handlers[0].frames == payloads
        writer.close()


async def test_a_frame_is_writable_in_place_and_dies_with_the_callback() -> None:
    kept: list[memoryview] = []

    def patch(connection: FrameConnection, frame: memoryview) -> None:
        frame[0:2] = b"HI"
        kept.append(frame)
        connection.send(bytes(frame))

    async with serving(patch) as served:
        connection, recorder = await served.connect()
        connection.send(b"hi there")
        await eventually(lambda: recorder.frames, "the echo")
        assert recorder.frames == [b"HI there"]
        with pytest.raises(ValueError, match="released"):
            bytes(kept[0])


async def test_a_detached_frame_outlives_the_callback_and_everything_after_it() -> None:
    leases: list[FrameLease] = []

    def keep(connection: FrameConnection, frame: memoryview) -> None:
        if frame[:4] == b"keep":
            leases.append(connection.detach())

    async with serving(keep) as served:
        connection, _ = await served.connect()
        payloads = [
            b"keep" + bytes([i]) * 50_000 if i % 2 else b"drop" + bytes([i]) * 30_000 for i in range(40)
        ]
        for payload in payloads:
            connection.send(payload)
        await eventually(lambda: len(leases) == 20, "all frames")
        assert [bytes(lease.view) for lease in leases] == payloads[1::2]
        for lease in leases:
            lease.release()
            lease.release()


async def test_many_answers_to_one_packet_leave_in_few_writes() -> None:
    async with serving(echo) as served:
        writes: list[int] = []
        connection, recorder = await served.connect()
        await eventually(lambda: served.handlers, "the connection")
        transport = served.handlers[0].connection._transport
        assert transport is not None
        original = transport.write
        transport.write = lambda data: (writes.append(len(data)), original(data))[1]
        connection._transport.write(framed(*[b"x" * 20] * 50))  # type: ignore[union-attr]
        await eventually(lambda: len(recorder.frames) == 50, "all echoes")
        assert len(writes) <= 3


async def test_a_flood_of_small_frames_lets_others_run() -> None:
    ticks = [0]
    seen_at: list[int] = []

    async with serving(lambda connection, frame: seen_at.append(ticks[0])) as served:

        def tick() -> None:
            ticks[0] += 1
            asyncio.get_running_loop().call_soon(tick)

        connection, _ = await served.connect()
        connection._transport.write(framed(*[b"x"] * 1000))  # type: ignore[union-attr]
        tick()
        await eventually(lambda: len(seen_at) == 1000, "all frames")
        assert max(seen_at.count(turn) for turn in set(seen_at)) <= frames.FRAMES_PER_TICK
        ticks[0] = -(10**9)


# ---- pausing -----------------------------------------------------------------------------------------------


async def test_a_paused_connection_delivers_nothing_and_loses_nothing() -> None:
    async with serving(lambda connection, frame: connection.pause()) as served:
        connection, _ = await served.connect()
        sent = [b"%d" % i for i in range(5)]
        for payload in sent:
            connection.send(payload)
        for count in range(1, 6):
            await eventually(
                lambda count=count: served.handlers and len(served.handlers[0].frames) >= count,  # type: ignore[misc]
                f"frame {count}",
            )
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(served.handlers[0].frames) == count
            served.handlers[0].connection.resume()
        assert served.handlers[0].frames == sent


async def flood(served: Served) -> tuple[FrameConnection, int]:
    """A client that asks for much and reads nothing; returns the server's connection and how many requests it
    took."""
    raw = served.dial()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(loop.sock_sendall(raw, framed(*[b"q" * 1000] * 3000)))
    await eventually(lambda: served.handlers, "the connection")
    handler = served.handlers[0]
    taken = -1
    while taken != len(handler.frames):
        taken = len(handler.frames)
        for _ in range(20):
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    raw.close()
    return handler.connection, taken


def answer_much(connection: FrameConnection, frame: memoryview) -> None:
    connection.send(bytes(100_000))


async def test_a_client_that_does_not_read_is_no_longer_read_from() -> None:
    backlogs: list[int] = []

    def answer(connection: FrameConnection, frame: memoryview) -> None:
        answer_much(connection, frame)
        backlogs.append(connection.write_backlog)

    async with serving(answer, pause_on_write_bytes=300_000) as served:
        _, taken = await flood(served)
        assert taken < 300
        assert max(backlogs) < 1_000_000


async def test_the_back_pressure_test_notices_a_missing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameConnection, "pause_writing", lambda self: None)
    async with serving(answer_much, pause_on_write_bytes=300_000) as served:
        _, taken = await flood(served)
        assert taken == 3000


# ---- foreign protocols -------------------------------------------------------------------------------------


async def test_a_grpc_client_on_a_port_of_frames_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(echo) as served:
        with caplog.at_level(logging.INFO), served.dial() as grpc_client:
            grpc_client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            await eventually(lambda: len(served.handlers) == 1 and served.handlers[0].closed, "the refusal")
        levels = [record.levelname for record in caplog.records if record.msg == "connection_refused"]
        assert levels == ["INFO"]
        assert "gRPC" in served.handlers[0].closed[0]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS handshake"),
        (struct.pack(">i", 2**31 - 1), "2147483647 bytes"),
        (struct.pack(">I", 2**31), "-2147483648 bytes"),
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", MAX + 1), f"0 to {MAX}"),
    ],
)
async def test_an_invalid_frame_closes_only_its_connection_with_one_line(
    sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(echo) as served:
        good, recorder = await served.connect()
        with caplog.at_level(logging.WARNING), served.dial() as bad:
            bad.sendall(sent)
            await eventually(lambda: len(served.handlers) == 2 and served.handlers[1].closed, "the refusal")
        assert [reason in line for line in refusals(caplog)] == [True]
        assert served.handlers[1].closed == refusals(caplog)
        good.send(b"still here")
        await eventually(lambda: recorder.frames, "an echo on the other connection")


async def test_a_frame_that_is_cut_off_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        with caplog.at_level(logging.WARNING), served.dial() as bad:
            bad.sendall(struct.pack(">i", 100) + b"only this")
            bad.shutdown(socket.SHUT_WR)
            await eventually(lambda: served.handlers and served.handlers[0].closed, "the close")
        assert refusals(caplog) == ["the peer closed within a frame: 13 of 104 bytes came"]
        assert served.handlers[0].frames == []


async def test_a_storm_of_garbage_writes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(echo) as served:
        with caplog.at_level(logging.WARNING):
            for _ in range(40):
                with served.dial() as bad:
                    bad.sendall(b"\xff\xff\xff\xff")
            await eventually(
                lambda: len(served.handlers) == 40 and all(h.closed for h in served.handlers), "all refusals"
            )
        assert len(refusals(caplog)) == 10
        _, recorder = await served.connect()
        assert recorder.connection.is_open


def test_the_log_says_how_many_lines_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    limiter = LogLimiter(burst=2, period_s=10)
    with caplog.at_level(logging.WARNING):
        for now in (0, 1, 2, 3, 11):
            limiter.warning(now, "event", n=now)
    assert [record.fields for record in caplog.records] == [  # type: ignore[attr-defined]
        {"n": 0},
        {"n": 1},
        {"n": 11, "suppressed_before": 2},
    ]


async def test_a_handler_that_fails_loses_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def explode(connection: FrameConnection, frame: memoryview) -> None:
        if frame == b"bang":
            raise RuntimeError("boom")
        connection.send(bytes(frame))

    async with serving(explode) as served:
        good, recorder = await served.connect()
        bad, bad_recorder = await served.connect()
        bad.send(b"bang")
        bad.send(b"after")
        await eventually(lambda: bad_recorder.closed, "the close")
        assert "boom" in caplog.text
        assert served.handlers[1].frames == [b"bang"]
        good.send(b"fine")
        await eventually(lambda: recorder.frames, "the echo")


async def test_nothing_is_delivered_after_the_handler_has_closed() -> None:
    async with serving(lambda connection, frame: connection.close("enough")) as served:
        connection, recorder = await served.connect()
        connection._transport.write(framed(b"one", b"two", b"three"))  # type: ignore[union-attr]
        await eventually(lambda: recorder.closed, "the close")
        assert served.handlers[0].frames == [b"one"]


async def test_a_claim_does_not_get_the_memory() -> None:
    async with serving(max_frame_bytes=1 << 30, budget=ByteBudget(2 << 30)) as served:
        with served.dial() as bad:
            bad.sendall(struct.pack(">i", 1 << 30) + bytes(50_000))
            await eventually(
                lambda: served.handlers and served.handlers[0].connection._filled > 50_000, "the first bytes"
            )
            assert len(served.handlers[0].connection._buffer) <= (1 << 20) * 9 // 8


# ---- memory ------------------------------------------------------------------------------------------------


async def test_the_buffer_grows_to_a_frame_and_shrinks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SHRINK_AFTER_S", 0.03)
    async with serving(echo) as served:
        connection, recorder = await served.connect()
        connection.send(bytes(2 << 20))
        await eventually(lambda: recorder.frames, "the echo")
        assert 2 << 20 <= len(served.handlers[0].connection._buffer) < 5 << 20
        await eventually(
            lambda: len(served.handlers[0].connection._buffer) == FIRST_BUFFER_BYTES, "the buffer to shrink"
        )
        connection.send(bytes(6 << 20))
        await eventually(lambda: len(recorder.frames) == 2, "the second echo")
        assert len(served.handlers[0].connection._buffer) == FIRST_BUFFER_BYTES, (
            "a very large buffer is given back at once"
        )
        connection.send(b"small")
        await eventually(lambda: len(recorder.frames) == 3, "the third echo")


def test_a_budget_serves_in_order_and_an_oversized_frame_alone() -> None:
    budget = ByteBudget(100)
    order: list[str] = []
    assert budget.take(60, lambda: None)
    assert not budget.take(60, lambda: order.append("second"))
    assert not budget.take(10, lambda: order.append("third")), "it would fit, but it is not its turn"
    budget.give_back(60)
    assert order == ["second", "third"]
    assert not budget.take(500, lambda: order.append("huge"))
    budget.give_back(60)
    assert order == ["second", "third"]
    budget.give_back(10)
    assert order == ["second", "third", "huge"]
    budget.give_back(500)
    assert budget.used_bytes == 0
    with pytest.raises(ValueError, match="nothing through"):
        ByteBudget(0)


def test_a_waiter_that_leaves_lets_the_next_one_in() -> None:
    budget = ByteBudget(100)
    order: list[str] = []
    budget.take(50, lambda: None)

    def big() -> None:
        order.append("big")

    budget.take(90, big)
    budget.take(20, lambda: order.append("small"))
    budget.forget(big)
    assert order == ["small"]
    budget.forget(big)
    assert budget.used_bytes == 70


@pytest.mark.parametrize("how", ["finished", "gone"])
async def test_frames_beyond_the_budget_wait_until_there_is_room(how: str) -> None:
    budget = ByteBudget(1_000_000)
    async with serving(budget=budget) as served:
        first, second = served.dial(), served.dial()
        payload = bytes(900_000)
        first.sendall(framed(payload)[:500_000])
        await eventually(lambda: budget.used_bytes == 900_000, "the first frame's reservation")
        sending = asyncio.to_thread(second.sendall, framed(payload, b"small"))
        task = asyncio.ensure_future(sending)
        await eventually(lambda: budget.waiting_count == 1, "the second frame to wait")
        assert sum(len(handler.frames) for handler in served.handlers) == 0
        if how == "finished":
            await asyncio.to_thread(first.sendall, framed(payload)[500_000:])
        else:
            first.close()
        await task
        await eventually(
            lambda: any(h.frames[-1:] == [b"small"] for h in served.handlers),
            "the second connection's frames",
        )
        assert budget.used_bytes == 0
        first.close()
        second.close()


async def test_without_a_bound_no_frame_waits() -> None:
    """The ablation: the same traffic under a budget that bounds nothing."""
    budget = ByteBudget(1 << 40)
    async with serving(budget=budget) as served:
        with served.dial() as first, served.dial() as second:
            first.sendall(framed(bytes(900_000))[:500_000])
            await eventually(lambda: budget.used_bytes == 900_000, "the first frame's reservation")
            await asyncio.to_thread(second.sendall, framed(bytes(900_000)))
            await eventually(lambda: any(handler.frames for handler in served.handlers), "the second frame")
            assert budget.waiting_count == 0


async def test_a_leased_frame_counts_until_it_is_released() -> None:
    budget = ByteBudget(1_000_000)
    leases: list[FrameLease] = []
    async with serving(lambda connection, frame: leases.append(connection.detach()), budget=budget) as served:
        connection, _ = await served.connect()
        connection.send(bytes(700_000))
        connection.send(bytes(700_000))
        await eventually(lambda: budget.waiting_count == 1, "the second frame to wait")
        assert len(leases) == 1
        assert budget.used_bytes == 700_000
        leases[0].release()
        await eventually(lambda: len(leases) == 2, "the second frame")
        leases[1].release()
        assert budget.used_bytes == 0


# ---- listening ---------------------------------------------------------------------------------------------


async def test_connections_beyond_the_bound_are_refused_and_room_is_used_again() -> None:
    async with serving(echo, max_connections=2) as served:
        first, _ = await served.connect()
        await served.connect()
        _, refused = await served.connect()
        await eventually(lambda: refused.closed, "the refusal")
        first.close()
        await eventually(lambda: len(served.server.connections) == 1, "the room")
        again, recorder = await served.connect()
        again.send(b"x")
        await eventually(lambda: recorder.frames, "an echo")


async def test_a_port_in_use_is_named_with_what_to_do() -> None:
    async with serving() as served:
        with pytest.raises(
            PortInUse, match=f"port {served.port} on 127.0.0.1 is in use: stop the process"
        ) as caught:
            await serve_frames(HOST, served.port, Recorder, MAX)
        assert isinstance(caught.value, OSError)
        assert caught.value.port == served.port


async def test_an_address_of_another_machine_is_an_oserror() -> None:
    with pytest.raises(OSError, match="cannot assign requested address") as caught:
        await serve_frames("203.0.113.1", 0, Recorder, MAX)
    assert not isinstance(caught.value, PortInUse)


def test_running_out_of_file_descriptors_does_not_close_the_listener() -> None:
    script = """
import asyncio.constants, resource, socket
from tidegate.runtime.network import serve_frames

asyncio.constants.ACCEPT_RETRY_DELAY = 0.1  # instead of 1 s

class Echo:
    def __init__(self, connection): self.connection = connection
    def on_frame(self, frame): self.connection.send(bytes(frame))
    def on_close(self, reason): pass

async def main():
    server = await serve_frames("127.0.0.1", 0, Echo, 1000)
    clients = [socket.socket() for _ in range(20)]
    for client in clients:
        client.setblocking(False)
    probe = socket.socket(); fd = probe.fileno(); probe.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 5, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    loop = asyncio.get_running_loop()
    for client in clients:
        await loop.sock_connect(client, ("127.0.0.1", server.port))
    while len(server.connections) < 5:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # the sixth accept fails meanwhile
    assert len(server.connections) == 5, len(server.connections)
    for client in clients[:5]:
        client.close()
    await loop.sock_sendall(clients[7], b"\\0\\0\\0\\1x")
    assert await asyncio.wait_for(loop.sock_recv(clients[7], 10), 20) == b"\\0\\0\\0\\1x"
    print("served again")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "served again", done.stderr
    assert "Too many open files" in done.stderr, "the shortage really happened"


async def test_closing_the_server_writes_what_was_sent_and_frees_the_port() -> None:
    async with serving(echo) as served:
        connection, recorder = await served.connect()
        connection.send(bytes(3 << 20))
        await eventually(lambda: served.handlers and served.handlers[0].frames, "the frame")
        await served.server.close()
        await eventually(lambda: recorder.closed, "the close")
        assert [len(frame) for frame in recorder.frames] == [3 << 20]
        again = await serve_frames(HOST, served.port, Recorder, MAX)
        await again.close()


async def test_a_peer_that_does_not_read_cannot_delay_the_servers_closing() -> None:
    async with serving(answer_much) as served:
        await flood(served)
        raw = served.dial()
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(raw, framed(*[b"q"] * 200))
        await eventually(
            lambda: len(served.handlers) == 2 and served.handlers[1].connection.write_backlog > 100_000,
            "a backlog",
        )
        await asyncio.wait_for(served.server.close(grace_s=0.1), 5)
        assert served.server.connections == set()
        raw.close()


# ---- clients -----------------------------------------------------------------------------------------------


async def test_a_refused_connection_is_an_oserror() -> None:
    with pytest.raises(ConnectionRefusedError):
        await connect_frames(HOST, free_port(), lambda frame: None, lambda reason: None, MAX, 5)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("node..dom", 9),
        (".dom", 9),
        ("a" * 64, 9),
        ("a." * 200, 9),
        ("node\0dom", 9),
        ("\u00e4..", 9),
        ("\ud800", 9),
        (HOST, 65536),
    ],
)
async def test_an_address_that_can_be_no_hosts_is_an_oserror(host: str, port: int) -> None:
    """Python's own errors for it are no OSError, and would escape callers that expect a connection to
    fail."""
    with pytest.raises(
        OSError, match=r"cannot be looked up|characters, more than|cannot be printed|is no port"
    ):
        await connect_frames(host, port, lambda frame: None, lambda reason: None, MAX, 5)
    assert await get(host, port, "/", 5) is None


@pytest.mark.parametrize(
    "host",
    ["node", "node.dom.", "a" * 63 + ".dom", "10.0.0.1", "::1", "fe80::1%eth0", "b\u00fccher.example", "a_b"],
)
def test_names_and_addresses_of_hosts_are_let_through(host: str) -> None:
    assert host_problem(host) is None


async def test_a_slow_connection_is_a_timeout_that_names_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    with pytest.raises(TimeoutError, match=r"no connection to 127\.0\.0\.1:9 within 0\.05 s"):
        await connect_frames(HOST, 9, lambda frame: None, lambda reason: None, MAX, 0.05)


async def test_closing_tells_both_ends_once_and_later_sends_are_refused_quietly() -> None:
    async with serving(echo) as served:
        connection, recorder = await served.connect()
        await eventually(lambda: served.handlers, "the connection")
        connection.close("enough")
        assert not connection.send(b"late")
        assert not connection.is_open
        connection.close()
        await eventually(lambda: recorder.closed and served.handlers[0].closed, "both ends")
        assert recorder.closed == ["enough"]
        assert served.handlers[0].closed == ["the peer closed the connection"]
        assert not served.handlers[0].connection.send(b"late")
        assert served.handlers[0].connection.write_backlog == 0


async def test_a_connection_whose_peer_does_not_read_still_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "LINGER_S", 0.05)
    async with serving(answer_much) as served:
        raw = served.dial()
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(raw, framed(*[b"q"] * 200))
        await eventually(
            lambda: served.handlers and served.handlers[0].connection.write_backlog > 100_000, "a backlog"
        )
        served.handlers[0].connection.close("enough")
        await eventually(lambda: served.handlers[0].closed, "the close")
        assert served.handlers[0].closed == ["enough"]
        raw.close()


async def test_a_peer_has_a_name_and_small_packets_are_not_delayed() -> None:
    async with serving(echo) as served:
        connection, _ = await served.connect()
        assert connection.peer == f"127.0.0.1:{served.port}"
        sock = connection._transport.get_extra_info("socket")  # type: ignore[union-attr]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


# ---- gRPC --------------------------------------------------------------------------------------------------


class Reverse(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def reverse(request: bytes, context: object) -> bytes:
            return request[::-1]

        return grpc.unary_unary_rpc_method_handler(reverse)


async def test_grpc_carries_large_messages_and_rejects_a_port_in_use() -> None:
    server = network.grpc_server()
    server.add_generic_rpc_handlers((Reverse(),))
    port = network.bind_grpc(server, HOST, 0)
    await server.start()
    try:
        other = network.grpc_server()
        with pytest.raises(PortInUse, match=f"port {port} "):
            network.bind_grpc(other, HOST, port)
        payload = random.Random(1).randbytes(10 << 20)
        async with network.grpc_channel(f"{HOST}:{port}") as channel:
            assert await channel.unary_unary("/a/b")(payload) == payload[::-1]  # type: ignore[arg-type]
        with network.grpc_channel_blocking(f"{HOST}:{port}") as blocking:
            assert await asyncio.to_thread(blocking.unary_unary("/a/b"), payload) == payload[::-1]  # type: ignore[arg-type]
    finally:
        await server.stop(0)


GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Of HTTP/2: after it a connection is whole, and may stay silent."""


async def greeted(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
    """A connection, and whether the server greets it, too."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(GREETING)
    try:
        return reader, writer, bool(await reader.read(9))
    except ConnectionResetError:
        return reader, writer, False


@pytest.mark.parametrize(("asked", "descriptors"), [(3, 10_000), (3, resource.RLIM_INFINITY), (10_000, 12)])
async def test_a_grpc_server_bounds_its_connections(
    asked: int, descriptors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    server = network.grpc_server(connections_max=asked)
    port = network.bind_grpc(server, HOST, 0)
    await server.start()
    try:
        opened = [await greeted(port) for _ in range(5)]
        assert [is_served for *_, is_served in opened] == [True, True, True, False, False]
        opened[0][1].transport.abort()

        async def is_served() -> bool:
            opened.append(await greeted(port))
            return opened[-1][2]

        await eventually(is_served, "the place of a connection that has ended is free")
        for _, writer, _ in opened:
            writer.transport.abort()
    finally:
        await server.stop(0)


async def test_a_grpc_connection_without_calls_ends() -> None:
    server = network.grpc_server(idle_s=0.2)
    port = network.bind_grpc(server, HOST, 0)
    await server.start()
    try:
        reader, writer, is_served = await greeted(port)
        assert is_served
        async with asyncio.timeout(20):
            await reader.read()  # to the end
        writer.close()
    finally:
        await server.stop(0)


async def test_a_grpc_server_for_clients_reads_small_requests_alone() -> None:
    server = network.grpc_server(network.GRPC_FOR_CLIENTS)
    server.add_generic_rpc_handlers((Reverse(),))
    port = network.bind_grpc(server, HOST, 0)
    await server.start()
    try:
        async with network.grpc_channel(f"{HOST}:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
                await channel.unary_unary("/a/b")(bytes(5 << 20))  # type: ignore[arg-type]
    finally:
        await server.stop(0)


async def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    assert network.port_is_free(port)
    server = await serve_frames(HOST, port, Recorder, MAX)
    assert server.port == port
    assert not network.port_is_free(port)
    await server.close()


# ---- one question ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"\0\0\0\x02ab", None),
        (b"\0\0\x06\x04\0\0\0\0\0" + bytes(6), network.AnswersInHttp2),  # SETTINGS, as a gRPC server begins
        (b"\0\0\x06\x04" + b"\0\0\0\x07 a part", ConnectionError),  # of a frame that is as long
        (b"\0\0\0\x03ab", ConnectionError),
        (b"\0\0", ConnectionError),
        (b"", ConnectionError),
        (b"HTTP/1.1 400", ConnectionError),
    ],
)
async def test_an_answer_is_a_whole_frame_or_an_error_that_tells_grpc_from_the_rest(
    answer: bytes, error: type[ConnectionError] | None
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(6) == b"\0\0\0\x02hi"
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        asked = asyncio.to_thread(network.ask_frame, HOST, port, b"hi", 10)
        if error is None:
            assert await asked == b"ab"
        else:
            with pytest.raises(ConnectionError) as failed:
                await asked
            assert type(failed.value) is error


async def test_a_client_that_is_lost_during_an_answer_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    network.grpc_server()
    says = logging.getLogger("grpc._cython.cygrpc")
    says.error("ExecuteBatchError raised in core by servicer method [/tidegate.data.Data/ReadRange]")
    says.error("Exception raised in a handler")
    assert caplog.messages == ["Exception raised in a handler"]


def test_a_look_at_connections_without_a_free_descriptor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(number: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", refuses)
    with pytest.raises(OSError, match="Too many open files"):
        network.bytes_taken(["ipv4:127.0.0.1:1"])


# ---- the connections of one client -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")]
)
async def test_only_the_connection_of_the_named_client_is_seen_and_shut(
    family: socket.AddressFamily, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the listener is of IPv6, and calls a client of IPv4 by a longer name."""
    with socket.socket(family) as listening:
        if family is socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind((host, 0))
        listening.listen()
        port = listening.getsockname()[1]
        with (
            socket.create_connection(("127.0.0.1", port), 10) as named,
            listening.accept()[0] as accepted,
            socket.create_connection(("127.0.0.1", port), 10) as other,
            listening.accept()[0] as of_other,
        ):
            peers = [f"ipv4:127.0.0.1:{named.getsockname()[1]}"]
            # without those of earlier tests in this process, whose numbers may be given again
            monkeypatch.setattr(network, "_grpc_ports", set())
            network.shut_connections_of(peers)
            assert network.bytes_taken(peers) == {}
            of_named = accepted
            of_named.send(b"x")
            assert named.recv(1) == b"x", "of a listener that is none of gRPC's nothing is shut"
            monkeypatch.setattr(network, "_grpc_ports", {port})
            of_named.send(b"some more")
            assert named.recv(9) == b"some more"
            peers += ["unix:/tmp/s", "vsock:1:2", "", "ipv4:127.0.0.1:", "ipv6:%5B::1%5D:9"]
            before = network.bytes_taken(peers)
            assert list(before) == peers[:1]
            of_named.send(bytes(1_000))
            assert len(named.recv(1_000, socket.MSG_WAITALL)) == 1_000
            await eventually(lambda: network.bytes_taken(peers)[peers[0]] >= before[peers[0]] + 1_000)
            network.shut_connections_of(peers)
            assert named.recv(1) == accepted.recv(1) == b""
            of_other.send(b"x")
            assert other.recv(1) == b"x"
