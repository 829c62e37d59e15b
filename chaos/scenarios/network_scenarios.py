"""Cut networks: between nodes that are hosts of their own (network_lab.py), while clients still reach every
one of them.

These cuts are the dangerous ones: a node that cannot reach the others still gets requests from its clients,
and must not acknowledge records that the other nodes will never have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import permutations
from typing import Final

from ..machine.network_lab import CLIENTS, NetworkLab
from ..run import targets
from ..run.harness import Run
from ..run.targets import Pick, Target
from ..run.timed_kills import InjectedFault
from .named import BETWEEN_S, LONGER_THAN_A_SESSION, NamedScenario

Pairs = Iterable[tuple[int, int]]
ON_THE_WAY_S: Final = 0.5
"""After this time every packet that was on its way when the last cable was cut has arrived."""


def deaf(lab: NetworkLab, node_id: int) -> Pairs:
    """The target's packets arrive; it receives none."""
    return [(other, node_id) for other in lab.nodes if other != node_id]


def mute(lab: NetworkLab, node_id: int) -> Pairs:
    """The target receives packets; its own are lost."""
    return [(node_id, other) for other in lab.nodes if other != node_id]


def alone(lab: NetworkLab, node_id: int) -> Pairs:
    """No packets pass between the target and the other nodes; clients reach it."""
    return [*deaf(lab, node_id), *mute(lab, node_id)]


def gone(lab: NetworkLab, node_id: int) -> Pairs:
    """No packets pass between the target and any other host, clients included."""
    return [*alone(lab, node_id), (node_id, CLIENTS), (CLIENTS, node_id)]


async def cut_off(run: Run, pick: Pick, which: Sequence[Callable[[NetworkLab, int], Pairs]]) -> None:
    """The target is cut off for longer than its session; another way each round, when there are several."""
    await run.load(BETWEEN_S)
    target = await pick(run)
    how = which[(run.rounds - 1 + run.outcome.seed) % len(which)]
    await _cut(run, target, f"{target.role} {how.__name__}", how(run.lab, target.node.id))


async def _cut(run: Run, target: Target, what: str, pairs: Pairs) -> None:
    run.say(f"{what}: node {target.node.id}")
    cut = InjectedFault(target.node.id, run.now(), None)
    run.lab.cut(pairs)
    try:
        await run.recovery(what, cut, target.affected_clients, target.affected(cut), restart=False)
        await run.load(cut.killed_at_monotonic + LONGER_THAN_A_SESSION * run.session_s - run.now())
    finally:
        run.lab.heal()
    await run.wait_ready()
    await run.load(BETWEEN_S)


async def one_link(run: Run) -> None:
    """The active controller and one other node do not reach each other; all other hosts reach both."""
    await run.load(BETWEEN_S)
    active = await run.cluster.active_controller()
    node = run.chance.choice([node for node in run.cluster.nodes if node.id != active.id])
    target = targets.leading(await run.leaders(), node, "link to the active controller")
    await _cut(run, target, "link to the active controller cut", [(active.id, node.id), (node.id, active.id)])


async def minority(run: Run) -> None:
    """As many nodes as the cluster can do without are on the wrong side, the active controller with them
    every second time."""
    await run.load(BETWEEN_S)
    active = await run.cluster.active_controller()
    others = [node.id for node in run.cluster.nodes if node.id != active.id]
    size = (len(run.cluster.nodes) - 1) // 2
    with_controller = (run.rounds + run.outcome.seed) % 2 == 0
    lost = run.chance.sample(others, size - 1 if with_controller else size) + (
        [active.id] if with_controller else []
    )
    leaders = await run.leaders()
    led = {partition for partition, leader in leaders.items() if leader in lost}
    target = Target(
        run.cluster.node(lost[0]), "minority", f"writers of the {len(led)} partitions led there",
        lambda commit: not led or not led.isdisjoint(commit.partitions),
    )  # fmt: skip
    kept = set(run.lab.nodes) - set(lost)
    pairs = [(a, b) for a, b in permutations(run.lab.nodes, 2) if (a in kept) != (b in kept)]
    await _cut(run, target, f"{size} of {len(run.cluster.nodes)} nodes cut off", pairs)


async def all_apart(run: Run) -> None:
    """No node reaches any other: no node may acknowledge any request of its clients; afterwards all
    continue."""
    await run.load(BETWEEN_S)
    run.say("all nodes cut off from each other")
    run.lab.cut(permutations(run.lab.nodes, 2))
    begin = run.now()
    try:
        await run.load(2 * run.session_s)
        end = run.now()
    finally:
        run.lab.heal()
    run.require_silence("nothing is acknowledged while no two nodes meet", begin + ON_THE_WAY_S, end)
    healed = InjectedFault(0, end, None)
    await run.recovery(
        "all nodes met again", healed, "every client", lambda c: c.invoked >= begin, restart=False
    )
    await run.wait_ready()
    await run.load(BETWEEN_S)


def _scenario(name: str, summary: str, hurt: Callable[[Run], Awaitable[None]]) -> NamedScenario:
    return NamedScenario(name, summary, hurt, cuts_network=True)


def _cut_off(pick: Pick, *which: Callable[[NetworkLab, int], Pairs]) -> Callable[[Run], Awaitable[None]]:
    return partial(cut_off, pick=pick, which=which)


CUTS: Final = (
    _scenario(
        "cut-leader",
        "a leader reaches no other node; its clients still reach it",
        _cut_off(targets.leader, alone),
    ),
    _scenario("cut-controller", "the same with the active controller", _cut_off(targets.controller, alone)),
    _scenario("cut-coordinator", "the same with a coordinator", _cut_off(targets.coordinator, alone)),
    _scenario(
        "cut-one-way",
        "a leader is not heard any more, or hears nothing any more",
        _cut_off(targets.leader, deaf, mute),
    ),
    _scenario(
        "cut-controller-one-way",
        "the same with the active controller",
        _cut_off(targets.controller, mute, deaf),
    ),
    _scenario(
        "cut-host",
        "a node is cut off from all other nodes and from its clients",
        _cut_off(targets.any_node, gone),
    ),
    _scenario(
        "cut-link",
        "one node and the active controller do not reach each other; all others reach both",
        one_link,
    ),
    _scenario("cut-minority", "as many nodes as the cluster can do without are cut off together", minority),
    _scenario("cut-all", "no node reaches any other; afterwards all goes on", all_apart),
)
