"""What the brokers have said to the active controller in this leadership: sessions, reports, attempts.

Soft state, as Kafka's `BrokerHeartbeatManager`: silence is not replicated, so nothing here is in the metadata
log, and the next controller begins anew and gives every broker a whole session before it may fence one
(docs/semantics.md M9).  How long a session may be is replicated (M8, `planning/planner.py`).

A session is      from                                        until
live              the registration, or the begin of this      silence of a whole session: a tick plans the
                  leadership; each heartbeat extends it       fencing
being fenced      a plan fences the broker                    a heartbeat has waited for that plan
                  (`fencing_planned`)                         (`fencing_settled`)
shutting down     the plan that moves its leaderships is      the next registration
                  applied (`shutdown_index`)

A new broker epoch begins a new session.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...state.model import BrokerState
from .reachability import Reachability

Leaderships = tuple[tuple[int, ...], ...]
"""Of some partitions: the leader epoch of each, then the replicas of each."""


@dataclass(slots=True)
class Session:
    """What one broker, in one epoch, has said to this controller."""

    broker_epoch: int
    heard_at: float
    applied_index: int = 0  # the broker has applied the metadata up to here
    shutdown_index: int = 0  # the entry that moved its leaderships away; 0: not shutting down
    fencing: bool = False  # the fencing of the broker is planned, and perhaps not applied yet
    heartbeat_number: int = 0  # of the newest heartbeat
    pins: dict[str, str] = field(default_factory=dict)  # pin id -> what is lost of it here; empty: nothing
    pins_index: int = 0  # `pins` was true when the broker had applied the metadata up to here


class BrokerSessions:
    """The sessions of one leadership, with what else the brokers report in it."""

    __slots__ = ("_isr_attempts", "_last_tick", "_leaderships", "began_at", "by_id", "reachability")

    def __init__(self, brokers: Iterable[BrokerState], now: float) -> None:
        self.by_id = {broker.node_id: Session(broker.broker_epoch, now) for broker in brokers}
        self.reachability = Reachability()
        self.began_at = self._last_tick = now
        # Of each broker: its epoch, and its last attempt at ISR changes.  Outlives the session.
        self._isr_attempts: dict[int, tuple[int, int]] = {}
        # Of each pin: its leaderships, and the newest entry when they were first found to be these.
        self._leaderships: dict[str, tuple[Leaderships, int]] = {}

    # ---- one session ---------------------------------------------------------------------------------------

    def of(self, broker: BrokerState, now: float) -> Session:
        """The session of this broker epoch; begins it when it is not there."""
        session = self.by_id.get(broker.node_id)
        if session is None or session.broker_epoch != broker.broker_epoch:
            session = self.by_id[broker.node_id] = Session(broker.broker_epoch, now)
        return session

    def registered(self, broker: BrokerState, now: float) -> None:
        """The registration is applied.  It begins a session, or extends that of the same broker epoch."""
        session = self.by_id.get(broker.node_id)
        if session is None or session.broker_epoch != broker.broker_epoch:
            self.reachability.forget(broker.node_id)
        self.of(broker, now).heard_at = now

    def unregistered(self, node_id: int) -> None:
        """If the id registers again, it is a new broker."""
        self.by_id.pop(node_id, None)
        self.reachability.forget(node_id)
        self._isr_attempts.pop(node_id, None)

    def extend(self, broker: BrokerState, applied_index: int, now: float) -> None:
        """A heartbeat came."""
        session = self.of(broker, now)
        session.heard_at = now
        session.applied_index = max(session.applied_index, applied_index)

    def fencing_planned(self, node_id: int) -> None:
        if node_id in self.by_id:
            self.by_id[node_id].fencing = True

    def is_being_fenced(self, node_id: int) -> bool:
        """Whether the fencing of the broker is planned.  Then the answer to its heartbeat must wait for that
        plan's elections: it would renew the lease of leaderships that other brokers get, and name metadata
        without these elections."""
        session = self.by_id.get(node_id)
        return session is not None and session.fencing

    def fencing_settled(self, node_id: int) -> None:
        if node_id in self.by_id:
            self.by_id[node_id].fencing = False

    def is_newest_isr_attempt(self, broker: BrokerState, attempt: int) -> bool:
        """Notes an attempt at ISR changes; False for one that comes after a later one (rule M12).  0: a
        broker that does not number its attempts."""
        last, this = self._isr_attempts.get(broker.node_id, (-1, -1)), (broker.broker_epoch, attempt)
        if attempt and this <= last:
            return False
        self._isr_attempts[broker.node_id] = this
        return True

    def unchanged_since(self, pin_id: str, now: Leaderships, index: int, pins: Iterable[str]) -> int:
        """The leaderships of what a pin names are `now` at entry `index`: an entry from which on they have
        been these.  Those of pins other than `pins` are forgotten."""
        kept = self._leaderships
        self._leaderships = {each: kept[each] for each in pins if each in kept}
        before, since = self._leaderships.get(pin_id, ((), index))
        self._leaderships[pin_id] = now, since if before == now else index
        return self._leaderships[pin_id][1]

    # ---- time ----------------------------------------------------------------------------------------------

    def forgive_own_absence(self, now: float, tick_interval_s: float) -> None:
        """A late tick means that this process did not run, or had too much to do (paused, starved, stuck).
        The heartbeats of that time may still be in its sockets, so sessions get that time back.  The brokers'
        leases end no later for it."""
        late_s = now - self._last_tick - tick_interval_s
        self._last_tick = now
        if late_s > tick_interval_s:
            for session in self.by_id.values():
                session.heard_at = min(now, session.heard_at + late_s)

    def expired(self, brokers: Iterable[BrokerState], timeout_s: float, now: float) -> list[int]:
        """The brokers that were silent for longer than a session and are not fenced."""
        return [
            broker.node_id
            for broker in brokers
            if not broker.fenced and now - self.of(broker, now).heard_at > timeout_s
        ]
