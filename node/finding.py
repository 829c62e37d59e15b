"""What a node does for being found by the others, and for finding them: see `reachability`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..controller.model import BrokerState
from ..controller.reachability import Life
from ..runtime import logs
from .broker import Broker
from .peers import ask_who_it_is
from .reachability import TIMEOUT_S, Prober, Question

log = logs.get(__name__)

FOUND_S_MAX: Final = 120.0
"""Others that have not found a broker by then are cut off from it, or have another address for it: that is not its start."""


class Finding:
    """The prober of one broker, and whether the others have found it."""

    def __init__(self, broker: Broker, frame_bytes_max: int, on_failure: Callable[[BaseException], None]) -> None:
        self._broker = broker
        self._frame_bytes_max = frame_bytes_max
        self._started_at = broker.clock.monotonic()
        self._found = False
        self._prober = Prober(self._own_life, lambda: broker.state.brokers.values(), self._ask, broker.clock, on_failure)
        self.start, self.stop = self._prober.start, self._prober.stop
        broker.brokers_changed = self._prober.brokers_changed

    def _own_life(self) -> Life:
        return self._broker.node_id, self._broker.membership.broker_epoch

    async def _ask(self, other: BrokerState, question: Question) -> bool:
        return await ask_who_it_is(other, question.client_id, self._frame_bytes_max, TIMEOUT_S)

    @property
    def is_found(self) -> bool:
        """Where names lag behind addresses, a rolling restart waits for the names, though not for ever."""
        waits_for = self._broker.membership.not_reached_by
        if not self._found:
            self._found = not waits_for or self._broker.clock.monotonic() - self._started_at > FOUND_S_MAX
            if self._found and waits_for:
                log.warning("not_found_by_others", brokers=list(waits_for), address=self._broker.configuration.advertised_kafka)
        return self._found
