"""Who uses the metadata: named commands, repeated when nobody can say what became of them, and reads behind the barrier.

A client asks whoever it believes to lead, which may be a node that only believes so itself.  The commands give out blocks of
producer ids: given twice, or lost, it shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....controller.model import NO_BROKER_EPOCH, ApplyResult
from ....controller.raft.core import LEADER
from ....proto import metadata_pb2 as pb

if TYPE_CHECKING:
    from .machine import Machine
    from .member import Member
    from .simulation import QuorumSimulation

PROPOSERS = 3
BROKER = 1
REPEATABLE = 30  # the newest commands of a proposer; the state remembers the last 64


@dataclass(slots=True)
class Command:
    """One named command, however often it is proposed."""

    proposer: str
    sequence: int
    payload: bytes
    gives_ids: bool
    asked_after: int
    done: bool = False


class Clients:
    """All of them."""

    def __init__(self, simulation: QuorumSimulation) -> None:
        self._simulation = simulation
        self._sequences = [0] * PROPOSERS
        self._recent: list[list[Command]] = [[] for _ in range(PROPOSERS)]
        self._blocks: dict[object, tuple[str, int]] = {}
        self._rest = False

    def rest(self) -> None:
        """No operation from now on."""
        self._rest = True

    def act(self) -> None:
        """One operation."""
        if self._rest:
            return
        random = self._simulation.random
        believed = [member for member in self._simulation.members.values() if self._may_lead(member)]
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
        return member.machine is not None and member.machine.status.role == LEADER

    def _read(self, machine: Machine) -> None:
        ledger = self._simulation.ledger
        asked_after = ledger.acknowledged_index

        def answer(result: ApplyResult | None) -> None:
            if result is not None:
                ledger.answered(asked_after, result, None)

        machine.read(answer)

    def _next_command(self, proposer: int, machine: Machine) -> Command:
        self._sequences[proposer] += 1
        sequence, name = self._sequences[proposer], f"client {proposer}"
        broker = machine.state.brokers.get(BROKER)
        if broker is None:
            register = pb.RegisterBroker(node_id=BROKER, incarnation="first", expected_broker_epoch=NO_BROKER_EPOCH)
            operation = pb.Operation(register_broker=register)
        else:
            allocate = pb.AllocateProducerIds(node_id=BROKER, broker_epoch=broker.broker_epoch, count=1)
            operation = pb.Operation(allocate_producer_ids=allocate)
        payload = pb.Command(proposer=name, sequence=sequence, operations=[operation]).SerializeToString()
        command = Command(name, sequence, payload, broker is not None, self._simulation.ledger.acknowledged_index)
        self._recent[proposer] = [*self._recent[proposer][-REPEATABLE:], command]
        return command

    def _propose(self, machine: Machine, command: Command) -> None:
        ledger, name = self._simulation.ledger, (command.proposer, command.sequence)

        def answer(result: ApplyResult | None) -> None:
            if result is None:
                return
            command.done = True
            ledger.answered(command.asked_after, result, name)
            if result.ok and command.gives_ids:
                owner = self._blocks.setdefault(result.value, name)
                if owner != name:
                    ledger.broken(f"the producer id {result.value} was given to {owner} and to {name}")
            self._simulation.acknowledged()

        machine.propose(command.payload, answer)
