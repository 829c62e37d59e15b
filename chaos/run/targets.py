"""Whom a fault hits: the node that leads, controls or coordinates something at this moment, and whose commits that stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...client.administration.admin import Admin
from ...processes.local_cluster import LocalNode
from ..checks.history import Partition
from ..load.progress import Commit
from .harness import Run
from .timed_kills import AimedKill, wait_coordinator


@dataclass(frozen=True, slots=True)
class Target:
    """A node, what it is hit for, and the commits that need somebody in its place."""

    node: LocalNode
    role: str
    whom: str
    """Whose commits are affected."""
    needs_another: Callable[[Commit], bool]

    def affected(self, fault: AimedKill) -> Callable[[Commit], bool]:
        """Commits that were begun after the fault and could not have succeeded with this node in its role."""
        return lambda commit: commit.invoked >= fault.killed_at_monotonic and self.needs_another(commit)


Pick = Callable[[Run], Awaitable[Target]]


async def leader(run: Run) -> Target:
    """The leader of partitions that transactions write to, no controller if that can be avoided."""
    leaders = await run.leaders()
    controller = await run.cluster.active_controller()
    candidates = sorted({leader for leader in leaders.values() if leader > 0} - {controller.id}) or [controller.id]
    return leading(leaders, run.cluster.node(run.chance.choice(candidates)), "leader")


async def controller(run: Run) -> Target:
    """The active controller, which leads partitions as well."""
    return leading(await run.leaders(), await run.cluster.active_controller(), "active controller")


async def coordinator(run: Run) -> Target:
    """The coordinator of one of the writers' transactional ids."""
    transactional_id = run.chance.choice(run.workload.writer_ids)
    async with Admin(run.cluster.bootstrap, client_id="chaos-harness", clock=run.cluster.clock, timeout_s=5.0) as admin:
        node = await wait_coordinator(run.cluster, admin, transactional_id)
    return Target(node, "coordinator", transactional_id, lambda commit: commit.transactional_id == transactional_id)


async def anybody(run: Run) -> Target:
    """Any node."""
    return leading(await run.leaders(), run.chance.choice(run.cluster.nodes), "node")


def leading(leaders: dict[Partition, int], node: LocalNode, role: str) -> Target:
    """Affected are the writers of the partitions that the node leads; when it leads nothing, everybody."""
    led = {partition for partition, leader in leaders.items() if leader == node.id}
    return Target(node, role, f"writers of its {len(led)} partitions", lambda c: not led or not led.isdisjoint(c.partitions))
