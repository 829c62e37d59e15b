"""What a Spark worker keeps between tasks, and what it hands to Spark at once; without Spark itself."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import textwrap
from collections import OrderedDict
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import grpc
import pyarrow as pa
import pytest
from tidegate.client.consuming.visibility import AtCut
from tidegate.runtime.clock import ManualClock
from tidegate.security.client_security import ClientSecurity
from tidegate.security.grpc_session import GrpcSession
from tidegate.spark import worker_logs, worker_memory
from tidegate.spark.connecting.answers import LeaderView
from tidegate.spark.connecting.channels import Channels
from tidegate.spark.connecting.leaders import Leaders
from tidegate.spark.decoding.decompression import Budget
from tidegate.spark.options import ReadOptions, Topics
from tidegate.spark.reading import range_reader
from tidegate.spark.reading.fetch import RangeRequest
from tidegate.spark.reading.planning import PlannedRange
from tidegate.spark.reading.range_reader import (
    RangePartition,
    RangeReader,
    empty_rows,
    join_small_batches,
)
from tidegate.spark.source import TidegateSource

from .conftest import Partition, Script, numbered_batches


@pytest.fixture
def channels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Channels]:
    """Those of a worker that has just begun."""
    channels = Channels()
    monkeypatch.setattr(range_reader, "_worker_channels", OrderedDict({(): (None, channels)}))
    yield channels
    channels.close()


def test_connections_stay_open_between_tasks(scripted: Script, channels: Channels) -> None:
    scripted.partitions = {number: Partition(numbered_batches(2), leader=number % 2) for number in range(20)}
    read = TidegateSource({"kafka.bootstrap.servers": scripted.endpoints[0], "subscribe": "flights"})
    reader = read.reader(read.schema())
    tasks = reader.partitions()
    assert len(tasks) == 20
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.column(4).to_pylist()]  # type: ignore[union-attr]
    assert rows == [0, 1, 2, 3, 4, 5] * 20
    assert channels.opened == 2


def test_a_channel_to_a_node_that_is_away_does_not_outlive_its_task(
    scripted: Script, channels: Channels
) -> None:
    """gRPC would go on trying to connect, from every idle worker."""
    read = TidegateSource({"bootstrap": f"127.0.0.1:1,{scripted.endpoints[1]}", "subscribe": "flights"})
    reader = read.reader(read.schema())
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 30  # type: ignore[union-attr]
    assert set(channels._open) == set(scripted.endpoints.values())


def test_the_channel_that_was_not_used_for_longest_is_closed() -> None:
    channels = Channels(channels_max=2)
    first, second = channels.to("127.0.0.1:1"), channels.to("127.0.0.1:2")
    assert channels.to("127.0.0.1:1") is first
    channels.to("127.0.0.1:3")
    assert channels.to("127.0.0.1:1") is first
    assert channels.to("127.0.0.1:2") is not second
    assert is_closed(second)
    assert not is_closed(first)
    channels.drop("127.0.0.1:1")
    assert is_closed(first)
    last = channels.to("127.0.0.1:1")
    assert last is not first
    channels.close()
    assert is_closed(last)


def is_closed(channel: grpc.Channel) -> bool:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/tidegate.Data/Nothing")
    try:
        call.future(b"", timeout=0.01).cancel()
    except ValueError:
        return True
    return False


class TestSessions:
    """When a call authenticates again; each time costs the node thousands of hashes."""

    @pytest.fixture
    def given(self) -> list[str]:
        """The tokens that nodes gave."""
        return []

    @pytest.fixture
    def secured(self, monkeypatch: pytest.MonkeyPatch, given: list[str]) -> Iterator[Channels]:
        def authenticate(channel: grpc.Channel, security: ClientSecurity) -> GrpcSession:
            given.append(f"Session {len(given)}")
            return GrpcSession((("authorization", given[-1]),), 100.0)

        monkeypatch.setattr("tidegate.spark.connecting.channels.authenticate", authenticate)
        self.clock = ManualClock()
        security = ClientSecurity("SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username="alice", password="x")
        channels = Channels(channels_max=1, security=security, clock=self.clock)
        yield channels
        channels.close()

    def test_a_session_serves_until_shortly_before_its_end(self, secured: Channels, given: list[str]) -> None:
        first = secured.authorization("127.0.0.1:1")
        self.clock.advance(89.0)
        assert secured.authorization("127.0.0.1:1") == first
        self.clock.advance(2.0)
        assert secured.authorization("127.0.0.1:1") == (("authorization", "Session 1"),)
        assert len(given) == 2

    def test_a_session_belongs_to_its_connection(self, secured: Channels, given: list[str]) -> None:
        secured.authorization("127.0.0.1:1")
        secured.drop("127.0.0.1:1")
        secured.authorization("127.0.0.1:1")
        assert len(given) == 2
        secured.to("127.0.0.1:2")  # above the limit of one: the other is closed
        secured.authorization("127.0.0.1:1")
        assert len(given) == 3

    def test_a_session_is_over_with_the_channels_and_in_a_forked_process(
        self, secured: Channels, given: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secured.authorization("127.0.0.1:1")
        secured.close()
        secured.authorization("127.0.0.1:1")
        assert len(given) == 2
        process = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: process + 1)
        secured.authorization("127.0.0.1:1")
        assert len(given) == 3

    def test_a_session_that_the_node_forgot_is_not_shown_again(
        self, secured: Channels, given: list[str]
    ) -> None:
        assert not secured.forget_session("127.0.0.1:1")
        secured.authorization("127.0.0.1:1")
        assert secured.forget_session("127.0.0.1:1")
        secured.authorization("127.0.0.1:1")
        assert len(given) == 2


def test_a_bearer_token_that_is_refused_is_not_shown_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    security = ClientSecurity("SASL_PLAINTEXT", mechanism="OAUTHBEARER", bearer_token=lambda: "t")
    channels = Channels(security=security)
    assert channels.authorization("127.0.0.1:1") == (("authorization", "Bearer t"),)
    assert not channels.forget_session("127.0.0.1:1")
    channels.close()


def test_tasks_of_two_users_share_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_worker_channels", OrderedDict())

    def channels_of(user: str) -> Channels:
        jaas = f'ScramLoginModule required username="{user}" password="x";'
        return range_reader._channels_of(
            (("sasl.jaas.config", jaas), ("security.protocol", "SASL_PLAINTEXT"))
        )[1]

    alice, bob = channels_of("alice"), channels_of("bob")
    assert alice is not bob
    for number in range(range_reader.CHANNEL_SETS_MAX - 2):
        channels_of(f"other-{number}")
    assert channels_of("alice") is alice
    channels_of("another")
    assert channels_of("alice") is alice, "bob's were not used for longest"
    assert channels_of("bob") is not bob
    for number in range(range_reader.CHANNEL_SETS_MAX):
        channels_of(f"other-{number}")
    assert channels_of("alice") is not alice


def test_a_forked_process_opens_its_own_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    channels = Channels()
    before = channels.to("127.0.0.1:1")
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    assert channels.to("127.0.0.1:1") is not before
    channels.close()
    before.close()


def test_large_rows_are_not_joined() -> None:
    """To copy them would cost more than an Arrow batch costs Spark."""
    large = pa.record_batch({"value": pa.array([bytes(1 << 18)] * 3)})
    small = pa.record_batch({"value": pa.array([b"small"] * 3)})
    assert [each.num_rows for each in join_small_batches([large, large, small, small, large])] == [3, 3, 9]


def test_so_many_rows_are_a_batch_however_small_they_are() -> None:
    batch = pa.record_batch({"offset": pa.array([1] * (range_reader.ROWS_MIN // 4))})
    joined = [each.num_rows for each in join_small_batches([batch] * 6)]
    assert joined == [range_reader.ROWS_MIN, range_reader.ROWS_MIN // 2]


def test_no_batch_has_more_rows_than_its_most() -> None:
    """One of many small records, or of no column at all."""
    batch = pa.record_batch({"offset": pa.array(range(range_reader.ROWS_MAX + 1))})
    assert [each.num_rows for each in join_small_batches([batch])] == [range_reader.ROWS_MAX, 1]
    most = range_reader.EMPTY_ROWS_MAX
    for count, sizes in ((0, []), (most, [most]), (2 * most + 1, [most, most, 1])):
        assert [each.num_rows for each in empty_rows(count)] == sizes


def test_a_log_of_the_users_program_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    configured: list[str] = []
    monkeypatch.setattr(worker_logs, "configure", lambda *, level: configured.append(level))
    root = logging.getLogger()
    for handlers, levels in (([logging.NullHandler()], []), ([], ["WARNING"])):
        monkeypatch.setattr(root, "handlers", handlers)
        worker_logs.log_as_a_worker()
        assert configured == levels


class Client:
    """What a task does with its client, which reads nothing."""

    def __init__(self) -> None:
        self.leaders = Leaders()
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("read_committed", [True, False])
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_task_reads_what_was_planned_with_the_options_of_its_read(
    monkeypatch: pytest.MonkeyPatch, read_committed: bool, fail_on_data_loss: bool
) -> None:
    client, asked, at_cut = Client(), [], AtCut(((7, 3),))
    leader = LeaderView(1, 4, "a:1")

    def count(_: Client, request: RangeRequest) -> int:
        asked.append(request)
        return 5

    monkeypatch.setattr(range_reader, "count_range", count)
    monkeypatch.setattr(RangeReader, "connect", lambda _: client)
    options = ReadOptions(
        ("a:1",), Topics(("t",)), read_committed=read_committed, fail_on_data_loss=fail_on_data_loss
    )
    known = PlannedRange("t", bytes(16), 0, 2, 9, 100, leader, at_cut)
    unknown = PlannedRange("t", bytes(16), 1, 0, 4, 100, None)
    (rows,) = RangeReader(options, ()).read(RangePartition((known, unknown)))
    assert rows.num_rows == 10
    assert asked == [
        RangeRequest("t", bytes(16), 0, 2, 9, read_committed, fail_on_data_loss, at_cut),
        RangeRequest("t", bytes(16), 1, 0, 4, read_committed, fail_on_data_loss),
    ]
    assert [client.leaders.known("t", number) for number in (0, 1)] == [leader, None]
    assert client.is_closed


def test_a_task_without_ranges_connects_to_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark makes one of a read that has none."""
    monkeypatch.setattr(RangeReader, "connect", lambda _: pytest.fail("it has connected"))
    options = ReadOptions(("a:1",), Topics(("t",)))
    assert list(RangeReader(options, ("value",)).read(RangePartition(None))) == []


def test_rows_are_joined_within_the_memory_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pa.record_batch({"value": pa.array([bytes(1_000)])})
    client = Client()
    monkeypatch.setattr(RangeReader, "connect", lambda _: client)
    monkeypatch.setattr(RangeReader, "_decoded", lambda *_: iter([batch] * 100))
    options = ReadOptions(("a:1",), Topics(("t",)), task_memory_bytes=1 << 20)
    part = PlannedRange("t", bytes(16), 0, 0, 100, 100_000, None)
    most = Budget.of_memory(1 << 20, "t").piece_cost_max
    found = list(RangeReader(options, ("value",)).read(RangePartition((part,))))
    assert sum(each.num_rows for each in found) == 100
    assert 1 < len(found) < 100
    assert all(each.nbytes <= most for each in found)


def test_batches_are_joined_only_within_their_bound() -> None:
    batch = pa.record_batch({"value": pa.array([bytes(1_000)] * 4)})
    joined = list(join_small_batches([batch] * 20, 10_000))
    assert sum(each.num_rows for each in joined) == 80
    assert {each.num_rows for each in joined} == {8}


def test_a_task_reads_its_ranges_one_after_the_other(scripted: Script, channels: Channels) -> None:
    scripted.partitions = {number: Partition(numbered_batches(2)) for number in range(3)}
    read = TidegateSource({"bootstrap": scripted.endpoints[0], "subscribe": "flights"})
    ranges = tuple(part for task in read.reader(read.schema()).partitions() for part in task.value)
    rows = list(read.reader(read.schema()).read(RangePartition(ranges)))
    assert len(rows) == 1
    assert rows[0].column(3).to_pylist() == [0] * 6 + [1] * 6 + [2] * 6
    assert rows[0].column(4).to_pylist() == [0, 1, 2, 3, 4, 5] * 3


def test_what_a_worker_has_loaded_is_frozen_twice_and_not_counted(
    scripted: Script, channels: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To count it walks over all of it: 9 ms a task.  What the first task imports is frozen by the second."""
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: pytest.fail("counted"))
    monkeypatch.setattr(worker_memory, "_tasks_begun", 0)
    read = TidegateSource({"bootstrap": scripted.endpoints[0], "subscribe": "flights"})
    reader = read.reader(read.schema())
    for task in [*reader.partitions()] * 4:
        assert sum(batch.num_rows for batch in reader.read(task)) == 30  # type: ignore[union-attr]
    assert frozen == [1, 1]


@pytest.mark.parametrize(("program", "count"), [(worker_memory.DAEMON, 2), ("of_a_user", 0)])
def test_what_planning_has_loaded_is_frozen_in_the_daemon_of_spark_alone(
    program: str, count: int, scripted: Script, channels: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon collects after each plan, and walks over all that is not frozen: 20 ms."""
    frozen: list[int] = []
    read = TidegateSource({"bootstrap": scripted.endpoints[0], "subscribe": "flights"})
    reader = read.reader(read.schema())
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(program, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(worker_memory, "_tasks_begun", 0)
    for _ in range(3):
        reader.partitions()
    assert frozen == [1] * count


def test_a_worker_takes_freed_memory_again_without_the_kernel() -> None:
    """In a process of its own, since the setting is for a process."""
    program = textwrap.dedent("""
        import resource
        from tidegate.spark.worker_memory import keep_memory

        def faults() -> int:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(50):
                held = [bytearray(1 << 20) for _ in range(4)]
                del held
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        keep_memory()
        faults()
        print(faults())
    """)
    assert int(run_python(program)) < 1_000  # by the defaults 50,000: each page of each block


def test_arrow_takes_its_columns_from_the_allocator_that_keeps_what_is_free() -> None:
    """In a process of its own, since the setting is for a process."""
    program = textwrap.dedent("""
        import pyarrow as pa
        from tidegate.spark.worker_memory import keep_memory

        keep_memory()
        column = pa.allocate_buffer(5 << 20)
        print(pa.system_memory_pool().bytes_allocated() - (5 << 20))
    """)
    assert int(run_python(program)) == 0


def test_what_one_thread_of_a_worker_frees_another_one_takes() -> None:
    """In a process of its own, since the setting is for a process."""
    program = textwrap.dedent("""
        import threading
        from pathlib import Path
        from tidegate.spark.worker_memory import keep_memory

        def resident_kib() -> int:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

        def take(turn: threading.Event, done: threading.Event) -> None:
            turn.wait()
            held = [bytearray(1 << 20) for _ in range(8)]
            del held
            done.set()

        keep_memory()
        turns = [(threading.Event(), threading.Event()) for _ in range(8)]
        threads = [threading.Thread(target=take, args=turn) for turn in turns]
        for thread in threads:
            thread.start()
        before = resident_kib()
        for turn, done in turns:
            turn.set()
            done.wait()
        print((resident_kib() - before) >> 10)
        for thread in threads:
            thread.join()
    """)
    assert int(run_python(program)) < 24  # with an arena for each thread 64


def test_a_read_does_not_import_pandas() -> None:
    """Half a second and 60 MB of each worker; `pa.scalar` and `pa.array` do."""
    program = textwrap.dedent("""
        import sys
        from tidegate.spark.decoding.decode import Target, decode_batches
        from tidegate.wire.records import NewRecord, encode_batch
        from tidegate.wire.records import iterate_headers

        columns = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
        chunk = encode_batch([NewRecord(b"key", b"value", headers=(("name", b"content"),))], base_offset=0)
        (batch,) = decode_batches(Target("t", 0, columns, 0, 9), chunk, list(iterate_headers(chunk)))
        assert batch.num_rows == 1
        print("pandas" in sys.modules)
    """)
    assert run_python(program) == "False"


def test_a_read_does_not_import_the_codec_of_kafkas_messages() -> None:
    """Half a second and hundreds of modules, in each of the processes that Spark begins for a first read."""
    program = (
        "import sys, tidegate.spark.reading.batch_reader; print({'kio', 'hypothesis'} & sys.modules.keys())"
    )
    assert run_python(program) == "set()"


def test_options_and_columns_of_a_read_need_no_client() -> None:
    """Spark begins a process that only looks for sources, and one that only asks for the columns."""
    program = textwrap.dedent("""
        import sys, pyspark_tidegate
        options = {"bootstrap": "127.0.0.1:1", "subscribe": "t", "kafka.client.id": "c"}
        print(pyspark_tidegate.DefaultSource(options).schema().simpleString())
        print({"grpc", "pyarrow", "numpy", "cryptography", "google.protobuf"} & sys.modules.keys())
    """)
    columns, imported = run_python(program).splitlines()
    assert columns.startswith("struct<key:binary,")
    assert imported == "set()"


def test_a_source_freezes_the_workers_of_spark_and_no_process_of_a_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    for name, times in (("tidegate.program", 0), (worker_memory.DAEMON, 1)):
        monkeypatch.setattr(worker_memory, "_tasks_begun", 1)
        monkeypatch.setitem(sys.modules, "__main__", module := ModuleType("__main__"))
        module.__spec__ = ModuleSpec(name, None)
        TidegateSource({"bootstrap": "127.0.0.1:1", "topic": "t"})
        assert len(frozen) == times


def test_a_write_does_not_import_pandas() -> None:
    program = textwrap.dedent("""
        import sys, struct
        import pyarrow as pa
        from tidegate.spark.writing.encoding import Encoder, key_hashes
        from tidegate.spark.writing.rows import Layout, grouped, rows_of
        from tidegate.wire.records import EncodedRecords

        def column(kind, format, *numbers):
            buffers = [pa.py_buffer(b"\\1"), pa.py_buffer(struct.pack(format, *numbers))]
            return pa.Array.from_buffers(kind, 2, buffers)

        ends = pa.py_buffer(struct.pack("3i", 0, 1, 1))
        text = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\\1"), ends, pa.py_buffer(b"x")])
        each = pa.py_buffer(struct.pack("3i", 0, 1, 2))
        whole = pa.Array.from_buffers(pa.string(), 2, [None, each, pa.py_buffer(b"tt")])
        entries = pa.StructArray.from_arrays([text, text.cast(pa.binary())], ["key", "value"])
        headers = pa.ListArray.from_buffers(pa.list_(entries.type), 2, [None, ends], children=[entries])
        columns = {
            "key": text, "value": text, "topic": whole, "headers": headers,
            "partition": column(pa.int32(), "2i", 1, 0),
            "timestamp": column(pa.timestamp("us", tz="UTC"), "2q", 5, 0),
        }
        batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        (rows,) = rows_of(batch, Layout(tuple(columns), None), 7)
        for _, chosen in rows.topics:
            Encoder(rows).encode_into(EncodedRecords(), chosen)
        list(grouped(key_hashes(rows.keys)))
        print("pandas" in sys.modules)
    """)
    assert run_python(program) == "False"


def run_python(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.strip()
