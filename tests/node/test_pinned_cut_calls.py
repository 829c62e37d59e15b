"""Calls about pinned cuts: rights on the topics that are meant, bad input, and what lists leave out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import CONSUMER_OFFSETS_TOPIC, PINNED_CUTS_LEVEL
from tidegate.controller.state.pinned_cuts import PINNED_CUT_BYTES_MAX
from tidegate.node.cuts.pinned_cut_calls import ENTRIES_MAX, TOPICS_MAX, PinnedCutCalls
from tidegate.proto import cuts_pb2 as pb
from tidegate.proto import metadata_pb2
from tidegate.wire.errors import ErrorCode, KafkaError

ORDERS, SECRET, OFFSETS = UUID(int=1), UUID(int=2), UUID(int=3)
NAMES = {ORDERS: "orders", SECRET: "secret", OFFSETS: CONSUMER_OFFSETS_TOPIC}


class Served:
    """The calls at a node; `may` says what the caller may do."""

    def __init__(self, may: Callable[[str, str], bool] = lambda _method, _name: True) -> None:
        self.may = may
        self.state = ClusterState()
        self.asked: list[tuple[str, ...]] = []
        self.is_late = False
        features = [metadata_pb2.Feature(name="tidegate.metadata.version", level=PINNED_CUTS_LEVEL)]
        self.apply(bootstrap=metadata_pb2.Bootstrap(cluster_id="c", features=features))
        register = metadata_pb2.RegisterBroker(node_id=1, incarnation="i", expected_broker_epoch=-1)
        self.apply(register_broker=register)
        for topic_id, name in NAMES.items():
            place = metadata_pb2.NewPartition(replicas=[1], isr=[1])
            creation = metadata_pb2.CreateTopic(topic_id=topic_id.bytes, name=name, partitions=[place])
            self.apply(
                unfence_broker=metadata_pb2.UnfenceBroker(
                    node_id=1, broker_epoch=self.state.brokers[1].broker_epoch
                )
            )
            self.apply(create_topic=creation)
        self.calls = PinnedCutCalls(cast(Any, self), cast(Any, self), cast(Any, self), self.read_barrier)

    def apply(self, **operation: Any) -> None:
        command = metadata_pb2.Command(operations=[metadata_pb2.Operation(**operation)])
        assert self.state.apply(self.state.index + 1, 1, command.SerializeToString()).ok

    def pinned(self, name: str, *topic_ids: UUID, is_confirmed: bool = True) -> None:
        record = metadata_pb2.PinnedCutRecord(name=name, pin_id=f"id of {name}", is_confirmed=is_confirmed)
        for topic_id in topic_ids:
            place = record.topics.add(topic_id=topic_id.bytes, name=NAMES[topic_id])
            one = metadata_pb2.UndecidedRecord(producer_id=4, first_offset=2)
            place.partitions.add(partition=0, start=1, end=9, undecided=[one])
        self.apply(change_pinned_cuts=metadata_pb2.ChangePinnedCuts(pin=[record]))

    # ---- what the calls use --------------------------------------------------------------------------------

    async def read_barrier(self, timeout_s: float) -> int:
        return self.state.index

    async def wait_for_index(self, index: int, timeout_s: float) -> None:
        if self.is_late:
            raise TimeoutError

    def allows(self, _caller: Any, method: str, name: str) -> bool:
        return self.may(method, name)

    def require(self, _caller: Any, method: str, name: str) -> None:
        if not self.may(method, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{method} {name}")

    async def pin(self, name: str, cut: pb.Cut, retention_ms: int, timeout_s: float) -> Any:
        self.asked.append(("pin", *(topic.name for topic in cut.topics)))
        self.pinned(name, *(UUID(bytes=topic.topic_id) for topic in cut.topics))
        return self.state.pinned_cuts[name]

    async def pin_new(self, name: str, topics: Sequence[str], retention_ms: int, timeout_s: float) -> Any:
        self.asked.append(("pin new", *topics))
        self.pinned(name, *(each for each, known in NAMES.items() if known in topics))
        return self.state.pinned_cuts[name]

    async def unpin(self, pin_id: str) -> None:
        self.asked.append(("unpin", pin_id))


CALLER: Any = SimpleNamespace(principal="User:someone")


def cut(*named: tuple[UUID, str]) -> pb.Cut:
    return pb.Cut(topics=[pb.CutTopic(topic_id=topic_id.bytes, name=name) for topic_id, name in named])


async def code_of(call: Coroutine[Any, Any, Any]) -> ErrorCode:
    try:
        await call
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
PIN_NEW = pb.PinCutRequest(name="c", retention_ms=1, topics=pb.TakeCutRequest(topics=["orders", "secret"]))
GIVEN = pb.PinCutRequest(name="c", retention_ms=1, cut=cut((ORDERS, "orders"), (SECRET, "secret")))
LONG = pb.Cut(cut_id="i" * (PINNED_CUT_BYTES_MAX + 1))
MANY = pb.Cut(topics=[pb.CutTopic(topic_id=ORDERS.bytes, partitions=[pb.CutPartition()] * (ENTRIES_MAX + 1))])
DISGUISED = pb.PinCutRequest(name="c", retention_ms=1, cut=cut((ORDERS, "orders"), (SECRET, "orders")))


@pytest.mark.parametrize("request_", [PIN_NEW, GIVEN, DISGUISED])
@pytest.mark.parametrize("method", ["PinCut", "GetCut"])
async def test_a_pin_needs_both_rights_on_every_topic_that_is_meant(
    request_: pb.PinCutRequest, method: str
) -> None:
    """By its id: the name beside it is the client's."""
    served = Served(lambda asked, name: (asked, name) != (method, "secret"))
    assert await code_of(served.calls.pin(request_, CALLER)) is REFUSED
    assert served.asked == []
    served = Served()
    assert await code_of(served.calls.pin(request_, CALLER)) is ErrorCode.NONE
    assert served.asked[0][1:] == ("orders", "secret")


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({}, ErrorCode.INVALID_REQUEST),
        ({"cut": cut((UUID(int=9), "orders"))}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"cut": pb.Cut(topics=[pb.CutTopic(topic_id=b"short")])}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"cut": cut((OFFSETS, "orders"))}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"topics": pb.TakeCutRequest(topics=[CONSUMER_OFFSETS_TOPIC])}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"topics": pb.TakeCutRequest(topics=["t"] * (TOPICS_MAX + 1))}, ErrorCode.INVALID_REQUEST),
        ({"cut": cut(*[(ORDERS, "t")] * (TOPICS_MAX + 1))}, ErrorCode.INVALID_REQUEST),
        ({"cut": LONG}, ErrorCode.POLICY_VIOLATION),
        ({"cut": MANY}, ErrorCode.POLICY_VIOLATION),
    ],
)
async def test_a_pin_that_cannot_be_meant_is_refused(what: dict[str, Any], code: ErrorCode) -> None:
    served = Served()
    request = pb.PinCutRequest(name="c", retention_ms=1, **what)
    assert await code_of(served.calls.pin(request, CALLER)) is code
    assert served.asked == []


async def test_a_cut_is_got_by_its_name_with_read_on_each_topic() -> None:
    served = Served(lambda method, name: (method, name) != ("GetCut", "secret"))
    served.pinned("both", ORDERS, SECRET)
    served.pinned("one", ORDERS)
    served.pinned("begun", ORDERS, is_confirmed=False)
    found = await served.calls.get(pb.GetCutRequest(name="one"), CALLER)
    (topic,) = found.cut.topics
    assert (topic.name, topic.topic_id, found.name) == ("orders", ORDERS.bytes, "one")
    (place,) = topic.partitions
    assert (place.start, place.end, place.undecided[0].first_offset) == (1, 9, 2)
    assert await code_of(served.calls.get(pb.GetCutRequest(name="both"), CALLER)) is REFUSED
    for name in ("begun", "none"):
        code = await code_of(served.calls.get(pb.GetCutRequest(name=name), CALLER))
        assert code is ErrorCode.RESOURCE_NOT_FOUND


async def test_a_cut_that_the_caller_may_not_see_is_not_there_and_no_topic_of_it_is_named() -> None:
    served = Served(lambda _method, name: name != "secret")
    served.pinned("both", ORDERS, SECRET)
    assert await code_of(served.calls.get(pb.GetCutRequest(name="both"), CALLER)) is (
        ErrorCode.RESOURCE_NOT_FOUND
    )
    assert not (await served.calls.unpin(pb.UnpinCutRequest(name="both"), CALLER)).was_pinned
    given = pb.PinCutRequest(name="c", retention_ms=1, cut=cut((SECRET, "guessed")))
    with pytest.raises(KafkaError, match="topic 'guessed' of the cut is not there") as unknown:
        await served.calls.pin(given, CALLER)
    assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_ID
    assert served.asked == []


async def test_a_node_that_does_not_get_the_metadata_does_not_say_that_there_is_no_cut() -> None:
    served = Served()
    served.pinned("known", ORDERS)
    served.is_late = True
    assert await code_of(served.calls.get(pb.GetCutRequest(name="known"), CALLER)) is ErrorCode.NONE
    calls = [
        served.calls.get(pb.GetCutRequest(name="new"), CALLER),
        served.calls.unpin(pb.UnpinCutRequest(name="new"), CALLER),
        served.calls.list(pb.ListCutsRequest(), CALLER),
    ]
    for call in calls:
        assert await code_of(call) is ErrorCode.REQUEST_TIMED_OUT


async def test_a_list_leaves_out_cuts_of_topics_that_the_caller_may_not_describe() -> None:
    served = Served(lambda method, name: (method, name) != ("ListCuts", "secret"))
    served.pinned("z", ORDERS)
    served.pinned("both", ORDERS, SECRET)
    served.pinned("a", ORDERS, is_confirmed=False)
    listed = (await served.calls.list(pb.ListCutsRequest(), CALLER)).cuts
    assert [(each.name, each.is_confirmed) for each in listed] == [("a", False), ("z", True)]
    assert (list(listed[0].topics), listed[0].partitions) == (["orders"], 1)


async def test_a_cut_of_a_topic_that_was_deleted_says_so() -> None:
    served = Served()
    served.pinned("c", ORDERS, SECRET)
    served.apply(delete_topic=metadata_pb2.DeleteTopic(topic_id=SECRET.bytes))
    assert (await served.calls.get(pb.GetCutRequest(name="c"), CALLER)).deleted_topics == ["secret"]
    (listed,) = (await served.calls.list(pb.ListCutsRequest(), CALLER)).cuts
    assert listed.deleted_topics == ["secret"]


async def test_a_cut_is_unpinned_with_alter_on_each_topic() -> None:
    served = Served(lambda method, name: (method, name) != ("UnpinCut", "secret"))
    served.pinned("both", ORDERS, SECRET)
    served.pinned("one", ORDERS)
    assert await code_of(served.calls.unpin(pb.UnpinCutRequest(name="both"), CALLER)) is REFUSED
    assert (await served.calls.unpin(pb.UnpinCutRequest(name="one"), CALLER)).was_pinned
    assert not (await served.calls.unpin(pb.UnpinCutRequest(name="none"), CALLER)).was_pinned
    assert served.asked == [("unpin", "id of one")]
