"""The shell around ISR changes: what was answered counts at once, what was not is asked again, whatever
happens to the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tidegate.replication import isr
from tidegate.replication.isr import IsrChanges
from tidegate.replication.partition.assignment import IsrChange, IsrResult
from tidegate.replication.partition.isr_change import JoinTrigger
from tidegate.runtime.clock import SystemClock
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError
from tidegate.wire.fetch import FetchPartition, FetchRequest

from .cluster import TOPIC_ID, Cluster, batch_of
from .leading import leader_of

Answer = Callable[[list[IsrChange]], AsyncIterator[Sequence[IsrResult]]]


class Shell:
    """Partitions 0 to 2 that this node leads, each with a follower that may join; `script` has what each call
    comes to."""

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.asked: list[list[int]] = []
        self.settled: list[int] = []
        self.changes = IsrChanges(
            SystemClock(), self._alter, self._on_settled, lambda _seconds: (), list[BaseException]().append
        )
        self.replicas = [self._replica(number) for number in range(3)]

    def _replica(self, number: int) -> Any:
        leader = leader_of(start=0, high_watermark=0, replicas=(1, 2), isr=(1,), minimum=1)
        leader.record_fetch(2, broker_epoch=40, fetch_offset=0, leader_log_end=0, now_s=0.0)
        return SimpleNamespace(
            topic="t",
            topic_id=UUID(int=9),
            partition=number,
            key=("t", number),
            leader=leader,
            log=SimpleNamespace(log_end_offset=0),
        )

    async def _alter(self, changes: list[IsrChange]) -> AsyncIterator[Sequence[IsrResult]]:
        self.asked.append([change.partition for change in changes])
        async for results in self.script.pop(0)(changes):
            yield results

    def _on_settled(self, replica: Any) -> None:
        self.settled.append(replica.partition)

    def submit(self, *numbers: int) -> None:
        for number in numbers:
            self.changes.submit(self.replicas[number], self.replicas[number].leader.propose_join(2))

    async def until_asked(self, calls: int) -> None:
        await eventually(lambda: len(self.asked) >= calls and (self.changes._task is None or self.script))

    def pending(self) -> list[int]:
        return [replica.partition for replica in self.replicas if replica.leader.pending is not None]


def result(change: IsrChange, error: ErrorCode = ErrorCode.NONE) -> IsrResult:
    nodes = tuple(member.node_id for member in change.isr)
    return IsrResult(
        change.topic, change.partition, error, 1, change.leader_epoch, change.partition_epoch + 1, nodes
    )


async def accepted(changes: list[IsrChange]) -> AsyncIterator[Sequence[IsrResult]]:
    yield [result(change) for change in changes]


def first_refused_then(error: Exception) -> Answer:
    async def answer(changes: list[IsrChange]) -> AsyncIterator[Sequence[IsrResult]]:
        yield [result(changes[0], ErrorCode.INELIGIBLE_REPLICA)]
        raise error

    return answer


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionResetError(), KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late")]
)
async def test_a_rejection_counts_though_the_call_fails(error: Exception) -> None:
    shell = Shell(first_refused_then(error), accepted)
    shell.submit(0, 1, 2)
    await shell.until_asked(2)
    assert shell.asked == [[0, 1, 2], [1, 2]]
    assert shell.settled == [0, 1, 2]
    assert not shell.pending()
    assert [replica.leader.isr for replica in shell.replicas] == [{1}, {1, 2}, {1, 2}]
    await shell.changes.close()


async def test_what_is_left_out_of_an_answer_is_asked_again() -> None:
    async def only_the_last(changes: list[IsrChange]) -> AsyncIterator[Sequence[IsrResult]]:
        yield [result(changes[-1])]

    shell = Shell(only_the_last, accepted)
    shell.submit(0, 1)
    await shell.until_asked(2)
    assert shell.asked == [[0, 1], [0]]
    assert not shell.pending()
    await shell.changes.close()


async def test_a_leadership_that_ended_meanwhile_neither_hears_nor_asks() -> None:
    shell = Shell(accepted, accepted)
    before = shell.replicas[0].leader

    async def fails_when_the_leadership_has_changed(
        _changes: list[IsrChange],
    ) -> AsyncIterator[Sequence[IsrResult]]:
        shell.replicas[0].leader = shell._replica(0).leader
        raise TimeoutError
        yield []

    shell.script.insert(0, fails_when_the_leadership_has_changed)
    shell.submit(0, 1)
    await shell.until_asked(2)
    assert shell.asked == [[0, 1], [1]]
    assert shell.settled == [1]
    assert before.pending is not None
    assert shell.replicas[0].leader.isr == {1}
    await shell.changes.close()


async def test_what_is_pending_when_the_node_stops_stays_pending() -> None:
    """Its outcome is not known."""
    reached = asyncio.Event()

    async def silent(changes: list[IsrChange]) -> AsyncIterator[Sequence[IsrResult]]:
        reached.set()
        await asyncio.Event().wait()
        yield []

    shell = Shell(silent)
    shell.submit(0)
    await reached.wait()
    await shell.changes.close()
    assert shell.pending() == [0]
    assert shell.replicas[0].leader.maximal_isr == {1, 2}


async def test_after_a_defect_the_maintenance_asks_anew_for_all_pending() -> None:
    async def broken(_changes: list[IsrChange]) -> AsyncIterator[Sequence[IsrResult]]:
        raise RuntimeError("a defect")
        yield []

    shell = Shell(broken, accepted)
    shell.submit(0, 1)
    await eventually(lambda: shell.changes._task is None)
    assert shell.pending() == [0, 1]
    for replica in shell.replicas:
        shell.changes.maintain(replica)
    await shell.until_asked(2)
    assert shell.asked == [[0, 1], [0, 1]]
    assert not shell.pending()
    await shell.changes.close()


# ---- the events after which a follower joins ---------------------------------------------------------------


async def fetch(cluster: Cluster, offset: int) -> None:
    """Follower 9 fetches the partition, in no session."""
    asked = FetchPartition(0, offset, 1000, 1, -1, topic_id=TOPIC_ID)
    await cluster.managers[1].fetch(
        FetchRequest(replica_id=9, replica_epoch=1, session_epoch=-1, topics=[("t", [asked])])
    )


async def reaches_the_high_watermark(cluster: Cluster) -> AsyncIterator[None]:
    await fetch(cluster, 0)
    yield
    await fetch(cluster, 1)


async def becomes_eligible(cluster: Cluster) -> AsyncIterator[None]:
    cluster.not_eligible.add(9)
    await fetch(cluster, 1)
    yield
    cluster.not_eligible.clear()
    cluster.managers[1].brokers_changed({9})


async def was_refused(cluster: Cluster) -> AsyncIterator[None]:
    cluster.alter_error = ErrorCode.INELIGIBLE_REPLICA
    await fetch(cluster, 1)
    await eventually(lambda: cluster.changes and cluster.managers[1]._isr_changes._task is None, "refused")
    cluster.changes.clear()
    cluster.alter_error = None
    yield


JOINS: dict[JoinTrigger, Callable[[Cluster], AsyncIterator[None]]] = {
    JoinTrigger.FETCH: reaches_the_high_watermark,
    JoinTrigger.BROKER_NEWS: becomes_eligible,
    JoinTrigger.PAUSE_END: was_refused,
}
"""How an obstacle that this event ends comes to be at a running manager (up to `yield`, where the follower is
kept out), and the event itself, as the node brings it; the end of a pause comes by the clock."""


@pytest.mark.parametrize("trigger", JoinTrigger)
async def test_the_shell_proposes_a_follower_at_each_event_that_ends_an_obstacle(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, trigger: JoinTrigger
) -> None:
    """Through `ReplicaManager` and `IsrChanges`, not by the core alone (`test_leader.py`)."""
    monkeypatch.setattr(isr, "PAUSE_FIRST_S", 0.05)
    assert trigger in JOINS, "give the trigger its row: the event must come to the leader by the shell"
    cluster.broker_epochs[9] = 1
    cluster.create(replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    manager.append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    await eventually(lambda: manager.replica("t", 0).high_watermark == 1, "the record is committed")
    follower = JOINS[trigger](cluster)
    await anext(follower)
    assert not cluster.changes, "the follower was not kept out"
    obstacles = manager.replica("t", 0).require_leader()._join_obstacles
    kept_out_by = obstacles(manager.replica("t", 0).require_leader().follower(9))
    assert [each.ended_by for each in kept_out_by] == [trigger]
    await anext(follower, None)
    await eventually(lambda: cluster.changes, f"no proposal after: {trigger.value}", timeout_s=5)
    assert [member.node_id for member in cluster.changes[0].isr] == [1, 9]
