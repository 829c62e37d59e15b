"""The coordinator runtime: parking, the barrier, loading, unloading, refused appends, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tidegate.coordinator.outcome import (
    Context,
    CoordinatorRecord,
    ProducerIdentity,
    ReplayedRecord,
    Reply,
    ShardOutcome,
    Wait,
    Write,
    WriteAndRepeat,
    WriteOffsets,
)
from tidegate.coordinator.running_shard import CoordinatorLoadError, RuntimeConfig
from tidegate.coordinator.runtime import CoordinatorRuntime
from tidegate.coordinator.shard_view import Phase
from tidegate.wire.errors import ErrorCode, KafkaError

from .coordinator_doubles import Driver, MemoryLog, code_of

KEY = b"sum"


@dataclass(frozen=True)
class Add:
    amount: int
    count: int = 1
    fail: bool = False


@dataclass(frozen=True)
class Read:
    pass


@dataclass(frozen=True)
class AddByTens:
    """Adds 10 at a time until the sum is `until`."""

    until: int


@dataclass(frozen=True)
class Commit:
    """Adds 1, as a group adds offsets."""


@dataclass(frozen=True)
class WaitForWake:
    pass


@dataclass(frozen=True)
class Wake:
    pass


class Summing:
    """Adds numbers: the smallest shard with records, effects, deferred replies and a timer."""

    def __init__(self) -> None:
        self.total = 0
        self.markers: list[tuple[int, bool, int]] = []
        self.waiting: list[int] = []
        self.is_active = False
        self.fail_replay = False

    def handle(self, event: Any, context: Context) -> ShardOutcome[Any, Any]:
        match event:
            case Add():
                if event.fail:
                    raise ZeroDivisionError("a bug")
                if event.amount == 0:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "nothing to add")
                records = [CoordinatorRecord(KEY, b"%d" % event.amount)] * event.count
                total = self.total + event.amount * event.count
                return Write(records, total, effects=(("effect", total),))
            case AddByTens():
                if self.total < event.until:
                    return WriteAndRepeat([CoordinatorRecord(KEY, b"10")])
                return Reply(self.total)
            case Commit():
                return WriteOffsets([CoordinatorRecord(KEY, b"1")], self.total + 1)
            case Read():
                return Reply(self.total)
            case WaitForWake():
                self.waiting.append(context.token)
                return Wait()
            case Wake():
                woken, self.waiting = self.waiting, []
                record = CoordinatorRecord(KEY, b"1")
                return Write([record], "woke", answers=[(token, "woken") for token in woken])
            case _:
                raise AssertionError(event)

    def replay(self, record: ReplayedRecord) -> None:
        if self.fail_replay:
            raise RuntimeError("cannot apply")
        self.total += int(record.value or b"0")

    def replay_marker(self, producer: ProducerIdentity, commit: bool, offset: int) -> None:
        self.markers.append((producer.producer_id, commit, offset))

    def activated(self, context: Context) -> list[ShardOutcome[Any, Any]]:
        self.is_active = True
        return [Reply(None, effects=(("activated", self.total),))]

    def resumed(self, now_ms: int, away_ms: int) -> None: ...

    def validate(self, event: Any = None) -> None:
        assert self.total >= 0, f"the sum is {self.total}"

    def due(self, now_ms: int) -> list[Any]:
        return []


@pytest.fixture
def driver() -> Driver:
    made = Driver(lambda partition, epoch: Summing())
    made.load()
    return made


def shard(driver: Driver, partition: int = 0) -> Any:
    return next(s for p, _, s in driver.runtime.shards() if p == partition)


def test_a_write_is_answered_when_it_is_committed_and_not_before(driver: Driver) -> None:
    driver.effects.clear()
    assert driver.submit("a", Add(5)) is None
    assert driver.effects == []
    driver.commit()
    assert driver.replies["a"] == 5
    assert driver.effects == [(0, 1, ("effect", 5))]


def test_a_read_waits_for_everything_it_saw(driver: Driver) -> None:
    driver.submit("write", Add(5))
    assert driver.submit("read", Read()) is None, "it saw a total that is not committed"
    driver.commit()
    assert driver.replies["read"] == 5
    assert driver.submit("second", Read()) == 5, "nothing is uncommitted: no need to wait"


def test_an_error_from_uncommitted_state_waits_for_the_commit(driver: Driver) -> None:
    driver.submit("write", Add(5))
    assert driver.submit("bad", Add(0)) is None
    driver.commit()
    assert code_of(driver.replies["bad"]) is ErrorCode.INVALID_REQUEST


def test_writes_see_what_was_written_but_not_committed(driver: Driver) -> None:
    driver.submit("a", Add(5))
    driver.submit("b", Add(2))
    driver.commit()
    assert driver.replies == {"a": 5, "b": 7}


def test_the_high_watermark_releases_only_what_lies_below_it(driver: Driver) -> None:
    driver.submit("a", Add(1))
    driver.submit("b", Add(1, count=2))
    driver.commit(offset=2)
    assert driver.replies == {"a": 1}, "half of b's batch is not enough"
    driver.commit(offset=3)
    assert driver.replies == {"a": 1, "b": 3}


def test_all_records_of_an_outcome_are_one_batch(driver: Driver) -> None:
    driver.ask(Add(1, count=7))
    assert driver.runtime.metrics_of(0).batches_written == 1
    assert driver.runtime.metrics_of(0).records_written == 7


@pytest.mark.parametrize(
    ("refused", "answered"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_refused_append_leaves_no_trace(driver: Driver, refused: ErrorCode, answered: ErrorCode) -> None:
    driver.effects.clear()
    driver.log.refuse = KafkaError(refused, "no")
    assert code_of(driver.submit("a", Add(5))) is answered
    driver.log.refuse = None
    assert driver.ask(Read()) == 0
    assert driver.effects == []
    assert driver.ask(Add(1)) == 1


@pytest.mark.parametrize("refused", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
def test_offsets_too_large_for_the_log_get_an_error_of_their_own(driver: Driver, refused: ErrorCode) -> None:
    driver.log.refuse = KafkaError(refused, "no")
    assert code_of(driver.submit("a", Commit())) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    driver.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
    assert code_of(driver.submit("b", Commit())) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.log.refuse = None
    assert driver.ask(Commit()) == 1


def test_a_storage_error_stops_the_shard_because_the_log_is_in_doubt(driver: Driver) -> None:
    driver.log.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "disk")
    assert code_of(driver.submit("a", Add(5))) is ErrorCode.NOT_COORDINATOR
    driver.log.refuse = None
    assert code_of(driver.submit("b", Read())) is ErrorCode.NOT_COORDINATOR
    assert driver.runtime.phase(0) is Phase.FAILED
    assert len(driver.failures) == 1
    driver.load(epoch=2)
    assert driver.ask(Read()) == 0


def test_a_foreign_append_stops_the_shard(driver: Driver) -> None:
    driver.log.append_marker(0, ProducerIdentity(1, 0), True)  # the runtime was not notified
    assert code_of(driver.submit("a", Add(5))) is ErrorCode.NOT_COORDINATOR
    assert driver.runtime.phase(0) is Phase.FAILED


def test_a_failing_replay_stops_the_shard(driver: Driver) -> None:
    shard(driver).fail_replay = True
    assert code_of(driver.submit("a", Add(5))) is ErrorCode.NOT_COORDINATOR
    assert driver.runtime.phase(0) is Phase.FAILED


def test_a_bug_in_a_handler_costs_only_its_own_request(driver: Driver) -> None:
    assert code_of(driver.submit("a", Add(1, fail=True))) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert driver.ask(Add(1)) == 1
    assert driver.runtime.metrics_of(0).handler_failures == 1


# --- the barrier --------------------------------------------------------------------------------------------


def written(*amounts: int) -> MemoryLog:
    first = Driver(lambda partition, epoch: Summing())
    first.load()
    for amount in amounts:
        first.submit(object(), Add(amount))
    return first.log


def test_a_new_leader_acts_only_past_the_log_end_found_at_its_election() -> None:
    driver = Driver(lambda partition, epoch: Summing(), log=written(3, 4))
    driver.load(epoch=2, barrier=False)
    assert driver.runtime.phase(0) is Phase.BARRIER
    assert not shard(driver).is_active
    assert driver.effects == []
    assert code_of(driver.submit("early", Read())) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.commit(offset=1)
    assert driver.runtime.phase(0) is Phase.BARRIER
    driver.commit(offset=2)
    assert driver.runtime.phase(0) is Phase.ACTIVE
    assert driver.effects == [(0, 2, ("activated", 7))]
    assert driver.submit("late", Read()) == 7


def test_a_log_that_is_already_committed_serves_at_once() -> None:
    log = written(3)
    log.watermark[0] = 1
    driver = Driver(lambda partition, epoch: Summing(), log=log)
    driver.load(epoch=2, barrier=False)
    assert driver.submit("a", Read()) == 3


def test_a_new_leader_knows_the_time_however_long_it_led_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick reaches a runtime without shards."""
    activated_ms: list[int] = []
    monkeypatch.setattr(Summing, "activated", lambda self, context: activated_ms.append(context.now_ms) or [])
    driver = Driver(lambda partition, epoch: Summing())
    driver.now_ms += 3_600_000
    driver.load(epoch=2)
    assert activated_ms == [driver.now_ms]


def test_timers_do_not_run_before_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(lambda partition, epoch: Summing(), log=written(3))
    driver.load(epoch=2, barrier=False)
    monkeypatch.setattr(Summing, "due", lambda self, now_ms: [Add(1)])
    driver.tick(1)
    assert driver.log.end[0] == 1
    driver.commit()
    driver.tick(1)
    assert driver.log.end[0] == 2


def test_failing_timers_stop_their_own_shard_only(driver: Driver) -> None:
    driver.load(1)
    shard(driver).due = lambda now_ms: 1 // 0
    shard(driver, 1).due = lambda now_ms: [Add(1)]
    driver.tick(1)
    assert (driver.runtime.phase(0), driver.runtime.phase(1), driver.log.end[1]) == (
        Phase.FAILED,
        Phase.ACTIVE,
        1,
    )


def test_a_shard_whose_activation_fails_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would have sent the markers of prepared transactions: no coordinator would send them any more."""
    monkeypatch.setattr(Summing, "activated", lambda self, context: 1 // 0)
    driver = Driver(lambda partition, epoch: Summing())
    with pytest.raises(ZeroDivisionError):
        driver.load()
    driver.tick(1)
    assert driver.runtime.phase(0) is Phase.FAILED


def test_an_incomplete_load_is_refused() -> None:
    log = written(3, 4)
    driver = Driver(lambda partition, epoch: Summing(), log=log)
    driver.runtime.begin_load(0, 2, 2)
    first = len(log.data[0]) // 2
    assert driver.runtime.load_batches(0, 2, bytes(log.data[0][:first])) == 1, "the offset to read next"
    with pytest.raises(CoordinatorLoadError, match="loaded up to 1"):
        driver.runtime.finish_load(0, 2)
    assert code_of(driver.submit("a", Read())) is ErrorCode.NOT_COORDINATOR


def test_a_load_in_chunks_gives_the_same_state() -> None:
    log = written(*[5] * 10)
    driver = Driver(lambda partition, epoch: Summing(), log=log)
    driver.runtime.begin_load(0, 2, 10)
    size = len(log.data[0]) // 10
    for start in range(0, len(log.data[0]), size):
        driver.runtime.load_batches(0, 2, bytes(log.data[0][start : start + size]))
    driver.runtime.finish_load(0, 2)
    driver.commit()
    assert driver.ask(Read()) == 50


def test_a_chunk_handed_in_twice_is_replayed_once() -> None:
    log = written(1, 2)
    driver = Driver(lambda partition, epoch: Summing(), log=log)
    driver.runtime.begin_load(0, 2, 2)
    driver.runtime.load_batches(0, 2, bytes(log.data[0]))
    driver.runtime.load_batches(0, 2, bytes(log.data[0]))
    driver.runtime.finish_load(0, 2)
    driver.commit()
    assert driver.ask(Read()) == 3


def test_a_damaged_log_is_never_served() -> None:
    log = written(1, 2)
    driver = Driver(lambda partition, epoch: Summing(), log=log)
    driver.runtime.begin_load(0, 2, 2)
    damaged = bytes(log.data[0]).replace(b"sum", b"sux", 1).replace(b"1", b"x", 1)
    with pytest.raises(CoordinatorLoadError):
        driver.runtime.load_batches(0, 2, damaged)
        driver.runtime.finish_load(0, 2)
    assert driver.runtime.phase(0) is Phase.FAILED


def test_calls_with_an_older_epoch_change_nothing(driver: Driver) -> None:
    driver.load(epoch=5)
    driver.runtime.begin_load(0, 4, 0)
    driver.runtime.unload(0, 4)
    driver.submit("a", Add(1))
    driver.runtime.on_high_watermark(0, 4, 100)
    assert "a" not in driver.replies
    assert driver.runtime.leader_epoch(0) == 5


# --- unloading ----------------------------------------------------------------------------------------------


def test_unloading_answers_every_caller_and_drops_effects(driver: Driver) -> None:
    driver.effects.clear()
    driver.submit("write", Add(5))
    driver.submit("read", Read())
    driver.submit("waiting", WaitForWake())
    driver.runtime.unload(0, 2)
    assert {label: code_of(reply) for label, reply in driver.replies.items()} == dict.fromkeys(
        ("write", "read", "waiting"), ErrorCode.NOT_COORDINATOR
    )
    driver.commit()
    assert driver.effects == []
    assert driver.runtime.phase(0) is None
    assert code_of(driver.submit("late", Read())) is ErrorCode.NOT_COORDINATOR


def test_an_effect_of_a_moved_shard_is_not_carried_out() -> None:
    """The first effect of a batch makes the node unload: the second must not follow."""
    log = MemoryLog()
    done: list[Any] = []

    class Two(Summing):
        def handle(self, event: Any, context: Context) -> ShardOutcome[Any, Any]:
            return Write([CoordinatorRecord(KEY, b"1")], 1, effects=("first", "second"))

    def execute(partition: int, epoch: int, effect: Any) -> None:
        done.append(effect)
        if effect == "first":
            runtime.unload(0, 2)

    runtime: CoordinatorRuntime[Any, Any, Any] = CoordinatorRuntime(
        "__state", lambda p, e: Two(), log, execute, steady_ms=lambda: 0
    )
    runtime.begin_load(0, 1, 0)
    runtime.finish_load(0, 1)
    done.clear()
    runtime.submit(0, Add(1), None)
    runtime.on_high_watermark(0, 1, 1)
    assert done == ["first"]


def test_an_effect_that_fails_stops_the_shard(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("cannot send")

    monkeypatch.setattr(driver.runtime._around, "execute", fail)
    driver.submit("a", Add(1))
    driver.commit()
    assert driver.runtime.phase(0) is Phase.FAILED, "a lost SendMarkers would leave a transaction hanging"


# --- deferred replies, re-entry, bounds ---------------------------------------------------------------------


def test_deferred_replies_wait_for_the_outcome_that_carries_them(driver: Driver) -> None:
    driver.submit("one", WaitForWake())
    driver.submit("two", WaitForWake())
    driver.submit("wake", Wake())
    assert driver.replies == {}
    driver.commit()
    assert driver.replies == {"one": "woken", "two": "woken", "wake": "woke"}


def test_deferred_replies_get_the_error_of_a_refused_append(driver: Driver) -> None:
    driver.submit("one", WaitForWake())
    driver.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
    driver.submit("wake", Wake())
    assert [code_of(driver.replies[label]) for label in ("one", "wake")] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE
    ] * 2


def test_a_repeated_event_is_answered_when_all_its_records_are_committed(driver: Driver) -> None:
    assert driver.submit("a", AddByTens(30)) is None
    assert driver.log.end[0] == 3
    driver.commit(offset=2)
    assert "a" not in driver.replies
    driver.commit()
    assert driver.replies["a"] == 30


def test_a_repeated_event_gets_the_error_of_a_refused_append(driver: Driver) -> None:
    def refuse_the_third(partition: int) -> None:
        if driver.log.end[partition] == 2:
            driver.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no")

    driver.log.on_append = refuse_the_third
    assert code_of(driver.submit("a", AddByTens(30))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert next(driver.runtime.views()).waiting == 0


def test_a_reply_may_submit_again_without_re_entering_the_shard(driver: Driver) -> None:
    totals: list[int] = []

    def again(value: Any) -> None:
        totals.append(value)
        if len(totals) < 5:
            driver.runtime.submit(0, Add(1), again)

    # one replica: committed as soon as it is appended
    driver.log.on_append = lambda partition: driver.commit(partition)
    driver.runtime.submit(0, Add(1), again)
    assert totals == [1, 2, 3, 4, 5]


def test_a_reply_that_raises_does_not_cost_the_others_theirs(driver: Driver) -> None:
    def bad(value: Any) -> None:
        raise RuntimeError("connection gone")

    driver.runtime.submit(0, Add(1), bad)
    driver.submit("good", Add(1))
    driver.commit()
    assert driver.replies["good"] == 2
    assert driver.runtime.metrics_of(0).reply_failures == 1


def test_an_event_of_the_coordinator_itself_waits_for_a_loading_shard() -> None:
    driver = Driver(lambda partition, epoch: Summing(), log=written(3, 4))
    driver.load(epoch=2, barrier=False)
    driver.runtime.submit(0, Add(5), None)
    driver.commit()
    assert driver.runtime.phase(0) is Phase.ACTIVE
    assert driver.ask(Read()) == 12


def test_the_queue_of_parked_replies_is_bounded() -> None:
    driver = Driver(lambda partition, epoch: Summing(), config=RuntimeConfig(parked_max=3))
    driver.load()
    for label in range(5):
        driver.submit(label, Add(1))
    refused = {label: code_of(reply) for label, reply in driver.replies.items()}
    assert refused == dict.fromkeys((3, 4), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert driver.log.end[0] == 3
    driver.commit()
    assert driver.ask(Add(1)) == 4


def test_a_caller_times_out_but_its_record_may_still_be_committed() -> None:
    driver = Driver(lambda partition, epoch: Summing(), config=RuntimeConfig(parked_timeout_ms=100))
    driver.load()
    driver.effects.clear()
    driver.submit("a", Add(5))
    driver.tick(99)
    assert "a" not in driver.replies
    driver.tick(1)
    assert code_of(driver.replies["a"]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.commit()
    assert driver.effects == [(0, 1, ("effect", 5))]
    assert driver.ask(Read()) == 5


# --- markers that the node appends --------------------------------------------------------------------------


def test_a_marker_is_replayed_in_place_and_confirmed_when_committed(driver: Driver) -> None:
    done: list[Any] = []
    producer = ProducerIdentity(7, 1)
    driver.submit("a", Add(1))
    offset = driver.log.append_marker(0, producer, True)
    driver.runtime.replay_marker(0, 1, producer, True, offset, done.append)
    assert shard(driver).markers == [(7, True, 1)]
    assert done == []
    driver.submit("b", Add(1))
    driver.commit()
    assert done == [None]
    assert driver.replies == {"a": 1, "b": 2}


def test_a_marker_that_arrives_while_loading_is_replayed_after_it() -> None:
    log = written(1)
    driver = Driver(lambda partition, epoch: Summing(), log=log)
    driver.runtime.begin_load(0, 2, 1)
    log.epochs[0] = 2
    producer = ProducerIdentity(7, 1)
    done: list[Any] = []
    driver.runtime.replay_marker(0, 2, producer, False, log.append_marker(0, producer, False), done.append)
    driver.runtime.load_batches(0, 2, bytes(log.data[0]))
    driver.runtime.finish_load(0, 2)
    assert shard(driver).markers == [(7, False, 1)]
    driver.commit()
    assert done == [None]
    assert driver.ask(Add(1)) == 2


def test_a_marker_for_a_moved_partition_is_refused(driver: Driver) -> None:
    done: list[Any] = []
    driver.runtime.replay_marker(0, 0, ProducerIdentity(7, 1), True, 0, done.append)
    assert code_of(done[0]) is ErrorCode.NOT_COORDINATOR
    driver.runtime.replay_marker(0, 1, ProducerIdentity(7, 1), True, 0, done.append)
    driver.runtime.unload(0, 2)
    assert [code_of(d) for d in done] == [ErrorCode.NOT_COORDINATOR] * 2


def test_loading_distinguishes_markers_from_transactional_records() -> None:
    log = written(1)
    producer = ProducerIdentity(7, 1)
    log.append_marker(0, producer, True)
    driver = Driver(lambda partition, epoch: Summing(), log=log)
    driver.load(epoch=2)
    assert shard(driver).markers == [(7, True, 1)]
    assert driver.ask(Read()) == 1


# --- ablation -----------------------------------------------------------------------------------------------


def test_without_parking_the_caller_hears_of_what_is_then_lost(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The safeguard switched off: the reply comes at once, the next leader never had the record."""
    state = driver.runtime._shards[0]
    state.high_watermark = 10**9
    assert driver.submit("a", Add(5)) == 5, "the ablated runtime answers before the commit"
    lost = Driver(lambda partition, epoch: Summing())
    lost.load(epoch=2)
    assert lost.ask(Read()) == 0


# --- what is counted ----------------------------------------------------------------------------------------


def test_each_shard_counts_for_itself_and_shows_what_waits(driver: Driver) -> None:
    driver.load(1)
    driver.submit("a", Add(1), 0)
    driver.submit("waits", WaitForWake(), 1)
    driver.submit("b", Add(0), 1)
    views = {view.partition: view for view in driver.runtime.views()}
    assert [(v.phase, v.parked, v.waiting, v.uncommitted) for v in (views[0], views[1])] == [
        (Phase.ACTIVE, 1, 0, 1), (Phase.ACTIVE, 0, 1, 0),
    ]  # fmt: skip
    assert views[0].metrics.records_written == 1
    assert views[1].metrics.records_written == 0
    assert views[0].metrics.events == 1
    assert views[1].metrics.events == 2
    driver.log.refuse = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "alone")
    driver.submit("c", Add(1), 1)
    assert driver.runtime.metrics_of(1).append_failures == 1
    assert driver.runtime.metrics_of(0).append_failures == 0


def test_the_counters_of_a_partition_outlive_its_leaderships(driver: Driver) -> None:
    driver.ask(Add(1))
    driver.runtime.unload(0, 2)
    assert list(driver.runtime.views()) == []
    assert driver.runtime.metrics_of(0).events == 1
    driver.load(0, 3)
    (view,) = driver.runtime.views()
    assert view.metrics.events == 1
    assert view.metrics.loads == 2
    assert view.metrics.records_loaded == 1
