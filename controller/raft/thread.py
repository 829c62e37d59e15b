"""The Raft thread: runs a quorum member and its connections on an event loop of its own.

The thread reads, handles and answers the frames of other voters: no client request of the node delays them,
and a frame costs one wake-up.  It sleeps until a frame arrives or a deadline is due (heartbeat, election), so
an idle node costs only its heartbeats. The loop reads arrived frames before it acts on deadlines: a member
whose process was paused gets the leader's messages first, and does not take its own pause for the leader's
silence.  A pause often affects all members (a busy machine): so a member that is more than `LATE_S` late for
its election waits for two more heartbeats, once, unless its connection to the leader broke.

Any error in a round ends the process: the thread calls `die` with the reason (fail-stop), because a member
that cannot write must not go on voting and acknowledging.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from ...runtime import logs
from .contract import Proposal, Role
from .core import RaftCore
from .messages import VoteRequest, VoterStatus
from .transport import PeerDown, PeerUp, Received

log = logs.get(__name__)

T = TypeVar("T")

EVENTS_PER_ROUND_MAX = 1000
INBOX_MAX = 50_000
LATE_S = 0.05
EXIT_CODE = 70  # EX_SOFTWARE
TERMS_AHEAD_MAX = 1 << 32
"""No voter is ever so many elections behind.  Terms never fall: a voter that accepted a term with a flipped
high bit would leave no higher term for further elections."""


@dataclass(slots=True, frozen=True)
class SnapshotStored:
    """The wanted snapshot is durable up to `index`; None: it was not made."""

    index: int | None


@dataclass(slots=True, frozen=True)
class BindCluster:
    cluster_id: str


@dataclass(slots=True, frozen=True)
class Inspect:
    """Runs a function of the core on the Raft thread; it must be quick and must not raise."""

    look: Callable[[RaftCore], None]


@dataclass(slots=True, frozen=True)
class Stop:
    """Ends the thread after a last sync."""


Event = PeerUp | PeerDown | Received | Proposal | SnapshotStored | BindCluster | Inspect | Stop


def exit_process(reason: str) -> NoReturn:
    """The default `die`: ends the process at once, without unwinding, because code that runs afterwards could
    still send promises."""
    log.error("process_stopped", reason=reason, exit_code=EXIT_CODE)
    os._exit(EXIT_CODE)


def in_order(events: list[Event]) -> list[Event]:
    """The events in order, but PreVote requests last: after its own pause a member finds them beside the
    leader's messages, and must handle the leader's first."""
    asked = [event for event in events if _asks_to_stand(event)]
    return [*(event for event in events if not _asks_to_stand(event)), *asked] if asked else events


def _asks_to_stand(event: Event) -> bool:
    return (
        isinstance(event, Received) and isinstance(event.message, VoteRequest) and event.message.preliminary
    )


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class RaftThread:
    """Runs a core.  `post` may be called from any thread."""

    def __init__(
        self,
        core: RaftCore,
        die: Callable[[str], None],
        now: Callable[[], float] = lambda: 0.0,
        *,
        validate: bool = False,
    ) -> None:
        """`now`: monotonic seconds; only `alive_s` needs it.  `validate`: every round ends with
        `RaftCore.validate`."""
        self._core = core
        self._now = now
        self._validate = validate
        self.alive_s = now()
        """When the last round began; any thread may look.  A flush of the journal that hangs keeps the next
        from beginning."""
        self._die = die
        self._inbox: deque[Event] = deque()
        self._links: dict[int, int] = {}
        self._running = True
        self._has_failed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="raft", daemon=True)
        self._round_is_near = False
        self._alarm: asyncio.TimerHandle | None = None
        self._has_waited = False
        self.rounds = 0

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on the thread's loop; from any other thread, between `start` and `Stop`."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def post(self, event: Event) -> bool:
        """False when the inbox is full: the event was not taken (never so for anything but a peer's
        message)."""
        if isinstance(event, Received) and len(self._inbox) >= INBOX_MAX:
            return False
        self._inbox.append(event)
        if not self._round_is_near and self._loop is not None:
            self._round_is_near = True
            if threading.get_ident() == self._thread.ident:
                self._loop.call_soon(self._round)
            else:
                try:
                    self._loop.call_soon_threadsafe(self._round)
                except RuntimeError:  # the loop is closed: the thread has ended
                    log.debug("raft_thread_has_ended", posted=type(event).__name__)
        return True

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread to end (after `Stop`); False when it has not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        loop = self._loop
        assert loop is not None
        try:
            loop.call_soon(self._round)
            loop.run_forever()
            if not self._has_failed:
                self._core.close()
        except BaseException as error:
            self._failed(error)
        finally:
            loop.run_until_complete(_cancel_all())
            loop.close()

    def _failed(self, error: BaseException) -> None:
        self._running, self._has_failed = False, True
        log.failure("raft_failed", error, error=str(error))
        self._die(f"the metadata quorum member failed: {error}")

    def _round(self) -> None:
        """See `core` for the order: sync, messages, tick, and round again."""
        if not self._running:
            return
        self._round_is_near = False
        self.rounds += 1
        self.alive_s = self._now()
        try:
            self._core.sync()
            come = min(len(self._inbox), EVENTS_PER_ROUND_MAX)
            self._has_waited &= not come
            for event in in_order([self._inbox.popleft() for _ in range(come)]):
                self.handle(event)
            more = self._core.tick()
            if self._validate:
                self._core.validate()
            sleeps_s = 0.0 if more or self._inbox else self._core.seconds_to_wake()
        except BaseException as error:
            self._failed(error)
        assert self._loop is not None
        if not self._running:
            self._loop.stop()
        elif not self._round_is_near:
            self._sleep(sleeps_s)

    def _sleep(self, seconds: float) -> None:
        """Until the next round; an event wakes the thread before that.  An alarm that is set and early enough
        stays: most rounds (a follower's) only put off what is due."""
        assert self._loop is not None
        if seconds <= 0:
            self._round_is_near = True
            self._loop.call_soon(self._round)
            return
        due = self._loop.time() + seconds
        if self._alarm is not None:
            if self._alarm.when() <= due:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(due, self._alarm_rings)

    def _alarm_rings(self) -> None:
        """What had come by now is read already, and its round is near."""
        assert self._loop is not None
        assert self._alarm is not None
        now, late_s, self._alarm = self._loop.time(), self._loop.time() - self._alarm.when(), None
        if self._round_is_near:
            return
        leads_or_lost = self._core.role is Role.LEADER or self._core.lost_leader
        if late_s > LATE_S and not self._has_waited and not leads_or_lost:
            self._has_waited = True
            self._alarm = self._loop.call_at(now + 2 * self._core.timings.heartbeat_s, self._alarm_rings)
        else:
            self._round()

    def handle(self, event: Event) -> None:
        """One event, on the Raft thread (or in the simulator, which has none); frames of a replaced
        connection are ignored."""
        match event:
            case Received(node_id, link, message):
                if self._links.get(node_id) != link:
                    return
                if isinstance(message, VoterStatus) or message.term <= self._core.term + TERMS_AHEAD_MAX:
                    self._core.receive(node_id, message)
                else:
                    log.error(
                        "quorum_term_not_believed", peer=node_id, term=message.term, own_term=self._core.term
                    )
            case Proposal():
                self._core.propose(event)
            case PeerUp(node_id, link):
                if node_id in self._links:
                    self._core.peer_disconnected(node_id)
                self._links[node_id] = link
                self._core.peer_connected(node_id)
            case PeerDown(node_id, link):
                if self._links.get(node_id) == link:
                    del self._links[node_id]
                    self._core.peer_disconnected(node_id)
            case SnapshotStored(index):
                self._core.snapshot_stored(index)
            case BindCluster(cluster_id):
                self._core.bind_cluster(cluster_id)
            case Inspect(look):
                look(self._core)
            case Stop():
                self._running = False
