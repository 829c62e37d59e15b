"""The client of the metadata quorum, for brokers and tools: finds the active controller, retries within a
deadline.

Every call is safe to repeat.  Registrations carry an incarnation, ISR changes carry epochs, and the requests
that create or change something carry a request id chosen here once a call, so that a retry whose first
attempt did succeed is answered with that first outcome.  (The Kafka protocol has no such id: a client that
repeats its own request makes another call.)  A call that no controller answered within its deadline raises
REQUEST_TIMED_OUT: its outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from ...proto import controller_pb2 as pb
from ...proto import controller_pb2_grpc
from ...runtime import logs, network
from ...wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runtime.clock import Clock

log = logs.get(__name__)

BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0
SLICE_PARTITIONS_MAX = 1000
"""Of one request for elections or moves: some 50 ms of the controller's."""
LAST_CALLS_S = 30.0
"""Of a channel that is replaced: as long as the longest call."""
VOTER_TIMEOUT_S = 3.0
"""The timeout of DescribeQuorum at one controller: longer than a gRPC channel's pause between two attempts to
connect."""


class _HasStatus(Protocol):
    @property
    def status(self) -> pb.Status: ...


_Reply = TypeVar("_Reply", bound=_HasStatus)
_SlicedReply = TypeVar("_SlicedReply", pb.ElectLeadersReply, pb.ReassignPartitionsReply)


class HeartbeatHere(Protocol):
    """`ControllerService.Heartbeat`."""

    async def __call__(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatReply: ...


class MetadataHere(Protocol):
    """`ControllerService.FollowMetadata`."""

    def __call__(
        self, request: pb.FollowMetadataRequest, context: Any
    ) -> AsyncGenerator[pb.MetadataUpdate, None]: ...


class _StreamHere:
    """As grpc.aio.UnaryStreamCall, of the controller in this process."""

    def __init__(self, updates: AsyncGenerator[pb.MetadataUpdate, None]) -> None:
        self._updates = updates
        self._closing: asyncio.Task[None] | None = None

    async def read(self) -> Any:
        # Entries that are there come without a pause, and a long catch-up would hold the loop until its end.
        await asyncio.sleep(0)
        try:
            return await anext(self._updates, grpc.aio.EOF)
        # of the controller's: a defect that would be UNKNOWN on the network
        except Exception as error:
            log.exception("metadata_stream_failed_here")
            # as an AioRpcError of the network: the follower tries another controller
            raise TimeoutError(f"the controller here failed: {error!r}") from error

    def cancel(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        await self._updates.aclose()


class _NotAnsweredHere(Exception):
    """As `AioRpcError`, of the controller in this process."""


def _plain_channel(_node_id: int, target: str) -> grpc.aio.Channel:
    return network.grpc_channel(target)


class ControllerClient:
    """Calls the active controller among `endpoints` (node id -> "host:port" of its gRPC listener)."""

    def __init__(
        self,
        endpoints: Mapping[int, str],
        clock: Clock,
        *,
        attempt_timeout_s: float = 3.0,
        channel_factory: Callable[[int, str], grpc.aio.Channel] = _plain_channel,
    ) -> None:
        """`channel_factory(node_id, target)` makes a channel to one controller."""
        if not endpoints:
            raise ValueError("a controller client needs at least one endpoint")
        self._endpoints = dict(endpoints)
        self._order = sorted(self._endpoints)
        self._clock = clock
        self._attempt_timeout_s = attempt_timeout_s
        self._channel_factory = channel_factory
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()  # of channels that are replaced
        self._next = 0
        self._client_id = str(clock.uuid())
        self._sequence = 0
        self._attempts = 0
        self._controller_epoch = 0  # the newest in any answer
        self.active_id: int | None = None
        self._here: tuple[int, HeartbeatHere] | None = None
        self._metadata_here: tuple[int, MetadataHere] | None = None

    def heartbeats_here(self, node_id: int, answer: HeartbeatHere) -> None:
        """This node's own controller is `node_id`: heartbeats to it are calls.  By the network each would
        cost the active controller, which answers those of all brokers, as much as the heartbeats of two
        others."""
        self._here = node_id, answer

    def metadata_here(self, node_id: int, follow: MetadataHere) -> None:
        """... and its metadata are read without the network."""
        self._metadata_here = node_id, follow

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        closing, self._closing = list(self._closing), set()
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
        for channel in channels:
            await channel.close()

    async def renew_channels(self) -> None:
        """Later calls make new channels, with the node's newest certificate; those in flight have
        `LAST_CALLS_S` to end."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            task = asyncio.create_task(channel.close(LAST_CALLS_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    # ---- calls ---------------------------------------------------------------------------------------------
    # Each returns the reply when its status is NONE and raises KafkaError otherwise.  Errors of single topics
    # or partitions stand inside the reply.

    async def register_broker(
        self, request: pb.RegisterBrokerRequest, timeout_s: float = 30.0
    ) -> pb.RegisterBrokerReply:
        return await self._call(pb.RegisterBrokerReply, "RegisterBroker", request, timeout_s)

    async def heartbeat(
        self, request: pb.HeartbeatRequest, timeout_s: float = 3.0, patience_s: float | None = None
    ) -> pb.HeartbeatReply:
        """After `patience_s` no further attempt begins, and other calls avoid a controller that has not
        answered; the last attempt still runs until `timeout_s`, because a late answer is valid, too."""
        attempt_s = None if patience_s is None else timeout_s
        return await self._call(
            pb.HeartbeatReply,
            "Heartbeat",
            request,
            timeout_s,
            attempt_timeout_s=attempt_s,
            patience_s=patience_s,
        )

    async def alter_partitions(
        self, request: pb.AlterPartitionsRequest, timeout_s: float = 10.0
    ) -> pb.AlterPartitionsReply:
        return await self._call(
            pb.AlterPartitionsReply, "AlterPartitions", request, timeout_s, self._number_attempt
        )

    def _number_attempt(self, request: pb.AlterPartitionsRequest) -> None:
        """Numbers the attempt: the same controller rejects an older number after a newer one, another
        controller an older term."""
        self._attempts += 1
        request.attempt = self._attempts
        request.controller_epoch = self._controller_epoch

    async def create_topics(
        self, request: pb.CreateTopicsRequest, timeout_s: float = 30.0
    ) -> pb.CreateTopicsReply:
        return await self._call(pb.CreateTopicsReply, "CreateTopics", self._named(request), timeout_s)

    async def delete_topics(
        self, request: pb.DeleteTopicsRequest, timeout_s: float = 30.0
    ) -> pb.DeleteTopicsReply:
        return await self._call(pb.DeleteTopicsReply, "DeleteTopics", self._named(request), timeout_s)

    async def create_partitions(
        self, request: pb.CreatePartitionsRequest, timeout_s: float = 30.0
    ) -> pb.CreatePartitionsReply:
        return await self._call(pb.CreatePartitionsReply, "CreatePartitions", self._named(request), timeout_s)

    async def alter_configs(
        self, request: pb.AlterConfigsRequest, timeout_s: float = 30.0
    ) -> pb.AlterConfigsReply:
        return await self._call(pb.AlterConfigsReply, "AlterConfigs", self._named(request), timeout_s)

    async def change_security(
        self, request: pb.ChangeSecurityRequest, timeout_s: float = 30.0
    ) -> pb.ChangeSecurityReply:
        return await self._call(pb.ChangeSecurityReply, "ChangeSecurity", self._named(request), timeout_s)

    async def change_delegation_token(
        self, request: pb.ChangeDelegationTokenRequest, timeout_s: float = 30.0
    ) -> pb.ChangeDelegationTokenReply:
        return await self._call(
            pb.ChangeDelegationTokenReply, "ChangeDelegationToken", self._named(request), timeout_s
        )

    async def change_pinned_cut(
        self, request: pb.ChangePinnedCutRequest, timeout_s: float = 30.0
    ) -> pb.ChangePinnedCutReply:
        return await self._call(pb.ChangePinnedCutReply, "ChangePinnedCut", self._named(request), timeout_s)

    async def charge_mutations(
        self, request: pb.ChargeMutationsRequest, timeout_s: float = 30.0
    ) -> pb.ChargeMutationsReply:
        """Repeated it charges again: the client pauses for longer, no more."""
        return await self._call(pb.ChargeMutationsReply, "ChargeMutations", request, timeout_s)

    async def elect_leaders(
        self, request: pb.ElectLeadersRequest, timeout_s: float = 30.0
    ) -> pb.ElectLeadersReply:
        return await self._in_slices(pb.ElectLeadersReply, "ElectLeaders", request, timeout_s)

    async def reassign_partitions(
        self, request: pb.ReassignPartitionsRequest, timeout_s: float = 30.0
    ) -> pb.ReassignPartitionsReply:
        return await self._in_slices(pb.ReassignPartitionsReply, "ReassignPartitions", request, timeout_s)

    async def update_features(
        self, request: pb.UpdateFeaturesRequest, timeout_s: float = 30.0
    ) -> pb.UpdateFeaturesReply:
        # it asks all voters, one of which may stand still
        attempt_s = self._attempt_timeout_s + VOTER_TIMEOUT_S
        named = self._named(request)
        return await self._call(
            pb.UpdateFeaturesReply, "UpdateFeatures", named, timeout_s, attempt_timeout_s=attempt_s
        )

    async def unregister_broker(
        self, request: pb.UnregisterBrokerRequest, timeout_s: float = 30.0
    ) -> pb.UnregisterBrokerReply:
        return await self._call(pb.UnregisterBrokerReply, "UnregisterBroker", self._named(request), timeout_s)

    async def allocate_producer_ids(
        self, request: pb.AllocateProducerIdsRequest, timeout_s: float = 30.0
    ) -> pb.AllocateProducerIdsReply:
        return await self._call(pb.AllocateProducerIdsReply, "AllocateProducerIds", request, timeout_s)

    async def read_barrier(self, timeout_s: float) -> int:
        """A node whose metadata reach the returned index has all that was committed before this call."""
        reply = await self._call(pb.ReadBarrierReply, "ReadBarrier", pb.ReadBarrierRequest(), timeout_s)
        return reply.metadata_index

    async def describe_quorum(
        self, node_id: int, timeout_s: float = VOTER_TIMEOUT_S
    ) -> pb.DescribeQuorumReply:
        """Asks one controller, active or not.  Raises grpc.aio.AioRpcError when it cannot be reached within
        `timeout_s`.

        One that has just come back is waited for, while the channel to it still backs off."""
        ask = self._stub(node_id).DescribeQuorum
        reply: pb.DescribeQuorumReply = await ask(
            pb.DescribeQuorumRequest(), timeout=timeout_s, wait_for_ready=True
        )
        return reply

    async def describe_active_quorum(self, timeout_s: float = 10.0) -> pb.DescribeQuorumReply:
        """What the active controller knows of the quorum.  Raises KafkaError when there is none within
        `timeout_s`."""
        deadline = self._clock.monotonic() + timeout_s
        problem = "no controller answered"
        while (left_s := deadline - self._clock.monotonic()) > 0:
            node_id = self.candidate()
            try:
                reply = await self.describe_quorum(node_id, min(left_s, VOTER_TIMEOUT_S))
            except grpc.aio.AioRpcError as error:
                self.note_failure(node_id)
                problem = (
                    f"controller {node_id} at {self._endpoints[node_id]}: {error.code().name} "
                    f"{error.details()}"
                )
                continue
            if reply.active and reply.term >= self._controller_epoch:
                return reply
            problem = f"controller {node_id} is not active"
            if (
                reply.leader_id != node_id
                and reply.leader_id in self._endpoints
                and self.active_id in (None, node_id)
            ):
                self.active_id = reply.leader_id
            else:
                self.note_failure(node_id)
            await self._clock.sleep(min(BACKOFF_S_MIN, max(0.0, deadline - self._clock.monotonic())))
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"DescribeQuorum: {problem} within {timeout_s:g} s")

    # ---- the metadata stream (for MetadataFollower) --------------------------------------------------------

    def candidate(self) -> int:
        """The controller to try next: the active one when known, else the next in turn."""
        if self.active_id is not None:
            return self.active_id
        self._next = (self._next + 1) % len(self._order)
        return self._order[self._next]

    def follow_metadata(self, node_id: int, request: pb.FollowMetadataRequest) -> Any:
        """The call object of a FollowMetadata stream at one controller (grpc.aio.UnaryStreamCall)."""
        if self._metadata_here is not None and self._metadata_here[0] == node_id:
            return _StreamHere(self._metadata_here[1](request, None))
        return self._stub(node_id).FollowMetadata(request)

    def note_answer(self, node_id: int, status: pb.Status) -> bool:
        """Learns the active controller from a status.  False: the answer is of a past term, whose controller
        may not know that yet; the caller must not act on it."""
        if status.error == ErrorCode.NOT_CONTROLLER:
            hint = status.controller_id_plus_one - 1
            self.active_id = hint if hint in self._endpoints and hint != node_id else None
        elif 0 < status.controller_epoch < self._controller_epoch:
            self.note_failure(node_id)
            return False
        else:
            self._controller_epoch = max(self._controller_epoch, status.controller_epoch)
            self.active_id = node_id
        return True

    def note_failure(self, node_id: int) -> None:
        if self.active_id == node_id:
            self.active_id = None

    # ---- inside --------------------------------------------------------------------------------------------

    def _named(self, request: Any) -> Any:
        """Gives the request its id, before the first attempt; another call gets another one, also for the
        same object."""
        if request.request_id.client_id in ("", self._client_id):
            self._sequence += 1
            request.request_id.client_id = self._client_id
            request.request_id.sequence = self._sequence
        return request

    async def _in_slices(
        self, kind: type[_SlicedReply], method: str, request: Any, timeout_s: float
    ) -> _SlicedReply:
        """Sends the partitions of a large request in several requests, so that none holds the controller for
        long.  Each is named by itself, and so carried out once.  An error after the first slice is the answer
        of the partitions that are left.  A request that names a partition twice goes whole: the controller
        sees the repetition then."""
        every = [(each.topic, each.partition) for each in request.partitions]
        if len(every) <= SLICE_PARTITIONS_MAX or len(set(every)) < len(every):
            return await self._call(kind, method, self._named(request), timeout_s)
        deadline = self._clock.monotonic() + timeout_s
        head, whole = type(request)(), kind()
        head.CopyFrom(request)
        head.ClearField("partitions")
        head.ClearField("request_id")
        for start in range(0, len(every), SLICE_PARTITIONS_MAX):
            part = type(request)()
            part.CopyFrom(head)
            part.partitions.extend(request.partitions[start : start + SLICE_PARTITIONS_MAX])
            try:
                reply = await self._call(kind, method, self._named(part), deadline - self._clock.monotonic())
            except KafkaError as error:
                if not start:
                    raise
                for topic, partition in every[start:]:
                    code, message = int(error.code), error.message
                    whole.results.add(topic=topic, partition=partition, error=code, message=message)
                break
            whole.results.extend(reply.results)
            whole.metadata_index = reply.metadata_index
        return whole

    def _stub(self, node_id: int) -> controller_pb2_grpc.ControllerAsyncStub:
        channel = self._channels.get(node_id)
        if channel is None:
            channel = self._channels[node_id] = self._channel_factory(node_id, self._endpoints[node_id])
        return controller_pb2_grpc.ControllerStub(channel)

    async def _attempt(self, node_id: int, method: str, request: Any, timeout_s: float) -> Any:
        if self._here is None or self._here[0] != node_id or method != "Heartbeat":
            return await getattr(self._stub(node_id), method)(request, timeout=timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._here[1](request, None)
        except TimeoutError as error:
            raise _NotAnsweredHere(f"no answer in {timeout_s:g} s") from error
        # of the controller's: a defect that would be an answer's UNKNOWN on the network
        except Exception as error:
            log.exception("heartbeat_failed_here")
            raise _NotAnsweredHere(repr(error)) from error

    async def _call(
        self,
        kind: type[_Reply],
        method: str,
        request: Any,
        timeout_s: float,
        prepare: Callable[[Any], None] | None = None,
        attempt_timeout_s: float | None = None,
        patience_s: float | None = None,
    ) -> _Reply:
        """`prepare(request)` runs before every attempt; `patience_s`: see `heartbeat`."""
        deadline = self._clock.monotonic() + timeout_s
        last_start = deadline if patience_s is None else self._clock.monotonic() + patience_s
        backoff_s, problem, hinted = BACKOFF_S_MIN, "no controller answered", False
        while True:
            left_s = deadline - self._clock.monotonic()
            # a hint that comes late is followed, too
            if self._clock.monotonic() >= (deadline if hinted else last_start):
                message = f"{method}: {problem} within {patience_s or timeout_s:g} s; its outcome is unknown"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message)
            node_id = self.candidate()
            hinted = False
            if prepare is not None:
                prepare(request)
            impatient = (
                None
                if patience_s is None
                else self._clock.call_later(patience_s, partial(self.note_failure, node_id))
            )
            try:
                attempt_s = min(left_s, attempt_timeout_s or self._attempt_timeout_s)
                reply: _Reply = await self._attempt(node_id, method, request, attempt_s)
            except _NotAnsweredHere as error:
                self.note_failure(node_id)
                problem = f"controller {node_id}, in this process: {error}"
            except grpc.aio.AioRpcError as error:
                self.note_failure(node_id)
                problem = (
                    f"controller {node_id} at {self._endpoints[node_id]}: {error.code().name} "
                    f"{error.details()}"
                )
            else:
                status = reply.status
                if not self.note_answer(node_id, status):
                    problem = f"controller {node_id}: its term {status.controller_epoch} is over"
                elif status.error == ErrorCode.NONE:
                    return reply
                elif status.error not in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT):
                    raise KafkaError(ErrorCode(status.error), status.message)
                else:
                    problem = f"controller {node_id}: {status.message}"
                hinted = self.active_id is not None and self.active_id != node_id
            finally:
                if impatient is not None:
                    impatient.cancel()
            if not hinted:  # a hint is followed at once; otherwise an election may be going on
                wait_s = backoff_s * (0.5 + self._clock.random())
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
                await self._clock.sleep(min(wait_s, max(0.0, last_start - self._clock.monotonic())))
