"""Kills at a chosen instant, not only of a chosen node.

The most important instant is between a transaction's PREPARE_COMMIT and its markers: the commit is decided
and in the coordinator's log, the client may have its answer, and no partition has a marker.  The next
coordinator must finish it. `kill_coordinator_mid_commit` arms the fault point `transaction.before_markers` in
the coordinator's process, for the commits of one transactional id; the process then kills itself there.

The proof that the kill was at this instant: the process ended by SIGKILL, and only the armed fault point
sends one, between a committed PREPARE_COMMIT and the first marker.  The proof that the cluster recovered:
`wait_completed`.

    kill = await kill_coordinator_mid_commit(cluster, "payments-1")  # while payments-1 commits
    ...
    await wait_completed(cluster, kill)
    await cluster.node(kill.node_id).start()

"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import grpc

from ...client.administration.admin import Admin
from ...client.administration.descriptions import TransactionDescription
from ...client.connecting.errors import RequestError, RetriableError
from ...processes.local_cluster import POLL_INTERVAL_S, LocalCluster, LocalNode
from ...runtime import logs

log = logs.get(__name__)

BEFORE_MARKERS: Final = "transaction.before_markers"
# how often to check, while the armed node lives, that it still is the coordinator
RECHECK_INTERVAL_S: Final = 1.0
# no context has this value: a point armed with it never fires
NO_TRANSACTION: Final = {"transactional_id": ""}
UNFINISHED: Final = frozenset({"PrepareCommit", "PrepareAbort"})


class FaultInjectionError(Exception):
    """The fault was not injected as intended; the message says what happened instead."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault at one node: when (seconds of the cluster's monotonic clock), the exit code of a kill, the
    transactional id."""

    node_id: int
    killed_at_monotonic: float
    exit_code: int | None
    transactional_id: str | None = None

    @property
    def by_sigkill(self) -> bool:
        return self.exit_code == -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Completed:
    """The completion of the transaction whose coordinator was killed: the node that finished it, and when
    this was observed."""

    coordinator: int
    state: str
    producer_epoch: int
    seen_at_monotonic: float


async def kill_coordinator_mid_commit(
    cluster: LocalCluster, transactional_id: str, *, timeout_s: float = 60.0
) -> InjectedFault:
    """Kills the coordinator of `transactional_id` between the PREPARE_COMMIT and the markers of its next
    commit.

    The cluster needs `fault_points=True`, and a producer must be committing transactions of this id.  Returns
    when the process has ended; the caller starts it again.  Raises FaultInjectionError when that does not
    happen within `timeout_s`.
    """
    return await kill_coordinator_before_markers(cluster, transactional_id, commit=True, timeout_s=timeout_s)


async def kill_coordinator_before_markers(
    cluster: LocalCluster, transactional_id: str, *, commit: bool, timeout_s: float = 60.0
) -> InjectedFault:
    """The same for the next commit or the next abort of the transactional id."""
    deadline = cluster.clock.monotonic() + timeout_s
    armed: LocalNode | None = None
    answered = False
    async with Admin(
        cluster.bootstrap,
        client_id="tidegate-chaos",
        clock=cluster.clock,
        timeout_s=5.0,
        security=cluster.security,
    ) as admin:
        while True:
            if armed is not None and not armed.running:
                return await _certified(cluster, armed, transactional_id)
            if cluster.clock.monotonic() >= deadline:
                await _disarm(armed)
                verb = "commit" if commit else "abort"
                raise FaultInjectionError(
                    f"no coordinator of {transactional_id!r} died within {timeout_s:g} s: does it {verb}?"
                )
            coordinator = await _coordinator(cluster, admin, transactional_id)
            if armed is not None and not armed.running:
                continue  # it died while this loop asked its successor: a second node must not be armed
            if coordinator is not None and (coordinator is not armed or not answered):
                if coordinator is not armed:
                    await _disarm(armed)
                armed, answered = coordinator, await _arm(coordinator, transactional_id, commit)
            try:
                await (
                    armed.wait_exit(RECHECK_INTERVAL_S)
                    if armed is not None
                    else asyncio.sleep(POLL_INTERVAL_S)
                )
            except TimeoutError:
                continue  # no commit yet, or another node coordinates now: check again


async def kill_active_controller(cluster: LocalCluster, *, timeout_s: float = 30.0) -> InjectedFault:
    """SIGKILL to the active controller; returns when the process has ended."""
    return await kill_node(cluster, await cluster.active_controller(timeout_s))


async def kill_node(cluster: LocalCluster, node: LocalNode) -> InjectedFault:
    """SIGKILL to one node; returns when the process has ended."""
    killed_at = cluster.clock.monotonic()
    node.kill()
    code = await node.wait_exit()
    log.info("node_killed", node=node.id, exit_code=code)
    return InjectedFault(node.id, killed_at, code)


async def kill_at(
    cluster: LocalCluster,
    node: LocalNode,
    point: str,
    *,
    match: Mapping[str, object] | None = None,
    skip: int = 0,
    timeout_s: float,
) -> InjectedFault:
    """Arms a fault point of one node and waits until the node dies there.  Raises FaultInjectionError when it
    does not."""
    await node.arm_fault(point, match=match, skip=skip)
    try:
        code = await node.wait_exit(timeout_s)
    except TimeoutError:
        await _disarm(node, point)
        raise FaultInjectionError(
            f"node {node.id} did not pass the fault point {point} within {timeout_s:g} s"
        ) from None
    kill = InjectedFault(node.id, cluster.clock.monotonic(), code)
    if not kill.by_sigkill:
        raise FaultInjectionError(
            f"node {node.id} ended with exit code {code}, not by the fault point: see {node.log_path}"
        )
    log.info("node_killed_at", node=node.id, point=point)
    return kill


async def wait_completed(cluster: LocalCluster, kill: InjectedFault, *, timeout_s: float = 60.0) -> Completed:
    """Waits until another node coordinates the transactional id and has finished the interrupted transaction.

    Raises FaultInjectionError when that does not happen within `timeout_s`: then the transaction hangs.
    """
    transactional_id = kill.transactional_id
    if transactional_id is None:
        raise FaultInjectionError(
            f"node {kill.node_id} was not killed in a transaction: there is nothing to complete"
        )
    deadline = cluster.clock.monotonic() + timeout_s
    last = "no answer yet"
    async with Admin(
        cluster.bootstrap,
        client_id="tidegate-chaos",
        clock=cluster.clock,
        timeout_s=5.0,
        security=cluster.security,
    ) as admin:
        while cluster.clock.monotonic() < deadline:
            found = await _describe(admin, transactional_id)
            if found is not None:
                if found.coordinator != kill.node_id and found.state not in UNFINISHED:
                    now = cluster.clock.monotonic()
                    return Completed(found.coordinator, found.state, found.producer_epoch, now)
                last = f"node {found.coordinator} says {found.state}"
            await asyncio.sleep(POLL_INTERVAL_S)
    raise FaultInjectionError(
        f"the transaction of {transactional_id!r} was not completed within {timeout_s:g} s ({last})"
    )


async def wait_coordinator(
    cluster: LocalCluster, admin: Admin, transactional_id: str, *, timeout_s: float = 30.0
) -> LocalNode:
    """The node that coordinates the transactional id now; waits for one.  Raises FaultInjectionError when
    there is none."""
    deadline = cluster.clock.monotonic() + timeout_s
    while cluster.clock.monotonic() < deadline:
        node = await _coordinator(cluster, admin, transactional_id)
        if node is not None:
            return node
        await asyncio.sleep(POLL_INTERVAL_S)
    raise FaultInjectionError(f"no node coordinated {transactional_id!r} within {timeout_s:g} s")


async def _certified(cluster: LocalCluster, node: LocalNode, transactional_id: str) -> InjectedFault:
    killed_at = cluster.clock.monotonic()
    kill = InjectedFault(node.id, killed_at, await node.wait_exit(), transactional_id)
    if not kill.by_sigkill:
        message = (
            f"node {node.id} ended with exit code {kill.exit_code}, not by the fault point: see "
            f"{node.log_path}"
        )
        raise FaultInjectionError(message)
    log.info("coordinator_killed_before_markers", node=node.id, transactional_id=transactional_id)
    return kill


async def _describe(admin: Admin, transactional_id: str) -> TransactionDescription | None:
    """None when no node can answer: the coordinator is moving, or the id is not known yet."""
    try:
        return await admin.describe_transaction(transactional_id)
    except (RetriableError, RequestError) as error:
        log.debug("coordinator_not_found", transactional_id=transactional_id, reason=str(error))
        return None


async def _coordinator(cluster: LocalCluster, admin: Admin, transactional_id: str) -> LocalNode | None:
    found = await _describe(admin, transactional_id)
    return cluster.node(found.coordinator) if found is not None else None


async def _arm(node: LocalNode, transactional_id: str, commit: bool) -> bool:
    """False when the node did not answer: it may still be armed, or already killed by the fault point."""
    try:
        await node.arm_fault(BEFORE_MARKERS, match={"transactional_id": transactional_id, "commit": commit})
        return True
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            message = "the cluster runs without fault points: use LocalCluster(..., fault_points=True)"
            raise FaultInjectionError(message) from error
        log.info("arming_not_answered", node=node.id, code=str(error.code()))
        return False


async def _disarm(node: LocalNode | None, point: str = BEFORE_MARKERS) -> None:
    """Disarms: a point that stays armed would kill its node in a later commit, outside of the scenario."""
    if node is None or not node.running:
        return
    try:
        await node.arm_fault(point, match=NO_TRANSACTION)
    except grpc.aio.AioRpcError as error:
        log.warning("disarming_not_answered", node=node.id, code=str(error.code()))
