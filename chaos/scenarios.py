"""What `tidegate chaos run` does to a cluster, by name.

A scenario hurts the cluster once per call and heals what it hurt; the harness repeats it as often as fits into the time, and
judges.  What a scenario itself must prove (that the kill hit where it was aimed, that a restart was clean) it says by
`run.outcome.require`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from .aimed import (
    BEFORE_MARKERS,
    AimedKill,
    kill_active_controller,
    kill_at,
    kill_coordinator_before_markers,
    kill_coordinator_mid_commit,
    kill_node,
    wait_completed,
)
from .harness import Run
from .history import Partition
from .progress import Commit

BETWEEN_S: Final = 1.0
"""Load between two faults, so that the second does not hide the first."""

ORDERLY_MAX_S: Final = 8.0
"""An orderly stop must not be felt like a failure.  Handing over takes 0.1 to 0.3 s; a stopped replica that was caught
up a moment ago may hold the high watermark for `replica.lag.time.max.ms`, which is 4 s here."""

CRASH_POINTS: Final[tuple[tuple[str, Mapping[str, object]], ...]] = (
    ("log.written_unpublished", {"topic": "chaos-records"}),
    ("log.flush", {}),
    (BEFORE_MARKERS, {"commit": False}),
    ("log.written_unpublished", {"topic": "__transaction_state"}),
    ("log.written_unpublished", {"topic": "__consumer_offsets"}),
    ("log.written_unpublished", {"topic": "chaos-derived"}),
)
CRASH_SKIP_MAX: Final = 5
CRASH_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class NamedScenario:
    """A scenario of the table: a name, a sentence, and what it does."""

    name: str
    summary: str
    hurt: Callable[[Run], Awaitable[None]]
    settings: Mapping[str, object] = field(default_factory=dict)

    async def inject(self, run: Run) -> None:
        await self.hurt(run)


async def coordinator_mid_commit(run: Run) -> None:
    """The aimed kill, and the proof that the decided transaction was finished by another node."""
    transactional_id = run.chance.choice(run.workload.writer_ids)
    await run.load(BETWEEN_S)
    kill = await kill_coordinator_mid_commit(run.cluster, transactional_id)
    run.outcome.require(
        "the coordinator died between PREPARE_COMMIT and its markers",
        kill.by_sigkill,
        f"node {kill.node_id}, at the fault point, in a commit of {transactional_id}",
    )
    run.decided.append(kill)
    await run.recovery(
        "coordinator killed mid-commit", kill, transactional_id, lambda c: c.transactional_id == transactional_id, restart=False
    )
    completed = await wait_completed(run.cluster, kill)
    run.outcome.require(
        "another coordinator finished the transaction",
        completed.coordinator != kill.node_id,
        f"node {completed.coordinator}, {completed.seen_at_monotonic - kill.killed_at_monotonic:.2f} s after the kill",
    )
    run.outcome.recoveries[-1] = replace(run.outcome.recoveries[-1], back_s=await run.restart(run.cluster.node(kill.node_id)))
    await run.load(BETWEEN_S)


async def data_leader(run: Run) -> None:
    """Kills the leader of a partition that transactions write to, no controller if that can be avoided."""
    await run.load(BETWEEN_S)
    leaders = await run.leaders()
    controller = await run.cluster.active_controller()
    candidates = sorted({leader for leader in leaders.values() if leader > 0} - {controller.id}) or [controller.id]
    node = run.cluster.node(run.chance.choice(candidates))
    led = {partition for partition, leader in leaders.items() if leader == node.id}
    kill = await kill_node(run.cluster, node)
    await run.recovery("data leader killed", kill, f"writers of its {len(led)} partitions", _begun_after(kill, led))
    await run.load(BETWEEN_S)


async def controller(run: Run) -> None:
    """Kills the active controller, which leads partitions as well."""
    await run.load(BETWEEN_S)
    leaders = await run.leaders()
    kill = await kill_active_controller(run.cluster)
    led = {partition for partition, leader in leaders.items() if leader == kill.node_id}
    successor = await run.cluster.active_controller()
    run.outcome.require(
        "another node became the controller",
        successor.id != kill.node_id,
        f"node {successor.id}, seen {run.now() - kill.killed_at_monotonic:.2f} s after the kill",
    )
    await run.recovery("active controller killed", kill, f"writers of its {len(led)} partitions", _begun_after(kill, led))
    await run.load(BETWEEN_S)


async def paused_leader(run: Run) -> None:
    """A leader falls silent for longer than its session, keeps its connections, and wakes up believing that it still leads."""
    await run.load(BETWEEN_S)
    leaders = await run.leaders()
    node = run.cluster.node(run.chance.choice(sorted({leader for leader in leaders.values() if leader > 0})))
    led = {partition for partition, leader in leaders.items() if leader == node.id}
    pause = AimedKill(node.id, run.now(), None)
    node.pause()
    try:
        await run.recovery(
            "leader paused", pause, f"writers of its {len(led)} partitions", _begun_after(pause, led), restart=False
        )
    finally:
        node.resume()
    await node.wait_ready()
    await run.load(BETWEEN_S)


async def all_nodes(run: Run) -> None:
    """SIGKILL to every node within a moment: nothing that was acknowledged may depend on anybody's memory."""
    await run.load(BETWEEN_S)
    kills = await asyncio.gather(*(kill_node(run.cluster, node) for node in run.cluster.nodes))
    last = max(kills, key=lambda kill: kill.killed_at_monotonic)
    restarts = asyncio.gather(*(run.restart(node) for node in run.cluster.nodes))
    try:
        await run.recovery("all nodes killed", last, "everybody", lambda c: c.invoked >= last.killed_at_monotonic, restart=False)
    finally:
        back_s = await restarts
    run.outcome.recoveries[-1] = replace(run.outcome.recoveries[-1], back_s=max(back_s))
    await run.load(BETWEEN_S)


async def crash_points(run: Run) -> None:
    """A node dies in the middle of its work: between the steps of an append, a flush, an abort.  Another point each round."""
    await run.load(BETWEEN_S)
    point, match = CRASH_POINTS[(run.rounds - 1 + run.outcome.seed) % len(CRASH_POINTS)]
    where = ", ".join([point, *(f"{key}={value}" for key, value in match.items())])
    leaders = await run.leaders()
    if point == BEFORE_MARKERS:  # not every node coordinates somebody
        kill = await kill_coordinator_before_markers(run.cluster, run.chance.choice(run.workload.writer_ids), commit=False)
    else:
        node, skip = run.chance.choice(run.cluster.nodes), run.chance.randint(0, CRASH_SKIP_MAX)
        kill = await kill_at(run.cluster, node, point, match=match, skip=skip, timeout_s=CRASH_TIMEOUT_S)
    led = {partition for partition, leader in leaders.items() if leader == kill.node_id}
    run.outcome.require("the node died at the fault point", kill.by_sigkill, f"node {kill.node_id}: {where}")
    await run.recovery(f"killed at {where}", kill, f"writers of its {len(led)} partitions", _begun_after(kill, led))
    await run.load(BETWEEN_S)


async def rolling_restart(run: Run) -> None:
    """SIGTERM to one node after the other under load.  Nobody may notice more than a pause."""
    disturbed_before = run.workload.progress.disturbed
    for node in run.cluster.nodes:
        await run.load(BETWEEN_S)
        run.say(f"rolling restart: node {node.id}")
        led = {partition for partition, leader in (await run.leaders()).items() if leader == node.id}
        begin = run.now()
        code = await node.terminate()
        run.outcome.require(
            "a stop by SIGTERM is clean", code == 0, f"node {node.id}: {run.now() - begin:.2f} s, exit code {code}"
        )
        kill = AimedKill(node.id, begin, code)
        await run.recovery(
            "node stopped in an orderly way", kill, f"writers of its {len(led)} partitions", _begun_after(kill, led)
        )
        recovered = (await node.status()).recovered_logs
        run.outcome.require("a clean restart needs no recovery", recovered == 0, f"node {node.id}: {recovered} logs recovered")
        await run.wait_in_sync()
    disturbances = run.workload.progress.disturbances[disturbed_before:]
    run.outcome.require("no operation of a client failed", not disturbances, "; ".join(disturbances[:3]))


def _begun_after(kill: AimedKill, led: set[Partition]) -> Callable[[Commit], bool]:
    """Commits that needed a new leader: begun after the kill, with records for a partition that the killed node had led.

    When it led nothing, any commit begun after the kill.
    """
    return lambda c: c.invoked >= kill.killed_at_monotonic and (not led or not led.isdisjoint(c.partitions))


SCENARIOS: Final[Mapping[str, NamedScenario]] = {
    scenario.name: scenario
    for scenario in (
        NamedScenario(
            "coordinator-mid-commit",
            "the coordinator dies after PREPARE_COMMIT and before the markers; another one must finish the commit",
            coordinator_mid_commit,
        ),
        NamedScenario("data-leader", "the leader of partitions dies by SIGKILL under load", data_leader),
        NamedScenario("controller", "the active controller dies by SIGKILL under load", controller),
        NamedScenario("paused-leader", "a leader falls silent for longer than its session, and wakes up again", paused_leader),
        NamedScenario("crash-points", "a node dies between the steps of an append, a flush or an abort", crash_points),
        NamedScenario("all-nodes", "all nodes die by SIGKILL at once and are started again", all_nodes),
        NamedScenario(
            "rolling-restart", "every node is stopped by SIGTERM and started again, one after the other", rolling_restart
        ),
    )
}
