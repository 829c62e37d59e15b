"""The controller's gRPC service: turns requests into plans, plans into log entries, and their outcomes into
replies.

How a request goes: `_in_one_step` makes its plan and proposes the plan's commands in one step of the event
loop, on the state that earlier plans lead to (`pipeline.py`); then the answer waits until these commands, and
all commands before them, are committed.  `_commit` is both, for a plan whose commands stand or fall together.
CreateTopics takes these steps for one slice of its topics after the other.  After every `await` the term may
be another one: each step asks for the planner of the present term again.

`_answers` makes a reply of an error: its status.  A controller that is not active names the active one there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import grpc

from ...proto import controller_pb2 as rpc
from ...proto import controller_pb2_grpc
from ...proto import metadata_pb2 as pb
from ...runtime import logs
from ...runtime.clock import until_next
from ...security.delegation_tokens import TokensByHmac
from ...security.quotas import ClientQuotas, QuotaKind
from ...wire.errors import ErrorCode, KafkaError
from ..planning import topics
from ..planning.brokers.controlled_shutdown import shutdown_began
from ..planning.brokers.registration import plan_registration, plan_unregistration
from ..planning.delegation_tokens import TokenPlan, plan_delegation_token
from ..planning.feature_updates import plan_update
from ..planning.partitions.isr_changes import plan_isr_changes
from ..planning.partitions.partition_plan import PartitionPlan
from ..planning.partitions.reassignments import plan_reassignments
from ..planning.partitions.requested_elections import plan_elections
from ..planning.pinned_cuts import PinPlan, plan_pinned_cut
from ..planning.plan import Plan
from ..planning.planner import ControllerConfig, ControllerPlanner
from ..planning.security import SecurityPlan, plan_security
from ..planning.settings.node_settings import plan_node_configuration
from ..planning.settings.resource_configs import plan_resource_configuration
from ..raft.contract import Contact, FollowerView
from ..state.features import SUPPORTED, Ranges, as_messages, ranges_of, shown
from ..state.model import ApplyResult
from ..state.pinned_cuts import encode_cut, with_pin_id
from .metadata_log import MetadataLog, NotController
from .pipeline import PlanPipeline, Proposed

if TYPE_CHECKING:
    from ...runtime.clock import Clock
    from ..state.cluster_state import ClusterState

log = logs.get(__name__)

ENTRIES_PER_UPDATE_MAX = 1000
UPDATE_BYTES_MAX = 1 << 20
SNAPSHOT_CHUNK_BYTES = 1 << 20
KEEP_ALIVE_S_MIN = 0.5
KEEP_ALIVE_S_MAX = 1.0
FOLLOWERS_MAX = 1024
BARRIER_S = 5.0

_Arguments = ParamSpec("_Arguments")
_Reply = TypeVar("_Reply")
AskVoter = Callable[[int], Awaitable[rpc.DescribeQuorumReply]]


def keep_alive_s(session_timeout_s: float) -> float:
    """How often a follower of the metadata gets a keep-alive: three times before it tries another controller
    (`node/lifecycle/broker_lifecycle.py`)."""
    return max(KEEP_ALIVE_S_MIN, min(KEEP_ALIVE_S_MAX, session_timeout_s / 6))


class Planned(Protocol):
    """A `Plan`, or one with the answers of its parts (`PartitionPlan`, `IsrPlan`, `TopicPlans`)."""

    @property
    def reason(self) -> str: ...

    def commands(self, controller_epoch: int) -> Iterable[pb.Command]: ...


_Planned = TypeVar("_Planned", bound=Planned)
_Call = Callable[Concatenate["ControllerService", _Arguments], Coroutine[Any, Any, _Reply]]


def _answers(
    make: Callable[..., _Reply], *, waits_at_entry: bool
) -> Callable[[_Call[_Arguments, _Reply]], _Call[_Arguments, _Reply]]:
    """A call of the active controller: an error becomes a reply of the type `make` with its status.
    `waits_at_entry`: the call begins once few enough commands are in flight.  CreateTopics waits before each
    of its slices instead; no command in flight may delay the others that do not wait."""

    def decorate(call: _Call[_Arguments, _Reply]) -> _Call[_Arguments, _Reply]:
        @wraps(call)
        async def answer(
            service: ControllerService, /, *arguments: _Arguments.args, **named: _Arguments.kwargs
        ) -> _Reply:
            try:
                service.require_planner()
                if waits_at_entry:
                    await service._pipeline.wait_for_space()
                return await call(service, *arguments, **named)
            except KafkaError as error:
                return make(status=service._status(error))

        return answer

    return decorate


class ControllerService(controller_pb2_grpc.ControllerServicer):
    """Answers for one node of the quorum."""

    def __init__(
        self, metadata: MetadataLog, config: ControllerConfig, clock: Clock, ask_voter: AskVoter | None = None
    ) -> None:
        """`ask_voter(node_id)` sends DescribeQuorum to another voter of the quorum."""
        self._log = metadata
        self._config = config
        self._clock = clock
        self._ask_voter = ask_voter
        self._planner: ControllerPlanner | None = None
        self._pipeline = PlanPipeline(metadata, -1)
        self._mutations = ClientQuotas(mutation_window=config.mutation_window)
        self._tokens = TokensByHmac(config.tokens.secret)
        self._followers = 0
        self._contacts: dict[int, Contact] = {}  # of brokers, by their heartbeats in this leadership
        self._stopped = asyncio.Event()
        self._keep_alive_s = keep_alive_s(config.session_timeout_ms / 1000)

    # ---- leadership (driven by ControllerLeadership) -------------------------------------------------------

    def begin(self, planner: ControllerPlanner, pipeline: PlanPipeline) -> None:
        self._planner, self._pipeline, self._contacts = planner, pipeline, {}

    def end(self) -> None:
        self._planner = None
        self._pipeline.close()

    def stop(self) -> None:
        """Ends the streams of followers."""
        self._stopped.set()

    def require_planner(self) -> ControllerPlanner:
        """The planner of the present leadership; `end` removes it.  Raises NotController."""
        if self._planner is None or not self._log.is_active:
            raise NotController(self._log.leader_id)
        return self._planner

    @property
    def _ahead(self) -> ClusterState:
        """The state on which plans are made: applied entries and commands in flight."""
        return self._pipeline.state

    # ---- plans and replies ---------------------------------------------------------------------------------

    async def outcome(self, planned: Planned, proposed: Sequence[Proposed]) -> ApplyResult | None:
        """The result of the last command, or of the first rejected one; None without commands.  Raises
        NotController, ProposalUnknown."""
        result = None
        for each in proposed:
            result = await self._pipeline.outcome(each)
            if result.error != ErrorCode.NONE:
                log.warning(
                    "plan_refused", reason=planned.reason, error=result.error.name, message=result.message
                )
                break
        return result

    async def _commit(
        self, make: Callable[[ControllerPlanner], _Planned], *, idle_waits: bool = True
    ) -> tuple[_Planned, ApplyResult | None]:
        """Plans, proposes, waits for the outcome.  Raises KafkaError, also for a command that was rejected
        when it was applied."""

        def plan_and_propose(planner: ControllerPlanner) -> tuple[_Planned, list[Proposed]]:
            planned = make(planner)
            commands = list(planned.commands(self._pipeline.term))
            if commands:
                log.debug("plan", reason=planned.reason, commands=len(commands))
                self._pipeline.require_space()
            return planned, self._pipeline.propose_in_order(commands)

        planned, proposed = await self._in_one_step(plan_and_propose, idle_waits=idle_waits)
        result = await self.outcome(planned, proposed)
        self._require(result)
        return planned, result

    async def _in_one_step(
        self,
        plan_and_propose: Callable[[ControllerPlanner], tuple[_Planned, list[Proposed]]],
        *,
        idle_waits: bool = True,
    ) -> tuple[_Planned, list[Proposed]]:
        """Runs `plan_and_propose` as the active controller.  A result without a command rests on the commands
        in flight, so this returns or raises only when they are committed.  `idle_waits` off: it returns at
        once, for callers that do not answer with the result."""
        planner, pipeline = self.require_planner(), self._pipeline
        rests_on = pipeline.newest
        try:
            planned, proposed = plan_and_propose(planner)
        except KafkaError as error:
            # an error that says nothing of the state
            if error.code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                await pipeline.wait_committed(rests_on)
            raise
        if not proposed and idle_waits:
            await pipeline.wait_committed(rests_on)
        return planned, proposed

    @staticmethod
    def _require(result: ApplyResult | None) -> None:
        if result is not None and result.error != ErrorCode.NONE:
            raise KafkaError(result.error, result.message)

    def _status(self, error: KafkaError | None = None) -> rpc.Status:
        code, message = (ErrorCode.NONE, "") if error is None else (error.code, error.message)
        epoch = 0 if self._planner is None else self._pipeline.term
        return rpc.Status(
            error=int(code),
            message=message,
            controller_id_plus_one=self._log.leader_id + 1,
            controller_epoch=epoch,
        )

    # ---- brokers -------------------------------------------------------------------------------------------

    @_answers(rpc.RegisterBrokerReply, waits_at_entry=False)
    async def RegisterBroker(
        self, request: rpc.RegisterBrokerRequest, context: Any
    ) -> rpc.RegisterBrokerReply:
        plan, _ = await self._commit(
            lambda planner: plan_registration(self._ahead, planner.sessions, request)
        )
        broker = self._log.state.brokers.get(request.node_id)
        if broker is None or broker.incarnation != request.incarnation:
            message = f"broker {request.node_id} was registered by another process meanwhile"
            raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
        planner = self.require_planner()
        planner.sessions.registered(broker, self._clock.monotonic())
        if plan.operations:
            log.info(
                "broker_registered",
                node=broker.node_id,
                broker_epoch=broker.broker_epoch,
                kafka=broker.kafka,
            )
        return rpc.RegisterBrokerReply(
            status=self._status(),
            broker_epoch=broker.broker_epoch,
            cluster_id=self._log.state.cluster_id,
            session_timeout_ms=planner.session_timeout_ms,
            metadata_id=self._log.state.metadata_id,
        )

    @_answers(rpc.HeartbeatReply, waits_at_entry=False)
    async def Heartbeat(self, request: rpc.HeartbeatRequest, context: Any) -> rpc.HeartbeatReply:
        """Most heartbeats change nothing and wait for no command in flight; that of a broker that is being
        fenced waits."""
        planner = self.require_planner()
        planner.extend_session(request, self._clock.monotonic())
        contact = self._contacts.setdefault(request.node_id, Contact())
        contact.answered(self._clock.monotonic(), request.applied_index, self._log.applied_index)
        being_fenced = planner.sessions.is_being_fenced(request.node_id)
        plan, _ = await self._commit(lambda planner: planner.plan_heartbeat(request), idle_waits=being_fenced)
        planner = self.require_planner()
        if being_fenced:
            planner.sessions.fencing_settled(request.node_id)
        if plan.operations:
            log.info("broker_changed", node=request.node_id, change=plan.reason)
            if request.wants_shutdown:
                shutdown_began(self._log.state, planner.sessions, request.node_id)
        answer = planner.answer(request.node_id)
        return rpc.HeartbeatReply(
            status=self._status(),
            fenced=answer.fenced,
            should_shutdown=answer.should_shutdown,
            caught_up=answer.caught_up,
            metadata_index=self._log.applied_index,
            not_reached_by=answer.not_reached_by,
            session_timeout_ms=planner.session_timeout_ms,
        )

    def _require_same_term(self, controller_epoch: int) -> None:
        """Rejects an ISR change of another term.  After INELIGIBLE_REPLICA a leader no longer counts that
        replica, so this controller must not accept a late copy of the change that was sent in an earlier term
        (docs/semantics.md M12)."""
        if controller_epoch > self._pipeline.term:
            raise NotController
        if 0 < controller_epoch < self._pipeline.term:
            message = (
                f"asked of the controller of term {controller_epoch}; this is term {self._pipeline.term}"
            )
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message)

    @_answers(rpc.AlterPartitionsReply, waits_at_entry=False)
    async def AlterPartitions(
        self, request: rpc.AlterPartitionsRequest, context: Any
    ) -> rpc.AlterPartitionsReply:
        self._require_same_term(request.controller_epoch)
        changes, _ = await self._commit(
            lambda planner: plan_isr_changes(self._ahead, planner.sessions, request)
        )
        views = []
        for change, error in zip(request.changes, changes.errors, strict=True):
            views.append(self._partition_view(change, error))
        return rpc.AlterPartitionsReply(
            status=self._status(), partitions=views, metadata_index=self._log.applied_index
        )

    def _partition_view(self, change: rpc.IsrChange, error: ErrorCode) -> rpc.PartitionView:
        """The partition as it is now.  A change that was planned but lost its race shows as
        INVALID_UPDATE_VERSION."""
        view = rpc.PartitionView(topic_id=change.topic_id, partition=change.partition, error=int(error))
        topic = self._log.state.topic_by_raw_id(change.topic_id)
        partition = None if topic is None else topic.partitions.get(change.partition)
        if partition is None:
            view.error = int(error if error != ErrorCode.NONE else ErrorCode.UNKNOWN_TOPIC_ID)
            return view
        if error == ErrorCode.NONE and (
            partition.isr != tuple(change.isr) or partition.leader_epoch != change.leader_epoch
        ):
            view.error = int(ErrorCode.INVALID_UPDATE_VERSION)
        view.leader, view.leader_epoch, view.partition_epoch = (
            partition.leader,
            partition.leader_epoch,
            partition.partition_epoch,
        )
        view.isr.extend(partition.isr)
        view.elr.extend(partition.elr)
        return view

    @_answers(rpc.ReadBarrierReply, waits_at_entry=True)
    async def ReadBarrier(self, request: rpc.ReadBarrierRequest, context: Any) -> rpc.ReadBarrierReply:
        index = await self._log.barrier(BARRIER_S)
        return rpc.ReadBarrierReply(status=self._status(), metadata_index=index)

    @_answers(rpc.AllocateProducerIdsReply, waits_at_entry=False)
    async def AllocateProducerIds(
        self, request: rpc.AllocateProducerIdsRequest, context: Any
    ) -> rpc.AllocateProducerIdsReply:
        plan, result = await self._commit(lambda planner: planner.producer_ids(request))
        assert result is not None
        assert isinstance(result.value, int)
        count = plan.operations[0].allocate_producer_ids.count
        return rpc.AllocateProducerIdsReply(status=self._status(), first_id=result.value, count=count)

    @_answers(rpc.ElectLeadersReply, waits_at_entry=True)
    async def ElectLeaders(self, request: rpc.ElectLeadersRequest, context: Any) -> rpc.ElectLeadersReply:
        def plan(planner: ControllerPlanner) -> PartitionPlan:
            return plan_elections(
                self._ahead,
                request,
                applied_before=self._applied_before(request.request_id),
                reached=planner.sessions.reachability.is_reached,
            )

        elections, _ = await self._commit(plan)
        results, index = elections.outcome(self._log.state), self._log.applied_index
        return rpc.ElectLeadersReply(status=self._status(), results=results, metadata_index=index)

    @_answers(rpc.ReassignPartitionsReply, waits_at_entry=True)
    async def ReassignPartitions(
        self, request: rpc.ReassignPartitionsRequest, context: Any
    ) -> rpc.ReassignPartitionsReply:
        def plan(planner: ControllerPlanner) -> PartitionPlan:
            return plan_reassignments(
                self._ahead, request, applied_before=self._applied_before(request.request_id)
            )

        moves, _ = await self._commit(plan)
        results, index = moves.outcome(self._log.state), self._log.applied_index
        log.info("partitions_reassigned", asked=len(request.partitions), changed=len(moves.wanted))
        return rpc.ReassignPartitionsReply(status=self._status(), results=results, metadata_index=index)

    # ---- the cluster ---------------------------------------------------------------------------------------

    @_answers(rpc.UnregisterBrokerReply, waits_at_entry=True)
    async def UnregisterBroker(
        self, request: rpc.UnregisterBrokerRequest, context: Any
    ) -> rpc.UnregisterBrokerReply:
        def plan(planner: ControllerPlanner) -> Plan:
            if self._applied_before(request.request_id):  # by now another broker may have the id
                return Plan()
            found = plan_unregistration(self._ahead, request.node_id)
            found.request_id = request.request_id
            return found

        planned, _ = await self._commit(plan)
        if request.node_id not in self._log.state.brokers:
            self.require_planner().sessions.unregistered(request.node_id)
        if planned.operations:
            log.info("broker_unregistered", node=request.node_id)
        return rpc.UnregisterBrokerReply(status=self._status(), metadata_index=self._log.applied_index)

    @_answers(rpc.UpdateFeaturesReply, waits_at_entry=False)
    async def UpdateFeatures(
        self, request: rpc.UpdateFeaturesRequest, context: Any
    ) -> rpc.UpdateFeaturesReply:
        # The voters are asked before planning: a voter that does not answer must not delay other plans.
        voters = await self._voters_features()
        await self._pipeline.wait_for_space()

        def plan(planner: ControllerPlanner) -> Plan:
            before, least = self._applied_before(request.request_id), self._config.min_insync_replicas
            return plan_update(self._ahead, request, voters, applied_before=before, min_insync_replicas=least)

        planned, _ = await self._commit(plan)
        if planned.operations:
            log.info("features_updated", levels=shown(self._log.state.features))
        return rpc.UpdateFeaturesReply(status=self._status(), metadata_index=self._log.applied_index)

    async def _voters_features(self) -> dict[int, Ranges | None]:
        """The feature ranges of every voter, asked now: a voter may have run another version when it last
        answered."""

        async def ask(node_id: int) -> Ranges | None:
            if node_id == self._log.node_id:
                return SUPPORTED
            if self._ask_voter is None:
                return None
            try:
                return ranges_of((await self._ask_voter(node_id)).supported_features)
            except (grpc.aio.AioRpcError, OSError) as error:
                log.warning("voter_not_asked", voter=node_id, error=repr(error))
                return None

        voters = sorted(self._log.voters)
        return dict(zip(voters, await asyncio.gather(*(ask(voter) for voter in voters)), strict=True))

    @_answers(rpc.ChangeSecurityReply, waits_at_entry=True)
    async def ChangeSecurity(
        self, request: rpc.ChangeSecurityRequest, context: Any
    ) -> rpc.ChangeSecurityReply:
        def plan(_: ControllerPlanner) -> SecurityPlan:
            before = self._applied_before(request.request_id)
            return plan_security(self._ahead, request, applied_before=before)

        planned, _ = await self._commit(plan)
        if planned.operations:
            log.info("security_changed", change=planned.reason)
        index = self._log.applied_index
        return rpc.ChangeSecurityReply(status=self._status(), results=planned.results, metadata_index=index)

    @_answers(rpc.ChangeDelegationTokenReply, waits_at_entry=True)
    async def ChangeDelegationToken(
        self, request: rpc.ChangeDelegationTokenRequest, context: Any
    ) -> rpc.ChangeDelegationTokenReply:
        def plan(_: ControllerPlanner) -> TokenPlan:
            ahead = self._ahead
            return plan_delegation_token(
                ahead,
                request,
                self._config.tokens,
                lambda wanted: self._tokens.find(ahead.security.tokens, wanted),
                self._clock.wall_ms(),
                applied_before=self._applied_before(request.request_id),
            )

        planned, _ = await self._commit(plan)
        log.info("delegation_token_changed", change=request.WhichOneof("kind"), token=planned.token.token_id)
        index = self._log.applied_index
        return rpc.ChangeDelegationTokenReply(
            status=self._status(), token=planned.token, metadata_index=index
        )

    @_answers(rpc.ChangePinnedCutReply, waits_at_entry=True)
    async def ChangePinnedCut(
        self, request: rpc.ChangePinnedCutRequest, context: Any
    ) -> rpc.ChangePinnedCutReply:
        def plan(planner: ControllerPlanner) -> PinPlan:
            return plan_pinned_cut(
                self._ahead,
                planner.sessions,
                request,
                self._config.cut_retention_ms_max,
                self._clock.steady_ms(),
                applied_before=self._applied_before(request.request_id),
            )

        planned, _ = await self._commit(plan)
        if planned.operations:
            log.info("pinned_cut_changed", change=planned.reason, pin=planned.pin_id)
        found = with_pin_id(self._log.state.pinned_cuts, planned.pin_id)
        return rpc.ChangePinnedCutReply(
            status=self._status(),
            pin=None if found is None else encode_cut(found),
            metadata_index=self._log.applied_index,
        )

    @_answers(rpc.ChargeMutationsReply, waits_at_entry=False)
    async def ChargeMutations(
        self, request: rpc.ChargeMutationsRequest, context: Any
    ) -> rpc.ChargeMutationsReply:
        self._mutations.set_limits(self._log.state.security.quotas)
        now_s = self._clock.monotonic()
        client, kind = (request.user, request.client_id), QuotaKind.CONTROLLER_MUTATION
        admitted = 0
        for partitions in request.partitions:
            if request.is_strict and not self._mutations.admits_mutation(*client, now_s):
                break
            self._mutations.charge(kind, *client, partitions, now_s)
            admitted += 1
        pause_s = self._mutations.debt_s(kind, *client, now_s)
        return rpc.ChargeMutationsReply(status=self._status(), admitted=admitted, pause_s=pause_s)

    # ---- topics --------------------------------------------------------------------------------------------

    @_answers(rpc.CreateTopicsReply, waits_at_entry=False)
    async def CreateTopics(self, request: rpc.CreateTopicsRequest, context: Any) -> rpc.CreateTopicsReply:
        """In slices, with one command a topic: other plans run between the slices."""
        if not request.request_id.client_id:  # so that its slices are one request
            request.request_id.client_id = str(self._clock.uuid())
        done = topics.TopicPlans()

        def plan_slice(planner: ControllerPlanner) -> tuple[topics.TopicPlans, list[Proposed]]:
            part = topics.plan_creation(self._ahead, self._config, request, self._clock.uuid, done)
            commands = part.commands_one_a_topic(self._pipeline.term)
            return part, [self._pipeline.propose(command) for command in commands]

        while len(done.topics) < len(request.topics):
            await self._pipeline.wait_for_space()
            part, proposed = await self._in_one_step(plan_slice)
            for plan, each in zip(part.changing, proposed, strict=True):
                result = await self._pipeline.outcome(each)
                if result.error != ErrorCode.NONE:
                    plan.refuse(result.error, result.message)
            done.topics += part.topics
            done.partitions += part.partitions
        index = self._log.applied_index
        return rpc.CreateTopicsReply(status=self._status(), topics=done.results, metadata_index=index)

    @_answers(rpc.DeleteTopicsReply, waits_at_entry=True)
    async def DeleteTopics(self, request: rpc.DeleteTopicsRequest, context: Any) -> rpc.DeleteTopicsReply:
        def plan(planner: ControllerPlanner) -> topics.TopicPlans:
            before = self._applied_before(request.request_id)
            return topics.plan_deletion(self._ahead, request, applied_before=before)

        plans, _ = await self._commit(plan)
        index = self._log.applied_index
        return rpc.DeleteTopicsReply(status=self._status(), topics=plans.results, metadata_index=index)

    @_answers(rpc.CreatePartitionsReply, waits_at_entry=True)
    async def CreatePartitions(
        self, request: rpc.CreatePartitionsRequest, context: Any
    ) -> rpc.CreatePartitionsReply:
        def plan(planner: ControllerPlanner) -> topics.TopicPlans:
            before = self._applied_before(request.request_id)
            return topics.plan_enlargement(self._ahead, self._config, request, applied_before=before)

        plans, _ = await self._commit(plan)
        index = self._log.applied_index
        return rpc.CreatePartitionsReply(status=self._status(), topics=plans.results, metadata_index=index)

    @_answers(rpc.AlterConfigsReply, waits_at_entry=True)
    async def AlterConfigs(self, request: rpc.AlterConfigsRequest, context: Any) -> rpc.AlterConfigsReply:
        def plan(planner: ControllerPlanner) -> topics.TopicPlans:
            plans = topics.plan_configuration(self._ahead, request)
            plans.topics += plan_node_configuration(self._ahead, request).topics
            plans.topics += plan_resource_configuration(
                self._ahead, self._config.group_limits, request
            ).topics
            if self._applied_before(request.request_id):
                for each in plans.topics:
                    each.operation = None
            else:
                plans.recorded = not request.validate_only and any(
                    each.result.error == 0 for each in plans.topics
                )
            return plans

        plans, _ = await self._commit(plan)
        index = self._log.applied_index
        return rpc.AlterConfigsReply(status=self._status(), topics=plans.results, metadata_index=index)

    def _applied_before(self, request_id: rpc.RequestId) -> bool:
        """Whether this request was applied before.  Raises KafkaError when it was rejected then, or is too
        old to be known."""
        if not request_id.client_id:
            return False
        outcome = self._ahead.was_applied(request_id.client_id, request_id.sequence)
        self._require(outcome)
        return outcome is not None

    # ---- the metadata stream -------------------------------------------------------------------------------

    async def FollowMetadata(
        self, request: rpc.FollowMetadataRequest, context: Any
    ) -> AsyncGenerator[rpc.MetadataUpdate, None]:
        """Committed entries in order; a keep-alive when there are none; ends with a status when this node is
        not active."""
        if self._followers >= FOLLOWERS_MAX:
            error = KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{FOLLOWERS_MAX} followers are served already"
            )
            yield rpc.MetadataUpdate(status=self._status(error))
            return
        self._followers += 1
        try:
            index = request.applied_index
            while not self._stopped.is_set():
                if not self._log.is_active:
                    yield rpc.MetadataUpdate(status=self._status(NotController(self._log.leader_id)))
                    return
                if index > self._log.applied_index:
                    message = (
                        f"the follower has entry {index}, this quorum only {self._log.applied_index}: "
                        "another cluster?"
                    )
                    yield rpc.MetadataUpdate(
                        status=self._status(KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message))
                    )
                    return
                entries = self._log.entries_after(index, ENTRIES_PER_UPDATE_MAX, UPDATE_BYTES_MAX)
                if entries is None:
                    index, term, data = await self._log.encoded_snapshot()
                    for update in self._snapshot_updates(index, term, data):
                        yield update
                    continue
                update = self._update()
                for entry in entries:
                    update.entries.add(index=entry.index, term=entry.term, command=entry.command)
                    index = entry.index
                yield update
                await self._log.wait_applied(index, until_next(self._clock.monotonic(), self._keep_alive_s))
        finally:
            self._followers -= 1

    def _update(self) -> rpc.MetadataUpdate:
        return rpc.MetadataUpdate(
            status=self._status(), controller_epoch=self._log.term, committed_index=self._log.applied_index
        )

    def _snapshot_updates(self, index: int, term: int, data: bytes) -> Sequence[rpc.MetadataUpdate]:
        updates = []
        for position in range(0, max(1, len(data)), SNAPSHOT_CHUNK_BYTES):
            update = self._update()
            chunk = data[position : position + SNAPSHOT_CHUNK_BYTES]
            update.snapshot.CopyFrom(
                rpc.SnapshotChunk(
                    index=index, term=term, position=position, total_bytes=len(data), data=chunk
                )
            )
            updates.append(update)
        return updates

    async def DescribeQuorum(
        self, request: rpc.DescribeQuorumRequest, context: Any
    ) -> rpc.DescribeQuorumReply:
        view = await self._log.quorum()
        status = view.status
        reply = rpc.DescribeQuorumReply(
            node_id=self._log.node_id,
            leader_id=status.leader_id,
            term=status.term,
            active=self._log.is_active,
            committed_index=status.commit_index,
            last_index=status.last_index,
            waits_for=status.waits_for,
            supported_features=as_messages(SUPPORTED),
        )
        for voter in sorted(self._log.voters):
            mine = voter == self._log.node_id
            known = (
                FollowerView(status.last_index, 0.0, 0.0)
                if mine
                else view.followers.get(voter, FollowerView(0))
            )
            voter_view = self._voter_view(voter, known)
            voter_view.connected = mine or voter in status.connected
            voter_view.without_vote = voter in status.not_voting
            reply.voters.append(voter_view)
        if self._log.is_active and self._planner is not None:
            now = self._clock.monotonic()
            for node_id, contact in sorted(self._contacts.items()):
                session = self._planner.sessions.by_id.get(node_id)
                if session is not None and node_id not in self._log.voters:
                    reply.observers.append(
                        self._voter_view(node_id, contact.view(now, session.applied_index))
                    )
        return reply

    def _voter_view(self, node_id: int, known: FollowerView) -> rpc.VoterView:
        def wall_ms(ago_s: float | None) -> int:
            return 0 if ago_s is None else self._clock.wall_ms() - int(1000 * ago_s)

        return rpc.VoterView(
            node_id=node_id,
            connected=True,
            match_index=known.match_index,
            last_fetch_timestamp_ms=wall_ms(known.silent_s),
            last_caught_up_timestamp_ms=wall_ms(known.behind_s),
        )
