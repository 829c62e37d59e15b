"""Random histories of one log in a data folder on a disk that lies, held against a plain model.

    history = StorageHistory(seed)
    history.run()                  raises Broken (an AssertionError) with the seed and all steps when a promise does not hold

A history is a list of steps `(operation, a, b)`; the numbers choose sizes, offsets and fates.  What must hold after any crash:

* what was flushed is there, byte for byte; nothing torn, invented or truncated is readable;
* producers, open and aborted transactions and the last stable offset are those of a replay of all batches from zero;
* leader epochs, indexes and time look-ups agree with the batches;
* offsets keep their order, and the log start does not fall below what a checkpoint has noted.

Everything follows from the steps: the same steps give the same history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from uuid import UUID

from ...storage.cleaning.cleaner import clean_now
from ...storage.cleaning.retention import apply_retention
from ...storage.log import AppendOrigin, FlushTicket, Log, LogConfig
from ...storage.log_directory import LogDirectory
from ...storage.topic_config import CleanupPolicy
from ...wire.errors import KafkaError
from ...wire.records import ControlType, NewRecord, assign_in_place, encode_batch, encode_marker, iterate_headers
from .cleaning_checks import adopt_cleaned, check_aborted_are_gone
from .disk import Lie, LyingDisk, PowerCut
from .runs import Broken
from .storage_checks import check_log, check_survivors, read_all
from .storage_model import LogModel

ROOT = Path("/data")
TOPIC, PARTITION = "flights", 0
TOPIC_ID = UUID(int=7)
NOW_MS = 1_700_000_000_000
Step = tuple[str, int, int]

WEIGHTS = {
    "append": 5, "idempotent": 4, "transaction": 6, "commit": 3, "abort": 4, "follow": 3, "repeat": 1, "epoch": 2, "roll": 2,
    "flush": 5, "flush_begin": 3, "flush_run": 3, "flush_finish": 3, "watermark": 4, "delete": 2, "retain": 1, "clean": 3,
    "truncate": 2, "checkpoint": 3, "full": 2, "sync_fails": 1, "close": 1, "kill": 1, "crash": 3, "cut": 5, "cut_open": 1,
    "check": 1,
}  # fmt: skip
"""How often each operation is drawn."""
CLEANING_WEIGHTS = WEIGHTS | {"clean": 14, "roll": 10, "flush": 12, "watermark": 10, "truncate": 1, "full": 1, "retain": 0}
_NAMES, _CHANCES = list(WEIGHTS), list(WEIGHTS.values())
_CLEANING_CHANCES = list(CLEANING_WEIGHTS.values())
_CUTTABLE = (
    "append", "transaction", "abort", "follow", "roll", "flush", "flush", "flush_run", "delete", "truncate", "checkpoint",
    "checkpoint", "clean", "clean", "close",
)  # fmt: skip
"""What may be interrupted by a power cut, or meet a full disk."""


def random_steps(seed: int, length: int, *, cleaning: bool = False) -> list[Step]:
    random = Random(seed)
    names = random.choices(_NAMES, _CLEANING_CHANCES if cleaning else _CHANCES, k=length)
    return [(name, random.randrange(1 << 20), random.randrange(1 << 20)) for name in names]


class StorageHistory:
    """One log, its disk and its model.  Subclass and override steps to switch a safeguard off."""

    ALWAYS_COMPACTED = False
    CUT = _CUTTABLE
    """What power cuts interrupt."""

    def __init__(self, seed: int = 0, *, lies: Lie = Lie.NONE, steps: Sequence[Step] | None = None, length: int = 14) -> None:
        self.seed = seed
        random = Random(~seed)
        compacted = self.ALWAYS_COMPACTED or random.random() < 0.35
        self.steps = random_steps(seed, length, cleaning=compacted) if steps is None else list(steps)
        self.config = LogConfig(
            segment_bytes=random.choice((500, 1000, 2500)),
            index_interval_bytes=random.choice((1, 200, 600)),
            cleanup_policy=frozenset({CleanupPolicy.COMPACT if compacted else CleanupPolicy.DELETE}),
        )
        self.disk = LyingDisk()
        self.disk.failed_sync_keeps_cache = random.random() < 0.5
        self.model = LogModel()
        self.leader_epoch = 0
        self.crashes = 0
        self.trace = False
        self.counter = 0
        self.flushed = 0  # what has been promised to be durable
        self.start_noted = 0  # the log start below which no restart may fall
        self.start_most = 0
        self.ticket: FlushTicket | None = None
        self.ticket_was_run = False
        self.ghosts: list[tuple[int, bytes]] = []  # refused appends: until a sync, their bytes may return in a crash
        self.limit = self.settled = 0  # a cleaning could go so far, by markers that far
        self.restarting: int | None = None  # a cut that begins the log anew may have been interrupted
        self.last_append: tuple[bytes, int, int] | None = None
        self._open(clean=False)
        self.disk.lies = lies

    def run(self) -> None:
        """All steps, then a power cut; checks after each restart.  Raises Broken."""
        done: list[Step] = []
        try:
            for step in self.steps:
                done.append(step)
                if self.trace:
                    print(step)
                self._step(*step)
                if self.trace:
                    print("   ", self.log.describe(), self.flushed, [(p.name, self.disk.size(p)) for p in self.disk.files()])
            done.append(("crash", self.seed, 0))
            self.crash(self.seed, 0)
        except PowerCut as error:
            raise Broken(f"seed {self.seed}: the power cut escaped at {done[-1]}") from error
        except Exception as error:
            raise Broken(f"seed {self.seed}: {type(error).__name__}: {error}\nsteps = {done}") from error

    def _step(self, name: str, a: int, b: int) -> None:
        operation: Callable[[int, int], None] = getattr(self, name)
        operation(a, b)
        if name not in ("crash", "kill", "cut", "cut_open", "close"):
            self._learn()

    def _learn(self) -> None:
        """What the log promises from now on."""
        if not self.log.is_offline:
            self.flushed = max(self.flushed, self._end_of_batches(self.log.flushed_end_offset))

    def _end_of_batches(self, offset: int) -> int:
        """Where the last batch ends that ends at or below `offset`: behind it, a compacted log may have a hole."""
        ends = (b.header.next_offset for b in reversed(self.model.batches) if self.model.is_stored(b))
        return next((end for end in ends if end <= offset), 0)

    # ---------------------------------------------------------------------------------------------------------- appending

    def _value(self, a: int, size: int) -> bytes | None:
        """Never the same twice; now and then a tombstone."""
        self.counter += 1
        return None if a % 11 == 0 else b"%d." % self.counter + b"v" * size

    def _batch(self, a: int, b: int, *, pid: int = -1, epoch: int = -1, sequence: int = -1, transactional: bool = False) -> bytes:
        size = (a >> 4) % 120
        records = [
            NewRecord(b"key%d" % ((b >> 8) % 5 + i), self._value(a + i, size), (), NOW_MS + (b >> 4) % 1000 + 7 * i)
            for i in range(1 + a % 3)
        ]
        return encode_batch(
            records, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
        )

    def _lead(self, data: bytes, *, origin: AppendOrigin = AppendOrigin.CLIENT, transaction_version: int = 0) -> None:
        """An append as the leader; the model learns what must be stored, also when the power goes in between."""
        stored, offset, guard = bytearray(data), self.log.log_end_offset, None
        for position, header in list(iterate_headers(data)):
            assign_in_place(stored, position, offset, self.leader_epoch)
            offset += header.last_offset_delta + 1
            if header.is_transactional and not header.is_control:
                if not self.log.transaction_open(header.producer_id, header.producer_epoch):
                    guard = self.log.start_verification(header.producer_id, header.producer_epoch, header.base_sequence)
        with self._attempt(stored):
            info = self.log.append_leader(
                data, leader_epoch=self.leader_epoch, origin=origin, now_ms=NOW_MS, guard=guard,
                transaction_version=transaction_version,
            )  # fmt: skip
        assert not info.duplicate and info.next_offset == self.log.log_end_offset == self.model.end

    @contextmanager
    def _attempt(self, stored: bytes | bytearray) -> Iterator[None]:
        """What is appended becomes part of the model, unless it is refused."""
        try:
            yield
        except PowerCut:
            self.model.append(stored)  # it may or may not be there; the survivors tell
            raise
        except KafkaError:
            self.ghosts.append((self.model.end, bytes(stored)))
            raise
        self.model.append(stored)

    def append(self, a: int, b: int) -> None:
        self._lead(self._batch(a, b))

    def _next(self, pid: int) -> tuple[int, int]:
        """Epoch and next sequence, as the producer itself would know them."""
        known = self.model.replay().producers.get(pid)
        if known is None:
            return 0, 0
        return max(0, known.epoch), known.batches[-1][0] + 1 if known.batches else 0

    def idempotent(self, a: int, b: int) -> None:
        pid = 100 + b % 2
        epoch, sequence = self._next(pid)
        offset = self.log.log_end_offset
        data = self._batch(a, b, pid=pid, epoch=epoch, sequence=sequence)
        self._lead(data)
        self.last_append = data, offset, self.log.log_end_offset

    def repeat(self, _a: int, _b: int) -> None:
        """The producer sends its last batch again: if it is still there, nothing is appended."""
        if self.last_append is None:
            return
        data, first, end = self.last_append
        there = [b.data[21:] for b in self.model.batches if b.header.base_offset == first]
        if there != [data[21:]]:  # all behind offset, length, leader epoch, magic and checksum
            return
        before = self.log.log_end_offset
        info = self.log.append_leader(data, leader_epoch=self.leader_epoch, origin=AppendOrigin.CLIENT, now_ms=NOW_MS)
        still = self.model.batches[-1].header.base_offset - first < 5
        assert info.duplicate or not still
        assert (info.first_offset, info.next_offset, self.log.log_end_offset) == (first, end, before)

    def transaction(self, a: int, b: int) -> None:
        pid = 200 + b % 3
        epoch, sequence = self._next(pid)
        self._lead(self._batch(a, b, pid=pid, epoch=epoch, sequence=sequence, transactional=True))

    def commit(self, a: int, b: int) -> None:
        self._end(a, b, ControlType.COMMIT)

    def abort(self, a: int, b: int) -> None:
        self._end(a, b, ControlType.ABORT)

    def _end(self, _a: int, b: int, control: ControlType) -> None:
        pid = 200 + b % 3
        epoch, _ = self._next(pid)
        data = encode_marker(control, pid, epoch + 1, 0, NOW_MS + (b >> 4) % 1500)
        self._lead(data, origin=AppendOrigin.COORDINATOR, transaction_version=2)

    def follow(self, a: int, b: int) -> None:
        """A fetch from another leader: several batches, and a part of one more."""
        self.leader_epoch += b % 2
        offset, parts = self.log.log_end_offset, []
        if self.config.is_compacted:
            offset += b % 3  # the leader has cleaned
        for turn in range(1 + b % 3):
            data = bytearray(self._batch(a + turn, b))
            assign_in_place(data, 0, offset, self.leader_epoch)
            offset += 1 + (a + turn) % 3
            parts.append(bytes(data))
        whole = b"".join(parts)
        with self._attempt(whole):
            info = self.log.append_follower(whole + parts[0][: b % len(parts[0])])
        assert info.next_offset == self.log.log_end_offset == offset

    def epoch(self, _a: int, _b: int) -> None:
        """An election: this node leads in a new epoch."""
        self.leader_epoch += 1
        self.log.assign_epoch(self.leader_epoch, self.log.log_end_offset)

    def roll(self, _a: int, _b: int) -> None:
        self.log.roll()

    # ----------------------------------------------------------------------------------------------------------- flushing

    def flush(self, _a: int, _b: int) -> None:
        self.ticket = None
        self.log.flush_now()

    def flush_begin(self, _a: int, _b: int) -> None:
        if self.ticket is None:
            self.ticket, self.ticket_was_run = self.log.begin_flush(), False

    def flush_run(self, _a: int, _b: int) -> None:
        if self.ticket is not None:
            self.ticket.run()
            self.ticket_was_run = True

    def flush_finish(self, _a: int, _b: int) -> None:
        if self.ticket is not None and self.ticket_was_run:
            self.log.finish_flush(self.ticket)  # changes nothing when a cut has overtaken it
            self.ticket = None

    def checkpoint(self, _a: int, _b: int) -> None:
        self.directory.write_checkpoints()
        self.start_noted = self.log.log_start_offset

    # ------------------------------------------------------------------------------------------------------------ cutting

    def watermark(self, a: int, _b: int) -> None:
        # With the flush policy `os` it may be above what is flushed; but what a cleaner takes for settled, a crash may not undo.
        most = self.log.flushed_end_offset if self.config.is_compacted else self.log.log_end_offset
        self.log.set_high_watermark(a % (most + 1))
        self.model.watermark_most = max(self.model.watermark_most, self.log.high_watermark)

    def delete(self, a: int, _b: int) -> None:
        """DeleteRecords, which a topic that is only compacted refuses."""
        if self.config.is_compacted:
            return
        low, high = self.log.log_start_offset, self.log.high_watermark
        target = low + a % (high - low + 1)
        self.start_most = max(self.start_most, target)
        self.model.start_most = max(self.model.start_most, target)
        self.log.advance_log_start(target)
        self.model.start = max(self.model.start, target)

    def retain(self, a: int, _b: int) -> None:
        """Retention by time: only what is old enough goes."""
        if self.config.is_compacted:
            return
        now_ms = NOW_MS + self.config.retention_ms + a % 1200
        self.start_most = max(self.start_most, self.log.last_stable_offset)
        for start in apply_retention(self.log, now_ms):
            gone = [b.header for b in self.model.visible() if b.header.next_offset <= start]
            assert all(header.max_timestamp < now_ms - self.config.retention_ms for header in gone)
            self.model.start = start
            self.model.start_most = max(self.model.start_most, start)

    def clean(self, a: int, _b: int) -> None:
        """The cleaner takes all that it may; at times long after, when tombstones and markers may go."""
        if not self.config.is_compacted:
            return
        self.limit = max(self.limit, self.log.last_stable_offset)
        self.settled = max(self.settled, self.log.high_watermark)
        done = clean_now(self.log, self.disk, NOW_MS + self.config.delete_retention_ms * (a % 3), key_map_bytes=1 << 12)
        self._adopt_cleaned()
        if done is not None:
            check_aborted_are_gone(self.model, done.cleaned_to)

    def _adopt_cleaned(self) -> None:
        found = read_all(self.log, self.log.log_start_offset, self.log.log_end_offset, 100_000)
        adopt_cleaned(self.log, self.model, found, min(self.limit, self.model.end))

    def truncate(self, a: int, b: int) -> None:
        """As a follower whose leader has another history; at times below everything that is here."""
        low = self.log.log_start_offset
        end = self.log.log_end_offset
        lowest = min(end, max(0, low - 2, self.settled))  # a cleaner takes for settled what is below the high watermark
        target = lowest + a % (end - lowest + 1)
        before = len(self.model.batches)
        if b % 8 == 0:
            target += b % 5
            self._before_cut(0, target)
            self.restarting = target
            self.log.truncate_fully_and_start_at(target)
            self.model.restart(target)
        else:
            restarts = target < low
            self._before_cut(0 if restarts else target, target)
            self.restarting = target if restarts else None
            self.log.truncate_to(target)
            self.model.truncate(target)
        self.restarting = None
        self.limit, self.settled = min(self.limit, self.model.end), min(self.settled, self.model.end)
        self.flushed = min(self.flushed, self.model.end)
        if not self.model.batches and before:
            self.start_noted = self.start_most = self.model.start
        assert self.log.log_end_offset == self.model.end and self.log.log_start_offset == self.model.start
        if self.log.flushed_end_offset > self.model.end:
            raise AssertionError("more is flushed than there is")

    def _before_cut(self, target: int, restart: int) -> None:
        """From here on, a crash may or may not show the cut."""
        self.flushed = min(self.flushed, self._end_of_batches(target))
        self.start_noted = min(self.start_noted, self._end_of_batches(target))
        self.start_most = max(self.start_most, restart)

    # ------------------------------------------------------------------------------------------------------------- faults

    def full(self, a: int, b: int) -> None:
        """No room: an operation is refused, and what was there still is."""
        name = _CUTTABLE[a % (len(_CUTTABLE) - 1)]
        if name == "delete":
            return  # it goes on even when a producer snapshot finds no room, or nobody could ever make room
        self.disk.capacity = self.disk.used_bytes() + b % 300
        before = self.log.log_end_offset
        try:
            self._step(name, b, a)
        except (KafkaError, OSError):
            assert self.log.log_end_offset <= before
            if name != "truncate":
                assert not self.log.is_offline, f"{name} on a full disk took the log offline"
        finally:
            self.disk.capacity = None
        if self.log.is_offline:
            self.kill(a, b)

    def sync_fails(self, a: int, b: int) -> None:
        """A sync fails somewhere in a flush: nothing more may be promised, now or later."""
        if self.ticket is not None:
            self.ticket.run()
            self.log.finish_flush(self.ticket)
        ticket, self.ticket = self.log.begin_flush(), None
        promised = self.log.flushed_end_offset
        self.disk.fail_sync_after = b % 3
        try:
            ticket.run()
        except OSError as error:
            self._sync_failed(error, ticket)
            assert self.log.is_offline and self.log.flushed_end_offset == promised
            (self.crash if a % 3 else self.kill)(a, b)
        else:
            self.disk.fail_sync_after = None
            self.log.finish_flush(ticket)

    def _sync_failed(self, error: OSError, _ticket: FlushTicket) -> None:
        """What the group commit does."""
        self.log.go_offline(error)

    def check(self, a: int, b: int) -> None:
        check_log(self.log, self.model, self.config, Random(a ^ b))

    # --------------------------------------------------------------------------------------------------- ends and restarts

    def close(self, a: int, b: int) -> None:
        self.ticket = None
        self.directory.close(clean=True, broker_epoch=5)
        self.flushed = self._end_of_batches(self.model.end)
        self.start_noted = self.log.log_start_offset
        self.disk.kill()
        self._open(clean=True)
        assert not self.log.recovered, "a clean close, and yet a scan"
        assert self.log.log_end_offset == self.model.end and self.log.log_start_offset == self.model.start
        self.check(a, b)

    def kill(self, a: int, b: int) -> None:
        """Only the process is gone: unless a sync has failed, nothing written is lost."""
        lossless = not self.log.is_offline
        self.disk.kill()
        self._open(clean=False)
        if lossless:
            kept = self._end_of_batches(self.model.end), self.model.end
            assert self.log.log_end_offset in kept, "a killed process has lost what it wrote"
        self._settle(a, b)

    def crash(self, a: int, b: int) -> None:
        self.crashes += 1
        self.disk.crash(Random(a))
        self._open(clean=False)
        self._settle(a, b)

    def cut(self, a: int, b: int) -> None:
        """The power goes in the middle of an operation."""
        name = self.CUT[a % len(self.CUT)]
        self.disk.cut_after = b % (45 if name == "clean" else 11)
        try:
            self._step(name, b, a)
        except PowerCut:
            pass
        self.crash(a, b)

    def cut_open(self, a: int, b: int) -> None:
        """The power goes again while the log is recovered."""
        self.crashes += 1
        self.disk.crash(Random(a))
        self.disk.cut_after = b % 7
        try:
            self._open(clean=False)
        except PowerCut:
            pass
        self.crash(a + 1, b)

    def _settle(self, a: int, b: int) -> None:
        """After a restart: what is there must be what may be there; from now on it is what must be there."""
        log, target = self.log, self.restarting
        if target is not None and not log.size_bytes and log.log_start_offset == log.log_end_offset == target:
            self.model.restart(target)  # that came through
            target = None
        self.restarting = None
        self._raise_ghosts()
        check_survivors(log, self.model, self.flushed, self.start_noted, self.start_most)
        if target is not None:  # half done: what is left of the log serves nobody, and the follower does it again
            log.truncate_fully_and_start_at(target)
            self.model.restart(target)
        self.flushed = self._end_of_batches(self.log.flushed_end_offset)
        self.start_most = self.model.start
        self.start_noted = min(self.start_noted, self.model.start)
        if self.limit:
            self._adopt_cleaned()
        self.check(a, b)

    def _raise_ghosts(self) -> None:
        """A full disk took a part of a refused append, and a crash has undone that it was cut off again: its outcome was never
        promised, and whole batches of it count."""
        for offset, data in self.ghosts:
            if not self.log.log_start_offset <= offset < self.log.log_end_offset:
                continue
            there = b"".join(batch.data for batch in read_all(self.log, offset, self.log.log_end_offset, 100_000))
            ends = [at + header.size_bytes for at, header in iterate_headers(data)]
            whole = max((end for end in ends if there[:end] == data[:end]), default=0)
            if whole and self.flushed <= offset:
                self.model.keep(sum(b.header.next_offset <= offset for b in self.model.batches), offset)
                self.model.append(data[:whole])
        self.ghosts.clear()

    def _open(self, *, clean: bool) -> None:
        self.ticket = None
        self.directory = LogDirectory(self.disk, ROOT, "cluster", 1)
        report = self.directory.open_all(lambda _topic: self.config, now_ms=NOW_MS)
        assert not report.failed, f"the log cannot be opened: {next(iter(report.failed.values()))}"
        assert report.clean or not clean
        self.log: Log = self.directory.logs.get((TOPIC, PARTITION)) or self._create()
        self.leader_epoch = max(self.leader_epoch, self.log.latest_epoch)

    def _create(self) -> Log:
        assert self.flushed == 0, "a log with flushed data is gone"
        return self.directory.create(TOPIC, TOPIC_ID, PARTITION, self.config, now_ms=NOW_MS)
