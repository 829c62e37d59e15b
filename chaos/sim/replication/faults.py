"""What befalls the cluster of a history: one method a fault.  Each ends by itself, and at the latest when the
history heals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from ....controller.planning import topics
from ....controller.planning.partitions.elections import Wanted, change_operations
from ....controller.state.model import TopicState
from ....proto import controller_pb2 as pb_rpc
from ....proto import metadata_pb2 as pb
from ....wire.errors import KafkaError
from ..disk import LyingDisk
from .options import Options
from .quorum import Quorum
from .virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from .network import Network
    from .node import SimulatedNode
    from .truth import Truth

FULL_SPARE_BYTES = 3000


class Faults:
    """Carries out faults by their names, until `stop()`."""

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        options: Options,
        nodes: dict[int, SimulatedNode],
        network: Network,
        quorum: Quorum,
        truth: Truth,
        seen: Counter[str],
        topic: str,
    ) -> None:
        self._loop = loop
        self._random = random
        self._options = options
        self._nodes = nodes
        self._network = network
        self._quorum = quorum
        self._truth = truth
        self._seen = seen
        self._topic = topic
        self._stopped = False
        self._suspect: list[SimulatedNode] = []

    def strike(self) -> None:
        """One fault, drawn by its weight."""
        names = [name for name, _weight in self._options.faults]
        weights = [weight for _name, weight in self._options.faults]
        if any(weights):
            name = self._random.choices(names, weights)[0]
            if getattr(self, f"_{name}")() is not False:
                self._seen[f"fault {name}"] += 1

    def stop(self) -> None:
        """No more faults; what lasts is ended."""
        self._stopped = True
        self._network.cuts.clear()
        for node_id in self._quorum.logs:
            self._quorum.resume(node_id)
        for node in self._suspect:
            node.failed = True  # the operator starts a node again after an I/O error
        for node in self._nodes.values():
            self._mend_disk(node)
            node.disk.cut_after_truncation = None
            node.slow_s = 0.0
            node.out_of_room = False
            if node.process is not None and node.process.paused:
                node.process.resume()

    def _later(self, seconds_max: float, what: Callable[[], object]) -> None:
        self._loop.world_later(seconds_max * self._random.random(), lambda: None if self._stopped else what())

    def _any_node(self) -> SimulatedNode:
        """Leaders are hurt more often than others."""
        node = self._random.choice(tuple(self._nodes.values()))
        if self._random.random() < 0.4:
            states = [truth.state for truth in self._truth.partitions.values() if truth.state is not None]
            node = self._nodes.get(states[0].leader, node) if states else node
        return node

    # ---- crashes -------------------------------------------------------------------------------------------

    def stop_node(self, node: SimulatedNode, *, power: bool, disk_lost: bool = False) -> bool:
        """An unclean end; False when more would be lost than the cluster promises to survive."""
        if not node.alive and node.directory is None:
            return False
        loses = disk_lost or (not self._options.flushed and node.directory is not None)
        counted_on = loses and self._truth.is_counted_on(node.node_id, self._quorum.state)
        if counted_on and len(self._truth.dirty | {node.node_id}) > self._options.losable:
            return False
        self.note_contents(node)
        node.end()
        if power:
            node.disk.crash(self._random)
        if disk_lost:
            node.disk, node.disk_number = LyingDisk(), node.disk_number + 1
        if loses:
            self._truth.node_lost_data(node.node_id, self._quorum.state)
        return True

    def note_contents(self, node: SimulatedNode, *, all_of_it: bool = False) -> None:
        keys = {key: truth.flushed and not all_of_it for key, truth in self._truth.partitions.items()}
        cut_within = node.disk.cut_after is not None and node.disk.cut_after < 0
        self._truth.contents.node_stops(node, keys, within_a_change=cut_within)

    def restart_later(self, node: SimulatedNode) -> None:
        def restart() -> None:
            if not node.alive:
                self._mend_disk(node)
                node.start()

        self._later(self._random.choice((0.3, 1.0, 6.0)), restart)

    def _mend_disk(self, node: SimulatedNode) -> None:
        node.disk.capacity = None
        node.disk.fail_sync = False
        node.disk.fail_sync_after = None
        node.disk.cut_after = None

    def _kill(self) -> bool | None:
        node = self._any_node()
        if not self.stop_node(node, power=False):
            return False
        self.restart_later(node)
        return None

    def _power_cut(self) -> bool | None:
        node = self._any_node()
        if not self.stop_node(node, power=True):
            return False
        self.restart_later(node)
        return None

    def _power_cut_within(self) -> bool | None:
        """The power goes in the middle of one of the next changes of the disk; the history sees to the
        rest."""
        node = self._any_node()
        if not node.alive or not self._options.flushed or node.disk.cut_after is not None:
            return False
        node.disk.cut_after = self._random.randrange(12)
        return None

    def _power_cut_after_truncation(self) -> bool | None:
        """The power goes in one of the changes that follow the next truncation of a log: the records that
        take the place of the truncated ones may be durable by then."""
        node = self._any_node()
        if not node.alive or not self._options.flushed or node.disk.cut_after is not None:
            return False
        node.disk.cut_after_truncation = ".log", self._random.randrange(2, 8)
        return None

    def _power_cut_all(self) -> bool | None:
        if not self._options.flushed:
            return False
        for node in self._nodes.values():
            if self.stop_node(node, power=True):
                self.restart_later(node)
        return None

    def _replace_disk(self) -> bool | None:
        node = self._any_node()
        if not self.stop_node(node, power=True, disk_lost=True):
            return False
        self.restart_later(node)
        return None

    def _leave(self) -> bool | None:
        """A controlled shutdown, and a clean start later."""
        node = self._any_node()
        if not self._options.flushed and node.disk.capacity is not None:
            return False  # without room for its marks it ends unclean
        node.leaving = True
        return None

    # ---- things that pass ----------------------------------------------------------------------------------

    def _pause(self) -> bool | None:
        process = self._any_node().process
        if process is None or not process.alive or process.paused:
            return False
        process.pause()
        longest_s = self._options.timings.session_timeout_s * self._random.choice((0.5, 2.5))
        self._later(longest_s, lambda: process.resume() if process.alive and process.paused else None)
        return None

    def _cut(self, pairs: list[tuple[int, int]]) -> None:
        """Both directions, or one."""
        direction = self._random.choice((0, 0, 1, 2))
        cut = {pair for pair in pairs if direction in (0, 1)} | {
            pair[::-1] for pair in pairs if direction in (0, 2)
        }
        self._network.cuts |= cut
        seconds_max = self._options.timings.session_timeout_s * self._random.choice((0.5, 3.0))
        self._later(seconds_max, lambda: self._network.cuts.difference_update(cut))

    def _cut_pair(self) -> bool | None:
        others = [node_id for node_id in self._nodes if node_id != (first := self._any_node().node_id)]
        if not others:
            return False
        self._cut([(first, self._random.choice(others))])
        return None

    def _cut_controllers(self) -> None:
        node_id = self._any_node().node_id
        self._cut([(node_id, controller) for controller in self._quorum.logs])

    def _cut_one_controller(self) -> None:
        self._cut([(self._any_node().node_id, self._random.choice(tuple(self._quorum.logs)))])

    def _isolate(self) -> None:
        """From the other nodes and the controllers, not from the clients."""
        node_id = self._any_node().node_id
        self._cut([(node_id, other) for other in (*self._nodes, *self._quorum.logs) if other != node_id])

    def _slow_disk(self) -> None:
        node = self._any_node()
        node.slow_s = self._random.choice((0.1, 1.0, 4.0))

        def end() -> None:
            node.slow_s = 0.0

        self._later(5.0, end)

    def _full_disk(self) -> bool | None:
        node = self._any_node()
        if not self._options.flushed and node.leaving:
            return False
        node.disk.capacity = node.disk.used_bytes() + self._random.randrange(FULL_SPARE_BYTES)
        self._later(4.0, lambda: self._mend_disk(node))
        return None

    def _out_of_room(self) -> None:
        """The rest of the disk is for the node's own files: the node accepts no more records, and continues
        otherwise."""
        node = self._any_node()
        node.out_of_room = True

        def end() -> None:
            node.out_of_room = False

        self._later(4.0, end)

    def _failing_sync(self) -> bool | None:
        node = self._any_node()
        if not self._options.flushed:
            return False  # what a failed sync takes away was acknowledged: the topic's choice
        node.disk.fail_sync_after = self._random.randrange(4)
        self._suspect.append(node)
        return None

    # ---- the controller's doing ----------------------------------------------------------------------------

    def _pause_controller(self) -> bool | None:
        """The active controller stands still; the others elect another when they miss it."""
        active = self._quorum.leader_id
        process = self._network.processes.get(active)
        if process is None or process.paused:
            return False
        self._quorum.pause(active)
        self._later(self._random.choice((0.6, 6.0)), lambda: self._quorum.resume(active))
        return None

    def _fail_over_controller(self) -> None:
        others = [node_id for node_id in self._quorum.logs if node_id != self._quorum.leader_id]
        self._quorum.elect(self._random.choice(others), deposed_knows=self._random.random() < 0.5)

    def _move_leader(self) -> bool | None:
        """Leadership moves to another member of the ISR, in good order."""
        state = self._quorum.state
        moves: list[Wanted] = []
        topic = state.topics.get(self._topic)
        for number, partition in topic.partitions.items() if topic is not None else ():
            able = [each for each in partition.isr if each != partition.leader and state.brokers[each].active]
            if topic is not None and able:
                leader = self._random.choice(able)
                moves.append(Wanted(topic, number, partition, leader, partition.isr, partition.elr, leader))
        return None if self._propose(list(change_operations(moves))) else False

    def _move_leaders_fast(self) -> None:
        for count in range(self._random.randrange(2, 6)):
            self._later(0.02 * count, self._move_leader)

    def _recreate_topic(self) -> bool | None:
        state = self._quorum.state
        topic = state.topics.get(self._topic)
        if topic is None:
            return False
        delete = pb.Operation(delete_topic=pb.DeleteTopic(topic_id=topic.topic_id.bytes))
        if not self._propose([delete]):
            return False
        if self._random.random() < 0.5:
            self.create_topic_with_nodes_away()
        else:
            self._later(2.0, self.create_topic_with_nodes_away)
        return None

    def _move_replicas(self) -> bool | None:
        """To any nodes, whether they run or not; a reassignment in progress is replaced."""
        topic = self._quorum.state.topics.get(self._topic)
        if topic is None:
            return False
        number = self._random.choice(tuple(topic.partitions))
        wanted = list(self._nodes)
        self._random.shuffle(wanted)
        replicas = wanted[: self._options.replicas + self._random.choice((0, 0, 0, 1))]
        return self._ask_controller(
            pb_rpc.Reassignment(topic=self._topic, partition=number, replicas=replicas)
        )

    def _cancel_move(self) -> bool | None:
        topic = self._quorum.state.topics.get(self._topic)
        moving = (
            [number for number, partition in topic.partitions.items() if partition.target]
            if topic is not None
            else []
        )
        if not moving:
            return False
        return self._ask_controller(
            pb_rpc.Reassignment(topic=self._topic, partition=self._random.choice(moving), cancel=True)
        )

    def _ask_controller(self, wanted: pb_rpc.Reassignment) -> bool | None:
        """Sends the request to the active controller at once, and does not wait for the answer."""
        service = self._quorum.services.get(self._quorum.leader_id)
        if service is None:
            return False
        process = self._network.processes[self._quorum.leader_id]
        process.spawn(service.ReassignPartitions(pb_rpc.ReassignPartitionsRequest(partitions=[wanted]), None))
        return None

    def create_topic_with_nodes_away(self) -> bool:
        return self.create_topic(all_present=False)

    def create_topic(self, *, all_present: bool = True) -> bool:
        """True when the topic exists."""
        state = self._quorum.state
        if self._topic in state.topics:
            return True
        active = [broker.node_id for broker in state.registered_brokers() if broker.active]
        away = [] if all_present else [each.node_id for each in state.registered_brokers() if not each.active]
        enough = active and len(active) + len(away) >= self._options.replicas
        if not enough or self._truth.has_news_of_losses(state):
            return False  # `_restart_ended` tries again
        self._random.shuffle(active)
        self._random.shuffle(away)
        create = pb.CreateTopic(
            name=self._topic, topic_id=UUID(int=self._random.getrandbits(128), version=4).bytes
        )
        for number in range(self._options.partitions):
            present = active[number % len(active) :] + active[: number % len(active)]
            replicas = (present + away)[: self._options.replicas]  # as `placement.py` has them
            create.partitions.add(
                replicas=replicas, isr=[node_id for node_id in replicas if node_id in active]
            )
        for key, value in self._options.topic_config().items():
            create.config.add(key=key, value=value)
        topic = TopicState(self._topic, UUID(bytes=create.topic_id), self._options.topic_config())
        return self._propose(
            [
                pb.Operation(create_topic=create),
                *topics.eligible_from_the_start(topic, enumerate(create.partitions)),
            ]
        )

    def _change_minimum(self) -> bool | None:
        """`min.insync.replicas` changes during the run; only where an unclean stop loses no record."""
        topic = self._quorum.state.topics.get(self._topic)
        if topic is None or not self._options.flushed or dict(self._options.faults).get("replace_disk"):
            return False
        minimum = self._random.randrange(1, self._options.replicas + 1)
        change = pb.ChangeTopicConfig(topic_id=topic.topic_id.bytes)
        change.set.add(key="min.insync.replicas", value=str(minimum))
        return None if self._propose([pb.Operation(change_topic_config=change)]) else False

    def _propose(self, operations: list[pb.Operation]) -> bool:
        """Commits a command of the administrator's at once, if there is an active controller."""
        log = self._quorum.logs.get(self._quorum.leader_id)
        if log is None or not log.is_active or log.process.paused or not operations:
            return False
        command = pb.Command(controller_epoch=log.term, operations=operations)
        self._truth.by_administrator = True
        try:
            return self._quorum.append(log, command.SerializeToString(deterministic=True)).ok
        except KafkaError:
            return False
        finally:
            self._truth.by_administrator = False
