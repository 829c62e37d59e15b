"""Consumer groups under faults, in virtual time: the real shard behind the real runtime, and members that
behave as clients do.

A member has one request on its way at a time; the request, or its answer, may be lost, and then the member
says everything anew. It stops reading a partition that it must revoke before it reports that, and that takes
a while; it starts no partition that an unanswered heartbeat has left out (`reconcile.py` says why).  Members
come, leave, leave for a while (static ones), die without a word and sleep through their sessions; topics
come, grow and go.  The coordinator moves: its successor loads the log, of which an uncommitted end may be
lost.  Appends are refused now and then.

Checked after every step: nothing is read by two at once, if both are members, and no timer removes a member
that has just sent a request.  After the faults: no epoch has
fallen; what is to be read is read, by one member each, evenly; and the log, whole or compacted, replays to
the very group that is live.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.coordinator.group.consumer import records
from tidegate.coordinator.group.consumer.events import ConsumerGroupConfig, ConsumerGroupHeartbeat, Partitions
from tidegate.coordinator.group.consumer.group import ConsumerGroup
from tidegate.coordinator.group.consumer.records import CurrentAssignment, RecordKind
from tidegate.coordinator.group.consumer.state import ConsumerGroupState, MemberState
from tidegate.coordinator.group.events import GroupConfig, GroupEvent
from tidegate.coordinator.group.shard import GroupShard
from tidegate.coordinator.outcome import ReplayedRecord
from tidegate.coordinator.runtime import CoordinatorRuntime
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.records import decode_batch, iterate_headers

from .coordinator_doubles import Catalog, MemoryLog
from .group_fields import held_against_the_tables

G = "readers"
STEP_MS = 500
REBALANCE_MS = 30_000
SESSION_MS, HEARTBEAT_MS = 20_000, 2_000
SILENCE_MIN_MS = 3 * 2 * HEARTBEAT_MS
"""No member is removed before that, however often coordinators move: `coordinator/silence.py`."""


class SharedLog(MemoryLog):
    """What the replicas of the partition have; a new leader may lack what was not committed."""

    def batches(self) -> list[tuple[int, Any]]:
        return list(iterate_headers(bytes(self.data.get(0, b""))))

    def cut(self, offset: int) -> None:
        kept = [position for position, header in self.batches() if header.base_offset >= offset]
        if kept:
            del self.data[0][kept[0] :]
            self.end[0] = offset

    def boundaries(self) -> list[int]:
        return [0, *(header.next_offset for _, header in self.batches())]

    def records(self) -> list[ReplayedRecord]:
        data = bytes(self.data.get(0, b""))
        return [
            ReplayedRecord(r.offset, 0, bytes(r.key or b""), None if r.value is None else bytes(r.value))
            for position, _ in iterate_headers(data)
            for r in decode_batch(data, position)
        ]


@dataclass(slots=True)
class Member:
    """A client.  reads: what its application really has in hand."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    epoch: int = 0
    reads: Partitions = frozenset()
    assigned: Partitions = frozenset()
    said: Partitions | None = None
    is_full: bool = True
    waiting: bool = False
    asleep_until_ms: int = 0
    next_beat_ms: int = 0
    revoked_at_ms: int = -1
    gone: bool = False
    attempts: int = field(default=0)

    def event(self) -> ConsumerGroupHeartbeat:
        joins = self.epoch == 0
        full = self.is_full or joins
        changed = self.reads != self.said
        return ConsumerGroupHeartbeat(
            G,
            self.member_id,
            self.epoch,
            self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            topic_names=self.topics if full else None,
            owned=frozenset() if joins else self.reads if full or changed else None,
        )


class World:
    def __init__(
        self,
        seed: int,
        *,
        members: int = 4,
        safe_commit: bool = True,
        assignment_interval_ms: int = 0,
        validates: bool = True,
    ) -> None:
        self.config = self.make_config(assignment_interval_ms=assignment_interval_ms)
        self.random = random.Random(seed)
        self.now_ms = 0
        self.healing = False
        self.safe_commit = safe_commit
        self.validates = validates
        """The shard looks at its own invariants, too, and not the clients alone."""
        self.violations: list[str] = []
        self.catalog = Catalog(a=4, b=3)
        self.log = SharedLog()
        self.epoch = 0
        self.names = 0
        self.left: dict[str, Member] = {}
        self.members: list[Member] = []
        self.moves = self.fenced = self.handed_over = 0
        self.network: list[Callable[[], None]] = []
        self.heard_ms: dict[str, int] = {}
        self.nodes = [self._node() for _ in range(3)]
        self.runtime = self.nodes[0]
        self.move_coordinator()
        for _ in range(members):
            self.come()

    def make_config(self, **consumer: Any) -> GroupConfig:
        return GroupConfig(consumer=ConsumerGroupConfig(SESSION_MS, HEARTBEAT_MS, **consumer))

    # --- the coordinator ------------------------------------------------------------------------------------

    def _node(self) -> CoordinatorRuntime[Any, Any, None]:
        """Nothing ticks it while it coordinates nothing."""
        return CoordinatorRuntime(
            "__consumer_offsets",
            lambda _partition, _epoch: self._shard(),
            self.log,
            lambda _partition, _epoch, _effect: None,
            steady_ms=lambda: self.now_ms,
        )

    def _shard(self) -> GroupShard:
        shard = GroupShard(self.config, self.catalog)
        return held_against_the_tables(shard, self.violations) if self.validates else shard

    def move_coordinator(self) -> None:
        """The next leader has all that was committed, and perhaps more."""
        self.moves += 1
        self.epoch += 1
        if self.epoch > 1:
            self.runtime.unload(0, self.epoch)
        floor = self.log.high_watermark(0) if self.safe_commit else 0
        self.log.cut(self.random.choice([offset for offset in self.log.boundaries() if offset >= floor]))
        self.log.epochs[0] = self.epoch
        self.runtime = self.random.choice(self.nodes)
        end = self.log.end.get(0, 0)
        self.runtime.begin_load(0, self.epoch, end)
        self.runtime.load_batches(0, self.epoch, bytes(self.log.data.get(0, b"")))
        self.runtime.finish_load(0, self.epoch)
        self.commit()

    def commit(self) -> None:
        self.log.watermark[0] = self.log.end.get(0, 0)
        self.runtime.on_high_watermark(0, self.epoch, self.log.watermark[0])

    @property
    def shard(self) -> GroupShard:
        (_, _, shard), *_ = self.runtime.shards()
        assert isinstance(shard, GroupShard)
        return shard

    @property
    def group(self) -> ConsumerGroup:
        return self.shard.groups.consumers.groups.get(G) or ConsumerGroup(G)

    # --- members --------------------------------------------------------------------------------------------

    def come(self) -> None:
        self.names += 1
        instance = f"i{self.random.randrange(3)}" if self.random.random() < 0.4 else None
        if self.left and self.random.random() < 0.7:
            instance = self.random.choice(sorted(self.left))
        if instance is not None and any(member.instance_id == instance for member in self.members):
            instance = None
        if instance is not None and instance in self.left:
            self.handed_over += 1
            del self.left[instance]
        topics = (
            ("a", "b")
            if self.healing or self.random.random() < 0.7
            else self.random.choice([("a",), ("b",), ("b", "c")])
        )
        self.members.append(Member(f"m{self.names}", instance, topics))

    def go(self, member: Member) -> None:
        """Politely, for a while, or without a word."""
        member.gone = True
        self.members.remove(member)
        draw = self.random.random()
        if member.epoch <= 0 or draw < 0.4:
            return
        for_a_while = member.instance_id is not None and draw < 0.8
        if for_a_while:
            self.left[str(member.instance_id)] = member
        event = ConsumerGroupHeartbeat(G, member.member_id, -2 if for_a_while else -1, member.instance_id)
        self.send(event, lambda _reply: None)

    def send(self, event: GroupEvent, answer: Callable[[Any], None], of_member: str = "") -> None:
        """`of_member`: the coordinator knows by the event that this member lives."""
        lost = not self.healing and self.random.random() < 0.15
        answer_lost = not self.healing and self.random.random() < 0.15
        error = KafkaError(ErrorCode.NETWORK_EXCEPTION)

        def arrive() -> None:
            heard_ms = self.now_ms

            def accepted(reply: Any) -> None:
                if not isinstance(reply, KafkaError) and of_member:
                    self.heard_ms[of_member] = heard_ms
                deliver(reply)

            self.runtime.submit(0, event, accepted)

        def deliver(reply: Any) -> None:
            self.network.append(lambda: answer(error if answer_lost else reply))

        if lost:
            self.network.append(lambda: answer(error))
        else:
            self.network.append(arrive)

    def beat(self, member: Member) -> None:
        event = member.event()
        member.waiting = True
        if event.owned is not None:
            member.said = member.reads

        def answer(reply: Any) -> None:
            member.waiting = False
            member.next_beat_ms = self.now_ms + self.random.randrange(500, 3_000)
            if not member.gone:
                self.answered(member, reply)

        self.send(event, answer, member.member_id)

    def answered(self, member: Member, reply: Any) -> None:
        member.is_full = isinstance(reply, KafkaError)
        if isinstance(reply, KafkaError):
            if reply.code in (
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            ):
                self.fenced += 1
                member.epoch, member.reads, member.assigned, member.revoked_at_ms = (
                    0,
                    frozenset(),
                    frozenset(),
                    -1,
                )
            elif reply.code is ErrorCode.FENCED_INSTANCE_ID:
                member.gone = True
                self.members.remove(member)
            return
        member.epoch = reply.member_epoch
        if reply.assignment is not None:
            member.assigned = reply.assignment
            member.revoked_at_ms = self.now_ms + self.random.choice([0, 0, 1_000, 6_000])

    def live(self, member: Member) -> None:
        if member.asleep_until_ms > self.now_ms:
            return
        if member.revoked_at_ms >= 0 and self.now_ms >= member.revoked_at_ms:
            # It stops reading at once.  It starts a new partition when no heartbeat that did not name it is
            # still unanswered.
            member.reads &= member.assigned
            if not member.waiting and not member.is_full:
                member.reads = member.assigned
                member.revoked_at_ms = -1
                member.next_beat_ms = self.now_ms
        if not member.waiting and self.now_ms >= member.next_beat_ms:
            self.beat(member)

    # --- a run ----------------------------------------------------------------------------------------------

    def break_something(self) -> None:
        draw = self.random.random()
        if draw < 0.012:
            self.move_coordinator()
        elif draw < 0.03 and len(self.members) < 6:
            self.come()
        elif draw < 0.045 and len(self.members) > 1:
            self.go(self.random.choice(self.members))
        elif draw < 0.06 and self.members:
            self.random.choice(self.members).asleep_until_ms = self.now_ms + self.random.choice(
                [3_000, 25_000, 40_000]
            )
        elif draw < 0.068:
            self.catalog.set(self.random.choice("abc"), self.random.choice([0, 2, 5, 8]))
        refused = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        self.log.refuse = refused if self.random.random() < 0.03 else None

    def step(self) -> None:
        self.now_ms += STEP_MS
        if not self.healing:
            self.break_something()
        for member in list(self.members):
            self.live(member)
        due, self.network = self.network, []
        self.random.shuffle(due)
        for deliver in due:
            deliver()
        self.tick()
        if self.healing or self.random.random() < 0.7:
            self.commit()
        self.check()

    def tick(self) -> None:
        """Fires the timers of the coordinator: they remove no member that it has just received a request
        of, unless the member was too slow to revoke."""
        before = self.group
        revoking = {
            member_id
            for member_id in before.members
            if before.current_of(member_id).state is MemberState.UNREVOKED_PARTITIONS
        }
        members = set(before.members)
        self.runtime.tick()
        for member_id in members - self.member_ids() - revoking:
            silent_ms = self.now_ms - self.heard_ms.get(member_id, -SILENCE_MIN_MS)
            if silent_ms < SILENCE_MIN_MS:
                self.violations.append(f"{member_id} was removed {silent_ms} ms after its last request")

    def member_ids(self) -> set[str]:
        return set(self.group.members)

    def is_zombie(self, member: Member, group: ConsumerGroup) -> bool:
        """It learns so at its next heartbeat, and its commits are refused."""
        return member.member_id not in group.members or member.epoch <= 0

    def check(self) -> None:
        group, readers = self.group, dict[tuple[Any, int], str]()
        for member in self.members:
            if self.is_zombie(member, group):
                continue
            for partition in member.reads:
                other = readers.setdefault(partition, member.member_id)
                if other != member.member_id:
                    self.violations.append(
                        f"{self.now_ms}: {partition} is read by {other} and {member.member_id}"
                    )
        if group.target_epoch > group.epoch:
            self.violations.append(f"{self.now_ms}: target epoch {group.target_epoch} is past {group.epoch}")
        if self.validates and not self.violations:
            try:
                self.shard.validate()
            except AssertionError as error:
                self.violations.append(f"{self.now_ms}: an invariant of the shard: {error}")

    def run(self, steps: int) -> list[str]:
        for _ in range(steps):
            self.step()
            if self.violations:
                return self.violations
        self.heal()
        return self.violations

    def heal(self) -> None:
        self.healing = True
        self.log.refuse = None
        for name, count in (("a", 4), ("b", 3)):
            self.catalog.set(
                name, max(count, self.catalog.topics[name].partitions if name in self.catalog.topics else 0)
            )
        for member in self.members:
            member.asleep_until_ms = 0
        for _ in range(240):
            self.step()
        self.violations += self.unfinished() + falling_epochs(self.log.records()) + self.differs()

    def unfinished(self) -> list[str]:
        """Nothing happens any more: everything is read, once, and evenly."""
        group, found = self.group, []
        if {member.member_id for member in self.members} != group.members.keys():
            found.append(
                f"members {sorted(group.members)}, alive are {sorted(m.member_id for m in self.members)}"
            )
        if self.members and group.state is not ConsumerGroupState.STABLE:
            found.append(f"the group is {group.state}")
        wanted = {name for member in self.members for name in member.topics}
        every = {
            (s.topic_id, n)
            for name, s in self.catalog.topics.items()
            if name in wanted
            for n in range(s.partitions)
        }
        read = [partition for member in self.members for partition in member.reads]
        if len(read) != len(set(read)) or set(read) != every:
            found.append(f"read {len(read)} partitions of {len(every)}: {every.symmetric_difference(read)}")
        loads = [len(member.reads) for member in self.members]
        if len({member.topics for member in self.members}) == 1 and max(loads) - min(loads) > 1:
            found.append(f"uneven: {loads}")
        return found

    def differs(self) -> list[str]:
        found, log = [], self.log.records()
        last = {record.key: record.offset for record in log}
        compacted = [r for r in log if last[r.key] == r.offset and r.value is not None]
        for what, history in (("log", log), ("compacted log", compacted)):
            shard = GroupShard(self.config, self.catalog)
            for record in history:
                shard.replay(record)
            replayed = shard.groups.consumers.groups.get(G) or ConsumerGroup(G)
            if vars(replayed) != vars(self.group):
                found.append(f"the {what} replays to {vars(replayed)}, live is {vars(self.group)}")
        return found


def falling_epochs(log: list[ReplayedRecord]) -> list[str]:
    """No epoch falls as long as what it belongs to is there; a static member that left for a while has none
    meanwhile."""
    found, highest = [], dict[records.Key, int]()
    for record in log:
        key = records.decode_key(record.key)
        if key is None or key.kind not in (RecordKind.GROUP, RecordKind.TARGET_EPOCH, RecordKind.CURRENT):
            continue
        if record.value is None:
            highest.pop(key, None)
            continue
        value = records.decode_value(key.kind, record.value)
        epoch = value.epoch if isinstance(value, CurrentAssignment) else value
        assert isinstance(epoch, int)
        if epoch == -2:
            continue
        if epoch < highest.get(key, 0) and epoch != 0:
            found.append(f"{key} falls from {highest[key]} to {epoch}")
        highest[key] = epoch
    return found
