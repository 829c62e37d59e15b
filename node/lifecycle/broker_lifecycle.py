"""The broker's lifecycle in the cluster: registration, heartbeats, the session, and controlled shutdown.

The session is the lease on leadership (`lease`): it ends here before the controller elects other leaders for
this broker's partitions (docs/semantics.md M6; no two leaders acknowledge in one epoch).  A broker whose
session was over (its process was paused, or its network was down) leads again only after it has applied the
metadata as far as the controller had when it answered.

The broker sends a heartbeat whenever one is due, also while it waits for the answers to earlier ones: a
controller, or a network, that takes seconds for an answer costs the lease those seconds, and no more.  A
heartbeat waits for its answer as long as the session that the answer could renew.  Heartbeats have numbers:
the controller ignores the content of one that a newer one overtook.

Order at start: register -> (metadata applied up to the registration) -> heartbeats until unfenced. Order at
stop: ask for a controlled shutdown -> heartbeats until the controller answers that every leadership has
moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ...controller.planning.brokers.reachability import Life
from ...controller.remote.client import ControllerClient
from ...controller.remote.metadata_follower import SILENCE_S_MAX
from ...controller.state.broker_fields import Replica, encode_replicas
from ...proto import controller_pb2 as pb
from ...runtime import logs
from ...runtime.calm_logs import Outage
from ...runtime.clock import Clock, until_next
from ...runtime.tasks import spawn
from ...wire.errors import ErrorCode, KafkaError
from .session_lease import AnsweredHeartbeat, Change, SessionLease

log = logs.get(__name__)


# The cluster has a newer registration of this node, or none (it was unregistered while it was down).
_SUPERSEDED: Final = frozenset(
    {
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    }
)


IN_FLIGHT_MAX: Final = 64
"""Heartbeats that wait for an answer; before one more is sent the oldest is cancelled: its answer renews the
lease the least."""
QUICK_S: Final = 0.1
"""The pause after an answer while the broker waits to be unfenced, or for the permission to stop."""
EARLY_S_MIN: Final = 0.05
"""The least time between two heartbeats, however often `heartbeat_soon` is called."""
EARLY_IN_FLIGHT_MAX: Final = 8
"""While so many wait for their answers `heartbeat_soon` sends none: it would cancel one that may still renew
the session."""

# Of the metadata stream: a live controller sends a message twice a second.
SILENCE_S_MIN: Final = 1.5


def metadata_silence_s(session_timeout_s: float) -> float:
    """How long the metadata stream may be silent before the broker connects to another controller.  A new
    active controller renews sessions only of brokers that have applied its metadata, so the broker must have
    them well before its old session ends."""
    return max(SILENCE_S_MIN, min(SILENCE_S_MAX, session_timeout_s / 2))


@dataclass(frozen=True, slots=True)
class Registration:
    """The controller's answer to the registration."""

    broker_epoch: int
    cluster_id: str
    metadata_id: str


class Leaderships(Protocol):
    """What ends and begins with the session; called on the loop."""

    def suspend_leadership(self, reason: str) -> None: ...
    def resume_leadership(self) -> None: ...


class Reported(Protocol):
    """What heartbeats report."""

    def offline_replicas(self) -> Iterable[Replica]:
        """The replicas that this broker has and cannot serve, as (topic id, partition)."""
        ...

    def damaged_replicas(self) -> Iterable[Replica]:
        """Those of them that have lost records."""
        ...

    def pin_reports(self) -> Mapping[str, str]:
        """Pin id -> what is lost here of what the pin names."""
        ...


class BrokerLifecycle:
    """One broker epoch of this broker, from its registration to its stop."""

    def __init__(
        self,
        node_id: int,
        client: ControllerClient,
        clock: Clock,
        *,
        session_timeout_s: float,
        heartbeat_interval_s: float,
        applied_index: Callable[[], int],
        on_superseded: Callable[[str], None],
        reached_by: Callable[[], Iterable[Life]] | None = None,
    ) -> None:
        """`reached_by()`: the other brokers that have connected to this one.  `on_superseded(reason)`: the
        cluster has a newer registration of this node id, or none, or this broker cannot send heartbeats any
        more; the process must end."""
        self._node_id = node_id
        self._client = client
        self._clock = clock
        self._interval_s = heartbeat_interval_s
        self._applied_index = applied_index
        self._on_superseded = on_superseded
        self._leaderships: Leaderships
        self._reported: Reported
        self._reached_by = reached_by
        self.not_reached_by: tuple[int, ...] = ()
        """The running brokers that have not connected to this one yet, by the controller's newest answer."""
        self._lease = SessionLease(session_timeout_s, clock.monotonic())
        self._unanswered = Outage(log, "heartbeat_failed")
        self._number = self._newest_answered = 0
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._heartbeats: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._wants_shutdown = False
        self._may_stop = asyncio.Event()
        self._urgent = False
        self._wake = asyncio.Event()
        self.unfenced = asyncio.Event()
        self.broker_epoch = -1

    @property
    def holds_session(self) -> bool:
        """Whether the lease on leadership is good right now."""
        return self._lease.holds(self._clock.monotonic())

    def _end_session_when_over(self) -> None:
        if self._lease.end_when_over(self._clock.monotonic()) is Change.LOST:
            self._leaderships.suspend_leadership(
                f"no answer from the controller for {self._lease.session_s:g} s"
            )

    async def register(self, request: pb.RegisterBrokerRequest, timeout_s: float) -> Registration:
        """Registers this broker, and repeats the request until a controller answers.  Raises KafkaError when
        the controller rejects it, or after `timeout_s`."""
        reply = await self._client.register_broker(request, timeout_s)
        self.broker_epoch = reply.broker_epoch
        self._lease.begin(reply.session_timeout_ms / 1000, self._clock.monotonic())
        return Registration(reply.broker_epoch, reply.cluster_id, reply.metadata_id)

    def start(self, leaderships: Leaderships, reported: Reported) -> None:
        """After the registration: sends heartbeats.  Both parts are made after this one, and need it."""
        self._leaderships, self._reported = leaderships, reported
        self._heartbeats = self._spawn(self._heartbeat_forever(), "heartbeats")
        self._watch_anew()

    def _watch_anew(self) -> None:
        """Starts the task that ends the session in time; again when the session becomes shorter than the task
        sleeps."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._spawn(self._watch_session(), "session")

    @property
    def in_flight(self) -> int:
        """Heartbeats that wait for their answers."""
        return len(self._in_flight)

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """A defect in the task ends the process: a broker without heartbeats leads nothing, and would not
        recover."""
        return spawn(work, name, lambda error: self._on_superseded(f"its {name} failed: {error!r}"))

    def heartbeat_soon(self) -> None:
        """Sends a heartbeat before the next regular one, because the controller should learn of a change.
        However often it is called, two heartbeats are at least EARLY_S_MIN (or the interval) apart."""
        self._urgent = True
        self._wake.set()

    async def leave(self, timeout_s: float) -> bool:
        """Asks the controller to move all leaderships to other brokers; False when the controller has not
        done so in time.

        It also returns False after a whole session without an answer: by then this broker leads nothing, and
        the controllers may be stopping as well.
        """
        self._wants_shutdown = True
        self.heartbeat_soon()
        asked_at = self._clock.monotonic()
        while True:
            silent_at = max(asked_at, self._lease.answered_sent_at) + self._lease.session_s
            left_s = min(asked_at + timeout_s, silent_at) - self._clock.monotonic()
            if left_s <= 0:
                return False
            try:
                await asyncio.wait_for(self._may_stop.wait(), left_s)
                return True
            except TimeoutError:
                continue  # an answer may have extended the session

    async def stop(self) -> None:
        tasks = [
            task for task in (self._heartbeats, self._watch, *self._in_flight.values()) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _heartbeat_forever(self) -> None:
        while True:
            sent_at = self._clock.monotonic()
            self._send(sent_at)
            await self._wait_until_due(sent_at)

    async def _wait_until_due(self, sent_at: float) -> None:
        """Returns when the next heartbeat is due.  A regular one does not wait for answers.  While the broker
        waits to be unfenced or to stop, the next one comes soon after all are answered."""
        while True:
            waiting = self._wants_shutdown or not self.unfenced.is_set() or self._lease.is_lost
            regular_s = until_next(sent_at, self._interval_s)
            pause_s = min(regular_s, QUICK_S) if waiting and not self._in_flight else regular_s
            if self._urgent and len(self._in_flight) < EARLY_IN_FLIGHT_MAX:
                pause_s = min(pause_s, EARLY_S_MIN)
            self._wake.clear()
            try:
                # Not wait_for, which in Python 3.11 may lose the cancellation by `stop`.
                async with asyncio.timeout(max(0.0, sent_at + pause_s - self._clock.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                break
        self._urgent = False

    def _send(self, sent_at: float) -> None:
        if len(self._in_flight) >= IN_FLIGHT_MAX:
            self._in_flight.pop(min(self._in_flight)).cancel()
        self._number += 1
        number = self._number
        task = self._in_flight[number] = self._spawn(self._heartbeat(number, sent_at), "heartbeats")

        def over(_ended: asyncio.Task[None]) -> None:
            self._in_flight.pop(number, None)
            self._wake.set()

        task.add_done_callback(over)

    def _request(self, number: int) -> pb.HeartbeatRequest:
        """Built from this node's own state: an exception here is a defect, and ends the process."""
        request = pb.HeartbeatRequest(
            node_id=self._node_id,
            broker_epoch=self.broker_epoch,
            applied_index=self._applied_index(),
            wants_shutdown=self._wants_shutdown,
            offline_replicas=encode_replicas(self._reported.offline_replicas(), pb.ReplicasOfTopic),
            damaged_replicas=encode_replicas(self._reported.damaged_replicas(), pb.ReplicasOfTopic),
            number=number,
            pins=[pb.PinReport(pin_id=key, lost=lost) for key, lost in self._reported.pin_reports().items()],
        )
        if self._reached_by is not None:
            lives = [
                pb.ReachedBy.Life(node_id=node_id, broker_epoch=epoch)
                for node_id, epoch in self._reached_by()
            ]
            request.reached_by.CopyFrom(pb.ReachedBy(lives=lives))
        return request

    async def _heartbeat(self, number: int, sent_at: float) -> None:
        request = self._request(number)
        patience_s = max(self._interval_s, 0.5)
        try:
            reply = await self._client.heartbeat(
                request, timeout_s=self._lease.session_s, patience_s=patience_s
            )
        except KafkaError as error:
            if error.code in _SUPERSEDED:
                self._on_superseded(str(error))
            else:
                self._unanswered.failed(self._clock.monotonic(), error=error)
            return
        self._unanswered.over(self._clock.monotonic())
        session_s = reply.session_timeout_ms / 1000
        self._answered(
            AnsweredHeartbeat(
                sent_at, reply.status.controller_epoch, reply.metadata_index, reply.fenced, session_s
            )
        )
        if number > self._newest_answered:
            self._newest_answered, self.not_reached_by = number, tuple(reply.not_reached_by)
        if reply.should_shutdown:  # the controller does not take this back in this broker epoch
            self._may_stop.set()

    def _answered(self, answer: AnsweredHeartbeat) -> None:
        if self._lease.shorten(answer):
            log.info(
                "session_shortened", session_s=self._lease.session_s, controller_epoch=answer.controller_epoch
            )
            self._watch_anew()
        self._end_session_when_over()
        change = self._lease.answered(answer, self._applied_index(), self._clock.monotonic())
        if self._lease.fenced:
            self.unfenced.clear()
        elif not self.unfenced.is_set():
            log.info("broker_unfenced", broker_epoch=self.broker_epoch)
            self.unfenced.set()
        if change is Change.REGAINED:
            self._leaderships.resume_leadership()

    async def _watch_session(self) -> None:
        while True:
            left_s = self._lease.left_s(self._clock.monotonic())
            if left_s > 0:
                await self._clock.sleep(left_s)
                continue
            self._end_session_when_over()
            await self._clock.sleep(self._interval_s)
