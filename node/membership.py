"""This broker's membership in the cluster: registration, heartbeats, the session, and leaving in good order.

The session is the lease on leadership.  It is counted from the moment the last answered heartbeat was *sent*: the controller
counts from when it arrived, which is later, so this broker stops leading before the controller gives its partitions away
(SEMANTICS 3.6 48; no two leaders acknowledge in one epoch).

A broker that comes back to a session (it was paused, or cut off) leads again only when it has applied the metadata as far as the
controller had when it answered: until then it would lead by elections that may long be over.  Nor do answers of a new controller
renew the session before it has: that one may have fenced this broker while a deposed one, which did not know it yet, answered.

Order at start: register -> (metadata applied up to the registration) -> heartbeats until unfenced.
Order at stop: ask for a controlled shutdown -> heartbeats until the controller says that every leadership has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ..controller.client import ControllerClient
from ..controller.metadata_follower import SILENCE_S_MAX
from ..controller.offline_replicas import Replica, encode_replicas
from ..proto import controller_pb2 as pb
from ..runtime import logs
from ..runtime.clock import Clock
from ..wire.errors import ErrorCode, KafkaError

log = logs.get(__name__)


# The cluster knows a newer life of this node, or (it was unregistered while it was away) none at all.
_SUPERSEDED: Final = frozenset(
    {ErrorCode.STALE_BROKER_EPOCH, ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.BROKER_ID_NOT_REGISTERED}
)


# Of the metadata stream: a live controller says something twice a second.
SILENCE_S_MIN: Final = 1.5


def metadata_silence_s(session_timeout_s: float) -> float:
    """How long the metadata stream may be silent before another controller is asked.  After a change of controllers sessions are
    renewed only with the new one's metadata, so it has to come well before the session that the old one granted is over."""
    return max(SILENCE_S_MIN, min(SILENCE_S_MAX, session_timeout_s / 2))


@dataclass(frozen=True, slots=True)
class Registration:
    """What the controller knows this broker as."""

    broker_epoch: int
    cluster_id: str
    metadata_id: str


class Membership:
    """One life of this broker in the cluster.  Callbacks run on the loop."""

    def __init__(
        self,
        node_id: int,
        client: ControllerClient,
        clock: Clock,
        *,
        session_timeout_s: float,
        heartbeat_interval_s: float,
        applied_index: Callable[[], int],
        on_session_lost: Callable[[str], None],
        on_session_regained: Callable[[], None],
        on_superseded: Callable[[str], None],
        offline_replicas: Callable[[], Iterable[Replica]] = tuple,
        damaged_replicas: Callable[[], Iterable[Replica]] = tuple,
    ) -> None:
        """`offline_replicas()`: what this broker holds and cannot serve; `damaged_replicas()`: of these, what has lost records.
        `on_superseded(reason)`: the cluster knows a newer life of this node id, or none, or will hear no more of this one; this
        process must end."""
        self._node_id = node_id
        self._client = client
        self._clock = clock
        self._session_timeout_s = session_timeout_s
        self._interval_s = heartbeat_interval_s
        self._applied_index = applied_index
        self._on_session_lost = on_session_lost
        self._on_session_regained = on_session_regained
        self._on_superseded = on_superseded
        self._offline_replicas = offline_replicas
        self._damaged_replicas = damaged_replicas
        self._last_answered_sent_at = clock.monotonic()
        self._session_held = True
        self._resume_at_index: int | None = None
        self._controller_epoch = 0
        self._known_to_controller_index = 0
        """What the controller of this epoch had when it answered first: whatever it did to this broker before is in there."""
        self._tasks: list[asyncio.Task[None]] = []
        self._wants_shutdown = False
        self._may_stop = asyncio.Event()
        self._beat_now = asyncio.Event()
        self.unfenced = asyncio.Event()
        self.broker_epoch = -1

    @property
    def holds_session(self) -> bool:
        """Whether the lease on leadership is good right now."""
        return self._session_held and self._left_s() > 0

    def _left_s(self) -> float:
        return self._last_answered_sent_at + self._session_timeout_s - self._clock.monotonic()

    def _end_session_when_over(self) -> None:
        if self._left_s() > 0:
            return
        self._resume_at_index = None  # also while it waits to resume: there may have been elections again
        if self._session_held:
            self._session_held = False
            self._on_session_lost(f"no answer from the controller for {self._session_timeout_s:g} s")

    async def register(self, request: pb.RegisterBrokerRequest, timeout_s: float) -> Registration:
        """Registers this life, repeating until a controller answers.  Raises KafkaError when it is refused or late."""
        reply = await self._client.register_broker(request, timeout_s)
        self.broker_epoch = reply.broker_epoch
        self._session_timeout_s = min(self._session_timeout_s, reply.session_timeout_ms / 1000 or self._session_timeout_s)
        self._last_answered_sent_at = self._clock.monotonic()
        return Registration(reply.broker_epoch, reply.cluster_id, reply.metadata_id)

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._beat_forever(), name="heartbeats"),
            asyncio.create_task(self._watch_session(), name="session"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """By a defect: a broker that is silent leads nothing, and would stand there until somebody looks."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_superseded(f"its {task.get_name()} failed: {error!r}")

    def beat_soon(self) -> None:
        """Something changed that the controller should know before the next regular heartbeat."""
        self._beat_now.set()

    async def leave(self, timeout_s: float) -> bool:
        """Asks the controller to move all leaderships away; False when it did not happen in time.

        Without an answer for a whole session there is nothing left to hand over: this broker does not lead any more, and the
        other controllers may be stopping as well.
        """
        self._wants_shutdown = True
        self._beat_now.set()
        asked_at = self._clock.monotonic()
        while True:
            silent_at = max(asked_at, self._last_answered_sent_at) + self._session_timeout_s
            left_s = min(asked_at + timeout_s, silent_at) - self._clock.monotonic()
            if left_s <= 0:
                return False
            try:
                await asyncio.wait_for(self._may_stop.wait(), left_s)
                return True
            except TimeoutError:
                continue  # a heartbeat may have been answered meanwhile

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _beat_forever(self) -> None:
        while True:
            sent_at = self._clock.monotonic()
            await self._beat(sent_at)
            # While something is awaited (to be unfenced, to be allowed to stop) the next beat comes soon.
            waiting = self._wants_shutdown or not self.unfenced.is_set() or not self._session_held
            pause_s = min(self._interval_s, 0.1) if waiting else self._interval_s
            try:
                # Not wait_for, which in Python 3.11 may lose the cancellation by `stop`.
                async with asyncio.timeout(max(0.0, sent_at + pause_s - self._clock.monotonic())):
                    await self._beat_now.wait()
            except TimeoutError:
                pass
            self._beat_now.clear()

    async def _beat(self, sent_at: float) -> None:
        request = pb.HeartbeatRequest(
            node_id=self._node_id,
            broker_epoch=self.broker_epoch,
            applied_index=self._applied_index(),
            wants_shutdown=self._wants_shutdown,
            offline_replicas=encode_replicas(self._offline_replicas(), pb.ReplicasOfTopic),
            damaged_replicas=encode_replicas(self._damaged_replicas(), pb.ReplicasOfTopic),
        )
        try:
            reply = await self._client.heartbeat(request, timeout_s=max(self._interval_s, 0.5))
        except KafkaError as error:
            if error.code in _SUPERSEDED:
                self._on_superseded(str(error))
            else:
                log.warning("heartbeat_failed", error=error)
            return
        self._end_session_when_over()  # before it is renewed: this process may have slept, and its other timers are still to run
        if reply.status.controller_epoch > self._controller_epoch:
            self._controller_epoch = reply.status.controller_epoch
            self._known_to_controller_index = reply.metadata_index
        if self._applied_index() >= self._known_to_controller_index:
            self._last_answered_sent_at = sent_at
        if reply.fenced:
            self.unfenced.clear()
        elif not self.unfenced.is_set():
            log.info("broker_unfenced", broker_epoch=self.broker_epoch)
            self.unfenced.set()
        if not self._session_held and not reply.fenced:
            if self._resume_at_index is None:
                self._resume_at_index = reply.metadata_index
            if self._applied_index() >= self._resume_at_index and self._left_s() > 0:
                self._session_held, self._resume_at_index = True, None
                self._on_session_regained()
        if reply.should_shutdown:
            self._may_stop.set()

    async def _watch_session(self) -> None:
        while True:
            left_s = self._left_s()
            if left_s > 0:
                await self._clock.sleep(left_s)
                continue
            self._end_session_when_over()
            await self._clock.sleep(self._interval_s)
