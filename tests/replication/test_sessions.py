"""Fetch sessions: a fetch names only what changed; every way to lose a session ends in a full list, not in a
stuck follower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidegate.replication.fetching import follower_fetches
from tidegate.replication.fetching.fetch_session import Facts, FollowerSession, News, SessionTable
from tidegate.replication.fetching.fetcher import LeaderFetcher
from tidegate.replication.partition.follower import (
    Action,
    Answer,
    FetchPosition,
    Ignore,
    LogView,
    PartitionFollower,
)
from tidegate.replication.replica.waiters import FetchWaiter
from tidegate.runtime.clock import Clock
from tidegate.storage.log.log import AppendOrigin
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode
from tidegate.wire.fetch import FetchPartition, FetchRequest

from .cluster import TOPIC_ID, Cluster, WireTransport, batch_of


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Followers whose fetches wait for a minute: what happens sooner does not happen because one of them has
    ended."""
    made = Cluster(tmp_path, wait_max_ms=60_000)
    for node in (1, 2, 3):
        made.start(node)
    yield made
    await made.stop_all()


def request(
    session_id: int, session_epoch: int, *partitions: int, offset: int = 0, epoch: int = 1
) -> FetchRequest:
    parts = [FetchPartition(p, offset, 1000, epoch, -1, topic_id=TOPIC_ID) for p in partitions]
    return FetchRequest(
        replica_id=9,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[("t", parts)] if parts else [],
        replica_epoch=1,
    )


def answered(response: object) -> dict[int, ErrorCode]:
    return {part.partition: part.error for _, parts in response.topics for part in parts}  # type: ignore[attr-defined]


async def write(cluster: Cluster, partition: int, value: str = "v", *, leader: int = 1) -> ErrorCode:
    manager = cluster.managers[leader]
    info = manager.append_now("t", partition, batch_of(value), origin=AppendOrigin.CLIENT)
    epoch = manager.replica("t", partition).leader_epoch
    return await manager.wait_committed("t", partition, epoch, info.next_offset, 20_000)


# ---- the table ---------------------------------------------------------------------------------------------


def test_sessions_are_counted_and_replaced() -> None:
    table = SessionTable(first_id=7)
    session = table.open(request(0, 0, 0, 1))
    assert not isinstance(session, ErrorCode)
    assert session.session_id == 7
    assert len(session.parts) == 2
    assert table.open(request(7, 1, 1)) is session
    assert table.open(request(7, 1)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert table.open(request(8, 2)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    newer = table.open(request(0, 0, 0))
    assert newer is not session
    assert session.closed
    assert len(table) == 1
    assert table.open(request(7, 2)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    once = table.open(request(0, -1, 0))
    assert not isinstance(once, ErrorCode)
    assert once.session_id == 0
    assert len(table) == 1


def test_forgotten_partitions_leave_the_session() -> None:
    table = SessionTable()
    session = table.open(request(0, 0, 0, 1))
    assert not isinstance(session, ErrorCode)
    forgetting = request(session.session_id, 1)
    forgetting.forgotten_topics = [("t", [0])]
    table.open(forgetting)
    assert list(session.parts) == [("t", 1)]


# ---- at the leader -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wait_ms", "shared"), [(500, True), (60_000, False)])
async def test_waiting_fetches_of_all_followers_end_together(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, wait_ms: int, *, shared: bool
) -> None:
    ends: list[tuple[float, float]] = []

    def start_timer(waiter: FetchWaiter, clock: Clock, delay_s: float) -> None:
        ends.append((delay_s, clock.monotonic() + delay_s))
        waiter.wake()

    monkeypatch.setattr(FetchWaiter, "start_timer", start_timer)
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=1, replicas=(1, 9), isr=(1,), min_isr=1)
    full = await cluster.managers[1].fetch(request(0, 0, 0))
    await cluster.managers[1].fetch(replace(request(full.session_id, 1), max_wait_ms=wait_ms))
    (delay_s, end_s), wait_s = ends[-1], wait_ms / 1000
    if shared:
        assert 0 < delay_s <= wait_s * 1.01
        assert round(end_s / wait_s) * wait_s == pytest.approx(end_s, abs=0.005)
    else:
        assert delay_s == wait_s, "it waits for as long as it may"


async def test_an_incremental_answer_names_only_what_changed(cluster: Cluster) -> None:
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=3, replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    full = await manager.fetch(request(0, 0, 0, 1, 2))
    assert answered(full) == {0: ErrorCode.NONE, 1: ErrorCode.NONE, 2: ErrorCode.NONE}
    await asyncio.sleep(0.01)
    await manager.fetch(request(full.session_id, 1))
    manager.append_now("t", 1, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    changed = await manager.fetch(request(full.session_id, 2))
    assert answered(changed) == {1: ErrorCode.NONE}
    assert changed.topics[0][1][0].records
    again = await manager.fetch(request(full.session_id, 3, 1, offset=1))
    assert not any(part.records for _, parts in again.topics for part in parts)


async def late_fetch_beside_a_session(cluster: Cluster) -> tuple[int, bool]:
    """Where the leader believes its follower to be, and whether the session's answer had a high watermark,
    after a fetch outside of the session was served a second time, late: say, the leader stood still, and an
    old connection was read after a new one."""
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=1, replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    beside = request(0, -1, 0)
    await manager.fetch(beside)
    full = await manager.fetch(request(0, 0, 0))
    manager.append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    await manager.fetch(request(full.session_id, 1))
    await manager.fetch(request(full.session_id, 2, 0, offset=1))
    await eventually(lambda: manager.replica("t", 0).high_watermark == 1, "the record is committed")
    await manager.fetch(beside)
    answer = await manager.fetch(request(full.session_id, 3))
    believed = manager.replica("t", 0).require_leader().follower(9).fetch_offset
    return believed, any(part.high_watermark == 1 for _, parts in answer.topics for part in parts)


async def test_a_late_fetch_outside_the_session_does_not_move_the_offset_back(cluster: Cluster) -> None:
    """In a session an idle follower says nothing twice: it would stay outside the ISR until the next
    record."""
    assert await late_fetch_beside_a_session(cluster) == (1, True)


async def test_ablation_a_late_fetch_outside_the_session_moves_the_offset_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionTable, "lists", lambda table, node_id, key, spec: False)
    assert (await late_fetch_beside_a_session(cluster))[0] == 0


async def test_a_new_session_repeats_what_an_earlier_one_sent(cluster: Cluster) -> None:
    """The follower lists a partition late: it rested after an error.  Until it has heard of the log start it
    may not join."""
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=2, replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    manager.append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    await eventually(lambda: manager.replica("t", 0).high_watermark == 1, "the record is committed")
    await manager.fetch(request(0, 0, 0, 1, offset=0))  # lost
    session_id = (await manager.fetch(request(0, 0, 1))).session_id
    waits = request(session_id, 1, 0, offset=1)
    waits.max_wait_ms = 60_000
    answer = await asyncio.wait_for(manager.fetch(waits), 5)
    assert [part.high_watermark for _, parts in answer.topics for part in parts] == [1]
    waits = request(session_id, 2, 0, offset=1)
    waits.max_wait_ms = 50
    assert not (await manager.fetch(waits)).topics, "once is enough"


async def answered_in_a_new_epoch(cluster: Cluster) -> list[int]:
    """The high watermarks in the first answer of the leader's new epoch, in a session that had answered them
    in the old one."""
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=1, replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    manager.append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    await eventually(lambda: manager.replica("t", 0).high_watermark == 1, "the record is committed")
    full = await manager.fetch(request(0, 0, 0, offset=1))
    assert [part.high_watermark for _, parts in full.topics for part in parts] == [1]
    cluster.elect(1)
    again = await manager.fetch(request(full.session_id, 1, 0, offset=1, epoch=2))
    return [part.high_watermark for _, parts in again.topics for part in parts]


async def test_a_new_leadership_sends_its_state_again(cluster: Cluster) -> None:
    """The follower may have met the new epoch before the answer of the old one, and then has not taken it."""
    assert await answered_in_a_new_epoch(cluster) == [1]


async def test_ablation_a_new_leadership_does_not_send_its_state_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, news, anyone = FollowerSession.record_sent, FollowerSession.news, object()

    def of_any_leader(method: Callable[..., object]) -> Callable[..., object]:
        return lambda self, key, facts: method(self, key, facts._replace(leader=anyone))

    monkeypatch.setattr(FollowerSession, "record_sent", of_any_leader(tell))
    monkeypatch.setattr(FollowerSession, "news", of_any_leader(news))
    assert await answered_in_a_new_epoch(cluster) == []


async def believed_after_a_fetch_beside_a_session_of_an_older_epoch(cluster: Cluster) -> int:
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=1, replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    manager.append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    await manager.fetch(request(0, 0, 0))
    cluster.elect(1)
    await manager.fetch(request(0, -1, 0, epoch=2))
    await manager.fetch(request(0, -1, 0, offset=1, epoch=2))
    return manager.replica("t", 0).require_leader().follower(9).fetch_offset


async def test_a_session_of_an_older_epoch_does_not_silence_a_fetch_beside_it(cluster: Cluster) -> None:
    """What the session lists is fenced: only the other fetch says where the follower is in the leader's
    epoch."""
    assert await believed_after_a_fetch_beside_a_session_of_an_older_epoch(cluster) == 1


async def test_ablation_a_session_of_any_epoch_silences_a_fetch_beside_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(table: SessionTable, node_id: int, key: tuple[str, int], spec: FetchPartition) -> bool:
        session = table.current(node_id)
        return session is not None and key in session.parts

    monkeypatch.setattr(SessionTable, "lists", listed)
    assert await believed_after_a_fetch_beside_a_session_of_an_older_epoch(cluster) == 0


async def test_a_waiting_incremental_fetch_is_woken_by_a_change(cluster: Cluster) -> None:
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=2, replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    full = await manager.fetch(request(0, 0, 0, 1))
    settled = request(full.session_id, 1)
    settled.max_wait_ms = 50
    await manager.fetch(settled)
    waiting_request = request(full.session_id, 2)
    waiting_request.max_wait_ms = 60_000
    waiting = asyncio.ensure_future(manager.fetch(waiting_request))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    manager.append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    assert answered(await asyncio.wait_for(waiting, 20)) == {0: ErrorCode.NONE}


@pytest.mark.parametrize("name", Facts._fields)
def test_each_fact_that_changes_is_news(name: str) -> None:
    session = FollowerSession(9)
    values: dict[str, Any] = dict.fromkeys(Facts._fields, 5)
    sent, changed = Facts(**values), Facts(**(values | {name: 6}))
    session.record_sent(("t", 0), sent)
    assert session.news(("t", 0), sent) is News.NONE
    assert session.news(("t", 0), changed) is (News.WATERMARK if name == "high_watermark" else News.NOW)


@pytest.mark.parametrize("name", Facts._fields)
async def test_an_idle_follower_gets_each_fact_that_changes(cluster: Cluster, name: str) -> None:
    cluster.broker_epochs[9] = 1
    cluster.cut.add((2, 1))
    cluster.create(partitions=1, replicas=(1, 2, 9), isr=(1, 2), min_isr=1)
    manager = cluster.managers[1]
    manager.append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT, required_acks=1)
    if name != "high_watermark":  # which waits for follower 2
        cluster.cut.clear()
        await eventually(lambda: manager.replica("t", 0).high_watermark == 1, "the record is committed")
    session_id, number = (await manager.fetch(request(0, 0, 0, offset=1))).session_id, 1
    while (await manager.fetch(replace(request(session_id, number), max_wait_ms=50))).topics:
        number += 1
    idle = replace(request(session_id, number + 1), max_wait_ms=60_000)
    fetch = asyncio.ensure_future(manager.fetch(idle))
    await asyncio.sleep(0)
    changes: dict[str, Callable[[], object]] = {
        "leader": lambda: cluster.elect(1),
        "high_watermark": cluster.cut.clear,
        "log_start_offset": lambda: asyncio.ensure_future(manager.delete_records("t", 0, 1, 50)),
    }
    change = changes[name]()
    ((_, (part,)),) = (await asyncio.wait_for(fetch, 20)).topics
    if name == "leader":  # whose epoch the session does not name
        assert part.error is ErrorCode.FENCED_LEADER_EPOCH
    else:
        assert getattr(part, name) == 1
    if isinstance(change, asyncio.Future):
        await asyncio.wait([change])
        change.exception()  # not all followers have it in time


async def watermark_news(cluster: Cluster, *, then_records: bool) -> tuple[list[tuple[int, bool]], float]:
    """A fetch that commits what the leader has: what its answer says (high watermark, records), and after how
    many seconds."""
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=1, replicas=(1, 9), isr=(1, 9), min_isr=2)
    manager = cluster.managers[1]
    full = await manager.fetch(request(0, 0, 0))
    manager.append_now("t", 0, batch_of("a"), origin=AppendOrigin.CLIENT)
    await manager.fetch(request(full.session_id, 1))
    await eventually(lambda: manager.replica("t", 0).log.flushed_end_offset == 1, "flushed")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    confirming = request(full.session_id, 2, 0, offset=1)
    confirming.max_wait_ms = 60_000
    fetch = asyncio.ensure_future(manager.fetch(confirming))
    await eventually(lambda: manager.replica("t", 0).high_watermark == 1, "committed")
    if then_records:
        assert not fetch.done()
        manager.append_now("t", 0, batch_of("b"), origin=AppendOrigin.CLIENT)
    response = await fetch
    return [
        (part.high_watermark, bool(part.records)) for _, parts in response.topics for part in parts
    ], loop.time() - begun


async def test_news_of_the_high_watermark_alone_comes_soon(cluster: Cluster) -> None:
    """Consumers read from followers (KIP-392): no consumer has to wait for the next record, or for the end of
    the fetch."""
    answer, seconds = await watermark_news(cluster, then_records=False)
    assert answer == [(1, False)]
    assert seconds < 30


async def test_news_of_the_high_watermark_goes_with_records_that_follow(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_fetches, "WATERMARK_NEWS_S", 30.0)
    assert (await watermark_news(cluster, then_records=True))[0] == [(1, True)]


async def test_a_partition_with_an_error_is_said_once_and_leaves_the_session(cluster: Cluster) -> None:
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=2, replicas=(1, 9, 2), isr=(1, 2), min_isr=1)
    manager = cluster.managers[1]
    full = await manager.fetch(request(0, 0, 0, 1))
    cluster.elect(2, partition=0)
    lost = await manager.fetch(request(full.session_id, 1))
    assert answered(lost)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert 0 not in answered(await manager.fetch(request(full.session_id, 2)))


async def test_what_the_byte_budget_left_out_comes_next(cluster: Cluster) -> None:
    cluster.broker_epochs[9] = 1
    cluster.create(partitions=3, replicas=(1, 9), isr=(1,), min_isr=1)
    manager = cluster.managers[1]
    for partition in range(3):
        manager.append_now("t", partition, batch_of("x" * 500), origin=AppendOrigin.CLIENT, required_acks=1)
    small = request(0, 0, 0, 1, 2)
    small.max_bytes = 100
    response = await manager.fetch(small)
    got: set[int] = set()
    for count in range(1, 5):
        got |= {part.partition for _, parts in response.topics for part in parts if part.records}
        incremental = request(response.session_id, count, *sorted(got), offset=1)
        incremental.max_bytes = 100
        response = await manager.fetch(incremental)
    assert got == {0, 1, 2}


# ---- at the follower ---------------------------------------------------------------------------------------


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many partitions each fetch of a follower named."""
    counts: list[int] = []
    original = WireTransport.fetch

    async def counting(transport: WireTransport, request: FetchRequest) -> object:
        counts.append(sum(len(specs) for _, specs in request.topics))
        return await original(transport, request)

    monkeypatch.setattr(WireTransport, "fetch", counting)
    return counts


async def test_an_idle_follower_lists_nothing(cluster: Cluster, listed: list[int]) -> None:
    cluster.create(partitions=30)
    await asyncio.gather(*(write(cluster, p) for p in range(30)))
    await eventually(
        lambda: all(cluster.log(3, "t", p).high_watermark == 1 for p in range(30)), "everything is replicated"
    )
    listed.clear()
    await write(cluster, 5)
    await eventually(
        lambda: all(cluster.log(node, "t", 5).high_watermark == 2 for node in (2, 3)), "replicated"
    )
    assert sum(listed) <= 8, listed


@pytest.mark.parametrize("sessions", [True, False], ids=["in a session", "where the leader opens no session"])
async def test_what_does_not_fit_into_one_fetch_is_listed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: list[int], sessions: bool
) -> None:
    if not sessions:
        monkeypatch.setattr("tidegate.replication.fetching.fetch_session.SESSIONS_MAX", 0)
    cluster = Cluster(tmp_path, listed_max=4)
    for node in (1, 2, 3):
        cluster.start(node)
    try:
        cluster.create(partitions=30)
        for _ in range(2):
            assert set(await asyncio.gather(*(write(cluster, p) for p in range(30)))) == {ErrorCode.NONE}
            cluster.elect(1, partition=7)  # assigned anew: a fetch aside
        assert max(listed) <= 4
    finally:
        await cluster.stop_all()


async def test_a_broken_connection_ends_the_session_and_replication_goes_on(cluster: Cluster) -> None:
    cluster.create(partitions=4)
    for round_number in range(1, 4):
        cluster.cut = {(2, 1), (3, 1)}
        waiting = [asyncio.ensure_future(write(cluster, p)) for p in range(4)]
        await asyncio.sleep(0.02)
        cluster.cut = set()
        assert set(await asyncio.gather(*waiting)) == {ErrorCode.NONE}
        assert cluster.log(2, "t", 3).flushed_end_offset == round_number


async def test_a_restarted_leader_does_not_know_the_session(cluster: Cluster) -> None:
    cluster.create(replicas=(1, 2), isr=(1, 2))
    await write(cluster, 0)
    await cluster.stop(1)
    cluster.start(1)
    now = cluster.partitions[("t", 0)]
    cluster.partitions[("t", 0)] = replace(
        now, leader_epoch=now.leader_epoch + 1, partition_epoch=now.partition_epoch + 1
    )
    cluster.publish(cluster.partitions.values())
    assert await asyncio.wait_for(write(cluster, 0), 20) is ErrorCode.NONE


async def test_the_same_leader_in_a_new_epoch_is_followed_at_once(patient: Cluster) -> None:
    patient.create(partitions=2)
    await write(patient, 0)
    await write(patient, 1)
    patient.elect(1, partition=0)
    assert await write(patient, 0) is ErrorCode.NONE, "it waited for the long poll to end"


async def test_a_follower_that_hears_first_finds_its_leader_soon(patient: Cluster) -> None:
    patient.create(partitions=2)
    await write(patient, 0)
    now = patient.elect(2, to=[3, 1])
    await asyncio.sleep(0.05)
    patient.publish([now], to=[2])
    assert await write(patient, 0, leader=2) is ErrorCode.NONE


async def test_one_partition_in_trouble_does_not_hold_up_the_others(cluster: Cluster) -> None:
    cluster.create(partitions=3)
    await write(cluster, 0)
    cluster.managers[1].delete("t", 1)
    for _ in range(5):
        assert await asyncio.wait_for(write(cluster, 0), 20) is ErrorCode.NONE
        assert await asyncio.wait_for(write(cluster, 2), 20) is ErrorCode.NONE


async def follower_that_could_not_take_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The answer with the high watermark came when the log had moved on since the question."""
    cluster = Cluster(tmp_path, wait_max_ms=60_000)
    for node in (1, 2):
        cluster.start(node)
    cluster.create(replicas=(1, 2), isr=(1, 2))
    on_answer = PartitionFollower.on_answer
    ignored: list[Any] = []

    def stale_once(core: PartitionFollower, sent: FetchPosition, answer: Answer, log: LogView) -> Action:
        if answer.high_watermark == 1 and not ignored:
            ignored.append(answer)
            return Ignore.STALE
        return on_answer(core, sent, answer, log)

    monkeypatch.setattr(PartitionFollower, "on_answer", stale_once)
    assert await write(cluster, 0) is ErrorCode.NONE
    await eventually(lambda: bool(ignored), "an answer was not taken")
    return cluster


async def test_the_leader_repeats_an_answer_that_the_follower_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or an idle follower would keep the high watermark, and the log start, that it had."""
    cluster = await follower_that_could_not_take_an_answer(tmp_path, monkeypatch)
    await eventually(lambda: cluster.log(2).high_watermark == 1, "the follower knows the high watermark")
    await cluster.stop_all()


async def test_ablation_a_leader_that_forgets_nothing_tells_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaderFetcher, "_forgotten", lambda fetcher, positions: [])
    cluster = await follower_that_could_not_take_an_answer(tmp_path, monkeypatch)
    fetcher = cluster.managers[2]._fetchers.by_leader[1]
    await eventually(
        lambda: not fetcher._due and cluster.managers[1]._follower_fetches.waiting == 1,
        "it listed it, and waits",
    )
    assert cluster.log(2).high_watermark == 0
    await cluster.stop_all()
