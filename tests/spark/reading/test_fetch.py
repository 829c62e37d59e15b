"""A range is read once and whole, whatever happens to leaders and streams; what lies is refused."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate.client.consuming.visibility import VisibilityFilter
from tidegate.proto import data_pb2 as pb
from tidegate.proto.range_chunks import RecordsChunk
from tidegate.spark.connecting.data_client import DataClient, offset_query
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.connecting.retry import StallWatchdog
from tidegate.spark.reading import fetch
from tidegate.spark.reading.fetch import FetchedPart, RangeRequest, check_chunk, fetch_range, where_to_resume
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import (
    ControlType,
    NewRecord,
    assign_in_place,
    decode_batch,
    encode_batch,
    encode_marker,
    parse_header,
)

from ..conftest import TOPIC_ID, LeapingClock, Partition, Script, numbered_batches


@pytest.fixture
def client(scripted: Script) -> Iterator[DataClient]:
    client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=8_000)
    yield client
    client.close()


def request(
    start: int = 0, end: int = 30, *, partition: int = 0, fail_on_data_loss: bool = True
) -> RangeRequest:
    return RangeRequest("flights", TOPIC_ID, partition, start, end, True, fail_on_data_loss)


def read(client: DataClient, wanted: RangeRequest) -> list[int]:
    return [
        record.offset
        for chunk in fetch_range(client, wanted)
        for position, _ in chunk.visible
        for record in decode_batch(chunk.records, position)
        if wanted.start <= record.offset < wanted.end
    ]


def test_a_range_is_read_whole(client: DataClient, scripted: Script) -> None:
    assert read(client, request()) == list(range(30))
    assert scripted.reads == [(0, 0)]


def test_a_range_may_start_and_end_inside_a_batch(client: DataClient) -> None:
    assert read(client, request(4, 20)) == list(range(4, 20))


def test_a_stream_that_breaks_resumes_at_the_next_offset(client: DataClient, scripted: Script) -> None:
    broken = iter([False, False, False, True] * 2)
    scripted.before_chunk = lambda node, number, chunk: None if next(broken, False) else chunk
    assert read(client, request()) == list(range(30))
    assert scripted.reads == [(0, 0), (0, 9), (0, 18)]


def test_a_moved_leader_is_followed_in_the_middle(client: DataClient, scripted: Script) -> None:
    def move(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk | None:
        if node == 0 and number == 4:
            scripted.partitions[0].leader, scripted.partitions[0].leader_epoch = 1, 1
            return None
        return chunk

    scripted.before_chunk = move
    assert read(client, request()) == list(range(30))
    assert scripted.reads == [(0, 0), (1, 12)]


def test_a_server_that_dies_in_the_middle_is_replaced_by_the_new_leader(
    client: DataClient, scripted: Script
) -> None:
    dead = threading.Event()

    def hang(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk:
        if node == 0 and number == 4:
            dead.wait(30)  # nothing beyond offset 11 leaves this node
        return chunk

    scripted.before_chunk = hang
    offsets = []
    for chunk in fetch_range(client, request()):
        offsets += [
            record.offset for position, _ in chunk.visible for record in decode_batch(chunk.records, position)
        ]
        if offsets[-1] == 11 and scripted.partitions[0].leader == 0:
            scripted.partitions[0].leader, scripted.partitions[0].leader_epoch = 1, 1
            scripted.stop(0)
    dead.set()
    assert offsets == list(range(30))
    assert scripted.reads == [(0, 0), (1, 12)]


def test_the_driver_finds_a_leader_that_the_bootstrap_node_does_not_lead(scripted: Script) -> None:
    scripted.partitions = {
        0: Partition(numbered_batches(2), leader=1),
        1: Partition(numbered_batches(4), leader=0),
    }
    client = DataClient([scripted.endpoints[0]], retry_timeout_ms=5_000)
    try:
        topic = client.describe(["flights"])["flights"]
        found = client.offsets(topic, [offset_query(0), offset_query(1)], read_committed=True)
        assert {partition: answer.offset for partition, answer in found.items()} == {0: 6, 1: 12}
        # moved since: the answer carries the hint
        scripted.partitions[1].leader, scripted.partitions[1].leader_epoch = 1, 5
        assert client.offsets(topic, [offset_query(1)], read_committed=True)[1].offset == 12
        assert [part.end for part in client.plan_ranges(topic, 1, 0, 12, 100)] == [12]
    finally:
        client.close()


def test_a_dead_bootstrap_node_is_passed_over(scripted: Script) -> None:
    client = DataClient(["127.0.0.1:1", scripted.endpoints[1]], retry_timeout_ms=5_000)
    try:
        assert client.describe(["flights"])["flights"].partitions == (0,)
    finally:
        client.close()


class SlowDoor:
    """Lets connections through to a node after a while, as a machine does that is busy with something
    else."""

    def __init__(self, target: str, delay_s: float) -> None:
        self._target = target.rpartition(":")
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Timer(self._delay_s, self._join, (near,)).start()

    def _join(self, near: socket.socket) -> None:
        far = socket.create_connection((self._target[0], int(self._target[2])))
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            sink.close()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("patient", [True, False])
def test_a_busy_node_is_waited_for_and_not_called_lost(
    scripted: Script, patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the longer time to connect, a healthy node that is slow to answer looks like one that went
    away."""
    if not patient:
        monkeypatch.setattr("tidegate.spark.connecting.channels.CONNECT_TIMEOUT_MS", 100)
    door = SlowDoor(scripted.endpoints[0], 0.4)
    scripted.endpoints[0] = door.endpoint
    client = DataClient([door.endpoint], retry_timeout_ms=20_000)
    try:
        assert read(client, request()) == list(range(30))
        assert (door.connections == 1) is patient
    finally:
        client.close()
        door.close()


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def leaping(scripted: Script, clock: LeapingClock) -> Iterator[DataClient]:
    client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=8_000, clock=clock)
    yield client
    client.close()


def read_slowly(client: DataClient, clock: LeapingClock) -> list[int]:
    """Spends ten minutes with each chunk."""
    offsets = []
    for chunk in fetch_range(client, request()):
        offsets += [
            record.offset for position, _ in chunk.visible for record in decode_batch(chunk.records, position)
        ]
        clock.leapt_s += 600.0
    return offsets


def test_time_spent_in_the_consumer_is_not_time_without_progress(
    leaping: DataClient, clock: LeapingClock, scripted: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[None] = []
    look = StallWatchdog._look
    monkeypatch.setattr("tidegate.spark.connecting.data_client.STALL_TIMEOUT_S", 5.0)
    monkeypatch.setattr(StallWatchdog, "_look", lambda watch: (looked.append(None), look(watch)))
    assert read_slowly(leaping, clock) == list(range(30))
    assert (scripted.reads, looked) == ([(0, 0)], [None])


def test_a_stream_that_breaks_while_the_consumer_pauses_is_resumed(
    leaping: DataClient, clock: LeapingClock, scripted: Script
) -> None:
    """The retries begin when the reader is back, however long it was away."""
    scripted.before_chunk = lambda node, number, chunk: chunk if number < 3 else None
    assert read_slowly(leaping, clock) == list(range(30))
    assert scripted.reads == [(0, 0), (0, 9), (0, 18), (0, 27)]


def test_a_node_that_falls_silent_in_the_middle_is_left_for_the_new_leader(
    clock: LeapingClock, scripted: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the watch, a stream without a deadline would wait for ever."""
    awake = threading.Event()

    def fall_silent(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk:
        if node == 0 and number == 4:
            scripted.partitions[0].leader, scripted.partitions[0].leader_epoch = 1, 1
            while not awake.wait(0.5):  # until the reader has left
                clock.leapt_s += 61.0
        elif node == 1:
            awake.set()
        return chunk

    scripted.before_chunk = fall_silent
    client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=1_000_000, clock=clock)
    try:
        assert read(client, request()) == list(range(30))
    finally:
        awake.set()
        client.close()
    assert scripted.reads == [(0, 0), (1, 12)]
    assert f"{scripted.endpoints[0]} was silent for 60 s" in caplog.text


def test_a_stream_that_has_ended_is_watched_no_more(client: DataClient, scripted: Script) -> None:
    assert read(client, request()) == list(range(30))
    chunks = fetch_range(client, request())
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name == "stall-watch":
            thread.join(10)
            assert not thread.is_alive()


def test_a_node_that_says_wait_is_waited_for(
    leaping: DataClient, clock: LeapingClock, scripted: Script
) -> None:
    """Every note is a sign of life: together they may take longer than any patience."""

    def wait(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk:
        clock.leapt_s += 7.0
        if number % 2 == 0:
            return pb.RangeChunk(
                start_offset=chunk.start_offset, next_offset=chunk.start_offset, waiting=True
            )
        return chunk

    batches = scripted.partitions[0].batches
    # each once as a note
    scripted.partitions[0].batches = [each for batch in batches for each in (batch, batch)]
    position = 0

    def noted(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk:
        nonlocal position
        chunk.start_offset = position
        said = wait(node, number, chunk)
        position = said.next_offset
        return said

    scripted.before_chunk = noted
    assert read(leaping, request()) == list(range(30))
    assert scripted.reads == [(0, 0)]


def test_the_patience_with_a_stream_that_breaks_begins_with_its_last_note(
    leaping: DataClient, clock: LeapingClock, scripted: Script
) -> None:
    heard = iter(["note", "note", "break"])

    def wait(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk | None:
        match next(heard, "chunk"):
            case "note":
                clock.leapt_s += 7.0
                return pb.RangeChunk(waiting=True)
            case "break":
                return None
            case _:
                return chunk

    scripted.before_chunk = wait
    assert read(leaping, request()) == list(range(30))
    assert scripted.reads == [(0, 0), (0, 0)]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings of reads, as they are written."""
    written: list[str] = []

    class Log:
        def warning(self, event: str, **_: object) -> None:
            written.append(event)

    monkeypatch.setattr(fetch, "log", Log())
    return written


def test_a_topic_that_is_deleted_in_the_middle_ends_the_read_soon(
    scripted: Script, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after all of the two minutes that a leader is looked for, and with one warning."""
    monkeypatch.setattr("tidegate.spark.connecting.data_client.UNKNOWN_TOPIC_TIMEOUT_S", 0.3)

    def delete(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk | None:
        scripted.deleted = number == 3
        return None if scripted.deleted else chunk

    scripted.before_chunk = delete
    client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=120_000)
    try:
        with pytest.raises(ReadError) as caught:
            read(client, request())
        assert str(caught.value) == "UNKNOWN_TOPIC_OR_PARTITION: topic 'flights' does not exist"
        assert warnings == ["range_read_interrupted"]
        assert scripted.described < 20
        scripted.deleted = False
        assert read(client, request(fail_on_data_loss=False)) == list(range(9))
        assert warnings[1:] == ["range_read_interrupted", "records_lost"]
    finally:
        client.close()


def test_a_recreated_topic_is_distinguished_from_its_namesake(client: DataClient, scripted: Script) -> None:
    """It must not matter whether the read notices the time in between."""
    error = ReadError(ErrorCode.INCONSISTENT_TOPIC_ID, "flights was deleted and made again")
    for accepted in (True, False):
        wanted = request(fail_on_data_loss=not accepted)
        assert fetch.deletion_is_accepted(wanted, 5, error) is accepted


def test_a_topic_that_was_made_again_ends_the_read_at_once(
    client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> Iterator[RecordsChunk]:
        raise ReadError(ErrorCode.INCONSISTENT_TOPIC_ID, "flights was deleted and made again")
        yield

    monkeypatch.setattr(client, "open_stream", refused)
    assert read(client, request(fail_on_data_loss=False)) == []
    with pytest.raises(ReadError, match="made again"):
        read(client, request())


def test_a_stream_whose_chunk_is_refused_is_closed(
    client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the error is kept, and with it what the read had open."""
    closed: list[bool] = []

    def stream(*_: object, **__: object) -> Iterator[RecordsChunk]:
        try:
            yield RecordsChunk(pb.RangeChunk(start_offset=7, next_offset=9), b"")
        finally:
            closed.append(True)

    monkeypatch.setattr(client, "open_stream", stream)
    with pytest.raises(ReadError, match="continues at offset 0") as refused:
        read(client, request())
    assert closed
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_an_uncommitted_read_takes_no_list_of_aborted_transactions() -> None:
    chunk = RecordsChunk(pb.RangeChunk(start_offset=0, next_offset=1), b"")
    chunk.fields.aborted_transactions.add(producer_id=7, first_offset=0)
    batch = encode_batch([NewRecord(b"k", b"v")], producer_id=7, producer_epoch=0, transactional=True)
    for read_committed in (True, False):
        wanted = replace(request(), read_committed=read_committed)
        shows = fetch.visibility_of(wanted, chunk).shows(parse_header(batch), memoryview(batch), 0)
        assert shows is not read_committed


@pytest.mark.parametrize("message", ["gone", "OFFSET_OUT_OF_RANGE: gone", ""])
def test_an_error_names_its_code_once(message: str) -> None:
    error = ReadError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
    assert str(error).count("OFFSET_OUT_OF_RANGE") == 1


def test_a_node_of_an_older_version_is_asked_partition_by_partition(
    client: DataClient, scripted: Script
) -> None:
    """The scripted nodes do not know PlanManyRanges."""
    scripted.partitions[1] = Partition(numbered_batches(4), leader=1)
    topics = client.describe(["flights"])
    found = client.plan_many_ranges(topics, {("flights", 0): (0, 30), ("flights", 1): (3, 12)}, 100)
    assert {key: [(part.start, part.end) for part in parts] for key, parts in found.items()} == {
        ("flights", 0): [(0, 30)],
        ("flights", 1): [(3, 12)],
    }


def test_retries_end_with_the_reason(scripted: Script) -> None:
    scripted.before_chunk = lambda node, number, chunk: None
    client = DataClient([scripted.endpoints[0]], retry_timeout_ms=300)
    try:
        with pytest.raises(ReadError, match="the script says so"):
            read(client, request())
        with pytest.raises(ReadError, match="topic 'fligths' does not exist"):
            client.describe(["fligths"])
    finally:
        client.close()
    lonely = DataClient(["127.0.0.1:1"], retry_timeout_ms=300)
    with pytest.raises(ReadError, match=r"127\.0\.0\.1:1: UNAVAILABLE"):
        lonely.describe([])
    lonely.close()


@pytest.mark.parametrize(
    ("start_offset", "next_offset", "batches"),
    [
        (6, 12, [3]),  # begins below the position, although its batch does not
        (12, 12, [3]),
        (9, 9, []),
        (9, 15, [4, 3]),
        (9, 15, [3, 3]),
        (9, 11, [3]),
        (9, 12, [2]),
        (9, 12, [2, 3]),
    ],
)
def test_each_chunk_continues_where_the_last_one_ended(
    start_offset: int, next_offset: int, batches: list[int]
) -> None:
    made = numbered_batches(5)

    def check(first: int, after: int, chosen: list[int]) -> list[FetchedPart]:
        fields = pb.RangeChunk(start_offset=first, next_offset=after)
        chunk = RecordsChunk(fields, b"".join(made[number] for number in chosen))
        return list(check_chunk(request(), chunk, 9, VisibilityFilter(())))

    (part,) = check(9, 15, [3, 4])
    assert len(part.visible) == 2
    with pytest.raises(ReadError) as caught:
        check(start_offset, next_offset, batches)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def checked_parts(batches: list[bytes]) -> Iterator[FetchedPart]:
    fields = pb.RangeChunk(start_offset=0, next_offset=3 * len(batches))
    return check_chunk(request(), RecordsChunk(fields, b"".join(batches)), 0, VisibilityFilter(()))


def test_nothing_from_a_wrong_batch_on_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is checked part by part, the next part's first batch with each."""
    monkeypatch.setattr(fetch, "PART_BYTES", 1)
    batches = numbered_batches(4)
    batches[2] = batches[2][:-1] + b"?"
    given = []
    with pytest.raises(ReadError, match="CRC") as caught:
        for part in checked_parts(batches):
            given += [header.base_offset for _, header in part.visible]
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert given == [0]
    assert [len(part.visible) for part in checked_parts(batches[:2])] == [1, 1]


def test_a_batch_that_hides_itself_by_a_wrong_byte_is_not_left_out() -> None:
    """Control batches are not shown, but also theirs is a checksum."""
    batches = numbered_batches(3)
    control = bytearray(batches[1])
    control[22] |= 0x20  # of the attributes, which end there
    parts = checked_parts([batches[0], bytes(control), batches[2]])
    with pytest.raises(ReadError, match="CRC"):
        list(parts)


@pytest.mark.parametrize(
    ("code", "log_start_offset", "fails_on_data_loss", "resume"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, 12, False, 12),
        (ErrorCode.OFFSET_OUT_OF_RANGE, 40, False, 30),
        (ErrorCode.OFFSET_OUT_OF_RANGE, 12, True, None),
        (ErrorCode.OFFSET_OUT_OF_RANGE, 5, False, None),  # the log ends below: nothing was deleted
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, False, None),
        (ErrorCode.CORRUPT_MESSAGE, 12, False, None),
    ],
)
def test_only_records_that_are_deleted_are_passed_over(
    client: DataClient,
    code: ErrorCode,
    log_start_offset: int,
    fails_on_data_loss: bool,
    resume: int | None,
) -> None:
    problem = ReadError(code, "so it is", log_start_offset=log_start_offset)
    wanted = request(fail_on_data_loss=fails_on_data_loss)
    if resume is None:
        with pytest.raises(ReadError) as caught:
            where_to_resume(client, wanted, 5, problem)
        assert caught.value is problem
    else:
        assert where_to_resume(client, wanted, 5, problem) == resume


@pytest.mark.parametrize("lie", ["repeat", "skip", "overlap", "empty", "order"])
def test_a_chunk_that_skips_or_repeats_is_refused(client: DataClient, scripted: Script, lie: str) -> None:
    batches = scripted.partitions[0].batches

    def tell(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk:
        if number == 3:
            match lie:
                case "repeat":
                    chunk.start_offset, chunk.next_offset, chunk.records = 6, 9, batches[2]
                case "skip":
                    chunk.start_offset, chunk.next_offset, chunk.records = 12, 15, batches[4]
                case "overlap":
                    chunk.records = batches[2] + batches[3]
                case "empty":
                    chunk.next_offset = chunk.start_offset
                case "order":
                    chunk.records, chunk.next_offset = batches[4] + batches[3], 15
                case _:
                    raise AssertionError(lie)
        return chunk

    scripted.before_chunk = tell
    with pytest.raises(ReadError) as caught:
        read(client, request())
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_damaged_batch_is_refused(client: DataClient, scripted: Script) -> None:
    scripted.partitions[0].batches[5] = scripted.partitions[0].batches[5][:-1] + b"?"
    with pytest.raises(ReadError, match="CRC"):
        read(client, request())


def test_without_the_check_of_continuity_a_repeat_would_go_unseen(
    client: DataClient, scripted: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation: the tests above fail when chunks are believed."""

    def believe(
        wanted: RangeRequest, chunk: RecordsChunk, position: int, visibility: object
    ) -> Iterator[fetch.FetchedPart]:
        return check(wanted, chunk, chunk.fields.start_offset, visibility)  # type: ignore[arg-type]

    check = fetch.check_chunk
    monkeypatch.setattr(fetch, "check_chunk", believe)
    batches = scripted.partitions[0].batches

    def repeat(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk:
        if number == 3:
            chunk.start_offset, chunk.next_offset, chunk.records = 6, 9, batches[2]
        return chunk

    scripted.before_chunk = repeat
    assert read(client, request()) != list(range(30))


def test_records_that_are_gone_fail_the_read_unless_loss_is_accepted(
    client: DataClient, scripted: Script
) -> None:
    scripted.partitions[0].log_start = 12
    with pytest.raises(ReadError) as caught:
        read(client, request())
    assert (caught.value.code, caught.value.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 12)
    assert read(client, request(fail_on_data_loss=False)) == list(range(12, 30))


def test_the_filter_starts_anew_with_the_list_of_every_stream(client: DataClient, scripted: Script) -> None:
    """Producer 7 aborts its first transaction and commits its second; the stream breaks between every two
    chunks."""
    log: list[Any] = []
    for producer_id, kind in [
        (7, None),
        (-1, None),
        (7, ControlType.ABORT),
        (7, None),
        (7, ControlType.COMMIT),
        (-1, None),
    ]:
        if kind is None:
            data = bytearray(
                encode_batch(
                    [NewRecord(b"k", b"v")],
                    producer_id=producer_id,
                    producer_epoch=0,
                    transactional=producer_id >= 0,
                )
            )
        else:
            data = bytearray(encode_marker(kind, producer_id, 0, 0, 0))
        assign_in_place(memoryview(data), 0, len(log), 0)
        log.append(bytes(data))
    scripted.partitions[0] = Partition(log, aborted=[(7, 0)])

    def cut(node: int, number: int, chunk: pb.RangeChunk) -> pb.RangeChunk | None:
        # as the index answers for what is left
        scripted.partitions[0].aborted = [(7, 0)] if chunk.next_offset < 3 else []
        return chunk if number == 0 else None

    scripted.before_chunk = cut
    assert read(client, request(end=6)) == [1, 3, 5]


def test_errors_survive_the_way_from_a_worker_to_the_driver() -> None:
    error = ReadError(ErrorCode.OFFSET_OUT_OF_RANGE, "flights-0: gone", 12)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.log_start_offset) == (str(error), error.code, 12)


def test_no_more_is_decoded_at_once_than_stays_in_the_caches() -> None:
    """A batch that is larger is decoded alone; none is left out."""
    half = fetch.PART_BYTES // 2
    sizes = [half, half, 1, 3 * half, 1, half, half]
    batches: Any = [(place, SimpleNamespace(size_bytes=size)) for place, size in enumerate(sizes)]
    groups = [[size.size_bytes for _, size in group] for group in fetch.grouped(batches)]
    assert groups == [[half, half], [1], [3 * half], [1, half], [half]]
    assert list(fetch.grouped([])) == []
