"""Decides which records a cleaning keeps, batch by batch.  Pure: no I/O, no clock; `cleaner.py` reads, writes
and swaps.

A cleaning goes over a log twice.  First over its dirty part, to learn the newest offset of every key
(`KeyMap`, `note_keys`); then over everything from the log's start to where the map ends, to decide about each
batch (`Compaction.keep`).  Offsets, order and codecs never change; records go, and then batches.  Of each
batch, in this order:

1. Beyond the map's end (the map was full): the batch stays as it is.
2. Records of an aborted transaction go, whatever their key (docs/semantics.md C2).  Whether one is aborted
   is asked of the transaction index of the whole log, by producer and offset, so it does not matter where a
   segment or a group of segments ends.
3. A record goes when the map knows a newer one of its key; likewise a record without a key.
4. A tombstone, a record without a value, that is its key's newest stays until the delete horizon.  The first
   cleaning that meets it writes the horizon (now + delete.retention.ms) into its batch; a later one finds
   that it has passed.  So a reader that gets from the log's start to its end within that time sees every
   deletion.
5. A transaction marker stays as long as batches of its transaction stay, and from then on until its own
   horizon (rule C4).  Which producers have batches since their last marker is carried over segments and
   groups (rule C4): a marker that went early would leave its transaction open for ever.
6. What a replay must find of each live producer stays (rule C5, `producers.py`): a batch, emptied when no
   record of it does, or a marker, whole.  The last batch of everything that is cleaned stays likewise, so
   that the log's end does not fall.
"""

from __future__ import annotations

from array import array
from collections.abc import Set
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct

from ...wire.records import BatchHeader, decode_marker
from ..segment.transaction_index import AbortedRanges
from .records import delete_horizon_ms, records_bytes, rewritten, scan_records

HASH_BYTES = 16
SLOT_BYTES = HASH_BYTES + 8
_LOAD_FACTOR = 0.75
"""Above this load, look-ups with open addressing become long."""
_PIECE_SLOTS = 1 << 16
_HORIZON_MS_MAX = 2**63 - 1  # it takes the place of a timestamp of a batch
_HALVES = Struct("<QQ").unpack


class KeyMap:
    """Newest offset per key, in a table of a fixed size: 16 bytes of hash and 8 of offset a slot, however
    long the keys.

    Two keys with the same 128-bit hash would count as one key; no such pair can be found (BLAKE2b).
    """

    __slots__ = ("_high", "_low", "_offsets", "_slots", "end_offset", "keys_max", "size")

    def __init__(self, memory_bytes: int, keys_wanted: int) -> None:
        """Room for `keys_wanted` keys, or for as many as `memory_bytes` allow."""
        slots = max(2, min(memory_bytes // SLOT_BYTES, int(keys_wanted / _LOAD_FACTOR) + 2))
        self._slots = slots
        self._high = _filled("Q", 0, slots)
        self._low = _filled("Q", 0, slots)
        self._offsets = _filled("q", -1, slots)
        self.keys_max = max(1, int(slots * _LOAD_FACTOR))
        self.size = 0
        self.end_offset = 0
        """The map has the keys of the records below this offset."""

    @property
    def memory_bytes(self) -> int:
        return SLOT_BYTES * self._slots

    @property
    def is_full(self) -> bool:
        return self.size >= self.keys_max

    def _slot(self, key: bytes) -> tuple[int, int, int]:
        high, low = _HALVES(blake2b(key, digest_size=HASH_BYTES).digest())
        highs, lows, offsets, slots = self._high, self._low, self._offsets, self._slots
        slot = high % slots
        while offsets[slot] >= 0 and (highs[slot] != high or lows[slot] != low):
            slot += 1
            if slot == slots:
                slot = 0
        return slot, high, low

    def put(self, key: bytes, offset: int) -> None:
        """Offsets rise.  The map must not be full."""
        slot, high, low = self._slot(key)
        if self._offsets[slot] < 0:
            assert not self.is_full
            self._high[slot], self._low[slot] = high, low
            self.size += 1
        self._offsets[slot] = offset

    def get(self, key: bytes) -> int:
        """The newest offset of `key`; -1 when the map does not know it."""
        # Asked for every record of the log: `_slot` in place, without a call.
        high: int
        low: int
        high, low = _HALVES(blake2b(key, digest_size=HASH_BYTES).digest())
        highs, lows, offsets, slots = self._high, self._low, self._offsets, self._slots
        slot = high % slots
        while (offset := offsets[slot]) >= 0 and (highs[slot] != high or lows[slot] != low):
            slot += 1
            if slot == slots:
                slot = 0
        return offset


def _filled(kind: str, value: int, slots: int) -> array[int]:
    """Fills in pieces: filling many megabytes at once would hold up the other threads."""
    piece = array(kind, [value]) * min(slots, _PIECE_SLOTS)
    column = array(kind)
    while len(column) < slots:
        column.extend(piece[: slots - len(column)])
    return column


def note_keys(
    keys: KeyMap, aborted: AbortedRanges, view: memoryview, header: BatchHeader, start_offset: int
) -> bool:
    """Takes a batch of the dirty part, which begins at `start_offset`, into the map; False when the map
    became full."""
    if header.next_offset <= start_offset:
        return True
    aborts = header.is_transactional and aborted.holds(header.producer_id, header.base_offset)
    if not header.is_control and not aborts and header.record_count:
        for record in scan_records(records_bytes(view, header), header):
            if record.offset < start_offset or record.key is None:
                continue
            if keys.is_full and keys.get(record.key) < 0:
                return False
            keys.put(record.key, record.offset)
            keys.end_offset = record.offset + 1
    keys.end_offset = header.next_offset
    return True


@dataclass(slots=True)
class CleaningCounts:
    """What one cleaning did."""

    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    batches_kept: int = 0
    batches_changed: int = 0
    """Rewritten or gone."""


class Compaction:
    """Decides about the batches of one cleaning, in the order of their offsets; one object for all groups of
    segments."""

    def __init__(
        self,
        keys: KeyMap,
        aborted: AbortedRanges,
        kept_offsets: Set[int],
        *,
        now_ms: int,
        delete_retention_ms: int,
        end_offset: int,
    ) -> None:
        """`kept_offsets` of `producers.offsets_to_keep`; `end_offset` is where the last segment that is
        rewritten ends."""
        self._keys = keys
        self._aborted = aborted
        self._kept_offsets = kept_offsets
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, _HORIZON_MS_MAX)
        self._end_offset = end_offset
        self._with_batches: set[int] = set()
        """Producers with a transactional batch that stays and whose marker has not come yet."""
        self.counts = CleaningCounts()
        self.next_horizon_ms: int | None = None
        """The first delete horizon that is still to come: from then on another cleaning removes more, new
        records or not."""
        self.kept_markers: set[int] = set()
        """Offsets of the markers that stay, and with them their entries in the transaction index."""

    def keep(self, view: memoryview, header: BatchHeader) -> bytes | memoryview | None:
        """The batch as it stays, `view` itself when it does not change; None when it is removed.  Raises
        KafkaError when it cannot be read."""
        self.counts.records_read += header.record_count
        kept = self._keep_marker(view, header) if header.is_control else self._keep_data(view, header)
        if kept is not view:
            self.counts.batches_changed += 1
        if kept is not None:
            self.counts.batches_kept += 1
            if header.is_control:
                self.kept_markers.add(header.base_offset)
            elif header.is_transactional:
                self._with_batches.add(header.producer_id)
        return kept

    def _is_needed(self, header: BatchHeader) -> bool:
        """Whether a data batch stays even without records."""
        return header.next_offset >= self._end_offset or header.last_offset in self._kept_offsets

    # ---- data ----------------------------------------------------------------------------------------------

    def _keep_data(self, view: memoryview, header: BatchHeader) -> bytes | memoryview | None:
        if header.base_offset >= self._keys.end_offset:
            self.counts.records_kept += header.record_count
            return view
        if not header.record_count:
            return view if self._is_needed(header) else None
        if header.is_transactional and self._aborted.holds(header.producer_id, header.base_offset):
            return rewritten(header, b"", ()) if self._is_needed(header) else None
        data = records_bytes(view, header)
        records = scan_records(data, header)
        horizon_ms = delete_horizon_ms(header)
        deletes_stay = horizon_ms is None or self._now_ms < horizon_ms
        newest_of, map_end = self._keys.get, self._keys.end_offset
        kept = []
        tombstones = 0
        for record in records:
            if record.offset < map_end:
                if record.key is None:
                    self.counts.records_without_key += 1
                    continue
                if record.offset < newest_of(record.key) or not (record.has_value or deletes_stay):
                    continue
            if not record.has_value:
                tombstones += 1
            kept.append(record)
        self.counts.records_kept += len(kept)
        new_horizon_ms = self._horizon_ms if tombstones and horizon_ms is None else None
        if tombstones:
            self._note_horizon(self._horizon_ms if horizon_ms is None else horizon_ms)
        if len(kept) == len(records) and new_horizon_ms is None:
            return view
        if not kept and not self._is_needed(header):
            return None
        return rewritten(header, data, kept, new_horizon_ms)

    # ---- markers -------------------------------------------------------------------------------------------

    def _keep_marker(self, view: memoryview, header: BatchHeader) -> bytes | memoryview | None:
        if header.base_offset >= self._keys.end_offset:
            self._with_batches.discard(header.producer_id)
            return view
        if header.record_count and decode_marker(view) is None:
            return view  # a control record of an unknown kind
        has_batches = header.producer_id in self._with_batches
        self._with_batches.discard(header.producer_id)
        if has_batches or header.next_offset >= self._end_offset or self._is_last_marker(header):
            return view
        horizon_ms = delete_horizon_ms(header)
        if not header.record_count or (horizon_ms is not None and horizon_ms <= self._now_ms):
            return None
        self._note_horizon(self._horizon_ms if horizon_ms is None else horizon_ms)
        if horizon_ms is not None:
            return view
        data = records_bytes(view, header)
        return rewritten(header, data, scan_records(data, header), self._horizon_ms)

    def _note_horizon(self, horizon_ms: int) -> None:
        if horizon_ms >= self._now_ms and (self.next_horizon_ms is None or horizon_ms < self.next_horizon_ms):
            self.next_horizon_ms = horizon_ms

    def _is_last_marker(self, header: BatchHeader) -> bool:
        return header.last_offset in self._kept_offsets
