"""A broker's copy of the metadata: in order, committed only, from the newest controller, by snapshot when it
is far behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from tidegate.controller.remote.client import ControllerClient, _StreamHere
from tidegate.controller.remote.metadata_follower import MetadataFollower, _SnapshotAssembly, _StreamEnded
from tidegate.controller.service import metadata_log, service
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import ApplyResult
from tidegate.controller.state.validation import StateValidator
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import controller_pb2_grpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.runtime import network
from tidegate.runtime.clock import SystemClock
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

from .controller_cluster import ControllerCluster, registration


def feature(name: str) -> bytes:
    operation = pb.Operation(set_feature_level=pb.SetFeatureLevel(name=name, level=0))
    return pb.Command(operations=[operation]).SerializeToString()


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[ControllerCluster]:
    cluster = ControllerCluster(tmp_path, 1)
    await cluster.start()
    yield cluster
    await cluster.stop()
    assert not cluster.deaths


async def test_a_follower_far_behind_gets_a_snapshot_in_chunks_and_then_entries(
    one: ControllerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_log, "TAIL_ENTRIES_MAX", 20)
    monkeypatch.setattr(service, "SNAPSHOT_CHUNK_BYTES", 100)
    controller = await one.active()
    for number in range(100):
        await controller.metadata.propose_and_wait(feature(f"feature-{number}"))
    results: list[ApplyResult] = []
    client = one.client()
    follower = MetadataFollower(client, 7, SystemClock())
    await follower.start(lambda _state, result: results.append(result))
    await follower.wait_for_index(controller.metadata.applied_index, 10)
    assert results[0].from_snapshot
    assert follower.state.state_hash() == controller.metadata.state.state_hash()
    index = (await controller.metadata.propose_and_wait(feature("one more"))).index
    await follower.wait_for_index(index, 10)
    assert not results[-1].from_snapshot
    assert results[-1].index == index
    with pytest.raises(TimeoutError):
        await follower.wait_for_index(index + 1000, 0.01)
    await follower.stop()
    await client.close()


@pytest.mark.parametrize("here", [False, True])
async def test_a_small_difference_comes_as_entries_each_once(one: ControllerCluster, *, here: bool) -> None:
    controller = await one.active()
    results: list[ApplyResult] = []
    client = one.client()
    if here:
        client.metadata_here(controller.metadata.node_id, controller.service.FollowMetadata)
    follower = MetadataFollower(client, 7, SystemClock())
    await follower.start(lambda _state, result: results.append(result))
    for number in range(50):
        await controller.metadata.propose_and_wait(feature(f"feature-{number}"))
    await follower.wait_for_index(controller.metadata.applied_index, 10)
    indexes = [result.index for result in results]
    assert indexes == list(range(2, controller.metadata.applied_index + 1))
    assert follower.controller_epoch == controller.metadata.term
    assert bool(client._channels) is not here
    await follower.stop()
    await eventually(lambda: controller.service._followers == 0)
    await client.close()


async def test_a_failing_controller_of_the_same_process_ends_the_stream(one: ControllerCluster) -> None:
    controller = await one.active()
    failures: list[BaseException] = []

    async def fail(
        request: rpc.FollowMetadataRequest, context: object
    ) -> AsyncGenerator[rpc.MetadataUpdate, None]:
        client.metadata_here(controller.metadata.node_id, controller.service.FollowMetadata)
        raise RuntimeError("a defect")
        yield

    client = one.client()
    client.metadata_here(controller.metadata.node_id, fail)
    follower = MetadataFollower(client, 7, SystemClock(), on_failure=failures.append)
    await follower.start()
    await follower.wait_for_index(controller.metadata.applied_index, 10)
    assert not failures
    await follower.stop()
    await client.close()


# ---- what a follower takes, update by update ---------------------------------------------------------------


@pytest.fixture
def follower() -> MetadataFollower:
    client = ControllerClient(
        {1: "127.0.0.1:1", 2: "127.0.0.1:2"},
        SystemClock(),
        channel_factory=lambda node_id, target: None,  # type: ignore[arg-type, return-value]
    )
    return MetadataFollower(client, 7, SystemClock())


def take(
    follower: MetadataFollower,
    *entries: tuple[int, bytes],
    epoch: int = 1,
    error: int = 0,
    committed: int = 0,
) -> None:
    update = rpc.MetadataUpdate(
        status=rpc.Status(error=error), controller_epoch=epoch, committed_index=committed
    )
    for index, command in entries:
        update.entries.add(index=index, term=1, command=command)

    follower._take(1, update, _SnapshotAssembly())


def test_a_gap_ends_the_stream_and_a_repetition_is_skipped(follower: MetadataFollower) -> None:

    take(follower, (2, feature("a")))
    take(follower, (2, feature("b")), (3, feature("c")))
    assert set(follower.state.features) == {"a", "c"}
    with pytest.raises(_StreamEnded, match="entry 5 after 3"):
        take(follower, (5, feature("d")))
    assert follower.state.index == 3


def test_an_update_that_lacks_committed_entries_ends_the_stream(follower: MetadataFollower) -> None:
    """Else this broker would wait, and count as alive, with metadata that is old for good."""
    take(follower, (2, feature("a")), committed=9)  # the rest is on its way
    take(follower, committed=2)
    with pytest.raises(_StreamEnded, match="nothing came up to entry 3, and 2 is applied"):
        take(follower, committed=3)


def test_an_older_controller_is_not_followed(follower: MetadataFollower) -> None:

    take(follower, epoch=5)
    with pytest.raises(_StreamEnded, match="epoch 4 is older than 5"):
        take(follower, (2, feature("stale")), epoch=4)
    assert not follower.state.features
    assert follower._client.active_id is None


def test_a_refusal_ends_the_stream_and_its_hint_is_followed(follower: MetadataFollower) -> None:

    status = rpc.Status(error=int(ErrorCode.NOT_CONTROLLER), controller_id_plus_one=3)
    with pytest.raises(_StreamEnded):
        follower._take(1, rpc.MetadataUpdate(status=status), None)  # type: ignore[arg-type]
    assert follower._client.active_id == 2
    assert follower._client.candidate() == 2


async def test_a_broker_that_cannot_do_what_the_metadata_says_stops_following(one: ControllerCluster) -> None:
    failures: list[BaseException] = []

    def applied(state: ClusterState, result: ApplyResult) -> None:
        raise RuntimeError("the disk is gone")

    client = one.client()
    follower = MetadataFollower(client, 7, SystemClock(), on_failure=failures.append)
    await follower.start(applied)
    await eventually(lambda: failures)
    assert str(failures[0]) == "the disk is gone"
    assert follower.state.index <= 3
    await follower.stop()
    await client.close()


async def test_a_broker_whose_metadata_break_an_invariant_stops_following(one: ControllerCluster) -> None:
    failures: list[BaseException] = []
    validator, client = StateValidator(), one.client()
    validator._counts = (10**9, 0, 0)  # the state that it saw before was of a later entry
    follower = MetadataFollower(client, 7, SystemClock(), on_failure=failures.append, validator=validator)
    await follower.start()
    await eventually(lambda: failures)
    assert "fell from (1000000000" in str(failures[0])
    await follower.stop()
    await client.close()


# ---- the client --------------------------------------------------------------------------------------------


class Forgetful(controller_pb2_grpc.ControllerServicer):
    """Carries out every request and loses the first answer to each."""

    def __init__(self, real: service.ControllerService) -> None:
        self._real = real
        self.lost = 0

    def __getattribute__(self, name: str):  # type: ignore[no-untyped-def]
        if not name[:1].isupper():
            return super().__getattribute__(name)

        async def call(request, context):  # type: ignore[no-untyped-def]
            reply = await getattr(self._real, name)(request, context)
            self.lost += 1
            if self.lost % 2:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
            return reply

        return call


async def test_a_request_whose_answer_was_lost_is_repeated_and_done_once(one: ControllerCluster) -> None:
    controller = await one.active()
    forgetful = Forgetful(controller.service)  # type: ignore[abstract]
    server = network.grpc_server()
    controller_pb2_grpc.add_ControllerServicer_to_server(forgetful, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ControllerClient({1: f"127.0.0.1:{port}"}, SystemClock())
    epoch = (await client.register_broker(registration(1))).broker_epoch
    await client.heartbeat(rpc.HeartbeatRequest(node_id=1, broker_epoch=epoch, applied_index=epoch))
    topics = controller.metadata.state.topics
    topic = rpc.NewTopic(name="t", partitions=1, replication_factor=1)
    assert not (await client.create_topics(rpc.CreateTopicsRequest(topics=[topic]))).topics[0].error
    more = rpc.CreatePartitionsRequest(topics=[rpc.PartitionsToCreate(name="t", total=3)])
    assert not (await client.create_partitions(more)).topics[0].error
    assert len(topics["t"].partitions) == 3
    change = rpc.AlterConfigsRequest(topics=[rpc.ConfigChange(name="t", set={"retention.ms": "9"})])
    assert not (await client.alter_configs(change)).topics[0].error
    assert topics["t"].config == {"retention.ms": "9"}
    assert not (await client.delete_topics(rpc.DeleteTopicsRequest(names=["t"]))).topics[0].error
    assert not topics
    assert forgetful.lost == 12, "every one of the six requests was sent twice"
    second = await client.delete_topics(rpc.DeleteTopicsRequest(names=["t"]))
    assert second.topics[0].error == int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await client.close()
    await server.stop(0)


async def test_a_call_without_an_answer_ends_at_its_deadline() -> None:
    client = ControllerClient({1: f"127.0.0.1:{network.free_port()}"}, SystemClock())
    began = asyncio.get_running_loop().time()
    with pytest.raises(KafkaError, match="its outcome is unknown") as refused:
        await client.heartbeat(rpc.HeartbeatRequest(node_id=1), timeout_s=0.5)
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert asyncio.get_running_loop().time() - began < 15
    await client.close()


async def test_an_error_of_the_active_controller_is_raised_at_once(one: ControllerCluster) -> None:
    await one.active()
    client = one.client()
    with pytest.raises(KafkaError, match="not registered") as refused:
        await client.heartbeat(rpc.HeartbeatRequest(node_id=5, broker_epoch=1))
    assert refused.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
    with pytest.raises(KafkaError, match="belongs to cluster green"):
        await client.register_broker(registration(5, cluster_id="green"))
    await client.close()


async def test_every_attempt_at_an_isr_change_has_a_number_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By which the controller tells an attempt that was given up from the one that followed."""
    client = ControllerClient({1: "127.0.0.1:1"}, SystemClock())
    seen: list[int] = []

    async def answer(request: rpc.AlterPartitionsRequest, timeout: float) -> rpc.AlterPartitionsReply:
        seen.append(request.attempt)
        first = len(seen) == 1
        return rpc.AlterPartitionsReply(
            status=rpc.Status(error=int(ErrorCode.NOT_CONTROLLER if first else ErrorCode.NONE))
        )

    monkeypatch.setattr(client, "_stub", lambda node_id: SimpleNamespace(AlterPartitions=answer))
    for _ in range(2):
        await client.alter_partitions(rpc.AlterPartitionsRequest())
    assert seen == [1, 2, 3]


# --- the controller of the same process ---------------------------------------------------------------------


async def _entries(count: int, failure: Exception | None = None) -> AsyncGenerator[rpc.MetadataUpdate, None]:
    for number in range(count):
        yield rpc.MetadataUpdate(committed_index=number)
    if failure is not None:
        raise failure


async def test_a_catch_up_from_the_controller_here_leaves_the_loop_its_turns() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    stream = _StreamHere(_entries(100))
    for _ in range(100):
        await stream.read()
    task.cancel()
    assert turns >= 100


async def test_a_defect_of_this_processs_controller_counts_as_its_failure() -> None:
    """The follower then asks another one, as after an error of the network."""
    stream = _StreamHere(_entries(1, ValueError("a defect")))
    await stream.read()
    with pytest.raises(TimeoutError, match="a defect"):
        await stream.read()
