"""The coordinator runtime: replicated state machines ("shards") on the partitions of one internal topic
(docs/semantics.md, chapter T).

One `CoordinatorRuntime` exists per internal topic on a node; it holds a shard for every partition that this
node leads. It has no event loop, no sockets and no files, and reads the time from the function that it is
given: the node calls it, it calls back.

What it promises
- *One mutator.*  `Shard.handle` decides and returns records; `Shard.replay` is the only mutator of durable
  state, also when a log is loaded.  A record is replayed only after its append succeeded, so a failed append
  changes nothing in memory (rule T21, KAFKA-9666: the epoch of a failed fence is not bumped twice, because
  nothing was published).
- *Writes see uncommitted state; replies and effects see committed state only.*  The reply and the effects of
  a write are parked until the high watermark has passed its records; those of a read until it has passed
  everything written before.
- *The barrier.*  A new leader answers, sends markers and times out only when its high watermark has passed
  the log end found at its election (rule T20).  Until then requests get COORDINATOR_LOAD_IN_PROGRESS.
- *No slip between check and append* (rule T21): `handle`, append and `replay` are one synchronous step, and
  the append carries the leader epoch that the shard was loaded for.
- *One writer.*  The offsets of all appends (the runtime's own, and the markers that the node reports) must be
  contiguous. At a gap something else has written to the partition: the shard fails, and the runtime answers
  NOT_COORDINATOR until the partition is loaded again.

Order of a write:  handle -> encode one batch -> append -> replay -> park reply and effects -> high watermark
-> reply -> effects.

Order of a load:   begin_load -> load_batches* -> finish_load -> (barrier) -> Shard.activated -> serving.

Events that arrive from within a callback are queued and run after the current step: a shard is never
re-entered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
from .outcome import (
    APPEND_ERRORS,
    NO_TOKEN,
    Context,
    CoordinatorRecord,
    EffectT,
    EventT,
    ProducerIdentity,
    ReplayedRecord,
    ReplyT,
    Shard,
    ShardOutcome,
    StateLog,
)
from .shard_view import Phase, ShardMetrics, ShardView

__all__ = [
    "Context",
    "CoordinatorLoadError",
    "CoordinatorRecord",
    "CoordinatorRuntime",
    "Phase",
    "ProducerIdentity",
    "ReplayedRecord",
    "Reply",
    "RuntimeConfig",
    "Shard",
    "ShardMetrics",
    "ShardOutcome",
    "ShardView",
    "StateLog",
]  # fmt: skip

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


Reply = Callable[[ReplyT | KafkaError], None]
Answer = Callable[[KafkaError | None], None]
"""A reply whose value is known: called with None it sends that value, called with an error it sends the error
instead."""


@dataclass(slots=True)
class _Parked(Generic[EffectT]):
    """Answers and effects that wait for the high watermark to reach `offset`."""

    offset: int
    deadline_ms: int
    answers: list[Answer]
    effects: Sequence[EffectT]


def _answer(reply: Reply[ReplyT], value: ReplyT | KafkaError) -> Answer:
    return lambda error: reply(value if error is None else error)


@dataclass(slots=True)
class _ShardState(Generic[EventT, ReplyT, EffectT]):
    partition: int
    leader_epoch: int
    shard: Shard[EventT, ReplyT, EffectT]
    log_end_offset: int
    position: int
    metrics: ShardMetrics
    high_watermark: int = 0
    phase: Phase = Phase.LOADING
    running: bool = False
    inbox: deque[tuple[EventT, Reply[ReplyT] | None]] = field(default_factory=deque)
    parked: deque[_Parked[EffectT]] = field(default_factory=deque)
    waiting: dict[int, Reply[ReplyT]] = field(default_factory=dict)
    buffered_markers: list[tuple[ProducerIdentity, bool, int, Answer | None]] = field(default_factory=list)


class CoordinatorRuntime(Generic[EventT, ReplyT, EffectT]):
    """Shards of one internal topic.  All methods are called from one thread (the node's loop).

    shard_factory(partition, leader_epoch) builds an empty shard.  execute(partition, leader_epoch, effect)
    carries out an effect after its records are committed.  on_failed(partition, leader_epoch, reason) tells
    the node that a shard stopped serving: it should load it anew, or give the leadership up.
    on_invalid(error), with `RuntimeConfig.validate`: the invariant of a shard that does not hold.
    """

    def __init__(
        self,
        name: str,
        shard_factory: Callable[[int, int], Shard[EventT, ReplyT, EffectT]],
        state_log: StateLog,
        execute: Callable[[int, int, EffectT], None],
        *,
        config: RuntimeConfig | None = None,
        on_failed: Callable[[int, int, str], None] | None = None,
        on_invalid: Callable[[AssertionError], None] | None = None,
        steady_ms: Callable[[], int],
    ) -> None:
        self.name = name
        self.callback_failures = 0  # reply callbacks that raised
        self._metrics: dict[int, ShardMetrics] = {}
        self._factory = shard_factory
        self._log = state_log
        self._execute = execute
        self._config = config or RuntimeConfig()
        self._on_failed = on_failed
        self._on_invalid = on_invalid
        self._shards: dict[int, _ShardState[EventT, ReplyT, EffectT]] = {}
        self._steady_ms = steady_ms
        self._now_ms = steady_ms()
        self._last_token = NO_TOKEN

    # --- loading and unloading ------------------------------------------------------------------------------

    def begin_load(
        self, partition: int, leader_epoch: int, log_end_offset: int, log_start_offset: int = 0
    ) -> None:
        """This node was elected: `log_end_offset` is its log end at that moment, the barrier."""
        current = self._shards.get(partition)
        if current is not None:
            again = leader_epoch == current.leader_epoch and current.phase is not Phase.FAILED
            if leader_epoch < current.leader_epoch or again:
                return
            self._drop(current)
        shard = self._factory(partition, leader_epoch)
        metrics = self._metrics.setdefault(partition, ShardMetrics())
        self._shards[partition] = _ShardState(
            partition, leader_epoch, shard, log_end_offset, log_start_offset, metrics
        )
        log.debug(
            "coordinator_load_began",
            topic=self.name,
            partition=partition,
            leader_epoch=leader_epoch,
            end=log_end_offset,
        )

    def load_batches(self, partition: int, leader_epoch: int, data: bytes | memoryview) -> int:
        """Replays a chunk of whole batches and returns the offset to read next.  A stale epoch is ignored
        (returns -1).

        Raises CoordinatorLoadError, after which the shard is FAILED.
        """
        state = self._state(partition, leader_epoch)
        if state is None or state.phase is not Phase.LOADING:
            return -1
        try:
            for position, header in iterate_headers(data):
                if header.next_offset > state.log_end_offset:
                    break
                if header.last_offset < state.position:
                    continue
                self._load_batch(state, data, position, header)
                state.position = header.next_offset
        except Exception as error:  # a log that cannot be understood must never be served as if it were empty
            self._fail(state, f"load failed at offset {state.position}: {error}")
            raise CoordinatorLoadError(f"{self.name}-{partition}: {error}") from error
        return state.position

    def _load_batch(
        self,
        state: _ShardState[EventT, ReplyT, EffectT],
        data: bytes | memoryview,
        position: int,
        header: BatchHeader,
    ) -> None:
        if header.record_count == 0:  # emptied by compaction, kept for its producer's epoch (rule C5)
            return
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        if header.is_control:
            marker = decode_marker(data, position)
            if marker is not None:  # unknown types of control records are skipped (rule L4)
                state.shard.replay_marker(
                    producer, marker.control_type is ControlType.COMMIT, header.base_offset
                )
            return
        writer = producer if header.is_transactional else None
        for record in decode_batch(data, position):
            self._replay(state, record.offset, record.timestamp_ms, record.key, record.value, writer)
            state.metrics.records_loaded += 1

    def finish_load(self, partition: int, leader_epoch: int) -> None:
        """The node has passed in the whole log up to the barrier.  Raises CoordinatorLoadError when a part is
        missing."""
        state = self._state(partition, leader_epoch)
        if state is None or state.phase is not Phase.LOADING:
            return
        if state.position != state.log_end_offset:
            reason = (
                f"loaded up to {state.position}, but the log ended at {state.log_end_offset} when this "
                "node was elected"
            )
            self._fail(state, reason)
            raise CoordinatorLoadError(f"{self.name}-{partition}: {reason}")
        state.phase = Phase.BARRIER
        state.metrics.loads += 1
        buffered, state.buffered_markers = state.buffered_markers, []
        for producer, commit, offset, answer in buffered:
            self._apply_marker(state, producer, commit, offset, answer)
        state.high_watermark = max(state.high_watermark, self._log.high_watermark(partition))
        self._run(state)

    def unload(self, partition: int, leader_epoch: int) -> None:
        """This node no longer leads (as of `leader_epoch`): every caller gets NOT_COORDINATOR, and effects
        are dropped."""
        state = self._shards.get(partition)
        if state is not None and leader_epoch >= state.leader_epoch:
            self._drop(state)

    def _drop(self, state: _ShardState[EventT, ReplyT, EffectT]) -> None:
        del self._shards[state.partition]
        self._reject_all(state)
        log.debug(
            "coordinator_unloaded",
            topic=self.name,
            partition=state.partition,
            leader_epoch=state.leader_epoch,
        )

    def _reject_all(self, state: _ShardState[EventT, ReplyT, EffectT]) -> None:
        error = KafkaError(
            ErrorCode.NOT_COORDINATOR, f"{self.name}-{state.partition} is no longer coordinated here"
        )
        answers = self._take_callers(state, error)
        answers += [_answer(reply, error) for _, reply in state.inbox if reply is not None]
        answers += [answer for *_, answer in state.buffered_markers if answer is not None]
        state.parked.clear()
        state.inbox.clear()
        state.buffered_markers.clear()
        self._reject(state, answers, error)

    def reject_waiting_callers(self) -> None:
        """Other nodes may coordinate by now: every waiting caller (for a commit, or for another request) gets
        NOT_COORDINATOR and looks for its coordinator again.  The shards stay: their records may still be
        committed, and then have their effects."""
        for state in list(self._shards.values()):
            message = f"{self.name}-{state.partition} may be coordinated elsewhere by now"
            error = KafkaError(ErrorCode.NOT_COORDINATOR, message)
            self._reject(state, self._take_callers(state, error), error)

    @staticmethod
    def _take_callers(state: _ShardState[EventT, ReplyT, EffectT], error: KafkaError) -> list[Answer]:
        answers = [answer for parked in state.parked for answer in parked.answers]
        answers += [_answer(reply, error) for reply in state.waiting.values()]
        for parked in state.parked:
            parked.answers = []
        state.waiting.clear()
        return answers

    def _reject(
        self, state: _ShardState[EventT, ReplyT, EffectT], answers: list[Answer], error: KafkaError
    ) -> None:
        state.metrics.replies_not_coordinator += len(answers)
        for answer in answers:
            self._deliver(answer, error)

    def fail(self, partition: int, leader_epoch: int, reason: str) -> None:
        """The node cannot read the log to the end: the shard must not stay in LOADING."""
        state = self._state(partition, leader_epoch)
        if state is not None and state.phase is not Phase.FAILED:
            self._fail(state, reason)

    def _fail(self, state: _ShardState[EventT, ReplyT, EffectT], reason: str) -> None:
        """Fail-stop: the state of this shard may differ from its log."""
        state.phase = Phase.FAILED
        state.metrics.failures += 1
        where = {"topic": self.name, "partition": state.partition, "leader_epoch": state.leader_epoch}
        log.error("coordinator_failed", **where, reason=reason)
        self._reject_all(state)
        if self._on_failed is not None:
            self._on_failed(state.partition, state.leader_epoch, reason)

    # --- events ---------------------------------------------------------------------------------------------

    def submit(self, partition: int, event: EventT, reply: Reply[ReplyT] | None) -> None:
        """Hands an event to the shard.  `reply` is called exactly once, perhaps before this returns; with a
        KafkaError when the event was rejected.

        An event without a reply is the coordinator's own (markers written, topics deleted).  No client would
        repeat it, so back-pressure does not reject it, and a shard that is loading handles it once it is
        active.
        """
        state = self._shards.get(partition)
        rejection = self._rejection(partition, state, own=reply is None)
        if rejection is not None or state is None:
            if reply is not None and rejection is not None:
                self._deliver(_answer(reply, rejection), rejection)
            return
        state.inbox.append((event, reply))
        self._run(state)

    def _rejection(
        self, partition: int, state: _ShardState[EventT, ReplyT, EffectT] | None, *, own: bool
    ) -> KafkaError | None:
        if state is None or state.phase is Phase.FAILED:
            return KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.name}-{partition} is not coordinated here")
        if state.phase is not Phase.ACTIVE and not own:
            state.metrics.rejected_loading += 1
            return KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.name}-{partition} is being loaded"
            )
        if not own and self._is_full(state):
            state.metrics.rejected_busy += 1
            return KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"{self.name}-{partition} waits for its replicas: retry",
            )
        return None

    def _is_full(self, state: _ShardState[EventT, ReplyT, EffectT]) -> bool:
        return (
            len(state.parked) + len(state.inbox) >= self._config.parked_max
            or len(state.waiting) >= self._config.waiting_max
        )

    def _run(self, state: _ShardState[EventT, ReplyT, EffectT]) -> None:
        """Runs the shard until nothing is left to do: first parked answers and effects that are committed,
        then queued events."""
        if state.running:
            return
        state.running = True
        self._read_clock()
        try:
            while self._shards.get(state.partition) is state and state.phase is not Phase.FAILED:
                if state.phase is Phase.BARRIER and state.high_watermark >= state.log_end_offset:
                    self._activate(state)
                elif state.parked and state.parked[0].offset <= state.high_watermark:
                    self._release(state, state.parked.popleft())
                elif state.phase is Phase.ACTIVE and state.inbox:
                    event, reply = state.inbox.popleft()
                    self._handle(state, event, reply)
                else:
                    break
        finally:
            state.running = False

    def _activate(self, state: _ShardState[EventT, ReplyT, EffectT]) -> None:
        outcome = state.shard.activated(self._context(state, NO_TOKEN))
        state.phase = Phase.ACTIVE
        log.debug(
            "coordinator_active", topic=self.name, partition=state.partition, leader_epoch=state.leader_epoch
        )
        self._carry_out(state, outcome, None, NO_TOKEN)
        for records in outcome.further:
            self._carry_out(state, ShardOutcome(records=records), None, NO_TOKEN)
        self._validate(state, None)

    def _context(self, state: _ShardState[EventT, ReplyT, EffectT], token: int) -> Context:
        return Context(self._now_ms, state.position, state.leader_epoch, token)

    def _handle(
        self, state: _ShardState[EventT, ReplyT, EffectT], event: EventT, reply: Reply[ReplyT] | None
    ) -> None:
        state.metrics.events += 1
        self._last_token += 1
        token = self._last_token
        try:
            outcome = state.shard.handle(event, self._context(state, token))
        except KafkaError as error:
            outcome = ShardOutcome(reply=error)
        # `handle` wrote nothing, so only this request is lost; the log has the traceback
        except Exception as error:
            state.metrics.handler_failures += 1
            log.exception(
                "coordinator_handler_failed",
                topic=self.name,
                partition=state.partition,
                request=type(event).__name__,
            )
            outcome = ShardOutcome(
                reply=KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(event).__name__}: {error}")
            )
        self._carry_out(state, outcome, reply, token)
        self._validate(state, event)

    def _validate(self, state: _ShardState[EventT, ReplyT, EffectT], event: EventT | None) -> None:
        """Fail-stop: a shard whose state breaks an invariant decides nothing more."""
        if not self._config.validate or state.phase is Phase.FAILED:
            return
        try:
            state.shard.validate(event)
        except AssertionError as error:
            where = {"topic": self.name, "partition": state.partition, "leader_epoch": state.leader_epoch}
            log.exception("coordinator_state_is_invalid", **where, request=type(event).__name__)
            self._fail(state, f"an invariant does not hold: {error}")
            if self._on_invalid is not None:
                self._on_invalid(error)

    def _carry_out(
        self,
        state: _ShardState[EventT, ReplyT, EffectT],
        outcome: ShardOutcome[ReplyT, EffectT],
        reply: Reply[ReplyT] | None,
        token: int,
    ) -> None:
        """Appends, replays and parks.  Nothing else turns records into state."""
        answers = self._answers(state, outcome, reply, token)
        rejection: KafkaError | None = None
        if outcome.records:
            try:
                self._write(state, outcome)
            except KafkaError as error:
                state.metrics.append_failures += 1
                rejection = KafkaError(APPEND_ERRORS.get(error.code, error.code), str(error))
                if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    self._fail(state, f"append failed: {error}")
            if state.phase is Phase.FAILED and rejection is None:
                message = f"{self.name}-{state.partition}: the state is not known any more"
                rejection = KafkaError(ErrorCode.NOT_COORDINATOR, message)
        if rejection is not None:
            for answer in answers:
                self._deliver(answer, rejection)
            return
        for event, waiting_token in outcome.again:
            waiting = state.waiting.pop(waiting_token, None)
            if waiting is not None:
                state.inbox.append((event, waiting))
        if answers or outcome.effects:
            deadline_ms = self._now_ms + self._config.parked_timeout_ms
            state.parked.append(_Parked(state.position, deadline_ms, answers, outcome.effects))

    def _answers(
        self,
        state: _ShardState[EventT, ReplyT, EffectT],
        outcome: ShardOutcome[ReplyT, EffectT],
        reply: Reply[ReplyT] | None,
        token: int,
    ) -> list[Answer]:
        answers: list[Answer] = []
        if reply is not None and outcome.defer:
            state.waiting[token] = reply
        elif reply is not None:
            if outcome.reply is None:
                raise AssertionError("a shard must answer every event that has a caller")
            answers.append(_answer(reply, outcome.reply))
        for waiting_token, value in outcome.deferred:
            target = state.waiting.pop(waiting_token, None)
            if target is not None:
                answers.append(_answer(target, value))
        return answers

    def _write(
        self, state: _ShardState[EventT, ReplyT, EffectT], outcome: ShardOutcome[ReplyT, EffectT]
    ) -> None:
        producer = outcome.producer
        batch = encode_batch(
            [NewRecord(key=r.key, value=r.value, timestamp_ms=self._now_ms) for r in outcome.records],
            leader_epoch=state.leader_epoch,
            producer_id=producer.producer_id if producer else -1,
            producer_epoch=producer.producer_epoch if producer else -1,
            transactional=producer is not None,
        )
        next_offset = self._log.append(state.partition, state.leader_epoch, batch, outcome.guard)
        state.metrics.batches_written += 1
        state.metrics.records_written += len(outcome.records)
        state.metrics.bytes_written += len(batch)
        base_offset = next_offset - len(outcome.records)
        if base_offset != state.position:
            self._fail(
                state,
                f"appended at {base_offset}, expected {state.position}: something else writes to "
                "this partition",
            )
            return
        try:
            for index, record in enumerate(outcome.records):
                offset = base_offset + index
                state.shard.replay(
                    ReplayedRecord(offset, self._now_ms, record.key, record.value, producer, record.decoded)
                )
        except Exception as error:  # the record is in the log and the state is half changed: fail-stop
            log.exception(
                "coordinator_replay_failed", topic=self.name, partition=state.partition, offset=base_offset
            )
            self._fail(state, f"replay failed at {base_offset}: {error}")
            return
        state.position = next_offset

    def _replay(
        self,
        state: _ShardState[EventT, ReplyT, EffectT],
        offset: int,
        timestamp_ms: int,
        key: bytes | memoryview | None,
        value: bytes | memoryview | None,
        producer: ProducerIdentity | None,
    ) -> None:
        if key is None:
            raise ValueError(f"record {offset} of {self.name}-{state.partition} has no key")
        state.shard.replay(
            ReplayedRecord(
                offset, timestamp_ms, bytes(key), None if value is None else bytes(value), producer
            )
        )

    # --- markers that the node appended to this partition ---------------------------------------------------

    def replay_marker(
        self,
        partition: int,
        leader_epoch: int,
        producer: ProducerIdentity,
        commit: bool,
        offset: int,
        done: Answer | None = None,
    ) -> None:
        """The node appended a marker at `offset`; call this in the same step, before anything else is
        appended.

        The runtime calls `done` with None when the marker is committed (then the offsets that it decided are
        visible), with NOT_COORDINATOR when another node becomes leader before that.
        """
        state = self._state(partition, leader_epoch)
        if state is None or state.phase is Phase.FAILED:
            if done is not None:
                self._deliver(
                    done,
                    KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.name}-{partition} is not coordinated here"),
                )
            return
        if state.phase is Phase.LOADING:
            state.buffered_markers.append((producer, commit, offset, done))
            if offset < state.log_end_offset:
                self._fail(
                    state,
                    f"marker at {offset} lies below the log end {state.log_end_offset} found at the election",
                )
            elif len(state.buffered_markers) > self._config.buffered_markers_max:
                self._fail(state, "too many markers arrived while loading")
            return
        self._apply_marker(state, producer, commit, offset, done)
        self._run(state)

    def _apply_marker(
        self,
        state: _ShardState[EventT, ReplyT, EffectT],
        producer: ProducerIdentity,
        commit: bool,
        offset: int,
        done: Answer | None,
    ) -> None:
        deadline_ms = self._now_ms + self._config.parked_timeout_ms
        if done is not None:
            state.parked.append(_Parked(offset + 1, deadline_ms, [done], ()))
        if offset != state.position:
            self._fail(
                state,
                f"marker at {offset}, expected {state.position}: something else writes to this partition",
            )
            return
        state.shard.replay_marker(producer, commit, offset)
        state.position = offset + 1

    # --- time and the high watermark ------------------------------------------------------------------------

    def on_high_watermark(self, partition: int, leader_epoch: int, offset: int) -> None:
        """The leader's high watermark moved.  Epochs other than the shard's are ignored."""
        state = self._state(partition, leader_epoch)
        if state is not None and offset > state.high_watermark:
            state.high_watermark = offset
            self._run(state)

    def _release(self, state: _ShardState[EventT, ReplyT, EffectT], parked: _Parked[EffectT]) -> None:
        for answer in parked.answers:
            self._deliver(answer, None)
        for effect in parked.effects:
            if self._shards.get(state.partition) is not state:
                return
            try:
                self._execute(state.partition, state.leader_epoch, effect)
            except Exception as error:  # a lost effect would leave a transaction hanging: fail-stop
                log.exception("coordinator_effect_failed", topic=self.name, partition=state.partition)
                self._fail(state, f"effect {type(effect).__name__} failed: {error}")
                return

    def _deliver(self, answer: Answer, error: KafkaError | None) -> None:
        try:
            answer(error)
        except Exception:  # the other callers still get their answers; this client times out and retries
            self.callback_failures += 1
            log.exception("coordinator_reply_failed", topic=self.name)

    def resume(self, away_ms: int) -> None:
        """The node answers again after `away_ms` without answers.  Its shards are still valid: no other node
        led their partitions in that time."""
        self._read_clock()
        for state in list(self._shards.values()):
            if state.phase is not Phase.ACTIVE:
                continue
            try:
                state.shard.resumed(self._now_ms, away_ms)
            except Exception as error:  # as in `tick`
                log.exception("coordinator_resume_failed", topic=self.name, partition=state.partition)
                self._fail(state, f"its timers failed: {error}")

    def tick(self, *, timers: bool = True) -> None:
        """Callers past their deadline get COORDINATOR_NOT_AVAILABLE (their records may
        still be committed); with `timers`, due timers become events."""
        self._read_clock()
        for state in list(self._shards.values()):
            try:
                self._tick(state, timers)
            except Exception as error:  # the timers of the other shards go on
                log.exception("coordinator_tick_failed", topic=self.name, partition=state.partition)
                self._fail(state, f"its timers failed: {error}")

    def _tick(self, state: _ShardState[EventT, ReplyT, EffectT], timers: bool) -> None:
        self._expire_parked(state)
        if timers and state.phase is Phase.ACTIVE and not self._is_full(state):
            state.inbox += [(event, None) for event in state.shard.due(self._now_ms)]
        self._run(state)

    def _expire_parked(self, state: _ShardState[EventT, ReplyT, EffectT]) -> None:
        for parked in list(state.parked):
            if parked.deadline_ms > self._now_ms:
                break
            answers, parked.answers = parked.answers, []
            state.metrics.replies_timed_out += len(answers)
            for answer in answers:
                message = f"{self.name}-{state.partition}: not replicated in time; it may still be committed"
                self._deliver(answer, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message))
        while state.parked and not state.parked[0].answers and not state.parked[0].effects:
            state.parked.popleft()

    def _read_clock(self) -> None:
        """One time for all that a turn does.  A backward step would delay every timer."""
        self._now_ms = max(self._now_ms, self._steady_ms())

    # --- views ----------------------------------------------------------------------------------------------

    def _state(self, partition: int, leader_epoch: int) -> _ShardState[EventT, ReplyT, EffectT] | None:
        state = self._shards.get(partition)
        return state if state is not None and state.leader_epoch == leader_epoch else None

    def phase(self, partition: int) -> Phase | None:
        """The phase of a partition's shard; None when this node does not lead it."""
        state = self._shards.get(partition)
        return None if state is None else state.phase

    def leader_epoch(self, partition: int) -> int | None:
        """The leader epoch (= coordinator epoch) under which the partition's shard was loaded."""
        state = self._shards.get(partition)
        return None if state is None else state.leader_epoch

    def metrics_of(self, partition: int) -> ShardMetrics:
        """The counters of a partition, over all of its leaderships on this node."""
        return self._metrics.get(partition, ShardMetrics())

    def views(self) -> Iterator[ShardView]:
        """A view of every shard, for /metrics."""
        for partition, state in self._shards.items():
            yield ShardView(
                self.name,
                partition,
                state.phase,
                len(state.inbox),
                len(state.parked),
                len(state.waiting),
                0 if state.phase is Phase.LOADING else max(0, state.position - state.high_watermark),
                state.metrics,
            )

    def shards(self) -> Iterator[tuple[int, Phase, Shard[EventT, ReplyT, EffectT]]]:
        """All shards, for metrics: (partition, phase, shard)."""
        for partition, state in self._shards.items():
            yield partition, state.phase, state.shard
