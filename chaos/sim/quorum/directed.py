"""Coincidences that single faults hardly ever make: the situations for which a rule of Raft exists,
approached on purpose.

Each plan only pushes; what comes of it is still the seed's luck.
"""

from __future__ import annotations

from functools import partial

from ....controller.raft.contract import Role
from .cluster import Cluster

WATCH_EVERY_S = 0.004


class Plans:
    """One at a time: the next coincidence begins when the last one has ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._until = 0.0
        self._ended = False

    def end(self) -> None:
        """The faults have ended: planned steps do not happen any more."""
        self._ended = True

    def _runs(self) -> bool:
        return self._cluster.schedule.now < self._until

    def lose_disk_at_the_worst_time(self) -> None:
        """A follower that has just acknowledged or voted loses its disk while some of the others have nothing
        of that; then the leader or candidate that it was promised to loses its power (or comes back,
        deposed)."""
        cluster, schedule, network = self._cluster, self._cluster.schedule, self._cluster.network
        if self._runs():
            return
        random, leader = schedule.random, cluster.leader()
        without = cluster.without_vote()
        others = [
            m for m in cluster.members.values() if m.is_up and m is not leader and m.node_id not in without
        ]
        if leader is None or len(others) < len(cluster.members) // 2 + 1 or not cluster.may_lose_disk():
            return
        random.shuffle(others)
        victim, behind = others[0], others[1 : 1 + len(cluster.members) // 2]
        deposed = random.random() < 0.5
        for other in [*behind, victim] if deposed else behind:
            network.cut((leader.node_id, other.node_id), (other.node_id, leader.node_id))
            network.reset(leader.node_id, other.node_id)

        def lose() -> None:
            if self._ended:
                return
            if cluster.may_lose_disk():
                victim.lose_disk()
            victim.start()
            network.mend((leader.node_id, victim.node_id), (victim.node_id, leader.node_id))
            for other in behind if deposed else []:
                network.cut((victim.node_id, other.node_id), (other.node_id, victim.node_id))
            network.connect(leader.node_id, victim.node_id)

        def crash_again() -> None:
            if not self._ended:
                victim.cut_power()
                victim.start()
                network.connect(leader.node_id, victim.node_id)

        def turn() -> None:
            if not deposed and not self._ended:
                leader.cut_power()
            network.dial()

        lost_in = random.uniform(0.1, 0.7)
        schedule.after(lost_in, lose)
        schedule.after(lost_in + random.uniform(0.0, 0.4), turn)
        if random.random() < 0.5:
            schedule.after(lost_in + random.uniform(0.0, 0.2), crash_again)
        schedule.after(lost_in + 2.5, network.mend_all)
        self._until = schedule.now + lost_in + 2.5

    def depose_in_turn(self) -> None:
        """Every new leader is cut off soon after its election, with entries that no other member has, and
        comes back when the next one is cut off: logs full of short, conflicting terms ("figure 8" of the Raft
        paper)."""
        cluster, schedule, network = self._cluster, self._cluster.schedule, self._cluster.network
        if self._runs():
            return
        random = schedule.random
        until = self._until = schedule.now + 4.0
        seen: set[int] = set()
        away: list[int] = []

        def fall(node_id: int) -> None:
            if self._ended or schedule.now > until:
                return
            if away and random.random() < 0.9:
                back = away.pop(0)
                network.mend(*[way for way in sorted(network.cuts) if back in way])
            network.isolate(node_id)
            for other in cluster.members:
                if other != node_id:
                    network.reset(node_id, other)
            away.append(node_id)

        def watch() -> None:
            if self._ended or schedule.now > until:
                network.mend_all()
                return
            for node_id, member in cluster.members.items():
                core = member.core
                if core is not None and core.role is Role.LEADER and core.term not in seen:
                    seen.add(core.term)
                    leads_for_s = (
                        random.choice((0.0, 1.0, 3.0, 10.0)) * random.random() * cluster.options.delay_s
                    )
                    schedule.after(leads_for_s, partial(fall, node_id))
            schedule.after(WATCH_EVERY_S, watch)

        watch()
