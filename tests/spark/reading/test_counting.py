"""Counts at the front door: asked of leaders over gRPC, from Python without Spark, and from the command
line."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from tidegate.client.consuming.cut import Cut, CutPartition, CutTopic
from tidegate.runtime.network import AnswersInHttp2, free_port
from tidegate.spark import count_command, count_committed
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.connecting.kafka_address import grpc_addresses
from tidegate.spark.reading.counting import PartitionCount, count_range, counts_of
from tidegate.spark.reading.fetch import RangeRequest
from tidegate.storage.cleaning.retention import apply_retention
from tidegate.storage.log import counting
from tidegate.storage.log.counting import Counting, CountInvalidated
from tidegate.wire.errors import ErrorCode
from typer.testing import CliRunner

from ..served import TOPIC_ID, ServedCluster, committed, history

STEPS = {partition: history(partition, 400) for partition in (0, 1)}
WANTED = {partition: [offset for offset, _ in committed(steps)] for partition, steps in STEPS.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path_factory.mktemp("nodes")) as served:
        for partition, steps in STEPS.items():
            served.fill("flights", partition, steps, leader=1 + partition)
        served.fill("open", 0, history(5, 120, leave_open=True), leader=1)
        yield served


def test_a_topic_has_as_many_records_as_a_reader_gets(cluster: ServedCluster) -> None:
    assert count_committed(cluster.bootstrap, "flights") == sum(map(len, WANTED.values()))
    assert count_committed(cluster.bootstrap, "open") == len(committed(history(5, 120, leave_open=True)))


def test_the_ranges_of_a_task_have_as_many_records_as_it_reads(cluster: ServedCluster) -> None:
    for start, end in ((0, 1), (7, 700), (431, 432), (1000, 2500)):
        ranges = dict.fromkeys(STEPS, (start, end))
        wanted = {
            partition: sum(start <= offset < end for offset in offsets)
            for partition, offsets in WANTED.items()
        }
        counts = counts_of(cluster.bootstrap, "flights", ranges)
        assert counts == [
            PartitionCount(partition, start, end, wanted[partition]) for partition in sorted(STEPS)
        ]
        assert count_committed(cluster.bootstrap, "flights", ranges) == sum(wanted.values())


def test_a_leader_that_moves_is_followed(tmp_path: Path) -> None:
    with ServedCluster(tmp_path) as served:
        served.fill("flights", 0, STEPS[0], leader=1)
        client = DataClient(served.bootstrap.split(","), retry_timeout_ms=10_000)
        try:
            asked = [client.count_records("flights", TOPIC_ID.bytes, 0, 0, 500, read_committed=True)]
            served.move("flights", 0, 2)
            asked.append(client.count_records("flights", TOPIC_ID.bytes, 0, 0, 500, read_committed=True))
        finally:
            client.close()
    assert asked == [sum(offset < 500 for offset in WANTED[0])] * 2


@pytest.mark.parametrize(
    ("topic", "ranges", "code"),
    [
        ("nowhere", None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("flights", {9: (0, 1)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("flights", {0: (0, 1 << 40)}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("flights", {0: (-1, 5)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_not_there_is_refused(
    cluster: ServedCluster, topic: str, ranges: dict[int, tuple[int, int]] | None, code: ErrorCode
) -> None:
    with pytest.raises(ReadError) as refused:
        count_committed(cluster.bootstrap, topic, ranges, retry_timeout_ms=300)
    assert refused.value.code == code


def test_records_removed_by_retention_are_an_error_if_named_else_left_out(tmp_path: Path) -> None:
    with ServedCluster(tmp_path, nodes=1, **{"retention.bytes": "40000"}) as served:
        served.fill("flights", 0, STEPS[0], leader=1)
        log = served.nodes[1].replicas.replica("flights", 0).log

        async def retain() -> int:
            return max(apply_retention(log, 0), default=0)

        start = served.run(retain())
        assert start > 0
        assert count_committed(served.bootstrap, "flights") == sum(offset >= start for offset in WANTED[0])
        with pytest.raises(ReadError) as refused:
            count_committed(served.bootstrap, "flights", {0: (0, 10)}, retry_timeout_ms=300)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert refused.value.log_start_offset == start


def test_a_count_passes_over_what_is_gone_where_its_reader_would(tmp_path: Path) -> None:
    with ServedCluster(tmp_path, nodes=1) as served:
        served.fill("flights", 0, STEPS[0], leader=1)
        log = served.nodes[1].replicas.replica("flights", 0).log

        async def shorten() -> None:
            log.advance_log_start(100)

        served.run(shorten())
        client = DataClient(served.bootstrap.split(","), retry_timeout_ms=300)
        wanted = RangeRequest("flights", TOPIC_ID.bytes, 0, 0, 500, True, False)
        try:
            assert count_range(client, wanted) == sum(100 <= offset < 500 for offset in WANTED[0])
            with pytest.raises(ReadError, match="OFFSET_OUT_OF_RANGE"):
                count_range(client, replace(wanted, fail_on_data_loss=True))
            deleted = replace(wanted, topic="deleted")
            assert count_range(client, deleted) == 0
            with pytest.raises(ReadError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                count_range(client, replace(deleted, fail_on_data_loss=True))
        finally:
            client.close()


@pytest.mark.parametrize(
    ("topic", "ranges", "message"),
    [
        ("gates", None, "topic 'gates' is not in the cut"),
        ("flights", {1: (0, 5)}, "the cut has no flights-1"),
        ("flights", {0: (10, 91)}, "[10, 91) was asked for, and the cut has [10, 90)"),
        ("flights", {0: (9, 90)}, "[9, 90) was asked for, and the cut has [10, 90)"),
        ("flights", {0: (50, 49)}, "[50, 49) was asked for"),
    ],
)
def test_a_count_at_a_cut_asks_for_what_the_cut_has(
    cluster: ServedCluster, topic: str, ranges: dict[int, tuple[int, int]] | None, message: str
) -> None:
    cut = Cut({"flights": CutTopic(TOPIC_ID.bytes, {0: CutPartition(10, 90, {})})})
    with pytest.raises(ReadError, match=re.escape(message)):
        counts_of(cluster.bootstrap, topic, ranges, cut=cut, retry_timeout_ms=300)


def test_a_log_that_changes_while_it_is_counted_is_counted_again(
    cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a node that never gets it done says so: it returns to the caller, which waits for long."""
    whole, changes = Counting.require_unchanged, [True] * 3

    def unlucky(self: Counting) -> None:
        if changes:
            changes.pop()
            raise CountInvalidated("the log has changed")
        whole(self)

    monkeypatch.setattr(Counting, "require_unchanged", unlucky)
    assert count_committed(cluster.bootstrap, "flights", {0: (0, 500)}) == sum(
        offset < 500 for offset in WANTED[0]
    )
    changes += [True] * 1000
    with pytest.raises(ReadError) as refused:
        count_committed(cluster.bootstrap, "flights", {0: (0, 500)}, retry_timeout_ms=300)
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT


def test_a_count_is_made_piece_by_piece(cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    run = Counting.run
    monkeypatch.setattr(counting, "UNKNOWN_SEGMENTS_MAX", 1)
    monkeypatch.setattr(Counting, "run", lambda self: (pieces.append(self.start), run(self))[1])
    for node in cluster.nodes.values():
        for log in node.directory.logs.values():
            for segment in log.segments:
                segment.total = None
    assert count_committed(cluster.bootstrap, "flights", {1: (0, 1 + WANTED[1][-1])}) == len(WANTED[1])
    assert len(pieces) > 2


def test_the_first_count_of_an_old_folder_is_soon_written_to_disk(tmp_path: Path) -> None:
    with ServedCluster(tmp_path, nodes=1, **{"segment.bytes": "5000"}) as served:
        served.fill("flights", 0, STEPS[0], leader=1)
        log = served.nodes[1].replicas.replica("flights", 0).log

        async def forget() -> None:
            await served.nodes[1].commit.flush(log)
            for segment in log.segments[:-1]:
                segment.total = segment.counts = None
                segment.path("countindex").unlink(missing_ok=True)

        served.run(forget())
        assert len(log.segments) > 10
        assert count_committed(served.bootstrap, "flights") == len(WANTED[0])
        kept = [segment.path("countindex") for segment in log.segments[:8]]
        until = time.monotonic() + 10
        while not all(path.exists() for path in kept):
            assert time.monotonic() < until, [path.name for path in kept if not path.exists()]
            time.sleep(0.01)


# ---- the command line --------------------------------------------------------------------------------------


def called(cluster: ServedCluster, *arguments: str, patience: str = "0.3") -> tuple[int, str]:
    app = typer.Typer()
    app.command()(count_command.count)
    done = CliRunner().invoke(app, [*arguments, "--bootstrap", cluster.bootstrap, "--patience", patience])
    return done.exit_code, done.output


def test_the_command_shows_partitions_and_their_sum(cluster: ServedCluster) -> None:
    code, text = called(cluster, "flights")
    total = sum(map(len, WANTED.values()))
    assert code == 0
    assert text.splitlines()[-1] == f"{total} records"
    assert [line.split()[-1] for line in text.splitlines()[1:3]] == [
        str(len(WANTED[partition])) for partition in (0, 1)
    ]
    code, text = called(cluster, "flights", "--json", "--range", "1:7:700")
    wanted = sum(7 <= offset < 700 for offset in WANTED[1])
    assert code == 0
    assert json.loads(text) == {
        "topic": "flights",
        "records": wanted,
        "partitions": [{"partition": 1, "start": 7, "end": 700, "records": wanted}],
    }
    assert int(called(cluster, "open", "--uncommitted")[1].split()[-2]) > int(
        called(cluster, "open")[1].split()[-2]
    )


def test_a_range_beyond_the_end_is_an_error_at_once_that_names_the_end(cluster: ServedCluster) -> None:
    end = 1 + WANTED[0][-1]
    began_s = time.monotonic()
    code, text = called(cluster, "flights", "--range", f"0:0:{end + 500}", patience="60")
    assert code == 1
    assert re.search(rf"\[0, {end + 500}\) was asked for, and what can be read ends at \d+", text)
    (settled,) = counts_of(cluster.bootstrap, "open")
    (written,) = counts_of(cluster.bootstrap, "open", read_committed=False)
    assert settled.end < written.end
    with pytest.raises(ReadError, match=f"ends at {settled.end}$"):
        count_committed(cluster.bootstrap, "open", {0: (0, settled.end + 1)})
    assert time.monotonic() - began_s < 10


def test_an_address_without_kafka_is_asked_once_and_not_awaited(cluster: ServedCluster) -> None:
    began_s = time.monotonic()
    with pytest.raises(AnswersInHttp2, match="is a gRPC listener"):
        grpc_addresses(cluster.bootstrap.split(",")[0])
    assert grpc_addresses(f"127.0.0.1:{free_port()}") == ()
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere"], 1),
        (["flights", "--range", "x"], 2),
        (["flights", "--range", "0:5:3"], 2),
        (["flights", "--range", "0:0:99999999"], 1),
    ],
)
def test_mistakes_are_one_line(cluster: ServedCluster, arguments: list[str], code: int) -> None:
    assert called(cluster, *arguments)[0] == code
