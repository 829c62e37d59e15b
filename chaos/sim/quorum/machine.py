"""The event loop's side of a member, as `controller/service/metadata_log.py` has it: what the Raft thread
decided crosses over in order, is applied to the real `ClusterState`, and only then answers its proposer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ....controller.raft.contract import Proposal, QuorumStatus, Role
from ....controller.raft.messages import Entry
from ....controller.raft.snapshot_store import Snapshot, SnapshotStore
from ....controller.raft.thread import SnapshotStored
from ....controller.state.cluster_state import ClusterState
from ....controller.state.model import ApplyResult
from .ledger import Ledger
from .options import QuorumOptions
from .process import Process
from .schedule import Schedule

HASH_EVERY = 16
Answer = Callable[[ApplyResult | None], None]
"""Called with the result, or with None: not applied, or it is unknown whether it was."""


class Machine:
    """One life of it."""

    state_class: type[ClusterState] = ClusterState

    def __init__(
        self,
        process: Process,
        snapshots: SnapshotStore,
        ledger: Ledger,
        schedule: Schedule,
        options: QuorumOptions,
    ) -> None:
        self._process, self._snapshots, self._ledger = process, snapshots, ledger
        self._random, self._lag_s = schedule.random, options.lag_s
        self.state = self.state_class()
        self.status = QuorumStatus(Role.FOLLOWER, 0, -1, False, 0, 0)
        self._crossing: deque[Callable[[], None]] = deque()
        self._waiting: dict[int, tuple[int, Answer]] = {}

    # ---- called on the Raft thread -------------------------------------------------------------------------

    def applied(self, entries: list[Entry]) -> None:
        self._ledger.committed(self._process.node_id, self._process.core, entries)
        self._cross(lambda: self._apply(entries))

    def installed(self, snapshot: Snapshot) -> None:
        self._cross(lambda: self._install(snapshot))

    def snapshot_wanted(self) -> None:
        self._cross(self._make_snapshot)

    def status_changed(self, status: QuorumStatus) -> None:
        self._cross(lambda: self._set_status(status))

    def _cross(self, event: Callable[[], None]) -> None:
        self._crossing.append(event)
        self._process.later(self._lag_s * self._random.random(), self.turn)

    # ---- on the loop ---------------------------------------------------------------------------------------

    def turn(self) -> None:
        while self._crossing:
            self._crossing.popleft()()

    def propose(self, command: bytes, answer: Answer) -> bool:
        """False: this node does not lead as far as it knows, nothing was proposed."""
        if not self.status.active:
            return False

        def wait(index: int, term: int) -> None:
            self._waiting[index] = (term, answer)

        def accepted(index: int, term: int) -> None:
            self._cross(lambda: wait(index, term))

        self._process.post(Proposal(command, accepted, lambda reason: self._cross(lambda: answer(None))))
        return True

    def read(self, answer: Answer) -> bool:
        """A committed barrier: when it completes, `state` holds everything that was acknowledged before this
        call."""
        return self.propose(b"", answer)

    def _set_status(self, status: QuorumStatus) -> None:
        self.status = status

    def _apply(self, entries: list[Entry]) -> None:
        for command, index, term in entries:
            assert index == self.state.index + 1, f"entry {index} came after {self.state.index}"
            result = self.state.apply(index, term, command)
            self._ledger.applied(self._process.node_id, index, result)
            if index % HASH_EVERY == 0:
                self._ledger.state_is(self._process.node_id, index, self.state.state_hash())
            waiting = self._waiting.pop(index, None)
            if waiting is not None:
                waiting[1](result if waiting[0] == term else None)

    def _install(self, snapshot: Snapshot) -> None:
        self.state.restore(bytes(snapshot.state))
        assert self.state.index == snapshot.index, (
            f"the snapshot of entry {snapshot.index} holds entry {self.state.index}"
        )
        self._ledger.state_is(self._process.node_id, snapshot.index, self.state.state_hash())
        for index in [index for index in self._waiting if index <= snapshot.index]:
            self._waiting.pop(index)[1](None)

    def _make_snapshot(self) -> None:
        """Frozen now, encoded and stored a little later on another thread, and again later the Raft thread is
        notified."""
        index, term, encode = self.state.index, self.state.term, self.state.freeze()
        process, random = self._process, self._random

        def store() -> None:
            self._snapshots.store(Snapshot.make(index, term, encode()))
            process.later(random.random() * 0.02, lambda: process.post(SnapshotStored(index)))

        process.later(random.random() ** 3 * 0.5, store)
