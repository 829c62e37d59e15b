"""Transactions under faults: seeded runs on the real cores, and the safeguards switched off one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tidegate.chaos.sim.transactions.faults import TV1, Faults
from tidegate.chaos.sim.transactions.world import World, batches_are_single
from tidegate.coordinator.outcome import Context, ReplayedRecord, Write
from tidegate.coordinator.running_shard import RunningShard
from tidegate.coordinator.transaction.events import (
    SendMarkers,
    TimeoutTransaction,
    TransactionIdentity,
    TransactionOutcome,
)
from tidegate.coordinator.transaction.job_book import JobBook
from tidegate.coordinator.transaction.job_decisions import JobDecisions
from tidegate.coordinator.transaction.job_events import CarryOutJob, DecisionReply, OpenAttempt
from tidegate.coordinator.transaction.jobs import PREFIX, Job, JobState
from tidegate.coordinator.transaction.markers import MarkerQueue, MarkerResult
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import (
    RULES,
    Action,
    Stimulus,
    TransactionMetadata,
    TransactionState,
)
from tidegate.storage.log.append_plan import AppendPlan
from tidegate.storage.log.log import Log
from tidegate.storage.producers.producer_state import PreparedAppend, ProducerState
from tidegate.wire.errors import KafkaError
from tidegate.wire.records import iterate_headers


@pytest.mark.parametrize("seed", range(16))
def test_tv2_keeps_every_promise_under_faults(seed: int) -> None:
    world = World(seed)
    assert world.run(1_500) == []
    assert all(batches_are_single(node) for node in world.coordinators.nodes)


@pytest.mark.parametrize("seed", range(16))
def test_jobs_are_committed_whole_and_once_under_faults(seed: int) -> None:
    """Speculative and failed attempts, zombie drivers, drivers that repeat and contradict, deadlines,
    and every fault of the coordinators."""
    assert World(seed, Faults(jobs=True)).run(1_500) == []


@pytest.mark.parametrize("seed", range(8))
def test_tv1_keeps_every_promise_while_requests_stay_in_order(seed: int) -> None:
    """TV1 cannot tell transactions of one producer apart (KAFKA-17754): no duplicates here, but every
    coordinator fault."""
    assert World(seed, TV1).run(1_500) == []


def test_the_runs_are_worth_something() -> None:
    """Commits, aborts, unknown outcomes, failovers and rotated ids all happen."""
    worlds = [World(seed) for seed in range(9)]
    for world in worlds:
        world.run(1_500)
    outcomes = [transaction.outcome for world in worlds for transaction in world.workload.transactions]
    assert outcomes.count("committed") > 50
    assert outcomes.count("aborted") > 30
    assert outcomes.count("unknown") > 1
    coordinators = [world.coordinators for world in worlds]
    assert sum(each.state.epoch for each in coordinators) > 20
    assert sum(next(each.producer_ids) - 100 for each in coordinators) > 30


def test_the_runs_of_jobs_are_worth_something() -> None:
    worlds = [World(seed, Faults(jobs=True)) for seed in range(6)]
    for world in worlds:
        world.run(1_500)
    noted = [each for world in worlds for each in world.decisions.values()]
    assert sum(bool(each.committed) for each in noted) > 30
    assert sum(len(set(each.proposed)) > 1 for each in noted) > 3, "drivers contradict each other"
    losers = [each.written.keys() - set().union(*each.committed) for each in noted if each.committed]
    assert sum(map(bool, losers)) > 15
    assert sum(len(world.drivers) for world in worlds) > 12


def test_a_seed_is_one_history() -> None:
    first, second = World(7), World(7)
    first.run(300)
    second.run(300)
    assert [p.batches() for p in first.partitions] == [p.batches() for p in second.partitions]
    assert any(p.batches() for p in first.partitions)


# --- the hazard of docs/semantics.md T12 --------------------------------------------------------------------


QUIET_NETWORK = Faults(duplicate=0, late=0, late_markers=0, lose=0, resend=0, refuse=0, move=0, full=0)


def replicate_partitions(world: World) -> None:
    for partition in world.partitions:
        partition.replicate(world.random, everything=True)


def fast_failovers(skip_barrier: bool) -> World:
    """A appends PREPARE_COMMIT, B has it, C has not; A dies; B is elected and dies; C is elected."""
    world = World(
        0, QUIET_NETWORK if not skip_barrier else replace(QUIET_NETWORK, skip_barrier=True), clients=0
    )
    a, b, c = world.coordinators.nodes

    def replicate(*followers: Any) -> None:
        for _ in range(6):
            for follower in followers:
                world.coordinators.fetch(follower)

    def deliver() -> None:
        for _ in range(60):
            while world.environment.messages:
                world.environment.messages.pop(0)()
            replicate_partitions(world)
            replicate(*(node for node in (b, c) if node is not world.coordinators.leader))

    client = world.client("client")
    client.step()
    deliver()
    client.begin()
    transaction = client.transaction
    assert transaction is not None
    transaction.values = {1: 0, 2: 1}
    client.todo = [(1, 0), (2, 1)]
    while client.todo:
        client.step()
        deliver()
    client.phase, client.commit = "ending", True
    client.step()
    while world.environment.messages:
        world.environment.messages.pop(0)()
    assert a.end > c.end, "PREPARE_COMMIT is in A's log"
    world.coordinators.fetch(b)
    world.coordinators.fetch(b)
    assert b.end == a.end > c.end, "B has it, C has not, it is not committed"
    assert a.watermark == c.end, "B has it, C has not, it is not committed"
    world.random.choice = lambda nodes: nodes[0]  # type: ignore[assignment]
    world.coordinators.kill(a)
    world.coordinators.state.in_sync.discard(0)
    assert world.coordinators.leader is b
    b.send_markers()
    if world.environment.messages:
        # the marker for one partition arrives; then B dies, and the other is lost
        world.environment.messages[0]()
    world.environment.messages.clear()
    world.coordinators.kill(b)
    assert world.coordinators.leader is c
    client.alive = False
    world.coordinators.restart(a)
    world.coordinators.restart(b)
    world.coordinators.state.in_sync |= {1}
    world.environment.now_ms += 10_000
    world.heal()
    return world


def test_two_fast_failovers_send_no_marker_for_an_uncommitted_prepare() -> None:
    world = fast_failovers(skip_barrier=False)
    assert world.check() == []
    assert [partition.committed() for partition in world.partitions[:2]] == [[], []], "aborted on both"
    lengths = [len(list(iterate_headers(partition.batches()))) for partition in world.partitions[:2]]
    assert lengths == [2, 2], "a batch and a marker each"


def test_acting_before_the_barrier_tears_that_transaction() -> None:
    found = fast_failovers(skip_barrier=True).check()
    assert any("before its PREPARE is committed" in what for what in found)
    assert any("torn" in what for what in found)


# --- a coordinator that does not know yet that it was deposed -----------------------------------------------


def commit_at_a_deposed_coordinator(shard: Callable[..., TransactionShard]) -> World:
    """Node 0 saw the first transaction complete and is deposed; the second one runs at node 1, but its EndTxn
    reaches node 0."""
    world = World(0, replace(QUIET_NETWORK, transaction_version=1, shard=shard), clients=0)
    target = 0
    world.random.choice = lambda nodes: next((n for n in nodes if n.number == target), nodes[0])  # type: ignore[assignment, attr-defined]
    client = world.client("client")

    def settle() -> None:
        for _ in range(20):
            client.step() if client.phase != "idle" and not client.waiting else None
            while world.environment.messages:
                world.environment.messages.pop(0)()
            for node in world.coordinators.nodes:
                node.send_markers()
                world.coordinators.fetch(node)
            replicate_partitions(world)

    def one_record(value: int) -> None:
        client.begin()
        assert client.transaction is not None
        client.transaction.values, client.todo = {value: 0}, [(value, 0)]
        while client.todo:
            client.step()
            while world.environment.messages:
                world.environment.messages.pop(0)()
            replicate_partitions(world)
            for node in (*world.coordinators.nodes, *world.coordinators.nodes):
                world.coordinators.fetch(node)
        client.phase, client.commit = "ending", True

    settle()
    one_record(1)
    settle()
    assert client.transaction is not None
    assert client.transaction.outcome == "committed"
    assert not world.unfinished()
    target = 1
    world.coordinators.choose_leader(besides=world.coordinators.nodes[0])
    world.coordinators.state.in_sync.discard(0)
    settle()
    one_record(2)
    target = 0
    settle()
    client.alive = False
    world.environment.now_ms += 10_000
    world.heal()
    return world


def test_a_deposed_coordinator_confirms_no_transaction_it_does_not_know() -> None:
    """TV1: (producer id, epoch, commit) is the same request for both transactions.  Only a coordinator that
    cannot have been deposed may answer from memory."""
    assert commit_at_a_deposed_coordinator(TransactionShard).check() == []
    believes_to_be_alone = partial(TransactionShard, is_only_replica=lambda: True)
    assert commit_at_a_deposed_coordinator(believes_to_be_alone).check() == ["lost: transaction 1"]


# --- ablations ----------------------------------------------------------------------------------------------


class QueueById(MarkerQueue):
    """Pending markers keyed by the transactional id alone, as in KAFKA-16352."""

    def add(self, state_partition: int, send: SendMarkers) -> MarkerResult:
        return super().add(
            state_partition, replace(send, identity=TransactionIdentity(send.transactional_id, 0, 0, 0, 0))
        )


class CompletesById(TransactionShard):
    """Completes whatever transaction the id has at that moment."""

    def _complete(self, identity: TransactionIdentity, context: Any) -> Any:
        current = self.transactions[identity.transactional_id]
        return super()._complete(self._send_markers(current, current.record_offset).identity, context)


class BumpsAgain(TransactionShard):
    """Spends another epoch for every attempt to fence, though the last one never reached the log
    (KAFKA-9666)."""

    extra = 0

    def _fence_producer(
        self, current: TransactionMetadata, context: Any, reply: Any, *, may_resume: bool
    ) -> Any:
        tries = self.__dict__.setdefault("tries", {})
        key = (current.transactional_id, current.record_offset)
        self.extra = tries[key] = tries.get(key, -1) + 1
        try:
            return super()._fence_producer(current, context, reply, may_resume=may_resume)
        finally:
            self.extra = 0

    def _bumped(self, metadata: TransactionMetadata, last_producer_epoch: int) -> TransactionMetadata:
        bumped = super()._bumped(metadata, last_producer_epoch)
        return replace(bumped, producer_epoch=bumped.producer_epoch + self.extra)


class CompletesOnce(TransactionShard):
    """Does not repeat a COMPLETE whose append was refused (docs/semantics.md T19)."""

    def due(self, now_ms: int) -> Any:
        self.marked.clear()
        return super().due(now_ms)


class ForgetsThePrepared(TransactionShard):
    """A timeout counts for prepared transactions, too (docs/semantics.md T29)."""

    def due(self, now_ms: int) -> Any:
        late = [name for name in self.prepared if self._timed_out(self.transactions[name], now_ms)]
        return [*super().due(now_ms), *(TimeoutTransaction(name) for name in late)]

    def _timed_out(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        return metadata.start_ms + 2_000 < now_ms


class ForgetsTheAttempts(ForgetsThePrepared):
    """Between a decision and what is carried out of it the attempts are prepared still."""

    def _timed_out(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        return metadata.start_ms + 100 < now_ms and metadata.transactional_id.startswith(PREFIX)


def times_prepared_out(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(RULES, (TransactionState.PREPARED, Stimulus.TIMEOUT), Action.FENCE)


def nothing(*_: Any) -> None:
    """In the place of a check."""


def forgets_unreplicated_markers(patch: pytest.MonkeyPatch) -> None:
    """docs/semantics.md L1: readers see a transaction as ended as soon as its marker is written, although no
    other replica has it yet."""

    def refresh(state: Any) -> None:
        state.first_unstable_offset = next(iter(state._open), None)

    patch.setattr(ProducerState, "_refresh", refresh)


def publishes_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """docs/semantics.md I8: the producer's state says that a batch is there which did not fit on the disk."""
    write = Log._write

    def hasty(log: Log, plan: AppendPlan) -> None:
        try:
            write(log, plan)
        except KafkaError:
            if plan.prepared is not None:
                log.producers.publish(plan.prepared, log.log_end_offset)
            raise

    patch.setattr(Log, "_write", hasty)


def leave_out(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(PreparedAppend, name, nothing)


def both(*patches: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    def patch_all(patch: pytest.MonkeyPatch) -> None:
        for each in patches:
            each(patch)

    return patch_all


def leave_out_of_jobs(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(JobDecisions, name, nothing)


def carries_out_once(patch: pytest.MonkeyPatch) -> None:
    """docs/semantics.md T33: a coordinator leaves what its predecessor decided."""
    due = JobDecisions.due
    patch.setattr(JobDecisions, "activated", lambda *_: [])
    patch.setattr(
        JobDecisions,
        "due",
        lambda jobs, now_ms: (each for each in due(jobs, now_ms) if not isinstance(each, CarryOutJob)),
    )


def opens_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    """docs/semantics.md T34: a batch that is run again is written again."""
    open_attempt = JobDecisions._open

    def opens(jobs: JobDecisions, event: OpenAttempt, context: Context) -> TransactionOutcome:
        job = jobs.book.jobs.get(event.job)
        if job is None or job.state is not JobState.COMMITTED:
            return open_attempt(jobs, event, context)
        jobs.book.jobs[event.job] = replace(job, state=JobState.ABORTED)
        try:
            return open_attempt(jobs, event, context)
        finally:
            jobs.book.jobs[event.job] = job

    patch.setattr(JobDecisions, "_open", opens)


def forgets_aborted_runs(patch: pytest.MonkeyPatch) -> None:
    """docs/semantics.md T37: a task of a run that was aborted opens the job again."""
    patch.setattr(Job, "has_aborted", lambda *_: False)


def tells_other_rows(patch: pytest.MonkeyPatch) -> None:
    """docs/semantics.md T38: a run that has the same rows is refused, and one that has others is not."""
    rows_of = JobBook.rows_of
    patch.setattr(
        JobBook, "rows_of", lambda book, job: None if (rows := rows_of(book, job)) is None else rows + 1
    )


def answers_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """docs/semantics.md T32: the driver hears of a decision that another coordinator may not find."""
    act_on = RunningShard._act_on

    def hasty(running: Any, outcome: Any, event: Any, caller: Any, token: int) -> None:
        if isinstance(outcome, Write) and isinstance(outcome.reply, DecisionReply) and caller is not None:
            before = running._position
            act_on(running, outcome, event, None, token)
            if running._position > before:
                caller(outcome.reply)
            return
        act_on(running, outcome, event, caller, token)

    patch.setattr(RunningShard, "_act_on", hasty)


ABLATIONS: dict[str, tuple[Faults, Callable[[pytest.MonkeyPatch], None], str]] = {
    "act before the barrier": (Faults(skip_barrier=True, kill=0.03), nothing,
        "before its PREPARE is committed"),
    "marker epochs not checked": (Faults(), leave_out("_check_marker_epoch"),
        "torn|lost|aborted read|hanging"),
    "coordinator epoch not checked": (
        replace(TV1, late_markers=0.3, depose=0.02), leave_out("_check_coordinator_epoch"),
        "torn|lost|aborted read",
    ),
    "no verification of TV1 appends": (
        replace(TV1, verifies=False, late_produces=0.3), leave_out("_check_guard"),
        "hanging|torn|aborted read",
    ),
    "verification by state instead of guard": (
        replace(TV1, guard_before_question=False, late_produces=0.5, late=0.2), nothing,
        "hanging|torn|aborted read",
    ),
    "pending markers keyed by id alone": (Faults(queue=QueueById, shard=CompletesById), nothing,
        "hanging|torn|lost"),
    "COMPLETE not repeated after a refused append": (Faults(shard=CompletesOnce, refuse=0.1), nothing,
        "hanging"),
    "epoch bumped twice after a failed fence": (Faults(shard=BumpsAgain, refuse=0.2), nothing,
        "failed|hanging"),
    "the last stable offset passes unreplicated markers": (
        Faults(move=0.1), forgets_unreplicated_markers, "is decided below",
    ),
    "producers are published before the write": (Faults(full=0.2), publishes_before_the_write,
        "lost|torn|hanging|failed"),
    "a timeout ends a prepared transaction": (
        Faults(shard=ForgetsThePrepared), times_prepared_out, "lost",
    ),
    "a decision without a look at its winners": (
        Faults(jobs=True, stall=0.01), leave_out_of_jobs("_require_prepared"), "lost or doubled",
    ),
    "what is decided is carried out by one coordinator alone": (
        Faults(jobs=True, depose=0.02), carries_out_once, "has attempts|open",
    ),
    "an attempt opens after its job is committed": (
        Faults(jobs=True, crash_driver=0.02), opens_what_is_committed, "twice committed|lost or doubled",
    ),
    "an attempt opens after its run is aborted": (
        Faults(jobs=True, crash_driver=0.02), forgets_aborted_runs, "of an aborted run was opened",
    ),
    "later runs are told other rows": (
        Faults(jobs=True, crash_driver=0.02), tells_other_rows, "later runs were told of",
    ),
    "a decision is answered before it is committed": (
        Faults(jobs=True, depose=0.03, learn=0.01), answers_before_the_commit, "twice|lost or doubled",
    ),
    "a timeout ends a prepared attempt": (
        Faults(jobs=True, depose=0.02, shard=ForgetsTheAttempts), times_prepared_out, "failed|lost",
    ),
    "no new identity after an EndTxn of unknown outcome": (
        replace(TV1, late_ends=0.3, initialises_after_unknown_end=False), nothing, "torn|lost|aborted read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ABLATIONS))
def test_a_missing_safeguard_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, patch, expected = ABLATIONS[name]
    patch(monkeypatch)
    for seed in range(80):
        try:
            found = World(seed, replace(faults, validates=False)).run(1_000)
        except LookupError as error:  # a state that is not what the log says
            found = [f"failed: {error!r}"]
        if any(word in what for what in found for word in expected.split("|")):
            return
    pytest.fail(f"{name}: no seed found it")


@pytest.mark.parametrize(
    "name", [name for name, (faults, *_) in ABLATIONS.items() if faults.transaction_version < 2]
)
def test_without_the_ablation_the_same_faults_do_no_harm(name: str) -> None:
    """Or else it would not be the missing safeguard that was found."""
    faults = replace(
        ABLATIONS[name][0], verifies=True, guard_before_question=True, initialises_after_unknown_end=True
    )
    for seed in range(25):
        assert World(seed, faults).run(1_000) == []


def test_publishing_before_the_append_succeeds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append_and_replay: Callable[..., None] = RunningShard._append_and_replay

    def hasty(self: Any, records: Any, *of_producer: Any) -> None:
        for offset, record in enumerate(records, self._position):
            now_ms = self._around.clock.now_ms
            self.shard.replay(ReplayedRecord(offset, now_ms, record.key, record.value))
        append_and_replay(self, records, *of_producer)

    monkeypatch.setattr(RunningShard, "_append_and_replay", hasty)
    assert any(
        any("hanging" in what or "torn" in what or "lost" in what for what in World(seed).run(500))
        for seed in range(40)
    )


def test_a_prepared_transaction_is_never_forgotten_by_a_stable_coordinator() -> None:
    world = World(3, Faults(kill=0, depose=0))
    world.run(400)
    leader = world.coordinators.leader
    assert leader is not None
    ((_, _, shard),) = leader.runtime.shards()
    assert isinstance(shard, TransactionShard)
    assert all(entry.state is not TransactionState.ONGOING for entry in shard.transactions.values())
