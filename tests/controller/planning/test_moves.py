"""Moves of partitions as pure plans: a table of single moves, and random lives in which no committed record
may lose its copies.

The rules stand in `controller/planning/partitions/moves.py`; KIP-455, KIP-966, docs/semantics.md R13, R14.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from tidegate.controller.planning.partitions import moves
from tidegate.controller.planning.partitions.reassignments import plan_reassignments
from tidegate.controller.state import partition_changes
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import (
    METADATA_VERSION,
    MIN_IN_SYNC_REPLICAS_CONFIG,
    TRANSACTION_STATE_TOPIC,
    PartitionState,
    TopicState,
)
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode, KafkaError

from .test_planner import FLUSHED, PlannerCluster, alter


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster()
    controller.join(1, 2, 3, 4, 5)
    return controller


def ask(
    controller: PlannerCluster, *target: int, cancel: bool = False, name: str = "t", keep: bool = False
) -> tuple[ErrorCode, str]:
    wanted = rpc.Reassignment(topic=name, partition=0, replicas=target, cancel=cancel)
    planned = plan_reassignments(
        controller.state, rpc.ReassignPartitionsRequest(partitions=[wanted], keep_replication_factor=keep)
    )
    controller.carry_out(planned.plan)
    (result,) = planned.outcome(controller.state)
    return ErrorCode(result.error), result.message


def tick(controller: PlannerCluster) -> None:
    for _ in range(3):
        controller.carry_out(controller.planner.tick(controller.now))


def is_at(
    controller: PlannerCluster,
    replicas: tuple[int, ...],
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> bool:
    partition = controller.partition()
    return (partition.replicas, partition.adding, partition.removing) == (replicas, adding, removing)


# ---- single moves ------------------------------------------------------------------------------------------


def test_a_move_ends_with_all_new_replicas_in_sync_and_moves_the_leader(
    controller: PlannerCluster,
) -> None:
    controller.topic(**FLUSHED)
    assert ask(controller, 4, 5, 2) == (ErrorCode.NONE, "")
    tick(controller)
    assert is_at(controller, (1, 2, 3, 4, 5), (4, 5), (1, 3))
    assert alter(controller, 1, (1, 2, 3, 4)) == ErrorCode.NONE
    tick(controller)
    assert is_at(controller, (1, 2, 3, 4, 5), (4, 5), (1, 3)), "one of two"
    before = controller.partition().leader_epoch
    assert alter(controller, 1, (1, 2, 3, 4, 5)) == ErrorCode.NONE
    tick(controller)
    assert is_at(controller, (4, 5, 2))
    assert controller.partition().leader_epoch > before
    controller.shows(leader=4, isr=(2, 4, 5))


def test_a_leader_that_stays_keeps_leading_in_a_new_epoch(controller: PlannerCluster) -> None:
    """The epoch fences fetches that the broker sent before it lost its replica (KIP-320)."""
    controller.topic()
    before = controller.partition().leader_epoch
    ask(controller, 1, 2)
    assert is_at(controller, (1, 2))
    assert controller.partition().leader == 1
    assert controller.partition().leader_epoch == before + 1


def test_a_new_order_of_replicas_changes_the_preferred_leader_only(
    controller: PlannerCluster,
) -> None:
    controller.topic()
    before = controller.partition().leader_epoch
    assert ask(controller, 3, 1, 2) == (ErrorCode.NONE, "")
    assert is_at(controller, (3, 1, 2))
    assert controller.partition().leader_epoch == before
    controller.carry_out(controller.planner.rebalance())
    controller.shows(leader=3, isr=(1, 2, 3))


def test_what_is_so_already_changes_nothing(controller: PlannerCluster) -> None:
    controller.topic()
    before = controller.partition()
    assert ask(controller, 1, 2, 3) == (ErrorCode.NONE, "")
    assert controller.partition() == before
    ask(controller, 4, 2, 3)
    moving = controller.partition()
    assert ask(controller, 4, 2, 3) == (ErrorCode.NONE, "")
    assert controller.partition() == moving


def test_the_bar_of_min_insync_replicas_is_that_of_before_until_the_end(controller: PlannerCluster) -> None:
    """One replica with min.insync.replicas=2 is asked for one; a move to three must not stop its writers."""
    controller.topic(replicas=(1,), **FLUSHED)
    topic = controller.state.topics["t"]
    assert topic.min_in_sync_replicas(controller.partition().settled_replicas) == 1
    ask(controller, 1, 2, 3)
    assert topic.min_in_sync_replicas(controller.partition().settled_replicas) == 1
    alter(controller, 1, (1, 2, 3))
    tick(controller)
    assert is_at(controller, (1, 2, 3))
    assert topic.min_in_sync_replicas(controller.partition().settled_replicas) == 2


def test_a_move_waits_while_it_would_leave_too_few_replicas_in_sync(controller: PlannerCluster) -> None:
    controller.topic(**FLUSHED)
    controller.lose(2)
    ask(controller, 2, 4)
    alter(controller, 1, (1, 3, 4))
    tick(controller)
    assert is_at(controller, (1, 2, 3, 4), (4,), (1, 3)), "4 alone would hold what two have acknowledged"
    controller.join(2, incarnation="second")
    alter(controller, 1, (1, 2, 3, 4))
    tick(controller)
    assert is_at(controller, (2, 4))
    assert controller.partition().leader == 2


def test_a_cancelled_move_goes_back_at_once_in_the_old_order(controller: PlannerCluster) -> None:
    controller.topic(replicas=(3, 1, 2), **FLUSHED)
    ask(controller, 4, 5, 1)
    alter(controller, 3, (3, 1, 2, 4))
    assert ask(controller, cancel=True) == (ErrorCode.NONE, "")
    assert is_at(controller, (3, 1, 2))
    controller.shows(leader=3, isr=(3, 1, 2))
    assert ask(controller, cancel=True)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_cancelled_move_keeps_a_new_replica_as_long_as_records_need_it(controller: PlannerCluster) -> None:
    """1 and 4 acknowledged what 2 and 3 missed: without 4 it would be on one disk only."""
    controller.topic(**FLUSHED)
    ask(controller, 4, 5, 1)
    alter(controller, 1, (1, 2, 3, 4))
    controller.lose(2, 3)
    assert ask(controller, cancel=True) == (ErrorCode.NONE, "")
    assert is_at(controller, (1, 2, 3, 4), (4,), (4,)), "5 has left, 4 is needed"
    controller.join(2, incarnation="second")
    alter(controller, 1, (1, 2, 4))
    tick(controller)
    assert is_at(controller, (1, 2, 3))
    controller.shows(leader=1, isr=(1, 2))


def test_a_cancelled_move_of_a_partition_without_a_leader_goes_back(controller: PlannerCluster) -> None:
    controller.topic(**FLUSHED)
    ask(controller, 4, 5, 1)
    controller.lose(1, 2, 3)
    assert controller.partition().leader == -1
    assert ask(controller, cancel=True) == (ErrorCode.NONE, "")
    assert is_at(controller, (1, 2, 3))
    controller.join(1, incarnation="second")
    assert controller.partition().leader == -1, "the one that left last comes back first"


def test_a_second_move_replaces_the_first_and_a_cancel_undoes_both(
    controller: PlannerCluster,
) -> None:
    controller.topic(**FLUSHED)
    ask(controller, 4, 2, 3)
    ask(controller, 5, 2, 3)
    assert is_at(controller, (1, 2, 3, 5), (5,), (1,)), "4 had nothing yet"
    assert ask(controller, cancel=True) == (ErrorCode.NONE, "")
    assert is_at(controller, (1, 2, 3))


def test_a_shutting_down_broker_is_not_handed_the_leadership(controller: PlannerCluster) -> None:
    controller.topic(**FLUSHED)
    ask(controller, 4, 5)
    alter(controller, 1, (1, 2, 3, 4, 5))
    controller.beat(4, wants_shutdown=True)
    tick(controller)
    assert controller.partition().leader in (1, 5)


def test_new_replicas_are_elected_uncleanly_only_after_the_old_ones(controller: PlannerCluster) -> None:
    controller.topic(**{"unclean.leader.election.enable": "true"})  # type: ignore[arg-type]
    ask(controller, 4, 2, 3)
    controller.lose(1, 2, 3)
    assert controller.partition().leader == 4, "the topic chose to go on with what there is"
    controller.join(3, incarnation="second")
    other = PlannerCluster()
    other.join(1, 2, 3, 4)
    other.topic(**{"unclean.leader.election.enable": "true"})  # type: ignore[arg-type]
    ask(other, 4, 2, 3)
    alter(other, 1, (1,))
    other.lose(1)
    assert other.partition().leader == 2


REFUSED = [
    ((), False, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty or not distinct"),
    ((1, 1), False, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty or not distinct"),
    ((1, 9), False, ErrorCode.INVALID_REPLICA_ASSIGNMENT, "unknown brokers [9]"),
    ((1, 2), True, ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor is changed from 3 to 2"),
]


@pytest.mark.parametrize(("target", "keep", "code", "says"), REFUSED)
def test_a_target_that_cannot_be_is_refused(
    controller: PlannerCluster, target: tuple[int, ...], keep: bool, code: ErrorCode, says: str
) -> None:
    controller.topic()
    before = controller.partition()
    error, message = ask(controller, *target, keep=keep)
    assert error == code
    assert says in message
    assert controller.partition() == before


def test_what_does_not_exist_or_is_named_twice_is_refused(controller: PlannerCluster) -> None:
    controller.topic()
    assert ask(controller, 1, name="nope")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    twice = [rpc.Reassignment(topic="t", partition=0, replicas=(node, 2, 3)) for node in (4, 5)]
    results = plan_reassignments(controller.state, rpc.ReassignPartitionsRequest(partitions=twice)).results
    assert [result.error for result in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_state_topic_keeps_the_replicas_that_its_promise_needs(controller: PlannerCluster) -> None:
    controller.topic(
        TRANSACTION_STATE_TOPIC,
        **{MIN_IN_SYNC_REPLICAS_CONFIG: "2", "cleanup.policy": "compact"},  # type: ignore[arg-type]
    )
    error, message = ask(controller, 4, name=TRANSACTION_STATE_TOPIC)
    assert error == ErrorCode.POLICY_VIOLATION
    assert "needs the 2 replicas" in message
    assert ask(controller, 4, 5, name=TRANSACTION_STATE_TOPIC)[0] == ErrorCode.NONE


def test_nothing_moves_before_every_node_knows_of_moves(controller: PlannerCluster) -> None:
    controller.topic()
    controller.state._features = {METADATA_VERSION: 1}
    with pytest.raises(KafkaError) as refused:
        ask(controller, 4, 2, 3)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert "tidegate features upgrade" in refused.value.message
    change = pb.PartitionChange(
        partition=0, leader=1, isr=[1, 2, 3], replicas=[1, 2, 3, 4], adding=[4], target=[4, 2, 3]
    )
    topic = controller.state.topics["t"]
    assert (
        partition_changes.changed_partition(
            controller.state.brokers, controller.state.features, topic, controller.partition(), change
        )
        is ErrorCode.UNSUPPORTED_VERSION
    )


def test_a_change_that_lost_its_race_gets_an_error(controller: PlannerCluster) -> None:
    controller.topic()
    wanted = rpc.Reassignment(topic="t", partition=0, replicas=(4, 2, 3))
    planned = plan_reassignments(controller.state, rpc.ReassignPartitionsRequest(partitions=[wanted]))
    assert planned.outcome(controller.state)[0].error == ErrorCode.INVALID_UPDATE_VERSION


def test_a_snapshot_keeps_a_move(controller: PlannerCluster) -> None:
    controller.topic(**FLUSHED)
    ask(controller, 4, 5, 2)
    other = ClusterState()
    other.restore(controller.state.encode())
    assert other.partition("t", 0) == controller.partition()
    assert other.state_hash() == controller.state.state_hash()


UNSOUND = [
    {"replicas": [1, 2, 3], "adding": [1, 2, 3], "target": [1]},
    {"replicas": [1, 2, 3, 4], "adding": [4], "target": []},
    {"replicas": [1, 2, 3], "adding": [4], "target": [1]},
    {"replicas": [1, 2, 3], "adding": [], "target": [5]},
    {"replicas": [1, 2, 3, 3], "adding": [], "target": [1]},
    {"replicas": [1, 2, 3, 9], "adding": [9], "target": [9, 2, 3]},
]


@pytest.mark.parametrize("fields", UNSOUND)
def test_an_assignment_that_makes_no_sense_is_refused_by_the_state_itself(
    controller: PlannerCluster, fields: dict[str, list[int]]
) -> None:
    controller.topic()
    change = pb.PartitionChange(partition=0, leader=1, isr=[1, 2, 3], last_known_leader=1, **fields)  # type: ignore[arg-type]
    found = partition_changes.changed_partition(
        controller.state.brokers,
        controller.state.features,
        controller.state.topics["t"],
        controller.partition(),
        change,
    )
    assert found is ErrorCode.INVALID_REPLICA_ASSIGNMENT


# ---- random lives ------------------------------------------------------------------------------------------


@dataclass
class World:
    """One partition, its brokers' logs (as lengths), and a leader that keeps the rules of
    `replication/partition/leader.py`.

    A record is committed when every member of the ISR has it and there are min.insync.replicas of them.
    Brokers crash without losing what they flushed; a broker that is no replica any more deletes its log, and
    then only the others can have the record.
    """

    seed: int
    controller: PlannerCluster = field(default_factory=PlannerCluster)
    ends: dict[int, int] = field(default_factory=dict)
    committed: int = 0
    moved: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.controller.join(1, 2, 3, 4, 5)
        self.controller.topic(replicas=(1, 2, 3)[: self.random.choice((1, 2, 3))], **FLUSHED)
        self.ends = dict.fromkeys(self.partition.replicas, 0)

    @property
    def partition(self) -> PartitionState:
        return self.controller.partition()

    @property
    def minimum(self) -> int:
        return self.controller.state.topics["t"].min_in_sync_replicas(self.partition.settled_replicas)

    def live(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [
            self.write, self.write, self.write, self.follow, self.follow, self.join, self.join, self.shrink,
            self.crash,
            self.come_back, self.come_back, self.move, self.cancel, self.tick, self.tick,
        ]  # fmt: skip
        for _ in range(steps):
            self.random.choice(actions)()
            self.settle()

    def settle(self) -> None:
        """After every step: replicas follow the metadata, and nothing that was committed is in danger."""
        partition = self.partition
        self.ends = {node: self.ends.get(node, 0) for node in partition.replicas}
        if partition.leader >= 0:
            end = self.ends[partition.leader]
            assert end >= self.committed, (
                f"seed {self.seed}: leader {partition} lacks committed records: {self.ends}"
            )
            # diverging tails are cut
            self.ends = {node: min(length, end) for node, length in self.ends.items()}
        complete = [node for node, length in self.ends.items() if length >= self.committed]
        assert set(partition.isr) | set(partition.elr) <= set(complete), (
            f"seed {self.seed}: {partition}, {self.ends}"
        )
        wanted = min(self.minimum, len(partition.replicas))
        assert self.committed == 0 or len(complete) >= min(wanted, self.copies), (
            f"seed {self.seed}: {partition} {self.ends}"
        )
        self.commit()

    copies: int = 0

    def commit(self) -> None:
        partition = self.partition
        if partition.leader >= 0 and len(partition.isr) >= self.minimum:
            end = min(self.ends[node] for node in partition.isr)
            if end > self.committed:
                self.committed, self.copies = end, self.minimum

    def write(self) -> None:
        if self.partition.leader >= 0 and len(self.partition.isr) >= self.minimum:
            self.ends[self.partition.leader] += 1

    def follow(self) -> None:
        if self.partition.leader < 0:
            return
        for node in self.partition.replicas:
            if not self.controller.state.brokers[node].fenced and self.random.random() < 0.7:
                self.ends[node] = self.ends[self.partition.leader]

    def join(self) -> None:
        partition = self.partition
        if partition.leader < 0:
            return
        ready = [
            n
            for n in partition.replicas
            if n not in partition.isr and self.ends[n] >= self.ends[partition.leader]
        ]
        alive = [n for n in ready if self.controller.state.brokers[n].active]
        if alive:
            alter(self.controller, partition.leader, (*partition.isr, self.random.choice(alive)))

    def shrink(self) -> None:
        partition = self.partition
        others = [node for node in partition.isr if node != partition.leader]
        if others and self.random.random() < 0.4:
            gone = self.random.choice(others)
            alter(self.controller, partition.leader, tuple(node for node in partition.isr if node != gone))

    def crash(self) -> None:
        alive = self.controller.state.unfenced_brokers()
        if alive and self.random.random() < 0.6:
            self.controller.carry_out(
                self.controller.planner.fence([self.random.choice(alive).node_id], "crash")
            )

    def come_back(self) -> None:
        fenced = [broker.node_id for broker in self.controller.state.brokers.values() if broker.fenced]
        if fenced:
            self.controller.join(self.random.choice(fenced), incarnation=str(self.controller.state.index))

    def move(self) -> None:
        before = self.partition.replicas
        target = self.random.sample((1, 2, 3, 4, 5), self.random.choice((1, 2, 3)))
        assert ask(self.controller, *target)[0] == ErrorCode.NONE
        self.moved += self.partition.replicas != before

    def cancel(self) -> None:
        assert ask(self.controller, cancel=True)[0] in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)

    def tick(self) -> None:
        self.controller.carry_out(self.controller.planner.tick(self.controller.now))

    def heal(self) -> None:
        """All brokers are back and follow: the move in progress ends."""
        for _ in range(60):
            self.come_back()
            self.tick()
            if self.partition.leader >= 0:
                leader = self.partition.leader
                self.ends = dict.fromkeys(self.ends, self.ends[leader])
                if set(self.partition.isr) != set(self.partition.replicas):
                    alive = [n for n in self.partition.replicas if self.controller.state.brokers[n].active]
                    alter(self.controller, leader, tuple(dict.fromkeys((*self.partition.isr, *alive))))
            self.settle()
        assert not self.partition.target, f"seed {self.seed}: {self.partition} does not end"


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_random_moves_crashes_and_cancels_lose_no_committed_record(first: int) -> None:
    moved = committed = 0
    for seed in range(first, first + 30):
        world = World(seed)
        world.controller.disks = {node: f"disk-{node}" for node in range(1, 6)}
        for node in range(1, 6):
            world.controller.register(node, "with its disk")
            world.controller.beat(node)
        world.tick()
        world.live(120)
        world.heal()
        moved, committed = moved + world.moved, committed + world.committed
    assert moved > 100, "the lives were not empty"
    assert committed > 100, "the lives were not empty"


def lives_are_broken(seeds: int = 60) -> bool:
    try:
        test_random_moves_crashes_and_cancels_lose_no_committed_record(0)
        for first in range(30, seeds, 30):
            test_random_moves_crashes_and_cancels_lose_no_committed_record(first)
    except AssertionError:
        return True
    return False


# ---- ablations ---------------------------------------------------------------------------------------------


def _with_reduced(monkeypatch: pytest.MonkeyPatch, reduced: Callable[..., PartitionState | None]) -> None:
    monkeypatch.setattr(moves, "_reduced", reduced)


def test_ablation_a_move_that_ends_below_min_insync_leaves_too_few_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = moves._reduced

    def barless(
        topic: TopicState, before: PartitionState, after: PartitionState, able: set[int]
    ) -> PartitionState | None:
        return real(replace(topic, config={}), before, after, able)

    _with_reduced(monkeypatch, barless)
    assert lives_are_broken()


def test_ablation_a_move_that_does_not_wait_ends_outside_the_isr(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = moves.advanced
    monkeypatch.setattr(moves, "advanced", lambda t, n, p, able: real(t, n, replace(p, adding=()), able))
    controller.topic()
    ask(controller, 4, 1)
    assert is_at(controller, (4, 1))
    assert controller.partition().isr == (1,)


def test_ablation_a_cancel_that_drops_needed_replicas_loses_the_only_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = moves._dropped

    def all_cancelled(partition: PartitionState, gone: list[int]) -> PartitionState:
        cancelled = [node for node in partition.adding if node not in partition.target]
        left = real(partition, cancelled)
        isr = tuple(node for node in left.isr if node in left.replicas)
        elr = tuple(node for node in left.elr if node in left.replicas)
        leader = left.leader if left.leader in isr else (isr[0] if isr else -1)
        last = left.last_known_leader if left.last_known_leader in left.replicas else -1
        return replace(left, isr=isr, elr=elr, leader=leader, last_known_leader=last)

    monkeypatch.setattr(moves, "_dropped", all_cancelled)
    assert lives_are_broken()


def test_without_a_new_epoch_an_old_fetch_of_a_deleted_log_would_count(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def epochs() -> tuple[int, int]:
        controller.topic(name := f"t{controller.state.index}", replicas=(1, 2, 3))
        before = controller.partition(name).leader_epoch
        ask(controller, 1, 2, name=name)
        ask(controller, 1, 2, 3, name=name)
        return before, controller.partition(name).leader_epoch

    before, after = epochs()
    assert after > before, "a leader that missed both entries still forgets how far 3 had come"
    monkeypatch.setattr(partition_changes, "_loses_replicas", lambda *_: False)
    before, after = epochs()
    assert after == before
