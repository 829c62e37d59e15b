"""Connections between voters, and what befalls frames.

As a stream (`datagrams` off): frames of one connection arrive in order or not at all; a cut holds them back
until it is mended or the connection is given up.  As datagrams: each frame may be lost, doubled or overtaken,
more than any transport of ours allows. Every frame is encoded and decoded, as on a wire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial

from ....controller.raft.messages import AppendReply, Message, decode, encode
from ....controller.raft.transport import PeerDown, PeerEvent, PeerUp, Received
from .options import QuorumOptions
from .process import Process
from .schedule import Schedule

LOSS, DOUBLE, SLOW, LATE = 0.03, 0.02, 0.05, 0.3
SLOW_FACTOR = 10
"""A slow frame takes up to so many delays, and in a stream all frames behind it wait."""
GIVEN_UP_S = 3.5
DIAL_EVERY_S = 0.1
Way = tuple[int, int]


class Network:
    """All connections of a simulation."""

    def __init__(self, processes: Mapping[int, Process], schedule: Schedule, options: QuorumOptions) -> None:
        self._processes, self._schedule, self._options = processes, schedule, options
        self.cuts: set[Way] = set()  # in one direction each
        self._numbers: dict[frozenset[int], int] = {}
        self._up: dict[Way, int] = {}  # (sender, receiver): the connection on which it may send
        self._next_number = 1
        self._free_at: dict[Way, float] = defaultdict(float)
        self._held: dict[Way, list[tuple[int, PeerEvent]]] = defaultdict(list)
        self._wiped: dict[int, int] = defaultdict(int)

    # ---- connections ---------------------------------------------------------------------------------------

    def dial(self) -> None:
        """Every pair tries again and again."""
        for a in self._processes:
            for b in self._processes:
                if a < b and frozenset((a, b)) not in self._numbers and self._schedule.random.random() < 0.6:
                    self.connect(a, b)

    def connect(self, a: int, b: int) -> None:
        both_up = self._processes[a].is_up and self._processes[b].is_up
        if {(a, b), (b, a)} & self.cuts or not both_up or frozenset((a, b)) in self._numbers:
            return
        number, self._next_number = self._next_number, self._next_number + 1
        self._numbers[frozenset((a, b))] = number
        self._travel((a, b), PeerUp(a, number), number)
        self._travel((b, a), PeerUp(b, number), number)

    def reset(self, a: int, b: int, *, silently: bool = False) -> None:
        """The connection ends; frames on their way may still arrive before the peers notice it. `silently`:
        the peers notice it late."""
        number = self._numbers.pop(frozenset((a, b)), None)
        if number is None:
            return
        random = self._schedule.random
        for way in ((a, b), (b, a)):
            self._held[way].clear()
            if self._up.get(way) == number:
                del self._up[way]
            news_in = random.random() * (1.0 if silently else 2 * self._options.delay_s)
            self._schedule.after(news_in, partial(self._arrive, way, PeerDown(way[0], number), number, 0))

    def lose(self, node_id: int, *, silently: bool = False) -> None:
        """This voter's process is gone."""
        for other in self._processes:
            if other != node_id:
                self.reset(node_id, other, silently=silently)

    def forget(self, node_id: int) -> None:
        """The frames of a lost journal are dropped with their connections, in every mode."""
        self._wiped[node_id] += 1

    def cut(self, *ways: Way) -> None:
        """Nothing passes this way any more; after a while the connection is given up."""
        schedule = self._schedule
        for way in ways:
            self.cuts.add(way)
            number = self._numbers.get(frozenset(way))

            def give_up(way: Way = way, number: int | None = number) -> None:
                if way in self.cuts and self._numbers.get(frozenset(way)) == number:
                    self.reset(*way)

            schedule.after(schedule.random.random() * GIVEN_UP_S, give_up)

    def isolate(self, node_id: int) -> None:
        for other in self._processes:
            if other != node_id:
                self.cut((node_id, other), (other, node_id))

    def mend(self, *ways: Way) -> None:
        for way in ways:
            self.cuts.discard(way)
            held, self._held[way] = self._held[way], []
            for number, event in held:
                self._travel(way, event, number)

    def mend_all(self) -> None:
        self.mend(*sorted(self.cuts))

    # ---- frames --------------------------------------------------------------------------------------------

    def send(self, source: int, target: int, message: Message) -> None:
        number = self._up.get((source, target))
        if number is None:
            return
        frame = decode(encode(message))
        assert frame == message, f"{message} became {frame} on the wire"
        random, options = self._schedule.random, self._options
        event = Received(source, number, message)
        if not options.datagrams:
            self._travel((source, target), event, number)
            return
        if random.random() < LOSS:
            return
        late = options.late_replies and isinstance(message, AppendReply) and random.random() < LATE
        for _ in range(2 if random.random() < DOUBLE else 1):
            self._travel((source, target), event, number, extra_s=4 * random.random() if late else 0.0)

    def _travel(self, way: Way, event: PeerEvent, number: int, extra_s: float = 0.0) -> None:
        schedule, options = self._schedule, self._options
        slow = SLOW_FACTOR if schedule.random.random() < SLOW else 1
        due = schedule.now + schedule.random.random() * options.delay_s * slow + extra_s
        if not options.datagrams or isinstance(event, PeerUp):
            due = self._free_at[way] = max(due, self._free_at[way])
        schedule.at(due, partial(self._arrive, way, event, number, self._wiped[way[0]]))

    def _arrive(self, way: Way, event: PeerEvent, number: int, wiped: int) -> None:
        source, target = way
        process = self._processes[target]
        if isinstance(event, PeerDown):
            if self._up.get((target, source)) == number:
                del self._up[target, source]
            process.post(event)
            return
        if wiped != self._wiped[source]:
            return
        if way in self.cuts:
            if not self._options.datagrams or isinstance(event, PeerUp):
                self._held[way].append((number, event))
            return
        if isinstance(event, PeerUp):
            if self._numbers.get(frozenset(way)) != number:
                return
            self._up[target, source] = number
        # as if frames of replaced connections were heeded
        elif isinstance(event, Received) and self._options.late_replies:
            event = Received(source, self._up.get((target, source), number), event.message)
        process.post(event)
