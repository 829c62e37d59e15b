"""How a follower's journal is made to agree with its leader's, and with a snapshot.  Pure but for the
journal.

Only a conflict truncates the journal, and never at or below the commit index: that would contradict a
majority, and stops the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .failure import RaftFatal
from .messages import NO_OP

if TYPE_CHECKING:
    from .journal import DurableJournal
    from .messages import Entry
    from .snapshot_store import Snapshot


def align(journal: DurableJournal, snapshot: Snapshot) -> None:
    """Makes journal and snapshot meet: the entry of the snapshot's index stays or becomes part of the
    journal.

    A tail that conflicts with the snapshot, or ends before it, is left over from an installation that a crash
    interrupted after the snapshot was durable: nothing in it can have been committed."""
    first, last = journal[0][1], journal[-1][1]
    if snapshot.index < first:
        raise RaftFatal(f"the journal begins at entry {first}, after the snapshot of entry {snapshot.index}")
    if snapshot.index > last or journal[snapshot.index - first][2] != snapshot.term:
        journal.reset([(NO_OP, snapshot.index, snapshot.term)])


def conflict_start(journal: DurableJournal, commit_index: int, index: int) -> int:
    """The first entry of the term at `index`: the leader skips a whole conflicting term at once."""
    if index <= commit_index:
        raise RaftFatal(f"the leader contradicts committed entry {index}")
    first = journal[0][1]
    term = journal[index - first][2]
    while index - 1 > commit_index and journal[index - 1 - first][2] == term:
        index -= 1
    return index


def append_missing(
    journal: DurableJournal, commit_index: int, previous: int, entries: tuple[Entry, ...]
) -> int:
    """Adds new entries, truncating only from a conflict on; returns the last index known to agree with the
    leader."""
    first = journal[0][1]
    for number, (_, index, term) in enumerate(entries):
        position = index - first
        if position < len(journal):
            if journal[position][2] == term:
                continue
            if index <= commit_index:
                raise RaftFatal(f"the leader would overwrite committed entry {index}")
            journal.deleteEntriesFrom(position)
        for entry in entries[number:]:
            journal.add(*entry)
        break
    return entries[-1][1] if entries else previous
