"""One segment of a log: a file of record batches, and its derived files (indexes).

Files of a segment whose first offset is 42 (names are Kafka's):

    00000000000000000042.log        batches, back to back
    00000000000000000042.index      offset index        written when the segment is complete, or at a clean
                                                        close
    00000000000000000042.timeindex  time index          likewise
    00000000000000000042.txnindex   aborted transactions whose marker is here; made at the first one, written
                                    at once
    00000000000000000042.countindex data records, written with the offset index, and never needed
        (`count_index`)
    00000000000000000042.seal       segment checksums, written with the offset index (`checksums`)

`Segment` only ever appends whole batches and truncates at batch boundaries; `size_bytes` is the end of what
was published, and bytes of the file beyond it mean nothing.  A complete segment reads its indexes when they
are first needed, and uses them when its checksums match; else it rebuilds them from the batches.
"""

from __future__ import annotations

from pathlib import Path

from crc32c import crc32c
from tidegate.runtime import logs
from tidegate.runtime.disk import Disk, File
from tidegate.wire.records import BatchHeader, decode_marker, iterate_headers, parse_header

from .batch_scan import CHUNK_BYTES, InvalidBatch, scan_batches
from .batch_slices import NOTHING, ReadResult, trim
from .checksums import ChecksumsInvalid, SegmentChecksums, checksums_of, decode_checksums
from .count_file import encoded_counts, load_counts
from .count_index import CountIndex, CountIndexInvalid, Total
from .offset_index import OFFSET_SPAN_MAX, OffsetIndex
from .open_files import OpenFiles
from .swap import CLEANED, DELETED, SEGMENT_SUFFIXES
from .time_index import NO_TIMESTAMP, TimeIndex
from .transaction_index import ENTRY_BYTES, TransactionIndexEntry, decode_transaction_index

log = logs.get(__name__)


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """`suffix` is 'log', 'index', 'timeindex', 'txnindex' or 'snapshot'."""
    return directory / f"{base_offset:020d}.{suffix}"


class Segment:
    """See the module's text.  Opened by `create` (new) or `attach` (existing)."""

    __slots__ = (
        "_dirty_file", "_dirty_transactions", "_disk", "_extension", "_files", "_index", "_index_is_read",
        "_interval",
        "_last_indexed", "_log_path", "_time_index", "_transactions", "_transactions_crc", "base_offset",
        "counts", "directory",
        "first_timestamp_ms", "max_timestamp_ms", "next_offset", "offset_of_max_timestamp", "size_bytes",
        "total",
        "transactions_dirty",
    )  # fmt: skip

    def __init__(
        self,
        files: OpenFiles,
        directory: Path,
        base_offset: int,
        index_interval_bytes: int,
        extension: str = "",
    ) -> None:
        self._extension = extension
        # made once: every read looks its file up
        self._log_path = segment_path(directory, base_offset, "log" + extension)
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.directory = directory
        self.first_timestamp_ms: int | None = None
        self.max_timestamp_ms = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self._disk = files.disk
        self._files = files
        self._dirty_file: File | None = None  # held while it has unsynced writes (`open_files`)
        self._dirty_transactions: File | None = None
        self._index_is_read = False  # from the files, which have it still
        self._index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transactions: list[TransactionIndexEntry] | None = None
        self._transactions_crc = 0  # of the known entries, as in the file
        self._interval = index_interval_bytes
        self._last_indexed = 0
        self.transactions_dirty = False
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
        segment = cls(files, directory, base_offset, index_interval_bytes)
        files.forget(segment.path("log"))
        segment._dirty_file = files.get(segment.path("log"), create=True)
        segment._dirty_file.truncate(0)  # bytes of a removed segment of this name may not come back
        segment._index, segment._time_index, segment._transactions = (
            OffsetIndex(base_offset),
            TimeIndex(base_offset),
            [],
        )
        segment.counts = CountIndex(base_offset, index_interval_bytes)
        return segment

    @classmethod
    def create_cleaned(
        cls, files: OpenFiles, directory: Path, base_offset: int, index_interval_bytes: int
    ) -> Segment:
        """A new segment that is not part of the log yet: a `Replacement` puts it into the place of others."""
        segment = cls(files, directory, base_offset, index_interval_bytes, CLEANED)
        segment.remove()  # also from the open files: a file of an earlier cleaning has no name any more
        segment._dirty_file = files.get(segment.path("log"), create=True)
        segment._index, segment._time_index, segment._transactions = (
            OffsetIndex(base_offset),
            TimeIndex(base_offset),
            [],
        )
        segment.counts = CountIndex(base_offset, index_interval_bytes)
        return segment

    @classmethod
    def attach(
        cls, files: OpenFiles, directory: Path, base_offset: int, next_offset: int, index_interval_bytes: int
    ) -> Segment:
        """An existing, complete segment whose content is trusted; only its size is read now."""
        segment = cls(files, directory, base_offset, index_interval_bytes)
        segment.next_offset = next_offset
        segment.size_bytes = files.disk.size(segment.path("log"))
        return segment

    @property
    def disk(self) -> Disk:
        return self._disk

    def path(self, suffix: str) -> Path:
        return segment_path(self.directory, self.base_offset, suffix + self._extension)

    @property
    def file(self) -> File:
        """For reading and syncing; not to be kept.  Writers use `file_to_write`."""
        return self._dirty_file or self._files.get(self._log_path)

    @property
    def file_to_write(self) -> File:
        """The open file, held from now on until `written_is_durable`."""
        if self._dirty_file is None:
            self._dirty_file = self._files.get(self._log_path)
        return self._dirty_file

    def written_is_durable(self, *, transactions_too: bool) -> None:
        """A flush is over, and no write happened since it began."""
        self._dirty_file = None
        if transactions_too:
            self._dirty_transactions = None

    # --------------------------------------------------------------------------------------------------------
    # indexes

    @property
    def index(self) -> OffsetIndex:
        return self._index if self._index is not None else self._load_indexes()[0]

    @property
    def time_index(self) -> TimeIndex:
        return self._time_index if self._time_index is not None else self._load_indexes()[1]

    @property
    def index_bytes(self) -> int:
        """Size of the larger index file, as far as loaded."""
        index, time_index = self._index, self._time_index
        return (
            max(index.memory_bytes, time_index.memory_bytes)
            if index is not None and time_index is not None
            else 0
        )

    @property
    def transactions(self) -> list[TransactionIndexEntry]:
        """The aborted transactions whose marker is here.  InvalidBatch when the file does not match the
        segment checksums."""
        if self._transactions is None:
            checksums, path = self.checksums, self.path("txnindex")
            try:
                data = self._disk.read(path) if self._disk.exists(path) else b""
                if checksums is None or (len(data), crc32c(data)) != (
                    checksums.aborted * ENTRY_BYTES,
                    checksums.aborted_crc,
                ):
                    raise ValueError("it is not the one that the segment's seal vouches for")
                self._transactions, self._transactions_crc = (
                    decode_transaction_index(data),
                    checksums.aborted_crc,
                )
            except ValueError as error:
                raise InvalidBatch(0, str(error), path, self.base_offset) from error
        return self._transactions

    @property
    def checksums(self) -> SegmentChecksums | None:
        """The segment checksums on the disk; None when there are none, or they cannot be read."""
        path = self.path("seal")
        try:
            return decode_checksums(self._disk.read(path), self.base_offset)
        except FileNotFoundError:
            return None
        except ChecksumsInvalid as error:
            log.warning("seal_damaged", path=path, reason=error)
            return None

    def files_match(self, checksums: SegmentChecksums) -> bool:
        """Whether the files have the sizes in the checksums, and the transaction index its content.  Raises
        OSError."""
        if (
            self._size_of("index") != checksums.index_bytes
            or self._size_of("timeindex") != checksums.time_index_bytes
        ):
            return False
        size = self._size_of("txnindex")
        if size != checksums.aborted * ENTRY_BYTES:
            return not checksums.aborted and size < 0
        return not size or crc32c(self._disk.read(self.path("txnindex"))) == checksums.aborted_crc

    def _size_of(self, suffix: str) -> int:
        try:
            return self._disk.size(self.path(suffix))
        except FileNotFoundError:
            return -1

    def remove_checksums(self) -> bool:
        """Removes the files that cover more than a truncation will leave, durable with the folder's next
        sync; whether there were any.  Raises OSError."""
        # Counts as well: other batches may reach the same size, with an equal one at the last entry.
        there = [path for suffix in ("seal", "countindex") if self._disk.exists(path := self.path(suffix))]
        for path in there:
            self._disk.remove(path)
        return bool(there)

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Reads both index files; when they do not match the segment checksums, rebuilds both from the batch
        headers."""
        checksums = self.checksums
        try:
            data, times = self._disk.read(self.path("index")), self._disk.read(self.path("timeindex"))
        except FileNotFoundError:
            checksums, data, times = None, b"", b""
        if (
            checksums is None
            or checksums.log_bytes != self.size_bytes
            or not checksums.vouches_for(data, times)
        ):
            log.warning(
                "indexes_built_again", path=self._log_path, reason="no seal vouches for the index files"
            )
            return self.rebuild_indexes()
        index, time_index = (
            OffsetIndex.decode(data, self.base_offset),
            TimeIndex.decode(times, self.base_offset),
        )
        self._index, self._time_index, self._index_is_read = index, time_index, True
        self.max_timestamp_ms, self.offset_of_max_timestamp = time_index.last
        self._last_indexed = index.entry(-1)[1] if len(index) else 0
        self._files.index_used(self, index.memory_bytes + time_index.memory_bytes)
        return index, time_index

    def first_position_from(self, timestamp_ms: int, offset: int) -> int:
        """Where to look for the first record at or above `offset` that is not older than `timestamp_ms`.
        Raises InvalidBatch."""
        found = self.time_index.last_below(timestamp_ms)
        return self.position_of(max(self.base_offset if found is None else found[1], offset))

    def drop_indexes(self) -> None:
        """Frees the memory of indexes that can be read again.  Any thread: a user of an index holds it."""
        if self._index_is_read:
            self._index = self._time_index = None

    def keep_indexes(self) -> None:
        """The segment takes batches again: its indexes are no longer those on the disk."""
        index, time_index = self.index, self.time_index
        self._index_is_read = False
        self._files.index_gone(self)
        self._index, self._time_index = index, time_index
        self.counts, self.total = self.counts or self._load_counts(self.size_bytes, self.next_offset), None

    def _load_counts(self, size_bytes: int, end_offset: int) -> CountIndex | None:
        """The counts of the first `size_bytes` in the file; a count finds out the rest."""
        path, base = self.path("countindex"), self.base_offset
        try:
            return load_counts(self._disk, path, self.file, base, size_bytes, end_offset, self._interval)
        except (OSError, CountIndexInvalid):
            return None

    def indexes_are_durable(self) -> None:
        """The index files of a complete segment are written: memory need not hold them."""
        if self._index is not None and self._time_index is not None:
            self._index_is_read = True
            self._files.index_used(self, self._index.memory_bytes + self._time_index.memory_bytes)
        self.counts_are_durable()

    def counts_are_durable(self) -> None:
        if self.counts is not None and self.counts.is_whole:
            self.total = self.counts.total(self.next_offset)
        self.counts = None

    def rebuild_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Builds offset and time index from the headers of the batches below `size_bytes`.  Raises
        InvalidBatch."""
        counts, total = self.counts, self.total
        self.reset_indexes()
        self.counts = None
        index, time_index = self._index, self._time_index
        assert index is not None
        assert time_index is not None
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
        time_index.append(self.max_timestamp_ms, self.offset_of_max_timestamp)
        return index, time_index

    def resume_at(self, offset: int, *, may_have_offset_gaps: bool) -> int:
        """Trusts the batches below `offset` and no more: truncates the index files there, and the segment
        ends there.

        Returns the position of the first batch at or above `offset`; -1 when the files do not match, and
        nothing is trusted. Raises OSError.
        """
        checksums = self.checksums
        try:
            if checksums is None:
                raise ValueError("no seal vouches for the files")
            data, times = self._disk.read(self.path("index")), self._disk.read(self.path("timeindex"))
            aborted = self._disk.read(self.path("txnindex")) if checksums.aborted else b""
            known = aborted[: checksums.aborted * ENTRY_BYTES]  # entries may have been added since
            if (
                not checksums.index_bytes
                or not checksums.vouches_for(data, times)
                or crc32c(known) != checksums.aborted_crc
            ):
                raise ValueError("the seal vouches for other files")
            entries = decode_transaction_index(known)
            index, time_index = (
                OffsetIndex.decode(data, self.base_offset),
                TimeIndex.decode(times, self.base_offset),
            )
            position = self._find_end(index, offset, may_have_offset_gaps=may_have_offset_gaps)
        except (FileNotFoundError, ValueError, InvalidBatch) as error:
            log.warning("segment_scanned_from_its_start", path=self.path("log"), reason=error)
            return -1
        index.truncate(position)
        time_index.truncate(offset)
        self.reset_indexes()
        self._index, self._time_index, self.counts = index, time_index, self._load_counts(position, offset)
        self._keep_transactions([entry for entry in entries if entry.last_offset < offset])
        self.truncate_transaction_index()
        self.size_bytes, self.next_offset = position, offset
        self._restore_max_timestamp()
        return position

    def _keep_transactions(self, entries: list[TransactionIndexEntry]) -> None:
        """Only these first entries of the file count from now on."""
        data = self._disk.read(self.path("txnindex"))[: len(entries) * ENTRY_BYTES] if entries else b""
        self._transactions, self._transactions_crc = entries, crc32c(data)

    def _find_end(self, index: OffsetIndex, offset: int, *, may_have_offset_gaps: bool) -> int:
        """Where the batches below `offset` end.  Raises InvalidBatch when the index or the file has no such
        place."""
        first, start = index.entry(max(0, index.floor(offset - 1)))
        end, end_offset = start, first
        for position, header, _view in scan_batches(
            self.file, start, self.size_bytes, chunk_bytes=2 * self._interval + 61
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

    def reset_indexes(self) -> None:
        self._index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._last_indexed = 0
        self._index_is_read = False
        self._files.index_gone(self)
        self.max_timestamp_ms, self.offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.counts, self.total = CountIndex(self.base_offset, self._interval), None

    def reset_transactions(self) -> None:
        """Empties the transaction index in memory: recovery rebuilds it, and then calls
        `replace_transactions`."""
        self._transactions, self._transactions_crc = [], 0

    def replace_transactions(self, entries: list[TransactionIndexEntry]) -> None:
        """Replaces the entries on the disk by these, in one step: after a crash in between, a snapshot would
        vouch for a half empty index.  Raises OSError."""
        path, data = self.path("txnindex"), b"".join(entry.encode() for entry in entries)
        self._transactions, self._transactions_crc = entries, crc32c(data)
        # also when the file has the same: it may be in the page cache only
        if entries or self._disk.exists(path):
            self._files.forget(path)
            self._disk.write_atomic(path, data)

    def encoded_indexes(self, end_offset: int) -> dict[Path, bytes]:
        """The index files of a complete segment, or of the segment as it is now, and the segment checksums,
        which must be written last.  `end_offset`: where the next segment begins, or STILL_OPEN."""
        self.time_index.append(self.max_timestamp_ms, self.offset_of_max_timestamp)
        counts = encoded_counts(self.counts, self.file, self.size_bytes, self.next_offset)
        index, time_index, aborted = self.index.encode(), self.time_index.encode(), self.transactions
        checksums = checksums_of(
            self.base_offset,
            end_offset,
            self.size_bytes,
            index,
            time_index,
            len(aborted),
            self._transactions_crc,
        )
        return {
            self.path("index"): index, self.path("timeindex"): time_index, self.path("countindex"): counts,
            self.path("seal"): checksums.encode(),
        }  # fmt: skip

    def load_max_timestamp(self) -> int:
        """The greatest timestamp of the segment, from the index when the segment was attached."""
        if self._time_index is None:
            self._load_indexes()
        return self.max_timestamp_ms

    # --------------------------------------------------------------------------------------------------------
    # appending

    def note_batch(
        self, header: BatchHeader, base_offset: int, max_timestamp_ms: int, position: int, size: int
    ) -> None:
        """Takes a batch that stands at `position` = the published end into the segment and its indexes."""
        if self._index_is_read or self._index is None:
            self.keep_indexes()
        index = self._index
        assert index is not None
        assert self._time_index is not None
        assert position == self.size_bytes
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.offset_of_max_timestamp = base_offset
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = max_timestamp_ms
        end = position + size
        if end - self._last_indexed > self._interval or not position:
            index.append(base_offset, position)
            self._time_index.append(self.max_timestamp_ms, self.offset_of_max_timestamp)
            self._last_indexed = position
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
        self.file_to_write.write_at(self.size_bytes, view)
        for position, header in iterate_headers(view):
            self.note_special_batch(
                header, header.base_offset, header.max_timestamp, self.size_bytes, header.size_bytes
            )
            marker = decode_marker(view, position) if header.is_control else None
            if marker is not None and self.counts is not None:
                self.counts.end_transaction(marker)

    def append_transactions(self, entries: list[TransactionIndexEntry]) -> None:
        """Writes entries behind the present ones.  OSError leaves memory unchanged; then call
        `truncate_transaction_index`."""
        known = self.transactions
        file = self._transactions_file_to_write()
        data = b"".join(entry.encode() for entry in entries)
        file.write_at(len(known) * ENTRY_BYTES, data)
        # after it: a flush in another thread takes the flag down before it syncs
        self.transactions_dirty = True
        known.extend(entries)
        self._transactions_crc = crc32c(data, self._transactions_crc)

    def truncate_transaction_index(self) -> None:
        """Truncates the file to the entries in memory."""
        if self._disk.exists(self.path("txnindex")):
            self._transactions_file_to_write().truncate(len(self.transactions) * ENTRY_BYTES)
            self.transactions_dirty = True

    def _transactions_file_to_write(self) -> File:
        if self._dirty_transactions is None:
            self._dirty_transactions = self._files.get(self.path("txnindex"), create=True)
        return self._dirty_transactions

    def first_timestamp(self) -> int | None:
        """Timestamp of the first batch, which starts the clock of `segment.ms`; None when empty."""
        if self.first_timestamp_ms is None and self.size_bytes:
            self.first_timestamp_ms = parse_header(self.file.read_at(0, 61)).max_timestamp
        return self.first_timestamp_ms

    # --------------------------------------------------------------------------------------------------------
    # reading

    def position_of(self, offset: int) -> int:
        """Where the first batch that ends above `offset` begins; the size when there is none."""
        index = self.index
        at = index.floor(offset)
        start = 0 if at < 0 else index.entry(at)[1]
        for position, header, _view in scan_batches(
            self.file, start, self.size_bytes, chunk_bytes=2 * self._interval + 61
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
            self.file, start, position, chunk_bytes=2 * self._interval + 61
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
        index = self._index
        if index is None:
            index = self._load_indexes()[0]
        stretch = index.stretch(offset, max_bytes, upper_offset, self.next_offset, self.size_bytes)
        if stretch is None:
            return NOTHING
        first, begins_at, start, end, next_offset, walk_from = stretch
        file = self._dirty_file
        if file is None:
            file = self._files.get(self._log_path)
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

    # --------------------------------------------------------------------------------------------------------
    # changing

    def prepare_truncation(self) -> None:
        """Loads into memory the derived data that cannot be trusted once the checksums are removed.  Raises
        OSError, InvalidBatch."""
        self.keep_indexes()
        len(self.transactions)

    def truncate_to_position(self, position: int, next_offset: int) -> None:
        """Truncates the file and the indexes at a batch boundary, durably.  `prepare_truncation` ran before,
        and the checksums are gone, durably."""
        self.index.truncate(position)
        self.time_index.truncate(next_offset)
        self._keep_transactions([entry for entry in self.transactions if entry.last_offset < next_offset])
        self.file_to_write.truncate(position)
        self.file_to_write.sync_data()
        self.truncate_transaction_index()
        if self._dirty_transactions is not None:
            self._dirty_transactions.sync_data()
            self.transactions_dirty = False
        self.written_is_durable(transactions_too=True)
        self.size_bytes, self.next_offset = position, next_offset
        # The truncation may remove markers whose committed transactions are no longer among the runs:
        # counting begins anew.
        self.counts = None if position else CountIndex(self.base_offset, self._interval, next_offset)
        if not position:
            self.first_timestamp_ms = None
        self._restore_max_timestamp()

    def _restore_max_timestamp(self) -> None:
        """After a truncation: the greatest timestamp is that of the last entry, or of the batches behind the
        last indexed one."""
        self._last_indexed = self.index.entry(-1)[1] if len(self.index) else 0
        self.max_timestamp_ms, self.offset_of_max_timestamp = self.time_index.last
        for _position, header, _view in scan_batches(self.file, self._last_indexed, self.size_bytes):
            if header.max_timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms, self.offset_of_max_timestamp = header.max_timestamp, header.base_offset

    def write_again(self, start: int) -> None:
        """Rewrites the bytes from `start` on as they are, so that the next sync covers them whatever happened
        before."""
        file = self.file_to_write
        for position in range(start, self.size_bytes, CHUNK_BYTES):
            file.write_at(position, file.read_at(position, min(CHUNK_BYTES, self.size_bytes - position)))

    def sync(self) -> None:
        """Makes the batches and the transaction index durable.  Any thread."""
        self.file.sync_data()
        transactions = self._dirty_transactions
        if self.transactions_dirty and transactions is not None:
            self.transactions_dirty = False
            transactions.sync_data()

    def sync_cleaned(self, end_offset: int) -> None:
        """Makes a cleaned segment and all its files durable.  `end_offset`: where the segments that it
        replaces end.  Any thread."""
        self.sync()
        for path, data in self.encoded_indexes(end_offset).items():
            self._disk.write_atomic(path, data)
        self._disk.sync_directory(self.directory)
        self.written_is_durable(transactions_too=True)

    def hold(self) -> None:
        """Keeps the file open, also when it is renamed or removed.  Raises OSError."""
        self._dirty_file = self.file

    def stand_in(self, next_offset: int) -> None:
        """A cleaned segment takes the place of others and ends, for look-ups, where they ended.  Its files
        may be renamed at any time from now on, so it holds them open until `adopt`.  Raises OSError with
        nothing changed."""
        assert next_offset >= self.next_offset
        assert self._extension
        self.hold()
        if self.counts is not None:
            self.counts.absent += next_offset - self.next_offset
        self.next_offset = next_offset

    def adopt(self) -> None:
        """The files of a cleaned segment have their final names."""
        self.close()
        self._extension = ""
        self._log_path = self.path("log")
        self._files.forget(self._log_path)  # a late reader of the old segment may have opened the old file
        self.indexes_are_durable()

    def close(self) -> None:
        """Releases files and indexes; a file is closed when no other thread reads it."""
        self._dirty_file = self._dirty_transactions = None
        self._forget_files()

    def _forget_files(self) -> None:
        self._files.forget(self.path("log"))
        self._files.forget(self.path("txnindex"))
        self._files.index_gone(self)

    def remove(self) -> None:
        """Removes all files of the segment, the data first: without it, the rest has no meaning after a
        crash."""
        self.close()
        self._discard_files()

    def take_name_away(self) -> list[Path]:
        """Renames the data, which can be repeated, and removes the derived files.  Returns the files to
        unlink.  Any thread."""
        path = self.path("log")
        gone = path.with_name(path.name + DELETED)
        if self._disk.exists(path):
            self._disk.rename(path, gone)
        self._forget_files()  # and no more: a flush that has not begun may hold them
        self._discard_files()
        return [gone]

    def _discard_files(self) -> None:
        for suffix in SEGMENT_SUFFIXES:
            if self._disk.exists(self.path(suffix)):
                self._disk.remove(self.path(suffix))
