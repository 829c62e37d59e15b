"""One log's folder against every invariant, without a node.  Read-only; memory does not grow with the log.

Order: the folder's files, then segment by segment every batch, and beside it, batch by batch, the files
derived from them; then the histories and notes that need the log's end.

The demands on the files depend on the state in which the folder was left (`FolderState`), by the rules of
`recovery`:

* below the *trusted offset* (everything after a clean stop; else the recovery point, or the newest snapshot
  above it) damage is a violation, above it the torn tail that an unclean stop leaves;
* derived files count below the *derived limit*: in the segments that the next start does not scan again.

A fault is reported once: checks that depend on the data behind it (`ProducerReplay.lose_track`, the indexes
of a damaged segment) are left out, so that the first line names the cause and not one of its effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from ...runtime.disk import Disk
from ...wire.records import BatchHeader
from ..checkpoint import CheckpointInvalid, parse_value
from ..directory.creation import PARTITION_METADATA
from ..directory.folder_notes import PartitionCheckpoint
from ..directory.found_logs import was_in_use
from ..directory.log_directory import DAMAGED, parse_name
from ..directory.stored_config import LOG_CONFIG, decode_config
from ..epoch_cache import EPOCH_CHECKPOINT
from ..log.log_start import LOG_START, read_log_start
from ..producers.producer_snapshot import SnapshotInvalid, decode_snapshot
from ..producers.producer_state import ProducerState
from ..segment.transaction_index import TransactionIndexEntry
from ..topic_config import LogConfig
from .counts import CountIndexCheck
from .epochs import EpochHistoryCheck
from .findings import Finding, Severity
from .indexes import OffsetIndexCheck, TimeIndexCheck
from .producers import ProducerReplay
from .segment_checksums import check_segment_checksums
from .verification import (
    DamagedBytes,
    FolderState,
    FoundSegment,
    PartitionFiles,
    StoredBatch,
    list_partition,
    walk_batches,
)

EVERYTHING = 2**63 - 1
COMPACTED_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(slots=True, frozen=True)
class PartitionContext:
    """Facts about a partition from outside its folder.  `noted`: its row of the checkpoint."""

    state: FolderState = FolderState.UNKNOWN
    noted: PartitionCheckpoint | None = None
    is_compacted: bool = False
    now_ms: int = 0


@dataclass(slots=True)
class PartitionReport:
    """The findings in one partition's folder."""

    directory: Path
    state: FolderState
    topic_id: UUID | None = None
    segments: int = 0
    batches: int = 0
    size_bytes: int = 0
    first_offset: int = -1
    end_offset: int = 0
    producers: int = 0
    open_transactions: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def violations(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is Severity.VIOLATION]


def verify_partition(
    disk: Disk,
    directory: Path,
    context: PartitionContext,
    progress: Callable[[int], None] = lambda _bytes: None,
) -> PartitionReport:
    """Checks everything; reads a folder in use twice before it reports a violation.  Raises OSError when the
    folder cannot be listed."""
    report = _Verification(disk, directory, context, progress).run()
    if context.state is FolderState.RUNNING and report.violations:
        # A rename, write or truncation that was running has ended by now; a real violation still shows.
        again = _Verification(disk, directory, context, progress).run()
        seen = {finding.place for finding in report.findings}
        again.findings = [f for f in again.findings if f.severity is Severity.NOTE or f.place in seen]
        return again
    return report


class _Verification:
    """One reading of one partition."""

    def __init__(
        self, disk: Disk, directory: Path, context: PartitionContext, progress: Callable[[int], None]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._state = context.state
        self._noted = context.noted
        self._now_ms = context.now_ms
        self._progress = progress
        self._report = PartitionReport(directory, context.state)
        self._add = self._report.findings.append
        self._config = self._read_config()
        name = parse_name(directory.name)
        self._is_compacted = (
            context.is_compacted
            or self._config.may_have_offset_gaps
            or (name is not None and name[0] in COMPACTED_TOPICS)
        )
        self._files = list_partition(disk, directory)
        self._trusted = 0
        self._derived_limit = 0
        self._offset_gaps_below = 0
        self._expected: int | None = None  # the offset that follows; None before the first batch
        self._reached = 0  # the offset after the last good batch
        self._epoch = -1
        self._overlap_ends = -1
        self._has_torn_tail = False  # the log ends in a torn tail: the bytes behind it are not part of it
        self._epochs = EpochHistoryCheck(is_compacted=self._is_compacted)
        self._waiting_snapshots = sorted(self._files.snapshots.items())

    def run(self) -> PartitionReport:
        self._look_at_folder()
        if not self._files.segments:
            self._look_at_empty_log()
            return self._report
        self._choose_trust()
        replay = self._begin_replay()
        for at, segment in enumerate(self._files.segments):
            if self._has_torn_tail:
                self._skip_behind_torn_tail(segment)
                continue
            try:
                self._verify_segment(segment, replay, is_last=at + 1 == len(self._files.segments))
            except OSError as error:
                path = segment.files["log"] if error.filename is None else Path(error.filename)
                self._add(Finding("unreadable", path, str(error), -1, segment.base_offset))
                self._lose_track(replay)
                self._expected = None
        end = max(self._reached, 0 if self._has_torn_tail else self._files.segments[-1].base_offset)
        self._finish(replay, end)
        # any other fault also breaks the segment checksums
        if not self._report.violations and not self._has_torn_tail:
            for at in range(len(self._files.segments)):
                self._verify_segment_checksums(at)
        return self._report

    # ---- folder --------------------------------------------------------------------------------------------

    def _read_config(self) -> LogConfig:
        path = self._directory / LOG_CONFIG
        if self._disk.exists(path):
            try:
                return decode_config(self._disk.read(path))
            except (ValueError, TypeError) as error:
                if was_in_use(self._disk, self._directory):  # a creation that was cut short had not synced it
                    self._add(Finding("config-damaged", path, str(error)))
        return LogConfig()

    def _look_at_folder(self) -> None:
        files: PartitionFiles = self._files
        metadata = self._directory / PARTITION_METADATA
        if metadata.name in files.names:
            try:
                self._report.topic_id = parse_value(self._disk.read(metadata), UUID)
            except CheckpointInvalid as error:
                self._add(Finding("topic-id-damaged", metadata, str(error)))
        elif was_in_use(self._disk, self._directory):
            self._add(
                Finding("topic-id-missing", metadata, "the folder is not one whose creation was cut short")
            )
        else:
            self._add(Finding("leftover", self._directory, "a partition whose creation was cut short"))
        if DAMAGED in files.names:
            text = self._disk.read(self._directory / DAMAGED).decode(errors="replace").strip()
            self._add(Finding("known-damaged", self._directory / DAMAGED, text))
        for path, reason in files.damaged_swaps:
            self._add(Finding("swap-damaged", path, reason))
        if self._state is not FolderState.RUNNING:  # there, they are files in use
            for path in files.leftovers:
                if path not in [damaged for damaged, _reason in files.damaged_swaps]:
                    self._add(Finding("leftover", path, _leftover(path)))
        for path in files.strays:
            self._add(Finding("stray-file", path, "its name has no meaning here"))

    def _look_at_empty_log(self) -> None:
        noted = self._noted
        if noted is not None and noted.recovery_point > noted.log_start_offset:
            what = f"there is no segment, and data up to offset {noted.recovery_point} was flushed"
            self._add(Finding("recovery-point-beyond-end", self._directory, what, -1, noted.log_start_offset))

    def _choose_trust(self) -> None:
        """See the module's text, and `recovery`."""
        segments, last = self._files.segments, self._files.segments[-1].base_offset
        newest = self._newest_snapshot()
        self._offset_gaps_below = max(newest, self._noted.recovery_point if self._noted is not None else 0)
        if self._state is FolderState.CLEAN and self._noted is not None:
            self._trusted = self._derived_limit = self._offset_gaps_below = EVERYTHING
        elif self._state is FolderState.UNKNOWN:
            self._trusted = self._derived_limit = self._offset_gaps_below = max(last, newest)
        elif self._noted is not None and self._noted.recovery_point > 0:
            self._trusted = max(self._noted.recovery_point, newest)
            holding = max((s.base_offset for s in segments if s.base_offset < self._trusted), default=0)
            self._derived_limit = newest if newest > holding else holding

    def _newest_snapshot(self) -> int:
        for offset, path in reversed(self._waiting_snapshots):
            try:
                decode_snapshot(self._disk.read(path), ProducerState())
                return offset
            except (SnapshotInvalid, FileNotFoundError):
                continue
        return 0

    def _begin_replay(self) -> ProducerReplay:
        first = self._files.segments[0].base_offset
        replay = ProducerReplay(
            self._config,
            self._now_ms,
            is_exact=not self._is_compacted,
            knows_start=not first,
            report=self._add,
        )
        while self._waiting_snapshots and self._waiting_snapshots[0][0] < first:
            offset, path = self._waiting_snapshots.pop(0)
            self._add(Finding("leftover", path, "a snapshot from before the log's first segment", -1, offset))
        if first and self._waiting_snapshots and self._waiting_snapshots[0][0] == first:
            offset, path = self._waiting_snapshots.pop(0)
            replay.begin_with(self._disk, path, offset)
        return replay

    # ---- segments ------------------------------------------------------------------------------------------

    def _verify_segment(self, segment: FoundSegment, replay: ProducerReplay, *, is_last: bool) -> None:
        path = segment.files["log"]
        size = self._disk.size(path)
        file = self._disk.open(path, read_only=True)
        self._report.segments += 1
        self._reached = max(self._reached, segment.base_offset if self._expected is None else 0)
        findings_before, counts = len(self._report.findings), self._open_counts(segment, size)
        try:
            offsets, times = self._open_indexes(segment, size, is_last=is_last)
            boundaries = offsets.boundaries() if offsets is not None else []
            indexes_count, first = True, True
            aborted: list[TransactionIndexEntry] = []
            for found in walk_batches(file, size, boundaries):
                if isinstance(found, DamagedBytes):
                    indexes_count = first = False
                    self._damage(path, found, size, replay, is_last=is_last)
                    if self._has_torn_tail:
                        break
                    continue
                if first:
                    first = False
                    indexes_count = self._begin_segment(segment, path, found.header, replay)
                elif found.header.base_offset >= self._overlap_ends and not self._follows(
                    path, found, replay
                ):
                    indexes_count = False
                if found.header.base_offset < self._overlap_ends:
                    continue  # repeated offsets: they were looked at where they stand first
                if self._has_torn_tail:
                    self._tail(path, found.position, size, "offsets are missing before this batch")
                    break
                self._compare_snapshots(replay, found.header)
                if indexes_count and offsets is not None:
                    offsets.take(found.position, found.header)
                if indexes_count and times is not None:
                    times.take(found.position, found.header)
                if counts is not None:
                    counts.take(found)
                self._take(path, found, replay, aborted)
        finally:
            file.close()
        if first:
            self._begin_empty_segment(segment, path, replay)
        if indexes_count and not self._has_torn_tail:
            if offsets is not None:
                offsets.finish()
            if times is not None:
                is_closed = not is_last or self._state is FolderState.CLEAN
                times.finish(is_complete=is_closed and (self._expected or 0) <= self._derived_limit)
            wrong = (
                counts.finish()
                if counts is not None and len(self._report.findings) == findings_before
                else None
            )
            if wrong is not None:
                self._add(wrong)
            index = segment.files.get("txnindex")
            replay.compare_transactions(
                self._disk, index or path.with_name(f"{segment.base_offset:020d}.txnindex"), aborted,
                self._derived_limit,
                exists=index is not None,
                is_settled=self._reached <= self._derived_limit
                and (not is_last or self._derived_limit == EVERYTHING),
            )  # fmt: skip

    def _verify_segment_checksums(self, at: int) -> None:
        """Checks the checksums of a segment that the next start does not scan again."""
        segments, limit = self._files.segments, self._derived_limit
        segment, following = segments[at], segments[at + 1].base_offset if at + 1 < len(segments) else None
        # or that is reported
        if segment.base_offset < limit and {"index", "timeindex", "seal"} <= segment.files.keys():
            is_closed = self._state is FolderState.CLEAN or (following is not None and following <= limit)
            size = self._disk.size(segment.files["log"])
            wrong = check_segment_checksums(self._disk, segment, size, following, is_closed=is_closed)
            if wrong is not None:
                self._add(wrong)

    def _open_counts(self, segment: FoundSegment, size: int) -> CountIndexCheck | None:
        """The count index, when it counts: the node never needs it, so a missing one is no fault."""
        if segment.base_offset >= self._derived_limit or "countindex" not in segment.files:
            return None
        return CountIndexCheck(self._disk, segment.files["countindex"], segment.base_offset, size)

    def _open_indexes(
        self, segment: FoundSegment, size: int, *, is_last: bool
    ) -> tuple[OffsetIndexCheck | None, TimeIndexCheck | None]:
        """The indexes that count; of a segment that the next start scans from its beginning, none."""
        if segment.base_offset >= self._derived_limit:
            return None, None
        offsets = times = None
        base, limit = segment.base_offset, self._derived_limit
        if "index" in segment.files:
            offsets = OffsetIndexCheck(self._disk, segment.files["index"], base, size, limit, self._add)
        if "timeindex" in segment.files:
            times = TimeIndexCheck(self._disk, segment.files["timeindex"], base, limit, self._add)
        if size and (not is_last or self._state is FolderState.CLEAN):
            for suffix in ("index", "timeindex", "seal"):
                if suffix not in segment.files:
                    missing = segment.files["log"].with_name(f"{base:020d}.{suffix}")
                    self._add(Finding("index-missing", missing, "the file is not there", -1, base))
        return offsets, times

    def _begin_segment(
        self, segment: FoundSegment, path: Path, header: BatchHeader, replay: ProducerReplay
    ) -> bool:
        """The first batch of a segment against its name and the segment before; False when its indexes cannot
        be judged."""
        base, first, expected = segment.base_offset, header.base_offset, self._expected
        if first != base and not (self._is_compacted and first > base):
            if expected is None or first == expected:
                self._add(
                    Finding("segment-name", path, f"its first batch begins at offset {first}", 0, first)
                )
                return False
            base = first  # then it is the batch that does not follow
        if expected is None or base == expected or (base > expected and self._is_offset_gap(base)):
            return True
        if base < expected:
            what = f"it begins at offset {base}; the segment before it ends at {expected}"
            self._add(Finding("segment-overlap", path, what, 0, base))
            self._overlap_ends = expected
            return False
        if expected >= self._trusted:
            self._has_torn_tail = True
            return False
        what = f"it begins at offset {base}; the segment before it ends at {expected}"
        self._add(Finding("segment-gap", path, what, 0, expected))
        self._lose_track(replay)
        return True

    def _is_offset_gap(self, offset: int) -> bool:
        """Whether offsets may be missing before `offset`, where a segment begins.  Cleaning touches only
        durable batches: above those, a gap is a lost tail (`recovery`)."""
        return self._is_compacted and (
            offset <= self._offset_gaps_below or self._state is FolderState.RUNNING
        )

    def _begin_empty_segment(self, segment: FoundSegment, path: Path, replay: ProducerReplay) -> None:
        """No batch in it: its name alone must fit."""
        base, expected = segment.base_offset, self._expected
        if self._report.first_offset < 0:
            self._report.first_offset = base
        if expected is None or base == expected:
            self._expected = base
        elif base < expected:
            what = f"it is named {base}; the segment before it ends at {expected}"
            self._add(Finding("segment-overlap", path, what, 0, base))
        elif self._is_offset_gap(base):
            self._compare_snapshots(replay, None, base)
            self._expected = self._reached = base
        elif expected >= self._trusted:
            self._has_torn_tail = True
            self._tail(path, 0, 0, "the segment before it is not whole")
        else:
            what = f"it is named {base}; the segment before it ends at {expected}"
            self._add(Finding("segment-gap", path, what, 0, expected))
            self._lose_track(replay)
            self._expected = base

    def _follows(self, path: Path, found: StoredBatch, replay: ProducerReplay) -> bool:
        """Whether the batch's offsets follow those of the batch before it."""
        base, expected = found.header.base_offset, self._expected
        if expected is None or base == expected or (self._is_compacted and base > expected):
            return True
        if base > expected and expected >= self._trusted:
            self._has_torn_tail = True
            return False
        kind = "offset-gap" if base > expected else "offset-order"
        self._add(
            Finding(kind, path, f"offset {base} where {expected} was expected", found.position, expected)
        )
        self._lose_track(replay)
        return True

    def _lose_track(self, replay: ProducerReplay) -> None:
        self._compare_snapshots(replay, None, self._reached)  # those from before can still be judged
        replay.lose_track()
        self._epochs.lose_track()

    def _take(
        self, path: Path, found: StoredBatch, replay: ProducerReplay, aborted: list[TransactionIndexEntry]
    ) -> None:
        header, report = found.header, self._report
        epoch = header.partition_leader_epoch
        if 0 <= epoch < self._epoch:
            what = f"leader epoch {epoch} after {self._epoch}"
            self._add(Finding("epoch-order", path, what, found.position, header.base_offset))
            self._epochs.lose_track()
        self._epoch = max(self._epoch, epoch)
        self._epochs.take(epoch, header.base_offset)
        aborted += replay.take(found, path)
        self._expected = self._reached = header.next_offset
        if report.first_offset < 0:
            report.first_offset = header.base_offset
        report.batches += 1
        report.size_bytes += header.size_bytes
        self._progress(header.size_bytes)

    def _damage(
        self, path: Path, found: DamagedBytes, size: int, replay: ProducerReplay, *, is_last: bool
    ) -> None:
        expected = self._reached
        # Writes of a running node follow on each other: behind a valid batch nothing is half written.
        in_flight = self._state is FolderState.RUNNING and (found.resumed_at >= 0 or not is_last)
        if (
            expected >= self._trusted
            and not in_flight
            and (is_last or self._state is not FolderState.UNKNOWN)
        ):
            self._has_torn_tail = True
            more = (
                ""
                if found.resumed_at < 0
                else f"; valid batches follow at byte {found.resumed_at}, and go as well"
            )
            self._tail(path, found.position, size, found.reason + more)
            return
        more = (
            f"valid batches follow at byte {found.resumed_at}"
            if found.resumed_at >= 0
            else "nothing valid follows here"
        )
        self._add(Finding("batch-damaged", path, f"{found.reason}; {more}", found.position, expected))
        self._lose_track(replay)
        self._expected = None

    def _tail(self, path: Path, position: int, size: int, reason: str) -> None:
        self._add(Finding("torn-tail", path, f"{size - position} bytes: {reason}", position, self._reached))

    def _skip_behind_torn_tail(self, segment: FoundSegment) -> None:
        path = segment.files["log"]
        self._add(
            Finding(
                "torn-tail",
                path,
                f"{self._disk.size(path)} bytes: the log ends before it",
                0,
                segment.base_offset,
            )
        )

    def _compare_snapshots(self, replay: ProducerReplay, header: BatchHeader | None, end: int = 0) -> None:
        """Those at or below the batch that comes next, or the log's end."""
        upper = header.base_offset if header is not None else end
        while self._waiting_snapshots and self._waiting_snapshots[0][0] <= upper:
            offset, path = self._waiting_snapshots.pop(0)
            expected = self._expected if self._expected is not None else offset
            if offset < expected:
                self._add(Finding("snapshot-wrong", path, "its offset lies inside a batch", 0, offset))
                continue
            try:
                replay.compare_snapshot(self._disk, path, offset)
            except FileNotFoundError as error:
                self._add(Finding("unreadable", path, str(error), -1, offset))

    # ---- the end -------------------------------------------------------------------------------------------

    def _finish(self, replay: ProducerReplay, end: int) -> None:
        report, last = self._report, self._files.segments[-1].files["log"]
        self._compare_snapshots(replay, None, end)
        report.end_offset = end
        report.producers = len(replay.state)
        report.open_transactions = len(replay.state.open_transactions)
        if not self._has_torn_tail:
            replay.finish(last)
        is_short = self._check_notes(last, end)
        for offset, path in self._waiting_snapshots:
            if not is_short and offset > end:
                self._add(Finding("snapshot-beyond-end", path, f"the log ends at {end}", 0, offset))
        first = self._files.segments[0].base_offset
        self._epochs.compare(
            self._disk, self._directory / EPOCH_CHECKPOINT, end, first, max(first, self._noted_start()),
            self._trusted,
            is_clean=self._state is FolderState.CLEAN, report=self._add,
        )  # fmt: skip

    def _noted_start(self) -> int:
        start = self._noted.log_start_offset if self._noted is not None else 0
        try:
            return max(start, read_log_start(self._disk, self._directory))
        except CheckpointInvalid as error:
            self._add(Finding("log-start-damaged", self._directory / LOG_START, str(error)))
            return start

    def _check_notes(self, last: Path, end: int) -> bool:
        """The checkpoint's row against the log; True when the log is shorter than it must be."""
        noted, state = self._noted, self._state
        if noted is None:
            if state is FolderState.CLEAN:
                self._add(Finding("partition-unnoted", self._directory, "the checkpoint has no row for it"))
            return False
        if (
            any(finding.kind == "batch-damaged" for finding in self._report.findings)
            and end < noted.recovery_point
        ):
            return True
        if end < noted.recovery_point:
            what = f"the log ends at {end}, the recovery point is {noted.recovery_point}"
            self._add(Finding("recovery-point-beyond-end", last, what, self._disk.size(last), end))
            return True
        first = self._files.segments[0].base_offset
        if state is FolderState.CLEAN and end != noted.recovery_point:
            self._add(
                Finding(
                    "clean-end-differs",
                    last,
                    f"the log ends at {end}, noted is {noted.recovery_point}",
                    -1,
                    end,
                )
            )
        if noted.high_watermark > end:
            kind = "high-watermark-beyond-end" if state is FolderState.CLEAN else "high-watermark-lost"
            self._add(
                Finding(
                    kind,
                    last,
                    f"the log ends at {end}, the high watermark is {noted.high_watermark}",
                    -1,
                    end,
                )
            )
        elif noted.log_start_offset > noted.high_watermark:
            what = (
                f"the log start is {noted.log_start_offset}, the high watermark {noted.high_watermark}, "
                f"the end {end}"
            )
            self._add(Finding("log-start-beyond-end", self._directory, what, -1, noted.log_start_offset))
        elif state is FolderState.CLEAN and first > noted.log_start_offset:
            what = f"the log start is {noted.log_start_offset}, the first segment begins at {first}"
            self._add(
                Finding(
                    "log-start-missing", self._files.segments[0].files["log"], what, 0, noted.log_start_offset
                )
            )
        return False


def _leftover(path: Path) -> str:
    if path.name.endswith(".swap"):
        return "a replacement of segments that was decided: it is finished"
    if path.name.endswith(".cleaned"):
        return "a cleaned segment: it comes, when there is a .swap; else it goes"
    if path.name.endswith((".deleted", ".tmp")):
        return "it goes"
    return "a file of a segment whose batches are gone: it goes"
