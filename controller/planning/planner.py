"""The planner of the active controller: turns requests, heartbeats and time into plans for the metadata log.

Deterministic: no clock, no I/O, no randomness; the caller passes times and ids.  The planner never changes
the cluster state; a plan does, when its commands are committed and applied.  It makes plans on the state that
the commands in flight lead to (`service/pipeline.py`), and its answers to brokers on the applied state.

What it keeps itself, in memory, for one leadership:
* `sessions`: what the brokers have said (`brokers/sessions.py`).  Heartbeats, registrations, ISR changes,
  `fence` and `tick` change it.  The next controller gives every broker a whole session.
* `_repaired_index`: the entry at which `tick` last looked whether partitions need a repair.  The next
  controller looks at its first tick.
* `_rebalance_at`: when `tick` next returns leaderships to their preferred replicas.

How long a session may be is replicated, because controllers may have different settings and each must wait
for the sessions that another one granted (docs/semantics.md M8).

A broker is unfenced only after it has applied the metadata up to its own registration (docs/semantics.md M5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ...proto import controller_pb2 as rpc
from ...proto import metadata_pb2 as pb
from ...security.delegation_tokens import TokenSettings
from ...security.first_users import FirstUser
from ...security.quotas import QuotaWindow
from ...wire.errors import ErrorCode, KafkaError
from ..state.broker_fields import decode_replicas, encode_replicas
from ..state.cluster_state import ClusterState
from ..state.model import PRODUCER_ID_BLOCK, SESSIONS_LEVEL, BrokerState, metadata_level
from ..state.resource_settings import GROUP_LIMITS, GroupLimits
from ..state.security_commands import scram_record
from ..state.topic_defaults import missing_defaults
from .brokers.controlled_shutdown import plan_shutdown
from .brokers.registration import broker_with_epoch
from .brokers.sessions import BrokerSessions
from .delegation_tokens import plan_ended_tokens
from .partitions.elections import Loss, Wanted, able, change_operations, needed_changes, preferred_leader
from .partitions.moves import advanced, moving
from .pinned_cuts import plan_expired_cuts
from .plan import Plan


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
    cut_retention_ms_max: int = 604_800_000


@dataclass(slots=True, frozen=True)
class HeartbeatAnswer:
    fenced: bool
    caught_up: bool
    should_shutdown: bool
    not_reached_by: tuple[int, ...] = ()


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

    # ---- heartbeats ----------------------------------------------------------------------------------------

    def extend_session(self, request: rpc.HeartbeatRequest, now: float) -> None:
        """Raises as `broker_with_epoch` does, by the applied state, so the error needs not wait."""
        broker = broker_with_epoch(self._applied, request.node_id, request.broker_epoch)
        self.sessions.extend(broker, request.applied_index, now)

    def plan_heartbeat(self, request: rpc.HeartbeatRequest) -> Plan:
        """After `extend_session`: what the heartbeat asks for or makes possible."""
        broker = broker_with_epoch(self._state, request.node_id, request.broker_epoch)
        session = self.sessions.by_id[broker.node_id]
        if request.number and request.number < session.heartbeat_number:
            return Plan()  # a later heartbeat came first: this one is out of date
        session.heartbeat_number = request.number
        session.pins = {each.pin_id: each.lost for each in request.pins}
        session.pins_index = request.applied_index
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
            return plan_shutdown(self._state, self._applied, self.sessions, broker)
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
            changes = self._needed_changes(present, Loss(broker.node_id, damaged=counted_on))
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

    def _plan_unfence(self, broker: BrokerState) -> Plan:
        plan = Plan(reason="unfence broker")
        unfence = pb.UnfenceBroker(node_id=broker.node_id, broker_epoch=broker.broker_epoch)
        plan.operations.append(pb.Operation(unfence_broker=unfence))
        plan.operations += change_operations(
            self._needed_changes(self._state.active_node_ids() | {broker.node_id})
        )
        return plan

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

    def _needed_changes(self, present: set[int], loss: Loss | None = None) -> list[Wanted]:
        return needed_changes(self._state, present, self.sessions.reachability.is_reached, loss)

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
            changes = self._needed_changes(self._state.active_node_ids())
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

    def end_pins(self, steady_ms: int) -> Plan:
        return plan_expired_cuts(self._state, steady_ms)

    def _steps_of_moves(self) -> list[Wanted]:
        present = self._state.active_node_ids()
        steps = (
            advanced(t, n, partition, able(self._state, t, n, present))
            for t, n, partition in moving(self._state)
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
        plan.operations += change_operations(
            self._needed_changes(self._state.active_node_ids() - set(node_ids))
        )
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
                    found, number, partition, able(self._state, found, number, present), reached
                )
                if change is not None:
                    wanted.append(change)
        share = self._config.leader_imbalance_percentage
        returning = [each for each in wanted if 100 * elsewhere[each.leader] > share * preferred[each.leader]]
        return Plan(
            list(change_operations(returning[: self._config.rebalanced_at_once_max])), "preferred leaders"
        )

    def producer_ids(self, request: rpc.AllocateProducerIdsRequest) -> Plan:
        broker_with_epoch(self._state, request.node_id, request.broker_epoch)
        allocate = pb.AllocateProducerIds(
            node_id=request.node_id, broker_epoch=request.broker_epoch, count=PRODUCER_ID_BLOCK
        )
        return Plan([pb.Operation(allocate_producer_ids=allocate)], "producer ids")


def _session_timeout(session_timeout_ms: int) -> pb.Operation:
    return pb.Operation(set_session_timeout=pb.SetSessionTimeout(session_timeout_ms=session_timeout_ms))
