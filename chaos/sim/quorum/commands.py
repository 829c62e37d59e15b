"""Commands of every kind, right and wrong ones: `apply` must make the same of each of them on every voter, at
every level of the metadata, whether the state came from the log or from a snapshot.

Most of them are what the active controller would plan on the state that a member has, which may be old; the
others have fields drawn from what there is, what there was, and what never was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar
from uuid import NAMESPACE_OID, uuid5

from ....controller.planning.brokers.registration import plan_registration, plan_unregistration
from ....controller.planning.feature_updates import plan_update
from ....controller.planning.partitions.isr_changes import plan_isr_changes
from ....controller.planning.partitions.reassignments import plan_reassignments
from ....controller.planning.partitions.requested_elections import plan_elections
from ....controller.planning.pinned_cuts import plan_expired_cuts, plan_pinned_cut
from ....controller.planning.plan import Plan
from ....controller.planning.planner import ControllerConfig, ControllerPlanner
from ....controller.planning.security import plan_security
from ....controller.planning.settings.node_settings import plan_node_configuration
from ....controller.planning.settings.resource_configs import plan_resource_configuration
from ....controller.planning.topics import (
    plan_configuration,
    plan_creation,
    plan_deletion,
    plan_enlargement,
)
from ....controller.state.broker_settings import CATCH_UP_SETTING, CLEANER_SETTING
from ....controller.state.cluster_state import ClusterState
from ....controller.state.features import SUPPORTED, as_messages
from ....controller.state.model import (
    ALL_NODES,
    FORMER_LEVEL_MAX,
    FORMER_METADATA_VERSION,
    METADATA_VERSION,
    NO_BROKER_EPOCH,
    NO_LEADER,
    SUPPORTED_FEATURES,
    TRANSACTION_STATE_TOPIC,
    metadata_level,
    name_of_metadata_level,
)
from ....controller.state.resource_settings import GROUP_LIMITS, ResourceType
from ....proto import controller_pb2 as rpc
from ....proto import metadata_pb2 as pb
from ....runtime.connections.listeners import SecurityProtocol
from ....security.acls import AclOperation, PatternType, PermissionType
from ....security.acls import ResourceType as ResourceKind
from ....security.quotas import QuotaKind
from ....wire.errors import KafkaError

_T = TypeVar("_T")
BROKERS = (1, 2, 3, 4)
TOPICS = ("orders", "a.b", "a_b", TRANSACTION_STATE_TOPIC, "")
TOPIC_CONFIGS = {
    "min.insync.replicas": ("1", "2", "3", "x", ""),
    "unclean.leader.election.enable": ("true", "false", "?"),
    "flush.policy": ("os", "always"),
}
KINDS = tuple(field.name for field in pb.Operation.DESCRIPTOR.oneofs_by_name["kind"].fields)
OPERATIONS_MAX = 3
PLANNED = 0.75
PLANS_MAX = 5  # drawn until a command changes something
ACTIVE_MIN = 2
TOPICS_MAX = 5
PRINCIPALS = ("User:a", "User:b")
CUT_RETENTION_MS_MAX = 1000
CONFIG = ControllerConfig(leader_imbalance_percentage=0)

LISTENERS = ("CLIENTS", "EXTERNAL", "PLAINTEXT")


class Commands:
    """Draws commands; the state that it looks at is only read."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def draw(self, state: ClusterState, term: int) -> pb.Command:
        """Without a proposer.  Fenced by the given term, by another one, or not at all."""
        random = self._random
        epoch = random.choice((0, term)) if random.random() < 0.9 else max(0, term + random.choice((-1, 1)))
        operations: list[pb.Operation] = []
        if random.random() < PLANNED:
            operations = next((plan for _ in range(PLANS_MAX) if (plan := self._planned(state))), [])
        if not operations:
            operations = [self._any(state) for _ in range(random.choice((1, 1, 1, 2, OPERATIONS_MAX)))]
        return pb.Command(controller_epoch=epoch, operations=operations)

    # ---- as the controller plans ---------------------------------------------------------------------------

    def _planned(self, state: ClusterState) -> list[pb.Operation]:
        planner = ControllerPlanner(state, CONFIG, 0.0)
        plans: tuple[Callable[[ClusterState, ControllerPlanner], list[pb.Operation]], ...] = (
            self._new_term, self._registration, self._heartbeat, self._silence, self._isr, self._isr,
            self._creation,
            self._creation, self._deletion, self._enlargement, self._configuration, self._settings,
            self._move, self._move,
            self._election, self._forgetting, self._level, self._resources, self._security, self._pin,
        )  # fmt: skip
        if not state.cluster_id:
            plans = (self._new_term,)
        elif len(state.unfenced_brokers()) < ACTIVE_MIN:
            plans = (self._registration, self._heartbeat, self._heartbeat)
        try:
            return self._random.choice(plans)(state, planner)
        # a setting that no plan would have let in cannot be read by the next one
        except (KafkaError, ValueError):
            return []

    def _new_term(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        level = self._random.randint(1, SUPPORTED_FEATURES[METADATA_VERSION])
        return planner.begin_term(
            self._node(), "simulated", "first", {name_of_metadata_level(level): level}
        ).operations

    def _registration(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        """Every field of the request is filled now and then (`tests/controller/test_field_levels.py`)."""
        node_id = self._node()
        known = state.brokers.get(node_id)
        request = rpc.RegisterBrokerRequest(
            node_id=node_id,
            incarnation=self._random.choice("rrrrst"),
            cluster_id=state.cluster_id,
            rack="simulated",
            kafka_host="simulated",
            kafka_port=9092,
            grpc_host="simulated",
            grpc_port=9093,
            directory_id=self._random.choice(("", "disk", "other")),
            clean_shutdown_broker_epoch=NO_BROKER_EPOCH
            if known is None
            else known.broker_epoch - self._random.randrange(2),
            supported_features=as_messages(SUPPORTED),
            offline_replicas=self._replicas(state),
            listeners=[
                rpc.ListenerEndpoint(
                    name=name,
                    host="simulated",
                    port=self._random.randrange(3),
                    security_protocol=len(name) % 4,
                )
                for name in self._random.sample(
                    ("CLIENTS", "EXTERNAL", "PLAINTEXT"), self._random.randrange(3)
                )
            ],
        )
        request.damaged_replicas.extend(request.offline_replicas[1:])
        return plan_registration(state, planner.sessions, request).operations

    def _heartbeat(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        """Every field of the request is filled now and then, too."""
        node_id = self._node()
        known = state.brokers.get(node_id)
        lives = [
            rpc.ReachedBy.Life(node_id=each.node_id, broker_epoch=each.broker_epoch)
            for each in state.unfenced_brokers()
        ]
        request = rpc.HeartbeatRequest(
            node_id=node_id,
            broker_epoch=0 if known is None else known.broker_epoch,
            applied_index=state.index,
            wants_shutdown=self._random.random() < 0.2,
            wants_fence=self._random.random() < 0.1,
            offline_replicas=self._replicas(state) if self._random.random() < 0.2 else (),
            number=state.index,
            reached_by=rpc.ReachedBy(lives=lives),
            pins=[rpc.PinReport(pin_id="p", lost="all")],
        )
        request.damaged_replicas.extend(request.offline_replicas[1:])
        planner.extend_session(request, 0.0)
        return planner.plan_heartbeat(request).operations

    def _silence(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        alive = [broker.node_id for broker in state.unfenced_brokers()]
        if alive and self._random.random() < 0.4:
            return planner.fence([self._random.choice(alive)], "silent").operations
        return planner.tick(0.0).operations or planner.rebalance().operations

    def _isr(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        changes, leaders = [], []
        for topic in state.topics.values():
            for number, partition in topic.partitions.items():
                if partition.leader == NO_LEADER:
                    continue
                isr = {partition.leader, *self._some(partition.replicas)}
                leaders.append(partition.leader)
                changes.append(
                    rpc.IsrChange(
                        topic_id=topic.topic_id.bytes,
                        partition=number,
                        leader_epoch=partition.leader_epoch,
                        partition_epoch=partition.partition_epoch,
                        isr=[each for each in partition.replicas if each in isr],
                    )
                )
        if not changes:
            return []
        node_id = self._random.choice(leaders)
        epoch = state.brokers[node_id].broker_epoch if node_id in state.brokers else 0
        request = rpc.AlterPartitionsRequest(node_id=node_id, broker_epoch=epoch, changes=changes)
        return plan_isr_changes(state, planner.sessions, request).plan.operations

    def _creation(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        if len(state.topics) >= TOPICS_MAX:
            return []
        factor, partitions = self._random.randint(1, 3), self._random.randint(1, 3)
        topic = rpc.NewTopic(name=self._name(), partitions=partitions, replication_factor=factor)
        request = rpc.CreateTopicsRequest(
            request_id=rpc.RequestId(client_id=str(self._random.random())), topics=[topic]
        )
        request.allow_internal = True
        return plan_creation(
            state, CONFIG, request, lambda: uuid5(NAMESPACE_OID, request.request_id.client_id)
        ).operations

    def _deletion(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        return plan_deletion(
            state, rpc.DeleteTopicsRequest(names=[self._name()]), applied_before=False
        ).operations

    def _enlargement(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        wanted = [rpc.PartitionsToCreate(name=self._name(), total=self._random.randint(1, 4))]
        return plan_enlargement(
            state, CONFIG, rpc.CreatePartitionsRequest(topics=wanted), applied_before=False
        ).operations

    def _configuration(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        change = rpc.ConfigChange(
            name=self._name(), set={"min.insync.replicas": str(self._random.randint(1, 3))}
        )
        return plan_configuration(state, rpc.AlterConfigsRequest(topics=[change])).operations

    def _settings(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        settings = {self._random.choice((CATCH_UP_SETTING, CLEANER_SETTING)): str(self._random.randrange(3))}
        name = self._random.choice(("", str(self._node())))
        change = rpc.ConfigChange(name=name, set=settings, replace_all=self._random.random() < 0.3)
        return plan_node_configuration(state, rpc.AlterConfigsRequest(nodes=[change])).operations

    def _resources(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        change = rpc.ConfigChange(
            name=self._name(), set={"consumer.session.timeout.ms": str(45_000 + self._random.randrange(3))}
        )
        if self._random.random() < 0.3:
            change = rpc.ConfigChange(name=self._name(), replace_all=True)
        wanted = rpc.ResourceChange(resource_type=ResourceType.GROUP, change=change)
        return plan_resource_configuration(
            state, GROUP_LIMITS, rpc.AlterConfigsRequest(resources=[wanted])
        ).operations

    def _move(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        replicas, cancel = self._some(BROKERS), self._random.random() < 0.2
        wanted = rpc.Reassignment(
            topic=self._name(), partition=self._random.randrange(3), replicas=replicas, cancel=cancel
        )
        return plan_reassignments(state, rpc.ReassignPartitionsRequest(partitions=[wanted])).plan.operations

    def _election(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        request = rpc.ElectLeadersRequest(every_partition=True, unclean=self._random.random() < 0.5)
        return plan_elections(state, request).plan.operations

    def _forgetting(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        return plan_unregistration(state, self._node()).operations

    def _level(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        update = rpc.FeatureUpdate(name=METADATA_VERSION, level=metadata_level(state.features) + 1)
        plan: Plan = plan_update(state, rpc.UpdateFeaturesRequest(updates=[update]), {1: SUPPORTED})
        return plan.operations

    def _security(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        principal = self._random.choice(PRINCIPALS)
        acl = pb.AclRecord(
            resource_type=ResourceKind.TOPIC, pattern_type=PatternType.LITERAL, name="orders",
            principal=principal, host="*", operation=AclOperation.READ, permission=PermissionType.ALLOW,
        )  # fmt: skip
        quota = rpc.QuotaAlteration(
            entity=[pb.QuotaEntityPart(type="user", name=principal)],
            set={QuotaKind.FETCH.value: float(self._random.randint(1, 9))},
        )
        every = rpc.AclFilter(
            resource_type=ResourceKind.ANY, pattern_type=PatternType.ANY,
            operation=AclOperation.ANY, permission=PermissionType.ANY,
        )  # fmt: skip
        request = self._random.choice(
            (
                rpc.ChangeSecurityRequest(create_acls=[acl], quotas=[quota]),
                rpc.ChangeSecurityRequest(delete_acls=[every], quotas=[quota]),
            )
        )
        return plan_security(state, request, applied_before=False).operations

    def _pin(self, state: ClusterState, planner: ControllerPlanner) -> list[pb.Operation]:
        random = self._random
        if random.random() < 0.2:
            return plan_expired_cuts(state, random.choice((0, 2 * CUT_RETENTION_MS_MAX))).operations
        request = rpc.ChangePinnedCutRequest(retention_ms=random.choice((1, CUT_RETENTION_MS_MAX)))
        known = random.choice((*(each.pin_id for each in state.pinned_cuts.values()), "none"))
        match random.choice(("pin", "confirm", "unpin")):
            case "pin":
                request.pin.CopyFrom(self._cut(state))
            case "confirm":
                request.confirm = known
            case _:
                request.unpin = known
        now_ms = random.randrange(9)
        for node_id in state.brokers:  # all of them have reported in their heartbeats
            session = planner.sessions.by_id[node_id]
            session.pins[known], session.pins_index = "", state.index
        return plan_pinned_cut(
            state, planner.sessions, request, CUT_RETENTION_MS_MAX, now_ms, applied_before=False
        ).operations

    def _cut(self, state: ClusterState) -> pb.PinnedCutRecord:
        random = self._random
        record = pb.PinnedCutRecord(name=self._name(), pin_id=str(random.random()), cut_id="cut")
        for topic in state.topics.values():
            place = record.topics.add(topic_id=topic.topic_id.bytes, name=topic.name)
            for number in topic.partitions:
                open_one = pb.UndecidedRecord(producer_id=1, first_offset=random.randrange(9))
                place.partitions.add(partition=number, start=3, end=9, undecided=[open_one])
        return record

    # ---- as no controller plans ----------------------------------------------------------------------------

    def _any(self, state: ClusterState) -> pb.Operation:
        """One operation of any kind; rarely none at all, as of a newer version."""
        random = self._random
        if random.random() < 0.02:
            return pb.Operation()
        kind = random.choice(KINDS)
        message = getattr(pb.Operation(), kind).__class__()
        self._fill(state, message)
        return pb.Operation(**{kind: message})

    def _fill(self, state: ClusterState, message: object) -> None:
        """Every field by its name; nested messages likewise."""
        for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]
            repeated = field.is_repeated
            if field.message_type is not None:
                place = getattr(message, field.name)
                for each in [place.add() for _ in range(self._random.randrange(3))] if repeated else [place]:
                    self._fill(state, each)
            elif repeated:
                getattr(message, field.name).extend(self._several(state, field.name))
            else:
                setattr(message, field.name, self._one(state, field))

    def _several(self, state: ClusterState, name: str) -> list[object]:
        match name:
            case "isr_broker_epochs":
                return [NO_BROKER_EPOCH] * self._random.randrange(3)
            case "remove":
                return list(self._some((*TOPIC_CONFIGS, CATCH_UP_SETTING)))
            case "renewers":
                return list(self._some(PRINCIPALS))
            case "partitions":
                return [self._random.randrange(3) for _ in range(self._random.randrange(3))]
            case _:
                return list(self._some((*BROKERS, 9) if self._random.random() < 0.2 else BROKERS))

    def _one(self, state: ClusterState, field: object) -> object:
        random, name = self._random, field.name  # type: ignore[attr-defined]
        match name:
            case "node_id":
                return random.choice((*BROKERS, *BROKERS, 9, ALL_NODES))
            case "resource_type":
                return random.choice((*ResourceType, 7))
            case "leader" | "last_known_leader":
                return random.choice((*BROKERS, NO_LEADER))
            case "broker_epoch" | "expected_broker_epoch":
                epochs = [broker.broker_epoch for broker in state.brokers.values()]
                return random.choice((*epochs, NO_BROKER_EPOCH, state.index + 1))
            case "topic_id":
                ids = [topic.topic_id.bytes for topic in state.topics.values()]
                return random.choice((*ids, *ids, random.randbytes(16), b"short"))
            case "name":
                return random.choice((METADATA_VERSION, FORMER_METADATA_VERSION, *TOPICS))
            case "key":
                return random.choice((*TOPIC_CONFIGS, CATCH_UP_SETTING))
            case "value":
                return random.choice(("1", "2", "true", "compact", "", "x"))
            case "level":
                return random.randint(0, FORMER_LEVEL_MAX)  # known under either name
            case "expected_level":
                return random.choice((metadata_level(state.features), 0))
            case "session_timeout_ms":
                return random.choice((1, 2000, 6000, 0, -1))
            case "count":
                return random.choice((1, 7, 0, -1, 2**31 - 1))
            case "partition" | "expected_partitions":
                return random.randrange(4)
            case "expected_partition_epoch":
                epochs = [
                    each.partition_epoch
                    for topic in state.topics.values()
                    for each in topic.partitions.values()
                ]
                return random.choice((*epochs, 0))
            case "bump_leader_epoch":
                return random.random() < 0.3
            case "port":
                return random.choice((0, 9092))
            case "security_protocol":
                return random.choice((*SecurityProtocol, 9))
            case "principal" | "owner" | "requester":
                return random.choice((*PRINCIPALS, *PRINCIPALS, "a"))
            case "pattern_type":
                return random.choice((*PatternType, 9))
            case "operation":
                return random.choice((*AclOperation, 99))
            case "permission":
                return random.choice((*PermissionType, 9))
            case "mechanism":
                return random.choice((1, 1, 2, 7))
            case "salt" | "stored_key" | "server_key":
                return bytes(random.choice((32, 32, 32, 64, 0)))
            case "iterations":
                return random.choice((4096, 4096, 0))
            case "limit":
                return random.choice((0.5, 2.0, 1e9, 0.0, float("nan")))
            case "kind":
                return random.choice((*(each.value for each in QuotaKind), "x"))
            case "type":
                return random.choice(("user", "user", "client-id", "ip", "x"))
            case "is_default":
                return random.random() < 0.3
            case "issued_at_ms" | "expires_at_ms" | "ends_at_ms" | "taken_ms" | "pinned_ms":
                return random.choice((0, 1, 1_000_000))
            case "is_confirmed":
                return random.random() < 0.5
            case "start" | "end" | "first_offset":
                return random.randrange(-1, 5)
            case "producer_id":
                return random.randrange(3)
            case "pin_id":
                return random.choice((*(each.pin_id for each in state.pinned_cuts.values()), "p", "q", ""))
            case _:
                return random.choice(("", "r", "s", "t"))

    # ---- draws ---------------------------------------------------------------------------------------------

    def _node(self) -> int:
        return self._random.choice(BROKERS)

    def _name(self) -> str:
        return self._random.choice(TOPICS)

    def _some(self, values: Sequence[_T]) -> tuple[_T, ...]:
        return tuple(self._random.sample(values, self._random.randint(0, min(3, len(values)))))

    def _replicas(self, state: ClusterState) -> list[rpc.ReplicasOfTopic]:
        ids = [topic.topic_id.bytes for topic in state.topics.values()]
        return [
            rpc.ReplicasOfTopic(topic_id=each, partitions=[self._random.randrange(2)])
            for each in self._some(ids)
        ]
