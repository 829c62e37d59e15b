"""One segment of a log: batches, back to back, and the indexes that lead to them.

Files of a segment whose first offset is 42 (names are Kafka's):

    00000000000000000042.log          batches, back to back
    00000000000000000042.index        offset index, written when the segment is complete, or at a clean close
    00000000000000000042.timeindex    time index, likewise
    00000000000000000042.txnindex     aborted transactions whose marker is here; made at the first one, and
                                      written at once
    00000000000000000042.countindex   data records, written with the offset index, and never needed
                                      (`count_index`)
    00000000000000000042.seal         segment checksums, written with the offset index (`checksums`)

`Segment` only ever appends whole batches and truncates at batch boundaries; `size_bytes` is the end of what
was published, and bytes of the file beyond it mean nothing.  A complete segment reads its indexes when they
are first needed, and uses them when its checksums match; else it rebuilds them from the batches.

Its parts: the files and their names (`segment_files`), the offset and time index (`segment_indexes`), the
aborted transactions (`transaction_index_file`), and the counts (`count_index`).
"""

from __future__ import annotations

from pathlib import Path

from ...runtime import logs
from ...runtime.disk import File
from ...wire.records import BatchHeader, decode_marker, iterate_headers, parse_header
from .batch_scan import CHUNK_BYTES, InvalidBatch, scan_batches
from .batch_slices import NOTHING, ReadResult, trim
from .checksums import checksums_of
from .count_file import encoded_counts, load_counts
from .count_index import CountIndex, CountIndexInvalid, Total
from .offset_index import OFFSET_SPAN_MAX, OffsetIndex
from .open_files import OpenFiles
from .segment_files import SegmentFiles
from .segment_indexes import IndexPair, SegmentIndexes
from .swap import CLEANED
from .time_index import NO_TIMESTAMP
from .transaction_index_file import TransactionIndexFile

log = logs.get(__name__)


class Segment:
    """See the module's text.  Opened by `create` (new) or `attach` (existing)."""

    __slots__ = (
        "aborted",
        "base_offset",
        "counts",
        "files",
        "first_timestamp_ms",
        "indexes",
        "max_timestamp_ms",
        "next_offset",
        "offset_of_max_timestamp",
        "size_bytes",
        "total",
    )

    def __init__(self, files: SegmentFiles, index_interval_bytes: int) -> None:
        self.files = files
        self.indexes = SegmentIndexes(files, index_interval_bytes)
        self.aborted = TransactionIndexFile(files)
        self.base_offset = files.base_offset
        self.next_offset = files.base_offset
        self.size_bytes = 0
        self.first_timestamp_ms: int | None = None
        self.max_timestamp_ms = NO_TIMESTAMP
        self.offset_of_max_timestamp = files.base_offset
        self.counts: CountIndex | None = None
        """While batches are appended, and until the file is written; None: the file has them, or they are not
        known."""
        self.total: Total | None = None
        """The total of a complete segment, once a count needed it."""

    @classmethod
    def create(
        cls, files: OpenFiles, directory: Path, base_offset: int, index_interval_bytes: int
    ) -> Segment:
        """A new, empty segment.  The folder is *not* synced: a flush does that before it counts anything in
        it."""
        segment = cls(SegmentFiles(files, directory, base_offset), index_interval_bytes)
        # bytes of a removed segment of this name may not come back
        segment.files.create().truncate(0)
        segment.reset()
        return segment

    @classmethod
    def create_cleaned(
        cls, files: OpenFiles, directory: Path, base_offset: int, index_interval_bytes: int
    ) -> Segment:
        """A new segment that is not part of the log yet: a `Replacement` puts it into the place of others."""
        segment = cls(SegmentFiles(files, directory, base_offset, CLEANED), index_interval_bytes)
        segment.remove()  # also from the open files: a file of an earlier cleaning has no name any more
        segment.files.create()
        segment.reset()
        return segment

    @classmethod
    def attach(
        cls, files: OpenFiles, directory: Path, base_offset: int, next_offset: int, index_interval_bytes: int
    ) -> Segment:
        """An existing, complete segment whose content is trusted; only its size is read now."""
        segment = cls(SegmentFiles(files, directory, base_offset), index_interval_bytes)
        segment.next_offset = next_offset
        segment.size_bytes = files.disk.size(segment.path("log"))
        return segment

    def path(self, suffix: str) -> Path:
        return self.files.path(suffix)

    @property
    def file(self) -> File:
        """The file of batches, for reading and syncing; not to be kept."""
        return self.files.batches

    def written_is_durable(self, *, transactions_too: bool) -> None:
        """A flush is over, and no write happened since it began."""
        self.files.release()
        if transactions_too:
            self.aborted.release()

    # ---- indexes -------------------------------------------------------------------------------------------

    @property
    def index(self) -> OffsetIndex:
        offsets = self.indexes.offsets
        return offsets if offsets is not None else self._load_indexes()[0]

    def _loaded_indexes(self) -> IndexPair:
        return self.indexes.pair or self._load_indexes()

    def _load_indexes(self) -> IndexPair:
        """Reads both index files; when they do not match the segment checksums, rebuilds both from the batch
        headers."""
        pair = self.indexes.load(self.size_bytes)
        if pair is None:
            log.warning(
                "indexes_built_again", path=self.path("log"), reason="no seal vouches for the index files"
            )
            return self.rebuild_indexes()
        self.max_timestamp_ms, self.offset_of_max_timestamp = pair[1].last
        return pair

    def first_position_from(self, timestamp_ms: int, offset: int) -> int:
        """Where to look for the first record at or above `offset` that is not older than `timestamp_ms`.
        Raises InvalidBatch."""
        found = self._loaded_indexes()[1].last_below(timestamp_ms)
        return self.position_of(max(self.base_offset if found is None else found[1], offset))

    def keep_indexes(self) -> None:
        """The segment takes batches again: its indexes are no longer those on the disk."""
        self.indexes.keep(self._loaded_indexes())
        self.counts, self.total = self.counts or self._load_counts(self.size_bytes, self.next_offset), None

    def _load_counts(self, size_bytes: int, end_offset: int) -> CountIndex | None:
        """The counts of the first `size_bytes` in the file; a count finds out the rest."""
        path, base, interval_bytes = self.path("countindex"), self.base_offset, self.indexes.interval_bytes
        try:
            return load_counts(self.files.disk, path, self.file, base, size_bytes, end_offset, interval_bytes)
        except (OSError, CountIndexInvalid):
            return None

    def indexes_are_durable(self) -> None:
        """The index files of a complete segment are written: memory need not hold them."""
        self.indexes.are_durable()
        self.counts_are_durable()

    def counts_are_durable(self) -> None:
        if self.counts is not None and self.counts.is_whole:
            self.total = self.counts.total(self.next_offset)
        self.counts = None

    def rebuild_indexes(self) -> IndexPair:
        """Builds offset and time index from the headers of the batches below `size_bytes`.  Raises
        InvalidBatch."""
        counts, total = self.counts, self.total
        pair = self._reset_indexes()
        self.counts = None
        end, next_offset = self.size_bytes, self.next_offset
        lowest = self.base_offset
        self.size_bytes = 0
        try:
            for position, header, _view in scan_batches(self.file, 0, end):
                if not lowest <= header.base_offset <= self.base_offset + OFFSET_SPAN_MAX:
                    reason = f"offset {header.base_offset} cannot follow on {lowest - 1}"
                    raise InvalidBatch(position, reason, self.path("log"), lowest - 1)
                lowest = header.next_offset
                self.note_batch(header, header.base_offset, header.max_timestamp, position, header.size_bytes)
        finally:
            # a cleaned segment may end behind its last batch
            self.size_bytes, self.next_offset = end, next_offset
            self.counts, self.total = counts, total
        pair[1].append(self.max_timestamp_ms, self.offset_of_max_timestamp)
        return pair

    def resume_at(self, offset: int, *, may_have_offset_gaps: bool) -> int:
        """Trusts the batches below `offset` and no more: truncates the index files there, and the segment
        ends there.

        Returns the position of the first batch at or above `offset`; -1 when the files do not match, and
        nothing is trusted. Raises OSError.
        """
        checksums = self.files.checksums
        try:
            if checksums is None:
                raise ValueError("no seal vouches for the files")
            index, time_index = self.indexes.decode_below(checksums)
            entries = self.aborted.decode_below(checksums)
            position = self._find_end(index, offset, may_have_offset_gaps=may_have_offset_gaps)
        except (FileNotFoundError, ValueError, InvalidBatch) as error:
            log.warning("segment_scanned_from_its_start", path=self.path("log"), reason=error)
            return -1
        index.truncate(position)
        time_index.truncate(offset)
        self._reset_indexes()
        self.indexes.keep((index, time_index))
        self.counts = self._load_counts(position, offset)
        self.aborted.keep_first([entry for entry in entries if entry.last_offset < offset])
        self.aborted.truncate_file()
        self.size_bytes, self.next_offset = position, offset
        self._restore_max_timestamp()
        return position

    def _find_end(self, index: OffsetIndex, offset: int, *, may_have_offset_gaps: bool) -> int:
        """Where the batches below `offset` end.  Raises InvalidBatch when the index or the file has no such
        place."""
        first, start = index.entry(max(0, index.floor(offset - 1)))
        end, end_offset = start, first
        for position, header, _view in scan_batches(
            self.file, start, self.size_bytes, chunk_bytes=2 * self.indexes.interval_bytes + 61
        ):
            if (
                position == start and header.base_offset != first
            ) or header.base_offset < offset < header.next_offset:
                raise InvalidBatch(
                    position, f"no batch ends at offset {offset}", self.path("log"), header.base_offset
                )
            if header.base_offset >= offset:
                break
            end, end_offset = position + header.size_bytes, header.next_offset
            if end_offset == offset:
                break  # the bytes that follow were not flushed, and may be anything
        if end_offset != offset and not may_have_offset_gaps:
            raise InvalidBatch(
                end, f"the batches end at offset {end_offset}, not {offset}", self.path("log"), end_offset
            )
        return end

    def _reset_indexes(self) -> IndexPair:
        """Empty indexes and counts, before batches are noted."""
        self.max_timestamp_ms, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.counts, self.total = CountIndex(self.base_offset, self.indexes.interval_bytes), None
        return self.indexes.clear()

    def reset(self) -> None:
        """Nothing is known of the batches: the caller notes all of them, and their aborted transactions."""
        self._reset_indexes()
        self.aborted.clear()
        self.size_bytes, self.next_offset = 0, self.base_offset

    def encoded_indexes(self, end_offset: int) -> dict[Path, bytes]:
        """The index files of a complete segment, or of the segment as it is now, and the segment checksums,
        which must be written last.  `end_offset`: where the next segment begins, or STILL_OPEN."""
        offsets, times = self._loaded_indexes()
        times.append(self.max_timestamp_ms, self.offset_of_max_timestamp)
        counts = encoded_counts(self.counts, self.file, self.size_bytes, self.next_offset)
        index, time_index, aborted = offsets.encode(), times.encode(), self.aborted.entries
        checksums = checksums_of(
            self.base_offset,
            end_offset,
            self.size_bytes,
            index,
            time_index,
            len(aborted),
            self.aborted.crc,
        )
        return {
            self.path("index"): index, self.path("timeindex"): time_index, self.path("countindex"): counts,
            self.path("seal"): checksums.encode(),
        }  # fmt: skip

    def load_max_timestamp(self) -> int:
        """The greatest timestamp of the segment, from the index when the segment was attached."""
        self._loaded_indexes()
        return self.max_timestamp_ms

    # ---- appending -----------------------------------------------------------------------------------------

    def note_batch(
        self, header: BatchHeader, base_offset: int, max_timestamp_ms: int, position: int, size: int
    ) -> None:
        """Takes a batch that stands at `position` = the published end into the segment and its indexes."""
        indexes = self.indexes
        if not indexes.is_kept:
            self.keep_indexes()
        assert position == self.size_bytes
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.offset_of_max_timestamp = base_offset
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = max_timestamp_ms
        end = position + size
        if end - indexes.last_position > indexes.interval_bytes or not position:
            indexes.add(base_offset, position, self.max_timestamp_ms, self.offset_of_max_timestamp)
            counts = self.counts
            if counts is not None and position >= counts.next_entry_at:
                counts.mark(self.next_offset, position)
        self.size_bytes = end
        self.next_offset = base_offset + header.last_offset_delta + 1

    def note_special_batch(
        self, header: BatchHeader, base_offset: int, max_timestamp_ms: int, position: int, size: int
    ) -> None:
        """Like `note_batch`, for a batch that may be a control batch, part of a transaction, or have offsets
        missing in it or before it."""
        missing_before = base_offset - self.next_offset
        self.note_batch(header, base_offset, max_timestamp_ms, position, size)
        if self.counts is not None:
            self.counts.take(header, base_offset, position, missing_before)

    def append_batches(self, data: bytes | bytearray | memoryview) -> None:
        """Writes whole batches with the offsets they have, behind the present ones: for the cleaner.  Raises
        OSError."""
        view = memoryview(data)
        self.files.batches_to_write.write_at(self.size_bytes, view)
        for position, header in iterate_headers(view):
            self.note_special_batch(
                header, header.base_offset, header.max_timestamp, self.size_bytes, header.size_bytes
            )
            marker = decode_marker(view, position) if header.is_control else None
            if marker is not None and self.counts is not None:
                self.counts.end_transaction(marker)

    def first_timestamp(self) -> int | None:
        """Timestamp of the first batch, which starts the clock of `segment.ms`; None when empty."""
        if self.first_timestamp_ms is None and self.size_bytes:
            self.first_timestamp_ms = parse_header(self.file.read_at(0, 61)).max_timestamp
        return self.first_timestamp_ms

    # ---- reading -------------------------------------------------------------------------------------------

    def position_of(self, offset: int) -> int:
        """Where the first batch that ends above `offset` begins; the size when there is none."""
        index = self.index
        at = index.floor(offset)
        start = 0 if at < 0 else index.entry(at)[1]
        for position, header, _view in scan_batches(
            self.file, start, self.size_bytes, chunk_bytes=2 * self.indexes.interval_bytes + 61
        ):
            if header.next_offset > offset:
                return position
        return self.size_bytes

    def data_end_before(self, position: int) -> int:
        """Where the last batch ends that ends at or before byte `position`, a boundary; the base offset when
        there is none."""
        if not position:
            return self.base_offset
        start, end = self.index.entry(self.index.floor_position(position - 1))[1], self.base_offset
        for _position, header, _view in scan_batches(
            self.file, start, position, chunk_bytes=2 * self.indexes.interval_bytes + 61
        ):
            end = header.next_offset
        return end

    def read(self, offset: int, max_bytes: int, upper_offset: int) -> ReadResult:
        """Whole batches from the one that contains (or follows) `offset`, all with offsets below
        `upper_offset`.

        About `max_bytes`, and at least one batch when there is one; a single pread.  The index makes both
        ends batch boundaries: the read begins at an entry and ends at an entry, or at an end that is found by
        walking over a few batches in memory.
        """
        index = self.indexes.offsets
        if index is None:
            index = self._load_indexes()[0]
        stretch = index.stretch(offset, max_bytes, upper_offset, self.next_offset, self.size_bytes)
        if stretch is None:
            return NOTHING
        first, begins_at, start, end, next_offset, walk_from = stretch
        files = self.files
        file = files.held
        if file is None:
            file = files.open_files.get(files.log_path)
        data = file.read_at(start, end - start)
        if len(data) < end - start:
            reason = f"the file ends here; {end - start - len(data)} bytes that were published are gone"
            raise InvalidBatch(start + len(data), reason, self.path("log"), begins_at)
        try:
            found = trim(data, begins_at, offset, upper_offset, max_bytes, next_offset, walk_from)
        except InvalidBatch as error:
            raise InvalidBatch(start + error.position, error.reason, self.path("log"), begins_at) from error
        if found.first_offset < 0 and first + 1 < len(index) and index.entry(first + 1)[0] < upper_offset:
            # An offset gap of a compacted log: the batches between `offset` and the next entry are gone.
            return self.read(index.entry(first + 1)[0], max_bytes, upper_offset)
        return found

    # ---- changing ------------------------------------------------------------------------------------------

    def prepare_truncation(self) -> None:
        """Loads into memory the derived data that cannot be trusted once the checksums are removed.  Raises
        OSError, InvalidBatch."""
        self.keep_indexes()
        len(self.aborted.entries)

    def truncate_to_position(self, position: int, next_offset: int) -> None:
        """Truncates the file and the indexes at a batch boundary, durably.  `prepare_truncation` ran before,
        and the checksums are gone, durably."""
        offsets, times = self._loaded_indexes()
        offsets.truncate(position)
        times.truncate(next_offset)
        self.aborted.keep_first([entry for entry in self.aborted.entries if entry.last_offset < next_offset])
        self.files.batches_to_write.truncate(position)
        self.files.batches_to_write.sync_data()
        self.aborted.truncate_file()
        self.aborted.sync()
        self.written_is_durable(transactions_too=True)
        self.size_bytes, self.next_offset = position, next_offset
        # The truncation may remove markers whose committed transactions are no longer among the runs:
        # counting begins anew.
        self.counts = (
            None if position else CountIndex(self.base_offset, self.indexes.interval_bytes, next_offset)
        )
        if not position:
            self.first_timestamp_ms = None
        self._restore_max_timestamp()

    def _restore_max_timestamp(self) -> None:
        """After a truncation: the greatest timestamp is that of the last entry, or of the batches behind the
        last indexed one."""
        pair = self._loaded_indexes()
        self.indexes.keep(pair)
        self.max_timestamp_ms, self.offset_of_max_timestamp = pair[1].last
        for _position, header, _view in scan_batches(self.file, self.indexes.last_position, self.size_bytes):
            if header.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms, self.offset_of_max_timestamp = header.max_timestamp, header.base_offset

    def write_again(self, start: int) -> None:
        """Rewrites the bytes from `start` on as they are, so that the next sync covers them whatever happened
        before."""
        file = self.files.batches_to_write
        for position in range(start, self.size_bytes, CHUNK_BYTES):
            file.write_at(position, file.read_at(position, min(CHUNK_BYTES, self.size_bytes - position)))

    def sync(self) -> None:
        """Makes the batches and the transaction index durable.  Any thread."""
        self.file.sync_data()
        self.aborted.sync()

    def sync_cleaned(self, end_offset: int) -> None:
        """Makes a cleaned segment and all its files durable.  `end_offset`: where the segments that it
        replaces end.  Any thread."""
        self.sync()
        for path, data in self.encoded_indexes(end_offset).items():
            self.files.disk.write_atomic(path, data)
        self.files.disk.sync_directory(self.files.directory)
        self.written_is_durable(transactions_too=True)

    def stand_in(self, next_offset: int) -> None:
        """A cleaned segment takes the place of others and ends, for look-ups, where they ended.  Its files
        may be renamed at any time from now on, so it holds them open until `adopt`.  Raises OSError with
        nothing changed."""
        assert next_offset >= self.next_offset
        assert self.files.extension
        self.files.hold()
        if self.counts is not None:
            self.counts.absent += next_offset - self.next_offset
        self.next_offset = next_offset

    def adopt(self) -> None:
        """The files of a cleaned segment have their final names."""
        self.close()
        self.files.adopt()
        self.indexes_are_durable()

    def close(self) -> None:
        """Releases files and indexes; a file is closed when no other thread reads it."""
        self.files.close()
        self.aborted.close()
        self.indexes.close()

    def remove(self) -> None:
        """Removes all files of the segment, the data first: without it, the rest has no meaning after a
        crash."""
        self.close()
        self.files.discard()

    def take_name_away(self) -> list[Path]:
        """Renames the data, which can be repeated, and removes the derived files.  Returns the files to
        unlink.  Any thread."""
        gone = self.files.rename_batches()
        self.aborted.forget()
        self.indexes.close()
        self.files.discard()
        return [gone]
