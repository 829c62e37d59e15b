"""The coordinator runtime: replicated state machines ("shards") on the partitions of one internal topic
(docs/semantics.md, chapter T).

One `CoordinatorRuntime` exists per internal topic on a node; it holds a `RunningShard` for every partition
that this node leads, and hands it what the node reports: elections, chunks of the log, events, markers, the
high watermark, the time.  It has no event loop, no sockets and no files, and reads the time from the function
that it is given: the node calls it, it calls back.

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

Events that arrive from within a callback are queued and run after the current step: a shard is never
re-entered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic

from ..runtime import logs
from ..wire.errors import ErrorCode, KafkaError
from .callers import Answer, Caller
from .outcome import EffectT, EventT, ProducerIdentity, ReplyT, Shard, StateLog
from .running_shard import RunningShard, RuntimeConfig, Surroundings, TurnClock
from .shard_view import Phase, ShardMetrics, ShardView

log = logs.get(__name__)


class CoordinatorRuntime(Generic[EventT, ReplyT, EffectT]):
    """Shards of one internal topic.  All methods are called from one thread (the node's loop), and change
    nothing when they name an older leader epoch than the shard's.

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
        self._metrics: dict[int, ShardMetrics] = {}
        self._factory = shard_factory
        self._clock = TurnClock(steady_ms)
        self._around = Surroundings(
            name, state_log, execute, config or RuntimeConfig(), on_failed, on_invalid, self._clock
        )
        self._shards: dict[int, RunningShard[EventT, ReplyT, EffectT]] = {}

    # --- leadership -----------------------------------------------------------------------------------------

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
        self._shards[partition] = RunningShard(
            self._around,
            partition,
            leader_epoch,
            self._factory(partition, leader_epoch),
            self._metrics.setdefault(partition, ShardMetrics()),
            log_end_offset,
            log_start_offset,
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
        shard = self._shard(partition, leader_epoch)
        return -1 if shard is None or shard.phase is not Phase.LOADING else shard.load_batches(data)

    def finish_load(self, partition: int, leader_epoch: int) -> None:
        """The node has passed in the whole log up to the barrier.  Raises CoordinatorLoadError when a part is
        missing."""
        shard = self._shard(partition, leader_epoch)
        if shard is not None and shard.phase is Phase.LOADING:
            shard.finish_load()

    def fail(self, partition: int, leader_epoch: int, reason: str) -> None:
        """The node cannot read the log to the end: the shard must not stay in LOADING."""
        shard = self._shard(partition, leader_epoch)
        if shard is not None and shard.phase is not Phase.FAILED:
            shard.fail(reason)

    def unload(self, partition: int, leader_epoch: int) -> None:
        """This node no longer leads (as of `leader_epoch`): every caller gets NOT_COORDINATOR, and effects
        are dropped."""
        shard = self._shards.get(partition)
        if shard is not None and leader_epoch >= shard.leader_epoch:
            self._drop(shard)

    def _drop(self, shard: RunningShard[EventT, ReplyT, EffectT]) -> None:
        del self._shards[shard.partition]
        shard.unload()
        log.debug(
            "coordinator_unloaded",
            topic=self.name,
            partition=shard.partition,
            leader_epoch=shard.leader_epoch,
        )

    # --- events ---------------------------------------------------------------------------------------------

    def submit(self, partition: int, event: EventT, caller: Caller[ReplyT] | None) -> None:
        """Hands an event to the shard.  `caller` is called exactly once, perhaps before this returns; with a
        KafkaError when the event was rejected.

        An event without a caller is the coordinator's own (markers written, topics deleted).  No client would
        repeat it, so back-pressure does not reject it, and a shard that is loading handles it once it is
        active.
        """
        shard = self._shards.get(partition)
        if shard is not None:
            shard.submit(event, caller)
        elif caller is not None:
            caller(self._not_here(partition))

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
        shard = self._shard(partition, leader_epoch)
        if shard is not None and shard.phase is not Phase.FAILED:
            shard.marker_appended(producer, commit, offset, done)
        elif done is not None:
            done(self._not_here(partition))

    def _not_here(self, partition: int) -> KafkaError:
        return KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.name}-{partition} is not coordinated here")

    def reject_waiting_callers(self) -> None:
        """Other nodes may coordinate by now: every waiting caller (for a commit, or for another request) gets
        NOT_COORDINATOR and looks for its coordinator again.  The shards stay: their records may still be
        committed, and then have their effects."""
        for shard in list(self._shards.values()):
            shard.reject_waiting_callers()

    # --- time and the high watermark ------------------------------------------------------------------------

    def on_high_watermark(self, partition: int, leader_epoch: int, offset: int) -> None:
        """The leader's high watermark moved."""
        shard = self._shard(partition, leader_epoch)
        if shard is not None:
            shard.on_high_watermark(offset)

    def resume(self, away_ms: int) -> None:
        """The node answers again after `away_ms` without answers.  Its shards are still valid: no other node
        led their partitions in that time."""
        self._clock.read()
        self._run_timers(lambda shard: shard.resume(away_ms))

    def tick(self, *, timers: bool = True) -> None:
        """Callers past their deadline get COORDINATOR_NOT_AVAILABLE (their records may
        still be committed); with `timers`, due timers become events."""
        self._clock.read()
        self._run_timers(lambda shard: shard.tick(timers=timers))

    def _run_timers(self, of_shard: Callable[[RunningShard[EventT, ReplyT, EffectT]], None]) -> None:
        for shard in list(self._shards.values()):
            try:
                of_shard(shard)
            except Exception as error:  # the timers of the other shards go on
                log.exception("coordinator_timers_failed", topic=self.name, partition=shard.partition)
                shard.fail(f"its timers failed: {error}")

    # --- views ----------------------------------------------------------------------------------------------

    def _shard(self, partition: int, leader_epoch: int) -> RunningShard[EventT, ReplyT, EffectT] | None:
        shard = self._shards.get(partition)
        return shard if shard is not None and shard.leader_epoch == leader_epoch else None

    def phase(self, partition: int) -> Phase | None:
        """The phase of a partition's shard; None when this node does not lead it."""
        shard = self._shards.get(partition)
        return None if shard is None else shard.phase

    def leader_epoch(self, partition: int) -> int | None:
        """The leader epoch (= coordinator epoch) under which the partition's shard was loaded."""
        shard = self._shards.get(partition)
        return None if shard is None else shard.leader_epoch

    def metrics_of(self, partition: int) -> ShardMetrics:
        """The counters of a partition, over all of its leaderships on this node."""
        return self._metrics.get(partition, ShardMetrics())

    def views(self) -> Iterator[ShardView]:
        """A view of every shard, for /metrics."""
        return (shard.view() for shard in self._shards.values())

    def shards(self) -> Iterator[tuple[int, Phase, Shard[EventT, ReplyT, EffectT]]]:
        """All shards, for metrics: (partition, phase, shard)."""
        return ((shard.partition, shard.phase, shard.shard) for shard in self._shards.values())
