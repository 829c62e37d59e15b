"""The metadata log with real threads, files and sockets: what it acknowledges is kept, what it cannot know it
says."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate.controller.raft.contract import QuorumStatus, RaftTimings
from tidegate.controller.raft.core import RaftCore
from tidegate.controller.raft.thread import Inspect
from tidegate.controller.service import metadata_log
from tidegate.controller.service.metadata_log import (
    MetadataLog,
    MetadataLogUnusable,
    NotController,
    ProposalUnknown,
    _Accepted,
)
from tidegate.controller.state.model import ApplyResult
from tidegate.proto import metadata_pb2 as pb
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.disk import RealDisk
from tidegate.tests.eventually import eventually
from tidegate.wire.errors import ErrorCode, KafkaError

from .controller_cluster import QUICK
from .reserved_ports import reserve_ports

SNAPSHOTS = RaftTimings(
    election_s_min=0.3,
    election_s_max=0.6,
    heartbeat_s=0.05,
    leader_fallback_s=0.6,
    compact_after_entries=60,
    trailing_entries=5,
)


class Logs:
    """Several metadata logs in one process."""

    def __init__(self, folder: Path, count: int, timings: RaftTimings = QUICK) -> None:
        self.folder, self.timings = folder, timings
        self.voters = {
            node_id: ("127.0.0.1", ports.quorum) for node_id, ports in reserve_ports(self, count).items()
        }
        self.running: dict[int, MetadataLog] = {}
        self.deaths: list[str] = []
        self.disk = RealDisk()

    def make(self, node_id: int, cluster_id: str = "") -> MetadataLog:
        return MetadataLog(
            node_id=node_id,
            voters=self.voters,
            listen=self.voters[node_id],
            directory=self.folder / str(node_id),
            disk=self.disk,
            clock=SystemClock(),
            cluster_id=cluster_id,
            timings=self.timings,
            die=self.deaths.append,
            validate=True,
        )

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids or self.voters:
            self.running[node_id] = self.make(node_id)
            await self.running[node_id].start()

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids or list(self.running):
            await self.running.pop(node_id).stop()

    async def active(self) -> MetadataLog:
        await eventually(lambda: any(log.is_active for log in self.running.values()))
        return next(log for log in self.running.values() if log.is_active)

    async def acknowledge(self, *names: str) -> MetadataLog:
        """Proposes the features `names` until every one is acknowledged, through whichever log is active: on
        a slow machine the leadership moves at times, and a test about something else must not depend on it.
        Returns the last one asked."""
        while True:
            log = await self.active()
            try:
                results = await asyncio.gather(*(log.propose_and_wait(feature(name)) for name in names))
            except (NotController, ProposalUnknown):
                continue
            # A proposal of unknown fate may have been applied: then its repetition is refused, and the
            # feature is there.
            assert all(
                result.ok or name in log.state.features for result, name in zip(results, names, strict=True)
            )
            return log

    async def same(self) -> None:
        """Waits until all have applied the same entries, and compares what they led to."""
        await eventually(lambda: len({log.applied_index for log in self.running.values()}) == 1)
        assert len({log.state.state_hash() for log in self.running.values()}) == 1


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Logs]:
    logs = Logs(tmp_path, 3)
    await logs.start()
    yield logs
    await logs.stop()
    assert not logs.deaths


def feature(name: str, level: int = 0, expected: int = 0, **fields: object) -> bytes:
    operation = pb.Operation(
        set_feature_level=pb.SetFeatureLevel(name=name, level=level, expected_level=expected)
    )
    return pb.Command(operations=[operation], **fields).SerializeToString()  # type: ignore[arg-type]


async def test_large_entries_leave_the_loop_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes longer than a turn: a thousand changes of partitions take 15 ms."""
    monkeypatch.setattr(metadata_log, "TURN_S_MAX", 0.0)
    log = Logs(tmp_path, 1).make(1)
    log._loop = asyncio.get_running_loop()
    first = log.applied_index + 1
    entries = [(feature(f"f{number}"), first + number, 1) for number in range(5)]
    log._post(metadata_log._Applied(entries))
    applied = []
    for _ in range(6):
        await asyncio.sleep(0)
        applied.append(log.applied_index - first + 1)
    assert applied[-1] == 5
    assert all(after - before <= 1 for before, after in zip([0, *applied], applied, strict=False))


async def test_a_result_is_in_the_state_when_its_proposer_gets_it(three: Logs) -> None:
    log = await three.active()
    seen: list[ApplyResult] = []
    log.subscribe(lambda command, result: seen.append(result))
    results = await asyncio.gather(*(log.propose_and_wait(feature(f"f{n}")) for n in range(200)))
    assert all(result.ok for result in results)
    assert len(log.state.features) == 200
    assert [result.index for result in results] == list(range(results[0].index, results[0].index + 200))
    assert [result.index for result in seen][-200:] == [result.index for result in results]
    assert await log.barrier() > results[-1].index
    await three.same()


async def test_followers_reject_proposals_and_name_the_leader(three: Logs) -> None:
    log = await three.active()
    await eventually(lambda: all(other.leader_id == log.node_id for other in three.running.values()))
    for other in three.running.values():
        if other is not log:
            with pytest.raises(NotController) as refused:
                await other.propose(feature("x"))
            assert refused.value.leader_id == log.node_id
            with pytest.raises(NotController):
                await other.barrier()


async def test_acknowledged_entries_survive_repeated_losses_of_the_leader(three: Logs) -> None:
    acknowledged: set[str] = set()
    for round_number in range(3):
        names = [f"r{round_number}-{number}" for number in range(20)]
        for name in names:
            log = await three.acknowledge(name)
        acknowledged.update(names)
        killed = log.node_id
        await three.stop(killed)
        successor = await three.active()
        assert acknowledged <= set(successor.state.features)
        assert successor.term > log.term
        await three.start(killed)
        await three.same()


async def test_without_a_majority_the_leader_acknowledges_nothing_and_steps_down(three: Logs) -> None:
    log = await three.active()
    others = [node_id for node_id in three.running if node_id != log.node_id]
    await three.stop(*others)
    with pytest.raises((ProposalUnknown, NotController)):
        await log.propose_and_wait(feature("lonely"), timeout_s=0.5)
    await eventually(lambda: not log.is_active)
    await three.start(*others)
    await three.active()
    await three.same()


async def test_a_proposal_in_flight_when_the_node_stops_ends_as_unknown(three: Logs) -> None:
    log = await three.active()
    await three.stop(*(node_id for node_id in three.running if node_id != log.node_id))
    proposal = asyncio.create_task(log.propose_and_wait(feature("late")))
    await asyncio.sleep(0)
    await three.stop(log.node_id)
    with pytest.raises((ProposalUnknown, NotController)):
        await asyncio.wait_for(proposal, 1.0)


async def test_every_node_starts_again_with_what_it_had(three: Logs) -> None:
    await three.acknowledge(*(f"f{number}" for number in range(30)))
    await three.stop()
    await three.start()
    log = await three.active()
    await log.barrier()
    assert len(log.state.features) == 30
    await three.same()


async def test_a_follower_behind_the_trimmed_journal_gets_the_snapshot(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 3, SNAPSHOTS)
    await logs.start()
    log = await logs.active()
    behind = next(node_id for node_id in logs.running if node_id != log.node_id)
    await logs.stop(behind)
    for start in range(0, 600, 50):
        log = await logs.acknowledge(*(f"f{n}" for n in range(start, start + 50)))
    snapshot = log._snapshots
    await eventually(
        lambda: snapshot is not None and snapshot.latest is not None and snapshot.latest.index > 300
    )
    await logs.start(behind)
    returned = logs.running[behind]
    results: list[ApplyResult] = []
    returned.subscribe(lambda command, result: results.append(result))
    await eventually(lambda: returned.applied_index >= log.applied_index)
    assert any(result.from_snapshot for result in results)
    await logs.same()
    await logs.stop()
    await logs.start()
    assert len((await logs.active()).state.features) == 600
    await logs.same()
    await logs.stop()
    assert not logs.deaths


class HeldSnapshots(RealDisk):
    """The snapshot does not get to the disk before `may_store` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_store, self.storing = threading.Event(), threading.Event()

    def write_atomic(self, path: Path, data: bytes) -> None:
        if path.name == "snapshot":
            self.storing.set()
            self.may_store.wait(20)
        super().write_atomic(path, data)


async def test_the_journal_is_not_trimmed_before_the_snapshot_is_on_the_disk(tmp_path: Path) -> None:
    """docs/raft.md Q16: a power cut between the two would leave neither the entries nor the state that they
    made."""
    logs = Logs(tmp_path, 1, SNAPSHOTS)
    logs.disk = disk = HeldSnapshots()
    await logs.start()
    try:
        while not disk.storing.is_set():
            log = await logs.acknowledge(*(f"f{number}" for number in range(50)))
        for number in range(5):  # each takes a round of the Raft thread
            log = await logs.acknowledge(f"g{number}")
        assert log._thread is not None
        journal = log._thread._core.journal
        assert journal[0][1] == 1, "every entry is still there"
        disk.may_store.set()
        await eventually(lambda: journal[0][1] > 1)
    finally:
        disk.may_store.set()
        await logs.stop()
    assert not logs.deaths


async def test_a_quorum_of_one_is_active_at_once_and_listens_nowhere(tmp_path: Path) -> None:
    # there is no other voter to wait for
    logs = Logs(tmp_path, 1, RaftTimings(election_s_min=600, election_s_max=1200))
    await logs.start()
    log = await logs.active()
    assert log.port == 0
    assert (await log.propose_and_wait(feature("x"))).ok
    await logs.stop()


async def test_an_idle_quorum_costs_its_heartbeats_and_nothing_else(three: Logs) -> None:
    log = await three.active()
    await three.same()
    thread = log._thread
    assert thread is not None
    before = thread.rounds
    await asyncio.sleep(1.0)
    # one round a heartbeat, and one for the answers of each of the two followers, with as much again for
    # noise
    assert thread.rounds - before < 2 * 3 / QUICK.heartbeat_s


async def test_proposals_in_flight_are_bounded_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand commands of half a MiB would be five GB."""
    monkeypatch.setattr(metadata_log, "PROPOSED_BYTES_MAX", 5000)
    logs = Logs(tmp_path, 1)
    await logs.start()
    log = await logs.active()
    command = pb.Command(proposer="x" * 2000, sequence=1).SerializeToString()
    for _ in range(3):  # each time as many
        in_flight = [log.propose(command) for _ in range(3)]
        with pytest.raises(KafkaError) as refused:
            log.propose(command)
        assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert all(result.ok for result in await asyncio.gather(*in_flight))
        assert log._proposed_bytes == 0
        assert not log._proposed
    await logs.stop()


async def test_a_command_too_large_for_the_log_is_refused(three: Logs) -> None:
    log = await three.active()
    with pytest.raises(KafkaError) as refused:
        await log.propose_and_wait(bytes(600 << 10))
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert (await log.propose_and_wait(feature("x"))).ok


class FailingDisk(RealDisk):
    """Writes ("write") or syncs ("sync") of open files fail as soon as `failing` says so."""

    failing = ""

    def open(self, path: Path, **options: bool):  # type: ignore[no-untyped-def]
        file = super().open(path, **options)
        disk = self

        class File:
            path = file.path
            read_at, size, truncate, close = file.read_at, file.size, file.truncate, file.close

            def write_at(self, position: int, data: bytes) -> None:
                if disk.failing == "write":
                    raise OSError(errno.ENOSPC, "no space left on device")
                file.write_at(position, data)

            def sync_data(self) -> None:
                if disk.failing == "sync":
                    raise OSError(errno.EIO, "input/output error")
                file.sync_data()

        return File()


@pytest.mark.parametrize(("failing", "reason"), [("write", "no space left"), ("sync", "input/output error")])
async def test_a_full_or_failing_disk_stops_the_node_and_the_others_go_on(
    failing: str, reason: str, tmp_path: Path
) -> None:
    logs = Logs(tmp_path, 3)
    await logs.start()
    await logs.acknowledge("before")
    await logs.stop(1)
    await logs.acknowledge("under another leader than 1")
    broken_disk, deaths = FailingDisk(), list[str]()
    logs.disk, healthy = broken_disk, logs.disk
    broken = logs.make(1)
    broken._die_now = deaths.append
    logs.disk = healthy
    await broken.start()
    broken_disk.failing = failing
    for number in range(5):
        await logs.acknowledge(f"after {number}")
    await eventually(lambda: deaths)
    assert reason in deaths[0]
    assert broken._thread is not None, "its thread is over"
    assert broken._thread.join(5.0), "its thread is over"
    await logs.stop()
    await broken.stop()


async def test_a_foreign_damaged_or_used_folder_is_rejected_with_a_reason(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 1)
    await logs.start()
    log = await logs.active()
    with pytest.raises(MetadataLogUnusable, match="in use by another process"):
        await logs.make(1).start()
    bootstrap = pb.Operation(bootstrap=pb.Bootstrap(cluster_id="blue"))
    assert (await log.propose_and_wait(pb.Command(operations=[bootstrap]).SerializeToString())).ok
    vote = tmp_path / "1" / "raft" / "vote"
    await eventually(lambda: b"blue" in vote.read_bytes())
    await logs.stop()
    with pytest.raises(MetadataLogUnusable, match="belongs to cluster blue"):
        await logs.make(1, cluster_id="green").start()
    (tmp_path / "1" / "raft" / "entries").unlink()
    with pytest.raises(MetadataLogUnusable, match="entries is missing"):
        await logs.make(1).start()


async def test_the_first_start_waits_for_all_voters_and_names_the_missing(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 3)
    await logs.start(1, 2)
    for log in logs.running.values():
        await eventually(lambda log=log: "not seen yet: 3;" in log.status.waits_for)  # type: ignore[misc]
        assert log.status.not_voting == (1, 2)
        assert not log.is_active
        assert log.term == 0
    await logs.start(3)
    await logs.acknowledge("a")
    assert all(log.status.waits_for == "" and log.status.not_voting == () for log in logs.running.values())
    await logs.stop(3)
    await logs.stop()
    await logs.start(1, 2)
    await logs.acknowledge("formed once, a majority is enough")
    await logs.stop()
    assert not logs.deaths


async def test_a_voter_that_lost_its_disk_forgets_no_vote_and_returns(tmp_path: Path) -> None:
    """Committed by voters 1 and 2; 1 down, the disk of 2 lost: 2 and 3, which does not have the entry, must
    elect no leader."""
    logs = Logs(tmp_path, 3)
    await logs.start()
    await logs.acknowledge("all voters have this")
    await logs.same()
    await logs.stop(3)
    await logs.acknowledge("only 1 and 2 have this")
    await logs.same()
    await logs.stop()
    shutil.rmtree(tmp_path / "2" / "raft")
    await logs.start(2, 3)
    wiped, behind = logs.running[2], logs.running[3]
    await eventually(
        lambda: "as soon as there is a leader" in wiped.status.waits_for and behind.status.not_voting == (2,)
    )
    await asyncio.sleep(4 * QUICK.election_s_max)
    assert behind.leader_id == -1
    assert wiped.term == 0
    assert behind.term == behind._thread._core.journal[-1][2]  # type: ignore[union-attr]
    await logs.start(1)
    await eventually(lambda: not any(log.status.not_voting for log in logs.running.values()))
    await logs.same()
    assert all("only 1 and 2 have this" in log.state.features for log in logs.running.values())
    await logs.stop(1)
    await logs.acknowledge("2 has its vote again")
    await logs.start(1)
    await logs.same()
    await logs.stop()
    assert not logs.deaths


async def test_a_majority_of_lost_disks_stops_the_quorum(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 3)
    await logs.start()
    await logs.acknowledge("a")
    await logs.same()
    await logs.stop()
    for node_id in (1, 2):
        shutil.rmtree(tmp_path / str(node_id) / "raft")
    await logs.start()
    survivor = logs.running[3]
    await eventually(lambda: survivor.status.not_voting == (1, 2) and len(survivor.status.connected) == 2)
    await asyncio.sleep(4 * QUICK.election_s_max)
    assert all(log.leader_id == -1 for log in logs.running.values())
    await logs.stop()
    for node_id in logs.voters:
        shutil.rmtree(tmp_path / str(node_id) / "raft", ignore_errors=True)
    await logs.start()
    assert "a" not in (await logs.acknowledge("b")).state.features
    await logs.stop()
    assert not logs.deaths


async def test_an_old_folder_of_a_returned_voter_stops_its_node(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 3)
    await logs.start()
    await logs.acknowledge("a")
    await logs.same()
    await logs.stop(2)
    folder, kept = tmp_path / "2" / "raft", tmp_path / "unmounted"
    folder.rename(kept)
    await logs.start(2)
    # A status of before its first word has no term, and says nothing of votes.
    await eventually(
        lambda: all(log.status.term and not log.status.not_voting for log in logs.running.values())
    )
    await logs.acknowledge("b")
    await logs.same()
    await logs.stop(2)
    shutil.rmtree(folder)
    kept.rename(folder)
    await logs.start(2)
    await eventually(lambda: logs.deaths)
    assert "an old one that was put back" in logs.deaths[0]
    await logs.stop()


async def test_an_entry_of_an_earlier_term_whose_index_is_reused_is_dropped() -> None:
    """Another leader's short term replaced it.  Without an end it would count as in flight for the life of
    the process."""
    log = MetadataLog.__new__(MetadataLog)
    log._waiting, log.status = {}, QuorumStatus(2, 5, 1, True, 0, 0)  # type: ignore[arg-type]
    earlier, later = (asyncio.get_running_loop().create_future() for _ in range(2))
    log._handle(_Accepted(earlier, 7, 3))
    log._handle(_Accepted(later, 7, 5))
    with pytest.raises(NotController):
        await earlier
    assert log._waiting == {7: (5, later)}
    assert not later.done()


async def test_with_validation_a_broken_invariant_stops_the_voter(tmp_path: Path) -> None:
    logs = Logs(tmp_path, 1)
    await logs.start()
    log = await logs.active()

    def damage(core: RaftCore) -> None:
        core.state.active_term = core.term + 1

    assert log._thread is not None
    log._thread.post(Inspect(damage))
    await eventually(lambda: logs.deaths)
    assert "active in term" in logs.deaths[0]
    await logs.stop()
