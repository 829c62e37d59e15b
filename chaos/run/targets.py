"""The target of a fault: the node that is leader, controller or coordinator at this moment, and the commits
that need it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ...client.administration.admin import Admin
from ...processes.local_cluster import LocalNode
from ..checks.history import Partition
from ..load.progress import Commit
from .harness import Run
from .timed_kills import InjectedFault, wait_coordinator


@dataclass(frozen=True, slots=True)
class Target:
    """A node, the role for which it is the target, and the commits that need a successor in this role."""

    node: LocalNode
    role: str
    affected_clients: str
    """The clients whose commits are affected, in words."""
    needs_another: Callable[[Commit], bool]

    def affected(self, fault: InjectedFault) -> Callable[[Commit], bool]:
        """Whether a commit began after the fault and cannot succeed with this node in its role."""
        return lambda commit: commit.invoked >= fault.killed_at_monotonic and self.needs_another(commit)


Pick = Callable[[Run], Awaitable[Target]]


async def leader(run: Run) -> Target:
    """A leader of partitions that transactions write to; not the active controller, if another node leads
    some."""
    leaders = await run.leaders()
    controller = await run.cluster.active_controller()
    candidates = sorted({leader for leader in leaders.values() if leader > 0} - {controller.id}) or [
        controller.id
    ]
    return leading(leaders, run.cluster.node(run.chance.choice(candidates)), "leader")


async def controller(run: Run) -> Target:
    """The active controller; it leads partitions as well."""
    return leading(await run.leaders(), await run.cluster.active_controller(), "active controller")


async def coordinator(run: Run) -> Target:
    """The coordinator of one of the writers' transactional ids."""
    transactional_id = run.chance.choice(run.workload.writer_ids)
    async with Admin(
        run.cluster.bootstrap,
        client_id="chaos-harness",
        clock=run.cluster.clock,
        timeout_s=5.0,
        security=run.cluster.security,
    ) as admin:
        node = await wait_coordinator(run.cluster, admin, transactional_id)
    return Target(
        node, "coordinator", transactional_id, lambda commit: commit.transactional_id == transactional_id
    )


async def any_node(run: Run) -> Target:
    """Any node."""
    return leading(await run.leaders(), run.chance.choice(run.cluster.nodes), "node")


def leading(leaders: dict[Partition, int], node: LocalNode, role: str) -> Target:
    """The node as target; it affects the writers of the partitions that it leads, or all writers when it
    leads none."""
    led = {partition for partition, leader in leaders.items() if leader == node.id}
    return Target(
        node,
        role,
        f"writers of its {len(led)} partitions",
        lambda c: not led or not led.isdisjoint(c.partitions),
    )
