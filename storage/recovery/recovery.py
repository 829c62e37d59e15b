"""Opens a log's folder: which files recovery trusts, scans and truncates, and when it refuses the log.

First of all, recovery finishes a decided replacement of segments and undoes an undecided one
(`segment.swap`).

Three signs show that flushed batches are lost (`segment.checksums`): a segment that is shorter than its
checksums say, a segment whose end offset is not the base of the next one, and checksums without batches.
Each raises `CorruptLog`, also after a clean close.

When a derived file of a trusted segment does not match the segment checksums, the derived files of this
segment are rebuilt.

After a clean close, every file is trusted.  Recovery walks the last segment from its last index entry to find
the log's end; when that is not the end that the close noted, or the last segment does not match its
checksums, the log is treated as unclean.

After an unclean stop:

1. Segments that end below the recovery point are trusted: they and their derived files were durable before
   the point moved past. In the segment that holds it (or ends at it), batches below the newest snapshot are
   trusted (`flush`), when the files match.
2. From there on, every batch is checked (length, checksum, offsets).  The first invalid batch ends the log:
   the file is truncated there and later segments are removed -- **if** that place is at or above the recovery
   point, the newest note of a flush (`flush_notes`) and the bytes in the segment checksums.  Below them the
   data was flushed, perhaps acknowledged, and is not silently truncated: `CorruptLog` names file, position
   and offset.
3. Indexes, transaction index, epoch history and producer state of the scanned part are rebuilt from the
   batches.
4. The scanned part is synced: a process that was killed leaves its writes in the page cache, readable but not
   yet durable.  Above the recovery point it is rewritten first: after a failed sync, the cache may hold pages
   that look clean and are not on the disk, and no later sync would write them.

**A log opens on a full disk.**  Rewriting in place and truncating need no room.  Derived files that find no
room wait, with all that come after them, for a flush to write them, and hold back the recovery point until
then (`flush`).

Unlinks are made durable too (folder sync) before the log is used: a snapshot or segment that came back after
a second crash would describe batches that no longer exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ...runtime import logs
from ...runtime.disk import Disk
from ...wire.errors import ErrorCode, KafkaError
from ...wire.records import decode_marker
from ..checkpoint import CheckpointInvalid, parse_checkpoint
from ..epoch_cache import EPOCH_CHECKPOINT, EPOCH_CHECKPOINT_SHAPES, EpochCache, parse_epoch
from ..producers.producer_snapshot import (
    SnapshotInvalid,
    SnapshotOfOtherVersion,
    check_snapshot,
    decode_snapshot,
    encode_snapshot,
)
from ..producers.producer_state import AppendOrigin, PreparedAppend, ProducerState
from ..segment.batch_scan import InvalidBatch, ScannedBatch, scan_batches
from ..segment.checksums import (
    STILL_OPEN,
    ChecksumsInvalid,
    SegmentChecksums,
    decode_checksums,
)
from ..segment.offset_index import OFFSET_SPAN_MAX
from ..segment.open_files import OpenFiles
from ..segment.pending_indexes import PendingIndexFiles
from ..segment.segment import Segment
from ..segment.segment_files import segment_path
from ..segment.swap import SEGMENT_SUFFIXES, SwapDamaged, finish_swaps
from ..segment.transaction_index import TransactionIndexEntry
from ..topic_config import LogConfig

_NO_LIMIT = 2**63 - 1
log = logs.get(__name__)


class CorruptLog(KafkaError):
    """Flushed data is damaged or missing.  The replica must not be used; its data must come from another
    replica."""

    def __init__(self, path: Path, position: int, offset: int, reason: str) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{path} is damaged at byte {position} (offset {offset}) in data that had been flushed: "
            f"{reason}. "
            "Nothing was cut. While another replica leads, this one is set aside and fetched again. "
            "Without another: mend the "
            'file, and see "A damaged log without a good replica" in docs/operations.md.',
        )
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason


@dataclass(slots=True)
class LoadedLog:
    """The state of the log as `load_log` found and repaired it."""

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    log_start_offset: int
    files: OpenFiles
    pending_files: PendingIndexFiles
    recovered: bool = False
    scanned_bytes: int = 0
    truncated_bytes: int = 0

    @property
    def log_end_offset(self) -> int:
        return self.segments[-1].next_offset


@dataclass(slots=True)
class _Loader:
    disk: Disk
    directory: Path
    config: LogConfig
    recovery_point: int
    flushed_end: int
    """Batches below this offset were flushed; at least the recovery point."""
    log_start_offset: int
    files: OpenFiles
    pending_files: PendingIndexFiles
    snapshots: list[int] = field(default_factory=list)
    unread_snapshots: list[int] = field(default_factory=list)
    """Of another version: the release that wrote them may come back, so they stay while the log has their
    offsets."""
    unverified: list[int] = field(default_factory=list)
    """Indexes of the segments whose derived files do not match their checksums."""
    checksums: dict[int, SegmentChecksums] = field(default_factory=dict)
    """Segment checksums by base offset; the batches that they cover were flushed."""
    offset_gaps_below: int = 0
    """All batches below this offset were flushed: there, a compacted log may have offset gaps between
    segments."""
    epoch_before: int = -1
    """Leader epoch of the last scanned batch."""

    # ---- folder --------------------------------------------------------------------------------------------

    def remove_leftovers(self) -> list[int]:
        """Removes leftovers of interrupted writes; returns the base offsets of the segments, in order."""
        names = self.disk.list_names(self.directory)
        bases = sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())
        self.snapshots = sorted(
            int(name[:-9]) for name in names if name.endswith(".snapshot") and name[:-9].isdigit()
        )
        known = set(bases)
        for name in names:
            stem, _, suffix = name.partition(".")
            if suffix == "seal" and stem.isdigit() and int(stem) not in known:
                self._check_orphan(self.directory / name, int(stem))
            if name.endswith(".tmp") or (
                suffix in SEGMENT_SUFFIXES and stem.isdigit() and int(stem) not in known
            ):
                self.disk.remove(self.directory / name)
        return bases

    def _check_orphan(self, path: Path, base: int) -> None:
        """Segment checksums without batches: the batches were removed from outside.  Raises CorruptLog."""
        try:
            checksums = decode_checksums(self.disk.read(path), base)
        except ChecksumsInvalid:
            return
        if checksums.log_bytes and (
            checksums.end_offset > self.log_start_offset or checksums.end_offset == STILL_OPEN
        ):
            reason = f"it is gone; its seal says that it had {checksums.log_bytes} bytes"
            raise CorruptLog(path.with_suffix(".log"), 0, base, reason)

    def verify_checksums(self, segments: Sequence[Segment]) -> None:
        """Finds segments that lost batches, and those whose derived files can be trusted.  Raises CorruptLog,
        OSError."""
        for at, (segment, following) in enumerate(zip(segments, [*segments[1:], None], strict=True)):
            checksums, path, base = segment.files.checksums, segment.path("log"), segment.base_offset
            if checksums is not None:
                self.checksums[base] = checksums
                # Their writer had synced all segments before; and when they name bytes, at least one batch
                # ends above the base.
                self.flushed_end = max(self.flushed_end, base + (checksums.log_bytes > 0))
                if segment.size_bytes < checksums.log_bytes:
                    reason = f"it has {segment.size_bytes} bytes where {checksums.log_bytes} had been flushed"
                    raise CorruptLog(path, segment.size_bytes, base, reason)
                if following is not None and checksums.end_offset not in (STILL_OPEN, following.base_offset):
                    reason = (
                        f"it ends at offset {checksums.end_offset}, and the next segment begins at "
                        f"{following.base_offset}"
                    )
                    raise CorruptLog(path, segment.size_bytes, checksums.end_offset, reason)
            if (
                checksums is None
                or segment.size_bytes != checksums.log_bytes
                or not segment.files.match(checksums)
            ):
                self.unverified.append(at)

    def rebuild_unverified(self, segments: Sequence[Segment], upper: int) -> bool:
        """Rebuilds the derived files of those of the first `upper` segments that do not match their
        checksums; whether there was one.  Their batches were flushed.  Raises CorruptLog, OSError."""
        damaged = [at for at in self.unverified if at < upper]
        for at in damaged:
            segment, end_offset = segments[at], segments[at + 1].base_offset
            log.warning(
                "segment_sealed_again",
                path=segment.path("log"),
                reason="its files are not as they were sealed",
            )
            try:
                self.pending_files.write_transactions(
                    segment, rebuild_aborted(self.disk, self.directory, self.config, segments, at)
                )
                segment.rebuild_indexes()
                data_end = segment.data_end_before(segment.size_bytes)
            except InvalidBatch as error:
                offset = max(error.offset, segment.base_offset)
                raise CorruptLog(segment.path("log"), error.position, offset, error.reason) from error
            if data_end != end_offset and not self.config.may_have_offset_gaps:
                reason = f"its batches end at offset {data_end}, and the next segment begins at {end_offset}"
                raise CorruptLog(segment.path("log"), segment.size_bytes, data_end, reason)
            self.pending_files.write_indexes(segment, end_offset)
        return bool(damaged)

    def may_follow_an_offset_gap(self, offset: int) -> bool:
        """Whether offsets may be missing before a segment that begins here.  Cleaning leaves offset gaps
        between segments, and cleans only durable batches; above those, a gap is the lost tail of a
        segment."""
        is_durable = offset <= self.offset_gaps_below or any(
            each.end_offset == offset for each in self.checksums.values()
        )
        return self.config.may_have_offset_gaps and is_durable

    def load_epochs(self) -> EpochCache | None:
        """The epoch history of the checkpoint; None when it is damaged or missing: it is written before any
        batch of a log counts as recovered."""
        path = self.directory / EPOCH_CHECKPOINT
        if not self.disk.exists(path):
            return EpochCache() if not self.recovery_point else None
        try:
            return EpochCache(parse_checkpoint(self.disk.read(path), EPOCH_CHECKPOINT_SHAPES, parse_epoch))
        except CheckpointInvalid as error:
            log.warning("epoch_checkpoint_damaged", path=path, reason=error)
            return None

    # ---- producers -----------------------------------------------------------------------------------------

    def load_producers(self, upper: int) -> ProducerState:
        """The newest valid snapshot at or below `upper`; damaged ones are deleted, those of another version
        are passed over.  Empty when there is none (docs/semantics.md I9)."""
        for offset in reversed([offset for offset in self.snapshots if offset <= upper]):
            state = self.new_state()
            path = segment_path(self.directory, offset, "snapshot")
            try:
                decode_snapshot(self.disk.read(path), state)
                if state.end_offset != offset:
                    raise SnapshotInvalid(f"it is one of offset {state.end_offset}")
                return state
            except SnapshotOfOtherVersion as error:
                log.warning("producer_snapshot_of_other_version", path=path, reason=error)
                self.unread_snapshots.append(offset)
            except SnapshotInvalid as error:
                log.warning("producer_snapshot_damaged", path=path, reason=error)
                self.disk.remove(path)
            self.snapshots.remove(offset)
        return self.new_state()

    def check_snapshots(self, first_base: int, *, clean: bool) -> None:
        """Only snapshots have the producer state of removed batches: when all of them are damaged, a repeated
        batch would be accepted twice.  Raises CorruptLog; KafkaError when none is readable and one is of
        another version."""
        newest, other = None, ""
        for offset in reversed(self.snapshots if first_base else []):
            path = segment_path(self.directory, offset, "snapshot")
            try:
                check_snapshot(self.disk.read(path))
                return
            except SnapshotOfOtherVersion as error:
                other = other or f"{path} cannot be read: {error}"
            except SnapshotInvalid:
                newest = newest or path
        if other:
            what = "It alone knows the producers whose records were removed. Start the release that wrote it."
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{other}. {what}")
        if newest is None and clean and first_base:
            # the clean close wrote it there
            newest = segment_path(self.directory, self.recovery_point, "snapshot")
        if newest is not None:
            reason = (
                "it alone knows the producers whose records were removed. (Without another replica: "
                "remove this file, and the "
                "mark of a clean stop. Producers then begin anew, and a batch that one of them "
                "repeats may be taken twice.)"
            )
            raise CorruptLog(newest, 0, int(newest.stem), reason)

    def new_state(self) -> ProducerState:
        return ProducerState(
            max_producer_ids=self.config.max_producer_ids, expiration_ms=self.config.producer_id_expiration_ms
        )

    def drop_snapshots_above(self, log_end_offset: int) -> None:
        for known in (self.snapshots, self.unread_snapshots):
            for offset in [offset for offset in known if offset > log_end_offset]:
                self.disk.remove(segment_path(self.directory, offset, "snapshot"))
                known.remove(offset)

    def drop_stray_snapshots(self, bases: list[int]) -> None:
        """Removes the snapshots of earlier clean closes; those of segments and the newest one stay (rule
        I9)."""
        for offset in self.snapshots[:-1]:
            if offset not in bases:
                self.disk.remove(segment_path(self.directory, offset, "snapshot"))
        self.snapshots = [
            offset for offset in self.snapshots if offset in bases or offset == self.snapshots[-1]
        ]


def load_log(
    disk: Disk,
    directory: Path,
    *,
    config: LogConfig,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    files: OpenFiles,
    flushed_end: int = 0,
) -> LoadedLog:
    """Opens the folder (made when absent) by the rules of the module's text.  Raises CorruptLog, OSError."""
    disk.make_directory(directory)
    try:
        finish_swaps(disk, directory)
    except SwapDamaged as error:
        raise CorruptLog(
            error.path, 0, log_start_offset, f"a decision of the cleaner cannot be read: {error}"
        ) from error
    flushed_end, pending_files = max(recovery_point, flushed_end), PendingIndexFiles(disk, directory)
    loader = _Loader(
        disk, directory, config, recovery_point, flushed_end, log_start_offset, files, pending_files
    )
    bases = loader.remove_leftovers()
    if not bases:
        return _new_log(loader)
    # removals were over, and the checkpoint knew where the log begins
    if clean and log_start_offset < bases[0]:
        path = segment_path(directory, log_start_offset, "log")
        raise CorruptLog(
            path,
            0,
            log_start_offset,
            f"the log began at offset {log_start_offset}, and begins at {bases[0]} now",
        )
    loader.check_snapshots(bases[0], clean=clean)
    segments = _attach(loader, bases)
    loader.verify_checksums(segments)
    loaded = _load_clean(loader, segments) if clean and len(segments) - 1 not in loader.unverified else None
    if loaded is None:
        loader.pending_files = PendingIndexFiles(disk, directory)
        loaded = _load_unclean(loader, _attach(loader, bases))
    loader.drop_stray_snapshots(bases)
    return loaded


def _new_log(loader: _Loader) -> LoadedLog:
    base = loader.log_start_offset
    if loader.flushed_end > base or loader.snapshots:
        what = (
            f"data up to offset {loader.flushed_end} was flushed"
            if loader.flushed_end > base
            else "there are snapshots of it"
        )
        raise CorruptLog(loader.directory, 0, base, f"no segment is left, and {what}")
    loader.drop_snapshots_above(-1)
    segment = Segment.create(loader.files, loader.directory, base, loader.config.index_interval_bytes)
    segment.sync()
    segment.written_is_durable(transactions_too=True)  # thousands of new logs may not hold their files open
    loader.disk.sync_directory(loader.directory)
    producers = loader.new_state()
    producers.end_offset = base
    return LoadedLog([segment], producers, EpochCache(), base, loader.files, loader.pending_files)


def _attach(loader: _Loader, bases: list[int]) -> list[Segment]:
    """All segments; each but the last ends where the next begins."""
    interval = loader.config.index_interval_bytes
    ends = [*bases[1:], bases[-1]]
    return [
        Segment.attach(loader.files, loader.directory, base, end, interval)
        for base, end in zip(bases, ends, strict=True)
    ]


def _load_clean(loader: _Loader, segments: list[Segment]) -> LoadedLog | None:
    """Trusts every segment that matches its checksums; None when a file does not fit: then the log is
    scanned."""
    rebuilt = loader.rebuild_unverified(segments, len(segments) - 1)
    active = segments[-1]
    try:
        start = active.index.entry(-1)[1] if len(active.index) else 0
        for _position, header, _view in scan_batches(active.file, start, active.size_bytes):
            active.next_offset = header.next_offset
        len(active.aborted.entries)
    except InvalidBatch as error:
        log.warning("clean_log_does_not_fit", directory=loader.directory, reason=error)
        return None
    end = active.next_offset
    epochs = loader.load_epochs()
    if end != loader.recovery_point or epochs is None:
        log.warning(
            "clean_log_does_not_fit",
            directory=loader.directory,
            log_end_offset=end,
            recovery_point=loader.recovery_point,
        )
        return None
    if epochs.truncate_from_end(end):
        loader.pending_files.epochs_from = end
    loader.drop_snapshots_above(end)
    producers = loader.load_producers(end)
    replay_producers(segments, producers, end)
    # above it when it was in a lost offset gap
    start = min(max(loader.log_start_offset, segments[0].base_offset), end)
    return LoadedLog(
        segments, producers, epochs, start, loader.files, loader.pending_files, recovered=rebuilt
    )


def _load_unclean(loader: _Loader, segments: list[Segment]) -> LoadedLog:
    first_base = segments[0].base_offset
    epochs = loader.load_epochs()
    loaded = LoadedLog(
        segments,
        loader.new_state(),
        epochs or EpochCache(),
        0,
        loader.files,
        loader.pending_files,
        recovered=True,
    )
    first = _begin_scan(loader, loaded, whole=epochs is None)
    between: dict[int, bytes] = {}
    for index in range(first, len(segments)):
        if index > first:
            _trust_nothing(segments[index])
            base = segments[index].base_offset
            if base in loader.snapshots:  # it may have producers of segments that retention removed
                loaded.producers.adopt_unknown(loader.load_producers(base))
            if loaded.producers.end_offset == base:  # or else there is an offset gap
                between[base] = encode_snapshot(loaded.producers)
        if not _scan_segment(loader, loaded, segments[index]):
            _drop_segments(loader, loaded, index + 1)
            break
    end = loaded.log_end_offset
    if end < loader.flushed_end:
        last = segments[-1]
        reason = f"the log ends here, and data up to offset {loader.flushed_end} was flushed"
        raise CorruptLog(last.path("log"), last.size_bytes, end, reason)
    loaded.epochs.truncate_from_end(end)
    loader.drop_snapshots_above(end)
    loaded.producers.adopt_unknown(loader.load_producers(end))
    epochs_known_to = 0 if epochs is None else loader.recovery_point
    _make_durable(
        loader,
        loaded,
        first,
        epochs_known_to,
        {offset: data for offset, data in between.items() if offset <= end},
    )
    loaded.log_start_offset = min(max(loader.log_start_offset, first_base), end)
    return loaded


def _begin_scan(loader: _Loader, loaded: LoadedLog, *, whole: bool) -> int:
    """Trusts the part below the recovery point; returns the index of the segment from whose end the scan
    begins.

    A valid snapshot proves that all batches below it were flushed with every derived file (`flush`), so it
    raises a recovery point that was noted earlier.  Without any recovery point (no checkpoint, or a damaged
    one) no batch is trusted.
    """
    segments = loaded.segments
    whole = whole or not loader.recovery_point
    newest = loader.load_producers(_NO_LIMIT)
    loader.offset_gaps_below = max(loader.recovery_point, newest.end_offset)
    if whole:
        newest = loader.new_state()
    loader.recovery_point = max(loader.recovery_point, newest.end_offset)
    loader.flushed_end = max(loader.flushed_end, newest.end_offset)
    # A segment that ends exactly at the recovery point counts as holding it: it may have been completed after
    # the point was noted, and then the indexes on the disk, if any, are of an earlier life.
    holding = max(
        (i for i, each in enumerate(segments) if each.base_offset < loader.recovery_point), default=0
    )
    first = 0 if whole else holding
    loader.rebuild_unverified(segments, first)
    segment = segments[first]
    within = segment.base_offset < newest.end_offset and (
        first + 1 == len(segments) or newest.end_offset <= segment.next_offset
    )
    may_have_offset_gaps = loader.config.may_have_offset_gaps
    if (
        within
        and not whole
        and segment.resume_at(newest.end_offset, may_have_offset_gaps=may_have_offset_gaps) >= 0
    ):
        loaded.producers = newest
        return first
    producers = loader.load_producers(segment.base_offset)
    replay_producers(segments[:first], producers, segment.base_offset)
    producers.end_offset = segment.base_offset
    loaded.producers = producers
    _trust_nothing(segment)
    return first


def _trust_nothing(segment: Segment) -> None:
    segment.reset()


def _scan_segment(loader: _Loader, loaded: LoadedLog, segment: Segment) -> bool:
    """Checks the batches of a segment behind the trusted part and rebuilds every derived file.  False when
    the log ends in it."""
    # a sync may have failed before the restart: only the content of the disk counts
    segment.file.forget_cached()
    file_bytes, start = segment.file.size(), segment.size_bytes
    expected = loaded.producers.end_offset
    aborted: list[TransactionIndexEntry] = []
    problem, lost_bytes = None, False
    is_offset_gap = expected < segment.base_offset and loader.may_follow_an_offset_gap(segment.base_offset)
    if not start and segment.base_offset != expected and not is_offset_gap:
        problem = f"the segment begins at offset {segment.base_offset} where {expected} was expected"
    else:
        expected = max(expected, segment.base_offset)
        try:
            for batch in scan_batches(segment.file, start, file_bytes, check=True):
                base = batch.header.base_offset
                highest = (
                    segment.base_offset + OFFSET_SPAN_MAX if loader.config.may_have_offset_gaps else expected
                )
                if not expected <= base <= highest:
                    raise InvalidBatch(batch.position, f"offset {base} where {expected} was expected")
                # the batch's checksum does not cover it, but it never falls
                epoch = batch.header.partition_leader_epoch
                if 0 <= epoch < loader.epoch_before:
                    raise InvalidBatch(
                        batch.position, f"leader epoch {epoch} behind a batch of epoch {loader.epoch_before}"
                    )
                loader.epoch_before = epoch
                loaded.epochs.deny(epoch, expected, base)
                _take_batch(loaded, segment, batch, aborted)
                expected = batch.header.next_offset
        except InvalidBatch as error:
            problem = error.reason
            checksums = loader.checksums.get(segment.base_offset)
            lost_bytes = checksums is not None and segment.size_bytes < checksums.log_bytes
    if not start:
        loader.pending_files.write_transactions(segment, aborted)
    elif aborted:
        segment.aborted.append(aborted)
    loaded.producers.end_offset = expected
    loaded.scanned_bytes += segment.size_bytes - start
    if problem is None:
        return True
    if expected < loader.flushed_end or lost_bytes:
        raise CorruptLog(segment.path("log"), segment.size_bytes, expected, problem)
    log.info("log_cut_at_recovery", path=segment.path("log"), position=segment.size_bytes, offset=expected,
             truncated_bytes=file_bytes - segment.size_bytes, reason=problem)  # fmt: skip
    loaded.truncated_bytes += file_bytes - segment.size_bytes
    segment.files.batches_to_write.truncate(segment.size_bytes)
    return False


def _take_batch(
    loaded: LoadedLog, segment: Segment, batch: ScannedBatch, aborted: list[TransactionIndexEntry]
) -> None:
    header = batch.header
    segment.note_special_batch(
        header, header.base_offset, header.max_timestamp, batch.position, header.size_bytes
    )
    loaded.epochs.assign(header.partition_leader_epoch, header.base_offset)
    prepared = replay_batch(loaded.producers, batch)
    if prepared is not None and prepared.completed:
        if segment.counts is not None:
            segment.counts.end_transactions(prepared.completed)
        aborted += aborted_entries(prepared)


def _drop_segments(loader: _Loader, loaded: LoadedLog, keep: int) -> None:
    """Removes the segments from `keep` on: the log ends before them.  When the first batch of a segment is
    invalid, that segment stays, empty, as the end.  `verify_checksums` found no checksums for the segments
    that go; those of the last segment that stays may name the base offset of the next one, so they go,
    too."""
    last = loaded.segments[keep - 1]
    last.files.remove_checksums()
    for segment in reversed(loaded.segments[keep:]):
        log.info("segment_beyond_the_end_removed", path=segment.path("log"), size_bytes=segment.size_bytes)
        loaded.truncated_bytes += segment.size_bytes
        segment.remove()
    del loaded.segments[keep:]
    if keep > 1 and not last.size_bytes and last.base_offset != loaded.producers.end_offset:
        last.remove()
        loaded.segments.pop()


def _make_durable(
    loader: _Loader, loaded: LoadedLog, first: int, epochs_known_to: int, snapshots: Mapping[int, bytes]
) -> None:
    """`snapshots`: the producer state between segments.  Without them, retention would remove state that no
    replay finds again."""
    for segment in loaded.segments[first:]:
        if segment.next_offset > loader.recovery_point:
            start = (
                segment.position_of(loader.recovery_point)
                if loader.recovery_point > segment.base_offset
                else 0
            )
            segment.write_again(start)
        segment.sync()
        segment.written_is_durable(transactions_too=True)
    for segment, following in pairwise(loaded.segments[first:]):
        loader.pending_files.write_indexes(segment, following.base_offset)
        segment.next_offset = following.base_offset  # cleaning may have emptied its end
    epochs = loaded.epochs.encode()
    loader.pending_files.write_epochs(loader.directory / EPOCH_CHECKPOINT, epochs, epochs_known_to)
    for offset, snapshot in snapshots.items():  # last: they prove that all other files are durable
        if loader.pending_files.write(segment_path(loader.directory, offset, "snapshot"), snapshot):
            loader.snapshots = sorted({*loader.snapshots, offset})
    loader.disk.sync_directory(loader.directory)


# ---- replay ------------------------------------------------------------------------------------------------


def replay_batch(producers: ProducerState, batch: ScannedBatch) -> PreparedAppend | None:
    """The effect of a stored batch on the producer state: warnings, never errors (rule I7).  None for a batch
    without a producer."""
    header = batch.header
    if header.producer_id < 0:
        producers.end_offset = header.next_offset
        return None
    prepared = producers.prepare(AppendOrigin.REPLICATION)
    marker = decode_marker(batch.view) if header.is_control and batch.view is not None else None
    prepared.check_batch(header, header.base_offset, marker)
    producers.publish(prepared, header.next_offset)
    return prepared


def replay_producers(segments: Sequence[Segment], producers: ProducerState, upper_offset: int) -> None:
    """Brings `producers` from its own end offset up to `upper_offset` by the batches' headers.  Raises
    CorruptLog."""
    for segment in segments:
        if segment.next_offset <= producers.end_offset:
            continue
        start = segment.position_of(producers.end_offset) if producers.end_offset > segment.base_offset else 0
        try:
            for batch in scan_batches(segment.file, start, segment.size_bytes):
                if batch.header.base_offset >= upper_offset:
                    break
                replay_batch(producers, batch)
        except InvalidBatch as error:
            raise CorruptLog(
                segment.path("log"), error.position, producers.end_offset, error.reason
            ) from error
    producers.end_offset = upper_offset


def reload_producers(
    disk: Disk, directory: Path, config: LogConfig, segments: Sequence[Segment], log_end_offset: int
) -> ProducerState:
    """The producer state after a truncation: the newest snapshot at or below the new end, and a replay from
    there (rule I10)."""
    loader = _Loader(disk, directory, config, 0, 0, 0, OpenFiles(disk), PendingIndexFiles(disk, directory))
    names = disk.list_names(directory)
    loader.snapshots = sorted(
        int(name[:-9]) for name in names if name.endswith(".snapshot") and name[:-9].isdigit()
    )
    producers = loader.load_producers(log_end_offset)
    replay_producers(segments, producers, log_end_offset)
    return producers


def rebuild_aborted(
    disk: Disk, directory: Path, config: LogConfig, segments: Sequence[Segment], at: int
) -> list[TransactionIndexEntry]:
    """The transaction index of one segment, from its markers and the transactions that are open where it
    begins.  Raises CorruptLog, InvalidBatch."""
    segment = segments[at]
    producers = reload_producers(disk, directory, config, segments[:at], segment.base_offset)
    aborted: list[TransactionIndexEntry] = []
    for batch in scan_batches(segment.file, 0, segment.size_bytes):
        prepared = replay_batch(producers, batch)
        aborted += aborted_entries(prepared) if prepared is not None else ()
    return aborted


def aborted_entries(prepared: PreparedAppend) -> list[TransactionIndexEntry]:
    """The transaction-index entries of an append: its aborted transactions only (rule L6)."""
    return [
        TransactionIndexEntry(t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset)
        for t in prepared.completed
        if t.is_aborted
    ]
