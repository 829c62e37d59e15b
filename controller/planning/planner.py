"""The planner of the active controller: turns requests, heartbeats and time into plans for the metadata log.

Deterministic: no clock, no I/O, no randomness; the caller passes times and ids.  The planner never changes
the cluster state; a plan does, when its commands are committed and applied.  It makes plans on the state that
the commands in flight lead to (`service/pipeline.py`), and its answers to brokers on the applied state.

What it keeps itself, in memory, for one leadership:
* `sessions`: what the brokers have said (`sessions.py`).  Heartbeats, registrations, ISR changes, `fence` and
  `tick` change it.  The next controller gives every broker a whole session.
* `_repaired_index`: the entry at which `tick` last looked whether partitions need a repair.  The next
  controller looks at its first tick.
* `_rebalance_at`: when `tick` next returns leaderships to their preferred replicas.

How long a session may be is replicated, because controllers may have different settings and each must wait
for the sessions that another one granted (docs/semantics.md M8).

Orders that must hold
* docs/semantics.md M5: fence, remove from every ISR, and only then a new broker epoch: one plan, in this
  order.
* A broker is unfenced only after it has applied the metadata log up to its own registration.
* Controlled shutdown: the broker gets nothing new, then its leaderships move, then all other active brokers
  apply that entry, and only then the broker may stop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...runtime.host_names import host_problem
from ...security.delegation_tokens import TokenSettings
from ...security.first_users import FirstUser
from ...security.quotas import QuotaWindow
from ...wire.errors import ErrorCode, KafkaError
from ..state.broker_fields import checked_listeners, decode_replicas, encode_listeners, encode_replicas
from ..state.cluster_state import ClusterState
from ..state.eligibility import Eligibility, isr_eligibility
from ..state.features import level_problem, ranges_of, require_level
from ..state.model import (
    LISTENERS_LEVEL,
    MOVES_LEVEL,
    NO_BROKER_EPOCH,
    NO_LEADER,
    PRODUCER_ID_BLOCK,
    SESSIONS_LEVEL,
    BrokerState,
    PartitionState,
    TopicState,
    metadata_level,
)
from ..state.resource_settings import GROUP_LIMITS, GroupLimits
from ..state.security_commands import scram_record
from ..state.topic_defaults import missing_defaults
from .delegation_tokens import plan_ended_tokens
from .elections import (
    Settler,
    Wanted,
    change_operations,
    eligible_leaders,
    forget_disk,
    preferred_leader,
)
from .moves import advanced, moving
from .plan import Plan
from .sessions import BrokerSessions

REPLICAS_SHOWN_MAX = 5


@dataclass(slots=True, frozen=True)
class ControllerConfig:
    """Timings, defaults and limits of the active controller."""

    session_timeout_ms: int = 6000
    tick_interval_ms: int = 250
    leader_rebalance: bool = True
    leader_rebalance_interval_ms: int = 30_000
    leader_imbalance_percentage: int = 10
    default_partitions: int = 1
    default_replication_factor: int = 1
    min_insync_replicas: int = 1
    partitions_per_request_max: int = 10_000
    rebalanced_at_once_max: int = 1000
    group_limits: GroupLimits = field(default_factory=lambda: GROUP_LIMITS)
    first_users: tuple[FirstUser, ...] = ()
    """The cluster has them from its beginning."""
    mutation_window: QuotaWindow = field(default_factory=QuotaWindow)
    tokens: TokenSettings = field(default_factory=TokenSettings)


@dataclass(slots=True, frozen=True)
class HeartbeatAnswer:
    fenced: bool
    caught_up: bool
    should_shutdown: bool
    not_reached_by: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class Loss:
    """The records that one broker has lost: of the topics for which `of_topic` holds, of `damaged` partitions
    (topic id, number), or `of_disk`: all, so that it is no last known leader either."""

    node_id: int
    of_topic: Callable[[TopicState], bool] = lambda _topic: False
    damaged: frozenset[tuple[bytes, int]] = frozenset()
    of_disk: bool = False


class IsrPlan(NamedTuple):
    """The plan of the valid ISR changes, and one error a change (NONE: planned, or already so)."""

    plan: Plan
    errors: list[ErrorCode]

    @property
    def reason(self) -> str:
        return self.plan.reason

    def commands(self, controller_epoch: int) -> Iterator[pb.Command]:
        return self.plan.commands(controller_epoch)


class ControllerPlanner:
    """The planner of one leadership; a new leadership gets a new one."""

    def __init__(
        self,
        state: ClusterState,
        config: ControllerConfig,
        now: float,
        ahead: Callable[[], ClusterState] | None = None,
    ) -> None:
        """`state` is the applied state; `ahead()` the state that the commands in flight lead to (by default
        the same)."""
        self._applied = state
        self._ahead = ahead or (lambda: state)
        self._config = config
        self.sessions = BrokerSessions(state.brokers.values(), now)
        self._repaired_index = -1
        self._rebalance_at = now + config.leader_rebalance_interval_ms / 1000
        self._tokens_looked_at = float("-inf")

    @property
    def _state(self) -> ClusterState:
        return self._ahead()

    # ---- begin of a term -----------------------------------------------------------------------------------

    def begin_term(self, node_id: int, cluster_id: str, metadata_id: str, features: dict[str, int]) -> Plan:
        """Records the controller of this term; the first controller also gives the cluster its ids and
        feature levels."""
        plan = Plan(reason="begin term")
        if not self._state.cluster_id:
            levels = [pb.Feature(name=name, level=features[name]) for name in sorted(features)]
            bootstrap = pb.Bootstrap(cluster_id=cluster_id, metadata_id=metadata_id, features=levels)
            plan.operations.append(pb.Operation(bootstrap=bootstrap))
            users = self._config.first_users
            if users:
                records = [scram_record(each.name, each.mechanism, each.credential) for each in users]
                change = pb.ChangeScramCredentials(set=records)
                plan.operations.append(pb.Operation(change_scram_credentials=change))
        plan.operations.append(pb.Operation(become_controller=pb.BecomeController(node_id=node_id)))
        levels_now = self._state.features if self._state.cluster_id else features
        plan.operations += missing_defaults(
            levels_now, self._state.node_configs, self._config.min_insync_replicas
        )
        if metadata_level(levels_now) >= SESSIONS_LEVEL:
            plan.operations += self._longer_sessions()
        return plan

    # ---- the session timeout -------------------------------------------------------------------------------

    @property
    def session_timeout_ms(self) -> int:
        """The session that this controller grants: its own setting, but no more than is committed."""
        own_ms = self._config.session_timeout_ms
        return min(own_ms, self._applied.session_timeout_ms or own_ms)

    def _longer_sessions(self) -> list[pb.Operation]:
        own_ms = self._config.session_timeout_ms
        return [_session_timeout(own_ms)] if own_ms > self._state.session_timeout_ms else []

    def _agree_on_sessions(self, now: float) -> Plan:
        """A longer timeout is committed before this controller grants it; a shorter one only when every
        session that an earlier controller granted is over."""
        if metadata_level(self._state.features) < SESSIONS_LEVEL:
            return Plan()
        operations, agreed_ms = self._longer_sessions(), self._state.session_timeout_ms
        if self._config.session_timeout_ms < agreed_ms and now - self.sessions.began_at > agreed_ms / 1000:
            operations = [_session_timeout(self._config.session_timeout_ms)]
        return Plan(operations, "session timeout")

    # ---- registration --------------------------------------------------------------------------------------

    def _changes(self, present: set[int], loss: Loss | None = None) -> list[Wanted]:
        """The changes of all partitions that cannot stay as they are when only `present` brokers serve, and
        one broker has lost records."""
        found: list[Wanted] = []
        loss = loss or Loss(NO_LEADER)
        some_offline = any(broker.offline_replicas for broker in self._state.brokers.values())
        for name in sorted(self._state.topics):
            topic = self._state.topics[name]
            topic_lost, topic_id = loss.of_topic(topic), topic.topic_id.bytes
            settler = Settler(topic, self.sessions.reachability.is_reached)
            for number, partition in topic.partitions.items():
                is_damaged = bool(loss.damaged) and (topic_id, number) in loss.damaged
                lost = (loss.node_id,) if topic_lost or is_damaged else ()
                able = self.able(topic, number, present) if some_offline else present
                if not lost and not loss.of_disk and partition.isr and able.issuperset(partition.isr):
                    continue
                wanted = settler.settle(number, partition, able, lost)
                if loss.of_disk or is_damaged:
                    wanted = forget_disk(wanted, topic, number, partition, loss.node_id)
                if wanted is not None:
                    found.append(wanted)
        return found

    def register(self, request: rpc.RegisterBrokerRequest) -> Plan:
        """No operation for a retry of this incarnation.  Raises KafkaError for one that must not join."""
        self._check_registration(request)
        existing = self._state.brokers.get(request.node_id)
        plan = Plan(reason="register broker")
        if existing is not None and existing.incarnation == request.incarnation:
            return plan
        if existing is not None:
            if not existing.fenced:
                fence = pb.FenceBroker(node_id=existing.node_id, broker_epoch=existing.broker_epoch)
                plan.operations.append(pb.Operation(fence_broker=fence))
            plan.operations += change_operations(self._changes_after_restart(existing, request))
        present_epoch = NO_BROKER_EPOCH if existing is None else existing.broker_epoch
        registration = pb.RegisterBroker(
            node_id=request.node_id,
            incarnation=request.incarnation,
            rack=request.rack,
            kafka=pb.Endpoint(host=request.kafka_host, port=request.kafka_port),
            grpc=pb.Endpoint(host=request.grpc_host, port=request.grpc_port),
            directory_id=request.directory_id,
            supported_features=[
                pb.Feature(name=feature.name, level=feature.max_level)
                for feature in sorted(request.supported_features, key=lambda feature: feature.name)
            ],
            expected_broker_epoch=present_epoch,
            offline_replicas=encode_replicas(decode_replicas(request.offline_replicas), pb.PartitionsOfTopic),
        )
        if metadata_level(self._state.features) >= LISTENERS_LEVEL:
            registration.listeners.extend(encode_listeners(checked_listeners(request.listeners)))
        plan.operations.append(pb.Operation(register_broker=registration))
        return plan

    def _check_registration(self, request: rpc.RegisterBrokerRequest) -> None:
        if request.node_id < 0 or not request.incarnation:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a registration needs a node id of at least 0 and an incarnation"
            )
        for host, port in ((request.kafka_host, request.kafka_port), (request.grpc_host, request.grpc_port)):
            problem = host_problem(host)
            if problem is not None or not 0 <= port <= 65535:
                message = f"broker {request.node_id} cannot be reached: {problem or f'{port} is no port'}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        try:
            checked_listeners(request.listeners)
        except ValueError as error:
            message = f"clients cannot reach broker {request.node_id}: {error}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message) from error
        if request.cluster_id and request.cluster_id != self._state.cluster_id:
            message = (
                f"broker {request.node_id} belongs to cluster {request.cluster_id}, this is "
                f"{self._state.cluster_id}"
            )
            raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
        known = ranges_of(request.supported_features)
        problem = level_problem(f"broker {request.node_id}", known, self._state.features)
        if problem is not None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, problem)

    def _changes_after_restart(
        self, existing: BrokerState, request: rpc.RegisterBrokerRequest
    ) -> list[Wanted]:
        """The broker epoch in the clean mark proves a clean shutdown.  Without that proof, unflushed records
        may be lost; a topic that is flushed before it is acknowledged has lost nothing if the disk is proved
        to be the same."""
        clean = request.clean_shutdown_broker_epoch == existing.broker_epoch
        same_disk = bool(request.directory_id) and request.directory_id == existing.directory_id
        replaced = bool(existing.directory_id) and bool(request.directory_id) and not same_disk

        def of_topic(topic: TopicState) -> bool:
            return replaced or (not clean and not (same_disk and topic.flushed_before_acknowledged))

        present = self._state.active_node_ids() - {existing.node_id}
        damaged = decode_replicas(request.damaged_replicas)
        return self._changes(present, Loss(existing.node_id, of_topic, damaged, of_disk=replaced))

    def unregister(self, node_id: int) -> Plan:
        """Removes the registration of a broker that will not come back.  Raises KafkaError while it is alive
        or holds replicas."""
        broker = self._state.brokers.get(node_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered"
            )
        require_level(self._state.features, MOVES_LEVEL)
        if not broker.fenced:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"broker {node_id} is alive: stop it first")
        held = self._state.replicas_of(node_id, REPLICAS_SHOWN_MAX + 1)
        if held:
            shown = ", ".join(f"{topic}-{number}" for topic, number in held[:REPLICAS_SHOWN_MAX])
            more = " and more" if len(held) > REPLICAS_SHOWN_MAX else ""
            message = (
                f"broker {node_id} is a replica of {shown}{more}: move them first (`tidegate partitions "
                "reassign`)"
            )
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
        removal = pb.UnregisterBroker(node_id=node_id, broker_epoch=broker.broker_epoch)
        return Plan([pb.Operation(unregister_broker=removal)], "unregister broker")

    def broker_with_epoch(self, node_id: int, broker_epoch: int) -> BrokerState:
        """Raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH; NOT_CONTROLLER when this controller does not
        have the registration.

        Such a controller was deposed and does not know it yet: a broker that got STALE_BROKER_EPOCH from it
        would stop itself.
        """
        return self._with_epoch(self._state, node_id, broker_epoch)

    @staticmethod
    def _with_epoch(state: ClusterState, node_id: int, broker_epoch: int) -> BrokerState:
        if broker_epoch > state.index:
            message = (
                f"broker {node_id} registered at entry {broker_epoch}, and this controller has only "
                f"{state.index}"
            )
            raise KafkaError(ErrorCode.NOT_CONTROLLER, message)
        broker = state.brokers.get(node_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
        if broker.broker_epoch != broker_epoch:
            message = f"broker {node_id} is registered with epoch {broker.broker_epoch}, not {broker_epoch}"
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, message)
        return broker

    # ---- heartbeats ----------------------------------------------------------------------------------------

    def extend_session(self, request: rpc.HeartbeatRequest, now: float) -> None:
        """Raises as `broker_with_epoch` does, by the applied state, so the error needs not wait."""
        broker = self._with_epoch(self._applied, request.node_id, request.broker_epoch)
        self.sessions.extend(broker, request.applied_index, now)

    def plan_heartbeat(self, request: rpc.HeartbeatRequest) -> Plan:
        """After `extend_session`: what the heartbeat asks for or makes possible."""
        broker = self.broker_with_epoch(request.node_id, request.broker_epoch)
        session = self.sessions.by_id[broker.node_id]
        if request.number and request.number < session.heartbeat_number:
            return Plan()  # a later heartbeat came first: this one is out of date
        session.heartbeat_number = request.number
        reached_by = [(life.node_id, life.broker_epoch) for life in request.reached_by.lives]
        self.sessions.reachability.report(
            broker.node_id, broker.broker_epoch, reached_by if request.HasField("reached_by") else None
        )
        plan = self._plan_offline(
            broker, decode_replicas(request.offline_replicas), decode_replicas(request.damaged_replicas)
        )
        if plan.operations:
            return plan
        if request.wants_shutdown:
            return self._plan_shutdown(broker)
        if broker.shutting_down:
            return Plan()
        if request.wants_fence:
            return Plan() if broker.fenced else self.fence([broker.node_id], "the broker asked for it")
        if broker.fenced and session.applied_index >= broker.broker_epoch:
            return self._plan_unfence(broker)
        return Plan()

    def _plan_offline(
        self,
        broker: BrokerState,
        offline: frozenset[tuple[bytes, int]],
        damaged: frozenset[tuple[bytes, int]],
    ) -> Plan:
        """Records the offline replicas; the repair of the next tick elects other leaders.  Damaged replicas
        leave ISR, ELR and last known leader in this very plan: the broker waits for that before it makes the
        replica anew."""
        plan = Plan(reason="replicas went offline or came back")
        if offline != broker.offline_replicas:
            said = pb.SetOfflineReplicas(
                node_id=broker.node_id,
                broker_epoch=broker.broker_epoch,
                replicas=encode_replicas(offline, pb.PartitionsOfTopic),
            )
            plan.operations.append(pb.Operation(set_offline_replicas=said))
        counted_on = frozenset(key for key in damaged if self._is_counted_on(broker.node_id, key))
        if counted_on:
            present = self._state.active_node_ids() - {broker.node_id}
            changes = self._changes(present, Loss(broker.node_id, damaged=counted_on))
            relevant = [each for each in changes if (each.topic.topic_id.bytes, each.partition) in counted_on]
            plan.operations += change_operations(relevant)
        return plan

    def _is_counted_on(self, node_id: int, key: tuple[bytes, int]) -> bool:
        topic = self._state.topic_by_raw_id(key[0])
        partition = None if topic is None else topic.partitions.get(key[1])
        return partition is not None and (
            node_id in partition.isr
            or node_id in partition.elr
            or node_id in (partition.leader, partition.last_known_leader)
        )

    def able(self, topic: TopicState, number: int, present: set[int]) -> set[int]:
        """The brokers of `present` whose replica of this partition is not offline."""
        offline = self._state.offline_nodes(topic.topic_id, number)
        return present - offline if offline else present

    def _plan_unfence(self, broker: BrokerState) -> Plan:
        plan = Plan(reason="unfence broker")
        unfence = pb.UnfenceBroker(node_id=broker.node_id, broker_epoch=broker.broker_epoch)
        plan.operations.append(pb.Operation(unfence_broker=unfence))
        plan.operations += change_operations(self._changes(self._state.active_node_ids() | {broker.node_id}))
        return plan

    def _plan_shutdown(self, broker: BrokerState) -> Plan:
        plan = Plan(reason="controlled shutdown")
        if not broker.shutting_down:
            begin = pb.BeginControlledShutdown(node_id=broker.node_id, broker_epoch=broker.broker_epoch)
            plan.operations.append(pb.Operation(begin_controlled_shutdown=begin))
            plan.operations += change_operations(
                self._changes(self._state.active_node_ids() - {broker.node_id})
            )
        elif not broker.fenced and self._may_stop(broker):
            fence = pb.FenceBroker(node_id=broker.node_id, broker_epoch=broker.broker_epoch)
            plan.operations.append(pb.Operation(fence_broker=fence))
        return plan

    def shutdown_began(self, node_id: int) -> None:
        """The plan of a controlled shutdown is applied: a broker that has applied this index knows the new
        leaders."""
        session, broker = self.sessions.by_id.get(node_id), self._applied.brokers.get(node_id)
        if (
            session is not None
            and session.shutdown_index == 0
            and broker is not None
            and broker.shutting_down
        ):
            session.shutdown_index = self._applied.index

    def _may_stop(self, broker: BrokerState) -> bool:
        sessions = self.sessions.by_id
        session, applied = sessions.get(broker.node_id), self._applied.brokers.get(broker.node_id)
        if session is None or applied is None or not applied.shutting_down:
            return False
        if session.shutdown_index == 0:  # the shutdown began under an earlier controller
            session.shutdown_index = self._applied.index
        others = [sessions[node_id] for node_id in self._state.active_node_ids() if node_id in sessions]
        if any(other.applied_index < session.shutdown_index for other in others):
            return False
        return not any(
            broker.node_id in partition.isr
            for topic in self._state.topics.values()
            for partition in topic.partitions.values()
        )

    def answer(self, node_id: int) -> HeartbeatAnswer:
        """The answer to the heartbeat, by the applied state."""
        broker = self._applied.brokers.get(node_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} was forgotten meanwhile")
        session = self.sessions.by_id.get(node_id)
        caught_up = session is not None and session.applied_index >= broker.broker_epoch
        active = [each.node_id for each in self._applied.brokers.values() if each.active]
        not_reached_by = tuple(self.sessions.reachability.missing(node_id, active))
        return HeartbeatAnswer(
            broker.fenced, caught_up, broker.shutting_down and broker.fenced, not_reached_by
        )

    # ---- time ----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> Plan:
        """Called every `tick_interval_ms`.  One plan fences the brokers with expired sessions and elects
        leaders for their partitions; else one finishes what an earlier plan left; else leaderships return to
        their preferred replicas."""
        timeout_s = max(self._config.session_timeout_ms, self._state.session_timeout_ms) / 1000
        self.sessions.forgive_own_absence(now, self._config.tick_interval_ms / 1000)
        expired = self.sessions.expired(self._state.brokers.values(), timeout_s, now)
        if expired:
            return self.fence(expired, "session expired")
        if self._state.session_timeout_ms != self._config.session_timeout_ms:
            plan = self._agree_on_sessions(now)
            if plan.operations:
                return plan
        if self._state.index != self._repaired_index:
            self._repaired_index = self._state.index
            changes = self._changes(self._state.active_node_ids())
            if changes:
                return Plan(list(change_operations(changes)), "repair")
            steps = self._steps_of_moves()
            if steps:
                return Plan(list(change_operations(steps)), "moves of partitions go on")
        if self._config.leader_rebalance and now >= self._rebalance_at:
            self._rebalance_at = now + self._config.leader_rebalance_interval_ms / 1000
            return self.rebalance()
        return Plan()

    def end_tokens(self, now: float, wall_ms: int) -> Plan:
        """Removes delegation tokens that have ended, every `delegation.token.expiry.check.interval.ms`."""
        if now < self._tokens_looked_at + self._config.tokens.check_interval_ms / 1000:
            return Plan()
        self._tokens_looked_at = now
        return plan_ended_tokens(self._state, wall_ms)

    def _steps_of_moves(self) -> list[Wanted]:
        present = self._state.active_node_ids()
        steps = (
            advanced(t, n, partition, self.able(t, n, present)) for t, n, partition in moving(self._state)
        )
        return [step for step in steps if step is not None]

    def fence(self, node_ids: list[int], reason: str) -> Plan:
        """Fences these brokers and elects other leaders, in one plan (`FenceBroker`; producers are fenced
        elsewhere)."""
        plan = Plan(reason=f"fence brokers: {reason}")
        for node_id in node_ids:
            broker = self._state.brokers[node_id]
            fence = pb.FenceBroker(node_id=node_id, broker_epoch=broker.broker_epoch)
            plan.operations.append(pb.Operation(fence_broker=fence))
            self.sessions.fencing_planned(node_id)
        plan.operations += change_operations(self._changes(self._state.active_node_ids() - set(node_ids)))
        return plan

    def rebalance(self) -> Plan:
        """Moves leaderships back to preferred replicas, for every broker that lacks more than the allowed
        share of its own."""
        present = self._state.active_node_ids()
        reached = self.sessions.reachability.is_reached
        preferred: Counter[int] = Counter()
        elsewhere: Counter[int] = Counter()
        wanted: list[Wanted] = []
        for name in sorted(self._state.topics):
            found = self._state.topics[name]
            for number, partition in found.partitions.items():
                preferred[partition.preferred_leader] += 1
                elsewhere[partition.preferred_leader] += partition.leader != partition.preferred_leader
                change = preferred_leader(
                    found, number, partition, self.able(found, number, present), reached
                )
                if change is not None:
                    wanted.append(change)
        share = self._config.leader_imbalance_percentage
        returning = [each for each in wanted if 100 * elsewhere[each.leader] > share * preferred[each.leader]]
        return Plan(
            list(change_operations(returning[: self._config.rebalanced_at_once_max])), "preferred leaders"
        )

    # ---- in-sync replicas ----------------------------------------------------------------------------------

    def alter_partitions(self, request: rpc.AlterPartitionsRequest) -> IsrPlan:
        """ISR changes that leaders ask for.

        Raises REQUEST_TIMED_OUT for an attempt that is older than the last: after INELIGIBLE_REPLICA a leader
        no longer counts that replica, so the controller must not accept an earlier copy of the change later
        (rule M12).
        """
        broker = self.broker_with_epoch(request.node_id, request.broker_epoch)
        if not self.sessions.is_newest_isr_attempt(broker, request.attempt):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"attempt {request.attempt} came after a later one")
        wanted, errors = [], []
        for change in request.changes:
            topic = self._state.topic_by_raw_id(change.topic_id)
            partition = None if topic is None else topic.partitions.get(change.partition)
            if topic is None or partition is None:
                errors.append(
                    ErrorCode.UNKNOWN_TOPIC_ID if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                continue
            error = self._isr_change_error(request.node_id, change, topic, partition)
            errors.append(ErrorCode.NONE if error is None else error)
            if error is not None or _already_so(change, partition):
                continue
            isr = tuple(change.isr)
            elr = eligible_leaders(topic, partition, isr)
            epochs = tuple(change.isr_broker_epochs)
            wanted.append(
                Wanted(
                    topic, change.partition, partition, partition.leader, isr, elr, partition.leader, epochs
                )
            )
        return IsrPlan(Plan(list(change_operations(wanted)), "alter partitions"), errors)

    def _isr_change_error(
        self, node_id: int, change: rpc.IsrChange, topic: TopicState, partition: PartitionState
    ) -> ErrorCode | None:
        if change.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if change.leader_epoch > partition.leader_epoch or partition.leader != node_id:
            return ErrorCode.INVALID_REQUEST
        if _already_so(change, partition):
            return None
        if change.partition_epoch != partition.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        isr = tuple(change.isr)
        if node_id not in isr or len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas):
            return ErrorCode.INVALID_REQUEST
        if change.isr_broker_epochs and len(change.isr_broker_epochs) != len(isr):
            return ErrorCode.INVALID_REQUEST
        epochs = change.isr_broker_epochs or [NO_BROKER_EPOCH] * len(isr)
        replica = (topic.topic_id.bytes, change.partition)
        for member, epoch in zip(isr, epochs, strict=True):
            broker, joins = self._state.brokers.get(member), member not in partition.isr
            if isr_eligibility(broker, epoch, joins=joins, replica=replica) is not Eligibility.YES:
                return ErrorCode.INELIGIBLE_REPLICA
        return None

    def producer_ids(self, request: rpc.AllocateProducerIdsRequest) -> Plan:
        self.broker_with_epoch(request.node_id, request.broker_epoch)
        allocate = pb.AllocateProducerIds(
            node_id=request.node_id, broker_epoch=request.broker_epoch, count=PRODUCER_ID_BLOCK
        )
        return Plan([pb.Operation(allocate_producer_ids=allocate)], "producer ids")


def _session_timeout(session_timeout_ms: int) -> pb.Operation:
    return pb.Operation(set_session_timeout=pb.SetSessionTimeout(session_timeout_ms=session_timeout_ms))


def _already_so(change: rpc.IsrChange, partition: PartitionState) -> bool:
    """Whether the partition already is as the change asks: a retry whose first attempt succeeded, or no
    change at all."""
    same = tuple(change.isr) == partition.isr and change.leader_epoch == partition.leader_epoch
    return same and change.partition_epoch in (partition.partition_epoch, partition.partition_epoch - 1)
