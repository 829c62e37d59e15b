"""The promises of the quorum, compared with every member after each of its steps.

* every voter's own invariants (`RaftCore.validate`)
* one leader a term, and it has every entry that was committed before its term (leader completeness)
* log matching: an entry of one index and term is the same everywhere, and so is all before it
* committed entries never differ between members: order, commands, their results, the hash of the state, and
  at the end its bytes, also when the whole log is applied once more
* a commit index never goes back in one life; a member applies only committed entries
* real time: the result of a request has its place after everything that was acknowledged before the client
  sent it. As all members apply one sequence, that is linearizability, of reads behind the barrier and of
  writes
* a controller that becomes active has applied all entries that were acknowledged in earlier terms
* a member still has when it starts again all that it reported as durable (`promises`)
* a command with a name has one outcome, however often it was proposed

A broken promise raises Broken, with the command that repeats the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NoReturn

from ....controller.raft.contract import Role
from ....controller.raft.core import RaftCore
from ....controller.raft.messages import Entry
from ....controller.state.cluster_state import ClusterState
from ....controller.state.model import ApplyResult
from ....controller.state.validation import StateValidator, violations
from ....wire.errors import ErrorCode
from ..runs import Broken
from .options import QuorumOptions
from .promises import Promises
from .schedule import Schedule


class _Look:
    """The newest observation of one life of a member."""

    __slots__ = ("active_term", "commit_index", "entries", "led_term", "tail")

    def __init__(self) -> None:
        self.commit_index = 0
        self.led_term = -1
        self.active_term = -1
        self.tail: tuple[Entry, int] | None = None
        self.entries: dict[int, Entry] = {}


class Ledger:
    """Of one simulation."""

    def __init__(self, options: QuorumOptions, schedule: Schedule) -> None:
        self._options, self._schedule = options, schedule
        self.counts: Counter[str] = Counter()
        """What happened in this run, by name."""
        self.leaders: dict[int, int] = {}
        self.history: dict[int, tuple[bytes, int]] = {}
        self.last_index = 1
        self.acknowledged_index = 1
        self.acknowledged = 0
        self.reads = 0
        self.duplicates = 0
        self.refused = 0
        self._committed_in: dict[int, int] = {}  # the term of the member that applied it first
        self._acknowledged_in: dict[int, int] = {}  # the highest index acknowledged in each term
        # (index, term): command, term of the entry before
        self._entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        self._results: dict[int, ApplyResult] = {}
        self._hashes: dict[int, str] = {}
        self._outcomes: dict[tuple[str, int], tuple[object, object]] = {}
        self._looks: dict[int, _Look] = {}
        self.promises: dict[int, Promises] = {node_id: Promises() for node_id in options.ids}

    def broken(self, what: str) -> NoReturn:
        raise Broken(
            f"seed {self._options.seed}, {self._options.voters} voters, at {self._schedule.now:.3f} s: {what}"
        )

    # ---- members -------------------------------------------------------------------------------------------

    def started(self, node_id: int, core: RaftCore) -> None:
        self._looks[node_id] = _Look()
        missing = self.promises[node_id].missing_in(core.journal)
        if missing:
            self.broken(f"node {node_id} starts again: {missing}")
        self.promises[node_id].watch(core.journal)
        self.observe(node_id, core)

    def disk_lost(self, node_id: int) -> None:
        self.promises[node_id] = Promises()
        self.counts["disks lost"] += 1

    def observe(self, node_id: int, core: RaftCore) -> None:
        """After anything that a member did."""
        look = self._looks[node_id]
        try:
            core.validate()
        except AssertionError as error:
            self.broken(f"node {node_id}: {error}")
        self.promises[node_id].of_journal(core.journal)
        self._look_at_log(node_id, core, look)
        commit_index = core.commit_index
        if not look.commit_index <= commit_index or not core.applied_index <= commit_index <= core.last_index:
            state = (
                f"{look.commit_index} to {commit_index}, applied {core.applied_index}, last {core.last_index}"
            )
            self.broken(f"the commit index of node {node_id} went from {state}")
        look.commit_index = commit_index
        if core.role is not Role.LEADER:
            return
        if look.led_term != core.term:
            look.led_term = core.term
            self._leads(node_id, core)
        if core.active and look.active_term != core.term:
            look.active_term = core.term
            known = max(
                (index for term, index in self._acknowledged_in.items() if term < core.term), default=0
            )
            if core.applied_index < known:
                self.broken(
                    f"node {node_id} is active in term {core.term} without entry {known}, which was "
                    "acknowledged"
                )

    def _leads(self, node_id: int, core: RaftCore) -> None:
        if self.leaders.setdefault(core.term, node_id) != node_id:
            self.broken(f"nodes {node_id} and {self.leaders[core.term]} both lead in term {core.term}")
        journal = core.journal
        first, last = journal[0][1], journal[-1][1]
        for index in range(self.last_index, first, -1):
            if self._committed_in[index] < core.term and (
                index > last or journal[index - first][2] != self.history[index][1]
            ):
                self.broken(f"node {node_id} leads in term {core.term} without committed entry {index}")

    def _look_at_log(self, node_id: int, core: RaftCore, look: _Look) -> None:
        journal = core.journal
        tail, length = journal[-1], len(journal)
        if look.tail is not None and look.tail[0] is tail and look.tail[1] == length:
            return
        look.tail = (tail, length)
        for position in range(length - 1, 0, -1):
            entry = journal[position]
            command, index, term = entry
            if look.entries.get(index) is entry:
                break
            look.entries[index] = entry
            before = journal[position - 1]
            known = self._entries.setdefault((index, term), (command, before[2]))
            if before[1] != index - 1 or known != (command, before[2]):
                here = f"on node {node_id} {command!r} after term {before[2]}"
                self.broken(f"entry {index} of term {term} is {known[0]!r} after term {known[1]}, {here}")

    # ---- commands ------------------------------------------------------------------------------------------

    def committed(self, node_id: int, core: RaftCore | None, entries: list[Entry]) -> None:
        """On the Raft thread of this member; without a core while that is being opened."""
        for command, index, term in entries:
            known = self.history.setdefault(index, (command, term))
            if known != (command, term):
                self.broken(f"committed entry {index} is {known}, and on node {node_id} {(command, term)}")
            if core is not None:
                self._committed_in[index] = min(self._committed_in.get(index, core.term), core.term)
            if index > self.last_index + 1:
                self.broken(
                    f"entry {index} is applied on node {node_id}, and no member has seen entry "
                    f"{self.last_index + 1}"
                )
            self.last_index = max(self.last_index, index)

    def applied(self, node_id: int, index: int, result: ApplyResult) -> None:
        """On the loop of this member."""
        known = self._results.setdefault(index, result)
        if known is result:
            return
        if known != result:
            self.broken(f"entry {index} came to {known}, and on node {node_id} to {result}")

    def state_is(self, node_id: int, index: int, state_hash: str) -> None:
        if self._hashes.setdefault(index, state_hash) != state_hash:
            self.broken(f"the state after entry {index} is another one on node {node_id}")

    def compare_states(self, states: Mapping[int, ClusterState]) -> None:
        """Every member has applied the same, each in its own way: from the log, from snapshots, over
        restarts.  Once more from the log, and the bytes of each member's state must be the same."""
        replayed, validator = ClusterState(), StateValidator()
        for index in sorted(self.history):
            command, term = self.history[index]
            result = replayed.apply(index, term, command)
            try:
                validator.check(replayed, result)
            except AssertionError as error:
                self.broken(f"entry {index} breaks an invariant: {error}")
        wanted = replayed.encode()
        for node_id, state in states.items():
            if state.encode() != wanted:
                self.broken(f"the state of node {node_id} is not what the log leads to")
        restored = ClusterState()
        restored.restore(wanted)
        if restored.encode() != wanted:
            self.broken("a state that is restored from its own snapshot is another one")
        for violation in violations(replayed):
            self.broken(f"the state breaks an invariant: {violation}")

    def answered(
        self, asked_after: int, result: ApplyResult, name: tuple[str, int] | None, *, is_read: bool = False
    ) -> None:
        """A client got this result; when it sent the request, everything up to `asked_after` had been
        acknowledged."""
        if result.index <= asked_after:
            self.broken(
                f"an answer as of entry {result.index} to a request sent after entry {asked_after} "
                "was acknowledged"
            )
        if result.index not in self.history:
            self.broken(f"entry {result.index} was acknowledged and is not committed")
        self.acknowledged_index = max(self.acknowledged_index, result.index)
        self._acknowledged_in[result.term] = max(self._acknowledged_in.get(result.term, 0), result.index)
        self.acknowledged += 1
        self.reads += is_read
        self.refused += not result.ok
        if name is None or result.error is ErrorCode.NOT_CONTROLLER:
            # planned in another term: refused when it is proposed in this one, whatever its outcome in the
            # other term
            return
        self.duplicates += result.duplicate
        outcome = (result.error, result.value)
        if self._outcomes.setdefault(name, outcome) != outcome:
            self.broken(
                f"the command {name} came to {self._outcomes[name]} and, proposed again, to {outcome}"
            )
