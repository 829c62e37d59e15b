"""Whether the other brokers can connect to this one, and this one to them: the tasks and callbacks around
`reachability`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...controller.planning.reachability import Life
from ...controller.state.model import BrokerState
from ...runtime import logs
from ...runtime.clock import Clock
from ..cluster.cluster_view import ClusterView
from ..cluster.peers import confirm_identity
from .broker_lifecycle import BrokerLifecycle
from .reachability import TIMEOUT_S, Ask, Asked, Prober, Question, ReachedBy

log = logs.get(__name__)

FOUND_S_MAX: Final = 120.0
"""A broker that has not connected by then has no network path, or an old address: this broker's start does
not wait longer."""


def ask_over_kafka(frame_bytes_max: int) -> Ask:
    """Asks over a new connection each time, at the address that the other broker has registered."""

    async def ask(other: BrokerState, question: Question) -> bool:
        return await confirm_identity(other, question.client_id, frame_bytes_max, TIMEOUT_S)

    return ask


class Finding:
    """The prober of one broker, and whether the other brokers have connected to it.  Its heartbeats send
    `reached_by` to the controller; `ask` asks another broker (`ask_over_kafka`)."""

    def __init__(
        self,
        cluster: ClusterView,
        lifecycle: BrokerLifecycle,
        reached_by: ReachedBy,
        ask: Ask,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._cluster = cluster
        self._lifecycle = lifecycle
        self._reached_by = reached_by
        self._clock = clock
        self._started_at = clock.monotonic()
        self._found = False
        self._prober = Prober(self._own_life, lambda: cluster.state.brokers.values(), ask, clock, on_failure)
        self.start, self.stop = self._prober.start, self._prober.stop
        self.brokers_changed = self._prober.brokers_changed

    def _own_life(self) -> Life:
        return self._cluster.node_id, self._lifecycle.broker_epoch

    def accept_question(self, question: Question) -> bool:
        """Another broker has connected; False when it meant another broker or another epoch of this one."""
        asked = self._reached_by.asked(question, self._own_life(), self._cluster.is_registered)
        if asked is Asked.NOTED and question.asker[0] in self._lifecycle.not_reached_by:
            self._lifecycle.heartbeat_soon()
        return asked is not Asked.REFUSED

    @property
    def is_found(self) -> bool:
        """True when every running broker has connected to this one, or after a bounded wait.  Where DNS lags
        behind new addresses a rolling restart waits for it here."""
        waits_for = self._lifecycle.not_reached_by
        if not self._found:
            self._found = not waits_for or self._clock.monotonic() - self._started_at > FOUND_S_MAX
            if self._found and waits_for:
                own = self._cluster.state.brokers.get(self._cluster.node_id)
                log.warning(
                    "not_found_by_others",
                    brokers=list(waits_for),
                    address=None if own is None else str(own.kafka),
                )
        return self._found
