"""Range connections: whole ranges, nothing of a node that has lost its leadership, and gRPC where there are
none."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from tidegate.node.data import data_service
from tidegate.node.data import range_connections as served_connections
from tidegate.node.data.range_turns import RangeTurns, Turn
from tidegate.proto import data_pb2 as pb
from tidegate.proto import data_pb2_grpc
from tidegate.proto.range_chunks import RecordsChunk, serialize
from tidegate.proto.range_frames import CHUNK, CONFIRMED, END, FAILED, GREETING, STORED
from tidegate.runtime.connections import file_sending
from tidegate.runtime.connections.blocking_frames import PIECE_BYTES, BlockingFrames
from tidegate.runtime.connections.file_sending import FilePart
from tidegate.runtime.disk import RealFile
from tidegate.runtime.network import PortInUse, free_port, grpc_channel_blocking
from tidegate.security.quotas import QuotaEntity, QuotaKind
from tidegate.spark.connecting import range_connections
from tidegate.spark.connecting.answers import LeaderView
from tidegate.spark.connecting.data_client import DataClient, offset_query
from tidegate.spark.connecting.errors import ReadError, StreamLost
from tidegate.spark.connecting.retry import StallWatchdog
from tidegate.spark.reading.fetch import FetchedPart, fetch_range
from tidegate.storage.log.bulk_read import BulkRead, begin_bulk_read
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import decode_batch

from .conftest import LeapingClock
from .range_reads import LENGTH, Reader, all_of, large_steps, read, ticket, wanted, whole
from .served import TOPIC_ID, ServedCluster, history


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path, 2, **{"segment.bytes": "10000000"}) as served:
        served.fill("flights", 0, history(1, 300), leader=1)
        yield served


@pytest.fixture
def client(cluster: ServedCluster) -> Iterator[DataClient]:
    client = DataClient([cluster.bootstrap.split(",")[0]], reads_local_files=False, retry_timeout_ms=5_000)
    yield client
    client.close()


def open_connections(cluster: ServedCluster, node: int = 1) -> int:
    server = cluster.nodes[node].ranges._server
    assert server is not None
    return server.open_count


def descriptors(cluster: ServedCluster, node: int = 1) -> int:
    """Of this process, for connections that the node has: each may have two."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(number))) as same:
            if same.family == socket.AF_INET and same.getpeername():
                found += same.getsockname()[1] == cluster.nodes[node].ranges.port
    return found


def wait_for(condition: Callable[[], object]) -> None:
    asyncio.run(eventually(condition))


# ---- reads -------------------------------------------------------------------------------------------------


def test_one_connection_serves_read_after_read_and_grpc_none(
    cluster: ServedCluster, client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_service.DataService, "ReadRange", None)
    for _ in range(3):
        assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert open_connections(cluster) == 1


def test_a_range_in_many_chunks_is_whole(
    cluster: ServedCluster, client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_service, "FILE_CHUNK_BYTES", 1_000)
    assert len(list(fetch_range(client, whole(cluster)))) > 20
    assert read(client, whole(cluster)) == wanted(history(1, 300))


def test_a_reader_that_wants_no_more_leaves_its_turn_and_its_connection(
    cluster: ServedCluster, client: DataClient
) -> None:
    cluster.fill("large", 0, large_steps(40), leader=1)
    gc.disable()  # descriptors are not left to it
    for _ in range(30):
        with closing(cast(Generator[FetchedPart], fetch_range(client, whole(cluster, "large")))) as chunks:
            next(chunks)
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    wait_for(lambda: (open_connections(cluster), cluster.nodes[1].service._turns.active) == (1, 0))
    wait_for(lambda: descriptors(cluster) <= 2)
    gc.enable()


def test_a_slow_reader_takes_no_turn_and_gets_everything(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the system's buffers hold."""
    monkeypatch.setattr(data_service, "PARK_AFTER_S", 0.02)
    cluster.fill("large", 0, large_steps(60), leader=1)
    cluster.nodes[1].service._turns = RangeTurns(active_max=1)
    client, other = (
        DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000)
        for _ in range(2)
    )
    slow = fetch_range(client, whole(cluster, "large"))
    first = next(slow)
    for _ in range(3):
        assert read(other, whole(cluster)) == wanted(history(1, 300))
    assert cluster.nodes[1].service._turns.held_bytes == 0, "nothing of it is in the node's memory"
    found = [
        record.offset
        for chunk in (first, *slow)
        for position, _ in chunk.visible
        for record in decode_batch(chunk.records, position)
    ]
    assert found == list(range(60))
    client.close()
    other.close()


def test_chunks_do_not_share_memory(cluster: ServedCluster, client: DataClient) -> None:
    cluster.fill("large", 0, large_steps(20), leader=1)
    chunks = list(fetch_range(client, whole(cluster, "large")))
    assert len(chunks) > 2
    records = [
        record for chunk in chunks for at, _ in chunk.visible for record in decode_batch(chunk.records, at)
    ]
    assert [int((record.value or b"")[:9]) for record in records] == list(range(20))


# ---- what a node may not send ------------------------------------------------------------------------------


@pytest.mark.parametrize("looks_again", [True, False])
def test_what_a_node_sends_while_it_loses_its_leadership_is_not_taken(
    cluster: ServedCluster, client: DataClient, monkeypatch: pytest.MonkeyPatch, *, looks_again: bool
) -> None:
    """And the ablation: without the second look it would be."""
    send_at, sends = RealFile.send_at, 0

    def lose_leadership(file: RealFile, descriptor: int, position: int, length: int) -> int:
        nonlocal sends
        sends += 1
        if sends == 1:
            cluster.move("flights", 0, 2)
        return send_at(file, descriptor, position, length)

    client.describe(["flights"])
    monkeypatch.setattr(RealFile, "send_at", lose_leadership)
    if not looks_again:
        monkeypatch.setattr(data_service.DataService, "_require_still_pinned", lambda *_: None)
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert open_connections(cluster, 2) == looks_again, "the range is asked for again"


def test_a_disk_that_fails_in_the_middle_of_a_chunk_takes_the_replica_offline(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader gets no torn chunk, and goes on at the next leader."""
    send_at, sends = RealFile.send_at, 0
    cluster.fill("large", 0, large_steps(20), leader=1)

    def fail(file: RealFile, descriptor: int, position: int, length: int) -> int:
        nonlocal sends
        sends += 1
        if sends == 1:
            return send_at(file, descriptor, position, 100_000)
        if sends == 2:
            raise OSError(errno.EIO, "input/output error", str(file.path))
        return send_at(file, descriptor, position, length)

    monkeypatch.setattr(RealFile, "send_at", fail)
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=20_000)
    request = whole(cluster, "large")
    found: list[list[tuple[int, bytes | None]]] = []
    reading = threading.Thread(target=lambda: found.append(read(client, request)))
    reading.start()
    log = cluster.nodes[1].replicas.replica("large", 0).log
    wait_for(lambda: log.is_offline)
    cluster.move("large", 0, 2)
    reading.join(30)
    assert [offset for offset, _ in found[0]] == list(range(20))
    client.close()


def test_nothing_follows_a_torn_chunk(cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader would take it for records."""
    send_at, sends = RealFile.send_at, 0
    cluster.fill("large", 0, large_steps(20), leader=1)

    def fail(file: RealFile, descriptor: int, position: int, length: int) -> int:
        nonlocal sends
        sends += 1
        if sends > 1:
            raise OSError(errno.EIO, "input/output error", str(file.path))
        return send_at(file, descriptor, position, 100_000)

    monkeypatch.setattr(RealFile, "send_at", fail)
    request = pb.ReadRangeRequest(topic="large", partition=0, leader_epoch=-1, start=0, end=20)
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(request.SerializeToString())
        (size,) = LENGTH.unpack(reader._stream.read(4))
        came = len(reader._stream.read())
    assert 100_000 < came < 100_100 < size


def test_a_file_that_is_too_short_is_no_record(cluster: ServedCluster) -> None:
    cluster.fill("large", 0, large_steps(3), leader=1)
    log = cluster.nodes[1].replicas.replica("large", 0).log
    path = log.segments.active.path("log")
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 10)
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=500)
    with pytest.raises(ReadError):
        read(client, whole(cluster, "large"))
    assert log.is_offline
    client.close()


def test_a_header_that_is_none_ends_the_read(
    cluster: ServedCluster, client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cluster.nodes[1].replicas.replica("flights", 0).log.segments.active.path("log")
    with open(path, "r+b") as file:
        file.seek(16)
        file.write(b"\x07")  # the magic byte
    with pytest.raises(ReadError, match="no whole batch at byte 0"):
        read(client, whole(cluster))


# ---- where there is no range connection --------------------------------------------------------------------


def test_a_node_without_them_is_asked_once(
    cluster: ServedCluster, client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, asked = range_connections.RangeConnections._open, 0

    def noted(connections: Any, *which: Any) -> Any:
        nonlocal asked
        asked += 1
        return opening(connections, *which)

    monkeypatch.setattr(range_connections.RangeConnections, "_open", noted)
    with cluster.over_grpc():
        for _ in range(3):
            assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert asked == 1


def test_a_listener_that_is_closed_invites_no_reader(cluster: ServedCluster) -> None:
    cluster.run(cluster.nodes[1].ranges.close())
    with grpc_channel_blocking(f"127.0.0.1:{cluster.nodes[1].port}") as channel:
        reply = data_pb2_grpc.DataStub(channel).OpenRangeConnection(pb.OpenRangeConnectionRequest())
    assert (reply.port, reply.ticket) == (0, b"")


def test_a_free_port_that_was_taken_meanwhile_is_not_the_last_one(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = cluster.nodes[1].ranges.port
    ports = iter([taken, taken, free_port()])
    monkeypatch.setattr(served_connections, "free_port", lambda: next(ports))
    node = cluster.nodes[2]
    cluster.run(node.ranges.close())
    cluster.run(node.ranges.start("127.0.0.1", 0))
    assert node.ranges.port != taken
    with pytest.raises(PortInUse):
        cluster.run(node.ranges.start("127.0.0.1", taken))


def test_a_port_that_is_not_reached_is_left_alone_for_longer_and_longer(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LeapingClock()
    client = DataClient(
        cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000, clock=clock
    )
    assert client._own_channels is not None
    client._own_channels.ranges._clock = clock
    ranges, port = cluster.nodes[1].ranges, cluster.nodes[1].ranges.port
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen
        ranges.port = bound.getsockname()[1]
        with caplog.at_level("INFO"):
            for leap_s, tries in ((0.0, 1), (59.0, 1), (2.0, 2), (118.0, 2), (3.0, 3)):
                clock.leapt_s += leap_s
                assert read(client, whole(cluster)) == wanted(history(1, 300))
                lines = [line for line in caplog.messages if "range_connection_not_used" in line]
                assert len(lines) == tries, leap_s
    ranges.port = port
    clock.leapt_s += range_connections.AVOIDED_S_MAX
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert open_connections(cluster) == 1
    assert client._own_channels.ranges._avoided == {}, "the next failure is a first one"
    client.close()


def test_a_node_of_an_older_version_serves_over_grpc(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_connections, "OPEN_RANGE_CONNECTION", "/tidegate.data.Data/NotKnown")
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000)
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert open_connections(cluster) == 0
    client.close()


def test_a_connection_that_the_node_closed_is_not_used_again(
    cluster: ServedCluster, client: DataClient
) -> None:
    assert read(client, whole(cluster)) == wanted(history(1, 300))

    async def close_all() -> None:
        server = cluster.nodes[1].ranges._server
        assert server is not None
        for connection in list(server.connections):
            connection.abort("idle")

    cluster.run(close_all())
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert open_connections(cluster) == 1


def test_another_session_has_another_connection(cluster: ServedCluster) -> None:
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000)
    channels = client._own_channels
    assert channels is not None
    endpoint = f"127.0.0.1:{cluster.nodes[1].port}"
    first = channels.ranges.take(endpoint, channels.to(endpoint), ())
    assert first is not None
    channels.ranges.give_back(endpoint, first)
    assert channels.ranges.take(endpoint, channels.to(endpoint), (("x", "y"),)) is not first
    client.close()


def test_a_lost_connection_takes_the_idle_ones_with_it(cluster: ServedCluster, client: DataClient) -> None:
    """They may be as dead, and each would cost a timeout."""
    cluster.fill("large", 0, large_steps(40), leader=1)
    assert client._own_channels is not None
    connections, endpoint = client._own_channels.ranges, f"127.0.0.1:{cluster.nodes[1].port}"
    taken = [connections.take(endpoint, client._own_channels.to(endpoint), ()) for _ in range(3)]
    for each in taken:
        assert each is not None
        connections.give_back(endpoint, each)
    chunks = fetch_range(client, whole(cluster, "large"))
    next(chunks)

    async def close_reading() -> None:
        server = cluster.nodes[1].ranges._server
        assert server is not None
        for connection in list(server.connections):
            if connection.owes_answer:
                connection.abort("lost")

    assert len(connections._idle[endpoint]) == 2
    cluster.run(close_reading())
    assert sum(len(chunk.visible) for chunk in chunks) > 0
    wait_for(lambda: open_connections(cluster) == 1)


def test_a_session_that_ended_takes_its_connection_with_it(cluster: ServedCluster) -> None:
    ended = pb.ErrorDetail(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, message="the session has ended")
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000)
    with scripted(cluster, FAILED + ended.SerializeToString()):
        with pytest.raises(ReadError, match="the session has ended"):
            read(client, whole(cluster))
        assert client._own_channels is not None
        assert not any(client._own_channels.ranges._idle.values())
    client.close()


def test_a_forked_process_uses_no_connection_of_its_parent(
    cluster: ServedCluster, client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert client._own_channels is not None
    connections, endpoint = client._own_channels.ranges, f"127.0.0.1:{cluster.nodes[1].port}"
    (of_parent,) = connections._idle[endpoint]
    monkeypatch.setattr(connections, "_process", -1)
    connections.give_back(endpoint, of_parent)
    assert connections._idle[endpoint] == [of_parent], "not twice"
    taken = connections.take(endpoint, client._own_channels.to(endpoint), ())
    assert taken is not None
    assert taken is not of_parent
    taken.close()


def test_a_server_that_never_greets_is_left_soon(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_connections, "CONNECT_S", 0.5)
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000)
    ranges, port = cluster.nodes[1].ranges, cluster.nodes[1].ranges.port
    with socket.create_server(("127.0.0.1", 0)) as mute:
        ranges.port = mute.getsockname()[1]
        assert read(client, whole(cluster)) == wanted(history(1, 300)), "over gRPC"
    ranges.port = port
    client.close()


# ---- a node that is none -----------------------------------------------------------------------------------


@contextmanager
def scripted(
    cluster: ServedCluster, *frames: bytes, greeting: bytes = GREETING, then_silent: bool = False
) -> Iterator[None]:
    """In place of node 1's range connections: each connection gets its greeting, and these frames for an
    answer; then its end, or nothing."""
    ranges, port = cluster.nodes[1].ranges, cluster.nodes[1].ranges.port
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ranges.port = listening.getsockname()[1]
        held: list[socket.socket] = []

        def answer(opened: socket.socket) -> None:
            stream = opened.makefile("rb")
            for answers in ((greeting,), frames):
                prefix = stream.read(4)
                if len(prefix) < 4:
                    return
                stream.read(LENGTH.unpack(prefix)[0])
                for frame in answers:
                    opened.sendall(LENGTH.pack(len(frame)) + frame)
            if not then_silent:
                opened.shutdown(socket.SHUT_RDWR)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    held.append(listening.accept()[0])
                    with suppress(OSError):  # the client is gone
                        answer(held[-1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ranges.port = port
            listening.shutdown(socket.SHUT_RDWR)
            for each in held:
                each.close()


def chunk_of(cluster: ServedCluster) -> bytes:
    """The first, of another's making."""
    data = history(1, 300)[0].data
    return serialize(RecordsChunk(pb.RangeChunk(start_offset=0, next_offset=1), data))


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"\x09",),
        (CONFIRMED,),
        (STORED + b"\xff\xff",),
        (STORED, STORED),
        (STORED, END),
        (CHUNK + b"\xff\xff\xff",),
        (FAILED + b"\xff",),
        (END,),
    ],
    ids=lambda frames: "-".join(frame[:3].hex() or "empty" for frame in frames),
)
def test_a_node_that_answers_nonsense_gives_no_record(
    cluster: ServedCluster, frames: tuple[bytes, ...]
) -> None:
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000)
    with scripted(cluster, *frames):
        assert read(client, whole(cluster)) == wanted(history(1, 300)), "over gRPC"
    client.close()


def test_many_reads_that_meet_one_failure_avoid_the_node_once() -> None:
    connections = range_connections.RangeConnections(LeapingClock())
    for _ in range(8):
        connections.avoid("there", "it is away")
    assert connections._avoided["there"][1] == 2 * range_connections.AVOIDED_S


def test_a_chunk_that_comes_slowly_is_no_silence(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces come, each within the time in which a node may be silent."""
    renew, heard = StallWatchdog.renew, threading.Event()

    def note(watch: StallWatchdog) -> None:
        renew(watch)
        heard.set()

    monkeypatch.setattr(StallWatchdog, "renew", note)
    clock = LeapingClock()
    client = DataClient(
        cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=60_000, clock=clock
    )
    leader = LeaderView(1, -1, f"127.0.0.1:{cluster.nodes[1].port}")
    client.leaders.begin_with("flights", 0, leader)
    ranges, port = cluster.nodes[1].ranges, cluster.nodes[1].ranges.port
    pieces, chunk = 6, STORED + chunk_of(cluster) + bytes(6 * PIECE_BYTES)

    def answer(listening: socket.socket) -> None:
        opened = listening.accept()[0]
        with opened, opened.makefile("rb") as stream:
            stream.read(LENGTH.unpack(stream.read(4))[0])
            opened.sendall(LENGTH.pack(len(GREETING)) + GREETING)
            stream.read(LENGTH.unpack(stream.read(4))[0])
            opened.sendall(LENGTH.pack(len(chunk)))
            for at in range(0, len(chunk), PIECE_BYTES):
                clock.leapt_s += 20.0
                heard.clear()
                opened.sendall(chunk[at : at + PIECE_BYTES])
                threading.Event().wait(0.3)  # the watch looks several times in between
                assert at + PIECE_BYTES > len(chunk) or heard.wait(10)
            opened.sendall(LENGTH.pack(1) + CONFIRMED)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        ranges.port = listening.getsockname()[1]
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        stream = client.open_stream("flights", TOPIC_ID.bytes, 0, 0, 10, read_committed=True)
        with pytest.raises(StreamLost, match="the connection for ranges was lost"):
            next(stream)  # what follows the chunk is none of its fields: it came to its end all the same
        thread.join()
    assert clock.leapt_s == 20.0 * (pieces + 1)
    ranges.port = port
    client.close()


def test_a_frame_that_is_too_large_is_not_taken_into_memory(cluster: ServedCluster) -> None:
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000)

    taken: list[int] = []

    def memory(size: int) -> memoryview:
        taken.append(size)
        return memoryview(bytearray(size))

    with pytest.MonkeyPatch.context() as patch, scripted(cluster, CHUNK + bytes(100)):
        patch.setattr(range_connections, "_memory", memory)
        patch.setattr(range_connections, "MESSAGE_BYTES_MAX", 100)
        assert read(client, whole(cluster)) == wanted(history(1, 300)), "over gRPC"
    assert taken == [len(GREETING)]
    client.close()


def test_another_server_at_the_port_is_noticed(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    client = DataClient(cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=5_000)
    with scripted(cluster, greeting=b"SSH-2.0-OpenSSH_9"), caplog.at_level("INFO"):
        assert read(client, whole(cluster)) == wanted(history(1, 300)), "over gRPC"
    assert "another server answers there" in caplog.text
    client.close()


def test_a_silent_node_is_given_up(cluster: ServedCluster) -> None:
    clock = LeapingClock()
    client = DataClient(
        cluster.bootstrap.split(","), reads_local_files=False, retry_timeout_ms=60_000, clock=clock
    )
    leader = LeaderView(1, -1, f"127.0.0.1:{cluster.nodes[1].port}")
    client.leaders.begin_with("flights", 0, leader)
    with scripted(cluster, then_silent=True):
        stream = client.open_stream("flights", TOPIC_ID.bytes, 0, 0, 10, read_committed=True)
        leap = threading.Timer(0.2, lambda: setattr(clock, "leapt_s", 61.0))
        leap.start()
        with pytest.raises(Exception, match="was silent for 30 s"):
            next(stream)
        leap.join()
    client.close()


# ---- a reader that is none ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", [b"", b"guessed", bytes(32), bytes(300)], ids=["empty", "guessed", "zeros", "large"]
)
def test_a_reader_without_a_ticket_gets_nothing(cluster: ServedCluster, first: bytes) -> None:
    with Reader(cluster) as reader:
        reader.send(first)
        assert reader.receive() == b""


def test_a_reader_without_a_ticket_is_one_of_few_and_not_for_long(cluster: ServedCluster) -> None:
    server = cluster.nodes[1].ranges._server
    assert server is not None
    with Reader(cluster) as reader:
        wait_for(lambda: len(server.unauthenticated) == 1)
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        assert len(server.unauthenticated) == 0
    with Reader(cluster) as silent:
        wait_for(lambda: len(server.unauthenticated) == 1)
        silent.socket.sendall(LENGTH.pack(300))
        assert silent.receive() == b"", "no ticket is so long, and the node does not wait for it"


def test_connections_are_a_share_of_the_descriptors(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes[1]
    monkeypatch.setattr(served_connections, "share_of_descriptors", lambda one_in: 8 // one_in)
    cluster.run(node.ranges.close())
    cluster.run(node.ranges.start("127.0.0.1", 0))
    with Reader(cluster) as first, Reader(cluster) as second:
        first.send(ticket(cluster))
        assert first.receive() == GREETING
        assert second.receive() == b""


def test_reads_are_calls_of_their_principal(cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        monkeypatch.setattr(cluster.nodes[1].ranges.access, "_calls_max", 0)
        reader.send(all_of(cluster))
        answer = reader.receive()
    assert answer[:1] == FAILED
    assert pb.ErrorDetail.FromString(answer[1:]).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_reader_that_has_to_wait_knows_at_once_what_it_has(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_service, "FILE_CHUNK_BYTES", 1_000)
    monkeypatch.setattr(data_service, "WAITING_NOTE_S", 1_000.0)
    cluster.limits[QuotaEntity.of({"user": "ANONYMOUS"}), QuotaKind.FETCH] = 100.0
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(all_of(cluster))
        assert [reader.receive()[:1] for _ in range(2)] == [STORED, CONFIRMED]


def test_a_ticket_opens_one_connection(cluster: ServedCluster) -> None:
    shown = ticket(cluster)
    with Reader(cluster) as reader, Reader(cluster) as second:
        reader.send(shown)
        assert reader.receive() == GREETING
        second.send(shown)
        assert second.receive() == b""
        reader.send(all_of(cluster))
        kinds = [reader.receive()[:1] for _ in range(3)]
    assert kinds == [STORED, CONFIRMED, END]


@pytest.mark.parametrize("frame", [b"\xff\xff", bytes(70_000)], ids=["nonsense", "large"])
def test_a_frame_that_is_no_request_ends_the_connection(cluster: ServedCluster, frame: bytes) -> None:
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(frame)
        assert reader.receive() == b""


def test_a_range_is_asked_for_when_the_last_one_has_ended(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.fill("large", 0, large_steps(40), leader=1)
    request = pb.ReadRangeRequest(topic="large", partition=0, leader_epoch=-1, start=0, end=40)
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        with caplog.at_level("INFO"):
            reader.send(request.SerializeToString())
            reader.send(all_of(cluster))
            while reader.receive():
                pass
    assert "asks for a range while it is sent another one" in caplog.text
    wait_for(lambda: (open_connections(cluster), cluster.nodes[1].service._turns.active) == (0, 0))


def test_what_is_refused_is_said_and_the_connection_goes_on(cluster: ServedCluster) -> None:
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic, code in (("nosuch", unknown), ("n" * 249, unknown), ("flights", ErrorCode.NONE)):
            end = whole(cluster).end if topic == "flights" else 1
            request = pb.ReadRangeRequest(
                topic=topic, topic_id=TOPIC_ID.bytes, partition=0, leader_epoch=-1, start=0, end=end
            )
            reader.send(request.SerializeToString())
            answer = reader.receive()
            if code:
                assert answer[:1] == FAILED
                assert pb.ErrorDetail.FromString(answer[1:]).error_code == code
            else:
                assert answer[:1] == STORED


def test_a_reader_that_is_gone_in_the_middle_leaves_its_turn(cluster: ServedCluster) -> None:
    cluster.fill("large", 0, large_steps(40), leader=1)
    request = pb.ReadRangeRequest(topic="large", partition=0, leader_epoch=-1, start=0, end=40)
    for _ in range(5):
        with Reader(cluster) as reader:
            reader.send(ticket(cluster))
            assert reader.receive() == GREETING
            reader.send(request.SerializeToString())
            assert reader._stream.read(1_000)
    wait_for(lambda: (open_connections(cluster), cluster.nodes[1].service._turns.active) == (0, 0))


def test_a_reader_that_takes_nothing_is_ended_after_a_while(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may keep a deleted file on the disk."""
    monkeypatch.setattr(file_sending, "STILL_S", 0.1)
    cluster.fill("large", 0, large_steps(40), leader=1)
    request = pb.ReadRangeRequest(topic="large", partition=0, leader_epoch=-1, start=0, end=40)
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(request.SerializeToString())
        wait_for(lambda: (open_connections(cluster), cluster.nodes[1].service._turns.active) == (0, 0))


def test_a_chunk_that_was_sent_counts_although_the_next_cannot_be_read(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_service, "FILE_CHUNK_BYTES", 1_000)
    locate, located = BulkRead.locate, 0

    def fail(read: BulkRead) -> tuple[FilePart, int]:
        nonlocal located
        located += 1
        if located == 3:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "no whole batch")
        return locate(read)

    monkeypatch.setattr(BulkRead, "locate", fail)
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(all_of(cluster))
        kinds = [reader.receive()[:1] for _ in range(5)]
    assert kinds == [STORED, CONFIRMED, STORED, CONFIRMED, FAILED]


def test_a_reader_cannot_ask_for_chunks_of_any_size(cluster: ServedCluster) -> None:
    cluster.fill("large", 0, large_steps(40), leader=1)
    request = pb.ReadRangeRequest(
        topic="large", partition=0, leader_epoch=-1, start=0, end=40, chunk_bytes=2**31 - 1
    )
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(request.SerializeToString())
        assert len(reader.receive()) < data_service.FILE_CHUNK_BYTES_MAX + 1_000_000


def test_a_principal_has_so_many_connections(cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_connections, "CONNECTIONS_PER_PRINCIPAL_MAX", 2)
    tickets = [ticket(cluster) for _ in range(4)]
    with Reader(cluster) as first, Reader(cluster) as second, Reader(cluster) as third:
        for reader, shown, greets in zip((first, second, third), tickets, (True, True, False), strict=False):
            reader.send(shown)
            assert (reader.receive() == GREETING) is greets
    wait_for(lambda: open_connections(cluster) == 0)
    with Reader(cluster) as later:
        later.send(tickets[3])
        assert later.receive() == GREETING


def test_a_reader_that_leaves_the_queue_is_forgotten(cluster: ServedCluster) -> None:
    """The node sends it nothing meanwhile, and so meets no error."""
    turns = cluster.nodes[1].service._turns = RangeTurns(active_max=1)

    async def hold() -> Turn:
        return turns.enter(lambda: None, "other", 0.0)

    cluster.run(hold())
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(all_of(cluster))
        wait_for(lambda: turns.waiting == 1)
    wait_for(lambda: turns.waiting == 0)


def test_an_idle_connection_ends_and_one_that_is_served_does_not(cluster: ServedCluster) -> None:
    turns = cluster.nodes[1].service._turns = RangeTurns(active_max=1)
    server = cluster.nodes[1].ranges._server
    assert server is not None

    async def hold() -> Turn:
        return turns.enter(lambda: None, "other", 0.0)

    async def look(later_s: float) -> int:
        server.look_after(asyncio.get_running_loop().time() + later_s)
        return server.open_count

    async def leave() -> None:
        turns.leave(held, 0.0)

    held = cluster.run(hold())
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(all_of(cluster))
        wait_for(lambda: turns.waiting == 1)
        assert [cluster.run(look(later_s)) for later_s in (0.0, 100.0, 200.0)] == [1, 1, 1]
        cluster.run(leave())
        assert [reader.receive()[:1] for _ in range(3)] == [STORED, CONFIRMED, END]
        cluster.run(look(201.0))
        cluster.run(look(300.0))
        assert reader.receive() == b""


class FakeFrames:
    """What a node sends."""

    is_to_this_host = False

    def __init__(self, *frames: bytes) -> None:
        self._left = list(frames)
        self.heard = print

    def send(self, frame: bytes) -> None:
        pass

    def receive(self, *_: object) -> memoryview:
        return memoryview(self._left.pop(0))


@pytest.mark.parametrize("following", [STORED, CHUNK, END], ids=["stored", "chunk", "end"])
def test_a_chunk_that_is_not_confirmed_is_none(cluster: ServedCluster, following: bytes) -> None:
    frames = FakeFrames(STORED + chunk_of(cluster), following, CONFIRMED, END)
    connection = range_connections.RangeConnection(cast(BlockingFrames, frames), ())
    with pytest.raises(range_connections.RangeConnectionLost, match="where a chunk waits for its end"):
        list(connection.read(pb.ReadRangeRequest()))


def test_a_node_that_stops_ends_reads_in_progress(cluster: ServedCluster) -> None:
    cluster.fill("large", 0, large_steps(40), leader=1)
    request = pb.ReadRangeRequest(topic="large", partition=0, leader_epoch=-1, start=0, end=40)
    with Reader(cluster) as reader:
        reader.send(ticket(cluster))
        assert reader.receive() == GREETING
        reader.send(request.SerializeToString())
        assert reader._stream.read(1_000)
        cluster.run(cluster.nodes[1].ranges.close())
        assert open_connections(cluster) == 0


def test_the_wanted_batches_are_located_as_they_are_read(tmp_path: Path) -> None:
    with ServedCluster(tmp_path, nodes=1) as served:
        served.fill("flights", 0, history(9, 200), leader=1)
        log = served.nodes[1].replicas.replica("flights", 0).log

        async def compare() -> None:
            for start in range(0, log.last_stable_offset - 1, 37):
                placed = begin_bulk_read(log, start, 5_000, log.last_stable_offset)
                data, following = placed.run()
                part, located_next = placed.locate()
                assert part.file.read_at(part.start, part.length) == data
                assert located_next == following

        served.run(compare())


def test_offsets_still_come_over_grpc(cluster: ServedCluster, client: DataClient) -> None:
    view = client.describe(["flights"])["flights"]
    assert client.offsets(view, [offset_query(0)], read_committed=True)[0].offset == whole(cluster).end
    assert open_connections(cluster) == 0
