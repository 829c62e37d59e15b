"""The active controller's plans, each applied to a real state: fenced brokers, elected leaders, replicas that
may come back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pytest
from tidegate.controller.planning import topics
from tidegate.controller.planning.brokers import controlled_shutdown
from tidegate.controller.planning.brokers import registration as registrations
from tidegate.controller.planning.brokers.controlled_shutdown import shutdown_began
from tidegate.controller.planning.brokers.registration import broker_with_epoch, plan_registration
from tidegate.controller.planning.partitions import isr_changes
from tidegate.controller.planning.partitions.isr_changes import plan_isr_changes
from tidegate.controller.planning.plan import Plan
from tidegate.controller.planning.planner import ControllerConfig, ControllerPlanner
from tidegate.controller.state import partition_changes
from tidegate.controller.state.cluster_state import ClusterState
from tidegate.controller.state.model import (
    FLUSH_POLICY_CONFIG,
    INITIAL_FEATURES,
    LISTENERS_LEVEL,
    METADATA_VERSION,
    MIN_IN_SYNC_REPLICAS_CONFIG,
    SESSIONS_LEVEL,
    TRANSACTION_STATE_TOPIC,
    UNCLEAN_ELECTION_CONFIG,
    ApplyResult,
    PartitionState,
)
from tidegate.controller.state.validation import violations
from tidegate.proto import controller_pb2 as rpc
from tidegate.proto import metadata_pb2 as pb
from tidegate.wire.errors import ErrorCode, KafkaError

from ..controller_cluster import registration

SAFE: dict[str, Any] = {MIN_IN_SYNC_REPLICAS_CONFIG: "2", FLUSH_POLICY_CONFIG: "os"}
FLUSHED: dict[str, Any] = {MIN_IN_SYNC_REPLICAS_CONFIG: "2"}


@dataclass
class PlannerCluster:
    """A state, its active controller and its clock."""

    state: ClusterState = field(default_factory=ClusterState)
    now: float = 0.0
    config: ControllerConfig = field(default_factory=ControllerConfig)
    disks: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.planner = ControllerPlanner(self.state, self.config, self.now)
        self.carry_out(self.planner.begin_term(1, "blue", "m-1", dict(INITIAL_FEATURES)))

    def carry_out(self, plan: Plan) -> list[ApplyResult]:
        results = []
        for command in plan.commands(1):
            results.append(self.state.apply(self.state.index + 1, 1, command.SerializeToString()))
            assert results[-1].ok, results[-1]
            if isinstance(results[-1].value, tuple):
                assert set(results[-1].value) == {ErrorCode.NONE}
        assert violations(self.state) == []
        return results

    def plan_registration(self, request: rpc.RegisterBrokerRequest) -> Plan:
        return plan_registration(self.state, self.planner.sessions, request)

    def register(
        self, node_id: int, incarnation: str = "first", clean: bool = False, directory: str | None = None
    ) -> None:
        known = self.state.brokers.get(node_id)
        request = registration(
            node_id, incarnation, directory_id=self.disks.get(node_id, "") if directory is None else directory
        )
        if clean and known is not None:
            request.clean_shutdown_broker_epoch = known.broker_epoch
        self.carry_out(self.plan_registration(request))
        self.planner.sessions.registered(self.state.brokers[node_id], self.now)

    def beat(self, node_id: int, **fields: Any) -> None:
        request = self.heartbeat(node_id, **fields)
        self.planner.extend_session(request, self.now)
        self.carry_out(self.planner.plan_heartbeat(request))

    def heartbeat(self, node_id: int, **fields: Any) -> rpc.HeartbeatRequest:
        values = {
            "broker_epoch": self.state.brokers[node_id].broker_epoch,
            "applied_index": self.state.index,
        } | fields
        return rpc.HeartbeatRequest(node_id=node_id, **values)

    def join(self, *node_ids: int, incarnation: str = "first", clean: bool = False) -> None:
        for node_id in node_ids:
            self.register(node_id, incarnation, clean)
            self.beat(node_id)

    def topic(self, name: str = "t", replicas: tuple[int, ...] = (1, 2, 3), **config: str) -> None:
        request = rpc.CreateTopicsRequest(
            topics=[
                rpc.NewTopic(
                    name=name,
                    partitions=-1,
                    replication_factor=-1,
                    assignments=[{"replicas": replicas}],  # type: ignore[list-item]
                )
            ],
            allow_internal=True,
            request_id=rpc.RequestId(client_id="test", sequence=1),
        )
        request.topics[0].config.update(config)
        plans = topics.plan_creation(self.state, self.config, request, uuid4)
        assert not plans.results[0].error, plans.results
        self.carry_out(Plan(plans.operations))

    def partition(self, name: str = "t") -> PartitionState:
        return self.state.topics[name].partitions[0]

    def lose(self, *node_ids: int) -> None:
        """These brokers fall silent until their sessions are over; the others go on."""
        alive = [broker.node_id for broker in self.state.unfenced_brokers() if broker.node_id not in node_ids]
        for _ in range(40):
            self.now += 0.25
            for node_id in alive:
                self.beat(node_id)
            self.carry_out(self.planner.tick(self.now))
        assert all(self.state.brokers[node_id].fenced for node_id in node_ids)

    def shows(self, *, leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = (), name: str = "t") -> None:
        partition = self.partition(name)
        assert (partition.leader, partition.isr, tuple(sorted(partition.elr))) == (leader, isr, elr)


@pytest.fixture
def controller() -> PlannerCluster:
    controller = PlannerCluster()
    controller.join(1, 2, 3)
    return controller


# ---- registration ------------------------------------------------------------------------------------------


def test_a_broker_is_unfenced_only_after_applying_its_own_registration() -> None:
    controller = PlannerCluster()
    controller.register(1)
    controller.beat(1, applied_index=controller.state.brokers[1].broker_epoch - 1)
    assert controller.state.brokers[1].fenced
    controller.beat(1, wants_fence=True)
    assert controller.state.brokers[1].fenced
    controller.beat(1)
    assert not controller.state.brokers[1].fenced


def test_a_lagging_controller_does_not_call_a_newer_registration_stale(controller: PlannerCluster) -> None:
    """It was deposed and does not know it: the broker asks elsewhere, instead of ending itself."""
    for node_id in (1, 9):
        with pytest.raises(KafkaError) as lagging:
            broker_with_epoch(controller.state, node_id, controller.state.index + 1)
        assert lagging.value.code is ErrorCode.NOT_CONTROLLER


def test_a_repeated_registration_of_one_incarnation_plans_nothing(controller: PlannerCluster) -> None:
    assert not controller.plan_registration(registration(1)).operations


def test_a_new_incarnation_first_ends_the_old_one(controller: PlannerCluster) -> None:
    """docs/semantics.md M5, in one plan: fence, out of every ISR, only then a new epoch."""
    controller.topic()
    old = controller.state.brokers[1].broker_epoch
    plan = controller.plan_registration(registration(1, "second"))
    assert [operation.WhichOneof("kind") for operation in plan.operations] == [
        "fence_broker",
        "change_partitions",
        "register_broker",
    ]
    controller.carry_out(plan)
    controller.shows(leader=2, isr=(2, 3))
    assert controller.state.brokers[1].broker_epoch > old
    assert controller.state.brokers[1].fenced
    with pytest.raises(KafkaError) as refused:
        controller.planner.extend_session(controller.heartbeat(1, broker_epoch=old), controller.now)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "green"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        (
            {"supported_features": [rpc.FeatureRange(name="transaction.version", max_level=1)]},
            ErrorCode.UNSUPPORTED_VERSION,
        ),
        ({"incarnation": ""}, ErrorCode.INVALID_REQUEST),
        ({"node_id": -1}, ErrorCode.INVALID_REQUEST),
        ({"kafka_host": "node..dom"}, ErrorCode.INVALID_REQUEST),
        ({"kafka_host": "a" * 64}, ErrorCode.INVALID_REQUEST),
        ({"grpc_host": "node\0dom"}, ErrorCode.INVALID_REQUEST),
        ({"kafka_port": 65536}, ErrorCode.INVALID_REQUEST),
        ({"grpc_port": -1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_broker_that_does_not_belong_is_refused(
    controller: PlannerCluster, fields: dict[str, object], code: ErrorCode
) -> None:
    request = registration(9)
    for name, value in fields.items():
        if name == "supported_features":
            del request.supported_features[:]
            request.supported_features.extend(value)  # type: ignore[arg-type]
        else:
            setattr(request, name, value)
    with pytest.raises(KafkaError) as refused:
        controller.plan_registration(request)
    assert refused.value.code == code


LISTENERS = [
    rpc.ListenerEndpoint(name="EXTERNAL", host="outside", port=1),
    rpc.ListenerEndpoint(name="CLIENTS", host="inside", port=2),
]


def test_a_registration_carries_every_listener_by_name(controller: PlannerCluster) -> None:
    controller.carry_out(controller.plan_registration(registration(9, listeners=LISTENERS)))
    broker = controller.state.brokers[9]
    assert [str(listener) for listener in broker.listeners] == ["CLIENTS://inside:2", "EXTERNAL://outside:1"]
    assert str(broker.endpoint("EXTERNAL")) == "outside:1"
    assert broker.endpoint("OTHER") is None
    assert str(broker.kafka) == "127.0.0.1:9009", "for the other brokers"
    again = ClusterState()
    again.restore(controller.state.encode())
    assert again.brokers[9] == broker


def test_below_its_level_a_registration_has_one_address_for_all_clients(controller: PlannerCluster) -> None:
    controller.state._features = {METADATA_VERSION: LISTENERS_LEVEL - 1}
    plan = controller.plan_registration(registration(9, listeners=LISTENERS))
    assert not plan.operations[-1].register_broker.listeners, "an older node would not keep them"
    controller.carry_out(plan)
    assert str(controller.state.brokers[9].endpoint("EXTERNAL")) == "127.0.0.1:9009"


@pytest.mark.parametrize(
    "listeners",
    [
        [{"name": "", "host": "a", "port": 1}],
        [{"name": "A", "host": "a", "port": 1}, {"name": "A", "host": "b", "port": 2}],
        [{"name": "A", "host": "node..dom", "port": 1}],
        [{"name": "A", "host": "a", "port": 65536}],
        [{"name": "A", "host": "a", "port": 1, "security_protocol": 4}],
        [{"name": f"L{n}", "host": "a", "port": n} for n in range(65)],
    ],
)
def test_listeners_that_no_client_could_use_are_refused(
    controller: PlannerCluster, listeners: list[dict[str, Any]]
) -> None:
    with pytest.raises(KafkaError) as refused:
        controller.plan_registration(
            registration(9, listeners=[rpc.ListenerEndpoint(**each) for each in listeners])
        )
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert "clients cannot reach broker 9" in refused.value.message


# ---- sessions ----------------------------------------------------------------------------------------------


def test_a_session_that_ends_fences_and_elects_in_one_command(controller: PlannerCluster) -> None:
    for number in range(50):
        controller.topic(f"t{number}", (1, 2, 3))
    for _ in range(40):
        controller.now += 0.25
        controller.beat(2)
        controller.beat(3)
        plan = controller.planner.tick(controller.now)
        if plan.operations:
            break
    assert len(list(plan.commands(1))) == 1
    (result,) = controller.carry_out(plan)
    assert len(result.changed_partitions) == 50
    assert result.changed_brokers == {1}
    assert {controller.partition(f"t{number}").leader for number in range(50)} == {2}
    assert controller.now == pytest.approx(6.25, abs=0.5)


def test_ten_thousand_partitions_move_in_a_few_commands_that_fit_the_log(controller: PlannerCluster) -> None:
    request = rpc.CreateTopicsRequest(
        topics=[rpc.NewTopic(name="wide", partitions=10_000, replication_factor=3)]
    )
    controller.carry_out(
        Plan(topics.plan_creation(controller.state, controller.config, request, uuid4).operations)
    )
    commands = list(controller.planner.fence([1], "test").commands(1))
    assert len(commands) <= 4
    assert all(command.ByteSize() < 500_000 for command in commands)
    controller.carry_out(controller.planner.fence([1], "test"))
    assert all(1 not in p.isr for p in controller.state.topics["wide"].partitions.values())


def test_a_paused_controller_does_not_fence_every_broker(controller: PlannerCluster) -> None:
    controller.now += 60.0
    assert not controller.planner.tick(controller.now).operations
    controller.now += 1.0
    assert not controller.planner.tick(controller.now).operations


def test_a_controller_that_runs_late_gives_brokers_the_time_it_did_not_run(
    controller: PlannerCluster,
) -> None:
    """20 ms of CPU a second: every tick comes a second late, and heartbeats wait in the sockets meanwhile."""
    for _ in range(20):  # 25 s
        controller.now += 1.25
        assert not controller.planner.tick(controller.now).operations, (
            "no broker is judged by what this process did not hear"
        )


def test_a_controller_that_runs_late_still_fences_a_broker_that_is_silent(controller: PlannerCluster) -> None:
    expired_at_s = 0.0
    while not expired_at_s and controller.now < 300:
        controller.now += 1.25
        controller.beat(2)
        controller.beat(3)
        expired_at_s = controller.now if controller.planner.tick(controller.now).operations else 0.0
    assert 25 < expired_at_s < 40


def test_an_overtaken_heartbeat_only_extends_the_session(
    controller: PlannerCluster,
) -> None:
    controller.topic(**SAFE)
    topic_id = controller.state.topics["t"].topic_id.bytes
    offline = [rpc.ReplicasOfTopic(topic_id=topic_id, partitions=[0])]
    controller.beat(1, number=5, offline_replicas=offline)
    assert controller.state.brokers[1].offline_replicas
    controller.now += 1.0
    controller.beat(1, number=4)
    assert controller.state.brokers[1].offline_replicas, "as the newest heartbeat says"
    assert controller.planner.sessions.by_id[1].heard_at == controller.now
    controller.beat(1, number=6)
    assert not controller.state.brokers[1].offline_replicas
    controller.beat(1, number=5, wants_shutdown=True)
    assert not controller.state.brokers[1].shutting_down


def test_a_new_controller_gives_every_broker_a_whole_session(controller: PlannerCluster) -> None:
    controller.now += 5.9
    controller.planner = ControllerPlanner(controller.state, controller.config, controller.now)
    controller.now += 0.25
    assert not controller.planner.tick(controller.now).operations
    controller.lose(1, 2, 3)


def succeed(controller: PlannerCluster, session_timeout_ms: int) -> None:
    """Another controller, with another session timeout, begins its term."""
    config = replace(controller.config, session_timeout_ms=session_timeout_ms)
    planner = ControllerPlanner(controller.state, config, controller.now)
    begun = planner.begin_term(2, "blue", "m-1", dict(INITIAL_FEATURES))
    controller.carry_out(Plan(begun.operations[1:]))  # all but the term's number
    controller.planner = planner


def pass_seconds(controller: PlannerCluster, seconds: float, *alive: int) -> list[str]:
    """Ticks and heartbeats; the reasons of the plans."""
    reasons, until = [], controller.now + seconds
    while controller.now < until:
        controller.now += 0.25
        for node_id in alive:
            controller.beat(node_id)
        plan = controller.planner.tick(controller.now)
        controller.carry_out(plan)
        reasons.extend([plan.reason] if plan.operations else [])
    return reasons


def test_a_plan_of_a_named_request_has_an_entry_even_without_operations() -> None:
    assert list(Plan().commands(1)) == []
    (command,) = Plan(request_id=rpc.RequestId(client_id="operator", sequence=7)).commands(1)
    assert (command.proposer, command.sequence, len(command.operations)) == ("operator", 7, 0)


def test_a_shorter_session_timeout_waits_for_the_sessions_of_the_longer(controller: PlannerCluster) -> None:
    assert controller.state.session_timeout_ms == 6000
    succeed(controller, 2000)
    assert controller.planner.session_timeout_ms == 2000, "what it grants"
    assert pass_seconds(controller, 5.75, 1, 2) == []
    assert not controller.state.brokers[3].fenced, "a former controller's answer may be good for 6 s"
    assert pass_seconds(controller, 1.0, 1, 2) == ["fence brokers: session expired", "session timeout"]
    assert controller.state.session_timeout_ms == 2000
    assert pass_seconds(controller, 2.5, 1) == ["fence brokers: session expired"]
    assert controller.state.brokers[2].fenced


def test_a_longer_session_timeout_is_granted_when_it_is_committed(controller: PlannerCluster) -> None:
    config = replace(controller.config, session_timeout_ms=9000)
    planner = ControllerPlanner(controller.state, config, controller.now)
    assert planner.session_timeout_ms == 6000
    succeed(controller, 9000)
    assert controller.state.session_timeout_ms == 9000
    assert controller.planner.session_timeout_ms == planner.session_timeout_ms == 9000


def test_below_its_level_the_session_timeout_is_not_agreed_on() -> None:
    state, config = ClusterState(), ControllerConfig(session_timeout_ms=2000)
    planner = ControllerPlanner(state, config, 0.0)
    former = {METADATA_VERSION: SESSIONS_LEVEL - 1}
    for command in planner.begin_term(1, "blue", "m-1", former).commands(1):
        assert state.apply(state.index + 1, 1, command.SerializeToString()).ok
    assert not planner.tick(0.25).operations
    assert planner.session_timeout_ms == 2000
    assert state.session_timeout_ms == 0
    raised = pb.SetFeatureLevel(
        name=METADATA_VERSION, level=SESSIONS_LEVEL, expected_level=SESSIONS_LEVEL - 1
    )
    command = pb.Command(operations=[pb.Operation(set_feature_level=raised)])
    assert state.apply(state.index + 1, 1, command.SerializeToString()).ok
    assert [each.WhichOneof("kind") for each in planner.tick(0.5).operations] == ["set_session_timeout"]


# ---- elections (KIP-966) -----------------------------------------------------------------------------------


def test_isr_then_elr_and_the_last_replica_waits_for_its_return(controller: PlannerCluster) -> None:
    controller.topic(**SAFE)
    controller.lose(1)
    controller.shows(leader=2, isr=(2, 3))
    controller.lose(2)
    controller.shows(leader=3, isr=(3,), elr=(2,))
    controller.lose(3)
    controller.shows(leader=-1, isr=(), elr=(2, 3))
    assert controller.partition().last_known_leader == 3
    controller.beat(2)
    controller.shows(leader=2, isr=(2,), elr=(3,))
    before = controller.partition().leader_epoch
    controller.beat(3)
    controller.shows(leader=2, isr=(2,), elr=(3,))
    assert controller.partition().leader_epoch == before


def test_a_sole_replica_after_an_unclean_stop_yields_to_eligible_ones(controller: PlannerCluster) -> None:
    """The last replica standing: 1 and 2 stop cleanly, 3 dies, all come back; 3 may have lost what it alone
    had flushed."""
    controller.topic(**SAFE)
    controller.lose(1)
    controller.lose(2)
    controller.lose(3)
    controller.register(3, "second", clean=False)
    controller.shows(leader=-1, isr=(), elr=(2,))
    controller.beat(3)
    controller.shows(leader=-1, isr=(), elr=(2,))
    controller.join(2, incarnation="second", clean=True)
    controller.shows(leader=2, isr=(2,))


def test_flush_policy_always_needs_all_replicas_in_sync(controller: PlannerCluster) -> None:
    """Else an unclean stop from before the change would pass for one after it: the last replica standing is
    elected, without what it never flushed, and the others are cut (KIP-966)."""
    controller.disks = {1: "a", 2: "b", 3: "c"}
    controller.join(1, 2, 3, incarnation="with a disk")
    controller.topic(**SAFE)
    request = rpc.AlterConfigsRequest(topics=[{"name": "t", "set": {"flush.policy": "always"}}])  # type: ignore[list-item]
    controller.lose(1)
    controller.lose(2)
    controller.lose(3)
    (refused,) = topics.plan_configuration(controller.state, request).topics
    assert refused.result.error == ErrorCode.POLICY_VIOLATION
    assert refused.operation is None
    controller.join(3, incarnation="second")
    controller.shows(leader=-1, isr=(), elr=(2,))
    for node_id in (2, 1, 3):
        controller.join(node_id, incarnation="third", clean=True)
    present = controller.partition()
    whole = pb.PartitionChange(
        expected_partition_epoch=present.partition_epoch,
        leader=present.leader,
        isr=(1, 2, 3),
        last_known_leader=present.leader,
    )
    changes = pb.ChangePartitions(
        topics=[{"topic_id": controller.state.topics["t"].topic_id.bytes, "partitions": [whole]}]  # type: ignore[list-item]
    )
    controller.carry_out(Plan([pb.Operation(change_partitions=changes)]))
    controller.carry_out(Plan(topics.plan_configuration(controller.state, request).operations))
    assert controller.state.topics["t"].flushed_before_acknowledged


def test_a_clean_shutdown_keeps_a_replica_eligible(controller: PlannerCluster) -> None:
    controller.topic(**SAFE)
    controller.lose(1)
    controller.lose(2)
    controller.lose(3)
    controller.join(3, incarnation="second", clean=True)
    controller.shows(leader=3, isr=(3,), elr=(2,))


def test_without_eligible_replicas_the_last_known_leader_leads_again(controller: PlannerCluster) -> None:
    controller.topic(**SAFE)
    controller.lose(1, 2, 3)
    for node_id in (2, 3, 1):
        controller.register(node_id, "second")
    controller.shows(leader=-1, isr=())
    last = controller.partition().last_known_leader
    others = [node_id for node_id in (1, 2, 3) if node_id != last]
    for node_id in others:
        controller.beat(node_id)
    controller.shows(leader=-1, isr=())
    controller.beat(last)
    controller.shows(leader=last, isr=(last,))


def test_after_a_power_cut_any_isr_member_of_a_flushed_topic_may_lead() -> None:
    """Acknowledged means flushed by the whole ISR, so on the same disks all replicas still have it, also
    without a clean stop."""
    controller = PlannerCluster(disks={1: "disk-1", 2: "disk-2", 3: "disk-3"})
    controller.join(1, 2, 3)
    controller.topic("flushed", **FLUSHED)
    controller.topic("unflushed", **SAFE)
    for node_id in (1, 2, 3):
        controller.register(node_id, "second", clean=False)
    controller.beat(1)
    controller.beat(2)
    assert controller.partition("flushed").leader in (1, 2)
    assert controller.partition("unflushed").leader == -1, "3 led last; only it may come back"
    controller.beat(3)
    assert controller.partition("unflushed").leader == 3


def test_a_replaced_disk_takes_elr_and_last_leader_from_its_broker() -> None:
    controller = PlannerCluster(disks={1: "disk-1"})
    controller.join(1)
    controller.topic("only", (1,))
    controller.register(1, "second", directory="another disk")
    controller.beat(1)
    assert controller.partition("only").leader == -1
    assert controller.partition("only").elr == ()
    assert controller.partition("only").last_known_leader == -1


def test_an_unclean_election_needs_the_topics_setting_never_a_state_topic(controller: PlannerCluster) -> None:
    for name, config in (
        ("no", SAFE),
        ("yes", SAFE | {UNCLEAN_ELECTION_CONFIG: "true"}),
        (TRANSACTION_STATE_TOPIC, FLUSHED),
    ):
        controller.topic(name, (1, 2, 3), **config)
    # Refused when it is asked for; as a version that did not refuse it may have left it:
    controller.state.topics[TRANSACTION_STATE_TOPIC].config.update(SAFE | {UNCLEAN_ELECTION_CONFIG: "true"})
    controller.lose(1)
    controller.lose(2, 3)
    controller.join(1, incarnation="second")
    assert controller.partition("yes").leader == 1
    assert controller.partition("yes").isr == (1,)
    assert controller.partition("no").leader == -1
    assert controller.partition(TRANSACTION_STATE_TOPIC).leader == -1


def test_switching_unclean_election_on_elects_a_leader_at_the_next_tick(controller: PlannerCluster) -> None:
    controller.topic(**SAFE)
    controller.lose(1)
    controller.lose(2, 3)
    controller.beat(1)
    controller.shows(leader=-1, isr=(), elr=(2, 3))
    change = rpc.AlterConfigsRequest(
        topics=[rpc.ConfigChange(name="t", set={UNCLEAN_ELECTION_CONFIG: "true"})]
    )
    controller.carry_out(Plan(topics.plan_configuration(controller.state, change).operations))
    controller.now += 0.25
    controller.carry_out(controller.planner.tick(controller.now))
    controller.shows(leader=1, isr=(1,))


def test_leaderships_return_to_the_preferred_replica_once_it_is_in_sync(controller: PlannerCluster) -> None:
    controller.topic()
    controller.lose(1)
    controller.beat(1)
    controller.now += 31
    assert not controller.planner.rebalance().operations, "not in sync yet"
    assert alter(controller, 2, (2, 3, 1)) == ErrorCode.NONE
    for _ in range(130):
        controller.now += 0.25
        for node_id in (1, 2, 3):
            controller.beat(node_id)
        controller.carry_out(controller.planner.tick(controller.now))
    assert controller.partition().leader == 1


# ---- in-sync replicas --------------------------------------------------------------------------------------


def alter(
    controller: PlannerCluster, node_id: int, isr: tuple[int, ...], *, attempt: int = 0, **fields: Any
) -> ErrorCode:
    partition, topic = controller.partition(), controller.state.topics["t"]
    values: dict[str, object] = {
        "topic_id": topic.topic_id.bytes,
        "partition": 0,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
        "isr": isr,
    } | fields
    request = rpc.AlterPartitionsRequest(
        node_id=node_id,
        broker_epoch=controller.state.brokers[node_id].broker_epoch,
        attempt=attempt,
        changes=[rpc.IsrChange(**values)],  # type: ignore[arg-type]
    )
    plan, (error,) = plan_isr_changes(controller.state, controller.planner.sessions, request)
    controller.carry_out(plan)
    return error


def test_a_leader_shrinks_and_expands_its_isr_and_a_retry_is_a_success(controller: PlannerCluster) -> None:
    controller.topic(**SAFE)
    assert alter(controller, 1, (1,)) == ErrorCode.NONE
    controller.shows(leader=1, isr=(1,), elr=(2, 3))
    assert alter(controller, 1, (1,), partition_epoch=0) == ErrorCode.NONE
    assert controller.partition().partition_epoch == 1
    assert alter(controller, 1, (1, 2)) == ErrorCode.NONE
    controller.shows(leader=1, isr=(1, 2))


def test_an_attempt_that_comes_after_a_later_one_is_not_carried_out(controller: PlannerCluster) -> None:
    """The later one got INELIGIBLE_REPLICA, and its sender no longer counts with that replica."""
    controller.topic(**SAFE)
    assert alter(controller, 1, (1, 2), attempt=1) == ErrorCode.NONE
    controller.lose(3)
    assert alter(controller, 1, (1, 2, 3), attempt=3) == ErrorCode.INELIGIBLE_REPLICA
    controller.beat(3)
    with pytest.raises(KafkaError) as refused:
        alter(controller, 1, (1, 2, 3), attempt=2)
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    controller.shows(leader=1, isr=(1, 2))
    assert alter(controller, 1, (1, 2, 3), attempt=4) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("node_id", "isr", "fields", "error"),
    [
        (2, (1, 2), {}, ErrorCode.INVALID_REQUEST),
        (1, (2, 3), {}, ErrorCode.INVALID_REQUEST),
        (1, (1, 9), {}, ErrorCode.INVALID_REQUEST),
        (1, (1, 2), {"leader_epoch": 7}, ErrorCode.INVALID_REQUEST),
        (1, (1, 2), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        (1, (1, 2), {"partition_epoch": 7}, ErrorCode.INVALID_UPDATE_VERSION),
        (1, (1, 2), {"partition": 4}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, (1, 2), {"topic_id": bytes(16)}, ErrorCode.UNKNOWN_TOPIC_ID),
        (1, (1, 2), {"isr_broker_epochs": (-1, 99)}, ErrorCode.INELIGIBLE_REPLICA),
        (1, (1, 2), {"isr_broker_epochs": (-1,)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_isr_change_that_does_not_hold_is_refused(
    controller: PlannerCluster,
    node_id: int,
    isr: tuple[int, ...],
    fields: dict[str, object],
    error: ErrorCode,
) -> None:
    controller.topic()
    assert alter(controller, node_id, isr, **fields) == error  # type: ignore[arg-type]
    assert controller.partition().partition_epoch == 0


def test_a_fenced_broker_does_not_join_an_isr(controller: PlannerCluster) -> None:
    controller.topic()
    controller.lose(3)
    assert alter(controller, 1, (1, 2, 3)) == ErrorCode.INELIGIBLE_REPLICA


def test_a_fenced_broker_that_is_left_in_an_isr_leaves_it_at_the_next_tick(
    controller: PlannerCluster,
) -> None:
    controller.topic()
    epoch = controller.state.brokers[3].broker_epoch
    controller.carry_out(Plan([pb.Operation(fence_broker=pb.FenceBroker(node_id=3, broker_epoch=epoch))]))
    assert controller.partition().isr == (1, 2, 3)
    controller.now += 0.25
    controller.carry_out(controller.planner.tick(controller.now))
    controller.shows(leader=1, isr=(1, 2))


# ---- controlled shutdown -----------------------------------------------------------------------------------


def test_a_broker_stops_only_after_the_others_applied_the_new_leaders(controller: PlannerCluster) -> None:
    controller.topic(**SAFE)
    controller.beat(1, wants_shutdown=True)
    shutdown_began(controller.state, controller.planner.sessions, 1)
    controller.shows(leader=2, isr=(2, 3))
    assert not controller.planner.answer(1).should_shutdown
    controller.beat(1, wants_shutdown=True)
    assert not controller.planner.answer(1).should_shutdown, "2 and 3 have not applied it yet"
    controller.beat(2)
    controller.beat(3)
    controller.beat(1, wants_shutdown=True)
    assert controller.planner.answer(1).should_shutdown
    assert controller.state.brokers[1].fenced
    controller.beat(1, wants_shutdown=True)
    assert controller.planner.answer(1).should_shutdown, "a lost answer is given again"
    controller.join(1, incarnation="second", clean=True)
    assert not controller.state.brokers[1].fenced
    assert not controller.state.brokers[1].shutting_down


def test_the_only_replica_may_stop_and_leads_again_when_it_is_back(controller: PlannerCluster) -> None:
    controller.topic("only", (1,))
    controller.beat(1, wants_shutdown=True)
    shutdown_began(controller.state, controller.planner.sessions, 1)
    controller.beat(2)
    controller.beat(3)
    controller.beat(1, wants_shutdown=True)
    assert controller.planner.answer(1).should_shutdown
    controller.shows(leader=-1, isr=(), elr=(1,), name="only")
    controller.join(1, incarnation="second", clean=True)
    controller.shows(leader=1, isr=(1,), name="only")


def test_shutting_down_the_whole_cluster_one_by_one_loses_no_partition(controller: PlannerCluster) -> None:
    controller.topic(**SAFE)
    for node_id in (1, 2, 3):
        for _ in range(3):
            for other in (1, 2, 3):
                if not controller.state.brokers[other].fenced:
                    controller.beat(other, wants_shutdown=other == node_id)
            shutdown_began(controller.state, controller.planner.sessions, node_id)
        assert controller.planner.answer(node_id).should_shutdown, node_id
    controller.join(1, incarnation="second", clean=True)
    controller.shows(leader=-1, isr=(), elr=(2, 3))
    controller.join(2, 3, incarnation="second", clean=True)
    controller.shows(leader=2, isr=(2,), elr=(3,))


# ---- ablations: what happens without the rules above -------------------------------------------------------


def test_ablation_without_the_clean_mark_a_lossy_replica_leads(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registrations, "_changes_after_restart", lambda *_: [])
    controller.topic(**SAFE)
    controller.lose(1)
    controller.lose(2)
    controller.lose(3)
    controller.join(3, incarnation="second")
    controller.shows(leader=3, isr=(3,), elr=(2,))


def test_ablation_without_broker_epochs_an_earlier_life_enters_the_isr(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isr_changes, "_change_error", lambda *_: None)
    monkeypatch.setattr(partition_changes, "_membership_error", lambda *_: ErrorCode.NONE)
    controller.topic()
    controller.lose(3)
    assert alter(controller, 1, (1, 2, 3), isr_broker_epochs=(-1, -1, 99)) == ErrorCode.NONE
    assert 3 in controller.partition().isr
    assert controller.state.brokers[3].fenced


def test_ablation_a_broker_stops_before_the_others_know_the_new_leaders(
    controller: PlannerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlled_shutdown, "_may_stop", lambda *_: True)
    controller.topic(**SAFE)
    controller.beat(1, wants_shutdown=True)
    controller.beat(1, wants_shutdown=True)
    assert controller.planner.answer(1).should_shutdown
    assert controller.planner.sessions.by_id[2].applied_index < controller.state.index


def test_ablation_a_paused_controller_fences_every_broker(controller: PlannerCluster) -> None:
    controller.now += 60.0
    controller.planner.sessions._last_tick = controller.now
    assert controller.planner.tick(controller.now).reason == "fence brokers: session expired"
