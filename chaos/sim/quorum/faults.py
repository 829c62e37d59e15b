"""What goes wrong, drawn from the seed: one fault at a time, many at once, and coincidences (`directed`).

Within what a quorum must survive: the disks that are lost and have not got their vote back stay below what leaves a majority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....controller.raft.core import LEADER
from .directed import depose_in_turn, lose_disk_at_the_worst_time

if TYPE_CHECKING:
    from .member import Member
    from .simulation import QuorumSimulation

PAUSE_S_MAX = 2.5
SLOW_SYNC_S_MAX = 0.15
ALL_POWER_WITHIN_S = 0.02


class Faults:
    """Of one simulation."""

    def __init__(self, simulation: QuorumSimulation) -> None:
        self._simulation = simulation
        self._names = [name for name, _ in simulation.options.faults]
        self._weights = [weight for _, weight in simulation.options.faults]
        self._ended = False
        self._cut_all_at_acknowledgement = self._cut_followers_at_acknowledgement = False
        self.plan_until = 0.0

    def inflict(self) -> None:
        if self._ended or not self._names:
            return
        name = self._simulation.random.choices(self._names, self._weights)[0]
        self._simulation.counts["faults"] += 1
        getattr(self, name)()

    def end(self) -> None:
        self._ended = True
        self._cut_all_at_acknowledgement = self._cut_followers_at_acknowledgement = False

    @property
    def ended(self) -> bool:
        return self._ended

    def _member(self) -> Member:
        return self._simulation.random.choice(list(self._simulation.members.values()))

    def _pair(self) -> tuple[int, int] | None:
        ids = self._simulation.ids
        if len(ids) == 1:
            return None
        a, b = self._simulation.random.sample(ids, 2)
        return a, b

    def leader(self) -> Member | None:
        """Of the newest term."""
        leaders = [m for m in self._simulation.members.values() if m.core is not None and m.core.role == LEADER]
        return max(leaders, key=lambda member: member.core.term if member.core is not None else -1, default=None)

    # ---- processes and power --------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self._member().kill()

    def kill_all(self) -> None:
        for member in self._simulation.members.values():
            member.kill()

    def cut_power(self) -> None:
        self._member().cut_power()

    def cut_all_power(self) -> None:
        """One after the other within moments, or all in one."""
        moments = self._simulation.random.choice((0.0, ALL_POWER_WITHIN_S))
        for member in self._simulation.members.values():
            self._simulation.after(moments * self._simulation.random.random(), member.cut_power)

    def cut_all_at_acknowledgement(self) -> None:
        self._cut_all_at_acknowledgement = True

    def cut_followers_at_acknowledgement(self) -> None:
        self._cut_followers_at_acknowledgement = True

    def acknowledged(self) -> None:
        """The power of all goes at this moment; or of all but the leader, which is cut off: the others go on without it."""
        simulation, leader = self._simulation, None
        if self._cut_followers_at_acknowledgement:
            leader = self.leader()
            self.isolate_leader()
        elif not self._cut_all_at_acknowledgement:
            return
        self._cut_all_at_acknowledgement = self._cut_followers_at_acknowledgement = False
        for member in simulation.members.values():
            if member is not leader:
                simulation.after(0.0, member.cut_power)

    def cut_while_writing(self) -> None:
        member = self._member()
        member.cut_is_of_power, member.disk.cut_after = True, self._simulation.random.randrange(8)

    def kill_while_writing(self) -> None:
        member = self._member()
        member.cut_is_of_power, member.disk.cut_after = False, self._simulation.random.randrange(8)

    def kill_while_writing_then_cut_power(self) -> None:
        """What the killed process left in the page cache is read again, and then lost."""
        member = self._member()
        member.cut_is_of_power, member.disk.cut_after = False, self._simulation.random.randrange(8)
        member.power_follows = True

    def pause(self) -> None:
        member = self._simulation.random.choice([self._member(), self.leader() or self._member()])
        member.pause(self._simulation.random.random() * PAUSE_S_MAX)

    # ---- disks ----------------------------------------------------------------------------------------------------------------

    def slow_disk(self) -> None:
        member, random = self._member(), self._simulation.random
        member.sync_s = random.random() * SLOW_SYNC_S_MAX

        def well() -> None:
            member.sync_s = 0.0

        self._simulation.after(random.random(), well)

    def full_disk(self) -> None:
        member, random = self._member(), self._simulation.random
        disk = member.disk
        disk.capacity = disk.used_bytes() + random.randrange(200)

        def room() -> None:
            disk.capacity = None

        self._simulation.after(random.random() * 1.5, room)

    def sync_fails(self) -> None:
        self._member().disk.fail_sync_after = self._simulation.random.randrange(4)

    def may_lose_disk(self) -> bool:
        simulation = self._simulation
        return len(simulation.ledger.without_vote()) < (len(simulation.ids) - 1) // 2

    def lose_disk(self) -> None:
        member = self._member()
        if self.may_lose_disk() and member.node_id not in self._simulation.ledger.without_vote():
            member.lose_disk()

    # ---- the network ----------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        pair = self._pair()
        if pair is not None:
            self._simulation.network.cut(pair, (pair[1], pair[0]))

    def cut_one_way(self) -> None:
        pair = self._pair()
        if pair is not None:
            self._simulation.network.cut(pair)

    def mend(self) -> None:
        network, random = self._simulation.network, self._simulation.random
        if network.cuts:
            cuts = sorted(network.cuts)
            network.mend(*random.sample(cuts, random.randrange(1, len(cuts) + 1)))

    def reset(self) -> None:
        pair = self._pair()
        if pair is not None:
            self._simulation.network.reset(*pair)

    def isolate_leader(self) -> None:
        """It goes on leading, as far as it knows, and has clients."""
        leader, simulation = self.leader(), self._simulation
        if leader is not None:
            simulation.network.isolate(leader.node_id)
            simulation.after(simulation.random.random() * 1.5, simulation.network.mend_all)

    # ---- coincidences ---------------------------------------------------------------------------------------------------------

    def lose_disk_at_the_worst_time(self) -> None:
        if self._simulation.now >= self.plan_until:
            lose_disk_at_the_worst_time(self._simulation)

    def depose_in_turn(self) -> None:
        if self._simulation.now >= self.plan_until:
            depose_in_turn(self._simulation)
