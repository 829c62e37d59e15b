"""A seeded, deterministic world of three replicas: the real cores and the real log on disks in memory that lose power.

Everything between the cores is simulated: a network that delays, reorders, duplicates and loses messages, a controller whose
metadata reaches each node late, crashes that lose unsynced writes, clocks.  The invariants hold after every step:

* every member of the controller's ISR durably holds every committed record (so whoever may be elected has them);
* at least `min.insync.replicas` nodes durably hold a record when it becomes committed;
* the high watermark in truth only grows: no leader is elected without a committed record, none is ever changed;
* every log equals the committed records below its own high watermark; every acknowledged record is committed as acknowledged.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from tidegate.replication.assignment import Assignment, IsrProposal, IsrResult
from tidegate.replication.follower import Answer, Append, FetchPosition, Restart, Truncate
from tidegate.replication.leader import PartitionLeader, PendingChange
from tidegate.replication.replica import Replica
from tidegate.storage.log import AppendOrigin, Log, LogConfig
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import NewRecord, encode_batch, iterate_headers

from .memory_disk import MemoryDisk

LAG_S = 10.0
DIRECTORY = Path("/data/t-0")
READ_MAX = 1 << 24


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Safeguards:
    """What the simulated shell must do; a test switches one off and expects `Broken`."""

    flush_before_fetch: bool = True
    truncate_by_epochs: bool = True  # off: by the high watermark, as before KIP-101
    ask_epochs_until_agreed: bool = True  # off: one question only, as before KIP-279
    number_attempts: bool = True  # off: an ISR change asked for again may be carried out twice, and answered differently


@dataclass(slots=True, eq=False)
class Fetch:
    sender: Node
    broker_epoch: int
    leader: int
    position: FetchPosition


@dataclass(slots=True, eq=False)
class FetchReply:
    fetch: Fetch
    answer: Answer


@dataclass(slots=True, eq=False)
class Alter:
    sender: Node
    broker_epoch: int
    core: PartitionLeader
    change: PendingChange
    attempt: int


@dataclass(slots=True, eq=False)
class AlterReply:
    alter: Alter
    result: IsrResult


Message = Fetch | FetchReply | Alter | AlterReply


@dataclass(slots=True, eq=False)
class Node:
    node_id: int
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    alive: bool = False
    broker_epoch: int = -1
    dark: list[tuple[int, int]] = field(default_factory=list)  # what it durably held when it went down
    applied: int = 0
    log: Log | None = None
    replica: Replica | None = None
    asked_epochs: int = -1  # the leader epoch in which the one question was asked (ablation)
    pending_acks: list[tuple[int, int, int]] = field(default_factory=list)  # leader epoch, next offset, batch id
    attempts: int = 0  # at ISR changes, ever


class Controller:
    """The metadata of one partition, with compare-and-set ISR changes and elections from the ISR."""

    def __init__(self, nodes: tuple[int, ...], min_isr: int) -> None:
        self.now = Assignment(
            "t", UUID(int=1), 0, nodes, nodes, -1, 0, 0, {"min.insync.replicas": str(min_isr), "flush.policy": "always"}
        )
        self.history: list[Assignment] = [self.now]
        self.broker_epochs: dict[int, int] = {}
        self.active: set[int] = set()
        self._next_epoch = 100
        self._last_attempts: dict[int, int] = {}

    def _change(self, **fields: object) -> None:
        self.now = replace(self.now, partition_epoch=self.now.partition_epoch + 1, **fields)  # type: ignore[arg-type]
        self.history.append(self.now)

    def _elect(self, isr: tuple[int, ...], *, force: bool = False, preferred: int | None = None) -> None:
        """Publishes `isr`, with a leader from it; a new leader epoch when the leader changes or must not go on in its epoch."""
        leader = self.now.leader
        candidates = [node for node in isr if node in self.active]
        if preferred is not None and preferred in candidates:
            leader = preferred
        elif leader not in candidates:
            leader = candidates[0] if candidates else -1
        if leader != self.now.leader or force:
            self._change(isr=isr, leader=leader, leader_epoch=self.now.leader_epoch + 1)
        elif isr != self.now.isr:
            self._change(isr=isr)

    def fence(self, node: int) -> None:
        self.active.discard(node)
        isr = tuple(member for member in self.now.isr if member != node) or self.now.isr  # the last one stays
        self._elect(isr)

    def register(self, node: int) -> int:
        """Fence, and only then the new broker epoch (SEMANTICS 48)."""
        self.fence(node)
        self._next_epoch += 1
        self.broker_epochs[node] = self._next_epoch
        return self._next_epoch

    def unfence(self, node: int) -> None:
        self.active.add(node)
        self._elect(self.now.isr)

    def move_leader(self, node: int) -> None:
        self._elect(self.now.isr, preferred=node)

    def alter(self, node: int, broker_epoch: int, proposal: IsrProposal, attempt: int | None) -> IsrResult:
        code = self._check(node, broker_epoch, proposal)
        if attempt is not None:
            if attempt <= self._last_attempts.get(node, 0):
                code = ErrorCode.REQUEST_TIMED_OUT  # a newer attempt has been answered
            else:
                self._last_attempts[node] = attempt
        if code is ErrorCode.NONE:
            self._change(isr=tuple(member.node_id for member in proposal.isr))
        now = self.now
        return IsrResult("t", 0, code, now.leader, now.leader_epoch, now.partition_epoch, now.isr)

    def _check(self, node: int, broker_epoch: int, proposal: IsrProposal) -> ErrorCode:
        if broker_epoch != self.broker_epochs.get(node):
            return ErrorCode.STALE_BROKER_EPOCH
        if proposal.leader_epoch != self.now.leader_epoch or node != self.now.leader:
            return ErrorCode.FENCED_LEADER_EPOCH
        if proposal.partition_epoch != self.now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member in proposal.isr:
            if member.node_id not in self.now.isr and (
                member.node_id not in self.active or member.broker_epoch != self.broker_epochs[member.node_id]
            ):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE


class World:
    """Three nodes, their controller and their network; `step` does one random thing, `heal` demands progress."""

    def __init__(self, seed: int, *, nodes: int = 3, min_isr: int = 2, safeguards: Safeguards | None = None) -> None:
        self.rng = random.Random(seed)
        self.safeguards = safeguards or Safeguards()
        self.min_isr = min_isr
        self.nodes = {node: Node(node) for node in range(1, nodes + 1)}
        self.controller = Controller(tuple(self.nodes), min_isr)
        self.messages: list[Message] = []
        self.now_s = 0.0
        self.batch_ids = 0
        self.committed: list[tuple[int, int]] = []  # per offset: (batch id, position in the batch)
        self.acknowledged: list[tuple[int, int]] = []  # (next offset, batch id)
        self.seen: Counter[str] = Counter()  # what happened, so that a test can tell whether the world is rough enough
        for node in self.nodes.values():
            self.restart(node)
        self.apply_all()

    # -- nodes ---------------------------------------------------------------------------------------------------------------

    def restart(self, node: Node, *, metadata: Assignment | None = None) -> None:
        """Opens the log and registers; with `metadata`, acts on that instead, as if its registration were still unknown to it."""
        node.log = Log.open(
            node.disk,
            DIRECTORY,
            topic="t",
            partition=0,
            config=LogConfig.from_topic_config({"flush.policy": "always"}),
            now_ms=0,
            clean=False,
            recovery_point=0,
        )
        node.alive = True
        if metadata is not None:
            node.replica = Replica(node.node_id, metadata, node.log)
            node.pending_acks.clear()
            self.apply(node, metadata)
            return
        node.broker_epoch = self.controller.register(node.node_id)
        node.applied = len(self.controller.history) - 1  # it acts only on metadata that contains its own registration
        node.replica = Replica(node.node_id, self.controller.now, node.log)
        node.pending_acks.clear()
        self.apply(node, self.controller.now)
        self.controller.unfence(node.node_id)

    def crash(self, node: Node, *, disk_lost: bool = False, keep: float = 0.5) -> None:
        assert node.log is not None
        node.dark = self.contents(node, node.log.flushed_end_offset)
        node.log.close(clean=False)
        node.disk.power_cut(self.rng, keep=keep)
        if disk_lost:
            node.disk, node.dark = MemoryDisk(), []
        node.alive = False
        node.log = node.replica = None
        node.pending_acks.clear()

    def apply_next(self, node: Node) -> None:
        if node.applied + 1 < len(self.controller.history):
            node.applied += 1
            self.apply(node, self.controller.history[node.applied])

    def apply_all(self) -> None:
        for node in self.nodes.values():
            while node.alive and node.applied + 1 < len(self.controller.history):
                self.apply_next(node)

    def apply(self, node: Node, assignment: Assignment) -> None:
        replica = node.replica
        assert replica is not None
        epoch, was_following = replica.leader_epoch, replica.follower
        replica.apply(assignment, now_s=self.now_s, lag_max_s=LAG_S)
        if replica.is_leader and epoch != replica.leader_epoch == self.controller.now.leader_epoch:  # not of a past epoch
            self.check_committed_prefix(node, len(self.committed), "the new leader")
        if not self.safeguards.truncate_by_epochs and replica.follower is not None and replica.follower is not was_following:
            replica.log.truncate_to(replica.log.high_watermark)
        self.leader_progress(node)

    def produce(self, node: Node, *, records: int = 1, acks: int = -1) -> bool:
        replica = node.replica
        if replica is None or replica.leader is None:
            return False
        batch = encode_batch([NewRecord(None, b"v", (), self.batch_ids + 1) for _ in range(records)])
        try:
            replica.leader.check_before_append(acks)
            info = replica.log.append_leader(
                bytearray(batch), leader_epoch=replica.leader_epoch, origin=AppendOrigin.CLIENT, now_ms=self.batch_ids
            )
        except KafkaError as error:
            self.seen[f"append {error.code.name}"] += 1
            return False
        self.batch_ids += 1
        if acks == -1:
            node.pending_acks.append((replica.leader_epoch, info.last_offset + 1, self.batch_ids))
        self.leader_progress(node)
        return True

    def flush(self, node: Node) -> None:
        assert node.log is not None
        if node.log.needs_flush:
            ticket = node.log.begin_flush()
            ticket.run()
            node.log.finish_flush(ticket)
            self.leader_progress(node)

    def leader_progress(self, node: Node) -> None:
        replica = node.replica
        assert replica is not None
        if replica.advance_high_watermark(self.now_s):
            self.on_high_watermark(node)
        if replica.leader is None:
            node.pending_acks.clear()  # NOT_LEADER_OR_FOLLOWER
            return
        for waiting in tuple(node.pending_acks):
            epoch, next_offset, batch_id = waiting
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if epoch == replica.leader_epoch:
                state = replica.leader.commit_state(next_offset)
                if state is None:
                    continue
                code = state
            node.pending_acks.remove(waiting)
            if code is ErrorCode.NONE:
                self.acknowledged.append((next_offset, batch_id))
                self.check_acknowledged(next_offset, batch_id)

    # -- fetching ------------------------------------------------------------------------------------------------------------

    def send_fetch(self, node: Node) -> bool:
        replica = node.replica
        if replica is None or replica.follower is None:
            return False
        if self.safeguards.flush_before_fetch:
            self.flush(node)
        position = replica.follower.next_fetch(replica.log)
        if not self.safeguards.truncate_by_epochs or (
            not self.safeguards.ask_epochs_until_agreed and node.asked_epochs == replica.leader_epoch
        ):
            position = replace(position, last_fetched_epoch=-1)
        self.messages.append(Fetch(node, node.broker_epoch, replica.follower.leader, position))
        return True

    def on_fetch(self, fetch: Fetch) -> None:
        """The leader's side: what fetch_server does, without waiting."""
        node = self.nodes[fetch.leader]
        if not node.alive:
            return
        replica, sender = node.replica, fetch.sender
        assert replica is not None
        log = replica.log
        try:
            diverging = replica.receive_fetch(
                sender.node_id, fetch.broker_epoch, fetch.position, now_s=self.now_s, arrival=True
            )
        except KafkaError as error:
            self.seen[error.code.name] += 1
            self.messages.append(FetchReply(fetch, Answer(error.code, -1, log.log_start_offset, None, None)))
            return
        leader = replica.require_leader()
        records = b""
        if diverging is None:
            self.leader_progress(node)
            self.submit(node, leader.propose_join(sender.node_id))
            if fetch.position.fetch_offset < log.log_end_offset:
                limit = self.rng.choice([1, 200, READ_MAX])
                records = log.read(fetch.position.fetch_offset, limit, upper_offset=log.log_end_offset).data
        answer = Answer(ErrorCode.NONE, leader.high_watermark, log.log_start_offset, diverging, records)
        self.messages.append(FetchReply(fetch, answer))

    def on_fetch_reply(self, reply: FetchReply) -> None:
        node, fetch = reply.fetch.sender, reply.fetch
        if not node.alive or node.broker_epoch != fetch.broker_epoch:
            return
        replica = node.replica
        assert replica is not None
        core = replica.follower
        if core is None or core.leader != fetch.leader:
            return
        sent = fetch.position
        if not (self.safeguards.truncate_by_epochs and self.safeguards.ask_epochs_until_agreed):
            sent = replace(sent, last_fetched_epoch=replica.log.latest_epoch)
        action = core.on_answer(sent, reply.answer, replica.log)
        match action:
            case Append() | Truncate() | Restart():
                self.seen[type(action).__name__] += 1
                if isinstance(action, Truncate):
                    node.asked_epochs = core.leader_epoch
                try:
                    replica.carry_out(action)
                except KafkaError as error:
                    raise Broken(f"node {node.node_id} could not carry out {action}: {error}") from error
                self.check_committed_prefix(node, replica.log.high_watermark, "a follower")
            case _:
                pass

    # -- ISR changes ---------------------------------------------------------------------------------------------------------

    def submit(self, node: Node, change: PendingChange | None) -> None:
        if change is not None:
            assert node.replica is not None and node.replica.leader is not None
            node.attempts += 1
            self.messages.append(Alter(node, node.broker_epoch, node.replica.leader, change, node.attempts))

    def maintain(self, node: Node) -> None:
        if node.replica is not None and node.replica.leader is not None:
            leader = node.replica.leader
            leader.end_pauses((1, 2, 3, 4, 5))
            if leader.pending is not None and not leader.pending.awaits_metadata:
                self.submit(node, leader.pending)  # asked again: the answer may have been lost
            self.submit(node, leader.propose_removals(node.replica.log.log_end_offset, self.now_s))
            self.leader_progress(node)

    def on_alter(self, alter: Alter) -> None:
        attempt = alter.attempt if self.safeguards.number_attempts else None
        result = self.controller.alter(alter.sender.node_id, alter.broker_epoch, alter.change.proposal, attempt)
        self.seen[f"alter {result.error.name}"] += 1
        self.messages.append(AlterReply(alter, result))

    def on_alter_reply(self, reply: AlterReply) -> None:
        node = reply.alter.sender
        given_up = self.safeguards.number_attempts and reply.alter.attempt != node.attempts
        if node.alive and node.replica is not None and node.replica.leader is reply.alter.core and not given_up:
            reply.alter.core.complete_alter(reply.alter.change, reply.result)
            self.leader_progress(node)

    def deliver(self, message: Message) -> None:
        match message:
            case Fetch():
                self.on_fetch(message)
            case FetchReply():
                self.on_fetch_reply(message)
            case Alter():
                self.on_alter(message)
            case AlterReply():
                self.on_alter_reply(message)

    # -- invariants ----------------------------------------------------------------------------------------------------------

    def contents(self, node: Node, upper: int, start: int = 0) -> list[tuple[int, int]]:
        """Per offset from `start`: (batch id, position in its batch)."""
        assert node.log is not None
        found: list[tuple[int, int]] = []
        if upper > start:
            data = node.log.read(start, READ_MAX, upper_offset=upper).data
            for _, header in iterate_headers(data):
                found.extend((header.base_timestamp, position) for position in range(header.last_offset_delta + 1))
        return found[: upper - start]

    def check_committed_prefix(self, node: Node, length: int, who: str) -> None:
        assert node.log is not None
        if length > len(self.committed):
            raise Broken(f"{who} {node.node_id} has high watermark {length}, only {len(self.committed)} records are committed")
        if node.log.log_end_offset < length:
            raise Broken(f"{who} {node.node_id} ends at {node.log.log_end_offset}, but {length} records are committed")
        if self.contents(node, length) != self.committed[:length]:
            raise Broken(f"{who} {node.node_id} differs from what was committed")

    def on_high_watermark(self, node: Node) -> None:
        assert node.log is not None and node.replica is not None and node.replica.leader is not None
        high_watermark = node.replica.leader.high_watermark
        old = len(self.committed)
        known = min(old, high_watermark)
        if self.contents(node, known) != self.committed[:known]:
            raise Broken(f"leader {node.node_id} would change committed records")
        if high_watermark <= old:
            return
        self.committed.extend(self.contents(node, high_watermark, old))
        holders = [other.node_id for other in self.nodes.values() if self.holds_durably(other, high_watermark)]
        if len(holders) < self.min_isr:
            raise Broken(f"offset {high_watermark} became committed, but only nodes {holders} hold it durably")

    def holds_durably(self, node: Node, length: int) -> bool:
        if node.log is None:
            return node.dark[:length] == self.committed[:length] and len(node.dark) >= length
        return node.log.flushed_end_offset >= length and self.contents(node, length) == self.committed[:length]

    def check_acknowledged(self, next_offset: int, batch_id: int) -> None:
        if len(self.committed) < next_offset or self.committed[next_offset - 1][0] != batch_id:
            raise Broken(f"batch {batch_id}, acknowledged as ending at {next_offset}, is not what was committed there")

    def check_isr(self) -> None:
        """Every replica that may be elected durably holds everything committed."""
        for member in self.controller.now.isr:
            node = self.nodes[member]
            if node.log is not None and node.log.flushed_end_offset < len(self.committed):
                raise Broken(
                    f"node {member} is in the ISR {self.controller.now.isr} and durably holds {node.log.flushed_end_offset}"
                    f" of {len(self.committed)} committed records"
                )

    # -- running -------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        node = rng.choice(tuple(self.nodes.values()))
        action = rng.random()
        if action < 0.44:
            self.deliver_some()
        elif action < 0.64:
            self.send_fetch(node)
        elif action < 0.74:
            believers = [one for one in self.nodes.values() if one.replica is not None and one.replica.is_leader]
            if believers:
                self.produce(rng.choice(believers), records=rng.randint(1, 3), acks=rng.choice((-1, -1, 1)))
        elif action < 0.82 and node.alive:
            self.flush(node)
        elif action < 0.92 and node.alive:
            self.apply_next(node)
        elif action < 0.94:
            self.now_s += rng.choice([0.1, 1.0, LAG_S * 0.6])
        elif action < 0.97 and node.alive:
            self.maintain(node)
        else:
            self.disturb(node)
        self.check_isr()

    def deliver_some(self) -> None:
        if not self.messages:
            return
        recent = self.rng.random() < 0.8  # mostly in order, sometimes anything, however old
        index = self.rng.randrange(max(0, len(self.messages) - 4) if recent else 0, len(self.messages))
        fate = self.rng.random()
        message = self.messages[index]
        if fate > 0.06:  # else it is delivered and stays: a duplicate later
            del self.messages[index]
        if fate < 0.94:  # else it is lost
            self.deliver(message)
        if len(self.messages) > 60:
            del self.messages[: self.rng.randrange(20)]

    def disturb(self, node: Node) -> None:
        kind = self.rng.random()
        if not node.alive:
            self.restart(node)
        elif kind < 0.3:
            self.crash(node)
            if self.rng.random() < 0.6:
                self.controller.fence(node.node_id)
        elif kind < 0.5:
            self.controller.fence(node.node_id)
        elif kind < 0.75:
            self.controller.unfence(node.node_id)
        elif kind < 0.97:
            self.controller.move_leader(node.node_id)
        else:
            for other in self.nodes.values():  # the whole cluster loses power
                if other.alive:
                    self.crash(other)

    def run(self, steps: int = 600) -> None:
        for _ in range(steps):
            self.step()
        self.heal()

    def heal(self, rounds_max: int = 40) -> None:
        """All come back and the network works: every replica must join, agree and commit a new record, within a bound."""
        for node in self.nodes.values():
            if not node.alive:
                self.restart(node)
            self.controller.unfence(node.node_id)
        wanted = -1
        for _ in range(rounds_max):
            self.apply_all()
            while self.messages:
                self.deliver(self.messages.pop(0))
            self.apply_all()
            leader = self.nodes.get(self.controller.now.leader)
            if wanted < 0 and leader is not None and self.produce(leader):
                wanted = self.batch_ids
            for node in self.nodes.values():
                self.flush(node)
                self.maintain(node)
                self.send_fetch(node)
            self.now_s += 1.0
            self.check_isr()
            if self.is_settled(wanted):
                return
        raise Broken(f"no progress: {self.describe()}")

    def is_settled(self, wanted: int) -> bool:
        if wanted < 0 or not self.committed or self.committed[-1][0] != wanted or len(self.controller.now.isr) < len(self.nodes):
            return False
        for node in self.nodes.values():
            assert node.log is not None
            if node.log.log_end_offset != len(self.committed) or node.log.high_watermark != len(self.committed):
                return False
            self.check_committed_prefix(node, len(self.committed), "after healing, node")
        for next_offset, batch_id in self.acknowledged:
            self.check_acknowledged(next_offset, batch_id)
        return True

    def describe(self) -> str:
        lines = [f"{self.controller.now}, {len(self.committed)} committed"]
        for node in self.nodes.values():
            if node.log is None or node.replica is None:
                lines.append(f"node {node.node_id}: down")
                continue
            lines.append(
                f"node {node.node_id}: {node.replica.role.value} epoch {node.replica.leader_epoch},"
                f" end {node.log.log_end_offset}, flushed {node.log.flushed_end_offset}, hw {node.log.high_watermark}"
            )
        return "\n".join(lines)
