"""Pinned cuts in the metadata: commands, plans, refusals, bounds, and the snapshot."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate.controller.planning.brokers.sessions import BrokerSessions
from tidegate.controller.planning.pinned_cuts import (
    UNCONFIRMED_MAX,
    UNCONFIRMED_MS,
    PinPlan,
    plan_expired_cuts,
    plan_pinned_cut,
)
from tidegate.controller.state import pinned_cuts
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import PINNED_CUTS_LEVEL
from tidegate.controller.state.pinned_cuts import PINNED_CUT_BYTES_MAX, PINNED_CUTS_MAX, PinnedPartition
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode, KafkaError

from ..test_cluster_state import TOPIC_ID, Applier
from .test_planner import PlannerCluster

MAX_MS = 10_000


def record(
    name: str = "cut", pin_id: str = "a", topic_id: UUID = TOPIC_ID, partitions: int = 1, undecided: int = 1
) -> pb.PinnedCutRecord:
    place = pb.PinnedTopicRecord(topic_id=topic_id.bytes, name="t")
    for number in range(partitions):
        ones = [pb.UndecidedRecord(producer_id=10**9 + n, first_offset=10**9 + n) for n in range(undecided)]
        place.partitions.add(partition=number, start=10**9, end=2 * 10**9, undecided=ones)
    return pb.PinnedCutRecord(name=name, pin_id=pin_id, cut_id="c", taken_ms=1, topics=[place])


def operation(**changes: Any) -> pb.Operation:
    return pb.Operation(change_pinned_cuts=pb.ChangePinnedCuts(**changes))


@pytest.fixture
def applier() -> Applier:
    applier = Applier()
    features = [pb.Feature(name="tidegate.metadata.version", level=PINNED_CUTS_LEVEL)]
    applier(pb.Operation(bootstrap=pb.Bootstrap(cluster_id="c", features=features)))
    for node_id in (1, 2, 3):
        applier.broker(node_id)
    applier.topic(partitions=2)
    return applier


def planned(
    state: ClusterState, request: rpc.ChangePinnedCutRequest, now_ms: int, reports: dict[int, str]
) -> PinPlan:
    """`reports`: of pin "a", by broker."""
    sessions = BrokerSessions(state.brokers.values(), 0.0)
    for node_id, lost in reports.items():
        sessions.by_id[node_id].pins["a"] = lost
        sessions.by_id[node_id].pins_index = state.index
    return plan_pinned_cut(state, sessions, request, MAX_MS, now_ms, applied_before=False)


def pin(state: ClusterState, wanted: pb.PinnedCutRecord, retention_ms: int = 1, now_ms: int = 5) -> PinPlan:
    return planned(state, rpc.ChangePinnedCutRequest(pin=wanted, retention_ms=retention_ms), now_ms, {})


def confirm(state: ClusterState, reports: dict[int, str]) -> PinPlan:
    return planned(state, rpc.ChangePinnedCutRequest(confirm="a", retention_ms=MAX_MS), 77, reports)


def test_a_cut_is_pinned_confirmed_and_unpinned_and_names_its_partitions(applier: Applier) -> None:
    result = applier(operation(pin=[record(partitions=2)]))
    assert result.changed_partitions == {("t", 0), ("t", 1)}
    found = applier.state.pinned_cuts["cut"]
    assert (found.is_confirmed, found.pin_id) == (False, "a")
    assert found.topics[0].partitions[1] == PinnedPartition(10**9, 2 * 10**9, ((10**9, 10**9),))
    confirmed = applier(operation(confirm=[pb.PinConfirmation(pin_id="a", expires_at_ms=99)]))
    assert confirmed.changed_partitions == {("t", 0), ("t", 1)}, "a confirmed pin says more"
    assert applier.state.pinned_cuts["cut"].is_confirmed
    assert applier.state.pinned_cuts["cut"].expires_at_ms == 99
    assert applier(operation(remove=["a"])).changed_partitions == {("t", 0), ("t", 1)}
    assert applier.state.pinned_cuts == {}
    assert applier(operation(remove=["a"])).ok


def test_a_snapshot_names_the_partitions_whose_pins_it_changes(applier: Applier) -> None:
    empty = applier.state.encode()
    applier(operation(pin=[record()]))
    pinned, behind = applier.state.encode(), ClusterState()
    behind.restore(empty)
    assert behind.restore(pinned).changed_partitions == {("t", 0)}
    assert behind.pinned_cuts == applier.state.pinned_cuts
    assert behind.restore(pinned).changed_partitions == frozenset()
    assert behind.restore(empty).changed_partitions == {("t", 0)}


def test_a_cut_outlives_a_topic_of_its(applier: Applier) -> None:
    applier(operation(pin=[record()]))
    assert applier(pb.Operation(delete_topic=pb.DeleteTopic(topic_id=TOPIC_ID.bytes))).ok
    assert "cut" in applier.state.pinned_cuts
    assert applier(operation(remove=["a"])).changed_partitions == frozenset()


REFUSED: dict[str, tuple[pb.PinnedCutRecord, ErrorCode]] = {
    "another pin of the name": (record(pin_id="b"), ErrorCode.DUPLICATE_RESOURCE),
    "another name of the pin": (record("other"), ErrorCode.DUPLICATE_RESOURCE),
    "no name": (record("", "b"), ErrorCode.INVALID_REQUEST),
    "a name that is no topic's": (record("a/b", "b"), ErrorCode.INVALID_REQUEST),
    "no id": (record("other", ""), ErrorCode.INVALID_REQUEST),
    "no topics": (pb.PinnedCutRecord(name="other", pin_id="b"), ErrorCode.INVALID_REQUEST),
    "no partition": (record("other", "b", partitions=0), ErrorCode.INVALID_REQUEST),
    "too large": (record("other", "b", partitions=9000), ErrorCode.POLICY_VIOLATION),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_pin_that_is_wrong_changes_nothing(applier: Applier, case: str) -> None:
    applier(operation(pin=[record()]))
    before = dict(applier.state.pinned_cuts)
    wanted, error = REFUSED[case]
    assert applier(operation(pin=[wanted])).error is error
    assert applier.state.pinned_cuts == before


@pytest.mark.parametrize(
    "place",
    [
        pb.PinnedPartitionRecord(start=2, end=1),
        pb.PinnedPartitionRecord(start=-1, end=1),
        pb.PinnedPartitionRecord(end=5, undecided=[pb.UndecidedRecord(first_offset=5)]),
        pb.PinnedPartitionRecord(end=5, undecided=[pb.UndecidedRecord(first_offset=-1)]),
    ],
)
def test_a_range_that_cannot_be_is_refused(applier: Applier, place: pb.PinnedPartitionRecord) -> None:
    topic = pb.PinnedTopicRecord(topic_id=TOPIC_ID.bytes, name="t", partitions=[place])
    wanted = pb.PinnedCutRecord(name="x", pin_id="x", topics=[topic])
    assert applier(operation(pin=[wanted])).error is ErrorCode.INVALID_REQUEST
    topic = pb.PinnedTopicRecord(topic_id=TOPIC_ID.bytes, partitions=[pb.PinnedPartitionRecord()] * 2)
    wanted = pb.PinnedCutRecord(name="x", pin_id="x", topics=[topic])
    assert applier(operation(pin=[wanted])).error is ErrorCode.INVALID_REQUEST


def test_a_topic_that_stands_there_twice_is_refused(applier: Applier) -> None:
    wanted = record()
    wanted.topics.append(wanted.topics[0])
    assert applier(operation(pin=[wanted])).error is ErrorCode.INVALID_REQUEST


def test_a_copy_of_a_request_that_is_done_plans_nothing(applier: Applier) -> None:
    sessions = BrokerSessions(applier.state.brokers.values(), 0.0)
    request = rpc.ChangePinnedCutRequest(pin=record(), retention_ms=1)
    plan = plan_pinned_cut(applier.state, sessions, request, MAX_MS, 5, applied_before=True)
    assert (plan.pin_id, list(plan.operations)) == ("a", [])


def test_a_pin_that_comes_again_and_a_confirmation_that_comes_too_late(applier: Applier) -> None:
    applier(operation(pin=[record()]))
    applier(operation(confirm=[pb.PinConfirmation(pin_id="a", expires_at_ms=99)]))
    assert applier(operation(pin=[record()])).ok
    assert applier.state.pinned_cuts["cut"].is_confirmed, "a copy takes no confirmation away"
    late = operation(confirm=[pb.PinConfirmation(pin_id="gone")])
    assert applier(late).error is ErrorCode.RESOURCE_NOT_FOUND


def test_there_are_at_most_so_many(applier: Applier, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(PINNED_CUTS_MAX):
        assert applier(operation(pin=[record(f"cut{n}", str(n))])).ok
    assert applier(operation(pin=[record()])).error is ErrorCode.POLICY_VIOLATION
    with pytest.raises(KafkaError, match="at most 100 pinned cuts: unpin one"):
        pin(applier.state, record())
    assert applier(operation(remove=["7"])).ok


def test_so_many_at_most_are_pinned_at_a_time(applier: Applier) -> None:
    for n in range(UNCONFIRMED_MAX):
        assert applier(*pin(applier.state, record(f"cut{n}", str(n))).operations).ok
    with pytest.raises(KafkaError, match="10 cuts are being pinned at present: try again") as refused:
        pin(applier.state, record())
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert pin(applier.state, record("cut7", "7")).operations, "a copy of a request that is being carried out"
    applier(operation(confirm=[pb.PinConfirmation(pin_id="7", expires_at_ms=99)]))
    assert applier(*pin(applier.state, record()).operations).ok


def test_500_partitions_with_open_transactions_fit() -> None:
    """17 bytes a partition, 14 for each undecided transaction, with offsets around a thousand million."""
    assert record(partitions=500, undecided=0).ByteSize() < 10_000
    assert record(partitions=500, undecided=1).ByteSize() < 18_000
    assert record(partitions=500, undecided=10).ByteSize() < PINNED_CUT_BYTES_MAX


def test_a_plan_begins_unconfirmed_by_the_clock_of_the_controller(applier: Applier) -> None:
    plan = pin(applier.state, record(), retention_ms=MAX_MS, now_ms=5)
    assert applier(*plan.operations).ok
    assert applier.state.pinned_cuts["cut"].expires_at_ms == 5 + UNCONFIRMED_MS
    applier(*confirm(applier.state, {1: "", 2: "", 3: ""}).operations)
    assert applier.state.pinned_cuts["cut"].expires_at_ms == 5 + MAX_MS
    assert plan_expired_cuts(applier.state, 4 + MAX_MS).operations == []
    assert applier(*plan_expired_cuts(applier.state, 5 + MAX_MS).operations).ok
    assert applier.state.pinned_cuts == {}


PLAN_REFUSED: dict[str, tuple[pb.PinnedCutRecord, int, ErrorCode]] = {
    "no retention": (record(), 0, ErrorCode.INVALID_REQUEST),
    "more retention than the setting": (record(), MAX_MS + 1, ErrorCode.INVALID_REQUEST),
    "another topic": (record(topic_id=UUID(int=99)), 1, ErrorCode.UNKNOWN_TOPIC_ID),
    "a partition that is not there": (record(partitions=3), 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "a name that is taken": (record("taken", "b"), 1, ErrorCode.DUPLICATE_RESOURCE),
    "too large": (record(undecided=9999), 1, ErrorCode.POLICY_VIOLATION),
    "too large to be looked at": (record(partitions=3, undecided=9999), 1, ErrorCode.POLICY_VIOLATION),
    "no partition": (record(partitions=0), 1, ErrorCode.INVALID_REQUEST),
}


@pytest.mark.parametrize("case", PLAN_REFUSED)
def test_a_request_that_cannot_be_carried_out_gets_one_error(applier: Applier, case: str) -> None:
    applier(operation(pin=[record("taken")]))
    wanted, retention_ms, error = PLAN_REFUSED[case]
    with pytest.raises(KafkaError) as raised:
        pin(applier.state, wanted, retention_ms)
    assert raised.value.code is error


def test_a_confirmation_of_a_pin_that_has_gone_and_a_request_for_nothing(applier: Applier) -> None:
    for request, error in (
        (rpc.ChangePinnedCutRequest(confirm="a", retention_ms=1), ErrorCode.RESOURCE_NOT_FOUND),
        (rpc.ChangePinnedCutRequest(retention_ms=1), ErrorCode.INVALID_REQUEST),
    ):
        with pytest.raises(KafkaError) as raised:
            planned(applier.state, request, 1, {})
        assert raised.value.code is error


NOT_KEPT: dict[str, tuple[dict[int, str], ErrorCode]] = {
    "no report": ({}, ErrorCode.REQUEST_TIMED_OUT),
    "one is missing": ({1: "", 2: ""}, ErrorCode.REQUEST_TIMED_OUT),
    "one has lost something": ({1: "", 2: "", 3: "t-0 starts at 7"}, ErrorCode.OFFSET_OUT_OF_RANGE),
    "one is missing, one has lost something": ({3: "t-0 starts at 7"}, ErrorCode.OFFSET_OUT_OF_RANGE),
}


@pytest.mark.parametrize("case", NOT_KEPT)
def test_a_pin_is_confirmed_when_every_broker_with_a_replica_keeps_it(applier: Applier, case: str) -> None:
    applier.broker(4)
    applier(operation(pin=[record()]))
    reports, error = NOT_KEPT[case]
    with pytest.raises(KafkaError) as raised:
        confirm(applier.state, reports)
    assert raised.value.code is error
    assert "3" in raised.value.message
    assert confirm(applier.state, {1: "", 2: "", 3: ""}).operations, "broker 4 has no replica"
    applier(*confirm(applier.state, {1: "", 2: "", 3: ""}).operations)
    assert confirm(applier.state, {}).operations, "it is confirmed already"


def moved(state: ClusterState, **changes: Any) -> pb.Operation:
    partition = state.topics["t"].partitions[0]
    change = pb.PartitionChange(partition=0, expected_partition_epoch=partition.partition_epoch, **changes)
    topic = pb.TopicPartitionChanges(topic_id=TOPIC_ID.bytes, partitions=[change])
    return pb.Operation(change_partitions=pb.ChangePartitions(topics=[topic]))


BEGUN_ANEW: dict[str, dict[str, Any]] = {
    "another leader": {"leader": 2, "last_known_leader": 2, "isr": (1, 2, 3)},
    "other replicas": {"replicas": (1, 2, 3, 4), "isr": (1, 2, 3), "leader": 1, "last_known_leader": 1},
}


@pytest.mark.parametrize("case", BEGUN_ANEW)
def test_reports_from_before_another_leadership_do_not_count(applier: Applier, case: str) -> None:
    applier.broker(4)
    applier(operation(pin=[record()]))
    state, sessions = applier.state, BrokerSessions(applier.state.brokers.values(), 0.0)
    request = rpc.ChangePinnedCutRequest(confirm="a", retention_ms=MAX_MS)

    def report(*node_ids: int) -> None:
        for node_id in node_ids:
            sessions.by_id[node_id].pins, sessions.by_id[node_id].pins_index = {"a": ""}, state.index

    def missing() -> str:
        try:
            assert plan_pinned_cut(state, sessions, request, MAX_MS, 1, applied_before=False).operations
        except KafkaError as error:
            assert error.code is ErrorCode.REQUEST_TIMED_OUT
            return error.message
        return ""

    report(1, 2)
    assert "brokers [3] " in missing()
    applier.topic("other")
    report(3)
    assert missing() == "", "the leadership is as it was"
    assert applier(moved(state, **BEGUN_ANEW[case])).ok
    assert "brokers [1, 2, 3" in missing()
    report(2, 3, 4)
    assert "brokers [1] " in missing()
    report(1)
    assert missing() == ""


def test_the_leaderships_of_pins_that_are_gone_are_forgotten() -> None:
    sessions = BrokerSessions([], 0.0)
    assert sessions.unchanged_since("a", ((1,), (2,)), 5, ["a"]) == 5
    assert sessions.unchanged_since("a", ((1,), (2,)), 6, ["a"]) == 5
    assert sessions.unchanged_since("b", (), 7, ["b"]) == 7, "also when it names nothing"
    assert sessions.unchanged_since("a", ((1,), (2,)), 8, ["a", "b"]) == 8


def test_a_cut_of_a_topic_that_is_gone_is_not_confirmed(applier: Applier) -> None:
    applier(operation(pin=[record()]), pb.Operation(delete_topic=pb.DeleteTopic(topic_id=TOPIC_ID.bytes)))
    with pytest.raises(KafkaError) as raised:
        confirm(applier.state, {1: "", 2: "", 3: ""})
    assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_heartbeat_says_which_pins_its_broker_keeps() -> None:
    controller = PlannerCluster()
    controller.join(1)
    session = controller.planner.sessions.by_id[1]
    controller.beat(1, number=5, pins=[rpc.PinReport(pin_id="a"), rpc.PinReport(pin_id="b", lost="all")])
    assert session.pins == {"a": "", "b": "all"}
    said_at = session.pins_index
    assert said_at == controller.state.index
    controller.beat(1, number=4, applied_index=said_at + 1)
    assert session.pins_index == said_at
    assert session.pins, "an earlier heartbeat that comes late says nothing new"
    controller.beat(1, number=6)
    assert session.pins == {}


def test_below_its_level_no_cut_is_pinned(applier: Applier) -> None:
    applier.state._features = {"tidegate.metadata.version": PINNED_CUTS_LEVEL - 1}
    with pytest.raises(KafkaError) as raised:
        pin(applier.state, record())
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert applier(operation(pin=[record()])).error is ErrorCode.UNSUPPORTED_VERSION


@given(st.integers(0, 50), st.integers(0, 50), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99))))
def test_what_is_decoded_is_encoded_again(start: int, size: int, undecided: list[tuple[int, int]]) -> None:
    end = start + size
    ones = [pb.UndecidedRecord(producer_id=p, first_offset=f) for p, f in undecided if f < end]
    place = pb.PinnedPartitionRecord(start=start, end=end, undecided=ones)
    topic = pb.PinnedTopicRecord(topic_id=TOPIC_ID.bytes, name="t", partitions=[place])
    cut = pinned_cuts.decode_cut(pb.PinnedCutRecord(name="x", pin_id="x", topics=[topic], pinned_ms=4))
    assert pinned_cuts.decode_cut(pinned_cuts.encode_cut(cut)) == cut
    assert cut.topics[0].partitions[0].settled_end == min([end, *(one.first_offset for one in ones)])
