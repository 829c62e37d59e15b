"""The scenarios of `tidegate chaos run`, by name.

A scenario injects its fault once per call and ends it; the harness repeats it as often as fits into the time,
and judges the run.  A scenario states its own conditions (that the kill was at the chosen instant, that a
restart was clean) with `run.outcome.require`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from ..run import targets
from ..run.harness import Run
from ..run.targets import Pick
from ..run.timed_kills import (
    BEFORE_MARKERS,
    InjectedFault,
    kill_at,
    kill_coordinator_before_markers,
    kill_coordinator_mid_commit,
    kill_node,
    wait_completed,
)
from .bank import BANK_UNDER_CUTS
from .disk_faults import SICK_DISKS
from .named import BETWEEN_S, LONGER_THAN_A_SESSION, NamedScenario
from .network_scenarios import CUTS
from .restart_elsewhere import RESTART_ELSEWHERE
from .starved import STARVED

ORDERLY_MAX_S: Final = 8.0
"""An orderly stop must not be felt like a failure.  Handing over takes 0.1 to 0.3 s; a stopped replica that
was caught up a moment ago may hold the high watermark for `replica.lag.time.max.ms`, which is 4 s here."""

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


async def coordinator_mid_commit(run: Run) -> None:
    """Kills the coordinator between PREPARE_COMMIT and the markers; another node must finish the decided
    transaction."""
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
        "coordinator killed mid-commit",
        kill,
        transactional_id,
        lambda c: c.transactional_id == transactional_id,
        restart=False,
    )
    completed = await wait_completed(run.cluster, kill)
    run.outcome.require(
        "another coordinator finished the transaction",
        completed.coordinator != kill.node_id,
        f"node {completed.coordinator}, {completed.seen_at_monotonic - kill.killed_at_monotonic:.2f} "
        "s after the kill",
    )
    run.outcome.recoveries[-1] = replace(
        run.outcome.recoveries[-1], back_s=await run.restart(run.cluster.node(kill.node_id))
    )
    await run.load(BETWEEN_S)


async def killed(run: Run, pick: Pick) -> None:
    """The target dies by SIGKILL under load."""
    await run.load(BETWEEN_S)
    target = await pick(run)
    kill = await kill_node(run.cluster, target.node)
    await run.recovery(f"{target.role} killed", kill, target.affected_clients, target.affected(kill))
    await run.load(BETWEEN_S)


async def controller_killed(run: Run) -> None:
    """The active controller dies by SIGKILL, and another node takes over."""
    await run.load(BETWEEN_S)
    target = await targets.controller(run)
    kill = await kill_node(run.cluster, target.node)
    successor = await run.cluster.active_controller()
    run.outcome.require(
        "another node became the controller",
        successor.id != kill.node_id,
        f"node {successor.id}, seen {run.now() - kill.killed_at_monotonic:.2f} s after the kill",
    )
    await run.recovery("active controller killed", kill, target.affected_clients, target.affected(kill))
    await run.load(BETWEEN_S)


async def paused(run: Run, pick: Pick) -> None:
    """SIGSTOP for longer than its session: the target keeps its connections, and resumes with its former
    leaderships and roles in memory."""
    await run.load(BETWEEN_S)
    target = await pick(run)
    pause = InjectedFault(target.node.id, run.now(), None)
    target.node.pause()
    try:
        await run.recovery(
            f"{target.role} paused", pause, target.affected_clients, target.affected(pause), restart=False
        )
        await run.load(pause.killed_at_monotonic + LONGER_THAN_A_SESSION * run.session_s - run.now())
    finally:
        target.node.resume()
    await target.node.wait_ready()
    await run.load(BETWEEN_S)


async def all_nodes(run: Run) -> None:
    """SIGKILL to every node almost at once: no acknowledged record may depend on the memory of a node."""
    await run.load(BETWEEN_S)
    kills = await asyncio.gather(*(kill_node(run.cluster, node) for node in run.cluster.nodes))
    last = max(kills, key=lambda kill: kill.killed_at_monotonic)
    restarts = asyncio.gather(*(run.restart(node) for node in run.cluster.nodes))
    try:
        await run.recovery(
            "all nodes killed",
            last,
            "every client",
            lambda c: c.invoked >= last.killed_at_monotonic,
            restart=False,
        )
    finally:
        back_s = await restarts
    run.outcome.recoveries[-1] = replace(run.outcome.recoveries[-1], back_s=max(back_s))
    await run.load(BETWEEN_S)


async def crash_points(run: Run) -> None:
    """A node dies in the middle of its work: between the steps of an append, a flush, an abort.  Another
    point each round."""
    await run.load(BETWEEN_S)
    point, match = CRASH_POINTS[(run.rounds - 1 + run.outcome.seed) % len(CRASH_POINTS)]
    leaders = await run.leaders()
    where = ", ".join([point, *(f"{key}={value}" for key, value in match.items())])
    if point == BEFORE_MARKERS:  # not every node coordinates a transactional id
        kill = await kill_coordinator_before_markers(
            run.cluster, run.chance.choice(run.workload.writer_ids), commit=False
        )
    else:
        node, skip = run.chance.choice(run.cluster.nodes), run.chance.randint(0, CRASH_SKIP_MAX)
        kill = await kill_at(run.cluster, node, point, match=match, skip=skip, timeout_s=CRASH_TIMEOUT_S)
    target = targets.leading(leaders, run.cluster.node(kill.node_id), "node")
    run.outcome.require("the node died at the fault point", kill.by_sigkill, f"node {kill.node_id}: {where}")
    await run.recovery(f"killed at {where}", kill, target.affected_clients, target.affected(kill))
    await run.load(BETWEEN_S)


async def rolling_restart(run: Run) -> None:
    """SIGTERM to one node after the other under load.  Clients may see a pause, but no error."""
    disturbed_before = run.workload.progress.disturbed
    for node in run.cluster.nodes:
        await run.load(BETWEEN_S)
        run.say(f"rolling restart: node {node.id}")
        target = targets.leading(await run.leaders(), node, "node")
        begin = run.now()
        code = await node.terminate()
        run.outcome.require(
            "a stop by SIGTERM is clean",
            code == 0,
            f"node {node.id}: {run.now() - begin:.2f} s, exit code {code}",
        )
        kill = InjectedFault(node.id, begin, code)
        recovery = await run.recovery(
            "node stopped in an orderly way", kill, target.affected_clients, target.affected(kill)
        )
        felt_s = recovery.affected_s or 0.0
        run.outcome.require(
            "an orderly stop is not felt like a failure",
            felt_s <= ORDERLY_MAX_S,
            f"node {node.id}: {felt_s:.2f} s",
        )
        recovered = (await node.status()).recovered_logs
        run.outcome.require(
            "a clean restart needs no recovery", recovered == 0, f"node {node.id}: {recovered} logs recovered"
        )
        await run.wait_in_sync()
    disturbances = run.workload.progress.disturbances[disturbed_before:]
    run.outcome.require("no operation of a client failed", not disturbances, "; ".join(disturbances[:3]))


SCENARIOS: Final[Mapping[str, NamedScenario]] = {
    scenario.name: scenario
    for scenario in (
        NamedScenario(
            "coordinator-mid-commit",
            "the coordinator dies after PREPARE_COMMIT and before the markers; another one must "
            "finish the commit",
            coordinator_mid_commit,
        ),
        NamedScenario(
            "data-leader",
            "the leader of partitions dies by SIGKILL under load",
            partial(killed, pick=targets.leader),
        ),
        NamedScenario("controller", "the active controller dies by SIGKILL under load", controller_killed),
        NamedScenario(
            "paused-leader",
            "a leader falls silent for longer than its session, and wakes up again",
            partial(paused, pick=targets.leader),
        ),
        NamedScenario(
            "paused-controller",
            "the same with the active controller",
            partial(paused, pick=targets.controller),
        ),
        NamedScenario(
            "paused-coordinator", "the same with a coordinator", partial(paused, pick=targets.coordinator)
        ),
        NamedScenario(
            "crash-points", "a node dies between the steps of an append, a flush or an abort", crash_points
        ),
        NamedScenario("all-nodes", "all nodes die by SIGKILL at once and are started again", all_nodes),
        NamedScenario(
            "rolling-restart",
            "every node is stopped by SIGTERM and started again, one after the other",
            rolling_restart,
        ),
        *CUTS,
        *SICK_DISKS,
        STARVED,
        RESTART_ELSEWHERE,
        BANK_UNDER_CUTS,
    )
}
