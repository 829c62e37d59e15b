"""Takers of transaction-consistent cuts beside the producers, and what each finished cut must hold.

A taker runs the product's own attempt (`node.cuts.attempt`): its questions travel over the same network as
all others, late, twice or never, to leaders and coordinators that may be deposed without knowing.  Its first
view of the metadata may be old; the last one is linearizable.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from ....coordinator.transaction.cut_events import HeldReply, HoldDecisions, ReleaseDecisions, ReleasedReply
from ....node.cuts.attempt import CutAttempt, GivenUp, Leadership, TopicView, View
from ....proto import cuts_pb2 as pb
from ....wire.errors import KafkaError
from .coordinators import Coordinators
from .environment import Environment
from .partitions import OFFSETS, DataPartition

PATIENCE_MS = 900
"""Of a taker for one attempt."""
_TOPICS = {"t": UUID(int=1), "offsets": UUID(int=2)}


@dataclass
class TakenCut:
    """asked: the moment in which it was asked for.  inside: the values of its first reading."""

    asked: int
    cut: pb.Cut
    inside: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"cut {self.cut.cut_id.partition('/')[2]}"


class Metadata:
    """The quorum's, and what nodes knew of it a while ago."""

    def __init__(self, shards: Sequence[Coordinators], partitions: Sequence[DataPartition]) -> None:
        self._shards, self._partitions = shards, partitions
        self.past: deque[View] = deque(maxlen=8)

    def now(self) -> View:
        shards = {
            number: Leadership(-1 if shard.state.leader is None else shard.state.leader, shard.state.epoch)
            for number, shard in enumerate(self._shards)
        }
        topics: dict[str, dict[int, Leadership]] = {"t": {}, "offsets": {}}
        for number, partition in enumerate(self._partitions):
            topic = topics["offsets" if number == OFFSETS else "t"]
            topic[number] = Leadership(partition.leader, partition.epoch)
        views = {name: TopicView(_TOPICS[name], found) for name, found in topics.items()}
        return View(TopicView(UUID(int=3), shards), views)

    def remember(self) -> None:
        now = self.now()
        if not self.past or self.past[-1] != now:
            self.past.append(now)


class Taker:
    """Takes one cut after the other."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        shards: Sequence[Coordinators],
        partitions: Sequence[DataPartition],
        cuts: list[TakenCut],
    ) -> None:
        self._environment, self._random = environment, environment.random
        self._metadata, self._shards, self._partitions = metadata, shards, partitions
        self._cuts = cuts
        self.begun = 0
        self._asked = 0
        self._began_ms = 0
        self._answers = 0
        self._attempt: CutAttempt | None = None
        self.given_up: Counter[str] = Counter()

    def step(self) -> None:
        if self._attempt is None:
            if not self._environment.healing and self._random.random() < 0.15:
                self._begin()
        elif self._environment.now_ms - self._began_ms > PATIENCE_MS:
            self._give_up("no answer")

    def _begin(self) -> None:
        self.begun += 1
        self._asked, self._began_ms = self._environment.note(), self._environment.now_ms
        view = (
            self._random.choice(self._metadata.past) if self._random.random() < 0.4 else self._metadata.now()
        )
        hold_ms = self._random.choice((100, 2_000, 2_000, 2_000))
        try:
            attempt = self._attempt = CutAttempt(f"{id(self)}/{self.begun}", hold_ms, view)
        except GivenUp as given_up:
            self.given_up[given_up.reason.value] += 1
            return
        self._answers = len(self._shards)
        for node, request in attempt.holds().items():
            for shard in request.shards:
                self._hold(attempt, node, shard, request.hold_ms)

    def _give_up(self, reason: str) -> None:
        attempt, self._attempt = self._attempt, None
        self.given_up[reason] += 1
        if attempt is not None:
            self._release(attempt, lambda reply: None)

    def _guarded(self, attempt: CutAttempt, then: Callable[[], None]) -> Callable[[], None]:
        """An answer of an attempt that goes on."""

        def run() -> None:
            if self._attempt is attempt:
                try:
                    then()
                except GivenUp as given_up:
                    self._give_up(given_up.reason.value)

        return run

    def _hold(self, attempt: CutAttempt, node: int, asked: pb.LedPartition, hold_ms: int) -> None:
        def answered(value: Any) -> None:
            shard = pb.HeldShard(partition=asked.partition)
            if isinstance(value, HeldReply):
                shard.leader_epoch, shard.until_ms = value.leader_epoch, value.until_ms
                shard.decided_producer_ids.extend(value.decided)
            elif isinstance(value, KafkaError):
                shard.error_code = value.code
            attempt.held(pb.HoldDecisionsReply(shards=[shard]))
            self._countdown(lambda: self._bound(attempt))

        self._ask_shard(attempt, node, asked.partition, HoldDecisions(attempt.hold_id, hold_ms), answered)

    def _countdown(self, then: Callable[[], None]) -> None:
        self._answers -= 1
        if not self._answers:
            then()

    def _ask_shard(
        self, attempt: CutAttempt, node: int, partition: int, event: Any, answered: Callable[[Any], None]
    ) -> None:
        target = self._shards[partition].nodes[node]
        arrive = _once(answered)

        def reply(value: Any) -> None:
            self._environment.post(self._guarded(attempt, lambda: arrive(value)))

        def ask() -> None:
            if target.alive:
                target.runtime.submit(0, event, reply)

        self._environment.post(ask, on_lost=lambda: None)

    def _bound(self, attempt: CutAttempt) -> None:
        requests = attempt.bounds(0)
        self._answers = sum(len(topic.partitions) for each in requests.values() for topic in each.topics)
        for node, request in requests.items():
            for topic in request.topics:
                for asked in topic.partitions:
                    of_one = pb.TopicBoundsRequest(topic=topic.topic, partitions=[asked])
                    one = pb.BoundsRequest(topics=[of_one])

                    def answered(bounds: pb.PartitionBounds, one: pb.BoundsRequest = one) -> None:
                        attempt.bounded(one, pb.BoundsReply(partitions=[bounds]))
                        self._countdown(lambda: self._end(attempt))

                    arrive = _once(answered)
                    ask = partial(self._ask_leader, attempt, node, asked, arrive)
                    if self._environment.inflicts(0.2):
                        self._environment.postpone(ask)
                    else:
                        self._environment.post(ask)

    def _ask_leader(
        self, attempt: CutAttempt, node: int, asked: pb.LedPartition, arrive: Callable[[Any], None]
    ) -> None:
        try:
            bounds = self._partitions[asked.partition].bounds(node, asked.leader_epoch)
        except KafkaError as error:
            bounds = pb.PartitionBounds(error_code=error.code)
        self._environment.post(self._guarded(attempt, lambda: arrive(bounds)))

    def _end(self, attempt: CutAttempt) -> None:
        self._answers = len(self._shards)

        def released(reply: pb.ReleaseDecisionsReply) -> None:
            attempt.released(reply)
            self._countdown(
                lambda: self._environment.post(self._guarded(attempt, lambda: self._finish(attempt)))
            )

        self._release(attempt, released)

    def _release(self, attempt: CutAttempt, then: Callable[[pb.ReleaseDecisionsReply], None]) -> None:
        for node, request in attempt.releases().items():
            for asked in request.shards:

                def answered(value: Any, asked: pb.HeldShard = asked) -> None:
                    has_held = isinstance(value, ReleasedReply) and value.has_held
                    one = pb.ReleasedShard(partition=asked.partition, has_held=has_held)
                    then(pb.ReleaseDecisionsReply(shards=[one]))

                event = ReleaseDecisions(attempt.hold_id, asked.leader_epoch, asked.until_ms)
                self._ask_shard(attempt, node, asked.partition, event, answered)

    def _finish(self, attempt: CutAttempt) -> None:
        cut = attempt.finish(attempt.hold_id, self._environment.now_ms, self._metadata.now())
        self._attempt = None
        taken = TakenCut(self._asked, cut)
        self._cuts.append(taken)
        taken.inside = values_inside(cut, self._partitions)


def _once(answered: Callable[[Any], None]) -> Callable[[Any], None]:
    """A request that came twice is answered twice; the taker hears the first answer."""
    left = [answered]
    return lambda value: left.pop()(value) if left else None


def values_inside(cut: pb.Cut, partitions: Sequence[DataPartition]) -> set[int]:
    """What a reader of the cut gets from the present leaders."""
    return {
        value
        for topic in cut.topics
        for each in topic.partitions
        for value in partitions[each.partition].read_at(each)
    }


@dataclass(frozen=True)
class Unit:
    """What commits as a whole: a transaction of a producer, or a job.  known: the moment in which its
    producer or a reader knew of its commit."""

    name: str
    values: frozenset[int]
    began: int
    known: int | None


def reading_violations(cuts: Sequence[TakenCut], partitions: Sequence[DataPartition]) -> list[str]:
    """A cut has the same records whenever it is read, whichever replica leads."""
    changed = [(taken, values_inside(taken.cut, partitions) ^ taken.inside) for taken in cuts]
    return [
        f"{taken.name}: read again it has {sorted(values)[:3]} more or less"
        for taken, values in changed
        if values
    ]


def violations(
    cuts: Sequence[TakenCut],
    partitions: Sequence[DataPartition],
    units: Sequence[Unit],
    committed: set[int],
) -> list[str]:
    """units: those that committed in the end, all of whose values are `committed`."""
    found = reading_violations(cuts, partitions)
    for taken in cuts:
        name = taken.name
        if unknown := sorted(taken.inside - committed):
            found.append(f"{name}: {unknown[:3]} are inside, and not committed in the end")
        found += (f"{name}: {what}" for what in _of_one(taken, units))
    return found


def _of_one(taken: TakenCut, units: Sequence[Unit]) -> list[str]:
    found: list[str] = []
    inside = [unit for unit in units if unit.values & taken.inside]
    outside = [unit for unit in units if not unit.values & taken.inside and unit.known is not None]
    found += (f"{unit.name} is torn" for unit in inside if not unit.values <= taken.inside)
    found += (
        f"{unit.name} was known before, and is outside" for unit in outside if (unit.known or 0) < taken.asked
    )
    earliest = min(outside, key=lambda unit: unit.known or 0, default=None)
    if earliest is not None:
        found += (
            f"{unit.name} is inside, and {earliest.name}, known before it began, is outside"
            for unit in inside
            if unit.began > (earliest.known or 0)
        )
    return found
