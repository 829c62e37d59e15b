"""The driver of a stream, without Spark: what a trigger asks real logs and scripted nodes, and plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tidegate.runtime.clock import ManualClock
from tidegate.spark.connecting.answers import TopicView
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.options import OptionError, parse_stream_options
from tidegate.spark.streaming.driver import StreamDriver
from tidegate.spark.streaming.group_commits import GroupCommits
from tidegate.spark.streaming.offsets import StreamOffset, from_json, to_json
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import ControlType, NewRecord, encode_batch, encode_marker

from ..conftest import TOPIC_ID, Partition, Script, numbered_batches
from ..served import ServedCluster, Step, committed, history

STEPS = {partition: history(partition, 150) for partition in range(2)}
READABLE = {
    partition: max(offset for offset, _ in committed(steps)) + 1 for partition, steps in STEPS.items()
}


def driver(bootstrap: str, clock: ManualClock | None = None, **options: str) -> StreamDriver:
    given = {"bootstrap": bootstrap, "subscribe": "flights", "startingOffsets": "earliest"} | options
    given = {name: value for name, value in given.items() if value}
    client = DataClient(given["bootstrap"].split(","), retry_timeout_ms=3_000)
    return StreamDriver(client, parse_stream_options(given), clock=clock)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path) as served:
        for partition, steps in STEPS.items():
            served.fill("flights", partition, steps, leader=1 + partition)
        yield served


def batches(stream: StreamDriver, start: StreamOffset | None = None) -> list[dict[tuple[str, int], range]]:
    """What the micro-batches read until there is nothing more; each offset goes through its JSON."""
    found = []
    at = stream.initial() if start is None else start
    while (end := stream.latest(at, unlimited=False)) is not at:
        parts: dict[tuple[str, int], range] = {}
        for part in stream.plan(at, end):
            key = part.topic, part.partition
            assert key not in parts or parts[key].stop == part.start
            parts[key] = range(parts[key].start if key in parts else part.start, part.end)
        found.append(parts)
        at = from_json(to_json(end))
    return found


def test_micro_batches_adjoin_and_end_at_the_last_stable_offset(cluster: ServedCluster) -> None:
    read = batches(driver(cluster.bootstrap, maxOffsetsPerTrigger="500"))
    assert len(read) > 3
    for partition in STEPS:
        parts = [batch["flights", partition] for batch in read if ("flights", partition) in batch]
        assert parts[0].start == 0
        assert all(one.stop == other.start for one, other in itertools.pairwise(parts))
        assert parts[-1].stop >= READABLE[partition]
    assert all(sum(map(len, batch.values())) <= 502 for batch in read)


def test_bytes_of_a_trigger_are_limited_by_what_the_leaders_know(cluster: ServedCluster) -> None:
    whole = batches(driver(cluster.bootstrap))
    assert len(whole) == 1
    stored = sum(len(step.data) for steps in STEPS.values() for step in steps)
    read = batches(driver(cluster.bootstrap, maxBytesPerTrigger=str(stored // 5)))
    assert 4 <= len(read) <= 8
    assert {key: batch[key].stop for batch in read for key in batch} == {
        key: part.stop for key, part in whole[0].items()
    }


def test_a_small_limit_of_bytes_still_gets_on(cluster: ServedCluster) -> None:
    read = batches(driver(cluster.bootstrap, maxBytesPerTrigger="1k"))
    assert len(read) > 20
    assert all(len(part) for batch in read for part in batch.values())


def test_a_stream_that_stops_at_the_present_reads_nothing_later(cluster: ServedCluster) -> None:
    stream = driver(cluster.bootstrap, maxOffsetsPerTrigger="700", minOffsetsPerTrigger="700")
    stream.stop_at_present()
    first = stream.latest(stream.initial(), unlimited=False)
    ends = stream.report()
    cluster.append("flights", 0, [NewRecord(b"k", b"late")] * 50)
    cluster.fill("flights", 2, history(5, 10), leader=1)
    rest = batches(stream, first)
    assert rest, "the rest is less than minOffsetsPerTrigger, and read all the same"
    assert ends is not None
    assert {key: part.stop for batch in rest for key, part in batch.items()} == from_json(ends).positions


def test_the_topics_are_described_once_a_second_and_not_once_a_trigger(scripted: Script) -> None:
    clock = ManualClock()
    stream = driver(scripted.endpoints[0], clock)
    at = stream.latest(stream.initial(), unlimited=False)
    before = scripted.described
    for _ in range(20):
        assert stream.latest(at, unlimited=False) is at
    assert scripted.described == before
    clock.advance(1.0)
    assert stream.latest(at, unlimited=False) is at
    assert scripted.described == before + 1


def test_a_node_that_lags_is_no_alarm(scripted: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a topic counts as deleted or made again, other nodes are asked for some seconds."""
    stream = driver(",".join(scripted.endpoints.values()))
    at = stream.latest(stream.initial(), unlimited=False)
    lagging: list[dict[str, TopicView]] = [{}, {"flights": TopicView("flights", b"o" * 16, False, (0,))}]
    answer_first(lagging, monkeypatch)
    stream._described_at_s = float("-inf")
    assert stream.latest(at, unlimited=False) is at
    assert lagging == []


def answer_first(views: list[dict[str, TopicView]], monkeypatch: pytest.MonkeyPatch) -> None:
    """These are the first answers, and then the nodes'."""
    original = DataClient._describe_once

    def describe(client: DataClient, names: Any, **how: Any) -> Any:
        return (views.pop(0), None) if views else original(client, names, **how)

    monkeypatch.setattr(DataClient, "_describe_once", describe)


def test_a_node_that_lags_is_no_alarm_to_the_official_connectors_checkpoint(
    scripted: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no ids, and so no proof that a partition cannot be gone."""
    lagging = [{"flights": TopicView("flights", TOPIC_ID, False, ())}]
    answer_first(lagging, monkeypatch)
    at = from_json({"flights": {"0": 3}})
    reached = driver(scripted.endpoints[0]).latest(at, unlimited=False)
    assert reached == StreamOffset({"flights": TOPIC_ID}, {("flights", 0): 30})
    assert lagging == []


def test_a_partition_of_the_official_connector_that_no_node_knows_is_gone(
    scripted: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.spark.connecting.data_client.UNKNOWN_TOPIC_TIMEOUT_S", 0.1)
    at = from_json({"flights": {"0": 3, "9": 5}})
    with pytest.raises(ReadError, match="'flights' has no partition 9"):
        driver(scripted.endpoints[0]).latest(at, unlimited=False)
    accepting = driver(scripted.endpoints[0], failOnDataLoss="false")
    reached = accepting.latest(at, unlimited=False)
    assert reached == StreamOffset({"flights": TOPIC_ID}, {("flights", 0): 30})
    assert accepting.latest(reached, unlimited=False) is reached


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}])
def test_a_partition_that_the_answering_node_does_not_know_yet_keeps_its_position(
    scripted: Script, options: dict[str, str]
) -> None:
    """The node knows the topic by its id: that was not deleted, and a topic's partitions never go."""
    at = StreamOffset({"flights": TOPIC_ID}, {("flights", 1): 3})
    stream = assigned(scripted, "1", options)
    assert stream.latest(at, unlimited=False) is at
    both = StreamOffset({"flights": TOPIC_ID}, {("flights", 0): 3, ("flights", 1): 3})
    reached = assigned(scripted, "0,1", options).latest(both, unlimited=False)
    assert reached == StreamOffset({"flights": TOPIC_ID}, {("flights", 0): 30, ("flights", 1): 3})


def assigned(scripted: Script, partitions: str, options: dict[str, str]) -> StreamDriver:
    given = {"subscribe": "", "assign": f'{{"flights":[{partitions}]}}'} | options
    return driver(scripted.endpoints[0], None, **given)


@pytest.mark.parametrize("ids", [{"flights": TOPIC_ID}, {}])
def test_a_topic_that_the_client_may_not_see_is_not_deleted(scripted: Script, ids: dict[str, bytes]) -> None:
    """A list of all topics, which a pattern needs, leaves it out without a word."""
    at = StreamOffset(ids, {("flights", 0): 3})
    stream = driver(scripted.endpoints[0], subscribe="", subscribePattern="fl.*", failOnDataLoss="false")
    scripted.hidden = True
    with pytest.raises(ReadError, match="no right to DESCRIBE topic 'flights'") as failure:
        stream.latest(at, unlimited=False)
    assert failure.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    scripted.hidden = False
    scripted.described = 0
    reached = stream.latest(at, unlimited=False)
    assert reached == StreamOffset({"flights": TOPIC_ID}, {("flights", 0): 30})
    assert scripted.described == 1, "a checkpoint without ids is no reason to ask again"


def test_a_deleted_topic_ends_the_stream_or_is_left_out(scripted: Script) -> None:
    at = StreamOffset({"flights": TOPIC_ID}, {("flights", 0): 3})
    scripted.deleted = True
    with pytest.raises(ReadError, match=r"'flights' .* was deleted") as failure:
        driver(scripted.endpoints[0]).latest(at, unlimited=False)
    assert failure.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    accepting = driver(scripted.endpoints[0], failOnDataLoss="false")
    assert accepting.latest(at, unlimited=False) == StreamOffset({}, {})


def test_a_micro_batch_of_a_topic_made_again_reads_nothing_of_the_new_one(cluster: ServedCluster) -> None:
    old = b"o" * 16
    start = StreamOffset({"flights": old}, {("flights", 0): 3})
    end = StreamOffset({"flights": old}, {("flights", 0): 30})
    with pytest.raises(ReadError, match=r"has id .*, not 6f6f6f6f-.*failOnDataLoss=false"):
        driver(cluster.bootstrap).plan(start, end)
    assert driver(cluster.bootstrap, failOnDataLoss="false").plan(start, end) == []


def test_a_stream_of_a_topic_that_does_not_exist_says_so(scripted: Script) -> None:
    with pytest.raises(ReadError, match="topic 'nosuch' does not exist"):
        driver(scripted.endpoints[0], subscribe="nosuch", retryTimeoutMs="100").initial()
    with pytest.raises(OptionError, match="flights-0 is missing"):
        driver(scripted.endpoints[0], startingOffsets='{"other":{"0":1}}').initial()


def test_where_a_new_query_begins_is_found_once(cluster: ServedCluster) -> None:
    stream = driver(cluster.bootstrap, startingOffsets="latest")
    first = stream.initial()
    cluster.append("flights", 0, [NewRecord(b"k", b"new")] * 5)
    assert stream.initial() is first
    (read,) = batches(stream)
    assert {key: len(part) for key, part in read.items()} == {("flights", 0): 5}


def test_a_trigger_without_limits_takes_what_there_is(scripted: Script) -> None:
    stream = driver(scripted.endpoints[0], maxOffsetsPerTrigger="5")
    start = stream.initial()
    assert stream.latest(start, unlimited=True).positions == {("flights", 0): 30}
    stream.close()


class Commits(GroupCommits):
    """Keeps what it is told; has no thread."""

    def __init__(self) -> None:
        self.told: list[dict[tuple[str, int], int] | str] = []

    def store(self, positions: Mapping[tuple[str, int], int]) -> None:
        self.told.append(dict(positions))

    def flush(self, timeout_s: float = 0.0) -> None:
        self.told.append("flush")

    def close(self) -> None:
        self.told.append("close")


def test_a_group_gets_the_offsets_below_which_all_is_read(scripted: Script) -> None:
    """None before the first micro-batch: nothing is read yet."""
    commits = Commits()
    client = DataClient([scripted.endpoints[0]], retry_timeout_ms=3_000)
    given = {"bootstrap": scripted.endpoints[0], "subscribe": "flights", "startingOffsets": "earliest"}
    stream = StreamDriver(client, parse_stream_options(given), commits)
    stream.latest(stream.initial(), unlimited=True)
    assert commits.told == []
    key = "flights", 0
    left_out = StreamOffset({"flights": TOPIC_ID}, {key: 9}, undecided={key: {7: 3}})
    stream.latest(left_out, unlimited=True)
    assert commits.told == [{key: 3}]
    stream.stop_at_present()
    end = stream.latest(left_out, unlimited=True)
    assert stream.latest(end, unlimited=True) is end
    assert commits.told[1:] == [{key: 3}, {key: 30}, "flush"], "Spark ends the process then"
    stream.close()
    assert commits.told[-1] == "close"


def test_few_records_wait_for_more_after_the_first_micro_batch(scripted: Script) -> None:
    clock = ManualClock()
    stream = driver(scripted.endpoints[0], clock, minOffsetsPerTrigger="100", maxTriggerDelay="60s")
    at = stream.latest(stream.initial(), unlimited=False)
    assert at.positions == {("flights", 0): 30}
    scripted.partitions[0] = Partition(numbered_batches(11))
    clock.advance(59.0)
    assert stream.latest(at, unlimited=False) is at
    clock.advance(1.0)
    assert stream.latest(at, unlimited=False).positions == {("flights", 0): 33}
    stream.close()


def test_a_query_may_begin_above_the_start_of_an_open_transaction(tmp_path: Path) -> None:
    records = [NewRecord(b"k", b"v")] * 3
    opened = encode_batch(records, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    marker = encode_marker(ControlType.COMMIT, 1, 0, 0, 0)
    with ServedCluster(tmp_path, nodes=1) as served:
        served.fill("flights", 0, [Step(opened, records, 1)], leader=1)
        stream = driver(served.bootstrap, startingOffsets='{"flights": {"0": 2}}')
        start = stream.initial()
        assert start.positions == {("flights", 0): 2}
        assert stream.latest(start, unlimited=False) is start
        served.extend("flights", 0, [Step(marker, [], 1, ControlType.COMMIT)])
        assert batches(stream, start) == [{("flights", 0): range(2, 4)}]
        stream.close()
        with pytest.raises(ReadError, match="to start at 5, but offsets 0 to 4 are there"):
            driver(served.bootstrap, startingOffsets='{"flights": {"0": 5}}').initial()


def test_the_report_has_the_lag_of_each_partition(cluster: ServedCluster) -> None:
    stream = driver(cluster.bootstrap, maxOffsetsPerTrigger="100")
    assert stream.report() is None
    start = stream.initial()
    end = stream.latest(start, unlimited=False)
    report = stream.report()
    assert report is not None
    latest = from_json(report)
    behind = {
        str(number): latest.positions["flights", number] - end.positions["flights", number]
        for number in STEPS
    }
    assert report["offsetsBehindLatest"] == {"flights": behind}
    assert report["maxOffsetsBehindLatest"] == max(behind.values())
