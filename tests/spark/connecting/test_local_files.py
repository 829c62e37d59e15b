"""Records that a reader on a node's machine reads from the node's file: never those of another file, and the
connection brings what it cannot read."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from tidegate.node.data import data_service
from tidegate.node.data import range_connections as served_connections
from tidegate.node.serving.grpc_callers import GrpcAccess
from tidegate.proto import data_pb2 as pb
from tidegate.proto.range_chunks import RecordsChunk, parse
from tidegate.proto.range_frames import CONFIRMED, END, FAILED, GREETING, IN_FILE, NOT_READ, READ, STORED
from tidegate.runtime.connections.blocking_frames import BlockingFrames, connect_blocking
from tidegate.runtime.disk import FileIdentity, RealDisk, RealFile
from tidegate.runtime.kernel_id import kernel_id
from tidegate.spark.connecting import range_connections
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.local_files import LocalFiles
from tidegate.spark.reading.fetch import fetch_range
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

from ..range_reads import Reader, large_steps, read, ticket, wanted, whole
from ..served import ServedCluster, history


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path, 2, **{"segment.bytes": "10000000"}) as served:
        served.fill("flights", 0, history(1, 300), leader=1)
        yield served


@pytest.fixture
def client(cluster: ServedCluster) -> Iterator[DataClient]:
    client = DataClient([cluster.bootstrap.split(",")[0]], retry_timeout_ms=5_000)
    yield client
    client.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what nodes send from their files."""
    lengths: list[int] = []
    send_at = RealFile.send_at

    def note(file: RealFile, descriptor: int, position: int, length: int) -> int:
        lengths.append(length)
        return send_at(file, descriptor, position, length)

    monkeypatch.setattr(RealFile, "send_at", note)
    return lengths


def segment(cluster: ServedCluster, topic: str = "flights") -> Path:
    return cluster.nodes[1].replicas.replica(topic, 0).log.segments.active.path("log")


def open_files(path: Path) -> int:
    """How often this process, which has the nodes, too, has the file open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found += Path(os.readlink(f"/proc/self/fd/{number}")) == path
    return found


def test_a_node_sends_none_of_what_its_neighbour_reads(
    cluster: ServedCluster, client: DataClient, sent: list[int]
) -> None:
    for _ in range(2):
        assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert not sent


def test_a_range_of_many_chunks_and_segments_is_whole(
    cluster: ServedCluster, client: DataClient, sent: list[int]
) -> None:
    cluster.fill("large", 0, large_steps(40), leader=1)
    open_before = open_files(segment(cluster, "large"))
    assert [offset for offset, _ in read(client, whole(cluster, "large"))] == list(range(40))
    assert not sent
    assert open_files(segment(cluster, "large")) == open_before


def test_a_reader_that_pauses_holds_no_file(cluster: ServedCluster, client: DataClient) -> None:
    cluster.fill("large", 0, large_steps(13), leader=1)  # one segment
    open_before = open_files(segment(cluster, "large"))
    chunks = fetch_range(client, whole(cluster, "large"))
    with closing(cast(Any, chunks)):
        next(chunks)
        assert open_files(segment(cluster, "large")) == open_before
    assert open_files(segment(cluster, "large")) == open_before


@pytest.mark.parametrize("looks_again", [True, False])
def test_what_is_read_while_the_node_loses_its_leadership_is_not_taken(
    cluster: ServedCluster, client: DataClient, monkeypatch: pytest.MonkeyPatch, *, looks_again: bool
) -> None:
    """And the ablation: without the second look it would be."""
    from_file, reads = LocalFiles.read, 0

    def lose_leadership(
        files: LocalFiles, told: pb.FileChunk, most: int, heard: Callable[[], None]
    ) -> RecordsChunk:
        nonlocal reads
        reads += 1
        if reads == 1:
            cluster.move("flights", 0, 2)
        return from_file(files, told, most, heard)

    client.describe(["flights"])
    monkeypatch.setattr(LocalFiles, "read", lose_leadership)
    if not looks_again:
        monkeypatch.setattr(data_service.DataService, "_require_still_pinned", lambda *_: None)
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert reads == 1 + looks_again, "the range is asked for again"


@pytest.mark.parametrize("compares", [True, False])
def test_another_file_of_the_same_name_is_not_read(
    cluster: ServedCluster,
    client: DataClient,
    sent: list[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    compares: bool,
) -> None:
    """And the ablation: its records would be taken."""
    records = segment(cluster).read_bytes()
    cluster.fill("other", 0, history(2, 300), leader=1)
    other = segment(cluster, "other").read_bytes()
    assert len(other) >= len(records) // 2
    (segment(cluster).parent / "other").write_bytes(other + records[len(other) :])
    os.replace(segment(cluster).parent / "other", segment(cluster))
    if not compares:
        monkeypatch.setattr(RealDisk, "open_same", lambda disk, path, _: disk.open(path, read_only=True))
        try:
            assert read(client, whole(cluster)) != wanted(history(1, 300))
        except Exception as error:
            assert "CRC" in str(error) or "batch" in str(error), error
        assert not sent
        return
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert sent


def test_a_file_that_the_reader_may_not_open_is_asked_for_once(
    cluster: ServedCluster, client: DataClient, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def refuse(disk: RealDisk, path: Path, identity: FileIdentity) -> RealFile:
        asked.append(path)
        raise PermissionError(13, "permission denied", str(path))

    monkeypatch.setattr(RealDisk, "open_same", refuse)
    for _ in range(2):
        assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert sent
    assert asked == [segment(cluster)]


def test_a_disk_that_cannot_be_read_here_is_the_nodes_matter(
    cluster: ServedCluster, client: DataClient, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.fill("large", 0, large_steps(13), leader=1)
    monkeypatch.setattr(data_service, "FILE_CHUNK_BYTES_MAX", 8 << 20)
    from_file, reads = LocalFiles.read, 0

    def fail_later(
        files: LocalFiles, told: pb.FileChunk, most: int, heard: Callable[[], None]
    ) -> RecordsChunk:
        nonlocal reads
        reads += 1
        if reads > 1:
            raise OSError(5, "input/output error")
        return from_file(files, told, most, heard)

    monkeypatch.setattr(LocalFiles, "read", fail_later)
    assert [offset for offset, _ in read(client, whole(cluster, "large"))] == list(range(13))
    assert reads == 2
    assert sent


@pytest.mark.parametrize("reason", ["another kernel", "a tunnel", "the option"])
def test_a_reader_elsewhere_gets_the_records_sent(
    cluster: ServedCluster, sent: list[int], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def read_none(*_: object) -> RecordsChunk:
        raise AssertionError("no file is read here")

    monkeypatch.setattr(LocalFiles, "read", read_none)
    if reason == "another kernel":
        monkeypatch.setattr(range_connections, "kernel_id", lambda: "another")
    elif reason == "a tunnel":
        monkeypatch.setattr(BlockingFrames, "is_to_this_host", False)
    client = DataClient(
        [cluster.bootstrap.split(",")[0]], reads_local_files=reason != "the option", retry_timeout_ms=5_000
    )
    assert read(client, whole(cluster)) == wanted(history(1, 300))
    assert sent
    client.close()


def test_which_connection_is_to_this_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        own = connect_blocking("127.0.0.1", port, 5)
        assert own.is_to_this_host
        own.close()
        assert not own.is_to_this_host
        with socket.create_connection(("127.0.0.1", port), 5, ("127.0.0.2", 0)) as from_elsewhere:
            assert not BlockingFrames(from_elsewhere).is_to_this_host


# ---- what a node tells -------------------------------------------------------------------------------------


class FakeFrames:
    """What a node sends, and what it is sent."""

    is_to_this_host = True

    def __init__(self, *frames: bytes) -> None:
        self._left = list(frames)
        self.heard = print
        self.came: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.came.append(frame)

    def receive(self, *_: object) -> memoryview:
        return memoryview(self._left.pop(0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "records"
    path.write_bytes(b"0123456789")
    return path


def told(path: Path, **others: Any) -> pb.FileChunk:
    found = path.stat()
    values: dict[str, Any] = {"device": found.st_dev, "inode": found.st_ino, "position": 2, "length": 5}
    return pb.FileChunk(path=os.fsencode(path), **(values | others))


def test_what_is_read_counts_when_it_is_confirmed(file: Path) -> None:
    frames = FakeFrames(IN_FILE + told(file).SerializeToString(), CONFIRMED, END)
    connection = range_connections.RangeConnection(cast(BlockingFrames, frames), ())
    (chunk,) = connection.read(pb.ReadRangeRequest())
    assert (bytes(chunk.records), frames.came[1:]) == (b"23456", [READ])
    frames = FakeFrames(IN_FILE + told(file).SerializeToString(), END)
    connection = range_connections.RangeConnection(cast(BlockingFrames, frames), ())
    with pytest.raises(range_connections.RangeConnectionLost, match="where a chunk waits for its end"):
        list(connection.read(pb.ReadRangeRequest()))


@pytest.mark.parametrize(
    "others",
    [
        {"path": b""}, {"path": b"a\0b"}, {"path": b"/no/such/file"}, {"path": b"/tmp"},
        {"inode": 1}, {"device": 1}, {"length": 9}, {"length": 0}, {"length": -1}, {"length": 1 << 40},
        {"position": -1}, {"position": 1 << 40},
    ],
    ids=str,
)  # fmt: skip
def test_a_place_that_is_none_is_not_read(file: Path, others: dict[str, Any]) -> None:
    message = told(file)
    for name, value in others.items():
        setattr(message, name, value)
    sent = STORED + pb.RangeChunk(next_offset=9).SerializeToString()
    frames = FakeFrames(IN_FILE + message.SerializeToString(), sent, CONFIRMED, END, END)
    connection = range_connections.RangeConnection(cast(BlockingFrames, frames), ())
    (chunk,) = connection.read(pb.ReadRangeRequest())
    assert (chunk.fields.next_offset, frames.came[1:]) == (9, [NOT_READ])
    assert not list(connection.read(pb.ReadRangeRequest()))
    assert pb.ReadRangeRequest.FromString(frames.came[2]).kernel_id, "another range may be read"


def test_a_node_that_tells_again_is_not_followed(file: Path) -> None:
    wrong = IN_FILE + told(file, inode=1).SerializeToString()
    frames = FakeFrames(wrong, wrong)
    connection = range_connections.RangeConnection(cast(BlockingFrames, frames), ())
    with pytest.raises(range_connections.RangeConnectionLost, match="unknown kind"):
        list(connection.read(pb.ReadRangeRequest()))
    assert frames.came[1:] == [NOT_READ]


def test_a_disk_that_hangs_is_left(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For good: what it says later is not taken for the answer to another read."""
    hangs, asked = threading.Event(), threading.Event()
    read_into = RealFile.read_into

    def hang(file: RealFile, position: int, room: memoryview) -> int:
        asked.set()
        hangs.wait(30)
        return read_into(file, position, room)

    files = LocalFiles(lambda size: memoryview(bytearray(size)))
    monkeypatch.setattr(RealFile, "read_into", hang)

    def give_up() -> None:
        asked.wait(30)
        files.give_up()

    leaving = threading.Thread(target=give_up)
    leaving.start()
    with pytest.raises(OSError, match="waits no longer"):
        files.read(told(file), 100, lambda: None)
    leaving.join()
    monkeypatch.setattr(RealFile, "read_into", read_into)
    hangs.set()
    with pytest.raises(OSError, match="waits no longer"):
        files.read(told(file, position=0), 100, lambda: None)
    others = LocalFiles(lambda size: memoryview(bytearray(size)))
    assert bytes(others.read(told(file, position=0), 100, lambda: None).records) == b"01234"


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """It would wait for another process."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        LocalFiles(lambda size: memoryview(bytearray(size))).read(told(tmp_path / "pipe"), 100, lambda: None)


def test_a_place_that_was_not_asked_for_ends_the_connection(file: Path) -> None:
    frames = FakeFrames(IN_FILE + told(file).SerializeToString(), CONFIRMED, END)
    connection = range_connections.RangeConnection(cast(BlockingFrames, frames), ())
    with pytest.raises(range_connections.RangeConnectionLost, match="unknown kind"):
        list(connection.read(pb.ReadRangeRequest(), reads_files=False))


# ---- what a reader answers ---------------------------------------------------------------------------------


def ask(cluster: ServedCluster, reader: Reader) -> pb.FileChunk:
    reader.send(ticket(cluster))
    assert reader.receive() == GREETING
    end = whole(cluster).end
    request = pb.ReadRangeRequest(
        topic="flights", partition=0, leader_epoch=-1, start=0, end=end, kernel_id=kernel_id()
    )
    reader.send(request.SerializeToString())
    answer = reader.receive()
    assert answer[:1] == IN_FILE
    return pb.FileChunk.FromString(answer[1:])


def test_a_node_waits_for_the_answer(cluster: ServedCluster) -> None:
    with Reader(cluster) as reader:
        place = ask(cluster, reader)
        assert os.fsdecode(place.path) == str(segment(cluster))
        assert (place.chunk.start_offset, place.chunk.next_offset) == (0, whole(cluster).end)
        reader.send(READ)
        assert [reader.receive(), reader.receive()] == [CONFIRMED, END]


def test_what_is_not_read_is_sent(cluster: ServedCluster) -> None:
    with Reader(cluster) as reader:
        place = ask(cluster, reader)
        reader.send(NOT_READ)
        records = parse(reader.receive()[1:]).records
        begin, end = place.position, place.position + place.length
        assert records == segment(cluster).read_bytes()[begin:end]
        assert [reader.receive(), reader.receive()] == [CONFIRMED, END]


def test_a_right_that_is_taken_back_meanwhile_sends_nothing(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(access: GrpcAccess, caller: object, method: str, topic: str = "") -> None:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, topic)

    with Reader(cluster) as reader:
        ask(cluster, reader)
        monkeypatch.setattr(GrpcAccess, "require", refuse)
        reader.send(NOT_READ)
        assert reader.receive()[:1] == FAILED


@pytest.mark.parametrize("frame", [b"", b"\x08", READ + b"0", IN_FILE, bytes(60_000)], ids=len)
def test_another_answer_ends_the_connection(cluster: ServedCluster, frame: bytes) -> None:
    with Reader(cluster) as reader:
        ask(cluster, reader)
        reader.send(frame)
        assert reader.receive() == b""


@pytest.mark.parametrize("number", [1, 2])
def test_an_answer_that_nothing_asked_for_ends_the_connection(cluster: ServedCluster, number: int) -> None:
    with Reader(cluster) as reader:
        if number == 1:
            reader.send(ticket(cluster))
            assert reader.receive() == GREETING
        else:
            ask(cluster, reader)
            reader.send(READ)
            assert [reader.receive(), reader.receive()] == [CONFIRMED, END]
        reader.send(READ)
        assert reader.receive() == b""


def test_a_reader_that_never_answers_is_ended(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_connections, "STILL_S", 0.3)
    with Reader(cluster) as reader:
        ask(cluster, reader)
        began = time.monotonic()
        assert reader.receive() == b""
        assert time.monotonic() - began < 10


def test_a_reader_that_leaves_before_its_answer_leaves_its_turn(cluster: ServedCluster) -> None:
    turns = cluster.nodes[1].service._turns
    with Reader(cluster) as reader:
        ask(cluster, reader)
        assert turns.active == 1
    asyncio.run(eventually(lambda: turns.active == 0))
