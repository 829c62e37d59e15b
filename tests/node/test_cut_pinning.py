"""A pin is confirmed when every replica keeps what the cut names: nodes that apply the metadata late, clean
for themselves, lead by former metadata, or do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from tidegate.chaos.sim.disk import LyingDisk
from tidegate.chaos.sim.replication.clock import VirtualClock
from tidegate.chaos.sim.replication.virtual_loop import VirtualLoop
from tidegate.controller.planning import pinned_cuts as planning
from tidegate.controller.planning.brokers.sessions import BrokerSessions
from tidegate.controller.planning.pinned_cuts import plan_pinned_cut
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import PINNED_CUTS_LEVEL
from tidegate.node.cuts import pinning
from tidegate.node.cuts.pinning import CutPinning
from tidegate.node.cuts.pins import PinIndex, report
from tidegate.node.metadata_application import MetadataApplication
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import cuts_pb2 as pb
from tidegate.proto import metadata_pb2
from tidegate.replication.partition.follower import Append
from tidegate.replication.replica.replica import Replica, Role
from tidegate.storage.cleaning.cleaner import clean_now
from tidegate.storage.log.log import AppendOrigin, Log, LogConfig
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import NewRecord, decode_batch, encode_batch, iterate_headers

TOPIC_ID = UUID(int=7)
NODES = (1, 2, 3)
NOW_MS = 1_700_000_000_000
COMPACTED = LogConfig(
    segment_bytes=800,
    index_interval_bytes=100,
    cleanup_policy=frozenset({CleanupPolicy.COMPACT}),
    min_cleanable_dirty_ratio=0.0,
    timestamp_after_max_ms=1 << 40,
)


class SimNode:
    """A broker that applies the entries of the metadata log one by one, some time later."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world, self.node_id = world, node_id
        self.state = ClusterState()
        self.disk, self.applied, self.pins = LyingDisk(), 0, PinIndex()
        self.log = Log.open(
            self.disk, Path(f"/data{node_id}/t-0"), topic="t", partition=0, config=COMPACTED,
            clean=False, recovery_point=0,
        )  # fmt: skip
        self.is_there, self.is_forgetful, self.lag_s = True, False, 0.0
        self.replica: Any = SimpleNamespace(log=self.log, topic_id=TOPIC_ID, role=Role.FOLLOWER)
        self.pinning = CutPinning(self, cast(Any, world), world.clock, world.take)
        hosted = SimpleNamespace(get=lambda _key: self.replica)
        self.application: Any = SimpleNamespace(_cluster=self, _replicas=SimpleNamespace(hosted=hosted))

    def heartbeat(self) -> None:
        """As it is now, once it arrives."""
        if self.is_there:
            said = MetadataApplication.pin_reports(self.application), self.state.index
            session = self.world.sessions.by_id[self.node_id]

            def arrives() -> None:
                session.pins, session.pins_index = said

            self.world.clock.call_later(self.world.random.random(), arrives)

    def kill(self) -> None:
        """And starts it again, before the thread that removes files has done anything."""
        end = self.log.high_watermark
        self.log = self.replica.log = Log.open(
            self.disk, self.log.directory, topic="t", partition=0, config=COMPACTED,
            clean=False, recovery_point=0, high_watermark=end,
        )  # fmt: skip
        self.world.register(self.node_id)

    def apply_next(self) -> None:
        if self.applied < len(self.world.entries):
            self.state.apply(self.applied + 2, 1, self.world.entries[self.applied])
            self.applied += 1
            self.pins.follow(self.state.pinned_cuts)
            self.log.pins = () if self.is_forgetful else self.pins.pins_of(TOPIC_ID, 0)

    async def wait_for_index(self, index: int, timeout_s: float) -> None:
        deadline_s = self.world.clock.monotonic() + timeout_s
        while self.state.index < index:
            if self.world.clock.monotonic() >= deadline_s:
                raise TimeoutError
            await self.world.clock.sleep(0.01)

    @property
    def believes_to_lead(self) -> bool:
        partition = self.state.partition("t", 0)
        return partition is not None and partition.leader == self.node_id

    def clean(self) -> None:
        clean_now(self.log, self.disk, NOW_MS)

    def delete(self, random: Random) -> None:
        """As retention does on a leader, by the metadata that it has."""
        if self.believes_to_lead:
            highest = self.log.deletable_end
            self.log.advance_log_start(min(highest, self.log.log_start_offset + random.randrange(9)))


class World:
    """Three nodes, the controller, and one partition whose records every replica has at once."""

    def __init__(self, loop: VirtualLoop, seed: int = 0) -> None:
        self.random, self.clock = Random(seed), cast(Any, VirtualClock(loop, Random(seed)))
        self.truth, self.entries = ClusterState(), list[bytes]()
        self.refuses: dict[str, ErrorCode] = {}
        self.refused: list[str] = []
        self.count = 0
        features = [metadata_pb2.Feature(name="tidegate.metadata.version", level=PINNED_CUTS_LEVEL)]
        self.propose(bootstrap=metadata_pb2.Bootstrap(cluster_id="c", features=features))
        for node_id in NODES:
            self.register(node_id)
        place = metadata_pb2.NewPartition(replicas=NODES, isr=NODES)
        creation = metadata_pb2.CreateTopic(topic_id=TOPIC_ID.bytes, name="t", partitions=[place])
        self.propose(create_topic=creation)
        self.sessions = BrokerSessions(self.truth.brokers.values(), 0.0)
        self.nodes = {node_id: SimNode(self, node_id) for node_id in NODES}
        for _ in self.entries:
            for node in self.nodes.values():
                node.apply_next()

    def propose(self, **operation: Any) -> None:
        command = metadata_pb2.Command(operations=[metadata_pb2.Operation(**operation)]).SerializeToString()
        result = self.truth.apply(self.truth.index + 1, 1, command)
        assert result.ok, result
        self.entries.append(command)

    def register(self, node_id: int) -> None:
        """A process of the node starts: what the former one has said does not count any more."""
        former = self.truth.brokers.get(node_id)
        if former is not None:
            epoch = former.broker_epoch
            self.propose(fence_broker=metadata_pb2.FenceBroker(node_id=node_id, broker_epoch=epoch))
            self.sessions.unregistered(node_id)
        register = metadata_pb2.RegisterBroker(
            node_id=node_id, incarnation=str(self.truth.index),
            expected_broker_epoch=-1 if former is None else former.broker_epoch,
        )  # fmt: skip
        self.propose(register_broker=register)
        epoch = self.truth.brokers[node_id].broker_epoch
        self.propose(unfence_broker=metadata_pb2.UnfenceBroker(node_id=node_id, broker_epoch=epoch))
        if former is not None:
            self.sessions.registered(self.truth.brokers[node_id], 0.0)

    def elect(self, leader: int, isr: Sequence[int] = NODES, replicas: Sequence[int] = NODES) -> None:
        partition = self.truth.topics["t"].partitions[0]
        change = metadata_pb2.PartitionChange(
            partition=0, expected_partition_epoch=partition.partition_epoch, leader=leader, isr=isr,
            replicas=replicas, last_known_leader=leader,
        )  # fmt: skip
        topic = metadata_pb2.TopicPartitionChanges(topic_id=TOPIC_ID.bytes, partitions=[change])
        self.propose(change_partitions=metadata_pb2.ChangePartitions(topics=[topic]))

    @property
    def leader(self) -> SimNode:
        return self.nodes[self.truth.topics["t"].partitions[0].leader]

    # ---- what the nodes ask --------------------------------------------------------------------------------

    async def change_pinned_cut(
        self, request: rpc.ChangePinnedCutRequest, timeout_s: float = 30.0
    ) -> rpc.ChangePinnedCutReply:
        kind = str(request.WhichOneof("kind"))
        if kind in self.refuses:
            self.refused.append(kind)
            raise KafkaError(self.refuses[kind], f"no {kind}, {len(self.refused)}")
        deadline_s = self.clock.monotonic() + timeout_s
        while True:
            try:
                plan = plan_pinned_cut(self.truth, self.sessions, request, 1_000_000, 0, applied_before=False)
                break
            except KafkaError as error:  # as `ControllerClient` repeats a request
                if error.code is not ErrorCode.REQUEST_TIMED_OUT or self.clock.monotonic() >= deadline_s:
                    raise
            await self.clock.sleep(0.1)
        for operation in plan.operations:
            self.propose(change_pinned_cuts=operation.change_pinned_cuts)
        return rpc.ChangePinnedCutReply(metadata_index=self.truth.index)

    async def take(self, topics: Sequence[str], timeout_s: float) -> pb.Cut:
        return self.cut()

    def cut(self) -> pb.Cut:
        log = self.leader.log
        place = pb.CutPartition(partition=0, start=log.log_start_offset, end=log.high_watermark)
        topic = pb.CutTopic(name="t", topic_id=TOPIC_ID.bytes, partitions=[place])
        return pb.Cut(cut_id="c", taken_ms=5, topics=[topic])

    # ---- records -------------------------------------------------------------------------------------------

    def write(self, records: int = 1) -> None:
        for _ in range(records):
            self.count += 1
            value = b"v%06d" % self.count * 8
            data = bytearray(
                encode_batch([NewRecord(b"key%d" % self.random.randrange(4), value, (), NOW_MS)])
            )
            leader = self.leader.log
            leader.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
            for node in self.nodes.values():
                if node.log is not leader:
                    node.log.append_follower(bytes(data))
                node.log.flush_now()
                node.log.set_high_watermark(node.log.log_end_offset)

    def follow(self) -> None:
        """Followers take over the log start of the leader, once it has applied that it leads."""
        if self.leader.believes_to_lead:
            for node in self.nodes.values():
                node.log.advance_log_start(self.leader.log.log_start_offset)

    async def live(self) -> None:
        """Each node applies entries after its lag, and sends heartbeats, until the test ends."""

        async def follow(node: SimNode) -> None:
            while True:
                await self.clock.sleep(0.01 + node.lag_s)
                node.apply_next()

        async def beat(node: SimNode) -> None:
            while True:
                await self.clock.sleep(0.5)
                node.heartbeat()

        nodes = self.nodes.values()
        await asyncio.gather(*map(follow, nodes), *map(beat, nodes))


def newest(log: Log, start: int, end: int) -> dict[bytes, bytes]:
    """What a reader of [start, end) finds of each key; it begins at the log start."""
    assert log.log_start_offset <= start, f"the log begins at {log.log_start_offset}, the cut at {start}"
    found: dict[bytes, bytes] = {}
    offset = start
    while offset < end:
        read = log.read(offset, 1 << 20, upper_offset=end)
        if not read.data:
            break
        for at, _ in iterate_headers(read.data):
            found.update(
                (one.key or b"", one.value or b"")
                for one in decode_batch(read.data, at)
                if one.offset >= start
            )
        offset = read.next_offset
    return found


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def run(loop: VirtualLoop, world: World, work: Any) -> Any:
    async def main() -> Any:
        applying = asyncio.ensure_future(world.live())
        try:
            return await work
        finally:
            applying.cancel()
            with suppress(asyncio.CancelledError):
                await applying

    task = loop.create_task(main())
    assert loop.run_until(task.done, 1000.0)
    return task.result()


def pin(world: World, cut: pb.Cut | None = None, at: int = 1, timeout_s: float = 10.0) -> Any:
    return world.nodes[at].pinning.pin("nightly", world.cut() if cut is None else cut, 5000, timeout_s)


def error_of(loop: VirtualLoop, world: World, work: Any) -> KafkaError:
    with pytest.raises(KafkaError) as raised:
        run(loop, world, work)
    return raised.value


def test_a_pin_is_confirmed_when_every_node_has_applied_it(loop: VirtualLoop) -> None:
    world = World(loop)
    world.write(5)
    world.nodes[3].lag_s = 2.0
    found = run(loop, world, pin(world))
    assert (found.name, found.is_confirmed, found.expires_at_ms) == ("nightly", True, 5000)
    assert loop.time() > 2.0, "the last one was late"
    assert [len(node.log.pins) for node in world.nodes.values()] == [1, 1, 1]


def gone(world: World) -> None:
    world.nodes[2].is_there = False


def closed(world: World) -> None:
    world.nodes[2].replica = None


def offline(world: World) -> None:
    world.nodes[2].replica.role = Role.OFFLINE


def of_another_topic(world: World) -> None:
    world.nodes[2].replica.topic_id = UUID(int=8)


def without_metadata(world: World) -> None:
    world.nodes[2].lag_s = 1000.0


def without_the_pin(world: World) -> None:
    world.nodes[2].is_forgetful = True


def in_replacement(world: World) -> None:
    world.nodes[2].log.local.replacements._current = cast(Any, object())


@pytest.mark.parametrize(
    "what", [gone, closed, offline, of_another_topic, without_metadata, without_the_pin, in_replacement]
)
def test_a_replica_that_does_not_confirm_fails_the_pin_which_is_taken_back(
    loop: VirtualLoop, what: Callable[[World], None]
) -> None:
    world = World(loop)
    world.write(5)
    what(world)
    error = error_of(loop, world, pin(world))
    assert error.code is ErrorCode.REQUEST_TIMED_OUT
    assert error.message.startswith("not every replica was known in time to keep the cut: ")
    assert "brokers [2] have not reported" in error.message
    assert world.truth.pinned_cuts == {}
    assert 9.0 < loop.time() < 20.0


def started_later(world: World) -> None:
    world.nodes[2].log.advance_log_start(3)


def deletes(world: World) -> None:
    world.nodes[2].log.local.start_note.want(3)


def compacted_later(world: World) -> None:
    world.write(20)
    world.nodes[2].clean()


@pytest.mark.parametrize("what", [started_later, deletes, compacted_later])
def test_a_replica_that_has_lost_something_fails_the_pin(
    loop: VirtualLoop, what: Callable[[World], None]
) -> None:
    world = World(loop)
    world.write(5)
    cut = world.cut()
    what(world)
    assert error_of(loop, world, pin(world, cut)).code is pinning.LOST
    assert world.truth.pinned_cuts == {}
    assert loop.time() < 4.0


def test_a_new_cut_is_taken_when_the_cleaner_has_overtaken_one(loop: VirtualLoop) -> None:
    world = World(loop)
    world.write(20)
    first = world.cut()
    world.write(20)
    world.nodes[3].clean()
    cuts = [first]

    async def take(topics: Sequence[str], timeout_s: float) -> pb.Cut:
        return cuts.pop() if cuts else world.cut()

    world.nodes[1].pinning._take = take
    found = run(loop, world, world.nodes[1].pinning.pin_new("nightly", ["t"], 5000, 10.0))
    assert found.topics[0].partitions[0].end == 40


@pytest.mark.parametrize(
    "cut",
    [
        pb.Cut(),
        pb.Cut(topics=[pb.CutTopic(name="t", topic_id=b"short")]),
        pb.Cut(topics=[pb.CutTopic(name="t", topic_id=UUID(int=9).bytes)]),
        pb.Cut(topics=[pb.CutTopic(name="t", topic_id=TOPIC_ID.bytes)]),
        pb.Cut(
            topics=[pb.CutTopic(topic_id=TOPIC_ID.bytes, partitions=[pb.CutPartition(partition=9, end=1)])]
        ),
    ],
)
def test_what_is_no_cut_of_the_cluster_is_refused(loop: VirtualLoop, cut: pb.Cut) -> None:
    world = World(loop)
    code = error_of(loop, world, pin(world, cut)).code
    assert code in (
        ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )  # fmt: skip
    assert world.truth.pinned_cuts == {}


def test_a_name_that_is_no_name_is_refused(loop: VirtualLoop) -> None:
    world = World(loop)
    world.write(1)
    entries = len(world.entries)
    work = world.nodes[1].pinning.pin("a/b", world.cut(), 5000, 10.0)
    error = error_of(loop, world, work)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "the name of a pinned cut is like a topic's" in error.message
    assert len(world.entries) == entries


def test_a_cut_without_topics_or_their_ids_is_refused_before_the_controller_is_asked(
    loop: VirtualLoop,
) -> None:
    world = World(loop)
    for cut in (pb.Cut(), pb.Cut(topics=[pb.CutTopic(name="t", topic_id=b"short")])):
        error = error_of(loop, world, pin(world, cut))
        assert (error.code, error.message) == (
            ErrorCode.INVALID_REQUEST, "a cut has topics, each with an id of 16 bytes"
        )  # fmt: skip


def test_a_pin_that_is_gone_when_its_confirmation_comes_is_an_error(loop: VirtualLoop) -> None:
    world = World(loop)
    world.write(5)
    node = world.nodes[1]
    waits = node.wait_for_index

    async def unpinned_first(index: int, timeout_s: float) -> None:
        for cut in world.truth.pinned_cuts.values():
            world.propose(change_pinned_cuts=metadata_pb2.ChangePinnedCuts(remove=[cut.pin_id]))
        await waits(world.truth.index, timeout_s)

    node.wait_for_index = unpinned_first
    error = error_of(loop, world, pin(world))
    assert (error.code, error.message) == (ErrorCode.RESOURCE_NOT_FOUND, "the pin has gone meanwhile")


def test_a_cut_is_taken_anew_only_for_what_is_lost_and_only_in_time(loop: VirtualLoop) -> None:
    world = World(loop)
    taken: list[float] = []

    async def take(topics: Sequence[str], timeout_s: float) -> pb.Cut:
        taken.append(loop.time())
        await world.clock.sleep(0.5)
        return world.cut()

    world.nodes[1].pinning._take = take
    world.refuses = {"pin": pinning.LOST}
    new = world.nodes[1].pinning.pin_new
    assert error_of(loop, world, new("nightly", ["t"], 5000, 3.0)).code is pinning.LOST
    assert 4 <= len(taken) <= 7
    pauses = [later - earlier for earlier, later in pairwise(taken)]
    assert pauses[-1] > pauses[0] + 0.2, "the pauses grow"
    taken.clear()
    world.refuses = {"pin": ErrorCode.POLICY_VIOLATION}
    assert error_of(loop, world, new("nightly", ["t"], 5000, 3.0)).code is ErrorCode.POLICY_VIOLATION
    assert len(taken) == 1


def test_a_loss_that_a_newer_cut_has_too_ends_the_attempts_with_what_to_do(loop: VirtualLoop) -> None:
    """Here the log of one replica starts later than that of the leader."""
    world = World(loop)
    world.write(20)
    world.nodes[3].log.advance_log_start(10)
    entries = len(world.entries)
    error = error_of(loop, world, world.nodes[1].pinning.pin_new("nightly", ["t"], 5000, 40.0))
    assert error.code is pinning.LOST
    assert error.message == (
        "broker 3: t-0 starts at 10 by now, the cut at 0; a newer cut has the same problem: pin one when the "
        "transactions that are open in the topics have ended, and all replicas are in sync"
    )
    assert len(world.entries) == entries + 4, "two pins, each taken back"
    assert loop.time() < 8.0


def test_a_pause_that_lasted_beyond_the_time_of_the_client_gives_the_next_cut_no_default_time() -> None:
    """The machine was suspended: a taker that gets no time takes ten seconds."""
    now_s, given = [0.0], list[float]()

    async def sleep(_: float) -> None:
        now_s[0] += 60.0

    async def take(_: Sequence[str], timeout_s: float) -> pb.Cut:
        given.append(timeout_s)
        if len(given) == 2:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no cut")
        return pb.Cut(topics=[pb.CutTopic(name="t", topic_id=bytes(16))])

    async def change_pinned_cut(
        request: rpc.ChangePinnedCutRequest, timeout_s: float = 30.0
    ) -> rpc.ChangePinnedCutReply:
        if request.WhichOneof("kind") == "confirm":
            raise KafkaError(pinning.LOST, "lost")
        return rpc.ChangePinnedCutReply()

    clock: Any = SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep, uuid=lambda: UUID(int=1))
    controller: Any = SimpleNamespace(change_pinned_cut=change_pinned_cut)
    made = CutPinning(cast(Any, None), controller, clock, take)
    with pytest.raises(KafkaError, match="no cut"):
        asyncio.run(made.pin_new("nightly", ["t"], 1_000, 5.0))
    assert given[0] == 5.0
    assert 0 < given[1] < 1


def test_a_cut_that_ends_above_the_log_of_its_leader_is_refused(loop: VirtualLoop) -> None:
    """A follower may not have all of it yet."""
    world = World(loop)
    world.write(5)
    cut = world.cut()
    cut.topics[0].partitions[0].end = 6
    assert run(loop, world, world.nodes[1].pinning.pin("followers", cut, 5000, 10.0)).is_confirmed
    world.leader.replica.role = Role.LEADER
    error = error_of(loop, world, pin(world, cut))
    assert (error.code, error.message) == (
        pinning.LOST, "broker 1: t-0 ends at 5, the cut at 6: it is no cut of it"
    )  # fmt: skip
    assert world.truth.pinned_cuts.keys() == {"followers"}


def test_a_cut_is_confirmed_when_its_leader_knows_that_all_of_it_is_committed(loop: VirtualLoop) -> None:
    """A leader that was elected after the cut may not know it at once."""
    world = World(loop)
    world.write(5)
    leader = world.leader
    leader.replica.role = Role.LEADER
    data = bytearray(encode_batch([NewRecord(b"key", b"value", (), NOW_MS)]))
    leader.log.append_leader(data, leader_epoch=0, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
    leader.log.flush_now()
    cut = world.cut()
    cut.topics[0].partitions[0].end = 6

    async def work() -> None:
        asked = asyncio.ensure_future(pin(world, cut))
        await world.clock.sleep(5.0)
        assert not asked.done()
        leader.log.set_high_watermark(6)
        assert (await asked).is_confirmed

    run(loop, world, work())


# ---- taking back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["pin", "confirm"])
@pytest.mark.parametrize("is_applied", [False, True])
def test_a_client_that_goes_away_leaves_no_pin_behind(loop: VirtualLoop, step: str, is_applied: bool) -> None:
    """Its call is cancelled before or after the controller has carried out a step, and gets no answer."""
    world = World(loop)
    world.write(10)
    ask = world.change_pinned_cut

    async def unanswered(request: rpc.ChangePinnedCutRequest, timeout_s: float = 30.0) -> Any:
        is_step = request.WhichOneof("kind") == step
        reply = await ask(request, timeout_s) if is_applied or not is_step else None
        if is_step:
            await world.clock.sleep(1000.0)
        return reply

    async def work() -> None:
        node = world.nodes[1]
        node.pinning._controller = cast(Any, SimpleNamespace(change_pinned_cut=unanswered))
        asked = asyncio.ensure_future(pin(world))
        await world.clock.sleep(5.0)
        left = [each.is_confirmed for each in world.truth.pinned_cuts.values()]
        assert left == (
            [] if (step, is_applied) == ("pin", False) else [(step, is_applied) == ("confirm", True)]
        )
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await world.clock.sleep(0.2)
        assert world.truth.pinned_cuts == {}
        assert not node.pinning._taking_back
        node.pinning._controller = cast(Any, world)
        assert (await pin(world)).is_confirmed, "the name is free"

    run(loop, world, work())


def test_a_pin_whose_first_step_has_no_answer_is_taken_back(loop: VirtualLoop) -> None:
    world = World(loop)
    world.write(5)
    ask = world.change_pinned_cut

    async def unanswered(request: rpc.ChangePinnedCutRequest, timeout_s: float = 30.0) -> Any:
        reply = await ask(request, timeout_s)
        if request.WhichOneof("kind") == "pin":
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "its outcome is unknown")
        return reply

    world.nodes[1].pinning._controller = cast(Any, SimpleNamespace(change_pinned_cut=unanswered))
    error = error_of(loop, world, pin(world))
    assert (error.code, error.message) == (ErrorCode.REQUEST_TIMED_OUT, "its outcome is unknown")
    assert world.truth.pinned_cuts == {}


def test_a_pin_that_the_controller_refuses_is_not_taken_back(loop: VirtualLoop) -> None:
    """Nothing stands, and each entry of the log costs the cluster."""
    world = World(loop)
    world.write(5)
    run(loop, world, pin(world))
    entries = len(world.entries)
    assert error_of(loop, world, pin(world, at=2)).code is ErrorCode.DUPLICATE_RESOURCE
    assert len(world.entries) == entries
    assert [each.is_confirmed for each in world.truth.pinned_cuts.values()] == [True]


def test_a_pin_that_may_be_confirmed_is_taken_back_until_it_is_gone(loop: VirtualLoop) -> None:
    """The client has its answer meanwhile: before its own deadline, and with the cause."""
    world = World(loop)
    world.write(5)
    world.nodes[1].lag_s = 1000.0
    for node in world.nodes.values():
        node.heartbeat = lambda: None
    for session in world.sessions.by_id.values():
        session.pins, session.pins_index = cast(Any, SimpleNamespace(get=lambda _pin_id: "")), 10**6
    world.refuses = {"unpin": ErrorCode.REQUEST_TIMED_OUT}

    async def work() -> None:
        with pytest.raises(KafkaError, match="this node does not get the metadata"):
            await world.nodes[1].pinning.pin("nightly", world.cut(), 100_000, 2.0)
        assert 5.0 <= loop.time() <= 5.0 + 2 * pinning.TAKEN_BACK_S
        assert [each.is_confirmed for each in world.truth.pinned_cuts.values()] == [True]
        await world.clock.sleep(40.0)
        assert 3 < len(world.refused) < 10, "with growing pauses"
        world.refuses = {}
        await world.clock.sleep(40.0)
        assert world.truth.pinned_cuts == {}
        assert not world.nodes[1].pinning._taking_back

    run(loop, world, work())


@pytest.mark.parametrize(("kind", "attempts"), [("pin", 1), ("confirm", 4)])
def test_a_pin_that_has_expired_is_not_taken_back_any_more(
    loop: VirtualLoop, kind: str, attempts: int
) -> None:
    """One that was never to be confirmed expires within a minute, another one after its 5 s."""
    world = World(loop)
    world.write(5)
    world.refuses = dict.fromkeys((kind, "unpin"), ErrorCode.REQUEST_TIMED_OUT)

    async def work() -> None:
        with pytest.raises(KafkaError):
            await pin(world, timeout_s=1.0)
        await world.clock.sleep(100.0)
        assert world.refused.count("unpin") == attempts
        assert not world.nodes[1].pinning._taking_back

    run(loop, world, work())


def test_pins_that_are_still_being_taken_back_are_bounded(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "TAKING_BACK_MAX", 2)
    world = World(loop)
    world.write(5)
    world.refuses = {"confirm": ErrorCode.REQUEST_TIMED_OUT, "unpin": ErrorCode.REQUEST_TIMED_OUT}

    async def work() -> None:
        codes = []
        for name in ("a", "b", "c"):
            with pytest.raises(KafkaError) as raised:
                await world.nodes[1].pinning.pin(name, world.cut(), 100_000, 1.0)
            codes.append(raised.value.code)
        assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 2 + [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert world.truth.pinned_cuts.keys() == {"a", "b"}
        world.refuses = {}
        await world.clock.sleep(100.0)
        assert (await pin(world)).is_confirmed
        await world.nodes[1].pinning.stop()

    run(loop, world, work())


def test_a_node_that_stops_takes_nothing_back_any_more(loop: VirtualLoop) -> None:
    world = World(loop)
    world.write(5)
    world.refuses = {"confirm": ErrorCode.REQUEST_TIMED_OUT, "unpin": ErrorCode.REQUEST_TIMED_OUT}

    async def work() -> None:
        node = world.nodes[1].pinning
        with pytest.raises(KafkaError):
            await pin(world, timeout_s=1.0)
        assert node._taking_back
        await node.stop()
        await world.clock.sleep(0)
        assert not node._taking_back
        count = len(world.refused)
        with pytest.raises(KafkaError):
            await node.pin("other", world.cut(), 5000, 1.0)
        await world.clock.sleep(10.0)
        assert world.refused[count:] == ["confirm"]

    run(loop, world, work())


def test_a_node_reports_of_its_own_replicas_alone(loop: VirtualLoop) -> None:
    world = World(loop)
    world.write(5)
    run(loop, world, pin(world))
    (cut,) = world.truth.pinned_cuts.values()
    assert report(world.truth, 9, cut, lambda _: None) == (True, "")
    assert report(world.truth, 2, cut, lambda _: None) == (False, "")
    world.propose(delete_topic=metadata_pb2.DeleteTopic(topic_id=TOPIC_ID.bytes))
    assert report(world.truth, 2, cut, lambda _: None) == (True, ""), "of a deleted topic there is nothing"


@pytest.mark.parametrize("kind", ["confirm", "unpin"])
def test_a_pin_that_cannot_be_confirmed_or_taken_back_stays_unconfirmed(loop: VirtualLoop, kind: str) -> None:
    world = World(loop)
    world.write(5)
    world.refuses = {"confirm": ErrorCode.REQUEST_TIMED_OUT, kind: ErrorCode.REQUEST_TIMED_OUT}
    assert error_of(loop, world, pin(world)).code is ErrorCode.REQUEST_TIMED_OUT
    left = world.truth.pinned_cuts.values()
    assert not any(each.is_confirmed for each in left)
    assert len(left) == (kind == "unpin")


@pytest.mark.parametrize("known_by", ["its ISR", "a leader's answer"])
def test_a_compacted_replica_that_catches_up_after_a_restart_reports_when_it_knows_what_it_lacks(
    loop: VirtualLoop, known_by: str
) -> None:
    world = World(loop)
    world.write(5)
    node = world.nodes[2]

    async def work() -> Any:
        world.elect(1, isr=(1, 3))
        node.kill()
        pinned = asyncio.ensure_future(pin(world))
        await world.clock.sleep(3.0)
        assert not pinned.done()
        assert [bool(world.sessions.by_id[each].pins) for each in NODES] == [True, False, True]
        if known_by == "its ISR":
            world.elect(1)
        else:
            node.log.note_copied(5)
        return await pinned

    assert run(loop, world, work()).is_confirmed


# ---- a leader that has not applied the pin -----------------------------------------------------------------


def killed(world: World) -> None:
    """It comes back with the log start that was noted."""
    world.elect(2, isr=(2, 3))
    world.nodes[1].kill()
    world.elect(2)


def removed(world: World) -> None:
    """Nothing is known of it any more."""
    world.nodes[1].is_there = False
    world.elect(2, isr=(2, 3), replicas=(2, 3))


async def pinned_while_an_ignorant_leader_deletes(world: World, its_end: Callable[[World], None]) -> None:
    """Nodes 2 and 3 say that they keep the pin, then they follow the log start of node 1, which leads and
    has not applied it.  Then that one ends."""
    cut = world.cut()
    followers, leader = (world.nodes[2], world.nodes[3]), world.nodes[1]
    leader.lag_s = 1.0
    leader.log.local.removals.hooks = cast(Any, SimpleNamespace(in_background=lambda work, done: True))
    leader.is_there = False
    pinned = asyncio.ensure_future(pin(world, cut, at=2))
    try:
        while not all(world.sessions.by_id[node.node_id].pins for node in followers):
            await world.clock.sleep(0.01)
        for node in followers:
            node.is_there = False
        leader.log.advance_log_start(20)
        for node in followers:
            replica = cast(Any, SimpleNamespace(log=node.log))
            Replica.carry_out(replica, Append(b"", node.log.high_watermark, leader.log.log_start_offset))
        leader.is_there, leader.lag_s = True, 0.0
        its_end(world)
        await world.clock.sleep(3.0)
        for node in followers:  # their next heartbeats
            node.is_there = True
        with pytest.raises(KafkaError) as raised:
            await pinned
        assert raised.value.code is pinning.LOST
    finally:
        pinned.cancel()


@pytest.mark.parametrize("its_end", [killed, removed])
def test_what_a_leader_without_the_pin_deletes_counts_also_when_the_leader_is_gone(
    loop: VirtualLoop, its_end: Callable[[World], None]
) -> None:
    world = World(loop)
    world.write(60)
    run(loop, world, pinned_while_an_ignorant_leader_deletes(world, its_end))
    assert world.truth.pinned_cuts == {}


@pytest.mark.parametrize("its_end", [killed, removed])
def test_ablation_a_report_that_is_older_than_the_leadership_is_found(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, its_end: Callable[[World], None]
) -> None:
    monkeypatch.setattr(BrokerSessions, "unchanged_since", lambda *_: 0)
    world = World(loop)
    world.write(60)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        run(loop, world, pinned_while_an_ignorant_leader_deletes(world, its_end))


@pytest.mark.parametrize("its_end", [killed, removed])
def test_ablation_a_log_that_is_not_judged_anew_is_found(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch, its_end: Callable[[World], None]
) -> None:
    judge, judged = MetadataApplication.pin_reports, dict[int, dict[str, str]]()

    def once(self: Any) -> dict[str, str]:
        known = judged.setdefault(id(self), {})
        known.update({key: lost for key, lost in judge(self).items() if key not in known})
        return dict(known)

    monkeypatch.setattr(MetadataApplication, "pin_reports", once)
    world = World(loop)
    world.write(60)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        run(loop, world, pinned_while_an_ignorant_leader_deletes(world, its_end))


def test_a_topic_that_is_deleted_meanwhile_fails_the_pin(loop: VirtualLoop) -> None:
    world = World(loop)
    world.write(5)
    world.nodes[2].is_there = False

    async def work() -> Any:
        pinned = asyncio.ensure_future(pin(world))
        await world.clock.sleep(1.0)
        world.propose(delete_topic=metadata_pb2.DeleteTopic(topic_id=TOPIC_ID.bytes))
        return await pinned

    assert error_of(loop, world, work()).code is ErrorCode.UNKNOWN_TOPIC_ID
    assert world.truth.pinned_cuts == {}


# ---- histories ---------------------------------------------------------------------------------------------


async def history(world: World) -> int:
    """Nodes clean, delete, lead and apply late while cuts are taken and, some of them later, pinned:
    whichever node leads, it has what is pinned.  Returns how many were."""
    random, count = world.random, 0
    world.write(30)
    for round_ in range(3):
        cut = world.cut()
        place = cut.topics[0].partitions[0]
        seen = newest(world.leader.log, place.start, place.end)
        for node in world.nodes.values():
            node.lag_s = random.choice((0.0, 0.0, 0.3, 3.0))
        disturb(world, random.randrange(3))
        name = f"cut{round_}"
        at = world.nodes[random.choice(NODES)].pinning
        pinned = asyncio.ensure_future(at.pin(name, cut, 5000, 8.0))
        for _ in range(random.randrange(30)):
            await world.clock.sleep(random.random() / 4)
            disturb(world, 1)
        try:
            await pinned
        except KafkaError:
            continue
        count += 1
        for _ in range(8):
            await world.clock.sleep(random.random() / 2)
            disturb(world, 1)
            for node in world.nodes.values():
                found = newest(node.log, place.start, place.end)
                assert found == seen, f"{name}: node {node.node_id} has something else"
        with suppress(KafkaError):  # its node is late
            await at.unpin(world.truth.pinned_cuts[name].pin_id)
    return count


def disturb(world: World, times: int) -> None:
    for _ in range(times):
        node = world.nodes[world.random.choice(NODES)]
        match world.random.randrange(9):
            case 0 | 1:
                node.clean()
            case 2 | 3:
                node.delete(world.random)
            case 4:
                world.elect(node.node_id)
            case 5:
                world.follow()
            case _:
                world.write(3)


SEEDS = range(12)


def play(seed: int) -> int:
    loop = VirtualLoop()
    try:
        world = World(loop, seed)
        return int(run(loop, world, history(world)))
    finally:
        loop.close()


def test_what_is_pinned_is_found_on_each_node() -> None:
    assert sum(play(seed) for seed in SEEDS) > 8


def goes_red() -> bool:
    for seed in SEEDS:
        try:
            play(seed)
        except AssertionError:
            return True
    return False


def test_ablation_a_pin_that_only_the_leaders_confirm_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        planning, "nodes_to_confirm", lambda state, cut: {state.topics["t"].partitions[0].leader}
    )
    assert goes_red()


def test_ablation_a_pin_that_waits_for_no_report_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "nodes_to_confirm", lambda state, cut: set())
    assert goes_red()


def test_ablation_a_replica_that_does_not_look_at_its_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "pin_problem", lambda self, pin: None)
    assert goes_red()
