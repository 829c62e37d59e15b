"""The stage of the stories about transactions: the parts of the transaction simulator, without chance.

Real: the coordinators' runtime, shard and marker queue on three nodes, the logs of the partitions with their
producers, guards and markers, and the group shard that reads the offsets.  Modelled: the replicated state
partition, and a network that delivers every message in order.

A command sends what it says, and then everything is delivered and replicated until nothing moves any more;
`hold` keeps back the replication of a partition, or the markers.  What happens is a line each: a request, a
record that a coordinator writes, a batch that a partition appends, an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.chaos.sim.transactions.coordinators import Coordinators, Node
from tidegate.chaos.sim.transactions.environment import Environment
from tidegate.chaos.sim.transactions.faults import Faults
from tidegate.chaos.sim.transactions.partitions import DATA_PARTITIONS, OFFSETS, DataPartition, value_of
from tidegate.chaos.sim.transactions.requests import Requests
from tidegate.coordinator.group.events import GroupConfig, OffsetFetch, OffsetFetchReply
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import Context, Reply
from tidegate.coordinator.runtime import CoordinatorRuntime
from tidegate.coordinator.transaction import records
from tidegate.coordinator.transaction.events import (
    AddPartitions,
    EndTxn,
    InitProducerId,
    PartitionsReply,
    ProducerReply,
)
from tidegate.coordinator.transaction.state import TransactionMetadata, TransactionPartition
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import decode_batch, decode_marker, iterate_headers

from .transcript import Command

QUIET = Faults(duplicate=0, late=0, late_markers=0, lose=0, resend=0, refuse=0, move=0, full=0)
ROUNDS_MAX = 200


@dataclass
class Producer:
    """A client: its transactional id, its transaction version, its identity, and its sequences."""

    name: str
    version: int
    timeout_ms: int
    identity: tuple[int, int] = (-1, -1)
    sequences: dict[int, int] = field(default_factory=dict)


class SpokenRequests(Requests):
    """Says every request to the coordinator, and every answer of it."""

    def __init__(self, say: Callable[[str], None], *parts: Any) -> None:
        super().__init__(*parts)
        self._say = say

    def to_coordinator(self, event: Any, reply: Callable[[Any], None], caller: str | None = None) -> None:
        caller = caller or _place_name(event.partitions[0])  # a partition leader that enlists or verifies

        def answered(value: Any) -> None:
            self._say(f"{caller} <- {_answer(value)}")
            reply(value)

        self._say(f"{caller} -> {_request(event)}")
        super().to_coordinator(event, answered)


class Stage:
    """One story's three coordinators, partitions and producers."""

    def __init__(self, max_epoch: int) -> None:
        self.environment = Environment(0, Faults(**{**vars(QUIET), "max_epoch": max_epoch}))
        setattr(self.environment.random, "choice", lambda several: several[0])  # noqa: B010
        self.partitions = [
            DataPartition(TransactionPartition("t", index)) for index in range(DATA_PARTITIONS + 1)
        ]
        self.coordinators = Coordinators(self.environment, self.partitions, completion_wait_ms=0)
        self.requests = SpokenRequests(self.say, self.environment, [self.coordinators], self.partitions)
        self.producers: dict[str, Producer] = {}
        self.held: set[str] = set()
        self.lines: list[str] = []
        self._written = [0] * len(self.coordinators.nodes)
        self._appended = [0] * len(self.partitions)
        self._settle()

    def say(self, line: str) -> None:
        self.lines.append(line)

    def execute(self, command: Command) -> list[str]:
        """What happens upon the command."""
        self.lines = []
        getattr(self, "do_" + command.name.replace("-", "_"))(command)
        self._settle()
        assert not self.environment.violations, self.environment.violations
        for partition in self.partitions:
            assert not partition.violations, partition.violations
        return self.lines or ["nothing"]

    # --- what a producer does -------------------------------------------------------------------------------

    def do_init(self, command: Command) -> None:
        """init P [tv=2] [timeout=60000] [resume]: with `resume` it names its identity (KIP-360)."""
        name = command.words[0]
        version, timeout_ms = int(command.options.get("tv", 2)), int(command.options.get("timeout", 60_000))
        if "resume" in command.words:
            producer = self.producers[name]
        else:
            producer = self.producers[name] = Producer(name, version, timeout_ms)
        event = InitProducerId(name.split("'")[0], producer.timeout_ms, *producer.identity)
        self.requests.to_coordinator(event, lambda said: self._identify(producer, said), name)

    def _identify(self, producer: Producer, said: Any) -> None:
        if isinstance(said, ProducerReply) and said.producer_id >= 0:
            if producer.identity != (said.producer_id, said.producer_epoch):
                producer.sequences.clear()
            producer.identity = (said.producer_id, said.producer_epoch)

    def do_add(self, command: Command) -> None:
        """add P PARTITION...: AddPartitionsToTxn of TV1."""
        producer = self.producers[command.words[0]]
        places = tuple(self.partitions[_place(each)].name for each in command.words[1:])
        event = AddPartitions(_id(producer), *producer.identity, places, producer.version)
        self.requests.to_coordinator(event, lambda said: None, producer.name)

    def do_produce(self, command: Command) -> None:
        """produce P PARTITION NUMBER: the partition's leader enlists it (TV2) or verifies it (TV1)."""
        producer, place = self.producers[command.words[0]], _place(command.words[1])
        sequence = producer.sequences.get(place, 0)

        def answered(code: ErrorCode) -> None:
            self.say(f"{producer.name} <- {code.name}")
            if code is ErrorCode.NONE:
                producer.sequences[place] = sequence + 1

        pid, epoch = producer.identity
        what = "offset" if place == OFFSETS else "record"
        self.say(
            f"{producer.name} -> {command.words[1]}: {what} {command.words[2]}, {_identity(pid, epoch)}, "
            f"sequence {sequence}"
        )
        self.requests.produce(
            _id(producer), producer.version, place, pid, epoch, sequence, int(command.words[2]), answered
        )

    def do_commit(self, command: Command) -> None:
        """commit P [as=ID/EPOCH]: `as` repeats a request of an earlier identity."""
        self._end(command, commit=True)

    def do_abort(self, command: Command) -> None:
        self._end(command, commit=False)

    def _end(self, command: Command, *, commit: bool) -> None:
        producer = self.producers[command.words[0]]
        identity = producer.identity
        if "as" in command.options:
            producer_id, epoch = command.options["as"].split("/")
            identity = (int(producer_id), int(epoch))
        event = EndTxn(_id(producer), *identity, commit, producer.version)
        self.requests.to_coordinator(event, lambda said: self._identify(producer, said), producer.name)

    # --- what the world does --------------------------------------------------------------------------------

    def do_time(self, command: Command) -> None:
        """time MS: so much time passes."""
        self.environment.now_ms += int(command.words[0])
        self._tick()

    def do_hold(self, command: Command) -> None:
        """hold state | markers | PARTITION: no replication of it, or no markers, until `release`."""
        self.held.add(command.words[0])

    def do_release(self, command: Command) -> None:
        self.held.remove(command.words[0])

    def do_kill_coordinator(self, command: Command) -> None:
        """The coordinator dies; the next replica of the state partition is elected."""
        dead = self.coordinators.leader
        assert dead is not None
        self.coordinators.kill(dead)
        self.coordinators.state.in_sync.discard(dead.number)
        leader = self.coordinators.leader
        assert leader is not None
        self._written[leader.number] = leader.end
        self.say(f"coordinator {dead.number} dies, {leader.number} leads in epoch {leader.leads}")

    def do_move(self, command: Command) -> None:
        """move PARTITION: another of its replicas leads."""
        place = _place(command.words[0])
        partition = self.partitions[place]
        before = partition.log.log_end_offset
        partition.move((partition.leader + 1) % 3)
        end = partition.log.log_end_offset
        self._appended[place] = end
        truncated = f", which has no batch from offset {end} on" if end < before else ""
        self.say(
            f"{command.words[0]}: replica {partition.leader} leads in epoch {partition.epoch}{truncated}"
        )

    # --- what can be seen -----------------------------------------------------------------------------------

    def do_read(self, command: Command) -> None:
        """read PARTITION: all that a read_committed consumer has got."""
        partition = self.partitions[_place(command.words[0])]
        log = partition.log
        self.say(f"read committed: {partition.seen}")
        self.say(f"last stable offset {log.last_stable_offset}, high watermark {log.high_watermark}")

    def do_fetch_offset(self, command: Command) -> None:
        """fetch-offset P: a stable OffsetFetch of the group that has the producer's name."""
        shard = GroupShard(GroupConfig())
        data, end = self.partitions[OFFSETS].batches(), self.partitions[OFFSETS].log.log_end_offset
        runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(
            "offsets", lambda *_: shard, _Log(end), lambda *_: None, steady_ms=lambda: 0
        )
        runtime.begin_load(0, 1, end)
        runtime.load_batches(0, 1, data)
        runtime.finish_load(0, 1)
        event = OffsetFetch(command.words[0], (("t", 0),), require_stable=True)
        outcome = shard.handle(event, Context(0, end, 1))
        assert isinstance(outcome, Reply)
        assert isinstance(outcome.reply, OffsetFetchReply)
        (fetched,) = outcome.reply.offsets.values()
        self.say(f"offset {fetched.offset}" if fetched.error is ErrorCode.NONE else fetched.error.name)

    def do_describe(self, command: Command) -> None:
        """describe ID: the entry of the coordinator."""
        leader = self.coordinators.leader
        assert leader is not None
        for _, phase, shard in leader.runtime.shards():
            entry = shard.transactions.get(command.words[0])  # type: ignore[attr-defined]
            self.say(f"coordinator {leader.number} is {phase.value}: {_entry(entry)}")

    # --- until nothing moves --------------------------------------------------------------------------------

    def _settle(self) -> None:
        self._look()
        for _ in range(ROUNDS_MAX):
            before = (len(self.lines), self._moved())
            while self.environment.messages:
                self.environment.messages.pop(0)()
                self._look()
            self._replicate()
            self._tick(send=True)
            if before == (len(self.lines), self._moved()) and not self.environment.messages:
                return
        raise AssertionError("the stage does not come to rest")

    def _moved(self) -> tuple[Any, ...]:
        nodes = tuple((node.end, node.watermark, node.leads) for node in self.coordinators.nodes)
        return nodes, tuple((p.log.log_end_offset, p.log.high_watermark) for p in self.partitions)

    def _replicate(self) -> None:
        if "state" not in self.held:
            for node in self.coordinators.nodes:
                self.coordinators.fetch(node)
                self._look()
        for partition in self.partitions:
            if _place_name(partition.name) not in self.held and partition.log.log_end_offset:
                partition.replicate(self.environment.random, everything=True)
        self._look()

    def _tick(self, *, send: bool = False) -> None:
        for node in self.coordinators.nodes:
            if node.alive:
                node.runtime.tick()
                if send and "markers" not in self.held:
                    node.send_markers()
        self._look()

    def _look(self) -> None:
        """Says what was written since the last look."""
        for node in self.coordinators.nodes:
            if node.leads and node is self.coordinators.leader:
                self._look_at_coordinator(node)
        for place, partition in enumerate(self.partitions):
            self._look_at_partition(place, partition)

    def _look_at_coordinator(self, node: Node) -> None:
        for _, batch in node.entries[self._written[node.number] :]:
            for record in decode_batch(batch, 0):
                name = records.decode_key(bytes(record.key or b""))
                assert name is not None
                entry = None if record.value is None else records.decode_value(name, bytes(record.value), 0)
                self.say(f"coordinator {node.number} writes {name}: {_entry(entry)}")
        self._written[node.number] = node.end

    def _look_at_partition(self, place: int, partition: DataPartition) -> None:
        log, position = partition.log, self._appended[place]
        while position < log.log_end_offset:
            data = log.read(position, 1 << 20, upper_offset=log.log_end_offset).data
            for at, header in iterate_headers(data):
                producer_name = _identity(header.producer_id, header.producer_epoch)
                if header.is_control:
                    marker = decode_marker(data, at)
                    assert marker is not None
                    what = f"{marker.control_type.name} marker"
                else:
                    what = f"{[value_of(each.key, each.value) for each in decode_batch(data, at)]}"
                self.say(
                    f"{_place_name(partition.name)} appends {header.base_offset}: {what} of {producer_name}"
                )
                position = header.next_offset
        self._appended[place] = log.log_end_offset


@dataclass
class _Log:
    """A state log that is committed up to its end."""

    end: int

    def append(self, partition: int, leader_epoch: int, batch: bytes, guard: object | None = None) -> int:
        raise AssertionError("a reader writes nothing")

    def high_watermark(self, partition: int) -> int:
        return self.end


def _id(producer: Producer) -> str:
    """`pay'` is a second instance of the transactional id `pay`."""
    return producer.name.split("'")[0]


def _place(name: str) -> int:
    return OFFSETS if name == "offsets" else int(name.removeprefix("t-"))


def _place_name(partition: TransactionPartition) -> str:
    return "offsets" if partition.partition == OFFSETS else f"t-{partition.partition}"


def _identity(producer_id: int, epoch: int) -> str:
    return f"producer {producer_id} epoch {epoch}"


def _names(partitions: Any) -> str:
    return "{" + ", ".join(sorted(_place_name(each) for each in partitions)) + "}"


def _entry(entry: TransactionMetadata | None) -> str:
    if entry is None:
        return "no entry"
    line = f"{entry.state.display_name}, {_identity(entry.producer_id, entry.producer_epoch)}"
    if entry.partitions:
        line += f", {_names(entry.partitions)}"
    if entry.next_producer_id >= 0:
        line += f", then producer {entry.next_producer_id}"
    return line


def _request(event: Any) -> str:
    match event:
        case InitProducerId(producer_id=-1):
            return f"InitProducerId, {event.transactional_id}"
        case InitProducerId():
            return f"InitProducerId, {_identity(event.producer_id, event.producer_epoch)} resumes"
        case AddPartitions():
            what = "verify" if event.verify_only else "add"
            producer_name = _identity(event.producer_id, event.producer_epoch)
            return f"AddPartitionsToTxn, {what} {_names(event.partitions)}, {producer_name}"
        case EndTxn():
            what = "commit" if event.commit else "abort"
            return f"EndTxn, {what}, {_identity(event.producer_id, event.producer_epoch)}"
        case _:
            raise AssertionError(event)


def _answer(value: Any) -> str:
    match value:
        case KafkaError():
            return value.code.name
        case ProducerReply(producer_id=-1):
            return "NONE"
        case ProducerReply():
            return _identity(value.producer_id, value.producer_epoch)
        case PartitionsReply():
            return ", ".join(sorted({code.name for code in value.errors.values()}))
        case _:
            raise AssertionError(value)
