"""Compares what each member reported as durable with what it finds on its disk when it starts again.

A lost acknowledgement or vote does harm only in coincidences; this check finds the loss itself, at the next
start. The promises are the entries that a journal reported as durable or that were acknowledged, unless a
conflict has truncated them since, and every granted vote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....controller.raft.messages import AppendReply, Entry, Message, VoteReply, VoteRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....controller.raft.journal import DurableJournal


@dataclass(slots=True)
class Promises:
    """Of one disk."""

    index: int = 0
    term: int = 0  # of the entry at `index`
    vote_term: int = 0
    vote: int | None = None

    def of_journal(self, journal: DurableJournal) -> None:
        """It calls this durable."""
        if journal.durable_index > self.index:
            self._entry(journal, journal.durable_index)

    def sent(self, journal: DurableJournal, message: Message) -> None:
        """This has left the member."""
        match message:
            case AppendReply(success=True, next_index=next_index) if next_index - 1 > self.index:
                self._entry(journal, next_index - 1)
            case VoteReply(granted=True, preliminary=False) | VoteRequest(preliminary=False):
                self.vote_term, self.vote = journal.term, journal.voted_for
            case _:
                pass  # it promises nothing

    def _entry(self, journal: DurableJournal, index: int) -> None:
        position = index - journal[0][1]
        if 0 <= position < len(journal):
            self.index, self.term = index, journal[position][2]

    def cut_after(self, entry: Entry) -> None:
        """A conflict: what comes after this entry is promised no more."""
        if entry[1] < self.index:
            self.index, self.term = entry[1], entry[2]

    def watch(self, journal: DurableJournal) -> None:
        """Notes a truncation before it happens: a truncation that a crash interrupts is no loss."""
        cut, reset = journal.truncate_from, journal.reset

        def watched_cut(index: int) -> None:
            self.cut_after(journal[index - 1 - journal[0][1]])
            cut(index)

        def watched_reset(entries: Sequence[Entry]) -> None:
            self.cut_after(entries[-1])
            reset(entries)

        journal.truncate_from = watched_cut  # type: ignore[method-assign]
        journal.reset = watched_reset  # type: ignore[method-assign]

    def missing_in(self, journal: DurableJournal) -> str:
        """What a member that starts again has lost; "" when nothing."""
        # no loss leaves that: a snapshot of a newer term, and a crash before the cut
        if journal[-1][2] > self.term:
            self.cut_after(journal[-1])
        position = self.index - journal[0][1]
        if position >= len(journal) or (position > 0 and journal[position][2] != self.term):
            return (
                f"entry {self.index} of term {self.term} was durable and is gone: the journal ends with "
                f"entry {journal[-1][1]}"
            )
        vote = (journal.term, journal.voted_for)
        if vote != (self.vote_term, self.vote) and vote[0] <= self.vote_term and self.vote is not None:
            return f"the vote for node {self.vote} in term {self.vote_term} is forgotten"
        return ""
