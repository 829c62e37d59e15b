"""The controller's gRPC service: turns requests into plans, plans into log entries, and what they did into replies.

One plan at a time: it is made from the applied state, committed and applied before the next is made, so no plan is built on a
state that another one is about to change.  (Safety does not rest on that: commands are fenced by the controller epoch and
compared with the partition epochs when they are applied.)

Every refusal is a status inside the reply.  A controller that is not active says so, and whom to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from ..proto import controller_pb2 as rpc
from ..proto import controller_pb2_grpc
from ..proto import metadata_pb2 as pb
from ..runtime import logs
from ..wire.errors import ErrorCode, KafkaError
from . import topics
from .active import ActiveController, ControllerConfig, Plan
from .feature_updates import plan_update
from .features import SUPPORTED, Ranges, as_messages, ranges_of
from .metadata_log import MetadataLog, NotController
from .model import ApplyResult
from .node_settings import plan_node_configuration
from .raft.core import COMMAND_BYTES_MAX
from .reassignments import plan_reassignments
from .requested_elections import plan_elections

if TYPE_CHECKING:
    from ..runtime.clock import Clock

log = logs.get(__name__)

PROPOSAL_S_MAX = 8.0
ENTRIES_PER_UPDATE_MAX = 1000
UPDATE_BYTES_MAX = 1 << 20
SNAPSHOT_CHUNK_BYTES = 1 << 20
KEEP_ALIVE_S = 0.5
FOLLOWERS_MAX = 1024

_Reply = TypeVar("_Reply")
AskVoter = Callable[[int], Awaitable[rpc.DescribeQuorumReply]]


class ControllerService(controller_pb2_grpc.ControllerServicer):
    """Answers for one node of the quorum."""

    def __init__(self, metadata: MetadataLog, config: ControllerConfig, clock: Clock, ask_voter: AskVoter | None = None) -> None:
        """`ask_voter(node_id)` asks another member of the quorum what DescribeQuorum tells."""
        self._log = metadata
        self._config = config
        self._clock = clock
        self._ask_voter = ask_voter
        self._duties: ActiveController | None = None
        self._duties_term = -1
        self._planning = asyncio.Lock()
        self._followers = 0
        self._stopped = asyncio.Event()

    # ---- leadership (driven by ControllerNode) --------------------------------------------------------------------------------

    def begin(self, duties: ActiveController, term: int) -> None:
        self._duties, self._duties_term = duties, term

    def end(self) -> None:
        self._duties, self._duties_term = None, -1

    def stop(self) -> None:
        """Ends the streams of followers."""
        self._stopped.set()

    def require_duties(self) -> ActiveController:
        """The duties of the present leadership.  Raises NotController."""
        if self._duties is None or not self._log.is_active or self._log.term != self._duties_term:
            raise NotController(self._log.leader_id)
        return self._duties

    async def carry_out(self, plan: Plan) -> ApplyResult | None:
        """Proposes the plan's commands one after the other and stops at the first that is refused.  Call under `planning`."""
        result = None
        if plan:
            log.debug("plan", reason=plan.reason, operations=len(plan.operations))
        for command in plan.commands(self._duties_term):
            result = await self._propose(command)
            if result.error != ErrorCode.NONE:
                log.warning("plan_refused", reason=plan.reason, error=result.error.name, message=result.message)
                break
        return result

    async def _propose(self, command: pb.Command) -> ApplyResult:
        return await self._log.propose(command.SerializeToString(deterministic=True), PROPOSAL_S_MAX)

    @property
    def planning(self) -> asyncio.Lock:
        return self._planning

    # ---- replies --------------------------------------------------------------------------------------------------------------

    def _status(self, error: KafkaError | None = None) -> rpc.Status:
        code, message = (ErrorCode.NONE, "") if error is None else (error.code, error.message)
        return rpc.Status(error=int(code), message=message, controller_id_plus_one=self._log.leader_id + 1)

    async def _answer(self, make: Callable[..., _Reply], work: Callable[[ActiveController], Awaitable[_Reply]]) -> _Reply:
        """Runs `work` as the active controller, one at a time; a refusal becomes a reply with its status."""
        try:
            self.require_duties()
            async with self._planning:
                return await work(self.require_duties())
        except KafkaError as error:
            return make(status=self._status(error))

    @staticmethod
    def _require(result: ApplyResult | None) -> None:
        if result is not None and result.error != ErrorCode.NONE:
            raise KafkaError(result.error, result.message)

    # ---- brokers --------------------------------------------------------------------------------------------------------------

    async def RegisterBroker(self, request: rpc.RegisterBrokerRequest, context: Any) -> rpc.RegisterBrokerReply:
        async def work(duties: ActiveController) -> rpc.RegisterBrokerReply:
            plan = duties.register(request)
            self._require(await self.carry_out(plan))
            duties.registered(request.node_id, self._clock.monotonic())
            broker = self._log.state.brokers[request.node_id]
            if plan:
                log.info("broker_registered", node=broker.node_id, broker_epoch=broker.broker_epoch, kafka=broker.kafka)
            return rpc.RegisterBrokerReply(
                status=self._status(),
                broker_epoch=broker.broker_epoch,
                cluster_id=self._log.state.cluster_id,
                session_timeout_ms=self._config.session_timeout_ms,
            )

        return await self._answer(rpc.RegisterBrokerReply, work)

    async def Heartbeat(self, request: rpc.HeartbeatRequest, context: Any) -> rpc.HeartbeatReply:
        """Most heartbeats change nothing and never wait for a plan under way."""
        try:
            duties = self.require_duties()
            if duties.heartbeat(request, self._clock.monotonic()):
                async with self._planning:
                    duties = self.require_duties()
                    await self._carry_out_heartbeat(duties, request)
            answer = duties.answer(request.node_id)
        except KafkaError as error:
            return rpc.HeartbeatReply(status=self._status(error))
        return rpc.HeartbeatReply(
            status=self._status(),
            fenced=answer.fenced,
            should_shutdown=answer.should_shutdown,
            caught_up=answer.caught_up,
            metadata_index=self._log.applied_index,
        )

    async def _carry_out_heartbeat(self, duties: ActiveController, request: rpc.HeartbeatRequest) -> None:
        plan = duties.heartbeat(request, self._clock.monotonic())
        self._require(await self.carry_out(plan))
        if plan:
            log.info("broker_changed", node=request.node_id, change=plan.reason)
        if request.wants_shutdown:
            duties.shutdown_began(request.node_id)

    async def AlterPartitions(self, request: rpc.AlterPartitionsRequest, context: Any) -> rpc.AlterPartitionsReply:
        async def work(duties: ActiveController) -> rpc.AlterPartitionsReply:
            plan, errors = duties.alter_partitions(request)
            self._require(await self.carry_out(plan))
            views = []
            for change, error in zip(request.changes, errors, strict=True):
                views.append(self._partition_view(change, error))
            return rpc.AlterPartitionsReply(status=self._status(), partitions=views, metadata_index=self._log.applied_index)

        return await self._answer(rpc.AlterPartitionsReply, work)

    def _partition_view(self, change: rpc.IsrChange, error: ErrorCode) -> rpc.PartitionView:
        """The partition as it is now.  A change that was planned but lost its race shows as INVALID_UPDATE_VERSION."""
        view = rpc.PartitionView(topic_id=change.topic_id, partition=change.partition, error=int(error))
        topic = self._log.state.topic_by_raw_id(change.topic_id)
        partition = None if topic is None else topic.partitions.get(change.partition)
        if partition is None:
            view.error = int(error if error != ErrorCode.NONE else ErrorCode.UNKNOWN_TOPIC_ID)
            return view
        if error == ErrorCode.NONE and (partition.isr != tuple(change.isr) or partition.leader_epoch != change.leader_epoch):
            view.error = int(ErrorCode.INVALID_UPDATE_VERSION)
        view.leader, view.leader_epoch, view.partition_epoch = (
            partition.leader,
            partition.leader_epoch,
            partition.partition_epoch,
        )
        view.isr.extend(partition.isr)
        view.elr.extend(partition.elr)
        return view

    async def AllocateProducerIds(self, request: rpc.AllocateProducerIdsRequest, context: Any) -> rpc.AllocateProducerIdsReply:
        async def work(duties: ActiveController) -> rpc.AllocateProducerIdsReply:
            plan = duties.producer_ids(request)
            result = await self.carry_out(plan)
            self._require(result)
            assert result is not None and isinstance(result.value, int)
            count = plan.operations[0].allocate_producer_ids.count
            return rpc.AllocateProducerIdsReply(status=self._status(), first_id=result.value, count=count)

        return await self._answer(rpc.AllocateProducerIdsReply, work)

    async def ElectLeaders(self, request: rpc.ElectLeadersRequest, context: Any) -> rpc.ElectLeadersReply:
        async def work(duties: ActiveController) -> rpc.ElectLeadersReply:
            elections = plan_elections(self._log.state, request)
            self._require(await self.carry_out(elections.plan))
            results, index = elections.outcome(self._log.state), self._log.applied_index
            return rpc.ElectLeadersReply(status=self._status(), results=results, metadata_index=index)

        return await self._answer(rpc.ElectLeadersReply, work)

    async def ReassignPartitions(self, request: rpc.ReassignPartitionsRequest, context: Any) -> rpc.ReassignPartitionsReply:
        async def work(duties: ActiveController) -> rpc.ReassignPartitionsReply:
            planned = plan_reassignments(self._log.state, request)
            self._require(await self.carry_out(planned.plan))
            results, index = planned.outcome(self._log.state), self._log.applied_index
            log.info("partitions_reassigned", asked=len(request.partitions), changed=len(planned.wanted))
            return rpc.ReassignPartitionsReply(status=self._status(), results=results, metadata_index=index)

        return await self._answer(rpc.ReassignPartitionsReply, work)

    # ---- the cluster ----------------------------------------------------------------------------------------------------------

    async def UnregisterBroker(self, request: rpc.UnregisterBrokerRequest, context: Any) -> rpc.UnregisterBrokerReply:
        async def work(duties: ActiveController) -> rpc.UnregisterBrokerReply:
            self._require(await self.carry_out(duties.unregister(request.node_id)))
            duties.unregistered(request.node_id)
            log.info("broker_unregistered", node=request.node_id)
            return rpc.UnregisterBrokerReply(status=self._status(), metadata_index=self._log.applied_index)

        return await self._answer(rpc.UnregisterBrokerReply, work)

    async def UpdateFeatures(self, request: rpc.UpdateFeaturesRequest, context: Any) -> rpc.UpdateFeaturesReply:
        # Asked before anything is planned: a voter that does not answer must not hold up the plans of others.
        voters = await self._voters_features() if self._log.is_active else {}

        async def work(duties: ActiveController) -> rpc.UpdateFeaturesReply:
            if not voters:
                raise NotController(self._log.leader_id)
            plan = plan_update(self._log.state, request, voters)
            self._require(await self.carry_out(plan))
            if plan:
                log.info("features_updated", levels=dict(self._log.state.features))
            return rpc.UpdateFeaturesReply(status=self._status(), metadata_index=self._log.applied_index)

        return await self._answer(rpc.UpdateFeaturesReply, work)

    async def _voters_features(self) -> dict[int, Ranges | None]:
        """What every member of the quorum knows, asked now: what one said earlier may have been another version of it."""

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

    # ---- topics ---------------------------------------------------------------------------------------------------------------

    async def CreateTopics(self, request: rpc.CreateTopicsRequest, context: Any) -> rpc.CreateTopicsReply:
        async def work(duties: ActiveController) -> rpc.CreateTopicsReply:
            self._name_request(request)
            plans = topics.plan_creation(self._log.state, self._config, request)
            for plan in plans.topics:
                if plan.operation is not None:
                    await self._carry_out_topic(plan)
            index = self._log.applied_index
            return rpc.CreateTopicsReply(status=self._status(), topics=plans.results, metadata_index=index)

        return await self._answer(rpc.CreateTopicsReply, work)

    async def DeleteTopics(self, request: rpc.DeleteTopicsRequest, context: Any) -> rpc.DeleteTopicsReply:
        async def work(duties: ActiveController) -> rpc.DeleteTopicsReply:
            before = self._applied_before(request.request_id)
            plans = topics.plan_deletion(self._log.state, request, applied_before=before)
            await self._carry_out_named(request.request_id, plans)
            index = self._log.applied_index
            return rpc.DeleteTopicsReply(status=self._status(), topics=plans.results, metadata_index=index)

        return await self._answer(rpc.DeleteTopicsReply, work)

    async def CreatePartitions(self, request: rpc.CreatePartitionsRequest, context: Any) -> rpc.CreatePartitionsReply:
        async def work(duties: ActiveController) -> rpc.CreatePartitionsReply:
            before = self._applied_before(request.request_id)
            plans = topics.plan_enlargement(self._log.state, self._config, request, applied_before=before)
            await self._carry_out_named(request.request_id, plans)
            index = self._log.applied_index
            return rpc.CreatePartitionsReply(status=self._status(), topics=plans.results, metadata_index=index)

        return await self._answer(rpc.CreatePartitionsReply, work)

    async def AlterConfigs(self, request: rpc.AlterConfigsRequest, context: Any) -> rpc.AlterConfigsReply:
        async def work(duties: ActiveController) -> rpc.AlterConfigsReply:
            plans = topics.plan_configuration(self._log.state, request)
            plans.topics += plan_node_configuration(self._log.state, request).topics
            if not self._applied_before(request.request_id):
                await self._carry_out_named(request.request_id, plans)
            index = self._log.applied_index
            return rpc.AlterConfigsReply(status=self._status(), topics=plans.results, metadata_index=index)

        return await self._answer(rpc.AlterConfigsReply, work)

    def _name_request(self, request: rpc.CreateTopicsRequest) -> None:
        """A request without an id cannot be told from another one: it gets one of its own."""
        if not request.request_id.client_id:
            request.request_id.client_id = str(self._clock.uuid())

    def _applied_before(self, request_id: rpc.RequestId) -> bool:
        if not request_id.client_id:
            return False
        outcome = self._log.state.was_applied(request_id.client_id, request_id.sequence)
        return outcome is not None and outcome.error == ErrorCode.NONE

    async def _carry_out_topic(self, plan: topics.TopicPlan) -> None:
        assert plan.operation is not None
        command = pb.Command(controller_epoch=self._duties_term, operations=[plan.operation])
        size = command.ByteSize()
        if size > COMMAND_BYTES_MAX:
            message = f"the topic's description has {size} bytes, at most {COMMAND_BYTES_MAX} can be: add partitions in steps"
            _put_error(plan.result, ErrorCode.INVALID_REQUEST, message)
            return
        result = await self._propose(command)
        if result.error != ErrorCode.NONE:
            _put_error(plan.result, result.error, result.message)

    async def _carry_out_named(self, request_id: rpc.RequestId, plans: topics.TopicPlans) -> None:
        """All operations of a request in one command under the request's id: applied once, however often it is sent."""
        operations = plans.operations
        if not operations:
            return
        command = pb.Command(
            proposer=request_id.client_id,
            sequence=request_id.sequence,
            controller_epoch=self._duties_term,
            operations=operations,
        )
        if command.ByteSize() > COMMAND_BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the request is too large for one metadata command: split it")
        self._require(await self._propose(command))

    # ---- the metadata stream --------------------------------------------------------------------------------------------------

    async def FollowMetadata(self, request: rpc.FollowMetadataRequest, context: Any) -> AsyncIterator[rpc.MetadataUpdate]:
        """Committed entries in order; a keep-alive when there are none; ends with a status when this node is not active."""
        if self._followers >= FOLLOWERS_MAX:
            error = KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{FOLLOWERS_MAX} followers are served already")
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
                    message = f"the follower has entry {index}, this quorum only {self._log.applied_index}: another cluster?"
                    yield rpc.MetadataUpdate(status=self._status(KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)))
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
                await self._log.wait_applied(index, KEEP_ALIVE_S)
        finally:
            self._followers -= 1

    def _update(self) -> rpc.MetadataUpdate:
        return rpc.MetadataUpdate(status=self._status(), controller_epoch=self._log.term, committed_index=self._log.applied_index)

    def _snapshot_updates(self, index: int, term: int, data: bytes) -> Sequence[rpc.MetadataUpdate]:
        updates = []
        for position in range(0, max(1, len(data)), SNAPSHOT_CHUNK_BYTES):
            update = self._update()
            chunk = data[position : position + SNAPSHOT_CHUNK_BYTES]
            update.snapshot.CopyFrom(
                rpc.SnapshotChunk(index=index, term=term, position=position, total_bytes=len(data), data=chunk)
            )
            updates.append(update)
        return updates

    async def DescribeQuorum(self, request: rpc.DescribeQuorumRequest, context: Any) -> rpc.DescribeQuorumReply:
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
            match = status.last_index if mine else view.match_indexes.get(voter, 0)
            reply.voters.add(
                node_id=voter,
                connected=mine or voter in status.connected,
                match_index=match,
                without_vote=voter in status.not_voting,
            )
        return reply


def _put_error(result: rpc.TopicResult, error: ErrorCode, message: str) -> None:
    result.ClearField("topic_id")
    result.error, result.message = int(error), message
