"""One history: a cluster, clients, faults, and then peace, in which everything must come right within a
bound.

    History(seed).run()        raises Broken when a promise does not hold, always in the same way
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from random import Random

from ....controller.planning.planner import ControllerConfig
from ....controller.state.cluster_state import ClusterState
from ....controller.state.model import ApplyResult
from ....replication.replica.replica import Replica
from ....wire.errors import ErrorCode, KafkaError
from ..runs import Broken
from .clients import CLIENTS, Clients, Consumer, Deleter, Producer
from .clock import VirtualClock
from .contents import agree
from .faults import Faults
from .names import Names
from .network import Network, Weather
from .node import SimulatedNode, Surroundings
from .options import Options, draw
from .quorum import Quorum
from .truth import Truth
from .virtual_loop import Process, VirtualLoop

CONTROLLERS = (101, 102)
TOPIC = "t"
HEAL_S_MAX = 60.0
START_S_MAX = 30.0
LOOK_S = 0.25
REBALANCE_MS = 1000


class History:
    """See the module's text."""

    def __init__(
        self, seed: int, options: Options | None = None, *, drawn_by: Callable[[Random], Options] = draw
    ) -> None:
        self.seed = seed
        self.seen: Counter[str] = Counter()
        self._random = random = Random(seed)
        self.options = options or drawn_by(random)
        self.loop = loop = VirtualLoop()
        self.network = Network(loop, random, self.seen)
        self.quorum = Quorum(loop, random, self._committed)
        self.names = Names(loop, random, self.seen, self.options.names_lag_s or 0.0)
        self.nodes: dict[int, SimulatedNode] = {}
        self.truth = Truth(self.nodes, self.seen, self._names())
        around = Surroundings(
            loop, random, self.network, self.quorum, CONTROLLERS, self.options.timings, self.seen, self.names,
            self.options.names_lag_s is not None, self.options.heartbeats_late_s,
            self.options.single_heartbeats,
        )  # fmt: skip
        for node_id, part in zip(CONTROLLERS, self.options.controllers_sessions, strict=True):
            config = ControllerConfig(
                session_timeout_ms=int(part * self.options.timings.session_timeout_s * 1000),
                tick_interval_ms=200,
                leader_rebalance_interval_ms=30_000 if self.options.names_lag_s is None else REBALANCE_MS,
            )
            process = self.network.processes[node_id] = Process(loop, f"controller {node_id}")
            process.run(self.quorum.add_controller, node_id, process, VirtualClock(loop, random), config)
        for node_id in range(1, self.options.replicas + self.options.spare + 1):
            self.nodes[node_id] = SimulatedNode(
                node_id, around, self.nodes.__getitem__, self._appended, self._acknowledged, self._deletion,
                self._deleted, self._progressed, self._leaving,
            )  # fmt: skip
        self.network.processes[CLIENTS] = Process(loop, "clients")
        self.faults = Faults(
            loop, random, self.options, self.nodes, self.network, self.quorum, self.truth, self.seen, TOPIC
        )
        self.clients = Clients(random, self.network, self.nodes, self.truth, TOPIC)
        self._failure: BaseException | None = None
        self._errors = _Errors()
        loop.after_step = self._after_step

    # ---- reports to the truth ------------------------------------------------------------------------------

    def _committed(self, state: ClusterState, result: ApplyResult) -> None:
        self._guard(lambda: self.truth.on_commit(state, result, self.loop.time()))

    def _appended(self, node: SimulatedNode, replica: Replica) -> None:
        self._guard(lambda: self.truth.appended(node, replica, self.loop.time()))

    def _acknowledged(self, node: SimulatedNode, replica: Replica, next_offset: int, batch_id: int) -> None:
        self._guard(lambda: self.truth.look_at(node))
        self._guard(lambda: self.truth.acknowledged(node, replica, next_offset, batch_id, self.loop.time()))

    def _deletion(self, node: SimulatedNode, replica: Replica, before_offset: int) -> None:
        self.truth.deletion_asked(replica, before_offset)

    def _deleted(self, node: SimulatedNode, replica: Replica, low: int) -> None:
        self._guard(lambda: self.truth.look_at(node))
        self._guard(lambda: self.truth.deleted(node, replica, low))

    def _progressed(self, node: SimulatedNode) -> None:
        self._guard(lambda: self.truth.look_at(node))

    def _leaving(self, node: SimulatedNode) -> None:
        self.truth.look_at(node)
        self.seen["left in good order"] += 1
        self.faults.note_contents(node, all_of_it=True)

    def _names(self) -> Names | None:
        return self.names if self.options.names_lag_s is not None else None

    def _guard(self, check: Callable[[], None]) -> None:
        """The product must not catch an error that a check raises in the middle of one of its steps."""
        try:
            check()
        except Broken as broken:
            self._failure = self._failure or broken

    def _after_step(self, process: Process | None) -> None:
        if process is not None:
            for node in self.nodes.values():
                if node.process is process:
                    self._after_step_of(node)
                    break
        if self._failure is not None:
            raise self._failure
        if self.loop.unhandled:
            raise Broken(f"unhandled: {self.loop.unhandled[0]!r}") from self.loop.unhandled[0]
        if self._errors.found:
            raise Broken(f"an error that nothing in this world explains: {self._errors.found[0]}")

    def _after_step_of(self, node: SimulatedNode) -> None:
        cut_after = node.disk.cut_after
        if cut_after is not None and cut_after < 0:
            self.seen["power cut within a change"] += 1
            self.loop.unhandled.clear()
            self._errors.found.clear()
            self.faults.stop_node(node, power=True)
            self.faults.restart_later(node)
            return
        self.truth.look_at(node)

    # ---- the history ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Broken."""
        self._errors.listen()
        try:
            self._begin()
            self._live()
            self._heal()
        except Broken as broken:
            raise Broken(f"seed {self.seed}, {self.loop.time():.3f} s: {broken}") from broken
        finally:
            self._errors.silence()
            self.loop.after_step = lambda _process: None
            self.loop.close()

    def _begin(self) -> None:
        self.quorum.elect(CONTROLLERS[0], deposed_knows=True)
        for node in self.nodes.values():
            node.start()
        self._wait(self.faults.create_topic, START_S_MAX, "the topic could not be created")
        self.network.weather = self.options.weather
        clients = self.network.processes[CLIENTS]
        for number, (acks, idempotent) in enumerate(self.options.producers):
            partition = number % self.options.partitions
            producer = Producer(
                self.clients, number, partition, acks, idempotent, self.options.produce_pause_s
            )
            clients.spawn(producer.run())
        self.consumers = [Consumer(self.clients, number, 0.3) for number in range(self.options.partitions)]
        for consumer in self.consumers:
            clients.spawn(consumer.run())
        if self.options.delete_pause_s:
            for number in range(self.options.partitions):
                clients.spawn(Deleter(self.clients, number, self.options.delete_pause_s).run())

    def _live(self) -> None:
        self.loop.world_task(self._strike())
        self.loop.world_task(self._restart_ended())
        self.loop.run_until(lambda: False, self.loop.time() + self.options.duration_s)

    async def _strike(self) -> None:
        while True:
            await asyncio.sleep(2 * self.options.fault_pause_s * self._random.random())
            if self.clients.quiet:
                return
            self.faults.strike()

    async def _restart_ended(self) -> None:
        """The supervisor of the processes: it starts nodes again that ended themselves or left, and creates a
        lost topic."""
        while True:
            await asyncio.sleep(1.0)
            self.restart_ended()
            self.faults.create_topic()

    def restart_ended(self) -> None:
        for node in self.nodes.values():
            if node.failed and self.faults.stop_node(node, power=False):
                self.seen["restarted"] += 1
            if not node.alive and (self.clients.quiet or node.failed):
                node.start()

    def _heal(self) -> None:
        """All come back and the network works: every replica joins, all are equal, and a new record is
        committed."""
        self.clients.quiet = True
        self.faults.stop()
        self.names.heal()
        self.network.weather = Weather()
        self.restart_ended()
        deadline_s = self.loop.time() + HEAL_S_MAX
        self._wait(lambda: not self._unsettled(), HEAL_S_MAX, "the cluster does not come right")
        producers = [
            Producer(self.clients, 100 + number, number, -1, True, 0.1)
            for number in range(self.options.partitions)
        ]
        work = [
            self.network.processes[CLIENTS].spawn(producer.send(1, tries_max=100, when_quiet=True))
            for producer in producers
        ]
        self._wait(
            lambda: all(task.done() for task in work),
            deadline_s - self.loop.time() + 5.0,
            "no new record is committed",
        )
        if not all(task.result() for task in work):
            raise Broken("no new record is acknowledged")
        self._delete_again()
        # In one look: a request of a client that has given up may arrive late, and is replicated like any
        # other.
        self._wait(
            lambda: not self._unsettled() and self._consumed(), 20.0, "what is committed does not reach all"
        )
        self.truth.check_all(self.clients.idempotent)

    def _delete_again(self) -> None:
        """Repeats the deletions that clients requested, perhaps without an answer: now each must be done."""
        wanted = {
            number: min(truth.gone_below, len(truth.committed))
            for (_, number), truth in self.truth.partitions.items()
        }
        work = [
            self.network.processes[CLIENTS].spawn(
                Deleter(self.clients, number, 0.0).delete_until_answered(before_offset, 15.0)
            )
            for number, before_offset in wanted.items()
            if before_offset
        ]
        self._wait(lambda: all(task.done() for task in work), 16.0, "records are not deleted")
        if any(task.exception() for task in work):
            raise Broken("a DeleteRecords is not answered")

    def _unsettled(self) -> str:
        leaving = [node.node_id for node in self.nodes.values() if node.leaving or not node.alive]
        return f"nodes {leaving} are on their way out" if leaving else self.truth.unsettled()

    def _consumed(self) -> bool:
        for number, consumer in enumerate(self.consumers):
            truth = next(
                (truth for (_topic_id, place), truth in self.truth.partitions.items() if place == number),
                None,
            )
            if truth is None or len(consumer.records) != len(truth.committed):
                return False
            # Deleted records are not compared: a consumer that had read them before an unclean election keeps
            # them.
            if not agree(
                consumer.records, truth.committed, len(truth.committed), truth.gone_below, truth.gone_below
            ):
                return False
        return True

    def _wait(self, done: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Looks a few times a second."""
        until_s = self.loop.time() + seconds
        while not done():
            if self.loop.time() >= until_s:
                raise Broken(f"{otherwise} within {seconds:.0f} s: {self._unsettled()}")
            self.loop.run_until(lambda: False, self.loop.time() + LOOK_S)

    def counts(self) -> dict[str, int]:
        """What a run of many histories sums up."""
        names = ("elections", "unclean elections", "appended", "acknowledged", "deleted")
        faults = sum(count for name, count in self.seen.items() if name.startswith("fault "))
        return {"faults": faults, **{name: self.seen[name] for name in names}}


class _Errors(logging.Handler):
    """Tracebacks that the product logs: defects, unless a fault of this world explains them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        disk_failed = isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        if error is not None and not disk_failed:
            self.found.append(f"{record.getMessage()}: {error!r}")

    def listen(self) -> None:
        self._disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)
        logging.root.addHandler(self)

    def silence(self) -> None:
        logging.root.removeHandler(self)
        logging.disable(self._disabled)
