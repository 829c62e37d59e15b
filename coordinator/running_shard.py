"""One shard while this node leads its partition, around the pure `Shard` (docs/semantics.md, chapter T).

Order of a load:   `RunningShard` -> `load_batches`* -> `finish_load` -> (barrier) -> `Shard.activated`.

Order of a write:  `Shard.handle` -> one batch -> append -> `Shard.replay` -> park reply and effects -> high
watermark -> reply -> effects.

| phase | ends when | a client's event | an own event | a marker |
|---|---|---|---|---|
| LOADING | the whole log is replayed | COORDINATOR_LOAD_IN_PROGRESS | queued | kept until then |
| BARRIER | the high watermark passes the barrier | COORDINATOR_LOAD_IN_PROGRESS | queued | replayed |
| ACTIVE | | handled | handled | replayed |
| FAILED | another `RunningShard` is loaded | NOT_COORDINATOR | dropped | NOT_COORDINATOR |
| UNLOADED | | the runtime has dropped this shard | | |

The barrier is the log end found at the election.  An own event is the coordinator's: a timer, markers that
are written.  Timers run in ACTIVE alone.  Every phase may end in FAILED (fail-stop: the state may differ from
the log) and in UNLOADED (another node leads); both answer all clients with NOT_COORDINATOR and drop the
parked effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from ..runtime import logs
from ..wire.errors import ErrorCode, KafkaError
from ..wire.records import (
    BatchHeader,
    ControlType,
    NewRecord,
    decode_batch,
    decode_marker,
    encode_batch,
    iterate_headers,
)
from .callers import Answer, Caller, Callers, Parked, answer_to
from .outcome import (
    APPEND_ERRORS,
    COMMIT_ERRORS,
    NO_TOKEN,
    Context,
    CoordinatorRecord,
    EffectT,
    EventT,
    ProducerIdentity,
    ReplayedRecord,
    Reply,
    ReplyT,
    Shard,
    ShardOutcome,
    StateLog,
    Wait,
    Write,
    WriteAndRepeat,
    WriteOffsets,
)
from .shard_view import Phase, ShardMetrics, ShardView

log = logs.get(__name__)


@dataclass(slots=True, frozen=True)
class RuntimeConfig:
    """Bounds.  `parked_timeout_ms` is how long a caller waits for its records to be committed.  `validate`: a
    shard looks at its invariants after every event, and fails when one does not hold, before any answer of
    that event leaves."""

    parked_max: int = 10_000
    parked_timeout_ms: int = 10_000
    waiting_max: int = 100_000
    buffered_markers_max: int = 10_000
    validate: bool = False


class CoordinatorLoadError(Exception):
    """The log could not be turned into state: the node must not serve this partition."""


class TurnClock:
    """One time for all that a turn does.  A backward step would delay every timer."""

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms = steady_ms
        self.now_ms = steady_ms()

    def read(self) -> None:
        self.now_ms = max(self.now_ms, self._steady_ms())


@dataclass(slots=True)
class Surroundings(Generic[EffectT]):
    """What all shards of one topic share.  The three functions are those of `CoordinatorRuntime`."""

    topic: str
    log: StateLog
    execute: Callable[[int, int, EffectT], None]
    config: RuntimeConfig
    on_failed: Callable[[int, int, str], None] | None
    on_invalid: Callable[[AssertionError], None] | None
    clock: TurnClock


class RunningShard(Generic[EventT, ReplyT, EffectT]):
    """One leadership of one partition."""

    def __init__(
        self,
        around: Surroundings[EffectT],
        partition: int,
        leader_epoch: int,
        shard: Shard[EventT, ReplyT, EffectT],
        metrics: ShardMetrics,
        log_end_offset: int,
        log_start_offset: int,
    ) -> None:
        """`log_end_offset`: the barrier."""
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.shard = shard
        self.phase = Phase.LOADING
        self.callers: Callers[EventT, ReplyT, EffectT] = Callers(around.topic, metrics)
        self.high_watermark = 0
        self._around = around
        self._metrics = metrics
        self._log_end_offset = log_end_offset
        self._position = log_start_offset
        self._is_running = False
        self._last_token = NO_TOKEN
        self._inbox: deque[tuple[EventT, Caller[ReplyT] | None]] = deque()
        self._buffered_markers: list[tuple[ProducerIdentity, bool, int, Answer | None]] = []

    @property
    def _name(self) -> str:
        return f"{self._around.topic}-{self.partition}"

    # --- loading --------------------------------------------------------------------------------------------

    def load_batches(self, data: bytes | memoryview) -> int:
        """See `CoordinatorRuntime.load_batches`."""
        try:
            for position, header in iterate_headers(data):
                if header.next_offset > self._log_end_offset:
                    break
                if header.last_offset < self._position:
                    continue
                self._load_batch(data, position, header)
                self._position = header.next_offset
        except Exception as error:  # a log that cannot be understood must never be served as if it were empty
            self.fail(f"load failed at offset {self._position}: {error}")
            raise CoordinatorLoadError(f"{self._name}: {error}") from error
        return self._position

    def _load_batch(self, data: bytes | memoryview, position: int, header: BatchHeader) -> None:
        if header.record_count == 0:  # emptied by compaction, kept for its producer's epoch (rule C5)
            return
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        if header.is_control:
            marker = decode_marker(data, position)
            if marker is not None:  # unknown types of control records are skipped (rule L4)
                commit = marker.control_type is ControlType.COMMIT
                self.shard.replay_marker(producer, commit, header.base_offset)
            return
        writer = producer if header.is_transactional else None
        for record in decode_batch(data, position):
            if record.key is None:
                raise ValueError(f"record {record.offset} of {self._name} has no key")
            value = None if record.value is None else bytes(record.value)
            self.shard.replay(
                ReplayedRecord(record.offset, record.timestamp_ms, bytes(record.key), value, writer)
            )
            self._metrics.records_loaded += 1

    def finish_load(self) -> None:
        """See `CoordinatorRuntime.finish_load`."""
        if self._position != self._log_end_offset:
            reason = (
                f"loaded up to {self._position}, but the log ended at {self._log_end_offset} when this "
                "node was elected"
            )
            self.fail(reason)
            raise CoordinatorLoadError(f"{self._name}: {reason}")
        self.phase = Phase.BARRIER
        self._metrics.loads += 1
        buffered, self._buffered_markers = self._buffered_markers, []
        for producer, commit, offset, done in buffered:
            self._replay_marker(producer, commit, offset, done)
        self.high_watermark = max(self.high_watermark, self._around.log.high_watermark(self.partition))
        self.run()

    # --- the end --------------------------------------------------------------------------------------------

    def unload(self) -> None:
        self.phase = Phase.UNLOADED
        self._reject_all()

    def fail(self, reason: str) -> None:
        """Fail-stop: the state of this shard may differ from its log."""
        self.phase = Phase.FAILED
        self._metrics.failures += 1
        log.error("coordinator_failed", **self._where(), reason=reason)
        self._reject_all()
        if self._around.on_failed is not None:
            self._around.on_failed(self.partition, self.leader_epoch, reason)

    def _reject_all(self) -> None:
        message = f"{self._name} is no longer coordinated here"
        error = KafkaError(ErrorCode.NOT_COORDINATOR, message)
        answers = self.callers.take_all(error)
        answers += [answer_to(caller, error) for _, caller in self._inbox if caller is not None]
        answers += [done for *_, done in self._buffered_markers if done is not None]
        self.callers.parked.clear()
        self._inbox.clear()
        self._buffered_markers.clear()
        self.callers.reject(answers, error)

    def reject_waiting_callers(self) -> None:
        message = f"{self._name} may be coordinated elsewhere by now"
        error = KafkaError(ErrorCode.NOT_COORDINATOR, message)
        self.callers.reject(self.callers.take_all(error), error)

    # --- events ---------------------------------------------------------------------------------------------

    def submit(self, event: EventT, caller: Caller[ReplyT] | None) -> None:
        """See `CoordinatorRuntime.submit`."""
        rejection = self._rejection(own=caller is None)
        if rejection is None:
            self._inbox.append((event, caller))
            self.run()
        elif caller is not None:
            self.callers.deliver([answer_to(caller, rejection)], None)

    def _rejection(self, *, own: bool) -> KafkaError | None:
        if self.phase is Phase.FAILED:
            return KafkaError(ErrorCode.NOT_COORDINATOR, f"{self._name} is not coordinated here")
        if self.phase is not Phase.ACTIVE and not own:
            self._metrics.rejected_loading += 1
            return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._name} is being loaded")
        if not own and self._is_full:
            self._metrics.rejected_busy += 1
            message = f"{self._name} waits for its replicas: retry"
            return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
        return None

    @property
    def _is_full(self) -> bool:
        return self._is_congested or len(self.callers.waiting) >= self._around.config.waiting_max

    @property
    def _is_congested(self) -> bool:
        return len(self.callers.parked) + len(self._inbox) >= self._around.config.parked_max

    def run(self) -> None:
        """Runs the shard until nothing is left to do: first parked answers and effects that are committed,
        then queued events."""
        if self._is_running:
            return
        self._is_running = True
        self._around.clock.read()
        parked = self.callers.parked
        try:
            while self.phase not in (Phase.FAILED, Phase.UNLOADED):
                if self.phase is Phase.BARRIER and self.high_watermark >= self._log_end_offset:
                    self._activate()
                elif parked and parked[0].offset <= self.high_watermark:
                    self._release(parked.popleft())
                elif self.phase is Phase.ACTIVE and self._inbox:
                    self._handle(*self._inbox.popleft())
                else:
                    break
        finally:
            self._is_running = False

    def _activate(self) -> None:
        outcomes = self.shard.activated(self._context(NO_TOKEN))
        self.phase = Phase.ACTIVE
        log.debug("coordinator_active", **self._where())
        for outcome in outcomes:
            if self.phase is Phase.ACTIVE:
                self._act_on(outcome, None, None, NO_TOKEN)
        self._validate(None)

    def _context(self, token: int) -> Context:
        return Context(self._around.clock.now_ms, self._position, self.leader_epoch, token)

    def _handle(self, event: EventT, caller: Caller[ReplyT] | None) -> None:
        self._metrics.events += 1
        self._last_token += 1
        token = self._last_token
        outcome: ShardOutcome[ReplyT, EffectT]
        try:
            outcome = self.shard.handle(event, self._context(token))
        except KafkaError as error:
            outcome = Reply(error)
        # `handle` wrote nothing, so only this request is lost; the log has the traceback
        except Exception as error:
            self._metrics.handler_failures += 1
            request = type(event).__name__
            log.exception("coordinator_handler_failed", **self._where(), request=request)
            outcome = Reply(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{request}: {error}"))
        self._act_on(outcome, event, caller, token)
        self._validate(event)

    def _validate(self, event: EventT | None) -> None:
        """Fail-stop: a shard whose state breaks an invariant decides nothing more."""
        if not self._around.config.validate or self.phase is Phase.FAILED:
            return
        try:
            self.shard.validate(event)
        except AssertionError as error:
            log.exception("coordinator_state_is_invalid", **self._where(), request=type(event).__name__)
            self.fail(f"an invariant does not hold: {error}")
            if self._around.on_invalid is not None:
                self._around.on_invalid(error)

    # --- outcomes -------------------------------------------------------------------------------------------

    def _act_on(
        self,
        outcome: ShardOutcome[ReplyT, EffectT],
        event: EventT | None,
        caller: Caller[ReplyT] | None,
        token: int,
    ) -> None:
        """Does what the table in `outcome.py` says."""
        callers = self.callers
        match outcome:
            case Reply():
                answers = _own(caller, outcome.reply) + callers.take(outcome.answers)
                self._settle(None, answers, outcome.effects)
            case Write():
                answers = _own(caller, outcome.reply) + callers.take(outcome.answers)
                error = self._append(outcome.records)
                if error is None:
                    resumed = (callers.waiting.pop(each, None) for each in outcome.resume)
                    self._inbox += [each for each in resumed if each is not None]
                elif caller is None and error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                    # no client hears of it, and no later attempt of the shard would succeed
                    log.error(
                        "coordinator_event_not_written",
                        **self._where(), request=type(event).__name__, reason=str(error),
                    )  # fmt: skip
                self._settle(error, answers, outcome.effects)
            case WriteOffsets():
                error = self._append(outcome.records, outcome.producer, outcome.guard, COMMIT_ERRORS)
                self._settle(error, _own(caller, outcome.reply))
            case WriteAndRepeat():
                error = self._append(outcome.records)
                if error is not None:
                    self._settle(error, _own(caller, error))
                elif event is not None:
                    self._inbox.append((event, caller))
            case Wait():
                if event is not None and caller is not None:
                    callers.waiting[token] = (event, caller)
                answers = callers.take(outcome.answers)
                self._settle(self._append(outcome.records), answers)

    def _settle(
        self, error: KafkaError | None, answers: list[Answer], effects: Sequence[EffectT] = ()
    ) -> None:
        """Parks the answers and effects; or sends the error of an append that failed, without effects."""
        if error is not None:
            self.callers.deliver(answers, error)
        elif answers or effects:
            deadline_ms = self._around.clock.now_ms + self._around.config.parked_timeout_ms
            self.callers.parked.append(Parked(self._position, deadline_ms, answers, effects))

    def _append(
        self,
        records: Sequence[CoordinatorRecord],
        producer: ProducerIdentity | None = None,
        guard: object | None = None,
        errors: Mapping[ErrorCode, ErrorCode] = APPEND_ERRORS,
    ) -> KafkaError | None:
        """Appends the records as one batch and replays them; returns the error for the client when that
        failed."""
        if not records:
            return None
        try:
            self._append_and_replay(records, producer, guard)
        except KafkaError as error:
            self._metrics.append_failures += 1
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self.fail(f"append failed: {error}")
            return KafkaError(errors.get(error.code, error.code), str(error))
        if self.phase is Phase.ACTIVE:
            return None
        return KafkaError(ErrorCode.NOT_COORDINATOR, f"{self._name}: the state is not known any more")

    def _append_and_replay(
        self, records: Sequence[CoordinatorRecord], producer: ProducerIdentity | None, guard: object | None
    ) -> None:
        now_ms = self._around.clock.now_ms
        batch = encode_batch(
            [NewRecord(key=r.key, value=r.value, timestamp_ms=now_ms) for r in records],
            leader_epoch=self.leader_epoch,
            producer_id=producer.producer_id if producer else -1,
            producer_epoch=producer.producer_epoch if producer else -1,
            transactional=producer is not None,
        )
        next_offset = self._around.log.append(self.partition, self.leader_epoch, batch, guard)
        self._metrics.batches_written += 1
        self._metrics.records_written += len(records)
        self._metrics.bytes_written += len(batch)
        base_offset = next_offset - len(records)
        if not self._is_next("appended", base_offset):
            return
        try:
            for offset, record in enumerate(records, base_offset):
                self.shard.replay(
                    ReplayedRecord(offset, now_ms, record.key, record.value, producer, record.decoded)
                )
        except Exception as error:  # the record is in the log and the state is half changed: fail-stop
            log.exception("coordinator_replay_failed", **self._where(), offset=base_offset)
            self.fail(f"replay failed at {base_offset}: {error}")
            return
        self._position = next_offset

    def _is_next(self, what: str, offset: int) -> bool:
        """Fail-stop at a gap."""
        if offset == self._position:
            return True
        self.fail(f"{what} at {offset}, expected {self._position}: something else writes to this partition")
        return False

    # --- markers --------------------------------------------------------------------------------------------

    def marker_appended(
        self, producer: ProducerIdentity, commit: bool, offset: int, done: Answer | None
    ) -> None:
        """See `CoordinatorRuntime.replay_marker`."""
        if self.phase is not Phase.LOADING:
            self._replay_marker(producer, commit, offset, done)
            self.run()
            return
        self._buffered_markers.append((producer, commit, offset, done))
        if offset < self._log_end_offset:
            self.fail(
                f"marker at {offset} lies below the log end {self._log_end_offset} found at the election"
            )
        elif len(self._buffered_markers) > self._around.config.buffered_markers_max:
            self.fail("too many markers arrived while loading")

    def _replay_marker(
        self, producer: ProducerIdentity, commit: bool, offset: int, done: Answer | None
    ) -> None:
        if done is not None:
            deadline_ms = self._around.clock.now_ms + self._around.config.parked_timeout_ms
            self.callers.parked.append(Parked(offset + 1, deadline_ms, [done], ()))
        if self._is_next("marker", offset):
            self.shard.replay_marker(producer, commit, offset)
            self._position = offset + 1

    # --- time and the high watermark ------------------------------------------------------------------------

    def on_high_watermark(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.run()

    def _release(self, parked: Parked[EffectT]) -> None:
        self.callers.deliver(parked.answers, None)
        for effect in parked.effects:
            if self.phase is Phase.UNLOADED:
                return
            try:
                self._around.execute(self.partition, self.leader_epoch, effect)
            except Exception as error:  # a lost effect would leave a transaction hanging: fail-stop
                log.exception("coordinator_effect_failed", **self._where())
                self.fail(f"effect {type(effect).__name__} failed: {error}")
                return

    def resume(self, away_ms: int) -> None:
        if self.phase is Phase.ACTIVE:
            self.shard.resumed(self._around.clock.now_ms, away_ms)

    def tick(self, *, timers: bool) -> None:
        now_ms = self._around.clock.now_ms
        self.callers.expire(now_ms, self.partition)
        # callers that wait hinder no timer: some of the timers end their wait
        if timers and self.phase is Phase.ACTIVE and not self._is_congested:
            self._inbox += [(event, None) for event in self.shard.due(now_ms)]
        self.run()

    # --- views ----------------------------------------------------------------------------------------------

    def view(self) -> ShardView:
        is_loading = self.phase is Phase.LOADING
        return ShardView(
            self._around.topic,
            self.partition,
            self.phase,
            len(self._inbox),
            len(self.callers.parked),
            len(self.callers.waiting),
            0 if is_loading else max(0, self._position - self.high_watermark),
            self._metrics,
        )

    def _where(self) -> dict[str, str | int]:
        return {
            "topic": self._around.topic,
            "partition": self.partition,
            "leader_epoch": self.leader_epoch,
        }


def _own(caller: Caller[ReplyT] | None, reply: ReplyT | KafkaError) -> list[Answer]:
    return [] if caller is None else [answer_to(caller, reply)]
