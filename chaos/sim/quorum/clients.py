"""Clients of the metadata: named commands, repeated when their outcome is unknown, and reads behind the
barrier.

A client asks a member that it believes to lead, which may only believe so itself.  Many commands give out
blocks of producer ids: given twice, or lost, it shows.  The others are of every kind (`commands`), with a
name or, as the controller's own, without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....controller.raft.contract import Role
from ....controller.state.model import NO_BROKER_EPOCH, ApplyResult
from ....proto import metadata_pb2 as pb
from .cluster import Cluster
from .commands import Commands
from .machine import Machine
from .member import Member

PROPOSERS = 3
BROKER = 1
ALLOCATIONS = 0.3  # of the new commands
NAMED = 0.6  # of the others
REPEATABLE = 30  # the newest commands of a proposer; the state remembers the last 64


@dataclass(slots=True)
class Command:
    """One command, however often it is proposed.  `name`: its proposer and sequence; None: it has none."""

    name: tuple[str, int] | None
    payload: bytes
    gives_ids: bool
    asked_after: int
    done: bool = False


class Clients:
    """All of them.  `acknowledged` is called after each command that was acknowledged."""

    def __init__(self, cluster: Cluster, acknowledged: Callable[[], None]) -> None:
        self._members, self._ledger, self._acknowledged = cluster.members, cluster.ledger, acknowledged
        self._random = cluster.schedule.random
        self._sequences = [0] * PROPOSERS
        self._recent: list[list[Command]] = [[] for _ in range(PROPOSERS)]
        self._blocks: dict[object, tuple[str, int]] = {}
        self._rest = False
        self._commands = Commands(self._random)

    def rest(self) -> None:
        """No operation from now on."""
        self._rest = True

    def act(self) -> None:
        """One operation."""
        if self._rest:
            return
        random = self._random
        believed = [member for member in self._members.values() if self._may_lead(member)]
        if not believed:
            return
        machine = random.choice(believed).machine
        assert machine is not None
        draw = random.random()
        if draw < 0.2:
            self._read(machine)
            return
        proposer = random.randrange(PROPOSERS)
        recent = self._recent[proposer]
        unanswered = [command for command in recent if not command.done]
        if draw < 0.3 and recent:
            self._propose(machine, random.choice(recent))
        elif draw < 0.5 and unanswered:
            self._propose(machine, random.choice(unanswered))
        else:
            command = self._next_command(proposer, machine)
            self._propose(machine, command)
            if random.random() < 0.1:
                self._propose(machine, command)

    @staticmethod
    def _may_lead(member: Member) -> bool:
        """As its own status says, which may be old."""
        return member.machine is not None and member.machine.status.role is Role.LEADER

    def _read(self, machine: Machine) -> None:
        ledger = self._ledger
        asked_after = ledger.acknowledged_index

        def answer(result: ApplyResult | None) -> None:
            if result is not None:
                ledger.answered(asked_after, result, None, is_read=True)

        machine.read(answer)

    def _next_command(self, proposer: int, machine: Machine) -> Command:
        random, state = self._random, machine.state
        broker = state.brokers.get(BROKER)
        gives_ids = broker is not None and random.random() < ALLOCATIONS
        if broker is not None and gives_ids:
            allocate = pb.AllocateProducerIds(node_id=BROKER, broker_epoch=broker.broker_epoch, count=1)
            command = pb.Command(operations=[pb.Operation(allocate_producer_ids=allocate)])
        elif broker is None and random.random() < ALLOCATIONS:
            register = pb.RegisterBroker(
                node_id=BROKER, incarnation="first", expected_broker_epoch=NO_BROKER_EPOCH
            )
            command = pb.Command(operations=[pb.Operation(register_broker=register)])
        else:
            command = self._commands.draw(state, machine.status.term)
        name = None
        if gives_ids or random.random() < NAMED:
            self._sequences[proposer] += 1
            name = command.proposer, command.sequence = f"client {proposer}", self._sequences[proposer]
        made = Command(name, command.SerializeToString(), gives_ids, self._ledger.acknowledged_index)
        self._recent[proposer] = [*self._recent[proposer][-REPEATABLE:], made]
        return made

    def _propose(self, machine: Machine, command: Command) -> None:
        ledger, name = self._ledger, command.name

        def answer(result: ApplyResult | None) -> None:
            if result is None:
                return
            command.done = True
            ledger.answered(command.asked_after, result, name)
            if result.ok and command.gives_ids and name is not None:
                owner = self._blocks.setdefault(result.value, name)
                if owner != name:
                    ledger.broken(f"the producer id {result.value} was given to {owner} and to {name}")
            self._acknowledged()

        machine.propose(command.payload, answer)
