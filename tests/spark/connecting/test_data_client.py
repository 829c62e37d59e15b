"""What the client of the data service takes an answer for, and whom it asks next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tidegate.proto import data_pb2 as pb
from tidegate.security.client_security import ClientSecurity
from tidegate.spark.connecting import data_client, nodes
from tidegate.spark.connecting.answers import LeaderView, TopicView
from tidegate.spark.connecting.channels import Channels
from tidegate.spark.connecting.data_client import DataClient
from tidegate.spark.connecting.errors import Problem, ReadError
from tidegate.spark.connecting.retry import SILENT_S_MAX
from tidegate.spark.reading.fetch import RangeRequest, fetch_range
from tidegate.wire.errors import ErrorCode

from ..conftest import TOPIC_ID, LeapingClock, Script, ScriptedNode
from .grpc_calls import Call, Failure

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
        scripted.partitions[2] = scripted.partitions[0]
        queries = [data_client.offset_query(number) for number in (0, 1, 2)]
        assert list(client.offsets(view, queries, read_committed=True)) == [0, 1, 2], "in the order asked"
        wanted = {("flights", 1): (0, 30), ("flights", 0): (0, 20)}
        found = client.plan_many_ranges({"flights": view}, wanted, 100)
        assert {key: [(part.start, part.end) for part in parts] for key, parts in found.items()} == {
            key: [span] for key, span in wanted.items()
        }
        client.close()


class Leader:
    """A stub whose calls are noted, and answered by `answers`, else well."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: list[Any] = []
        self.calls: list[Call] = []
        self.Offsets = self.PlanManyRanges = self

    def future(self, request: Any, timeout: float, metadata: object) -> Call:
        assert timeout == data_client.CALL_TIMEOUT_S
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else self._answered(request)
        self.calls.append(Call(answer, is_slow=answer is None))
        return self.calls[-1]

    @staticmethod
    def _answered(request: Any) -> pb.OffsetsReply | pb.PlanManyRangesReply:
        if isinstance(request, pb.PlanManyRangesRequest):
            return pb.PlanManyRangesReply(
                partitions=[
                    pb.PartitionRanges(ranges=[pb.Range(start=part.start, end=part.end)])
                    for part in request.partitions
                ]
            )
        offsets = [pb.PartitionOffset(partition=query.partition, offset=9) for query in request.queries]
        return pb.OffsetsReply(offsets=offsets)


class TestManyTopics:
    """Topics t0, t1, ... with a partition 0 each, led by the nodes `a:1` and, where a test says so, `b:1`."""

    TOPICS = 40

    @pytest.fixture
    def nodes(self, client: DataClient, monkeypatch: pytest.MonkeyPatch) -> dict[str, Leader]:
        nodes = {"a:1": Leader(), "b:1": Leader()}
        monkeypatch.setattr(client._nodes, "stub", lambda endpoint: nodes[endpoint])
        monkeypatch.setattr(client, "_describe_once", self.described)
        monkeypatch.setattr(data_client, "PLANNED_AT_ONCE", 1)
        monkeypatch.setattr(data_client, "NAMED_AT_ONCE", 10)
        self.client, self.descriptions = client, list[int]()
        self.leaders = {self.name(number): "a:1" for number in range(self.TOPICS)}
        self.described([*self.leaders])
        self.descriptions.clear()
        return nodes

    def described(self, names: Sequence[str]) -> tuple[dict[str, TopicView], Problem | None]:
        self.descriptions.append(len(names))
        for name in names:
            if leader := self.leaders.get(name):
                self.client.leaders.note(name, 0, LeaderView(0, 0, leader))
        return {}, None

    @staticmethod
    def name(number: int) -> str:
        return f"t{number:02}"

    def views(self) -> dict[str, TopicView]:
        return {name: TopicView(name, name.encode() * 4, False, (0,)) for name in self.leaders}

    def offsets(self) -> list[tuple[str, int]]:
        queries = {(name, 0): data_client.offset_query(0) for name in self.leaders}
        found = self.client.offsets_of_topics(self.views(), queries, read_committed=True)
        assert {answer.offset for answer in found.values()} == {9}
        return list(found)

    def plans(self) -> list[tuple[str, int]]:
        return list(
            self.client.plan_many_ranges(self.views(), {(name, 0): (0, 5) for name in self.leaders}, 9)
        )

    @pytest.mark.parametrize("ask", [offsets, plans])
    def test_each_is_asked_of_its_leader_by_its_own_id(
        self, ask: Callable[[object], list[tuple[str, int]]], nodes: dict[str, Leader]
    ) -> None:
        self.leaders |= dict.fromkeys(map(self.name, range(0, self.TOPICS, 2)), "b:1")
        for name in self.leaders:
            self.client.leaders.note(name, 0, LeaderView(0, 1, self.leaders[name]))
        assert ask(self) == [(name, 0) for name in self.leaders]
        for endpoint, leader in nodes.items():
            parts = [part for each in leader.asked for part in getattr(each, "partitions", [each])]
            assert [(part.topic, part.topic_id) for part in parts] == [
                (name, name.encode() * 4) for name, at in self.leaders.items() if at == endpoint
            ]

    @pytest.mark.parametrize("ask", [offsets, plans])
    def test_a_session_that_has_ended_costs_one_call(
        self,
        ask: Callable[[object], list[tuple[str, int]]],
        nodes: dict[str, Leader],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A second call with it would find that it is forgotten, and take that for the end."""
        sessions = iter([True])
        monkeypatch.setattr(self.client._channels, "forget_session", lambda _: next(sessions, False))
        nodes["a:1"].answers = [Failure(grpc.StatusCode.UNAUTHENTICATED)]
        assert len(ask(self)) == self.TOPICS
        assert len(nodes["a:1"].asked) == self.TOPICS + 1

    @pytest.mark.parametrize("ask", [offsets, plans])
    def test_nodes_that_say_no_leader_are_asked_once_a_round(
        self, ask: Callable[[object], object], nodes: dict[str, Leader], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lost = Problem(ErrorCode.NETWORK_EXCEPTION, "away", curable=True)
        clock = LeapingClock()

        def described(names: Sequence[str]) -> tuple[dict[str, TopicView], Problem]:
            self.described([])
            clock.leapt_s += 15
            return {}, lost

        monkeypatch.setattr(self.client, "_clock", clock)
        monkeypatch.setattr(self.client, "_describe_once", described)
        for name in self.leaders:
            self.client.leaders.forget(name, 0, lost)
        with pytest.raises(ReadError, match="away"):
            ask(self)
        assert len(self.descriptions) == 1, "the patience of the client is 0.3 s"

    @pytest.mark.parametrize("ask", [offsets, plans])
    def test_a_final_error_ends_what_is_under_way(
        self, ask: Callable[[object], object], nodes: dict[str, Leader]
    ) -> None:
        self.client.leaders.note("t01", 0, LeaderView(0, 1, "b:1"))
        final, slow = Failure(grpc.StatusCode.PERMISSION_DENIED), None
        nodes["a:1"].answers, nodes["b:1"].answers = [final], [slow]
        with pytest.raises(ReadError):
            ask(self)
        assert [call.is_cancelled for call in nodes["b:1"].calls] == [True]

    @pytest.mark.parametrize("ask", [offsets, plans])
    def test_a_final_error_about_leaders_ends_all_at_once(
        self, ask: Callable[[object], object], nodes: dict[str, Leader], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        final = Problem(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right", curable=False)
        monkeypatch.setattr(self.client, "_describe_once", lambda _: ({}, final))
        self.client.leaders.forget("t07", 0, final)
        with pytest.raises(ReadError, match="no right"):
            ask(self)
        assert nodes["a:1"].asked == []

    def test_the_patience_begins_again_with_each_answer(
        self, nodes: dict[str, Leader], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock, future = LeapingClock(), Leader.future

        def late(leader: Leader, *args: Any, **named: Any) -> Call:
            clock.leapt_s += 0.2  # the patience of the client is 0.3 s
            return future(leader, *args, **named)

        monkeypatch.setattr(Leader, "future", late)
        monkeypatch.setattr(self.client, "_clock", clock)
        good = pb.OffsetsReply(offsets=[pb.PartitionOffset(offset=9)])
        nodes["a:1"].answers = [good, Failure(grpc.StatusCode.UNAVAILABLE)] * 5
        assert len(self.offsets()) == self.TOPICS

    @pytest.mark.parametrize("ask", [offsets, plans])
    def test_an_error_in_the_midst_ends_what_is_under_way(
        self, ask: Callable[[object], object], nodes: dict[str, Leader], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At once, although the error still holds the frame that was reading."""
        self.client.leaders.note("t01", 0, LeaderView(0, 1, "b:1"))
        nodes["a:1"].answers, nodes["b:1"].answers = [Failure(grpc.StatusCode.UNAVAILABLE)], [None]
        monkeypatch.setattr(self.client._nodes, "problem_of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError) as raised:
            ask(self)
        assert raised.tb is not None
        assert [call.is_cancelled for call in nodes["b:1"].calls] == [True]

    def test_what_was_not_asked_says_nothing(self, nodes: dict[str, Leader]) -> None:
        good = pb.PartitionOffset(partition=0, offset=9)
        odd = pb.PartitionOffset(partition=7, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        twice = pb.PartitionOffset(partition=0, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        nodes["a:1"].answers = [pb.OffsetsReply(offsets=[odd, good, twice])]
        assert len(self.offsets()) == self.TOPICS

    def test_a_final_error_ends_all_whatever_was_answered(self, nodes: dict[str, Leader]) -> None:
        final = pb.PartitionOffset(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        nodes["a:1"].answers = [
            pb.OffsetsReply(offsets=[pb.PartitionOffset(offset=9)]),
            pb.OffsetsReply(offsets=[final]),
        ]
        with pytest.raises(ReadError):
            self.offsets()
        assert len(nodes["a:1"].asked) == 2


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
