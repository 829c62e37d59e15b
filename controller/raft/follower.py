"""The follower: its log is made to agree with the leader's, by entries or by a snapshot (docs/raft.md Q6, Q7,
Q17).  Pure.

Only a conflict truncates the log, and never at or below the commit index: that would contradict a majority,
and stops the node.  Acknowledgements wait until `send_acknowledgements`: what they confirm is durable before.
"""

from __future__ import annotations

from ...runtime import logs
from .contract import Role
from .election import Election
from .failure import RaftFatal
from .messages import AppendEntries, AppendReply, Entry, SnapshotChunk, SnapshotReply
from .snapshot_store import SnapshotAssembly
from .state import StoreSnapshot, VoterState

log = logs.get(__name__)


class Follower:
    """Of one voter, whatever its role is: a frame of a newer leader makes it a follower."""

    def __init__(self, state: VoterState, election: Election) -> None:
        self._state, self._election = state, election
        self._replies: list[tuple[int, AppendReply | SnapshotReply]] = []
        self._assembly = SnapshotAssembly()

    def _accept_leader(self, leader: int, term: int) -> bool:
        """Whether `leader` leads in a term not older than this voter's; then this voter follows it."""
        state = self._state
        if term < state.term:
            # this voter's term deposes it
            self._replies.append((leader, self._append_reply(False, state.log.last_index + 1, 0)))
            return False
        if term > state.term:
            state.step_down(term)
        if state.role is Role.LEADER or state.leader_id not in (None, leader):
            raise RaftFatal(f"two leaders in term {term}: {leader} and {state.leader_id}")
        self._election.heard_leader()
        state.role, state.leader_id = Role.FOLLOWER, leader
        return True

    # ---- entries -------------------------------------------------------------------------------------------

    def on_append(self, leader: int, message: AppendEntries) -> None:
        if not self._accept_leader(leader, message.term):
            return
        state, log = self._state, self._state.log
        previous, previous_term, entries = message.previous_index, message.previous_term, message.entries
        first = log.first_index
        if previous < first:  # what is before this log is committed, so it agrees
            entries = tuple(entry for entry in entries if entry[1] > first)
            if not entries:
                self._reply(leader, True, first + 1, message.previous_index)
                return
            previous, previous_term = first, log.term_at(first)
        if previous > log.last_index:
            self._reply(leader, False, log.last_index + 1, message.previous_index)
            return
        if log.term_at(previous) != previous_term:
            again = log.start_of_term_at(previous, state.commit_index)
            self._reply(leader, False, again, message.previous_index)
            return
        match = self._append_missing(previous, entries)
        self._reply(leader, True, match + 1, message.previous_index)
        # only what this frame has shown to agree
        state.commit_index = max(state.commit_index, min(message.commit_index, match))

    def _append_missing(self, previous: int, entries: tuple[Entry, ...]) -> int:
        """Adds new entries, truncating only from a conflict on; returns the last index known to agree with
        the leader."""
        state, log = self._state, self._state.log
        for number, (_, index, term) in enumerate(entries):
            if index <= log.last_index:
                if log.term_at(index) == term:
                    continue
                state.truncate_from(index)
            state.append(entries[number:])
            break
        return entries[-1][1] if entries else previous

    # ---- a snapshot ----------------------------------------------------------------------------------------

    def on_snapshot_chunk(self, leader: int, chunk: SnapshotChunk) -> None:
        if not self._accept_leader(leader, chunk.term):
            return
        state, assembly = self._state, self._assembly
        snapshot = assembly.add(chunk)
        if snapshot is None:
            received = len(assembly.received) if assembly.checksum == chunk.checksum else 0
            self._replies.append((leader, self._snapshot_reply(chunk, received, 0)))
            return
        if snapshot.index > state.applied_index:
            state.ready.persist.append(StoreSnapshot(snapshot))  # durable before anything is dropped for it
            state.snapshot = snapshot
            state.install(snapshot)
            log.info(
                "quorum_snapshot_installed",
                index=snapshot.index,
                term=snapshot.term,
                file_bytes=len(snapshot.file),
            )
        self._replies.append((leader, self._snapshot_reply(chunk, chunk.total_bytes, state.applied_index)))

    # ---- acknowledgements ----------------------------------------------------------------------------------

    def send_acknowledgements(self) -> None:
        """Sends those that wait: everything that they confirm is durable then."""
        if not self._replies:
            return
        state = self._state
        state.must_sync()
        replies, self._replies = self._replies, []
        for leader, reply in replies:
            if reply.term == state.term:  # else it was given in an older term: its promise may not hold
                state.send(leader, reply)

    def _reply(self, leader: int, success: bool, next_index: int, previous_index: int) -> None:
        """Of several successes to one leader only the highest matters."""
        reply = self._append_reply(success, next_index, previous_index)
        if success:
            self._replies = [
                (to, kept)
                for to, kept in self._replies
                if not (
                    to == leader
                    and isinstance(kept, AppendReply)
                    and kept.success
                    and kept.next_index <= next_index
                )
            ]
        self._replies.append((leader, reply))

    def _append_reply(self, success: bool, next_index: int, previous_index: int) -> AppendReply:
        state = self._state
        return AppendReply(state.term, success, next_index, previous_index, state.journal_id, state.voting)

    def _snapshot_reply(self, chunk: SnapshotChunk, received: int, last_index: int) -> SnapshotReply:
        state = self._state
        return SnapshotReply(state.term, chunk.checksum, received, last_index, state.journal_id, state.voting)
