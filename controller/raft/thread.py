"""The one thread in which a quorum member lives.

It sleeps until an event comes or something falls due (a heartbeat, an election), so an idle node costs its heartbeats and
nothing else (HOTPATH 7).  Whatever goes wrong here is the end of the process: `die` is called with the reason (fail-stop),
because a member that cannot write any more must not go on voting and acknowledging.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ...runtime import logs
from .contract import Proposal
from .core import RaftCore
from .messages import Standing
from .transport import PeerDown, PeerUp, Received

log = logs.get(__name__)

EVENTS_PER_ROUND_MAX = 1000
INBOX_MAX = 50_000
EXIT_CODE = 70  # EX_SOFTWARE
TERMS_AHEAD_MAX = 1 << 32
"""A voter is never so many elections behind another one.  A term is for ever: one flipped bit in it, once taken over, and there
would be no higher one for anybody to be elected in."""


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
    """The default `die`: at once, without unwinding: whatever runs afterwards could still promise something."""
    log.error("process_stopped", reason=reason, exit_code=EXIT_CODE)
    os._exit(EXIT_CODE)


class RaftThread:
    """Runs a core.  `post` may be called from any thread."""

    def __init__(self, core: RaftCore, die: Callable[[str], None], now: Callable[[], float] = lambda: 0.0) -> None:
        """`now`: monotonic seconds; where nobody asks `alive_s`, none is needed."""
        self._core = core
        self._now = now
        self.alive_s = now()
        """When the last round began; any thread may look.  A flush of the journal that hangs keeps the next from beginning."""
        self._die = die
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._links: dict[int, int] = {}
        self._running = True
        self._thread = threading.Thread(target=self._main, name="raft", daemon=True)
        self.rounds = 0

    def start(self) -> None:
        self._thread.start()

    def post(self, event: Event) -> bool:
        """False when the inbox is full: the event was not taken (never so for anything but a peer's message)."""
        if isinstance(event, Received) and self._inbox.qsize() >= INBOX_MAX:
            return False
        self._inbox.put(event)
        return True

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread to end (after `Stop`); False when it has not."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            while self._running:
                self._round()
            self._core.close()
        except BaseException as error:
            log.exception("raft_failed", error=str(error))
            self._die(f"the metadata quorum member failed: {error}")

    def _round(self) -> None:
        """See `core.py` for the order: tick, (sleep,) sync, messages, and round again."""
        self.rounds += 1
        self.alive_s = self._now()
        event: Event | None = None
        more = self._core.tick()
        try:
            event = self._inbox.get_nowait() if more else self._inbox.get(timeout=self._core.seconds_to_wake())
        except queue.Empty:
            pass
        self._core.sync()
        for _ in range(EVENTS_PER_ROUND_MAX):
            if event is None:
                return
            self.handle(event)
            try:
                event = self._inbox.get_nowait()
            except queue.Empty:
                return
        if event is not None:
            self.handle(event)

    def handle(self, event: Event) -> None:
        """One event, on the Raft thread (or in the simulator, which has none); frames of a replaced connection are ignored."""
        match event:
            case Received(node_id, link, message):
                if self._links.get(node_id) != link:
                    return
                if isinstance(message, Standing) or message.term <= self._core.term + TERMS_AHEAD_MAX:
                    self._core.receive(node_id, message)
                else:
                    log.error("quorum_term_not_believed", peer=node_id, term=message.term, own_term=self._core.term)
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
