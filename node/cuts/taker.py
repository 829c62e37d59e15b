"""Takes transaction-consistent cuts: sends what an attempt asks, until one succeeds (docs/cuts.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from ...controller.remote.client import ControllerClient
from ...controller.state.model import TopicState
from ...proto import cuts_pb2 as pb
from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.tasks import log_failure, spawn
from ...wire.errors import ErrorCode, KafkaError
from ..cluster.cluster_view import ClusterView
from ..cluster.internal_topics import INTERNAL_TOPICS, TRANSACTION_STATE
from ..cluster.peers import Peers
from .attempt import CutAttempt, GivenUp, Leadership, Reason, TopicView, View
from .between_nodes import answer_here, ask
from .cut_metrics import CutMetrics
from .cut_shards import CutShards

log = logs.get(__name__)
_RELEASE_FAILED = log_failure("release of a cut", consequence="the shards release themselves")

HOLD_MS: Final = 2_000
CALL_S: Final = 0.8
"""Of one question: two rounds of them fit into a hold."""
BOUNDS_WAIT_MS: Final = 500
TIMEOUT_S: Final = 10.0
"""Of a client that says none."""
TIMEOUT_S_MAX: Final = 60.0
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 1.0
PARTITIONS_MAX: Final = 10_000
CUTS_AT_ONCE: Final = 2
CUTS_WAITING_MAX: Final = 32

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)


class CutTaker:
    """Of one node."""

    def __init__(
        self,
        cluster: ClusterView,
        controller: ControllerClient,
        peers: Peers,
        here: CutShards,
        clock: Clock,
        metrics: CutMetrics,
    ) -> None:
        self._cluster = cluster
        self._controller = controller
        self._peers = peers
        self._here = here
        self._clock = clock
        self._metrics = metrics
        self._turns = asyncio.Semaphore(CUTS_AT_ONCE)
        self._waiting = 0
        self._releases: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)
        self._peers.close()

    async def take(self, topics: Sequence[str], timeout_s: float = 0.0) -> pb.Cut:
        """A cut of all partitions of these topics.  Raises KafkaError."""
        wait_s = min(timeout_s, TIMEOUT_S_MAX) if timeout_s > 0 else TIMEOUT_S
        deadline_s = self._clock.monotonic() + wait_s
        if not topics or len(set(topics)) < len(topics):
            message = f"a cut names at least one topic, and each once, not {', '.join(topics[:10]) or 'none'}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        if self._waiting >= CUTS_WAITING_MAX:
            message = f"{self._waiting} cuts are being taken at this node, or wait for it: try again"
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s), self._turns:
                return await self._try_until(topics, deadline_s)
        except TimeoutError:
            message = f"no cut within {wait_s:g} s: others are being taken, or the quorum does not answer"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message) from None
        finally:
            self._waiting -= 1

    async def _try_until(self, topics: Sequence[str], deadline_s: float) -> pb.Cut:
        pause_s, attempts = PAUSE_S_MIN, 0
        while True:
            attempts += 1
            try:
                cut = await self._attempt(topics, deadline_s)
            except GivenUp as given_up:
                self._metrics.given_up[given_up.reason] += 1
                if given_up.code is ErrorCode.POLICY_VIOLATION:
                    raise KafkaError(given_up.code, str(given_up)) from given_up
                log.debug("cut_given_up", reason=given_up.reason.value, message=str(given_up))
                if self._clock.monotonic() + pause_s >= deadline_s:
                    message = f"no cut in {attempts} attempts; the last one: {given_up}"
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message) from given_up
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                self._metrics.taken += 1
                return cut

    async def _attempt(self, topics: Sequence[str], deadline_s: float) -> pb.Cut:
        if any(name not in self._cluster.state.topics for name in topics):
            await self._catch_up(deadline_s)  # the topic may be too new for this node's metadata
        attempt = CutAttempt(str(self._clock.uuid()), HOLD_MS, self._view(topics))
        began_s = self._clock.monotonic()
        released = False
        try:
            holds = attempt.holds()
            await self._ask_all(
                holds, pb.HoldDecisionsReply, lambda _, reply: attempt.held(reply), Reason.SHARD
            )
            bounds = attempt.bounds(BOUNDS_WAIT_MS)
            await self._ask_all(bounds, pb.BoundsReply, attempt.bounded, Reason.LEADER)
            released = True
            await asyncio.shield(self._release(attempt, began_s))
        finally:
            if not released:
                self._release(attempt, began_s)
        await self._catch_up(deadline_s)
        return attempt.finish(str(self._clock.uuid()), self._clock.wall_ms(), self._view(topics, now=True))

    def _release(self, attempt: CutAttempt, began_s: float) -> asyncio.Task[None]:
        """Goes on when the client of the cut goes away: commits wait for it."""

        async def release() -> None:
            try:
                await self._ask_all(
                    attempt.releases(),
                    pb.ReleaseDecisionsReply,
                    lambda _, reply: attempt.released(reply),
                    Reason.HOLD,
                )
            except GivenUp as given_up:  # what is not released ends by itself; the attempt finds it missing
                log.debug("cut_not_released", message=str(given_up))
            finally:
                self._metrics.held_s += self._clock.monotonic() - began_s

        task = spawn(release(), "release of a cut", _RELEASE_FAILED)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
        return task

    async def _ask_all(
        self,
        requests: Mapping[int, Request],
        reply: type[Reply],
        note: Callable[[Request, Reply], None],
        reason: Reason,
    ) -> None:
        """Raises GivenUp when a node does not answer."""

        async def one(node_id: int, request: Request) -> None:
            try:
                if node_id == self._cluster.node_id:
                    async with asyncio.timeout(CALL_S):
                        here = await answer_here(self._here, request)
                    assert isinstance(here, reply)
                    answer = here
                else:
                    answer = await ask(self._peers, node_id, request, reply.FromString, CALL_S)
            except TimeoutError:
                raise GivenUp(reason, f"node {node_id} did not answer in {CALL_S:g} s") from None
            except KafkaError as error:
                raise GivenUp(reason, f"node {node_id}: {error.message}", error.code) from error
            note(request, answer)

        asked = (one(node_id, request) for node_id, request in requests.items())
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    # --- the metadata ---------------------------------------------------------------------------------------

    async def _catch_up(self, deadline_s: float) -> None:
        """This node has all metadata that were committed before the call.  Raises GivenUp."""
        left_s = max(0.0, deadline_s - self._clock.monotonic())
        try:
            index = await self._controller.read_barrier(left_s)
            await self._cluster.wait_for_index(index, max(0.0, deadline_s - self._clock.monotonic()))
        except TimeoutError:
            raise GivenUp(Reason.METADATA, "this node does not get the metadata") from None
        except KafkaError as error:
            raise GivenUp(Reason.METADATA, error.message, error.code) from error

    def _view(self, topics: Sequence[str], *, now: bool = False) -> View:
        """Raises KafkaError; with `now`, a topic that is gone is left out."""
        known = self._cluster.state.topics
        found: dict[str, TopicView] = {}
        for name in topics:
            if name in INTERNAL_TOPICS:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: no cut has it")
            if name in known:
                found[name] = _topic_view(known[name])
            elif not now:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
        count = sum(len(topic.partitions) for topic in found.values())
        if count > PARTITIONS_MAX:
            message = f"these topics have {count} partitions: a cut has at most {PARTITIONS_MAX}"
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
        state = known.get(TRANSACTION_STATE)
        return View(None if state is None else _topic_view(state), found)


def _topic_view(topic: TopicState) -> TopicView:
    places = {
        index: Leadership(partition.leader, partition.leader_epoch)
        for index, partition in topic.partitions.items()
    }
    return TopicView(topic.topic_id, places)
