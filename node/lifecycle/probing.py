"""Whether the other brokers can connect to this one, and this one to them: each pair tests it once per broker
epoch.

A broker connects to every other running broker, at the address that the other one has registered, over a new
connection and with a new DNS lookup, and repeats that until the other one has answered.  The question is an
ApiVersions request, which every version of a node answers; its client id names both brokers with their
epochs.  The broker that is asked notes which brokers reached it, and its heartbeats send them to the
controller (`controller/planning/brokers/reachability.py`).  It answers an error when the question means
another broker: an address may belong to another broker now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ...controller.planning.brokers.reachability import Life
from ...controller.state.model import BrokerState
from ...runtime import logs
from ...runtime.clock import Clock
from ...runtime.connections.tls import MutualTls
from ...runtime.tasks import spawn
from ...wire.errors import KafkaError
from ..cluster.cluster_view import ClusterView
from ..cluster.peers import confirm_identity
from .broker_lifecycle import BrokerLifecycle

log = logs.get(__name__)

PREFIX: Final = "tidegate-reach"
TIMEOUT_S: Final = 1.0
RETRY_INTERVAL_S: Final = 0.3
REACHED_BY_MAX: Final = 1000
REACHED_S_MAX: Final = 120.0
"""A broker that has not connected by then has no network path, or an old address: this broker's start does
not wait longer."""


@dataclass(slots=True, frozen=True)
class Question:
    """The question of one broker whether `target` answers at its address."""

    asker: Life
    target: Life

    @property
    def client_id(self) -> str:
        return "/".join([PREFIX, *(str(number) for number in (*self.asker, *self.target))])


def parse(client_id: str) -> Question | None:
    """None for any other client id."""
    parts = client_id.split("/")
    if len(parts) != 5 or parts[0] != PREFIX:
        return None
    if any(len(part) > 19 or not part.isascii() or not part.isdigit() for part in parts[1:]):
        return None
    numbers = [int(part) for part in parts[1:]]
    if max(numbers[0], numbers[2]) >= 1 << 31 or max(numbers[1], numbers[3]) >= 1 << 63:
        return None  # no node has such numbers, and a heartbeat could not carry them
    return Question((numbers[0], numbers[1]), (numbers[2], numbers[3]))


class Asked(Enum):
    """The result of a question, at the broker that is asked."""

    REFUSED = auto()
    """The question means another broker, or another epoch of this one; or the asker's registration is not
    applied here.  The asker asks again."""
    NOTED = auto()
    KNOWN = auto()


class ReachedBy:
    """The brokers, with their epochs, that have reached this broker in its present epoch."""

    def __init__(self) -> None:
        self._lives: dict[int, int] = {}  # node id: broker epoch

    def asked(self, question: Question, own_life: Life, is_registered: Callable[[Life], bool]) -> Asked:
        """Notes the asker.  Any client can send a question in the name of a broker, so only a registered
        broker epoch counts: an invented one must not replace the real one."""
        if question.target != own_life or not is_registered(question.asker):
            return Asked.REFUSED
        node_id, epoch = question.asker
        if self._lives.get(node_id) == epoch:
            return Asked.KNOWN
        if node_id not in self._lives and len(self._lives) >= REACHED_BY_MAX:
            return Asked.KNOWN
        self._lives[node_id] = epoch
        return Asked.NOTED

    @property
    def lives(self) -> Iterable[Life]:
        return self._lives.items()


Ask = Callable[[BrokerState, Question], Awaitable[bool]]


class Prober:
    """Asks the other brokers.  `ask` makes a new connection; it returns whether the broker that is meant
    answered, or raises KafkaError."""

    def __init__(
        self,
        own_life: Callable[[], Life],
        brokers: Callable[[], Iterable[BrokerState]],
        ask: Ask,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure(error)`: a defect ended the task that asks."""
        self._own_life = own_life
        self._brokers = brokers
        self._ask = ask
        self._clock = clock
        self._on_failure = on_failure
        self._reached: dict[int, int] = {}
        # like `_reached`: the broker epochs with an unexpected failure in the log
        self._failed: dict[int, int] = {}
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = spawn(self._run(), "probing", self._on_failure)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def brokers_changed(self) -> None:
        self._look.set()

    async def _run(self) -> None:
        while True:
            self._look.clear()
            pending = self._pending()
            if not pending:
                await self._look.wait()
                continue
            await asyncio.gather(*(self._try(broker) for broker in pending))
            if self._pending():
                await self._clock.sleep(RETRY_INTERVAL_S)

    def _pending(self) -> list[BrokerState]:
        own_id, epoch = self._own_life()
        if epoch < 0:
            return []
        others = [broker for broker in self._brokers() if not broker.fenced and broker.node_id != own_id]
        return [broker for broker in others if self._reached.get(broker.node_id) != broker.broker_epoch]

    async def _try(self, broker: BrokerState) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._ask(
                    broker, Question(self._own_life(), (broker.node_id, broker.broker_epoch))
                )
        except (KafkaError, TimeoutError, OSError) as error:
            log.debug("broker_not_reached", broker=broker.node_id, address=str(broker.kafka), error=error)
            return
        except Exception as error:  # with this broker only: it is asked again, like the others
            if self._failed.get(broker.node_id) != broker.broker_epoch:
                self._failed[broker.node_id] = broker.broker_epoch
                log.error(
                    "asking_broker_failed", broker=broker.node_id, address=str(broker.kafka), error=error
                )
            return
        if found:
            self._reached[broker.node_id] = broker.broker_epoch


def ask_over_kafka(frame_bytes_max: int, tls: MutualTls | None = None) -> Ask:
    """Asks over a new connection each time, at the address that the other broker has registered."""

    async def ask(other: BrokerState, question: Question) -> bool:
        return await confirm_identity(other, question.client_id, frame_bytes_max, TIMEOUT_S, tls)

    return ask


class Probing:
    """Both directions of one broker: it asks the others, and notes which of them have connected to it.  Its
    heartbeats send `reached_by` to the controller; `ask` asks another broker (`ask_over_kafka`)."""

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
        self._reached_by_all = False
        self._prober = Prober(self._own_life, lambda: cluster.state.brokers.values(), ask, clock, on_failure)
        self.brokers_changed = self._prober.brokers_changed

    def start(self) -> None:
        self._prober.start()

    async def stop(self) -> None:
        await self._prober.stop()

    def _own_life(self) -> Life:
        return self._cluster.node_id, self._lifecycle.broker_epoch

    def accept_question(self, question: Question) -> bool:
        """Another broker has connected; False when it meant another broker or another epoch of this one."""
        asked = self._reached_by.asked(question, self._own_life(), self._cluster.is_registered)
        if asked is Asked.NOTED and question.asker[0] in self._lifecycle.not_reached_by:
            self._lifecycle.heartbeat_soon()
        return asked is not Asked.REFUSED

    @property
    def is_reached_by_all(self) -> bool:
        """True when every running broker has connected to this one, or after a bounded wait.  Where DNS lags
        behind new addresses a rolling restart waits for it here."""
        waits_for = self._lifecycle.not_reached_by
        if not self._reached_by_all:
            self._reached_by_all = not waits_for or self._clock.monotonic() - self._started_at > REACHED_S_MAX
            if self._reached_by_all and waits_for:
                own = self._cluster.state.brokers.get(self._cluster.node_id)
                log.warning(
                    "not_found_by_others",
                    brokers=list(waits_for),
                    address=None if own is None else str(own.kafka),
                )
        return self._reached_by_all
