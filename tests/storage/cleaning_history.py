"""Random lives of a compacted log, and the plain model that every cleaning must agree with.

The model remembers every record ever written and how its transaction ended.  It knows nothing of segments,
maps or horizons; what it asks is what a reader may ask: the newest committed value of every key, records that
never change, tombstones and markers that are there for as long as was promised, and a log that says the same
after a restart that replays it from its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from tidegate.chaos.sim.disk import LyingDisk
from tidegate.storage.cleaning.cleaner import CleaningResult, clean_now
from tidegate.storage.log.log import Log, LogConfig
from tidegate.storage.log.lookup import offset_for_timestamp
from tidegate.storage.topic_config import CleanupPolicy
from tidegate.wire.compression import Compression
from tidegate.wire.records import (
    ControlType,
    NewRecord,
    Record,
    decode_batch,
    decode_marker,
    encode_batch,
    encode_marker,
)

from .workload import NOW_MS, append, append_marker, open_log, stored

DELETE_RETENTION_MS = 1000
COMPACTED = LogConfig(
    segment_bytes=700,
    index_interval_bytes=150,
    cleanup_policy=frozenset({CleanupPolicy.COMPACT}),
    delete_retention_ms=DELETE_RETENTION_MS,
    timestamp_after_max_ms=1 << 40,
    producer_id_expiration_ms=5000,
)
Step = tuple[str, int, int]
OPERATIONS = (
    *["plain"] * 3, "idempotent", *["transactional"] * 5, *["commit"] * 3, *["abort"] * 2, "roll",
    *["settle"] * 2,
    *["clean"] * 3, "wait", "reopen", "expire",
)  # fmt: skip


class Written(NamedTuple):
    """One record as it was written; `pid` of its transaction, or -1."""

    record: Record
    pid: int


@dataclass
class CleaningHistory:
    """One log.  Subclass and override to switch a safeguard off."""

    disk: LyingDisk = field(default_factory=LyingDisk)
    config: LogConfig = COMPACTED
    keys: int = 6
    """With few, little stays; with many, transactions stay spread over segments."""

    def __post_init__(self) -> None:
        self.log = self.opened(0)
        self.now_ms = NOW_MS
        self.written: dict[int, Written] = {}
        self.markers: dict[int, tuple[int, bool]] = {}  # offset -> (pid, aborted)
        self.open: dict[int, int] = {}  # pid -> first offset
        self.ended: list[tuple[int, int, int, bool]] = []  # pid, first, marker, aborted
        self.epochs: dict[int, int] = {}
        self.revived: set[int] = set()  # forgotten, and known again by a replay: snapshots do not have them
        self.cleanings: list[tuple[int, int]] = []  # (log end, time) of each
        self.horizon_ms: int | None = None
        self.results: list[CleaningResult] = []

    def opened(self, recovery_point: int) -> Log:
        return open_log(self.disk, config=self.config, recovery_point=recovery_point)

    # -- steps

    def step(self, operation: str, a: int, b: int) -> None:
        self.now_ms += 1
        getattr(self, operation)(a, b)

    def records(self, a: int, b: int) -> list[NewRecord]:
        random = Random(a * 1_000_003 + b)
        found = []
        for _ in range(random.choice((1, 1, 2, 4))):
            value = (
                None
                if random.random() < 0.25
                else bytes(random.randrange(256) for _ in range(random.randrange(30)))
            )
            headers = (("h", b"x"),) if random.random() < 0.2 else ()
            stamp = self.now_ms - random.choice((0, 0, 0, 500, 100_000))
            found.append(NewRecord(b"key%d" % random.randrange(self.keys), value, headers, stamp))
        return found

    def write(self, a: int, b: int, pid: int, *, transactional: bool = False) -> None:
        epoch, sequence = self.next_of(pid) if pid >= 0 else (-1, -1)
        records = self.records(a, b)
        data = encode_batch(
            records,
            compression=(Compression.NONE, Compression.GZIP, Compression.ZSTD)[b % 3],
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        info = append(self.log, data, now_ms=self.now_ms)
        assert not info.duplicate
        if transactional:
            self.open.setdefault(pid, info.first_offset)
        for offset, new in enumerate(records, info.first_offset):
            record = Record(offset, new.timestamp_ms, new.key, new.value, tuple(new.headers))
            self.written[offset] = Written(record, pid if transactional else -1)

    def next_of(self, pid: int) -> tuple[int, int]:
        """(epoch, sequence) of the producer's next batch; one that the log has forgotten takes a new epoch,
        as clients do."""
        view = next((each for each in self.log.producers.views() if each.producer_id == pid), None)
        if view is None:
            self.epochs[pid] = self.epochs.get(pid, -1) + 1
        epoch = self.epochs[pid]
        self.revived.discard(pid)
        return epoch, view.last_sequence + 1 if view is not None and view.epoch == epoch else 0

    def plain(self, a: int, b: int) -> None:
        self.write(a, b, -1)

    def idempotent(self, a: int, b: int) -> None:
        self.write(a, b, 100 + a % 2)

    def transactional(self, a: int, b: int) -> None:
        self.write(a, b, 1 + a % 4, transactional=True)

    def commit(self, a: int, b: int) -> None:
        self.end(a, ControlType.COMMIT)

    def abort(self, a: int, b: int) -> None:
        self.end(a, ControlType.ABORT)

    def end(self, a: int, kind: ControlType) -> None:
        """Producers with an odd id bump their epoch with every transaction (TV2), the others never (TV1)."""
        if not self.open:
            return
        pid = sorted(self.open)[a % len(self.open)]
        version = 2 if pid % 2 else 0
        if version == 2:
            self.epochs[pid] += 1
        data = encode_marker(kind, pid, self.epochs[pid], 0, self.now_ms)
        offset = append_marker(self.log, data, version=version).first_offset
        first = self.open.pop(pid)
        self.markers[offset] = (pid, kind is ControlType.ABORT)
        self.ended.append((pid, first, offset, kind is ControlType.ABORT))

    def roll(self, _a: int, _b: int) -> None:
        self.log.roll()

    def settle(self, a: int, _b: int) -> None:
        self.log.flush_now()
        ends = [batch.header.next_offset for batch in stored(self.log)]
        if ends:
            self.log.set_high_watermark(ends[-min(len(ends), (1, 1, 1, 3)[a % 4])])

    def wait(self, a: int, _b: int) -> None:
        self.now_ms += (100, DELETE_RETENTION_MS, 3 * DELETE_RETENTION_MS)[a % 3]

    def expire(self, a: int, _b: int) -> None:
        self.log.producers.expire(self.now_ms)

    def clean(self, a: int, b: int) -> None:
        untouched = min(self.log.last_stable_offset, self.log.segments.active.base_offset)
        self.cleanings.append((self.log.log_end_offset, self.now_ms))
        size = (48, 120, 1 << 20)[a % 3]
        result = clean_now(self.log, self.disk, self.now_ms, key_map_bytes=size, horizon_ms=self.horizon_ms)
        if result is not None:
            self.horizon_ms = result.next_horizon_ms
            self.results.append(result)
        there = {record.offset for batch in stored(self.log) for record in decode_batch(batch.data)}
        assert {offset for offset in self.written if offset >= untouched} <= there, (
            "something that was not decided is gone"
        )
        self.check()

    def reopen(self, a: int, b: int) -> None:
        """A kill, and an opening that replays everything, or trusts what was durable; nothing is lost by a
        kill."""
        self.log.flush_now()
        known = {view.producer_id: (view.epoch, view.last_sequence) for view in self.log.producers.views()}
        end, watermark, cleaned_to = self.log.log_end_offset, self.log.high_watermark, self.log.cleaned_to
        point = self.log.recovery_point if a % 2 else 0
        self.disk.kill()
        self.log = self.opened(point)
        assert self.log.log_end_offset == end
        self.log.set_high_watermark(watermark)
        self.log.cleaned_to = cleaned_to if b % 2 else 0
        replayed = {view.producer_id: (view.epoch, view.last_sequence) for view in self.log.producers.views()}
        for pid in known.keys() - self.revived:
            assert replayed.get(pid) == known[pid], "a live producer is not what it was"
        self.revived |= replayed.keys() - known.keys()
        self.check()

    # -- what always holds

    def is_aborted(self, offset: int, pid: int) -> bool:
        return any(
            p == pid and first <= offset < marker and aborted for p, first, marker, aborted in self.ended
        )

    def final_map(self, upper: int) -> dict[bytes, bytes]:
        values: dict[bytes, bytes] = {}
        for offset, (record, pid) in self.written.items():
            if offset < upper and not (pid >= 0 and self.is_aborted(offset, pid)):
                _take(values, record)
        return values

    def stable_offset(self) -> int:
        watermark = self.log.high_watermark
        undecided = [first for _pid, first, marker, _aborted in self.ended if marker >= watermark]
        return min([watermark, *self.open.values(), *undecided])

    def read_committed(self, upper: int) -> list[Record]:
        """As a consumer does it (docs/semantics.md F3), in one fetch from the log's start."""
        waiting = self.log.aborted_transactions(self.log.log_start_offset, upper)
        active: set[int] = set()
        found: list[Record] = []
        for header, data in stored(self.log, upper=upper, max_bytes=400):
            while waiting and waiting[0].first_offset <= header.last_offset:
                active.add(waiting.pop(0).producer_id)
            if header.is_control:
                marker = decode_marker(data)
                if marker is not None and marker.control_type is ControlType.ABORT:
                    active.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in active):
                found += decode_batch(data)
        return found

    def check(self) -> None:
        log = self.log
        upper = log.last_stable_offset
        assert upper == self.stable_offset(), "the last stable offset has moved"
        opened = {
            v.producer_id: v.current_txn_first_offset
            for v in log.producers.views()
            if v.current_txn_first_offset is not None
        }
        assert opened == self.open, "a transaction is open that is not, or the reverse"
        values: dict[bytes, bytes] = {}
        for record in self.read_committed(upper):
            _take(values, record)
        assert values == self.final_map(upper), "a reader from the beginning sees another state"
        batches = stored(log)
        there: set[int] = set()
        for header, data in batches:
            for record in decode_batch(data):
                if header.is_control:
                    assert record.offset in self.markers
                else:
                    assert record == self.written[record.offset].record, "a record has changed"
                assert record.offset not in there, "the order has changed"
                assert record.offset >= max(there, default=-1), "the order has changed"
                there.add(record.offset)
        self.check_promised(there)
        end = log.log_end_offset
        for start in range(0, end, max(1, end // 5)):
            assert [b.data for b in stored(log, start)] == [
                b.data for b in batches if b.header.next_offset > start
            ]
        self.check_times(batches)

    def check_promised(self, there: set[int]) -> None:
        """Newest tombstones and markers stay for the retention time after the first cleaning that could meet
        them."""
        newest: dict[bytes, int] = {}
        for offset, (record, pid) in self.written.items():
            if not (pid >= 0 and self.is_aborted(offset, pid)) and record.key is not None:
                newest[record.key] = offset
        for offset in (*newest.values(), *self.markers):
            first = next((time_ms for end, time_ms in self.cleanings if end > offset), None)
            if first is None or self.now_ms < first + DELETE_RETENTION_MS:
                assert offset in there, f"what stands at {offset} went before its time"

    def check_times(self, batches: Sequence[object]) -> None:
        records = [r for b in stored(self.log) if not b.header.is_control for r in decode_batch(b.data)]
        for timestamp in {r.timestamp_ms for r in records[::7]}:
            found = offset_for_timestamp(self.log, timestamp, self.log.log_end_offset)
            expected = next(r for r in records if r.timestamp_ms >= timestamp)
            assert found is not None
            assert (found.timestamp_ms, found.offset) == (
                expected.timestamp_ms,
                expected.offset,
            )


def _take(values: dict[bytes, bytes], record: Record) -> None:
    assert record.key is not None
    if record.value is None:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value


def run(steps: list[Step], history: CleaningHistory | None = None) -> CleaningHistory:
    history = history or CleaningHistory()
    for operation, a, b in steps:
        history.step(operation, a, b)
    for operation in ("settle", "clean", "wait", "wait", "clean", "reopen", "wait", "clean", "reopen"):
        history.step(operation, 2, 0)
    return history


def random_steps(seed: int, length: int = 150) -> list[Step]:
    random = Random(seed)
    return [
        (random.choice(OPERATIONS), random.randrange(1000), random.randrange(1000)) for _ in range(length)
    ]


def run_seed(seed: int, history: type[CleaningHistory] = CleaningHistory) -> CleaningHistory:
    return run(random_steps(seed), history(keys=40 if seed % 2 else 6))
