"""The kill at a fault point, against a scripted cluster: it follows the coordinator, leaves nothing armed
behind, and is not fooled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidegate.chaos.run import timed_kills
from tidegate.chaos.run.timed_kills import (
    FaultInjectionError,
    InjectedFault,
    kill_coordinator_mid_commit,
    wait_completed,
)
from tidegate.client.administration.descriptions import TransactionDescription
from tidegate.client.connecting.errors import RequestError
from tidegate.runtime.clock import ManualClock
from tidegate.wire.errors import ErrorCode

Armed = Mapping[str, object]


@dataclass
class ScriptedNode:
    """A node that dies when it is armed for the `dies_when_armed`-th time, with `exit_code`."""

    id: int
    clock: ManualClock
    dies_when_armed: int | None = None
    exit_code: int = -9
    refuses: grpc.StatusCode | None = None
    armed: list[Armed] = field(default_factory=list)
    running: bool = True
    log_path: Path = Path("node.log")

    async def arm_fault(self, point: str, *, match: Armed) -> None:
        assert point == "transaction.before_markers"
        if self.refuses is not None:
            raise grpc.aio.AioRpcError(self.refuses, grpc.aio.Metadata(), grpc.aio.Metadata())
        self.armed.append(match)
        if len([m for m in self.armed if m["transactional_id"]]) == self.dies_when_armed:
            self.running = False

    async def wait_exit(self, timeout_s: float | None = None) -> int:
        if self.running:
            self.clock.advance(timeout_s or 0)
            raise TimeoutError
        return self.exit_code


@dataclass
class ScriptedCluster:
    """`coordinators`: the coordinating node, one answer per question, the last one for ever; None: no
    node."""

    nodes: dict[int, ScriptedNode]
    clock: ManualClock
    coordinators: list[int | None]
    dies_when_asked: int | None = None
    """The node that is dead by the time of the second answer."""
    state: str = "Ongoing"
    bootstrap: str = "nowhere:1"
    security: None = None

    def node(self, node_id: int) -> ScriptedNode:
        return self.nodes[node_id]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ScriptedCluster:
    clock = ManualClock()
    made = ScriptedCluster({n: ScriptedNode(n, clock) for n in (1, 2, 3)}, clock, [1])

    class ScriptedAdmin:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def __aenter__(self) -> ScriptedAdmin:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
            answer = made.coordinators.pop(0) if len(made.coordinators) > 1 else made.coordinators[0]
            if made.dies_when_asked is not None and made.node(made.dies_when_asked).armed:
                made.node(made.dies_when_asked).running = False
            if answer is None:
                clock.advance(0.1)
                raise RequestError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
            return TransactionDescription(transactional_id, made.state, 1, 2, 1000, -1, answer, {})

    monkeypatch.setattr(timed_kills, "Admin", ScriptedAdmin)
    monkeypatch.setattr(timed_kills, "POLL_INTERVAL_S", 0)
    return made


def kill(cluster: Any, **options: Any) -> InjectedFault:
    return asyncio.run(kill_coordinator_mid_commit(cluster, "t", **options))


def test_the_coordinator_is_armed_for_commits_of_this_id_alone(cluster: ScriptedCluster) -> None:
    cluster.node(1).dies_when_armed = 1
    found = kill(cluster)
    assert (found.node_id, found.by_sigkill, found.transactional_id) == (1, True, "t")
    assert cluster.node(1).armed == [{"transactional_id": "t", "commit": True}]
    assert cluster.node(2).armed == cluster.node(3).armed == []


def test_the_wait_goes_on_while_no_node_knows_the_transactional_id(cluster: ScriptedCluster) -> None:
    cluster.coordinators = [None, None, 2]
    cluster.node(2).dies_when_armed = 1
    assert kill(cluster).node_id == 2


def test_no_second_node_is_armed_when_the_first_dies_during_the_lookup(cluster: ScriptedCluster) -> None:
    cluster.coordinators, cluster.dies_when_asked = [1, 2], 1
    assert kill(cluster).node_id == 1
    assert cluster.node(2).armed == []


def test_when_the_coordinator_moves_the_new_node_is_armed_instead(cluster: ScriptedCluster) -> None:
    cluster.coordinators = [1, 1, 3]
    cluster.node(3).dies_when_armed = 1
    assert kill(cluster).node_id == 3
    assert cluster.node(1).armed[-1] == {"transactional_id": ""}
    assert cluster.node(1).running


def test_a_node_that_ends_otherwise_is_no_hit(cluster: ScriptedCluster) -> None:
    cluster.node(1).dies_when_armed, cluster.node(1).exit_code = 1, 1
    with pytest.raises(FaultInjectionError, match="exit code 1, not by the fault point"):
        kill(cluster)


def test_when_nothing_is_committed_the_point_is_disarmed_and_said(cluster: ScriptedCluster) -> None:
    with pytest.raises(FaultInjectionError, match="does it commit"):
        kill(cluster, timeout_s=5)
    assert cluster.node(1).armed[-1] == {"transactional_id": ""}


def test_a_cluster_without_fault_points_is_named_as_the_cause(cluster: ScriptedCluster) -> None:
    cluster.node(1).refuses = grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(FaultInjectionError, match="fault_points=True"):
        kill(cluster)


def test_only_another_node_that_left_prepare_counts_as_completion(cluster: ScriptedCluster) -> None:
    fallen = InjectedFault(1, 0.0, -9, "t")
    cluster.coordinators, cluster.state = [1, 2], "CompleteCommit"
    assert asyncio.run(wait_completed(cluster, fallen)).coordinator == 2  # type: ignore[arg-type]


def test_a_transaction_that_stays_prepared_is_reported(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.coordinators, cluster.state = [2], "PrepareCommit"

    async def advance(_: float) -> None:
        cluster.clock.advance(1)

    monkeypatch.setattr(timed_kills.asyncio, "sleep", advance)  # type: ignore[attr-defined]
    with pytest.raises(FaultInjectionError, match="node 2 says PrepareCommit"):
        asyncio.run(wait_completed(cluster, InjectedFault(1, 0.0, -9, "t"), timeout_s=3))  # type: ignore[arg-type]
