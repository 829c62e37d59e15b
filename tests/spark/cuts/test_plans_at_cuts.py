"""What the driver asks real logs for and plans, for a batch read at a cut and for micro-batches that end at
cuts; and what the tasks then read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from tidegate.client.consuming.cut import Cut, CutTopic, Order
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.errors import ReadError
from tidegate.spark.options import OptionError, ReadOptions, parse_options, parse_stream_options
from tidegate.spark.reading.counting import count_committed, count_range
from tidegate.spark.reading.cuts import cut as take
from tidegate.spark.reading.cuts import take_cut
from tidegate.spark.reading.fetch import RangeRequest, fetch_range
from tidegate.spark.reading.planning import PlannedRange, plan
from tidegate.spark.streaming import driver as streaming_driver
from tidegate.spark.streaming.driver import StreamDriver
from tidegate.spark.streaming.offsets import OffsetError, StreamOffset, from_json, to_json
from tidegate.storage.cleaning.retention import apply_retention
from tidegate.storage.log.pins import Pin
from tidegate.wire.errors import ErrorCode
from tidegate.wire.records import ControlType, NewRecord, decode_batch, encode_batch, encode_marker

from ..served import FIRST_TIMESTAMP_MS, TOPIC_ID, ServedCluster, Step, history
from .cut_taker import CutTaker
from .test_reads_at_cuts import Taken, taken

Rows = list[tuple[int, int]]


def write(producer_id: int, sequence: int, count: int = 2) -> Step:
    records = [NewRecord(b"k", b"v", (), FIRST_TIMESTAMP_MS)] * count
    data = encode_batch(
        records,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        transactional=producer_id >= 0,
    )
    return Step(data, records, producer_id)


def mark(producer_id: int, kind: ControlType) -> Step:
    return Step(encode_marker(kind, producer_id, 0, 0, FIRST_TIMESTAMP_MS), [], producer_id, kind)


OPEN = 9
"""Its transaction in partition 1 is open from the beginning."""
STEPS = {0: history(3, 250), 1: [write(OPEN, 0), *history(5, 200)]}


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    served = ServedCluster(tmp_path_factory.mktemp("nodes"))
    CutTaker(served)
    with served:
        for partition, steps in STEPS.items():
            served.fill("flights", partition, steps, leader=1 + partition)
        yield served


@pytest.fixture
def taker(tmp_path: Path) -> Iterator[CutTaker]:
    served = ServedCluster(tmp_path)
    taker = CutTaker(served)
    with served:
        yield taker


@pytest.fixture
def cluster(taker: CutTaker) -> ServedCluster:
    served = taker.cluster
    for partition, steps in STEPS.items():
        served.fill("flights", partition, steps, leader=1 + partition)
    return served


def client_of(cluster: ServedCluster) -> DataClient:
    return DataClient(cluster.bootstrap.split(","), retry_timeout_ms=3_000)


def options(cluster: ServedCluster, **more: str) -> ReadOptions:
    return parse_options({"bootstrap": cluster.bootstrap, **more})


def read(cluster: ServedCluster, planned: list[PlannedRange]) -> Rows:
    """What the tasks read; and their counts are equal."""
    client, found = client_of(cluster), list[tuple[int, int]]()
    try:
        for part in planned:
            request = RangeRequest(
                part.topic, part.topic_id, part.partition, part.start, part.end, False, True, part.at_cut
            )
            rows = [
                (part.partition, record.offset)
                for chunk in fetch_range(client, request)
                for position, _ in chunk.visible
                for record in decode_batch(chunk.records, position)
                if part.start <= record.offset < part.end
            ]
            assert count_range(client, request) == len(rows)
            found += rows
    finally:
        client.close()
    return sorted(found)


def planned(cluster: ServedCluster, **more: str) -> list[PlannedRange]:
    client = client_of(cluster)
    try:
        return plan(client, options(cluster, **more))
    finally:
        client.close()


def inside(steps: dict[int, list[Step]] = STEPS) -> Rows:
    return sorted((at, offset) for at, all_of in steps.items() for offset in whole(all_of).inside)


def whole(steps: list[Step]) -> Taken:
    return taken(steps, len(steps), Random(0))


# ---- batch reads -------------------------------------------------------------------------------------------


def test_a_read_takes_its_cut_when_its_ranges_are_planned(taker: CutTaker, cluster: ServedCluster) -> None:
    parts = planned(cluster, subscribe="flights", consistency="cut", maxBytesPerPartition="20k")
    assert taker.taken == 1
    assert len(parts) > 4
    cluster.append("flights", 0, [NewRecord(b"k", b"later")])
    assert read(cluster, parts) == inside()


@pytest.mark.parametrize(
    ("offsets", "message"),
    [({"0": 3}, "flights-1 is missing"), ({"0": 3, "1": 3, "2": 3}, "flights-2, which is not read")],
)
def test_offsets_to_begin_at_name_each_partition_of_the_cut(
    unchanged: ServedCluster, offsets: dict[str, int], message: str
) -> None:
    starting = json.dumps({"flights": offsets})
    with pytest.raises(OptionError, match=message):
        planned(unchanged, subscribe="flights", consistency="cut", startingOffsets=starting)


def test_a_given_cut_is_read_again_with_all_its_topics(taker: CutTaker, cluster: ServedCluster) -> None:
    cluster.fill("gates", 0, STEPS[0], leader=1)
    cut = take(cluster.bootstrap, ["flights", "gates"])
    cluster.append("flights", 0, [NewRecord(b"k", b"later")])
    parts = planned(cluster, cut=cut.to_json())
    assert {part.topic for part in parts} == {"flights", "gates"}
    flights = [part for part in parts if part.topic == "flights"]
    assert read(cluster, flights) == inside()
    assert planned(cluster, cut=cut.to_json(), subscribe="flights") == flights
    assert planned(cluster, cut=cut.to_json(), subscribePattern="f.*") == flights
    only = planned(cluster, cut=cut.to_json(), assign='{"flights": [1]}')
    assert only == [part for part in flights if part.partition == 1]
    taker.pinned["month-end"] = cut.to_proto()
    assert planned(cluster, cut="month-end", subscribe="flights") == flights
    assert take(cluster.bootstrap, "flights").order(Cut({"flights": cut.topics["flights"]})) is Order.NEWER


def test_records_of_a_cut_are_counted_without_spark(unchanged: ServedCluster) -> None:
    bootstrap, cut = unchanged.bootstrap, take(unchanged.bootstrap, "flights")
    assert count_committed(bootstrap, "flights", cut=cut) == len(inside())
    some = [pair for pair in inside() if pair[0] == 1 and 10 <= pair[1] < 500]
    assert count_committed(bootstrap, "flights", {1: (10, 500)}, cut=cut) == len(some)
    for ranges, message in (({7: (0, 1)}, "no flights-7"), ({1: (0, 1 << 40)}, "the cut has")):
        with pytest.raises(ReadError, match=message):
            count_committed(bootstrap, "flights", ranges, cut=cut)
    with pytest.raises(ReadError, match="not in the cut"):
        count_committed(bootstrap, "gates", cut=cut)


def test_where_a_read_at_a_cut_starts(cluster: ServedCluster) -> None:
    cut = take(cluster.bootstrap, "flights").to_json()
    starts = json.dumps({"flights": {"0": 100, "1": -2}})
    parts = planned(cluster, cut=cut, startingOffsets=starts)
    assert read(cluster, parts) == [pair for pair in inside() if pair[0] or pair[1] >= 100]
    timed = planned(cluster, cut=cut, startingTimestamp=str(FIRST_TIMESTAMP_MS + 2_000))
    assert 0 < len(read(cluster, timed)) < len(inside())
    cluster.append("flights", 0, [NewRecord(b"k", b"v", (), FIRST_TIMESTAMP_MS + 10**9)])
    late = {"cut": cut, "startingTimestamp": str(FIRST_TIMESTAMP_MS + 10**9)}
    with pytest.raises(ReadError, match="no record is as late"):
        planned(cluster, **late)
    assert planned(cluster, **late, startingOffsetsByTimestampStrategy="latest") == []


def changed(cut: Cut, **fields: object) -> str:
    topic = cut.topics["flights"]
    parts = {0: replace(topic.partitions[0], **fields)}  # type: ignore[arg-type]
    return Cut({"flights": replace(topic, partitions=parts)}).to_json()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda cut: {"cut": cut.to_json(), "subscribe": "gates"}, OptionError, "'gates' is not in the cut"),
        (lambda cut: {"cut": cut.to_json(), "assign": '{"flights": [7]}'}, OptionError, "no partition 7"),
        (lambda cut: {"cut": "unknown"}, ReadError, "no cut is pinned as 'unknown'"),
        (
            lambda cut: {"cut": changed(cut, end=1 << 40)},
            ReadError,
            "the log ends at .* failOnDataLoss=false",
        ),
        (
            lambda cut: {"cut": cut.to_json(), "startingOffsets": '{"flights": {"0": 900000, "1": 0}}'},
            ReadError,
            "the read is to start at 900000",
        ),
        (
            lambda cut: {"cut": cut.to_json().replace("000000004d", "000000004e")},
            ReadError,
            "it was deleted and made again",
        ),
        (lambda cut: {"consistency": "cut", "subscribe": "nowhere"}, ReadError, "'nowhere' does not exist"),
    ],
)
def test_a_cut_that_cannot_be_read_is_one_clear_error(
    unchanged: ServedCluster,
    given: Callable[[Cut], dict[str, str]],
    error: type[Exception],
    message: str,
) -> None:
    cut = take(unchanged.bootstrap, "flights")
    with pytest.raises(error, match=message):
        planned(unchanged, **given(cut))


def test_a_read_from_a_time_on_notices_that_records_of_its_cut_are_gone(tmp_path: Path) -> None:
    """Unless the log has kept an older record: then what is gone was older, too."""
    steps = [write(OPEN, 0), mark(OPEN, ControlType.COMMIT), *history(3, 250)]
    with ServedCluster(tmp_path, nodes=1) as cluster:
        cluster.fill("flights", 0, steps, leader=1)
        log = cluster.nodes[1].replicas.replica("flights", 0).log
        part = replace(whole(steps).part, start=0)
        cut = Cut({"flights": CutTopic(TOPIC_ID.bytes, {0: part})}).to_json()
        old, new = str(FIRST_TIMESTAMP_MS), str(FIRST_TIMESTAMP_MS + 2_000)
        before = read(cluster, planned(cluster, cut=cut, startingTimestamp=new))

        async def delete() -> None:
            log.advance_log_start(2)  # a marker is the first that is left

        cluster.run(delete())
        with pytest.raises(ReadError, match="log begins at 2 now") as refused:
            planned(cluster, cut=cut, startingTimestamp=old)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        left = planned(cluster, cut=cut, startingTimestamp=old, failOnDataLoss="false")
        assert min(part.start for part in left) == 3
        assert read(cluster, planned(cluster, cut=cut, startingTimestamp=new)) == before


def test_records_of_a_cut_that_retention_has_removed_are_an_error_or_left_out(tmp_path: Path) -> None:
    served = ServedCluster(tmp_path, nodes=1, **{"retention.bytes": "40000"})
    CutTaker(served)
    with served:
        served.fill("flights", 0, STEPS[0], leader=1)
        cut = take(served.bootstrap, "flights")
        log = served.nodes[1].replicas.replica("flights", 0).log

        async def retain() -> int:
            return max(apply_retention(log, 0), default=0)

        start = served.run(retain())
        with pytest.raises(ReadError, match=f"the log begins at {start} now: a cut that is pinned keeps"):
            planned(served, cut=cut.to_json())
        parts = planned(served, cut=cut.to_json(), failOnDataLoss="false")
        assert read(served, parts) == [(0, each) for each in whole(STEPS[0]).inside if each >= start]


def test_records_of_a_cut_that_go_after_the_plan_fail_its_tasks(cluster: ServedCluster) -> None:
    """Also where the cut leaves out no transaction: none of them is known to be aborted."""
    cut = take(cluster.bootstrap, "flights")
    assert not cut.partitions["flights", 0].undecided
    parts = planned(cluster, cut=cut.to_json(), assign='{"flights": [0]}')
    log = cluster.nodes[1].replicas.replica("flights", 0).log

    async def delete() -> None:
        log.advance_log_start(1)

    cluster.run(delete())
    with pytest.raises(ReadError, match="OFFSET_OUT_OF_RANGE"):
        read(cluster, parts)
    client = client_of(cluster)
    part = parts[0]
    request = RangeRequest(part.topic, part.topic_id, 0, part.start, part.end, False, True, part.at_cut)
    with pytest.raises(ReadError, match="OFFSET_OUT_OF_RANGE"):
        count_range(client, request)
    client.close()


def test_a_cut_names_at_least_one_topic_and_leaves_no_connection_open(
    taker: CutTaker, cluster: ServedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[DataClient] = []
    close = DataClient.close
    monkeypatch.setattr(DataClient, "close", lambda client: closed.append(client) or close(client))
    assert list(take(cluster.bootstrap, ["flights", "flights"]).topics) == ["flights"]
    with pytest.raises(ReadError, match="a cut needs at least one topic"):
        take(cluster.bootstrap, [])
    assert taker.taken == 1
    assert len(closed) == 2


def test_records_that_compaction_may_have_taken_from_a_cut_are_an_error(
    taker: CutTaker, cluster: ServedCluster
) -> None:
    """A newer record, outside of the cut, may have taken away one with the same key that is inside."""
    cut = take(cluster.bootstrap, "flights")
    settled = min(
        (cut.topics["flights"].partitions[1].end, *cut.topics["flights"].partitions[1].undecided.values())
    )
    log = cluster.nodes[2].replicas.replica("flights", 1).log
    log.cleaned_at_most = settled
    parts = planned(cluster, cut=cut.to_json())
    assert read(cluster, parts) == inside()
    log.cleaned_at_most = settled + 1
    with pytest.raises(ReadError, match=r"SNAPSHOT_NOT_FOUND: flights-1 may have been compacted"):
        read(cluster, parts)
    client = client_of(cluster)
    for part in parts:
        if part.partition == 1:
            request = RangeRequest(
                part.topic, part.topic_id, 1, part.start, part.end, False, True, part.at_cut
            )
            with pytest.raises(ReadError, match="SNAPSHOT_NOT_FOUND"):
                count_range(client, request)
    client.close()
    accepted = planned(cluster, cut=cut.to_json(), failOnDataLoss="false")
    assert read(cluster, accepted) == inside()


@pytest.mark.parametrize(
    ("is_confirmed", "settled_above", "is_read"), [(True, 0, True), (True, 1, False), (False, 0, False)]
)
def test_a_confirmed_pin_has_kept_a_log_that_knows_nothing_after_a_restart(
    taker: CutTaker, cluster: ServedCluster, is_confirmed: bool, settled_above: int, is_read: bool
) -> None:
    cut = take(cluster.bootstrap, "flights")
    parts = planned(cluster, cut=cut.to_json())
    part = cut.topics["flights"].partitions[1]
    log = cluster.nodes[2].replicas.replica("flights", 1).log
    log.note_cleaned(part.end)
    settled_end = min(part.undecided.values()) + settled_above
    log.keep((Pin("month-end", part.start, part.end, settled_end, is_confirmed),))
    if is_read:
        assert read(cluster, parts) == inside()
    else:
        with pytest.raises(ReadError, match="SNAPSHOT_NOT_FOUND"):
            read(cluster, parts)


def test_a_cluster_that_takes_no_cuts_is_one_clear_error(tmp_path: Path) -> None:
    with ServedCluster(tmp_path, nodes=1) as served:
        served.fill("flights", 0, STEPS[0], leader=1)
        with pytest.raises(ReadError, match=r"UNSUPPORTED_VERSION: .* without cuts"):
            planned(served, subscribe="flights", consistency="cut")


def test_a_pattern_without_topics_reads_nothing(taker: CutTaker, cluster: ServedCluster) -> None:
    assert planned(cluster, subscribePattern="x.*", consistency="cut") == []
    assert taker.taken == 0


# ---- streams -----------------------------------------------------------------------------------------------


def driver(cluster: ServedCluster, **more: str) -> StreamDriver:
    given = {
        "bootstrap": cluster.bootstrap,
        "subscribe": "flights",
        "startingOffsets": "earliest",
        "consistency": "cut",
    } | more
    client = DataClient(cluster.bootstrap.split(","), retry_timeout_ms=3_000)
    return StreamDriver(client, parse_stream_options(given))


def again(offset: StreamOffset) -> StreamOffset:
    return from_json(json.loads(json.dumps(to_json(offset))))


def test_each_transaction_is_wholly_in_the_micro_batch_after_its_commit(
    taker: CutTaker, tmp_path: Path
) -> None:
    served = taker.cluster
    served.fill("flights", 0, [write(7, 0), write(-1, -1, 3), write(8, 0), write(9, 0)], leader=1)
    served.fill("flights", 1, [write(7, 0)], leader=2)
    stream = driver(served)
    start = again(stream.initial())
    assert start.undecided == {}, "all that is open is above where it begins"
    one = again(stream.latest(start, unlimited=True))
    assert read(served, stream.plan(start, one)) == [(0, 2), (0, 3), (0, 4)]
    assert one.undecided == {("flights", 0): {7: 0, 8: 5, 9: 7}, ("flights", 1): {7: 0}}
    # 7 is decided and has a marker in one partition only, 8 is aborted, 9 goes on.
    served.extend("flights", 0, [mark(7, ControlType.COMMIT), mark(8, ControlType.ABORT), write(9, 2)])
    taker.decided = {7}
    two = again(stream.latest(one, unlimited=True))
    assert read(served, stream.plan(one, two)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert two.undecided == {("flights", 0): {9: 7}}
    served.extend("flights", 1, [mark(7, ControlType.COMMIT), write(-1, -1, 1)])
    served.extend("flights", 0, [mark(9, ControlType.COMMIT)])
    three = again(stream.latest(two, unlimited=True))
    wanted = [(0, 7), (0, 8), (0, 11), (0, 12), (1, 3)]
    assert read(served, stream.plan(two, three)) == wanted
    assert stream.latest(three, unlimited=True) is three
    # Run again, by another process, with other options, after the leader has moved.
    served.append("flights", 0, [NewRecord(b"k", b"later")])
    other = driver(served)
    assert read(served, other.plan(two, three)) == wanted
    assert read(served, other.plan(again(other.initial()), one)) == [(0, 2), (0, 3), (0, 4)]
    for each in (stream, other):
        each.close()


def test_a_partition_that_the_answering_node_does_not_know_yet_keeps_its_position_at_a_cut(
    cluster: ServedCluster,
) -> None:
    other = UUID(int=5)
    cluster.fill("other", 0, [write(-1, -1, 3)], leader=1, topic_id=other)
    given = {"assign": '{"flights":[0],"other":[7]}', "consistency": "cut", "failOnDataLoss": "false"}
    options = parse_stream_options({"bootstrap": cluster.bootstrap, **given})
    stream = StreamDriver(client_of(cluster), options)
    ids = {"flights": TOPIC_ID.bytes, "other": other.bytes}
    left_out = {("other", 7): {4711: 1}}
    at = StreamOffset(ids, {("flights", 0): 0, ("other", 7): 3}, cut=("c", 1), undecided=left_out)
    reached = stream.latest(at, unlimited=True)
    stream.close()
    assert reached.cut is not None
    assert (reached.ids, reached.positions["other", 7]) == (ids, 3)
    assert reached.undecided["other", 7] == {4711: 1}


def test_an_idle_stream_takes_no_cut(taker: CutTaker, cluster: ServedCluster) -> None:
    stream = driver(cluster)
    at = again(stream.initial())
    at = again(stream.latest(at, unlimited=True))
    taken_before = taker.taken
    for _ in range(3):
        assert stream.latest(at, unlimited=True) is at
    assert taker.taken == taken_before
    stream.close()


def test_a_query_that_begins_at_latest_reads_open_transactions_whole(taker: CutTaker) -> None:
    served = taker.cluster
    served.fill("flights", 0, [write(-1, -1), write(7, 0)], leader=1)
    stream = driver(served, startingOffsets="latest")
    start = again(stream.initial())
    assert start.undecided == {("flights", 0): {7: 2}}
    assert stream.latest(start, unlimited=True) is start
    served.extend("flights", 0, [write(7, 2), mark(7, ControlType.COMMIT)])
    end = again(stream.latest(start, unlimited=True))
    wanted = [(0, 2), (0, 3), (0, 4), (0, 5)]
    assert read(served, stream.plan(start, end)) == wanted
    other = driver(served, startingOffsets="latest")
    assert read(served, other.plan(again(other.initial()), end)) == wanted
    for each in (stream, other):
        each.close()


def test_records_that_come_while_a_cut_is_taken_are_read_once(
    taker: CutTaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the cut those of this micro-batch, behind it those of the next one."""
    served = taker.cluster
    served.fill("flights", 0, [write(-1, -1)], leader=1)

    def meanwhile(client: DataClient, topics: list[str]) -> Cut:
        served.append("flights", 0, [NewRecord(b"k", b"before")])
        cut = take_cut(client, topics)
        served.append("flights", 0, [NewRecord(b"k", b"behind")])
        return cut

    monkeypatch.setattr(streaming_driver, "take_cut", meanwhile)
    stream = driver(served, startingOffsets="latest")
    start = again(stream.initial())
    assert start.positions == {("flights", 0): 3}
    end = again(stream.latest(start, unlimited=True))
    assert read(served, stream.plan(start, end)) == [(0, 3), (0, 4)]
    stream.close()


def test_a_stream_to_what_there_is_ends_at_one_cut(taker: CutTaker, cluster: ServedCluster) -> None:
    stream = driver(cluster)
    stream.stop_at_present()
    start = again(stream.initial())
    end = again(stream.latest(start, unlimited=True))
    cluster.append("flights", 0, [NewRecord(b"k", b"later")])
    assert stream.latest(end, unlimited=True).is_at(end)
    assert read(cluster, stream.plan(start, end)) == inside()
    stream.close()


def test_a_checkpoint_at_a_cut_goes_on_with_cuts_only(unchanged: ServedCluster) -> None:
    cluster = unchanged
    stream = driver(cluster)
    start = again(stream.initial())
    end = again(stream.latest(start, unlimited=True))
    given = {"bootstrap": cluster.bootstrap, "subscribe": "flights"}
    plain = StreamDriver(client_of(cluster), parse_stream_options(given))
    assert read(cluster, plain.plan(start, end)) == inside(), "it has all that the micro-batch needs"
    with pytest.raises(OffsetError, match="consistency=cut"):
        plain.latest(end, unlimited=True)
    for each in (stream, plain):
        each.close()


def test_a_checkpoint_without_cuts_goes_on_with_them(taker: CutTaker) -> None:
    served = taker.cluster
    served.fill("flights", 0, [write(-1, -1), write(7, 0), write(-1, -1)], leader=1)
    given = {"bootstrap": served.bootstrap, "subscribe": "flights", "startingOffsets": "earliest"}
    plain = StreamDriver(client_of(served), parse_stream_options(given))
    start = again(plain.initial())
    end = again(plain.latest(start, unlimited=True))
    assert end.positions == {("flights", 0): 2}
    stream = driver(served)
    # The last micro-batch of the former options may have to be run again.
    assert read(served, stream.plan(start, end)) == [(0, 0), (0, 1)]
    further = again(stream.latest(end, unlimited=True))
    assert read(served, stream.plan(end, further)) == [(0, 4), (0, 5)]
    served.extend("flights", 0, [mark(7, ControlType.COMMIT)])
    last = again(stream.latest(further, unlimited=True))
    assert read(served, stream.plan(further, last)) == [(0, 2), (0, 3)]
    for each in (stream, plain):
        each.close()


COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT


@pytest.mark.parametrize(
    ("ends", "log_start", "is_loss"),
    [
        ((COMMIT, COMMIT), 1, True),
        ((ABORT, COMMIT), 1, False),
        ((ABORT, COMMIT), 2, False),
        ((ABORT, COMMIT), 3, True),
        ((COMMIT, ABORT), 3, True),
        ((ABORT, ABORT), 6, False),
        ((ABORT, ABORT), 8, False),  # all that was to be looked at is gone
        ((ABORT, ABORT), 9, True),  # a marker, too
    ],
)
def test_of_the_undecided_records_that_are_gone_the_committed_are_a_loss(
    taker: CutTaker, ends: tuple[ControlType, ControlType], log_start: int, is_loss: bool
) -> None:
    served = taker.cluster
    served.fill("flights", 0, [write(7, 0), write(8, 0), write(-1, -1, 4)], leader=1)
    stream, careless = driver(served), driver(served, failOnDataLoss="false")
    start = again(stream.initial())
    one = again(stream.latest(start, unlimited=True))
    assert one.undecided == {("flights", 0): {7: 0, 8: 2}}
    marks = [mark(producer_id, kind) for producer_id, kind in zip((7, 8), ends, strict=True)]
    served.extend("flights", 0, [*marks, write(-1, -1, 1)])
    two = again(stream.latest(one, unlimited=True))
    before = stream.plan(one, two)
    rows = read(served, before)
    assert len(rows) == 2 * ends.count(COMMIT) + 1

    async def drop() -> None:
        served.nodes[1].replicas.replica("flights", 0).log.advance_log_start(log_start)

    served.run(drop())
    if is_loss:
        with pytest.raises(ReadError, match=r"OFFSET_OUT_OF_RANGE.*failOnDataLoss=false"):
            stream.plan(one, two)
        with pytest.raises(ReadError, match="OFFSET_OUT_OF_RANGE"):
            read(served, before)
    else:
        assert read(served, stream.plan(one, two)) == rows
        assert read(served, before) == rows, "of tasks that were planned before"
    left = [row for row in rows if row[1] >= log_start]
    assert read(served, careless.plan(one, two)) == left
    for each in (stream, careless):
        each.close()


def test_a_log_without_a_record_tells_of_no_aborted_transaction(taker: CutTaker) -> None:
    served = taker.cluster
    served.fill("flights", 0, [write(7, 0), mark(7, ABORT), write(8, 0)], leader=1)
    client, log = client_of(served), served.nodes[1].replicas.replica("flights", 0).log

    async def drop(log_start: int) -> None:
        log.advance_log_start(log_start)

    found = []
    for log_start in range(6):
        served.run(drop(log_start))
        found.append(client.aborted_across_start("flights", TOPIC_ID.bytes, 0))
    client.close()
    assert found == [(0, {}), (1, {7: 0}), (2, {7: 0}), (3, {}), (4, {}), (5, {})]


def test_a_topic_that_was_made_again_has_nothing_left_to_read(taker: CutTaker) -> None:
    served = taker.cluster
    served.fill("flights", 0, [write(7, 0), write(-1, -1)], leader=1)
    stream = driver(served, failOnDataLoss="false")
    one = again(stream.latest(again(stream.initial()), unlimited=True))
    assert one.undecided
    former = replace(one, ids={"flights": b"another topic id"})
    two = again(stream.latest(former, unlimited=True))
    assert two.begins == {("flights", 0): 0}
    assert two.begins_undecided == {}
    assert read(served, stream.plan(former, two)) == [(0, 2), (0, 3)]
    stream.close()
