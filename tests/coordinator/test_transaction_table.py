"""Every (state, stimulus) pair of the transaction coordinator has an outcome, written down here independently
of the table.

The tests are generated from `RULES`; the expectation is a second opinion: the error that the caller sees and
the state in the record that is written ("-" for none).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import count
from typing import Any

import pytest
from tidegate.controller.state.model import RELEASED_LEVEL, TWO_PHASE_COMMIT_LEVEL
from tidegate.coordinator.outcome import Context, CoordinatorRecord, ReplayedRecord, Reply, Write
from tidegate.coordinator.transaction import job_records, records
from tidegate.coordinator.transaction import shard as shard_module
from tidegate.coordinator.transaction.events import (
    AddOffsets,
    AddPartitions,
    DescribeTransactions,
    EndTxn,
    ExpireTransactions,
    InitProducerId,
    MarkersWritten,
    PartitionsReply,
    PrepareTransaction,
    ProducerReply,
    TimeoutTransaction,
    TransactionConfig,
)
from tidegate.coordinator.transaction.job_events import CarryOutJob
from tidegate.coordinator.transaction.jobs import Job, JobId, JobState, Winner, transactional_id
from tidegate.coordinator.transaction.shard import TransactionShard
from tidegate.coordinator.transaction.state import (
    RULES,
    VALID_PREVIOUS,
    VALID_PREVIOUS_TV2,
    Action,
    Stimulus,
    TransactionMetadata,
    TransactionPartition,
    TransactionState,
    is_stored,
    leads_to,
    may_follow,
)
from tidegate.wire.errors import ErrorCode, KafkaError

from .coordinator_doubles import code_of

JOB = JobId("orders", "7")
ID, PID, EPOCH, NOW = "orders", 1000, 3, 10_000_000
# with 4, EPOCH is the last that a client may hold: every bump gives it another producer id
EPOCHS = (32767, 4)
P0, P1 = TransactionPartition("flights", 0), TransactionPartition("flights", 1)
S = TransactionState
T = Stimulus

# Each cell is "error state".
COLUMNS = (
    S.EMPTY, S.ONGOING, S.PREPARED, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT, S.COMPLETE_ABORT,
    S.DEAD,
)  # fmt: skip
# SAME: the entry is written again as it is, which only a real leader gets committed (TV1).
SAME = "NONE unchanged"
BUSY, BAD, GONE, OLD = (
    "CONCURRENT_TRANSACTIONS -",
    "INVALID_TXN_STATE -",
    "INVALID_PRODUCER_ID_MAPPING -",
    "PRODUCER_FENCED -",
)
NEW, LATE, OK = "NONE EMPTY", "TRANSACTION_ABORTABLE -", "NONE -"
GONE_TOO, NEVER = "NONE tombstone", "a defect"
ADD, PREP, CMT, ABT, FEN = (
    "NONE ONGOING",
    "NONE PREPARED",
    "NONE PREPARE_COMMIT",
    "NONE PREPARE_ABORT",
    "CONCURRENT_TRANSACTIONS PREPARE_ABORT",
)
EXPECTED = {
    T.INIT_PRODUCER_ID: (NEW, FEN, FEN, BUSY, BUSY, NEW, NEW, NEW),
    T.INIT_KEEPING: (NEW, PREP, PREP, BUSY, BUSY, NEW, NEW, NEW),
    T.ADD_PARTITIONS: (ADD, ADD, BAD, BUSY, BUSY, ADD, ADD, GONE),
    T.VERIFY_PARTITIONS: (LATE, SAME, BAD, BUSY, BUSY, LATE, LATE, GONE),
    T.PREPARE: (BAD, PREP, OK, BAD, BAD, BAD, BAD, GONE),
    T.COMMIT_TV1: (BAD, CMT, CMT, BUSY, BAD, SAME, BAD, GONE),
    T.ABORT_TV1: (BAD, ABT, ABT, BAD, BUSY, BAD, SAME, GONE),
    T.COMMIT: (BAD, CMT, CMT, BUSY, BUSY, BAD, BAD, GONE),
    T.ABORT: (ABT, ABT, ABT, BUSY, BUSY, ABT, ABT, GONE),
    T.COMMIT_REPEATED: (OLD, OLD, OLD, BUSY, BAD, OK, BAD, GONE),
    T.ABORT_REPEATED: (OLD, OLD, OLD, BAD, BUSY, BAD, OK, GONE),
    T.MARKERS_WRITTEN: (OK, OK, OK, "NONE COMPLETE_COMMIT", "NONE COMPLETE_ABORT", OK, OK, OK),
    T.TIMEOUT: (OK, ABT, OK, OK, OK, OK, OK, OK),
    T.EXPIRE: ("NONE tombstone", OK, OK, OK, OK, "NONE tombstone", "NONE tombstone", OK),
    T.JOB_COMMITTED: (GONE_TOO, NEVER, CMT, OK, NEVER, GONE_TOO, NEVER, OK),
    T.JOB_ABORTED: (GONE_TOO, ABT, ABT, NEVER, OK, NEVER, GONE_TOO, OK),
    T.DESCRIBE: (OK, OK, OK, OK, OK, OK, OK, "TRANSACTIONAL_ID_NOT_FOUND -"),
}


def make(
    state: S,
    *,
    version: int,
    old: bool = False,
    last: int = -1,
    max_epoch: int = 32767,
    is_only_replica: Callable[[], bool] = lambda: False,
    level: Callable[[], int] = lambda: TWO_PHASE_COMMIT_LEVEL,
    stimulus: Stimulus | None = None,
) -> TransactionShard:
    """A shard with one entry in that state, as a load would leave it; of an attempt of a decided job where
    that is the stimulus."""
    ids = count(2000)
    config = TransactionConfig(max_producer_epoch=max_epoch)
    made = TransactionShard(config, lambda: next(ids), 3, is_only_replica, level)
    name = ID
    if stimulus in (T.JOB_COMMITTED, T.JOB_ABORTED):
        name = transactional_id(JOB, "a")
        decided = Job(JOB, JobState.ABORTED, 0, NOW)
        if stimulus is T.JOB_COMMITTED:
            decided = Job(JOB, JobState.COMMITTED, 0, NOW, (Winner("a", PID, EPOCH),))
        record = job_records.record_of(decided)
        made.replay(ReplayedRecord(39, NOW, record.key, record.value))
    if state is S.DEAD:
        return made
    busy = state.runs
    entry = TransactionMetadata(
        name,
        PID,
        EPOCH,
        60_000,
        state,
        last_update_ms=0 if old else NOW,
        start_ms=(0 if old else NOW) if busy else -1,
        partitions=frozenset({P0}) if busy else frozenset(),
        last_producer_epoch=last,
        transaction_version=version,
    )
    made.replay(ReplayedRecord(40, NOW, records.encode_key(name), records.encode_value(entry, level())))
    return made


def request(stimulus: Stimulus, made: TransactionShard) -> Any:
    current = made.transactions.get(ID)
    match stimulus:
        case T.INIT_PRODUCER_ID:
            return InitProducerId(ID, 60_000)
        case T.INIT_KEEPING:
            return InitProducerId(ID, 60_000, two_phase_commit=True, keeps_transaction=True)
        case T.PREPARE:
            return PrepareTransaction(ID, PID, EPOCH)
        case T.ADD_PARTITIONS:
            return AddPartitions(ID, PID, EPOCH, (P1,))
        case T.VERIFY_PARTITIONS:
            return AddPartitions(ID, PID, EPOCH, (P0,), verify_only=True)
        case T.COMMIT_TV1 | T.ABORT_TV1:
            return EndTxn(ID, PID, EPOCH, stimulus is T.COMMIT_TV1, 1)
        case T.COMMIT | T.ABORT:
            return EndTxn(ID, PID, EPOCH, stimulus is T.COMMIT, 2)
        case T.COMMIT_REPEATED | T.ABORT_REPEATED:
            return EndTxn(ID, PID, EPOCH - 1, stimulus is T.COMMIT_REPEATED, 2)
        case T.MARKERS_WRITTEN:
            absent = TransactionMetadata(ID, PID, EPOCH, 1, S.PREPARE_COMMIT, 0)
            return MarkersWritten(made._identity(current or absent, 40))
        case T.TIMEOUT:
            return TimeoutTransaction(ID)
        case T.EXPIRE:
            return ExpireTransactions((ID,))
        case T.JOB_COMMITTED | T.JOB_ABORTED:
            return CarryOutJob(JOB)
        case T.DESCRIBE:
            return DescribeTransactions(ID)


def decide(made: TransactionShard, event: Any) -> Write[Any, Any]:
    """An outcome that writes nothing is here a Write without records."""
    context = Context(
        NOW if not isinstance(event, ExpireTransactions) else NOW + 10 * 24 * 3600 * 1000, 41, 3
    )
    try:
        outcome = made.handle(event, context)
    except KafkaError as error:
        return Write((), error)
    if isinstance(outcome, Reply):
        return Write((), outcome.reply, outcome.effects)
    assert isinstance(outcome, Write)
    return outcome


def seen(outcome: Write[Any, Any], made: TransactionShard) -> str:
    code = code_of(outcome.reply)
    if isinstance(outcome.reply, PartitionsReply):
        (code,) = set(outcome.reply.errors.values())
    if not outcome.records:
        return f"{code.name} -"
    (record,) = outcome.records
    if record.value is None:
        return f"{code.name} tombstone"
    following = records.decode_value(ID, record.value, 40)
    return f"{code.name} " + ("unchanged" if following == made.transactions.get(ID) else following.state.name)


PAIRS = [pair for pair in RULES if pair[0] is not S.PREPARE_EPOCH_FENCE]


LATER = {T.PREPARE, T.INIT_KEEPING, T.JOB_COMMITTED, T.JOB_ABORTED}
"""What no client can ask for before the upgrade to the level after the released one is finished."""


@pytest.mark.parametrize("max_epoch", EPOCHS)
@pytest.mark.parametrize(("state", "stimulus"), PAIRS, ids=lambda value: value.name)
def test_every_pair_has_its_outcome(state: S, stimulus: Stimulus, max_epoch: int) -> None:
    check_outcome(state, stimulus, max_epoch, TWO_PHASE_COMMIT_LEVEL)


@pytest.mark.parametrize("max_epoch", EPOCHS)
@pytest.mark.parametrize(("state", "stimulus"), PAIRS, ids=lambda value: value.name)
def test_every_pair_has_its_outcome_in_the_middle_of_an_upgrade(
    state: S, stimulus: Stimulus, max_epoch: int
) -> None:
    """A shard that sets a new field, or enters a new state, without asking for the level fails here."""
    if is_stored(state, RELEASED_LEVEL) and stimulus not in LATER:
        check_outcome(state, stimulus, max_epoch, RELEASED_LEVEL)


def check_outcome(state: S, stimulus: Stimulus, max_epoch: int, level: int) -> None:
    repeated = stimulus in (T.COMMIT_REPEATED, T.ABORT_REPEATED)
    tv2 = repeated or stimulus in (T.PREPARE, T.COMMIT, T.ABORT)
    last = EPOCH - 1 if repeated else -1
    made = make(
        state, version=2 if tv2 else 1, old=stimulus is T.TIMEOUT, last=last, max_epoch=max_epoch,
        level=lambda: level, stimulus=stimulus,
    )  # fmt: skip
    before = state_of(made)
    if EXPECTED[stimulus][COLUMNS.index(state)] is NEVER:
        with pytest.raises(AssertionError, match=f"{state.name} while its job is decided"):
            decide(made, request(stimulus, made))
        return
    outcome = decide(made, request(stimulus, made))
    assert seen(outcome, made) == EXPECTED[stimulus][COLUMNS.index(state)]
    assert state_of(made) == before, "handle decides, only replay changes"
    for record in outcome.records:
        assert replayed(record, decoded=True) == replayed(record, decoded=False), (
            "memory is what a load would find"
        )


REPLAYED = {"transactions", "ongoing", "prepared", "decided"}
VOLATILE = {
    "config", "coordinator_epoch", "marked", "_awaiting_completion", "_take_producer_id", "_is_only_replica",
    "_finalised_level", "_next_timeout_scan_ms", "_next_completion_ms", "_next_expiration_scan_ms",
    "_activated_ms", "_validated", "holds",
}  # fmt: skip
OF_JOBS = {"book"}
"""What is replayed: all of it."""
VOLATILE_OF_JOBS = {
    "_config", "_port", "_holds", "_require_level", "_activated_ms", "_next_scan_ms", "_next_forgetting_ms",
}  # fmt: skip


def state_of(made: TransactionShard) -> dict[str, dict[str, Any]]:
    """A copy of what replay alone may change."""
    assert vars(made).keys() == REPLAYED | VOLATILE | {"jobs"}, (
        "say here which a new attribute of the shard is"
    )
    assert vars(made.jobs).keys() == OF_JOBS | VOLATILE_OF_JOBS
    return {name: dict(getattr(made, name)) for name in REPLAYED} | deepcopy(vars(made.jobs.book))


@pytest.mark.parametrize("state", COLUMNS, ids=lambda state: state.name)
def test_a_coordinator_that_has_loaded_a_state_does_what_the_table_leaves_to_it(state: S) -> None:
    """By its indexes, which may forget a state: it aborts what is late, expires what is idle, and sends the
    markers of what is decided."""
    made = make(state, version=2, old=True)
    (sent,) = made.activated(Context(NOW, 41, 3))
    assert isinstance(sent, Reply)
    events = {type(event) for event in made.due(NOW + made.config.expiration_ms)}
    asked = {TimeoutTransaction: T.TIMEOUT, ExpireTransactions: T.EXPIRE}
    leads = {Action.FENCE, Action.TOMBSTONE}
    assert events == {event for event, stimulus in asked.items() if RULES[(state, stimulus)] in leads}
    assert bool(sent.effects) is (RULES[(state, T.MARKERS_WRITTEN)] is Action.COMPLETE)


def replayed(record: CoordinatorRecord, *, decoded: bool) -> dict[str, dict[str, Any]]:
    made = make(S.ONGOING, version=1)
    written = record.decoded if decoded else None
    assert (written is None) == (record.value is None or not decoded)
    made.replay(ReplayedRecord(41, NOW, record.key, record.value, None, written))
    return state_of(made)


def test_the_expectations_cover_the_whole_table() -> None:
    assert {(state, stimulus) for stimulus in EXPECTED for state in COLUMNS} == set(PAIRS)
    assert set(RULES) == {(state, stimulus) for state in S for stimulus in T}


@pytest.mark.parametrize("pair", [p for p in RULES if p[0] is S.PREPARE_EPOCH_FENCE], ids=lambda p: p[1].name)
def test_the_state_that_is_never_stored_is_refused_everywhere(pair: tuple[S, Stimulus]) -> None:
    assert RULES[pair] is Action.UNREACHABLE
    entry = TransactionMetadata(ID, PID, EPOCH, 60_000, S.PREPARE_EPOCH_FENCE, 0)
    with pytest.raises(Exception, match="never stored"):
        make(S.EMPTY, version=1).replay(
            ReplayedRecord(50, 0, records.encode_key(ID), records.encode_value(entry))
        )


@pytest.mark.parametrize(("state", "stimulus"), PAIRS, ids=lambda value: value.name)
def test_what_a_rule_writes_is_a_valid_transition(state: S, stimulus: Stimulus) -> None:
    target = leads_to(state, RULES[(state, stimulus)])
    if target is not None:
        assert may_follow(state, target, 2 if stimulus is T.ABORT else 1)


@pytest.mark.parametrize(
    ("state", "stimulus"), [(S.EMPTY, T.ADD_PARTITIONS), (S.ONGOING, T.COMMIT), (S.EMPTY, T.INIT_PRODUCER_ID)]
)
def test_what_the_table_does_not_lead_to_is_never_written(
    state: S, stimulus: Stimulus, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(state, version=2)
    assert decide(made, request(stimulus, made)).records
    monkeypatch.setitem(RULES, (state, stimulus), Action.IGNORE)
    with pytest.raises(AssertionError, match=f"IGNORE in {state.name} does not lead to"):
        decide(made, request(stimulus, made))


def test_the_valid_transitions_are_those_of_the_specification() -> None:
    """docs/semantics.md T1."""
    cc, ca = S.COMPLETE_COMMIT, S.COMPLETE_ABORT
    assert {
        S.EMPTY: {S.EMPTY, cc, ca, S.DEAD},
        S.ONGOING: {S.ONGOING, S.EMPTY, cc, ca},
        S.PREPARED: {S.ONGOING, S.PREPARED},
        S.PREPARE_COMMIT: {S.ONGOING, S.PREPARED},
        S.PREPARE_ABORT: {S.ONGOING, S.PREPARED, S.PREPARE_EPOCH_FENCE},
        cc: {S.PREPARE_COMMIT},
        ca: {S.PREPARE_ABORT},
        S.DEAD: {S.EMPTY, ca, cc},
        S.PREPARE_EPOCH_FENCE: {S.ONGOING},
    } == VALID_PREVIOUS
    assert VALID_PREVIOUS.keys() == set(S)
    assert VALID_PREVIOUS_TV2[S.PREPARE_ABORT] == {
        S.ONGOING, S.PREPARED, S.PREPARE_EPOCH_FENCE, S.EMPTY, cc, ca
    }  # fmt: skip


WITH_IDENTITY = (
    T.ADD_PARTITIONS, T.VERIFY_PARTITIONS, T.PREPARE, T.COMMIT_TV1, T.ABORT_TV1, T.COMMIT, T.ABORT
)  # fmt: skip
FENCED, UNMAPPED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("state", "stimulus"), [p for p in PAIRS if p[1] in WITH_IDENTITY], ids=lambda value: value.name
)
@pytest.mark.parametrize(
    ("producer_id", "epoch", "error"),
    [(PID, EPOCH - 3, FENCED), (PID, EPOCH + 1, FENCED), (77, EPOCH, UNMAPPED)],
)
def test_a_foreign_identity_is_refused_in_every_state(
    state: S, stimulus: Stimulus, producer_id: int, epoch: int, error: ErrorCode
) -> None:
    made = make(state, version=2)
    event: Any
    match stimulus:
        case T.ADD_PARTITIONS | T.VERIFY_PARTITIONS:
            event = AddPartitions(ID, producer_id, epoch, (P0,), verify_only=stimulus is T.VERIFY_PARTITIONS)
        case T.PREPARE:
            event = PrepareTransaction(ID, producer_id, epoch)
        case _:
            event = EndTxn(
                ID, producer_id, epoch, "COMMIT" in stimulus.name, 1 if "TV1" in stimulus.name else 2
            )
    outcome = decide(made, event)
    expected = error if state is not S.DEAD else ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert code_of(outcome.reply) is expected
    assert not outcome.records


def test_add_offsets_enlists_the_partition_of_the_group() -> None:
    made = make(S.EMPTY, version=1)
    offsets = TransactionPartition("__consumer_offsets", 7)
    outcome = decide(made, AddOffsets(ID, PID, EPOCH, offsets))
    assert records.decode_value(ID, outcome.records[0].value or b"", 41).partitions == {offsets}
    assert outcome.reply == PartitionsReply({offsets: ErrorCode.NONE})


def test_adding_what_is_enlisted_changes_nothing() -> None:
    tv1, tv2 = make(S.ONGOING, version=1), make(S.ONGOING, version=2)
    assert seen(decide(tv1, AddPartitions(ID, PID, EPOCH, (P0,))), tv1) == SAME
    assert seen(decide(tv2, AddPartitions(ID, PID, EPOCH, (P0,), 2)), tv2) == OK


def test_a_new_transaction_has_no_partitions_and_a_new_timeout() -> None:
    made = make(S.COMPLETE_COMMIT, version=1)
    entry = records.decode_value(
        ID, decide(made, AddPartitions(ID, PID, EPOCH, (P1,))).records[0].value or b"", 41
    )
    assert entry.partitions == {P1}
    assert entry.start_ms == NOW
    ongoing = make(S.ONGOING, version=1, old=True)
    entry = records.decode_value(
        ID, decide(ongoing, AddPartitions(ID, PID, EPOCH, (P1,))).records[0].value or b"", 41
    )
    assert entry.partitions == {P0, P1}
    assert entry.start_ms == 0


def test_a_start_in_the_future_counts_from_the_election() -> None:
    """Its coordinator's clock was an hour ahead; this one's is right."""
    made = make(S.ONGOING, version=2)
    an_hour_ago = NOW - 3_600_000
    made.activated(Context(an_hour_ago, 41, 3))
    assert not [event for event in made.due(an_hour_ago + 60_000) if isinstance(event, TimeoutTransaction)]
    assert [event for event in made.due(an_hour_ago + 200_000) if isinstance(event, TimeoutTransaction)]


def test_tv1_keeps_the_epoch_and_tv2_moves_it() -> None:
    tv1 = decide(make(S.ONGOING, version=1), EndTxn(ID, PID, EPOCH, True, 1))
    tv2 = decide(make(S.ONGOING, version=2), EndTxn(ID, PID, EPOCH, True, 2))
    assert tv1.reply == ProducerReply(-1, -1)
    assert tv1.effects[0].producer_epoch == EPOCH
    assert tv2.reply == ProducerReply(PID, EPOCH + 1)
    assert tv2.effects[0].producer_epoch == EPOCH + 1


@pytest.mark.parametrize(
    ("state", "stimulus"),
    [(S.ONGOING, T.VERIFY_PARTITIONS), (S.COMPLETE_COMMIT, T.COMMIT_TV1), (S.COMPLETE_ABORT, T.ABORT_TV1)],
)
def test_only_the_holder_of_the_only_replica_answers_tv1_unconfirmed(state: S, stimulus: Stimulus) -> None:
    """With another replica it may have been deposed; the simulator shows what comes of it (docs/semantics.md
    T10)."""
    alone = [False]
    made = make(state, version=1, is_only_replica=lambda: alone[0])
    confirmed = decide(made, request(stimulus, made))
    alone[0] = True
    at_once = decide(made, request(stimulus, made))
    assert at_once.reply == confirmed.reply
    assert not isinstance(at_once.reply, KafkaError)
    assert len(confirmed.records) == 1
    assert not at_once.records


def test_a_confirmed_repeat_answers_the_current_identity() -> None:
    made = make(S.COMPLETE_COMMIT, version=2, last=EPOCH - 1)
    assert decide(made, EndTxn(ID, PID, EPOCH - 1, True, 2)).reply == ProducerReply(PID, EPOCH)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_transaction_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    outcome = decide(make(S.DEAD, version=1), InitProducerId(ID, timeout_ms))
    assert code_of(outcome.reply) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize(
    "event",
    [InitProducerId("", 1), AddPartitions("", 1, 1, (P0,)), EndTxn("", 1, 1, True)],
    ids=lambda e: type(e).__name__,
)
def test_an_empty_transactional_id_is_refused(event: Any) -> None:
    assert code_of(decide(make(S.DEAD, version=1), event).reply) is ErrorCode.INVALID_REQUEST


def test_a_broken_rule_is_caught_before_the_record_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ablation: a table that lets Empty commit trips over the transition check."""
    monkeypatch.setitem(shard_module.RULES, (S.EMPTY, T.COMMIT), Action.PREPARE_COMMIT)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="PREPARE_COMMIT may not follow EMPTY"):
        decide(make(S.EMPTY, version=2), EndTxn(ID, PID, EPOCH, True, 2))
