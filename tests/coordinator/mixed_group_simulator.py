"""The simulator of consumer groups, with members of the classic protocol among the others, and with offsets.

A classic member joins, syncs and sends heartbeats.  An *eager* one gives up everything before it joins, a
*cooperative* one what its new assignment lacks, and joins again then.  While the group is a classic one, its
leader assigns to each member what it owns, and no more: all is read again when a consumer joins, and the
group is upgraded.

Members commit offsets of what they read, one commit of a partition at a time, each with a higher offset.
Checked beside what `World` checks: a commit that was acknowledged is found by each later fetch, unless a
later commit, or the end of the topic, may have replaced it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.coordinator.fields import FieldWriter
from tidegate.coordinator.group.classic.consumer_protocol import (
    NamedPartition,
    read_assignment,
    read_subscription,
    write_assignment,
)
from tidegate.coordinator.group.classic.events import (
    ClassicGroupConfig,
    Heartbeat,
    JoinedMember,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from tidegate.coordinator.group.consumer.events import Partitions, TopicShape
from tidegate.coordinator.group.consumer.group import ConsumerGroup
from tidegate.coordinator.group.events import (
    GroupConfig,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    TopicsDeleted,
)
from tidegate.wire.errors import ErrorCode, KafkaError

from .consumer_group_simulator import REBALANCE_MS, SESSION_MS, G, Member, World

NONE = -1
"""The offset of a partition without a commit."""


def subscription(topics: tuple[str, ...], owned: Collection[NamedPartition]) -> bytes:
    """ConsumerProtocolSubscription 1."""
    writer = FieldWriter()
    writer.int16(1)
    writer.array(len(topics))
    for topic in topics:
        writer.string(topic)
    writer.data(b"")
    by_topic = [(topic, sorted(n for name, n in owned if name == topic)) for topic in topics]
    writer.array(len(by_topic))
    for topic, numbers in by_topic:
        writer.string(topic)
        writer.int32s(numbers)
    return writer.finish()


def kept_by(members: tuple[JoinedMember, ...]) -> tuple[tuple[str, bytes], ...]:
    """The assignments of a leader that moves nothing."""
    given, assigned = set[NamedPartition](), list[tuple[str, bytes]]()
    for each in members:
        keeps = read_subscription(each.metadata).owned - given
        given |= keeps
        assigned.append((each.member_id, write_assignment(keeps, 1)))
    return tuple(assigned)


class Step(Enum):
    """The next request of a classic member."""

    JOIN = "join"
    SYNC = "sync"
    HEARTBEAT = "heartbeat"


@dataclass(slots=True)
class ClassicMember(Member):
    """`epoch` is its generation; the member id is empty until the coordinator has given it one.  is_lost: the
    group went on without the member, which may join by its former id, and learns by its next SyncGroup what
    it has."""

    name: str = ""
    cooperative: bool = False
    step: Step = Step.JOIN
    is_lost: bool = False
    assigns: tuple[tuple[str, bytes], ...] = ()


class MixedWorld(World):
    def __init__(self, seed: int, **options: Any) -> None:
        self.offset = 0
        self.committing: set[NamedPartition] = set()
        self.acceptable: dict[NamedPartition, set[int]] = {}
        self.commits = self.fetches = self.classic_syncs = 0
        super().__init__(seed, **options)

    def make_config(self, **consumer: Any) -> GroupConfig:
        made = super().make_config(**consumer)
        return GroupConfig(consumer=made.consumer, classic=ClassicGroupConfig(initial_rebalance_delay_ms=0))

    # --- classic members ------------------------------------------------------------------------------------

    def come(self) -> None:
        super().come()
        if not self.healing and self.random.random() < 0.4:
            came = self.members.pop()
            cooperative = self.random.random() < 0.5
            self.members.append(
                ClassicMember("", came.instance_id, came.topics, name=came.member_id, cooperative=cooperative)
            )

    def go(self, member: Member) -> None:
        if not isinstance(member, ClassicMember):
            super().go(member)
            return
        member.gone = True
        self.members.remove(member)
        if member.member_id and self.random.random() < 0.5:
            leaving = LeavingMember(member.member_id, member.instance_id)
            self.send(LeaveGroup(G, (leaving,)), lambda _reply: None)

    def live(self, member: Member) -> None:
        if member.asleep_until_ms <= self.now_ms and member.epoch > 0 and self.random.random() < 0.3:
            self.commit_offset(member)
        if not isinstance(member, ClassicMember):
            super().live(member)
        elif (
            member.asleep_until_ms <= self.now_ms
            and not member.waiting
            and self.now_ms >= member.next_beat_ms
        ):
            self.ask(member)

    def ask(self, member: ClassicMember) -> None:
        member.waiting = True
        step = member.step

        def answer(reply: Any) -> None:
            member.waiting = False
            member.next_beat_ms = self.now_ms
            if not member.gone:
                self.told(member, step, reply)

        self.send(self.request_of(member), answer, member.member_id)

    def request_of(self, member: ClassicMember) -> JoinGroup | SyncGroup | Heartbeat:
        if member.step is Step.SYNC:
            return SyncGroup(
                G, member.epoch, member.member_id, member.instance_id, "consumer", "range", member.assigns
            )
        if member.step is Step.HEARTBEAT:
            return Heartbeat(G, member.epoch, member.member_id, member.instance_id)
        if not member.cooperative:
            member.reads = frozenset()
        member.attempts += 1
        names = {shape.topic_id: name for name, shape in self.topics.items()}
        owned = {(names[topic_id], number) for topic_id, number in member.reads if topic_id in names}
        return JoinGroup(
            G, member.member_id, member.instance_id, "client", "/host", SESSION_MS, REBALANCE_MS, "consumer",
            (("range", subscription(member.topics, owned)),), f"{member.name}-{member.attempts}", False,
        )  # fmt: skip

    def told(self, member: ClassicMember, step: Step, reply: Any) -> None:
        if isinstance(reply, KafkaError):
            self.refused(member, reply.code)
        elif step is Step.JOIN:
            member.member_id, member.epoch, member.step = reply.member_id, reply.generation, Step.SYNC
            member.assigns = kept_by(reply.members)
        elif step is Step.SYNC:
            self.classic_syncs += 1
            assigned = self.by_id(read_assignment(reply.assignment).partitions)
            gives_up = bool(member.reads - assigned)
            member.reads, member.is_lost = assigned, False
            member.step = Step.JOIN if gives_up else Step.HEARTBEAT
        else:
            member.next_beat_ms = self.now_ms + self.random.randrange(500, 3_000)

    def refused(self, member: ClassicMember, code: ErrorCode) -> None:
        if code is ErrorCode.FENCED_INSTANCE_ID:
            member.gone = True
            self.members.remove(member)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            member.step = Step.JOIN
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.fenced += 1
            member.reads, member.step, member.epoch = frozenset(), Step.JOIN, 0
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                member.member_id = ""

    @property
    def topics(self) -> dict[str, TopicShape]:
        """Those that the consumer group knows, and else those that there are."""
        return self.catalog.topics | self.group.topics

    def by_id(self, partitions: frozenset[NamedPartition]) -> Partitions:
        topics = self.topics
        return frozenset((topics[name].topic_id, number) for name, number in partitions if name in topics)

    def member_ids(self) -> set[str]:
        """Also of the classic group that it has become."""
        classic = self.shard.groups.classic.get(G)
        return super().member_ids() | (set() if classic is None else set(classic.members))

    def is_zombie(self, member: Member, group: ConsumerGroup) -> bool:
        if not isinstance(member, ClassicMember):
            return super().is_zombie(member, group)
        member.is_lost = member.is_lost or member.epoch <= 0 or member.member_id not in self.member_ids()
        return member.is_lost

    # --- offsets --------------------------------------------------------------------------------------------

    def commit_offset(self, member: Member) -> None:
        names = {shape.topic_id: name for name, shape in self.catalog.topics.items()}
        free = sorted({(names[each], n) for each, n in member.reads if each in names} - self.committing)
        if not free:
            return
        place = self.random.choice(free)
        self.offset += 1
        self.committing.add(place)
        offset, acceptable = self.offset, self.acceptable.setdefault(place, {NONE})
        acceptable.add(offset)

        def answer(reply: Any) -> None:
            self.committing.discard(place)
            if not isinstance(reply, KafkaError) and not any(reply.errors.values()):
                self.commits += 1
                self.acceptable[place] = {offset} if place[0] in self.catalog.topics else {offset, NONE}

        written = (OffsetToCommit(*place, offset),)
        self.send(
            OffsetCommit(G, written, member.epoch, member.member_id, member.instance_id, -1, True), answer
        )

    def fetch_offsets(self) -> None:
        """What is acceptable when the coordinator gets the request; the answer must be of that moment."""
        acceptable = {place: set(offsets) for place, offsets in self.acceptable.items()}

        def compare(reply: Any) -> None:
            for place, found in {} if isinstance(reply, KafkaError) else reply.offsets.items():
                self.fetches += 1
                if found.offset not in acceptable[place]:
                    self.violations.append(
                        f"{self.now_ms}: the offset of {place} is {found.offset}, not of {acceptable[place]}"
                    )

        self.runtime.submit(0, OffsetFetch(G, tuple(sorted(acceptable))), compare)

    # --- a run ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        super().step()
        self.fetch_offsets()

    def break_something(self) -> None:
        before = set(self.catalog.topics)
        super().break_something()
        gone = frozenset(before - self.catalog.topics.keys())
        for place in self.acceptable:
            if place[0] in gone:
                self.acceptable[place].add(NONE)
        if gone:
            self.runtime.submit(0, TopicsDeleted(gone), lambda _reply: None)

    def heal(self) -> None:
        if all(isinstance(member, ClassicMember) for member in self.members):
            self.healing = True
            self.come()
        super().heal()
