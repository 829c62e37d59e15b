"""The entries of a voter in memory, from the last trim on.  Pure: `state` says what of it is to be persisted.

The first entry is the no-op with which every log begins, or the last one that a snapshot stands for: it is
committed, and its term is known.  So there is always an entry before the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .failure import RaftFatal
from .messages import Entry

RECORD_OVERHEAD_BYTES = 32  # of an entry in the journal, beside its command
VALIDATED_ENTRIES_MAX = 32


class RaftLog:
    """Entries by index.  `entries` is for reading only."""

    __slots__ = ("entries", "size_bytes", "stable_index")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)
        self.stable_index = self.last_index
        """The last entry that is on this disk, or is there once this step's changes are persisted."""
        self.size_bytes = _size_bytes(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def first_index(self) -> int:
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        return self.entries[-1][1]

    @property
    def last_term(self) -> int:
        return self.entries[-1][2]

    def term_at(self, index: int) -> int:
        return self.entries[index - self.entries[0][1]][2]

    def between(self, first: int, last: int) -> list[Entry]:
        """The entries from index `first` to index `last`, both included."""
        begin = self.entries[0][1]
        return self.entries[first - begin : last + 1 - begin]

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends there is at least as far as this one: the last term decides, then the
        length."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def start_of_term_at(self, index: int, commit_index: int) -> int:
        """The first entry of the term at `index`, which contradicts the leader's: the leader skips a whole
        conflicting term at once."""
        if index <= commit_index:
            raise RaftFatal(f"the leader contradicts committed entry {index}")
        term = self.term_at(index)
        while index - 1 > commit_index and self.term_at(index - 1) == term:
            index -= 1
        return index

    # ---- changes (only by `VoterState`, which has them persisted) ------------------------------------------

    def extend(self, entries: Sequence[Entry]) -> None:
        last, size = self.last_index, RECORD_OVERHEAD_BYTES * len(entries)
        for command, index, _ in entries:
            if index != last + 1:
                raise RaftFatal(f"entry {index} after entry {last}")
            last = index
            size += len(command)
        self.entries += entries
        self.size_bytes += size

    def truncate_from(self, index: int) -> None:
        position = index - self.first_index
        self.size_bytes -= _size_bytes(self.entries[position:])
        del self.entries[position:]

    def trim_to(self, index: int) -> None:
        """Entry `index` becomes the first one."""
        position = index - self.first_index
        self.size_bytes -= _size_bytes(self.entries[:position])
        del self.entries[:position]

    def replace(self, entry: Entry) -> None:
        """This entry becomes the only one."""
        self.entries[:] = [entry]
        self.size_bytes = _size_bytes(self.entries)

    def validate(self) -> None:
        """Raises AssertionError for indexes with a gap, and for a term that falls, among the newest
        entries."""
        newest = self.entries[-VALIDATED_ENTRIES_MAX:]
        for before, entry in itertools.pairwise(newest):
            assert entry[1] == before[1] + 1, f"entry {entry[1]} follows entry {before[1]}"
            assert entry[2] >= before[2], f"term {entry[2]} of entry {entry[1]} follows term {before[2]}"
        assert self.stable_index <= self.last_index, f"stable {self.stable_index}, last {self.last_index}"


def _size_bytes(entries: Sequence[Entry]) -> int:
    return sum(RECORD_OVERHEAD_BYTES + len(command) for command, _, _ in entries)
