"""Coincidences that single faults hardly ever make: the situations for which a rule of Raft exists, approached on purpose.

Each plan only pushes; what comes of it is still the seed's luck.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ....controller.raft.core import LEADER

if TYPE_CHECKING:
    from .simulation import QuorumSimulation

WATCH_EVERY_S = 0.004


def lose_disk_at_the_worst_time(simulation: QuorumSimulation) -> None:
    """A follower that has just acknowledged or voted loses its disk while some of the others have nothing of that; then the one
    goes that it was promised to (or comes back, out of office)."""
    random, network, faults = simulation.random, simulation.network, simulation.faults
    leader = faults.leader()
    without = simulation.ledger.without_vote()
    others = [m for m in simulation.members.values() if m.is_up and m is not leader and m.node_id not in without]
    if leader is None or len(others) < len(simulation.ids) // 2 + 1 or not faults.may_lose_disk():
        return
    random.shuffle(others)
    victim, behind = others[0], others[1 : 1 + len(simulation.ids) // 2]
    deposed = random.random() < 0.5
    for other in [*behind, victim] if deposed else behind:
        network.cut((leader.node_id, other.node_id), (other.node_id, leader.node_id))
        network.reset(leader.node_id, other.node_id)

    def lose() -> None:
        if faults.ended:
            return
        if faults.may_lose_disk():
            victim.lose_disk()
        victim.start()
        network.mend((leader.node_id, victim.node_id), (victim.node_id, leader.node_id))
        for other in behind if deposed else []:
            network.cut((victim.node_id, other.node_id), (other.node_id, victim.node_id))
        network.connect(leader.node_id, victim.node_id)

    def crash_again() -> None:
        if not faults.ended:
            victim.cut_power()
            victim.start()
            network.connect(leader.node_id, victim.node_id)

    def turn() -> None:
        if not deposed and not faults.ended:
            leader.cut_power()
        network.dial()

    lost_in = random.uniform(0.1, 0.7)
    simulation.after(lost_in, lose)
    simulation.after(lost_in + random.uniform(0.0, 0.4), turn)
    if random.random() < 0.5:
        simulation.after(lost_in + random.uniform(0.0, 0.2), crash_again)
    simulation.after(lost_in + 2.5, network.mend_all)
    faults.plan_until = simulation.now + lost_in + 2.5


def depose_in_turn(simulation: QuorumSimulation) -> None:
    """Every new leader is cut off soon after it came into office, with entries that nobody else has, and comes back when the next
    one is: logs full of short, conflicting terms ("figure 8" of the Raft paper)."""
    random, network, faults = simulation.random, simulation.network, simulation.faults
    until = faults.plan_until = simulation.now + 4.0
    seen: set[int] = set()
    away: list[int] = []

    def fall(node_id: int) -> None:
        if faults.ended or simulation.now > until:
            return
        if away and random.random() < 0.9:
            back = away.pop(0)
            network.mend(*[way for way in sorted(network.cuts) if back in way])
        network.isolate(node_id)
        for other in simulation.ids:
            if other != node_id:
                network.reset(node_id, other)
        away.append(node_id)

    def watch() -> None:
        if faults.ended or simulation.now > until:
            network.mend_all()
            return
        for node_id, member in simulation.members.items():
            core = member.core
            if core is not None and core.role == LEADER and core.term not in seen:
                seen.add(core.term)
                in_office_s = random.choice((0.0, 1.0, 3.0, 10.0)) * random.random() * simulation.options.delay_s
                simulation.after(in_office_s, partial(fall, node_id))
        simulation.after(WATCH_EVERY_S, watch)

    watch()
