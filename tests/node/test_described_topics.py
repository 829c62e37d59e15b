"""Metadata: topics are described once, in small pieces, and never as they were before a change."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import LISTENERS_LEVEL, METADATA_VERSION
from tidegate.node.handlers.cluster import describe_cluster, describe_topic_partitions, metadata
from tidegate.node.handlers.groups import find_coordinator
from tidegate.node.handlers.log.current_leader import endpoints
from tidegate.node.serving import described_topics
from tidegate.node.serving.broker import Broker
from tidegate.node.serving.codecs import DUTY_MAX, Codecs
from tidegate.node.serving.described_topics import DescribedTopics
from tidegate.node.serving.requests import Encoded, RequestContext
from tidegate.node.serving.throttling import Throttling
from tidegate.proto import metadata_pb2 as pb
from tidegate.runtime.clock import ManualClock
from tidegate.tests.permissions import ALL_ALLOWED
from tidegate.wire import codec
from tidegate.wire.api import ApiKey
from tidegate.wire.errors import ErrorCode

UNLIMITED = Throttling(dict, ManualClock(), may_act_as_node=lambda _: False)

TOPICS, PARTITIONS = 20, 100


class Applier:
    """A state, changed by commands."""

    def __init__(self) -> None:
        self.state = ClusterState()

    def __call__(self, **operation: Any) -> Any:
        command = pb.Command(operations=[pb.Operation(**operation)])
        result = self.state.apply(self.state.index + 1, 1, command.SerializeToString())
        assert result.ok, result
        return result.value

    def broker(self, node_id: int, *listeners: str) -> int:
        asked = pb.RegisterBroker(
            node_id=node_id,
            incarnation="first",
            expected_broker_epoch=-1,
            kafka=pb.Endpoint(host="inside", port=node_id),
            listeners=[pb.NamedEndpoint(name=name, host=name.lower(), port=node_id) for name in listeners],
        )
        epoch: int = self(register_broker=asked)
        self(unfence_broker=pb.UnfenceBroker(node_id=node_id, broker_epoch=epoch))
        return epoch

    @staticmethod
    def topic_id(number: int) -> UUID:
        return UUID(int=7 + number)

    def topic(self, name: str, number: int, partitions: int) -> None:
        parts = [pb.NewPartition(replicas=(1, 2, 3), isr=(1, 2, 3)) for _ in range(partitions)]
        self(create_topic=pb.CreateTopic(topic_id=self.topic_id(number).bytes, name=name, partitions=parts))

    def move_leader(self, name: str) -> None:
        one = pb.PartitionChange(
            partition=0, expected_partition_epoch=0, leader=2, isr=(1, 2, 3), last_known_leader=1
        )
        group = pb.TopicPartitionChanges(topic_id=self.state.topics[name].topic_id.bytes, partitions=[one])
        self(change_partitions=pb.ChangePartitions(topics=[group]))

    def delete(self, name: str) -> None:
        self(delete_topic=pb.DeleteTopic(topic_id=self.state.topics[name].topic_id.bytes))


class Asked:
    """A broker that knows some topics, and a client that asks for them."""

    def __init__(self) -> None:
        self.applier = Applier()
        self.epochs = {node_id: self.applier.broker(node_id) for node_id in (1, 2, 3)}
        for number in range(TOPICS):
            self.applier.topic(f"t{number}", number, PARTITIONS)
        self.gave_way = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.broker = cast(
            Broker,
            SimpleNamespace(
                state=self.applier.state, cluster=SimpleNamespace(controller_id=1),
                permissions=ALL_ALLOWED, described_topics=DescribedTopics(),
                configuration=SimpleNamespace(integer=lambda _name: 100_000), throttling=UNLIMITED,
            ),
        )  # fmt: skip

    async def yield_loop(self) -> None:
        self.gave_way += 1
        self.meanwhile()

    async def all(self, version: int = 12) -> Any:
        return await self._ask(version, None)

    async def named(self, *names: str, version: int = 12) -> Any:
        return await self._ask(version, [SimpleNamespace(name=name, topic_id=None) for name in names])

    async def _ask(self, version: int, topics: list[Any] | None) -> Any:
        request: Any = SimpleNamespace(topics=topics, allow_auto_topic_creation=False)
        answer = await metadata.handle(self.broker, self._context(ApiKey.METADATA, version), request)
        return decoded(version, answer)

    async def pages(self) -> Any:
        request: Any = SimpleNamespace(topics=[], cursor=None, response_partition_limit=100_000)
        return await describe_topic_partitions.handle(self.broker, self._context(75, 0), request)

    def _context(self, key: int, version: int) -> RequestContext:
        return RequestContext(key, version, 1, "c", "h", cast(Callable[[], Awaitable[None]], self.yield_loop))

    async def fresh(self, version: int = 12) -> Any:
        """The answer of a broker that has described nothing yet."""
        kept, self.broker.described_topics = self.broker.described_topics, DescribedTopics()  # type: ignore[misc]
        try:
            return await self.all(version)
        finally:
            self.broker.described_topics = kept  # type: ignore[misc]


def decoded(version: int, answer: Encoded) -> Any:
    frame = codec.encode_response_frame(
        1, ApiKey.METADATA, version, b"".join(bytes(part) for part in answer.buffers)
    )
    return codec.decode_response(ApiKey.METADATA, version, frame)[1]


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the topics that are described."""
    names: list[str] = []
    describe = metadata._describe

    def noted(state: ClusterState, topic: Any, operations: int, context: RequestContext) -> Any:
        names.append(topic.name)
        return describe(state, topic, operations, context)

    monkeypatch.setattr(metadata, "_describe", noted)
    return names


async def test_all_topics_are_described_a_few_at_a_time(asked: Asked, described: list[str]) -> None:
    between: list[int] = []
    asked.meanwhile = lambda: between.append(len(described))
    answer = await asked.all()
    assert len(answer.topics) == TOPICS
    assert len(between) >= TOPICS * PARTITIONS // 500, "others had their turn"
    assert max(after - before for before, after in zip([0, *between], between, strict=False)) <= 4


async def test_named_topics_and_pages_are_described_a_few_at_a_time(asked: Asked) -> None:
    await asked.named(*(f"t{number}" for number in range(TOPICS)))
    assert asked.gave_way >= 4
    asked.gave_way = 0
    assert len((await asked.pages())["topics"]) == TOPICS
    assert asked.gave_way >= 4


async def test_what_has_not_changed_is_described_once(asked: Asked, described: list[str]) -> None:
    first = await asked.all()
    assert await asked.all() == first
    assert len(described) == TOPICS
    named = await asked.named("t3", "t4")
    assert {topic.name for topic in named.topics} == {"t3", "t4"}
    assert len(described) == TOPICS
    asked.applier.move_leader("t3")
    asked.gave_way = 0
    assert await asked.all() != first
    assert described[TOPICS:] == ["t3"]
    assert not asked.gave_way


def moved_leader(asked: Asked) -> None:
    asked.applier.move_leader("t3")


def fenced_broker(asked: Asked) -> None:
    asked.applier(fence_broker=pb.FenceBroker(node_id=3, broker_epoch=asked.epochs[3]))


def another_controller(asked: Asked) -> None:
    asked.broker.cluster.controller_id = 2  # type: ignore[misc]


def deleted_topic(asked: Asked) -> None:
    asked.applier.delete("t5")


def new_topic(asked: Asked) -> None:
    asked.applier.topic("t99", 99, 1)


CHANGES = [moved_leader, fenced_broker, another_controller, deleted_topic, new_topic]


@pytest.mark.parametrize("happens", CHANGES)
async def test_every_change_is_visible_at_once(asked: Asked, happens: Callable[[Asked], None]) -> None:
    before = await asked.all()
    happens(asked)
    after = await asked.all()
    assert after != before
    assert after == await asked.fresh()


@pytest.mark.parametrize("happens", CHANGES)
async def test_a_change_in_the_middle_of_an_answer_is_in_it(
    asked: Asked, happens: Callable[[Asked], None]
) -> None:
    def once() -> None:
        asked.meanwhile = lambda: None
        happens(asked)

    asked.meanwhile = once
    answer = await asked.all()
    assert asked.gave_way
    assert answer == await asked.fresh()


@pytest.mark.parametrize("version", range(14))
async def test_every_version_says_the_same_from_what_is_kept(asked: Asked, version: int) -> None:
    first = await asked.all(version)
    assert len(first.topics) == TOPICS
    assert len(first.topics[0].partitions) == PARTITIONS
    assert await asked.all(version) == first == await asked.fresh(version)


async def test_unknown_topics_stand_among_known_ones(asked: Asked) -> None:
    answer = await asked.named("t1", "nowhere", "bad name")
    codes = {topic.name: topic.error_code.value for topic in answer.topics}
    assert codes == {
        "t1": 0, "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION
    }  # fmt: skip


async def test_what_is_kept_is_bounded(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_topics, "VARIANTS_MAX", 2)
    for version in range(9, 13):
        await asked.all(version)
    kept = asked.broker.described_topics._variants
    assert len(kept) == 2
    for name in list(asked.applier.state.topics):
        if name != "t0":
            asked.applier.delete(name)
    asked.applier.move_leader("t0")
    await asked.all(12)
    assert [len(variant._described) for variant in kept.values()][-1] == 1


def test_the_newest_versions_are_loaded_before_the_others() -> None:
    codecs = Codecs([ApiKey.METADATA, ApiKey.HEARTBEAT], ManualClock().monotonic)
    everything = codecs.left
    codecs.load_newest()
    assert everything - codecs.left == 2
    while codecs.is_due:
        codecs.load_next()
    assert codecs.left == 0


def test_loading_pauses_longer_on_a_node_with_little_processor_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, took_s = ManualClock(), 0.004
    monkeypatch.setattr(codec, "load", lambda _key, _version: clock.advance(took_s))
    codecs = Codecs([ApiKey.METADATA], clock.monotonic)
    codecs.load_next()
    assert not codecs.is_due
    clock.advance(took_s / DUTY_MAX)
    assert codecs.is_due
    took_s = 0.4  # the same work, when the process runs for a hundredth of the time
    codecs.load_next()
    clock.advance(100 * 0.004 / DUTY_MAX - 1)
    assert not codecs.is_due
    clock.advance(2)
    assert codecs.is_due


LOADS = """
import sys
from tidegate.wire import codec
before = len(sys.modules)
{first}
before = len(sys.modules)
codec.decode_request_body(3, 13, b"\\0\\0\\0\\0\\0\\0\\0\\0\\1\\1\\0\\0\\0", 7)
codec.response(3, 13, {{"topics": [{{"error_code": 0, "name": "t", "partitions": []}}]{other}}})
loaded = [name for name in sys.modules if name.startswith("kio.schema.metadata.v")]
print(len(loaded), len(sys.modules) - before)
"""


def loaded_by(first: str, other: str = "") -> tuple[int, int]:
    command = [sys.executable, "-c", LOADS.format(first=first, other=other)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    versions, modules = done.stdout.split()
    return int(versions), int(modules)


def test_a_field_of_another_version_does_not_load_all_versions() -> None:
    versions, modules = loaded_by("", ', "cluster_authorized_operations": 0')
    # a package, its request and its response, down to the version that has the field
    assert modules > 0
    assert versions <= 12


def test_the_first_request_of_a_loaded_kind_loads_nothing() -> None:
    assert loaded_by("codec.load(3, 13)")[1] == 0


# ---- listeners ---------------------------------------------------------------------------------------------


async def test_a_client_is_answered_with_the_brokers_of_its_own_listener() -> None:
    """Kafka's rule: a broker that does not advertise the listener is not listed, and what it leads has an
    error that says so, for clients that know it."""
    applier = Applier()
    features = [pb.Feature(name=METADATA_VERSION, level=LISTENERS_LEVEL)]
    applier(bootstrap=pb.Bootstrap(cluster_id="c", metadata_id="m", features=features))
    for node_id in (1, 2):
        applier.broker(node_id, "PLAINTEXT", "EXTERNAL")
    applier.broker(3, "PLAINTEXT")
    parts = [pb.NewPartition(replicas=order, isr=order) for order in ((1, 2, 3), (3, 1, 2))]
    applier(create_topic=pb.CreateTopic(topic_id=UUID(int=7).bytes, name="t", partitions=parts))
    leader = SimpleNamespace(leader=3)
    broker = cast(
        Broker,
        SimpleNamespace(
            state=applier.state, node_id=1, cluster=SimpleNamespace(controller_id=3),
            permissions=ALL_ALLOWED, described_topics=DescribedTopics(),
            lifecycle=SimpleNamespace(holds_session=True),
            configuration=SimpleNamespace(integer=lambda _name: 100_000), throttling=UNLIMITED,
            topics=SimpleNamespace(ensure_internal_topic=returning(SimpleNamespace(partitions={0: leader}))),
        ),
    )  # fmt: skip

    async def ask(handler: Any, key: int, version: int, listener: str, /, **fields: Any) -> Any:
        context = RequestContext(key, version, 1, "c", "h", listener_name=listener)
        return await handler.handle(broker, context, SimpleNamespace(**fields))

    async def metadata_on(listener: str, version: int = 12) -> Any:
        return decoded(version, await ask(metadata, ApiKey.METADATA, version, listener, topics=None))

    everybody = await metadata_on("PLAINTEXT")
    assert [(each.node_id, each.host, each.port) for each in everybody.brokers] == [
        (1, "plaintext", 1), (2, "plaintext", 2), (3, "plaintext", 3)
    ]  # fmt: skip
    assert everybody.controller_id == 3
    outside = await metadata_on("EXTERNAL")
    assert [(each.node_id, each.host) for each in outside.brokers] == [(1, "external"), (2, "external")]
    assert outside.controller_id == 1
    first, second = outside.topics[0].partitions
    assert (first.error_code, first.leader_id, list(first.offline_replicas)) == (0, 1, [3])
    assert (second.error_code, second.leader_id) == (ErrorCode.LISTENER_NOT_FOUND, -1)
    before = (await metadata_on("EXTERNAL", version=5)).topics[0].partitions[1]
    assert before.error_code == ErrorCode.LEADER_NOT_AVAILABLE

    pages = await ask(
        describe_topic_partitions, 75, 0, "EXTERNAL", topics=[], cursor=None, response_partition_limit=9
    )
    assert [each["leader_id"] for each in pages["topics"][0]["partitions"]] == [1, -1]
    cluster = await ask(describe_cluster, 60, 1, "EXTERNAL", include_cluster_authorized_operations=False)
    assert [(each["broker_id"], each["host"]) for each in cluster["brokers"]] == [
        (1, "external"), (2, "external")
    ]  # fmt: skip
    found = await ask(find_coordinator, 10, 3, "PLAINTEXT", key="g", key_type=0)
    assert (found["node_id"], found["host"], found["port"]) == (3, "plaintext", 3)
    found = await ask(find_coordinator, 10, 3, "EXTERNAL", key="g", key_type=0)
    assert found["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert endpoints(broker, [1, 3], "EXTERNAL") == [(1, "external", 1, None)]


def returning(value: object) -> Callable[[str], Awaitable[Any]]:
    async def answer(_: str) -> Any:
        return value

    return answer
