"""What the client of the data service takes an answer for, and whom it asks next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tidegate.proto import data_pb2 as pb
from tidegate.proto import data_pb2_grpc
from tidegate.security.client_security import ClientSecurity
from tidegate.spark.connecting import at_once, data_client, nodes
from tidegate.spark.connecting.answers import LeaderView, TopicView
from tidegate.spark.connecting.channels import Channels
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.errors import Problem, ReadError
from tidegate.spark.connecting.retry import SILENT_S_MAX
from tidegate.spark.reading.fetch import RangeRequest, fetch_range
from tidegate.wire.errors import ErrorCode

from ..conftest import TOPIC_ID, LeapingClock, Script, ScriptedNode
from .failed_calls import Failure

PLACE = ("flights", 0)


@pytest.fixture
def client() -> Iterator[DataClient]:
    client = DataClient(["127.0.0.1:1"], retry_timeout_ms=300)
    yield client
    client.close()


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(10, 19)],
        [(11, 20)],
        [(10, 21)],
        [(10, 14), (15, 20)],
        [(10, 15), (14, 20)],
        [(10, 10), (10, 20)],
        [(10, 20), (20, 10), (10, 20)],
    ],
)
def test_a_split_adjoins_and_covers_what_was_asked(ranges: list[tuple[int, int]]) -> None:
    asked = pb.PlanRangesRequest(topic="flights", partition=0, start=10, end=20)

    def split(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        answer = [pb.Range(start=start, end=end) for start, end in parts]
        return [(part.start, part.end) for part in data_client._whole_split(asked, answer)]

    assert split([(10, 15), (15, 20)]) == [(10, 15), (15, 20)]
    with pytest.raises(ReadError, match=r"flights-0: the split of \[10, 20\) has gaps"):
        split(ranges)


@pytest.mark.parametrize(("had_session", "curable"), [(True, True), (False, False)])
def test_a_call_that_is_not_authenticated_is_tried_again_with_another_session(
    client: DataClient, monkeypatch: pytest.MonkeyPatch, had_session: bool, curable: bool
) -> None:
    monkeypatch.setattr(client._channels, "forget_session", lambda _: had_session)
    problem = client._nodes.problem_of(Failure(grpc.StatusCode.UNAUTHENTICATED), "a:1")
    assert (problem.code, problem.curable) == (ErrorCode.SASL_AUTHENTICATION_FAILED, curable)


def test_nodes_without_a_method_are_named_as_too_old(client: DataClient) -> None:
    def ask(channel: grpc.Channel, shown: object) -> None:
        raise Failure(grpc.StatusCode.UNIMPLEMENTED)

    with pytest.raises(ReadError, match="a version without cuts: upgrade them") as refused:
        client.of_any_node(ask, "cuts")
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("patience_ms", "silence_s"), [(1_000, 5.0), (60_000, 30.0), (600_000, 60.0)])
def test_a_silent_node_is_left_while_there_is_time_for_another(patience_ms: int, silence_s: float) -> None:
    client = DataClient(["127.0.0.1:1"], retry_timeout_ms=patience_ms)
    assert client._stall_timeout_s == silence_s
    client.close()


@pytest.mark.parametrize(("topic_unknown", "attempts"), [(True, 2), (False, 3)])
def test_a_topic_that_is_not_there_is_waited_for_some_seconds_only(
    monkeypatch: pytest.MonkeyPatch, topic_unknown: bool, attempts: int
) -> None:
    """Each attempt takes a third of the patience."""
    clock, made = LeapingClock(), []
    client = DataClient(["127.0.0.1:1"], retry_timeout_ms=120_000, clock=clock)
    problem = Problem(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "so it is", True, topic_unknown=topic_unknown)

    def describe(names: list[str]) -> tuple[dict[str, TopicView], Problem]:
        made.append(names)
        clock.leapt_s += 40.0
        return {}, problem

    monkeypatch.setattr(client, "_describe_once", describe)
    with pytest.raises(ReadError, match="so it is"):
        client.describe(["flights"])
    assert len(made) == attempts
    client.close()


def test_topics_that_no_node_lists_are_asked_for_within_bounds(
    client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    lost = Problem(ErrorCode.NETWORK_EXCEPTION, "away", curable=True)

    def describe(names: list[str], *, only_existing: bool) -> tuple[dict[str, TopicView], Problem | None]:
        asked.append(len(names))
        return {}, lost if names else None

    monkeypatch.setattr(client, "_describe_once", describe)
    expected = dict.fromkeys(map(str, range(data_client.NAMED_AT_ONCE + 1)), TOPIC_ID)
    with pytest.raises(ReadError, match="away"):
        client.describe_existing([], expected)
    assert set(asked) == {0, data_client.NAMED_AT_ONCE}


@pytest.fixture
def elected_late(monkeypatch: pytest.MonkeyPatch) -> LeapingClock:
    """At the first look no node leads, and some seconds have passed at the next.  Before the nodes start."""
    clock, describe, leaderless = LeapingClock(), ScriptedNode.DescribeTopics, iter([True])

    def answer(node: ScriptedNode, request: Any, context: Any) -> pb.DescribeTopicsReply:
        reply = describe(node, request, context)
        if next(leaderless, False):
            clock.leapt_s += SILENT_S_MAX
            reply.topics[0].partitions[0].ClearField("leader")
        return reply

    monkeypatch.setattr(ScriptedNode, "DescribeTopics", answer)
    return clock


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, view: client.offsets(view, [data_client.offset_query(0)], read_committed=True),
        lambda client, view: client.plan_ranges(view, 0, 0, 30, 100),
        lambda client, view: client.plan_many_ranges({"flights": view}, {PLACE: (0, 30)}, 100),
        lambda client, view: list(
            fetch_range(client, RangeRequest("flights", TOPIC_ID, 0, 0, 30, True, True))
        ),
    ],
    ids=["offsets", "plan", "plans", "read"],
)
def test_who_waits_long_for_a_leader_is_told(
    ask: Callable[[DataClient, TopicView], object],
    elected_late: LeapingClock,
    scripted: Script,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=60_000, clock=elected_late)
    ask(client, TopicView("flights", TOPIC_ID, False, (0,)))
    client.close()
    (said,) = [message for message in caplog.messages if "no_answer_yet" in message]
    assert "flights-0 has no leader at present" in said


class TestDescriptions:
    """Which node is asked for topics, and which answer counts."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The nodes that were asked for topics; node 0 knows an older topic of the name, until a test clears
        `stale`; those of `silent` say nothing of any topic."""
        self.stale, self.silent = {0}, set[int]()
        asked: list[int] = []
        describe = ScriptedNode.DescribeTopics

        def answer(node: ScriptedNode, request: Any, context: Any) -> pb.DescribeTopicsReply:
            asked.append(node._node)
            reply = describe(node, request, context)
            if node._node in self.silent:
                reply.ClearField("topics")
            for topic in reply.topics:
                topic.topic_id = b"o" * 16 if node._node in self.stale else topic.topic_id
            return reply

        monkeypatch.setattr(ScriptedNode, "DescribeTopics", answer)
        return asked

    @pytest.fixture
    def clients(self) -> Iterator[Callable[..., DataClient]]:
        made: list[DataClient] = []

        def make(*endpoints: str, patience_ms: int = 5_000, **more: Any) -> DataClient:
            made.append(DataClient(list(endpoints), retry_timeout_ms=patience_ms, **more))
            return made[-1]

        yield make
        for client in made:
            client.close()

    def test_a_node_that_lags_behind_is_passed_over(
        self, asked: list[int], scripted: Script, clients: Callable[..., DataClient]
    ) -> None:
        client = clients(*scripted.endpoints.values())
        found = client.describe_existing(["flights"], {"flights": TOPIC_ID})
        assert (found["flights"].topic_id, asked) == (TOPIC_ID, [0, 1])

    def test_a_topic_that_was_made_again_is_believed_when_all_say_so(
        self, asked: list[int], scripted: Script, clients: Callable[..., DataClient],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(data_client, "UNKNOWN_TOPIC_TIMEOUT_S", 0.3)
        client = clients(*scripted.endpoints.values())
        found = client.describe_existing(["flights"], {"flights": b"x" * 16})
        assert found["flights"].topic_id in (TOPIC_ID, b"o" * 16)
        assert set(asked) == {0, 1}

    def test_a_node_that_leaves_out_what_was_asked_is_passed_over(
        self, asked: list[int], scripted: Script, clients: Callable[..., DataClient]
    ) -> None:
        self.silent = {0}
        assert "flights" in clients(*scripted.endpoints.values()).describe(["flights"])
        assert asked == [0, 1]
        self.silent = {0, 1}
        with pytest.raises(ReadError, match="said nothing about topic 'flights'"):
            clients(*scripted.endpoints.values(), patience_ms=300).describe(["flights"])

    def test_an_id_that_is_not_known_is_not_waited_for(
        self, asked: list[int], scripted: Script, clients: Callable[..., DataClient]
    ) -> None:
        client = clients(*scripted.endpoints.values())
        client.describe_existing(["flights"], {"flights": data_client.ID_UNKNOWN})
        assert asked == [0]

    def test_a_kafka_listener_leads_to_the_nodes(
        self, asked: list[int], scripted: Script, clients: Callable[..., DataClient],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(nodes, "grpc_addresses", lambda _: (scripted.endpoints[1],))
        assert clients("127.0.0.1:1").describe(["flights"])["flights"].topic_id == TOPIC_ID

    def test_no_kafka_listener_is_asked_by_one_who_has_to_authenticate(
        self, asked: list[int], scripted: Script, clients: Callable[..., DataClient],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """A server that listens there would get a question in the clear, and say where to log in."""
        told: list[str] = []
        monkeypatch.setattr(nodes, "grpc_addresses", lambda address: told.append(address) or ())
        security = ClientSecurity("SASL_PLAINTEXT", username="alice", password="x")
        client = clients("127.0.0.1:1", security=security)
        assert client._describe_once(["flights"])[1] is not None
        assert told == []
        assert clients("127.0.0.1:1")._describe_once(["flights"])[1] is not None
        assert told == ["127.0.0.1:1"]

    def test_a_topic_that_one_may_not_see_is_no_reason_to_wait(
        self, asked: list[int], scripted: Script, clients: Callable[..., DataClient]
    ) -> None:
        scripted.hidden = True
        with pytest.raises(ReadError, match="no right to DESCRIBE topic 'flights'"):
            clients(*scripted.endpoints.values()).describe(["flights"])
        assert asked == [0]

    def test_a_leader_that_is_gone_is_forgotten(
        self, asked: list[int], scripted: Script, clients: Callable[..., DataClient]
    ) -> None:
        self.stale = set()
        client = clients(*scripted.endpoints.values())
        view = client.describe(["flights"])["flights"]
        scripted.partitions[0].leader, scripted.partitions[0].leader_epoch = 1, 1
        scripted.stop(0)
        found = client.offsets(view, [data_client.offset_query(0)], read_committed=True)
        assert found[0].high_watermark == 30

    def test_a_channel_to_a_node_that_is_gone_is_not_kept(self, clients: Callable[..., DataClient]) -> None:
        channels = Channels()
        client = clients("127.0.0.1:1", channels=channels)
        assert client._describe_once(["flights"])[1] is not None
        assert "127.0.0.1:1" in channels._open
        client.close()
        assert "127.0.0.1:1" not in channels._open
        channels.close()


class TestLeadersAtOnce:
    """Leaders are asked at once, and one that does not answer only once a round."""

    @pytest.fixture
    def together(self, monkeypatch: pytest.MonkeyPatch, scripted: Script) -> None:
        """Both nodes lead, and answer only when the other was asked, too."""
        first = scripted.partitions[0]
        scripted.partitions[1] = replace(first, leader=1)
        both = threading.Barrier(2, timeout=20)
        offsets = ScriptedNode.Offsets

        def answer_offsets(node: ScriptedNode, request: Any, context: Any) -> pb.OffsetsReply:
            both.wait()
            return offsets(node, request, context)

        def answer_plans(_: ScriptedNode, request: Any, context: Any) -> pb.PlanManyRangesReply:
            both.wait()
            return pb.PlanManyRangesReply(
                partitions=[
                    pb.PartitionRanges(ranges=[pb.Range(start=part.start, end=part.end)])
                    for part in request.partitions
                ]
            )

        monkeypatch.setattr(ScriptedNode, "Offsets", answer_offsets)
        monkeypatch.setattr(ScriptedNode, "PlanManyRanges", answer_plans, raising=False)

    def test_no_leader_is_waited_for_before_another_is_asked(self, together: None, scripted: Script) -> None:
        client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=5_000)
        view = client.describe(["flights"])["flights"]
        queries = [data_client.offset_query(number) for number in (1, 0)]
        assert list(client.offsets(view, queries, read_committed=True)) == [1, 0]
        wanted = {("flights", 1): (0, 30), ("flights", 0): (0, 20)}
        found = client.plan_many_ranges({"flights": view}, wanted, 100)
        assert {key: [(part.start, part.end) for part in parts] for key, parts in found.items()} == {
            key: [span] for key, span in wanted.items()
        }
        client.close()

    def test_a_leader_that_does_not_answer_is_asked_no_more_in_the_round(
        self, scripted: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else each of its topics would cost the timeout of a call."""
        client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=300)
        dead, topics = scripted.endpoints[0], [f"t{number}" for number in range(3 * at_once.IN_FLIGHT_MAX)]
        made: list[str] = []

        def stub(endpoint: str) -> data_pb2_grpc.DataStub:
            made.append(endpoint)
            return data_pb2_grpc.DataStub(client._channels.to(endpoint))

        for name in topics:
            client.leaders.note(name, 0, LeaderView(0, 0, dead))
        scripted.stop(0)
        monkeypatch.setattr(client._nodes, "stub", stub)
        views = {name: TopicView(name, TOPIC_ID, False, (0,)) for name in topics}
        left = {(name, 0): data_client.offset_query(0) for name in topics}
        problem = client._offsets_once(views, dict(left), {}, True)
        assert problem is not None
        assert problem.code == ErrorCode.NETWORK_EXCEPTION
        assert made == [dead] * at_once.IN_FLIGHT_MAX

        monkeypatch.setattr(data_client, "PLANNED_AT_ONCE", 1)
        made.clear()
        for name in topics:
            client.leaders.note(name, 0, LeaderView(0, 0, dead))
        requests = {key: pb.PlanRangesRequest(topic=key[0], end=1) for key in left}
        problem = client._plan_once(views, requests, {}, False)
        assert problem is not None
        assert problem.code == ErrorCode.NETWORK_EXCEPTION
        assert made == [dead] * at_once.IN_FLIGHT_MAX
        client.close()

    def test_the_patience_begins_again_with_each_answer(
        self, scripted: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scripted.partitions |= dict.fromkeys((1, 2), scripted.partitions[0])
        offsets, clock = ScriptedNode.Offsets, LeapingClock()

        def one(node: ScriptedNode, request: Any, context: Any) -> pb.OffsetsReply:
            clock.leapt_s += 0.4
            del request.queries[1:]
            reply = offsets(node, request, context)
            reply.offsets.add(partition=9, error_code=ErrorCode.LEADER_NOT_AVAILABLE)
            return reply

        monkeypatch.setattr(ScriptedNode, "Offsets", one)
        client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=500, clock=clock)
        view = client.describe(["flights"])["flights"]
        found = client.offsets(view, map(data_client.offset_query, range(3)), read_committed=True)
        assert sorted(found) == [0, 1, 2]
        client.close()


class TestPlansOfManyPartitions:
    """Against a node that may answer a part of what it is asked."""

    @pytest.fixture
    def answer(self, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Any], pb.PlanManyRangesReply]]:
        """What the nodes do; a test puts its function in."""
        chosen: list[Callable[[Any], pb.PlanManyRangesReply]] = []
        monkeypatch.setattr(
            ScriptedNode, "PlanManyRanges", lambda _, request, context: chosen[0](request), raising=False
        )
        return chosen

    @staticmethod
    def planned(
        scripted: Script, clock: LeapingClock | None = None
    ) -> dict[tuple[str, int], list[tuple[int, int]]]:
        client = DataClient(list(scripted.endpoints.values()), retry_timeout_ms=400, clock=clock)
        try:
            wanted = {("flights", 0): (0, 30), ("flights", 1): (5, 9), ("flights", 2): (1, 2)}
            found = client.plan_many_ranges(client.describe(["flights"]), wanted, 100)
            return {key: [(part.start, part.end) for part in parts] for key, parts in found.items()}
        finally:
            client.close()

    @pytest.fixture(autouse=True)
    def three_partitions(self, answer: object, scripted: Script) -> None:
        scripted.partitions |= {1: scripted.partitions[0], 2: scripted.partitions[0]}

    def test_the_rest_of_a_part_is_asked_again(self, answer: list[Any], scripted: Script) -> None:
        def one(request: Any) -> pb.PlanManyRangesReply:
            part = request.partitions[0]
            ranges = [pb.Range(start=part.start, end=part.end)]
            return pb.PlanManyRangesReply(partitions=[pb.PartitionRanges(ranges=ranges)])

        answer.append(one)
        assert self.planned(scripted) == {
            ("flights", 0): [(0, 30)], ("flights", 1): [(5, 9)], ("flights", 2): [(1, 2)],
        }  # fmt: skip

    def test_the_patience_begins_again_with_each_part(self, answer: list[Any], scripted: Script) -> None:
        clock, fails = LeapingClock(), iter([False, True, False, True, False])

        def one(request: Any) -> pb.PlanManyRangesReply:
            clock.leapt_s += 0.3
            part = request.partitions[0]
            if next(fails):
                code = ErrorCode.LEADER_NOT_AVAILABLE
                return pb.PlanManyRangesReply(partitions=[pb.PartitionRanges(error_code=code)])
            ranges = [pb.Range(start=part.start, end=part.end)]
            return pb.PlanManyRangesReply(partitions=[pb.PartitionRanges(ranges=ranges)])

        answer.append(one)
        assert len(self.planned(scripted, clock)) == 3

    def test_records_that_are_gone_are_told_with_the_start_of_the_log(
        self, answer: list[Any], scripted: Script
    ) -> None:
        gone = pb.PartitionRanges(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=7)
        answer.append(lambda request: pb.PlanManyRangesReply(partitions=[gone]))
        with pytest.raises(ReadError) as refused:
            self.planned(scripted)
        assert (refused.value.code, refused.value.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 7)

    def test_a_node_that_plans_nothing_is_not_asked_for_ever(
        self, answer: list[Any], scripted: Script
    ) -> None:
        answer.append(lambda request: pb.PlanManyRangesReply())
        with pytest.raises(ReadError, match="planned no range"):
            self.planned(scripted)
