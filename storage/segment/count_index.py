"""How many data records one segment has below an offset, so that a count reads only a few batch headers.
Pure.

    offset u32 | position u32 | records u32                  one *entry* for every few index intervals: data
                                                             records before it
    producer id i64 | first u32 | last u32 | records u32     one *run*: records of one producer's transaction

Offsets are relative to the segment's base.

The total of a segment and its entries count every data record, aborted ones too; markers count nowhere.
Whether a transaction is aborted is decided long after its records were counted, often in another segment.  So
the index keeps them as runs, and a count asks the transaction index which runs are void.  A run whose COMMIT
marker is in the same segment is dropped with it: the remaining runs are those of aborted transactions and of
the few transactions that reach over the segment's end.

Everything here follows from the bytes of one segment alone.  That is what makes it simple to keep right:
cleaning another segment changes nothing here, and to build it again takes a walk over the headers of this
segment only.

A transaction may be long; its run ends after `RUN_BYTES` of the segment, and the next one begins.  So a count
that has to look into a run never walks over more than that.

The file `.countindex`:

    crc32c u32 of what follows, runs included | version u16 | 0 u16 | segment bytes u32 | records u32 | runs
        u32 | entries u32
    | position u32 of the last entry | crc u32 of the batch that begins there | crc32c u32 of the entries
    runs ... | entries ...

It holds for a segment of exactly that size whose batch at the last entry has exactly that checksum; any other
is of an earlier life of the segment (an older version of this software, which does not know the file, may
have cleaned it) and counts for nothing. An *empty* file says that nothing is known.  No file is ever needed:
what is missing is built when a count asks for it.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from crc32c import crc32c

from ...wire.records import BatchHeader, ControlType, Marker
from ..checkpoint import Versions
from ..producers.producer_state import CompletedTransaction

INTERVALS_PER_ENTRY = 16
"""Index intervals between two entries: with the default of 4 KiB, at most 64 KiB of batches are walked over
at an end."""
RUN_BYTES = 1 << 20
HEAD = Struct(">IHHIIIIIII")
RUN = Struct(">qIII")
ENTRY = Struct(">III")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
TRANSACTIONAL_OR_CONTROL = _TRANSACTIONAL | _CONTROL
"""Attributes of batches that a plain record count does not describe."""
_CRC_BYTES = 4

IsVoid = Callable[[int, int], bool]
"""(producer id, offset) -> whether the record there is one of an aborted transaction."""


class CountIndexInvalid(ValueError):
    """The file cannot be used: it is damaged, or belongs to another life of the segment."""


class Run(NamedTuple):
    """`records` data records of one transaction's batches, whose offsets lie in [first, last]."""

    producer_id: int
    first: int
    last: int
    records: int


class Total(NamedTuple):
    """What a count needs of a segment that lies wholly inside its range."""

    records: int
    runs: tuple[Run, ...]

    def committed(self, is_void: IsVoid) -> int:
        return self.records - sum(run.records for run in self.runs if is_void(run.producer_id, run.first))


class CountEntry(NamedTuple):
    """An entry: `records` data records stand before the batch that begins at byte `position`, with `offset`
    or above."""

    offset: int
    position: int
    records: int


class CountBelow(NamedTuple):
    """Records below `offset`: `known`, and besides those of the batches from `position` on that the walk
    finds there, except those of `void` producers from the offset on that stands beside them.  `position` is
    -1 when no walk is needed."""

    known: int
    offset: int
    position: int
    void: dict[int, int]


class CountIndex:
    """Counts for the batches from byte `start_position` on, where no batch below `start_offset` stands; 0 for
    a whole segment.

    One that is not whole is what a segment has whose beginning was not counted when the process began to
    append to it.

    While batches are appended, what is counted is their opposite, the offsets without a data record:
    producers' batches have none, so that appending them costs nothing here.  The segment knows where it ends,
    and so how many records there are.
    """

    __slots__ = (
        "_counts", "_earlier", "_every", "_offsets", "_open", "_positions", "_runs", "absent", "base_offset",
        "next_entry_at",
        "start_offset", "start_position",
    )  # fmt: skip

    def __init__(
        self, base_offset: int, index_interval_bytes: int, start_offset: int = -1, start_position: int = 0
    ) -> None:
        self.base_offset = base_offset
        self.start_offset = max(start_offset, base_offset)
        self.start_position = start_position
        self.absent = 0
        """Offsets from the start to the segment's end without a data record: markers, and what compaction has
        removed."""
        self.next_entry_at = start_position
        """The index of offsets gets an entry at or behind this byte: so does this one (`mark`)."""
        self._every = INTERVALS_PER_ENTRY * index_interval_bytes
        self._offsets, self._positions, self._counts = array("I"), array("I"), array("I")
        self._runs: list[Run] = []
        # Of transactions without a marker yet: the last run (first, last, records, byte where it is full),
        # and those before it.
        self._open: dict[int, list[int]] = {}
        self._earlier: dict[int, list[Run]] = {}
        if start_position:
            self.mark(self.start_offset, start_position)

    @property
    def is_whole(self) -> bool:
        return not self.start_position

    @property
    def last_position(self) -> int:
        """Of the last entry; -1 when there is none."""
        return self._positions[-1] if self._positions else -1

    # ---- counting ------------------------------------------------------------------------------------------

    def mark(self, end_offset: int, position: int) -> None:
        """An entry for byte `position`; the batches in front of it end at `end_offset`."""
        self._offsets.append(end_offset - self.base_offset)
        self._positions.append(position)
        self._counts.append(end_offset - self.start_offset - self.absent)
        self.next_entry_at = position + self._every

    def take(self, header: BatchHeader, base_offset: int, position: int, missing_before: int) -> None:
        """Notes the transaction, control records and missing offsets of a batch, after `mark`.
        `missing_before`: the offsets missing before it."""
        # in one go: on the way of appends
        _, _, _, _, _, attributes, last_delta, _, _, producer_id, _, _, records = header
        run = self._open.get(producer_id)
        if attributes & _CONTROL:
            self.absent += missing_before + last_delta + 1
            if run is not None:
                run[3] = -1  # later records belong to the next transaction
            return
        self.absent += missing_before + last_delta + 1 - records
        if not attributes & _TRANSACTIONAL or not records:
            return
        if run is not None and position < run[3]:
            run[1] = base_offset + last_delta
            run[2] += records
            return
        if run is not None:
            self._earlier.setdefault(producer_id, []).append(Run(producer_id, *run[:3]))
        self._open[producer_id] = [base_offset, base_offset + last_delta, records, position + RUN_BYTES]

    def end_transaction(self, marker: Marker) -> None:
        """By a marker among the batches that were taken."""
        self._end(marker.producer_id, marker.offset, is_aborted=marker.control_type is ControlType.ABORT)

    def end_transactions(self, ended: Iterable[CompletedTransaction]) -> None:
        """Like `end_transaction`, from the markers that the producer state has processed."""
        for each in ended:
            self._end(each.producer_id, each.last_offset, is_aborted=each.is_aborted)

    def _end(self, producer_id: int, marker_offset: int, *, is_aborted: bool) -> None:
        """Keeps or forgets the runs below the marker: records of a committed transaction count like all
        others."""
        run = self._open.pop(producer_id, None)
        if run is None:
            return
        runs = self._earlier.pop(producer_id, [])
        if run[1] < marker_offset:
            runs.append(Run(producer_id, *run[:3]))
        else:  # the next transaction has begun in the same append
            self._open[producer_id] = run
            newer = [each for each in runs if each.last > marker_offset]
            if newer:
                self._earlier[producer_id] = newer
        if is_aborted:
            self._runs += [each for each in runs if each.last < marker_offset]

    def prepend(self, before: CountIndex) -> None:
        """`before` is whole, and ends where this one begins: from now on, this one is whole."""
        assert before.is_whole
        assert not self.is_whole
        shift = before.total(self.start_offset).records
        # Without the entry with which this one began: no batch may have come there.
        self._offsets = before._offsets + self._offsets[1:]
        self._positions = before._positions + self._positions[1:]
        self._counts = before._counts + array("I", [records + shift for records in self._counts[1:]])
        self._runs = [*before.total(self.start_offset).runs, *self._runs]
        self.absent += before.absent + before.start_offset - self.base_offset
        self.start_offset, self.start_position = self.base_offset, 0

    # ---- reading -------------------------------------------------------------------------------------------

    def total(self, end_offset: int) -> Total:
        """As of now; `end_offset`: where the segment ends."""
        earlier = [run for runs in self._earlier.values() for run in runs]
        still_open = [Run(producer_id, *run[:3]) for producer_id, run in self._open.items()]
        return Total(end_offset - self.start_offset - self.absent, (*self._runs, *earlier, *still_open))

    def entries(self) -> Iterator[CountEntry]:
        for offset, position, records in zip(self._offsets, self._positions, self._counts, strict=True):
            yield CountEntry(self.base_offset + offset, position, records)

    def copy(self) -> CountIndex:
        """As of now, for another thread to look into."""
        copied = CountIndex(self.base_offset, self._every)
        copied.start_offset, copied.start_position, copied.absent = (
            self.start_offset,
            self.start_position,
            self.absent,
        )
        copied._offsets, copied._positions, copied._counts = (
            self._offsets[:],
            self._positions[:],
            self._counts[:],
        )
        copied._runs = list(self.total(0).runs)
        return copied

    def floor(self, offset: int) -> CountEntry:
        """The last entry that is not above `offset`, or the first one."""
        at = max(0, bisect_right(self._offsets, max(0, offset - self.base_offset)) - 1)
        return CountEntry(self.base_offset + self._offsets[at], self._positions[at], self._counts[at])

    def below(self, offset: int, end_offset: int, is_void: IsVoid) -> CountBelow:
        """The records below `offset` that do not belong to void transactions.  `end_offset`: where the
        segment ends."""
        total = self.total(end_offset)
        if offset <= self.start_offset or not self._positions:
            return CountBelow(0, offset, -1, {})
        if offset >= end_offset:
            return CountBelow(total.committed(is_void), offset, -1, {})
        void = [run for run in total.runs if run.first < offset and is_void(run.producer_id, run.first)]
        void_from = {run.producer_id: run.first for run in void if run.last >= offset}
        place = self.floor(min((offset, *void_from.values())))
        known = place.records - sum(run.records for run in void if run.last < offset)
        return CountBelow(known, offset, -1 if place.offset >= offset else place.position, void_from)

    # ---- file ----------------------------------------------------------------------------------------------

    def encode(self, segment_bytes: int, end_offset: int, batch_crc: int) -> bytes:
        """`batch_crc`: the checksum of the batch at `last_position`.  Only for a whole one."""
        assert self.is_whole
        rows = array("I", bytes(ENTRY.size * len(self._offsets)))
        rows[0::3], rows[1::3], rows[2::3] = self._offsets, self._positions, self._counts
        if sys.byteorder == "little":
            rows.byteswap()
        entries, base, total = rows.tobytes(), self.base_offset, self.total(end_offset)
        runs = b"".join(
            RUN.pack(run.producer_id, run.first - base, run.last - base, run.records) for run in total.runs
        )
        head = HEAD.pack(
            0, COUNT_INDEX_VERSIONS.writes, 0, segment_bytes, total.records, len(total.runs),
            len(self._offsets), max(0, self.last_position), batch_crc, crc32c(entries),
        )[_CRC_BYTES:]  # fmt: skip
        return crc32c(runs, crc32c(head)).to_bytes(_CRC_BYTES, "big") + head + runs + entries


class StoredCounts(NamedTuple):
    """The head of a file, and its runs: all that a count needs of a segment that lies wholly inside its
    range."""

    total: Total
    segment_bytes: int
    entries: int
    last_position: int
    batch_crc: int
    entries_crc: int

    @property
    def entries_at(self) -> int:
        """Where the entries begin in the file."""
        return HEAD.size + RUN.size * len(self.total.runs)


def runs_in(head: bytes) -> int:
    """How many runs follow on the head of a file; every version says it there.  Raises CountIndexInvalid."""
    try:
        return int(HEAD.unpack_from(head)[5])
    except struct_error:
        raise CountIndexInvalid(
            "it is empty" if not head else f"{len(head)} bytes are too few for a head"
        ) from None


def decode_head(data: bytes, base_offset: int) -> StoredCounts:
    """Reads what stands before the entries.  Raises CountIndexInvalid."""
    runs_in(data)
    version = HEAD.unpack_from(data)[1]
    if version not in COUNT_INDEX_VERSIONS.reads:
        raise CountIndexInvalid(f"it {COUNT_INDEX_VERSIONS.other(version)}")
    return COUNT_INDEX_VERSIONS.reads[version](data, base_offset)


def _read_version_1(data: bytes, base_offset: int) -> StoredCounts:
    runs = runs_in(data)
    crc, _, _, size, records, _, entries, last_position, batch_crc, entries_crc = HEAD.unpack_from(data)
    end = HEAD.size + RUN.size * runs
    if len(data) < end:
        raise CountIndexInvalid(f"{len(data)} bytes are too few for {runs} runs")
    if crc32c(data[_CRC_BYTES:end]) != crc:
        raise CountIndexInvalid("its checksum is wrong")
    if bool(entries) != bool(size):
        raise CountIndexInvalid(f"{entries} entries for {size} bytes")
    rows = RUN.iter_unpack(data[HEAD.size : end])
    total = Total(
        records,
        tuple(Run(pid, base_offset + first, base_offset + last, count) for pid, first, last, count in rows),
    )
    return StoredCounts(total, size, entries, last_position, batch_crc, entries_crc)


COUNT_INDEX_VERSIONS: Versions[Callable[[bytes, int], StoredCounts]] = Versions(
    {1: _read_version_1}, writes=1
)


def decode_count_index(
    data: bytes, base_offset: int, end_offset: int | None = None, index_interval_bytes: int = 1
) -> tuple[StoredCounts, CountIndex]:
    """Reads a whole file.  `end_offset`: where the segment ends; without it, it ends so that no offset is
    absent.

    Raises CountIndexInvalid.
    """
    stored = decode_head(data, base_offset)
    entries = data[stored.entries_at :]
    if len(entries) != ENTRY.size * stored.entries or crc32c(entries) != stored.entries_crc:
        raise CountIndexInvalid("its entries are damaged")
    rows = array("I")
    rows.frombytes(entries)
    if sys.byteorder == "little":
        rows.byteswap()
    index = CountIndex(base_offset, index_interval_bytes)
    index._offsets, index._positions, index._counts = rows[0::3], rows[1::3], rows[2::3]
    index._runs = list(stored.total.runs)
    if end_offset is not None:
        index.absent = end_offset - base_offset - stored.total.records
    index.next_entry_at = index.last_position + index._every if stored.entries else 0
    return stored, index
