"""What the driver asks real logs for and plans, for a batch read without a cut."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.spark.connecting.answers import OffsetAnswer
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.options import OptionError, parse_options
from tidegate.spark.reading.planning import PlannedRange, plan
from tidegate.wire.records import NewRecord, encode_batch

from ..served import FIRST_TIMESTAMP_MS, ServedCluster, Step, history

STEPS = {0: history(11, 120), 1: history(12, 120, leave_open=True)}


def end_of(steps: list[Step]) -> int:
    return sum(len(step.records) or 1 for step in steps)


def first_open(steps: list[Step]) -> int:
    """The offset of the first record whose transaction is not ended."""
    undecided: dict[int, int] = {}
    offset = 0
    for step in steps:
        if step.ends is not None:
            undecided.pop(step.producer_id)
        elif step.producer_id >= 0:
            undecided.setdefault(step.producer_id, offset)
        offset += len(step.records) or 1
    return min(undecided.values())


ENDS = {0: end_of(STEPS[0]), 1: end_of(STEPS[1])}
STABLE = {0: ENDS[0], 1: first_open(STEPS[1])}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path_factory.mktemp("nodes")) as served:
        for partition, steps in STEPS.items():
            served.fill("flights", partition, steps, leader=1 + partition)
        yield served


def planned(cluster: ServedCluster, **more: str) -> list[PlannedRange]:
    client = DataClient(cluster.bootstrap.split(","), retry_timeout_ms=30_000)
    try:
        selection = {} if "assign" in more else {"subscribe": "flights"}
        return plan(client, parse_options({"bootstrap": cluster.bootstrap, **selection, **more}))
    finally:
        client.close()


def whole(cluster: ServedCluster, **more: str) -> dict[int, tuple[int, int]]:
    """Where each partition begins and ends; its tasks leave nothing out and read nothing twice."""
    found: dict[int, tuple[int, int]] = {}
    for part in planned(cluster, **more):
        first, last = found.get(part.partition, (part.start, part.start))
        assert last == part.start < part.end
        found[part.partition] = first, part.end
    return found


def test_a_read_ends_where_a_transaction_is_open_and_says_so(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert STABLE[1] < ENDS[1]
    with caplog.at_level(logging.WARNING):
        assert whole(cluster, maxBytesPerPartition="4k") == {0: (0, STABLE[0]), 1: (0, STABLE[1])}
    said = [line for line in caplog.messages if "open_transactions_end_the_read_early" in line]
    assert len(said) == 1
    assert "flights-1" in said[0]
    assert "flights-0" not in said[0]


def test_a_read_of_uncommitted_records_has_all_and_warns_of_nothing(
    cluster: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert whole(cluster, isolation="read_uncommitted") == {0: (0, ENDS[0]), 1: (0, ENDS[1])}
    assert caplog.messages == []


@pytest.mark.parametrize("side", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({"0": 5}, "flights-1 is missing"),
        ({"0": 5, "1": 5, "2": 5}, "names flights-2, which is not read"),
    ],
)
def test_offsets_name_each_partition_that_is_read_and_no_other(
    cluster: ServedCluster, side: str, offsets: dict[str, int], message: str
) -> None:
    with pytest.raises(OptionError, match=f"{side} .*{message}"):
        planned(cluster, **{side: json.dumps({"flights": offsets})})


def test_bounds_by_offset_and_by_time_go_to_the_partitions_that_they_name(cluster: ServedCluster) -> None:
    by_offset = {
        "startingOffsets": json.dumps({"flights": {"0": 7, "1": -2}}),
        "endingOffsets": json.dumps({"flights": {"0": -1, "1": 9}}),
    }
    assert whole(cluster, **by_offset) == {0: (7, ENDS[0]), 1: (0, 9)}
    end_ms = FIRST_TIMESTAMP_MS + 10**9
    by_time = {
        "startingOffsetsByTimestamp": json.dumps({"flights": {"0": FIRST_TIMESTAMP_MS, "1": end_ms}}),
        "endingOffsetsByTimestamp": json.dumps({"flights": {"0": end_ms, "1": end_ms}}),
    }
    with pytest.raises(ReadError, match="flights-1: no record is as late as the starting timestamp"):
        planned(cluster, **by_time)
    found = whole(cluster, **by_time, startingOffsetsByTimestampStrategy="latest")
    assert found == {0: (0, ENDS[0])}


def test_what_lies_beyond_the_visible_end_is_an_error_or_left_out(cluster: ServedCluster) -> None:
    beyond = {"endingOffsets": json.dumps({"flights": {"0": -1, "1": STABLE[1] + 1}})}
    with pytest.raises(ReadError, match=f"flights-1: .*last stable offset is {STABLE[1]}"):
        planned(cluster, **beyond)
    assert whole(cluster, **beyond, failOnDataLoss="false") == {0: (0, ENDS[0]), 1: (0, STABLE[1])}


def test_a_read_starts_anywhere_up_to_the_high_watermark(cluster: ServedCluster) -> None:
    """Also where a transaction is open below: what a consumer of committed records has left is no loss."""

    def starting(offset: int, **more: str) -> dict[int, tuple[int, int]]:
        return whole(cluster, startingOffsets=json.dumps({"flights": {"0": 7, "1": offset}}), **more)

    for offset in (STABLE[1], STABLE[1] + 1, ENDS[1]):
        assert starting(offset) == {0: (7, STABLE[0])}
    assert starting(STABLE[1] + 1, isolation="read_uncommitted")[1] == (STABLE[1] + 1, ENDS[1])
    with pytest.raises(ReadError, match=f"flights-1: .*but offsets 0 to {ENDS[1]} are there"):
        starting(ENDS[1] + 1)
    assert starting(ENDS[1] + 1, failOnDataLoss="false") == {0: (7, STABLE[0])}


def test_records_that_come_between_two_questions_are_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are asked before the offsets of the times."""
    ask = DataClient.offsets_of_topics

    def offsets(client: DataClient, *args: Any, **named: Any) -> dict[tuple[str, int], OffsetAnswer]:
        found = ask(client, *args, **named)
        times = FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS + 30_000
        served.append("flights", 0, [NewRecord(b"k", b"v", (), timestamp_ms) for timestamp_ms in times])
        return found

    monkeypatch.setattr(DataClient, "offsets_of_topics", offsets)
    one = Step(encode_batch([NewRecord(b"k", b"v", (), FIRST_TIMESTAMP_MS)]), [], -1)
    with ServedCluster(tmp_path, nodes=1) as served:
        served.fill("flights", 0, [one], leader=1)
        assert whole(served, endingTimestamp=str(FIRST_TIMESTAMP_MS + 20_000)) == {0: (0, 2)}
        end = served.end("flights", 0)
        beyond = str(FIRST_TIMESTAMP_MS + 40_000)
        assert whole(served, endingTimestamp=beyond) == {0: (0, end + 2)}, "none is as late"


def test_what_is_missing_is_named(cluster: ServedCluster) -> None:
    with pytest.raises(ReadError, match="topic 'nowhere' does not exist"):
        planned(cluster, subscribe="flights,nowhere")
    with pytest.raises(OptionError, match="topic 'flights' has no partition 2: it has 2"):
        planned(cluster, assign='{"flights": [0, 2]}')
