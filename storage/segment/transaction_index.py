"""The aborted transactions whose marker lies in one segment.  Pure; 34 bytes an entry, Kafka's `.txnindex`
(docs/semantics.md L6).

    check i16 | producer id i64 | first offset i64 | last offset i64 (the marker) | last stable offset i64

The last stable offset is that of the log once this transaction has ended. A reader stops there: a transaction
whose entry comes later in the index cannot have records below it.  An entry is written before the transaction
is published as complete, so a reader who may see the records finds their abort.

In place of the version in Kafka's index, 0, an entry has a negative number, its check: a reader that gets a
wrong producer or place would take aborted records for committed ones.  An entry with a 0 there is taken as it
is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

_ENTRY = Struct(">hqqqq")
_CHECK = Struct(">h")
ENTRY_BYTES = _ENTRY.size
_UNCHECKED = 0
_CHECKS = 32767  # so that no check, with its sign lost, is 0


class AbortedTransaction(NamedTuple):
    """A producer's records from `first_offset` up to its abort marker, at `last_offset`, are void."""

    producer_id: int
    first_offset: int
    last_offset: int


class TransactionIndexEntry(NamedTuple):
    """One aborted transaction as stored in the index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        body = _ENTRY.pack(0, *self)
        return _CHECK.pack(_check(body)) + body[_CHECK.size :]


def _check(entry: bytes) -> int:
    return -1 - crc32c(entry[_CHECK.size :]) % _CHECKS


def decode_transaction_index(data: bytes) -> list[TransactionIndexEntry]:
    """Reads an index file.  Raises ValueError when an entry is invalid: then the index must be rebuilt from
    the log."""
    if len(data) % ENTRY_BYTES:
        raise ValueError(f"its size, {len(data)}, is not a multiple of {ENTRY_BYTES}")
    entries: list[TransactionIndexEntry] = []
    for position in range(0, len(data), ENTRY_BYTES):
        check, producer_id, first, last, stable = _ENTRY.unpack_from(data, position)
        if check not in (_UNCHECKED, _check(data[position : position + ENTRY_BYTES])):
            raise ValueError(f"entry {len(entries)} fails its check")
        if producer_id < 0 or not 0 <= first < last or stable < 0:
            raise ValueError(f"entry {len(entries)} cannot be")
        if entries and last <= entries[-1].last_offset:
            raise ValueError(f"entry {len(entries)} does not follow the one before it")
        entries.append(TransactionIndexEntry(producer_id, first, last, stable))
    return entries


def collect_aborted(
    entries: list[TransactionIndexEntry],
    start_offset: int,
    upper_offset: int,
    found: list[AbortedTransaction],
) -> bool:
    """Adds the transactions that overlap [start_offset, upper_offset) to `found`; True when no later entry
    can overlap."""
    for entry in entries:
        if entry.last_offset >= start_offset and entry.first_offset < upper_offset:
            found.append(AbortedTransaction(*entry[:3]))
        if entry.last_stable_offset >= upper_offset:
            return True
    return False


class AbortedRanges:
    """Which (producer, offset) belongs to an aborted transaction, by the entries of a log's transaction
    index."""

    __slots__ = ("_of_producer",)

    def __init__(self, entries: Iterable[TransactionIndexEntry]) -> None:
        self._of_producer: dict[int, tuple[list[int], list[int]]] = {}
        for entry in sorted(entries, key=lambda each: each.first_offset):
            firsts, lasts = self._of_producer.setdefault(entry.producer_id, ([], []))
            firsts.append(entry.first_offset)
            lasts.append(entry.last_offset)

    def holds(self, producer_id: int, offset: int) -> bool:
        found = self._of_producer.get(producer_id)
        if found is None:
            return False
        at = bisect_right(found[0], offset) - 1
        return at >= 0 and offset <= found[1][at]
