"""What goes wrong, drawn from the seed: one fault at a time, many at once, and coincidences (`directed`).

Within what a quorum must survive: the disks that are lost and have not got their vote back stay below what
leaves a majority.
"""

from __future__ import annotations

from .cluster import Cluster
from .directed import Plans
from .member import Member

PAUSE_S_MAX = 2.5
SLOW_SYNC_S_MAX = 0.15
ALL_POWER_WITHIN_S = 0.02


class Faults:
    """Of one simulation."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._network, self._schedule = cluster, cluster.network, cluster.schedule
        self._random = cluster.schedule.random
        self._names = [name for name, _ in cluster.options.faults]
        self._weights = [weight for _, weight in cluster.options.faults]
        self._ended = False
        self._cut_all_at_acknowledgement = self._cut_followers_at_acknowledgement = False
        self._plans = Plans(cluster)

    def inflict(self) -> None:
        if self._ended or not self._names:
            return
        name = self._random.choices(self._names, self._weights)[0]
        self._cluster.ledger.counts["faults"] += 1
        getattr(self, name)()

    def end(self) -> None:
        self._ended = True
        self._plans.end()
        self._cut_all_at_acknowledgement = self._cut_followers_at_acknowledgement = False

    def _member(self) -> Member:
        return self._random.choice(list(self._cluster.members.values()))

    def _pair(self) -> tuple[int, int] | None:
        ids = self._cluster.options.ids
        if len(ids) == 1:
            return None
        a, b = self._random.sample(ids, 2)
        return a, b

    # ---- processes and power -------------------------------------------------------------------------------

    def kill(self) -> None:
        self._member().kill()

    def kill_all(self) -> None:
        for member in self._cluster.members.values():
            member.kill()

    def cut_power(self) -> None:
        self._member().cut_power()

    def cut_all_power(self) -> None:
        """One after the other within moments, or all in one."""
        moments = self._random.choice((0.0, ALL_POWER_WITHIN_S))
        for member in self._cluster.members.values():
            self._schedule.after(moments * self._random.random(), member.cut_power)

    def cut_all_at_acknowledgement(self) -> None:
        self._cut_all_at_acknowledgement = True

    def cut_followers_at_acknowledgement(self) -> None:
        self._cut_followers_at_acknowledgement = True

    def acknowledged(self) -> None:
        """The power of all goes at this moment; or of all but the leader, which is cut off: the others go on
        without it."""
        leader = None
        if self._cut_followers_at_acknowledgement:
            leader = self._cluster.leader()
            self.isolate_leader()
        elif not self._cut_all_at_acknowledgement:
            return
        self._cut_all_at_acknowledgement = self._cut_followers_at_acknowledgement = False
        for member in self._cluster.members.values():
            if member is not leader:
                self._schedule.after(0.0, member.cut_power)

    def cut_while_writing(self) -> None:
        member = self._member()
        member.cut_is_of_power, member.disk.cut_after = True, self._random.randrange(8)

    def kill_while_writing(self) -> None:
        member = self._member()
        member.cut_is_of_power, member.disk.cut_after = False, self._random.randrange(8)

    def kill_while_writing_then_cut_power(self) -> None:
        """What the killed process left in the page cache is read again, and then lost."""
        member = self._member()
        member.cut_is_of_power, member.disk.cut_after = False, self._random.randrange(8)
        member.power_follows = True

    def pause(self) -> None:
        member = self._random.choice([self._member(), self._cluster.leader() or self._member()])
        member.process.pause(self._random.random() * PAUSE_S_MAX)

    # ---- disks ---------------------------------------------------------------------------------------------

    def slow_disk(self) -> None:
        member, random = self._member(), self._random
        member.process.sync_s = random.random() * SLOW_SYNC_S_MAX

        def well() -> None:
            member.process.sync_s = 0.0

        self._schedule.after(random.random(), well)

    def full_disk(self) -> None:
        member, random = self._member(), self._random
        disk = member.disk
        disk.capacity = disk.used_bytes() + random.randrange(200)

        def room() -> None:
            disk.capacity = None

        self._schedule.after(random.random() * 1.5, room)

    def sync_fails(self) -> None:
        self._member().disk.fail_sync_after = self._random.randrange(4)

    def lose_disk(self) -> None:
        member = self._member()
        if self._cluster.may_lose_disk() and member.node_id not in self._cluster.without_vote():
            member.lose_disk()

    # ---- the network ---------------------------------------------------------------------------------------

    def cut(self) -> None:
        pair = self._pair()
        if pair is not None:
            self._network.cut(pair, (pair[1], pair[0]))

    def cut_one_way(self) -> None:
        pair = self._pair()
        if pair is not None:
            self._network.cut(pair)

    def mend(self) -> None:
        network, random = self._network, self._random
        if network.cuts:
            cuts = sorted(network.cuts)
            network.mend(*random.sample(cuts, random.randrange(1, len(cuts) + 1)))

    def reset(self) -> None:
        pair = self._pair()
        if pair is not None:
            self._network.reset(*pair)

    def isolate_leader(self) -> None:
        """It goes on leading, as far as it knows, and has clients."""
        leader = self._cluster.leader()
        if leader is not None:
            self._network.isolate(leader.node_id)
            self._schedule.after(self._random.random() * 1.5, self._network.mend_all)

    # ---- coincidences --------------------------------------------------------------------------------------

    def lose_disk_at_the_worst_time(self) -> None:
        self._plans.lose_disk_at_the_worst_time()

    def depose_in_turn(self) -> None:
        self._plans.depose_in_turn()
