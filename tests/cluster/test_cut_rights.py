"""Cuts on a secured node, asked for by users with few rights: each refusal is one clear error, and says
nothing about topics that the user may not describe."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import grpc
import pytest
from tidegate.chaos.load.user import Right, make_user
from tidegate.client.administration.admin import Admin
from tidegate.client.administration.descriptions import NewTopic
from tidegate.client.connecting.errors import RequestError
from tidegate.client.consuming.cut import Cut
from tidegate.client.consuming.cut_reader import read_cut
from tidegate.client.producing.producer import Producer
from tidegate.node.cuts.cut_service import ERROR_KEY, TOPICS_MAX
from tidegate.processes.local_cluster import LocalCluster
from tidegate.processes.local_ports import grpc_client
from tidegate.proto import cuts_pb2 as pb
from tidegate.proto import cuts_pb2_grpc, data_pb2, data_pb2_grpc
from tidegate.security.acls import AclOperation, ResourceType
from tidegate.security.client_security import ClientSecurity
from tidegate.wire.errors import ErrorCode

from .witness import kept_up

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("cut-rights"), pytest.mark.timeout(120)]

OPEN, SECRET = "open-orders", "secret-salaries"
DAY_MS = 86_400_000
USERS = {
    "reader": [(OPEN, AclOperation.READ)],
    "keeper": [(OPEN, AclOperation.READ), (OPEN, AclOperation.ALTER)],
    "lister": [(OPEN, AclOperation.DESCRIBE), (SECRET, AclOperation.DESCRIBE)],
    "stranger": [],
}
SETTINGS = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 1}


@dataclass
class Served:
    cluster: LocalCluster
    users: dict[str, ClientSecurity]

    async def ask(self, user: str, method: str, request: Any, *, shown: Any = None) -> Any:
        node = self.cluster.nodes[0].grpc_address
        async with grpc_client(node, self.users[user], 15) as (channel, own):
            call = getattr(cuts_pb2_grpc.CutsStub(channel), method)
            return await call(request, timeout=15, metadata=own if shown is None else shown)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with kept_up(LocalCluster(tmp_path_factory.mktemp("rights"), 1, SETTINGS, with_users=True)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def made() -> dict[str, ClientSecurity]:
    return {}


@pytest.fixture
async def served(cluster: LocalCluster, made: dict[str, ClientSecurity]) -> Served:
    assert cluster.security is not None
    if not made:
        async with Admin(cluster.bootstrap, security=cluster.security) as admin:
            await admin.create_topics([NewTopic(name, 2, 1) for name in (OPEN, SECRET)])
            await admin.pin_cut("ours", [OPEN], retention_ms=DAY_MS)
            await admin.pin_cut("theirs", [OPEN, SECRET], retention_ms=DAY_MS)
        for name, rights in USERS.items():
            wanted: list[Right] = [(ResourceType.TOPIC, topic, operation) for topic, operation in rights]
            password = await make_user(cluster.bootstrap, cluster.security, cluster.clock, name, wanted)
            made[name] = replace(cluster.security, username=name, password=password)
        made["root"] = cluster.security
    return Served(cluster, made)


async def refusal(call: Awaitable[object]) -> tuple[ErrorCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    detail = dict(failure.value.trailing_metadata() or ())[ERROR_KEY]
    assert isinstance(detail, bytes)
    error = pb.CutError.FromString(detail)
    assert error.message == failure.value.details()
    assert 0 < len(error.message) <= 1_000
    return ErrorCode.from_wire(error.error_code), error.message


def take(*topics: str) -> pb.TakeCutRequest:
    return pb.TakeCutRequest(topics=topics, timeout_ms=5_000)


def pin(name: str = "mine", retention_ms: int = 60_000, **what: Any) -> pb.PinCutRequest:
    return pb.PinCutRequest(
        name=name, retention_ms=retention_ms, timeout_ms=5_000, **(what or {"topics": take(OPEN)})
    )


REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_cut_is_taken_and_read_with_read_on_each_topic(served: Served) -> None:
    cut = await served.ask("reader", "TakeCut", take(OPEN))
    assert [topic.name for topic in cut.topics] == [OPEN]
    for user, topics in (("reader", [OPEN, SECRET]), ("lister", [OPEN]), ("stranger", [OPEN])):
        lacking = SECRET if user == "reader" else OPEN
        code, message = await refusal(served.ask(user, "TakeCut", take(*topics)))
        assert (code, message) == (REFUSED, f"User:{user} lacks READ on TOPIC {lacking}")
    # one that does not exist is refused in the same way
    code, message = await refusal(served.ask("reader", "TakeCut", take(OPEN, "nowhere")))
    assert (code, message) == (REFUSED, "User:reader lacks READ on TOPIC nowhere")


async def test_the_records_of_a_cut_need_read_when_they_are_read(served: Served) -> None:
    cluster, root = served.cluster, served.users["root"]
    async with Producer(cluster.bootstrap, security=root) as producer:
        await (await producer.send(OPEN, b"1000", partition=0))
    async with Admin(cluster.bootstrap, security=root) as admin:
        cut = await admin.take_cut([OPEN])
    assert [each.value async for each in read_cut(cluster.bootstrap, cut, security=root)] == [b"1000"]
    request = data_pb2.ReadRangeRequest(topic=OPEN, leader_epoch=-1, end=1, isolation=data_pb2.AT_CUT)

    async def read(user: str) -> list[int]:
        node = cluster.nodes[0].grpc_address
        async with grpc_client(node, served.users[user], 15) as (channel, shown):
            stream = data_pb2_grpc.DataStub(channel).ReadRange(request, timeout=15, metadata=shown)
            return [chunk.next_offset async for chunk in stream]

    assert await read("reader") == [1]
    with pytest.raises(grpc.aio.AioRpcError, match=f"User:lister lacks READ on TOPIC {OPEN}"):
        await read("lister")


async def test_pins_are_made_shown_listed_and_undone_with_the_rights_of_the_table(served: Served) -> None:
    def listed(reply: pb.ListCutsReply) -> list[str]:
        return [each.name for each in reply.cuts]

    for user, seen in (("root", 2), ("lister", 2), ("reader", 1), ("stranger", 0)):
        found = listed(await served.ask(user, "ListCuts", pb.ListCutsRequest()))
        assert found == ["ours", "theirs"][:seen]
    for user, lacking in (("reader", "ALTER"), ("lister", "READ"), ("stranger", "READ")):
        code, message = await refusal(served.ask(user, "PinCut", pin()))
        assert (code, message) == (REFUSED, f"User:{user} lacks {lacking} on TOPIC {OPEN}")
    for user, lacking in (("reader", "ALTER"), ("lister", "ALTER")):
        code, message = await refusal(served.ask(user, "UnpinCut", pb.UnpinCutRequest(name="ours")))
        assert (code, message) == (REFUSED, f"User:{user} lacks {lacking} on TOPIC {OPEN}")
    assert (await served.ask("reader", "GetCut", pb.GetCutRequest(name="ours"))).name == "ours"
    code, message = await refusal(served.ask("lister", "GetCut", pb.GetCutRequest(name="ours")))
    assert (code, message) == (REFUSED, f"User:lister lacks READ on TOPIC {OPEN}")
    assert (await served.ask("keeper", "PinCut", pin())).name == "mine"
    assert (await served.ask("keeper", "UnpinCut", pb.UnpinCutRequest(name="mine"))).was_pinned
    assert listed(await served.ask("root", "ListCuts", pb.ListCutsRequest())) == ["ours", "theirs"]


async def test_a_cut_of_a_topic_that_one_may_not_see_is_not_there(served: Served) -> None:
    for user in ("keeper", "stranger"):
        for name in ("theirs", "none"):
            code, message = await refusal(served.ask(user, "GetCut", pb.GetCutRequest(name=name)))
            assert code is ErrorCode.RESOURCE_NOT_FOUND
            assert message.startswith(f"no cut is pinned as {name!r}: `tidegate cuts list` shows")
            assert not (await served.ask(user, "UnpinCut", pb.UnpinCutRequest(name=name))).was_pinned
    theirs = await served.ask("root", "GetCut", pb.GetCutRequest(name="theirs"))
    (secret,) = [topic.topic_id for topic in theirs.cut.topics if topic.name == SECRET]
    for topic_id in (secret, uuid4().bytes, b"short"):
        only = pb.Cut(topics=[pb.CutTopic(name="guessed", topic_id=topic_id)])
        code, message = await refusal(served.ask("keeper", "PinCut", pin(cut=only)))
        assert code is ErrorCode.UNKNOWN_TOPIC_ID
        assert message == "topic 'guessed' of the cut is not there any more, or never was"


async def test_tokens_that_prove_nothing_are_refused(served: Served) -> None:
    for shown in ((), (("authorization", "Session wrong"),), (("authorization", "Bearer x.y.z"),)):
        for method, request in (("TakeCut", take(OPEN)), ("ListCuts", pb.ListCutsRequest())):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await served.ask("root", method, request, shown=shown)
            assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "open" not in str(failure.value.details())


@pytest.mark.parametrize(
    ("method", "request_", "code", "says"),
    [
        ("TakeCut", take(), ErrorCode.INVALID_REQUEST, "at least one topic"),
        ("TakeCut", take(OPEN, OPEN), ErrorCode.INVALID_REQUEST, "each once"),
        ("TakeCut", take("nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nowhere does not exist"),
        ("TakeCut", take("x" * 100_000), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic xxx"),
        ("TakeCut", take("\U0001f512" * 9_000), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic \U0001f512"),
        (
            "TakeCut", take(*(f"t{n}" for n in range(TOPICS_MAX + 1))), ErrorCode.INVALID_REQUEST,
            "1001 topics: a cut has at most 1000",
        ),
        ("TakeCut", take(*(f"t{n}" for n in range(900))), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic t0 "),
        ("PinCut", pin(""), ErrorCode.INVALID_REQUEST, "name of a pinned cut"),
        ("PinCut", pin("x" * 250), ErrorCode.INVALID_REQUEST, "name of a pinned cut"),
        ("PinCut", pin("x" * 100_000), ErrorCode.INVALID_REQUEST, "name of a pinned cut"),
        ("PinCut", pin("a\nb\x00"), ErrorCode.INVALID_REQUEST, "name of a pinned cut"),
        ("PinCut", pin("../x"), ErrorCode.INVALID_REQUEST, "name of a pinned cut"),
        ("PinCut", pin("ours"), ErrorCode.DUPLICATE_RESOURCE, "a cut is pinned as 'ours' already"),
        ("PinCut", pin(retention_ms=0), ErrorCode.INVALID_REQUEST, "cut.retention.max.ms is"),
        ("PinCut", pin(retention_ms=-1), ErrorCode.INVALID_REQUEST, "cut.retention.max.ms is"),
        ("PinCut", pin(retention_ms=8 * DAY_MS - 1), ErrorCode.INVALID_REQUEST, "cut.retention.max.ms is"),
        ("PinCut", pin(retention_ms=(1 << 63) - 1), ErrorCode.INVALID_REQUEST, "cut.retention.max.ms is"),
        ("PinCut", pin(topics=take()), ErrorCode.INVALID_REQUEST, "at least one topic"),
        ("PinCut", pin(cut=pb.Cut()), ErrorCode.INVALID_REQUEST, "a cut has topics"),
        ("PinCut", pin(topics=take("nowhere")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist"),
        ("PinCut", pb.PinCutRequest(name="x"), ErrorCode.INVALID_REQUEST, "topics, or a cut"),
        ("GetCut", pb.GetCutRequest(), ErrorCode.RESOURCE_NOT_FOUND, "no cut is pinned as ''"),
        ("GetCut", pb.GetCutRequest(name="x" * 100_000), ErrorCode.RESOURCE_NOT_FOUND, "no cut is pinned"),
        ("GetCut", pb.GetCutRequest(name="a\nb"), ErrorCode.RESOURCE_NOT_FOUND, r"pinned as 'a\nb'"),
    ],
)  # fmt: skip
async def test_what_cannot_be_meant_is_one_clear_error(
    served: Served, method: str, request_: Any, code: ErrorCode, says: str
) -> None:
    found, message = await refusal(served.ask("root", method, request_))
    assert found is code, message
    assert says in message
    assert sorted(
        each.name for each in (await served.ask("root", "ListCuts", pb.ListCutsRequest())).cuts
    ) == [
        "ours",
        "theirs",
    ]


async def test_the_client_says_the_same(served: Served) -> None:
    async with Admin(served.cluster.bootstrap, security=served.users["root"]) as admin:
        with pytest.raises(RequestError, match="a cut is pinned as 'ours' already"):
            await admin.pin_cut("ours", [OPEN], retention_ms=1000)
        with pytest.raises(RequestError, match="no cut is pinned as 'xxx"):
            await admin.describe_cut("x" * 50_000)
        with pytest.raises(RequestError, match="a cut has topics"):
            await admin.pin_cut("new", Cut({}), retention_ms=1000)
        for retention_ms in (0, -1, 1 << 63):
            with pytest.raises(RequestError, match=f"retention_ms is from 1 to .*, not {retention_ms}"):
                await admin.pin_cut("new", [OPEN], retention_ms=retention_ms)
    async with Admin(served.cluster.bootstrap, security=served.users["keeper"]) as admin:
        with pytest.raises(RequestError, match="found by DESCRIBE_CONFIGS on the cluster"):
            await admin.list_cuts()
